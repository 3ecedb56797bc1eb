/*
 * The cost of the plan that predicts: CPU time of an event in ns, and memory. An event is that a use begins or ends;
 * after each the plan is asked what to do, and told that it is done. The regions are used in a loop, with compute times
 * that vary by 2 %, or at random. One line of key=value pairs a case.
 *
 *	helper [CASE]
 */
#include <err.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib.h"
#include "reg/policy/plan.h"

#define REGION 65536ull /* bytes */
#define ROUNDS 9 /* the median of them is printed */

static const struct kind {
	const char *name;
	uint32_t regions, loop; /* of all regions, the first `loop` are used in turn once all have been used */
	bool random;
	enum hp_plan_mode mode;
	uint32_t events; /* in a round */
} kinds[] = {
	{ "loop-25", 25, 25, false, HP_PLAN_SAVE, 20000 },
	{ "random-25", 25, 25, true, HP_PLAN_SAVE, 20000 },
	{ "budget-25", 25, 25, false, HP_PLAN_BUDGET, 20000 },
	{ "loop-25-of-100000", 100000, 25, false, HP_PLAN_SAVE, 20000 },
	{ "loop-100000", 100000, 100000, false, HP_PLAN_SAVE, 20000 },
	{ "random-100000", 100000, 100000, true, HP_PLAN_SAVE, 20000 },
	{ "budget-100000", 100000, 100000, false, HP_PLAN_BUDGET, 20000 },
	{ "random-1000000", 1000000, 1000000, true, HP_PLAN_SAVE, 20000 },
};

static uint64_t seed = 1;
static uint64_t plan_ns; /* of the plan */
static bool *registered, *in_use;
static uint32_t regions, hand;
static uint64_t bytes, budget;
static uint64_t events;

static uint64_t rnd(uint64_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % n;
}

static uint64_t cost_ns(void *arg, uint32_t region, uint64_t bytes, bool registering)
{
	(void)arg, (void)region;
	uint64_t ns = 16000 + bytes * 6 / 100;
	return registering ? ns : ns * 2 / 5;
}

/* Carry out the plan until the next event, as the helper does. */
static void help(struct hp_plan *p, uint64_t until_ns)
{
	while (plan_ns < until_ns) {
		struct hp_plan_step step = hp_plan_next(p, plan_ns);
		if (step.what == HP_PLAN_WAIT) {
			plan_ns = step.until_ns < until_ns ? step.until_ns : until_ns;
		} else {
			bool registering = step.what == HP_PLAN_REGISTER;
			plan_ns += cost_ns(NULL, step.region, REGION, registering);
			registered[step.region] = registering;
			bytes += registering ? REGION : -REGION;
			if (registering)
				hp_plan_registered(p, step.region, plan_ns);
			else
				hp_plan_deregistered(p, step.region, plan_ns);
		}
	}
}

/* The victim that the plan names; any region if it names none. */
static void evict(struct hp_plan *p)
{
	uint32_t victim = hp_plan_victim(p, plan_ns);

	while (!victim || !registered[victim] || in_use[victim])
		victim = hand = 1 + hand % regions;
	registered[victim] = false;
	bytes -= REGION;
	hp_plan_deregistered(p, victim, plan_ns);
}

static void use(struct hp_plan *p, uint32_t region)
{
	bool hit = registered[region];

	in_use[region] = true;
	hp_plan_start(p, region, REGION, region % 7, plan_ns, hit);
	if (!hit) {
		while (bytes + REGION > budget)
			evict(p);
		bytes += REGION;
		hp_plan_registered(p, region, plan_ns += 20000);
	}
	registered[region] = true;
	help(p, plan_ns + 5000);
	in_use[region] = false;
	hp_plan_end(p, region, plan_ns);
	help(p, plan_ns + 490000 + rnd(20000));
	events += 2;
}

static uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void measure(const struct kind *k)
{
	double ns[ROUNDS];
	struct hp_plan_stats stats;
	struct hp_plan_config config = { HP_PLAN_PREDICT, k->mode, UINT64_MAX, (size_t)4 << 20, cost_ns, NULL, 0 };

	if (k->mode == HP_PLAN_BUDGET)
		config.budget = k->regions / 4 * REGION;
	struct hp_plan *p = hp_plan_new(&config);
	registered = calloc(k->regions + 1, sizeof *registered);
	in_use = calloc(k->regions + 1, sizeof *in_use);
	if (!p || !registered || !in_use)
		err(1, "no memory");
	plan_ns = bytes = 0;
	regions = k->regions;
	budget = config.budget;
	for (uint32_t i = 1; i <= k->regions; i++)
		use(p, i);
	uint32_t at = 0;
	for (int round = 0; round < ROUNDS; round++) {
		events = 0;
		uint64_t start = clock_ns();
		while (events < k->events)
			use(p, 1 + (k->random ? (uint32_t)rnd(k->loop) : at++ % k->loop));
		ns[round] = (double)(clock_ns() - start) / (double)events;
	}
		hp_plan_stats(p, &stats);
	printf("case=%s regions=%u ns_per_event=%.0f ns_per_event_max=%.0f memory=%llu contexts=%llu known=%llu "
	       "forgotten=%llu\n",
	       k->name, k->regions, ns[ROUNDS / 2], ns[ROUNDS - 1], (unsigned long long)stats.memory,
	       (unsigned long long)stats.contexts, (unsigned long long)stats.regions,
	       (unsigned long long)stats.forgotten);
	hp_plan_free(p);
	free(registered);
	free(in_use);
}

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (argc < 2 || !strcmp(argv[1], kinds[i].name))
			measure(&kinds[i]);
	return 0;
}
