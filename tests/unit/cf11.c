/* The policy of Li et al. 2011: contexts, periods, deadlines, both conditions at their boundaries, bounded memory. */
#include "reg/policy/cf11.h"

#include <stdlib.h>

#include "tests/t.h"

#define NEVER UINT64_MAX
#define MS UINT64_C(1000000)
enum { REG_NS = 16000, DEREG_NS = 6000, SITE = 7, OTHER_SITE = 8 };

static struct hp_cf11 *cf11;

/* 10 times as much for regions from 1000 up. */
static uint64_t cost(void *arg, uint32_t region, uint64_t bytes, bool registering)
{
	(void)arg, (void)bytes;
	return (uint64_t)(registering ? REG_NS : DEREG_NS) * (region < 1000 ? 1 : 10);
}

static void fresh_with(size_t memory)
{
	struct hp_plan_config config = { .policy = HP_PLAN_CF11, .budget = NEVER, .memory = memory, .cost_ns = cost };

	if (cf11)
		hp_cf11_free(cf11);
	cf11 = hp_cf11_new(&config);
	if (!cf11)
		_exit(2);
}

static void fresh(void)
{
	fresh_with(1 << 20);
}

static void use(uint32_t region, uint64_t site, uint64_t start_ns, uint64_t end_ns, bool hit)
{
	hp_cf11_start(cf11, region, 4096, site, start_ns, hit);
	if (!hit)
		hp_cf11_registered(cf11, region, start_ns);
	hp_cf11_end(cf11, region, end_ns);
}

static bool asks(uint64_t now_ns, int what, uint32_t region)
{
	struct hp_plan_step step = hp_cf11_next(cf11, now_ns);

	return (int)step.what == what && (what == HP_PLAN_WAIT || step.region == region);
}

static uint64_t waits_until(uint64_t now_ns)
{
	struct hp_plan_step step = hp_cf11_next(cf11, now_ns);

	return step.what == HP_PLAN_WAIT ? step.until_ns : 0;
}

/* What the helper is to do at once is done at once: how many steps. */
static int settle(uint64_t now_ns)
{
	int n = 0;

	for (struct hp_plan_step step; (step = hp_cf11_next(cf11, now_ns)).what != HP_PLAN_WAIT; n++) {
		if (step.what == HP_PLAN_REGISTER)
			hp_cf11_registered(cf11, step.region, now_ns);
		else
			hp_cf11_deregistered(cf11, step.region, now_ns);
	}
	return n;
}

/* Region used every period_ns at one site, n times from start_ns on, given back or kept as the policy likes. Returns
 * when the next would start. */
static uint64_t repeat(uint32_t region, uint64_t site, uint64_t start_ns, uint64_t period_ns, int n)
{
	for (; n--; start_ns += period_ns) {
		settle(start_ns);
		use(region, site, start_ns, start_ns + 1000, false);
	}
	return start_ns;
}

TEST(what_is_seen_first_is_given_back)
{
	fresh();
	EXPECT_EQ(waits_until(0), NEVER);
	hp_cf11_start(cf11, 1, 4096, SITE, 1000, false);
	hp_cf11_registered(cf11, 1, 2000);
	EXPECT_EQ(waits_until(2000), NEVER);
	hp_cf11_end(cf11, 1, 3000);
	EXPECT(asks(3000, HP_PLAN_DEREGISTER, 1));
	EXPECT(asks(3000, HP_PLAN_DEREGISTER, 1));
	hp_cf11_deregistered(cf11, 1, 9000);
	EXPECT_EQ(waits_until(9000), NEVER);
}

TEST(a_region_comes_back_before_its_deadline)
{
	uint64_t next, at;

	fresh();
	next = repeat(1, SITE, 0, MS, 6);
	EXPECT_EQ(settle(next - MS + 1000), 1);
	/* hash, cache, deregister, insert, register, update: one item in the queue, nothing registered */
	at = next - (HP_CF11_HASH_NS + 0 + DEREG_NS + HP_CF11_COMPARE_NS + REG_NS + HP_CF11_COMPARE_NS);
	EXPECT_EQ(waits_until(next - MS + 1000), at);
	EXPECT_EQ(waits_until(at - 1), at);
	EXPECT(asks(at, HP_PLAN_REGISTER, 1));
	hp_cf11_registered(cf11, 1, at + REG_NS);
	EXPECT_EQ(waits_until(at + REG_NS), NEVER);
	EXPECT_EQ(waits_until(next + MS), NEVER); /* and stays, though the use does not come */
}

TEST(it_is_given_back_if_there_is_time_to_the_nanosecond)
{
	uint64_t start, tp = DEREG_NS + REG_NS; /* the queue is empty: no insertion, no update */

	for (int late = 0; late < 2; late++) {
		fresh();
		start = repeat(1, SITE, 0, MS, 5);
		settle(start - MS + 1000);
		hp_cf11_start(cf11, 1, 4096, SITE, start, false);
		hp_cf11_registered(cf11, 1, start);
		hp_cf11_end(cf11, 1, start + MS - tp - 10);
		EXPECT(asks(start + MS - tp + (uint64_t)late, late ? HP_PLAN_WAIT : HP_PLAN_DEREGISTER, 1));
	}
}

TEST(a_share_of_a_core_is_counted_in_both_conditions)
{
	uint64_t next, lead = 200000, tp = DEREG_NS + REG_NS + lead;

	for (int late = 0; late < 2; late++) {
		fresh();
		next = repeat(1, SITE, 0, MS, 5);
		settle(next - MS + 1000);
		hp_cf11_set_lead(cf11, lead);
		EXPECT_EQ(waits_until(next - MS + 1000),
			  next - (HP_CF11_HASH_NS + tp + 2 * HP_CF11_COMPARE_NS));
		hp_cf11_start(cf11, 1, 4096, SITE, next, false);
		hp_cf11_registered(cf11, 1, next);
		settle(next);
		hp_cf11_end(cf11, 1, next + MS - tp - 10);
		EXPECT(asks(next + MS - tp + (uint64_t)late, late ? HP_PLAN_WAIT : HP_PLAN_DEREGISTER, 1));
	}
}

TEST(the_shortest_period_counts)
{
	uint64_t t;

	fresh();
	t = repeat(1, SITE, 0, 10 * MS, 4);
	t = repeat(1, SITE, t, 3 * MS, 3); /* the first of them still after 10 ms */
	t = repeat(1, SITE, t + 7 * MS, 20 * MS, 3);
	t -= 20 * MS; /* the last start */
	settle(t + 1000);
	EXPECT(waits_until(t + 1000) < t + 3 * MS && waits_until(t + 1000) > t + 3 * MS - 100000);
}

TEST(a_call_sites_period_depends_on_what_was_called_before)
{
	uint64_t t = 0, late, soon;

	/* 1 1 2, over and over: after itself, region 1 is used again soon, after region 2 late. */
	fresh();
	for (int i = 0; i < 8; i++, t += 100 * MS) {
		settle(t);
		use(1, SITE, t, t + 1000, false);
		settle(t + 1000);
		use(1, SITE, t + 5 * MS, t + 5 * MS + 1000, false);
		settle(t + 5 * MS + 1000);
		use(2, SITE, t + 50 * MS, t + 50 * MS + 1000, false);
		settle(t + 50 * MS + 1000);
	}
	settle(t);
	use(1, SITE, t, t + 1000, false);
	settle(t + 1000);
	soon = waits_until(t + 1000);
	use(1, SITE, t + 5 * MS, t + 5 * MS + 1000, false);
	settle(t + 50 * MS);
	settle(t + 51 * MS);
	late = waits_until(t + 51 * MS);
	EXPECT(soon > t + 4 * MS && soon < t + 5 * MS);
	EXPECT(late > t + 99 * MS && late < t + 100 * MS);
}

TEST(call_sites_of_a_region_have_deadlines_of_their_own)
{
	uint64_t t = 0;

	fresh();
	for (int i = 0; i < 6; i++, t += 100 * MS) {
		settle(t);
		use(1, SITE, t, t + 1000, false);
		settle(t + 30 * MS);
		use(1, OTHER_SITE, t + 30 * MS, t + 30 * MS + 1000, false);
		settle(t + 30 * MS + 1000);
	}
	/* After the one, the other's comes first, though both have a period of 100 ms. */
	settle(t);
	use(1, SITE, t, t + 1000, false);
	settle(t + 1000);
	EXPECT(waits_until(t + 1000) > t + 29 * MS && waits_until(t + 1000) < t + 30 * MS);
	settle(t + 30 * MS);
	use(1, OTHER_SITE, t + 30 * MS, t + 30 * MS + 1000, false);
	settle(t + 30 * MS + 1000);
	EXPECT(waits_until(t + 31 * MS) > t + 99 * MS && waits_until(t + 31 * MS) < t + 100 * MS);
}

TEST(a_deadline_that_has_passed_counts_no_more)
{
	uint64_t next;

	fresh();
	next = repeat(1, SITE, 0, MS, 6);
	settle(next - MS + 1000);
	EXPECT_EQ(settle(next), 1); /* it is registered, and not used */
	next += 10 * MS;
	use(1, OTHER_SITE, next, next + 1000, true);
	EXPECT(asks(next + 1000, HP_PLAN_DEREGISTER, 1));
}

TEST(deadlines_that_meet_are_drawn_apart)
{
	uint64_t t = 0, at, last = 0;
	enum { REGIONS = 10 };

	fresh();
	for (int i = 0; i < 6; i++, t += 10 * MS) {
		settle(t);
		for (uint32_t r = 1; r <= REGIONS; r++)
			hp_cf11_start(cf11, r, 4096, SITE, t, false);
		for (uint32_t r = 1; r <= REGIONS; r++) {
			hp_cf11_registered(cf11, r, t);
			hp_cf11_end(cf11, r, t + 1000);
		}
		settle(t + 1000);
	}
	/* Each is begun when the one before it is there, and the last is there in time. */
	for (uint32_t n = 0; n < REGIONS; n++) {
		at = waits_until(t - 9 * MS);
		EXPECT(at < t - REG_NS);
		EXPECT(!last || at >= last + DEREG_NS + REG_NS);
		last = at;
		struct hp_plan_step step = hp_cf11_next(cf11, at);
		EXPECT_EQ(step.what, HP_PLAN_REGISTER);
		hp_cf11_registered(cf11, step.region, at);
	}
	EXPECT_EQ(waits_until(t), NEVER);
}

TEST(a_long_registration_draws_only_those_before_it_earlier)
{
	uint64_t t = 0, first, second;

	fresh();
	for (int i = 0; i < 6; i++, t += 10 * MS) {
		settle(t);
		use(1, SITE, t, t + 1000, false);
		use(1000, SITE, t + 100000, t + 101000, false); /* takes 220 us */
		settle(t + 101000);
	}
	first = waits_until(t - 9 * MS);
	EXPECT(first < t - 110000);
	EXPECT(asks(first, HP_PLAN_REGISTER, 1));
	hp_cf11_registered(cf11, 1, first + REG_NS);
	second = waits_until(first + REG_NS);
	EXPECT(second >= first + REG_NS && second < t + 100000 - 10 * REG_NS);
	EXPECT(asks(second, HP_PLAN_REGISTER, 1000));
}

TEST(what_is_in_use_is_left_alone)
{
	fresh();
	hp_cf11_start(cf11, 1, 4096, SITE, 0, false);
	hp_cf11_registered(cf11, 1, 10);
	hp_cf11_start(cf11, 1, 4096, SITE, 20, true);
	hp_cf11_end(cf11, 1, 30);
	EXPECT(asks(30, HP_PLAN_WAIT, 0));
	EXPECT_EQ(hp_cf11_victim(cf11, 30), 0);
	hp_cf11_end(cf11, 1, 40);
	EXPECT(asks(40, HP_PLAN_DEREGISTER, 1));
	EXPECT_EQ(hp_cf11_victim(cf11, 40), 1);
	hp_cf11_start(cf11, 1, 4096, SITE, 50, true); /* before the helper came to it */
	EXPECT(asks(60, HP_PLAN_WAIT, 0));
}

TEST(what_cannot_be_done_is_not_asked_for_again)
{
	uint64_t next;

	fresh();
	next = repeat(1, SITE, 0, MS, 6);
	settle(next - MS + 1000);
	EXPECT(asks(next, HP_PLAN_REGISTER, 1));
	hp_cf11_failed(cf11, 1, next);
	EXPECT_EQ(waits_until(next + 1), NEVER);
	use(1, SITE, next + 10, next + 20, false);
	EXPECT(asks(next + 30, HP_PLAN_DEREGISTER, 1));
	hp_cf11_failed(cf11, 1, next + 30);
	EXPECT(asks(next + 40, HP_PLAN_WAIT, 0));

	/* Nor by another of its deadlines: every 100 ms, and then every 2 ms. */
	fresh();
	next = repeat(1, SITE, 0, 100 * MS, 6);
	settle(next - 99 * MS);
	repeat(1, OTHER_SITE, next - 90 * MS, 2 * MS, 5);
	settle(next - 82 * MS + 1000);
	EXPECT(asks(next - 80 * MS, HP_PLAN_REGISTER, 1));
	hp_cf11_failed(cf11, 1, next - 80 * MS);
	EXPECT(waits_until(next - 70 * MS) < next); /* there is another */
	EXPECT_EQ(waits_until(next), NEVER);
}

TEST(the_queues_take_turns)
{
	uint64_t next;

	fresh();
	next = repeat(1, SITE, 0, MS, 6);
	settle(next - MS + 1000);
	use(2, SITE, next - 100, next - 90, false);
	use(3, SITE, next - 80, next - 70, false);
	int registered_at = -1;
	for (int i = 0; i < 3; i++) {
		struct hp_plan_step step = hp_cf11_next(cf11, next);
		if (step.what == HP_PLAN_REGISTER) {
			registered_at = i;
			hp_cf11_registered(cf11, step.region, next);
		} else {
			hp_cf11_deregistered(cf11, step.region, next);
		}
	}
	EXPECT(registered_at == 0 || registered_at == 1);
	EXPECT(asks(next, HP_PLAN_WAIT, 0));
}

TEST(the_newest_finished_uses_overwrite_the_oldest)
{
	int n;

	fresh();
	for (uint32_t r = 1; r <= HP_CF11_DONE_MAX + 10; r++)
		use(r, SITE, r * 10, r * 10 + 5, false);
	EXPECT(asks(10000, HP_PLAN_DEREGISTER, 11));
	n = settle(10000);
	EXPECT_EQ(n, HP_CF11_DONE_MAX);
}

TEST(who_goes_for_others_is_needed_last)
{
	uint64_t t = 0;

	fresh();
	for (int i = 0; i < 4; i++, t += 100 * MS)
		for (uint32_t r = 1; r <= 3; r++) {
			use(r, SITE, t + r * MS, t + r * MS + 10, false);
			hp_cf11_next(cf11, t + r * MS + 10); /* learns, and is not obeyed */
			hp_cf11_failed(cf11, r, t + r * MS + 10);
		}
	EXPECT_EQ(hp_cf11_victim(cf11, t), 3);
	use(9, SITE, t, t + 1, false); /* nothing is known of it */
	EXPECT_EQ(hp_cf11_victim(cf11, t + 2), 9);
	hp_cf11_deregistered(cf11, 9, t + 3);
	hp_cf11_deregistered(cf11, 3, t + 3);
	EXPECT_EQ(hp_cf11_victim(cf11, t + 4), 2);
	use(21, SITE, t + 10, t + 11, false); /* of two that nothing is known of, the one idle longer */
	use(20, SITE, t + 12, t + 13, false);
	EXPECT_EQ(hp_cf11_victim(cf11, t + 14), 21);
}

TEST(a_forgotten_region_is_a_new_one)
{
	uint64_t next;

	fresh();
	next = repeat(1, SITE, 0, MS, 6);
	settle(next - MS + 1000);
	hp_cf11_forget(cf11, 1);
	EXPECT_EQ(waits_until(next), NEVER);
	use(1, SITE, next, next + 10, false);
	hp_cf11_forget(cf11, 1); /* with a finished use in the queue */
	EXPECT_EQ(waits_until(next + 20), NEVER);
	hp_cf11_start(cf11, 1, 4096, SITE, next + 30, true);
	hp_cf11_forget(cf11, 1); /* in use */
	hp_cf11_end(cf11, 1, next + 40);
	EXPECT_EQ(waits_until(next + 50), NEVER);
	EXPECT_EQ(hp_cf11_victim(cf11, next + 50), 0);
}

TEST(a_time_before_the_last_counts_as_that)
{
	fresh();
	use(1, SITE, 1000, 2000, false);
	use(2, SITE, 500, 400, false);
	EXPECT_EQ(hp_cf11_victim(cf11, 0), 1); /* both ended at 2000 */
	EXPECT_EQ(settle(300), 2);
}

/* Random events, as many regions as asked for; what was answered, in one number. Every answer can be obeyed. */
static uint64_t churn(uint32_t regions, int events)
{
	unsigned char *registered = calloc(regions + 1, 1), *uses = calloc(regions + 1, 1);
	uint64_t state = 88172645463325252, hash = 0, now = 0;
	uint32_t active[8] = { 0 }; /* ends when so many others have started */

	for (int i = 0; i < events; i++) {
		struct hp_plan_step step;
		uint32_t r;

		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		r = 1 + (uint32_t)(state >> 20) % regions;
		now += state % 5000;
		hp_cf11_start(cf11, r, 4096, state % 3, now, registered[r]);
		if (!registered[r])
			hp_cf11_registered(cf11, r, now);
		registered[r] = 1;
		uses[r]++;
		uint32_t ends = active[i % 8];
		active[i % 8] = r;
		if (ends) {
			uses[ends]--;
			hp_cf11_end(cf11, ends, now);
		}
		if (ends && state % 97 == 0 && !uses[ends]) {
			hp_cf11_forget(cf11, ends);
			registered[ends] = 0;
		}
		step = hp_cf11_next(cf11, now);
		hash = hash * 31 + (uint64_t)step.what * 7 + (step.what == HP_PLAN_WAIT ? step.until_ns : step.region);
		if (step.what == HP_PLAN_WAIT) {
			EXPECT(step.until_ns > now);
			continue;
		}
		if (!EXPECT(step.region && step.region <= regions && !uses[step.region]) ||
		    !EXPECT_EQ(registered[step.region], step.what == HP_PLAN_DEREGISTER))
			break;
		if (state % 11 == 0) {
			hp_cf11_failed(cf11, step.region, now);
			continue;
		}
		registered[step.region] = step.what == HP_PLAN_REGISTER;
		if (step.what == HP_PLAN_REGISTER)
			hp_cf11_registered(cf11, step.region, now);
		else
			hp_cf11_deregistered(cf11, step.region, now);
	}
	free(registered);
	free(uses);
	return hash;
}

TEST(the_same_events_have_the_same_answers)
{
	uint64_t first;

	fresh();
	first = churn(50, 200000);
	fresh();
	EXPECT(churn(50, 200000) == first);
}

TEST(many_regions_do_in_little_memory)
{
	struct hp_plan_stats stats;

	fresh_with(HP_PLAN_MEMORY_MIN);
	churn(100000, 500000);
	hp_cf11_stats(cf11, &stats);
	EXPECT(stats.memory <= HP_PLAN_MEMORY_MIN);
	EXPECT(stats.forgotten > 400000);
	EXPECT(stats.regions > 100 && stats.regions < 1000);

	fresh_with(4 << 20);
	churn(100000, 200000);
	hp_cf11_stats(cf11, &stats);
	EXPECT(stats.memory <= 4 << 20);
	EXPECT(stats.regions > 10000);
}

T_MAIN
