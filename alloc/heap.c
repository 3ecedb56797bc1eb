/*
 * The heap: malloc and free of large buffers. docs/ARCHITECTURE.md has the design, docs/HISTORY.md what lost.
 *
 * malloc tries in this order: the thread's slot, its own lists, the shared lists (no lock), the tree (hp_heap_lock), a
 * new extent. free puts a buffer into the slot, and the slot's buffer into an own list or a shared one (no lock).
 * Buffers of more than HP_SLOT_MAX chunks, and ROOMY ones, return to the tree at once; others when the lists are
 * cleared. The tree coalesces. Lists are cleared in four cases: on a miss of a buffer above HP_LISTED_LARGE, when they
 * hold more than that (place.c); before an unused hugepage would be taken; when a tick asks (decay.c); at fork, thread
 * exit and purge.
 *
 * Management data is in separate tables (pages.h), so that a wild write in a buffer cannot break the heap, and a search
 * touches no buffer memory.
 */
#include "alloc/heap.h"

#include <errno.h>
#include <malloc.h>
#include <string.h>

#include "alloc/back.h"
#include "alloc/cache.h"
#include "alloc/fast.h"
#include "alloc/madvise.h"
#include "alloc/misuse.h"
#include "alloc/peak.h"
#include "alloc/sparse.h"
#include "alloc/start.h"
#include "alloc/below.h"
#include "base/config.h"
#include "base/map.h"
#include "base/proc.h"
#include "base/process.h"
#include "base/service.h"
#include "base/stats.h"
#include "base/there.h"

/* Empty this thread's cache, and admit buffers to it again. Called if another thread asked for this, or if the cache is
 * not yet in use. */
static void empty_own_cache(struct hp_cache *c)
{
	if (c->listed || hp_cache_slot(c))
		hp_cache_clear(c, HP_SHARD_HELD_ALL);
	hp_cache_admit(c);
}

/* Hand out chunks that are taken, as a buffer. The lock of their shard is held. */
static struct hp_handed hand_out(size_t chunk, const struct hp_placement *r)
{
	const size_t dirty = hp_chunks_hand_out(chunk, r->n);

	hp_buffer_set_live(chunk, r->n, r->room);
	return (struct hp_handed){ .p = (void *)hp_chunk_addr(chunk), .dirty = dirty << HP_CHUNK_SHIFT };
}

/* A buffer from a hole that has memory. */
static struct hp_handed alloc_ready(struct hp_placement *r)
{
	struct hp_handed h = { 0 };
	unsigned held;
	const size_t chunk = hp_place_ready(r, &held);
	bool ticks;

	if (!chunk)
		return h;
	h = hand_out(chunk, r);
	ticks = hp_tick_is_wanted();
	hp_shard_switch(&held, HP_SHARD_NONE);
	if (!h.dirty || ticks) {
		hp_heap_lock();
		if (!h.dirty)
			hp_sparse_note(chunk, r->n);
		hp_unlock_and_tick(true, true);
	}
	hp_service_resume();
	return h;
}

/* A buffer from the tree. */
__attribute__((noinline)) struct hp_handed hp_alloc_locked(struct hp_placement r)
{
	struct hp_handed h = { 0 };
	struct hp_cache *c;
	size_t chunk;

	if (hp_cache_aside)
		return h;
	if (!hp_heap_start() || r.n > hp_span.size >> HP_CHUNK_SHIFT) {
		HP_STAT_COUNT(nomem, 1);
		return h;
	}
	hp_cache_adopt();
	c = hp_cache_self;
	h = alloc_ready(&r);
	if (h.p)
		return h;
	if (r.crowded) {
		const unsigned added = hp_shard_add(&hp_span.holes);

		c->shard = added == HP_SHARD_NONE ? c->shard : added;
	}
	hp_heap_lock();
	if (!hp_cache_limit(c) && hp_span.opened) /* before the first extent no word is accessible */
		empty_own_cache(c);
	chunk = hp_place(&r);
	/* Memory may be short because the heap keeps idle memory. Purge, unless the idle memory is too little to help. */
	if (!chunk && r.memory_short && r.n << HP_CHUNK_SHIFT <= hp_span.ram &&
	    hp_idle_bytes() >= r.n << (HP_CHUNK_SHIFT - 3) && hp_purge(true))
		chunk = hp_place(&r);
	if (!chunk && r.room) {
		r.room = 0;
		chunk = hp_place(&r);
	}
	if (chunk) {
		h = hand_out(chunk, &r);
		if (!h.dirty)
			hp_sparse_note(chunk, r.n);
	} else {
		HP_STAT_COUNT(nomem, 1);
	}
	hp_unlock_and_tick(true, true);
	hp_service_resume();
	if (r.grew && hp_heap_hooks()->grown)
		hp_heap_hooks()->grown();
	return h;
}

static __attribute__((noinline)) void free_locked(void *p)
{
	size_t off = (uintptr_t)p - hp_span.base, chunk = off >> HP_CHUNK_SHIFT;
	const char *why = hp_misuse_reason(off);
	struct hp_cache *c;
	bool roomy;
	int saved_errno = errno;

	if (why) {
		hugepin_misuse_("free", p, why);
		return;
	}
	if (!hp_cache_aside)
		hp_cache_adopt();
	if (HP_UNLIKELY(HP_CHUNK_STATE(hp_chunk_get(chunk)) == HP_CHUNK_ROOMY))
		hp_madvise_unlock(chunk, hp_chunk_extent(chunk));
	hp_heap_lock();
	why = hp_misuse_reason(off); /* check again under the lock, because two threads may free p at once */
	if (why) {
		hp_heap_unlock();
		hugepin_misuse_("free", p, why);
		return;
	}
	/* Read the state under the lock, because a fork that had the lock meanwhile may have changed it by moving the
	 * buffer's page out of the pool. */
	roomy = HP_CHUNK_STATE(hp_chunk_get(chunk)) == HP_CHUNK_ROOMY;
	if (HP_UNLIKELY(roomy) && !hp_madvise_undo(chunk, hp_chunk_extent(chunk))) {
		hp_madvise_stick(chunk); /* the kernel kept the advice, so this memory is never handed out again */
		hp_heap_unlock();
		return;
	}
	c = hp_cache_self;
	if (!hp_cache_limit(c))
		empty_own_cache(c);
	if (roomy || HP_CHUNK_COUNT(hp_chunk_get(chunk)) > hp_cache_limit(c)) {
		hp_buffer_give(chunk);
	} else {
		if (!hp_cache_has_room(c))
			hp_cache_share_slot(c);
		hp_cache_push(c, p, hp_chunk_at(&hp_span, chunk), (uint32_t)hp_chunk_get(chunk));
	}
	hp_unlock_and_tick(false, true);
	errno = saved_errno;
}

/* Whether n chunks are more than PTRDIFF_MAX bytes. No tier may get such a request. */
static bool too_large(size_t n)
{
	if (n <= PTRDIFF_MAX >> HP_CHUNK_SHIFT)
		return false;
	errno = ENOMEM;
	return true;
}

/* ------------------------------------------------------------------ lists without a lock; the cache was entered */

/* The lower tier serves what a limit keeps the heap from. Its own free memory may be all that the limit leaves, in
 * pieces of other sizes. So before a request fails, the lower tier gives free memory back, unless the size is a
 * mistake. */
static bool is_worth_a_trim(size_t size)
{
	return hp_small()->trim && size <= hp_span.ram;
}

/* Whether the lower tier may get a request that the heap could not serve. Some allocators map without asking the kernel
 * (MAP_NORESERVE), and so return more memory than there can ever be, where the C library's malloc fails. */
static HP_COLD bool is_granted(size_t size)
{
	long p;

	if (!hp_span.ram || size <= hp_span.ram) /* 0: the heap could not start */
		return true;
	p = hp_raw_mmap(size, PROT_READ | PROT_WRITE, 0);
	if (hp_sys_failed(p)) {
		errno = ENOMEM;
		return false;
	}
	hp_raw_munmap((void *)p, size);
	return true;
}

static HP_COLD void *alloc_below(size_t align, size_t size)
{
	void *p;

	if (!is_granted(size))
		return NULL;
	p = hp_small()->aligned_alloc(align, size);
	if (p || !is_worth_a_trim(size))
		return p;
	hp_small()->trim();
	return hp_small()->aligned_alloc(align, size);
}

static __attribute__((noinline)) void *malloc_slower(size_t n)
{
	void *p;

	if (too_large(n))
		return NULL;
	p = hp_alloc_locked((struct hp_placement){ .n = n, .align = HP_CHUNK }).p;
	return p ? p : alloc_below(hp_base_page, n << HP_CHUNK_SHIFT);
}

/* These two end in calls of the rare cases, so that the usual ones save no registers. */
static __attribute__((noinline)) void *malloc_further(size_t n, struct hp_cache *c)
{
	size_t chunk = 0;

	if (n <= hp_cache_limit(c))
		chunk = hp_cache_pop_further(c, hp_class_of((uint32_t)n), n, HP_CHUNK);
	hp_cache_leave(c);
	return chunk ? (void *)hp_chunk_addr(chunk) : malloc_slower(n);
}

static __attribute__((noinline)) void free_further(struct hp_cache *c, void *p, hp_chunk *word, uint32_t w, bool kept)
{
	if (kept) {
		hp_cache_share_slot(c);
		hp_cache_push(c, p, word, w);
	}
	hp_cache_leave(c);
	if (!kept)
		free_locked(p);
}

void *hugepin_malloc_listed_(size_t n, struct hp_cache *c)
{
	size_t chunk = 0;

	if (HP_LIKELY(n <= hp_cache_limit(c)))
		chunk = hp_cache_pop_list(c, hp_class_of((uint32_t)n), n, HP_CHUNK);
	if (HP_UNLIKELY(!chunk))
		return malloc_further(n, c);
	hp_cache_leave(c);
	return (void *)hp_chunk_addr(chunk);
}

void hugepin_free_listed_(struct hp_cache *c, void *p, hp_chunk *word, uint32_t w)
{
	const bool kept = !(((uintptr_t)p & (HP_CHUNK - 1)) | (HP_CHUNK_STATE(w) ^ HP_CHUNK_LIVE)) &&
			  HP_CHUNK_COUNT(w) <= hp_cache_limit(c);

	if (HP_UNLIKELY(!kept || !hp_cache_has_room(c))) {
		free_further(c, p, word, w, kept);
		return;
	}
	hp_cache_push(c, p, word, w);
	hp_cache_leave(c);
}

/* ------------------------------------------------------------------ entry points */

void *hugepin_malloc(size_t size)
{
	if (HP_UNLIKELY(size < HUGEPIN_LARGE_MIN))
		return hp_small()->malloc(size);
	return hp_fast_malloc(&hp_cache_self, size);
}

void hugepin_free(void *p)
{
	size_t off = hp_span_offset(&hp_span, p);

	if (HP_UNLIKELY(off >= hp_span_opened(&hp_span)))
		hp_small()->free(p);
	else
		hp_fast_free(&hp_span, &hp_cache_self, p, off);
}

void *hugepin_aligned_alloc(size_t align, size_t size)
{
	size_t n = hp_chunks_for(HP_MAX(size, (size_t)1)), chunk = 0;
	void *p;

	if (!hp_is_power_of_two(align)) {
		errno = EINVAL;
		return NULL;
	}
	if (size < HUGEPIN_LARGE_MIN && align < HUGEPIN_LARGE_MIN)
		return hp_small()->aligned_alloc(align, size);
	if (align <= HP_CHUNK)
		return hugepin_malloc(size);

	struct hp_cache *c = hp_cache_self;

	p = hp_cache_pop_slot(c, n, align);
	if (p)
		return p;
	if (n <= hp_cache_limit(c))
		chunk = hp_cache_pop(c, n, align);
	hp_cache_leave(c);
	if (chunk)
		return (void *)hp_chunk_addr(chunk);
	if (too_large(n))
		return NULL;
	p = hp_alloc_locked((struct hp_placement){ .n = n, .align = align }).p;
	return p ? p : alloc_below(align, size);
}

static void clear_part(void *unused, uintptr_t from, uintptr_t to)
{
	(void)unused;
	memset((void *)from, 0, to - from);
}

/* Clear the first `bytes` of a buffer. The parts of a long buffer that have no memory read as zeros already, and have
 * to stay so, because a program may use little of a large table. Pages of the pool have memory anyway. */
static void *clear(void *p, size_t bytes)
{
	if (bytes < HP_BY_PARTS || HP_STAT_GET(hugetlb_bytes) ||
	    !hp_there_each((uintptr_t)p, (uintptr_t)p + bytes, clear_part, NULL))
		memset(p, 0, bytes);
	return p;
}

void *hugepin_calloc(size_t count, size_t size)
{
	size_t bytes, n, chunk = 0;
	struct hp_cache *c = hp_cache_self;
	struct hp_handed h;
	void *p;

	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	if (bytes < HUGEPIN_LARGE_MIN)
		return hp_small()->calloc(count, size);
	n = hp_chunks_for(bytes);
	p = hp_cache_pop_slot(c, n, HP_CHUNK);
	if (p)
		return clear(p, bytes);
	if (n <= hp_cache_limit(c))
		chunk = hp_cache_pop(c, n, HP_CHUNK);
	hp_cache_leave(c);
	if (chunk)
		return clear((void *)hp_chunk_addr(chunk), bytes);
	if (too_large(n))
		return NULL;
	h = hp_alloc_locked((struct hp_placement){ .n = n, .align = HP_CHUNK });
	if (h.p)
		return clear(h.p, HP_MIN(h.dirty, bytes));
	if (!is_granted(bytes))
		return NULL;
	/* The lower tier's calloc knows which of its memory is zero. Clearing it here could touch more memory than
	 * there is. */
	p = hp_small()->calloc(count, size);
	if (p || !is_worth_a_trim(bytes))
		return p;
	hp_small()->trim();
	return hp_small()->calloc(count, size);
}

size_t hugepin_usable_size(const void *p)
{
	size_t off = hp_span_offset(&hp_span, p);

	if (!hp_span_has(&hp_span, p))
		return p ? hp_small()->usable_size(p) : 0;

	const char *why = hp_misuse_reason(off);

	if (why) {
		hugepin_misuse_("usable_size", p, why);
		return 0;
	}
	return (size_t)HP_CHUNK_COUNT(hp_chunk_get(off >> HP_CHUNK_SHIFT)) << HP_CHUNK_SHIFT;
}

/* ------------------------------------------------------------------ load and exit */

static __attribute__((constructor(101))) void construct_heap(void)
{
	hp_config_load();
	hp_peak_begin();
	hp_cache_init();
	hugepin_atfork_();
	hp_process_begin();
	hp_service_init();
	hp_clock_set(NULL);
	hp_heap_constructed = true;
}

static __attribute__((destructor)) void destruct_heap(void)
{
	hp_peak_end();
}
