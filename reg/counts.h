/*
 * The number of pins out of each region. Each thread has one counter for each region, so that counting needs no lock
 * and shares no cache line. Only the sum over all threads has a meaning, because another thread may give a pin back.
 *
 * A thread's counters outlive the thread, because the next new thread takes them over.
 */
#ifndef HP_REG_COUNTS_H
#define HP_REG_COUNTS_H

#include <stdatomic.h>

#include "base/base.h"
#include "reg/record.h"

/* Pins and unpins have counters of their own, because with one counter each pin of a region would wait for the store of
 * the last unpin. Both wrap, so only the difference of the sums has a meaning. */
struct hp_counts {
	_Atomic uint32_t pins, unpins;
};

/* This thread's counters by region; NULL before its first pin and after its end. Programs count held keys here, too,
 * under a public name (hugepin_key.h). */
extern HP_TLS struct hp_counts *hp_counts_self __asm__("hugepin_key_counts") __attribute__((visibility("default")));
_Static_assert(sizeof(struct hp_counts) == sizeof(struct hugepin_key_count) &&
		       offsetof(struct hp_counts, unpins) == offsetof(struct hugepin_key_count, unpins),
	       "programs have this layout compiled in");

/* The header of a thread's counters, on the pages in front of them. It is never freed, since a scan may be under
 * way. */
struct hp_counts_owner {
	struct hp_counts_owner *next; /* the next older one */
	uint32_t number; /* the number of owners made before this one */
	/* a living thread has these counters; relaxed: the exchange in take_spare() decides, by acquire */
	_Atomic bool owned;
	struct hp_records records; /* records of this thread, and of threads that had the counters before */
};
#define HP_COUNTS_OWNER_SIZE 16384

static inline struct hp_records *hp_counts_records(struct hp_counts *counts)
{
	_Static_assert(sizeof(struct hp_counts_owner) <= HP_COUNTS_OWNER_SIZE, "");
	return &((struct hp_counts_owner *)((char *)counts - HP_COUNTS_OWNER_SIZE))->records;
}

/* Call each() for the records of every thread that ever had counters. */
void hp_counts_each(void (*each)(void *arg, struct hp_records *), void *arg);

/* Only the owner counts, so no atomic read-modify-write is needed. release: accesses to the memory before the unpin
 * happen before the deregistration; pairs with the acquire in hp_counts_sum(). */
static inline void hp_count(_Atomic uint32_t *counter)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_release);
}

/* Give this thread counters. False: no memory. Calls no malloc, except where the C library does for thread-specific
 * data. */
bool hp_counts_adopt(void);

/* Count an unpin for a thread that has no counters and can get none. */
void hp_counts_unpin_shared(uint32_t region);

/* The pins out of the region, over all threads. If no more pins can be made, the result is never less than the true
 * number. See state.h. */
uint32_t hp_counts_sum(uint32_t region);

/* The number of pins ever made of the region; wraps. Pins that were undone at once count, too. */
uint32_t hp_counts_made(uint32_t region);

/* Pins of this process that were counted and undone at once, because the thread had to look twice. With a trace, every
 * hit is first counted and undone in this way. */
extern _Atomic uint64_t hp_counts_undone; /* relaxed: a number */

/* Sums after this call see all counts made before it. Threads that count after it see everything that this thread wrote
 * before it. */
void hp_counts_barrier(void);

/* 0; -ENOSYS: the kernel has no membarrier(2); -ENOMEM. Before the first pin. */
int hp_counts_init(void);

/* In the child of fork: nothing is pinned, and there are no other threads. */
void hp_counts_child(void);

#endif
