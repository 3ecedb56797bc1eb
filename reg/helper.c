/*
 * The helper: carries out what a plan (plan.h) decides, for domains whose policy predicts. It runs on the service thread.
 *
 * Threads leave records of what they pinned on rings of their own (record.h), and misses leave theirs with the domain. The helper
 * takes them in and tells the plan, in the order of time. So does a pin that misses and has to evict, so that what it evicts is
 * chosen by late knowledge: but a few only, since each takes microseconds. A region whose `used` flag is set has been used since the
 * plan heard of it, and is not what such a pin evicts. The helper holds the domain's lock for one record or one action at a time.
 *	push:	record; look whether the helper was asked to run, and ask it if not
 *	run:	clear that; take the records; if there are none, membarrier on every running thread, and look once more
 * Either the run sees the record or the push sees that it has to ask (as in state.h). The first pin of a region since the helper
 * last saw it given back leaves a record of its start, others none (`used` in state.h): a region that is pinned again before the
 * helper comes round is not going to be given back in between.
 *
 * Places. What the plan calls a region is a place here: a range that is or was registered, which keeps its number while it is
 * not. A registration of the same range has the same place.
 */
#include "reg/helper.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/queue.h>
#include <time.h>
#include <unistd.h>

#include "base/config.h"
#include "base/stats.h"
#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/policy/cost.h"
#include "reg/policy/plan.h"
#include "reg/record.h"
#include "reg/region.h"
#include "reg/share.h"

#define DELAY_MAX_NS UINT64_C(20000000)

#define LOAD_NS UINT64_C(200000000) /* a period */

enum {
	LOAD_SHARE = 200, /* 1 / 200 of a processor */
	DELAY_MEMORY = 32, /* wakes, in which a delay is forgotten */
	PENDING_MAX = 2 * HP_RECORDS_MAX, /* records of a domain that wait for its lock; and as many that wait to be told */
	TOLD_BY_A_MISS = 8, /* records; each takes some 3 us */
	PLACES_MAX = 1 << 19,
	PLACES_STEP = 1 << 10, /* that get memory at a time */
	RELEASED_MAX = 1 << 16, /* places that are not registered; the oldest are forgotten */
	VICTIMS_TRIED = 16,
	WAITER_YIELDS = 50,
	CALIBRATION_NS = 200000,
	SETTLED_NS = 1000000000, /* from then on so long between calibrations */
};

#define STALE (UINT64_C(1) << 32) /* no record waits longer; a clock that went back further began anew */

struct place {
	uintptr_t start, end;
	uint64_t site; /* of the last use */
	uint64_t since; /* registered, in the time of records: those shortly before are of another registration with this index */
	uint32_t access, backing;
	uint32_t region; /* index, 0: not registered */
	uint32_t uses; /* that the plan was told the start of, and not the end */
	bool known, told; /* the plan was told of it; that it is registered */
	uint32_t next; /* of the free */
	TAILQ_ENTRY(place) order; /* in released */
	RB_ENTRY(place) node; /* in by_start */
};
RB_HEAD(place_tree, place);

/* How the processor's counter goes by the clock. */
struct counter {
	uint64_t ticks, ns; /* at one moment */
	uint64_t ns_per_tick; /* 32 bits behind the point */
	bool settled;
};

/* Threads' records come one after the other, each thread's in the order of time. */
struct queued {
	struct hp_record record;
	uint32_t number; /* in which they came: for those of one time */
};

struct hp_helper {
	struct hp_plan *plan;
	bool saves; /* the plan's mode */
	struct counter counter;
	struct hp_cost cost;
	uint32_t sharers; /* of the helper's core, with it; 0: this process has to do without, or it has not run yet */
	struct hp_record pending[PENDING_MAX]; /* under records_lock */
	unsigned pending_count;
	struct queued queue[PENDING_MAX]; /* a heap (Williams 1964), the oldest first */
	unsigned queue_count;
	uint32_t queued; /* ever; wraps */
	uint64_t bytes; /* of all places; read without the lock */
	uint32_t lost_pending; /* records for which there was no room there */
	uint32_t lost_queued; /* the same of misses */
	uint32_t lost_seen; /* of those that did not get into the rings */
	bool any; /* records were there, since the helper came last */
	bool crowded; /* records were lost: what it knows is not to be relied on */
	TAILQ_HEAD(, place) released; /* not registered, oldest first */
	uint32_t released_count, places_used, places_free, places_opened; /* opened: those below have memory */
	struct place_tree by_start; /* the same */
	size_t len_max; /* of any that was among them */
	uint32_t *place_of; /* by region */
	struct place *places; /* number 1 and up */
};

bool hp_record_by_counter;

static struct {
	_Atomic uint64_t uses; /* since this process told the others of itself */
	struct hp_share_verdict verdict;
	uint64_t delay_ns; /* how late we come at most, of late; what is to be ready has to be begun so much earlier */
	bool begun;
} share = { .verdict = { true, 1 } }; /* alone, until others are known of; but for uses, the helper's */

/* Where no core is idle, what the helper takes is taken from the program: to save memory it may take so much and no more. */
static struct {
	uint64_t begun_ns, idle_ns, taken_ns; /* a period: when, and what had been idle and taken by then */
	uint64_t allowed_ns; /* in the period; UINT64_MAX: a core is idle */
} load = { .allowed_ns = UINT64_MAX }; /* the helper's */

static struct hp_lock records_lock = HP_LOCK_INIT(HP_RANK_QUEUE); /* the taking end of the rings, and what is pending */
static struct counter counter; /* under the lock of opening */

/* ------------------------------------------------------------------ time */

/* Both clocks at one moment: the thread may lose its processor in between, but hardly each time. */
static void look_at_clocks(uint64_t *ret_ticks, uint64_t *ret_ns)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 3; i++) {
		uint64_t ticks = hp_record_time(), ns = hp_clock_ns(), took = hp_record_time() - ticks;

		if (took >= least)
			continue;
		least = took;
		*ret_ticks = ticks;
		*ret_ns = ns;
	}
}

/* Of late, not since the start: in a suspend the one clock stands still, and the other goes on or begins anew. */
static void calibrate(uint64_t least_ns)
{
	uint64_t ticks, ns, passed;

	look_at_clocks(&ticks, &ns);
	passed = ns - counter.ns;
	if (passed < least_ns)
		return;
	if (ticks > counter.ticks)
		counter.ns_per_tick = (uint64_t)(((unsigned __int128)passed << 32) / (ticks - counter.ticks));
	if (passed < SETTLED_NS && ticks > counter.ticks)
		return;
	counter.ticks = ticks;
	counter.ns = ns;
	counter.settled = true;
}

static void clock_open(void)
{
	char source[32];

	if (counter.ns_per_tick)
		return;
	hp_record_by_counter = hp_read_file("/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
					    sizeof source) > 0 &&
			       strncmp(source, "tsc", 3) == 0;
	look_at_clocks(&counter.ticks, &counter.ns);
	counter.ns_per_tick = UINT64_C(1) << 32;
	if (!hp_record_by_counter)
		return;
	while (hp_clock_ns() - counter.ns < CALIBRATION_NS)
		;
	calibrate(0);
}

/* Of a record's time, in the domain's clock. */
static uint64_t record_ns(const hugepin_domain *d, uint64_t time)
{
	const struct counter *c = &d->helper->counter;
	int64_t ticks = (int64_t)(time - c->ticks);

	if (d->own_clock || !hp_record_by_counter)
		return time;
	return c->ns + (uint64_t)(int64_t)(((__int128)ticks * (int64_t)c->ns_per_tick) >> 32);
}

static uint64_t now_of(const hugepin_domain *d)
{
	return d->own_clock ? d->backend.now_ns(d->ctx) : record_ns(d, hp_record_time());
}

uint64_t hp_helper_time(const hugepin_domain *d)
{
	return d->own_clock ? d->backend.now_ns(d->ctx) : hp_record_time();
}

/* ------------------------------------------------------------------ places */

static int compare(const struct place *a, const struct place *b)
{
	return a->start != b->start ? (a->start < b->start ? -1 : 1) : a->end != b->end ? (a->end < b->end ? -1 : 1) : 0;
}

RB_GENERATE_INTERNAL(place_tree, place, node, compare, __attribute__((unused)) static)

static void unlist(struct hp_helper *h, struct place *p)
{
	RB_REMOVE(place_tree, &h->by_start, p);
	TAILQ_REMOVE(&h->released, p, order);
	h->released_count--;
}

static void place_free(struct hp_helper *h, struct place *p)
{
	uint32_t id = (uint32_t)(p - h->places);

	if (p->known)
		hp_plan_forget(h->plan, id);
	__atomic_store_n(&h->bytes, h->bytes - (p->end - p->start), __ATOMIC_RELAXED);
	p->next = h->places_free;
	h->places_free = id;
}

static void forget_released(struct hp_helper *h, struct place *p)
{
	unlist(h, p);
	place_free(h, p);
}

/* A place that is not registered any more waits to be used again. */
static void list(struct hp_helper *h, struct place *p)
{
	RB_INSERT(place_tree, &h->by_start, p); /* there is none of the same range: p would be that */
	h->len_max = HP_MAX(h->len_max, p->end - p->start);
	TAILQ_INSERT_TAIL(&h->released, p, order);
	if (h->released_count++ >= RELEASED_MAX)
		forget_released(h, TAILQ_FIRST(&h->released));
}

static struct place *find_released(struct hp_helper *h, uintptr_t start, uintptr_t end)
{
	struct place key = { .start = start, .end = end };

	return RB_FIND(place_tree, &h->by_start, &key);
}

static struct place *place_new(struct hp_helper *h, uintptr_t start, uintptr_t end)
{
	struct place *p;

	if (h->places_free) {
		p = &h->places[h->places_free];
		h->places_free = p->next;
	} else {
		if (h->places_used + 1 >= h->places_opened) {
			if (h->places_opened == PLACES_MAX ||
			    !hp_meta_open(&h->places[h->places_opened], PLACES_STEP * sizeof *p))
				return NULL;
			h->places_opened += PLACES_STEP;
		}
		p = &h->places[++h->places_used];
	}
	memset(p, 0, sizeof *p);
	p->start = start;
	p->end = end;
	__atomic_store_n(&h->bytes, h->bytes + (end - start), __ATOMIC_RELAXED);
	return p;
}

/* What registering costs depends on the pages behind it. */
static uint32_t backing_of(const struct hp_region *r)
{
	struct hugepin_extent x;

	if (!hp_region_is_heap(r) || !hp_heap_extent((void *)r->start, &x))
		return HP_COST_BASE;
	return x.kind == HUGEPIN_KIND_HUGETLB ? HP_COST_HUGETLB : x.kind == HUGEPIN_KIND_THP ? HP_COST_THP : HP_COST_BASE;
}

/* The place of a registration; *ret_new: that the plan does not know of yet. NULL: too many. */
static struct place *place_of(struct hp_helper *h, struct hp_region *r, bool *ret_new)
{
	uint32_t index = (uint32_t)(r - hp_regions), id = h->place_of[index];
	struct place *p;

	*ret_new = !id;
	if (id)
		return &h->places[id];
	p = find_released(h, r->start, r->end);
	if (p)
		unlist(h, p);
	else
		p = place_new(h, r->start, r->end);
	if (!p)
		return NULL;
	p->access = r->access;
	p->backing = backing_of(r);
	p->region = index;
	p->uses = 0;
	p->told = false;
	h->place_of[index] = (uint32_t)(p - h->places);
	return p;
}

static uint32_t id_of(const struct hp_helper *h, const struct place *p)
{
	return (uint32_t)(p - h->places);
}

static uint64_t cost_ns(void *helper, uint32_t id, uint64_t bytes, bool registering)
{
	struct hp_helper *h = helper;

	return hp_share_cost_ns(h->sharers, hp_cost_ns(&h->cost, h->places[id].backing, bytes, registering));
}

/* ------------------------------------------------------------------ what was done */

static void start(hugepin_domain *d, struct place *p, uint64_t site, uint64_t now_ns, bool hit)
{
	p->known = true;
	p->uses++;
	p->site = site;
	atomic_fetch_add_explicit(&share.uses, 1, memory_order_relaxed);
	hp_plan_start(d->helper->plan, id_of(d->helper, p), p->end - p->start, site, now_ns, hit);
}

static void tell_registered(struct hp_helper *h, struct place *p, uint64_t now_ns)
{
	p->known = p->told = true;
	hp_plan_registered(h->plan, id_of(h, p), now_ns);
}

static void end(hugepin_domain *d, struct place *p, struct hp_region *r, uint64_t now_ns)
{
	if (!p->uses) /* its start was not seen */
		start(d, p, p->site, now_ns, true);
	/* While others are out it goes on, as one use. */
	while (p->uses > (hp_region_pins(r) ? 1u : 0u)) {
		p->uses--;
		hp_plan_end(d->helper->plan, id_of(d->helper, p), now_ns);
	}
	if (!p->uses)
		hp_region_clear_used(d, r);
}

/* A record is older than now, whatever the clock does meanwhile; the plan would wait for a time that is far ahead. */
static void take(hugepin_domain *d, const struct hp_record *record)
{
	struct hp_helper *h = d->helper;
	struct hp_region *r = &hp_regions[HP_RECORD_VALUE(record->subject)];
	enum hp_record_kind kind = HP_RECORD_KIND(record->subject);
	uint64_t at_ns = HP_MIN(record_ns(d, record->time), now_of(d));
	struct place *p;
	bool new;

	if ((!hp_region_is(r, d, HP_REGION_LIVE) && !hp_region_is(r, d, HP_REGION_RETIRED)) || r->kind == HP_REGION_UNCACHED)
		return;
	p = place_of(h, r, &new);
	if (!p)
		return;
	if (new)
		p->since = record->time;
	if (p->since - record->time - 1 < STALE)
		return;
	if (kind == HP_RECORD_MISS)
		start(d, p, record->site, at_ns, false);
	if (!p->told)
		tell_registered(h, p, at_ns);
	if (kind == HP_RECORD_START)
		start(d, p, record->site, at_ns, true);
	if (kind == HP_RECORD_END)
		end(d, p, r, at_ns);
}

static void collect_from(void *unused, struct hp_records *q)
{
	uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
	uint32_t head = atomic_load_explicit(&q->head, memory_order_acquire); /* pairs with hp_record_push() */

	(void)unused;
	for (; tail != head; tail++) {
		const struct hp_record *record = &q->record[tail % HP_RECORDS_MAX];
		hugepin_domain *d = HP_READ(hp_regions[HP_RECORD_VALUE(record->subject)].domain);
		struct hp_helper *h = d ? d->helper : NULL;

		if (!h)
			continue;
		if (h->pending_count < PENDING_MAX)
			h->pending[h->pending_count++] = *record;
		else
			h->lost_pending++;
	}
	/* release: the records were read; pairs with the acquire in hp_record_push(). */
	atomic_store_explicit(&q->tail, tail, memory_order_release);
}

struct losses {
	uint32_t domain, sum; /* wraps: what counts is how much more it is than before */
};

static void add_lost(void *losses, struct hp_records *q)
{
	struct losses *l = losses;

	l->sum += atomic_load_explicit(&q->lost[l->domain], memory_order_relaxed);
}

/* Of the domain's records, how many were dropped for want of room in the rings, ever. */
static uint32_t lost_by(const hugepin_domain *d)
{
	struct losses l = { .domain = d->number };

	_Static_assert(HP_RECORDS_DOMAINS == HUGEPIN_DOMAINS_MAX, "");
	hp_counts_each(add_lost, &l);
	return l.sum;
}

/* By time; as they came, if it is the same, or one was made before a clock began anew. */
static bool before(const struct queued *a, const struct queued *b)
{
	uint64_t later = b->record.time - a->record.time;

	if (later && later + STALE < 2 * STALE)
		return later < STALE;
	return (int32_t)(b->number - a->number) > 0;
}

/* There is room. */
static void enqueue(struct hp_helper *h, const struct hp_record *record)
{
	struct queued q = { *record, h->queued++ };
	unsigned i = h->queue_count++;

	for (; i && before(&q, &h->queue[(i - 1) / 2]); i = (i - 1) / 2)
		h->queue[i] = h->queue[(i - 1) / 2];
	h->queue[i] = q;
}

static struct hp_record dequeue(struct hp_helper *h)
{
	struct hp_record oldest = h->queue[0].record;
	struct queued q = h->queue[--h->queue_count];
	unsigned n = h->queue_count, i = 0;

	for (unsigned child = 1; child < n; i = child, child = 2 * i + 1) {
		child += child + 1 < n && before(&h->queue[child + 1], &h->queue[child]);
		if (before(&q, &h->queue[child]))
			break;
		h->queue[i] = h->queue[child];
	}
	h->queue[i] = q;
	return oldest;
}

/* What a miss has told is right by itself. Returns how many were dropped. */
static unsigned drop_all_but_misses(struct hp_helper *h)
{
	unsigned count = h->queue_count, dropped;

	h->queue_count = 0;
	for (unsigned i = 0; i < count; i++)
		if (HP_RECORD_KIND(h->queue[i].record.subject) == HP_RECORD_MISS)
			enqueue(h, &h->queue[i].record);
	dropped = count - h->queue_count;
	return dropped;
}

/* What is there for the domain, into its queue, as far as there is room. False: records were lost. A sequence with gaps teaches
 * nothing right; and who pins that often is not to be held up by our reading what he writes. */
static bool collect(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;
	uint32_t lost;
	unsigned n;

	hp_lock(&records_lock);
	hp_counts_each(collect_from, NULL);
	n = HP_MIN(h->pending_count, PENDING_MAX - h->queue_count);
	for (unsigned i = 0; i < n; i++)
		enqueue(h, &h->pending[i]);
	h->pending_count -= n;
	memmove(h->pending, h->pending + n, h->pending_count * sizeof *h->pending);
	lost = h->lost_pending + lost_by(d) - h->lost_seen;
	h->lost_seen += lost - h->lost_pending;
	h->lost_pending = 0;
	if (lost)
		h->pending_count = 0;
	hp_unlock(&records_lock);
	lost += h->lost_queued;
	h->lost_queued = 0;
	h->any |= n || lost;
	if (lost) {
		h->crowded = true;
		HP_DSTAT(d, records_lost, lost + drop_all_but_misses(h));
	}
	return !lost;
}

unsigned hp_helper_waiting(const hugepin_domain *d)
{
	return d->helper->queue_count;
}

void hp_helper_missed(hugepin_domain *d, struct hp_region *r, uint64_t time, uint64_t site, bool registered)
{
	struct hp_helper *h = d->helper;
	enum hp_record_kind kind = registered ? HP_RECORD_MISS : HP_RECORD_START;
	struct hp_record record = { time, HP_RECORD(kind, (uint64_t)(r - hp_regions)), site };
	struct place *p;
	bool new;

	if (r->kind == HP_REGION_UNCACHED)
		return;
	p = place_of(h, r, &new);
	if (!p)
		return;
	if (registered && p->site)
		HP_DSTAT(d, late, 1);
	p->site = site; /* for who looks at the domain before the record is told */
	if (new)
		p->since = time;
	h->any = true;
	if (h->queue_count < PENDING_MAX)
		enqueue(h, &record);
	else
		h->lost_queued++;
}

static void note_deregistered(hugepin_domain *d, struct hp_region *r, bool gone)
{
	struct hp_helper *h = d->helper;
	uint32_t index = (uint32_t)(r - hp_regions), id = h->place_of[index];
	struct place *p = &h->places[id];

	if (!id)
		return;
	h->place_of[index] = 0;
	p->region = 0;
	if (gone) {
		place_free(h, p);
		return;
	}
	for (; p->uses; p->uses--) /* whose ends are still on their way, and will find no region */
		hp_plan_end(h->plan, id, now_of(d));
	if (p->told)
		hp_plan_deregistered(h->plan, id, now_of(d));
	p->told = false;
	list(h, p);
}

static void forget_gone(hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	struct hp_helper *h = d->helper;
	struct place key = { .start = start - HP_MIN(start, h->len_max) }, *p, *next;

	for (p = RB_NFIND(place_tree, &h->by_start, &key); p && p->start < end; p = next) {
		next = RB_NEXT(place_tree, &h->by_start, p);
		if (p->end > start)
			forget_released(h, p);
	}
}

/* ------------------------------------------------------------------ what it takes */

static uint64_t taken_ns(void)
{
	struct timespec t = { 0, 0 };

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* The time that all processors together have been idle, by the kernel's account; 0: it does not say. */
static uint64_t idle_ns(void)
{
	char text[256], *at = text;
	uint64_t value = 0;

	if (hp_read_file("/proc/stat", text, sizeof text) <= 0 || strncmp(text, "cpu ", 4) != 0)
		return 0;
	/* "cpu", user, nice, system, idle, in hundredths of a second. */
	for (int field = 0; field < 4 && *at; field++) {
		at += strcspn(at, " ");
		at += strspn(at, " ");
	}
	for (; *at >= '0' && *at <= '9'; at++)
		value = value * 10 + (uint64_t)(*at - '0');
	return value * 10000000;
}

/* A core counts as idle that has half of its time to spare. */
static void look_at_load(void)
{
	uint64_t now_ns = hp_clock_ns(), passed_ns = now_ns - load.begun_ns, idle;

	if (load.begun_ns && passed_ns < LOAD_NS)
		return;
	idle = idle_ns();
	/* What was taken beyond is taken off. */
	load.taken_ns = load.allowed_ns == UINT64_MAX ? taken_ns() : HP_MIN(taken_ns(), load.taken_ns + load.allowed_ns);
	if (load.begun_ns)
		load.allowed_ns = !idle || idle - load.idle_ns >= passed_ns / 2 ? UINT64_MAX : LOAD_NS / LOAD_SHARE;
	load.begun_ns = now_ns;
	load.idle_ns = idle;
}

static bool may_take(void)
{
	return load.allowed_ns == UINT64_MAX || taken_ns() < load.taken_ns + load.allowed_ns;
}

uint64_t hp_helper_delay_ns(bool crowded)
{
	uint64_t passed_ns = hp_clock_ns() - load.begun_ns;

	if (!may_take())
		return passed_ns < LOAD_NS ? LOAD_NS - passed_ns : HP_GATHER_NS;
	return crowded ? HP_CROWDED_NS : HP_GATHER_NS;
}

/* ------------------------------------------------------------------ what to do */

static bool give_back(hugepin_domain *d, struct place *p)
{
	struct hp_helper *h = d->helper;
	uint64_t bytes = p->end - p->start, start_ns = now_of(d);
	uint32_t id = id_of(h, p), backing = p->backing;

	if (!p->region || !hp_domain_may_register(d) || !hp_region_release(d, &hp_regions[p->region])) {
		hp_plan_failed(h->plan, id, now_of(d));
		return false;
	}
	hp_cost_learn(&h->cost, backing, bytes, false, now_of(d) - start_ns);
	return true;
}

/* For the statistics: the line of what was registered most often. */
static void show_cost(hugepin_domain *d)
{
	const struct hp_cost *cost = &d->helper->cost;
	struct hp_cost_fit fit, most = { 0 };

	for (unsigned backing = 0; backing < HP_COST_BACKINGS; backing++)
		for (unsigned class = 0; class < HP_COST_CLASSES; class++)
			if (hp_cost_fit(cost, backing, class, true, &fit) && fit.count > most.count)
				most = fit;
	HP_DSTAT(d, cost_fixed_ns, (uint64_t)HP_MAX(most.fixed_ns, 0) - d->stats.cost_fixed_ns);
	HP_DSTAT(d, cost_page_ns, (uint64_t)HP_MAX(most.page_ns, 0) - d->stats.cost_page_ns);
	HP_DSTAT(d, cost_error, hp_cost_error_permille(cost) - d->stats.cost_error);
}

/* What only the opener may register is made present, so that the opener has less to wait for. */
static void register_again(hugepin_domain *d, struct place *p)
{
	struct hp_helper *h = d->helper;
	uintptr_t start = p->start, end = p->end;
	uint32_t id = id_of(h, p), backing = p->backing;
	uint64_t start_ns = now_of(d), since = hp_helper_time(d);
	struct hp_region *r = NULL;
	bool new;
	int e = -EPERM;

	if (p->region) { /* by somebody else, of whom we have not heard */
		tell_registered(h, p, start_ns);
		return;
	}
	if (!hp_domain_may_register(d)) {
		hp_cover_make_present(start, end);
	} else {
		e = hp_cover_ahead(d, (void *)start, end - start, p->access);
		r = e ? NULL : hp_region_find(d, start, p->access);
	}
	if (!r) {
		hp_plan_failed(h->plan, id, now_of(d));
		return;
	}
	if (r->start != start || r->end != end) { /* part of a larger one by now */
		forget_released(h, p);
		return;
	}
	HP_DSTAT(d, repinned, 1);
	hp_cost_learn(&h->cost, backing, end - start, true, now_of(d) - start_ns);
	show_cost(d);
	p = place_of(h, r, &new);
	p->since = since;
	hp_region_clear_used(d, r);
	tell_registered(h, p, now_of(d));
}

/* For a thread of the program. After a loss the helper goes on. */
static void tell_some(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	if (h->crowded || (h->queue_count < TOLD_BY_A_MISS && !collect(d)))
		return;
	for (unsigned i = 0; i < TOLD_BY_A_MISS && h->queue_count; i++) {
		struct hp_record record = dequeue(h);

		take(d, &record);
	}
}

static bool evict_farthest(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	tell_some(d);
	for (int i = 0; i < VICTIMS_TRIED; i++) {
		uint32_t id = hp_plan_victim(h->plan, now_of(d)), region = h->places[id].region;

		if (!id)
			return false;
		if (region && hp_region_is_used(d, &hp_regions[region]))
			hp_plan_failed(h->plan, id, now_of(d));
		else if (give_back(d, &h->places[id]))
			return true;
	}
	return false;
}

/* Let a thread have the lock that waits for it: mutexes are not fair. False: the lock is not to be had again. */
static bool let_pass(hugepin_domain *d)
{
	hp_unlock(&d->lock);
	for (int i = 0; d->waiting && i < WAITER_YIELDS; i++)
		sched_yield();
	return hp_domain_lock_soon(d);
}

/* After records were lost: the uses whose ends were among them have ended. False: as let_pass(). */
static bool end_lost(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	for (uint32_t i = 1, n = hp_regions_used(); i < n; i++) {
		struct place *p = &h->places[h->place_of[i]];
		struct hp_region *r = &hp_regions[i];

		if (hp_region_is(r, d, HP_REGION_LIVE)) {
			for (; p->uses && !hp_region_pins(r); p->uses--)
				hp_plan_end(h->plan, id_of(h, p), now_of(d));
			if (p->region && !p->told)
				tell_registered(h, p, now_of(d));
			hp_region_clear_used(d, r);
		}
		if (d->waiting && !let_pass(d))
			return false;
	}
	return true;
}

/* Tell the plan of all that is there, letting pass who waits. False: as let_pass(). */
static bool tell_all(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	if (collect(d) && h->crowded) {
		if (!end_lost(d))
			return false;
		h->crowded = false;
	}
	while (h->queue_count) {
		struct hp_record record = dequeue(h);

		take(d, &record);
		if (d->waiting && !let_pass(d))
			return false;
	}
	return true;
}

uint64_t hp_helper_serve(hugepin_domain *d, struct hp_helper_news *ret)
{
	struct hp_helper *h = d->helper;
	struct hp_plan_step step;
	uint64_t begun_ns = hp_clock_ns();

	*ret = (struct hp_helper_news){ .busy = true };
	if (!hp_domain_lock_soon(d))
		return UINT64_MAX;
	h->counter = counter;
	h->sharers = share.verdict.sharers;
	hp_plan_set_lead(h->plan, share.delay_ns);
	HP_DSTAT(d, sharers, h->sharers - d->stats.sharers);
	HP_DSTAT(d, helper_delay_ns, share.delay_ns - d->stats.helper_delay_ns);
	for (;;) {
		hp_gone_drain(d);
		hp_region_bury(d);
		if (!tell_all(d))
			return UINT64_MAX;
		/* What was lost may be uses of what would be given back. */
		if (!h->sharers) {
			step = (struct hp_plan_step){ .what = HP_PLAN_WAIT, .until_ns = UINT64_MAX };
			break;
		}
		step = h->crowded ? (struct hp_plan_step){ .what = HP_PLAN_WAIT, .until_ns = now_of(d) + HP_CROWDED_NS }
				  : hp_plan_next(h->plan, now_of(d));
		if (step.what == HP_PLAN_WAIT)
			break;
		if (step.what == HP_PLAN_REGISTER)
			register_again(d, &h->places[step.region]);
		else if (h->saves && !may_take())
			hp_plan_failed(h->plan, step.region, now_of(d));
		else
			HP_DSTAT(d, released, give_back(d, &h->places[step.region]));
		if (!let_pass(d))
			return UINT64_MAX;
	}
	HP_DSTAT(d, helper_ns, hp_clock_ns() - begun_ns);
	*ret = (struct hp_helper_news){ .any = h->any, .crowded = h->crowded };
	h->any = false;
	hp_unlock(&d->lock);
	return step.until_ns;
}

/* ------------------------------------------------------------------ among processes */

static void add_bytes(hugepin_domain *d, void *bytes)
{
	if (d->helper)
		*(uint64_t *)bytes += __atomic_load_n(&d->helper->bytes, __ATOMIC_RELAXED);
}

/* Programs are bound to cores, and helpers use those that are idle. */
static void choose_processors(void)
{
	unsigned long mask[4096 / (8 * sizeof(unsigned long))];
	unsigned bits = 8 * sizeof *mask;
	int saved = errno;

	if (hp_config.helper_cpu == HP_CPU_INHERIT)
		return;
	memset(mask, hp_config.helper_cpu == HP_CPU_ANY ? 0xff : 0, sizeof mask);
	if (hp_config.helper_cpu >= 0)
		mask[(size_t)hp_config.helper_cpu / bits] |= 1ul << ((size_t)hp_config.helper_cpu % bits);
	if (syscall(SYS_sched_setaffinity, 0, sizeof mask, mask) != 0 && hp_config.helper_cpu >= 0)
		hp_say("HUGEPIN_HELPER_CPU: the helper may not run on", NULL, (size_t)hp_config.helper_cpu);
	errno = saved;
}

/* The paper reckons with n time slices where n helpers share a core. That is what we begin with; but ours sleep when they have
 * nothing to do, and the kernel lets them run soon, so how late they come is measured. */
static void learn_delay(uint64_t late_ns)
{
	late_ns = HP_MIN(late_ns, DELAY_MAX_NS);
	if (late_ns > share.delay_ns)
		share.delay_ns = late_ns;
	else
		share.delay_ns -= (share.delay_ns - late_ns) / DELAY_MEMORY;
}

void hp_helper_begin(uint64_t late_ns)
{
	static const enum hp_share_policy policies[] = { HP_SHARE_OFF, HP_SHARE_CONSERVATIVE, HP_SHARE_AGGRESSIVE };
	struct hp_share_verdict verdict;
	uint64_t bytes = 0;

	calibrate(counter.settled ? SETTLED_NS : 5 * CALIBRATION_NS);
	look_at_load();
	if (late_ns)
		learn_delay(late_ns);
	if (!share.begun)
		choose_processors();
	else if (share.uses < HP_SHARE_PERIOD)
		return;
	share.begun = true;
	hp_domains_each(add_bytes, &bytes);
	if (hp_share_post(bytes, policies[hp_config.helper], &verdict) == -EAGAIN)
		return;
	share.uses = 0;
	if (verdict.sharers > share.verdict.sharers)
		share.delay_ns = HP_MAX(share.delay_ns, hp_share_lead_ns(verdict.sharers));
	share.verdict = verdict;
	if (!verdict.may_help)
		share.verdict.sharers = 0;
}

/* ------------------------------------------------------------------ opening */

static void destroy(struct hp_helper *h)
{
	if (h->plan)
		hp_plan_free(h->plan);
	hp_meta_unmap(h->places, PLACES_MAX * sizeof *h->places);
	hp_meta_unmap(h->place_of, HP_REGIONS_MAX * sizeof *h->place_of);
	hp_meta_unmap(h, sizeof *h);
}

/* For hugepin top (base/stats.h). */
static void expose(void)
{
	__typeof__(&hp_exposed.view.helper) v = &hp_exposed.view.helper;

	v->place_of = offsetof(struct hp_helper, place_of);
	v->places = offsetof(struct hp_helper, places);
	v->stride = sizeof(struct place);
	v->site = offsetof(struct place, site);
}

static const struct hp_helper_hooks helper_hooks = {
	.deregistered = note_deregistered,
	.gone = forget_gone,
	.evict = evict_farthest,
};

int hp_helper_open(hugepin_domain *d)
{
	struct hp_plan_config config = {
		.policy = d->policy == HUGEPIN_POLICY_CF11 ? HP_PLAN_CF11 : HP_PLAN_PREDICT,
		.budget = d->bytes_max >= UINT64_MAX - 1 ? UINT64_MAX : d->bytes_max,
		.memory = (size_t)hp_config.predict_memory,
		.cost_ns = cost_ns,
	};
	struct hp_helper *h;

	if ((d->policy != HUGEPIN_POLICY_CF11 && d->policy != HUGEPIN_POLICY_PREDICT) || hp_config.helper == HP_HELPER_OFF)
		return 0;
	config.mode = hp_config.predict_mode == HP_PREDICT_BUDGET ||
				      (hp_config.predict_mode == HP_PREDICT_AUTO && config.budget != UINT64_MAX)
			      ? HP_PLAN_BUDGET
			      : HP_PLAN_SAVE;
	h = hp_meta_map(sizeof *h);
	if (!h)
		return -ENOMEM;
	config.arg = h;
	h->saves = config.mode == HP_PLAN_SAVE;
	h->place_of = hp_meta_map(HP_REGIONS_MAX * sizeof *h->place_of);
	h->places = hp_meta_reserve(PLACES_MAX * sizeof *h->places);
	/* The first of them now: number 0 stands for none. */
	if (h->place_of && h->places && hp_meta_open(h->places, PLACES_STEP * sizeof *h->places)) {
		h->places_opened = PLACES_STEP;
		h->plan = hp_plan_new(&config);
	}
	if (!h->plan) {
		destroy(h);
		return -ENOMEM;
	}
	TAILQ_INIT(&h->released);
	RB_INIT(&h->by_start);
	clock_open();
	h->counter = counter;
	h->lost_seen = lost_by(d);
	expose();
	hp_lock(&records_lock); /* others may have records for it, of when the domain was another */
	d->helper = h;
	d->helper_hooks = &helper_hooks;
	hp_unlock(&records_lock);
	return 0;
}

void hp_helper_close(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	hp_lock(&records_lock); /* others take records for us */
	d->helper = NULL;
	hp_unlock(&records_lock);
	if (h)
		destroy(h);
}

void hp_helper_child(void)
{
	share.begun = false;
	hp_lock_reset(&records_lock);
}
