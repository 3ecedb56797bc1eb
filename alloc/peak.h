/*
 * The statistics at exit: the most memory that large buffers had, in which pages it lay, and what is written of it.
 *
 * The kernel is asked for the pages, so untouched memory does not count. Memory leaves the heap only in ticks and
 * purges, so these look first, and a last look is made at exit. Without HUGEPIN_STATS nobody looks.
 */
#ifndef HP_ALLOC_PEAK_H
#define HP_ALLOC_PEAK_H

#include <stdbool.h>

#include "base/base.h"

#pragma GCC visibility push(hidden)

extern bool hp_peak_on; /* HUGEPIN_STATS is set */

/* Looks may take a 50th of the process's time. The allowance of the last second is saved, because a host's pauses count
 * as the time of a look, and the look before memory leaves must not be lost to them. */
enum { HP_PEAK_SHARE = 50, HP_PEAK_SAVED_NS = 1000000000 };

/* The time of the next allowed look, after one that was allowed at `due`, began at `now` and took `spent`, all in
 * nanoseconds. */
static inline uint64_t hp_peak_due(uint64_t due, uint64_t now, uint64_t spent)
{
	return HP_MAX(due + HP_PEAK_SAVED_NS, now) - HP_PEAK_SAVED_NS + spent * HP_PEAK_SHARE;
}

/* Called by the constructor. */
void hp_peak_begin(void);

/* Look if the memory may be more than at the peak, because some of it is about to leave. Takes no lock. Time in which
 * the look waits does not count as its own. */
void hp_peak_leaving(void);

/* A fork has copied memory for its child or moved it out of the pool; pool_bytes: the part of the pool. Called with
 * hp_heap_lock held. */
void hp_peak_copied(uint64_t bytes, uint64_t pool_bytes);

/* Called in the child of fork, whose statistics begin here. */
void hp_peak_child(void);

/* Called by the destructor: write what HUGEPIN_STATS asks for. */
void hp_peak_end(void);

#pragma GCC visibility pop

#endif
