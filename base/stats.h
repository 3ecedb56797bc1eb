/*
 * The statistics page. HP_STAT_ADD updates members that change only under the heap's lock, HP_STAT_COUNT all others.
 * Readers take each word as it is.
 *
 * Behind the statistics, the page has the addresses and the layout of the tables of the heap and of the pin cache. So
 * `hugepin top` reads these tables from another process, and nothing has to be counted or copied for it here.
 */
#ifndef HP_BASE_STATS_H
#define HP_BASE_STATS_H

#include "hugepin.h"

/* Addresses of tables, with sizes and offsets in bytes. Each tier fills in its part when it makes its tables; 0: it has
 * none yet. The version changes when the meaning of a member changes. */
#define HP_VIEW_MAGIC UINT64_C(0x6875676570696e56) /* "hugepinV" */
#define HP_VIEW_VERSION 2
struct hp_view {
	uint64_t magic;
	uint32_t version, size; /* size: of this struct */
	struct {
		uint64_t base, size; /* the heap's span */
		uint64_t pages; /* table of struct hp_page */
		uint32_t page_shift, stride, state, kind;
		uint32_t state_min; /* a page in this state or a higher one has memory */
	} heap;
	struct {
		/* domains: table of pointers; open: table of bytes, not 0 if the domain is open; used: address of the
		 * number of entries that were ever in use */
		uint64_t domains, open, used;
		uint32_t size, ref, policy, helper, backend_name, stats, stats_size;
	} domain;
	struct {
		/* addresses of the pointer to the table, and of the number of entries that were ever in use */
		uint64_t regions, used;
		uint32_t stride, start, end, domain, state, kind, made; /* made: pins before it was registered */
	} region;
	struct {
		uint64_t first; /* address of the pointer to the newest thread's counters */
		uint32_t next, counts, stride, pins, unpins;
	} counts;
	struct {
		uint32_t place_of, places, stride, site; /* place_of and places: pointers, in a domain's helper */
	} helper;
	struct {
		uint32_t hooks, lend; /* pointers in a domain; unless `hooks` is NULL, `lend` leads to its lend */
		uint32_t peers, table, lent, idle; /* in a lend: number of peers, pointer to their table, bytes */
		uint32_t stride, stats, stats_size; /* of that table: bytes of an entry; in an entry */
	} lend;
};

/* The statistics have a page of their own, which a reader copies as a whole. */
#define HP_STATS_PAGE 4096
#define HP_VIEW_OFFSET 2048
struct hp_exposed {
	_Alignas(HP_STATS_PAGE) struct hugepin_stats_page page;
	_Alignas(HP_VIEW_OFFSET) struct hp_view view;
};
extern struct hp_exposed hp_exposed;

/* The page is a public struct, so these macros use __atomic_*, because C++ could not read _Atomic members. relaxed:
 * HP_STAT_ADD has hp_heap_lock; HP_STAT_COUNT is a number that any thread adds to. */
#define HP_STAT(name) (hp_exposed.page.stats.name)
#define HP_STAT_GET(name) __atomic_load_n(&HP_STAT(name), __ATOMIC_RELAXED)
#define HP_STAT_ADD(name, n) __atomic_store_n(&HP_STAT(name), HP_STAT(name) + (uint64_t)(n), __ATOMIC_RELAXED)
#define HP_STAT_COUNT(name, n) ((void)__atomic_fetch_add(&HP_STAT(name), (uint64_t)(n), __ATOMIC_RELAXED))

/* Copy the counters. Only hugepin_stats() asks the kernel how much memory really became THP. */
void hp_stats_copy(struct hugepin_stats *ret_);

/* keep() keeps a descriptor of the present stderr, because programs close theirs before the end. write_kept() writes
 * there, or nowhere if the program has replaced both descriptors by other files. */
void hp_stats_keep(void);
void hp_stats_write_kept(const char *text, size_t len);

#endif
