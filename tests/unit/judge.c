/*
 * The rules of hugepin check: measurements that somebody could have made go in, the verdict and its sentences come out.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/any.h"
#include "tests/unit/judge.h"

/* ------------------------------------------------------------------ comparing */

TEST(limits_are_those_of_the_exact_rank_test)
{
	/* n = 5: at most 2 of 252 orders have fewer than two pairs the wrong way round, and 4 fewer than three. So with
	 * 1 % of error the limits are the second ratio from each end. */
	const double a[] = { 10, 11, 12, 13, 14 }, b[] = { 1, 2, 3, 4, 5 };
	const struct hp_comparison c = hp_compare(a, b, 5);

	EXPECT(fabs(c.ratio - 4) < 1e-9);
	EXPECT(fabs(c.low - 11.0 / 5) < 1e-9); /* 10/5, 11/5, ... */
	EXPECT(fabs(c.high - 13) < 1e-9); /* ..., 13/1, 14/1 */
	EXPECT(fabs(c.spread - 4.0 / 3) < 1e-9);
	EXPECT_EQ(c.better, 1);
	EXPECT_EQ(c.sure, HP_SURE);
	EXPECT(c.separate);
}

TEST(few_rounds_are_never_sure)
{
	runs(without, 2, 2, 0);
	runs(with, 1, 1, 0);
	for (int i = 0; i < HP_ROUNDS_MAX; i++)
		with[i].minor_faults = 10;
	const enum hp_sure expected[] = { HP_UNSURE, HP_UNSURE, HP_LIKELY, HP_LIKELY, HP_SURE, HP_SURE };
	for (unsigned n = 1; n <= 6; n++) {
		const struct hp_measured m = measured(n);
		const struct hp_judgement j = hp_judge(&m);
		EXPECT_EQ(j.sure, expected[n - 1]);
		EXPECT_EQ(j.answer, n < 3 ? HP_ANSWER_UNSURE : HP_ANSWER_YES);
	}
}

TEST(which_is_which_does_not_matter)
{
	double a[9], b[9];

	for (int round = 0; round < 200; round++) {
		for (int i = 0; i < 9; i++) {
			a[i] = 100 + (double)any(60);
			b[i] = 90 + (double)any(60);
		}
		const struct hp_comparison c = hp_compare(a, b, 9), d = hp_compare(b, a, 9);
		EXPECT(fabs(c.ratio * d.ratio - 1) < 1e-9);
		EXPECT(fabs(c.low * d.high - 1) < 1e-9);
		EXPECT_EQ(c.better, -d.better);
		EXPECT_EQ(c.sure, d.sure);
	}
}

TEST(noise_alone_is_seldom_called_a_difference)
{
	int sure = 0, likely = 0;

	runs(without, 1, 1, 0);
	runs(with, 1, 1, 0);
	for (int i = 0; i < 1000; i++) {
		for (int k = 0; k < 8; k++) {
			without[k].wall_s = 1 + (double)any(1000) / 3000;
			with[k].wall_s = 1 + (double)any(1000) / 3000;
		}
		const struct hp_measured m = measured(8);
		const struct hp_judgement j = hp_judge(&m);
		sure += j.times.wall.better && j.times.wall.sure == HP_SURE;
		likely += j.times.wall.better != 0;
	}
	EXPECT(sure <= 40); /* 2 % are expected */
	EXPECT(likely > 25 && likely <= 130); /* 10 % */
}

TEST(one_slow_run_changes_nothing)
{
	runs(without, 2, 2, 0.02);
	runs(with, 1, 1, 0.02);
	with[3].wall_s = 60;
	const struct hp_measured m = measured(8);
	const struct hp_judgement j = hp_judge(&m);
	EXPECT_EQ(j.answer, HP_ANSWER_YES);
	EXPECT_EQ(j.sure, HP_SURE);
	EXPECT(!j.times.wall.separate);
	EXPECT(j.times.wall.ratio > 1.9 && j.times.wall.ratio < 2.1);
}

TEST(the_most_rounds_can_be_compared)
{
	runs(without, 1.1, 1, 0.1);
	runs(with, 1, 1, 0.1);
	const struct hp_measured m = measured(HP_ROUNDS_MAX);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_YES);
	EXPECT_EQ(hp_judge(&m).sure, HP_SURE);
}

/* Sure: all of the interval lies beyond 2 %, or all of it within 4 %. */
TEST(an_interval_that_does_not_clear_two_per_cent_is_not_sure)
{
	static const struct {
		double from, step; /* of the runs of A; those of B take 1 */
		int better;
		enum hp_sure sure;
	} cases[] = {
		{ 1.021, 0.001, 1, HP_SURE },  { 0.999, 0.01, 0, HP_UNSURE }, { 1.0, 0.005, 0, HP_SURE },
		{ 1.0, 0.008, 0, HP_UNSURE },  { 0.97, 0.001, -1, HP_SURE },   { 0.979, 0.0004, 0, HP_SURE },
		{ 0.945, 0.0075, 0, HP_UNSURE },
	};

	for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
		double a[8], b[8];
		for (int i = 0; i < 8; i++) {
			a[i] = cases[k].from + i * cases[k].step;
			b[i] = 1;
		}
		const struct hp_comparison c = hp_compare(a, b, 8);
		if (!EXPECT_EQ(c.better, cases[k].better) || !EXPECT_EQ(c.sure, cases[k].sure))
			t_print("# case %zu: %g to %g\n", k, c.low, c.high);
	}
}

/* ------------------------------------------------------------------ judging */

TEST(a_gain_is_a_gain_in_five_lines)
{
	runs(without, 2.31, 2.2, 0.01);
	runs(with, 1.28, 1.2, 0.01);
	for (int i = 0; i < HP_ROUNDS_MAX; i++) {
		without[i].minor_faults = 131842;
		with[i].minor_faults = 412;
	}
	struct hp_measured m = measured(5);
	m.known = true;
	m.large_bytes = 940 << 20;
	m.other_bytes = 60 << 20;
	m.thp_bytes = 921 << 20;
	m.rss_bytes = 310 << 20;
	m.options = "--fork=cow ";
	EXPECT_EQ(say(&m), 5);
	SAYS(0, "use hugepin: yes, it is 1.80 times as fast: 2.310 s without, 1.280 s with (medians of 5 rounds each)");
	SAYS(1, "how sure: sure; each round with it took less than each round without it");
	SAYS(2, "why: 94 % of its memory is in large buffers, of that 98 % lay in hugepages; ");
	SAYS(2, "; page faults 131,842 -> 412");
	SAYS(3, "cost: memory of its largest process 300 MiB -> 310 MiB; processor time 2.200 s -> 1.200 s");
	EXPECT_STR(line[4], "how: hugepin run --fork=cow -- prog");
	/* Also of what gains by it. */
	strcpy(m.why, "the program touches little of its large buffers: 9 GiB were mapped in base pages");
	m.sparse = true;
	EXPECT_EQ(say(&m), 5);
	SAYS(2, "why: the program touches little of its large buffers: 9 GiB were mapped in base pages; page faults ");
}

TEST(who_is_stopped_by_forks_is_told_so_and_to_take_thp)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	struct hp_measured m = measured(5);
	m.fork_s = 0.049;
	EXPECT_EQ(say(&m), 5);
	EXPECT(!strstr(line[2], "fork"));
	EXPECT_STR(line[4], "how: hugepin run -- prog");
	m.fork_s = 0.564;
	EXPECT_EQ(say(&m), 5);
	SAYS(2, "; a fork stopped it for 0.564 s, since memory of the pool is copied for the child");
	EXPECT_STR(line[4], "how: hugepin run --pages=thp -- prog; forks do not copy THP");
	m.options = "--pages=hugetlb ";
	EXPECT_EQ(say(&m), 5);
	EXPECT_STR(line[4], "how: hugepin run --pages=hugetlb -- prog");
}

TEST(a_difference_that_is_sure_but_small_is_nothing_to_gain)
{
	runs(without, 1.01, 1, 0.001);
	runs(with, 1, 1, 0.001);
	struct hp_measured m = measured(5);
	m.known = true;
	m.other_bytes = 100 << 20;
	strcpy(m.why, "most memory is not malloc's");
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SAME);
	EXPECT_EQ(hp_judge(&m).sure, HP_SURE);
	EXPECT_EQ(say(&m), 4);
	SAYS(0, "use hugepin: no, nothing to gain: 1.0");
	SAYS(2, "why: most memory is not malloc's; page faults 1,000 -> 1,000");
	m.large_bytes = m.thp_bytes = 100 << 20;
	say(&m);
	SAYS(2, "why: its large buffers lay in hugepages, but page faults and TLB misses cost it little time; page");
	m.thp_bytes = 50 << 20;
	say(&m);
	SAYS(2, "why: most memory is not malloc's; ");
}

TEST(a_loss_is_a_loss)
{
	runs(without, 1, 1, 0.01);
	runs(with, 1.1, 1.1, 0.01);
	const struct hp_measured m = measured(5);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SLOWER);
	EXPECT_EQ(say(&m), 4);
	SAYS(0, "use hugepin: no, it takes 10 % more time: 1.000 s without");
	EXPECT(!strstr(line[2], "to load hugepin"));
	runs(without, 0.002, 0.001, 0.01);
	runs(with, 0.004, 0.001, 0.01);
	say(&m);
	SAYS(0, "use hugepin: no, it is 2.00 times as slow: 2.0 ms without, 4.0 ms with");
	SAYS(2, "why: it is short, and to load hugepin takes 2.0 ms of each start; ");
}

TEST(noise_that_hides_the_difference_is_told)
{
	runs(without, 1.04, 1.04, 0.5);
	runs(with, 1, 1, 0.5);
	struct hp_measured m = measured(5);
	for (int i = 0; i < 5; i++)
		with[i].minor_faults = 10;
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_UNSURE);
	EXPECT_EQ(say(&m), 4);
	SAYS(0, "use hugepin: cannot tell, rounds of the same program differ by 100 %, ");
	SAYS(0, " the medians by 3.8 %: 1.040 s without, ");
	EXPECT_STR(line[3], "how: hugepin check -n 25 -t 300 -- prog, when the machine does nothing else");
}

TEST(what_has_nothing_in_large_buffers_gains_nothing_even_if_the_times_do_not_tell)
{
	runs(without, 1.04, 1.04, 0.5);
	runs(with, 1, 1, 0.5);
	struct hp_measured m = measured(5);
	m.known = true;
	m.large_bytes = m.thp_bytes = 20 << 20;
	m.other_bytes = 500 << 20;
	strcpy(m.why, "most memory is not malloc's");
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SAME);
	EXPECT_EQ(hp_judge(&m).sure, HP_LIKELY);
	EXPECT_EQ(say(&m), 4);
	SAYS(0, "use hugepin: no, nothing to gain: 1.040 s without");
	SAYS(1, "how sure: likely, by its memory and faults; its times do not tell: equal rounds differ by 100 %");
	SAYS(2, "why: most memory is not malloc's; ");
	m.rounds = 1;
	m.large_bytes = m.thp_bytes = m.other_bytes = 4 << 20; /* half, but so little */
	EXPECT_EQ(say(&m), 4);
	SAYS(1, "by its memory and faults; there was time for one round");
	SAYS(2, "why: most memory is not malloc's; ");
	m.rounds = 5;
	m.large_bytes = m.thp_bytes = 20 << 20;
	m.other_bytes = 500 << 20;
	/* but times that tell are believed */
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_YES);
	runs(without, 1.04, 1.04, 0.5);
	runs(with, 1, 1, 0.5);
	/* and so are faults that go away, and large buffers that are there */
	for (int i = 0; i < 5; i++)
		with[i].minor_faults = 700;
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_UNSURE);
	runs(with, 1, 1, 0.5);
	m.large_bytes = 100 << 20;
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_UNSURE);
	/* a program that ended without a word */
	m.known = false;
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SAME);
	say(&m);
	SAYS(2, "why: its largest process has not told where its memory lay: it does not load hugepin (static, set-user-ID), "
		"or ends by _exit; page faults");
}

/* What is known of the memory decides which reason is named, and the verdict where the times (of 1 s, with it) do not tell. */
TEST(the_reason_is_what_the_program_has)
{
	enum { NOISE = 0, GAIN = 2, SAME = 1, LOSS = -2 };
	static const struct {
		int times; /* NOISE; or so many seconds without it */
		bool saves, known, sparse, silent, next; /* saves: faults; silent: no sentence of the heap's */
		uint64_t large, huge, other, image, rss; /* MiB */
		enum hp_answer answer;
		enum hp_why why;
	} cases[] = {
		{ GAIN, .saves = true, .known = true, .large = 90, .huge = 89, .other = 10, .answer = HP_ANSWER_YES, .why = HP_WHY_LARGE },
		{ SAME, .saves = true, .known = true, .large = 90, .huge = 89, .other = 10, .answer = HP_ANSWER_SAME, .why = HP_WHY_CHEAP },
		{ NOISE, .saves = true, .known = true, .large = 90, .huge = 89, .other = 10, .answer = HP_ANSWER_UNSURE, .why = HP_WHY_LARGE },
		/* Without hugepin it has 300 MiB. */
		{ LOSS, .saves = true, .known = true, .large = 602, .huge = 602, .answer = HP_ANSWER_SLOWER, .why = HP_WHY_ZEROS },
		{ LOSS, .saves = true, .known = true, .large = 600, .huge = 600, .answer = HP_ANSWER_SLOWER, .why = HP_WHY_LARGE },
		{ GAIN, .saves = true, .known = true, .large = 602, .huge = 602, .answer = HP_ANSWER_YES, .why = HP_WHY_LARGE },
		{ NOISE, .known = true, .large = 90, .huge = 9, .other = 10, .answer = HP_ANSWER_UNSURE, .why = HP_WHY_HEAP },
		{ NOISE, .known = true, .large = 90, .huge = 0, .other = 10, .answer = HP_ANSWER_SAME, .why = HP_WHY_HEAP },
		{ NOISE, .saves = true, .known = true, .large = 90, .other = 10, .answer = HP_ANSWER_UNSURE, .why = HP_WHY_HEAP },
		{ SAME, .known = true, .large = 1, .huge = 1, .other = 60, .answer = HP_ANSWER_SAME, .why = HP_WHY_HEAP },
		{ SAME, .known = true, .silent = true, .large = 1, .huge = 1, .other = 60, .answer = HP_ANSWER_SAME, .why = HP_WHY_LARGE },
		/* The image, and small buffers, are reasons for a gain alone. */
		{ GAIN, .saves = true, .known = true, .other = 130, .image = 128, .answer = HP_ANSWER_YES, .why = HP_WHY_IMAGE },
		{ SAME, .saves = true, .known = true, .other = 130, .image = 128, .answer = HP_ANSWER_SAME, .why = HP_WHY_HEAP },
		{ GAIN, .saves = true, .known = true, .large = 90, .huge = 90, .other = 130, .image = 128, .answer = HP_ANSWER_YES,
		  .why = HP_WHY_LARGE },
		{ GAIN, .known = true, .other = 60, .answer = HP_ANSWER_YES, .why = HP_WHY_SMALL },
		{ GAIN, .known = true, .next = true, .other = 60, .answer = HP_ANSWER_YES, .why = HP_WHY_LARGE },
		{ LOSS, .known = true, .other = 60, .answer = HP_ANSWER_SLOWER, .why = HP_WHY_HEAP },
		{ GAIN, .known = true, .sparse = true, .large = 90, .huge = 89, .answer = HP_ANSWER_YES, .why = HP_WHY_HEAP },
		/* What other processes tell does not count. */
		{ NOISE, .rss = 300, .other = 60, .answer = HP_ANSWER_SAME, .why = HP_WHY_NOT_TOLD },
		{ NOISE, .rss = 7, .other = 60, .answer = HP_ANSWER_SAME, .why = HP_WHY_TINY },
		{ NOISE, .rss = 300, .saves = true, .answer = HP_ANSWER_UNSURE, .why = HP_WHY_NOT_TOLD },
	};

	for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
		struct hp_measured m = measured(5);
		const double wall_s = cases[k].times == LOSS ? 0.5 : cases[k].times == NOISE ? 1.04 : cases[k].times;

		runs(without, wall_s, wall_s, cases[k].times ? 0.001 : 0.5);
		runs(with, 1, 1, cases[k].times ? 0.001 : 0.5);
		for (int i = 0; i < 5; i++) {
			with[i].rss_bytes = cases[k].rss << 20;
			with[i].minor_faults = cases[k].saves ? 500 : 1000;
		}
		m.known = cases[k].known;
		m.sparse = cases[k].sparse;
		m.small = cases[k].next ? NULL : "jemalloc";
		m.large_bytes = cases[k].large << 20;
		m.thp_bytes = cases[k].huge << 20;
		m.other_bytes = cases[k].other << 20;
		m.image_bytes = cases[k].image << 20;
		strcpy(m.why, cases[k].silent ? "" : "so it is");
		const struct hp_judgement j = hp_judge(&m);
		if (!EXPECT_EQ(j.answer, cases[k].answer) || !EXPECT_EQ(j.why, cases[k].why))
			t_print("# case %zu\n", k);
	}
}

TEST(a_gain_by_other_means_is_called_that)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	struct hp_measured m = measured(5);
	m.known = true;
	m.other_bytes = 60 << 20;
	m.small = "jemalloc";
	say(&m);
	SAYS(2, "why: few of its buffers are large, so it gains by jemalloc, which serves the small ones; page faults");
	EXPECT_STR(line[4], "how: hugepin run -- prog; another allocator may do: hugepin check --against=tunable,mimalloc compares");
	m.image_bytes = 128 << 20;
	say(&m);
	SAYS(2, "why: HUGEPIN_IMAGE asked for THP for 128 MiB of its own image; page faults");
	m.known = false;
	for (int i = 0; i < 5; i++)
		with[i].rss_bytes = 7 << 20;
	say(&m);
	SAYS(2, "why: its largest process has 7 MiB, too little to gain from hugepages; page faults");
}

TEST(zeros_that_nobody_asked_for_are_called_that)
{
	runs(without, 1, 1, 0.01);
	runs(with, 11, 11, 0.01);
	struct hp_measured m = measured(5);
	m.known = true;
	m.large_bytes = m.thp_bytes = (uint64_t)3 << 30;
	say(&m);
	SAYS(2, "why: it touches little of its large buffers: 3 GiB of hugepages were filled with zeros, and all of its memory "
		"without hugepin is 300 MiB; page faults");
}

TEST(one_round_tells_its_times_only)
{
	runs(without, 3, 1, 0);
	runs(with, 1, 1, 0);
	with[0].minor_faults = 10;
	const struct hp_measured m = measured(1);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_UNSURE);
	say(&m);
	SAYS(0, "cannot tell, there was time for one round: 3.000 s without, 1.000 s with (one round)");
}

TEST(processor_time_decides_where_time_does_not)
{
	runs(without, 1, 1, 0.005);
	runs(with, 1, 0.5, 0.005);
	struct hp_measured m = measured(5);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_YES);
	EXPECT(hp_judge(&m).times.by_cpu);
	say(&m);
	SAYS(0, "yes, it takes 50 % less processor time: 1.000 s without, 0.500 s with");
	SAYS(1, "; the time from start to end is the same");
	SAYS(3, "; time from start to end ");
	runs(with, 1, 2, 0.005);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SLOWER);
	/* but not against time that does */
	runs(with, 0.5, 2, 0.005);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_YES);
	EXPECT(!hp_judge(&m).times.by_cpu);
	/* and it helps where time is noise */
	runs(without, 1, 1, 0.9);
	runs(with, 1, 1, 0.9);
	for (int i = 0; i < 5; i++) {
		without[i].user_s = 1 + i * 0.001;
		with[i].user_s = 0.5 + i * 0.001;
		without[i].system_s = with[i].system_s = 0;
	}
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_YES);
	say(&m);
	SAYS(1, "; the time from start to end tells less, its rounds differ by ");
}

TEST(the_same_processor_time_is_nothing_to_gain_where_time_is_noise)
{
	runs(without, 1, 1, 0.9);
	runs(with, 1.1, 1, 0.9);
	for (int i = 0; i < 5; i++) {
		without[i].user_s = with[i].user_s = 1 + i * 0.001;
		without[i].system_s = with[i].system_s = 0;
	}
	const struct hp_measured m = measured(5);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SAME);
	say(&m);
	SAYS(0, "nothing to gain, by processor time: 1.002 s without, 1.002 s with");
	SAYS(1, "; the time from start to end tells less");
}

TEST(the_surer_of_the_two_decides)
{
	/* another program made the first runs without it longer */
	runs(without, 1, 0.9, 0.001);
	runs(with, 1, 0.9, 0.001);
	for (int i = 0; i < 5; i++) {
		without[i].wall_s = i < 3 ? 1.5 + i * 0.1 : 1.1 + i * 0.001;
		with[i].wall_s = i < 4 ? 1.0 + i * 0.0001 : 1.4;
	}
	const struct hp_measured m = measured(5);
	EXPECT_EQ(hp_judge(&m).times.wall.sure, HP_LIKELY);
	EXPECT_EQ(hp_judge(&m).times.cpu.sure, HP_SURE);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SAME);
}

TEST(processor_time_counts_only_where_there_is_much)
{
	runs(without, 1, 0.001, 0.005);
	runs(with, 1, 0.002, 0.005);
	const struct hp_measured m = measured(5);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SAME);
	EXPECT(!hp_judge(&m).times.by_cpu);
}

/* ------------------------------------------------------------------ failures */

TEST(what_fails_with_it_only_is_a_no)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	with[1].status = EXITED(3);
	struct hp_measured m = measured(2);
	m.tail = "first\nsecond\nthird\nfourth\nfifth";
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_BREAKS);
	EXPECT_EQ(hp_judge(&m).fails, HP_FAILS_WITH);
	EXPECT_EQ(hp_judge(&m).status, EXITED(3));
	EXPECT_EQ(say(&m), 4);
	EXPECT_STR(line[0], "use hugepin: no, prog fails with it: exit status 3, without it exit status 0");
	EXPECT_STR(line[1], "its output ended: third");
	EXPECT_STR(line[3], "its output ended: fifth");
	with[1].status = 11;
	m.tail = "";
	EXPECT_EQ(say(&m), 1);
	SAYS(0, "fails with it: killed by signal 11 (Segmentation fault), without");
}

TEST(a_run_that_is_not_timed_may_fail_too)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	struct hp_trial first = with[0];
	struct hp_measured m = measured(5);
	m.first = &first;
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_YES);
	first.status = 11;
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_BREAKS);
	EXPECT_EQ(hp_judge(&m).status, 11);
}

/* What a program does before it fails tells nothing about its work, however surely the times differ. */
TEST(what_fails_with_it_and_without_gets_no_verdict)
{
	runs(without, 2, 2, 0.01);
	runs(with, 2, 2, 0.01);
	for (int i = 0; i < 5; i++)
		without[i].status = with[i].status = EXITED(1);
	struct hp_measured m = measured(5);
	m.tail = "no such file";
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_FAILS);
	EXPECT_EQ(hp_judge(&m).fails, HP_FAILS_BOTH);
	EXPECT_EQ(hp_judge(&m).status, EXITED(1));
	EXPECT_EQ(say(&m), 3);
	EXPECT_STR(line[0], "use hugepin: cannot tell, prog fails, also without it: exit status 1");
	EXPECT_STR(line[1], "its output ended: no such file");
	EXPECT_STR(line[2], "how: if that is no failure, check a script that runs prog and exits with 0");
	for (int i = 0; i < 5; i++)
		without[i].status = with[i].status = 6;
	EXPECT_EQ(hp_judge(&m).fails, HP_FAILS_BOTH);
	EXPECT_EQ(say(&m), 2);
	EXPECT_STR(line[0], "use hugepin: cannot tell, prog fails, also without it: killed by signal 6 (Aborted)");
}

TEST(what_fails_without_it_cannot_be_judged)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	struct hp_measured m = measured(5);
	without[2].status = EXITED(4);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_FAILS);
	EXPECT_EQ(hp_judge(&m).fails, HP_FAILS_VARIES);
	say(&m);
	SAYS(0, "cannot tell, prog does not always end in the same way without it: exit status 4, and exit status 0");
	for (int i = 0; i < 5; i++)
		without[i].status = EXITED(4);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_FAILS);
	EXPECT_EQ(hp_judge(&m).fails, HP_FAILS_WITHOUT);
	say(&m);
	EXPECT_STR(line[0], "use hugepin: cannot tell, prog fails without it: exit status 4, with it exit status 0");
}

TEST(what_does_not_end_is_told_what_to_do)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	struct hp_measured m = measured(1);
	with[0].ended = false;
	m.limit_s = 2;
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_LONG);
	EXPECT_EQ(say(&m), 3);
	SAYS(0, "cannot tell, a run of prog takes longer than half of the 2.0 s that -t allows");
	SAYS(1, "hugepin check -t 20 -- prog");
	SAYS(2, "hugepin top, started by HUGEPIN_STATS=1 hugepin run -- prog");
}

TEST(processes_that_stay_behind_are_told)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	with[0].left = 2;
	const struct hp_measured m = measured(5);
	say(&m);
	SAYS(3, "; it left 2 processes running, which were not measured but ended");
}

TEST(a_machine_that_others_use_is_told)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	struct hp_measured m = measured(5);
	m.busy = 0.099;
	EXPECT_EQ(say(&m), 5);
	m.busy = 0.26;
	EXPECT_EQ(say(&m), 6);
	EXPECT_STR(line[4], "note: other programs took 26 % of the machine's processor time meanwhile");
	EXPECT_STR(line[5], "how: hugepin run -- prog");
}

TEST(what_stands_in_the_way_is_told)
{
	runs(without, 1, 1, 0.001);
	runs(with, 1, 1, 0.001);
	struct hp_measured m = measured(5);
	m.note = "prog has an allocator";
	EXPECT_EQ(say(&m), 5);
	EXPECT_STR(line[4], "note: prog has an allocator");
}

/* Memory and pages of the pool are those of one process in one run: medians of others do not count. */
TEST(memory_and_pool_are_of_one_run)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	struct hp_measured m = measured(5);
	m.known = true;
	m.rss_bytes = 20 << 20;
	m.hugetlb_bytes = m.large_bytes = 280 << 20;
	say(&m);
	SAYS(3, "cost: memory of its largest process 300 MiB -> 20 MiB, and 280 MiB of the pool; ");
}

/* ------------------------------------------------------------------ which pages */

TEST(the_better_kind_of_page_is_advised)
{
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	struct hp_measured m = measured(5);
	m.thp_rounds = 5;
	runs(pool, 1, 1, 0.01);
	runs(thp, 0.5, 1, 0.01);
	say(&m);
	SAYS(4, "how: hugepin run --pages=thp -- prog; it is 2.00 times as fast with THP instead of the pool");
	runs(thp, 1.1, 1, 0.01);
	say(&m);
	SAYS(4, "how: hugepin run -- prog; the pool gains: with --pages=thp it takes 10 % more time");
	runs(thp, 1, 1, 0.001);
	runs(pool, 1, 1, 0.001);
	say(&m);
	EXPECT_STR(line[4], "how: hugepin run -- prog; --pages=thp is as fast, and needs no pool");
	runs(thp, 1, 1, 0.9);
	runs(pool, 1, 1, 0.9);
	say(&m);
	EXPECT_STR(line[4], "how: hugepin run -- prog");
	for (int i = 0; i < 5; i++) {
		thp[i].user_s = 0.5 + i * 0.001;
		pool[i].user_s = 1 + i * 0.001;
		thp[i].system_s = pool[i].system_s = 0;
	}
	say(&m);
	SAYS(4, "how: hugepin run --pages=thp -- prog; it takes 50 % less processor time with THP instead of the pool");
}

TEST(long_names_do_not_overflow_a_line)
{
	static char name[4 * HP_SAY_SIZE];

	memset(name, 'x', sizeof name - 1);
	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	struct hp_measured m = measured(5);
	m.program = m.options = m.tail = name;
	for (int i = 0; i < 3; i++) {
		with[0].status = i == 1 ? EXITED(1) : 0;
		with[0].ended = i != 2;
		const unsigned lines = say(&m);
		EXPECT(lines >= 1 && lines <= HP_SAY_MAX);
		for (unsigned k = 0; k < HP_SAY_MAX; k++)
			EXPECT(strlen(line[k]) < HP_SAY_SIZE);
	}
}

T_MAIN
