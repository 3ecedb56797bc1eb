/*
 * How many pins are out of each region: one counter for each thread and region, so that counting needs no lock and
 * shares no cache line. A pin may be given back on another thread: only the sum over all threads means something.
 *
 * A thread's counters outlive it, and the next thread goes on with them.
 */
#ifndef HP_REG_COUNTS_H
#define HP_REG_COUNTS_H

#include <stdatomic.h>

#include "base/base.h"
#include "reg/record.h"

/* Counted apart: else each pin of a region would wait for the store of the last unpin. Both wrap; what counts is the
 * difference of the sums. */
struct hp_counts {
	_Atomic uint32_t pins, unpins;
};

/* This thread's counters, by region; NULL before its first pin and after its end. */
extern HP_TLS struct hp_counts *hp_counts_self;

/* What the thread keeps on the pages in front of its counters. Never freed: a scan may be under way. */
struct hp_counts_owner {
	struct hp_counts_owner *next; /* older */
	uint32_t number; /* how many were before */
	_Atomic bool owned; /* by a thread that lives */
	struct hp_records records; /* of this thread and those that had the counters before */
};
#define HP_COUNTS_OWNER_SIZE 16384

static inline struct hp_records *hp_counts_records(struct hp_counts *counts)
{
	_Static_assert(sizeof(struct hp_counts_owner) <= HP_COUNTS_OWNER_SIZE, "");
	return &((struct hp_counts_owner *)((char *)counts - HP_COUNTS_OWNER_SIZE))->records;
}

/* Call each() for the records of every thread that ever had counters. */
void hp_counts_each(void (*each)(void *arg, struct hp_records *), void *arg);

/* By the owner alone: no atomic read-modify-write. release: what was done with the memory before a pin is given back
 * happens before its deregistration; pairs with the acquire in hp_counts_sum(). */
static inline void hp_count(_Atomic uint32_t *counter)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_release);
}

/* Give this thread counters. False: no memory. Allocates nothing by malloc but what the C library does for
 * thread-specific data. */
bool hp_counts_adopt(void);

/* Count a pin given back by a thread that has no counters and can get none. */
void hp_counts_unpin_shared(uint32_t region);

/* Pins out of the region, over all threads: never less than there are, if no more can be made. See state.h. */
uint32_t hp_counts_sum(uint32_t region);

/* Whether more pins were given back than made, with no pin of the region counted in between. Whoever has counted an
 * unpin that is seen had seen its pin, so all unpins are read before the pins. */
bool hp_counts_short(uint32_t region);

/* How many pins were ever made; wraps. */
uint32_t hp_counts_made(uint32_t region);

/* Whatever any thread has counted so far is seen by the sums that follow; and threads that count from now on see what
 * was written before. */
void hp_counts_barrier(void);

/* 0; -ENOSYS: the kernel has no membarrier(2); -ENOMEM. Before the first pin. */
int hp_counts_init(void);

/* In the child of fork: nothing is pinned, and there are no other threads. */
void hp_counts_child(void);

#endif
