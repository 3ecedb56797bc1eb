/*
 * Which domains have something to do for a thread that works for all domains: a bit for each, so that such a thread
 * takes no lock of the others.
 *
 * Who queues work sets the bit afterwards, on any thread and with any lock. Who does the work clears the bit first. A
 * bit too many costs a look at the domain.
 */
#ifndef HP_REG_WORK_H
#define HP_REG_WORK_H

#include "reg/state.h"

enum hp_work {
	HP_WORK_SERVE, /* queued ranges, dead regions, hints, new extents (serve.c) */
	HP_WORK_ANSWER, /* requests of hugepin_pin_try() (answer.c) */
	HP_WORK_HELP, /* a helper, as long as the domain has one */
	HP_WORK_HELD, /* regions on memory of the heap, for each tick; guarded by the domain's lock */
	HP_WORK_KINDS
};

void hp_work_set(const hugepin_domain *d, enum hp_work kind);
void hp_work_clear(const hugepin_domain *d, enum hp_work kind);

/* The bits of the domains with the numbers from `from`, a multiple of HP_WORK_WORD, on. */
enum { HP_WORK_WORD = 64 };
uint64_t hp_work_of(enum hp_work kind, uint32_t from);

/* In the child of fork: no domain has work. */
void hp_work_child(void);

#endif
