/*
 * The state of a process for `hugepin top`: its heap, its domains, and the regions of each domain. All of it comes from
 * words that are read from that process (base/stats.h tells where). The words are not trusted: they change meanwhile,
 * and may have any value. Pure, except for malloc.
 */
#ifndef HP_CMD_LOOK_H
#define HP_CMD_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/stats.h"

/* A process to read from. read: copies len bytes at addr of the process. False: there is no memory. */
struct hp_source {
	bool (*read)(void *arg, uint64_t addr, void *buf, size_t len);
	void *arg;
};

/* Copies of hp_region_state and hp_region_kind in reg/state.h; tests/unit/look.c compares them. */
enum hp_look_state { HP_LOOK_FREE, HP_LOOK_LIVE, HP_LOOK_RETIRED, HP_LOOK_DEAD };
enum hp_look_kind { HP_LOOK_EXTENT, HP_LOOK_RUN, HP_LOOK_FOREIGN, HP_LOOK_UNCACHED };

struct hp_look_region {
	uint64_t start, end;
	uint64_t site; /* return address of the last use's call; 0: not known */
	uint32_t index;
	uint32_t out; /* pins out now */
	uint32_t pins; /* pins made since the last look */
	uint32_t before; /* pins made at its index before it was registered */
	uint8_t state, kind; /* enum hp_look_state, enum hp_look_kind */
	int8_t backing; /* HUGEPIN_KIND_* of its weakest page; -1: not known */
	bool in_heap;
	uint32_t domain; /* the domain's number */
};

/* A peer of a domain's lend. */
struct hp_look_peer {
	uint32_t number;
	struct hugepin_lend_stats stats;
};
enum { HP_LOOK_PEERS = 8 };

struct hp_look_domain {
	uint64_t address, ref; /* together they identify the domain */
	uint64_t helper; /* address of the helper; 0: none */
	uint32_t number, policy;
	bool shown; /* one of the HP_LOOK_SHOWN with most bytes pinned */
	char backend[24];
	struct hugepin_domain_stats stats, since; /* stats: now; since: growth since the last look */
	uint64_t out, pins; /* pins out now, and pins made since the last look */
	struct hp_look_region *region; /* largest first; only the first `details` have site and backing */
	uint32_t regions;
	bool lends; /* the domain has a lend */
	uint64_t lent, idle; /* bytes */
	uint32_t peers, peers_shown; /* peers: those that have or gave keys */
	struct hp_look_peer peer[HP_LOOK_PEERS]; /* those with most bytes, most first */
};
/* So many domains are read at most, and so many of them shown to people. */
enum { HP_LOOK_DOMAINS = 4096, HP_LOOK_SHOWN = 64 };

struct hp_look {
	uint64_t at_ns, passed_ns; /* passed_ns: time since the last look; 0: this is the first look */
	struct hp_view view;
	struct hugepin_stats heap;
	bool heap_used;
	bool partial; /* some tables could not be read completely */
	unsigned domains, domains_more; /* more: open, but not read */
	struct hp_look_domain *domain; /* in the order of their numbers */
	uint32_t used, *made; /* by index of a region: pins ever made */
	struct hp_look_region *region;
};

/* Look at the process whose statistics page is at `page`. For `details` regions of each domain, also read site and
 * backing. before: the last look, or NULL. 0 and *ret_, which the caller frees. -ESRCH: there is no such page. -EPROTO:
 * the process has another version of the library. -ENOMEM. */
int hp_look(const struct hp_source *, uint64_t page, uint64_t now_ns, uint32_t details, const struct hp_look *before,
	    struct hp_look *ret_);
void hp_look_free(struct hp_look *);

/* The share of pins since the last look that found their memory registered, 0 to 1. Negative: there were none. */
double hp_look_hit_rate(const struct hp_look_domain *);

#endif
