/*
 * Steps that a plan asks for: the helper deregisters, registers, makes memory present for the opener, evicts a victim,
 * and tells the plan of each step that fails.
 */
#include "tests/unit/helper_plan.h"

DOMAIN_TEST(what_cannot_be_done_is_told_to_have_failed, open_on(&device, 0))
{
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin = pinned(d, buffer[0]);

	catch_up(d, p);
	next_step(p, HP_PLAN_DEREGISTER, 1); /* in use */
	EXPECT_EQ(serve(d), UINT64_MAX);
	next_is(p, FAILED, 1, device.clock_ns);
	EXPECT_EQ(stats_of(d).released, 0);
	EXPECT_EQ(p->asked, 3); /* and goes on */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	give_back(d, p, 1);
	next_step(p, HP_PLAN_DEREGISTER, 1); /* has been */
	serve(d);
	next_is(p, FAILED, 1, device.clock_ns);
	device.nth = 1;
	device.with = -EIO;
	next_step(p, HP_PLAN_REGISTER, 1);
	serve(d);
	next_is(p, FAILED, 1, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(stats_of(d).repinned, 0);
	EXPECT_EQ(stats_of(d).released, 1);
}

static void *serve_there(void *d)
{
	serve(d);
	return NULL;
}

TEST(for_the_opener_memory_is_made_present_and_nothing_given_back)
{
	T_THREADS_RUN(1);
	hugepin_domain *d =
		device_open(&device, (struct hugepin_limits){ .flags = HUGEPIN_LIMIT_OPENER },
			    (struct hugepin_attr){ .policy = HUGEPIN_POLICY_PREDICT, .watch = HUGEPIN_WATCH_PROGRAM });
	char *pages = map(2 * LEN);
	unsigned char there[2 * LEN / 4096];
	struct hp_plan *p = plan_of(0);
	pthread_t other;

	touch(d, pages);
	touch(d, buffer[0]);
	serve(d);
	give_back(d, p, 1);
	EXPECT_EQ(madvise(pages, 2 * LEN, MADV_DONTNEED), 0);
	next_step(p, HP_PLAN_DEREGISTER, 2);
	next_step(p, HP_PLAN_REGISTER, 1);
	errno = 77;
	pthread_create(&other, NULL, serve_there, d);
	pthread_join(other, NULL);
	EXPECT_EQ(mincore(pages, 2 * LEN, there), 0);
	for (size_t i = 0; i < sizeof there; i++)
		EXPECT_EQ(there[i] & 1, i < LEN / 4096);
	next_is(p, FAILED, 2, device.clock_ns);
	next_is(p, FAILED, 1, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(stats_of(d).released, 1);
	EXPECT_EQ(stats_of(d).repinned, 0);
	close_empty(&device, d);
	munmap(pages, 2 * LEN);
}

DOMAIN_TEST(a_victim_is_asked_for_after_eight_records_and_sixteen_times_at_most, open_on(&device, 2 * LEN))
{
	struct hp_plan *p = plan_of(0);
	uint32_t a = touch(d, buffer[0]);

	touch(d, buffer[1]);
	catch_up(d, p);
	p->victim = 1;
	for (int i = 0; i < 20; i++)
		leave(device.clock_ns, HP_RECORD_START, a);
	touch(d, buffer[2]); /* makes room: 1 goes */
	EXPECT_EQ(p->victims_asked, 1);
	EXPECT_EQ(stats_of(d).evicted, 1);
	for (int i = 0; i < 8; i++)
		next_is(p, START, 1, device.clock_ns - 2000);
	for (int i = 0; i < 8; i++)
		EXPECT_EQ(p->log[p->seen++].what, END);
	EXPECT_EQ(p->log[p->seen++].what, DEREGISTERED);
	nothing_more(p);
	serve(d); /* the others are of a region that is no more, or of another with its index */
	p->seen = p->told;

	p->victim = 0;
	p->seen = p->told;
	touch(d, buffer[0]);
	EXPECT_EQ(p->victims_asked, 2); /* it knows of none: the clock does */
	EXPECT_EQ(stats_of(d).evicted, 2);
}

DOMAIN_TEST(who_is_used_since_is_no_victim_however_often_it_is_named, open_on(&device, 2 * LEN))
{
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin;

	touch(d, buffer[0]);
	touch(d, buffer[1]);
	serve(d);
	pin = pinned(d, buffer[0]);
	/* the plan does not hear of it */
	hp_counts_records(hp_counts_self)->tail = hp_counts_records(hp_counts_self)->head;
	p->seen = p->told;
	p->victim = 1;
	touch(d, buffer[2]);
	EXPECT_EQ(p->victims_asked, 16);
	for (int i = 0; i < 16; i++)
		next_is(p, FAILED, 1, device.clock_ns - 2000);
	EXPECT_EQ(p->log[p->seen].what, DEREGISTERED); /* by the clock */
	EXPECT_EQ(p->log[p->seen].region, 2);
	p->seen = p->told;
	EXPECT_EQ(stats_of(d).evicted, 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

T_MAIN
