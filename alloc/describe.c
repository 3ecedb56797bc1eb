/*
 * The heap's public information: statistics, and the extent of a pointer.
 */
#include "alloc/describe.h"

#include <errno.h>
#include <string.h>

#include "alloc/hold.h"
#include "alloc/pages.h"
#include "base/stats.h"
#include "base/there.h"
#include "hugepin.h"

/* Read a byte of struct hp_page without the lock. The bytes are not _Atomic, since all other accesses are made under
 * the lock. relaxed: pages may change meanwhile, and hugepin_info counts what it sees. */
static unsigned load_byte(const uint8_t *member)
{
	return __atomic_load_n(member, __ATOMIC_RELAXED);
}

static bool is_normal(size_t page)
{
	return load_byte(&hp_span.page[page].state) > HP_PAGE_ABSENT &&
	       load_byte(&hp_span.page[page].kind) != HUGEPIN_KIND_HUGETLB;
}

/* Add to *there the memory of the pages in [first, end) that are not the pool's. Called without the lock, so pages may
 * change meanwhile. False: the kernel does not tell. */
static bool add_there(size_t first, size_t end, struct hp_there *there)
{
	/* Without a quick call the list of mappings has to be read, so read it once for the whole range. The list does
	 * not count the pool's pages. */
	if (!hp_there_is_quick())
		return first >= end || hp_there(hp_page_addr(first), hp_page_addr(end), there);
	for (size_t p = first, q; p < end; p = q + 1) {
		for (q = p; q < end && is_normal(q); q++)
			;
		if (q > p && !hp_there(hp_page_addr(p), hp_page_addr(q), there))
			return false;
	}
	return true;
}

bool hp_heap_there(struct hp_there *ret_)
{
	struct hp_there there = { 0, 0 };

	if (!add_there(1, hp_span.end[HP_PART_HEAP], &there) ||
	    !add_there(hp_span.small, hp_span.end[HP_PART_SMALL], &there))
		return false;
	if (!hp_page_is_pmd()) { /* how much is in THP is unknown: assume that the kernel followed the advice */
		there.huge = HP_MIN(there.other, HP_STAT_GET(thp_bytes));
		there.other -= there.huge;
	}
	*ret_ = there;
	return true;
}

/* Replace the kinds that the heap asked for by the kinds that the kernel gave. */
static void tell_what_is_there(struct hugepin_stats *s)
{
	const uint64_t normal = s->thp_bytes + s->base_bytes;
	struct hp_there there = { 0, 0 };

	if (!normal || !hp_heap_there(&there))
		return;
	s->thp_bytes = HP_MIN(there.huge, normal);
	s->base_bytes = normal - s->thp_bytes;
}

int hugepin_stats(struct hugepin_stats *ret_, size_t size)
{
	struct hugepin_stats s;

	if (!ret_)
		return -EINVAL;
	hp_shards_publish();
	hp_stats_copy(&s);
	tell_what_is_there(&s);
	memcpy(ret_, &s, HP_MIN(size, sizeof s));
	return (int)sizeof s;
}

/* The kind of memory in the extent, or the kind that the kernel was asked for if the extent has no memory yet. */
static uint32_t kind_there(const struct hugepin_extent *e)
{
	struct hp_there there = { 0, 0 };

	if (e->kind == HUGEPIN_KIND_HUGETLB || !hp_page_is_pmd() ||
	    !hp_there((uintptr_t)e->addr, (uintptr_t)e->addr + e->len, &there))
		return e->kind;
	return there.other ? HUGEPIN_KIND_BASE : there.huge ? HUGEPIN_KIND_THP : e->kind;
}

bool hp_heap_extent(const void *p, struct hugepin_extent *ret_)
{
	size_t page = ((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT;
	bool known;

	if (!hp_span_reserves(p))
		return false;
	hp_heap_lock();
	known = hp_span.page[page].state != HP_PAGE_NONE;
	if (known)
		*ret_ = hp_extent_describe(page);
	hp_heap_unlock();
	return known;
}

int hugepin_extent(const void *p, struct hugepin_extent *ret_, size_t size)
{
	struct hugepin_extent e;

	if (!ret_ || !size)
		return -EINVAL;
	if (!hp_heap_extent(p, &e))
		return -ENOENT;
	if (size > offsetof(struct hugepin_extent, kind))
		e.kind = kind_there(&e);
	memcpy(ret_, &e, HP_MIN(size, sizeof e));
	return (int)sizeof e;
}

unsigned hugepin_version(void)
{
	return HUGEPIN_VERSION;
}
