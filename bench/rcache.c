/*
 * UCX's registration cache, ucs_rcache, as UCX's own memory domains set it up, but for a limit of regions: invalidated
 * by the mapping calls that UCX intercepts (UCM_EVENT_VM_UNMAPPED), its default alignment. Registering is nothing; a
 * region has a key.
 */
#include "rcache.h"

#include <stdio.h>
#include <stdlib.h>
#include <ucm/api/ucm.h>
#include <ucp/api/ucp_version.h>
#include <ucs/memory/rcache.h>
#include <unistd.h>

/* UCX 1.17 moved the alignment from the cache to each get, and tells of regions that it merges. */
#define ALIGNS_EACH (UCP_API_VERSION >= UCP_VERSION(1, 17))
#if ALIGNS_EACH
#define GET(cache, p, len, ...) ucs_rcache_get(cache, p, len, UCS_RCACHE_MIN_ALIGNMENT, __VA_ARGS__)
#else
#define GET ucs_rcache_get
#endif

struct region {
	ucs_rcache_region_t super;
	uint32_t lkey;
};

static ucs_rcache_t *cache;
static long registrations;

static ucs_status_t mem_reg(void *context, ucs_rcache_t *rcache, void *arg, ucs_rcache_region_t *region, uint16_t flags)
{
	(void)context, (void)rcache, (void)arg, (void)flags;
	((struct region *)region)->lkey = 0;
	registrations++;
	return UCS_OK;
}

static void mem_dereg(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region)
{
	(void)context, (void)rcache, (void)region;
	registrations++;
}

static void dump_region(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region, char *buf, size_t max)
{
	(void)context, (void)rcache, (void)region;
	snprintf(buf, max, "-");
}

#if ALIGNS_EACH
static void merge(void *context, ucs_rcache_t *rcache, void *arg, ucs_rcache_region_t *region)
{
	(void)context, (void)rcache, (void)arg, (void)region;
}
#endif

void rcache_open(size_t regions_max)
{
	static const ucs_rcache_ops_t ops = {
		.mem_reg = mem_reg,
		.mem_dereg = mem_dereg,
#if ALIGNS_EACH
		.merge = merge,
#endif
		.dump_region = dump_region,
	};
	ucs_rcache_params_t params = {
		.region_struct_size = sizeof(struct region),
#if !ALIGNS_EACH
		.alignment = UCS_RCACHE_MIN_ALIGNMENT,
		.max_alignment = (size_t)getpagesize(),
#endif
		.ucm_events = UCM_EVENT_VM_UNMAPPED,
		.ucm_event_priority = 1000,
		.ops = &ops,
		.flags = UCS_RCACHE_FLAG_PURGE_ON_FORK,
		.max_regions = regions_max,
		.max_size = SIZE_MAX,
		.max_unreleased = SIZE_MAX,
	};

	if (ucs_rcache_create(&params, "bench", NULL, &cache) != UCS_OK) {
		fputs("ucs_rcache_create failed\n", stderr);
		exit(1);
	}
}

static inline uint32_t use(void *p, size_t len)
{
	ucs_rcache_region_t *region;
	uint32_t key;

	if (GET(cache, p, len, PROT_READ | PROT_WRITE, NULL, &region) != UCS_OK)
		abort();
	key = ((struct region *)region)->lkey;
	ucs_rcache_region_put(cache, region);
	return key;
}

void rcache_walk(struct walk *w, long n)
{
	walk(w, n, use);
}

long rcache_registrations(void)
{
	return registrations;
}
