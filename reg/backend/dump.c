/*
 * Reads the messages of the kernel's RDMA netlink (drivers/infiniband/core/nldev.c), which iproute2 shows by `rdma
 * resource` and `rdma statistic`. A message of a dump has attributes of the device. One of them, a table, has an
 * attribute for each memory region, which again has attributes. A table may go on in the next message. Unknown
 * attributes are passed over, because later kernels have more.
 */
#include "reg/backend/dump.h"

#include <errno.h>
#include <libmnl/libmnl.h>
#include <rdma/rdma_netlink.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* The attributes of a message, and those inside an attribute. Like libmnl's loops, without their mixed signs. */
#define ATTRIBUTES(A, BEGIN, END) \
	for (const struct nlattr *A = (BEGIN); mnl_attr_ok(A, (int)((const char *)(END) - (const char *)A)); \
	     A = mnl_attr_next(A))
/* libmnl rounds the end of a message up, so the end may lie behind the received bytes. */
#define EACH(A, MESSAGE) \
	ATTRIBUTES(A, mnl_nlmsg_get_payload(MESSAGE), (const char *)(MESSAGE) + (MESSAGE)->nlmsg_len)
#define EACH_IN(A, NEST) \
	ATTRIBUTES(A, mnl_attr_get_payload(NEST), \
		   (const char *)mnl_attr_get_payload(NEST) + mnl_attr_get_payload_len(NEST))

static int malformed(void)
{
	errno = EPROTO;
	return MNL_CB_ERROR;
}

/* Read an attribute. False: it is of another type. */
static bool read_u32(const struct nlattr *a, uint32_t *ret_)
{
	if (mnl_attr_validate(a, MNL_TYPE_U32) != 0)
		return false;
	*ret_ = mnl_attr_get_u32(a);
	return true;
}

static bool read_u64(const struct nlattr *a, uint64_t *ret_)
{
	if (mnl_attr_validate(a, MNL_TYPE_U64) != 0)
		return false;
	*ret_ = mnl_attr_get_u64(a);
	return true;
}

static bool read_string(const struct nlattr *a, const char **ret_)
{
	if (mnl_attr_validate(a, MNL_TYPE_NUL_STRING) != 0)
		return false;
	*ret_ = mnl_attr_get_str(a);
	return true;
}

/* ------------------------------------------------------------------ messages */

/* Check lengths here, because libmnl takes a length of more than 2 GiB for a negative one, and so for short enough. */
static bool is_framed(const char *at, size_t len)
{
	while (len >= sizeof(struct nlmsghdr)) {
		const size_t own = ((const struct nlmsghdr *)at)->nlmsg_len, step = HP_MIN(NLMSG_ALIGN(own), len);

		if (own < sizeof(struct nlmsghdr) || own > len)
			return false;
		at += step;
		len -= step;
	}
	return !len;
}

int hp_dump_read(const void *bytes, size_t len, uint32_t seq, int (*take)(const struct nlmsghdr *, void *state),
		 void *state)
{
	int ret;

	if (!is_framed(bytes, len))
		return -EPROTO;
	ret = mnl_cb_run(bytes, len, seq, 0, take, state);
	return ret < 0 ? -errno : ret != MNL_CB_STOP;
}

/* ------------------------------------------------------------------ the device */

int hp_dump_device(const struct nlmsghdr *m, void *device)
{
	struct hp_dump_device *d = device;
	const char *name = NULL;
	bool has_index = false;
	uint32_t index = 0;

	EACH(a, m) {
		switch (mnl_attr_get_type(a)) {
		case RDMA_NLDEV_ATTR_DEV_INDEX:
			if (!read_u32(a, &index))
				return malformed();
			has_index = true;
			break;
		case RDMA_NLDEV_ATTR_DEV_NAME:
			if (!read_string(a, &name))
				return malformed();
			break;
		}
	}
	if (name && has_index && !strcmp(name, d->name)) {
		d->index = index;
		d->found = true;
	}
	return MNL_CB_OK;
}

/* ------------------------------------------------------------------ its regions */

/* Call read() for each region of a message's tables. */
static int each_region(const struct nlmsghdr *m, int (*read)(const struct nlattr *region, void *state), void *state)
{
	EACH(table, m) {
		if (mnl_attr_get_type(table) != RDMA_NLDEV_ATTR_RES_MR)
			continue;
		EACH_IN(region, table)
			if (mnl_attr_get_type(region) == RDMA_NLDEV_ATTR_RES_MR_ENTRY &&
			    read(region, state) != MNL_CB_OK)
				return MNL_CB_ERROR;
	}
	return MNL_CB_OK;
}

static int add_region(struct hp_dump_regions *r, uint32_t number, uint32_t pd)
{
	if (r->count == r->room) {
		const size_t room = r->room ? 2 * r->room : 256;
		struct hp_dump_region *of = reallocarray(r->of, room, sizeof *of);

		if (!of)
			return MNL_CB_ERROR; /* errno is ENOMEM */
		r->of = of;
		r->room = room;
	}
	r->of[r->count++] = (struct hp_dump_region){ number, pd };
	return MNL_CB_OK;
}

static int read_region(const struct nlattr *region, void *regions)
{
	struct hp_dump_regions *r = regions;
	uint32_t number = 0, pd = 0, thread = 0;
	bool has_number = false, has_pd = false;
	uint64_t len = 0;

	EACH_IN(a, region) {
		switch (mnl_attr_get_type(a)) {
		case RDMA_NLDEV_ATTR_RES_MRN:
			if (!read_u32(a, &number))
				return malformed();
			has_number = true;
			break;
		case RDMA_NLDEV_ATTR_RES_PDN:
			if (!read_u32(a, &pd))
				return malformed();
			has_pd = true;
			break;
		case RDMA_NLDEV_ATTR_RES_PID: /* of the thread, in spite of the name */
			if (!read_u32(a, &thread))
				return malformed();
			break;
		case RDMA_NLDEV_ATTR_RES_MRLEN:
			if (!read_u64(a, &len))
				return malformed();
			break;
		}
	}
	if (!has_number || !has_pd) /* a kernel's own region has no protection domain of a program */
		return MNL_CB_OK;
	if (thread == r->thread && len == r->len) {
		r->pd = pd;
		r->probes++;
	}
	return add_region(r, number, pd);
}

int hp_dump_regions(const struct nlmsghdr *m, void *regions)
{
	return each_region(m, read_region, regions);
}

static int compare_regions(const void *a, const void *b)
{
	const uint32_t x = ((const struct hp_dump_region *)a)->number, y = ((const struct hp_dump_region *)b)->number;

	return (x > y) - (x < y);
}

void hp_dump_keep_pd(struct hp_dump_regions *r)
{
	size_t kept = 0;

	for (size_t i = 0; i < r->count; i++)
		if (r->of[i].pd == r->pd)
			r->of[kept++] = r->of[i];
	r->count = kept;
	if (kept)
		qsort(r->of, kept, sizeof *r->of, compare_regions);
}

static bool is_kept(const struct hp_dump_regions *r, uint32_t number)
{
	const struct hp_dump_region key = { .number = number };

	return r->count && bsearch(&key, r->of, r->count, sizeof *r->of, compare_regions);
}

/* ------------------------------------------------------------------ what they count */

static int read_counter(const struct nlattr *entry, struct hp_dump_counts *c)
{
	static const char *const names[] = { "page_faults", "page_prefetch", "page_invalidations" };
	uint64_t *const sums[] = { &c->sum.faults, &c->sum.prefetches, &c->sum.invalidations };
	const char *name = NULL;
	bool has_value = false;
	uint64_t value = 0;

	EACH_IN(a, entry) {
		switch (mnl_attr_get_type(a)) {
		case RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME:
			if (!read_string(a, &name))
				return malformed();
			break;
		case RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE:
			if (!read_u64(a, &value))
				return malformed();
			has_value = true;
			break;
		}
	}
	for (unsigned i = 0; name && has_value && i < sizeof names / sizeof *names; i++)
		if (!strcmp(name, names[i])) {
			*sums[i] += value;
			c->counted |= 1u << i;
		}
	return MNL_CB_OK;
}

static int read_counters(const struct nlattr *region, void *counts)
{
	struct hp_dump_counts *c = counts;
	const struct nlattr *counters = NULL;
	bool has_number = false;
	uint32_t number = 0;

	EACH_IN(a, region) {
		if (mnl_attr_get_type(a) == RDMA_NLDEV_ATTR_STAT_HWCOUNTERS) {
			counters = a;
		} else if (mnl_attr_get_type(a) == RDMA_NLDEV_ATTR_RES_MRN) {
			if (!read_u32(a, &number))
				return malformed();
			has_number = true;
		}
	}
	if (!counters || !has_number || !is_kept(c->regions, number))
		return MNL_CB_OK;
	EACH_IN(a, counters) {
		if (mnl_attr_get_type(a) != RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY)
			continue;
		if (read_counter(a, c) != MNL_CB_OK)
			return MNL_CB_ERROR;
	}
	return MNL_CB_OK;
}

int hp_dump_counts(const struct nlmsghdr *m, void *counts)
{
	return each_region(m, read_counters, counts);
}
