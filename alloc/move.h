/*
 * Moving: before a fork the live buffers in pages of the pool get other memory at the same addresses, in the process
 * itself. Then nothing has to be copied for the child, at this fork and at later ones: the kernel's copy-on-write of
 * such memory needs no pool.
 */
#ifndef HP_ALLOC_MOVE_H
#define HP_ALLOC_MOVE_H

#include <stdbool.h>
#include <stddef.h>

/* Whether there is anything that may move: asked of a process that knows of no other thread of the program's.
 * hp_heap_lock held. */
bool hp_move_wanted(void);

/* Move what can move. In fork's handlers, before prepare, with hp_heap_lock held, signals blocked and no thread of
 * ours. Returns hugepages. Raw system calls; errno is kept. */
size_t hp_move(void);

#endif
