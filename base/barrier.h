/*
 * Barriers by what they are for. Each use has a name, so that a reader of one side knows where the other is. Locks have
 * none here: lock.h, and the orders of C11's atomics where two places alone are concerned.
 */
#ifndef HP_BASE_BARRIER_H
#define HP_BASE_BARRIER_H

#include <stdatomic.h>
#include <stdbool.h>

/*
 * Dekker's handshake between a side that comes often and one that comes seldom:
 *
 *	often		store own word;  hp_barrier_often();         load the other's word
 *	seldom		store own word;  hp_barrier_all_threads();   load the other's word
 *
 * At least one of them sees what the other has stored. The side that comes often pays nothing: its barrier holds back
 * the compiler alone, and the processor of every running thread is made to pass one when the other side comes
 * (membarrier(2)).
 *
 *	a thread's cache (alloc/cache.h)	busy; then limit	| hp_cache_steal(): limit; then busy
 *	pins and unpins (reg/pin.c)		a count; then the tag	| who retires a region: the tag; then the counts
 *	records (reg/pin.c)			a record; then `asked`	| the helper's run: `asked`; then the records
 */
static inline void hp_barrier_often(void)
{
	atomic_signal_fence(memory_order_seq_cst); /* pairs with hp_barrier_all_threads() */
}

/* Some microseconds. False: it was refused, as by a filter of system calls that was set since it was registered, and
 * the handshake does not hold. errno is kept. */
bool hp_barrier_all_threads(void);

/* Before the first of those, by each who will call it. False: the kernel or a filter refuses. errno is kept. */
bool hp_barrier_register(void);

/* Order between a thread and a signal handler that interrupts the thread. A handler that sees a write made after the
 * barrier sees every write made before the barrier. The barrier stops the compiler alone. */
static inline void hp_barrier_handler(void)
{
	atomic_signal_fence(memory_order_seq_cst); /* pairs with the same in the handler, or with its interruption */
}

#endif
