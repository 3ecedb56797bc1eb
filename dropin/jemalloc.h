/*
 * The small tier of libhugepin-malloc.so: jemalloc under other names (hpje_*), the addresses that its memory comes
 * from, and the next malloc of the process.
 *
 * Everything here is valid when zero or as initialised: malloc is called before any constructor and after all
 * destructors.
 */
#ifndef HP_DROPIN_JEMALLOC_H
#define HP_DROPIN_JEMALLOC_H

#include <stdatomic.h>

#include "alloc/small.h"
#include "base/base.h"
#include "base/lock.h"

/* jemalloc's functions, as the Makefile renames them (JEMALLOC_RENAMED). */
void *hpje_malloc(size_t), *hpje_calloc(size_t, size_t), *hpje_realloc(void *, size_t);
void *hpje_aligned_alloc(size_t, size_t), *hpje_mallocx(size_t, int), *hpje_rallocx(void *, size_t, int);
void hpje_free(void *), hpje_dallocx(void *, int), hpje_sdallocx(void *, size_t, int);
size_t hpje_malloc_usable_size(const void *), hpje_sallocx(const void *, int), hpje_nallocx(size_t, int);
size_t hpje_xallocx(void *, size_t, size_t, int);

/* jemalloc's controls, which libhugepin-malloc.so also exports. */
int mallctl(const char *, void *, size_t *, void *, size_t);
extern const char *malloc_conf;

#pragma GCC visibility push(hidden)

/* The span of addresses that jemalloc's memory comes from, in units of a hugepage. What jemalloc unmaps in smaller
 * parts stays reserved. */
struct hp_arena {
	/* malloc() and free() read the next four members. They begin off the start of a page, as chunk words do
	 * (pages.h). */
	_Alignas(4096) char unused[1024];
	_Atomic uintptr_t base; /* relaxed: the lock of the arena, or a buffer that was handed over */
	_Atomic size_t size; /* relaxed: as base */
	size_t jemalloc_below; /* requests below this go to jemalloc: HUGEPIN_LARGE_MIN, or 0 with another small tier */
	void (*free_outside)(void *); /* takes pointers that are neither here nor in the heap's span */
	uint64_t *used; /* a bit for each unit */
	bool outside; /* the span was full or could not be reserved, so jemalloc has memory elsewhere, too */
	bool tried;
	_Atomic bool settled; /* it is decided whether the arena is part of the heap's span */
	_Atomic bool in_heap; /* the arena is part of the heap's span, and its memory comes from hugepin_small_map_() */
	struct hp_lock lock; /* without a rank: taken under locks of jemalloc; no lock is taken under it */
};
extern struct hp_arena hp_arena;

/* The allocator in jemalloc's place. Its functions are all set if hp_arena.jemalloc_below is 0. Of the handlers of fork
 * either all are set, or none. */
extern struct hp_next {
	struct hp_small small;
	void (*trim)(int all); /* gives free memory back; may be NULL */
} hp_next;

/* Whether p is in the arena, and so jemalloc's. acquire: not a new base with an old size; pairs with move_arena(). */
static inline bool hp_in_arena(const void *p)
{
	uintptr_t base = atomic_load_explicit(&hp_arena.base, memory_order_acquire);

	return (uintptr_t)p - base < atomic_load_explicit(&hp_arena.size, memory_order_relaxed);
}

/* HUGEPIN_SMALL_PINNED: whether the arena is part of the heap's span. */
static inline bool hp_arena_in_heap(void)
{
	return atomic_load_explicit(&hp_arena.in_heap, memory_order_acquire); /* pairs with settle_arena() */
}

/* Start jemalloc, and the allocator in its place, unless they have started: they open files then. */
void hp_small_start(void);
_Bool hp_jemalloc_started(void);

/* Shorten the arena to `limit` bytes, but give up only addresses behind the last used unit. */
void hp_arena_limit(size_t limit);

/* With HUGEPIN_SMALL other than jemalloc: find that allocator and fill in hp_next. Returns whether it is there. */
_Bool hp_next_find(void);

/* Send small requests there from now on. */
void hp_jemalloc_replace(void);

/* Called for each registration of fork handlers. Whether the allocator that is being loaded registers them: they are
 * kept in hp_next then. */
_Bool hp_next_takes_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

#pragma GCC visibility pop

#endif
