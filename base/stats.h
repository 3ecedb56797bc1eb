/*
 * The statistics page. HP_STAT_ADD updates members that change under the heap's lock only, HP_STAT_COUNT all others.
 * Readers take each word as it is.
 *
 * Behind the statistics the page tells `hugepin top` where the tables of the heap and of the pin cache lie, and how an
 * entry is laid out. So the tables can be read from outside, and nothing has to be counted or copied here for that.
 */
#ifndef HP_BASE_STATS_H
#define HP_BASE_STATS_H

#include "hugepin.h"

/* Addresses, and below them sizes and offsets in bytes. Each tier fills in its part when it has its tables; 0: it has
 * none yet. The version changes with the meaning of a member. */
#define HP_VIEW_MAGIC UINT64_C(0x6875676570696e56) /* "hugepinV" */
#define HP_VIEW_VERSION 1
struct hp_view {
	uint64_t magic;
	uint32_t version, size; /* size: of this */
	struct {
		uint64_t base, size; /* of the addresses that are the heap's */
		uint64_t pages; /* of struct hp_page */
		uint32_t page_shift, stride, state, kind;
		uint32_t state_min; /* a page in that state or a higher one has memory */
	} heap;
	struct {
		uint64_t domains, open; /* tables of pointers, and of a byte each: not 0 if it is open */
		uint32_t count, size, ref, policy, helper, backend_name, stats, stats_size;
	} domain;
	struct {
		uint64_t regions, used; /* of the pointer to the table, and of how many entries were ever in use */
		uint32_t stride, start, end, domain, state, kind;
	} region;
	struct {
		uint64_t first; /* of the pointer to the newest thread's */
		uint32_t next, counts, stride, pins, unpins;
	} counts;
	struct {
		uint32_t place_of, places, stride, site; /* place_of and places: pointers, in a domain's helper */
	} helper;
};

/* A page of its own: a reader copies it whole. */
#define HP_STATS_PAGE 4096
#define HP_VIEW_OFFSET 2048
struct hp_exposed {
	_Alignas(HP_STATS_PAGE) struct hugepin_stats_page page;
	_Alignas(HP_VIEW_OFFSET) struct hp_view view;
};
extern struct hp_exposed hp_exposed;

/* The page is a public struct. C++ could not read _Atomic members, so these macros use __atomic_*. */
#define HP_STAT(name) (hp_exposed.page.stats.name)
#define HP_STAT_GET(name) __atomic_load_n(&HP_STAT(name), __ATOMIC_RELAXED)
#define HP_STAT_ADD(name, n) __atomic_store_n(&HP_STAT(name), HP_STAT(name) + (uint64_t)(n), __ATOMIC_RELAXED)
#define HP_STAT_COUNT(name, n) ((void)__atomic_fetch_add(&HP_STAT(name), (uint64_t)(n), __ATOMIC_RELAXED))

/* The counters as they are. Only hugepin_stats() asks the kernel what became of memory that was to be THP. */
void hp_stats_copy(struct hugepin_stats *ret_);

/* Keep a way to what stderr is now, since programs close theirs before the end, and print them there, "hugepin: name
 * value" a line. Where the program has put other files in the place of both descriptors, nothing is printed. */
void hp_stats_keep(void);
void hp_stats_print_kept(const struct hugepin_stats *stats);

#endif
