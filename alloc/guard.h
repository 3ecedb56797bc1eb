/*
 * HUGEPIN_GUARD=1, for debugging. A large buffer is followed by an inaccessible base page. The bytes between the
 * buffer's end and that page hold a pattern, which free() looks at. A freed buffer is inaccessible, and is used again
 * late. Buffers never enter a cache: the page behind them is room, as the heap calls it, and caches take no buffer with
 * room. The memory is of base pages.
 *
 * The caller holds hp_heap_lock.
 */
#ifndef HP_ALLOC_GUARD_H
#define HP_ALLOC_GUARD_H

#include "alloc/pages.h"

/* Make a buffer of bytes in n chunks, at least 2, of the n + 1 that were taken. False: it cannot be had, and nothing is
 * there. */
bool hp_guard_make(size_t chunk, size_t n, size_t bytes);

/* Of the last chunks of a live buffer, bytes that its owner did not ask for. They stand in the half of its word that is
 * otherwise a list's: 0 without a guard. */
static inline size_t hp_guard_spare(size_t chunk)
{
	return HP_CHUNK_LINK(hp_chunk_get(chunk));
}

/* The bytes that its owner asked for; without a guard, those of its chunks. */
static inline size_t hp_guard_bytes(size_t chunk)
{
	return ((size_t)HP_CHUNK_COUNT(hp_chunk_get(chunk)) << HP_CHUNK_SHIFT) - hp_guard_spare(chunk);
}

/* Whether the bytes behind it are as they were, or zero. */
bool hp_guard_intact(size_t chunk);

/* Make it inaccessible, and keep it for a while. */
void hp_guard_free(size_t chunk);

/* A buffer that was kept for long enough (all: or not), to be given back to the tree, inaccessible as it is: its chunk
 * and *ret_n. 0: there is none. */
size_t hp_guard_release(bool all, size_t *ret_n);

/* In the child of fork, which has given back all that was kept. */
void hp_guard_child(void);

#endif
