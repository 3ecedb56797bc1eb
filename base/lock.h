/*
 * Ranked locks. A thread takes locks in rising rank; debug builds check it, and check in the mapping tier that the heap's is
 * not held: other people's hooks on mmap, munmap and madvise may call malloc.
 *
 * pthread mutexes of the normal type: they allocate nothing, and a child of fork may release what its parent's thread
 * took in the prepare handler.
 */
#ifndef HP_BASE_LOCK_H
#define HP_BASE_LOCK_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"

enum hp_rank {
	HP_RANK_OPEN, /* opening and closing of domains */
	HP_RANK_DOMAIN, /* one domain of the pin cache: held across its backend's calls */
	HP_RANK_WATCH, /* the watchers' table: held while callbacks run, which may allocate */
	HP_RANK_HEAP, /* tree, pages, shared lists, thread registry */
	HP_RANK_TABLE, /* the table of regions */
	HP_RANK_QUEUE, /* a domain's queues */
	HP_RANK_TRACE, /* the trace's buffer */
};

struct hp_lock {
	pthread_mutex_t mutex;
	enum hp_rank rank;
};

#define HP_LOCK_INIT(r) { PTHREAD_MUTEX_INITIALIZER, (r) }

/* Of this thread; bit r: it holds, or is about to take, a lock of rank r. */
extern HP_TLS unsigned hp_locks_held;

static inline bool hp_lock_mine(const struct hp_lock *l)
{
	return hp_locks_held >> l->rank & 1;
}

/* The fences are for a signal handler that forks (heap.c): it must not find a lock taken and the bit clear. */
static inline void hp_lock(struct hp_lock *l)
{
	HP_ASSERT(hp_locks_held < 1u << l->rank);
	hp_locks_held |= 1u << l->rank;
	atomic_signal_fence(memory_order_seq_cst);
	pthread_mutex_lock(&l->mutex);
}

/* Out of order, too: nobody waits. */
static inline bool hp_trylock(struct hp_lock *l)
{
	if (pthread_mutex_trylock(&l->mutex) != 0)
		return false;
	hp_locks_held |= 1u << l->rank;
	return true;
}

static inline void hp_unlock(struct hp_lock *l)
{
	HP_ASSERT(hp_lock_mine(l));
	pthread_mutex_unlock(&l->mutex);
	atomic_signal_fence(memory_order_seq_cst);
	hp_locks_held &= ~(1u << l->rank);
}

#endif
