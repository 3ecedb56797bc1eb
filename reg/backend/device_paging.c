/*
 * Page faults, prefetches and invalidations of a protection domain, from the counters that the device's driver keeps
 * for each memory region (`rdma statistic show mr`). Of Linux's drivers only mlx5 has them so far.
 *
 * The kernel names regions and protection domains by numbers that it tells no program. So the probe, a region of an odd
 * length, is registered on demand for the time of the call, and its entry is recognised by the length and the thread.
 * The entry has the number of the protection domain. It also shows which counts the device keeps, even if nothing else
 * is registered.
 */
#include "reg/backend/device_paging.h"

#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "reg/backend/dump.h"

enum {
	PROBE_BYTES = 4093, /* no registration of a domain's has such a length, because theirs are whole pages */
	MESSAGE_BYTES = 32768, /* most bytes that the kernel puts into one message of a dump */
};

/* In place of a device's number: all devices. */
#define ALL_DEVICES UINT32_MAX

static int dump(struct mnl_socket *s, unsigned command, uint32_t device,
		int (*take)(const struct nlmsghdr *, void *), void *state)
{
	_Alignas(struct nlmsghdr) char bytes[MESSAGE_BYTES];
	struct nlmsghdr *m = mnl_nlmsg_put_header(bytes);
	const uint32_t seq = command; /* each socket asks one question, so the command can be its number */
	int ret = 1;

	m->nlmsg_type = (uint16_t)RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command);
	m->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_DUMP;
	m->nlmsg_seq = seq;
	if (device != ALL_DEVICES)
		mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_DEV_INDEX, device);
	if (command == RDMA_NLDEV_CMD_STAT_GET)
		mnl_attr_put_u32(m, RDMA_NLDEV_ATTR_STAT_RES, RDMA_NLDEV_ATTR_RES_MR);
	if (mnl_socket_sendto(s, m, m->nlmsg_len) < 0)
		return -errno;
	while (ret > 0) {
		const ssize_t n = mnl_socket_recvfrom(s, bytes, sizeof bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EPROTO;
		ret = hp_dump_read(bytes, (size_t)n, seq, take, state);
	}
	return ret;
}

/* ------------------------------------------------------------------ the three dumps */

static int ask_device(struct mnl_socket *s, struct ibv_pd *pd, uint32_t *ret_index)
{
	struct hp_dump_device d = { .name = ibv_get_device_name(pd->context->device) };
	int err = dump(s, RDMA_NLDEV_CMD_GET, ALL_DEVICES, hp_dump_device, &d);

	*ret_index = d.index;
	return err ? err : d.found ? 0 : -ENODEV;
}

static int ask_regions(struct mnl_socket *s, uint32_t device, struct hp_dump_regions *r)
{
	int err = dump(s, RDMA_NLDEV_CMD_RES_MR_GET, device, hp_dump_regions, r);

	if (!err && r->probes != 1) /* the probe is not shown, or the program has a region of that length, too */
		err = -EOPNOTSUPP;
	if (!err)
		hp_dump_keep_pd(r);
	return err;
}

static int ask_counts(struct mnl_socket *s, uint32_t device, struct hp_dump_counts *c)
{
	int err = dump(s, RDMA_NLDEV_CMD_STAT_GET, device, hp_dump_counts, c);

	/* Kernels before 5.10 know no statistics of memory regions. */
	return err == -EINVAL || (!err && !c->counted) ? -EOPNOTSUPP : err;
}

int hp_verbs_paging(struct ibv_pd *pd, struct hugepin_paging *ret_)
{
	static char memory[PROBE_BYTES]; /* the device never touches it */
	struct hp_dump_regions regions = { .thread = (uint32_t)gettid(), .len = PROBE_BYTES };
	struct hp_dump_counts counts = { .regions = &regions };
	struct mnl_socket *s;
	struct ibv_mr *probe = NULL;
	uint32_t device;
	int err;

	s = mnl_socket_open2(NETLINK_RDMA, SOCK_CLOEXEC);
	if (!s)
		return errno == EPROTONOSUPPORT ? -EOPNOTSUPP : -errno;
	err = ask_device(s, pd, &device);
	if (!err) {
		errno = 0;
		probe = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_ON_DEMAND);
		err = probe ? 0 : errno ? -errno : -EIO;
	}
	err = err ? err : ask_regions(s, device, &regions);
	err = err ? err : ask_counts(s, device, &counts);
	if (probe)
		ibv_dereg_mr(probe);
	free(regions.of);
	mnl_socket_close(s);
	if (err)
		return err;
	*ret_ = (struct hugepin_paging){
		.faults = counts.counted & 1 ? counts.sum.faults : HUGEPIN_NOT_COUNTED,
		.prefetches = counts.counted & 2 ? counts.sum.prefetches : HUGEPIN_NOT_COUNTED,
		.invalidations = counts.counted & 4 ? counts.sum.invalidations : HUGEPIN_NOT_COUNTED,
	};
	return 0;
}
