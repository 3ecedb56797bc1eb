/*
 * A process with threads that has forked, whose heap cannot move (move.h), leaves the hugetlb pool as buffers come and
 * go. Nothing is placed on pages of the pool any more. A page that is empty goes back without waiting.
 *
 * All functions: hp_heap_lock held.
 */
#ifndef HP_ALLOC_LEAVE_H
#define HP_ALLOC_LEAVE_H

#include <stdbool.h>

/* Begin. All lists are empty, and every other thread that would take from its own is at the lock. */
void hp_leave_pool(void);

/* Pages that have left are in the tree again, as wholly free for long: they can be given back. */
void hp_leave_end(void);

#endif
