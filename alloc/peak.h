/*
 * The statistics at exit: the most memory that large buffers had, in which pages it lay, and what is written of it.
 *
 * The kernel is asked for the pages, so untouched memory does not count. Memory leaves the heap only in ticks and
 * purges, so these look first. The slow path of malloc looks each time the mapped memory has grown by an eighth: in a
 * long run this is a few dozen times. A last look is made at exit. Without HUGEPIN_STATS nobody looks.
 */
#ifndef HP_ALLOC_PEAK_H
#define HP_ALLOC_PEAK_H

#include <stdbool.h>

#include "base/base.h"

#pragma GCC visibility push(hidden)

extern bool hp_peak_on; /* HUGEPIN_STATS is set */

/* Looks may take a 50th of the process's time. Those of the last second that were not made are saved, because one look
 * can take long: where a host has many machines to run, its pauses count as the thread's time. The look before memory
 * leaves must not be lost to that. Time in which a look waited does not count either. */
enum { HP_PEAK_SHARE = 50, HP_PEAK_SAVED_NS = 1000000000 };

/* When the next look is allowed, after one that was allowed at `due`, began at `now` and took `spent`, all in nanoseconds. */
static inline uint64_t hp_peak_due(uint64_t due, uint64_t now, uint64_t spent)
{
	return HP_MAX(due + HP_PEAK_SAVED_NS, now) - HP_PEAK_SAVED_NS + spent * HP_PEAK_SHARE;
}

/* Called by the constructor. */
void hp_peak_begin(void);

/* Look if the mapped memory has grown by an eighth since the last look. Takes no lock. */
void hp_peak_grown(void);

/* Look if the memory may be more than at the peak: some of it is about to leave. Takes no lock. */
void hp_peak_leaving(void);

/* A fork has copied memory for its child, some only since it lies in the pool, and moved other memory from the pool to
 * ordinary pages. Called with hp_heap_lock held. */
void hp_peak_copied(uint64_t bytes, uint64_t pool_bytes, uint64_t moved_bytes);

/* [start, end) is static memory of the program, in whole hugepages: what of it lies in base pages is told at exit. Called
 * before main. */
void hp_peak_static(uintptr_t start, uintptr_t end);

/* Called in the child of fork: what is told of the child begins here. */
void hp_peak_child(void);

/* Called by the destructor: write what HUGEPIN_STATS asks for. */
void hp_peak_end(void);

#pragma GCC visibility pop

#endif
