/*
 * Placing requests in the tree of free chunks, and freeing chunks. This file changes the tree, the words of chunks, and
 * the statistics of taken chunks. It stands above the pages (pages.h), and below the heap's decisions.
 *
 * All functions but hp_place_ready() and hp_lists_clear(): the caller holds hp_heap_lock; those that only change what
 * belongs to a shard, the lock of that shard (shard.h).
 */
#ifndef HP_ALLOC_PLACE_H
#define HP_ALLOC_PLACE_H

#include "alloc/pages.h"

struct hp_placement {
	size_t n, room; /* chunks */
	size_t align; /* bytes, a power of two; base pages are aligned to at the least */
	enum hp_part part; /* the part of the span to place it in */
	bool memory_short; /* set by hp_place(): there were addresses, but no memory */
	unsigned shard; /* the thread's; set by the functions below. The small tier has 0 */
	bool crowded; /* set by hp_place_ready(): the thread needs a shard of its own */
	bool grew; /* set by hp_place() and hp_place_small(): a new extent was made */
};

/* Place a request that has no room where there is memory. The caller holds no lock, but then that of shard *ret_held.
 * Returns its first chunk; 0: hp_place() has to do it, and no lock is held. */
size_t hp_place_ready(struct hp_placement *r, unsigned *ret_held);

/* Place a request in the tree and give it memory. Returns its first chunk; 0: out of memory. May release the lock
 * meanwhile. */
size_t hp_place(struct hp_placement *r);

/* Find a place for the small tier, at `at` unless that is NULL. The chunks are not taken, and have no memory yet. 0:
 * there is no place. */
size_t hp_place_small(struct hp_placement *r, const void *at);

/* Empty this thread's lists and the shared ones. Returns whether there was anything in them. held: see
 * hp_cache_clear(). */
bool hp_lists_clear(unsigned *held);

/* Note that [chunk, chunk + n) was handed out. Returns how many of its first chunks may be dirty; the rest are zero. */
size_t hp_chunks_hand_out(size_t chunk, size_t n);

/* free() frees taken chunks, but those on pages that are lost or leave the pool do not return to the tree. give() also
 * counts the chunks as no longer taken. */
void hp_chunks_free(size_t chunk, size_t n);
void hp_chunks_give(size_t chunk, size_t n);

/* Free a live buffer and its room. */
void hp_buffer_give(size_t chunk);

/* Set the word of a live buffer. again: the buffer may have advice already, and free() of an advised buffer must not
 * take the fast path. */
void hp_buffer_set_live(size_t chunk, size_t n, size_t room);
void hp_buffer_set_live_again(size_t chunk, size_t n, size_t room);

/* Whether a buffer has lost memory in a fork. */
bool hp_buffer_is_lost(size_t chunk, size_t n);

/* Whether a part of a buffer lies on a page that leaves the pool. */
bool hp_buffer_leaves(size_t chunk, size_t n);

#endif
