/*
 * base/summary.c and base/text.c: the statistics at exit as text, and the advice on a run.
 */
#include "base/summary.h"

#include "base/config.h"
#include "base/text.h"
#include "tests/t.h"

static char text[16384];

static struct hp_line begin(void)
{
	text[0] = 0;
	return (struct hp_line){ text, text + sizeof text };
}

/* A run of 420 MiB, of which 300 are in large buffers and 100 in small ones. */
static struct hp_run run_of(uint64_t hugetlb, uint64_t thp, uint64_t base)
{
	return (struct hp_run){ .name = "sort",
				.pid = 4711,
				.rank = -1,
				.ranks = 1,
				.hugetlb_bytes = hugetlb * MIB,
				.thp_bytes = thp * MIB,
				.base_bytes = base * MIB,
				.large_min = (hugetlb + thp + base) * MIB,
				.large_max = (hugetlb + thp + base) * MIB,
				.small_bytes = 100 * MIB,
				.rss_peak_bytes = (thp + base + 100 + 20) * MIB,
				.ram_bytes = 16 * GIB };
}

static void expect_summary(struct hp_run r, const char *expected)
{
	struct hp_line l = begin();

	hp_run_summary(&l, &r);
	if (strcmp(text, expected) != 0)
		T_FAIL("it says:\n%s", text);
}

static void expect(struct hp_run r, const char *code)
{
	struct hp_line l = begin();
	const char *found = hp_run_advice(&l, &r);

	if (strcmp(found, code) != 0)
		T_FAIL("it is %s: %s", found, text);
}

static void expect_says(struct hp_run r, const char *code, const char *sentence)
{
	expect(r, code);
	if (strcmp(text, sentence) != 0)
		T_FAIL("it says: %s", text);
}

TEST(a_process_says_where_its_memory_lay)
{
	struct hp_run r = run_of(0, 298, 3);

	r.rss_peak_bytes += MIB / 2;
	expect_summary(r, "hugepin[4711] sort: large buffers: 301 MiB at the peak: 298 MiB in THP, 3 MiB in base pages\n"
			  "hugepin[4711] sort: small buffers: 100 MiB; memory that is not malloc's: 20 MiB\n"
			  "hugepin[4711] sort: 99 % of the large buffers lay in hugepages: up to 76139 page faults fewer than in "
			  "base pages\n");
	/* A rank, with a pin cache, on another malloc. */
	r = run_of(100, 0, 0);
	r.small_bytes = HP_UNKNOWN;
	r.rank = 3;
	r.pin = (struct hp_pin_sums){ .pins = 1200, .domains = 1, .stats = { .misses = 3, .pinned_peak_bytes = 64 * MIB } };
	expect_summary(r, "hugepin[4711] sort rank 3: large buffers: 100 MiB at the peak: 100 MiB in the hugetlb pool\n"
			  "hugepin[4711] sort rank 3: pin cache: 99 % of 1200 pins found their memory registered; 64 MiB "
			  "registered at the peak\n"
			  "hugepin[4711] sort rank 3: 100 % of the large buffers lay in hugepages: up to 25550 page faults fewer "
			  "than in base pages\n");
}

TEST(what_a_fork_has_copied_is_told_as_that)
{
	struct hp_run r = run_of(298, 0, 3);

	r.fork_peak_bytes = r.fork_pool_bytes = 298 * MIB;
	r.heap.fork_longest_us = 211999;
	expect_summary(r, "hugepin[4711] sort: large buffers: 301 MiB at the peak: 298 MiB in the hugetlb pool, 3 MiB in base pages; "
			  "a fork copied 298 MiB\n"
			  "hugepin[4711] sort: small buffers: 100 MiB; memory that is not malloc's: 20 MiB\n"
			  "hugepin[4711] sort: a fork had to wait 211 ms until 298 MiB of the pool were copied for the child: "
			  "HUGEPIN_PAGES=thp avoids the copy\n");
	r.fork_pool_bytes = 64 * MIB;
	expect(r, "fork-copied");
	r.fork_pool_bytes = 63 * MIB; /* registered memory is copied from any kind of page */
	expect(r, "huge");
}

TEST(what_is_not_known_is_left_out)
{
	struct hp_run r = { .name = "a", .pid = 5, .rank = -1, .pin.domains = 1, .small_bytes = HP_UNKNOWN };
	struct hp_line l = begin();

	expect_summary(r, "hugepin[5] a: pin cache: 0 % of 0 pins found their memory registered; 0 bytes registered at the peak\n"
			  "hugepin[5] a: no buffer lay in hugepages; with LD_PRELOAD=libhugepin-malloc.so.0 the large ones of "
			  "malloc do\n");
	l = begin();
	hp_run_file(&l, &r);
	EXPECT(!strstr(text, "\nsmall_bytes ") && !strstr(text, "\nrank "));
	r = run_of(0, 298, 3);
	r.kinds_unknown = 1;
	expect_summary(r, "hugepin[4711] sort: large buffers: 301 MiB asked for: 298 MiB in THP, 3 MiB in base pages\n"
			  "hugepin[4711] sort: small buffers: 100 MiB; memory that is not malloc's: 20 MiB\n"
			  "hugepin[4711] sort: the kernel does not tell which pages the large buffers got (no /proc)\n");
}

TEST(a_process_that_needed_little_has_nothing_to_say)
{
	struct hp_run r = { .pid = 5 };

	r.rss_peak_bytes = 64 * MIB - 1;
	EXPECT(!hp_run_matters(&r));
	r.hugetlb_bytes = 1; /* not part of RSS */
	EXPECT(hp_run_matters(&r));
	r.rss_peak_bytes = 0;
	EXPECT(!hp_run_matters(&r));
	r.base_bytes = 8 * MIB - 1;
	EXPECT(hp_run_matters(&r));
	r.child = 1;
	EXPECT(hp_run_matters(&r));
	r.inherited_bytes = 1;
	EXPECT(!hp_run_matters(&r));
	r.pin.domains = 1;
	EXPECT(hp_run_matters(&r));
}

TEST(ranks_are_added_up)
{
	struct hp_run sum = { .pid = 0 }, a = run_of(0, 298, 3), b = run_of(0, 98, 203), none = { .pid = 0 }, rest = { .pid = 0 };

	b.rank = 1;
	b.fork_peak_bytes = 5 * MIB;
	a.heap.pool_short = b.heap.pool_short = 1;
	a.heap.fork_longest_us = 3;
	b.heap.fork_longest_us = 8;
	a.thp_off = 1;
	a.local_ranks = b.local_ranks = 2;
	/* In any grouping: MPI adds up sums of sums. */
	hp_run_add(&rest, &b);
	hp_run_add(&rest, &none);
	EXPECT_EQ(rest.ranks, 1);
	hp_run_add(&sum, &a);
	hp_run_add(&sum, &rest);
	EXPECT_EQ(sum.heap.pool_short, 2);
	EXPECT_EQ(sum.heap.fork_longest_us, 8);
	expect_summary(sum, "hugepin[2 ranks] sort: large buffers: 602 MiB at the peak: 396 MiB in THP, 206 MiB in base pages; "
			    "301 MiB to 301 MiB a rank; a fork copied 5 MiB\n"
			    "hugepin[2 ranks] sort: small buffers: 200 MiB; memory that is not malloc's: 40 MiB\n"
			    "hugepin[2 ranks] sort: THP is off for this process (transparent_hugepage/enabled, or "
			    "PR_SET_THP_DISABLE), and the hugetlb pool served 0 % of the large buffers, THP 65 %: "
			    "vm.nr_hugepages=301 (for 2 ranks) would have served 100 %\n");
	/* Sixteen more ranks like these on other machines need no larger pool on this one. */
	for (int i = 0; i < 8; i++) {
		hp_run_add(&sum, &b);
		hp_run_add(&sum, &a);
	}
	EXPECT_EQ(sum.ranks, 18);
	EXPECT_EQ(sum.fork_peak_bytes, 5 * MIB);
	expect(sum, "thp-off");
	EXPECT(strstr(text, "vm.nr_hugepages=301 (for 2 ranks) would have served 100 %"));
	a.small_bytes = HP_UNKNOWN;
	hp_run_add(&sum, &a);
	EXPECT_EQ(sum.small_bytes, HP_UNKNOWN);
}

TEST(the_list_leaves_zeros_out)
{
	struct hp_run r = { .name = "sort", .pid = 4711, .rank = -1, .heap = { .placed = 12, .thp_bytes = 4096 } };
	struct hp_line l = begin();

	hp_run_list(&l, &r);
	EXPECT(!strcmp(text, "hugepin[4711] sort: thp_bytes 4096\nhugepin[4711] sort: placed 12\n"));
	l = begin();
	r.pin = (struct hp_pin_sums){ .pins = 7, .domains = 1, .stats = { .misses = 3 } };
	hp_run_list(&l, &r);
	EXPECT(strstr(text, "sort: placed 12\nhugepin[4711] sort: pin.pins 7\nhugepin[4711] sort: pin.misses 3\n"));
}

TEST(a_file_has_everything_and_fits)
{
	struct hp_run r = run_of(0, 298, 2);
	struct hp_line l = begin();

	/* All numbers as long as they get. */
	memset(&r.heap, 0xfe, sizeof r.heap);
	memset(&r.pin, 0xfe, sizeof r.pin);
	r.rank = 0;
	r.rss_peak_bytes = r.fork_peak_bytes = r.small_bytes = UINT64_MAX - 1;
	hp_run_file(&l, &r);
	EXPECT(l.at + 1 < l.end && l.at[-1] == '\n');
	EXPECT(!strncmp(text, "program sort\npid 4711\nrank 0\npeak.hugetlb_bytes 0\npeak.thp_bytes 312475648\n", 75));
	EXPECT(strstr(text, "\nfork_peak_bytes 18446744073709551614\npeak.large_bytes 314572800\nheap."));
	EXPECT(strstr(text, "\nadvice.code pin-count\nadvice.text 18374403900871474942 pins failed with ENOBUFS: the device "));
#define HAS(name, unit, sentence) EXPECT(strstr(text, "\nheap." #name " 18374403900871474942\n"));
	HUGEPIN_STATS_LIST(HAS)
#undef HAS
#define HAS(name, unit, sentence) EXPECT(strstr(text, "\npin." #name " 18374403900871474942\n"));
	HUGEPIN_DOMAIN_STATS_LIST(HAS)
#undef HAS
}

/* ------------------------------------------------------------------ advice */

TEST(little_memory_in_large_buffers_gains_little)
{
	struct hp_run r = { .thp_bytes = 4 * MIB, .small_bytes = 120 * MIB, .rss_peak_bytes = 150 * MIB };

	expect_says(r, "mostly-small", "large buffers have 4 MiB, 2 % of the memory: too little to gain from hugepages");
	/* A tenth of the memory is enough to look at. */
	r.thp_bytes = 15 * MIB;
	expect(r, "huge");
	r.thp_bytes = 14 * MIB;
	expect(r, "mostly-small");
	expect((struct hp_run){ .base_bytes = 8 * MIB - 1, .rss_peak_bytes = 8 * MIB }, "mostly-small");
}

TEST(memory_that_is_not_mallocs_may_be_static_or_mapped)
{
	struct hp_run r = { .thp_bytes = 8 * MIB, .small_bytes = 4 * MIB, .rss_peak_bytes = 2048 * MIB };

	expect_says(r, "not-malloc",
		    "99 % of the memory (1.9 GiB) is not malloc's; HUGEPIN_IMAGE=bss may help if it is static, a setting of the "
		    "program's own if the program or its runtime maps it");
	r.heap.image_bytes = 1124 * MIB; /* what the option has done needs no advice to use it */
	expect_says(r, "image",
		    "HUGEPIN_IMAGE asked for THP for 1 GiB of the program's own image; large buffers have 8 MiB, under 1 % of the "
		    "memory");
	r.heap.image_bytes = 100 * MIB; /* of two gigabytes */
	expect(r, "not-malloc");
	/* Code and libraries of a small program are no runtime's heap. */
	r = (struct hp_run){ .small_bytes = 4 * MIB, .rss_peak_bytes = 70 * MIB };
	expect(r, "not-malloc");
	r.rss_peak_bytes = 36 * MIB;
	expect(r, "not-malloc");
	r.rss_peak_bytes = 36 * MIB - 1;
	expect(r, "mostly-small");
	/* Hugepages of the pool are not part of RSS. */
	r = run_of(2048, 0, 0);
	r.rss_peak_bytes = 130 * MIB;
	expect(r, "huge");
}

TEST(hugepages_save_faults)
{
	struct hp_run r = run_of(280, 0, 20);

	expect_says(run_of(200, 100, 0), "huge",
		    "100 % of the large buffers lay in hugepages: up to 76650 page faults fewer than in base pages");
	/* THP may be switched off, and the pool may have refused: neither matters if the rest served. */
	r.thp_off = 1;
	r.heap.pool_short = 1;
	expect(r, "huge");
}

/* vm.nr_hugepages counts pages of another size there. */
TEST(with_larger_base_pages_the_pool_is_named_by_its_file)
{
	struct hp_run r = run_of(60, 0, 240);

	hp_base_page = 16384;
	r.pages = HP_PAGES_HUGETLB;
	r.heap.pool_short = 4;
	r.pool_pages = 40;
	expect_says(r, "pool-short",
		    "the hugetlb pool served 20 % of the large buffers: /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=160 "
		    "would have served 100 %");
	expect_says(run_of(0, 300, 0), "huge",
		    "100 % of the large buffers lay in hugepages: up to 19050 page faults fewer than in base pages");
	hp_base_page = 4096;
}

TEST(a_pool_that_is_too_small_is_named_with_the_size_that_serves)
{
	struct hp_run r = run_of(0, 0, 300);

	r.pages = HP_PAGES_HUGETLB;
	r.heap.pool_short = 4;
	r.thp_off = 1; /* who asked for the pool alone has to enlarge the pool */
	expect_says(r, "pool-short", "the hugetlb pool served 0 % of the large buffers: vm.nr_hugepages=150 would have served 100 %");
	/* Pages that others have stay theirs. */
	r.pool_pages = 40;
	r.hugetlb_bytes = 60 * MIB;
	r.base_bytes = 239 * MIB;
	expect_says(r, "pool-short", "the hugetlb pool served 20 % of the large buffers: vm.nr_hugepages=160 would have served 100 %");
	r.local_ranks = 4; /* the pool has to do for the neighbours of one rank as well */
	expect(r, "pool-short");
	EXPECT(strstr(text, "vm.nr_hugepages=518 (for 4 ranks) would have served 100 %"));
	/* What lies in THP takes the pool first, if that is larger. */
	r = run_of(0, 24, 6);
	r.rss_peak_bytes = 30 * MIB;
	r.small_bytes = 0;
	r.heap.pool_short = 1;
	expect_says(r, "pool-short",
		    "the hugetlb pool served 0 % of the large buffers, THP 80 %: vm.nr_hugepages=15 would have served 100 %");
	/* No larger pool than three quarters of the memory. */
	r = run_of(0, 0, 1000);
	r.pages = HP_PAGES_HUGETLB;
	r.heap.pool_short = 4;
	r.ram_bytes = GIB;
	expect_says(r, "pool-short", "the hugetlb pool served 0 % of the large buffers: vm.nr_hugepages=384 would have served 76 %");
	r.pool_pages = 384;
	expect_says(r, "pool-short", "the hugetlb pool served 0 % of the large buffers: the machine has no memory for a larger one");
	r.heap.pool_denied = 1;
	expect_says(r, "pool-denied",
		    "100 % of the large buffers lay in base pages: a cgroup or a NUMA policy kept pages of the hugetlb pool "
		    "back; see `hugepin info`");
}

TEST(thp_that_is_off_or_was_not_given_is_named)
{
	struct hp_run r = run_of(0, 150, 150);

	r.pages = HP_PAGES_THP;
	expect_says(r, "thp-short",
		    "50 % of the large buffers lay in base pages: the kernel had no THP of 2 MiB for them (see `hugepin info`), or "
		    "they were touched in part before");
	r.thp_off = 1;
	expect_says(r, "thp-off", "THP is off for this process (transparent_hugepage/enabled, or PR_SET_THP_DISABLE)");
	r.pages = HP_PAGES_AUTO;
	expect_says(r, "thp-off", "THP is off for this process (transparent_hugepage/enabled, or PR_SET_THP_DISABLE), and the hugetlb "
				  "pool served 0 % of the large buffers, THP 50 %: vm.nr_hugepages=150 would have served 100 %");
	r.base_bytes = 10 * MIB;
	expect(r, "huge");
}

TEST(base_pages_that_were_asked_for_are_no_fault)
{
	struct hp_run r = run_of(0, 0, 300);

	r.pages = HP_PAGES_BASE;
	r.thp_off = 1;
	expect_says(r, "base-pages-asked", "100 % of the large buffers lay in base pages: HUGEPIN_PAGES=base asks for that");
	r = run_of(280, 0, 20);
	r.heap.sparse_bytes = GIB;
	expect_says(r, "touched-little",
		    "the program touches little of its large buffers: 1 GiB were mapped in base pages, since hugepages would have "
		    "been filled with zeros for nothing");
	r.heap.sparse_bytes = 29 * MIB;
	expect(r, "huge");
}

TEST(pins_that_miss_have_their_reason)
{
	struct hp_run r = run_of(0, 300, 0);
	struct hugepin_domain_stats *p = &r.pin.stats;

	r.pin.pins = 1000;
	p->misses = 99;
	expect(r, "huge"); /* one in ten is not much */
	p->misses = 400;
	expect_says(r, "pin-once", "40 % of the pins had to register: most memory is pinned once, so a cache cannot help");
	p->invalidated = 300;
	expect_says(r, "pin-lost", "40 % of the pins had to register: their memory was unmapped between uses; memory of malloc stays "
				   "registered");
	p->evicted = 300;
	r.pin.limited = 1;
	expect_says(r, "pin-budget", "40 % of the pins had to register: the budget of the pin cache is too small; a higher `ulimit "
				     "-l` raises it");
	r.pin.limited = 0;
	expect_says(r, "pin-budget", "40 % of the pins had to register: the budget of the pin cache is too small; the program, or "
				     "HUGEPIN_PIN_BUDGET, has set it");
	p->crowded = 149;
	expect(r, "pin-budget");
	p->bytes_max = MIB;
	p->refused = 300;
	expect(r, "pin-budget");
	p->bytes_max = 0; /* so a refusal is not for want of bytes */
	expect(r, "pin-count");
	p->refused = 0;
	p->crowded = 150;
	expect_says(r, "pin-count", "40 % of the pins had to register: the device takes too few registrations at a time; io_uring "
				    "takes as many as it has slots; pinned_regions_max is a limit, too");
	p->uncached = 400;
	expect_says(r, "pin-uncached", "40 % of the pins had to register: their memory cannot be cached (shared, a file's, or nobody "
				       "watches it); hugepin_pin(3)");
	p->nobufs = 3;
	expect(r, "pin-count");
	p->crowded = p->evicted = 0;
	r.pin.limited = 2;
	expect_says(r, "pin-budget", "3 pins failed with ENOBUFS: the budget of the pin cache is too small; a higher `ulimit -l` "
				     "raises it");
}

TEST(a_heap_without_room_is_not_taken_for_a_program_without_large_buffers)
{
	struct hp_run r = run_of(0, 0, 0);

	r.heap.nomem = 3;
	expect_says(r, "no-room", "large requests that found no room in the heap: 3, that found some: 0: a limit of addresses or data "
				  "(`ulimit -v`, `ulimit -d`) may be too low");
	/* A program that asked for too much once is judged by the rest. */
	r.heap.placed = 3;
	expect(r, "mostly-small");
}

/* ------------------------------------------------------------------ numbers */

TEST(a_sentence_fits_the_promised_room)
{
	for (unsigned i = 0; i < 32; i++) {
		struct hp_run r = { .hugetlb_bytes = i & 1 ? UINT64_C(3) << 60 : 0,
				    .base_bytes = i & 2 ? UINT64_C(3) << 60 : 0,
				    .rss_peak_bytes = i & 4 ? UINT64_C(3) << 60 : 0,
				    .thp_off = i & 8,
				    .pages = i & 16 ? HP_PAGES_HUGETLB : HP_PAGES_AUTO,
				    .ranks = UINT32_MAX,
				    .local_ranks = UINT32_MAX,
				    .heap.pool_short = 1 };
		struct hp_line l = begin();

		hp_run_advice(&l, &r);
		EXPECT(strlen(text) < 240 && strlen(text) > 20);
	}
}

static void expect_said(const char *format, uint64_t a, uint64_t b, const char *said)
{
	struct hp_line l = begin();

	HP_SAY(&l, format, a, b);
	if (strcmp(text, said) != 0)
		T_FAIL("'%s' of %llu and %llu is '%s'", format, (unsigned long long)a, (unsigned long long)b, text);
}

TEST(numbers_are_written_as_people_do)
{
	expect_said("@, @", 0, 1, "0 bytes, 1 bytes");
	expect_said("@, @", 1023, 1024, "1023 bytes, 1 KiB");
	expect_said("@, @", 1536, 298 * MIB + 600000, "1.5 KiB, 298 MiB");
	expect_said("@, @", 1331 * MIB, 10 * GIB + 900 * MIB, "1.2 GiB, 10 GiB");
	expect_said("@, @", UINT64_C(1) << 50, UINT64_MAX, "1024 TiB, 16777215 TiB");
	expect_said("# and #.", 0, UINT64_MAX, "0 and 18446744073709551615.");
	/* All is said only of all. */
	expect_said("%", 0, 0, "0 %");
	expect_said("(%)", 1, 1000, "(under 1 %)");
	expect_said("%", 999, 1000, "99 %");
	expect_said("%", 7, 7, "100 %");
	expect_said("%", UINT64_C(1) << 62, UINT64_C(1) << 63, "50 %");
}

T_MAIN
