/*
 * The verbs backend on a device that writes down what it is asked for: limits from what the device and the kernel say, access flags,
 * errors, advice. What real devices make of it, tests/guest/verbs.c sees.
 */
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "hugepin_verbs.h"
#include "reg/domain.h"
#include "tests/device.h"
#include "tests/t.h"
#include "tests/unit/kernel.h"

/* ------------------------------------------------------------------ the device, and the kernel */

static struct {
	struct ibv_device_attr_ex attr;
	int query_error;
	/* Of the last registration, and what it gives. */
	void *addr;
	size_t len;
	uint64_t iova, offset;
	int fd; /* a dma-buf's */
	unsigned flags, access_calls;
	int reg_errno; /* -1: none is set, and it fails */
	struct ibv_mr mr, *undone;
	int dereg_error;
	/* Advice. */
	int advice_error;
	unsigned advice_fails, advices; /* so often with that error */
	enum ibv_advise_mr_advice advice;
	uint32_t advice_flags;
	struct ibv_sge sge[4];
	/* The call behind the provider: whether libibverbs exports it, and what it says. */
	bool exported;
	int kernel_error;
	unsigned kernel_advices;
} dev;

static bool capable; /* CAP_IPC_LOCK */
static const char *status_text; /* of /proc/self/status; NULL: it cannot be opened */
static int populated_as;

static int answer_query(struct ibv_context *context, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *ret,
			size_t size)
{
	(void)context, (void)in;
	memcpy(ret, &dev.attr, HP_MIN(size, sizeof dev.attr));
	return dev.query_error;
}

static int provider_advise(struct ibv_pd *asked, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sge, uint32_t n)
{
	(void)asked;
	EXPECT_EQ(n, 1);
	dev.advice = advice;
	dev.advice_flags = flags;
	dev.sge[dev.advices++ % 4] = *sge;
	if (!dev.advice_fails)
		return 0;
	dev.advice_fails--;
	return dev.advice_error;
}

static int kernel_advise(struct ibv_pd *asked, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sge,
			 uint32_t n)
{
	EXPECT(asked == dev.mr.pd && n == 1);
	EXPECT_EQ(advice, dev.advice);
	EXPECT_EQ(flags, IBV_ADVISE_MR_FLAG_FLUSH);
	EXPECT(!memcmp(sge, &dev.sge[(dev.advices - 1) % 4], sizeof *sge));
	dev.kernel_advices++;
	return dev.kernel_error;
}

static void *exported(void *handle, const char *name, const char *version)
{
	EXPECT(!handle && !strcmp(name, "ibv_cmd_advise_mr") && !strcmp(version, "IBVERBS_PRIVATE_34"));
	return dev.exported ? (void *)kernel_advise : NULL;
}

/* Included: a function with the name of dlvsym would get the sanitizers' calls, too. */
#define dlvsym exported
#include "reg/backend/verbs.c"
#undef dlvsym

static struct verbs_context device_context = {
	.query_device_ex = answer_query,
	.advise_mr = provider_advise,
	.sz = sizeof device_context,
	.context = { .abi_compat = __VERBS_ABI_IS_EXTENDED },
};
static struct ibv_pd pd = { .context = &device_context.context };

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *p, void *addr, size_t len, uint64_t iova, unsigned flags)
{
	EXPECT(p == &pd);
	dev.addr = addr;
	dev.len = len;
	dev.iova = iova;
	dev.flags = flags;
	dev.access_calls++;
	if (dev.reg_errno > 0)
		errno = dev.reg_errno;
	return dev.reg_errno ? NULL : &dev.mr;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *p, uint64_t offset, size_t len, uint64_t iova, int fd, int flags)
{
	EXPECT(p == &pd);
	dev.addr = NULL;
	dev.offset = offset;
	dev.len = len;
	dev.iova = iova;
	dev.fd = fd;
	dev.flags = (unsigned)flags;
	if (dev.reg_errno > 0)
		errno = dev.reg_errno;
	return dev.reg_errno ? NULL : &dev.mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	dev.undone = mr;
	errno = 99;
	return dev.dereg_error;
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_capget) {
		memset((void *)b, 0, 2 * sizeof(struct __user_cap_data_struct));
		((struct __user_cap_data_struct *)b)[0].effective = capable ? 1u << CAP_IPC_LOCK : ~(1u << CAP_IPC_LOCK);
		return 0;
	}
	if (nr == SYS_openat && !strcmp((const char *)b, "/proc/self/status")) {
		if (status_text)
			return file_with(status_text);
		errno = ENOENT;
		return -1;
	}
	if (nr == SYS_madvise && (c == MADV_POPULATE_WRITE || c == MADV_POPULATE_READ))
		populated_as = (int)c;
	r = raw(nr, a, b, c, d, e, f);
	return result_of(r);
}

static hugepin_domain *open_one(void)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	hugepin_domain *d = NULL;

	errno = 77;
	EXPECT_EQ(hugepin_verbs_open(&pd, &attr, &d), 0);
	EXPECT_EQ(errno, 77);
	return d;
}

static void reset(void)
{
	memset(&dev, 0, sizeof dev);
	dev.attr.orig_attr.max_mr_size = UINT64_MAX;
	capable = true;
	status_text = NULL;
}

/* As the device and the kernel say now. */
static struct hugepin_limits limits_now(void)
{
	hugepin_domain *d = open_one();
	struct hugepin_limits l = { 0 };
	void *ctx;

	if (!d)
		return l;
	EXPECT_EQ(hp_domain_backend(d, &ctx)->limits(ctx, &l), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	return l;
}

/* ------------------------------------------------------------------ limits */

TEST(limits_are_those_that_the_device_says_where_it_has_any)
{
	T_DOMAIN_BEGINS();
	static const uint64_t sizes[][2] = { { 0, 0 },	       { 4095, 0 },		{ 4096, 4096 },
					     { 4097, 4096 },   { UINT64_MAX, 0 },	{ (uint64_t)1 << 63, 0 },
					     { INT64_MAX, INT64_MAX - 4095 }, { 1 << 20, 1 << 20 } };
	struct hugepin_limits l;

	reset();
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		dev.attr.orig_attr.max_mr_size = sizes[i][0];
		l = limits_now();
		EXPECT(l.len_max == sizes[i][1]);
	}
	EXPECT_EQ(l.regs_max, 0);
	EXPECT_EQ(l.bytes_max, 0);
	EXPECT_EQ(l.flags, HUGEPIN_LIMIT_PARALLEL);
	EXPECT_EQ(l.access, HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE | HUGEPIN_RELAXED);
	dev.attr.orig_attr.atomic_cap = IBV_ATOMIC_HCA;
	dev.attr.orig_attr.max_mr = 1;
	l = limits_now();
	EXPECT_EQ(l.regs_max, 1);
	EXPECT_EQ(l.access, HP_ACCESS_ALL);
	dev.attr.orig_attr.max_mr = -1;
	EXPECT_EQ(limits_now().regs_max, 0);
}

TEST(a_device_has_memory_on_demand_if_all_of_it_may_be)
{
	static const uint32_t needed[] = { IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_WRITE, IBV_ODP_SUPPORT_READ };
	uint32_t all = 0;

	reset();
	for (int i = 0; i < 4; i++)
		all |= needed[i];
	dev.attr.odp_caps.general_caps = IBV_ODP_SUPPORT;
	dev.attr.odp_caps.per_transport_caps.rc_odp_caps = all;
	EXPECT_EQ(limits_now().flags, HUGEPIN_LIMIT_ODP | HUGEPIN_LIMIT_PARALLEL);
	for (int i = 0; i < 4; i++) {
		dev.attr.odp_caps.per_transport_caps.rc_odp_caps = all & ~needed[i];
		EXPECT_EQ(limits_now().flags, HUGEPIN_LIMIT_PARALLEL);
	}
	dev.attr.odp_caps.per_transport_caps.rc_odp_caps = all;
	dev.attr.odp_caps.general_caps = 0;
	EXPECT_EQ(limits_now().flags, HUGEPIN_LIMIT_PARALLEL);
}

static void limit_locked(void)
{
	t_failures = 0;
	EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ 10 * 4096 + 5, 10 * 4096 + 5 }), 0);
	EXPECT_EQ(limits_now().bytes_max, 0);
	capable = false;
	EXPECT_EQ(limits_now().bytes_max, 10 * 4096);
	status_text = "Name:\tx\nVmPin:\t       8 kB\nVmPte: 1 kB\n";
	EXPECT_EQ(limits_now().bytes_max, 8 * 4096);
	_exit(t_failures != 0);
}

TEST(what_may_be_locked_is_the_limit_but_for_what_is_pinned_and_for_the_privileged)
{
	int status = -1;
	pid_t pid;

	reset();
	pid = fork();
	if (pid == 0)
		limit_locked();
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}

/* ------------------------------------------------------------------ opening */

TEST(what_cannot_be_opened_is_said_and_the_variable_left_alone)
{
	struct hugepin_attr wrong = { .size = sizeof wrong, .policy = 99 }, odp = { .size = sizeof odp, .policy = HUGEPIN_POLICY_ODP };
	hugepin_domain *d = (void *)16;

	reset();
	EXPECT_EQ(hugepin_verbs_open(NULL, NULL, &d), -EINVAL);
	EXPECT_EQ(hugepin_verbs_open(&pd, NULL, NULL), -EINVAL);
	EXPECT_EQ(hugepin_verbs_open(&pd, &wrong, &d), -EINVAL);
	EXPECT_EQ(hugepin_verbs_open(&pd, &odp, &d), -EOPNOTSUPP);
	dev.query_error = ENODEV;
	EXPECT_EQ(hugepin_verbs_open(&pd, NULL, &d), -ENODEV);
	dev.query_error = -1;
	EXPECT_EQ(hugepin_verbs_open(&pd, NULL, &d), -EIO);
	EXPECT(d == (void *)16);
}

/* ------------------------------------------------------------------ registering */

TEST(a_region_has_the_access_that_was_asked_for_at_the_programs_address)
{
	static const unsigned bits[][2] = { { HUGEPIN_READ, 0 },
					    { HUGEPIN_WRITE, IBV_ACCESS_LOCAL_WRITE },
					    { HUGEPIN_REMOTE_READ, IBV_ACCESS_REMOTE_READ },
					    { HUGEPIN_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE },
					    { HUGEPIN_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE },
					    { HUGEPIN_RELAXED, IBV_ACCESS_RELAXED_ORDERING },
					    { HUGEPIN_ON_DEMAND, IBV_ACCESS_ON_DEMAND } };
	enum { BITS = sizeof bits / sizeof *bits };
	const struct hugepin_backend *b;
	hugepin_domain *d;
	void *ctx;

	reset();
	dev.attr.odp_caps.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_ATOMIC;
	d = open_one();
	b = hp_domain_backend(d, &ctx);
	EXPECT(!strcmp(b->name, "verbs"));
	dev.mr.lkey = 5;
	dev.mr.rkey = 6;
	for (unsigned set = 0; set < 1u << BITS; set++) {
		unsigned access = 0, flags = 0;
		struct hugepin_reg r = { 0 };

		for (unsigned i = 0; i < BITS; i++)
			if (set & 1u << i) {
				access |= bits[i][0];
				flags |= bits[i][1];
			}
		errno = 77;
		EXPECT_EQ(b->reg(ctx, &dev, 12345, access, &r), 0);
		EXPECT_EQ(errno, 77);
		EXPECT(dev.addr == &dev && dev.iova == (uintptr_t)&dev && dev.len == 12345);
		EXPECT_EQ(dev.flags, flags);
		EXPECT(r.lkey == 5 && r.rkey == 6);
		dev.undone = NULL;
		EXPECT_EQ(b->dereg(ctx, &r), 0);
		EXPECT_EQ(errno, 77);
		EXPECT(dev.undone == &dev.mr);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

/* A test of the backend b, with its context, of a domain on the device as it is after reset(). */
#define DEVICE_TEST(fact)                                                                                              \
	static void fact##_body(const struct hugepin_backend *b, void *ctx);                                           \
	TEST(fact)                                                                                                     \
	{                                                                                                              \
		hugepin_domain *d = (reset(), open_one());                                                             \
		void *ctx;                                                                                             \
		const struct hugepin_backend *b = hp_domain_backend(d, &ctx);                                          \
                                                                                                                       \
		fact##_body(b, ctx);                                                                                   \
		EXPECT_EQ(hugepin_domain_close(d), 0);                                                                 \
	}                                                                                                              \
	static void fact##_body(const struct hugepin_backend *b, void *ctx)

TEST(a_pin_has_a_memory_region_while_it_is_out)
{
	static char page[2][8192] __attribute__((aligned(4096)));
	struct hugepin_pin pin, copy;
	struct ibv_mr *mr = NULL;
	hugepin_domain *d, *other;

	reset();
	dev.mr.lkey = 5;
	dev.mr.rkey = 6;
	d = open_one();
	other = open_one();
	EXPECT_EQ(hugepin_pin(d, page, 4096, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(hugepin_verbs_mr(d, &pin, &mr), 0);
	EXPECT(mr == &dev.mr);
	mr = NULL;
	EXPECT_EQ(hugepin_verbs_mr(other, &pin, &mr), -EINVAL);
	EXPECT_EQ(hugepin_verbs_mr(NULL, &pin, &mr), -EINVAL);
	EXPECT_EQ(hugepin_verbs_mr(d, NULL, &mr), -EINVAL);
	EXPECT_EQ(hugepin_verbs_mr(d, &pin, NULL), -EINVAL);
	EXPECT_EQ(hugepin_verbs_mr(d, &(struct hugepin_pin){ 0 }, &mr), -EINVAL);
	copy = pin;
	EXPECT_EQ(hugepin_deregister(d, &pin, 1), 0);
	EXPECT_EQ(hugepin_verbs_mr(d, &pin, &mr), -EINVAL);
	EXPECT_EQ(hugepin_verbs_mr(d, &copy, &mr), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, page, 4096, HUGEPIN_WRITE | HUGEPIN_PIN_UNCACHED, &pin), 0); /* writable: a bit of the cookie */
	EXPECT(!mr);
	EXPECT_EQ(hugepin_verbs_mr(d, &pin, &mr), 0);
	EXPECT(mr == &dev.mr);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &d), 0);
	mr = NULL;
	EXPECT_EQ(hugepin_pin(d, page, 4096, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(hugepin_verbs_mr(d, &pin, &mr), -EINVAL);
	EXPECT(!mr);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

DEVICE_TEST(a_refusal_is_told_by_its_number)
{
	struct hugepin_reg r = { .cookie = 77 };

	dev.reg_errno = ENOMEM;
	errno = 77;
	EXPECT_EQ(b->reg(ctx, &dev, 1, HUGEPIN_READ, &r), -ENOMEM);
	dev.reg_errno = -1; /* errno of something else is no reason */
	EXPECT_EQ(b->reg(ctx, &dev, 1, HUGEPIN_READ, &r), -EIO);
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(r.cookie, 77);
	dev.access_calls = 0;
	EXPECT_EQ(b->reg(ctx, &dev, 1, HUGEPIN_REMOTE_ATOMIC | HUGEPIN_ON_DEMAND, &r), -EOPNOTSUPP); /* the device has not got it */
	EXPECT_EQ(dev.access_calls, 0);
	dev.reg_errno = 0;
	EXPECT_EQ(b->reg(ctx, &dev, 1, HUGEPIN_REMOTE_ATOMIC, &r), 0);
	dev.dereg_error = EBUSY;
	EXPECT_EQ(b->dereg(ctx, &r), -EBUSY);
	dev.dereg_error = -EIO;
	EXPECT_EQ(b->dereg(ctx, &r), -EIO);
}

TEST(a_dmabuf_is_registered_as_memory_is)
{
	static const int refusals[][2] = { { EOPNOTSUPP, -EOPNOTSUPP }, { EPROTONOSUPPORT, -EOPNOTSUPP },
					   { ENOSYS, -EOPNOTSUPP },	 { EINVAL, -EINVAL },
					   { ENOMEM, -ENOBUFS },	 { -1, -EIO } };
	struct hugepin_pin pin;
	struct ibv_mr *mr = NULL;
	hugepin_domain *d;

	reset();
	dev.mr.lkey = 5;
	dev.mr.rkey = 6;
	d = open_one();
	errno = 77;
	EXPECT_EQ(hugepin_pin_dmabuf(d, 9, 8192, 100, 4711, HUGEPIN_REMOTE_WRITE, &pin), 0);
	EXPECT(dev.fd == 9 && dev.offset == 8192 && dev.len == 100 && dev.iova == 4711);
	EXPECT_EQ(dev.flags, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE);
	EXPECT(pin.lkey == 5 && pin.rkey == 6 && pin.base == 4711 && pin.len == 100);
	EXPECT_EQ(hugepin_verbs_mr(d, &pin, &mr), 0);
	EXPECT(mr == &dev.mr);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(dev.undone == &dev.mr);
	dev.undone = NULL;
	for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
		dev.reg_errno = refusals[i][0];
		EXPECT_EQ(hugepin_pin_dmabuf(d, 9, 0, 100, 0, 0, &pin), refusals[i][1]);
	}
	EXPECT_EQ(errno, 77);
	EXPECT(!dev.undone);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

/* ------------------------------------------------------------------ advice */

static bool is_there(char *p)
{
	unsigned char is = 0;

	EXPECT_EQ(mincore(p, 4096, &is), 0);
	return is & 1;
}

DEVICE_TEST(advice_is_given_by_gigabytes_and_again_where_the_mapping_changed)
{
	const size_t gib = (size_t)1 << 30;
	char *at = (char *)((uintptr_t)1 << 40);
	struct hugepin_reg w, r;

	dev.mr.lkey = 5;
	EXPECT_EQ(b->reg(ctx, at, 1, HUGEPIN_READ | HUGEPIN_WRITE, &w), 0);
	EXPECT_EQ(b->reg(ctx, at, 1, HUGEPIN_READ | HUGEPIN_REMOTE_READ, &r), 0);
	errno = 77;
	EXPECT_EQ(b->prefetch(ctx, &w, at, 2 * gib + 1), 0);
	EXPECT_EQ(dev.advices, 3);
	for (unsigned i = 0; i < 3; i++) {
		EXPECT_EQ(dev.sge[i].addr, (uintptr_t)at + i * gib);
		EXPECT_EQ(dev.sge[i].length, i < 2 ? gib : 1);
		EXPECT_EQ(dev.sge[i].lkey, 5);
	}
	EXPECT_EQ(dev.advice, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE);
	EXPECT_EQ(dev.advice_flags, IBV_ADVISE_MR_FLAG_FLUSH);
	dev.advices = 0;
	EXPECT_EQ(b->prefetch(ctx, &r, at, gib), 0);
	EXPECT_EQ(dev.advices, 1);
	EXPECT_EQ(dev.advice, IBV_ADVISE_MR_ADVICE_PREFETCH);
	dev.advices = 0;
	dev.advice_error = EAGAIN;
	dev.advice_fails = 7;
	EXPECT_EQ(b->prefetch(ctx, &w, at, 4096), 0);
	EXPECT_EQ(dev.advices, 8);
	EXPECT_EQ(errno, 77);
}

TEST(where_the_provider_knows_no_advice_the_kernel_is_asked)
{
	const struct hugepin_backend *b;
	char *p = map(4096);
	struct hugepin_reg w;
	hugepin_domain *d;
	void *ctx;

	reset();
	dev.exported = true;
	dev.mr.pd = &pd;
	d = open_one();
	b = hp_domain_backend(d, &ctx);
	EXPECT_EQ(b->reg(ctx, p, 4096, HUGEPIN_WRITE, &w), 0);
	dev.advice_fails = 100;
	dev.advice_error = EOPNOTSUPP;
	EXPECT_EQ(b->prefetch(ctx, &w, p, 4096), 0);
	EXPECT_EQ(dev.kernel_advices, 1);
	EXPECT(!is_there(p));
	dev.kernel_error = EAGAIN;
	EXPECT_EQ(b->prefetch(ctx, &w, p, 4096), 1);
	EXPECT_EQ(dev.kernel_advices, 9);
	EXPECT(is_there(p));
	dev.advice_error = EFAULT; /* advice is known, and refused */
	EXPECT_EQ(b->prefetch(ctx, &w, p, 4096), 1);
	EXPECT_EQ(dev.kernel_advices, 9);
	munmap(p, 4096);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

DEVICE_TEST(where_advice_is_not_taken_memory_is_made_present)
{
	char *p = map(8 * 4096);
	struct hugepin_reg w, r;

	EXPECT_EQ(madvise(p, 8 * 4096, MADV_NOHUGEPAGE), 0);
	EXPECT_EQ(b->reg(ctx, p, 4096, HUGEPIN_WRITE, &w), 0);
	EXPECT_EQ(b->reg(ctx, p, 4096, HUGEPIN_READ, &r), 0);
	errno = 77;
	dev.advice_error = EAGAIN;
	dev.advice_fails = 100;
	EXPECT_EQ(b->prefetch(ctx, &w, p, 4096), 1);
	EXPECT_EQ(dev.advices, 8);
	EXPECT_EQ(populated_as, MADV_POPULATE_WRITE);
	EXPECT(is_there(p) && !is_there(p + 4096));
	dev.advices = 0;
	dev.advice_error = EOPNOTSUPP;
	EXPECT_EQ(b->prefetch(ctx, &r, p + 2 * 4096, 4096), 1);
	EXPECT_EQ(dev.advices, 1);
	EXPECT_EQ(populated_as, MADV_POPULATE_READ);
	munmap(p + 4 * 4096, 4096);
	EXPECT_EQ(b->prefetch(ctx, &w, p + 4 * 4096, 4096), -ENOMEM);
	EXPECT_EQ(errno, 77);
	munmap(p, 8 * 4096);
}

T_MAIN
