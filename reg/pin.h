/*
 * What other files, and tests, call of pin.c. The public functions are in hugepin.h.
 */
#ifndef HP_REG_PIN_H
#define HP_REG_PIN_H

#include "reg/counts.h"
#include "reg/state.h"

/* Undo a pin that was counted but is not a hit. No lock is held. A thread that retired the region meanwhile may have
 * seen the pin counted. By now the index may belong to another region, of another domain. */
void hp_count_back(struct hp_counts *counts, uint32_t index);

/* The parts of a pin that is no hit. check(): 0, or why the arguments are refused. settled(): whether a region of
 * foreign memory may be trusted to be the memory that is there now. This is not possible while memory changes all the
 * time. Waits at most a second. enter() locks the domain, unpublishes the regions in queued ranges, deregisters dead
 * regions. leave() unlocks the domain, and wakes the helper to take the record of the miss. locked(): pin by a region
 * that is there or is registered now; once: as hp_cover_pin(); time, site: for the helper. The thread must have
 * counters (counts.h). */
int hp_pin_check(const hugepin_domain *d, const void *addr, size_t len, unsigned access);
bool hp_pin_settled(const hugepin_domain *d, const void *addr, size_t len);
void hp_pin_enter(hugepin_domain *d);
void hp_pin_leave(hugepin_domain *d);
int hp_pin_locked(hugepin_domain *d, const void *addr, size_t len, unsigned access, int once, uint64_t time,
		  uint64_t site, struct hugepin_pin *ret_);

/* For the service thread: pin what a request asks for, as hugepin_pin(). False: the domain's lock stays taken.
 * *ret_err: 0 and *ret_, or -errno. */
bool hp_pin_for(hugepin_domain *d, const struct hp_request *q, struct hugepin_pin *ret_, int *ret_err);

#endif
