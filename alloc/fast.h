/*
 * malloc and free of a large buffer when the thread's slot serves: no lock, no clock, no system call, no shared write.
 * Inlined in libhugepin.so and once more in libhugepin-malloc.so, which saves the jump between them; the names that the
 * latter needs are exported for it alone.
 */
#ifndef HP_ALLOC_FAST_H
#define HP_ALLOC_FAST_H

#include "alloc/cache.h"

#pragma GCC visibility push(default)

/* hp_span and hp_cache_self under the names that libhugepin-malloc.so sees. */
extern struct hp_span hugepin_span_;
extern HP_TLS struct hp_cache *hugepin_cache_self_;

/* The same by the lists, and then by hp_heap_lock; the cache was entered. */
void *hugepin_malloc_listed_(size_t size, size_t n, struct hp_cache *c);
void hugepin_free_listed_(struct hp_cache *c, void *p);

#pragma GCC visibility pop

static inline size_t hp_chunks_for(size_t size)
{
	return ((size - 1) >> HP_CHUNK_SHIFT) + 1;
}

/* Whether p lies in the opened part of the span, where all buffers of the heap are. */
static inline bool hp_span_has(const struct hp_span *s, const void *p)
{
	return hp_span_offset(s, p) < hp_span_opened(s);
}

/* Enter the cache; if the slot's buffer fits, leave with it. NULL: still entered. */
static inline __attribute__((always_inline)) void *hp_cache_pop_slot(struct hp_cache *c, size_t n, size_t align)
{
	uint64_t word = HP_CHUNK_WORD(n, HP_CHUNK_LIVE);

	/* What free() will load is computed from the request, not from slot.n: else each pair waits for the last one's
	 * stores. */
	__asm__("" : "+r"(word));
	hp_cache_enter(c);
	if (HP_LIKELY(n == hp_cache_slot(c) && n <= hp_cache_limit(c) &&
		      (align <= HP_CHUNK || !((uintptr_t)c->slot_ptr & (align - 1))))) {
		void *p = c->slot_ptr;

		atomic_store_explicit(c->slot_chunk, word, memory_order_relaxed);
		/* Empty, and left: pairs with hp_cache_steal(). */
		atomic_store_explicit(&c->slot.word, 0, memory_order_release);
		return p;
	}
	return NULL;
}

/* size >= HUGEPIN_LARGE_MIN */
static inline __attribute__((always_inline)) void *hp_fast_malloc(struct hp_cache *const *self, size_t size)
{
	struct hp_cache *c = *self;
	size_t n = hp_chunks_for(size);
	void *p = hp_cache_pop_slot(c, n, HP_CHUNK);

	return HP_LIKELY(p) ? p : hugepin_malloc_listed_(size, n, c);
}

/* p lies in the opened part of the span */
static inline __attribute__((always_inline)) void hp_fast_free(const struct hp_span *s, struct hp_cache *const *self,
							       void *p)
{
	size_t off = hp_span_offset(s, p);
	struct hp_cache *c = *self;
	hp_chunk *chunk = hp_chunk_at(s, off >> HP_CHUNK_SHIFT);
	uint32_t w = (uint32_t)atomic_load_explicit(chunk, memory_order_relaxed);

	hp_cache_enter(c);
	if (HP_LIKELY(((off & (HP_CHUNK - 1)) | (HP_CHUNK_STATE(w) ^ HP_CHUNK_LIVE) |
		       hp_cache_slot(c)) == 0 &&
		      HP_CHUNK_COUNT(w) <= hp_cache_limit(c))) {
		atomic_store_explicit(chunk, w ^ HP_CHUNK_LIVE ^ HP_CHUNK_LISTED, memory_order_relaxed);
		/* Mostly it came from there: what malloc loads is then no store of ours just before. */
		if (c->slot_ptr != p) {
			c->slot_ptr = p;
			c->slot_chunk = chunk;
		}
		/* Full, and left: pairs with hp_cache_steal(). */
		atomic_store_explicit(&c->slot.word, HP_CHUNK_COUNT(w), memory_order_release);
		return;
	}
	hugepin_free_listed_(c, p);
}

#endif
