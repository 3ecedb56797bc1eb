/*
 * What a child of fork gets of the heap (fork.c). Called in fork's handlers (atfork.c): hp_heap_lock is held from
 * prepare to the end of parent or child.
 */
#ifndef HP_ALLOC_FORK_H
#define HP_ALLOC_FORK_H

#include <stdbool.h>
#include <stddef.h>

/* Whether neither a copy nor the kernel's copy-on-write is sure to find memory. */
bool hp_fork_refuses(void);

/* listed_too: LISTED buffers may become live before the child is there. alone: there is no other thread. moved: pages
 * that were moved for this fork (move.h). */
void hp_fork_prepare(bool listed_too, bool alone, size_t moved);
void hp_fork_parent(void);
void hp_fork_child(void);

#endif
