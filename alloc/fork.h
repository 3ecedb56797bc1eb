/*
 * Decides which of the heap's memory a child of fork gets (fork.c). Fork's handlers (atfork.c) call these functions.
 * hp_heap_lock is held from hp_fork_prepare() to the end of hp_fork_parent() or hp_fork_child().
 */
#ifndef HP_ALLOC_FORK_H
#define HP_ALLOC_FORK_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the fork must be refused, because the pool may run out of pages for the kernel's copy-on-write and there is
 * no room for a copy either. */
bool hp_fork_refuses(void);

/* Hugepages that are copied for the child. of_pool: those that nobody holds, which are copied only because they lie in
 * the pool. */
struct hp_fork_copied {
	size_t pages, of_pool;
};

/* listed_too: other threads may still turn LISTED buffers into live ones. alone: the process has one thread. moved:
 * pages that were moved for this fork (move.h). Returns the pages that are copied in addition. */
struct hp_fork_copied hp_fork_prepare(bool listed_too, bool alone, size_t moved);
void hp_fork_parent(void);
void hp_fork_child(void);

/* Count a fork for which the heap can do nothing, because it interrupted the heap or calls no handler. No other
 * function of this file is called for this fork. Takes no lock: who holds it may have stayed in another process. */
void hp_fork_leave(void);

/* Whether such a fork is safe, because the pool covers the heap. */
bool hp_fork_may_leave(void);

#endif
