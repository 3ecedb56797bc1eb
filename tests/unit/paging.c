/*
 * The cost model of paging: the example of hugepin_odp(7), cases computed by hand, what holds for every buffer, and a
 * second program of the formulas.
 */
#include "reg/policy/paging.h"

#include "tests/rnd.h"
#include "tests/t.h"

static bool near(double a, double b)
{
	double apart = a > b ? a - b : b - a, size = b < 0 ? -b : b;

	return apart <= 1 + 1e-5 * size;
}

#define EXPECT_NEAR(a, b)                                                              \
	do {                                                                           \
		double near_a = (a), near_b = (b);                                     \
		if (!near(near_a, near_b))                                             \
			T_FAIL("%s is %.3f, not near %s, %.3f", #a, near_a, #b, near_b); \
	} while (0)

/* The device of the example. */
static const struct hp_paging_terms example = {
	.pin = { 20000, 25000 },
	.unpin = { 10000, 1000 },
	.demand = { 30000, 2000 },
	.bring = { 20000, 18000 },
	.fault_ns = { 40000, 86000 },
};

/* Its buffer: 64 pages, sent every 10 ms, half of it out of memory each time. */
static const struct hp_paging_use buffer = {
	.pages = 64,
	.side = HP_PAGING_SENDS,
	.announced_ns = 4000,
	.habits = { .uses = 8, .looks = 8, .waits = 8, .gap_ns = 10e6f, .gone = 0.5f, .foreseen = 1, .slack_ns = 2e6f },
};

/* Whether the page of the manual has the figure, as it prints it. */
static bool is_in_page(const char *format, double figure)
{
	static char page[1 << 16];
	char text[64];
	FILE *f = fopen("man/hugepin_odp.7", "r");

	if (!EXPECT(f))
		return false;
	page[fread(page, 1, sizeof page - 1, f)] = 0;
	fclose(f);
	snprintf(text, sizeof text, format, figure);
	return strstr(page, text) || T_FAIL("hugepin_odp(7) has no \"%s\"", text);
}

TEST(the_page_hugepin_odp_has_these_figures)
{
	struct hp_paging_use u = buffer;

	is_in_page("= %.1f us\nq * a", hp_paging_fault_ns(&example, &u) / 1000);
	is_in_page("T_bring = max(0, 586 - 2000) + 58.6  =   %.1f us\n", hp_paging_bring_ns(&example, &u) / 1000);
	is_in_page("T_pin   = max(0, 1852 - 2000) + 185.2 = %.1f us\n", hp_paging_pin_ns(&example, &u) / 1000);
	u.habits.foreseen = 0;
	is_in_page("would be 582 + 58.6 = %.1f us.\n", hp_paging_bring_ns(&example, &u) / 1000);
	is_in_page("that would save %.1f ns.\n", hp_paging_saving(&example, &u));
}

TEST(the_example_is_computed_by_hand)
{
	struct hp_paging_use u = buffer;

	/* Turning it: 20 + 64 * 25, 10 + 64 * 1, 30 + 64 * 2 us. Bringing it in: half of 20 + 64 * 18 us. */
	EXPECT_NEAR(hp_paging_fault_ns(&example, &u), 1280000);
	EXPECT_NEAR(hp_paging_bring_ns(&example, &u), 58600);
	EXPECT(!hp_paging_is_hot(&example, &u));
	EXPECT_NEAR(hp_paging_pin_ns(&example, &u), 185200);
	EXPECT_EQ(hp_paging_choose(&example, &u, UINT64_MAX), HP_PAGING_BRING);

	/* Nobody sees it coming: all but the 4 us after its announcement is waited for. */
	u.habits.foreseen = 0;
	EXPECT_NEAR(hp_paging_bring_ns(&example, &u), 640600);
	EXPECT(hp_paging_is_hot(&example, &u));
	EXPECT_NEAR(hp_paging_pin_ns(&example, &u), 0);
	EXPECT_EQ(hp_paging_choose(&example, &u, UINT64_MAX), HP_PAGING_PIN);
	EXPECT_NEAR(hp_paging_saving(&example, &u), 244.3695);
	EXPECT_EQ(hp_paging_choose(&example, &u, 64 * 4096 - 1), HP_PAGING_BRING);

	/* It stays in memory: it costs nothing on demand. */
	u.habits.gone = 0;
	EXPECT_NEAR(hp_paging_fault_ns(&example, &u), 0);
	EXPECT_EQ(hp_paging_choose(&example, &u, UINT64_MAX), HP_PAGING_BRING);
}

TEST(the_receiver_waits_longer_for_a_fault)
{
	struct hp_paging_use u = buffer;

	u.side = HP_PAGING_RECEIVES;
	EXPECT_NEAR(hp_paging_fault_ns(&example, &u), 2752000);
}

TEST(where_faults_are_cheaper_than_the_call_nothing_is_brought_in)
{
	static const struct hp_paging_terms t = { .bring = { 5000, 100 }, .fault_ns = { 1000, 1000 } };
	struct hp_paging_use u = { .pages = 1, .habits = { .looks = 8, .waits = 8, .gap_ns = 1e9f, .gone = 1 } };

	EXPECT_EQ(hp_paging_choose(&t, &u, 0), HP_PAGING_LEAVE);
	u.pages = 10; /* 6 us once, or 10 times 1 us */
	EXPECT_EQ(hp_paging_choose(&t, &u, 0), HP_PAGING_BRING);
}

TEST(a_short_gap_makes_a_buffer_hot)
{
	struct hp_paging_use u = buffer;
	/* twice what turning it takes: 1620 + 74 + 158 us */
	const double even_ns = 2 * 1852000;

	u.habits.gap_ns = (float)(even_ns + 2000);
	EXPECT(!hp_paging_is_hot(&example, &u));
	u.habits.gap_ns = (float)(even_ns - 2000);
	EXPECT(hp_paging_is_hot(&example, &u));
}

TEST(a_buffer_that_was_always_pinned_is_taken_to_be_foreseen)
{
	struct hp_paging_use u = buffer;

	u.habits.waits = 0;
	u.habits.foreseen = 0;
	u.habits.slack_ns = 0;
	EXPECT(!hp_paging_is_hot(&example, &u));
	u.habits.waits = 1;
	EXPECT(hp_paging_is_hot(&example, &u));
}

TEST(a_buffer_without_history_is_pinned_while_there_is_room)
{
	struct hp_paging_use u = { .pages = 64 };

	EXPECT_EQ(hp_paging_choose(&hp_paging_defaults, &u, 64 * 4096), HP_PAGING_PIN);
	EXPECT_EQ(hp_paging_choose(&hp_paging_defaults, &u, 64 * 4096 - 1), HP_PAGING_BRING);
}

TEST(the_better_buffer_gets_the_room_if_that_pays_back)
{
	struct hp_paging_use hot = buffer, cold = buffer;

	hot.stays = cold.stays = true;
	hot.habits.gap_ns = 5e6f;
	EXPECT(hp_paging_displaces(&example, &hot, &example, &cold, 0));
	EXPECT(!hp_paging_displaces(&example, &cold, &example, &hot, 0));
	EXPECT(!hp_paging_displaces(&example, &hot, &example, &hot, 0));
	/* A little better does not pay for two turns: 16 gaps would save 16 * 58.6 us * 1 %. */
	hot.habits.gap_ns = 9.9e6f;
	EXPECT(!hp_paging_displaces(&example, &hot, &example, &cold, 0));
	/* But it does if the other one has not been used for long: half of that is its gap. */
	EXPECT(!hp_paging_displaces(&example, &hot, &example, &cold, 20000000));
	EXPECT(hp_paging_displaces(&example, &hot, &example, &cold, 1000000000));
	cold.habits = (struct hp_paging_habits){ 0 }; /* used once */
	EXPECT(!hp_paging_displaces(&example, &hot, &example, &cold, 0));
	EXPECT(hp_paging_displaces(&example, &hot, &example, &cold, 1000000000));
	/* What is never out of memory needs no room. */
	hot.habits.gap_ns = 5e6f;
	hot.habits.gone = 0;
	EXPECT(!hp_paging_displaces(&example, &hot, &example, &cold, 0));
}

TEST(habits_follow_the_last_uses)
{
	struct hp_paging_habits h = { 0 };

	hp_paging_learn_use(&h, 1000);
	EXPECT_NEAR((double)h.gap_ns, 1000);
	hp_paging_learn_use(&h, 3000);
	EXPECT_NEAR((double)h.gap_ns, 2000);
	for (int i = 0; i < 100; i++)
		hp_paging_learn_use(&h, 500000);
	EXPECT((double)h.gap_ns > 490000);

	hp_paging_learn_gone(&h, 3, 4);
	EXPECT_NEAR((double)h.gone * 100, 75);
	hp_paging_learn_gone(&h, 0, 0);
	EXPECT((double)h.gone < 0.38);

	hp_paging_learn_slack(&h, false, 0);
	EXPECT_NEAR((double)h.foreseen, 0);
	hp_paging_learn_slack(&h, true, 80000);
	EXPECT_NEAR((double)h.foreseen * 100, 50);
	EXPECT_NEAR((double)h.slack_ns, 80000);
	hp_paging_learn_slack(&h, true, 160000); /* more slack is believed slowly */
	EXPECT_NEAR((double)h.slack_ns, 90000);
	hp_paging_learn_slack(&h, true, 10000); /* less at once */
	EXPECT_NEAR((double)h.slack_ns, 50000);
}

/* ------------------------------------------------------------------ a second program of the formulas */

static double at(const struct hp_paging_line *l, double n)
{
	return l->fixed_ns + n * l->page_ns;
}

static double beyond(double work, double slack)
{
	return work > slack ? work - slack : 0;
}

static struct hp_paging_line some_line(void)
{
	return (struct hp_paging_line){ (double)rnd(100000), (double)rnd(30000) };
}

TEST(random_buffers_agree_with_the_formulas)
{
	for (int i = 0; i < 20000; i++) {
		const struct hp_paging_terms t = { some_line(),
						   some_line(),
						   some_line(),
						   some_line(),
						   { (double)rnd(100000), (double)rnd(100000) } };
		const struct hp_paging_use u = { .pages = (double)(1 + rnd(1000)),
						 .side = (int)rnd(2),
						 .announced_ns = (double)rnd(100000),
						 .stays = rnd(2),
						 .habits = { 1 + (uint32_t)rnd(8), 1 + (uint32_t)rnd(8),
							     1 + (uint32_t)rnd(8), (float)(1 + rnd(100000000)),
							     (float)rnd(5) / 4, (float)rnd(5) / 4,
							     (float)rnd(10000000) } };
		double q = (double)u.habits.gone, c = (double)u.habits.foreseen, s = (double)u.habits.slack_ns;
		double gap = (double)u.habits.gap_ns, s0 = u.announced_ns, p = u.pages;
		double turn = at(&t.pin, p) + at(&t.unpin, p) + at(&t.demand, p), work = q * at(&t.bring, p);
		double waits = c * beyond(work, s) + (1 - c) * beyond(work, s0);
		double bring = waits + work / 10, fault = q * t.fault_ns[u.side] * p;
		bool hot = gap < 2 * turn || waits > gap / 200;
		double pin = u.stays || hot ? 0 : c * beyond(turn, s) + (1 - c) * beyond(turn, s0) + turn / 10;
		double least = bring < fault ? bring : fault;
		uint64_t room = rnd(2000) * 4096;
		enum hp_paging_way way = hp_paging_choose(&t, &u, room);

		EXPECT_EQ(hp_paging_is_hot(&t, &u), hot);
		EXPECT_NEAR(hp_paging_pin_ns(&t, &u), pin);
		EXPECT_NEAR(hp_paging_fault_ns(&t, &u), fault);
		EXPECT_NEAR(hp_paging_bring_ns(&t, &u), bring);
		EXPECT_NEAR(hp_paging_saving(&t, &u), (least - pin) / gap * 1e9 / (p * 4096));
		EXPECT(way != HP_PAGING_PIN || (p * 4096 <= (double)room && pin < least));
		EXPECT(way != HP_PAGING_LEAVE || fault < bring);
		EXPECT(way != HP_PAGING_BRING || bring <= fault);
		EXPECT(way == HP_PAGING_PIN || pin >= least || p * 4096 > (double)room);
	}
}

T_MAIN
