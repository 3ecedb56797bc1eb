/*
 * The pool of 2 MiB pages on a machine that has none: functions defined here, which the linker prefers to the C library's, stand
 * in for it. What is taken from it and when, what is reserved ahead, what is told of it, and what a child of fork counts.
 */
#include <limits.h>
#include <stdlib.h>

#include "alloc/heap.h"
#include "alloc/hold.h"
#include "alloc/pages.h"
#include "alloc/small.h"
#include "base/config.h"
#include "tests/live/live.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ------------------------------------------------------------------ the kernel */

static long pages_free; /* what is given back is not added again */
static int asked; /* mappings from the pool that were tried */
static long longest; /* pages of one mapping that it has */
static int denied; /* calls to populate that fail from now on */
static bool no_room; /* for a fork's copy */
static int files[3] = { -1, -1, -1 };

UNINSTRUMENTED static long map_pool(long len, long prot, long flags)
{
	asked++;
	if (len / (long)HP_PAGE > HP_MIN(pages_free, longest))
		return -ENOMEM;
	pages_free -= len / (long)HP_PAGE;
	return map_like_pool(len, prot, flags);
}

/* A file with the number. */
UNINSTRUMENTED static long open_number(int which, const char *before, long number, long c, long d)
{
	char text[60], path[40];

	snprintf(text, sizeof text, "%s%ld\n", before, number);
	snprintf(path, sizeof path, "/proc/self/fd/%d", files[which]);
	raw(SYS_ftruncate, files[which], 0, 0, 0, 0, 0);
	raw(SYS_pwrite64, files[which], (long)text, (long)strlen(text), 0, 0, 0);
	return raw(SYS_openat, AT_FDCWD, (long)path, c, d, 0, 0);
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_mmap && d & MAP_HUGETLB) {
		r = (d >> 26 & 63) == HP_PAGE_SHIFT ? map_pool(b, c, d) : -ENOMEM;
	} else if (nr == SYS_madvise && c == MADV_POPULATE_WRITE && denied) {
		denied--;
		r = -EFAULT;
	} else if (nr == SYS_openat && strstr((char *)b, "hugepages-2048kB/free_hugepages")) {
		r = open_number(0, "", pages_free, c, d);
	} else if (nr == SYS_openat && strstr((char *)b, "hugepages-2048kB/resv_hugepages")) {
		r = open_number(1, "", 0, c, d);
	} else if (nr == SYS_openat && no_room && !strcmp((char *)b, "/proc/meminfo")) {
		r = open_number(2, "MemAvailable: ", 1024, c, d);
	} else {
		r = raw(nr, a, b, c, d, e, f);
	}
	return result_of(r);
}

/* ------------------------------------------------------------------ */

__attribute__((constructor)) static void configure(void)
{
	files[0] = memfd_create("free_hugepages", MFD_CLOEXEC);
	files[1] = memfd_create("resv_hugepages", MFD_CLOEXEC);
	files[2] = memfd_create("meminfo", MFD_CLOEXEC);
	hp_config.span = (int64_t)(4 * GIB);
	hp_config.extent_max = (int64_t)(64 * MIB);
	hp_config.decay_ms = 0;
}

/* So many pages from now on, in an empty heap. */
static void pool(long n)
{
	hugepin_purge();
	expect_empty();
	pages_free = n;
	longest = LONG_MAX;
	asked = denied = 0;
	hp_span.no_pool = false;
	hp_span.pool_skip = 0;
	hp_config.pages = HP_PAGES_AUTO;
	hp_config.reserve = 0;
}

/* An extent of 16 pages, of which nothing is left in use. */
static size_t make_room(void)
{
	unsigned char *p;

	p = hugepin_malloc(32 * MIB);
	hugepin_free(p);
	return ((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT;
}

static size_t in_state(unsigned state)
{
	size_t n = 0;

	for (size_t p = 1; p < hp_span.pages; p++)
		n += hp_span.page[p].state == state;
	return n;
}

/* Live buffers on pages of the pool, and pages reserved behind them: extents are of 1, 1, 2, 4 and 8. */
enum { LIVE = 9 };

static void grow_extents(unsigned char *p[LIVE])
{
	for (int i = 0; i < LIVE; i++) {
		p[i] = hugepin_aligned_alloc(HP_PAGE, HP_PAGE);
		memset(p[i], i + 1, HP_PAGE);
	}
}

static void free_all(unsigned char *p[LIVE])
{
	for (int i = 0; i < LIVE; i++)
		hugepin_free(p[i]);
	pool(0);
}

TEST(the_rest_of_an_extent_is_reserved_with_its_first_page_and_populated_when_it_is_needed)
{
	unsigned char *p[LIVE];

	pool(100);
	grow_extents(p);
	expect_counted();
	EXPECT_EQ(in_state(HP_PAGE_READY), LIVE);
	EXPECT(in_state(HP_PAGE_RESERVED) > 0);
	EXPECT_EQ(100 - pages_free, in_state(HP_PAGE_READY) + in_state(HP_PAGE_RESERVED));
	EXPECT_EQ(HP_STAT(hugetlb_bytes), (size_t)(100 - pages_free) * HP_PAGE);
	EXPECT_EQ(asked, HP_STAT(extents));
	for (int i = 0; i < LIVE; i++)
		EXPECT_EQ(p[i][HP_PAGE - 1], i + 1);
	free_all(p);
}

TEST(a_child_of_fork_counts_what_it_has)
{
	unsigned char *p[LIVE];

	pool(100);
	grow_extents(p);
	EXPECT(HP_STAT(reserved_bytes) > 0);
	for (int i = 0; i < 2; i++) { /* the second finds nothing to copy */
		pid_t pid = fork();

		if (pid == 0) {
			t_failures = 0;
			expect_counted();
			EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
			EXPECT_EQ(HP_STAT(thp_bytes), LIVE * HP_PAGE);
			for (int j = 0; j < LIVE; j++)
				EXPECT_EQ(p[j][HP_PAGE - 1], j + 1);
			free_all(p);
			_exit(t_failures != 0);
		}
		EXPECT_EQ(child_wait(pid), 0);
		expect_counted();
	}
	free_all(p);
}

TEST(without_room_for_a_copy_a_fork_needs_a_page_in_the_pool_for_each_that_is_populated)
{
	unsigned char *p[LIVE];

	pool(100);
	grow_extents(p);
	EXPECT(!hugepin_fork_refused_());
	no_room = true;
	pages_free = LIVE;
	EXPECT(!hugepin_fork_refused_());
	pages_free = LIVE - 1;
	EXPECT(hugepin_fork_refused_());
	hp_config.fork_mode = HP_FORK_COW;
	EXPECT(!hugepin_fork_refused_());
	hp_config.fork_mode = HP_FORK_COPY;
	no_room = false;
	EXPECT(!hugepin_fork_refused_());
	expect_counted();
	free_all(p);
}

TEST(of_a_short_pool_halves_are_tried_and_after_that_others_are_not_kept_waiting)
{
	uint64_t pool_short = HP_STAT(pool_short);
	size_t first;
	void *p[10];

	pool(5);
	first = make_room();
	EXPECT(pages_free == 0 || pages_free == 1); /* 4 and perhaps 1 */
	EXPECT_EQ(hp_span.page[first].kind, HUGEPIN_KIND_HUGETLB);
	expect_counted();
	EXPECT_EQ(HP_STAT(pool_short), pool_short + 16 - (size_t)(5 - pages_free));
	EXPECT_EQ(HP_STAT(thp_bytes) + HP_STAT(base_bytes), 32 * MIB - (size_t)(5 - pages_free) * HP_PAGE);
	hugepin_purge();
	pages_free = 1000;
	asked = 0;
	for (int i = 0; i < 9; i++) /* 8 that do not ask, and one that does */
		p[i] = hugepin_malloc(100 * MIB);
	EXPECT_EQ(asked, 1);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 100 * MIB);
	expect_counted();
	for (int i = 0; i < 9; i++)
		hugepin_free(p[i]);
	pool(0);
}

TEST(what_is_to_be_left_in_the_pool_is)
{
	unsigned char *p;

	pool(12);
	hp_config.reserve = 4;
	p = hugepin_malloc(32 * MIB);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 8 * HP_PAGE);
	EXPECT_EQ(pages_free, 4);
	expect_counted();
	hugepin_free(p);
	pool(3);
	hp_config.reserve = 4;
	p = hugepin_malloc(4 * MIB);
	EXPECT_EQ(asked, 0);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	hugepin_free(p);
	pool(0);
}

/* With THP only: base pages would be worse than the pool's. */
TEST(a_buffer_of_more_than_a_quarter_of_the_pool_gets_thp)
{
	bool thp = hp_span.thp;
	unsigned char *p;

	for (int i = 0; i < 5; i++) {
		pool(i < 2 ? 163 : 164); /* 41 pages: more than a quarter, or just one */
		hp_span.thp = i != 1;
		hp_config.populate = i == 3 ? HP_POPULATE_ALL : HP_POPULATE_AUTO;
		hp_config.pages = i == 4 ? HP_PAGES_HUGETLB : HP_PAGES_AUTO;
		p = hugepin_malloc(82 * MIB);
		EXPECT_EQ(HP_STAT(hugetlb_bytes), i ? 82 * MIB : 0);
		EXPECT_EQ(HP_STAT(thp_bytes), i ? 0 : 82 * MIB);
		expect_counted();
		hugepin_free(p);
	}
	/* What is taken step by step is not looked at. */
	pool(30);
	hp_span.thp = true;
	p = hugepin_malloc(60 * MIB);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 60 * MIB);
	hugepin_free(p);
	hp_span.thp = thp;
	pool(0);
}

TEST(pages_that_may_not_be_populated_are_given_back_for_others)
{
	uint64_t pool_denied = HP_STAT(pool_denied);
	unsigned char *p[LIVE];

	pool(100);
	denied = 1;
	p[0] = hugepin_malloc(8 * MIB);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	EXPECT_EQ(HP_STAT(pool_denied), pool_denied + 4);
	expect_counted();
	memset(p[0], 1, 8 * MIB);
	hugepin_free(p[0]);
	/* The same of pages that were reserved before. */
	pool(100);
	p[0] = hugepin_aligned_alloc(HP_PAGE, 8 * MIB);
	p[1] = hugepin_aligned_alloc(HP_PAGE, 2 * MIB);
	EXPECT(HP_STAT(reserved_bytes) > 0);
	pool_denied = HP_STAT(pool_denied);
	denied = 1;
	for (int i = 2; i < LIVE; i++) {
		p[i] = hugepin_aligned_alloc(HP_PAGE, HP_PAGE);
		memset(p[i], 1, HP_PAGE);
		expect_counted();
	}
	EXPECT_EQ(HP_STAT(pool_denied), pool_denied + 1);
	EXPECT_EQ(HP_STAT(thp_bytes) + HP_STAT(base_bytes), HP_PAGE);
	free_all(p);
}

/* More pieces than are noted, so the last that is noted goes to the end. */
TEST(a_pool_in_pieces_is_taken_by_the_piece)
{
	enum { PIECES = 60, NOTED = 40 };
	unsigned char *p;

	pool(1000);
	longest = 1;
	p = hugepin_malloc(PIECES * HP_PAGE);
	memset(p, 1, PIECES * HP_PAGE);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), PIECES * HP_PAGE);
	EXPECT_EQ(hp_span.heads, NOTED);
	expect_counted();
	hugepin_free(p);
	pool(0);
}

TEST(without_the_pool_it_is_not_asked_and_with_nothing_else_it_is)
{
	unsigned char *p;

	pool(100);
	hp_config.pages = HP_PAGES_THP;
	p = hugepin_malloc(8 * MIB);
	EXPECT_EQ(asked, 0);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	hugepin_free(p);
	pool(100);
	hp_config.pages = HP_PAGES_BASE;
	p = hugepin_malloc(8 * MIB);
	EXPECT_EQ(asked, 0);
	EXPECT_EQ(HP_STAT(base_bytes), 8 * MIB);
	hugepin_free(p);
	pool(2);
	hp_config.pages = HP_PAGES_HUGETLB; /* what it lacks is base pages, of THP none */
	p = hugepin_malloc(8 * MIB);
	EXPECT_EQ(HP_STAT(thp_bytes), 0);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 2 * HP_PAGE);
	hugepin_free(p);
	pool(0);
}

TEST(reserved_pages_leave_as_others_do)
{
	unsigned char *p[LIVE];

	pool(100);
	grow_extents(p);
	for (int i = 1; i < LIVE; i++)
		hugepin_free(p[i]);
	EXPECT(HP_STAT(reserved_bytes) > 0);
	hugepin_purge();
	expect_counted();
	EXPECT_EQ(HP_STAT(reserved_bytes), 0);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), HP_PAGE);
	EXPECT_EQ(p[0][HP_PAGE - 1], 1);
	for (int i = 1; i < LIVE; i++)
		p[i] = NULL;
	free_all(p);
}

LIVE_MAIN
