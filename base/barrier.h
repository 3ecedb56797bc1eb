/*
 * Memory barriers, with one function for each side of a use, so that the name of one side leads a reader to the other.
 * Locks are in lock.h. Where only two places must agree, they use orders of C11 atomics, and each names the other
 * ("pairs with").
 */
#ifndef HP_BASE_BARRIER_H
#define HP_BASE_BARRIER_H

#include <stdatomic.h>
#include <stdbool.h>

/*
 * Dekker's handshake between a side that runs often and a side that runs seldom:
 *
 *	often		store own word;  hp_barrier_often();         load the other's word
 *	seldom		store own word;  hp_barrier_all_threads();   load the other's word
 *
 * At least one side sees the other's store. The barrier of the frequent side costs nothing, because it stops only the
 * compiler. The other side makes the processor of every running thread pass a barrier (membarrier(2)).
 *
 *	a thread's cache (alloc/cache.h)	busy; then limit	| hp_cache_steal(): limit; then busy
 *	pins and unpins (reg/pin.c)		a count; then the tag	| retiring a region: the tag; then the counts
 *	records (reg/pin.c)			a record; then `asked`	| the helper's run: `asked`; then the records
 */
static inline void hp_barrier_often(void)
{
	atomic_signal_fence(memory_order_seq_cst); /* pairs with hp_barrier_all_threads() */
}

/* Takes some microseconds. False: the kernel refused, for example because a filter of system calls was installed after
 * the registration, so the handshake does not hold. Keeps errno. */
bool hp_barrier_all_threads(void);

/* Every user of hp_barrier_all_threads() calls this once before. False: the kernel or a filter refuses. Keeps errno. */
bool hp_barrier_register(void);

/* Order between a thread and a signal handler that interrupts the thread: a handler that sees a write made after the
 * barrier sees every write made before it. The barrier stops only the compiler. */
static inline void hp_barrier_handler(void)
{
	atomic_signal_fence(memory_order_seq_cst); /* pairs with the same in the handler, or with its interruption */
}

#endif
