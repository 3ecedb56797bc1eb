/*
 * base/advice.c: the sentence about a run.
 */
#include "base/advice.h"

#include "base/base.h"
#include "tests/t.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* A run of 420 MiB, of which 300 are in large buffers and 100 in small ones. */
static struct hp_run run_of(uint64_t hugetlb, uint64_t thp, uint64_t base)
{
	return (struct hp_run){ .hugetlb_bytes = hugetlb * MIB,
				.thp_bytes = thp * MIB,
				.base_bytes = base * MIB,
				.small_bytes = 100 * MIB,
				.rss_peak_bytes = (thp + base + 100 + 20) * MIB,
				.ram_bytes = 16 * GIB,
				.thp = HP_THP_ALLOWED };
}

static void expect_says(struct hp_run r, enum hp_verdict v, const char *text)
{
	char buf[240];

	if (!EXPECT_EQ(hp_verdict(&r), v))
		T_FAIL("it is %s", hp_verdict_name(hp_verdict(&r)));
	if (strcmp(hp_verdict_text(&r, buf, sizeof buf), text) != 0)
		T_FAIL("it says: %s", buf);
}

TEST(little_memory_is_not_worth_a_look)
{
	expect_says((struct hp_run){ 0 }, HP_VERDICT_LITTLE, "malloc gave 0: too little memory to gain from hugepages");
	expect_says((struct hp_run){ .base_bytes = 2 * MIB, .small_bytes = 1536 << 10, .rss_peak_bytes = 30 * MIB },
		    HP_VERDICT_LITTLE, "malloc gave 3.5 MiB: too little memory to gain from hugepages");
}

TEST(mostly_small_buffers_gain_little)
{
	struct hp_run r = { .thp_bytes = 4 * MIB, .small_bytes = 120 * MIB, .rss_peak_bytes = 150 * MIB };

	expect_says(r, HP_VERDICT_SMALL, "2 % of the memory is in buffers of 32 KiB and more: little to gain here");
	/* A tenth of the memory is enough to look at. */
	r.thp_bytes = 15 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE);
	r.thp_bytes = 14 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_SMALL);
	/* The program has another malloc for them, which nobody can ask. */
	r = (struct hp_run){ .thp_bytes = 9 * MIB, .small_unknown = true, .rss_peak_bytes = 150 * MIB };
	expect_says(r, HP_VERDICT_SMALL, "6 % of the memory is in buffers of hugepin: little to gain here");
}

TEST(without_the_heap_the_heap_is_proposed)
{
	expect_says((struct hp_run){ .small_unknown = true, .rss_peak_bytes = 150 * MIB }, HP_VERDICT_NO_HEAP,
		    "no buffer lay in hugepages; with LD_PRELOAD=libhugepin-malloc.so.0 the large ones of malloc do");
}

TEST(static_memory_is_told_with_its_pages)
{
	struct hp_run r = { .thp_bytes = 8 * MIB, .small_bytes = 4 * MIB, .rss_peak_bytes = 2048 * MIB,
			    .static_base_bytes = 1024 * MIB };

	expect_says(r, HP_VERDICT_STATIC, "50 % of the memory (1 GiB) is static, 0 % of that in THP; HUGEPIN_IMAGE=bss or "
					  "=data puts it there");
	r.static_thp_bytes = 1000 * MIB;
	r.static_base_bytes = 24 * MIB;
	expect_says(r, HP_VERDICT_STATIC, "50 % of the memory (1 GiB) is static, 97 % of that in THP");
	/* Less than half of the memory, or little. */
	r.static_thp_bytes = 900 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_ELSEWHERE);
	r = (struct hp_run){ .static_base_bytes = 60 * MIB, .rss_peak_bytes = 63 * MIB };
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_LITTLE);
}

TEST(memory_that_is_not_mallocs_may_be_mapped)
{
	struct hp_run r = { .thp_bytes = 8 * MIB, .small_bytes = 4 * MIB, .rss_peak_bytes = 2048 * MIB };

	expect_says(r, HP_VERDICT_ELSEWHERE,
		    "99 % of the memory (1.9 GiB) is not malloc's: the program or its runtime maps it; HUGEPIN_MMAP=thp "
		    "may help there");
	/* Code and libraries of a small program are no runtime's heap. */
	r.rss_peak_bytes = 70 * MIB;
	r.thp_bytes = 0;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_ELSEWHERE);
	r.rss_peak_bytes = 60 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_LITTLE);
	/* Hugepages of the pool are not part of RSS. */
	r = run_of(2048, 0, 0);
	r.rss_peak_bytes = 130 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE);
}

TEST(a_copy_for_a_child_is_not_memory_of_the_programs)
{
	struct hp_run r = run_of(60, 0, 0);

	r.rss_peak_bytes += 60 * MIB; /* fork had copied the pool's part */
	r.rss_copy_bytes = 60 * MIB;
	EXPECT_EQ(hp_run_all_bytes(&r), 180 * MIB);
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE);
	/* Even if it is most of the memory that the kernel counts. */
	r = run_of(600, 0, 0);
	r.rss_peak_bytes += 6000 * MIB;
	r.rss_copy_bytes = 6000 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE);
	r.rss_copy_bytes = 7000 * MIB; /* the kernel counted less than was copied */
	EXPECT_EQ(hp_run_all_bytes(&r), 700 * MIB);
}

TEST(a_program_that_forks_with_much_in_the_pool_is_told_to_use_thp)
{
	struct hp_run r = run_of(600, 0, 0);

	r.fork_peak_bytes = r.fork_pool_bytes = 600 * MIB;
	expect_says(r, HP_VERDICT_FORK,
		    "a fork had to wait until 600 MiB of the pool were copied for the child: HUGEPIN_PAGES=thp avoids the copy");
	r.fork_peak_bytes = r.fork_pool_bytes = 64 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_FORK);
	r.fork_peak_bytes = r.fork_pool_bytes = 63 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE);
	/* Registered memory is copied from any kind of page. */
	r.fork_peak_bytes = 600 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE);
}

TEST(hugepages_save_faults)
{
	expect_says(run_of(0, 298, 2), HP_VERDICT_HUGE,
		    "99 % of the large buffers lay in hugepages: up to 76139 page faults fewer than in base pages");
	expect_says(run_of(200, 100, 0), HP_VERDICT_HUGE,
		    "100 % of the large buffers lay in hugepages: up to 76650 page faults fewer than in base pages");
	/* THP may be switched off, and the pool may have refused: neither matters if the rest served. */
	struct hp_run r = run_of(280, 0, 20);

	r.thp = HP_THP_NEVER;
	r.pool_short = 1;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE);
}

/* vm.nr_hugepages counts pages of another size there. */
TEST(with_larger_base_pages_the_pool_is_named_by_its_file)
{
	struct hp_run r = run_of(60, 0, 240);

	hp_base_page = 16384;
	r.pages = HP_PAGES_HUGETLB;
	r.pool_short = 4;
	r.pool_pages = 40;
	expect_says(r, HP_VERDICT_POOL_SHORT,
		    "the hugetlb pool served 20 % of the large buffers: /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=160 "
		    "would have served 100 %");
	r.pages = HP_PAGES_AUTO;
	r.thp = HP_THP_SIZE;
	r.ranks = r.local_ranks = 128;
	expect_says(r, HP_VERDICT_THP_SIZE,
		    "THP is disabled for 2 MiB (transparent_hugepage/hugepages-2048kB/enabled), and the hugetlb pool was too "
		    "small: /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=160 (for 128 ranks) would have served 100 %");
	expect_says(run_of(0, 300, 0), HP_VERDICT_HUGE,
		    "100 % of the large buffers lay in hugepages: up to 19050 page faults fewer than in base pages");
	hp_base_page = 65536;
	expect_says(run_of(0, 300, 0), HP_VERDICT_HUGE,
		    "100 % of the large buffers lay in hugepages: up to 4650 page faults fewer than in base pages");
	hp_base_page = 4096;
}

TEST(an_empty_pool_is_named_with_the_size_that_serves)
{
	struct hp_run r = run_of(0, 0, 300);

	r.pages = HP_PAGES_HUGETLB;
	r.pool_short = 4;
	expect_says(r, HP_VERDICT_POOL_EMPTY,
		    "the hugetlb pool was empty: vm.nr_hugepages=150 would have served 100 %");
	/* Pages that others have stay theirs. */
	r.pool_pages = 40;
	r.hugetlb_bytes = 60 * MIB;
	r.base_bytes = 239 * MIB;
	expect_says(r, HP_VERDICT_POOL_SHORT,
		    "the hugetlb pool served 20 % of the large buffers: vm.nr_hugepages=160 would have served 100 %");
	/* No larger pool than three quarters of the memory. */
	r = run_of(0, 0, 1000);
	r.pages = HP_PAGES_HUGETLB;
	r.pool_short = 4;
	r.ram_bytes = GIB;
	expect_says(r, HP_VERDICT_POOL_EMPTY, "the hugetlb pool was empty: vm.nr_hugepages=384 would have served 76 %");
	r.pool_pages = 384;
	expect_says(r, HP_VERDICT_POOL_EMPTY,
		    "the hugetlb pool was empty: the machine has no memory for a larger one");
	r.pool_denied = 1;
	expect_says(r, HP_VERDICT_POOL_DENIED,
		    "100 % of the large buffers lay in base pages: a cgroup or a NUMA policy kept pages of the hugetlb pool "
		    "back; see `hugepin info`");
}

TEST(buffers_touched_little_are_named_whatever_they_lie_in)
{
	struct hp_run r = run_of(280, 0, 20);

	r.sparse_bytes = GIB;
	expect_says(r, HP_VERDICT_SPARSE,
		    "the program touches little of its large buffers: 1 GiB were mapped in base pages, since hugepages "
		    "would have been filled with zeros for nothing");
	r.sparse_bytes = 29 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE);
}

TEST(thp_that_is_off_is_named)
{
	struct hp_run r = run_of(0, 0, 300);

	r.pool_short = 4;
	r.thp = HP_THP_PROCESS;
	expect_says(r, HP_VERDICT_THP_PROCESS,
		    "THP is disabled for this process (PR_SET_THP_DISABLE), and the hugetlb pool was empty: "
		    "vm.nr_hugepages=150 would have served 100 %");
	r.thp = HP_THP_NEVER;
	expect_says(r, HP_VERDICT_THP_NEVER,
		    "THP is disabled (\"never\" in transparent_hugepage/enabled), and the hugetlb pool was empty: "
		    "vm.nr_hugepages=150 would have served 100 %");
	r.thp = HP_THP_SIZE;
	r.hugetlb_bytes = 100 * MIB;
	r.pool_pages = 50;
	expect_says(r, HP_VERDICT_THP_SIZE,
		    "THP is disabled for 2 MiB (transparent_hugepage/hugepages-2048kB/enabled), and the hugetlb pool was too "
		    "small: vm.nr_hugepages=200 would have served 100 %");
	r.pages = HP_PAGES_THP;
	expect_says(r, HP_VERDICT_THP_SIZE,
		    "THP is disabled for 2 MiB (transparent_hugepage/hugepages-2048kB/enabled)");
	/* Who asked for the pool alone has to enlarge the pool. */
	r.pages = HP_PAGES_HUGETLB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_POOL_SHORT);
}

TEST(thp_that_was_not_given_is_said)
{
	struct hp_run r = run_of(0, 150, 150);

	r.pages = HP_PAGES_THP;
	expect_says(r, HP_VERDICT_THP_SHORT,
		    "50 % of the large buffers lay in base pages: the kernel had no free hugepages for THP, or they were "
		    "touched in part before THP was had");
	r.base_bytes = 10 * MIB;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE);
	r.kinds_unknown = true;
	expect_says(r, HP_VERDICT_UNKNOWN, "the kernel does not tell which pages the large buffers got (no /proc)");
}

TEST(base_pages_that_were_asked_for_are_no_fault)
{
	struct hp_run r = run_of(0, 0, 300);

	r.pages = HP_PAGES_BASE;
	r.thp = HP_THP_NEVER;
	expect_says(r, HP_VERDICT_ASKED_BASE,
		    "100 % of the large buffers lay in base pages: HUGEPIN_PAGES=base asks for that");
	r.guard = true;
	expect_says(r, HP_VERDICT_ASKED_BASE,
		    "100 % of the large buffers lay in base pages: HUGEPIN_GUARD=1 asks for that");
}

TEST(pins_that_miss_have_their_reason)
{
	struct hp_run r = run_of(0, 300, 0);

	r.pins = 1000;
	r.misses = 99;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_HUGE); /* one in ten is not much */
	r.misses = 400;
	expect_says(r, HP_VERDICT_PIN_ONCE,
		    "40 % of the pins had to register: most memory is pinned once, so a cache cannot help");
	r.invalidated = 300;
	expect_says(r, HP_VERDICT_PIN_LOST,
		    "40 % of the pins had to register: their memory was unmapped between uses; memory of malloc stays "
		    "registered");
	r.evicted = 300;
	r.budget_bytes = 8 * MIB;
	expect_says(r, HP_VERDICT_PIN_BUDGET,
		    "40 % of the pins had to register: the budget of the pin cache, 8 MiB, is too small; a higher `ulimit "
		    "-l` raises it");
	r.uncached = 400;
	expect_says(r, HP_VERDICT_PIN_UNCACHED,
		    "40 % of the pins had to register: their memory cannot be cached (shared, a file's, or nobody watches "
		    "it); hugepin_pin(3)");
	r.nobufs = 3;
	r.misses = 0;
	expect_says(r, HP_VERDICT_PIN_BUDGET,
		    "3 pins failed with ENOBUFS: the budget of the pin cache, 8 MiB, is too small; a higher `ulimit -l` "
		    "raises it");
}

TEST(too_few_registrations_are_no_small_budget)
{
	struct hp_run r = run_of(0, 300, 0);

	r.pins = 1000;
	r.misses = r.evicted = 400;
	r.crowded = 199;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_PIN_BUDGET);
	r.crowded = 200;
	expect_says(r, HP_VERDICT_PIN_COUNT,
		    "40 % of the pins had to register: the device takes too few registrations at a time; io_uring takes as "
		    "many as it has slots; pinned_regions_max is a limit, too");
	r.evicted = r.misses = 0;
	r.nobufs = 3;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_PIN_COUNT);
	r.crowded = 0;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_PIN_BUDGET);
}

TEST(a_heap_without_room_is_not_taken_for_a_program_without_large_buffers)
{
	struct hp_run r = run_of(0, 0, 0);

	r.nomem = 3;
	expect_says(r, HP_VERDICT_NO_ROOM,
		    "3 large requests found no room in the heap, and 0 found some: a limit of addresses or data (`ulimit "
		    "-v`, `ulimit -d`) may be too low");
	/* A program that asked for too much once is judged by the rest. */
	r.placed = 3;
	EXPECT_EQ(hp_verdict(&r), HP_VERDICT_SMALL);
}

TEST(a_sentence_fits_the_promised_room)
{
	static const int64_t pages[] = { HP_PAGES_AUTO, HP_PAGES_HUGETLB, HP_PAGES_THP, HP_PAGES_BASE };
	char buf[400];

	/* All numbers as long as they get. */
	for (unsigned thp = HP_THP_UNKNOWN; thp <= HP_THP_PROCESS; thp++) {
		for (unsigned i = 0; i < 64; i++) {
			struct hp_run r = { .hugetlb_bytes = i & 1 ? UINT64_C(3) << 60 : 0,
					    .base_bytes = i & 2 ? UINT64_C(3) << 60 : 0,
					    .rss_peak_bytes = i & 4 ? UINT64_C(3) << 60 : 0,
					    .small_bytes = i & 8 ? UINT64_C(3) << 58 : 0,
					    .pages = pages[i >> 4],
					    .pool_short = 1,
					    .thp = thp };

			EXPECT(strlen(hp_verdict_text(&r, buf, sizeof buf)) < 240);
			EXPECT(strlen(buf) > 20);
			r.nomem = UINT64_MAX;
			r.placed = UINT64_MAX - 1;
			EXPECT(strlen(hp_verdict_text(&r, buf, sizeof buf)) < 240);
			r.pins = r.misses = r.evicted = r.nobufs = UINT64_MAX;
			r.budget_bytes = UINT64_C(999) << 40;
			EXPECT(strlen(hp_verdict_text(&r, buf, sizeof buf)) < 240);
			r.crowded = UINT64_MAX;
			EXPECT(strlen(hp_verdict_text(&r, buf, sizeof buf)) < 240);
		}
	}
	/* Less room cuts it. */
	struct hp_run r = run_of(0, 300, 0);

	EXPECT_EQ(strlen(hp_verdict_text(&r, buf, 20)), 19);
}

static void expect_size(uint64_t bytes, const char *text)
{
	char buf[40] = "";
	struct hp_line l = { buf, buf + sizeof buf };

	hp_line_size(&l, bytes);
	if (strcmp(buf, text) != 0)
		T_FAIL("%llu is %s, not %s", (unsigned long long)bytes, buf, text);
}

TEST(sizes_are_written_as_people_do)
{
	expect_size(0, "0");
	expect_size(1, "1 bytes");
	expect_size(1023, "1023 bytes");
	expect_size(1024, "1 KiB");
	expect_size(1536, "1.5 KiB");
	expect_size(298 * MIB + 600000, "298 MiB");
	expect_size(1331 * MIB, "1.2 GiB");
	expect_size(10 * GIB + 900 * MIB, "10 GiB");
	expect_size(UINT64_C(1) << 50, "1024 TiB");
	expect_size(UINT64_MAX, "16777215 TiB");
}

static void expect_percent(uint64_t part, uint64_t whole, const char *text)
{
	char buf[40] = "";
	struct hp_line l = { buf, buf + sizeof buf };

	hp_line_percent(&l, part, whole);
	if (strcmp(buf, text) != 0)
		T_FAIL("%llu of %llu is %s, not %s", (unsigned long long)part, (unsigned long long)whole, buf, text);
}

TEST(all_is_said_only_of_all)
{
	expect_percent(0, 0, "0 %");
	expect_percent(0, 5, "0 %");
	expect_percent(1, 1000, "under 1 %");
	expect_percent(999, 1000, "99 %");
	expect_percent(7, 7, "100 %");
	expect_percent(UINT64_C(1) << 62, UINT64_C(1) << 63, "50 %");
}

TEST(the_kind_of_thp_is_judged_as_the_kernel_does)
{
	EXPECT_EQ(hp_thp_judge("always [madvise] never\n", NULL, false), HP_THP_ALLOWED);
	EXPECT_EQ(hp_thp_judge("always [madvise] never\n", NULL, true), HP_THP_PROCESS);
	EXPECT_EQ(hp_thp_judge("always madvise [never]\n", NULL, false), HP_THP_NEVER);
	EXPECT_EQ(hp_thp_judge("always madvise [never]\n", "always [inherit] madvise never\n", false), HP_THP_NEVER);
	EXPECT_EQ(hp_thp_judge("always madvise [never]\n", "always inherit [madvise] never\n", false), HP_THP_ALLOWED);
	EXPECT_EQ(hp_thp_judge("[always] madvise never\n", "always inherit madvise [never]\n", false), HP_THP_SIZE);
	EXPECT_EQ(hp_thp_judge("[always] madvise never\n", "always [inherit] madvise never\n", false), HP_THP_ALLOWED);
	EXPECT_EQ(hp_thp_judge(NULL, NULL, false), HP_THP_UNKNOWN);
	/* The only size of this kernel is another one. */
	hp_base_page = 16384;
	EXPECT_EQ(hp_thp_judge("[always] madvise never\n", NULL, false), HP_THP_SIZE);
	EXPECT_EQ(hp_thp_judge("always [madvise] never\n", "always [inherit] madvise never\n", false), HP_THP_ALLOWED);
	hp_base_page = 4096;
}

T_MAIN
