/*
 * Costs of registrations: the helper learns the costs from each step, by the pages behind a place, and shows the costs
 * in the statistics.
 */
#include "reg/policy/cost.h"
#include "tests/unit/helper_plan.h"

TEST(what_is_given_back_and_registered_again_is_told_counted_and_its_cost_learnt)
{
	hugepin_domain *d;
	struct hp_plan *p;
	struct hp_cost cost = {0};
	struct hp_cost_fit fit;
	struct hugepin_domain_stats s;

	open_used(&d, &p);
	EXPECT_EQ(cost_of(p, 1, LEN, true), hp_cost_ns(&cost, HP_COST_BASE, LEN, HP_COST_REGISTER) + 1000);
	EXPECT_EQ(cost_of(p, 1, LEN, false), hp_cost_ns(&cost, HP_COST_BASE, LEN, HP_COST_DEREGISTER) + 1000);
	for (int i = 0; i < 5; i++) {
		next_step(p, HP_PLAN_DEREGISTER, 1);
		serve(d);
		next_is(p, DEREGISTERED, 1, device.clock_ns);
		nothing_more(p);
		hp_cost_learn(&cost, HP_COST_BASE, LEN, HP_COST_DEREGISTER, 1000);
		EXPECT_EQ(device.regs, 0);
		EXPECT_EQ(cost_of(p, 1, LEN, false), hp_cost_ns(&cost, HP_COST_BASE, LEN, HP_COST_DEREGISTER) + 1000);

		next_step(p, HP_PLAN_REGISTER, 1);
		serve(d);
		next_is(p, REGISTERED, 1, device.clock_ns);
		nothing_more(p);
		hp_cost_learn(&cost, HP_COST_BASE, LEN, HP_COST_REGISTER, 1000);
		EXPECT_EQ(device.regs, 1);
		EXPECT_EQ(cost_of(p, 1, LEN, true), hp_cost_ns(&cost, HP_COST_BASE, LEN, HP_COST_REGISTER) + 1000);
		s = stats_of(d);
		EXPECT(hp_cost_fit(&cost, HP_COST_BASE, 1, HP_COST_REGISTER, &fit));
		EXPECT_EQ(s.cost_fixed_ns, HP_MAX((int64_t)fit.fixed_ns, 0));
		EXPECT_EQ(s.cost_page_ns, HP_MAX((int64_t)fit.page_ns, 0));
		EXPECT_EQ(s.cost_error, hp_cost_error_permille(&cost));
		EXPECT_EQ(s.released, i + 1);
		EXPECT_EQ(s.repinned, i + 1);
		EXPECT_EQ(s.late, 0);
	}
	device.clock_ns += MS;
	touch(d, buffer[0]); /* a hit, the first since */
	EXPECT_EQ(stats_of(d).misses, 1);
	serve(d);
	next_is(p, START, 1, device.clock_ns);
	next_is(p, END, 1, device.clock_ns);
	nothing_more(p);
	close_empty(&device, d);
}

TEST(costs_shown_are_of_the_class_that_was_registered_most_often)
{
	static const size_t len[] = {4096, HP_PAGE};
	static const unsigned class[] = {0, 4};
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	struct hp_cost cost = {0};
	struct hp_cost_fit fit;
	char *large = map(2 * HP_PAGE);
	struct hugepin_pin pin;

	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(hugepin_pin(d, large + (i ? HP_PAGE : 0), len[i], 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	serve(d);
	for (unsigned i = 0; i < 20; i++) {
		unsigned most = i < 8 ? 1 : 0, which = i % 4 == 1 ? !most : most;

		next_step(p, HP_PLAN_DEREGISTER, which + 1);
		next_step(p, HP_PLAN_REGISTER, which + 1);
		serve(d);
		hp_cost_learn(&cost, HP_COST_BASE, len[which], HP_COST_REGISTER, 1000);
		if (i != 7 && i != 19)
			continue;
		EXPECT(hp_cost_fit(&cost, HP_COST_BASE, class[most], HP_COST_REGISTER, &fit));
		EXPECT_EQ(stats_of(d).cost_fixed_ns, HP_MAX((int64_t)fit.fixed_ns, 0));
		EXPECT_EQ(stats_of(d).cost_page_ns, HP_MAX((int64_t)fit.page_ns, 0));
	}
	close_empty(&device, d);
	munmap(large, 2 * HP_PAGE);
}

TEST(costs_are_of_the_pages_behind_a_place)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	struct hp_cost cost = {0};
	char *heap = hugepin_aligned_alloc(HP_PAGE, HP_PAGE);
	struct hugepin_extent x;
	unsigned backing;
	struct hugepin_pin pin;

	EXPECT(hp_heap_extent(heap, &x));
	backing = x.kind == HUGEPIN_KIND_HUGETLB ? HP_COST_HUGETLB
		  : x.kind == HUGEPIN_KIND_THP	 ? HP_COST_THP
						 : HP_COST_BASE;
	EXPECT_EQ(hugepin_pin(d, heap, HP_PAGE, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	touch(d, buffer[0]);
	serve(d);
	for (int i = 0; i < 20; i++) {
		next_step(p, HP_PLAN_DEREGISTER, 1);
		next_step(p, HP_PLAN_REGISTER, 1);
		serve(d);
		hp_cost_learn(&cost, backing, HP_PAGE, HP_COST_DEREGISTER, 1000);
		hp_cost_learn(&cost, backing, HP_PAGE, HP_COST_REGISTER, 1000);
	}
	for (int registering = 0; registering < 2; registering++) {
		EXPECT_EQ(cost_of(p, 1, HP_PAGE, registering),
			  hp_cost_ns(&cost, backing, HP_PAGE, registering ? HP_COST_REGISTER : HP_COST_DEREGISTER) +
				  1000);
		EXPECT_EQ(
			cost_of(p, 2, HP_PAGE, registering),
			hp_cost_ns(&cost, HP_COST_BASE, HP_PAGE, registering ? HP_COST_REGISTER : HP_COST_DEREGISTER) +
				1000);
	}
	close_empty(&device, d);
	hugepin_free(heap);
}

T_MAIN
