/*
 * Moving: before a fork, the live buffers in pages of the pool get other memory at the same addresses, in the process
 * itself. Then this fork and later ones have nothing to copy for the child, because copy-on-write of the other memory
 * needs no pool.
 */
#ifndef HP_ALLOC_MOVE_H
#define HP_ALLOC_MOVE_H

#include <stdbool.h>
#include <stddef.h>

/* Whether any page may move. The caller holds hp_heap_lock, and knows of no other thread of the program. */
bool hp_move_wanted(void);

/* Move the pages that can move. Returns the number of hugepages moved. Called in fork's handlers, before
 * hp_fork_prepare(), with hp_heap_lock held and signals blocked, while no thread of ours runs. Makes raw system calls,
 * and keeps errno. */
size_t hp_move(void);

#endif
