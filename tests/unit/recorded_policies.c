/*
 * The policies under programs of many shapes, by their own clock, and the parts that they are made of: what comes out
 * is what was recorded (tests/recorded.h). Times and sizes are of a coarse grid in half of the shapes, so that what is
 * compared is often equal.
 *
 * Guesses are floating point, which AArch64's compilers round differently, as they fuse multiplications and additions.
 * One result that differs changes all after it. So what has guesses is recorded for x86-64 alone.
 */
#include <stdlib.h>

#include "base/base.h"
#include "reg/policy/cost.h"
#include "reg/policy/paging.h"
#include "reg/policy/plan.h"
#include "reg/policy/predict.h"
#include "reg/policy/timeline.h"
#include "tests/recorded.h"
#include "tests/rnd.h"

#define NEVER UINT64_MAX
enum { US = 1000, MS = 1000000, REGIONS = 4096, STEPS = 2000 };

#ifdef __x86_64__
#define ROUNDS_AS_RECORDED() (void)0
#else
#define ROUNDS_AS_RECORDED() SKIP("recorded for x86-64, where multiplications and additions are not fused")
#endif

/* ------------------------------------------------------------------ a program and a helper */

static struct {
	struct hp_plan *plan;
	struct hp_plan_config config;
	uint64_t now, held;
	bool slow; /* a step of the helper takes its time */
	unsigned misses, released, repinned;
	struct {
		uint64_t bytes;
		bool registered;
		unsigned uses;
	} region[REGIONS];
} world;

static uint64_t takes(void *arg, uint32_t region, uint64_t bytes, bool registering)
{
	(void)arg;
	return (uint64_t)(registering ? 16 * US : 6 * US) * (region % 7 ? 1 : 10) + bytes / 16;
}

static uint64_t when(uint64_t at_ns)
{
	return at_ns == NEVER ? 0 : at_ns - world.now + 1;
}

static void turn(uint32_t r, bool registered)
{
	if (world.region[r].registered == registered)
		return;
	world.region[r].registered = registered;
	world.held += registered ? world.region[r].bytes : -world.region[r].bytes;
	if (registered)
		hp_plan_registered(world.plan, r, world.now);
	else
		hp_plan_deregistered(world.plan, r, world.now);
}

/* The helper does what the plan asks until then. */
static void help(uint64_t until)
{
	for (unsigned i = 0; i < 100; i++) {
		struct hp_plan_step step = hp_plan_next(world.plan, world.now);
		uint32_t r = step.region;

		note("%d %u %llu", step.what, step.what == HP_PLAN_WAIT ? 0 : r,
		     step.what == HP_PLAN_WAIT ? (unsigned long long)when(step.until_ns) : 0);
		if (step.what == HP_PLAN_WAIT) {
			if (step.until_ns >= until)
				break;
			world.now = step.until_ns > world.now ? step.until_ns : world.now;
			continue;
		}
		EXPECT(r < REGIONS && world.region[r].registered == (step.what == HP_PLAN_DEREGISTER));
		if (world.slow)
			world.now += takes(NULL, r, world.region[r].bytes, step.what == HP_PLAN_REGISTER);
		if (rnd(40) == 0) {
			hp_plan_failed(world.plan, r, world.now);
			continue;
		}
		world.released += step.what == HP_PLAN_DEREGISTER;
		world.repinned += step.what == HP_PLAN_REGISTER;
		turn(r, step.what == HP_PLAN_REGISTER);
	}
	world.now = until > world.now ? until : world.now;
}

static void begin(uint32_t r, uint64_t bytes, uint64_t site)
{
	bool hit = world.region[r].registered;

	if (hit)
		world.held += bytes - world.region[r].bytes;
	world.region[r].bytes = bytes;
	world.region[r].uses++;
	hp_plan_start(world.plan, r, bytes, site, world.now, hit);
	if (hit)
		return;
	world.misses++;
	while (world.held + bytes > world.config.budget) {
		uint32_t victim = hp_plan_victim(world.plan, world.now);

		note("victim %u", victim);
		if (!victim || !world.region[victim].registered)
			break;
		turn(victim, false);
	}
	turn(r, true);
}

static void end(uint32_t r)
{
	world.region[r].uses -= world.region[r].uses > 0;
	hp_plan_end(world.plan, r, world.now);
}

static void use(uint32_t r, uint64_t bytes, uint64_t site, uint64_t after, uint64_t lasts)
{
	help(world.now + after);
	begin(r, bytes, site);
	help(world.now + lasts);
	end(r);
}

/* What a program may do at any time, and the rest of the pin cache. */
static void disturb(unsigned step)
{
	uint32_t r = 1 + (uint32_t)rnd(12);

	switch (rnd(60)) {
	case 0:
		if (!world.region[r].uses) {
			turn(r, false);
			hp_plan_forget(world.plan, r);
		}
		break;
	case 1:
		if (!world.region[r].uses)
			turn(r, false);
		break;
	case 2:
		hp_plan_set_lead(world.plan, rnd(3) * MS);
		break;
	case 3:
		end(r); /* of which no use has begun */
		break;
	case 4:
		hp_plan_registered(world.plan, REGIONS - 1, world.now);
		hp_plan_failed(world.plan, REGIONS - 1, world.now);
		hp_plan_deregistered(world.plan, REGIONS - 1, world.now);
		hp_plan_forget(world.plan, REGIONS - 1);
		break;
	case 5:
		note("victim %u", hp_plan_victim(world.plan, world.now - HP_MIN(world.now, MS)));
		break;
	default:
		break;
	}
	if (step % 50 == 0) {
		struct hp_plan_stats s;

		hp_plan_stats(world.plan, &s);
		note("%llu %llu %llu %llu", (unsigned long long)s.memory, (unsigned long long)s.contexts,
		     (unsigned long long)s.regions, (unsigned long long)s.forgotten);
	}
}

static const char *const shapes[] = { "loop", "jitter", "nested", "random", "phases", "many", "overlap", "bursts" };
enum { LOOP, JITTER, NESTED, RANDOM, PHASES, MANY, OVERLAP, BURSTS, SHAPES };

static void step_of(unsigned shape, unsigned i)
{
	uint32_t n = 6, r = 1 + i % n;
	uint64_t after = rnd(40), lasts = rnd(3); /* of arguments the compiler chooses the order */

	switch (shape) {
	case LOOP:
		use(r, MIB, r, r == 1 ? 50 * MS : 4 * MS, MS);
		break;
	case JITTER:
		use(1 + i % 9, MIB << r % 3, 1 + r % 4, (r == 1 ? 63u : 3u) * MS + after * 9973, lasts * 700001);
		break;
	case NESTED:
		use(i % 20 ? 1 + i / 10 % 2 : 3, 4 * MIB, i % 5, i % 40 ? 5 * MS : 400 * MS, 500 * US);
		break;
	case RANDOM:
		use(1 + (uint32_t)rnd(30), MIB, 0, after * MS, lasts * MS);
		break;
	case PHASES:
		n = 4 + i / 200;
		use(1 + i % n + i / 200, MIB, 7, (uint64_t[]){ 20, 40, 10, 20 }[i / 200 % 4] * MS, MS);
		break;
	case MANY:
		use(i % 3 ? 1 + i : 1 + i / 2, 64 * KIB, i % 70, 2 * MS, MS);
		break;
	case OVERLAP:
		help(world.now + 3 * MS);
		begin(1 + i % 40, MIB, 1 + i % 2);
		if (i % 4 == 3)
			begin(1 + i % 40, MIB + 4096, 3);
		help(world.now + MS);
		if (i >= 5)
			end(1 + (i - 5) % 40);
		if (i % 8 == 7)
			end(1 + i % 40);
		break;
	default:
		if (r == 1)
			help(world.now + 100 * MS);
		begin(1 + i % 16, 8 * MIB, 1);
		end(1 + i % 16);
	}
}

static void play(struct hp_plan_config config, unsigned shape, bool slow)
{
	memset(&world, 0, sizeof world);
	seed = 1 + shape;
	config.cost_ns = takes;
	world.config = config;
	world.slow = slow;
	world.now = 1000 * (uint64_t)MS;
	world.plan = hp_plan_new(&world.config);
	if (!EXPECT(world.plan))
		return;
	for (unsigned i = 0; i < STEPS; i++) {
		step_of(shape, i);
		disturb(i);
	}
	help(world.now + 5000 * (uint64_t)MS);
	for (uint32_t victim; (victim = hp_plan_victim(world.plan, world.now)) && world.region[victim].registered;) {
		note("victim %u", victim);
		turn(victim, false);
	}
	hp_plan_free(world.plan);
	noted("%s%s%s%s, %zu KiB: missed %u, released %u, repinned %u", shapes[shape],
	      config.mode == HP_PLAN_BUDGET ? ", budget" : config.budget != NEVER ? ", saves in a budget" : "",
	      config.heard_ns ? ", heard late" : "", slow ? ", slow" : "", config.memory / KIB, world.misses,
	      world.released, world.repinned);
}

TEST(cf11_does_what_was_recorded)
{
	for (unsigned shape = 0; shape < SHAPES; shape++)
		for (unsigned slow = 0; slow < 2; slow++)
			play((struct hp_plan_config){ .policy = HP_PLAN_CF11,
						      .budget = slow ? 6 * MIB : NEVER,
						      .memory = slow ? 0 : MIB },
			     shape, slow);
	EXPECT(as_recorded("cf11"));
}

TEST(predict_does_what_was_recorded)
{
	ROUNDS_AS_RECORDED();
	for (unsigned shape = 0; shape < SHAPES; shape++)
		for (unsigned i = 0; i < 5; i++)
			play((struct hp_plan_config){ .policy = HP_PLAN_PREDICT,
						      .mode = i > 2 ? HP_PLAN_BUDGET : HP_PLAN_SAVE,
						      .budget = i < 2 ? NEVER : (i == 4 ? 8 : 4) * MIB,
						      .memory = i % 2 ? 0 : MIB,
						      .heard_ns = i == 1 ? 2 * MS : 0 },
			     shape, i % 2);
	EXPECT(as_recorded("predict"));
}

/* ------------------------------------------------------------------ the timeline */

static unsigned number_of(const struct hp_planned *x)
{
	return x ? x->number : 0;
}

TEST(the_timeline_is_what_was_recorded)
{
	static struct hp_planned regions[65];
	static uint32_t places[128];
	struct hp_timeline t = { .regions = regions, .capacity = 64, .index = places, .index_mask = 127 };

	seed = 1;
	for (unsigned i = 0; i < 6000; i++) {
		uint32_t number = 1 + (uint32_t)rnd(i < 4000 ? 60 : 100);
		uint64_t key = rnd(20) ? rnd(30) : NEVER - rnd(2);
		struct hp_planned *x = hp_timeline_find(&t, number);

		if (!x && hp_timeline_is_full(&t)) {
			struct hp_planned *forgotten = hp_timeline_forgettable(&t);

			note("full, %u goes", number_of(forgotten));
			hp_timeline_drop(&t, forgotten ? forgotten : &regions[1]);
		}
		if (!x) {
			x = hp_timeline_make(&t, number);
			x->register_ns = 1 + rnd(9);
		} else if (rnd(8) == 0) {
			hp_timeline_drop(&t, x);
			continue;
		}
		if (rnd(10) == 0)
			hp_timeline_leave(&t, x);
		else
			hp_timeline_put(&t, x, (enum hp_timeline_tree)rnd(HP_TREES), key);
		for (enum hp_timeline_tree tree = 0; tree < HP_TREES; tree++) {
			const struct hp_planned *root = &regions[t.roots[tree]];

			note("%u %u %lld %lld", number_of(hp_timeline_first(&t, tree)),
			     number_of(hp_timeline_last(&t, tree)), (long long)root->first_ns,
			     (long long)root->work_ns);
		}
		if (x->tree < HP_TREES)
			note("%u %u %u", number_of(hp_timeline_neighbour(&t, x, true)),
			     number_of(hp_timeline_neighbour(&t, x, false)), t.known);
		if (i % 1000 == 999)
			noted("%u steps", i + 1);
	}
	/* Trees of their own are emptied, one after another. */
	for (unsigned left = t.known; left; left--) {
		struct hp_planned *x = hp_timeline_forgettable(&t);

		for (unsigned i = 1; !x && i <= t.used_up; i++)
			x = regions[i].tree == HP_TREE_BUSY ? &regions[i] : NULL;
		note("%u", number_of(x));
		if (x)
			hp_timeline_drop(&t, x);
	}
	noted("it is emptied");
	EXPECT(as_recorded("timeline"));
}

/* ------------------------------------------------------------------ guesses */

static void guess_of(struct hp_predict *p, uint32_t region, uint32_t chain, unsigned samples, uint64_t need,
		     uint64_t more)
{
	struct hp_predict_guess g = { 0 };
	float margin = 0;

	if (!hp_predict_next(p, chain, samples, need, more, &g)) {
		note("%u: none", region);
		return;
	}
	note("%u: %llu %llu %llu %u %u", region, (unsigned long long)g.low_ns, (unsigned long long)g.high_ns,
	     (unsigned long long)g.median_ns, g.samples, g.class);
	note("%u %u %llu %u", g.turn, g.before, (unsigned long long)g.turn_ns, p->steps);
	note("%a", (double)hp_predict_margin(p, g.class, (float)g.low_ns, (float)(MS << rnd(8)), &margin));
	note("%a %a", (double)margin, (double)hp_predict_disorder(p, g.class));
	if (rnd(2)) /* among others at the margins themselves */
		hp_predict_score(p, g.class,
				 (float[]){ .3f, .5f, .65f, .85f, 1, 1.02f, 1.05f, 2.9f, 3, 3.1f }[rnd(10)]);
	if (rnd(2))
		hp_predict_score_turn(p, g.class, rnd(3) != 0);
}

TEST(guesses_are_what_was_recorded)
{
	ROUNDS_AS_RECORDED();
	for (unsigned shape = 0; shape < 6; shape++) {
		uint32_t chain[64], followers[6];
		size_t bytes = hp_predict_size(shape % 2 ? 0 : (size_t)1 << 19);
		void *memory = calloc(1, bytes); /* nothing but zeros */
		static struct hp_predict p;
		uint64_t now = 1000;

		seed = 7 + shape;
		memset(chain, 0xff, sizeof chain);
		hp_predict_init(&p, memory, bytes);
		hp_predict_end(&p, now);
		note("%zu %u %u %u", bytes, p.sets, p.past_mask, p.event_mask);
		for (unsigned i = 0; i < 1500; i++) {
			uint32_t r = (uint32_t[]){ i % 5, i % 12 < 6 ? i % 3 : 3 + i % 4, (uint32_t)rnd(4),
						   (uint32_t)rnd(50), i / 8 % 6, i % 17 }[shape];
			unsigned n, shift = (unsigned)rnd(shape < 4 ? 2 : 14);
			uint32_t before, ago = (uint32_t)rnd(HP_MIN(i + 1, 100u));

			now += shape < 2 ? 10 * US : rnd(12) * US << shift;
			hp_predict_start(&p, r, shape == 5 ? i % 2 : 0, now, &chain[r]);
			if (rnd(3)) {
				now += rnd(2) * US;
				hp_predict_end(&p, now);
			}
			n = hp_predict_followers(&p, followers, 1 + (unsigned)rnd(6));
			for (unsigned k = 0; k < n; k++)
				note("follows %u", followers[k]);
			for (unsigned k = 0; k < 2; k++) {
				uint32_t of = k ? (uint32_t)rnd(17) : r;
				unsigned samples = 1 + (unsigned)rnd(8);
				uint64_t need = rnd(4) * 10 * US;

				guess_of(&p, of, chain[of], samples, need, rnd(2) * 5 * US);
			}
			note("%llu", (unsigned long long)hp_predict_use(&p, ago, &before));
			note("%u %u %llu", before, p.used, (unsigned long long)p.forgotten);
		}
		free(memory);
		noted("shape %u", shape);
	}
	EXPECT(as_recorded("guesses"));
}

/* ------------------------------------------------------------------ costs */

TEST(costs_are_what_was_recorded)
{
	static struct hp_cost c;
	static const uint64_t sizes[] = { 0, 1, 4095, 4096, 4097, 16383, 16384, 65535, 65536, MIB, 2 * MIB, 64 * MIB,
					  4 * GIB, (uint64_t)1 << 42, (uint64_t)1 << 50 };

	ROUNDS_AS_RECORDED();
	for (unsigned round = 0; round < 4; round++) {
		memset(&c, 0, sizeof c);
		seed = 11 + round;
		if (round % 2) {
			hp_cost_begin(&c, HP_COST_REGISTER, 20000, 300);
			hp_cost_begin(&c, HP_COST_BRING_IN, round == 1 ? 0 : -1, round == 1 ? 0 : -5);
			hp_cost_begin(&c, HP_COST_ON_DEMAND, 0, 10);
		}
		for (unsigned i = 0; i < 1200; i++) {
			unsigned backing = (unsigned)rnd(HP_COST_BACKINGS);
			enum hp_cost_kind kind = (enum hp_cost_kind)rnd(round ? HP_COST_KINDS : 2);
			uint64_t bytes = i % 2 ? sizes[rnd(15)] : UINT64_C(4096) << rnd(8);
			uint64_t ns = 10 * US + bytes / 20 + rnd(500);

			if (rnd(30) == 0) /* an outlier, or just none yet */
				ns = rnd(2) ? 4 * hp_cost_ns(&c, backing, bytes, kind) : rnd(2) * MS;
			note("%llu", (unsigned long long)hp_cost_ns(&c, backing, bytes, kind));
			if (i < 40 * (1 + round) || rnd(3))
				hp_cost_learn(&c, backing, bytes, kind, ns);
			for (unsigned k = 0; k < HP_COST_KINDS; k++)
				note("%llu", (unsigned long long)hp_cost_ns(&c, (backing + k) % HP_COST_BACKINGS,
									    sizes[rnd(15)], (enum hp_cost_kind)k));
			note("%llu", (unsigned long long)hp_cost_error_permille(&c));
		}
		for (unsigned i = 0; i < (unsigned)HP_COST_BACKINGS * HP_COST_KINDS * HP_COST_CLASSES; i++) {
			enum hp_cost_kind kind = (enum hp_cost_kind)(i / HP_COST_BACKINGS % HP_COST_KINDS);
			struct hp_cost_fit fit = { 0 };

			if (hp_cost_fit(&c, i % HP_COST_BACKINGS, i / 12, kind, &fit))
				note("%u: %llu %.3f %.3f", i, (unsigned long long)fit.count, fit.page_ns, fit.fixed_ns);
		}
		noted("round %u", round);
	}
	EXPECT(as_recorded("costs"));
}

/* ------------------------------------------------------------------ pinned or paged */

TEST(what_is_pinned_or_paged_is_what_was_recorded)
{
	static struct hp_paging_use u[64];
	static struct hp_paging_terms terms[2];

	ROUNDS_AS_RECORDED();
	terms[0] = hp_paging_defaults;
	terms[1] = (struct hp_paging_terms){ { 1000, 250 }, { 500, 100 }, { 500, 50 }, { 1000, 250 }, { 1000, 1500 } };
	seed = 21;
	for (unsigned i = 0; i < 20000; i++) {
		struct hp_paging_use *x = &u[rnd(64)], *y = &u[rnd(64)];
		const struct hp_paging_terms *t = &terms[rnd(2)], *s = &terms[rnd(2)];
		unsigned shift = (unsigned)rnd(20), side = (unsigned)rnd(2), out = (unsigned)rnd(5);
		bool stays = rnd(3) == 0;
		uint64_t gap = rnd(12) * 1000 << shift;

		switch (rnd(7)) {
		case 0:
			*x = (struct hp_paging_use){ .pages = (double)(1 << rnd(12)),
						     .side = (int)side,
						     .announced_ns = (double)gap,
						     .stays = stays };
			break;
		case 1:
			hp_paging_learn_gone(&x->habits, out, rnd(5));
			break;
		case 2:
			hp_paging_learn_slack(&x->habits, rnd(2), gap);
			break;
		case 3:
			hp_paging_wait(&x->habits, gap);
			break;
		default:
			hp_paging_learn_use(&x->habits, gap);
		}
		if (x->pages > 0 && y->pages > 0)
			note("%d %a %a %a %a %d %d", hp_paging_is_hot(t, x), hp_paging_pin_ns(t, x),
			     hp_paging_fault_ns(t, x), hp_paging_bring_ns(t, x), hp_paging_saving(t, x),
			     hp_paging_choose(t, x, 4096u << rnd(14)), hp_paging_displaces(t, x, s, y, gap));
		if (i % 2000 == 1999)
			noted("%u steps", i + 1);
	}
	EXPECT(as_recorded("paging"));
}

T_MAIN
