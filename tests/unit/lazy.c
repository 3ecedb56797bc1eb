/*
 * HUGEPIN_POPULATE=lazy, with a pool of the test's own (kernel.h): what is populated when, and what a child of fork
 * gets of pages that nobody has touched.
 */
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include "alloc/heap.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "tests/live/live.h"
#include "tests/unit/child.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGES = 64 };

static size_t populated; /* bytes of the pool */
static int denied; /* calls to populate that fail from now on */
static bool filtered;
static const char *name_space = "cgroup:[4026531835]";

UNINSTRUMENTED static long map_pool(long len, long prot, long flags)
{
	long got = raw(SYS_mmap, 0, len + (long)HP_PAGE, prot, flags & ~(long)(MAP_HUGETLB | (63u << 26)), -1, 0);
	long aligned = (long)hp_round_up((size_t)got, HP_PAGE);

	if (aligned > got)
		raw(SYS_munmap, got, aligned - got, 0, 0, 0, 0);
	raw(SYS_munmap, aligned + len, got + (long)HP_PAGE - aligned, 0, 0, 0, 0);
	raw(SYS_madvise, aligned, len, MADV_HUGEPAGE, 0, 0, 0); /* as a page of the pool: all of it comes at a touch */
	return aligned;
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_mmap && d & MAP_HUGETLB) {
		r = (d >> 26 & 63) == HP_PAGE_SHIFT ? map_pool(b, c, d) : -ENOMEM;
	} else if (nr == SYS_madvise && c == MADV_POPULATE_WRITE && (uintptr_t)a - hp_span.base < hp_span.size) {
		populated += (size_t)b;
		r = denied ? -EFAULT : raw(nr, a, b, c, d, e, f);
		denied -= denied > 0;
	} else if (nr == SYS_readlinkat && !strcmp((char *)b, "/proc/self/ns/cgroup")) {
		r = (long)strlen(name_space);
		memcpy((char *)c, name_space, (size_t)r);
	} else if (nr == SYS_prctl && a == PR_GET_SECCOMP) {
		r = filtered ? SECCOMP_MODE_FILTER : SECCOMP_MODE_DISABLED;
	} else {
		r = raw(nr, a, b, c, d, e, f);
	}
	return result_of(r);
}

/* ------------------------------------------------------------------ */

static char *buffer;

static void allocate(void)
{
	hp_config.span = (int64_t)GIB;
	hp_config.extent_max = (int64_t)(64 * MIB);
	hp_config.decay_ms = 0;
	hp_config.populate = HP_POPULATE_LAZY;
	hugepin_free(hugepin_malloc(MIB)); /* makes the span */
	hugepin_purge();
	populated = 0;
	buffer = hugepin_malloc(PAGES * HP_PAGE);
}

static size_t lazy(void)
{
	size_t n = 0;

	for (size_t p = 1; p < hp_span.pages; p++)
		n += hp_span.page[p].lazy;
	return n;
}

static void first_pages(void)
{
	allocate();
	EXPECT_EQ(populated, 8 * MIB);
	EXPECT_EQ(lazy(), PAGES - 4);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), PAGES * HP_PAGE);
	expect_counted();
	hugepin_free(buffer);
	hugepin_purge();
	EXPECT_EQ(lazy(), 0);
	expect_empty();
	/* Extents that are made ahead are populated step by step anyway. */
	populated = 0;
	buffer = hugepin_malloc(60 * MIB);
	EXPECT_EQ(populated, 60 * MIB);
	EXPECT_EQ(lazy(), 0);
}

TEST(only_the_first_8_mib_are_populated)
{
	in_child(first_pages);
}

static void in_namespace(void)
{
	name_space = "cgroup:[4026531836]";
	allocate();
	EXPECT_EQ(populated, PAGES * HP_PAGE);
	EXPECT_EQ(lazy(), 0);
}

TEST(where_a_limit_may_be_out_of_sight_all_is_populated)
{
	in_child(in_namespace);
}

static void with_filter(void)
{
	filtered = true;
	allocate();
	EXPECT_EQ(populated, PAGES * HP_PAGE);
}

TEST(where_it_may_not_be_asked_all_is_populated)
{
	in_child(with_filter);
}

static void is_denied(void)
{
	allocate();
	hugepin_free(buffer);
	hugepin_purge();
	denied = 1;
	buffer = hugepin_malloc(PAGES * HP_PAGE);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	EXPECT_EQ(lazy(), 0);
	EXPECT(HP_STAT(pool_denied) > 0);
	expect_counted();
}

TEST(where_the_first_cannot_be_populated_no_page_of_the_pool_is_taken)
{
	in_child(is_denied);
}

/* ------------------------------------------------------------------ fork */

static bool in(size_t page, const size_t *touched, int count)
{
	bool is = false;

	for (int i = 0; i < count; i++)
		is |= touched[i] == page;
	return is;
}

/* The child's memory is the parent's, and can be written to. */
static void look_in_child(const size_t *touched, int count)
{
	t_failures = 0;
	expect_counted();
	expect_span_reserved(false);
	EXPECT_EQ(lazy(), 0);
	for (size_t p = 0; p < PAGES; p++) {
		EXPECT_EQ(buffer[p * HP_PAGE], in(p, touched, count) ? 9 : 0);
		EXPECT_EQ(buffer[p * HP_PAGE + HP_PAGE - 1], 0);
		memset(buffer + p * HP_PAGE, 3, HP_PAGE);
	}
	hugepin_free(buffer);
	buffer = hugepin_malloc(PAGES * HP_PAGE);
	memset(buffer, 4, PAGES * HP_PAGE);
	hugepin_free(buffer);
	hugepin_purge();
	expect_empty();
	_exit(t_failures != 0);
}

static void fork_some(void)
{
	size_t touched_pages = 0; /* in earlier rounds */
	uint32_t random = 5;

	allocate();
	for (int round = 0; round < 4; round++) {
		size_t touched[4 * 4];
		int count = 4 * round;
		uint64_t copied = HP_STAT(fork_copied_bytes);
		pid_t pid;

		for (int i = 0; i < count; i++) {
			random = random * 1664525 + 1013904223;
			touched[i] = (random >> 16) % PAGES;
			buffer[touched[i] * HP_PAGE] = 9;
		}
		pid = fork();
		if (pid == 0)
			look_in_child(touched, count);
		EXPECT_EQ(child_wait(pid), 0);
		EXPECT(HP_STAT(fork_copied_bytes) - copied <= (4 + touched_pages + (size_t)count) * HP_PAGE);
		EXPECT(lazy() + touched_pages + (size_t)count + 4 >= PAGES);
		for (int i = 0; i < count; i++)
			EXPECT_EQ(buffer[touched[i] * HP_PAGE], 9);
		for (int i = 0; i < count; i++)
			buffer[touched[i] * HP_PAGE] = 0;
		touched_pages += (size_t)count;
		expect_counted();
	}
}

TEST(a_child_has_zeros_where_its_parent_touched_nothing_and_no_copy_of_them)
{
	in_child(fork_some);
}

static void *wait_for_ever(void *unused)
{
	pause();
	return unused;
}

static void fork_with_threads(void)
{
	pthread_t t;

	pthread_create(&t, NULL, wait_for_ever, NULL);
	fork_some();
}

TEST(so_it_has_where_there_are_threads)
{
	in_child(fork_with_threads);
}

T_MAIN
