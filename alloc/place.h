/*
 * Placing requests in the tree of free chunks, and freeing chunks again: all that changes the tree, the words of
 * chunks, and the statistics of what is taken. Above the pages (pages.h), below what decides.
 *
 * All functions: hp_heap_lock held by the caller.
 */
#ifndef HP_ALLOC_PLACE_H
#define HP_ALLOC_PLACE_H

#include "alloc/pages.h"

struct hp_request {
	size_t n, room; /* chunks */
	size_t bytes; /* with HUGEPIN_GUARD, which adds a chunk to n */
	size_t align; /* bytes, a power of two; at least HP_CHUNK */
	enum hp_part part; /* whom it is for */
	bool memory_short; /* set by hp_place(): addresses were there, memory was not */
	bool grew; /* set by hp_place() and hp_place_small(): an extent was made */
};

/* Place a request in the tree and give it memory. May release the lock meanwhile. Its first chunk; 0: out of memory. */
size_t hp_place(struct hp_request *r);

/* A place for the small tier, at `at` if that is not NULL: the chunks are not taken, and have no memory yet. 0: there
 * is none. */
size_t hp_place_small(struct hp_request *r, const void *at);

/* Empty all lists that may be emptied: this thread's and the shared ones. Returns whether there was anything in
 * them. */
bool hp_lists_clear(void);

/* Count so many chunks more as taken. */
void hp_chunks_count_taken(size_t chunks);

/* Note that [chunk, chunk + n) was handed out. Returns how many of its first chunks may be dirty; the rest are zero. */
size_t hp_chunks_hand_out(size_t chunk, size_t n);

/* Free taken chunks: those whose pages are lost, or leave the pool, go to no tree. give: and count them as taken no
 * more. */
void hp_chunks_free(size_t chunk, size_t n);
void hp_chunks_give(size_t chunk, size_t n);

/* Free a live buffer, room and all. */
void hp_buffer_give(size_t chunk);

/* The word of a live buffer. again: there may be advice about the buffer, and then its free() must not take the fast
 * path. */
void hp_buffer_set_live(size_t chunk, size_t n, size_t room);
void hp_buffer_set_live_again(size_t chunk, size_t n, size_t room);

/* Whether a buffer has lost memory in a fork. */
bool hp_buffer_is_lost(size_t chunk, size_t n);

/* Whether a part of it lies on a page that leaves the pool. */
bool hp_buffer_leaves(size_t chunk, size_t n);

#endif
