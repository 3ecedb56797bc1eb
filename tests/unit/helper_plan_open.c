/*
 * A domain's plan and helper: the options and the domain choose the plan, and a child of fork gives its copy back.
 */
#include <sys/wait.h>

#include "tests/unit/helper_plan.h"

TEST(a_plan_is_made_as_the_options_and_the_domain_say)
{
	static const struct {
		uint32_t policy;
		uint64_t max;
		int option;
		enum hp_plan_policy is;
		enum hp_plan_mode mode;
		uint64_t budget;
	} cases[] = {
		{ HUGEPIN_POLICY_PREDICT, 0, HP_PREDICT_AUTO, HP_PLAN_PREDICT, HP_PLAN_SAVE, UINT64_MAX },
		{ HUGEPIN_POLICY_CF11, 0, HP_PREDICT_AUTO, HP_PLAN_CF11, HP_PLAN_SAVE, UINT64_MAX },
		{ HUGEPIN_POLICY_CF11, UINT64_MAX, HP_PREDICT_AUTO, HP_PLAN_CF11, HP_PLAN_SAVE, UINT64_MAX },
		{ HUGEPIN_POLICY_PREDICT, UINT64_MAX - 2, HP_PREDICT_AUTO, HP_PLAN_PREDICT, HP_PLAN_BUDGET,
		  UINT64_MAX - 2 },
		{ HUGEPIN_POLICY_PREDICT, 1 << 20, HP_PREDICT_AUTO, HP_PLAN_PREDICT, HP_PLAN_BUDGET, 1 << 20 },
		{ HUGEPIN_POLICY_PREDICT, 1 << 20, HP_PREDICT_SAVE, HP_PLAN_PREDICT, HP_PLAN_SAVE, 1 << 20 },
		{ HUGEPIN_POLICY_PREDICT, 1 << 20, HP_PREDICT_BUDGET, HP_PLAN_PREDICT, HP_PLAN_BUDGET, 1 << 20 },
		{ HUGEPIN_POLICY_CF11, 0, HP_PREDICT_BUDGET, HP_PLAN_CF11, HP_PLAN_BUDGET, UINT64_MAX },
		{ HUGEPIN_POLICY_CF11, 0, HP_PREDICT_SAVE, HP_PLAN_CF11, HP_PLAN_SAVE, UINT64_MAX },
	};
	__typeof__(hp_config.predict_mode) was = hp_config.predict_mode;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hugepin_attr attr = { .size = sizeof attr,
					     .policy = cases[i].policy,
					     .watch = HUGEPIN_WATCH_PROGRAM,
					     .pinned_bytes_max = cases[i].max };
		const struct hp_plan_config *c;
		hugepin_domain *d = NULL;

		hp_config.predict_mode = (__typeof__(was))cases[i].option;
		device_reset(&device);
		EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
		c = &plan_of(0)->config;
		EXPECT_EQ(c->policy, cases[i].is);
		EXPECT_EQ(c->mode, cases[i].mode);
		EXPECT(c->budget == cases[i].budget);
		EXPECT_EQ(c->memory, hp_config.predict_memory);
		EXPECT(c->arg == d->helper);
		EXPECT(d->attention & HP_HELPED);
		close_empty(&device, d);
		EXPECT(!c->arg); /* it was freed */
		EXPECT(!d->helper);
	}
	hp_config.predict_mode = was;
}

TEST(a_child_gives_back_its_copy_of_a_helper)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	int status = 1;
	pid_t pid;

	touch(d, buffer[0]);
	pid = fork();
	if (pid == 0) {
		struct hugepin_attr attr = { .size = sizeof attr,
						     .policy = HUGEPIN_POLICY_LRU,
						     .watch = HUGEPIN_WATCH_PROGRAM };
		static struct device own;
		hugepin_domain *mine = NULL;

		t_failures = 0;
		EXPECT_EQ(hugepin_domain_close(d), 0);
		EXPECT(!d->helper);
		EXPECT(!p->config.arg); /* it was freed */
		EXPECT_EQ(device.closed, 1);
		EXPECT_EQ(hugepin_domain_close(d), -EINVAL);
		device_reset(&own);
		EXPECT_EQ(hugepin_domain_open(&device_backend, &own, &attr, &mine), 0);
		EXPECT(mine == d && !mine->helper && !(mine->attention & HP_HELPED));
		touch(mine, buffer[0]);
		close_empty(&own, mine);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	EXPECT(d->helper && p->config.arg);
	close_empty(&device, d);
}

T_MAIN
