/*
 * Other processes with helpers: the helper posts its use and its policy, and their verdict says whether and how early
 * it helps.
 */
#include "tests/unit/helper_plan.h"

DOMAIN_TEST(other_processes_are_told_once_in_128_uses_of_the_bytes_of_all_places, open_on(&device, 0))
{
	hugepin_domain *lru = NULL;
	struct hugepin_attr attr = { .size = sizeof attr,
					     .policy = HUGEPIN_POLICY_LRU,
					     .watch = HUGEPIN_WATCH_PROGRAM };
	static struct device second;
	uint32_t a = touch(d, buffer[0]);

	device_reset(&second);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &second, &attr, &lru), 0);
	touch(lru, buffer[9]);
	touch(d, buffer[1]);
	touch(d, buffer[2]);
	serve(d);
	give_back(d, plan_of(0), 1); /* counts as well */
	a = touch(d, buffer[1]);
	serve(d);
	begin_anew();
	EXPECT_EQ(others.bytes, 3 * LEN);
	EXPECT_EQ(others.policy,
		  hp_config.helper == HP_HELPER_AGGRESSIVE ? HP_SHARE_AGGRESSIVE : HP_SHARE_CONSERVATIVE);
	for (int i = 0; i < HP_SHARE_PERIOD - 1; i++)
		leave(device.clock_ns, HP_RECORD_START, a);
	serve(d);
	hp_helper_begin(0);
	EXPECT_EQ(others.posts, 0);
	EXPECT_EQ(hugepin_forget(buffer[2], LEN), 0);
	others.result = -EAGAIN;
	leave(device.clock_ns, HP_RECORD_START, a);
	serve(d);
	hp_helper_begin(0);
	EXPECT_EQ(others.posts, 1);
	EXPECT_EQ(others.bytes, 2 * LEN);
	hp_helper_begin(0); /* another process was at it */
	EXPECT_EQ(others.posts, 2);
	others.result = 0;
	hp_helper_begin(0);
	hp_helper_begin(0);
	EXPECT_EQ(others.posts, 3);
	EXPECT_EQ(hugepin_forget(buffer[0], 2 * LEN * 3), 0);
	serve(d);
	begin_anew();
	EXPECT_EQ(others.bytes, 0);
	close_empty(&second, lru);
}

TEST(each_policy_is_told_by_its_name)
{
	static const struct {
		int option;
		enum hp_share_policy policy;
	} is[] = { { HP_HELPER_CONSERVATIVE, HP_SHARE_CONSERVATIVE }, { HP_HELPER_AGGRESSIVE, HP_SHARE_AGGRESSIVE },
		   { HP_HELPER_OFF, HP_SHARE_OFF } };
	__typeof__(hp_config.helper) was = hp_config.helper;

	for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
		hp_config.helper = is[i].option;
		begin_anew();
		EXPECT_EQ(others.policy, is[i].policy);
	}
	hp_config.helper = was;
}

DOMAIN_TEST(who_may_not_help_asks_for_no_plan_and_who_shares_a_core_begins_earlier, open_on(&device, 0))
{
	struct hp_plan *p = plan_of(0);
	uint64_t cost;
	unsigned asked;

	begin_anew();
	touch(d, buffer[0]);
	serve(d);
	EXPECT_EQ(stats_of(d).sharers, 1);
	cost = cost_of(p, 1, LEN, true);
	hp_helper_child();
	others.verdict = (struct hp_share_verdict){ false, 3 };
	hp_helper_begin(0);
	asked = p->asked;
	p->until_ns = 5;
	device.clock_ns += MS;
	touch(d, buffer[0]);
	EXPECT_EQ(serve(d), UINT64_MAX);
	EXPECT_EQ(p->asked, asked);
	EXPECT_EQ(p->log[p->told - 1].now_ns, device.clock_ns); /* but it listens */
	EXPECT_EQ(stats_of(d).sharers, 0);

	begin_anew(); /* alone again: from how late it comes, it knows nothing new */
	hp_helper_child();
	others.verdict = (struct hp_share_verdict){ true, 19 };
	hp_helper_begin(0);
	EXPECT_EQ(serve(d), 5);
	EXPECT_EQ(stats_of(d).sharers, 19);
	EXPECT_EQ(stats_of(d).helper_delay_ns, 19 * MS);
	EXPECT_EQ(p->lead_ns, 19 * MS);
	EXPECT_EQ(cost_of(p, 1, LEN, true), cost + 18 * 1000);
	hp_helper_child();
	others.verdict.sharers = 18; /* fewer: what was measured stays */
	hp_helper_begin(0);
	hp_helper_child();
	hp_helper_begin(0);
	serve(d);
	EXPECT_EQ(p->lead_ns, 19 * MS);
	begin_anew();
}

T_MAIN
