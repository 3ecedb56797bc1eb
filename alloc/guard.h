/*
 * HUGEPIN_GUARD=1, for debugging. An inaccessible base page follows each large buffer. The bytes between the buffer's
 * end and that page hold a pattern, which free() checks. A freed buffer becomes inaccessible, and its memory is reused
 * late. The memory consists of base pages. Buffers never enter a cache: the page behind a buffer is its room, and
 * caches take no buffer with room.
 *
 * The caller holds hp_heap_lock.
 */
#ifndef HP_ALLOC_GUARD_H
#define HP_ALLOC_GUARD_H

#include "alloc/pages.h"

/* Make a buffer of `bytes` bytes in the first n of n + 1 taken chunks; n is at least 2. False: out of memory; the
 * chunks are unchanged. */
bool hp_guard_make(size_t chunk, size_t n, size_t bytes);

/* Bytes at the end of a live buffer's chunks that its owner did not ask for. 0 without a guard. The number stands in
 * the half of the chunk's word that holds a link in listed buffers. */
static inline size_t hp_guard_spare(size_t chunk)
{
	return HP_CHUNK_LINK(hp_chunk_get(chunk));
}

/* The bytes that the owner asked for; without a guard, the bytes of all its chunks. */
static inline size_t hp_guard_bytes(size_t chunk)
{
	return ((size_t)HP_CHUNK_COUNT(hp_chunk_get(chunk)) << HP_CHUNK_SHIFT) - hp_guard_spare(chunk);
}

/* Whether the bytes behind the buffer's end hold the pattern, or zeros. */
bool hp_guard_intact(size_t chunk);

/* Make a freed buffer inaccessible, and keep it for a while. */
void hp_guard_free(size_t chunk);

/* Take out a kept buffer, still inaccessible, for the caller to give to the tree. all: even if it was not kept for
 * long. Returns its chunk, and sets *ret_n to its chunks. 0: there is none. */
size_t hp_guard_release(bool all, size_t *ret_n);

/* In the child of fork: forget the kept buffers, which the child has given back. */
void hp_guard_child(void);

#endif
