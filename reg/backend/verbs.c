/*
 * The verbs backend. A registration is a memory region (MR) of the caller's protection domain, made by ibv_reg_mr().
 *
 * An MR is always made at the program's own address (iova == addr), so that addresses in work requests are the
 * program's pointers. A device can also use a large page only if both addresses agree in their low bits
 * (ib_umem_find_best_pgsz).
 *
 * The kernel (ib_umem_get) charges each 4 KiB page of each MR against RLIMIT_MEMLOCK until ibv_dereg_mr(), including
 * pages of hugepages, and twice if a page is in two MRs. Errors are those of struct hugepin_backend. ENOMEM: above that
 * limit. EPERM: the limit is 0. EAGAIN: a limit of the rdma cgroup. EFAULT: the memory does not exist, or is read-only
 * and would be written.
 *
 * Threads: the domain calls verbs_reg() on several threads at a time (HUGEPIN_LIMIT_PARALLEL), since ibv_reg_mr()
 * allows this and the kernel pins pages of several MRs at a time. Other functions are called one at a time. struct
 * verbs is written once, when the domain is opened.
 */
#include "hugepin_verbs.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "base/memlock.h"
#include "reg/backend/device_paging.h"
#include "reg/backend/terms.h"
#include "reg/backend/verbs.h"

#define PREFETCH_BYTES ((size_t)1 << 30) /* at most so much in one call: the length in struct ibv_sge has 32 bits */
#define PREFETCH_TRIES 8 /* on EAGAIN: the mapping changed meanwhile */

/* hugepin_reg.cookie is the address of struct ibv_mr. This bit is set if the device may write. */
#define COOKIE_WRITABLE UINT64_C(1)

/* Operations that a reliable connection must support on memory that is not pinned. */
#define ODP_NEEDED (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ)

typedef int advise_fn(struct ibv_pd *, enum ibv_advise_mr_advice, uint32_t flags, struct ibv_sge *, uint32_t n);

struct verbs {
	struct ibv_pd *pd;
	advise_fn *advise; /* the kernel's call behind ibv_advise_mr(), or NULL */
	struct hugepin_limits limits;
	bool odp_atomic; /* the device supports atomics on memory that is not pinned */
};

/* ------------------------------------------------------------------ limits */

/* Find the function by which providers pass advice on to the kernel. ibv_advise_mr() refuses where the device's
 * provider does not pass it on, such as that for soft-RoCE of rdma-core before 59, though the kernel could. The
 * function works for each device, and libibverbs exports it to providers alone, with a version that changes when any of
 * these functions does; in this version it is as declared here. An ioctl of our own would need the kernel's number of
 * the driver, which libibverbs hides. */
static advise_fn *find_advise(void)
{
	return (advise_fn *)dlvsym(RTLD_DEFAULT, "ibv_cmd_advise_mr", "IBVERBS_PRIVATE_34");
}

static bool registers_on_demand(const struct ibv_device_attr_ex *a)
{
	return a->odp_caps.general_caps & IBV_ODP_SUPPORT &&
	       (a->odp_caps.per_transport_caps.rc_odp_caps & ODP_NEEDED) == ODP_NEEDED;
}

bool hp_verbs_odp(struct ibv_context *context)
{
	struct ibv_device_attr_ex device = { 0 };

	return !ibv_query_device_ex(context, NULL, &device) && registers_on_demand(&device);
}

static int query_device(struct verbs *v, struct ibv_pd *pd)
{
	struct ibv_device_attr_ex device = { 0 };
	int err = ibv_query_device_ex(pd->context, NULL, &device);
	if (err)
		return err > 0 ? -err : -EIO;
	*v = (struct verbs){ .pd = pd, .advise = find_advise() };

	uint64_t len_max = device.orig_attr.max_mr_size;
	/* Devices without a limit report 0, or the largest number of their own width. */
	if (len_max >= hp_base_page && len_max <= SIZE_MAX / 2)
		v->limits.len_max = len_max & -hp_base_page;
	v->limits.bytes_max = hp_memlock_max(HP_MEMLOCK_PIN);
	v->limits.regs_max = device.orig_attr.max_mr > 0 ? (uint32_t)device.orig_attr.max_mr : 0;

	v->limits.access =
		HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE | HUGEPIN_RELAXED;
	if (device.orig_attr.atomic_cap != IBV_ATOMIC_NONE)
		v->limits.access |= HUGEPIN_REMOTE_ATOMIC;

	v->limits.flags = HUGEPIN_LIMIT_PARALLEL;
	if (registers_on_demand(&device))
		v->limits.flags |= HUGEPIN_LIMIT_ODP;
	v->odp_atomic = device.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_ATOMIC;
	return 0;
}

/* Each name is a line of a file, so replace line breaks. */
static void put_name(char *to, size_t size, const char *format, const char *text, unsigned a, unsigned b)
{
	snprintf(to, size, format, text, a, b);
	for (; *to; to++)
		if ((unsigned char)*to < ' ')
			*to = '_';
}

int hp_verbs_testbed(struct ibv_context *context, struct hp_testbed *ret_)
{
	struct ibv_device_attr a;
	int err = ibv_query_device(context, &a);

	if (err)
		return err == -1 ? -EIO : err > 0 ? -err : err;
	put_name(ret_->device, sizeof ret_->device, "%.32s %x:%x", ibv_get_device_name(context->device), a.vendor_id,
		 a.vendor_part_id);
	put_name(ret_->firmware, sizeof ret_->firmware, "%s", a.fw_ver, 0, 0);
	hp_results_cpu(ret_->cpu, sizeof ret_->cpu);
	return 0;
}

/* ------------------------------------------------------------------ the backend's functions */

static int verbs_limits(void *ctx, struct hugepin_limits *ret_)
{
	*ret_ = ((const struct verbs *)ctx)->limits;
	return 0;
}

static bool device_writes(unsigned access)
{
	return access & (HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE | HUGEPIN_REMOTE_ATOMIC);
}

static struct ibv_mr *mr_of(const struct hugepin_reg *reg)
{
	return (struct ibv_mr *)(uintptr_t)(reg->cookie & ~COOKIE_WRITABLE);
}

/* The flags of ibv_reg_mr(). */
static unsigned flags_of(unsigned access)
{
	unsigned flags = 0;
	if (device_writes(access)) /* verbs demand local write access for remote writes */
		flags |= IBV_ACCESS_LOCAL_WRITE;
	if (access & HUGEPIN_REMOTE_READ)
		flags |= IBV_ACCESS_REMOTE_READ;
	if (access & HUGEPIN_REMOTE_WRITE)
		flags |= IBV_ACCESS_REMOTE_WRITE;
	if (access & HUGEPIN_REMOTE_ATOMIC)
		flags |= IBV_ACCESS_REMOTE_ATOMIC;
	if (access & HUGEPIN_RELAXED)
		flags |= IBV_ACCESS_RELAXED_ORDERING;
	if (access & HUGEPIN_ON_DEMAND)
		flags |= IBV_ACCESS_ON_DEMAND;
	return flags;
}

/* What a function that registers has returned, with errno 0 before it. */
static int take_mr(struct ibv_mr *mr, unsigned access, struct hugepin_reg *ret_)
{
	if (!mr)
		return errno ? -errno : -EIO;
	*ret_ = (struct hugepin_reg){
		.lkey = mr->lkey,
		.rkey = mr->rkey,
		.cookie = (uintptr_t)mr | (device_writes(access) ? COOKIE_WRITABLE : 0),
	};
	return 0;
}

static int verbs_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	const struct verbs *v = ctx;
	unsigned flags = flags_of(access);
	if (access & HUGEPIN_ON_DEMAND && access & HUGEPIN_REMOTE_ATOMIC && !v->odp_atomic)
		return -EOPNOTSUPP;

	int saved_errno = errno;
	errno = 0;
	int err = take_mr(ibv_reg_mr(v->pd, addr, len, flags), access, ret_);
	errno = saved_errno;
	return err;
}

/* Providers without dma-bufs, such as that for soft-RoCE, say EOPNOTSUPP; a kernel without them says EPROTONOSUPPORT. */
static int verbs_reg_dmabuf(void *ctx, int fd, uint64_t offset, size_t len, uint64_t iova, unsigned access,
			    struct hugepin_reg *ret_)
{
	const struct verbs *v = ctx;
	int saved_errno = errno;
	errno = 0;
	int err = take_mr(ibv_reg_dmabuf_mr(v->pd, offset, len, iova, fd, (int)flags_of(access)), access, ret_);
	errno = saved_errno;
	return err == -EPROTONOSUPPORT || err == -ENOSYS ? -EOPNOTSUPP : err;
}

static int verbs_dereg(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx;
	int saved_errno = errno;
	int err = ibv_dereg_mr(mr_of(reg));
	errno = saved_errno;
	return err > 0 ? -err : err;
}

static int advise(struct ibv_pd *pd, advise_fn *by_kernel, enum ibv_advise_mr_advice advice, struct ibv_sge *sge)
{
	int err = ibv_advise_mr(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, sge, 1);

	if (err == EOPNOTSUPP && by_kernel)
		err = by_kernel(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, sge, 1);
	return err;
}

/* Have the device fill its page table. Missing pages are faulted in. 0 or errno. */
static int bring(struct ibv_pd *pd, advise_fn *by_kernel, uint32_t lkey, bool writable, char *addr, size_t len)
{
	/* After advice to read, the first write to a page faults, and takes the page from the device again. */
	enum ibv_advise_mr_advice advice =
		writable ? IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE : IBV_ADVISE_MR_ADVICE_PREFETCH;
	for (size_t done = 0, n; done < len; done += n) {
		n = len - done < PREFETCH_BYTES ? len - done : PREFETCH_BYTES;
		struct ibv_sge sge = { .addr = (uintptr_t)addr + done, .length = (uint32_t)n, .lkey = lkey };
		int err, tries = 0;
		while ((err = advise(pd, by_kernel, advice, &sge)) == EAGAIN && ++tries < PREFETCH_TRIES)
			sched_yield();
		if (err)
			return err;
	}
	return 0;
}

int hp_verbs_bring(struct ibv_pd *pd, uint32_t lkey, bool writable, void *addr, size_t len)
{
	return bring(pd, find_advise(), lkey, writable, addr, len);
}

/* Some devices accept advice for writable memory only, and some not at all. Then at least bring the pages into memory,
 * so that the device's own faults are short. */
static int verbs_prefetch(void *ctx, const struct hugepin_reg *reg, void *addr, size_t len)
{
	const struct verbs *v = ctx;
	bool writable = reg->cookie & COOKIE_WRITABLE;
	int saved_errno = errno, ret = 0;
	if (bring(v->pd, v->advise, reg->lkey, writable, addr, len)) {
		int err = hp_populate((uintptr_t)addr, len, writable);
		ret = err ? err : 1;
	}
	errno = saved_errno;
	return ret;
}

static int verbs_paging(void *ctx, struct hugepin_paging *ret_)
{
	const struct verbs *v = ctx;
	int saved_errno = errno;
	int err = v->limits.flags & HUGEPIN_LIMIT_ODP ? hp_verbs_paging(v->pd, ret_) : -EOPNOTSUPP;
	errno = saved_errno;
	return err;
}

/* Calibration may have measured this device. */
static int verbs_terms(void *ctx, struct hugepin_terms *ret_)
{
	const struct verbs *v = ctx;
	struct hp_testbed testbed;
	int saved_errno = errno;
	int err = hp_verbs_testbed(v->pd->context, &testbed);
	err = err ? err : hp_terms_of(&testbed, ret_);
	errno = saved_errno;
	return err;
}

static void verbs_close(void *ctx)
{
	free(ctx);
}

static const struct hugepin_backend backend = {
	.size = sizeof backend,
	.name = "verbs",
	.reg = verbs_reg,
	.dereg = verbs_dereg,
	.prefetch = verbs_prefetch,
	.limits = verbs_limits,
	.close = verbs_close,
	.paging = verbs_paging,
	.terms = verbs_terms,
	.reg_dmabuf = verbs_reg_dmabuf,
};

int hugepin_verbs_open(struct ibv_pd *pd, const struct hugepin_attr *attr, hugepin_domain **ret_)
{
	if (!pd || !ret_)
		return -EINVAL;

	int saved_errno = errno;
	struct verbs *v = malloc(sizeof *v);
	int err = v ? query_device(v, pd) : -ENOMEM;
	if (!err) {
		err = hugepin_domain_open(&backend, v, attr, ret_);
		if (err != -EINVAL) /* the domain owns v now, or has freed it */
			v = NULL;
	}
	free(v);
	errno = saved_errno;
	return err;
}

int hugepin_verbs_mr(hugepin_domain *domain, const struct hugepin_pin *pin, struct ibv_mr **ret_)
{
	struct hugepin_reg reg;
	int err = ret_ ? hugepin_pin_reg(domain, &backend, pin, &reg) : -EINVAL;

	if (!err)
		*ret_ = mr_of(&reg);
	return err;
}
