/*
 * A stack of listed buffers that any number of threads use at a time, without a lock (Treiber: Systems Programming,
 * Coping with Parallelism, 1986). The link of a buffer is in the upper half of its chunk's word (pages.h), never in
 * the buffer. A head has the first chunk below, and above a counter of changes, which each push and pop raises.
 *
 * Why a pop gets the right link: between its load of the head and a CAS that succeeds, the head has not changed,
 * unless exactly a multiple of 2^32 changes came between. So the chunk was the top all the time, and nobody writes the
 * word of a buffer in a stack. If the CAS fails, the word that was read may be anything, and is thrown away. It may be
 * read even then, because the table of words stays accessible below hp_span.opened; the word of chunk 0, the empty
 * stack, is 0.
 *
 * Orders: a push releases the word and what the thread did to the buffer before. Whoever loads the head with acquire
 * sees them, also through later changes by others: each of these is a CAS, so it continues the release sequence.
 *
 * Threads use stacks only between hp_cache_enter() and hp_cache_leave(), with a limit (cache.h). So a thief, or a fork,
 * that has shut all caches and finds none busy knows that nobody is in a stack.
 */
#ifndef HP_ALLOC_STACK_H
#define HP_ALLOC_STACK_H

#include "alloc/pages.h"

#ifndef HP_STACK_STOP /* a test stops threads here */
#define HP_STACK_STOP() ((void)0)
#endif

typedef _Atomic uint64_t hp_stack;

static inline uint64_t hp_stack_next(uint64_t head, uint32_t first)
{
	return ((head >> 32) + 1) << 32 | first;
}

/* Whether a request for n chunks takes a buffer of `count` as it is. */
static inline bool hp_is_close(size_t count, size_t n)
{
	return count - n <= n >> 4; /* of a shorter buffer the difference is a large number */
}

/* Whether a request for n chunks, aligned to `align` bytes, takes the buffer at `chunk` with this word. */
static inline bool hp_chunk_fits(size_t chunk, uint64_t word, size_t n, size_t align)
{
	return hp_is_close(HP_CHUNK_COUNT(word), n) && (align <= HP_CHUNK || !(hp_chunk_addr(chunk) & (align - 1)));
}

/* relaxed: what is pushed meanwhile is not seen */
static inline bool hp_stack_is_empty(hp_stack *s)
{
	return !(uint32_t)atomic_load_explicit(s, memory_order_relaxed);
}

/* Put a buffer of n chunks, which becomes LISTED, on top. */
static inline void hp_stack_push(hp_stack *s, size_t chunk, hp_chunk *word, uint32_t n)
{
	/* relaxed: the CAS compares it */
	uint64_t head = atomic_load_explicit(s, memory_order_relaxed);

	do {
		/* relaxed: the CAS below releases it */
		atomic_store_explicit(word, head << 32 | HP_CHUNK_WORD(n, HP_CHUNK_LISTED), memory_order_relaxed);
		HP_STACK_STOP();
		/* release: pairs with hp_stack_pop() and hp_stack_take() */
	} while (!atomic_compare_exchange_weak_explicit(s, &head, hp_stack_next(head, (uint32_t)chunk),
							memory_order_release, memory_order_relaxed));
}

/* Take the top out if it fits (hp_chunk_fits()). Returns its first chunk, whose word stays LISTED; 0: it does not fit,
 * or the stack is empty. */
static inline size_t hp_stack_pop(hp_stack *s, size_t n, size_t align)
{
	/* acquire: pairs with hp_stack_push() */
	uint64_t head = atomic_load_explicit(s, memory_order_acquire), word;

	do {
		word = hp_chunk_get((uint32_t)head);
		HP_STACK_STOP();
		if (!hp_chunk_fits((uint32_t)head, word, n, align))
			return 0;
		/* acquire: pairs with hp_stack_push() */
	} while (!atomic_compare_exchange_weak_explicit(s, &head, hp_stack_next(head, HP_CHUNK_LINK(word)),
							memory_order_acquire, memory_order_acquire));
	return (uint32_t)head;
}

/* Empty the stack. Returns the first chunk of what was on top, which links to the others; 0: it was empty. */
static inline size_t hp_stack_take(hp_stack *s)
{
	/* relaxed: the CAS compares it */
	uint64_t head = atomic_load_explicit(s, memory_order_relaxed);

	HP_STACK_STOP();
	/* acquire: pairs with hp_stack_push() */
	while ((uint32_t)head && !atomic_compare_exchange_weak_explicit(s, &head, hp_stack_next(head, 0),
									memory_order_acquire, memory_order_relaxed))
		;
	return (uint32_t)head;
}

#endif
