/*
 * Notices stale registrations. Each domain has a queue of ranges whose memory went away, which the kernel's events
 * (uffd.c), announcements of the interposed calls (unmapping.h) and hugepin_forget() fill. The next thread that has the
 * domain's lock takes the regions there out of the cache.
 */
#ifndef HP_REG_GONE_H
#define HP_REG_GONE_H

#include "reg/state.h"

/* ------------------------------------------------------------------ sets of ranges; pure: no lock, no kernel */

/* Add a range. Cannot fail: if the set is full, the nearest range is widened, because deregistering too much only costs
 * time, while deregistering too little corrupts data. */
void hp_gone_push(struct hp_gone *g, struct hp_range range);

/* Take [start, end) out of the ranges, but leave a range that extends beyond it on both sides. */
void hp_gone_cut(struct hp_gone *g, uintptr_t start, uintptr_t end);

bool hp_gone_overlaps(const struct hp_gone *g, uintptr_t start, uintptr_t end);

/* ------------------------------------------------------------------ of a domain */

/* Queue *range, a struct hp_range, for the domain's next drain. The signature is that of hp_domains_each(). Takes no
 * lock but the queue's, so it may run in a signal handler, whatever the handler interrupted. */
void hp_gone_tell(hugepin_domain *d, void *range);

/* Unpublish the regions in the queued ranges. Does not call the backend. Call with the domain's lock. */
void hp_gone_drain(hugepin_domain *d);

/* Whether the program discarded a part of [start, end), which is in the heap. The pages may not have gone yet. Call
 * with the domain's lock. */
bool hp_gone_discarded(const hugepin_domain *d, uintptr_t start, uintptr_t end);

#endif
