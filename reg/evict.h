/*
 * Which registration goes when there is no room for another one (evict.c; a plan's choice is in policy/schedule.c).
 * Call with the domain's lock.
 */
#ifndef HP_REG_EVICT_H
#define HP_REG_EVICT_H

#include "reg/track.h"

/* Evict one region. False: every region is in use. why: for the probe. */
bool hp_evict_one(hugepin_domain *d, enum hp_evicted why);

/* Whether regions of so many pinned bytes may be evicted, because no pin uses them. Looks at those only that the clock
 * passes on its way to so many, and at all if there are not so many. */
bool hp_evict_frees(const hugepin_domain *d, uint64_t bytes);

/* Evict exact regions beyond about 2^15 that are not in use, whatever the budget is, because exact regions do not
 * merge, and one hugepage alone has more ranges than the table has places. Looks at a few regions for each one that is
 * registered. */
void hp_evict_exact(hugepin_domain *d);

/* Deregister p, which the plan has chosen. False: p is in use or not registered, and the plan is told of the
 * failure. */
bool hp_evict_tracked(hugepin_domain *d, struct hp_tracked *p, enum hp_evicted why);

#endif
