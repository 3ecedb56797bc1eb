/*
 * Policy hybrid: which tracked range is pinned, which is on demand, and when the device brings it in. Call with the
 * domain's lock.
 */
#ifndef HP_REG_HYBRID_H
#define HP_REG_HYBRID_H

#include "reg/track.h"

/* Start a new helper with the measured times of the device, if there are any. */
void hp_hybrid_begin(hugepin_domain *d, struct hp_helper *h);

/* The plan expects a use of p, which is on demand, soon. */
void hp_hybrid_make_ready(hugepin_domain *d, struct hp_tracked *p);

/* p was registered on demand ahead of its use: have the device bring it in. */
void hp_hybrid_bring_in_new(hugepin_domain *d, struct hp_tracked *p);

/* The plan does not expect p for a while. */
void hp_hybrid_let_cool(hugepin_domain *d, struct hp_tracked *p);

/* A use of p has ended. If p is hot and there is room, pin it before the next one, which the plan may not expect. */
void hp_hybrid_keep_hot(hugepin_domain *d, struct hp_tracked *p);

/* A pin begins to use r after a time without any, or (fresh) has registered it. Brings in on-demand memory that is not
 * in memory for this use, if that is expected to take less than the faults. Blocks for the device's call. Does nothing
 * under other policies. */
void hp_hybrid_first_use(hugepin_domain *d, struct hp_region *r, bool fresh);

#endif
