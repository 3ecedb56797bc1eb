/* See back.h. */
#include "alloc/back.h"

#include "alloc/cache.h"
#include "alloc/copy.h"
#include "alloc/leave.h"
#include "alloc/madvise.h"
#include "alloc/peak.h"
#include "alloc/place.h"
#include "alloc/small.h"
#include "alloc/start.h"
#include "alloc/watch.h"
#include "base/stats.h"

bool hp_page_is_free(size_t page, uint32_t ticks)
{
	return hp_holes_page(&hp_span.holes, page) && hp_span.holes.now - hp_span.holes.stamps[page] >= ticks;
}

/* Whether the page has memory, but no part of a buffer. */
static bool has_idle_memory(size_t page, uint32_t ticks)
{
	unsigned s = hp_span.page[page].state;

	return (s == HP_PAGE_READY || s == HP_PAGE_RESERVED) && hp_page_is_free(page, ticks);
}

static bool may_leave(size_t page, uint32_t ticks)
{
	return has_idle_memory(page, ticks) && !hp_page_held(&hp_span.page[page]);
}

/* The number of pages from p on that lie in one extent and for which may() is true. Giant pages count only as a
 * whole. */
static size_t page_run(size_t p, size_t end, bool (*may)(size_t page, uint32_t ticks), uint32_t ticks)
{
	const struct hp_page *g = &hp_span.page[p];
	size_t q = p;

	if (g->giant && p & (HP_GIANT_PAGES - 1))
		return 0;
	while (q < end && hp_span.page[q].extent == g->extent && hp_span.page[q].giant == g->giant && may(q, ticks))
		q++;
	return g->giant ? (q - p) & ~(HP_GIANT_PAGES - 1) : q - p;
}

size_t hp_give_back(size_t first, size_t end, uint32_t ticks, size_t keep, bool may_wait)
{
	size_t bytes = 0;

	if (hp_pages_inside())
		return 0;
	hp_leave_end();
	for (size_t p = first; p < end && (may_wait || !hp_pages_quiet());) {
		const struct hp_page *g = &hp_span.page[p];
		size_t extent = g->extent, n;

		if (keep && g->state == HP_PAGE_READY && !g->giant && may_leave(p, 0) &&
		    !(hp_span.no_pool && g->kind == HUGEPIN_KIND_HUGETLB)) {
			keep--;
			p++;
			continue;
		}
		n = page_run(p, end, may_leave, ticks);
		if (!n) {
			p++;
			continue;
		}
		hp_chunks_set_taken(p << HP_PAGE_CHUNKS_SHIFT, n << HP_PAGE_CHUNKS_SHIFT);
		if (hp_pages_release(p, n))
			bytes += n << HP_PAGE_SHIFT;
		hp_chunks_free(p << HP_PAGE_CHUNKS_SHIFT, n << HP_PAGE_CHUNKS_SHIFT);
		hp_extent_destroy_if_empty(extent);
		p += n;
	}
	return bytes;
}

size_t hp_purge(bool may_wait)
{
	size_t bytes;

	hp_cache_steal(false, 0);
	hp_lists_clear(HP_SHARD_HELD_ALL);
	for (size_t c = 1; (c = hp_madvise_next_stuck(c)) != 0; c++) {
		if (hp_madvise_undo(c, hp_chunk_extent(c)))
			hp_buffer_give(c);
		else
			hp_madvise_stick(c);
	}
	bytes = hp_give_back(1, hp_span.end[HP_PART_HEAP], 0, 0, may_wait);
	bytes += hp_give_back(hp_span.small, hp_span.end[HP_PART_SMALL], 0, 0, may_wait);
	HP_STAT_ADD(purged_bytes, bytes);
	return bytes + hp_copy_drop();
}

size_t hp_idle_bytes(void)
{
	size_t mapped = HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes);
	size_t live = HP_STAT(taken_bytes) - HP_STAT(listed_bytes) - HP_STAT(room_bytes) +
		      (hp_span.small_taken << HP_CHUNK_SHIFT);

	return (mapped > live ? mapped - live : 0) + hp_copy_kept();
}

/* Whether more than `keep` pages of [first, end) satisfy such(). */
static bool are_more(size_t first, size_t end, size_t keep, bool (*such)(size_t page, uint32_t ticks))
{
	size_t count = 0, n;

	for (size_t p = first; p < end && count <= keep; p += HP_MAX(n, (size_t)1)) {
		n = page_run(p, end, such, 0);
		count += n;
	}
	return count > keep;
}

bool hp_more_to_give(bool held_too)
{
	bool (*such)(size_t page, uint32_t ticks) = held_too ? has_idle_memory : may_leave;

	return hp_span.left || are_more(1, hp_span.end[HP_PART_HEAP], HP_WATERMARK, such) ||
	       are_more(hp_span.small, hp_span.end[HP_PART_SMALL], 0, such);
}

int hugepin_purge(void)
{
	void (*let_go)(uint32_t) = hp_heap_hooks()->let_go;

	if (!hp_heap_ready())
		return 0;
	if (hp_peak_on)
		hp_peak_leaving();
	if (let_go && !hp_locks_held && !hp_pages_inside()) {
		hp_heap_lock();
		hp_cache_steal(false, 0);
		hp_lists_clear(HP_SHARD_HELD_ALL);
		hp_heap_unlock();
		let_go(0);
	}
	hp_heap_lock();
	if (!hp_pages_inside())
		hp_purge(true);
	hp_heap_unlock();
	return 0;
}

bool hugepin_purge_for_small_(void)
{
	size_t bytes = 0;

	if (!hp_heap_ready() || hp_heap_mine() ||
	    hp_watch_any()) /* a watcher may allocate, but the caller holds locks of jemalloc's */
		return false;
	hp_heap_lock();
	/* do not wait for a fork, which is about to take the locks of jemalloc that the caller holds */
	if (!hp_pages_inside() && !hp_pages_quiet())
		bytes = hp_purge(false);
	hp_heap_unlock();
	return bytes;
}
