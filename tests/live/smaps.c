/* link: none */
/* The pages of buffers according to smaps: pages of the hugetlb pool, THP, or base pages. */
#include "live.h"

#include <malloc.h>

enum { COUNT = 24 };
static const size_t sizes[COUNT] = {
	32 * KIB, 40000, 65536, 100000, 131072, 262144 + 1, 512 * KIB, MIB - 1, MIB, MIB + 1, 2 * MIB - 1, 2 * MIB,
	2 * MIB + 1, 3 * MIB, 4 * MIB, 5 * MIB + 5, 6 * MIB, 7 * MIB, 8 * MIB, 9 * MIB, 33 * KIB, 34 * KIB, 35 * KIB, 36 * KIB,
};
static char *buffers[COUNT];

/* Allocate and touch some 53 MiB by every function that gives memory. */
static size_t allocate(void)
{
	size_t sum = 0;
	for (int i = 0; i < COUNT; i++) {
		size_t n = sizes[i];
		char *p = i % 4 == 0 ? malloc(n) : i % 4 == 1 ? calloc(1, n) : i % 4 == 2 ? aligned_alloc(64, n) : malloc(1);
		if (i % 4 == 3)
			p = realloc(p, n);
		buffers[i] = hide(p);
		if (EXPECT(p))
			memset(p, i + 1, n);
		sum += n;
	}
	return sum;
}

static void release(void)
{
	for (int i = 0; i < COUNT; i++)
		free(buffers[i]);
	malloc_trim(0);
}

/* Expect that all buffers are in mappings of these kinds. */
static void expect_kinds(bool hugetlb, bool thp, bool base)
{
	for (int i = 0; i < COUNT; i++) {
		struct kinds k = smaps_kinds(0, (uintptr_t)buffers[i], (uintptr_t)buffers[i] + sizes[i]);
		/* the edges of a range advised as THP may be base pages */
		if (!k.mappings || (k.hugetlb && !hugetlb) || (k.thp && !thp) ||
		    (k.base > (thp ? k.thp / 4 : 0) && !base))
			T_FAIL("buffer of %zu bytes lies in %zu KiB of hugetlb pages, %zu KiB of THP, %zu KiB of base pages",
			       sizes[i], k.hugetlb / KIB, k.thp / KIB, k.base / KIB);
	}
}

static bool thp_on_advice(void)
{
	char text[100];
	return file_read("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) > 0 && !strstr(text, "[never]");
}

static bool thp_always(void)
{
	char text[100];
	return file_read("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) > 0 && strstr(text, "[always]");
}

TEST(large_buffers_lie_in_the_hugetlb_pool)
{
	NEEDS_POOL(40);
	allocate();
	expect_kinds(true, false, false);
	release();
}

TEST(small_buffers_share_hugepages)
{
	NEEDS_POOL(40);
	enum { N = 1000 };
	static char *p[N];
	size_t before = smaps_kinds(0, 0, UINTPTR_MAX).hugetlb;
	for (int i = 0; i < N; i++) {
		p[i] = hide(malloc(32 * KIB));
		if (EXPECT(p[i]))
			memset(p[i], 1, 32 * KIB);
	}
	size_t after = smaps_kinds(0, 0, UINTPTR_MAX).hugetlb;
	EXPECT(after <= before + N * 32 * KIB + 2 * PAGE);
	EXPECT(after + 2 * PAGE >= before + N * 32 * KIB || before > 2 * PAGE);
	for (int i = 0; i < N; i++)
		free(p[i]);
	malloc_trim(0);
}

TEST(given_back_pages_are_the_pools_again)
{
	NEEDS_POOL(40);
	long before = 0, used = 0, after = -1;
	/* other processes may use the pool meanwhile, but not each time, and our part is larger */
	for (int i = 0; i < 20 && (before - used < 20 || after < before - 4); i++) {
		malloc_trim(0);
		before = pool_free();
		allocate();
		used = pool_free();
		release();
		after = pool_free();
	}
	if (!EXPECT(before - used >= 20 && after >= before - 4))
		T_FAIL("free pages: %ld before, %ld with buffers, %ld after", before, used, after);
}

TEST(a_hugepage_of_the_pool_never_backs_what_nobody_asked_for)
{
	NEEDS_POOL(40);
	malloc_trim(0);
	size_t before = smaps_kinds(0, 0, UINTPTR_MAX).hugetlb;
	char *p = hide(malloc(40 * PAGE));
	p[0] = 1;
	size_t after = smaps_kinds(0, 0, UINTPTR_MAX).hugetlb;
	EXPECT(after <= before + 41 * PAGE);
	free(p);
	malloc_trim(0);
}

enum { ALL = -1, TRIES = 20, DISTURBED = 77 };

/* Run the program again with another environment and so many free pages in the pool. Once more, if it failed while other
 * processes took or gave back some, or while the kernel had no hugepage for THP. */
static void again(const char *kinds, const char *pages, long left)
{
	int status = DISTURBED;
	char number[20];
	char *args[] = { (char *)"smaps", (char *)"--expect", (char *)kinds, number, NULL };
	snprintf(number, sizeof number, "%ld", left);
	for (int i = 0; i < TRIES && status == DISTURBED; i++) {
		struct drainer d = { -1, -1 };
		pid_t pid;
		if (left != ALL)
			d = pool_drain(left);
		setenv("HUGEPIN_PAGES", pages, 1);
		EXPECT(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ));
		unsetenv("HUGEPIN_PAGES");
		status = child_wait(pid);
		pool_refill(d);
	}
	if (status == DISTURBED)
		SKIP("each time others used the pool, or the kernel had no hugepages");
	EXPECT_EQ(status, 0);
}

TEST(without_a_pool_buffers_lie_in_thp)
{
	if (!thp_on_advice())
		SKIP("THP is switched off");
	again("thp", "auto", 0);
}

TEST(a_pool_that_is_too_small_is_used_up_and_thp_does_the_rest)
{
	NEEDS_POOL(40);
	if (!thp_on_advice())
		SKIP("THP is switched off");
	again("both", "auto", 5);
}

TEST(pages_may_be_narrowed_to_hugetlb)
{
	NEEDS_POOL(40);
	again("hugetlb", "hugetlb", ALL);
}

TEST(pages_may_be_narrowed_to_thp)
{
	if (!thp_on_advice())
		SKIP("THP is switched off");
	again("thp", "thp", ALL);
}

TEST(pages_may_be_narrowed_to_base)
{
	if (thp_always())
		SKIP("THP everywhere, asked for or not");
	again("base", "base", ALL);
}

TEST(hugetlb_alone_with_an_empty_pool_leaves_base_pages)
{
	if (thp_always())
		SKIP("THP everywhere, asked for or not");
	again("base", "hugetlb", 0);
}

/* How often the kernel had no hugepage for THP at a fault. */
static long thp_refused(void)
{
	static char text[1 << 15];
	char *at = file_read("/proc/vmstat", text, sizeof text) > 0 ? strstr(text, "\nthp_fault_fallback ") : NULL;
	return at ? strtol(at + 20, NULL, 10) : 0;
}

static int expect_main(const char *what, long left)
{
	long free_before = pool_free(), refused = thp_refused(), free_after;
	bool disturbed;
	size_t sum = allocate();
	struct kinds all = smaps_kinds(0, 0, UINTPTR_MAX);
	if (!strcmp(what, "both")) {
		expect_kinds(true, true, true);
		EXPECT(all.hugetlb && all.hugetlb <= 5 * PAGE);
		EXPECT(all.thp >= sum - 8 * PAGE);
	} else {
		bool thp = !strcmp(what, "thp");
		expect_kinds(!strcmp(what, "hugetlb"), thp, !strcmp(what, "base"));
		if (thp)
			EXPECT(all.thp >= sum - 2 * PAGE);
	}
	release();
	free_after = pool_free();
	disturbed = left != ALL && (free_before != left || free_after > left || free_after < left - 4);
	disturbed |= thp_refused() != refused;
	return !t_failures ? 0 : disturbed ? DISTURBED : 1;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--drain"))
		return pool_drain_main(strtol(argv[2], NULL, 10));
	if (argc == 4 && !strcmp(argv[1], "--expect"))
		return expect_main(argv[2], strtol(argv[3], NULL, 10));
	return t_run(argc, argv);
}
