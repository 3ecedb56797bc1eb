/*
 * What `hugepin top` sees of a process: its heap, its domains, and what each of them has registered. All of it comes
 * from words that are read out of that process (base/stats.h says where they are). None of them is trusted: they change
 * meanwhile, and may be anything. Pure but for memory.
 */
#ifndef HP_CMD_LOOK_H
#define HP_CMD_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/stats.h"

/* Read len bytes at addr of the process. False: they are not there. */
struct hp_source {
	bool (*read)(void *arg, uint64_t addr, void *buf, size_t len);
	void *arg;
};

/* As hp_region_state and hp_region_kind of reg/state.h, see tests/unit/look.c. */
enum hp_look_state { HP_LOOK_FREE, HP_LOOK_LIVE, HP_LOOK_RETIRED, HP_LOOK_DEAD };
enum hp_look_kind { HP_LOOK_EXTENT, HP_LOOK_RUN, HP_LOOK_FOREIGN, HP_LOOK_UNCACHED };

struct hp_look_region {
	uint64_t start, end;
	uint64_t site; /* of its last use, as hp_site() tells it; 0: not known */
	uint32_t index;
	uint32_t out; /* pins of it now */
	uint32_t pins; /* made since the last look */
	uint8_t state, kind; /* enum hp_look_state, enum hp_look_kind */
	uint8_t domain; /* its number */
	bool in_heap;
	int8_t backing; /* HUGEPIN_KIND_*, the weakest of its pages; -1: not known */
};

struct hp_look_domain {
	uint64_t address, ref; /* together tell it from others */
	uint64_t helper; /* address, 0: it has none */
	uint32_t number, policy;
	char backend[24];
	struct hugepin_domain_stats stats, since; /* stats: now; since: how much more than at the last look */
	uint64_t out, pins; /* of all its regions */
	struct hp_look_region *region; /* largest first; site and backing are those of the first `details` */
	uint32_t regions;
};

struct hp_look {
	uint64_t at_ns, passed_ns; /* since the last look, 0: this is the first */
	struct hp_view view;
	struct hugepin_stats heap;
	bool heap_used;
	bool partial; /* tables could not be read to their end */
	unsigned domains;
	struct hp_look_domain domain[HUGEPIN_DOMAINS_MAX];
	/* By index of a region: made: pins ever made; owner: the number of its latest domain, NONE before. */
	uint32_t used, *made;
	uint8_t *owner;
	struct hp_look_region *region;
};

/* Look at the process whose statistics page is at `page`; `details` regions of each domain are looked at closely.
 * before: the last look, or NULL. 0 and *ret_, to be freed; -ESRCH: there is no such page; -EPROTO: of a library that
 * is another version's; -ENOMEM. */
int hp_look(const struct hp_source *, uint64_t page, uint64_t now_ns, uint32_t details, const struct hp_look *before,
	    struct hp_look *ret_);
void hp_look_free(struct hp_look *);

/* The share of pins since the last look that found their memory registered, 0 to 1. Negative: there were none. */
double hp_look_hit_rate(const struct hp_look_domain *);

#endif
