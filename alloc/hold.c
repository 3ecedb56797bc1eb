/* See hold.h. */
#include "alloc/hold.h"

#include <errno.h>

#include "alloc/back.h"
#include "alloc/copy.h"
#include "alloc/decay.h"
#include "alloc/pages.h"
#include "alloc/start.h"
#include "base/bits.h"
#include "base/stats.h"

bool hp_heap_span(uintptr_t *ret_base, size_t *ret_size)
{
	if (!hp_heap_start())
		return false;
	hp_heap_lock();
	*ret_base = hp_span.base;
	*ret_size = hp_span.reserved;
	hp_heap_unlock();
	return true;
}

int hp_heap_hold(uintptr_t addr, size_t len, uint64_t gen, enum hp_hold how)
{
	size_t first = hp_page_at(addr), count = len >> HP_PAGE_SHIFT, extent;
	int err = -ENOENT;

	if (!hp_span_reserves((void *)addr))
		return err;
	hp_heap_lock();
	extent = hp_span.page[first].extent;
	if (hp_span.page[first].state != HP_PAGE_NONE && hp_span.extent[extent].gen == gen &&
	    first + count <= extent + hp_span.extent[extent].pages)
		err = hp_pages_hold(first, count, how);
	if (err == -ENOMEM && hp_copy_drop())
		err = hp_pages_hold(first, count, how);
	if (err == -ENOMEM)
		HP_STAT_ADD(purged_bytes, hp_give_back(first, first + count, 0, 0, true));
	hp_heap_unlock();
	return err;
}

void hp_heap_drop(uintptr_t addr, size_t len, enum hp_hold how)
{
	hp_heap_lock();
	hp_pages_drop(hp_page_at(addr), len >> HP_PAGE_SHIFT, how);
	/* Pages that are free now may be due for decay. The caller may hold locks, so the service thread may be woken
	 * but not started. */
	hp_unlock_and_tick(false, false);
}

bool hp_heap_next_extent(uintptr_t from, struct hugepin_extent *ret_)
{
	size_t page, next;
	bool found;

	if (!hp_heap_ready())
		return false;
	hp_heap_lock();
	page = from <= hp_span.base ? 0 : hp_page_at(from + HP_PAGE - 1);
	next = hp_bits_find(hp_span.holes.starts, page, hp_span.end[HP_PART_HEAP], true);
	found = next < hp_span.end[HP_PART_HEAP];
	if (!found) {
		next = hp_bits_find(hp_span.holes.starts, HP_MAX(page, hp_span.small), hp_span.end[HP_PART_SMALL],
				    true);
		found = next < hp_span.end[HP_PART_SMALL];
	}
	if (found)
		*ret_ = hp_extent_describe(next);
	hp_heap_unlock();
	return found;
}

uint64_t hp_heap_latest_extent(void)
{
	uint64_t gen;

	if (!hp_heap_ready())
		return 0;
	hp_heap_lock();
	gen = hp_span.gen;
	hp_heap_unlock();
	return gen;
}

static bool is_mapped(size_t page)
{
	return hp_span.page[page].state == HP_PAGE_READY || hp_span.page[page].state == HP_PAGE_RESERVED ||
	       hp_span.page[page].collapses;
}

size_t hp_heap_mapping(uintptr_t addr)
{
	size_t page = hp_page_at(addr), end, to = 0;

	if (!hp_span_reserves((void *)addr))
		return 0;
	hp_heap_lock();
	if (is_mapped(page)) {
		end = hp_span.page[page].extent + hp_span.extent[hp_span.page[page].extent].pages;
		for (page++; page < end && is_mapped(page) && !hp_span.page[page].head; page++)
			;
		to = hp_page_addr(page) - addr;
	}
	hp_heap_unlock();
	return to;
}

bool hp_heap_is_free(uintptr_t addr, size_t len, uint32_t ticks)
{
	bool free = true;

	hp_heap_lock();
	for (size_t p = hp_page_at(addr), end = p + (len >> HP_PAGE_SHIFT); p < end && free; p++)
		free = hp_page_is_free(p, ticks) || hp_page_has_left(p);
	hp_heap_unlock();
	return free;
}
