/*
 * Notices stale registrations. Each domain has a queue of ranges whose memory went away, which the kernel's events
 * (uffd.c), announcements of the interposed calls (unmapping.h) and hugepin_forget() fill. The next thread that has the
 * domain's lock takes the regions there out of the cache.
 */
#ifndef HP_REG_GONE_H
#define HP_REG_GONE_H

#include "reg/state.h"

/* ------------------------------------------------------------------ sets of ranges; without a lock */

enum { HP_LATE_MAX = 4096 }; /* ranges of late discards; they are moved as a block, which takes some microseconds */

/* Add a range that is younger than those in the set. Cannot fail: if the set is full, the nearest range is widened,
 * because deregistering too much only costs time, while deregistering too little corrupts data. */
void hp_gone_push(struct hp_gone *g, struct hp_range range);

/* Add [start, end) to a set of late discards, or take it out. on() cannot fail: as hp_gone_push(). off() may leave the
 * middle of a range in the set if the set is full. The set has room for a range (hp_ranges_reserve()). */
void hp_gone_late_on(struct hp_ranges *late, uintptr_t start, uintptr_t end);
void hp_gone_late_off(struct hp_ranges *late, uintptr_t start, uintptr_t end);

/* ------------------------------------------------------------------ of a domain */

/* Queue *range, a struct hp_range, for the domain's next drain. The signature is that of hp_domains_each(). Takes no
 * lock but the queue's, so it may run in a signal handler, whatever the handler interrupted. */
void hp_gone_tell(hugepin_domain *d, void *range);

/* Unpublish the regions in the queued ranges. Does not call the backend. Call with the domain's lock. */
void hp_gone_drain(hugepin_domain *d);

/* Whether the program discarded a part of [start, end), which is in the heap, or is not (late). The pages may not have
 * gone yet. Call with the domain's lock. */
bool hp_gone_discarded(const hugepin_domain *d, uintptr_t start, uintptr_t end);
bool hp_gone_late(const hugepin_domain *d, uintptr_t start, uintptr_t end);

#endif
