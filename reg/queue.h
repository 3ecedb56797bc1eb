/*
 * The lock of a domain's queues: ranges that went away, hints, and requests. The watcher takes it while a thread waits
 * for the watcher inside munmap. So no signal handler may interrupt a holder, since the handler might unmap, or wait
 * for a thread that unmaps. A holder has all signals blocked, calls no other module, and never waits.
 */
#ifndef HP_REG_QUEUE_H
#define HP_REG_QUEUE_H

#include "base/sys.h"
#include "base/thread.h"
#include "reg/state.h"

/* Returns the thread's signal mask, for unlock(). A bare thread has all signals blocked already. any(): for another lock
 * that the watcher takes. */
static inline uint64_t hp_queue_lock_any(struct hp_lock *l)
{
	uint64_t mask = hp_thread_is_bare ? UINT64_MAX : hp_signals_block(UINT64_MAX);

	hp_lock(l);
	return mask;
}

static inline void hp_queue_unlock_any(struct hp_lock *l, uint64_t mask)
{
	hp_unlock(l);
	if (!hp_thread_is_bare)
		hp_signals_block(mask);
}

static inline uint64_t hp_queue_lock(hugepin_domain *d)
{
	return hp_queue_lock_any(&d->queue_lock);
}

static inline void hp_queue_unlock(hugepin_domain *d, uint64_t mask)
{
	hp_queue_unlock_any(&d->queue_lock, mask);
}

#endif
