/*
 * The helper's share of the machine: processor time by how idle the machine is, and the processors that the option
 * names.
 */
#include "tests/unit/helper_plan.h"

static char stat_text[80];

/* All processors together have been idle for so many hundredths of a second. */
static void idle_for(unsigned ticks)
{
	snprintf(stat_text, sizeof stat_text, "cpu  101 202 303 %u 505 606\ncpu0 1 2 3 4 5\n", ticks);
	machine.stat = stat_text;
}

/* End a period. The machine has been idle for so long, and the helper has taken so much time, both in all. */
static void period(uint64_t ns, unsigned idle_ticks, uint64_t taken_ns)
{
	machine.clock_ns += ns;
	idle_for(idle_ticks);
	machine.taken_ns = taken_ns;
	hp_helper_begin(0);
}

TEST(to_save_memory_it_takes_no_more_than_it_may_and_within_a_budget_what_it_needs)
{
	for (int budget = 0; budget < 2; budget++) {
		hugepin_domain *d = open_on(&device, budget ? 64 * LEN : 0);
		struct hp_plan *p = plan_of(0);

		EXPECT_EQ(p->config.mode, budget ? HP_PLAN_BUDGET : HP_PLAN_SAVE);
		touch(d, buffer[0]);
		serve(d);
		give_back(d, p, 1);
		touch(d, buffer[1]);
		catch_up(d, p);
		fake_machine();
		period(10 * SECOND, 1000, 500 * MS);
		period(200 * MS, 1000, 500 * MS);
		machine.taken_ns += MS;
		next_step(p, HP_PLAN_DEREGISTER, 2);
		next_step(p, HP_PLAN_REGISTER, 1);
		serve(d);
		next_is(p, budget ? DEREGISTERED : FAILED, 2, device.clock_ns - 1000);
		next_is(p, REGISTERED, 1, device.clock_ns);
		nothing_more(p);
		EXPECT_EQ(stats_of(d).released, 1 + budget);
		real_machine();
		close_empty(&device, d);
	}
}

TEST(where_no_core_is_idle_it_takes_a_two_hundredth_of_one)
{
	const uint64_t allowed = MS;

	fake_machine();
	period(10 * SECOND, 1000, 500 * MS);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	period(200 * MS, 1010, 500 * MS); /* half a core */
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	period(200 * MS, 1019, 500 * MS); /* less */
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	EXPECT_EQ(hp_helper_delay_ns(true), HP_CROWDED_NS);
	machine.taken_ns += allowed - 1;
	EXPECT_EQ(hp_helper_delay_ns(true), HP_CROWDED_NS);
	machine.taken_ns += 1;
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	EXPECT_EQ(hp_helper_delay_ns(true), 200 * MS);
	machine.clock_ns += 200 * MS - 1;
	EXPECT_EQ(hp_helper_delay_ns(false), 1);
	machine.clock_ns += 1;
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS); /* a new period is about to begin */
	machine.clock_ns -= 1;
	period(0, 1019, machine.taken_ns); /* not yet */
	EXPECT_EQ(hp_helper_delay_ns(false), 1);
	period(1, 1019, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	machine.taken_ns += 3 * allowed; /* more than may be: it is taken off the next */
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	period(200 * MS, 1019, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	period(200 * MS, 1019, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	period(200 * MS, 1019, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	machine.taken_ns += 10 * allowed;
	period(200 * MS, 1029, machine.taken_ns); /* idle: what was taken does not count */
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	period(200 * MS, 1029, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	machine.taken_ns += allowed;
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	period(10 * SECOND, 3000, 500 * MS);
	period(200 * MS + 2, 3010, 500 * MS); /* less than half by a nanosecond */
	machine.taken_ns += allowed;
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	real_machine();
}

TEST(where_the_kernel_does_not_say_it_takes_what_it_needs)
{
	static const char *const text[] = { "", "cpu", "cpu  1 2 3", "intr 1 2 3 4 5\n", "cpu  1 2 3 x 5\n" };

	fake_machine();
	for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
		period(10 * SECOND, 1000, 500 * MS);
		period(200 * MS, 1000, 500 * MS);
		machine.taken_ns += SECOND;
		EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
		machine.clock_ns += SECOND;
		machine.stat = text[i];
		hp_helper_begin(0);
		machine.taken_ns += SECOND;
		EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	}
	real_machine();
}

TEST(the_processors_are_those_of_the_option)
{
	__typeof__(hp_config.helper_cpu) was = hp_config.helper_cpu;
	int saved;

	for (unsigned cpu = 0; cpu < 4096; cpu += cpu < 130 ? 1 : 317) {
		hp_config.helper_cpu = (__typeof__(was))cpu;
		machine.masks = 0;
		begin_anew();
		EXPECT_EQ(machine.masks, 1);
		EXPECT_EQ(machine.mask_bytes, 512);
		for (unsigned i = 0; i < 64; i++)
			EXPECT_EQ(machine.mask[i], i == cpu / 64 ? 1ul << cpu % 64 : 0);
	}
	hp_helper_begin(0); /* once */
	EXPECT_EQ(machine.masks, 1);

	machine.mask_refused = true;
	machine.said[0] = '\0';
	hp_config.helper_cpu = HP_CPU_ANY;
	errno = saved = 77;
	begin_anew();
	EXPECT_EQ(errno, saved);
	EXPECT_EQ(machine.masks, 2);
	for (unsigned i = 0; i < 64; i++)
		EXPECT_EQ(machine.mask[i], ~0ul);
	EXPECT(!machine.said[0]);
	hp_config.helper_cpu = 0;
	begin_anew();
	EXPECT(!strcmp(machine.said, "hugepin: HUGEPIN_HELPER_CPU: the helper may not run on 0\n"));
	machine.said[0] = '\0';
	machine.mask_refused = false;
	begin_anew();
	EXPECT(!machine.said[0]);
	machine.masks = 0;
	hp_config.helper_cpu = HP_CPU_INHERIT;
	begin_anew();
	EXPECT_EQ(machine.masks, 0);
	hp_config.helper_cpu = was;
}

T_MAIN
