/*
 * Notices stale registrations. Each domain has a queue of ranges whose memory went away and in which it has something.
 * The kernel's events (uffd.c), announcements of the interposed calls (unmapping.h) and hugepin_forget() fill it. The
 * next thread that has the domain's lock takes the regions there out of the cache.
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

/* ------------------------------------------------------------------ telling */

/* Queue a range whose memory went away, in the domains that have something there. Takes no lock but a queue's, so it may
 * run in a signal handler, whatever the handler interrupted. tell() does it in one domain. */
void hp_gone_tell_all(const struct hp_range *range);
void hp_gone_tell(hugepin_domain *d, const struct hp_range *range);

/* As hp_stakes_add() says, memory in [start, end) went away before d was known to have something there. */
void hp_gone_missed(hugepin_domain *d, uintptr_t start, uintptr_t end);

/* Note what is queued for all domains, and unpublish the regions in the ranges queued in d. Does not call the backend.
 * Call with the domain's lock. heed() does the first part alone, with no lock held. */
void hp_gone_drain(hugepin_domain *d);
void hp_gone_heed(void);

/* ------------------------------------------------------------------ facts */

/* Make the tables, when a domain is opened; empty, if no other is open. 0 or -ENOMEM. Call with the lock of opening. */
int hp_gone_open(uintptr_t span_base, size_t granules);

/* Called in the child of fork. */
void hp_gone_child(void);

/* Whether the program discarded a part of [start, end), which is in the heap, or is not (late). The pages may not have
 * gone yet. */
bool hp_gone_discarded(uintptr_t start, uintptr_t end);
bool hp_gone_late(uintptr_t start, uintptr_t end);

#endif
