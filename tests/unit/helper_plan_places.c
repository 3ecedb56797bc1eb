/*
 * Places: the numbers under which a plan knows ranges of memory, when a range keeps its number, and when the helper
 * forgets a place.
 */
#include "tests/unit/helper_plan.h"

DOMAIN_TEST(a_range_that_is_registered_again_has_its_number_and_is_late, open_on(&device, 0))
{
	struct hp_plan *p = plan_of(0);

	touch(d, buffer[0]);
	touch(d, buffer[1]);
	serve(d);
	EXPECT_EQ(stats_of(d).late, 0);
	give_back(d, p, 1);
	EXPECT_EQ(p->log[p->told - 1].what, DEREGISTERED);
	EXPECT_EQ(p->log[p->told - 1].region, 1);
	EXPECT_EQ(p->log[p->told - 1].now_ns, device.clock_ns);
	touch(d, buffer[2]);
	serve(d);
	next_is(p, MISS, 3, device.clock_ns - 1000);
	EXPECT_EQ(stats_of(d).late, 0);
	p->seen = p->told;
	touch(d, buffer[0]);
	EXPECT_EQ(stats_of(d).late, 1);
	serve(d);
	next_is(p, MISS, 1, device.clock_ns - 1000);
	next_is(p, REGISTERED, 1, device.clock_ns - 1000);
	next_is(p, END, 1, device.clock_ns);
	nothing_more(p);
}

/* Large and small ones, given back; what goes away overlaps some. */
TEST(of_places_that_are_not_registered_those_are_forgotten_that_the_range_touches)
{
	enum { PAGES = 64, PLACES = 12 };
	static const unsigned first[PLACES] = { 0, 0, 0, 5, 6, 6, 8, 20, 30, 30, 31, 60 };
	static const unsigned count[PLACES] = { 1, 2, 40, 1, 1, 9, 1, 3, 1, 30, 1, 4 };
	char *pages = map((size_t)PAGES * 4096);
	unsigned seed = 3;

	for (int round = 0; round < 60; round++) {
		hugepin_domain *d = open_on(&device, 0);
		struct hp_plan *p = plan_of(0);
		unsigned from = (unsigned)rand_r(&seed) % PAGES, n = 1 + (unsigned)rand_r(&seed) % 8, left = 0;
		struct hugepin_pin pin;

		for (unsigned i = 0; i < PLACES; i++) { /* the plan's numbers are i + 1 */
			EXPECT_EQ(hugepin_pin(d, pages + (size_t)first[i] * 4096, (size_t)count[i] * 4096, 0, &pin), 0);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			serve(d);
			give_back(d, p, i + 1);
		}
		EXPECT_EQ(hugepin_forget(pages + (size_t)from * 4096, (size_t)n * 4096), 0);
		for (unsigned i = 0; i < PLACES; i++)
			left += first[i] < from + n && first[i] + count[i] > from;
		EXPECT_EQ(p->told - p->seen, left);
		for (; p->seen < p->told; p->seen++) {
			unsigned i = p->log[p->seen].region - 1;

			EXPECT_EQ(p->log[p->seen].what, FORGET);
			EXPECT(i < PLACES && first[i] < from + n && first[i] + count[i] > from);
		}
		close_empty(&device, d);
	}
	munmap(pages, (size_t)PAGES * 4096);
}

TEST(of_65536_places_and_more_the_first_to_be_given_back_is_forgotten)
{
	enum { KNOWN = 1 << 16, MORE = 3 };
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	char *pages = map((size_t)2 * (KNOWN + MORE) * 4096);
	struct hugepin_pin pin;
	uint32_t forgotten = 1;

	for (uint32_t i = 0; i < KNOWN + MORE; i++) {
		EXPECT_EQ(hugepin_pin(d, pages + 2 * (size_t)i * 4096, 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		hp_helper_serve(d, &news);
		next_step(p, HP_PLAN_DEREGISTER, i <= KNOWN ? i + 1 : i - KNOWN);
		hp_helper_serve(d, &news);
		for (p->seen = 0; p->seen < p->told; p->seen++)
			if (p->log[p->seen].what == FORGET)
				EXPECT_EQ(p->log[p->seen].region, forgotten++);
		EXPECT_EQ(forgotten, i < KNOWN ? 1 : i - KNOWN + 2);
		p->told = p->seen = 0;
	}
	EXPECT_EQ(stats_of(d).released, KNOWN + MORE);
	close_empty(&device, d);
	munmap(pages, (size_t)2 * (KNOWN + MORE) * 4096);
}

TEST(of_places_for_which_there_is_no_memory_nothing_is_known_until_there_is)
{
	enum { PAGES = 6000, KNOWN = 64 };
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	char *pages = map((size_t)2 * PAGES * 4096);
	struct hugepin_pin pin;
	unsigned told;

	for (size_t i = 0; i < PAGES; i++) { /* regions have their memory */
		EXPECT_EQ(hugepin_pin(d, pages + 2 * i * 4096, 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(hugepin_forget(pages, (size_t)2 * PAGES * 4096), 0);
	close_empty(&device, d);
	d = open_on(&device, 0);
	p = plan_of(0);
	serve(d);
	machine.no_memory = true;
	for (size_t i = 0; i < PAGES; i++) {
		if (i == 3000)
			machine.no_memory = false;
		EXPECT_EQ(hugepin_pin(d, pages + 2 * i * 4096, 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		if (i % KNOWN == KNOWN - 1)
			hp_helper_serve(d, &news);
		if (i == 2999)
			EXPECT_EQ(p->told, 3 * 1023);
	}
	hp_helper_serve(d, &news);
	told = p->told;
	/* Of those with memory, and of what was on its way when there was some again. */
	EXPECT_EQ(told, 3 * (1023 + 3000 % KNOWN + PAGES - 3000));
	for (unsigned i = 0; i < told; i++)
		EXPECT(p->log[i].region > 0 && p->log[i].region <= PAGES);
	EXPECT_EQ(stats_of(d).misses, PAGES);
	close_empty(&device, d);
	munmap(pages, (size_t)2 * PAGES * 4096);
}

TEST(what_somebody_has_registered_is_told_and_what_is_part_of_more_is_forgotten)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	char *pages = map(4 * LEN);
	struct hugepin_pin pin;
	long calls;

	touch(d, buffer[0]);
	touch(d, pages);
	touch(d, pages + LEN);
	serve(d);
	give_back(d, p, 1);
	give_back(d, p, 2);
	give_back(d, p, 3);
	touch(d, buffer[0]); /* of which the plan has not heard: it is asked before */
	calls = device.calls;
	p->seen = p->told;
	next_step(p, HP_PLAN_REGISTER, 1);
	serve(d);
	next_is(p, MISS, 1, device.clock_ns - 1000);
	next_is(p, REGISTERED, 1, device.clock_ns - 1000);
	next_is(p, END, 1, device.clock_ns);
	next_is(p, REGISTERED, 1, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(device.calls, calls);
	EXPECT_EQ(stats_of(d).repinned, 0);

	EXPECT_EQ(hugepin_pin(d, pages, 4 * LEN, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	catch_up(d, p);
	next_step(p, HP_PLAN_REGISTER, 2);
	next_step(p, HP_PLAN_REGISTER, 3);
	serve(d);
	next_is(p, FORGET, 2, 0);
	next_is(p, FORGET, 3, 0);
	nothing_more(p);
	EXPECT_EQ(device.calls, calls + 1);
	touch(d, buffer[1]);
	touch(d, buffer[2]); /* by the numbers that are free again, the last first */
	touch(d, buffer[3]);
	serve(d);
	next_is(p, MISS, 3, device.clock_ns - 3000);
	next_is(p, REGISTERED, 3, device.clock_ns - 3000);
	p->seen += 1;
	EXPECT_EQ(p->log[p->seen].region, 2);
	p->seen += 3;
	EXPECT_EQ(p->log[p->seen].region, 5);
	EXPECT_EQ(stats_of(d).late, 1); /* buffer[0]: these are not what the numbers were before */
	p->seen = p->told;
	close_empty(&device, d);
	munmap(pages, 4 * LEN);
}

T_MAIN
