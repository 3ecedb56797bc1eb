/*
 * Reads what the kernel's RDMA netlink reports of a device's memory regions from the messages of a dump. Makes no
 * system calls.
 */
#ifndef HP_REG_BACKEND_DUMP_H
#define HP_REG_BACKEND_DUMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hugepin.h"

struct nlmsghdr;

/* Pass the messages of one datagram to one of the functions below, with its state. `seq` is the request's; 0: any.
 * Returns 1: more datagrams follow; 0: this was the last; or -errno: the kernel's, -EPROTO if a message is not as the
 * kernel writes it, -EINTR if a change interrupted the dump, or -ENOMEM. */
int hp_dump_read(const void *bytes, size_t len, uint32_t seq, int (*take)(const struct nlmsghdr *, void *state),
		 void *state);

/* RDMA_NLDEV_CMD_GET: the number of the device of that name. */
struct hp_dump_device {
	const char *name;
	uint32_t index;
	bool found;
};
int hp_dump_device(const struct nlmsghdr *, void *device);

/* RDMA_NLDEV_CMD_RES_MR_GET: the memory regions of the device, each with its protection domain. Regions are known by
 * the kernel's numbers, because the kernel shows keys only to few. */
struct hp_dump_regions {
	uint32_t thread; /* the probe: the region of that length that this thread registered */
	uint64_t len;
	uint32_t pd; /* the probe's protection domain */
	unsigned probes; /* number of such regions */
	struct hp_dump_region {
		uint32_t number, pd;
	} *of; /* all regions; to be freed */
	size_t count, room;
};
int hp_dump_regions(const struct nlmsghdr *, void *regions);

/* After that dump: keep only the numbers of the regions of the probe's protection domain, in order. */
void hp_dump_keep_pd(struct hp_dump_regions *);

/* RDMA_NLDEV_CMD_STAT_GET of memory regions: the sum of the counts of these regions. A region that was not registered
 * on demand has none. */
struct hp_dump_counts {
	const struct hp_dump_regions *regions;
	struct hugepin_paging sum;
	unsigned counted; /* bit i: some region has the i-th member of `sum` */
};
int hp_dump_counts(const struct nlmsghdr *, void *counts);

#endif
