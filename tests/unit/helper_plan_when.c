/*
 * The time of the helper's next run: by the plan, after records and losses, after a domain was busy, and earlier by the
 * helper's lateness.
 */
#include "tests/unit/helper_plan.h"

DOMAIN_TEST(the_plan_says_when_to_come_again, open_on(&device, 0))
{
	struct hp_plan *p = plan_of(0);

	serve(d); /* records of the last domain may be there */
	EXPECT_EQ(serve(d), UINT64_MAX);
	EXPECT(!news.any && !news.busy && !news.crowded);
	p->until_ns = 12345;
	EXPECT_EQ(serve(d), 12345);
	touch(d, buffer[0]);
	EXPECT_EQ(serve(d), 12345);
	EXPECT(news.any && !news.busy && !news.crowded);
	EXPECT_EQ(serve(d), 12345);
	EXPECT(!news.any);
	EXPECT(stats_of(d).helper_ns > 0);
	EXPECT(stats_of(d).helper_ns < 60 * SECOND);
}

static uint64_t lead(hugepin_domain *d, uint64_t late_ns)
{
	hp_helper_begin(late_ns);
	serve(d);
	EXPECT_EQ(stats_of(d).helper_delay_ns, plan_of(0)->lead_ns);
	return plan_of(0)->lead_ns;
}

DOMAIN_TEST(how_late_it_comes_is_learnt_at_once_and_forgotten_slowly, open_on(&device, 0))
{
	uint64_t ns;

	begin_anew();
	EXPECT_EQ(lead(d, 50 * MS), 20 * MS); /* no later than that is reckoned with */
	ns = lead(d, 0); /* woken for a record */
	EXPECT_EQ(ns, 20 * MS);
	for (int i = 0; i < 700; i++) {
		uint64_t expected = ns - (ns - MS) / 32;

		ns = lead(d, MS);
		EXPECT_EQ(ns, expected);
	}
	EXPECT(ns < MS + 100);
	EXPECT_EQ(lead(d, 3 * MS), 3 * MS);
	EXPECT_EQ(lead(d, 3 * MS), 3 * MS);
	EXPECT_EQ(lead(d, 3 * MS + 1), 3 * MS + 1);
}

/* The helper's job: when it is to run again, and how long after the next record. */
static void comes(uint64_t again_ns, uint64_t delay_ns)
{
	EXPECT(!run_helper());
	EXPECT_EQ(hp_serve_helper_job.again_ns, again_ns);
	EXPECT_EQ(hp_serve_helper_job.delay_ns, delay_ns);
}

TEST(it_comes_again_soon_after_records_sooner_after_losses_and_else_when_the_plan_says)
{
	static const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_CF11,
						  .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_backend backend = device_backend;
	hugepin_domain *d = NULL;
	struct hp_plan *p;

	backend.now_ns = NULL;
	idle_machine();
	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &d), 0);
	p = plan_of(0);
	begin_anew();
	run_helper();
	run_helper();
	comes(0, HP_GATHER_NS); /* not before the next record */
	p->until_ns = machine.clock_ns + SECOND;
	comes(machine.clock_ns + SECOND, HP_GATHER_NS);
	touch(d, buffer[0]);
	comes(machine.clock_ns + HP_AGAIN_NS, HP_GATHER_NS);
	p->until_ns = machine.clock_ns + MS;
	touch(d, buffer[0]);
	comes(machine.clock_ns + MS, HP_GATHER_NS); /* the sooner of the two */
	lose(d, 1);
	p->until_ns = UINT64_MAX;
	comes(machine.clock_ns + HP_CROWDED_NS, HP_CROWDED_NS);
	comes(0, HP_GATHER_NS);

	/* How late it comes: it was to wake at that time, and woke then. */
	p->until_ns = machine.clock_ns + SECOND;
	comes(machine.clock_ns + SECOND, HP_GATHER_NS);
	machine.clock_ns += SECOND + 19 * MS;
	p->until_ns = UINT64_MAX;
	comes(0, HP_GATHER_NS);
	EXPECT(p->lead_ns >= 19 * MS);
	machine.clock_ns += SECOND; /* it was not to wake before a record */
	for (int i = 0; i < 100; i++)
		comes(0, HP_GATHER_NS);
	EXPECT(p->lead_ns >= 19 * MS);
	p->until_ns = machine.clock_ns + SECOND;
	comes(machine.clock_ns + SECOND, HP_GATHER_NS);
	machine.clock_ns += MS; /* by a record, before it was to */
	for (int i = 0; i < 10; i++)
		comes(p->until_ns, HP_GATHER_NS);
	EXPECT(p->lead_ns >= 19 * MS);
	close_empty(&device, d);
	real_machine();
}

/* Whoever moves the device's clock has to wake the helper. */
DOMAIN_TEST(by_a_clock_of_the_devices_it_comes_again_for_records_and_losses_alone, open_on(&device, 0))
{
	hugepin_domain *lru = NULL;
	struct hugepin_attr attr = { .size = sizeof attr,
					     .policy = HUGEPIN_POLICY_LRU,
					     .watch = HUGEPIN_WATCH_PROGRAM };
	static struct device second;
	struct hp_plan *p = plan_of(0);

	device_reset(&second);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &second, &attr, &lru), 0); /* has no helper */
	idle_machine();
	run_helper();
	run_helper();
	p->until_ns = device.clock_ns + 5;
	comes(0, HP_GATHER_NS);
	touch(d, buffer[0]);
	comes(machine.clock_ns + HP_AGAIN_NS, HP_GATHER_NS);
	lose(d, 1);
	comes(machine.clock_ns + HP_CROWDED_NS, HP_CROWDED_NS);
	comes(0, HP_GATHER_NS);
	real_machine();
	close_empty(&second, lru);
}

static hugepin_domain *slow;
static _Atomic int holding; /* 1: the lock is held; 2: it is to be let go */

static void *hold_lock(void *unused)
{
	hp_domain_lock(slow);
	holding = 1;
	while (holding == 1)
		usleep(1000);
	hp_domain_unlock(slow);
	return unused;
}

DOMAIN_TEST(a_domain_in_a_slow_call_is_served_after_the_others_and_soon_again, open_on(&device, 0))
{
	T_THREADS_RUN(1);
	static struct device second;
	struct hp_plan *p;
	pthread_t other;

	slow = open_on(&second, 0);
	p = plan_of(1);
	idle_machine();
	run_helper();
	run_helper();
	touch(d, buffer[0]);
	touch(slow, buffer[1]);
	holding = 0;
	pthread_create(&other, NULL, hold_lock, NULL);
	while (!holding)
		usleep(1000);
	p->told = 0;
	comes(machine.clock_ns + 10 * MS, HP_GATHER_NS);
	EXPECT_EQ(p->told, 3);
	EXPECT_EQ(slow->helper->queue.count, 1);
	holding = 2;
	pthread_join(other, NULL);
	comes(machine.clock_ns + HP_AGAIN_NS, HP_GATHER_NS);
	EXPECT_EQ(slow->helper->queue.count, 0);
	real_machine();
	close_empty(&second, slow);
}

T_MAIN
