/*
 * Ranked locks, which a thread takes in the order of rising rank. Debug builds check this. In the mapping tier they
 * also check that the heap's lock is not held, because hooks of other libraries on mmap, munmap and madvise may call
 * malloc.
 *
 * A lock is a futex word of our own (the third mutex of Drepper's "Futexes Are Tricky"). A mutex of the C library does
 * not suffice: while the C library knows of only one thread, it takes and releases mutexes without atomic instructions,
 * but it does not know our bare threads (thread.h). A child of fork may release a lock that the parent's thread took in
 * the prepare handler.
 */
#ifndef HP_BASE_LOCK_H
#define HP_BASE_LOCK_H

#include <stdatomic.h>

#include "base/barrier.h"
#include "base/base.h"

enum hp_lock_rank {
	HP_LOCK_RANK_LEND, /* one lend: held during send() and across calls of the pin cache; the list of lends */
	HP_LOCK_RANK_OPEN, /* opening and closing of domains */
	HP_LOCK_RANK_DOMAIN, /* one domain of the pin cache: held across its backend's calls */
	HP_LOCK_RANK_WATCH, /* the watchers' table: held while callbacks run, which may allocate */
	HP_LOCK_RANK_HEAP, /* tree, pages, shared lists, thread registry */
	HP_LOCK_RANK_TABLE, /* the table of regions */
	HP_LOCK_RANK_FACTS, /* which memory was discarded: held while what is watched is brought up to date */
	HP_LOCK_RANK_WATCHED, /* what the kernel watches outside the heap: held while it is told */
	HP_LOCK_RANK_MAPS, /* the descriptor of /proc/self/maps */
	HP_LOCK_RANK_QUEUE, /* records of pins; what a lend has to tell */
	HP_LOCK_RANK_JOBS, /* the list of the service thread's jobs */
	HP_LOCK_RANK_TRACE, /* the trace's buffer */
	HP_LOCK_RANK_GONE, /* a domain's queues: taken even by a handler that interrupted a holder of any other lock */
};

struct hp_lock {
	/* relaxed: a try that fails has seen nothing; hp_lock_reset() has no other thread */
	_Atomic uint32_t word; /* 0: free; 1: taken; 2: taken, and threads may sleep on it */
	enum hp_lock_rank rank;
};

#define HP_LOCK_INIT(r) { 0, (r) }

/* The ranks of this thread's locks. Bit r: the thread holds, or is about to take, a lock of rank r. */
extern HP_TLS unsigned hp_locks_held;

/* Sleep until this thread has the lock. */
void hp_lock_wait(struct hp_lock *l);

static inline bool hp_lock_mine(const struct hp_lock *l)
{
	return hp_locks_held >> l->rank & 1;
}

/* acquire: pairs with hp_lock_release(). */
static inline bool hp_lock_try(struct hp_lock *l)
{
	uint32_t open = 0;

	return atomic_compare_exchange_strong_explicit(&l->word, &open, 1, memory_order_acquire, memory_order_relaxed);
}

/* Make the lock free, in the child of fork, or before the first use. No thread has it or waits for it. */
static inline void hp_lock_reset(struct hp_lock *l)
{
	atomic_store_explicit(&l->word, 0, memory_order_relaxed);
}

/* The lock alone, without the thread's ranks. */
static inline void hp_lock_release(struct hp_lock *l)
{
	/* release: pairs with hp_lock_try() and hp_lock_wait() of the next holder */
	if (atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2)
		hp_futex_wake_one(&l->word);
}

/* The barriers are for a signal handler that forks (atfork.c), which must never find the lock taken and its bit
 * clear. */
static inline void hp_lock(struct hp_lock *l)
{
	HP_ASSERT(hp_locks_held < 1u << l->rank);
	hp_locks_held |= 1u << l->rank;
	hp_barrier_handler();
	if (!hp_lock_try(l))
		hp_lock_wait(l);
}

/* May be called in any order of ranks, since it never blocks. */
static inline bool hp_trylock(struct hp_lock *l)
{
	const unsigned before = hp_locks_held;

	hp_locks_held |= 1u << l->rank;
	hp_barrier_handler();
	if (hp_lock_try(l))
		return true;
	hp_locks_held = before;
	return false;
}

static inline void hp_unlock(struct hp_lock *l)
{
	HP_ASSERT(hp_lock_mine(l));
	hp_lock_release(l);
	hp_barrier_handler();
	hp_locks_held &= ~(1u << l->rank);
}

#endif
