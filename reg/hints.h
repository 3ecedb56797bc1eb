/*
 * The queue of hints: ranges that the service thread registers ahead of their pins, or has the device bring in. Any
 * thread, with or without the domain's lock.
 */
#ifndef HP_REG_HINTS_H
#define HP_REG_HINTS_H

#include "reg/state.h"

/* Queue a hint. 0, or -EBUSY: too many are waiting. */
int hp_hints_push(hugepin_domain *d, struct hp_prefetch hint);

/* Take the oldest hint out of the queue. False: there is none. */
bool hp_hints_take(hugepin_domain *d, struct hp_prefetch *ret_);

/* Take out the announcements of just this range and access. Returns whether there was one. */
bool hp_hints_overtake(hugepin_domain *d, const void *addr, size_t len, unsigned access);

/* Take out the hints of ranges that overlap [start, end). The caller has the queue's lock, and tells hp_stakes_listen()
 * of their number. */
unsigned hp_hints_drop(hugepin_domain *d, uintptr_t start, uintptr_t end);

#endif
