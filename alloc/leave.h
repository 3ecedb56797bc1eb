/*
 * Leaving the hugetlb pool. A process with threads that has forked cannot move its heap (move.h), so its pages of the
 * pool leave as buffers come and go: nothing is placed on them any more, and an empty page goes back at once.
 *
 * All functions: the caller holds hp_heap_lock.
 */
#ifndef HP_ALLOC_LEAVE_H
#define HP_ALLOC_LEAVE_H

#include <stdbool.h>

/* Begin to leave. All lists must be empty, and every other thread that would use its lists must wait for the lock. */
void hp_leave_pool(void);

/* Put pages that have left into the tree again, stamped as free for long, so that they can be given back. */
void hp_leave_end(void);

#endif
