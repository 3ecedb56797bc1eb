/*
 * Every idle region stands in one of five trees, by what is meant for it: registered with a next use expected (KEPT),
 * without (IDLE), to be released (LEAVING); not registered and to be again (DUE), or not (GONE). A tree is ordered by
 * time and knows the latest start of its registrations, one after another, so that each is done when it is due. At
 * each event the regions that it says something of are decided again; how many is bounded, however many regions there
 * are.
 *
 * 1. A region in use stands in no tree, so it is never asked for.
 * 2. Only registered regions stand in KEPT, IDLE and LEAVING, only others in DUE and GONE.
 * 3. held is never more than the budget by what is asked for here.
 */
#include "reg/policy/schedule.h"

#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "reg/policy/predict.h"

#define NEVER UINT64_MAX

/*
 * Constants, none of them a trace's: they are where means over recorded traces of MPI programs, over pieces of them of
 * 30 to 1500 uses, with jitter and other times between uses, and over invented shapes of programs are flat.
 */
#define MISSES_ALLOWED 0.005f /* of re-uses; and one for each region */
#define PRICE 0.2f /* of a miss: bytes x ns idle before a use on average, times uses so far, by misses that are left */
#define PRICE_USES 60.0f /* uses that a run is taken to have at least */
#define PRICE_KEPT 0.75f /* the last miss left is dear: without it nothing is released for a long time; */
#define PRICE_TOKENS 0.25f /* those before it are taken to be at least this */
#define TOKENS_MIN 0.5f /* with fewer misses left nothing is released */
#define PRICE_MISS 1.2214028f /* factor of the price after a miss, e^0.2; and after a hit, e^-0.0008 */
#define PRICE_HIT 0.99920032f
#define PRICE_MIN 0.2f
#define ABANDONED_GAPS 6 /* an idle region is abandoned after so many times the longest gap of any region, */
#define ABANDONED_PRICE 0.25f /* when its bytes x ns are so much of a miss, */
#define ABANDONED_NS 1000000u /* after 1 ms, */
#define ABANDONED_USES 8 /* and after so many uses for each region seen */
#define SITE_REGIONS 8 /* regions first seen at a site, from which it is judged: */
#define SITE_REUSED 10 /* under one in so many used again, what is first seen there is released at once */
#define SCORED 4 /* last guesses of a gap that are scored; and the first */
#define SAMPLES_SAVE 3 /* samples that a context should have; for order, one says it */
#define SAMPLES_BUDGET 1
#define DECIDED 12 /* regions decided at an event, at most; of those the ones that followed before: */
#define FOLLOWERS 4
#define STEPS 256 /* and no more of the others once the guesses have cost this: 3 us where nothing repeats */
#define SWAPS 8 /* regions looked at for room */
#define VICTIMS 32 /* that may have to go for one */

enum tree { KEPT, IDLE, LEAVING, DUE, GONE, TREES, BUSY = TREES, FREE };

struct scored {
	uint64_t at_ns;
	float low;
	uint16_t class;
};

struct region {
	/* Where it stands. */
	uint32_t left, right, next_free;
	uint8_t tree;
	bool registered;
	bool released; /* by the plan, and its return is the plan's, too */
	bool failed; /* not to be asked for again before its next event */
	bool reused;
	uint64_t key; /* the tree is ordered by it */
	int64_t first_ns; /* latest start of the first registration in this subtree, */
	int64_t work_ns; /* and time that all of them take */

	uint32_t number;
	uint32_t uses; /* running now */
	uint64_t bytes;
	uint64_t idle_ns; /* since */
	uint64_t next_ns; /* next use expected, or NEVER */
	uint64_t due_ns; /* to be registered then, or NEVER */
	uint64_t register_ns, deregister_ns;
	uint32_t chain;
	uint32_t site;
	uint32_t guesses; /* of this gap */
	struct scored scored[1 + SCORED];
};

struct site {
	uint32_t tag;
	uint16_t first, reused; /* regions */
};

struct hp_schedule {
	struct hp_plan_config config;
	size_t mapped;
	uint64_t now, lead_ns;

	struct region *regions; /* from 1 up */
	uint32_t capacity, used_up, free, known;
	uint32_t *index; /* by number, probed in line */
	uint32_t index_mask;
	struct site *sites;
	uint32_t site_mask;
	uint32_t roots[TREES];
	uint32_t sweep;
	uint32_t asked; /* number of the region whose release was asked for last */

	uint64_t held; /* bytes of the regions known that are registered, or used and soon to be */
	/* Regions forgotten while they were registered: their bytes count until it is told that they are not. */
	uint64_t lost, lost_bytes, lost_min;

	/* What the price of a miss follows from. */
	uint64_t seen; /* regions */
	uint64_t uses, reuses, misses;
	uint64_t due; /* regions that are released and to be registered again */
	uint64_t alarm; /* until so many uses */
	double area; /* sum of bytes x idle ns before a use */
	uint64_t gap_max;
	float mood;

	uint64_t forgotten;
	struct hp_predict predict;
};

/* ------------------------------------------------------------------ trees: treaps, by (key, slot) */

static uint32_t priority(uint32_t slot)
{
	return slot * 0x9e3779b9u;
}

static bool before(const struct hp_schedule *s, uint32_t a, uint32_t b)
{
	uint64_t x = s->regions[a].key, y = s->regions[b].key;
	return x < y || (x == y && a < b);
}

/* Registrations one after another, each done before its own key: a sequence that has to be done before t must be
 * begun at min(first, t - work). */
static void sum(struct hp_schedule *s, uint32_t i)
{
	struct region *x = &s->regions[i];
	int64_t own = (int64_t)x->register_ns;

	x->first_ns = (int64_t)HP_MIN(x->key, (uint64_t)INT64_MAX) - own;
	x->work_ns = own;
	if (x->right) {
		x->first_ns = HP_MIN(x->first_ns, s->regions[x->right].first_ns - own);
		x->work_ns += s->regions[x->right].work_ns;
	}
	if (x->left) {
		const struct region *l = &s->regions[x->left];
		x->first_ns = HP_MIN(l->first_ns, x->first_ns - l->work_ns);
		x->work_ns += l->work_ns;
	}
}

static void split(struct hp_schedule *s, uint32_t root, uint32_t at, uint32_t *ret_left, uint32_t *ret_right)
{
	if (!root) {
		*ret_left = *ret_right = 0;
	} else if (before(s, root, at)) {
		split(s, s->regions[root].right, at, &s->regions[root].right, ret_right);
		*ret_left = root;
		sum(s, root);
	} else {
		split(s, s->regions[root].left, at, ret_left, &s->regions[root].left);
		*ret_right = root;
		sum(s, root);
	}
}

static uint32_t merge(struct hp_schedule *s, uint32_t a, uint32_t b)
{
	if (!a || !b)
		return a | b;
	if (priority(a) < priority(b)) {
		s->regions[a].right = merge(s, s->regions[a].right, b);
		sum(s, a);
		return a;
	}
	s->regions[b].left = merge(s, a, s->regions[b].left);
	sum(s, b);
	return b;
}

static uint32_t insert(struct hp_schedule *s, uint32_t root, uint32_t i)
{
	struct region *x = &s->regions[i];

	if (!root || priority(i) < priority(root)) {
		split(s, root, i, &x->left, &x->right);
		sum(s, i);
		return i;
	}
	struct region *r = &s->regions[root];
	if (before(s, i, root))
		r->left = insert(s, r->left, i);
	else
		r->right = insert(s, r->right, i);
	sum(s, root);
	return root;
}

static uint32_t cut(struct hp_schedule *s, uint32_t root, uint32_t i)
{
	struct region *r = &s->regions[root];

	if (root == i)
		return merge(s, r->left, r->right);
	if (before(s, i, root))
		r->left = cut(s, r->left, i);
	else
		r->right = cut(s, r->right, i);
	sum(s, root);
	return root;
}

static void leave(struct hp_schedule *s, struct region *x)
{
	s->due -= x->tree == DUE;
	if (x->tree < TREES)
		s->roots[x->tree] = cut(s, s->roots[x->tree], (uint32_t)(x - s->regions));
	x->tree = BUSY;
}

static void put(struct hp_schedule *s, struct region *x, enum tree tree, uint64_t key)
{
	if (x->tree == tree && x->key == key)
		return;
	leave(s, x);
	x->tree = (uint8_t)tree;
	x->key = key;
	s->due += tree == DUE;
	s->roots[tree] = insert(s, s->roots[tree], (uint32_t)(x - s->regions));
}

static struct region *first(const struct hp_schedule *s, enum tree tree)
{
	uint32_t i = s->roots[tree];

	while (i && s->regions[i].left)
		i = s->regions[i].left;
	return i ? &s->regions[i] : NULL;
}

static struct region *last(const struct hp_schedule *s, enum tree tree)
{
	uint32_t i = s->roots[tree];

	while (i && s->regions[i].right)
		i = s->regions[i].right;
	return i ? &s->regions[i] : NULL;
}

/* The neighbour of x in its tree, later or earlier. */
static struct region *neighbour(const struct hp_schedule *s, const struct region *x, bool later)
{
	uint32_t at = (uint32_t)(x - s->regions), found = 0;

	for (uint32_t i = s->roots[x->tree]; i;) {
		const struct region *r = &s->regions[i];
		bool beyond = later ? before(s, at, i) : before(s, i, at);
		if (beyond)
			found = i;
		i = beyond == later ? r->left : r->right;
	}
	return found ? &s->regions[found] : NULL;
}

/* ------------------------------------------------------------------ regions by number */

static uint32_t home(const struct hp_schedule *s, uint32_t number)
{
	return (number * 0x9e3779b9u >> 7) & s->index_mask;
}

static uint32_t place_of(const struct hp_schedule *s, uint32_t number)
{
	uint32_t i = home(s, number);

	while (s->index[i] && s->regions[s->index[i]].number != number)
		i = (i + 1) & s->index_mask;
	return i;
}

static struct region *find(const struct hp_schedule *s, uint32_t number)
{
	uint32_t slot = s->index[place_of(s, number)];
	return slot ? &s->regions[slot] : NULL;
}

static bool holds(const struct region *x)
{
	return x->registered || x->uses;
}

/* Its slot is free after this. */
static void drop(struct hp_schedule *s, struct region *x)
{
	uint32_t gap = place_of(s, x->number);

	leave(s, x);
	if (holds(x))
		s->held -= x->bytes;
	for (uint32_t i = (gap + 1) & s->index_mask; s->index[i]; i = (i + 1) & s->index_mask) {
		uint32_t want = home(s, s->regions[s->index[i]].number);
		if (((i - want) & s->index_mask) < ((i - gap) & s->index_mask))
			continue;
		s->index[gap] = s->index[i];
		gap = i;
	}
	s->index[gap] = 0;
	*x = (struct region){ .tree = FREE, .next_free = s->free };
	s->free = (uint32_t)(x - s->regions);
	s->known--;
}

/* Room for another: first what no context expects, then what is expected last; not what waits for its registration, if
 * anything else will do. */
static struct region *forgettable(const struct hp_schedule *s)
{
	struct region *gone = first(s, GONE), *idle = first(s, IDLE);

	if (gone && idle)
		return gone->key < idle->key ? gone : idle;
	if (gone || idle)
		return gone ? gone : idle;
	for (int tree = KEPT; tree <= DUE; tree++)
		if (tree != IDLE && s->roots[tree])
			return last(s, (enum tree)tree);
	return NULL;
}

static void lose(struct hp_schedule *s, uint64_t bytes)
{
	s->lost_min = s->lost ? HP_MIN(s->lost_min, bytes) : bytes;
	s->lost++;
	s->lost_bytes += bytes;
}

/* A registration of a region that is not known has ended: of at least the bytes that the smallest of them has. */
static void find_lost(struct hp_schedule *s, uint64_t bytes)
{
	if (!s->lost)
		return;
	s->lost--;
	s->lost_bytes -= s->lost ? HP_MIN(HP_MAX(bytes, s->lost_min), s->lost_bytes) : s->lost_bytes;
}

static struct region *make(struct hp_schedule *s, uint32_t number)
{
	if (!s->free && s->used_up == s->capacity) {
		struct region *x = forgettable(s);
		if (!x)
			return NULL;
		if (x->registered)
			lose(s, x->bytes);
		drop(s, x);
		s->forgotten++;
	}
	uint32_t slot = s->free;
	if (slot)
		s->free = s->regions[slot].next_free;
	else
		slot = ++s->used_up;
	s->index[place_of(s, number)] = slot;
	s->known++;
	s->regions[slot] = (struct region){ .tree = BUSY, .number = number, .next_ns = NEVER, .due_ns = NEVER,
					    .chain = HP_PREDICT_NONE };
	return &s->regions[slot];
}

/* ------------------------------------------------------------------ prices */

static uint64_t advance(struct hp_schedule *s, uint64_t now_ns)
{
	s->now = HP_MAX(s->now, now_ns);
	return s->now;
}

/* Misses that are left. */
static float tokens(const struct hp_schedule *s)
{
	return HP_MAX((float)s->seen, MISSES_ALLOWED * (float)s->reuses) - (float)s->misses;
}

/* Of a miss, in bytes x ns. */
static float price(const struct hp_schedule *s)
{
	float use = s->uses ? (float)(s->area / (double)s->uses) : 0;
	return PRICE * s->mood * use * HP_MAX(PRICE_USES, (float)s->uses) /
	       HP_MAX(PRICE_TOKENS, tokens(s) - PRICE_KEPT);
}

/* After a miss, the others that are away may be missed for the same reason. If that is more than is left, all of them
 * come back, until each has been used once. */
static bool alarmed(const struct hp_schedule *s)
{
	return s->uses < s->alarm;
}

static bool may_release(const struct hp_schedule *s)
{
	return tokens(s) >= TOKENS_MIN && !alarmed(s);
}

static bool fits(const struct hp_schedule *s, uint64_t bytes)
{
	uint64_t taken = s->held + s->lost_bytes;
	return taken <= s->config.budget && bytes <= s->config.budget - taken;
}

static struct site *site_of(const struct hp_schedule *s, uint32_t tag)
{
	return &s->sites[tag & s->site_mask];
}

static bool used_once(const struct hp_schedule *s, const struct region *x)
{
	const struct site *site = site_of(s, x->site);
	return !x->reused && site->tag == x->site && site->first >= SITE_REGIONS &&
	       site->reused * SITE_REUSED < site->first;
}

/* ------------------------------------------------------------------ decisions */

static void rest(struct hp_schedule *s, struct region *x)
{
	if (!x->registered)
		put(s, x, GONE, x->idle_ns);
	else if (x->next_ns != NEVER)
		put(s, x, KEPT, x->next_ns);
	else
		put(s, x, IDLE, x->idle_ns);
}

static void decide_save(struct hp_schedule *s, struct region *x, const struct hp_predict_guess *guess)
{
	float low = (float)guess->low_ns, bytes = (float)x->bytes, margin = 1;
	float work = (float)(x->register_ns + x->deregister_ns);
	float cost = hp_predict_margin(&s->predict, guess->class, bytes * low, price(s), &margin) + bytes * work;
	bool pays = cost < bytes * low && !x->failed;
	uint64_t wait = (uint64_t)(low * margin);

	if (!x->registered) {
		x->due_ns = s->now + (alarmed(s) ? 0 : pays ? wait : guess->low_ns / 2);
		if (x->failed)
			rest(s, x);
		else
			put(s, x, DUE, x->due_ns);
	} else if (pays && margin * low > 2 * work && may_release(s)) {
		x->due_ns = s->now + wait;
		put(s, x, LEAVING, x->tree == LEAVING ? x->key : s->now);
	} else {
		x->due_ns = NEVER;
		rest(s, x);
	}
}

/* What the present context says of an idle region. */
static void decide(struct hp_schedule *s, struct region *x)
{
	bool save = s->config.mode == HP_PLAN_SAVE;
	struct hp_predict_guess guess;

	if (x->tree >= TREES)
		return;
	if (save && x->registered && used_once(s, x) && !x->failed) {
		x->next_ns = x->due_ns = NEVER;
		put(s, x, LEAVING, s->now);
		return;
	}
	if (!hp_predict_next(&s->predict, x->chain, save ? SAMPLES_SAVE : SAMPLES_BUDGET, &guess)) {
		x->next_ns = NEVER;
		if (save && x->tree == DUE) /* as it was expected before */
			return;
		rest(s, x);
		return;
	}
	x->next_ns = s->now + guess.median_ns;
	if (save) {
		unsigned i = x->guesses ? 1 + (x->guesses - 1) % SCORED : 0;
		x->scored[i] = (struct scored){ s->now, (float)guess.low_ns, guess.class };
		x->guesses++;
		decide_save(s, x, &guess);
	} else if (x->registered) {
		put(s, x, KEPT, x->next_ns);
	} else if (!x->failed) {
		put(s, x, DUE, x->next_ns);
	}
}

/* After each event: the region just idle, those that followed before, those due soon, then others in turn. */
static void decide_all(struct hp_schedule *s, struct region *idle)
{
	uint32_t followers[FOLLOWERS];
	unsigned left = DECIDED;

	if (idle) {
		decide(s, idle);
		left--;
	}
	if (s->known > DECIDED) {
		unsigned n = hp_predict_followers(&s->predict, followers, FOLLOWERS);
		for (unsigned i = 0; i < n; i++) {
			struct region *x = find(s, followers[i]);
			if (!x || x == idle)
				continue;
			decide(s, x);
			left--;
		}
		struct region *x = first(s, DUE);
		for (unsigned i = 0; x && i < FOLLOWERS; i++, left--) {
			struct region *then = neighbour(s, x, true);
			decide(s, x);
			x = then;
		}
	}
	unsigned looked = HP_MIN(s->used_up, (uint32_t)DECIDED);
	for (; left && looked && s->predict.steps < STEPS; looked--) {
		s->sweep = s->sweep < s->used_up ? s->sweep + 1 : 1;
		struct region *x = &s->regions[s->sweep];
		if (x == idle || x->tree >= TREES)
			continue;
		decide(s, x);
		left--;
	}
}

/* ------------------------------------------------------------------ what happened */

static void score(struct hp_schedule *s, struct region *x)
{
	unsigned n = HP_MIN(x->guesses, 1u + SCORED);

	for (unsigned i = 0; i < n; i++) {
		const struct scored *g = &x->scored[i];
		hp_predict_score(&s->predict, g->class, (float)(s->now - g->at_ns) / g->low);
	}
	x->guesses = 0;
}

/* A region's first use is its site's, too: is it worth keeping what is first seen there? */
static void first_use(struct hp_schedule *s, struct region *x, uint64_t site_hash)
{
	x->site = (uint32_t)(site_hash ^ site_hash >> 32) | 1;
	struct site *site = site_of(s, x->site);
	if (site->tag != x->site)
		*site = (struct site){ .tag = x->site };
	if (site->first == UINT16_MAX) {
		site->first /= 2;
		site->reused /= 2;
	}
	site->first++;
}

static void count_use(struct hp_schedule *s, struct region *x, bool hit)
{
	s->uses++;
	s->reuses++;
	if (!x->reused && site_of(s, x->site)->tag == x->site)
		site_of(s, x->site)->reused++;
	x->reused = true;
	if (!hit && (x->released || s->asked == x->number)) {
		s->misses++;
		s->mood *= PRICE_MISS;
		if (tokens(s) - (float)s->due < TOKENS_MIN)
			s->alarm = s->uses + s->known;
	} else if (hit) {
		s->mood = HP_MAX(PRICE_MIN, s->mood * PRICE_HIT);
	}
	if (!x->uses) {
		uint64_t gap = s->now - x->idle_ns;
		s->gap_max = HP_MAX(s->gap_max, gap);
		s->area += (double)x->bytes * (double)gap;
		score(s, x);
	}
}

void hp_schedule_start(struct hp_schedule *s, uint32_t region, uint64_t bytes, uint64_t site, uint64_t now_ns, bool hit)
{
	struct region *x = find(s, region);
	bool known = x != NULL;

	advance(s, now_ns);
	if (!x)
		x = make(s, region);
	if (!known && hit)
		find_lost(s, bytes);
	if (!x) { /* all that can be known are in use */
		lose(s, bytes);
		return;
	}
	if (!known) {
		first_use(s, x, site);
		s->uses++;
		s->seen += !hit;
	} else {
		count_use(s, x, hit);
		if (holds(x))
			s->held -= x->bytes;
	}
	leave(s, x);
	x->bytes = bytes;
	x->registered = x->registered || hit;
	x->released = x->failed = false;
	s->asked = s->asked == region ? 0 : s->asked;
	x->due_ns = x->next_ns = NEVER;
	x->uses++;
	s->held += bytes;
	hp_predict_start(&s->predict, region, site, s->now, &x->chain);
	decide_all(s, NULL);
}

void hp_schedule_end(struct hp_schedule *s, uint32_t region, uint64_t now_ns)
{
	struct region *x = find(s, region);

	advance(s, now_ns);
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
	struct region *x = find(s, region);

	advance(s, now_ns);
	if (!x || x->registered)
		return;
	if (!holds(x))
		s->held += x->bytes;
	x->registered = true;
	x->released = x->failed = false;
	x->due_ns = NEVER;
	if (!x->uses)
		rest(s, x);
}

void hp_schedule_deregistered(struct hp_schedule *s, uint32_t region, uint64_t now_ns)
{
	struct region *x = find(s, region);

	advance(s, now_ns);
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
		x->released = x->tree == LEAVING || s->asked == region;
	s->asked = s->asked == region ? 0 : s->asked;
	if (x->due_ns != NEVER)
		put(s, x, DUE, x->due_ns);
	else
		rest(s, x);
}

void hp_schedule_failed(struct hp_schedule *s, uint32_t region, uint64_t now_ns)
{
	struct region *x = find(s, region);

	advance(s, now_ns);
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
	struct region *x = find(s, region);

	if (x)
		drop(s, x);
	else
		find_lost(s, 0);
}

/* ------------------------------------------------------------------ what to do */

static struct hp_plan_step acquire(const struct region *x)
{
	return (struct hp_plan_step){ .what = HP_PLAN_REGISTER, .region = x->number };
}

static struct hp_plan_step evict(const struct region *x)
{
	return (struct hp_plan_step){ .what = HP_PLAN_DEREGISTER, .region = x->number };
}

static struct hp_plan_step release(struct hp_schedule *s, const struct region *x)
{
	s->asked = x->number;
	return evict(x);
}

static struct hp_plan_step wait_until(uint64_t until_ns)
{
	return (struct hp_plan_step){ .what = HP_PLAN_WAIT, .until_ns = until_ns };
}

/* When the region is expected to be used next: by the order of last use, if nothing is known. */
static uint64_t expected(const struct hp_schedule *s, const struct region *x)
{
	return x->tree == IDLE ? 2 * s->now - x->idle_ns : x->key;
}

/* x, or the next one after it that has not just failed: among the first few. */
static struct region *able(const struct hp_schedule *s, struct region *x, bool later)
{
	for (int i = 0; x && x->failed; i++)
		x = i < SWAPS ? neighbour(s, x, later) : NULL;
	return x;
}

/* The registered regions in no use, those first that are expected last, and what is to be released anyhow before all. */
struct victims {
	struct region *leaving, *kept, *idle;
};

static struct victims victims_of(const struct hp_schedule *s)
{
	return (struct victims){ first(s, LEAVING), able(s, last(s, KEPT), false), able(s, first(s, IDLE), true) };
}

static struct region *farthest(const struct hp_schedule *s, struct victims *v)
{
	struct region *x = v->leaving;

	if (x)
		v->leaving = neighbour(s, x, true);
	else if ((x = v->kept) && (!v->idle || expected(s, x) > expected(s, v->idle)))
		v->kept = able(s, neighbour(s, x, false), false);
	else if ((x = v->idle))
		v->idle = able(s, neighbour(s, x, true), true);
	return x;
}

/* Whether to make room for x, which is expected at due: what to deregister first, or NULL. Not if that leads nowhere: x would
 * not fit even so, what had to go for it would come back, and so on for ever. */
static struct region *exchange(const struct hp_schedule *s, const struct region *x, uint64_t due)
{
	uint64_t taken = s->held + s->lost_bytes;
	struct victims victims = victims_of(s);
	struct region *chosen = NULL;

	if (x->bytes > s->config.budget)
		return NULL;
	for (int i = 0; i < VICTIMS && taken > s->config.budget - x->bytes; i++) {
		struct region *victim = farthest(s, &victims);
		if (!victim || (victim->tree != LEAVING && expected(s, victim) <= HP_MAX(due, s->now) + x->register_ns +
										      victim->deregister_ns))
			return NULL;
		chosen = chosen ? chosen : victim;
		taken -= HP_MIN(taken, victim->bytes);
	}
	return taken <= s->config.budget - x->bytes ? chosen : NULL;
}

static struct hp_plan_step next_budget(struct hp_schedule *s)
{
	struct region *x = first(s, DUE);

	for (int i = 0; x && i < SWAPS; i++, x = neighbour(s, x, true)) {
		if (fits(s, x->bytes))
			return acquire(x);
		struct region *victim = exchange(s, x, x->key);
		if (victim)
			return evict(victim);
	}
	return wait_until(NEVER);
}

static struct hp_plan_step next_save(struct hp_schedule *s)
{
	struct region *x;
	uint64_t now = s->now + s->lead_ns, start = NEVER;

	while ((x = first(s, DUE))) {
		int64_t latest = s->regions[s->roots[DUE]].first_ns;
		start = latest < 0 ? 0 : (uint64_t)latest;
		if (start > now)
			break;
		if (fits(s, x->bytes))
			return acquire(x);
		struct region *victim = exchange(s, x, x->due_ns);
		if (victim)
			return evict(victim);
		rest(s, x); /* until it is decided again */
		start = NEVER;
	}
	while ((x = first(s, LEAVING))) {
		if (x->due_ns != NEVER && x->due_ns <= now + 2 * (x->register_ns + x->deregister_ns)) {
			x->due_ns = NEVER; /* too late */
			rest(s, x);
			continue;
		}
		if (now + x->deregister_ns <= start && may_release(s))
			return release(s, x);
		break;
	}
	x = able(s, first(s, IDLE), true);
	if (x && may_release(s) && s->uses >= ABANDONED_USES * s->seen) {
		float worth = ABANDONED_PRICE * price(s) / (float)HP_MAX(x->bytes, 1u);
		uint64_t after = HP_MAX(ABANDONED_GAPS * s->gap_max, (uint64_t)ABANDONED_NS);
		after = HP_MAX(after, worth > 1e18f ? (uint64_t)1e18f : (uint64_t)worth);
		if (s->now - x->idle_ns > after && now + x->deregister_ns <= start) {
			put(s, x, LEAVING, s->now);
			return release(s, x);
		}
		if (s->now - x->idle_ns <= after)
			start = HP_MIN(start, x->idle_ns + after + 1 + s->lead_ns);
	}
	return wait_until(start == NEVER ? NEVER : start - s->lead_ns);
}

struct hp_plan_step hp_schedule_next(struct hp_schedule *s, uint64_t now_ns)
{
	advance(s, now_ns);
	return s->config.mode == HP_PLAN_BUDGET ? next_budget(s) : next_save(s);
}

uint32_t hp_schedule_victim(struct hp_schedule *s, uint64_t now_ns)
{
	advance(s, now_ns);
	struct victims victims = victims_of(s);
	struct region *x = farthest(s, &victims);
	/* Where nothing is expected, those that had to be forgotten have been idle for longer: the caller knows them. */
	return x && !(x->tree == IDLE && s->lost) ? x->number : 0;
}

/* ------------------------------------------------------------------ the plan */

struct hp_schedule *hp_schedule_new(const struct hp_plan_config *config)
{
	size_t bytes = HP_MAX(config->memory, HP_PLAN_MEMORY_MIN);
	uint32_t sites = bytes < ((size_t)1 << 20) ? 64 : 1024;
	size_t predict = hp_predict_size(bytes * 5 / 8 & ~(size_t)63);
	size_t fixed = hp_round_up(sizeof(struct hp_schedule), 64) + predict + sites * sizeof(struct site);
	uint32_t index = 1;

	/* The index has at least twice as many places as there are regions. */
	while (2 * index * (sizeof(uint32_t) + sizeof(struct region) / 2) <= bytes - fixed)
		index *= 2;
	struct hp_schedule *s = hp_meta_map(bytes);
	if (!s)
		return NULL;
	char *at = (char *)s + hp_round_up(sizeof *s, 64);
	hp_predict_init(&s->predict, at, predict);
	s->config = *config;
	s->mapped = bytes;
	s->mood = 1;
	s->sites = (struct site *)(at + predict);
	s->site_mask = sites - 1;
	s->index = (uint32_t *)(s->sites + sites);
	s->index_mask = index - 1;
	s->regions = (struct region *)hp_round_up((uintptr_t)(s->index + index), 8);
	s->capacity = (uint32_t)((bytes - (size_t)((char *)s->regions - (char *)s)) / sizeof(struct region)) - 1;
	s->capacity = HP_MIN(s->capacity, index * 3 / 4);
	return s;
}

void hp_schedule_free(struct hp_schedule *s)
{
	if (s)
		munmap(s, s->mapped);
}

void hp_schedule_set_lead(struct hp_schedule *s, uint64_t lead_ns)
{
	s->lead_ns = lead_ns;
}

void hp_schedule_stats(const struct hp_schedule *s, struct hp_plan_stats *ret_)
{
	*ret_ = (struct hp_plan_stats){ .memory = s->mapped, .contexts = s->predict.used, .regions = s->known,
					.forgotten = s->predict.forgotten + s->forgotten };
}
