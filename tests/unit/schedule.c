/*
 * The plan that predicts, in virtual time: what programs of a few shapes miss and have registered, with one helper;
 * and under random events, right and wrong ones, that nothing is asked for that cannot be.
 */
#include <stdlib.h>

#include "reg/policy/schedule.h"
#include "tests/rnd.h"
#include "tests/t.h"

enum { NUMBERS = 1 << 20, US = 1000, MS = 1000000 };

static uint64_t cost_ns(void *arg, uint32_t region, uint64_t bytes, bool registering)
{
	(void)arg, (void)region;
	uint64_t ns = 16 * US + bytes * 6 / 100;
	return registering ? ns : ns * 2 / 5;
}

/* ------------------------------------------------------------------ a world with one program and one helper */

static struct {
	struct hp_schedule *plan;
	uint64_t now, busy_until;
	struct hp_plan_step doing; /* by the helper, until then */
	uint64_t bytes, budget; /* registered, also what is on its way */
	uint64_t bytes_max;
	double area, area_pinned; /* bytes x ns, and with nothing ever released */
	unsigned misses, reuses, releases;
	uint64_t asked; /* hash of all steps */
} world;
static uint64_t size_of[NUMBERS];
static bool registered[NUMBERS], seen[NUMBERS];
static unsigned in_use[NUMBERS];
static uint64_t pinned_bytes, heard_ns;

static struct hp_schedule *plan(enum hp_plan_mode mode, uint64_t budget, size_t memory)
{
	struct hp_plan_config config = { HP_PLAN_PREDICT, mode, budget, memory, cost_ns, NULL, heard_ns };
	return hp_schedule_new(&config);
}

static void fresh(enum hp_plan_mode mode, uint64_t budget)
{
	hp_schedule_free(world.plan);
	memset(&world, 0, sizeof world);
	memset(registered, 0, sizeof registered);
	memset(seen, 0, sizeof seen);
	memset(in_use, 0, sizeof in_use);
	pinned_bytes = 0;
	seed = 1;
	world.budget = budget;
	world.plan = plan(mode, budget, (size_t)4 << 20);
}

static void to(uint64_t now)
{
	if (now <= world.now) /* what the helper did while the program waited for itself */
		return;
	world.area += (double)world.bytes * (double)(now - world.now);
	world.area_pinned += (double)pinned_bytes * (double)(now - world.now);
	world.now = now;
}

static void register_at_once(uint32_t r)
{
	EXPECT(!registered[r]);
	world.bytes += size_of[r];
	world.bytes_max = world.bytes > world.bytes_max ? world.bytes : world.bytes_max;
}

static void finish_step(void)
{
	uint32_t r = world.doing.region;

	if (world.doing.what == HP_PLAN_REGISTER) {
		registered[r] = true;
		hp_schedule_registered(world.plan, r, world.now);
	} else if (world.doing.what == HP_PLAN_DEREGISTER) {
		world.bytes -= size_of[r];
		hp_schedule_deregistered(world.plan, r, world.now);
	}
	world.doing.what = HP_PLAN_WAIT;
}

/* The helper works until then. */
static void run(uint64_t until)
{
	for (;;) {
		if (world.doing.what != HP_PLAN_WAIT) {
			if (world.busy_until > until)
				break;
			to(world.busy_until);
			finish_step();
		}
		struct hp_plan_step step = hp_schedule_next(world.plan, world.now);
		world.asked = (world.asked ^ step.region ^ step.what ^ world.now) * 0x9e3779b97f4a7c15u;
		if (step.what == HP_PLAN_WAIT) {
			EXPECT(step.until_ns > world.now);
			if (step.until_ns > until)
				break;
			to(step.until_ns);
			continue;
		}
		world.doing = step;
		uint32_t r = step.region;
		world.busy_until = world.now + cost_ns(NULL, r, size_of[r], step.what == HP_PLAN_REGISTER);
		EXPECT_EQ(in_use[r], 0);
		EXPECT_EQ(registered[r], step.what == HP_PLAN_DEREGISTER);
		if (step.what == HP_PLAN_DEREGISTER) {
			registered[r] = false;
			world.releases++;
		} else {
			register_at_once(r);
			EXPECT(world.bytes <= world.budget);
		}
	}
	if (until > world.now)
		to(until);
}

static void start(uint32_t r, uint64_t bytes, uint64_t site)
{
	bool wait = world.doing.what != HP_PLAN_WAIT && world.doing.region == r, hit = registered[r] && !wait;

	size_of[r] = bytes;
	pinned_bytes += seen[r] ? 0 : bytes;
	world.reuses += seen[r];
	world.misses += seen[r] && !hit;
	seen[r] = true;
	in_use[r]++;
	hp_schedule_start(world.plan, r, bytes, site, world.now, hit);
	if (wait || (!hit && world.bytes + bytes > world.budget && world.doing.what != HP_PLAN_WAIT)) {
		to(world.busy_until);
		finish_step();
	}
	if (!registered[r]) {
		while (world.bytes + bytes > world.budget) {
			uint32_t victim = hp_schedule_victim(world.plan, world.now);
			if (!EXPECT(victim && registered[victim] && !in_use[victim]))
				break;
			registered[victim] = false;
			world.bytes -= size_of[victim];
			hp_schedule_deregistered(world.plan, victim, world.now);
		}
		register_at_once(r);
		registered[r] = true;
		to(world.now + cost_ns(NULL, r, bytes, true));
		hp_schedule_registered(world.plan, r, world.now);
	}
}

static void end(uint32_t r)
{
	in_use[r]--;
	hp_schedule_end(world.plan, r, world.now);
}

static uint64_t jitter(uint64_t ns, unsigned percent)
{
	return ns + rnd(2 * ns * percent / 100 + 1) - ns * percent / 100;
}

/* Compute, then use for 100 us. */
static void use_bytes(uint32_t r, uint64_t bytes, uint64_t compute_ns)
{
	run(world.now + compute_ns);
	start(r, bytes, r);
	run(world.now + 100 * US);
	end(r);
}

static void use(uint32_t r, uint64_t compute_ns)
{
	use_bytes(r, 1 << 20, compute_ns);
}

static double share(void)
{
	return world.area / world.area_pinned;
}

/* Besides one for each region at its second use. */
static unsigned allowed(unsigned regions)
{
	return world.reuses / 200 + regions;
}

/* ------------------------------------------------------------------ shapes of programs */

TEST(a_periodic_region_is_released_after_a_few_uses_and_back_before_each)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 100; i++) {
		use(1, 50 * MS);
		if (i == 8)
			EXPECT(world.releases > 0);
		if (i == 20)
			world.area = world.area_pinned = 0;
	}
	EXPECT_EQ(world.misses, 1); /* its second use */
	EXPECT(share() < .15);
}

TEST(with_jitter_it_is_back_in_time_too)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 400; i++)
		use(1, jitter(50 * MS, 5));
	EXPECT(world.misses <= 2);
	EXPECT(share() < .25);
}

TEST(regions_used_back_to_back_are_registered_one_after_another_in_time)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 60; i++)
		for (uint32_t r = 1; r <= 20; r++)
			use_bytes(r, 8 << 20, r == 1 ? 100 * MS : 0); /* registering takes 519 us */
	EXPECT(world.releases > 600);
	EXPECT(world.misses <= 20 + 5);
	EXPECT(share() < .4);
}

TEST(buffers_that_alternate_are_told_apart)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 200; i++) {
		use(1 + i % 2, jitter(20 * MS, 1));
		use(1 + i % 2, jitter(MS, 1));
	}
	EXPECT(world.misses <= 2 + 1);
	EXPECT(share() < .2);
}

TEST(an_inner_loop_ends_without_a_miss_and_the_outer_gap_is_used)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned outer = 0; outer < 40; outer++)
		for (unsigned i = 0; i < 20; i++)
			use(1 + i / 10, jitter(5 * MS, 2));
	EXPECT(world.misses <= allowed(2));
	EXPECT(share() < .6);
}

TEST(what_a_program_stops_using_is_released_for_good)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 20; i++) {
		use(1, 5 * MS);
		use(2, 5 * MS);
	}
	for (unsigned i = 0; i < 200; i++) {
		use(3, 5 * MS);
		use(4, 5 * MS);
	}
	EXPECT(!registered[1] && !registered[2]);
	unsigned releases = world.releases;
	run(world.now + 10000ull * MS);
	EXPECT(!registered[1] && !registered[2]);
	EXPECT(world.releases <= releases + 2); /* the two others, by then */
}

static void use_at(uint32_t r, uint64_t site)
{
	run(world.now + MS);
	start(r, 1 << 20, site);
	run(world.now + 100 * US);
	end(r);
}

TEST(what_was_used_once_is_released_at_once)
{
	for (uint64_t site = 0; site <= 77; site += 77) { /* 0: not known */
		fresh(HP_PLAN_SAVE, UINT64_MAX);
		for (uint32_t r = 1; r <= 200; r++)
			use_at(r, site);
		run(world.now + MS);
		EXPECT(world.bytes == 0);
		EXPECT(world.bytes_max <= 2 << 20);
	}
}

TEST(what_is_missed_at_its_second_use_teaches_to_keep_others_of_its_site)
{
	unsigned misses[2];

	for (unsigned sites = 1; sites <= 100; sites += 99) {
		fresh(HP_PLAN_SAVE, UINT64_MAX);
		for (uint32_t i = 0; i < 400; i++) {
			uint32_t r = 1 + i / 4;
			use_at(r > 20 && i % 4 ? r - (uint32_t)rnd(20) : r, 1 + r % sites);
		}
		misses[sites > 1] = world.misses;
	}
	EXPECT(misses[0] <= 30);
	EXPECT(misses[1] > 80); /* where all sites differ, nearly each region is missed once */
}

/* ------------------------------------------------------------------ the peak */

TEST(a_loop_of_twenty_regions_has_a_peak_of_two_for_three_misses)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 50; i++)
		for (uint32_t r = 1; r <= 20; r++)
			use(r, jitter(r == 1 ? 100 * MS : 3 * MS, 2));
	EXPECT(world.misses <= 3);
	EXPECT(world.bytes_max <= 2 << 20);
}

/* Six regions are used one after the other, with a pause after the last. */
static void use_in_turn(unsigned times)
{
	for (unsigned i = 0; i < times; i++)
		for (uint32_t r = 1; r <= 6; r++)
			use(r, jitter(r == 1 ? 100 * MS : 3 * MS, 2));
}

TEST(a_region_waits_for_its_turn_however_late_that_comes)
{
	for (heard_ns = 0; heard_ns <= 60 * MS; heard_ns += 60 * MS) {
		fresh(HP_PLAN_SAVE, UINT64_MAX);
		use_in_turn(20);
		run(world.now + 1000 * MS);
		if (heard_ns) /* no turn is heard of in time, so all are registered by time */
			EXPECT_EQ(world.bytes, 6 << 20);
		else
			EXPECT_EQ(world.bytes, 1 << 20);
		world.misses = 0;
		use_in_turn(1);
		EXPECT_EQ(world.misses, 0);
	}
	heard_ns = 0;
}

TEST(whose_turn_another_use_takes_is_not_registered)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	use_in_turn(20);
	run(world.now + 200 * MS);
	EXPECT(registered[1] && !registered[2]);
	use(7, MS);
	run(world.now + 200 * MS);
	EXPECT(!registered[2]);
	world.misses = 0;
	use_in_turn(1);
	EXPECT_EQ(world.misses, 0);
}

TEST(buffers_that_change_roles_have_no_peak_of_all_of_them)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 40; i++)
		for (uint32_t k = 0; k < 6; k++) {
			run(world.now + jitter(k ? 5 * MS : 500 * MS, 1));
			start(1 + (i % 2 ? k ^ 1 : k), 1 << 20, k);
			run(world.now + 5 * MS);
			end(1 + (i % 2 ? k ^ 1 : k));
		}
	EXPECT(world.misses <= 6 + 2);
	EXPECT(world.bytes_max <= 3 << 20);
}

/* ------------------------------------------------------------------ changes */

TEST(a_change_of_phase_costs_no_more_than_is_allowed)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned phase = 0; phase < 4; phase++)
		for (unsigned i = 0; i < 60; i++)
			for (uint32_t r = 1; r <= 4; r++)
				use(r, jitter((uint64_t[]){ 50, 100, 25, 100 }[phase] * MS, 2));
	EXPECT(world.misses <= allowed(4));
	EXPECT(share() < .7);
}

TEST(what_never_repeats_stays_registered)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 3000; i++)
		use(1 + (uint32_t)rnd(30), rnd(2 * MS));
	EXPECT(world.misses <= 30 + allowed(30));
}

TEST(without_events_the_helper_comes_to_rest)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 50; i++)
		for (uint32_t r = 1; r <= 3; r++)
			use(r, 10 * MS);
	unsigned wakes = 0;
	for (uint64_t last = 0; wakes < 100 && last != UINT64_MAX; wakes++) {
		struct hp_plan_step step = hp_schedule_next(world.plan, world.now);
		last = step.what == HP_PLAN_WAIT ? step.until_ns : 0;
		if (last != UINT64_MAX)
			run(last ? last : world.now + MS);
	}
	EXPECT(wakes < 30);
}

/* ------------------------------------------------------------------ budget */

TEST(within_a_budget_a_loop_is_prefetched_and_the_budget_holds)
{
	fresh(HP_PLAN_BUDGET, 3 << 20);
	for (unsigned i = 0; i < 100; i++)
		for (uint32_t r = 1; r <= 8; r++)
			use(r, jitter(5 * MS, 10));
	EXPECT(world.misses <= 24); /* LRU misses all of the 792 */
	EXPECT(world.bytes_max <= 3 << 20);
}

/* While the first is in use the second has no room, whatever goes for it. */
TEST(what_cannot_have_room_drives_nothing_out)
{
	enum { ROUNDS = 60 };

	fresh(HP_PLAN_BUDGET, 10 << 20);
	for (unsigned i = 0; i < ROUNDS; i++) {
		run(world.now + MS);
		start(1, 6 << 20, 1);
		run(world.now + 20 * MS);
		end(1);
		use_bytes(2, 8 << 20, MS);
		use_bytes(3, 2 << 20, MS);
	}
	EXPECT(world.releases <= 4 * ROUNDS);
}

TEST(to_save_within_a_budget_holds_the_budget_too)
{
	fresh(HP_PLAN_SAVE, 3 << 20);
	for (unsigned i = 0; i < 100; i++)
		for (uint32_t r = 1; r <= 8; r++)
			use(r, jitter(5 * MS, 1));
	EXPECT(world.bytes_max <= 3 << 20);
	EXPECT(world.misses <= 100);
}

TEST(as_long_as_nothing_is_known_the_victim_is_the_least_recently_used)
{
	fresh(HP_PLAN_BUDGET, 100 << 20);
	for (uint32_t r = 1; r <= 50; r++)
		use(1 + (r * 7) % 50, MS);
	for (uint32_t r = 1; r <= 50; r++) {
		uint32_t victim = hp_schedule_victim(world.plan, world.now);
		EXPECT_EQ(victim, 1 + (r * 7) % 50);
		registered[victim] = false;
		hp_schedule_deregistered(world.plan, victim, world.now);
	}
	EXPECT_EQ(hp_schedule_victim(world.plan, world.now), 0);
}

TEST(no_victim_is_named_while_forgotten_regions_have_been_idle_for_longer)
{
	fresh(HP_PLAN_BUDGET, UINT64_MAX);
	for (uint32_t r = 1; r <= 20000; r++)
		use(r, MS);
	EXPECT_EQ(hp_schedule_victim(world.plan, world.now), 0);
	for (uint32_t r = 1; r <= 20000; r++) {
		registered[r] = false;
		hp_schedule_deregistered(world.plan, r, world.now);
	}
	world.bytes = 0;
	use(5, MS);
	EXPECT_EQ(hp_schedule_victim(world.plan, world.now), 5);
}

/* Of two regions that alternate one has room at a time, if it has all of the budget. */
TEST(what_forgotten_regions_had_is_free_when_their_registrations_have_ended)
{
	enum { REGIONS = 20000 };
	const uint64_t most = (uint64_t)REGIONS << 20;

	fresh(HP_PLAN_BUDGET, most);
	for (uint32_t r = 1; r <= REGIONS; r++)
		use(r, MS);
	for (uint32_t r = 1; r <= REGIONS; r++) {
		registered[r] = false;
		hp_schedule_deregistered(world.plan, r, world.now);
	}
	world.bytes = 0;
	for (unsigned i = 0; i < 100; i++)
		for (uint32_t r = 1; r <= 2; r++)
			use_bytes(REGIONS + r, most - (1 << 20), UINT64_C(10000) * MS);
	EXPECT(world.misses <= 20);
}

TEST(the_victim_is_the_one_that_is_used_last)
{
	fresh(HP_PLAN_BUDGET, 100 << 20);
	for (unsigned i = 0; i < 83; i++)
		use(1 + i % 8, MS);
	EXPECT_EQ(hp_schedule_victim(world.plan, world.now), 3); /* 82 % 8 + 1: used just now */
}

/* ------------------------------------------------------------------ failures */

TEST(what_failed_is_not_asked_for_again_before_its_next_event)
{
	for (int registering = 0; registering < 2; registering++) {
		fresh(HP_PLAN_SAVE, UINT64_MAX);
		for (unsigned i = 0; i < 60; i++) {
			use(1, 20 * MS);
			use(2, 20 * MS);
			use(3, 20 * MS);
		}
		if (registering)
			run(world.now + 3 * MS);
		EXPECT_EQ(registered[3], !registering);
		unsigned asked = 0;
		hp_schedule_failed(world.plan, 3, world.now);
		for (unsigned i = 0; i < 4; i++) { /* of others */
			uint32_t r = 1 + i % 2;
			hp_schedule_start(world.plan, r, 1 << 20, r, world.now += 10 * MS, registered[r]);
			hp_schedule_registered(world.plan, r, world.now);
			hp_schedule_end(world.plan, r, world.now += 100 * US);
			for (unsigned j = 0; j < 4; j++) {
				struct hp_plan_step step = hp_schedule_next(world.plan, world.now);
				asked += step.what != HP_PLAN_WAIT && step.region == 3;
				if (step.what == HP_PLAN_DEREGISTER)
					hp_schedule_deregistered(world.plan, step.region, world.now);
				if (step.what == HP_PLAN_REGISTER)
					hp_schedule_registered(world.plan, step.region, world.now);
			}
		}
		EXPECT_EQ(asked, 0);
	}
}

TEST(after_a_failure_it_goes_on_as_before)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 60; i++)
		use(1, 20 * MS);
	hp_schedule_failed(world.plan, 1, world.now);
	unsigned releases = world.releases;
	for (unsigned i = 0; i < 10; i++)
		use(1, 20 * MS);
	EXPECT(world.releases > releases + 5);
}

TEST(more_lead_begins_earlier)
{
	uint64_t until[2];

	for (int i = 0; i < 2; i++) {
		fresh(HP_PLAN_SAVE, UINT64_MAX);
		for (unsigned j = 0; j < 60; j++)
			use(1, 20 * MS);
		run(world.now + MS);
		EXPECT(!registered[1]);
		hp_schedule_set_lead(world.plan, i ? 3 * MS : 0);
		struct hp_plan_step step = hp_schedule_next(world.plan, world.now);
		EXPECT_EQ(step.what, HP_PLAN_WAIT);
		until[i] = step.until_ns;
	}
	EXPECT_EQ(until[0] - until[1], 3 * MS);
}

TEST(time_that_goes_back_stands_still)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (unsigned i = 0; i < 60; i++)
		use(1, 20 * MS);
	run(world.now + MS);
	EXPECT(!registered[1]);
	struct hp_plan_step a = hp_schedule_next(world.plan, world.now), b = hp_schedule_next(world.plan, 5);
	EXPECT_EQ(a.what, b.what);
	EXPECT_EQ(a.until_ns, b.until_ns);
	hp_schedule_start(world.plan, 2, 4096, 1, 7, false);
	hp_schedule_registered(world.plan, 2, 6);
	hp_schedule_end(world.plan, 2, 5);
	EXPECT_EQ(hp_schedule_next(world.plan, world.now).until_ns, a.until_ns);
	EXPECT_EQ(hp_schedule_next(world.plan, a.until_ns).what, HP_PLAN_REGISTER);
	EXPECT_EQ(hp_schedule_next(world.plan, 5).what, HP_PLAN_REGISTER);
}

/* ------------------------------------------------------------------ random events */

/* What was told, as the contract has it. */
static struct {
	bool known, registered;
	unsigned uses;
	uint64_t bytes;
} told[64];

static uint64_t random_events(enum hp_plan_mode mode, uint64_t budget, size_t memory, uint32_t regions, bool wrong)
{
	struct hp_schedule *p = plan(mode, budget, memory);
	uint64_t now = 1, hash = 0, held = 0;

	memset(told, 0, sizeof told);
	for (unsigned i = 0; i < 60000; i++) {
		uint32_t r = 1 + (uint32_t)(rnd(3) ? i / 40 % regions : rnd(regions));
		now += rnd(3 * MS);
		switch (rnd(wrong ? 12 : 8)) {
		case 0 ... 3:
			if (told[r].uses > 2 || (!told[r].registered && held + told[r].bytes + (96 << 12) > budget))
				break;
			if (!told[r].registered && !told[r].uses) {
				told[r].bytes = (1 + rnd(rnd(4) ? 16 : 96)) << 12;
				held += told[r].bytes;
			}
			hp_schedule_start(p, r, told[r].bytes, rnd(3), now, told[r].registered);
			told[r].uses++;
			if (!told[r].registered)
				hp_schedule_registered(p, r, now);
			told[r].registered = told[r].known = true;
			break;
		case 4 ... 7:
			if (!told[r].uses)
				break;
			told[r].uses--;
			hp_schedule_end(p, r, now);
			break;
		case 8:
			if (!told[r].uses) /* an end without a start */
				hp_schedule_end(p, r, now);
			break;
		case 9: /* twice, or unasked */
			if (told[r].known && !told[r].registered && held + told[r].bytes <= budget) {
				held += told[r].bytes;
				told[r].registered = true;
			}
			if (told[r].registered || !told[r].known)
				hp_schedule_registered(p, r, now - rnd(now));
			break;
		case 10: /* evicted by somebody, or never there */
			if (told[r].uses)
				break;
			if (told[r].registered)
				held -= told[r].bytes;
			told[r].registered = false;
			hp_schedule_deregistered(p, r, now);
			break;
		case 11:
			if (rnd(2)) {
				hp_schedule_failed(p, r, now);
			} else if (!told[r].uses) {
				held -= told[r].registered ? told[r].bytes : 0;
				memset(&told[r], 0, sizeof told[r]);
				hp_schedule_forget(p, r);
			}
			break;
		}
		/* Mostly the next event comes first; else it is done some time. */
		unsigned steps = i % 16 ? 3 : 1000, j = 0;
		for (; j < steps; j++) {
			now += steps > 3 ? US : 0;
			struct hp_plan_step step = hp_schedule_next(p, now);
			hash = (hash ^ step.what ^ step.region ^ step.until_ns) * 0x9e3779b97f4a7c15u;
			r = step.region;
			if (step.what == HP_PLAN_WAIT) {
				EXPECT(step.until_ns > now);
				break;
			}
			if (!EXPECT(r && r <= regions))
				break;
			EXPECT_EQ(told[r].uses, 0);
			EXPECT_EQ(told[r].registered, step.what == HP_PLAN_DEREGISTER);
			if (step.what == HP_PLAN_DEREGISTER) {
				hp_schedule_deregistered(p, r, now);
				held -= told[r].bytes;
			} else {
				held += told[r].bytes;
				hp_schedule_registered(p, r, now);
				EXPECT(held <= budget);
			}
			told[r].registered = step.what == HP_PLAN_REGISTER;
		}
		EXPECT(j < steps || steps == 3);
		r = hp_schedule_victim(p, now);
		hash = (hash ^ r) * 0x9e3779b97f4a7c15u;
		EXPECT(!r || (told[r].registered && !told[r].uses));
	}
	hp_schedule_free(p);
	return hash;
}

TEST(random_events_lead_to_nothing_that_cannot_be)
{
	for (unsigned i = 0; i < 8; i++) {
		seed = i;
		random_events(i & 1 ? HP_PLAN_BUDGET : HP_PLAN_SAVE, i & 2 ? 10 << 16 : UINT64_MAX,
			      (size_t)1 << 20, 5 + 25 * (i / 4), false);
	}
}

TEST(wrong_events_do_no_harm)
{
	for (unsigned i = 0; i < 8; i++) {
		seed = 100 + i;
		random_events(i & 1 ? HP_PLAN_BUDGET : HP_PLAN_SAVE, i & 2 ? 10 << 16 : UINT64_MAX,
			      (size_t)1 << 20, 5 + 25 * (i / 4), true);
	}
}

TEST(the_same_events_have_the_same_answers)
{
	uint64_t hash[3];

	for (unsigned i = 0; i < 3; i++) {
		seed = i / 2;
		hash[i] = random_events(HP_PLAN_SAVE, UINT64_MAX, (size_t)1 << 20, 30, true);
	}
	EXPECT(hash[0] == hash[1]);
	EXPECT(hash[0] != hash[2]);
}

/* ------------------------------------------------------------------ memory */

static size_t mapped(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	size_t pages = 0;
	EXPECT(f && fscanf(f, "%zu", &pages) == 1);
	fclose(f);
	return pages * 4096;
}

TEST(a_million_regions_take_no_more_memory_than_was_given)
{
	for (size_t memory = HP_PLAN_MEMORY_MIN; memory <= (size_t)4 << 20; memory *= 64) {
		uint32_t regions = memory == HP_PLAN_MEMORY_MIN ? NUMBERS : 100000;
		struct hp_plan_stats stats;
		size_t before = mapped();
		struct hp_schedule *p = plan(HP_PLAN_SAVE, UINT64_MAX, memory);
		uint64_t now = 0;
		unsigned asked = 0;
		for (uint32_t r = 1; r < regions; r++) {
			hp_schedule_start(p, r, 4096, r % 5, now += 50 * US, false);
			hp_schedule_registered(p, r, now);
			hp_schedule_end(p, r, now += 50 * US);
			asked += r % 64 == 0 && hp_schedule_next(p, now).what == HP_PLAN_REGISTER;
		}
		EXPECT(mapped() - before <= memory);
		hp_schedule_stats(p, &stats);
		EXPECT(stats.memory <= memory);
		EXPECT(stats.forgotten > regions / 2);
		EXPECT_EQ(asked, 0);
		hp_schedule_free(p);
	}
}

TEST(a_loop_is_learnt_among_a_hundred_thousand_idle_regions)
{
	fresh(HP_PLAN_SAVE, UINT64_MAX);
	for (uint32_t r = 1; r <= 100000; r++) {
		registered[r] = true;
		size_of[r] = 4096;
		hp_schedule_start(world.plan, r, 4096, r, world.now += 10 * US, false);
		hp_schedule_registered(world.plan, r, world.now);
		hp_schedule_end(world.plan, r, world.now += 10 * US);
	}
	for (unsigned i = 0; i < 60; i++) {
		for (uint32_t r = 200001; r <= 200005; r++)
			use(r, 10 * MS);
		if (i == 30)
			world.misses = world.releases = 0;
	}
	EXPECT(world.misses <= 1);
	EXPECT(world.releases > 100);
}

T_MAIN
