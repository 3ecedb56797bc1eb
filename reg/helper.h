/*
 * The helper's part of a domain (helper.c). Call with the domain's lock, except where a comment says otherwise.
 */
#ifndef HP_REG_HELPER_H
#define HP_REG_HELPER_H

#include "reg/state.h"

/* Time from the first record to the run that takes it, so that one wake serves many records; none is urgent. */
#define HP_GATHER_NS UINT64_C(50000)
/* from a run that found records to the next, unless a run is asked for earlier */
#define HP_AGAIN_NS UINT64_C(10000000)
#define HP_CROWDED_NS UINT64_C(1000000) /* from one run to the next while records are being lost */

/* open() sets d->helper, if the policy has a helper that is not turned off. 0 or -ENOMEM. Called with the lock of
 * opening. */
int hp_helper_open(hugepin_domain *d);
void hp_helper_close(hugepin_domain *d);

/* Called in the child of fork. */
void hp_helper_child(void);

/* Begin a run, before the domains are served: find out which processors to use, and whether other processes leave any.
 * Call on the service thread, while no domain can be closed. late_ns: how long after the planned time the helper woke;
 * 0: a record woke it. */
void hp_helper_begin(uint64_t late_ns);

/* The time from the next record to the run that takes it, which is long if the helper has used up its share of the
 * program's processor time. Call on the service thread. */
uint64_t hp_helper_delay_ns(bool crowded);

/* Do the work that is due now, on the service thread. Takes and releases the domain's lock. Returns when more work is
 * due, by the domain's clock; UINT64_MAX: not before the next record. */
struct hp_helper_news {
	bool any; /* there were records since the last run */
	bool crowded; /* more records come than the helper can take */
	bool busy; /* the domain is in a call of a slow device, and is served later */
};
uint64_t hp_helper_serve(hugepin_domain *d, struct hp_helper_news *ret);

#endif
