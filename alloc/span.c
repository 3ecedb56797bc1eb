/*
 * The span: its addresses and its tables (pages.h).
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "alloc/pages.h"
#include "base/config.h"
#include "base/proc.h"
#include "base/stats.h"
#include "base/sys.h"

#define GIB ((size_t)1 << 30)

/* This base is more than 4 TiB away from every pointer of the user half, so that no pointer counts as ours before the
 * span exists, or while it is being published. */
struct hp_span hp_span = { .base = (uintptr_t)1 << 63 };
extern struct hp_span hugepin_span_ __attribute__((alias("hp_span"), visibility("default"))); /* fast.h */

static size_t memory_size(void)
{
	struct sysinfo info;

	return hp_sys(SYS_sysinfo, &info) == 0 ? (size_t)info.totalram * info.mem_unit : 16 * GIB;
}

static size_t span_size_wanted(size_t ram)
{
	size_t size = (size_t)hp_config.span;
	struct rlimit limit;

	if (!size) {
		for (size = 64 * GIB; size < 4 * ram && size < (size_t)1 << 42; size *= 2)
			;
	}
	/* The rest of the program needs addresses too: thread stacks, libraries, files. */
	if (hp_limit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		size = HP_MIN(size, limit.rlim_cur / 4);
	/* The tables count as data. A longer span could not be filled, because its contents count as data, too. */
	if (hp_limit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		size = HP_MIN(size, 4 * HP_MIN(limit.rlim_cur, (rlim_t)1 << 40));
	return size & ~(HP_PAGE - 1);
}

static bool tables_init(struct hp_span *s, size_t pages)
{
	size_t per_page = sizeof *s->page + sizeof *s->extent;
	char *m = hp_meta_map(pages * per_page + pages / 8 + 80 + hp_holes_size(pages));
	uint32_t *len;

	/* The largest tables have 1/512 and 1/1024 of the span's size. They become accessible only as extents are made,
	 * because ulimit -d, mlockall and a strict overcommit policy count accessible memory. The words of one hugepage
	 * have 4 KiB of the table, and its holes 2 KiB; they are given back with the hugepage, or with all hugepages
	 * whose words and holes share a base page. */
	s->chunk = hp_meta_reserve(s->pages * HP_PAGE_CHUNKS * sizeof(hp_chunk));
	len = hp_meta_reserve(pages * HP_PAGE_CHUNKS * sizeof *len);
	if (!m || !s->chunk || !len)
		return false;
	s->extent = (struct hp_extent *)m;
	m += pages * sizeof *s->extent;
	s->page = (struct hp_page *)m;
	m += pages * sizeof *s->page;
	s->used = (uint64_t *)hp_round_up((uintptr_t)m, 8);
	m = (char *)hp_round_up((uintptr_t)(s->used + (pages + 63) / 64), 64);
	hp_holes_init(&s->holes, pages, m, len);
	s->holes_to[HP_PART_SMALL] = s->small;
	s->end[HP_PART_SMALL] = s->small;
	return true;
}

static void expose_pages(void)
{
	__typeof__(&hp_exposed.view.heap) v = &hp_exposed.view.heap;

	v->base = hp_span.base;
	v->size = hp_span.reserved;
	v->pages = (uintptr_t)hp_span.page;
	v->page_shift = HP_PAGE_SHIFT;
	v->stride = sizeof(struct hp_page);
	v->state = offsetof(struct hp_page, state);
	v->kind = offsetof(struct hp_page, kind);
	v->state_min = HP_PAGE_RESERVED;
}

int hp_span_init(bool small)
{
	struct hp_span s = { .ram = memory_size() };
	size_t size = span_size_wanted(s.ram), more = 0, align;
	void *tree;

	for (; size >= 2 * HP_PAGE; size = size / 2 & ~(HP_PAGE - 1)) {
		more = small ? size / 2 & ~(HP_PAGE - 1) : 0;
		/* Align to more than a hugepage only for pages of 1 GiB, because alignment costs randomness. */
		align = size < GIB || hp_config.pages != HP_PAGES_1G ? HP_PAGE : GIB;
		if (hp_map_reserve(size + more, align, &s.base) == 0)
			break;
	}
	if (size < 2 * HP_PAGE)
		return -ENOMEM;
	s.pages = s.small = size >> HP_PAGE_SHIFT;
	s.small_end = s.small + (more >> HP_PAGE_SHIFT);
	s.reserved = size + more;
	tree = hp_meta_map(hp_tree_size(s.small_end));
	if (!tree || !tables_init(&s, s.small_end))
		return -ENOMEM;
	if (hp_map_choose_nodes(hp_config.numa, s.base, &s.nodes) != 0) {
		hp_say(hp_config.numa < 0 ? "HUGEPIN_NUMA=interleave: the kernel refuses; using local"
					  : "HUGEPIN_NUMA: using local, since the kernel gives us no memory on node",
		       NULL, hp_config.numa < 0 ? SIZE_MAX : (size_t)hp_config.numa);
		hp_map_choose_nodes(HP_NUMA_LOCAL, s.base, &s.nodes);
	}
	s.thp = hp_map_thp_enabled();
	s.heads_max = hp_mappings_max() / 4; /* heads take half of the mappings at most, since a gap may follow each */
	s.size = size;
	hp_bit_set(s.used, 0);
	hp_exposed.page.magic = HUGEPIN_STATS_MAGIC;
	hp_heap_lock(); /* under the lock, so that a child of fork finds the complete span, or none */
	/* Do not copy base and opened, which every free() reads without a lock. They are written by atomic stores only:
	 * base below, and opened with the first extent. */
	memcpy((char *)&hp_span + offsetof(struct hp_span, chunk), (char *)&s + offsetof(struct hp_span, chunk),
	       sizeof s - offsetof(struct hp_span, chunk));
	hp_tree_init(&hp_shard[0].tree, &hp_span.holes, tree);
	hp_span_store(&hp_span.base, s.base);
	expose_pages();
	hp_heap_unlock();
	return 0;
}

/* The holes of pages [from, end) that were never used: they have 1/1024 of the addresses of the pages. */
static void shrink_holes(enum hp_part part, size_t from, size_t end)
{
	const uint32_t *len = hp_span.holes.len;
	const uintptr_t start = hp_round_up((uintptr_t)&len[from << HP_PAGE_CHUNKS_SHIFT], hp_base_page);
	const uintptr_t stop = (uintptr_t)&len[end << HP_PAGE_CHUNKS_SHIFT] & -hp_base_page;

	if (start < stop) /* base pages of which other pages have no part */
		hp_meta_unmap((void *)start, stop - start);
	hp_span.holes_to[part] = HP_MIN(hp_span.holes_to[part], from);
}

/* Shorten a part, [first, end) of the span, to `limit` bytes. Keeps all extents, and `gap` pages behind the last one.
 * Returns the new end. */
static size_t shrink_part(enum hp_part part, size_t first, size_t end, size_t limit, size_t gap)
{
	size_t keep = first + (limit >> HP_PAGE_SHIFT), last = end;

	while (last > first && !hp_bit(hp_span.used, last - 1))
		last--;
	keep = HP_MAX(keep, last + gap);
	/* Under hp_heap_lock only a raw system call may unmap, because no hook on munmap sees it. */
	if (keep >= end || hp_sys(SYS_munmap, hp_page_addr(keep), (end - keep) << HP_PAGE_SHIFT) != 0)
		return end;
	shrink_holes(part, keep, end);
	return keep;
}

void hp_span_end_at(size_t page)
{
	hp_span.pages = page;
	hp_span.size = page << HP_PAGE_SHIFT;
	if (hp_span.opened > hp_span.size)
		hp_span_store(&hp_span.opened, hp_span.size);
}

void hp_span_shrink(size_t limit)
{
	hp_span_end_at(shrink_part(HP_PART_HEAP, 0, hp_span.pages, limit, 0));
	if (hp_span.small < hp_span.small_end)
		hp_span.small_end = shrink_part(HP_PART_SMALL, hp_span.small, hp_span.small_end, limit, 1);
	hp_span_store(&hp_span.reserved,
		      hp_span.small < hp_span.small_end ? hp_span.small_end << HP_PAGE_SHIFT : hp_span.size);
	hp_exposed.view.heap.size = hp_span.reserved;
}
