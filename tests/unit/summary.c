/*
 * base/summary.c: the statistics at exit as text.
 */
#include "base/summary.h"

#include <stdlib.h>

#include "tests/t.h"

#define MIB ((uint64_t)1 << 20)

static char text[16384];

static struct hp_summary example(void)
{
	struct hp_summary s = { .pid = 4711,
				.rank = -1,
				.ns = 1900000000,
				.user_us = 1730000,
				.system_us = 120000,
				.minor_faults = 375,
				.run = { .thp_bytes = 298 * MIB,
					 .base_bytes = 3 * MIB,
					 .small_bytes = 119 * MIB,
					 .rss_peak_bytes = 430 * MIB,
					 .thp = HP_THP_ALLOWED } };

	hp_summary_name(s.name, "sort");
	return s;
}

static void expect_text(struct hp_summary s, const char *expected)
{
	struct hp_line l = { text, text + sizeof text };

	text[0] = 0;
	hp_summary_text(&l, &s);
	if (strcmp(text, expected) != 0)
		T_FAIL("it says:\n%s", text);
}

TEST(a_process_says_where_its_memory_lay)
{
	struct hp_summary s = example();

	expect_text(s, "hugepin[4711] sort: large buffers: 301 MiB at the peak: 298 MiB in THP, 3 MiB in base pages\n"
		       "hugepin[4711] sort: small buffers: 119 MiB; memory that is not malloc's: 10 MiB\n"
		       "hugepin[4711] sort: 375 page faults; 1.73 s user, 0.12 s system, 1.90 s in all\n"
		       "hugepin[4711] sort: 99 % of the large buffers lay in hugepages: up to 76139 page faults fewer than in "
		       "base pages\n");
	/* All of a kind, a rank, and a pin cache. */
	s.run.base_bytes = 0;
	s.run.hugetlb_bytes = 100 * MIB;
	s.run.thp_bytes = 0;
	s.run.small_unknown = true;
	s.rank = 3;
	s.major_faults = 2;
	s.ns = 1050000000;
	s.domains = 1;
	s.run.pins = 1200;
	s.run.misses = 3;
	s.run.pinned_peak_bytes = 64 * MIB;
	expect_text(s, "hugepin[4711] sort rank 3: large buffers: 100 MiB at the peak, all in the hugetlb pool\n"
		       "hugepin[4711] sort rank 3: 377 page faults (2 of them waited for a disk); 1.73 s user, 0.12 s system, "
		       "1.05 s in all\n"
		       "hugepin[4711] sort rank 3: pin cache: 99 % of 1200 pins found their memory registered; 64 MiB "
		       "registered at the peak\n"
		       "hugepin[4711] sort rank 3: 100 % of the large buffers lay in hugepages: up to 25550 page faults fewer "
		       "than in base pages\n");
	s.run.nobufs = 10;
	expect_text(s, "hugepin[4711] sort rank 3: large buffers: 100 MiB at the peak, all in the hugetlb pool\n"
		       "hugepin[4711] sort rank 3: 377 page faults (2 of them waited for a disk); 1.73 s user, 0.12 s system, "
		       "1.05 s in all\n"
		       "hugepin[4711] sort rank 3: pin cache: 99 % of 1200 pins found their memory registered; 10 failed; "
		       "64 MiB registered at the peak\n"
		       "hugepin[4711] sort rank 3: 10 pins failed with ENOBUFS: the budget of the pin cache is too small; a "
		       "higher `ulimit -l` raises it\n");
}

TEST(what_a_fork_has_copied_is_told_as_that)
{
	struct hp_summary s = example(), sum = { .pid = 0 }, other = example();

	s.run.hugetlb_bytes = 298 * MIB;
	s.run.thp_bytes = 0;
	s.run.rss_peak_bytes = (298 + 132) * MIB;
	s.run.rss_copy_bytes = s.run.fork_peak_bytes = s.run.fork_pool_bytes = 298 * MIB;
	expect_text(s, "hugepin[4711] sort: large buffers: 301 MiB at the peak: 298 MiB in the hugetlb pool, 3 MiB in base pages; "
		       "a fork copied 298 MiB\n"
		       "hugepin[4711] sort: small buffers: 119 MiB; memory that is not malloc's: 10 MiB\n"
		       "hugepin[4711] sort: 375 page faults; 1.73 s user, 0.12 s system, 1.90 s in all\n"
		       "hugepin[4711] sort: a fork had to wait until 298 MiB of the pool were copied for the child: "
		       "HUGEPIN_PAGES=thp avoids the copy\n");
	/* Of ranks, the largest copy is told, as of forks; memory is added up. */
	hp_summary_add(&sum, &s);
	hp_summary_add(&sum, &other);
	EXPECT_EQ(sum.run.fork_peak_bytes, 298 * MIB);
	EXPECT_EQ(sum.run.fork_pool_bytes, 298 * MIB);
	EXPECT_EQ(sum.run.rss_copy_bytes, 298 * MIB);
	s.run.fork_peak_bytes = s.run.fork_pool_bytes = 100 * MIB;
	hp_summary_add(&sum, &s);
	EXPECT_EQ(sum.run.fork_peak_bytes, 298 * MIB);
	EXPECT_EQ(sum.run.fork_pool_bytes, 298 * MIB);
	EXPECT_EQ(sum.run.rss_copy_bytes, 2 * 298 * MIB);
}

TEST(what_is_not_known_is_left_out)
{
	struct hp_summary s = { .pid = 5, .rank = -1, .times_unknown = true, .domains = 1 };

	s.run.small_unknown = true;
	hp_summary_name(s.name, "a\nb\033c");
	expect_text(s, "hugepin[5] a?b?c: pin cache: 0 pins; 0 registered at the peak\n"
		       "hugepin[5] a?b?c: no buffer lay in hugepages; with LD_PRELOAD=libhugepin-malloc.so.0 the large ones of "
		       "malloc do\n");
	s = example();
	s.run.kinds_unknown = true;
	s.small_inside = true;
	s.child = true;
	s.run.small_bytes = 0;
	expect_text(s, "hugepin[4711] sort: buffers: 301 MiB asked for: 298 MiB in THP, 3 MiB in base pages\n"
		       "hugepin[4711] sort: memory that is not malloc's: 129 MiB\n"
		       "hugepin[4711] sort: 375 page faults; 1.73 s user, 0.12 s system, 1.90 s since the fork\n"
		       "hugepin[4711] sort: the kernel does not tell which pages the large buffers got (no /proc)\n");
}

TEST(a_process_that_needed_little_has_nothing_to_say)
{
	struct hp_summary s = { .pid = 5, .rank = -1 };

	EXPECT(!hp_summary_matters(&s));
	s.run.rss_peak_bytes = 64 * MIB - 1;
	EXPECT(!hp_summary_matters(&s));
	s.image_bytes = 2 * MIB;
	EXPECT(hp_summary_matters(&s));
	s.image_bytes = 0;
	s.run.hugetlb_bytes = 1; /* not part of RSS */
	EXPECT(hp_summary_matters(&s));
	s.run.rss_peak_bytes = 0;
	EXPECT(!hp_summary_matters(&s));
	s.run.base_bytes = 8 * MIB - 1;
	EXPECT(hp_summary_matters(&s));
	s.child = true;
	EXPECT(hp_summary_matters(&s));
	s.inherited_bytes = 1;
	EXPECT(!hp_summary_matters(&s));
	s.domains = 1;
	EXPECT(hp_summary_matters(&s));
}

TEST(ranks_are_added_up)
{
	struct hp_summary sum = { .pid = 0 }, a = example(), b = example(), none = { .pid = 0 }, rest = { .pid = 0 };

	a.rank = 0;
	b.rank = 1;
	b.ns = 3000000000;
	b.run.thp_bytes = 98 * MIB;
	b.run.base_bytes = 203 * MIB;
	b.run.pool_short = a.run.pool_short = 1;
	a.run.thp = HP_THP_NEVER;
	a.run.local_ranks = b.run.local_ranks = 2;
	/* In any grouping: MPI adds up sums of sums. */
	hp_summary_add(&rest, &b);
	hp_summary_add(&rest, &none);
	EXPECT_EQ(rest.run.ranks, 1);
	hp_summary_add(&sum, &a);
	hp_summary_add(&sum, &rest);
	expect_text(sum, "hugepin[2 ranks] sort: large buffers: 602 MiB at the peak: 396 MiB in THP, 206 MiB in base pages; "
			 "301 MiB to 301 MiB a rank\n"
			 "hugepin[2 ranks] sort: small buffers: 238 MiB; memory that is not malloc's: 20 MiB\n"
			 "hugepin[2 ranks] sort: 750 page faults; 3.46 s user, 0.24 s system, 3.00 s in all\n"
			 "hugepin[2 ranks] sort: THP is disabled (\"never\" in transparent_hugepage/enabled), and the hugetlb "
			 "pool was empty: vm.nr_hugepages=103 (for 2 ranks) would have served 100 %\n");
	/* Sixteen more ranks like these on other machines need no larger pool on this one. */
	for (int i = 0; i < 8; i++) {
		hp_summary_add(&sum, &b);
		hp_summary_add(&sum, &a);
	}
	EXPECT_EQ(sum.run.ranks, 18);
	EXPECT_EQ(sum.large_min, 301 * MIB);
	EXPECT(strstr(hp_verdict_text(&sum.run, text, sizeof text), "vm.nr_hugepages=103 (for 2 ranks) would have served 100 %"));
}

/* One rank's own summary: the pool has to do for its neighbours as well. */
TEST(a_rank_asks_for_a_pool_that_serves_its_machine)
{
	struct hp_summary s = example();

	s.run.pages = HP_PAGES_HUGETLB;
	s.run.thp_bytes = 0;
	s.run.base_bytes = 300 * MIB;
	s.run.pool_short = 1;
	s.run.local_ranks = 4;
	EXPECT(strstr(hp_verdict_text(&s.run, text, sizeof text), "vm.nr_hugepages=600 (for 4 ranks) would have served 100 %"));
}

TEST(the_list_leaves_zeros_out)
{
	struct hugepin_stats heap = { .placed = 12, .thp_bytes = 4096 };
	struct hp_pin_sums pin = { .pins = 7, .stats = { .misses = 3 } };
	struct hp_line l = { text, text + sizeof text };
	struct hp_summary s = example();

	hp_summary_list(&l, &s, &heap, NULL);
	EXPECT(!strcmp(text, "hugepin[4711] sort: thp_bytes 4096\nhugepin[4711] sort: placed 12\n"));
	l = (struct hp_line){ text, text + sizeof text };
	hp_summary_list(&l, &s, &heap, &pin);
	EXPECT(strstr(text, "sort: placed 12\nhugepin[4711] sort: pin.pins 7\nhugepin[4711] sort: pin.misses 3\n"));
}

TEST(json_has_everything_and_fits)
{
	struct hugepin_stats heap;
	struct hp_pin_sums pin = { .domains = 1 };
	struct hp_line l = { text, text + sizeof text };
	struct hp_summary s = example();

	/* All numbers as long as they get. */
	memset(&heap, 0xff, sizeof heap);
	memset(&pin, 0xff, sizeof pin);
	hp_summary_name(s.name, "a\"b\\c");
	s.run.rss_peak_bytes = s.run.pins = s.run.misses = s.run.rss_copy_bytes = s.run.fork_peak_bytes = UINT64_MAX;
	hp_summary_json(&l, &s, &heap, &pin);
	EXPECT(l.at + 1 < l.end && l.at[-1] == '\n' && l.at[-2] == '}');
	EXPECT(strstr(text, "\"program\": \"a\\\"b\\\\c\",\n  \"pid\": 4711,\n  \"rank\": null,\n  \"seconds\": 1.900,"));
	EXPECT(strstr(text, "\"small_bytes\": 124780544"));
	EXPECT(strstr(text, "\"rss_copy_bytes\": 18446744073709551615,\n  \"fork_peak_bytes\": 18446744073709551615,"));
#define HAS(name, unit, sentence) EXPECT(strstr(text, "\"" #name "\": 18446744073709551615"));
	HUGEPIN_STATS_LIST(HAS)
	HUGEPIN_DOMAIN_STATS_LIST(HAS)
#undef HAS
	l = (struct hp_line){ text, text + sizeof text };
	s.ns = 7000000;
	s.rank = 0;
	s.run.small_unknown = true;
	hp_summary_json(&l, &s, &heap, NULL);
	EXPECT(strstr(text, "\"rank\": 0,\n  \"seconds\": 0.007,"));
	EXPECT(strstr(text, "\"small_bytes\": null"));
	EXPECT(strstr(text, "\"pin\": null"));
}

TEST(a_long_name_is_cut)
{
	char name[32];

	hp_summary_name(name, "0123456789012345678901234567890123456789");
	EXPECT_EQ(strlen(name), 31);
	/* Never within a character: JSON must be UTF-8. */
	hp_summary_name(name, "012345678901234567890123456789\303\244");
	EXPECT_EQ(strlen(name), 30);
	hp_summary_name(name, "01234567890123456789012345678\303\244x");
	EXPECT(!strcmp(name, "01234567890123456789012345678\303\244"));
}

TEST(a_name_is_printed_as_utf8_without_control_characters)
{
	static const struct {
		const char *name, *printed;
	} cases[] = {
		{ "g\303\274t \342\202\254 \360\237\230\200", "g\303\274t \342\202\254 \360\237\230\200" },
		{ "a\302\23331mb\302\240", "a??31mb\302\240" }, /* U+009B begins what controls a terminal */
		{ "\344\377.", "??." }, /* Latin-1 */
		{ "\342\202", "??" },
		{ "\300\200\301\277", "????" },
		{ "\340\237\277 \340\240\200", "??? \340\240\200" },
		{ "\355\240\200 \355\237\277", "??? \355\237\277" },
		{ "\360\217\277\277 \360\220\200\200", "???? \360\220\200\200" },
		{ "\364\220\200\200 \364\217\277\277\365", "???? \364\217\277\277?" },
	};
	char name[32];

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		hp_summary_name(name, cases[i].name);
		if (strcmp(name, cases[i].printed) != 0)
			T_FAIL("case %zu: '%s'", i, name);
	}
}

T_MAIN
