/*
 * The policy of Li et al. 2011, followed to the letter where the paper is exact. Our own choices, where it is not, are
 * marked with an asterisk.
 *
 * A finished use goes into the deregistration queue DQ (`done`), a ring that overwrites its oldest item. The helper
 * takes a use out and finds the context of its call site, by a signature of region, call site and the two communication
 * points before it. Then it learns the context's period, which is the shortest time between two starts in the context
 * (3.1, 4.2). A context's deadline is its last start plus its period, and a region's deadline is the nearest future one
 * of its contexts (* a past deadline counts as none). The region is given back if there is time to register it again,
 * and always when it is first seen. Then the deadline goes into the registration queue RQ (`due`), which is in the
 * order of deadlines, far enough apart for handling one item of either queue between any two (3.2). DQ and RQ take
 * turns. A region that the helper has registered stays registered until its next use has ended, even if that use never
 * comes.
 *
 * Further choices of our own:
 * - * A region may be in the RQ several times, with a deadline of each of its contexts.
 * - * If uses overlap, a region is not given back before the last has ended.
 * - * The estimate for "one DQ item" uses the region of the RQ item in question.
 * - * The context window has the call site where the paper has the type of the call.
 * - * If regions must go to make room for others, the one with the farthest deadline goes first. Regions without a
 *   deadline count as farthest, and of these the one idle longest goes.
 *
 * All memory is taken at the start and divided into regions, contexts and uses under way. If the regions or contexts
 * are full, the clock algorithm (Corbato 1968) chooses one to forget; a region in use is never chosen. If the uses are
 * full, nothing is learnt from a new use.
 */
#include "reg/policy/cf11.h"

#include <string.h>

#include "base/base.h"

#define NEVER UINT64_MAX

/* Indexes of the tables begin at 1; 0 means none. */
struct region {
	uint32_t number; /* the caller's number for it; 0: this entry is free */
	uint32_t next; /* in its bucket */
	uint32_t contexts;
	uint32_t first_use, last_use; /* list of uses under way, oldest first */
	uint32_t uses;
	bool registered, recent;
	bool refused; /* a step for this region failed, and the region has had no event since */
	uint64_t bytes;
	uint64_t last_end_ns;
};

struct context {
	uint64_t signature;
	uint64_t last_ns; /* its last start */
	uint64_t period_ns; /* NEVER: the context was seen once */
	uint32_t region; /* 0: free */
	uint32_t next; /* in its bucket */
	uint32_t next_of_region;
	bool recent, queued;
};

struct use {
	uint64_t signature, start_ns;
	uint32_t region, next; /* next use of its region, or next free one */
};

struct due {
	uint64_t at_ns;
	uint32_t context;
};

struct hp_cf11 {
	struct hp_plan_config config;
	uint64_t now_ns, lead_ns;
	uint64_t before[2]; /* the last two communication points, the later one first */
	size_t size; /* size of the mapping */

	struct region *region;
	struct context *context;
	struct use *use;
	struct due *due; /* sorted; the last item is the earliest */
	uint32_t *region_bucket, *context_bucket;
	uint32_t regions_max, contexts_max, uses_max; /* the first two are also the numbers of buckets */
	uint32_t regions, contexts, dues, registered; /* numbers of present items */
	uint32_t regions_used, contexts_used, uses_used; /* entries up to these were ever in use */
	uint32_t free_use, region_hand, context_hand;
	uint64_t forgotten;

	struct use done[HP_CF11_DONE_MAX];
	uint64_t done_head, done_tail; /* numbers of items ever put in and taken out */
	bool dq_next;

	struct hp_plan_step step; /* the last answer, until it is done */
};

static uint64_t cf11_mix(uint64_t x) /* the finalizer of splitmix64 (Steele et al. 2014) */
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static uint64_t cf11_advance(struct hp_cf11 *c, uint64_t now_ns)
{
	return c->now_ns = HP_MAX(c->now_ns, now_ns);
}

static uint64_t minus_or_zero(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* ------------------------------------------------------------------ memory */

struct hp_cf11 *hp_cf11_new(const struct hp_plan_config *config)
{
	size_t memory = HP_MAX(config->memory, HP_PLAN_MEMORY_MIN), rest = memory - sizeof(struct hp_cf11);
	/* Most regions have one or two contexts, and one use under way for each is more than enough. */
	size_t n = rest / (sizeof(struct region) + 2 * (sizeof(struct context) + sizeof(struct due)) +
			   sizeof(struct use) + 3 * sizeof(uint32_t));
	struct hp_cf11 *c = hp_meta_map(memory);
	char *at;

	if (!c)
		return NULL;
	at = (char *)(c + 1);
	c->config = *config;
	c->size = memory;
	c->regions_max = c->uses_max = (uint32_t)n;
	c->contexts_max = (uint32_t)(2 * n);
	c->context = (struct context *)at - 1;
	at += 2 * n * sizeof(struct context);
	c->region = (struct region *)at - 1;
	at += n * sizeof(struct region);
	c->use = (struct use *)at - 1;
	at += n * sizeof(struct use);
	c->due = (struct due *)at;
	at += 2 * n * sizeof(struct due);
	c->region_bucket = (uint32_t *)at;
	c->context_bucket = c->region_bucket + n;
	HP_ASSERT((char *)(c->context_bucket + 2 * n) <= (char *)c + memory);
	return c;
}

void hp_cf11_free(struct hp_cf11 *c)
{
	hp_meta_unmap(c, c->size);
}

static void give_use(struct hp_cf11 *c, uint32_t u)
{
	c->use[u].next = c->free_use;
	c->free_use = u;
}

static uint32_t take_use(struct hp_cf11 *c)
{
	uint32_t u = c->free_use;

	if (u)
		c->free_use = c->use[u].next;
	else if (c->uses_used < c->uses_max)
		u = ++c->uses_used;
	return u;
}

static uint32_t *region_link(struct hp_cf11 *c, uint32_t number)
{
	uint32_t *link = &c->region_bucket[cf11_mix(number) % c->regions_max];

	while (*link && c->region[*link].number != number)
		link = &c->region[*link].next;
	return link;
}

static struct region *find_region(struct hp_cf11 *c, uint32_t number)
{
	uint32_t r = *region_link(c, number);

	return r ? &c->region[r] : NULL;
}

static uint32_t *context_link(struct hp_cf11 *c, uint64_t signature, uint32_t region)
{
	uint32_t *link = &c->context_bucket[signature % c->contexts_max];

	while (*link && (c->context[*link].signature != signature || c->context[*link].region != region))
		link = &c->context[*link].next;
	return link;
}

static void unqueue(struct hp_cf11 *c, uint32_t context)
{
	uint32_t i = 0;

	if (!c->context[context].queued)
		return;
	c->context[context].queued = false;
	while (c->due[i].context != context)
		i++;
	memmove(&c->due[i], &c->due[i + 1], (--c->dues - i) * sizeof *c->due);
}

static void drop_context(struct hp_cf11 *c, uint32_t index)
{
	struct context *x = &c->context[index];
	uint32_t *link = &c->region[x->region].contexts;

	unqueue(c, index);
	while (*link != index)
		link = &c->context[*link].next_of_region;
	*link = x->next_of_region;
	*context_link(c, x->signature, x->region) = x->next;
	x->region = 0;
	c->contexts--;
}

static void cf11_drop(struct hp_cf11 *c, uint32_t index)
{
	struct region *g = &c->region[index];

	while (g->contexts)
		drop_context(c, g->contexts);
	for (uint32_t u = g->first_use, next; u; u = next) {
		next = c->use[u].next;
		give_use(c, u);
	}
	for (uint64_t i = c->done_tail; i < c->done_head; i++)
		if (c->done[i % HP_CF11_DONE_MAX].region == index)
			c->done[i % HP_CF11_DONE_MAX].region = 0;
	c->registered -= g->registered;
	*region_link(c, g->number) = g->next;
	g->number = 0;
	c->regions--;
}

/* A free entry; if there is none, forget a region. 0 if every region is in use. */
static uint32_t take_region(struct hp_cf11 *c)
{
	if (c->regions_used < c->regions_max)
		return ++c->regions_used;
	for (uint32_t n = 0; n < 2 * c->regions_max; n++) {
		uint32_t r = c->region_hand = c->region_hand % c->regions_max + 1;

		if (c->region[r].number && (c->region[r].uses || c->region[r].recent)) {
			c->region[r].recent = false;
			continue;
		}
		if (c->region[r].number) {
			cf11_drop(c, r);
			c->forgotten++;
		}
		return r;
	}
	return 0;
}

static uint32_t take_context(struct hp_cf11 *c)
{
	if (c->contexts_used < c->contexts_max)
		return ++c->contexts_used;
	for (;;) {
		uint32_t x = c->context_hand = c->context_hand % c->contexts_max + 1;

		if (c->context[x].region && c->context[x].recent) {
			c->context[x].recent = false;
			continue;
		}
		if (c->context[x].region) {
			drop_context(c, x);
			c->forgotten++;
		}
		return x;
	}
}

/* ------------------------------------------------------------------ time */

static uint64_t cost_ns(const struct hp_cf11 *c, const struct region *g, bool registering)
{
	return c->config.cost_ns(c->config.arg, g->number, g->bytes, registering);
}

/* The time of a search that compares every item of the queue (3.2). */
static uint64_t search_ns(uint32_t n)
{
	return (uint64_t)n * HP_CF11_COMPARE_NS;
}

/* t_p of the deregistration condition, with the share of equation (2). */
static uint64_t give_back_ns(const struct hp_cf11 *c, const struct region *g)
{
	uint64_t insert = search_ns(c->dues), update = insert;

	return cost_ns(c, g, false) + insert + cost_ns(c, g, true) + update + c->lead_ns;
}

/* t_p of the registration condition. */
static uint64_t have_again_ns(const struct hp_cf11 *c, const struct region *g)
{
	uint64_t hash = HP_CF11_HASH_NS, cache = search_ns(c->registered);

	return hash + cache + give_back_ns(c, g);
}

/* A context's deadline. NEVER: it is not known, or has passed. */
static uint64_t deadline_ns(const struct hp_cf11 *c, uint32_t context)
{
	const struct context *x = &c->context[context];
	uint64_t deadline;

	if (!context || x->period_ns == NEVER)
		return NEVER;
	deadline = x->last_ns + x->period_ns;
	return deadline > c->now_ns ? deadline : NEVER;
}

/* The context whose deadline is nearest, or 0. */
static uint32_t nearest(const struct hp_cf11 *c, const struct region *g)
{
	uint32_t nearest = 0;

	for (uint32_t x = g->contexts; x; x = c->context[x].next_of_region)
		if (deadline_ns(c, x) < deadline_ns(c, nearest))
			nearest = x;
	return nearest;
}

/* ------------------------------------------------------------------ the queues */

static struct region *region_due(const struct hp_cf11 *c, uint32_t i)
{
	return &c->region[c->context[c->due[i].context].region];
}

/* Put a context into the RQ, and move the deadlines before it still earlier, as far as needed. */
static void cf11_enqueue(struct hp_cf11 *c, uint32_t context)
{
	uint64_t at_ns = deadline_ns(c, context);
	uint32_t low = 0, high;

	unqueue(c, context);
	for (high = c->dues; low < high;) {
		uint32_t middle = (low + high) / 2;

		if (c->due[middle].at_ns > at_ns)
			low = middle + 1;
		else
			high = middle;
	}
	memmove(&c->due[low + 1], &c->due[low], (c->dues++ - low) * sizeof *c->due);
	c->due[low] = (struct due){ at_ns, context };
	c->context[context].queued = true;
	for (uint32_t i = low; i < c->dues; i++) {
		uint64_t latest = NEVER;

		if (i)
			latest = minus_or_zero(c->due[i - 1].at_ns, have_again_ns(c, region_due(c, i - 1)));
		if (c->due[i].at_ns > latest)
			c->due[i].at_ns = latest;
		else if (i > low)
			break;
	}
}

static bool possible(struct hp_plan_step step, const struct region *g)
{
	return g && !g->uses && !g->refused && g->registered == (step.what == HP_PLAN_DEREGISTER);
}

/* Learn the period of a use's context: the shortest time between the starts of two uses. */
static void cf11_learn(struct hp_cf11 *c, const struct use *u)
{
	uint32_t *link = context_link(c, u->signature, u->region), index = *link;

	if (!index) {
		index = take_context(c);
		link = &c->context_bucket[u->signature % c->contexts_max];
		c->context[index] = (struct context){ .signature = u->signature,
						      .last_ns = u->start_ns,
						      .period_ns = NEVER,
						      .region = u->region,
						      .next = *link,
						      .next_of_region = c->region[u->region].contexts };
		*link = c->region[u->region].contexts = index;
		c->contexts++;
		return;
	}
	struct context *x = &c->context[index];
	x->period_ns = HP_MIN(x->period_ns, minus_or_zero(u->start_ns, x->last_ns));
	x->last_ns = u->start_ns;
	x->recent = true;
}

/* Process one item of the DQ. */
static void process_done(struct hp_cf11 *c)
{
	struct use u = c->done[c->done_tail++ % HP_CF11_DONE_MAX];
	struct region *g = &c->region[u.region];
	struct hp_plan_step step = { .what = HP_PLAN_DEREGISTER };
	uint64_t deadline;
	uint32_t context;

	if (!u.region) /* the region was forgotten */
		return;
	cf11_learn(c, &u);
	step.region = g->number;
	context = nearest(c, g);
	deadline = deadline_ns(c, context);
	if (!possible(step, g) || c->now_ns + give_back_ns(c, g) > deadline)
		return;
	if (context)
		cf11_enqueue(c, context);
	c->step = step;
}

/* Process the RQ's first item, which is due. */
static void process_due(struct hp_cf11 *c)
{
	const struct region *g = region_due(c, --c->dues);
	struct hp_plan_step step = { .what = HP_PLAN_REGISTER, .region = g->number };

	c->context[c->due[c->dues].context].queued = false;
	if (possible(step, g))
		c->step = step;
}

/* The latest time for processing the RQ's first item. NEVER: the RQ is empty. */
static uint64_t next_due_ns(const struct hp_cf11 *c)
{
	return c->dues ? minus_or_zero(c->due[c->dues - 1].at_ns, have_again_ns(c, region_due(c, c->dues - 1))) : NEVER;
}

struct hp_plan_step hp_cf11_next(struct hp_cf11 *c, uint64_t now_ns)
{
	cf11_advance(c, now_ns);
	if (c->step.what != HP_PLAN_WAIT && !possible(c->step, find_region(c, c->step.region)))
		c->step.what = HP_PLAN_WAIT;
	while (c->step.what == HP_PLAN_WAIT) {
		bool dq = c->done_tail < c->done_head, rq = next_due_ns(c) <= c->now_ns;

		if (!dq && !rq)
			return (struct hp_plan_step){ .what = HP_PLAN_WAIT, .until_ns = next_due_ns(c) };
		c->dq_next = !c->dq_next;
		if (dq && (c->dq_next || !rq))
			process_done(c);
		else
			process_due(c);
	}
	return c->step;
}

/* ------------------------------------------------------------------ what happened */

void hp_cf11_set_lead(struct hp_cf11 *c, uint64_t lead_ns)
{
	c->lead_ns = lead_ns;
}

void hp_cf11_start(struct hp_cf11 *c, uint32_t region, uint64_t bytes, uint64_t site, uint64_t now_ns, bool hit)
{
	uint64_t point = cf11_mix(site ^ cf11_mix(region)),
		 signature = cf11_mix(point + cf11_mix(c->before[0] + cf11_mix(c->before[1])));
	struct region *g = find_region(c, region);
	uint32_t u;

	cf11_advance(c, now_ns);
	c->before[1] = c->before[0];
	c->before[0] = point;
	if (!g) {
		uint32_t r = take_region(c), *link = region_link(c, region);

		if (!r)
			return;
		g = &c->region[r];
		*g = (struct region){ .number = region, .registered = hit, .next = *link };
		*link = r;
		c->regions++;
		c->registered += hit;
	}
	g->bytes = bytes;
	g->recent = true;
	g->refused = false;
	g->uses++;
	u = take_use(c);
	if (!u)
		return;
	c->use[u] = (struct use){ signature, c->now_ns, (uint32_t)(g - c->region), 0 };
	*(g->first_use ? &c->use[g->last_use].next : &g->first_use) = u;
	g->last_use = u;
}

/* The caller does not tell which of the region's uses has ended, so assume the oldest. */
void hp_cf11_end(struct hp_cf11 *c, uint32_t region, uint64_t now_ns)
{
	struct region *g = find_region(c, region);
	uint32_t u;

	cf11_advance(c, now_ns);
	if (!g || !g->uses)
		return;
	g->uses--;
	g->refused = false;
	g->last_end_ns = c->now_ns;
	u = g->first_use;
	if (!u)
		return;
	g->first_use = c->use[u].next;
	if (c->done_head - c->done_tail == HP_CF11_DONE_MAX)
		c->done_tail++;
	c->done[c->done_head++ % HP_CF11_DONE_MAX] = c->use[u];
	give_use(c, u);
}

static void over(struct hp_cf11 *c, uint32_t region, uint64_t now_ns)
{
	cf11_advance(c, now_ns);
	if (c->step.region == region)
		c->step.what = HP_PLAN_WAIT;
}

static void became(struct hp_cf11 *c, uint32_t region, uint64_t now_ns, bool registered)
{
	struct region *g = find_region(c, region);

	over(c, region, now_ns);
	if (!g)
		return;
	g->refused = false;
	if (g->registered == registered)
		return;
	g->registered = registered;
	c->registered += registered ? 1 : UINT32_MAX;
}

void hp_cf11_registered(struct hp_cf11 *c, uint32_t region, uint64_t now_ns)
{
	became(c, region, now_ns, true);
}

void hp_cf11_deregistered(struct hp_cf11 *c, uint32_t region, uint64_t now_ns)
{
	became(c, region, now_ns, false);
}

void hp_cf11_failed(struct hp_cf11 *c, uint32_t region, uint64_t now_ns)
{
	struct region *g = find_region(c, region);

	over(c, region, now_ns);
	if (g)
		g->refused = true;
}

void hp_cf11_forget(struct hp_cf11 *c, uint32_t region)
{
	struct region *g = find_region(c, region);

	if (c->step.region == region)
		c->step.what = HP_PLAN_WAIT;
	if (g)
		cf11_drop(c, (uint32_t)(g - c->region));
}

uint32_t hp_cf11_victim(struct hp_cf11 *c, uint64_t now_ns)
{
	const struct region *victim = NULL;
	uint64_t farthest = 0;

	cf11_advance(c, now_ns);
	for (uint32_t r = 1; r <= c->regions_used; r++) {
		const struct region *g = &c->region[r];

		if (!g->number || !g->registered || g->uses)
			continue;
		uint64_t deadline = deadline_ns(c, nearest(c, g));
		if (!victim || deadline > farthest || (deadline == farthest && g->last_end_ns < victim->last_end_ns)) {
			victim = g;
			farthest = deadline;
		}
	}
	return victim ? victim->number : 0;
}

void hp_cf11_stats(const struct hp_cf11 *c, struct hp_plan_stats *ret_)
{
	*ret_ = (struct hp_plan_stats){ .memory = c->size,
					.contexts = c->contexts,
					.regions = c->regions,
					.forgotten = c->forgotten };
}
