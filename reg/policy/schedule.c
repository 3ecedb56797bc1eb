/*
 * See schedule.h.
 *
 * Every idle region is in one of the six trees of timeline.h, by the plan's intention for it. Each event decides again
 * about a bounded number of regions that it may concern, however many regions there are.
 *
 * Invariants:
 * 1. A region in use is in no tree, so no step is ever for it.
 * 2. KEPT, IDLE and LEAVING contain only registered regions, DUE, TURN and GONE only others.
 * 3. The steps asked for here never make `held` exceed the budget.
 */
#include "reg/policy/schedule.h"

#include <string.h>

#include "base/base.h"
#include "reg/policy/predict.h"
#include "reg/policy/timeline.h"

#define NEVER UINT64_MAX

/*
 * Constants, none of which is fitted to one trace. At these values the mean results hardly change with the constant.
 * The means are over recorded traces of MPI programs, over pieces of these (30 to 1500 uses, with jitter and other
 * times between uses), and over invented shapes of programs.
 */
#define MISSES_ALLOWED 0.005f /* misses allowed: this part of all re-uses, and one for each region */
/* factor in the price of a miss: average bytes x ns idle before a use, times uses so far, divided by the misses left */
#define PRICE 0.2f
#define PRICE_USES 60.0f /* a run is assumed to have at least so many uses */
/* Keep this part of the misses left back, because without a last miss no region would be released for a long time. */
#define PRICE_KEPT 0.75f
#define PRICE_TOKENS 0.25f /* the other misses left count as at least so many */
#define TOKENS_MIN 0.5f /* with fewer misses left no region is released */
#define PRICE_MISS 1.2214028f /* e^0.2: factor of the price after a miss */
#define PRICE_HIT 0.99920032f /* e^-0.0008: factor of the price after a hit */
#define PRICE_MIN 0.2f /* the least price_factor */
/* An idle region is abandoned when all four hold. */
#define ABANDONED_GAPS 6 /* it has been idle this many times as long as the longest gap of any region */
#define ABANDONED_PRICE 0.25f /* its bytes x ns idle are worth this part of a miss */
#define ABANDONED_NS 1000000u /* it has been idle for at least this time */
#define ABANDONED_USES 8 /* there were on average so many uses for each region */
/* If fewer than one in so many was missed at its second use, regions first seen at the site are released at once. */
#define SITE_MISSED 16
/* samples that a context should have; in budget mode only the order matters, for which one is enough */
#define SAMPLES_SAVE 3
#define SAMPLES_BUDGET 1
#define DECIDED 12 /* regions decided at an event, at most */
#define FOLLOWERS 4
#define STEPS 256 /* no more regions are decided after so many steps of guesses: 3 us if nothing repeats */
#define SWAPS 8 /* regions for which room is sought, at most */
#define VICTIMS 32 /* regions that may have to go for one, at most */
#define TURNS 32 /* turns that have come and are looked at for one step, at most */

struct site {
	uint32_t tag;
	uint16_t first, missed; /* numbers of regions */
};

struct hp_schedule {
	struct hp_plan_config config;
	size_t mapped;
	uint64_t now, lead_ns;

	struct hp_timeline timeline;
	struct site *sites;
	uint32_t site_mask;
	uint32_t sweep;
	uint32_t asked; /* number of the region in the last step to release */

	uint64_t held; /* bytes of known regions that are registered, or in use and about to be registered */
	/* Regions forgotten while they were registered. Their bytes count until the caller tells that they are
	 * deregistered. */
	uint64_t lost, lost_bytes, lost_min;

	/* The price of a miss is computed from these. */
	uint64_t seen; /* number of regions ever seen */
	uint64_t uses, reuses, misses;
	double idle_byte_ns; /* sum of bytes x idle ns before a use */
	uint64_t gap_max;
	float price_factor;

	uint64_t forgotten;
	struct hp_predict predict;
};

/* ------------------------------------------------------------------ regions by number */

static bool holds(const struct hp_planned *x)
{
	return x->registered || x->uses;
}

/* Forget x. Its slot is free after this. */
static void drop_planned(struct hp_schedule *s, struct hp_planned *x)
{
	if (holds(x))
		s->held -= x->bytes;
	hp_timeline_drop(&s->timeline, x);
}

static void count_lost(struct hp_schedule *s, uint64_t bytes)
{
	s->lost_min = s->lost ? HP_MIN(s->lost_min, bytes) : bytes;
	s->lost++;
	s->lost_bytes += bytes;
}

/* A registration of a forgotten region has ended. If its bytes are not told, assume the smallest such region's. */
static void find_lost(struct hp_schedule *s, uint64_t bytes)
{
	if (!s->lost)
		return;
	s->lost--;
	s->lost_bytes -= s->lost ? HP_MIN(HP_MAX(bytes, s->lost_min), s->lost_bytes) : s->lost_bytes;
}

static struct hp_planned *make_planned(struct hp_schedule *s, uint32_t number)
{
	struct hp_planned *x;

	if (hp_timeline_is_full(&s->timeline)) {
		x = hp_timeline_forgettable(&s->timeline);
		if (!x)
			return NULL;
		if (x->registered)
			count_lost(s, x->bytes);
		drop_planned(s, x);
		s->forgotten++;
	}
	x = hp_timeline_make(&s->timeline, number);
	x->next_ns = x->due_ns = NEVER;
	x->chain = HP_PREDICT_NONE;
	return x;
}

/* ------------------------------------------------------------------ prices */

static uint64_t advance_clock(struct hp_schedule *s, uint64_t now_ns)
{
	s->now = HP_MAX(s->now, now_ns);
	return s->now;
}

/* The number of misses left. */
static float tokens(const struct hp_schedule *s)
{
	return (float)s->seen + MISSES_ALLOWED * (float)s->reuses - (float)s->misses;
}

/* The price of a miss, in bytes x ns. */
static float price(const struct hp_schedule *s)
{
	float use = s->uses ? (float)(s->idle_byte_ns / (double)s->uses) : 0;
	return PRICE * s->price_factor * use * HP_MAX(PRICE_USES, (float)s->uses) /
	       HP_MAX(PRICE_TOKENS, tokens(s) - PRICE_KEPT);
}

static bool may_release(const struct hp_schedule *s)
{
	return tokens(s) >= TOKENS_MIN;
}

static bool fits_beside(const struct hp_schedule *s, uint64_t bytes)
{
	uint64_t taken = s->held + s->lost_bytes;
	return taken <= s->config.budget && bytes <= s->config.budget - taken;
}

static struct site *site_entry(const struct hp_schedule *s, uint32_t tag)
{
	return &s->sites[tag & s->site_mask];
}

/* Whether to release x at once although nothing is known of its next use: as long as regions that were first seen at
 * the same site were hardly ever missed for it. Each region is missed at most once so. */
static bool may_be_used_once(const struct hp_schedule *s, const struct hp_planned *x)
{
	const struct site *site = site_entry(s, x->site);
	return !x->reused && (site->tag != x->site || site->missed * SITE_MISSED < site->first);
}

/* ------------------------------------------------------------------ decisions */

/* Leave an idle region as it is. It waits in the tree of its state. */
static void rest(struct hp_schedule *s, struct hp_planned *x)
{
	if (!x->registered)
		hp_timeline_put(&s->timeline, x, HP_TREE_GONE, x->idle_ns);
	else if (x->next_ns != NEVER)
		hp_timeline_put(&s->timeline, x, HP_TREE_KEPT, x->next_ns);
	else
		hp_timeline_put(&s->timeline, x, HP_TREE_IDLE, x->idle_ns);
}

/* Intend to release x. */
static void intend_release(struct hp_schedule *s, struct hp_planned *x)
{
	hp_timeline_put(&s->timeline, x, HP_TREE_LEAVING, x->tree == HP_TREE_LEAVING ? x->key : s->now);
}

/* x is not registered. Intend to register it when it is due, if that is known. */
static void intend_register(struct hp_schedule *s, struct hp_planned *x)
{
	if (x->failed || x->due_ns == NEVER)
		rest(s, x);
	else if (x->turn)
		hp_timeline_put(&s->timeline, x, HP_TREE_TURN, x->turn);
	else
		hp_timeline_put(&s->timeline, x, HP_TREE_DUE, x->due_ns);
}

/* Decide about an idle region of which the next use is guessed, where bytes are saved. Being away until a fraction
 * (margin) of the guessed time, or until its turn, costs work and the risk of a miss; staying costs bytes times the
 * guessed time. */
static void decide_save(struct hp_schedule *s, struct hp_planned *x, const struct hp_predict_guess *guess)
{
	float low = (float)guess->low_ns, turn = (float)guess->turn_ns, bytes = (float)x->bytes, miss = price(s);
	float work = (float)(x->register_ns + x->deregister_ns), margin = 1, then;
	float cost = hp_predict_margin(&s->predict, guess->class, bytes * low, miss, &margin), wait = low * margin;

	x->turn = 0;
	if (guess->turn) {
		/* When the turn comes, the rest is waited for by time, or x is registered at once. */
		float ordered = hp_predict_margin(&s->predict, guess->class, bytes * turn, miss, &then);
		ordered = HP_MIN(ordered, bytes * turn) + hp_predict_disorder(&s->predict, guess->class) * miss;
		if (ordered < cost) {
			cost = ordered;
			wait = HP_MAX(low - turn, 0.0f);
			x->turn = s->uses + guess->turn;
			x->before = guess->before;
		}
	}
	if (!x->registered) {
		if (cost >= bytes * low) /* not away any longer */
			x->turn = 0, wait = 0;
		x->due_ns = s->now + (uint64_t)wait;
		intend_register(s, x);
	} else if (cost + bytes * work < bytes * low && wait > 2 * work && !x->failed && may_release(s)) {
		x->due_ns = s->now + (uint64_t)wait;
		intend_release(s, x);
	} else {
		x->due_ns = NEVER;
		rest(s, x);
	}
}

/* The time from the beginning of a use until x can be registered because of it. */
static uint64_t turn_ns(const struct hp_schedule *s, const struct hp_planned *x)
{
	return s->config.heard_ns + s->lead_ns + x->register_ns;
}

/* Decide about an idle region, by the present context. */
static void decide(struct hp_schedule *s, struct hp_planned *x)
{
	bool save = s->config.mode == HP_PLAN_SAVE;
	struct hp_predict_guess guess;

	if (x->tree >= HP_TREES)
		return;
	if (!hp_predict_next(&s->predict, x->chain, save ? SAMPLES_SAVE : SAMPLES_BUDGET,
			     save ? turn_ns(s, x) : 0, x->register_ns, &guess)) {
		x->next_ns = NEVER;
		if (save && (x->tree == HP_TREE_DUE || x->tree == HP_TREE_TURN)) /* keep the earlier expectation */
			return;
		if (save && x->registered && may_be_used_once(s, x) && !x->failed)
			intend_release(s, x);
		else
			rest(s, x);
		return;
	}
	x->next_ns = s->now + guess.median_ns;
	if (save) {
		unsigned i = x->guesses ? 1 + (x->guesses - 1) % HP_PLANNED_GUESSES : 0;
		x->scored[i] = (struct hp_planned_guess){ s->now, (float)guess.low_ns, guess.class };
		x->guesses++;
		if (guess.turn) {
			x->scored_turn = s->uses + guess.turn;
			x->scored_class = guess.class;
		}
		decide_save(s, x, &guess);
	} else if (x->registered) {
		hp_timeline_put(&s->timeline, x, HP_TREE_KEPT, x->next_ns);
	} else if (!x->failed) {
		hp_timeline_put(&s->timeline, x, HP_TREE_DUE, x->next_ns);
	}
}

/* Called after each event. Decides about the region just idle, regions that followed this context before, regions due
 * soon, then others in turn. */
static void decide_all(struct hp_schedule *s, struct hp_planned *idle)
{
	uint32_t followers[FOLLOWERS];
	unsigned left = DECIDED;

	if (idle) {
		decide(s, idle);
		left--;
	}
	if (s->timeline.known > DECIDED) {
		unsigned n = hp_predict_followers(&s->predict, followers, FOLLOWERS);
		for (unsigned i = 0; i < n; i++) {
			struct hp_planned *x = hp_timeline_find(&s->timeline, followers[i]);
			if (!x || x == idle)
				continue;
			decide(s, x);
			left--;
		}
		struct hp_planned *x = hp_timeline_first(&s->timeline, HP_TREE_DUE);
		for (unsigned i = 0; x && i < FOLLOWERS; i++, left--) {
			struct hp_planned *then = hp_timeline_neighbour(&s->timeline, x, true);
			decide(s, x);
			x = then;
		}
	}
	unsigned looked = HP_MIN(s->timeline.used_up, (uint32_t)DECIDED);
	for (; left && looked && s->predict.steps < STEPS; looked--) {
		s->sweep = s->sweep < s->timeline.used_up ? s->sweep + 1 : 1;
		struct hp_planned *x = &s->timeline.regions[s->sweep];
		if (x == idle || x->tree >= HP_TREES)
			continue;
		decide(s, x);
		left--;
	}
}

/* ------------------------------------------------------------------ what happened */

static void score(struct hp_schedule *s, struct hp_planned *x)
{
	unsigned n = HP_MIN(x->guesses, 1u + HP_PLANNED_GUESSES);

	for (unsigned i = 0; i < n; i++) {
		const struct hp_planned_guess *g = &x->scored[i];
		hp_predict_score(&s->predict, g->class, (float)(s->now - g->at_ns) / g->low);
	}
	x->guesses = 0;
	if (!x->scored_turn)
		return;
	uint32_t region;
	/* This use is counted already, but hp_predict_start() is not called yet. */
	bool begun = x->scored_turn < s->uses;
	uint64_t ago = begun ? s->uses - 1 - x->scored_turn : 0;
	uint64_t left_ns = begun ? s->now - hp_predict_use(&s->predict, (uint32_t)ago, &region) : 0;
	hp_predict_score_turn(&s->predict, x->scored_class, left_ns >= turn_ns(s, x));
	x->scored_turn = 0;
}

/* Count a region's first use for its site, to learn whether regions first seen there are missed. Unknown sites count as
 * one. The upper bits of the product distinguish code addresses that lie close together. */
static void count_first_use(struct hp_schedule *s, struct hp_planned *x, uint64_t at)
{
	x->site = (uint32_t)(at * UINT64_C(0x9e3779b97f4a7c15) >> 32) | 1;
	struct site *site = site_entry(s, x->site);
	if (site->tag != x->site)
		*site = (struct site){ .tag = x->site };
	if (site->first == UINT16_MAX) {
		site->first /= 2;
		site->missed /= 2;
	}
	site->first++;
}

/* Count a use of a region that was used before. A miss that the plan caused makes later misses dearer, and a hit makes
 * them cheaper by little. A miss that nothing foretold does not count, because it tells nothing about the guesses. */
static void count_use(struct hp_schedule *s, struct hp_planned *x, bool hit)
{
	struct site *site = site_entry(s, x->site);
	bool missed = !hit && (x->released || s->asked == x->number);

	s->uses++;
	s->reuses++;
	if (missed && !x->reused && site->tag == x->site)
		site->missed++;
	if (missed && !x->unforeseen) {
		s->misses++;
		s->price_factor *= PRICE_MISS;
	} else if (hit) {
		s->price_factor = HP_MAX(PRICE_MIN, s->price_factor * PRICE_HIT);
	}
	x->reused = true;
	if (!x->uses) {
		uint64_t gap = s->now - x->idle_ns;
		s->gap_max = HP_MAX(s->gap_max, gap);
		s->idle_byte_ns += (double)x->bytes * (double)gap;
		score(s, x);
	}
}

void hp_schedule_start(struct hp_schedule *s, uint32_t region, uint64_t bytes, uint64_t site, uint64_t now_ns, bool hit)
{
	struct hp_planned *x = hp_timeline_find(&s->timeline, region);
	bool known = x != NULL;

	advance_clock(s, now_ns);
	if (!x)
		x = make_planned(s, region);
	if (!known && hit)
		find_lost(s, bytes);
	if (!x) { /* every known region is in use, so this one cannot be known */
		count_lost(s, bytes);
		return;
	}
	if (!known) {
		count_first_use(s, x, site);
		s->uses++;
		s->seen += !hit;
	} else {
		count_use(s, x, hit);
		if (holds(x))
			s->held -= x->bytes;
	}
	hp_timeline_leave(&s->timeline, x);
	x->bytes = bytes;
	x->registered = x->registered || hit;
	x->released = x->unforeseen = x->failed = false;
	s->asked = s->asked == region ? 0 : s->asked;
	x->due_ns = x->next_ns = NEVER;
	x->turn = 0;
	x->uses++;
	s->held += bytes;
	hp_predict_start(&s->predict, region, site, s->now, &x->chain);
	decide_all(s, NULL);
}

void hp_schedule_end(struct hp_schedule *s, uint32_t region, uint64_t now_ns)
{
	struct hp_planned *x = hp_timeline_find(&s->timeline, region);

	advance_clock(s, now_ns);
	if (!x || !x->uses)
		return;
	hp_predict_end(&s->predict, s->now);
	if (--x->uses) {
		decide_all(s, NULL);
		return;
	}
	if (!x->registered)
		s->held -= x->bytes;
	x->idle_ns = s->now;
	x->register_ns = s->config.cost_ns(s->config.arg, region, x->bytes, true);
	x->deregister_ns = s->config.cost_ns(s->config.arg, region, x->bytes, false);
	rest(s, x);
	decide_all(s, x);
}

void hp_schedule_registered(struct hp_schedule *s, uint32_t region, uint64_t now_ns)
{
	struct hp_planned *x = hp_timeline_find(&s->timeline, region);

	advance_clock(s, now_ns);
	if (!x || x->registered)
		return;
	if (!holds(x))
		s->held += x->bytes;
	x->registered = true;
	x->released = x->unforeseen = x->failed = false;
	x->due_ns = NEVER;
	if (!x->uses)
		rest(s, x);
}

void hp_schedule_deregistered(struct hp_schedule *s, uint32_t region, uint64_t now_ns)
{
	struct hp_planned *x = hp_timeline_find(&s->timeline, region);

	advance_clock(s, now_ns);
	if (!x)
		find_lost(s, 0);
	if (!x || !x->registered)
		return;
	x->registered = false;
	x->failed = false;
	if (x->uses)
		return;
	s->held -= x->bytes;
	if (s->config.mode == HP_PLAN_BUDGET)
		x->due_ns = x->next_ns;
	else
		x->released = x->tree == HP_TREE_LEAVING || s->asked == region;
	s->asked = s->asked == region ? 0 : s->asked;
	intend_register(s, x);
}

void hp_schedule_failed(struct hp_schedule *s, uint32_t region, uint64_t now_ns)
{
	struct hp_planned *x = hp_timeline_find(&s->timeline, region);

	advance_clock(s, now_ns);
	if (!x)
		return;
	x->failed = true;
	s->asked = s->asked == region ? 0 : s->asked;
	x->due_ns = NEVER;
	if (!x->uses)
		rest(s, x);
}

void hp_schedule_forget(struct hp_schedule *s, uint32_t region)
{
	struct hp_planned *x = hp_timeline_find(&s->timeline, region);

	if (x)
		drop_planned(s, x);
	else
		find_lost(s, 0);
}

/* ------------------------------------------------------------------ what to do */

static struct hp_plan_step step_register(const struct hp_planned *x)
{
	return (struct hp_plan_step){ .what = HP_PLAN_REGISTER, .region = x->number };
}

static struct hp_plan_step step_evict(const struct hp_planned *x)
{
	return (struct hp_plan_step){ .what = HP_PLAN_DEREGISTER, .region = x->number };
}

static struct hp_plan_step step_release(struct hp_schedule *s, struct hp_planned *x)
{
	s->asked = x->number;
	x->unforeseen = x->due_ns == NEVER && !x->reused;
	return step_evict(x);
}

static struct hp_plan_step step_wait(uint64_t until_ns)
{
	return (struct hp_plan_step){ .what = HP_PLAN_WAIT, .until_ns = until_ns };
}

/* The expected time of the next use. If nothing is known, the region that was idle longest is expected last. */
static uint64_t expected(const struct hp_schedule *s, const struct hp_planned *x)
{
	return x->tree == HP_TREE_IDLE ? 2 * s->now - x->idle_ns : x->key;
}

/* x, or the next region after it that has not just failed. Looks at a few regions only. */
static struct hp_planned *able(const struct hp_schedule *s, struct hp_planned *x, bool later)
{
	for (int i = 0; x && x->failed; i++)
		x = i < SWAPS ? hp_timeline_neighbour(&s->timeline, x, later) : NULL;
	return x;
}

/* The registered regions that are not in use, in the order of eviction: first those that are being released anyway,
 * then those whose next use is farthest. */
struct victims {
	struct hp_planned *leaving, *kept, *idle;
};

static struct victims victims_of(const struct hp_schedule *s)
{
	return (struct victims){ hp_timeline_first(&s->timeline, HP_TREE_LEAVING),
				able(s, hp_timeline_last(&s->timeline, HP_TREE_KEPT), false),
				able(s, hp_timeline_first(&s->timeline, HP_TREE_IDLE), true) };
}

static struct hp_planned *farthest(const struct hp_schedule *s, struct victims *v)
{
	struct hp_planned *x = v->leaving;

	if (x)
		v->leaving = hp_timeline_neighbour(&s->timeline, x, true);
	else if ((x = v->kept) && (!v->idle || expected(s, x) > expected(s, v->idle)))
		v->kept = able(s, hp_timeline_neighbour(&s->timeline, x, false), false);
	else if ((x = v->idle))
		v->idle = able(s, hp_timeline_neighbour(&s->timeline, x, true), true);
	return x;
}

/* Find the region to deregister first to make room for x, which is expected at `due`. NULL: do not make room. Room is
 * made only if x then fits, because otherwise regions would be evicted for it, come back, and so on for ever. */
static struct hp_planned *victim_for(const struct hp_schedule *s, const struct hp_planned *x, uint64_t due)
{
	uint64_t taken = s->held + s->lost_bytes;
	struct victims victims = victims_of(s);
	struct hp_planned *chosen = NULL;

	if (x->bytes > s->config.budget)
		return NULL;
	for (int i = 0; i < VICTIMS && taken > s->config.budget - x->bytes; i++) {
		struct hp_planned *victim = farthest(s, &victims);
		if (!victim || (victim->tree != HP_TREE_LEAVING &&
				expected(s, victim) <= HP_MAX(due, s->now) + x->register_ns + victim->deregister_ns))
			return NULL;
		chosen = chosen ? chosen : victim;
		taken -= HP_MIN(taken, victim->bytes);
	}
	return taken <= s->config.budget - x->bytes ? chosen : NULL;
}

static struct hp_plan_step next_budget(struct hp_schedule *s)
{
	struct hp_planned *x = hp_timeline_first(&s->timeline, HP_TREE_DUE);

	for (int i = 0; x && i < SWAPS; i++, x = hp_timeline_neighbour(&s->timeline, x, true)) {
		if (fits_beside(s, x->bytes))
			return step_register(x);
		struct hp_planned *victim = victim_for(s, x, x->key);
		if (victim)
			return step_evict(victim);
	}
	return step_wait(NEVER);
}

static struct hp_plan_step next_save(struct hp_schedule *s)
{
	struct hp_planned *x;
	uint64_t now = s->now + s->lead_ns, start = NEVER;

	while ((x = hp_timeline_first(&s->timeline, HP_TREE_DUE))) {
		int64_t latest = s->timeline.regions[s->timeline.roots[HP_TREE_DUE]].first_ns;
		start = latest < 0 ? 0 : (uint64_t)latest;
		if (start > now)
			break;
		if (fits_beside(s, x->bytes))
			return step_register(x);
		struct hp_planned *victim = victim_for(s, x, x->due_ns);
		if (victim)
			return step_evict(victim);
		rest(s, x); /* until the next decision about x */
		start = NEVER;
	}
	for (int i = 0; i < TURNS && (x = hp_timeline_first(&s->timeline, HP_TREE_TURN)) && x->turn <= s->uses; i++) {
		uint32_t region;
		hp_predict_use(&s->predict, (uint32_t)(s->uses - x->turn), &region);
		if (region == x->before && fits_beside(s, x->bytes))
			return step_register(x);
		struct hp_planned *victim = region == x->before ? victim_for(s, x, s->now) : NULL;
		if (victim)
			return step_evict(victim);
		rest(s, x); /* until the next decision about x */
	}
	while ((x = hp_timeline_first(&s->timeline, HP_TREE_LEAVING))) {
		if (x->due_ns != NEVER && x->due_ns <= now + 2 * (x->register_ns + x->deregister_ns)) {
			x->due_ns = NEVER; /* too late to release x before its next use */
			rest(s, x);
			continue;
		}
		if (now + x->deregister_ns <= start && may_release(s))
			return step_release(s, x);
		break;
	}
	x = able(s, hp_timeline_first(&s->timeline, HP_TREE_IDLE), true);
	if (x && may_release(s) && s->uses >= ABANDONED_USES * s->seen) {
		float worth = ABANDONED_PRICE * price(s) / (float)HP_MAX(x->bytes, 1u);
		uint64_t after = HP_MAX(ABANDONED_GAPS * s->gap_max, (uint64_t)ABANDONED_NS);
		after = HP_MAX(after, worth > 1e18f ? (uint64_t)1e18f : (uint64_t)worth);
		if (s->now - x->idle_ns > after && now + x->deregister_ns <= start) {
			hp_timeline_put(&s->timeline, x, HP_TREE_LEAVING, s->now);
			return step_release(s, x);
		}
		if (s->now - x->idle_ns <= after)
			start = HP_MIN(start, x->idle_ns + after + 1 + s->lead_ns);
	}
	return step_wait(start == NEVER ? NEVER : start - s->lead_ns);
}

struct hp_plan_step hp_schedule_next(struct hp_schedule *s, uint64_t now_ns)
{
	advance_clock(s, now_ns);
	return s->config.mode == HP_PLAN_BUDGET ? next_budget(s) : next_save(s);
}

uint32_t hp_schedule_victim(struct hp_schedule *s, uint64_t now_ns)
{
	advance_clock(s, now_ns);
	struct victims victims = victims_of(s);
	struct hp_planned *x = farthest(s, &victims);
	/* x is only the longest-idle region that the plan remembers. If it has forgotten regions, the caller's clock
	 * knows older ones, so return 0. */
	return x && !(x->tree == HP_TREE_IDLE && s->lost) ? x->number : 0;
}

/* ------------------------------------------------------------------ the plan */

struct hp_schedule *hp_schedule_new(const struct hp_plan_config *config)
{
	size_t bytes = HP_MAX(config->memory, HP_PLAN_MEMORY_MIN);
	uint32_t sites = bytes < ((size_t)1 << 20) ? 64 : 1024;
	size_t predict = hp_predict_size(bytes * 5 / 8 & ~(size_t)63);
	size_t fixed = hp_round_up(sizeof(struct hp_schedule), 64) + predict + sites * sizeof(struct site);
	uint32_t index = 1;

	/* Choose an index with enough places for all regions that fit. */
	while (2 * index * (sizeof(uint32_t) + sizeof(struct hp_planned) / 2) <= bytes - fixed)
		index *= 2;
	struct hp_schedule *s = hp_meta_map(bytes);
	if (!s)
		return NULL;
	char *at = (char *)s + hp_round_up(sizeof *s, 64);
	hp_predict_init(&s->predict, at, predict);
	s->config = *config;
	s->mapped = bytes;
	s->price_factor = 1;
	s->sites = (struct site *)(at + predict);
	s->site_mask = sites - 1;
	s->timeline.index = (uint32_t *)(s->sites + sites);
	s->timeline.index_mask = index - 1;
	s->timeline.regions = (struct hp_planned *)hp_round_up((uintptr_t)(s->timeline.index + index), 8);
	s->timeline.capacity =
		(uint32_t)((bytes - (size_t)((char *)s->timeline.regions - (char *)s)) / sizeof(struct hp_planned)) - 1;
	s->timeline.capacity = HP_MIN(s->timeline.capacity, index * 3 / 4);
	return s;
}

void hp_schedule_free(struct hp_schedule *s)
{
	if (s)
		hp_meta_unmap(s, s->mapped);
}

void hp_schedule_set_lead(struct hp_schedule *s, uint64_t lead_ns)
{
	s->lead_ns = lead_ns;
}

void hp_schedule_stats(const struct hp_schedule *s, struct hp_plan_stats *ret_)
{
	*ret_ = (struct hp_plan_stats){ .memory = s->mapped, .contexts = s->predict.used, .regions = s->timeline.known,
					.forgotten = s->predict.forgotten + s->forgotten };
}
