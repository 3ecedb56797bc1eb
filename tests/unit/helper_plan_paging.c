/*
 * Policy hybrid: what the plan gives back goes on demand and stays registered, what it wants is pinned or brought in, and
 * no more is ever pinned than the budget has.
 */
#include <stdlib.h>

#include "tests/unit/helper_plan.h"

static hugepin_domain *open_hybrid(uint64_t bytes_max)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_HYBRID,
				     .watch = HUGEPIN_WATCH_PROGRAM,
				     .pinned_bytes_max = bytes_max };
	hugepin_domain *d = NULL;

	device_reset(&device);
	device.clock_ns = BEGINS;
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	return d;
}

/* A device that was measured. Faults cost next to nothing there. */
static const struct hugepin_terms measured = { .reg = 3000, .reg_page = 200, .dereg = 2000, .demand = 5000,
					       .bring = 100000, .bring_page = 1000, .fault_send = 1,
					       .fault_receive = 1 };
static int terms_error;

static int device_terms(void *ctx, struct hugepin_terms *ret_)
{
	EXPECT(ctx == &device);
	*ret_ = measured;
	return terms_error;
}

static hugepin_domain *open_measured(void)
{
	struct hugepin_backend b = device_backend;
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_HYBRID,
				     .watch = HUGEPIN_WATCH_PROGRAM };
	hugepin_domain *d = NULL;

	b.terms = device_terms;
	device_reset(&device);
	device.clock_ns = BEGINS;
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), 0);
	return d;
}

static size_t pinned_bytes(void)
{
	size_t bytes = 0;

	for (unsigned key = 1; key < DEVICE_REGS; key++)
		if (device.reg[key].live && !(device.reg[key].access & HUGEPIN_ON_DEMAND))
			bytes += device.reg[key].len;
	return bytes;
}

static bool is_registered(const char *p)
{
	for (unsigned key = 1; key < DEVICE_REGS; key++)
		if (device.reg[key].live && device.reg[key].addr == (uintptr_t)p)
			return true;
	return false;
}

/* The memory is paged out, as far as mincore can tell. */
static void page_out(char *p)
{
	EXPECT_EQ(madvise(p, LEN, MADV_DONTNEED), 0);
}

/* Use it and give it back so often, with that time between, and have the plan told. */
static void use(hugepin_domain *d, char *p, int times, uint64_t gap_ns)
{
	while (times--) {
		touch(d, p);
		device.clock_ns += 1000;
		serve(d);
		page_out(p);
		device.clock_ns += gap_ns;
	}
}

/* Do one step of the plan. */
static void step(hugepin_domain *d, unsigned what, uint32_t region)
{
	struct hp_plan *p = plan_of(0);

	next_step(p, what, region);
	p->seen = p->told;
	serve(d);
}

TEST(what_has_no_room_is_registered_on_demand_and_evicts_nothing)
{
	hugepin_domain *d = open_hybrid(2 * LEN);

	for (int i = 0; i < 4; i++)
		touch(d, buffer[i]);
	EXPECT_EQ(device.regs, 4);
	EXPECT_EQ(pinned_bytes(), 2 * LEN);
	EXPECT_EQ(stats_of(d).pinned_bytes, 2 * LEN);
	EXPECT_EQ(stats_of(d).evicted, 0);
	EXPECT_EQ(stats_of(d).misses, 4);
	for (int i = 0; i < 4; i++)
		touch(d, buffer[i]);
	EXPECT_EQ(stats_of(d).misses, 4);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(device.regs, 0);
}

DOMAIN_TEST(what_the_device_has_no_room_to_pin_is_registered_on_demand, open_hybrid(0))
{
	struct hugepin_pin pin;

	device.nth = 1;
	device.with = -ENOMEM;
	touch(d, buffer[0]);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(pinned_bytes(), 0);
	EXPECT_EQ(stats_of(d).refused, 1);
	device.nth = 1;
	device.with = -EIO; /* that is no reason: it is registered for this pin alone */
	pin = pinned(d, buffer[1]);
	EXPECT_EQ(stats_of(d).uncached, 1);
	EXPECT_EQ(pinned_bytes(), LEN);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

DOMAIN_TEST(cold_memory_goes_on_demand_and_is_brought_in_when_it_comes_back, open_hybrid(0))
{
	struct hp_plan *p = plan_of(0);

	/* the cost model has seen registrations alone, which take 1 us here */
	use(d, buffer[0], 3, 10 * MS);
	EXPECT_EQ(pinned_bytes(), LEN);
	step(d, HP_PLAN_DEREGISTER, 1);
	next_is(p, DEREGISTERED, 1, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(pinned_bytes(), 0);
	EXPECT_EQ(device.regs, 1); /* it stays registered */
	EXPECT_EQ(stats_of(d).released, 1);

	device.prefetches = 0;
	step(d, HP_PLAN_REGISTER, 1);
	next_is(p, REGISTERED, 1, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(device.prefetches, 1);
	EXPECT_EQ(stats_of(d).brought_bytes, LEN);
	EXPECT_EQ(pinned_bytes(), 0);

	device.clock_ns += MS;
	memset(buffer[0], 1, LEN); /* as the device has it brought in */
	touch(d, buffer[0]);
	EXPECT_EQ(stats_of(d).brought_bytes, LEN); /* it was there */
	serve(d);
	EXPECT_EQ(p->log[p->seen].what, START);
	EXPECT_EQ(p->log[p->seen + 1].what, DEREGISTERED); /* nobody keeps it */
	EXPECT_EQ(p->log[p->seen + 2].what, END);
	EXPECT_EQ(p->told, p->seen + 3);
	EXPECT_EQ(stats_of(d).misses, 1);
}

/* Of a range that went on demand. */
static unsigned brought_in_before_its_next_use(hugepin_domain *d)
{
	use(d, buffer[0], 3, 10 * MS);
	step(d, HP_PLAN_DEREGISTER, 1);
	EXPECT_EQ(pinned_bytes(), 0);
	device.prefetches = 0;
	step(d, HP_PLAN_REGISTER, 1);
	return device.prefetches;
}

TEST(what_was_measured_of_the_device_is_where_the_model_begins)
{
	hugepin_domain *d = open_measured();
	const struct hp_plan *p = plan_of(0);

	EXPECT_EQ(p->config.cost_ns(p->config.arg, 0, 4096, true), 3000 + 200);
	EXPECT_EQ(p->config.cost_ns(p->config.arg, 0, 4096, false), 2000 + 5000);
	EXPECT_EQ(brought_in_before_its_next_use(d), 0); /* it is left to faults */
	EXPECT_EQ(pinned_bytes(), 0);
	close_empty(&device, d);
	terms_error = -ENOENT;
	d = open_measured();
	EXPECT_EQ(plan_of(0)->config.cost_ns(plan_of(0)->config.arg, 0, 4096, true), 16000 + 245);
	EXPECT_EQ(brought_in_before_its_next_use(d), 1);
	terms_error = 0;
	close_empty(&device, d);
}

DOMAIN_TEST(a_use_that_nobody_foresaw_is_brought_in_by_its_own_thread, open_hybrid(0))
{
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin;

	use(d, buffer[0], 3, 10 * MS);
	step(d, HP_PLAN_DEREGISTER, 1);
	p->seen = p->told;
	touch(d, buffer[0]);
	EXPECT_EQ(device.prefetches, 1);
	EXPECT_EQ(stats_of(d).brought_bytes, LEN);
	touch(d, buffer[0]); /* the helper has not seen the end of the use */
	EXPECT_EQ(device.prefetches, 1);
	serve(d);
	EXPECT_EQ(p->log[p->seen].what, MISS);
	EXPECT_EQ(p->log[p->seen + 1].what, REGISTERED);
	EXPECT_EQ(p->log[p->seen + 2].what, DEREGISTERED);
	EXPECT_EQ(p->log[p->seen + 3].what, END);
	page_out(buffer[0]);
	touch(d, buffer[0]); /* a hit now: the table of lookups has the new region */
	EXPECT_EQ(device.prefetches, 2);
	serve(d);
	/* hugepin_pin_try() does not wait for the device */
	page_out(buffer[0]);
	EXPECT_EQ(hugepin_pin_try(d, buffer[0], LEN, 0, NULL, NULL, &pin), 0);
	EXPECT_EQ(device.prefetches, 2);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

/* The device may not know its pages nevertheless. */
DOMAIN_TEST(memory_that_stays_is_brought_in_and_never_pinned, open_hybrid(0))
{
	use(d, buffer[0], 3, 10 * MS);
	step(d, HP_PLAN_DEREGISTER, 1);
	for (unsigned i = 1; i < 30; i++) {
		memset(buffer[0], 1, LEN);
		step(d, HP_PLAN_REGISTER, 1);
		EXPECT_EQ(device.prefetches, i);
		touch(d, buffer[0]);
		serve(d);
		device.clock_ns += 100;
	}
	EXPECT_EQ(pinned_bytes(), 0);
}

DOMAIN_TEST(and_for_a_use_that_nobody_foresaw, open_hybrid(0))
{
	use(d, buffer[0], 3, 10 * MS);
	step(d, HP_PLAN_DEREGISTER, 1);
	memset(buffer[0], 1, LEN);
	touch(d, buffer[0]);
	EXPECT_EQ(device.prefetches, 1);
}

DOMAIN_TEST(what_went_out_after_it_was_brought_in_is_brought_in_again, open_hybrid(0))
{
	use(d, buffer[0], 3, 10 * MS);
	step(d, HP_PLAN_DEREGISTER, 1);
	step(d, HP_PLAN_REGISTER, 1);
	EXPECT_EQ(device.prefetches, 1);
	page_out(buffer[0]);
	touch(d, buffer[0]);
	EXPECT_EQ(device.prefetches, 2);
}

DOMAIN_TEST(hot_memory_is_pinned_again_once_its_use_has_ended, open_hybrid(0))
{
	use(d, buffer[0], 3, 10 * MS);
	step(d, HP_PLAN_DEREGISTER, 1);
	EXPECT_EQ(pinned_bytes(), 0);
	use(d, buffer[0], 100, 100); /* soon after each other, and nobody sees them coming */
	EXPECT_EQ(pinned_bytes(), LEN);
	EXPECT_EQ(stats_of(d).repinned, 1);
	EXPECT_EQ(device.regs, 1);
	step(d, HP_PLAN_DEREGISTER, 1); /* hot: it stays */
	EXPECT_EQ(pinned_bytes(), LEN);
	EXPECT_EQ(plan_of(0)->log[plan_of(0)->told - 1].what, FAILED);
}

TEST(hot_memory_that_the_device_had_no_room_for_is_tried_again_and_what_it_cannot_pin_is_not)
{
	static const struct {
		int error;
		bool again;
	} cases[] = { { -ENOMEM, true }, { -EAGAIN, true }, { -EFAULT, true }, { -EIO, false }, { -EOPNOTSUPP, false } };

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		hugepin_domain *d = open_hybrid(0);

		use(d, buffer[0], 3, 10 * MS);
		step(d, HP_PLAN_DEREGISTER, 1);
		device.nth = 1;
		device.with = cases[i].error;
		use(d, buffer[0], 100, 100);
		EXPECT_EQ(device.nth, 0); /* it was asked */
		EXPECT_EQ(pinned_bytes(), cases[i].again ? LEN : 0);
		close_empty(&device, d);
	}
}

DOMAIN_TEST(within_a_budget_what_is_pinned_stays_until_a_better_one_needs_the_room, open_hybrid(LEN))
{
	struct hp_plan *p = plan_of(0);

	use(d, buffer[0], 10, 10 * MS);
	step(d, HP_PLAN_DEREGISTER, 1);
	next_is(p, FAILED, 1, device.clock_ns);
	nothing_more(p);
	use(d, buffer[1], 100, 100);
	EXPECT_EQ(pinned_bytes(), LEN);
	p->victim = 0; /* the plan knows none */
	step(d, HP_PLAN_REGISTER, 2);
	next_is(p, REGISTERED, 2, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(stats_of(d).repinned, 0);
	use(d, buffer[1], 1, 100);
	p->victim = 1;
	step(d, HP_PLAN_REGISTER, 2);
	next_is(p, DEREGISTERED, 1, p->log[p->seen].now_ns);
	next_is(p, REGISTERED, 2, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(stats_of(d).repinned, 1);
	EXPECT_EQ(stats_of(d).released, 1);
	EXPECT_EQ(pinned_bytes(), LEN);
	EXPECT_EQ(device.regs, 2);
	EXPECT_EQ(stats_of(d).pinned_peak_bytes, LEN);
	p->victim = 2; /* which is worth more */
	use(d, buffer[0], 1, 10 * MS);
	step(d, HP_PLAN_REGISTER, 1);
	next_is(p, REGISTERED, 1, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(stats_of(d).repinned, 1);
	EXPECT_EQ(pinned_bytes(), LEN);
}

TEST(what_is_no_longer_used_gives_its_room_to_what_is)
{
	static const int uses[] = { 1, 100 };

	for (int i = 0; i < 2; i++) {
		hugepin_domain *d = open_hybrid(LEN);
		struct hp_plan *p = plan_of(0);

		use(d, buffer[0], uses[i], 100);
		device.clock_ns += 1000 * MS;
		use(d, buffer[1], 100, MS / 10);
		EXPECT_EQ(stats_of(d).repinned, 0);
		p->victim = 1;
		step(d, HP_PLAN_REGISTER, 2);
		EXPECT_EQ(stats_of(d).repinned, 1);
		EXPECT_EQ(stats_of(d).released, 1);
		EXPECT_EQ(pinned_bytes(), LEN);
		close_empty(&device, d);
	}
}

TEST(where_regions_are_few_what_is_on_demand_and_cold_goes_first)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_HYBRID,
				     .watch = HUGEPIN_WATCH_PROGRAM,
				     .pinned_bytes_max = LEN,
				     .pinned_regions_max = 3 };
	hugepin_domain *d = NULL;
	struct hugepin_pin pin;

	device_reset(&device);
	device.clock_ns = BEGINS;
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	for (int i = 0; i < 3; i++)
		use(d, buffer[i], 3, 100);
	step(d, HP_PLAN_REGISTER, 2); /* it is brought in */
	plan_of(0)->victim = 1; /* the plan knows only what is ready */
	for (int i = 3; i < 5; i++) {
		use(d, buffer[i], 1, 100);
		EXPECT_EQ(pinned_bytes(), LEN);
		EXPECT_EQ(device.regs, 3);
		EXPECT(is_registered(buffer[1]));
		EXPECT(!is_registered(buffer[i - 1]));
	}
	/* where all others are ready or in use, the plan chooses */
	pin = pinned(d, buffer[4]);
	use(d, buffer[5], 1, 100);
	EXPECT_EQ(pinned_bytes(), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	close_empty(&device, d);
}

DOMAIN_TEST(what_was_refused_to_be_pinned_displaces_nothing_again, open_hybrid(LEN))
{
	struct hp_plan *p = plan_of(0);
	long calls;

	use(d, buffer[0], 10, 10 * MS);
	use(d, buffer[1], 100, 100);
	EXPECT_EQ(pinned_bytes(), LEN);
	p->victim = 1;
	device.nth = 2; /* buffer[0] goes on demand, buffer[1] is refused */
	device.with = -EIO;
	step(d, HP_PLAN_REGISTER, 2);
	EXPECT_EQ(stats_of(d).released, 1);
	EXPECT_EQ(pinned_bytes(), 0);
	calls = device.calls;
	use(d, buffer[1], 2, 100);
	step(d, HP_PLAN_REGISTER, 2);
	EXPECT_EQ(device.calls, calls);
	EXPECT_EQ(pinned_bytes(), 0);
}

DOMAIN_TEST(a_step_that_fails_changes_nothing, open_hybrid(0))
{
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin;

	use(d, buffer[0], 3, 10 * MS);
	device.nth = 1;
	device.with = -EIO;
	step(d, HP_PLAN_DEREGISTER, 1);
	next_is(p, FAILED, 1, device.clock_ns);
	EXPECT_EQ(pinned_bytes(), LEN);
	pin = pinned(d, buffer[0]);
	step(d, HP_PLAN_DEREGISTER, 1); /* in use */
	EXPECT_EQ(p->log[p->told - 1].what, FAILED);
	EXPECT_EQ(pinned_bytes(), LEN);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	page_out(buffer[0]);
	device.clock_ns += 10 * MS;
	step(d, HP_PLAN_DEREGISTER, 1);
	EXPECT_EQ(p->log[p->told - 1].what, DEREGISTERED);
	device.for_good = true;
	device.nth = 1;
	use(d, buffer[0], 100, 100);
	EXPECT_EQ(pinned_bytes(), 0); /* it is hot, and cannot be pinned */
	device.prefetches = 0;
	step(d, HP_PLAN_REGISTER, 1); /* so it is brought in */
	EXPECT_EQ(p->log[p->told - 1].what, REGISTERED);
	EXPECT_EQ(device.prefetches, 1);
	EXPECT_EQ(device.regs, 1);
	device.nth = 0;
}

/* What the plan may be told: a hit only while the region counts as registered, a miss only while it does not. */
static void check_log(const struct hp_plan *p)
{
	static bool is[BUFFERS + 1];
	static int uses[BUFFERS + 1];

	memset(is, 0, sizeof is);
	memset(uses, 0, sizeof uses);
	for (unsigned i = 0; i < p->told; i++) {
		const struct event *e = &p->log[i];

		if (!EXPECT(e->region && e->region <= BUFFERS))
			return;
		switch (e->what) {
		case START:
			EXPECT(is[e->region]);
			uses[e->region]++;
			break;
		case MISS:
			EXPECT(!is[e->region]);
			uses[e->region]++;
			break;
		case END: EXPECT(--uses[e->region] >= 0); break;
		case REGISTERED: is[e->region] = true; break;
		case DEREGISTERED: is[e->region] = false; break;
		case FAILED: break;
		case FORGET: is[e->region] = false; break;
		}
	}
}

/* The plan speaks only of regions that it was told of. */
static uint32_t some_region(const struct hp_plan *p)
{
	return p->told ? p->log[(unsigned)rand() % p->told].region : 0;
}

TEST(random_uses_and_steps_keep_to_the_budget_and_to_what_the_plan_expects)
{
	enum { USED = 12, FIT = 4 };

	for (unsigned seed = 1; seed <= 20; seed++) {
		hugepin_domain *d = open_hybrid(seed % 3 ? FIT * LEN : 0);
		struct hp_plan *p = plan_of(0);
		struct hugepin_pin pin[USED] = { 0 };

		srand(seed);
		for (int i = 0; i < 1500; i++) {
			int k = rand() % USED;

			device.nth = rand() % 10 ? 0 : 1;
			device.with = rand() % 2 ? -ENOMEM : -EIO;
			p->victim = some_region(p);
			switch (rand() % 6) {
			case 0:
			case 1:
				if (!pin[k].ref)
					hugepin_pin(d, buffer[k], LEN, 0, &pin[k]);
				break;
			case 2:
				if (pin[k].ref)
					EXPECT_EQ(hugepin_unpin(d, &pin[k]), 0);
				page_out(buffer[k]);
				break;
			case 3: device.clock_ns += (uint64_t)rand() % (20 * MS); break;
			case 4:
				if (p->told)
					next_step(p, rand() % 2 ? HP_PLAN_REGISTER : HP_PLAN_DEREGISTER, some_region(p));
				break;
			case 5: serve(d); break;
			}
			if (p->steps == 8)
				serve(d);
			if (seed % 3)
				EXPECT(pinned_bytes() <= FIT * LEN);
			EXPECT_EQ(pinned_bytes(), stats_of(d).pinned_bytes);
		}
		for (int k = 0; k < USED; k++)
			if (pin[k].ref)
				EXPECT_EQ(hugepin_unpin(d, &pin[k]), 0);
		serve(d);
		p->seen = p->told;
		check_log(p);
		close_empty(&device, d);
	}
}

TEST(the_device_has_to_register_on_demand)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_HYBRID };
	hugepin_domain *d;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EOPNOTSUPP);
	EXPECT_EQ(device.closed, 1);
}

T_MAIN
