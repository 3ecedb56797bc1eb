/*
 * The helper's part of a domain (helper.c). All under the domain's lock, but for opening and closing.
 */
#ifndef HP_REG_HELPER_H
#define HP_REG_HELPER_H

#include "reg/state.h"

/* From the first record to the run that takes it: one wake for many; none is urgent. */
#define HP_GATHER_NS UINT64_C(50000)
#define HP_AGAIN_NS UINT64_C(10000000) /* from a run that found records to the next, if nobody asks for one before */
#define HP_CROWDED_NS UINT64_C(1000000) /* from one run to the next while records are lost */

/* Sets d->helper and its hooks, if the policy has a helper and it is not turned off. 0 or -ENOMEM. */
int hp_helper_open(hugepin_domain *d);
void hp_helper_close(hugepin_domain *d);

/* In the child of fork. */
void hp_helper_child(void);

/* The time, as records have it. */
uint64_t hp_helper_time(const hugepin_domain *d);

/* Records that were taken in, and that the plan has not been told of. */
unsigned hp_helper_waiting(const hugepin_domain *d);

/* A pin found r not registered at that time, and it is now; or, not registered: found it only by looking again. The
 * plan is told in time: whoever calls this wakes the helper once the lock is released. */
void hp_helper_missed(hugepin_domain *d, struct hp_region *r, uint64_t time, uint64_t site, bool registered);

/* Before the domains are served, each of them open and staying so: which processors, and whether other processes leave
 * us any. late_ns: how long after it was to wake the helper woke, 0: it did so for a record. On the service thread. */
void hp_helper_begin(uint64_t late_ns);

/* From the next record to the run that takes it: long where the helper has taken from the program what it may. On the
 * service thread. */
uint64_t hp_helper_delay_ns(bool crowded);

/* Do what is to be done now, locking and unlocking; on the service thread. Returns when there is more, by the domain's
 * clock; UINT64_MAX: not before the next record. */
struct hp_helper_news {
	bool any; /* there were records since the last time */
	bool crowded; /* more than it can take */
	bool busy; /* the domain is in a call of a slow device: to be served later */
};
uint64_t hp_helper_serve(hugepin_domain *d, struct hp_helper_news *ret);

#endif
