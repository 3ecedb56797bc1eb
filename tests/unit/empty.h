/* What the heap must look like when nothing is in use and hugepin_purge() has run. */
#ifndef TESTS_UNIT_EMPTY_H
#define TESTS_UNIT_EMPTY_H

#include "alloc/pages.h"
#include "base/stats.h"
#include "tests/t.h"

/* All addresses of the span are still reserved: in a hole, the program's own mappings would land. `empty`: and none has
 * memory. */
static inline void expect_span_reserved(bool empty)
{
	char line[300];
	uintptr_t at = hp_span.base, end = hp_span.base + hp_span.size;
	FILE *f = fopen("/proc/self/maps", "r");

	while (hp_span.size && fgets(line, sizeof line, f)) {
		uintptr_t from, to;
		char mode[5];

		if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 || to <= hp_span.base || from >= end)
			continue;
		if (from > at)
			T_FAIL("hole in the span: %#lx bytes at offset %#lx", from - at, at - hp_span.base);
		if (empty && strcmp(mode, "---p") != 0)
			T_FAIL("%#lx bytes at offset %#lx are still mapped", to - from, from - hp_span.base);
		at = to;
	}
	fclose(f);
	if (hp_span.size)
		EXPECT(at >= end);
}

/* The statistics are the sums of the pages' states, as in every process, at all times at which nobody allocates. */
static inline void expect_counted(void)
{
	size_t by_kind[3] = { 0 }, reserved = 0, heads = 0;

	for (size_t p = 1; p < hp_span.pages; p++) {
		const struct hp_page *g = &hp_span.page[p];

		if (g->state < HP_PAGE_RESERVED)
			continue;
		by_kind[g->kind] += HP_PAGE;
		reserved += g->state == HP_PAGE_RESERVED ? HP_PAGE : 0;
		heads += g->head;
	}
	EXPECT_EQ(HP_STAT(hugetlb_bytes), by_kind[HUGEPIN_KIND_HUGETLB]);
	EXPECT_EQ(HP_STAT(thp_bytes), by_kind[HUGEPIN_KIND_THP]);
	EXPECT_EQ(HP_STAT(base_bytes), by_kind[HUGEPIN_KIND_BASE]);
	EXPECT_EQ(HP_STAT(reserved_bytes), reserved);
	EXPECT_EQ(hp_span.heads, heads);
}

static inline void expect_empty(void)
{
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	EXPECT_EQ(HP_STAT(thp_bytes), 0);
	EXPECT_EQ(HP_STAT(base_bytes), 0);
	EXPECT_EQ(HP_STAT(reserved_bytes), 0);
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
	EXPECT_EQ(HP_STAT(listed_bytes), 0);
	EXPECT_EQ(HP_STAT(room_bytes), 0);
	EXPECT_EQ(HP_STAT(extents), 0);
	EXPECT_EQ(HP_STAT(mappings), 0);
	EXPECT_EQ(hp_span.heads, 0);
	EXPECT_EQ(hp_span.extent_pages[HP_PART_HEAP], 0);
	if (hp_span.size)
		EXPECT_EQ(hp_bits_find(hp_span.used, 1, hp_span.pages, true), hp_span.pages);
	expect_span_reserved(true);
}

static inline struct hugepin_extent extent_of(const void *p)
{
	struct hugepin_extent e = { .len = 0 };

	EXPECT(hugepin_extent(p, &e, sizeof e) > 0);
	return e;
}

/* Behind body() the heap can be emptied. */
static inline void emptied(void (*body)(void))
{
	body();
	hugepin_purge();
	expect_empty();
}

#endif
