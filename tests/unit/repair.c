/*
 * alloc/repair.c: when to look for base pages where THP were asked for, and what is made hugepages. The kernel here
 * gives base pages at first (kernel.h); the clock is the test's own.
 */
#include "alloc/repair.h"

#include "alloc/heap.h"
#include "alloc/hold.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "base/pagescan.h"
#include "base/stats.h"
#include "tests/live/live.h"
#include "tests/unit/child.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"

/* ------------------------------------------------------------------ when */

static struct hp_repair_pause pause_now;

/* Ticks until the next look, if nothing is mapped meanwhile. */
static unsigned ticks_until_due(uint64_t mapped)
{
	unsigned n = 1;

	while (!hp_repair_is_due(&pause_now, mapped))
		n++;
	return n;
}

TEST(the_pause_doubles_when_nothing_can_be_done_and_ends_at_sixteen)
{
	const struct hp_repair_look l = { .refused = 4, .mapped = 100, .filled = 100 };

	EXPECT(hp_repair_is_due(&pause_now, 100));
	for (unsigned want = 1; want <= HP_REPAIR_PAUSE_MAX; want *= 2) {
		hp_repair_note(&pause_now, &l);
		EXPECT(pause_now.more);
		EXPECT_EQ(ticks_until_due(100), want);
	}
	hp_repair_note(&pause_now, &l);
	EXPECT(!pause_now.more);
	EXPECT_EQ(ticks_until_due(100), HP_REPAIR_PAUSE_MAX);
}

TEST(memory_that_is_being_filled_is_looked_at_again_at_the_next_tick)
{
	struct hp_repair_look l = { .partial = 1, .mapped = 1000 };

	for (int i = 0; i < 100; i++) {
		l.filled += 4;
		hp_repair_note(&pause_now, &l);
		EXPECT(pause_now.more);
		EXPECT_EQ(ticks_until_due(1000), 1);
	}
	hp_repair_note(&pause_now, &l); /* it rests */
	EXPECT_EQ(ticks_until_due(1000), 2);
}

TEST(new_memory_and_success_end_a_pause)
{
	struct hp_repair_look l = { .refused = 1, .mapped = 100, .filled = 100 };

	for (int i = 0; i < 10; i++)
		hp_repair_note(&pause_now, &l);
	EXPECT(!hp_repair_is_due(&pause_now, 100));
	EXPECT(hp_repair_is_due(&pause_now, 102));
	l.collapsed = 1;
	hp_repair_note(&pause_now, &l);
	EXPECT(pause_now.more);
	EXPECT_EQ(ticks_until_due(100), 1);
}

TEST(where_all_is_huge_no_tick_is_asked_for)
{
	const struct hp_repair_look l = { .mapped = 100, .filled = 100 };

	hp_repair_note(&pause_now, &l);
	EXPECT(!pause_now.more);
}

/* ------------------------------------------------------------------ the kernel */

static bool old; /* there is no PAGEMAP_SCAN */
static bool ancient; /* nor MADV_COLLAPSE */
static int refusals; /* so many collapses fail from now on */
static int asked; /* collapses that were tried */
static uintptr_t held_at; /* a page that must not be collapsed */
static uint64_t now_ns, step_ns;

/* What each collapse takes. */
UNINSTRUMENTED static long collapse(long at, long len)
{
	if (ancient)
		return -EINVAL;
	if (!len)
		return 0;
	asked++;
	now_ns += step_ns;
	EXPECT((uintptr_t)at != held_at);
	if (refusals) {
		refusals--;
		return -ENOMEM;
	}
	raw(SYS_madvise, at, len, MADV_HUGEPAGE, 0, 0, 0);
	return raw(SYS_madvise, at, len, HP_MADV_COLLAPSE, 0, 0, 0);
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_mmap && d & MAP_HUGETLB)
		r = -ENOMEM;
	else if (nr == SYS_madvise && c == MADV_HUGEPAGE)
		r = raw(nr, a, b, MADV_NOHUGEPAGE, d, e, f);
	else if (nr == SYS_madvise && c == HP_MADV_COLLAPSE)
		r = collapse(a, b);
	else if (nr == SYS_ioctl && (unsigned long)b == HP_PAGESCAN && old)
		r = -ENOTTY;
	else
		r = raw(nr, a, b, c, d, e, f);
	return result_of(r);
}

static uint64_t clock_here(void)
{
	return now_ns;
}

static char *buffer;

/* A buffer of `pages` whole hugepages, in base pages. Each test has a process of its own. */
static void allocate(size_t pages)
{
	hp_config.span = (int64_t)GIB;
	hp_config.decay_ms = 0;
	hp_clock_set(clock_here);
	hugepin_free(hugepin_malloc(MIB)); /* makes the span */
	hp_span.thp = true;
	hugepin_purge();
	buffer = hugepin_aligned_alloc(HP_PAGE, pages * HP_PAGE);
	EXPECT_EQ(HP_STAT(base_bytes), 0);
}

static size_t huge(size_t pages)
{
	return smaps_kinds(0, (uintptr_t)buffer, (uintptr_t)buffer + pages * HP_PAGE).thp;
}

static bool kernel_can(void)
{
	char *p = mmap(NULL, 2 * HP_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *at = (char *)hp_round_up((uintptr_t)p, HP_PAGE);
	bool can;

	memset(at, 1, HP_PAGE);
	can = raw(SYS_madvise, (long)at, HP_PAGE, HP_MADV_COLLAPSE, 0, 0, 0) == 0;
	munmap(p, 2 * HP_PAGE);
	return can;
}

static void where_it_can(void (*body)(void))
{
	if (!kernel_can())
		SKIP("MADV_COLLAPSE");
	in_child(body);
}

static void is_repaired(void)
{
	allocate(8);
	memset(buffer, 7, 8 * HP_PAGE);
	EXPECT_EQ(huge(8), 0);
	errno = 77;
	hp_repair_tick();
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(huge(8), 8 * HP_PAGE);
	EXPECT_EQ(HP_STAT(repaired_bytes), 8 * HP_PAGE);
	EXPECT_EQ(asked, 8);
	for (int i = 0; i < 4; i++)
		hp_repair_tick();
	EXPECT_EQ(asked, 8);
	for (size_t i = 0; i < 8 * HP_PAGE; i++)
		if (buffer[i] != 7)
			T_FAIL("byte %zu", i);
	expect_counted();
	expect_span_reserved(false);
}

TEST_CASE(base_pages_become_hugepages_with_what_they_had, where_it_can(is_repaired))

TEST_BY(where_it_can, without_pagemap_scan_the_heap_knows_what_it_has_done)
{
	old = true;
	is_repaired();
}

static void is_filled_slowly(void)
{
	allocate(8);
	EXPECT(hp_repair_tick());
	for (size_t i = 0; i < 8 * HP_PAGE; i += HP_PAGE / 4) {
		memset(buffer + i, 7, HP_PAGE / 4);
		hp_repair_tick();
		EXPECT_EQ(HP_STAT(repaired_bytes), (i + HP_PAGE / 4) & ~(HP_PAGE - 1));
	}
	EXPECT_EQ(asked, 8);
}

TEST_CASE(a_page_is_collapsed_at_the_tick_after_it_is_full_and_not_before, where_it_can(is_filled_slowly))

TEST_BY(where_it_can, so_it_is_without_pagemap_scan)
{
	old = true;
	is_filled_slowly();
}

TEST_BY(where_it_can, a_kernel_that_refuses_is_asked_less_and_less)
{
	int looks = 0;

	allocate(32);
	memset(buffer, 7, 32 * HP_PAGE);
	refusals = 1000;
	for (int i = 0, before; i < 100; i++) {
		before = asked;
		hp_repair_tick();
		EXPECT(asked == before || asked == before + 4);
		looks += asked != before;
	}
	EXPECT(looks >= 5 && looks <= 12);
	EXPECT(!hp_repair_tick());
	/* Once there is memory, all is repaired after at most the longest pause. */
	refusals = 0;
	for (int i = 0; i < HP_REPAIR_PAUSE_MAX; i++)
		hp_repair_tick();
	EXPECT_EQ(huge(32), 32 * HP_PAGE);
}

TEST_BY(where_it_can, a_tick_takes_25_ms_and_the_next_goes_on)
{
	allocate(32);
	memset(buffer, 7, 32 * HP_PAGE);
	step_ns = 10000000;
	for (int i = 1; i <= 10; i++) {
		EXPECT(hp_repair_tick());
		EXPECT_EQ(asked, 3 * i);
	}
	hp_repair_tick();
	EXPECT_EQ(huge(32), 32 * HP_PAGE);
}

TEST_BY(where_it_can, held_memory_stays_where_it_is)
{
	struct hugepin_extent e;

	allocate(4);
	memset(buffer, 7, 4 * HP_PAGE);
	EXPECT(hp_heap_extent(buffer, &e));
	held_at = (uintptr_t)buffer + HP_PAGE;
	EXPECT_EQ(hp_heap_hold(held_at, HP_PAGE, e.gen, HP_HOLD_COW), 0);
	for (int i = 0; i < 40; i++)
		hp_repair_tick();
	EXPECT_EQ(asked, 3);
	EXPECT_EQ(huge(4), 3 * HP_PAGE);
	hp_heap_drop(held_at, HP_PAGE, HP_HOLD_COW);
	held_at = 0;
	for (int i = 0; i < HP_REPAIR_PAUSE_MAX; i++)
		hp_repair_tick();
	EXPECT_EQ(huge(4), 4 * HP_PAGE);
}

TEST_BY(in_child, a_kernel_without_the_call_is_left_alone)
{
	ancient = true;
	allocate(4);
	memset(buffer, 7, 4 * HP_PAGE);
	EXPECT(!hp_repair_tick());
	EXPECT_EQ(huge(4), 0);
}

TEST_BY(where_it_can, memory_that_was_given_back_is_new_again)
{
	char *p;

	old = true;
	allocate(8);
	memset(buffer, 7, 8 * HP_PAGE);
	hp_repair_tick();
	EXPECT_EQ(asked, 8);
	EXPECT(hugepin_realloc(buffer, 4 * HP_PAGE) == buffer);
	hugepin_purge();
	p = hugepin_aligned_alloc(HP_PAGE, 4 * HP_PAGE);
	EXPECT(p == buffer + 4 * HP_PAGE);
	memset(p, 8, 4 * HP_PAGE);
	hp_repair_tick();
	EXPECT_EQ(asked, 12);
}

T_MAIN
