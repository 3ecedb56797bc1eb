/*
 * Guesses against a naive model that compares the uses themselves, in all of the past; what is forgotten, and in how
 * much memory; and what the errors' tables say.
 */
#include <limits.h>
#include <stdlib.h>

#include "reg/policy/predict.h"
#include "tests/rnd.h"
#include "tests/t.h"

enum { LENGTH = 1500, REGIONS = 4, EVENTS = 2 * LENGTH, NEED_NS = 200, MORE_NS = 100 };

static struct hp_predict predict;
static void fresh(size_t bytes)
{
	static void *memory;

	free(memory);
	bytes = hp_predict_size(bytes);
	memory = calloc(1, bytes);
	hp_predict_init(&predict, memory, bytes);
}

/* ------------------------------------------------------------------ the naive model */

static struct {
	unsigned symbol[LENGTH + 1], region[LENGTH + 1]; /* of the uses, from 1 up */
	uint64_t time[LENGTH + 1];
	unsigned uses;
	struct {
		unsigned use, ends; /* the last use then, and how many had ended since */
		uint64_t time;
	} event[EVENTS + 1];
	unsigned events;
} naive;

static bool same_context(unsigned a, unsigned b, unsigned length)
{
	if (a < length || b < length)
		return false;
	for (unsigned i = 0; i < length; i++)
		if (naive.symbol[a - i] != naive.symbol[b - i])
			return false;
	return true;
}

/* The use that is the turn of use u, seen from use `since` on: so many uses after that. 0: there is none. */
static unsigned naive_turn(unsigned since, unsigned u)
{
	for (unsigned n = 1; n <= 8 && u - n > since; n++)
		if (naive.time[u] - naive.time[u - n] >= NEED_NS + n * MORE_NS)
			return u - n - since;
	return 0;
}

static unsigned naive_samples(unsigned region, unsigned length, uint64_t *samples, unsigned *ret_turn, bool *ret_none)
{
	unsigned n = 0, seen = 0, without = 0;

	*ret_turn = UINT_MAX;

	for (unsigned e = naive.events - 1; e && seen < HP_PREDICT_SAMPLES; e--) {
		if (naive.event[e].ends != naive.event[naive.events].ends ||
		    !same_context(naive.event[e].use, naive.uses, length))
			continue;
		seen++;
		unsigned u = naive.event[e].use + 1;
		while (u <= naive.uses && naive.region[u] != region)
			u++;
		if (u > naive.uses) {
			without++;
			continue;
		}
		samples[n++] = naive.time[u] - naive.event[e].time;
		unsigned turn = naive_turn(naive.event[e].use, u);
		*ret_turn = turn < *ret_turn ? turn : *ret_turn;
	}
	*ret_none = without >= 4;
	return n;
}

/* The time between the region's last two uses, from the later one on. */
static uint64_t naive_period(unsigned region, unsigned *ret_turn)
{
	unsigned u = naive.uses - 1;
	uint64_t next;

	while (u && naive.region[u] != region)
		u--;
	next = 2 * naive.time[naive.uses] - naive.time[u];
	if (!u || naive.region[naive.uses] != region || next <= naive.event[naive.events].time)
		return 0;
	*ret_turn = naive_turn(u, naive.uses);
	return next - naive.event[naive.events].time;
}

static bool naive_guess(unsigned region, unsigned samples_min, uint64_t *ret_low, uint64_t *ret_high,
			unsigned *ret_samples, unsigned *ret_turn)
{
	uint64_t samples[HP_PREDICT_SAMPLES], low = 0, high = 0;
	unsigned best = 0, turn;
	bool none;

	for (unsigned length = 512; length && best < samples_min; length /= 2) {
		unsigned n = naive_samples(region, length, samples, &turn, &none);
		if (none)
			break;
		if (!n || (best && n < samples_min))
			continue;
		best = n;
		*ret_turn = turn;
		low = high = samples[0];
		for (unsigned i = 1; i < n; i++) {
			low = samples[i] < low ? samples[i] : low;
			high = samples[i] > high ? samples[i] : high;
		}
	}
	if (!best)
		low = high = naive_period(region, ret_turn);
	*ret_low = low ? low : 1;
	*ret_high = high ? high : 1;
	*ret_samples = best;
	return best > 0 || low > 0;
}

static void naive_event(uint64_t now)
{
	bool again = naive.events && naive.event[naive.events].use == naive.uses;
	unsigned ends = again ? naive.event[naive.events].ends + 1 : 0;

	naive.events++;
	naive.event[naive.events].use = naive.uses;
	naive.event[naive.events].ends = ends;
	naive.event[naive.events].time = now;
}

/* ------------------------------------------------------------------ guesses */

static unsigned compared, differed, expected, turns;

static void compare(uint32_t *chains)
{
	for (unsigned r = 0; r < REGIONS; r++) {
		struct hp_predict_guess guess = { 0 };
		uint64_t low, high;
		unsigned samples, turn = 0, min = 2 + r % 2;
		bool said = hp_predict_next(&predict, chains[r], min, NEED_NS, MORE_NS, &guess);
		bool truth = naive_guess(r, min, &low, &high, &samples, &turn);
		compared++;
		expected += truth;
		differed += said != truth || (truth && (guess.low_ns != low || guess.high_ns != high ||
							guess.samples != samples || guess.turn != turn));
		turns += guess.turn > 0;
	}
}

/* A program with loops in loops, and steps that are taken at random. */
static void play(bool loops)
{
	uint32_t chains[REGIONS];
	uint64_t now = 1000;

	for (unsigned r = 0; r < REGIONS; r++)
		chains[r] = HP_PREDICT_NONE;
	memset(&naive, 0, sizeof naive);
	compared = differed = expected = turns = 0;
	for (unsigned i = 0; i < LENGTH; i++) {
		unsigned region = loops && rnd(60) ? (i % 23 < 15 ? i % 2 : 2 + i % 23 / 20) : (unsigned)rnd(REGIONS);
		unsigned site = loops ? i % 23 == 5 : (unsigned)rnd(2);
		naive.uses++;
		naive.symbol[naive.uses] = region * 2 + site;
		naive.region[naive.uses] = region;
		naive.time[naive.uses] = now += 1 + rnd(1000);
		naive_event(now);
		hp_predict_start(&predict, region, site, now, &chains[region]);
		if (i % 7 == 0)
			compare(chains);
		if (rnd(20) == 0) /* it ends after the next has begun */
			continue;
		naive_event(now += 1 + rnd(100));
		hp_predict_end(&predict, now);
		if (i % 7 == 3)
			compare(chains);
	}
}

TEST(guesses_are_what_comparing_all_of_the_past_says)
{
	for (unsigned run = 1; run < 4; run++) {
		seed = run;
		fresh((size_t)4 << 20);
		play(true);
		EXPECT_EQ(differed, 0);
		EXPECT(expected > compared / 2);
		EXPECT(turns > expected / 8 && turns < expected);
		EXPECT_EQ(predict.forgotten, 0);
	}
}

TEST(guesses_among_random_uses_are_right_too)
{
	for (unsigned run = 1; run < 3; run++) {
		seed = run;
		fresh((size_t)4 << 20);
		play(false);
		EXPECT_EQ(differed, 0);
	}
}

/* Each guess may follow so many links, or the schedule gives up the others (reg/policy/schedule.c). */
TEST(the_way_back_to_a_use_long_ago_takes_few_links)
{
	enum { RUN = 1000, RUNS = 6 };
	uint32_t chains[2] = { HP_PREDICT_NONE, HP_PREDICT_NONE };
	struct hp_predict_guess guess = { 0 };
	uint64_t now = 0;

	fresh((size_t)4 << 20);
	for (int i = 0; i <= RUN * RUNS; i++) { /* one region once, the other all the time, and so on */
		const unsigned region = i % RUN != 0;
		hp_predict_start(&predict, region, 0, now += 10, &chains[region]);
	}
	EXPECT(hp_predict_next(&predict, chains[1], 2, 0, 0, &guess));
	EXPECT_EQ(guess.low_ns, 10);
	EXPECT_EQ(guess.samples, RUNS - 1);
	EXPECT(predict.steps < RUNS * 40);
}

TEST(followers_are_those_of_the_last_time)
{
	uint32_t chains[5] = { HP_PREDICT_NONE, HP_PREDICT_NONE, HP_PREDICT_NONE, HP_PREDICT_NONE, HP_PREDICT_NONE };
	uint32_t followers[3];

	fresh((size_t)1 << 20);
	for (unsigned i = 0; i < 52; i++)
		hp_predict_start(&predict, i % 5, 0, i * 100, &chains[i % 5]);
	EXPECT_EQ(hp_predict_followers(&predict, followers, 3), 3);
	EXPECT_EQ(followers[0], 2);
	EXPECT_EQ(followers[1], 3);
	EXPECT_EQ(followers[2], 4);
}

/* ------------------------------------------------------------------ forgetting */

/* How often the last 2^level uses are known to have occurred. */
static unsigned known(unsigned level)
{
	return predict.match[level] ? predict.match[level]->count : 0;
}

TEST(contexts_never_seen_again_are_forgotten_first)
{
	uint32_t chains[8];
	uint64_t now = 0;

	for (unsigned i = 0; i < 8; i++)
		chains[i] = HP_PREDICT_NONE;
	fresh((size_t)256 << 10);
	for (unsigned i = 0; i < 400; i++)
		hp_predict_start(&predict, i % 8, 0, now += 1000, &chains[i % 8]);
	EXPECT_EQ(predict.forgotten, 0);
	for (uint32_t i = 0; i < 50000; i++) {
		uint32_t chain = HP_PREDICT_NONE;
		hp_predict_start(&predict, 100 + i, 0, now += 1000, &chain);
	}
	EXPECT(predict.forgotten > 10000);
	EXPECT(predict.used <= predict.sets * 4);
	unsigned kept = 0;
	for (unsigned i = 0; i < 8; i++) {
		hp_predict_start(&predict, i, 0, now += 1000, &chains[i]);
		kept += known(0) >= 50;
		if (i)
			EXPECT(!known(1) || known(1) >= 49);
	}
	EXPECT_EQ(kept, 8);
}

TEST(uses_that_never_repeat_leave_one_context_each)
{
	fresh((size_t)4 << 20);
	for (uint32_t i = 0; i < 2000; i++) {
		uint32_t chain = HP_PREDICT_NONE;
		hp_predict_start(&predict, i, 0, i * 1000, &chain);
	}
	EXPECT_EQ(predict.used, 1999); /* the last is remembered when the next comes */
}

TEST(numbers_that_wrap_do_no_harm)
{
	seed = 9;
	fresh((size_t)1 << 20);
	uint32_t chains[REGIONS] = { HP_PREDICT_NONE, HP_PREDICT_NONE, HP_PREDICT_NONE, HP_PREDICT_NONE };
	predict.starts = predict.events = UINT32_MAX - 150;
	struct hp_predict_guess guess = { 0 };
	for (unsigned i = 0; i < 400; i++) {
		unsigned region = i % REGIONS;
		hp_predict_start(&predict, region, 0, 1000 + i * 1000, &chains[region]);
		if (i > 300) {
			EXPECT(hp_predict_next(&predict, chains[(i + 1) % REGIONS], 3, 1, 0, &guess));
			EXPECT_EQ(guess.low_ns, 1000);
			EXPECT_EQ(guess.turn, 0); /* it is the very next one */
		}
	}
}

/* ------------------------------------------------------------------ errors */

TEST(the_margin_follows_the_errors_seen)
{
	float margin = 0;

	fresh((size_t)1 << 20);
	hp_predict_margin(&predict, 40, 1, 1000, &margin);
	EXPECT(margin < .5f); /* nothing is known, and a miss is dear */
	for (int i = 0; i < 1000; i++)
		hp_predict_score(&predict, 40, .96f + (float)(i % 5) * .02f);
	float exact = hp_predict_margin(&predict, 40, 1, 10, &margin);
	EXPECT(margin > .94f && margin < .96f);
	for (int i = 0; i < 1000; i++)
		hp_predict_score(&predict, 40, .55f + (float)(i % 5) * .4f);
	float vague = hp_predict_margin(&predict, 40, 1, 10, &margin);
	EXPECT(margin > .4f && margin < .6f);
	EXPECT(vague > exact);
	hp_predict_margin(&predict, 41, 1, 1000, &margin);
	EXPECT(margin < .5f); /* another kind has errors of its own */
	for (int i = 0; i < 1000; i++)
		hp_predict_score(&predict, 64, .96f + (float)(i % 5) * .02f);
	hp_predict_margin(&predict, 52, 1, 10, &margin);
	EXPECT(margin > .94f && margin < .96f); /* another length of that kind begins with what the kind has seen */
}

/* Of regions used one after the other, with a pause after the last. */
TEST(a_turn_is_the_use_before_if_that_leaves_time_else_an_earlier_one)
{
	uint32_t chains[4] = { HP_PREDICT_NONE, HP_PREDICT_NONE, HP_PREDICT_NONE, HP_PREDICT_NONE };
	struct hp_predict_guess guess;
	uint64_t now = 0;

	fresh((size_t)1 << 20);
	for (unsigned i = 0; i < 40; i++)
		hp_predict_start(&predict, i % 4, 0, now += i % 4 ? 1000 : 50000, &chains[i % 4]);
	for (unsigned leaves = 1; leaves <= 3; leaves++) {
		EXPECT(hp_predict_next(&predict, chains[3], 3, leaves * 1000, 0, &guess));
		EXPECT_EQ(guess.turn, 4 - leaves);
		EXPECT_EQ(guess.before, 3 - leaves);
		EXPECT_EQ(guess.turn_ns, leaves * 1000);
	}
	EXPECT(hp_predict_next(&predict, chains[3], 3, 3001, 0, &guess));
	EXPECT_EQ(guess.turn, 0);
	EXPECT(hp_predict_next(&predict, chains[3], 3, 1000, 1000, &guess)); /* each between takes its time, too */
	EXPECT_EQ(guess.turn, 0);
	EXPECT(hp_predict_next(&predict, chains[0], 3, 1000, 0, &guess)); /* the next of all */
	EXPECT_EQ(guess.turn, 0);
}

TEST(turns_that_did_not_come_are_learnt)
{
	fresh((size_t)1 << 20);
	float at_first = hp_predict_disorder(&predict, 40);
	EXPECT(at_first < .01f);
	for (int i = 0; i < 10; i++)
		hp_predict_score_turn(&predict, 40, false);
	EXPECT(hp_predict_disorder(&predict, 40) > .3f);
	EXPECT(hp_predict_disorder(&predict, 43) == at_first); /* guesses from more samples have a share of their own */
	for (int i = 0; i < 1000; i++)
		hp_predict_score_turn(&predict, 40, true);
	EXPECT(hp_predict_disorder(&predict, 40) < .01f);
}

T_MAIN
