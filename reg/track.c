/*
 * The helper's knowledge: tracked ranges, and what its domain's plan (policy/plan.h) has been told of them.
 *
 * Each thread leaves records of its pins on a ring of its own (record.h), and misses leave theirs with the domain. The
 * records are collected in a queue in the order of time, and the plan is told of one after the other.
 *	push:	record; look whether a run is asked for, and ask for one if not
 *	run:	clear the request; take the records; if there are none, membarrier on every running thread, and look
 *		once more
 * Either the run sees the record, or the push sees that it has to ask (as in state.h). Of the pins of a region only the
 * first after the helper saw it unpinned leaves a record (`used` in state.h). The others need none, because the helper
 * gives no region back that is pinned again before the helper's next run.
 *
 * Locks: the domain's. records_lock, a leaf lock, guards the taking end of the rings, which all helpers share because
 * each run sorts the records of all domains.
 */
#include "reg/track.h"

#include <errno.h>
#include <string.h>

#include "reg/counts.h"
#include "reg/stakes.h"
#include "reg/processors.h"
#include "reg/share.h"

enum {
	TRACKED_MAX = 1 << 19,
	TRACKED_STEP = 1 << 10, /* tracked ranges that get memory at a time */
	RELEASED_MAX = 1 << 16, /* tracked ranges that are not registered; the oldest are forgotten */
};

/* guards the taking end of the rings, and all `pending` */
static struct hp_lock records_lock = HP_LOCK_INIT(HP_LOCK_RANK_QUEUE);

/* ------------------------------------------------------------------ time */

/* A record's time, in ns of the domain's clock. */
static uint64_t record_ns(const hugepin_domain *d, uint64_t time)
{
	return d->own_clock ? time : hp_record_ns(&d->helper->clock, time);
}

uint64_t hp_track_now(const hugepin_domain *d)
{
	return d->own_clock ? d->backend->now_ns(d->ctx) : record_ns(d, hp_record_time());
}

uint64_t hp_track_time(const hugepin_domain *d)
{
	return d->own_clock ? d->backend->now_ns(d->ctx) : hp_record_time();
}

/* ------------------------------------------------------------------ tracked ranges */

static int compare_tracked(const struct hp_tracked *a, const struct hp_tracked *b)
{
	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	if (a->end != b->end)
		return a->end < b->end ? -1 : 1;
	return a->exact < b->exact ? -1 : a->exact > b->exact;
}

RB_GENERATE_INTERNAL(hp_tracked_tree, hp_tracked, node, compare_tracked, __attribute__((unused)) static)

static void unlist_released(struct hp_helper *h, struct hp_tracked *p)
{
	RB_REMOVE(hp_tracked_tree, &h->by_start, p);
	TAILQ_REMOVE(&h->released, p, order);
	hp_stakes_remove(&p->stake);
	h->released_count--;
}

static _Atomic uint64_t all_bytes; /* of the tracked ranges of all helpers; relaxed: a number */

static void add_bytes(struct hp_helper *h, uint64_t bytes)
{
	h->bytes += bytes;
	atomic_fetch_add_explicit(&all_bytes, bytes, memory_order_relaxed);
}

uint64_t hp_track_bytes(void)
{
	return atomic_load_explicit(&all_bytes, memory_order_relaxed);
}

static void tracked_free(struct hp_helper *h, struct hp_tracked *p)
{
	uint32_t id = (uint32_t)(p - h->tracked);

	if (p->known)
		hp_plan_forget(h->plan, id);
	add_bytes(h, -(p->end - p->start));
	p->next = h->tracked_free;
	h->tracked_free = id;
}

void hp_tracked_forget(struct hp_helper *h, struct hp_tracked *p)
{
	unlist_released(h, p);
	tracked_free(h, p);
}

/* Keep a range that is no longer registered: it may be used again. Its region's entry in stakes.h goes next, so the
 * domain has been told of all that went away there. */
static void list_released(hugepin_domain *d, struct hp_helper *h, struct hp_tracked *p)
{
	struct hp_tracked *other = RB_INSERT(hp_tracked_tree, &h->by_start, p);

	HP_ASSERT(!other); /* hp_tracked_of() would have found that one */
	(void)other;
	h->len_max = HP_MAX(h->len_max, p->end - p->start);
	TAILQ_INSERT_TAIL(&h->released, p, order);
	hp_stakes_add(&p->stake, d, p->start, p->end);
	if (h->released_count++ >= RELEASED_MAX)
		hp_tracked_forget(h, TAILQ_FIRST(&h->released));
}

static uint32_t exact_access(const struct hp_region *r)
{
	return hp_region_is_exact(r) ? r->access : 0;
}

static struct hp_tracked *find_released(struct hp_helper *h, const struct hp_region *r)
{
	struct hp_tracked key = { .start = r->start, .end = r->end, .exact = exact_access(r) };

	return RB_FIND(hp_tracked_tree, &h->by_start, &key);
}

/* NULL: there is no place, or no memory for one. */
static struct hp_tracked *tracked_new(struct hp_helper *h, uintptr_t start, uintptr_t end)
{
	struct hp_tracked *p;

	if (h->tracked_free) {
		p = &h->tracked[h->tracked_free];
		h->tracked_free = p->next;
	} else {
		if (h->tracked_used + 1 >= h->tracked_opened) {
			if (h->tracked_opened == TRACKED_MAX ||
			    !hp_meta_open(&h->tracked[h->tracked_opened], TRACKED_STEP * sizeof *p))
				return NULL;
			h->tracked_opened += TRACKED_STEP;
		}
		p = &h->tracked[++h->tracked_used];
	}
	memset(p, 0, sizeof *p);
	p->start = start;
	p->end = end;
	add_bytes(h, end - start);
	return p;
}

/* The kind of pages behind a region, on which the cost of registering depends. */
static uint32_t backing_of(const struct hp_region *r)
{
	struct hugepin_extent x;

	if (!hp_region_is_heap(r) || !hp_heap_extent((void *)r->start, &x))
		return HP_COST_BASE;
	return x.kind == HUGEPIN_KIND_HUGETLB ? HP_COST_HUGETLB
	       : x.kind == HUGEPIN_KIND_THP   ? HP_COST_THP
					      : HP_COST_BASE;
}

struct hp_tracked *hp_tracked_of(struct hp_helper *h, struct hp_region *r, bool *ret_new)
{
	uint32_t index = hp_region_index(r), id = h->tracked_of[index];
	struct hp_tracked *p;

	*ret_new = !id;
	if (id)
		return &h->tracked[id];
	p = find_released(h, r);
	if (p)
		unlist_released(h, p);
	else
		p = tracked_new(h, r->start, r->end);
	if (!p)
		return NULL;
	p->access = r->access;
	p->exact = exact_access(r);
	p->backing = backing_of(r);
	p->region = index;
	p->uses = 0;
	p->told = false;
	h->tracked_of[index] = (uint32_t)(p - h->tracked);
	return p;
}

uint64_t hp_tracked_work_ns(const struct hp_helper *h, const struct hp_tracked *p, uint64_t bytes,
			    enum hp_cost_kind kind)
{
	return hp_share_cost_ns(h->sharers, hp_cost_ns(&h->cost, p->backing, bytes, kind));
}

/* For the statistics: the fitted cost of the kind of memory that was registered most often. */
static void show_cost(hugepin_domain *d)
{
	const struct hp_cost *cost = &d->helper->cost;
	struct hp_cost_fit fit, most = { 0 };

	for (unsigned backing = 0; backing < HP_COST_BACKINGS; backing++)
		for (unsigned class = 0; class < HP_COST_CLASSES; class++)
			if (hp_cost_fit(cost, backing, class, HP_COST_REGISTER, &fit) && fit.count > most.count)
				most = fit;
	HP_DSTAT(d, cost_fixed_ns, (uint64_t)HP_MAX(most.fixed_ns, 0) - d->stats.cost_fixed_ns);
	HP_DSTAT(d, cost_page_ns, (uint64_t)HP_MAX(most.page_ns, 0) - d->stats.cost_page_ns);
	HP_DSTAT(d, cost_error, hp_cost_error_permille(cost) - d->stats.cost_error);
}

void hp_tracked_learn(hugepin_domain *d, const struct hp_tracked *p, uint64_t bytes, enum hp_cost_kind kind,
		      uint64_t ns)
{
	hp_cost_learn(&d->helper->cost, p->backing, bytes, kind, ns);
	if (kind == HP_COST_REGISTER)
		show_cost(d);
}

/* ------------------------------------------------------------------ what the plan is told */

static void tell_start(hugepin_domain *d, struct hp_tracked *p, uint64_t site, uint64_t now_ns, bool hit)
{
	p->known = p->used = true;
	p->uses++;
	p->site = site;
	hp_processors_count_use();
	hp_plan_start(d->helper->plan, hp_tracked_id(d->helper, p), p->end - p->start, site, now_ns, hit);
}

void hp_track_registered(struct hp_helper *h, struct hp_tracked *p, uint64_t now_ns)
{
	p->known = p->told = true;
	hp_plan_registered(h->plan, hp_tracked_id(h, p), now_ns);
}

void hp_track_deregistered(struct hp_helper *h, struct hp_tracked *p, uint64_t now_ns)
{
	p->told = false;
	hp_plan_deregistered(h->plan, hp_tracked_id(h, p), now_ns);
}

/* A use of a range begins that was not in use: learn how it was used. */
static void learn_use(struct hp_tracked *p, uint64_t now_ns)
{
	if (p->ended_ns)
		hp_paging_learn_use(&p->habits, now_ns - HP_MIN(p->ended_ns, now_ns));
	if (p->ended_ns && hp_tracked_on_demand(p))
		hp_paging_learn_slack(&p->habits, p->begun_ns, now_ns - HP_MIN(p->begun_ns, now_ns));
	p->begun_ns = 0;
}

/* A use of p has ended. Under hybrid nobody keeps on-demand memory present after its use, so it counts as gone. */
void hp_track_end_use(struct hp_helper *h, struct hp_tracked *p, uint64_t now_ns)
{
	if (!--p->uses && h->pages) {
		p->ended_ns = HP_MAX(now_ns, UINT64_C(1));
		if (hp_tracked_on_demand(p)) {
			h->last = hp_tracked_id(h, p);
			hp_track_deregistered(h, p, now_ns);
		}
	}
	hp_plan_end(h->plan, hp_tracked_id(h, p), now_ns);
}

static void tell_end(hugepin_domain *d, struct hp_tracked *p, struct hp_region *r, uint64_t now_ns)
{
	if (!p->uses) /* the record of the start was lost */
		tell_start(d, p, p->site, now_ns, true);
	/* While other pins are out, one use goes on. */
	while (p->uses > (hp_region_pins(r) ? 1u : 0u))
		hp_track_end_use(d->helper, p, now_ns);
	if (!p->uses)
		hp_region_clear_used(d, r);
}

/* A time in the future becomes now, so that the plan does not wait for it, whatever the clock did. */
void hp_track_tell(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;
	const struct hp_record record = hp_record_dequeue(&h->queue);
	struct hp_region *r = &hp_regions[HP_RECORD_VALUE(record.subject)];
	enum hp_record_kind kind = HP_RECORD_KIND(record.subject);
	uint64_t at_ns = HP_MIN(record_ns(d, record.time), hp_track_now(d));
	struct hp_tracked *p;
	bool new, hit;

	if ((!hp_region_is(r, d, HP_REGION_LIVE) && !hp_region_is(r, d, HP_REGION_RETIRED)) ||
	    r->kind == HP_REGION_UNCACHED)
		return;
	/* The region was turned while a pin was out, so the region that took its place has the tracked range. */
	if (h->pages && r->state == HP_REGION_RETIRED && !h->tracked_of[hp_region_index(r)])
		return;
	p = hp_tracked_of(h, r, &new);
	if (!p)
		return;
	if (new)
		p->since = record.time;
	if (p->since - record.time - 1 < HP_RECORD_STALE) /* it is of the region that had this index before */
		return;
	if (h->pages && kind != HP_RECORD_END && !p->uses)
		learn_use(p, at_ns);
	/* A pin of a range on demand that was not made ready is no hit, because it has waited for the device's
	 * faults. */
	hit = kind == HP_RECORD_START && (p->told || !hp_tracked_on_demand(p));
	if (kind != HP_RECORD_END && !hit)
		tell_start(d, p, record.site, at_ns, false);
	if (!p->told)
		hp_track_registered(h, p, at_ns);
	if (hit)
		tell_start(d, p, record.site, at_ns, true);
	if (kind == HP_RECORD_END)
		tell_end(d, p, r, at_ns);
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
		if (h->pending_count < HP_RECORD_QUEUE_MAX)
			h->pending[h->pending_count++] = *record;
		else
			h->lost_pending++;
	}
	/* release: the records were read; pairs with the acquire in hp_record_room(). */
	atomic_store_explicit(&q->tail, tail, memory_order_release);
}

struct losses {
	uint32_t counter, sum; /* wraps: only the difference from an earlier sum has a meaning */
};

static void add_lost(void *losses, struct hp_records *q)
{
	struct losses *l = losses;

	l->sum += atomic_load_explicit(&q->lost[l->counter], memory_order_relaxed);
}

/* The number of records of the domain, and of those that share its counter, that were ever dropped because a ring was
 * full. */
static uint32_t lost_by(const hugepin_domain *d)
{
	struct losses l = { .counter = d->number % HP_RECORDS_LOSSES };

	hp_counts_each(add_lost, &l);
	return l.sum;
}

bool hp_track_collect(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;
	uint32_t lost;
	unsigned n;

	hp_lock(&records_lock);
	hp_counts_each(collect_from, NULL);
	n = HP_MIN(h->pending_count, HP_RECORD_QUEUE_MAX - h->queue.count);
	for (unsigned i = 0; i < n; i++)
		hp_record_enqueue(&h->queue, &h->pending[i]);
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
		HP_DSTAT(d, records_lost, lost + hp_record_drop_all_but_misses(&h->queue));
	}
	return !lost;
}

void hp_track_missed(hugepin_domain *d, struct hp_region *r, uint64_t time, uint64_t site, bool registered)
{
	struct hp_helper *h = d->helper;
	enum hp_record_kind kind = registered ? HP_RECORD_MISS : HP_RECORD_START;
	struct hp_record record = { time, HP_RECORD(kind, hp_region_index(r)), site };
	struct hp_tracked *p;
	bool new;

	if (r->kind == HP_REGION_UNCACHED)
		return;
	p = hp_tracked_of(h, r, &new);
	if (!p)
		return;
	if (registered && p->used)
		HP_DSTAT(d, late, 1);
	p->used = true;
	p->site = site; /* hugepin top may show the site before the plan is told of this record */
	if (new)
		p->since = time;
	h->any = true;
	if (h->queue.count < HP_RECORD_QUEUE_MAX)
		hp_record_enqueue(&h->queue, &record);
	else
		h->lost_queued++;
}

void hp_track_left(hugepin_domain *d, struct hp_region *r, bool gone)
{
	struct hp_helper *h = d->helper;
	uint32_t index = hp_region_index(r), id = h->tracked_of[index];
	struct hp_tracked *p = &h->tracked[id];

	if (!id)
		return;
	h->tracked_of[index] = 0;
	p->region = 0;
	if (gone) {
		tracked_free(h, p);
		return;
	}
	for (; p->uses; p->uses--) /* the records of their ends are still queued, and will find no region */
		hp_plan_end(h->plan, id, hp_track_now(d));
	if (p->told)
		hp_track_deregistered(h, p, hp_track_now(d));
	list_released(d, h, p);
}

void hp_track_gone(hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	struct hp_helper *h = d->helper;
	struct hp_tracked key = { .start = start - HP_MIN(start, h->len_max) }, *p, *next;

	for (p = RB_NFIND(hp_tracked_tree, &h->by_start, &key); p && p->start < end; p = next) {
		next = RB_NEXT(hp_tracked_tree, &h->by_start, p);
		if (p->end > start)
			hp_tracked_forget(h, p);
	}
}

/* ------------------------------------------------------------------ opening */

int hp_track_new(struct hp_helper *h)
{
	TAILQ_INIT(&h->released);
	RB_INIT(&h->by_start);
	h->tracked_of = hp_meta_map(HP_REGIONS_MAX * sizeof *h->tracked_of);
	h->tracked = hp_meta_reserve(TRACKED_MAX * sizeof *h->tracked);
	/* The first step gets memory now, since number 0 stands for none and is read. */
	if (!h->tracked_of || !h->tracked || !hp_meta_open(h->tracked, TRACKED_STEP * sizeof *h->tracked))
		return -ENOMEM;
	h->tracked_opened = TRACKED_STEP;
	return 0;
}

void hp_track_free(struct hp_helper *h, bool own)
{
	struct hp_tracked *p;

	if (own)
		add_bytes(h, -h->bytes);
	TAILQ_FOREACH(p, &h->released, order)
		hp_stakes_remove(&p->stake);
	hp_meta_unmap(h->tracked, TRACKED_MAX * sizeof *h->tracked);
	hp_meta_unmap(h->tracked_of, HP_REGIONS_MAX * sizeof *h->tracked_of);
	hp_meta_unmap(h, sizeof *h);
}

void hp_track_attach(hugepin_domain *d, struct hp_helper *h)
{
	if (h) {
		hp_record_open_clock();
		hp_record_get_clock(&h->clock);
		h->lost_seen = lost_by(d); /* by an earlier domain in this place */
	}
	/* Helpers of other domains put records into our `pending`. */
	hp_lock(&records_lock);
	d->helper = h;
	hp_unlock(&records_lock);
}

void hp_track_child(void)
{
	hp_lock_reset(&records_lock);
	atomic_store_explicit(&all_bytes, 0, memory_order_relaxed);
}
