/*
 * Events that the helper tells a plan: misses, uses and their ends, by which clock, and in which order. Uncached pins
 * and lost registrations are not told.
 */
#include <sys/wait.h>

#include "reg/cover.h"
#include "reg/region.h"
#include "tests/unit/helper_plan.h"

/* ------------------------------------------------------------------ the clock */

static void by_the_counter(void)
{
	static const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_CF11,
						  .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_backend backend = device_backend;
	hugepin_domain *d = NULL;
	struct hp_plan *p;

	backend.now_ns = NULL;
	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &d), 0);
	EXPECT(hp_record_by_counter);
	p = plan_of(0);
	for (int i = 0; i < 8; i++) { /* as a helper wakes, now and then */
		uint64_t before, after, began = hp_clock_ns(), slack;

		usleep(i < 4 ? 2000 : 400000);
		hp_helper_begin(0);
		p->told = 0;
		before = hp_clock_ns();
		touch(d, buffer[0]);
		after = hp_clock_ns();
		slack = 200 * 1000 + (after - began) / 50;
		serve(d);
		EXPECT(p->told >= 2);
		for (unsigned e = 0; e < p->told; e++)
			EXPECT(p->log[e].now_ns + slack >= before && p->log[e].now_ns <= after + slack);
	}
	close_empty(&device, d);
	_exit(t_failures != 0);
}

/* The first of all: a process chooses its clock once. */
TEST(times_by_the_processors_counter_are_the_machines_too)
{
#ifndef __x86_64__
	SKIP("there is none that is read");
#endif
	int status = 1;
	pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		machine.source = "tsc\n";
		by_the_counter();
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

/* By the device's own clock no time passes but what it says; without, it is this machine's. */
TEST(without_a_clock_of_the_devices_times_are_the_machines)
{
	T_DOMAIN_BEGINS();
	static const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_CF11,
						  .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_backend backend = device_backend;
	hugepin_domain *d = NULL;
	struct hp_plan *p;
	uint64_t before, after;

	if (hp_record_by_counter)
		SKIP("the counter was chosen before");
	backend.now_ns = NULL;
	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &d), 0);
	p = plan_of(0);
	before = hp_clock_ns();
	touch(d, buffer[0]);
	after = hp_clock_ns();
	serve(d);
	EXPECT(p->log[0].what == MISS && p->log[0].now_ns >= before && p->log[0].now_ns <= after);
	EXPECT(p->log[2].what == END && p->log[2].now_ns >= p->log[0].now_ns && p->log[2].now_ns <= after);
	EXPECT(p->asked_ns >= after && p->asked_ns <= hp_clock_ns());
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ the events */

DOMAIN_TEST(a_miss_a_use_and_its_end_are_told_with_their_times, open_on(&device, 0))
{
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin = pinned(d, buffer[0]), again;
	uint64_t site;

	EXPECT_EQ(p->told, 0);
	device.clock_ns += MS;
	serve(d);
	site = p->log[0].site;
	EXPECT(site != 0);
	EXPECT_EQ(p->log[0].bytes, LEN);
	next_is(p, MISS, 1, BEGINS);
	next_is(p, REGISTERED, 1, BEGINS);
	nothing_more(p);
	EXPECT_EQ(p->asked_ns, device.clock_ns);

	device.clock_ns += MS;
	again = pinned(d, buffer[0]); /* meanwhile: the same use */
	device.clock_ns += MS;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	nothing_more(p);
	device.clock_ns += MS;
	EXPECT_EQ(hugepin_unpin(d, &again), 0);
	device.clock_ns += MS;
	serve(d);
	next_is(p, END, 1, device.clock_ns - MS);
	nothing_more(p);

	for (int i = 0; i < 3; i++) { /* from one place in the code */
		device.clock_ns += MS;
		touch(d, buffer[0]);
		device.clock_ns += MS;
		serve(d);
		EXPECT_EQ(p->log[p->seen].site, site);
		next_is(p, START, 1, device.clock_ns - MS);
		next_is(p, END, 1, device.clock_ns - MS);
		nothing_more(p);
	}
}

static int (*volatile pin_pointer)(hugepin_domain *, const void *, size_t, unsigned, struct hugepin_pin *) = hugepin_pin;
static struct hugepin_key held;

/* Ways to pin, each in a function of its own. The call is not the last thing that the function does, or it would be a jump
 * from the caller. */
#define WAY(name, call) \
	static __attribute__((noinline)) int name(hugepin_domain *d, char *p, struct hugepin_pin *pin) \
	{ \
		int e = ((void)d, (void)p, call); \
		\
		__asm__ volatile("# " #name : "+r"(e)); \
		return e; \
	}
WAY(by_pin, hugepin_pin(d, p, LEN, 0, pin))
WAY(by_pointer, pin_pointer(d, p, LEN, 0, pin))
WAY(by_try, hugepin_pin_try(d, p, LEN, 0, NULL, NULL, pin))
WAY(by_pinv, hugepin_pinv(d, &(struct iovec){ p, LEN }, 1, 0, pin, 1) - 1)
WAY(by_key, (*pin = held.pin, hugepin_key_pin(&held)))
WAY(by_site, hugepin_pin_at(d, p, LEN, 0, pin, (uintptr_t)by_pin + 1))
WAY(by_no_site, hugepin_pin_at(d, p, LEN, 0, pin, 0))

static bool is_at(uint64_t site, int (*way)(hugepin_domain *, char *, struct hugepin_pin *))
{
	if (way == by_no_site)
		return site == 0;
	return site - (uintptr_t)(way == by_site ? by_pin : way) - 1 < 512;
}

/* Serve, and return the start or miss that the plan is told of. The log begins anew. */
static struct event used(hugepin_domain *d, struct hp_plan *p)
{
	struct event e = { .what = END };

	device.clock_ns += MS;
	p->seen = p->told = 0;
	serve(d);
	for (unsigned i = 0; i < p->told; i++)
		if (p->log[i].what == START || p->log[i].what == MISS)
			e = p->log[i];
	p->seen = p->told = 0;
	return e;
}

DOMAIN_TEST(each_use_is_told_with_the_place_of_its_call, open_on(&device, 0))
{
	static int (*const ways[])(hugepin_domain *, char *, struct hugepin_pin *) = { by_pin, by_pointer, by_pinv,    by_try,
										       by_key, by_site,	   by_no_site };
	struct hp_plan *p = plan_of(0);

	for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
		char *memory = buffer[i];
		struct hugepin_pin pin = { 0 };
		bool again = ways[i] == by_try || ways[i] == by_key;

		if (again) { /* these register nothing, or not at once */
			pin = pinned(d, memory);
			EXPECT_EQ(hugepin_key_take(d, &pin, HUGEPIN_KEY_LAYOUT, &held), 0);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			used(d, p);
		}
		for (int n = 0; n < 2; n++) { /* a miss, then the first use after a look; or both times that */
			struct event e;

			EXPECT_EQ(ways[i](d, memory, &pin), 0);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			e = used(d, p);
			EXPECT_EQ(e.what, n || again ? START : MISS);
			if (!EXPECT(is_at(e.site, ways[i])))
				T_FAIL("way %u, site %#lx", i, (unsigned long)e.site);
		}
	}
}

TEST(an_end_whose_start_was_not_seen_is_a_use_of_its_own)
{
	hugepin_domain *d;
	struct hp_plan *p;
	uint32_t a = open_used(&d, &p);

	leave(BEGINS + 5, HP_RECORD_END, a);
	device.clock_ns += MS;
	serve(d);
	EXPECT_EQ(p->log[p->seen].site, p->log[0].site); /* that of the last use */
	next_is(p, START, 1, BEGINS + 5);
	next_is(p, END, 1, BEGINS + 5);
	nothing_more(p);
	close_empty(&device, d);
}

/* Of what was pinned several times and was seen as several uses, one goes on while anything is pinned. */
DOMAIN_TEST(several_uses_end_but_for_one_while_there_is_a_pin, open_on(&device, 0))
{
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin = pinned(d, buffer[0]);
	uint32_t a = (uint32_t)pin.ref;

	device.clock_ns += MS;
	leave(BEGINS + 1, HP_RECORD_START, a);
	leave(BEGINS + 2, HP_RECORD_START, a);
	leave(BEGINS + 3, HP_RECORD_END, a);
	serve(d);
	next_is(p, MISS, 1, BEGINS);
	next_is(p, REGISTERED, 1, BEGINS);
	next_is(p, START, 1, BEGINS + 1);
	next_is(p, START, 1, BEGINS + 2);
	next_is(p, END, 1, BEGINS + 3);
	next_is(p, END, 1, BEGINS + 3);
	nothing_more(p);
	EXPECT(hp_region_is_used(d, &hp_regions[a]));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	next_is(p, END, 1, device.clock_ns);
	nothing_more(p);
	EXPECT(!hp_region_is_used(d, &hp_regions[a]));
}

TEST(what_was_registered_ahead_is_told_before_its_first_use)
{
	hugepin_domain *d;
	struct hp_plan *p;
	struct hp_region *r;

	open_used(&d, &p);
	hp_domain_lock(d);
	EXPECT_EQ(hp_cover_ahead(d, buffer[1], LEN, HUGEPIN_READ | HUGEPIN_WRITE, &r), 0);
	r = hp_region_find(d, (uintptr_t)buffer[1], HUGEPIN_READ);
	hp_domain_unlock(d);
	if (!EXPECT(r))
		return;
	device.clock_ns += MS;
	leave(device.clock_ns, HP_RECORD_START, (uint32_t)(r - hp_regions));
	leave(device.clock_ns - 1, HP_RECORD_START, (uint32_t)(r - hp_regions)); /* is taken first */
	serve(d);
	next_is(p, REGISTERED, 2, device.clock_ns - 1);
	next_is(p, START, 2, device.clock_ns - 1);
	next_is(p, START, 2, device.clock_ns);
	nothing_more(p);
	close_empty(&device, d);
}

DOMAIN_TEST(records_are_told_in_the_order_of_time_and_as_they_came_if_that_is_the_same, open_on(&device, 0))
{
	enum { REGIONS = 24, RECORDS = 300 };
	struct hp_plan *p = plan_of(0);
	uint32_t index[REGIONS];
	uint64_t time[RECORDS];
	unsigned seed = 7;

	for (int i = 0; i < REGIONS; i++)
		index[i] = touch(d, buffer[i]);
	serve(d);
	for (int round = 0; round < 50; round++) {
		unsigned n = 1 + (unsigned)rand_r(&seed) % RECORDS, kinds = 1 + (unsigned)rand_r(&seed) % 1000;

		device.clock_ns += MS;
		p->seen = p->told;
		for (unsigned i = 0; i < n; i++) {
			time[i] = device.clock_ns - (unsigned)rand_r(&seed) % kinds;
			leave(time[i], HP_RECORD_START, index[i % REGIONS]);
		}
		serve(d);
		EXPECT_EQ(p->told - p->seen, n);
		for (uint64_t at = device.clock_ns - kinds + 1; at <= device.clock_ns; at++)
			for (unsigned i = 0; i < n; i++)
				if (time[i] == at && !next_is(p, START, i % REGIONS + 1, at))
					return;
	}
}

/* So far apart are no two of one clock. */
DOMAIN_TEST(records_of_a_clock_that_began_anew_are_told_as_they_came, open_on(&device, 0))
{
	struct hp_plan *p = plan_of(0);
	uint32_t a = touch(d, buffer[0]), b = touch(d, buffer[1]);

	catch_up(d, p);
	device.clock_ns += 10 * SECOND;
	leave(device.clock_ns, HP_RECORD_START, a);
	leave(device.clock_ns - (UINT64_C(1) << 32) - 1, HP_RECORD_START, b);
	serve(d);
	next_is(p, START, 1, device.clock_ns);
	next_is(p, START, 2, device.clock_ns - (UINT64_C(1) << 32) - 1);
	leave(device.clock_ns, HP_RECORD_START, a);
	leave(device.clock_ns - (UINT64_C(1) << 32) + 1, HP_RECORD_START, b);
	serve(d);
	next_is(p, START, 2, device.clock_ns - (UINT64_C(1) << 32) + 1);
	next_is(p, START, 1, device.clock_ns);
	nothing_more(p);
}

TEST(a_record_is_not_told_as_of_later_than_now)
{
	hugepin_domain *d;
	struct hp_plan *p;
	uint32_t a = open_used(&d, &p);

	device.clock_ns += MS;
	leave(device.clock_ns + MS, HP_RECORD_START, a);
	leave(device.clock_ns - 1, HP_RECORD_START, a);
	serve(d);
	next_is(p, START, 1, device.clock_ns - 1);
	next_is(p, START, 1, device.clock_ns);
	nothing_more(p);
	close_empty(&device, d);
}

/* The index is of a registration made since; but for a clock that went back further. */
TEST(records_shortly_before_the_registration_are_of_another)
{
	hugepin_domain *d;
	struct hp_plan *p;
	uint32_t a = open_used(&d, &p);
	const uint64_t stale = UINT64_C(1) << 32;

	for (int i = 0; i < 4; i++) {
		static const bool is_told[] = { true, false, false, true };
		const uint64_t at[] = { BEGINS, BEGINS - 1, BEGINS - stale, BEGINS - stale - 1 };

		leave(at[i], HP_RECORD_START, a);
		serve(d);
		if (is_told[i])
			next_is(p, START, 1, at[i]);
		nothing_more(p);
	}
	close_empty(&device, d);
}

DOMAIN_TEST(of_pins_that_are_not_cached_and_of_registrations_that_are_gone_nothing_is_told, open_on(&device, 0))
{
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin;
	uint32_t a;

	EXPECT_EQ(hugepin_pin(d, buffer[0], LEN, HUGEPIN_PIN_UNCACHED, &pin), 0);
	serve(d);
	leave(device.clock_ns, HP_RECORD_START, (uint32_t)pin.ref);
	serve(d);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	nothing_more(p);
	EXPECT_EQ(d->helper->queue.count, 0);

	a = touch(d, buffer[1]);
	EXPECT_EQ(hugepin_forget(buffer[1], LEN), 0); /* before the plan has heard of it */
	leave(device.clock_ns, HP_RECORD_START, a);
	serve(d);
	nothing_more(p);

	pin = pinned(d, buffer[2]); /* by a place whose number is free again */
	serve(d);
	next_is(p, MISS, 1, device.clock_ns - 1000);
	next_is(p, REGISTERED, 1, device.clock_ns - 1000);
	EXPECT_EQ(hugepin_forget(buffer[2], LEN), -EBUSY); /* its end is to come */
	device.clock_ns += MS;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	next_is(p, FORGET, 1, 0);
	nothing_more(p);
}

static void *touch_there(void *d)
{
	touch(d, buffer[3]);
	return NULL;
}

DOMAIN_TEST(threads_records_are_taken_though_the_thread_has_ended, open_on(&device, 0))
{
	T_THREADS_RUN(1);
	struct hp_plan *p = plan_of(0);
	pthread_t other;

	touch(d, buffer[3]);
	catch_up(d, p);
	device.clock_ns += MS;
	pthread_create(&other, NULL, touch_there, d);
	pthread_join(other, NULL);
	device.clock_ns += MS;
	touch(d, buffer[3]);
	serve(d);
	next_is(p, START, 1, device.clock_ns - MS);
	next_is(p, END, 1, device.clock_ns - MS);
	next_is(p, START, 1, device.clock_ns); /* which left no record of its own: the use had not been seen to end */
	next_is(p, END, 1, device.clock_ns);
	nothing_more(p);
}

T_MAIN
