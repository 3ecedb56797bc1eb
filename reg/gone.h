/*
 * Stale registrations: where they are noticed. Memory that went away is queued as ranges in each domain, by the
 * kernel's events (uffd.c), by announcements of the interposed calls (unmapping.h) and by hugepin_forget(); the next
 * thread that has the domain's lock takes the regions there out of the cache.
 */
#ifndef HP_REG_GONE_H
#define HP_REG_GONE_H

#include "reg/state.h"

/* ------------------------------------------------------------------ sets of ranges; pure: no lock, no kernel */

/* Record a range. Cannot fail: when the queue is full the one nearest to it is widened, since deregistering too much
 * costs time, and too little corrupts data. */
void hp_gone_push(struct hp_gone *g, struct hp_range range);

/* Take [start, end) out again: of a range around it, nothing. */
void hp_gone_cut(struct hp_gone *g, uintptr_t start, uintptr_t end);

bool hp_gone_overlaps(const struct hp_gone *g, uintptr_t start, uintptr_t end);

/* ------------------------------------------------------------------ of a domain */

/* Queue *range, a struct hp_range, for the domain's next drain: for hp_domains_each(). Without the domain's lock, and
 * in signal handlers that interrupted whoever had the queue's. */
void hp_gone_tell(hugepin_domain *d, void *range);

/* Note what the queue says of memory that went away. Does not call the backend. Under the domain's lock. */
void hp_gone_drain(hugepin_domain *d);

/* A part of [start, end), in the heap, was discarded by the program, perhaps not yet in fact. Under the domain's
 * lock. */
bool hp_gone_discarded(const hugepin_domain *d, uintptr_t start, uintptr_t end);

#endif
