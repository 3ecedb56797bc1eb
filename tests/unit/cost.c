/*
 * The cost model against costs that are known: lines, curves, noise, outliers, the ends of the scale.
 */
#include "reg/policy/cost.h"

#include "base/base.h"
#include "tests/rnd.h"
#include "tests/t.h"

/* [4 KiB, 64 MiB), as many small as large ones, in base pages. */
static uint64_t some_bytes(void)
{
	uint64_t floor = UINT64_C(4096) << rnd(14);

	return (floor + rnd(floor)) & ~UINT64_C(4095);
}

static uint64_t line(uint64_t bytes)
{
	return 5000 + bytes / 4096 * 300;
}

/* Six times as steep from 256 KiB on, and half as steep again from 8 MiB on, in the middle of a class. */
static uint64_t curve(uint64_t bytes)
{
	uint64_t ns = 1000 + bytes / 4096 * 20;

	if (bytes > 256 * KIB)
		ns += (bytes - 256 * KIB) / 4096 * 110;
	if (bytes > 8 * MIB)
		ns += (bytes - 8 * MIB) / 4096 * 65;
	return ns;
}

static bool within(uint64_t a, uint64_t b, unsigned percent)
{
	return (a > b ? a - b : b - a) * 100 <= b * percent;
}

#define EXPECT_NEAR(a, b, percent)                                                                                     \
	do {                                                                                                           \
		uint64_t near_a = (a), near_b = (b);                                                                   \
		if (!within(near_a, near_b, percent))                                                                  \
			T_FAIL("%s is %llu, not near %llu", #a, (unsigned long long)near_a,                            \
			       (unsigned long long)near_b);                                                            \
	} while (0)

TEST(at_first_the_published_figures_hold)
{
	static const struct hp_cost c;

	for (unsigned b = 0; b < HP_COST_BACKINGS; b++) {
		EXPECT_NEAR(hp_cost_ns(&c, b, 4 * KIB, HP_COST_REGISTER), 16000 + 246, 1);
		EXPECT_NEAR(hp_cost_ns(&c, b, 100 * MIB, HP_COST_REGISTER), 16000 + 6291456, 1);
		EXPECT_NEAR(hp_cost_ns(&c, b, 100 * MIB, HP_COST_DEREGISTER), 6400 + 2516582, 1);
	}
	EXPECT_EQ(hp_cost_error_permille(&c), 0);
}

TEST(kinds_are_learnt_apart_and_one_unseen_is_scaled_like_another)
{
	struct hp_cost c = {0};

	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, 100 * MIB, HP_COST_ON_DEMAND), 6400 + 2516582, 1);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, 100 * MIB, HP_COST_BRING_IN), 16000 + 6291456, 1);
	for (int i = 0; i < 100; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 10 * (16000 + 62914));
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_BRING_IN), 10 * (16000 + 62914), 1);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_ON_DEMAND), 4 * (16000 + 62914), 1);
	for (int i = 0; i < 100; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_BRING_IN, 5000);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_BRING_IN), 5000, 1);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER), 10 * (16000 + 62914), 1);
}

TEST(a_device_that_was_measured_begins_with_that_on_base_pages)
{
	struct hp_cost c = { 0 };

	hp_cost_begin(&c, HP_COST_BRING_IN, 32000, 17000);
	hp_cost_begin(&c, HP_COST_DEREGISTER, 0, 0); /* not measured */
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_BRING_IN), 32000 + MIB / hp_base_page * 17000, 1);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_HUGETLB, MIB, HP_COST_BRING_IN), 16000 + 62914, 1);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_DEREGISTER), 6400 + 25166, 1);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER), 16000 + 62914, 1);
	/* another kind does not scale it, but what is learnt of the same */
	for (int i = 0; i < 100; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 2 * (16000 + 62914));
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_BRING_IN), 32000 + MIB / hp_base_page * 17000, 1);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_DEREGISTER), 2 * (6400 + 25166), 1);
	for (int i = 0; i < 100; i++)
		hp_cost_learn(&c, HP_COST_BASE, 16 * MIB, HP_COST_BRING_IN, 2 * (32000 + 16 * MIB / hp_base_page * 17000));
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_BRING_IN), 2 * (32000 + MIB / hp_base_page * 17000), 1);
	for (int i = 0; i < 100; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_BRING_IN, 256 * 1000);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_BRING_IN), 256 * 1000, 1);
}

TEST(a_line_is_learnt)
{
	struct hp_cost c = {0};
	uint64_t bytes = 0;

	seed = 1;
	for (int i = 0; i < 1000; i++) {
		bytes = some_bytes();
		hp_cost_learn(&c, HP_COST_BASE, bytes, HP_COST_REGISTER, line(bytes));
	}
	for (int i = 0; i < 1000; i++) {
		bytes = some_bytes();
		EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, bytes, HP_COST_REGISTER), line(bytes), 3);
	}
	struct hp_cost_fit fit = {0};

	EXPECT(hp_cost_fit(&c, HP_COST_BASE, 4, HP_COST_REGISTER, &fit)); /* 1 MiB to 4 MiB */
	EXPECT_NEAR((uint64_t)fit.page_ns, 300 * hp_base_page / 4096, 2);
	EXPECT(fit.count > 10 && fit.count < 1000);
	EXPECT(!hp_cost_fit(&c, HP_COST_BASE, 15, HP_COST_REGISTER, &fit));
}

TEST(one_operation_brings_its_like_and_its_neighbours_near)
{
	struct hp_cost c = {0};

	hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 30000); /* guessed: 79 us */
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER), 30000, 0);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, 2 * MIB, HP_COST_REGISTER), 30000 * 142 / 79, 2);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, 64 * MIB, HP_COST_REGISTER), 30000 * 4042 / 79, 2);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, 4 * KIB, HP_COST_REGISTER), 30000 * 16 / 79, 5);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_DEREGISTER), 12000,
		    1); /* as for registering, in proportion */
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_THP, MIB, HP_COST_REGISTER), 78914, 1); /* unknown yet */
}

TEST(between_two_classes_seen_the_nearer_says_more)
{
	struct hp_cost c = {0};
	uint64_t at_1m, at_64m, unit;

	hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 2 * 78914);
	hp_cost_learn(&c, HP_COST_BASE, 64 * MIB, HP_COST_REGISTER, 4042533 / 2);
	unit = 16000 + 4 * 62915; /* 4 MiB, as guessed: one class up of three */
	at_1m = hp_cost_ns(&c, HP_COST_BASE, 4 * MIB, HP_COST_REGISTER);
	EXPECT_NEAR(at_1m, unit * 3 / 2, 1);
	unit = 16000 + 16 * 62915;
	at_64m = hp_cost_ns(&c, HP_COST_BASE, 16 * MIB, HP_COST_REGISTER);
	EXPECT_NEAR(at_64m, unit, 1);
}

TEST(backings_and_directions_are_apart)
{
	struct hp_cost c = {0};

	seed = 2;
	for (int i = 0; i < 3000; i++) {
		uint64_t bytes = some_bytes();

		hp_cost_learn(&c, HP_COST_BASE, bytes, HP_COST_REGISTER, line(bytes));
		hp_cost_learn(&c, HP_COST_BASE, bytes, HP_COST_DEREGISTER, line(bytes) / 5);
		hp_cost_learn(&c, HP_COST_HUGETLB, bytes, HP_COST_REGISTER, 3000 + bytes / 100000);
	}
	for (int i = 0; i < 1000; i++) {
		uint64_t bytes = some_bytes();

		EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, bytes, HP_COST_REGISTER), line(bytes), 3);
		EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, bytes, HP_COST_DEREGISTER), line(bytes) / 5, 3);
		EXPECT_NEAR(hp_cost_ns(&c, HP_COST_HUGETLB, bytes, HP_COST_REGISTER), 3000 + bytes / 100000, 3);
	}
}

TEST(a_curve_is_learnt_class_by_class)
{
	struct hp_cost c = {0};

	seed = 3;
	for (int i = 0; i < 3000; i++) {
		uint64_t bytes = some_bytes();

		hp_cost_learn(&c, HP_COST_BASE, bytes, HP_COST_REGISTER, curve(bytes));
	}
	for (int i = 0; i < 1000; i++) {
		uint64_t bytes = some_bytes();

		EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, bytes, HP_COST_REGISTER), curve(bytes), 25);
	}
	EXPECT(hp_cost_error_permille(&c) < 100);
}

TEST(noise_is_averaged)
{
	struct hp_cost c = {0};

	seed = 4;
	for (int i = 0; i < 3000; i++) {
		uint64_t bytes = some_bytes();

		hp_cost_learn(&c, HP_COST_BASE, bytes, HP_COST_REGISTER, line(bytes) * (80 + rnd(41)) / 100);
	}
	for (int i = 0; i < 1000; i++) {
		uint64_t bytes = some_bytes();

		EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, bytes, HP_COST_REGISTER), line(bytes), 15);
	}
	/* 12 % is what noise like that leaves. */
	EXPECT(hp_cost_error_permille(&c) > 60 && hp_cost_error_permille(&c) < 180);
}

TEST(a_lost_processor_does_not_spoil_it)
{
	struct hp_cost c = {0};

	seed = 5;
	for (int i = 0; i < 5000; i++) {
		uint64_t bytes = some_bytes();

		hp_cost_learn(&c, HP_COST_BASE, bytes, HP_COST_REGISTER, line(bytes) + (rnd(50) ? 0 : 40000000));
		if (i < 500)
			continue;
		bytes = some_bytes();
		EXPECT(hp_cost_ns(&c, HP_COST_BASE, bytes, HP_COST_REGISTER) < 2 * line(bytes));
		EXPECT(hp_cost_ns(&c, HP_COST_BASE, bytes, HP_COST_REGISTER) > line(bytes) / 2);
	}
}

TEST(one_alone_that_takes_too_long_changes_nothing)
{
	struct hp_cost c = {0};
	uint64_t before;

	for (int i = 0; i < 10; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, line(MIB));
	before = hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER);
	hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 10 * line(MIB));
	EXPECT_EQ(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER), before);
	hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, line(MIB));
	hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 10 * line(MIB));
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER), before, 1);
	hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 10 * line(MIB)); /* and again: so be it */
	EXPECT(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER) > before * 11 / 10);
	for (int i = 0; i < 30; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 10 * line(MIB));
	EXPECT(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER) > before * 5);
}

TEST(the_first_of_all_may_be_an_outlier)
{
	struct hp_cost c = {0};

	hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 1000000000);
	for (int i = 0; i < 200; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, line(MIB));
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER), line(MIB), 2);
}

TEST(what_is_dearer_than_guessed_is_learnt_in_a_few)
{
	struct hp_cost c = {0};
	uint64_t real = 100 * 78914;

	for (int i = 0; i < 12; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, real);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER), real, 40);
	for (int i = 0; i < 200; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, real);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER), real, 1);
}

TEST(a_change_is_followed_and_the_old_forgotten)
{
	struct hp_cost c = {0};

	for (int i = 0; i < 100000; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB + rnd(2 * MIB), HP_COST_REGISTER, 100000);
	for (int i = 0; i < 150; i++)
		hp_cost_learn(&c, HP_COST_BASE, MIB + rnd(2 * MIB), HP_COST_REGISTER, 40000);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, 2 * MIB, HP_COST_REGISTER), 40000, 3);
}

TEST(one_size_says_nothing_of_the_slope)
{
	struct hp_cost c = {0};
	struct hp_cost_fit fit = {0};

	for (int i = 0; i < 1000; i++)
		hp_cost_learn(&c, HP_COST_THP, 2 * MIB, HP_COST_REGISTER, 141829); /* as guessed */
	EXPECT(hp_cost_fit(&c, HP_COST_THP, 4, HP_COST_REGISTER, &fit));
	EXPECT_NEAR((uint64_t)fit.fixed_ns, 16000, 1);
	EXPECT_NEAR((uint64_t)fit.page_ns, 125829, 1);
	EXPECT_EQ(fit.count, 1000);
}

TEST(nothing_is_negative_or_overflows)
{
	static const uint64_t sizes[] = {
		0,	   1, 4095, 4096, 16383, 16384, MIB, UINT64_C(1) << 44, UINT64_C(1) << 62, UINT64_C(1) << 63,
		UINT64_MAX};
	enum { SIZES = sizeof sizes / sizeof *sizes };
	static const uint64_t times[] = {0, 1, 1000, UINT64_C(1) << 40, UINT64_C(1) << 63, UINT64_MAX};

	seed = 6;
	for (int round = 0; round < 50; round++) {
		struct hp_cost c = {0};

		for (int i = 0; i < 500; i++) {
			unsigned b = (unsigned)rnd(HP_COST_BACKINGS);
			bool registering = rnd(2);
			uint64_t ns = times[rnd(6)];

			hp_cost_learn(&c, b, sizes[rnd(SIZES)], registering, ns);
			ns = hp_cost_ns(&c, b, sizes[rnd(SIZES)], registering);
			EXPECT(ns >= 1 && ns <= UINT64_C(1) << 62);
			EXPECT(hp_cost_error_permille(&c) <= UINT64_C(1) << 62);
		}
		EXPECT(c.error == c.error);
	}
}

TEST(a_falling_curve_never_goes_below_an_eighth_of_its_mean)
{
	struct hp_cost c = {0};

	for (int i = 0; i < 200; i++) {
		hp_cost_learn(&c, HP_COST_BASE, 7 * MIB / 2, HP_COST_REGISTER,
			      1000000); /* steep: the line is below 0 at 1 MiB */
		hp_cost_learn(&c, HP_COST_BASE, 3 * MIB, HP_COST_REGISTER, 500000);
	}
	EXPECT(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER) >= 700000 / 8);
	EXPECT(hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER) < 200000);
}

TEST(no_bytes_cost_what_they_cost)
{
	struct hp_cost c = {0};

	hp_cost_learn(&c, HP_COST_BASE, 0, HP_COST_REGISTER, 1000);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, 0, HP_COST_REGISTER), 1000, 0);
	EXPECT_NEAR(hp_cost_ns(&c, HP_COST_BASE, 8 * KIB, HP_COST_REGISTER), 1030, 1);
}

TEST(more_is_never_cheaper_within_a_class)
{
	struct hp_cost c = {0};

	for (int i = 0; i < 50; i++) {
		hp_cost_learn(&c, HP_COST_BASE, 3 * MIB, HP_COST_REGISTER, 500000);
		hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 700000);
	}
	EXPECT(hp_cost_ns(&c, HP_COST_BASE, 3 * MIB, HP_COST_REGISTER) >=
	       hp_cost_ns(&c, HP_COST_BASE, MIB, HP_COST_REGISTER));
}

TEST(the_error_is_that_of_predictions_made_before)
{
	struct hp_cost c = {0};

	hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 39457); /* half the guess */
	EXPECT_NEAR(hp_cost_error_permille(&c), 1000, 1);
	hp_cost_learn(&c, HP_COST_BASE, MIB, HP_COST_REGISTER, 39457);
	EXPECT_NEAR(hp_cost_error_permille(&c), 500, 1);
}

T_MAIN
