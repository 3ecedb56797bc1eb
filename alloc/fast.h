/*
 * The fast path of malloc and free for a large buffer, by the thread's slot: no lock, no clock, no system call, no
 * shared write. Both libhugepin.so and libhugepin-malloc.so inline it, which saves the jump between the two. The names
 * that libhugepin-malloc.so needs are exported for it alone.
 */
#ifndef HP_ALLOC_FAST_H
#define HP_ALLOC_FAST_H

#include "alloc/cache.h"

#pragma GCC visibility push(default)

/* hp_span and hp_cache_self under the names that libhugepin-malloc.so sees. */
extern struct hp_span hugepin_span_;
extern HP_TLS struct hp_cache *hugepin_cache_self_;

/* malloc and free by the thread's list, and then under hp_heap_lock. The caller has entered the cache; they leave
 * it. */
void *hugepin_malloc_listed_(size_t n, struct hp_cache *c);
void hugepin_free_listed_(struct hp_cache *c, void *p, hp_chunk *word, uint32_t w);

#pragma GCC visibility pop

static inline size_t hp_chunks_for(size_t size)
{
	return ((size - 1) >> HP_CHUNK_SHIFT) + 1;
}

/* Whether p is in the opened part of the span, which contains all buffers of the heap. */
static inline bool hp_span_has(const struct hp_span *s, const void *p)
{
	return hp_span_offset(s, p) < hp_span_opened(s);
}

/* Enter the cache. If the slot's buffer fits, leave the cache and return the buffer. NULL: it does not fit, and the
 * cache is still entered. */
static inline __attribute__((always_inline)) void *hp_cache_pop_slot(struct hp_cache *c, size_t n, size_t align)
{
	hp_cache_enter(c);
	if (HP_LIKELY(hp_is_close(hp_cache_slot(c), n) && n <= hp_cache_limit(c) &&
		      (align <= HP_CHUNK || !((uintptr_t)c->slot_ptr & (align - 1))))) {
		void *p = c->slot_ptr;

		/* Not the word by slot.n, so that a pair of malloc and free need not wait for the stores of the pair
		 * before. */
		atomic_store_explicit(c->slot_chunk, c->slot_word, memory_order_relaxed);
		/* One store empties the slot and leaves the cache. release: pairs with hp_cache_is_left(). */
		atomic_store_explicit(&c->slot.word, 0, memory_order_release);
		if (!p) /* so that the caller need not look */
			__builtin_unreachable();
		return p;
	}
	return NULL;
}

/* size must be at least HUGEPIN_LARGE_MIN. */
static inline __attribute__((always_inline)) void *hp_fast_malloc(struct hp_cache *const *self, size_t size)
{
	struct hp_cache *c = *self;
	size_t n = hp_chunks_for(size);
	void *p = hp_cache_pop_slot(c, n, HP_CHUNK);

	return HP_LIKELY(p) ? p : hugepin_malloc_listed_(n, c);
}

/* off: of p, in the opened part of the span. relaxed: the program hands the buffer over; then this thread is inside,
 * and a store of the whole word tells a thief. */
static inline __attribute__((always_inline)) void hp_fast_free(const struct hp_span *s, struct hp_cache *const *self,
							       void *p, size_t off)
{
	struct hp_cache *c = *self;
	hp_chunk *chunk = hp_chunk_at(s, off >> HP_CHUNK_SHIFT);
	uint32_t w = (uint32_t)atomic_load_explicit(chunk, memory_order_relaxed);

	hp_cache_enter(c);
	if (HP_LIKELY(((off & (HP_CHUNK - 1)) | (HP_CHUNK_STATE(w) ^ HP_CHUNK_LIVE) |
		       hp_cache_slot(c)) == 0 &&
		      HP_CHUNK_COUNT(w) <= hp_cache_limit(c))) {
		atomic_store_explicit(chunk, w ^ HP_CHUNK_LIVE ^ HP_CHUNK_LISTED, memory_order_relaxed);
		/* Mostly the buffer came from this slot. Then do not store these again, so that malloc's loads need not
		 * wait for a store just before. The word may be another one, because of realloc. */
		if (HP_UNLIKELY(c->slot_ptr != p || c->slot_word != w)) {
			c->slot_ptr = p;
			c->slot_chunk = chunk;
			c->slot_word = w;
		}
		/* One store fills the slot and leaves the cache. release: pairs with hp_cache_is_left(). */
		atomic_store_explicit(&c->slot.word, HP_CHUNK_COUNT(w), memory_order_release);
		return;
	}
	hugepin_free_listed_(c, p, chunk, w);
}

#endif
