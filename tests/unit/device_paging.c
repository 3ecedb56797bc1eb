/*
 * What a device counts of memory that is registered on demand, from dumps as the kernel writes them (mlx5's driver and
 * others): the sockets of libmnl are a kernel with a few devices and regions.
 */
#include "reg/backend/device_paging.h"

#include <errno.h>
#include <libmnl/libmnl.h>
#include <rdma/rdma_netlink.h>

#include "reg/backend/dump.h"
#include "tests/t.h"

/* ------------------------------------------------------------------ the kernel */

enum { NONE = 0, OLD = 2, ALL = 5 }; /* counters: of a pinned region, of mlx5 before Linux 5.10, of mlx5 since */

static const char *const counters[] = { "page_faults", "page_invalidations", "page_faults_handled", "page_invalidations_handled",
					"page_prefetch" };
struct region {
	uint32_t number, pd, thread;
	uint64_t len;
	int counters;
	uint64_t values[5];
};

static struct {
	struct region regions[40];
	unsigned count;
	int probe_counters; /* of what is registered on demand from now on */
	uint32_t probe_pd;
	bool shows_no_length;
	/* Failures, by the command's number; 0: none. */
	uint16_t refused, interrupted, garbled;
	bool short_length; /* a region's length has 32 bits */
	int error;
	int open_errno, reg_errno;
	/* The dump that is under way. */
	uint16_t command;
	uint32_t seq;
	unsigned at;
	int sockets, probes;
} kernel;

static char socket_memory;
static struct ibv_mr probe;

struct mnl_socket *mnl_socket_open2(int bus, int flags)
{
	EXPECT_EQ(bus, NETLINK_RDMA);
	EXPECT_EQ(flags, SOCK_CLOEXEC);
	errno = kernel.open_errno;
	if (kernel.open_errno)
		return NULL;
	kernel.sockets++;
	return (struct mnl_socket *)&socket_memory;
}

int mnl_socket_close(struct mnl_socket *s)
{
	EXPECT((char *)s == &socket_memory);
	kernel.sockets--;
	errno = 99;
	return 0;
}

ssize_t mnl_socket_sendto(const struct mnl_socket *s, const void *request, size_t len)
{
	const struct nlmsghdr *m = request;
	struct nlattr *a = mnl_nlmsg_get_payload(m);

	(void)s;
	EXPECT_EQ(len, m->nlmsg_len);
	EXPECT(m->nlmsg_flags & NLM_F_DUMP);
	kernel.command = RDMA_NL_GET_OP(m->nlmsg_type);
	kernel.seq = m->nlmsg_seq;
	kernel.at = 0;
	if (kernel.command != RDMA_NLDEV_CMD_GET) {
		EXPECT_EQ(mnl_attr_get_type(a), RDMA_NLDEV_ATTR_DEV_INDEX);
		EXPECT_EQ(mnl_attr_get_u32(a), 7);
	}
	if (kernel.command == RDMA_NLDEV_CMD_STAT_GET) {
		a = mnl_attr_next(a);
		EXPECT_EQ(mnl_attr_get_type(a), RDMA_NLDEV_ATTR_STAT_RES);
		EXPECT_EQ(mnl_attr_get_u32(a), RDMA_NLDEV_ATTR_RES_MR);
	}
	return (ssize_t)len;
}

static struct nlmsghdr *begin_message(void *bytes)
{
	struct nlmsghdr *m = mnl_nlmsg_put_header(bytes);

	m->nlmsg_type = (uint16_t)RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, kernel.command);
	m->nlmsg_flags = NLM_F_MULTI;
	m->nlmsg_seq = kernel.seq;
	return m;
}

static struct nlmsghdr *end_of_dump(void *bytes, int error)
{
	struct nlmsghdr *m = begin_message(bytes);
	struct nlmsgerr *e;

	m->nlmsg_type = error ? NLMSG_ERROR : NLMSG_DONE;
	e = mnl_nlmsg_put_extra_header(m, sizeof *e);
	e->error = -error;
	return m;
}

static void put_counters(struct nlmsghdr *m, const struct region *r)
{
	struct nlattr *table = mnl_attr_nest_start(m, RDMA_NLDEV_ATTR_STAT_HWCOUNTERS);

	for (int i = 0; i < r->counters; i++) {
		struct nlattr *entry = mnl_attr_nest_start(m, RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY);

		mnl_attr_put_strz(m, RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME, counters[i]);
		mnl_attr_put_u64(m, RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE, r->values[i]);
		mnl_attr_nest_end(m, entry);
	}
	mnl_attr_nest_end(m, table);
}

static void put_region(struct nlmsghdr *m, const struct region *r)
{
	struct nlattr *entry = mnl_attr_nest_start(m, RDMA_NLDEV_ATTR_RES_MR_ENTRY);

	if (kernel.command == RDMA_NLDEV_CMD_RES_MR_GET) {
		if (kernel.short_length)
			mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_RES_MRLEN, (uint32_t)r->len);
		else if (!kernel.shows_no_length)
			mnl_attr_put_u64(m, RDMA_NLDEV_ATTR_RES_MRLEN, r->len);
		mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_RES_MRN, r->number);
		if (r->pd)
			mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_RES_PDN, r->pd);
		if (r->thread)
			mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_RES_PID, r->thread);
		mnl_attr_put_strz(m, RDMA_NLDEV_ATTR_RES_KERN_NAME, "not looked at");
	} else {
		mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_RES_MRN, r->number);
		if (r->counters)
			put_counters(m, r);
	}
	mnl_attr_nest_end(m, entry);
}

static void put_garbled(struct nlmsghdr *m, uint16_t type)
{
	struct nlattr *entry = mnl_attr_nest_start(m, type);

	mnl_attr_put_u16(m, RDMA_NLDEV_ATTR_RES_MRN, 1);
	mnl_attr_nest_end(m, entry);
}

/* Three devices in one message; of regions, 16 in each, so that a table goes on in the next. */
ssize_t mnl_socket_recvfrom(const struct mnl_socket *s, void *bytes, size_t room)
{
	static const char *const names[] = { "mlx5_1", "mlx5_0", "mlx5_01" };
	struct nlmsghdr *m;

	(void)s;
	EXPECT_EQ(room, 32768);
	if (kernel.refused == kernel.command)
		return (ssize_t)end_of_dump(bytes, kernel.error)->nlmsg_len;
	if (kernel.command == RDMA_NLDEV_CMD_GET ? kernel.at : kernel.at && kernel.at == kernel.count)
		return (ssize_t)end_of_dump(bytes, 0)->nlmsg_len;
	m = begin_message(bytes);
	if (kernel.interrupted == kernel.command && kernel.at)
		m->nlmsg_flags |= NLM_F_DUMP_INTR;
	if (kernel.command == RDMA_NLDEV_CMD_GET) {
		char *at = bytes;

		for (; kernel.at < 3; at += NLMSG_ALIGN(m->nlmsg_len)) {
			m = begin_message(at);
			mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_DEV_INDEX, 6 + kernel.at);
			mnl_attr_put_strz(m, RDMA_NLDEV_ATTR_DEV_NAME, names[kernel.at++]);
		}
		if (kernel.garbled == kernel.command)
			((struct nlattr *)mnl_nlmsg_get_payload(m))->nla_len--; /* a number of three bytes */
		return at - (char *)bytes;
	}
	mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_DEV_INDEX, 7);
	struct nlattr *table = mnl_attr_nest_start(m, RDMA_NLDEV_ATTR_RES_MR);
	for (int i = 0; i < 16 && kernel.at < kernel.count; i++)
		put_region(m, &kernel.regions[kernel.at++]);
	/* Entries of another type are passed over, whatever is in them. */
	put_garbled(m, kernel.garbled == kernel.command ? RDMA_NLDEV_ATTR_RES_MR_ENTRY : RDMA_NLDEV_ATTR_RES_QP_ENTRY);
	mnl_attr_nest_end(m, table);
	return m->nlmsg_len;
}

static struct region *add(uint32_t pd, int counted)
{
	struct region *r = &kernel.regions[kernel.count++];

	*r = (struct region){ 100 - 2 * kernel.count, pd, (uint32_t)getpid(), 4096 * kernel.count, counted, { 0 } };
	return r;
}

/* What the macro ibv_reg_mr() calls for flags that are constant. */
struct ibv_mr *(ibv_reg_mr)(struct ibv_pd *pd, void *addr, size_t len, int flags)
{
	(void)pd, (void)addr;
	EXPECT_EQ(flags, IBV_ACCESS_ON_DEMAND);
	errno = kernel.reg_errno;
	if (kernel.reg_errno)
		return NULL;
	struct region *r = add(kernel.probe_pd, kernel.probe_counters);
	r->thread = (uint32_t)gettid();
	r->len = len;
	kernel.probes++;
	return &probe;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	EXPECT(mr == &probe);
	kernel.count--;
	kernel.probes--;
	errno = 98;
	return 0;
}

/* ------------------------------------------------------------------ a program's protection domain, 3 */

static struct ibv_device device = { .name = "mlx5_0" };
static struct ibv_context context = { .device = &device };
static struct ibv_pd pd = { .context = &context };

/* 20 regions of ours, with other programs' between them. */
static void reset(int probe_counters)
{
	memset(&kernel, 0, sizeof kernel);
	kernel.probe_counters = probe_counters;
	kernel.probe_pd = 3;
	for (unsigned i = 0; i < 30; i++) {
		struct region *r = add(i % 3 ? 3 : 5, i == 4 ? (int)NONE : probe_counters);

		for (int c = 0; c < 5; c++)
			r->values[c] = i % 3 ? (uint64_t)(c + 1) << 33 : 1;
	}
	kernel.regions[7].thread = 0; /* its thread has ended */
	kernel.regions[6].pd = 0; /* the kernel's own */
}

/* 0, and *p; else nothing was written. Nothing is left open or registered. */
static int ask(struct hugepin_paging *p)
{
	const struct hugepin_paging before = { 11, 12, 13 };
	int err;

	*p = before;
	err = hp_verbs_paging(&pd, p);
	EXPECT_EQ(kernel.sockets, 0);
	EXPECT_EQ(kernel.probes, 0);
	if (err)
		EXPECT(!memcmp(p, &before, sizeof before));
	return err;
}

TEST(the_counts_of_all_regions_of_the_protection_domain_are_added_up)
{
	struct hugepin_paging p;

	reset(ALL);
	EXPECT_EQ(ask(&p), 0);
	EXPECT_EQ(p.faults, UINT64_C(19) << 33);
	EXPECT_EQ(p.invalidations, UINT64_C(2 * 19) << 33);
	EXPECT_EQ(p.prefetches, UINT64_C(5 * 19) << 33);
}

TEST(what_the_device_does_not_count_is_told)
{
	struct hugepin_paging p;

	reset(OLD);
	EXPECT_EQ(ask(&p), 0);
	EXPECT_EQ(p.faults, UINT64_C(19) << 33);
	EXPECT_EQ(p.invalidations, UINT64_C(2 * 19) << 33);
	EXPECT_EQ(p.prefetches, HUGEPIN_NOT_COUNTED);
	reset(NONE);
	EXPECT_EQ(ask(&p), -EOPNOTSUPP);
	/* Another program's count is not a sign that ours would be counted. */
	kernel.regions[0].counters = ALL;
	EXPECT_EQ(ask(&p), -EOPNOTSUPP);
}

TEST(a_device_that_counts_counts_nothing_of_what_is_not_registered)
{
	struct hugepin_paging p;

	reset(ALL);
	kernel.count = 0;
	EXPECT_EQ(ask(&p), 0);
	EXPECT_EQ(p.faults, 0);
	EXPECT_EQ(p.invalidations, 0);
	EXPECT_EQ(p.prefetches, 0);
}

TEST(what_fails_is_told_and_nothing_stays)
{
	static const uint16_t commands[] = { RDMA_NLDEV_CMD_GET, RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_CMD_STAT_GET };
	struct hugepin_paging p;

	for (unsigned i = 0; i < 3; i++) {
		reset(ALL);
		kernel.refused = commands[i];
		kernel.error = EPERM;
		EXPECT_EQ(ask(&p), -EPERM);
		reset(ALL);
		kernel.garbled = commands[i];
		EXPECT_EQ(ask(&p), -EPROTO);
	}
	reset(ALL);
	kernel.short_length = true;
	EXPECT_EQ(ask(&p), -EPROTO);
	reset(ALL);
	kernel.reg_errno = ENOMEM;
	EXPECT_EQ(ask(&p), -ENOMEM);
	reset(ALL);
	kernel.open_errno = EMFILE;
	EXPECT_EQ(ask(&p), -EMFILE);
	kernel.open_errno = EPROTONOSUPPORT; /* a kernel without RDMA */
	EXPECT_EQ(ask(&p), -EOPNOTSUPP);
	reset(ALL);
	kernel.refused = RDMA_NLDEV_CMD_STAT_GET; /* a kernel that knows no such statistics */
	kernel.error = EINVAL;
	EXPECT_EQ(ask(&p), -EOPNOTSUPP);
	reset(ALL);
	strcpy(device.name, "mlx5_2");
	EXPECT_EQ(ask(&p), -ENODEV);
	strcpy(device.name, "mlx5_0");
}

TEST(a_probe_that_is_not_known_for_certain_counts_nothing)
{
	struct hugepin_paging p;

	reset(ALL);
	kernel.shows_no_length = true;
	EXPECT_EQ(ask(&p), -EOPNOTSUPP);
	reset(ALL);
	kernel.regions[0].len = 4093;
	kernel.regions[0].thread = (uint32_t)gettid();
	EXPECT_EQ(ask(&p), -EOPNOTSUPP);
}

/* Lengths of messages are rounded up, but what lies behind the message is not the kernel's word. */
TEST(nothing_behind_a_message_is_read)
{
	_Alignas(struct nlmsghdr) char bytes[256];
	struct nlmsghdr *m = mnl_nlmsg_put_header(bytes);
	struct hp_dump_device d = { .name = "mlx5_0" };

	m->nlmsg_type = (uint16_t)RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET);
	mnl_attr_put_strz(m, RDMA_NLDEV_ATTR_DEV_NAME, d.name);
	mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_DEV_INDEX, 7);
	EXPECT_EQ(hp_dump_read(m, m->nlmsg_len, 0, hp_dump_device, &d), 1);
	EXPECT(d.found && d.index == 7);
	d.found = false;
	m->nlmsg_len -= 3;
	hp_dump_read(m, m->nlmsg_len, 0, hp_dump_device, &d);
	EXPECT(!d.found);
}

TEST(a_dump_that_a_change_interrupted_is_an_error)
{
	struct hugepin_paging p;

	for (int i = 0; i < 2; i++) {
		reset(ALL);
		kernel.interrupted = i ? RDMA_NLDEV_CMD_STAT_GET : RDMA_NLDEV_CMD_RES_MR_GET;
		EXPECT_EQ(ask(&p), -EINTR);
	}
}

T_MAIN
