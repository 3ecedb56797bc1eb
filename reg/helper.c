/*
 * The helper carries out the decisions of a plan (plan.h), for domains whose policy predicts. It runs on the service
 * thread.
 *
 * Each thread leaves records of its pins on a ring of its own (record.h). Misses leave their records with the domain.
 * The helper takes the records and tells the plan of them, in the order of time. A pin that misses and has to evict
 * also tells the plan of a few records, so that it evicts by recent knowledge. It tells only a few, since each takes
 * microseconds. Such a pin does not evict a region whose `used` flag is set, since the region was used after the plan
 * last heard of it. The helper holds the domain's lock for one record or one action at a time.
 *	push:	record; look whether a run is asked for, and ask for one if not
 *	run:	clear the request; take the records; if there are none, membarrier on every running thread, and look
 *		once more
 * Either the run sees the record, or the push sees that it has to ask (as in state.h). The first pin of a region after
 * the helper last saw the region unpinned leaves a record of its start. Later pins leave none (`used` in state.h): a
 * region that is pinned again before the helper's next run is not going to be given back in between.
 *
 * Policy hybrid. A region is pinned, or registered on demand. The plan counts it as registered while a transfer need not
 * wait for its memory: while it is pinned, from when it is brought in to the end of the next use, and during uses. What
 * the plan gives back is turned: from pinned to on demand. What it wants registered is pinned, brought in or left to the
 * device's faults, as the model says (policy/paging.h). A use that nobody saw coming is brought in by its own thread.
 *
 * Tracked ranges. The plan's regions are called tracked ranges here: ranges that are or were registered. A tracked
 * range keeps its number while it is not registered. A new registration of the same range is the same tracked range.
 */
#include "reg/helper.h"

#include <errno.h>
#include <string.h>
#include <sys/queue.h>

#include "base/config.h"
#include "base/stats.h"
#include "base/sys.h"
#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/policy/cost.h"
#include "reg/policy/paging.h"
#include "reg/policy/plan.h"
#include "reg/processors.h"
#include "reg/record.h"
#include "reg/region.h"
#include "reg/share.h"

enum {
	TOLD_BY_A_MISS = 8, /* records; each takes some 3 us */
	TRACKED_MAX = 1 << 19,
	TRACKED_STEP = 1 << 10, /* tracked ranges that get memory at a time */
	RELEASED_MAX = 1 << 16, /* tracked ranges that are not registered; the oldest are forgotten */
	VICTIMS_TRIED = 16,
	LOOKED_AT = 4096, /* pages at a time, whether they are in memory */
};

struct tracked {
	uintptr_t start, end;
	uint64_t site; /* the site of the last use */
	/* Start of this registration, in the time of records. Records from shortly before it belong to the previous
	 * region with this index. */
	uint64_t since;
	uint32_t access, backing;
	uint32_t exact; /* the access of an exact region: there may be others of the same range; else 0 */
	uint32_t region; /* the region's index; 0: not registered */
	uint32_t uses; /* uses whose start the plan was told, but not yet their end */
	/* known: the plan was told of the range; told: also that the range is registered, or under hybrid, ready */
	bool known, told;
	bool used; /* has `site` */
	uint32_t next; /* the next free one */
	/* Under hybrid: */
	bool refused; /* it cannot be pinned, for a reason that lasts */
	struct hp_paging_habits habits;
	uint64_t ended_ns; /* the end of its last use, or 0 */
	uint64_t begun_ns; /* when the helper began to make it ready for the next use; 0: it has not */
	TAILQ_ENTRY(tracked) order; /* in `released` */
	RB_ENTRY(tracked) node; /* in `by_start` */
};
RB_HEAD(tracked_tree, tracked);

struct hp_helper {
	struct hp_plan *plan;
	bool saves; /* the plan's mode is HP_PLAN_SAVE */
	bool pages; /* the policy is hybrid */
	double fault_ns[2]; /* as in struct hp_paging_terms */
	uint32_t last; /* under hybrid, the range on demand whose use has ended last; or 0 */
	struct hp_record_clock clock;
	struct hp_cost cost;
	uint32_t sharers; /* helpers on this core, this one included; 0: this helper may not run, or has not run yet */
	struct hp_record pending[HP_RECORD_QUEUE_MAX]; /* under records_lock */
	unsigned pending_count;
	struct hp_record_queue queue; /* records that wait until the plan is told of them */
	/* relaxed: written under the domain's lock; else a number */
	_Atomic uint64_t bytes; /* of all tracked ranges; read without the lock */
	uint32_t lost_pending; /* records for which there was no room in `pending` */
	uint32_t lost_queued; /* records of misses for which there was no room in `queue` */
	uint32_t lost_seen; /* records lost by the rings, that are already counted */
	bool any; /* there were records since the helper's last run */
	bool crowded; /* records were lost, so the plan's knowledge is not reliable */
	TAILQ_HEAD(, tracked) released; /* not registered, oldest first */
	uint32_t released_count, tracked_used, tracked_free, tracked_opened; /* opened: numbers below have memory */
	struct tracked_tree by_start; /* the tracked ranges in `released` */
	size_t len_max; /* the longest range that was ever in `released` */
	uint32_t *tracked_of; /* number of the tracked range, by region */
	struct tracked *tracked; /* table of tracked ranges, from number 1 up */
};

/* guards the taking end of the rings, and all `pending` */
static struct hp_lock records_lock = HP_LOCK_INIT(HP_RANK_QUEUE);

/* ------------------------------------------------------------------ time */

/* A record's time, in ns of the domain's clock. */
static uint64_t record_ns(const hugepin_domain *d, uint64_t time)
{
	return d->own_clock ? time : hp_record_ns(&d->helper->clock, time);
}

static uint64_t now_of(const hugepin_domain *d)
{
	return d->own_clock ? d->backend->now_ns(d->ctx) : record_ns(d, hp_record_time());
}

uint64_t hp_helper_time(const hugepin_domain *d)
{
	return d->own_clock ? d->backend->now_ns(d->ctx) : hp_record_time();
}

/* ------------------------------------------------------------------ tracked ranges */

static int compare_tracked(const struct tracked *a, const struct tracked *b)
{
	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	if (a->end != b->end)
		return a->end < b->end ? -1 : 1;
	return a->exact < b->exact ? -1 : a->exact > b->exact;
}

RB_GENERATE_INTERNAL(tracked_tree, tracked, node, compare_tracked, __attribute__((unused)) static)

static void unlist_released(struct hp_helper *h, struct tracked *p)
{
	RB_REMOVE(tracked_tree, &h->by_start, p);
	TAILQ_REMOVE(&h->released, p, order);
	h->released_count--;
}

/* The caller has the domain's lock, so no atomic read-modify-write is needed. */
static void add_bytes(struct hp_helper *h, uint64_t bytes)
{
	atomic_store_explicit(&h->bytes, atomic_load_explicit(&h->bytes, memory_order_relaxed) + bytes,
			      memory_order_relaxed);
}

static void tracked_free(struct hp_helper *h, struct tracked *p)
{
	uint32_t id = (uint32_t)(p - h->tracked);

	if (p->known)
		hp_plan_forget(h->plan, id);
	add_bytes(h, -(p->end - p->start));
	p->next = h->tracked_free;
	h->tracked_free = id;
}

static void forget_released(struct hp_helper *h, struct tracked *p)
{
	unlist_released(h, p);
	tracked_free(h, p);
}

/* Keep a range that is no longer registered: it may be used again. */
static void list_released(struct hp_helper *h, struct tracked *p)
{
	struct tracked *other = RB_INSERT(tracked_tree, &h->by_start, p);

	HP_ASSERT(!other); /* tracked_of() would have found that one */
	(void)other;
	h->len_max = HP_MAX(h->len_max, p->end - p->start);
	TAILQ_INSERT_TAIL(&h->released, p, order);
	if (h->released_count++ >= RELEASED_MAX)
		forget_released(h, TAILQ_FIRST(&h->released));
}

static uint32_t exact_access(const struct hp_region *r)
{
	return hp_region_is_exact(r) ? r->access : 0;
}

static struct tracked *find_released(struct hp_helper *h, const struct hp_region *r)
{
	struct tracked key = { .start = r->start, .end = r->end, .exact = exact_access(r) };

	return RB_FIND(tracked_tree, &h->by_start, &key);
}

static struct tracked *tracked_new(struct hp_helper *h, uintptr_t start, uintptr_t end)
{
	struct tracked *p;

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

/* The tracked range of a region. *ret_new: the region had none before. NULL: there are too many. */
static struct tracked *tracked_of(struct hp_helper *h, struct hp_region *r, bool *ret_new)
{
	uint32_t index = (uint32_t)(r - hp_regions), id = h->tracked_of[index];
	struct tracked *p;

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

static uint32_t id_of(const struct hp_helper *h, const struct tracked *p)
{
	return (uint32_t)(p - h->tracked);
}

static bool is_on_demand(const struct tracked *p)
{
	return p->region && hp_regions[p->region].on_demand;
}

static uint64_t work_ns(const struct hp_helper *h, const struct tracked *p, uint64_t bytes, enum hp_cost_kind kind)
{
	return hp_share_cost_ns(h->sharers, hp_cost_ns(&h->cost, p->backing, bytes, kind));
}

/* What a step of the plan takes. Under hybrid that is to bring in, or to pin and to turn what is pinned. */
static uint64_t tracked_cost_ns(void *helper, uint32_t id, uint64_t bytes, bool registering)
{
	const struct hp_helper *h = helper;
	const struct tracked *p = &h->tracked[id];

	if (is_on_demand(p))
		return registering ? work_ns(h, p, bytes, HP_COST_BRING_IN) : 1;
	if (h->pages && !registering)
		return work_ns(h, p, bytes, HP_COST_DEREGISTER) + work_ns(h, p, bytes, HP_COST_ON_DEMAND);
	return work_ns(h, p, bytes, registering ? HP_COST_REGISTER : HP_COST_DEREGISTER);
}

/* ------------------------------------------------------------------ what was done */

static void tell_start(hugepin_domain *d, struct tracked *p, uint64_t site, uint64_t now_ns, bool hit)
{
	p->known = p->used = true;
	p->uses++;
	p->site = site;
	hp_processors_count_use();
	hp_plan_start(d->helper->plan, id_of(d->helper, p), p->end - p->start, site, now_ns, hit);
}

static void tell_registered(struct hp_helper *h, struct tracked *p, uint64_t now_ns)
{
	p->known = p->told = true;
	hp_plan_registered(h->plan, id_of(h, p), now_ns);
}

/* A use of a range begins that was not in use: learn how it was used. */
static void learn_use(struct tracked *p, uint64_t now_ns)
{
	if (p->ended_ns)
		hp_paging_learn_use(&p->habits, now_ns - HP_MIN(p->ended_ns, now_ns));
	if (p->ended_ns && is_on_demand(p))
		hp_paging_learn_slack(&p->habits, p->begun_ns, now_ns - HP_MIN(p->begun_ns, now_ns));
	p->begun_ns = 0;
}

/* Under hybrid, nobody keeps memory that is registered on demand after its use. */
static void end_use(struct hp_helper *h, struct tracked *p, uint64_t now_ns)
{
	if (!--p->uses && h->pages) {
		p->ended_ns = HP_MAX(now_ns, UINT64_C(1));
		if (is_on_demand(p)) {
			p->told = false;
			h->last = id_of(h, p);
			hp_plan_deregistered(h->plan, id_of(h, p), now_ns);
		}
	}
	hp_plan_end(h->plan, id_of(h, p), now_ns);
}

static void tell_end(hugepin_domain *d, struct tracked *p, struct hp_region *r, uint64_t now_ns)
{
	if (!p->uses) /* the record of the start was lost */
		tell_start(d, p, p->site, now_ns, true);
	/* While other pins are out, one use goes on. */
	while (p->uses > (hp_region_pins(r) ? 1u : 0u))
		end_use(d->helper, p, now_ns);
	if (!p->uses)
		hp_region_clear_used(d, r);
}

/* Tell the plan of a record. A time in the future becomes now, whatever the clock did: otherwise the plan would wait
 * for it. */
static void take_in(hugepin_domain *d, const struct hp_record *record)
{
	struct hp_helper *h = d->helper;
	struct hp_region *r = &hp_regions[HP_RECORD_VALUE(record->subject)];
	enum hp_record_kind kind = HP_RECORD_KIND(record->subject);
	uint64_t at_ns = HP_MIN(record_ns(d, record->time), now_of(d));
	struct tracked *p;
	bool new, hit;

	if ((!hp_region_is(r, d, HP_REGION_LIVE) && !hp_region_is(r, d, HP_REGION_RETIRED)) ||
	    r->kind == HP_REGION_UNCACHED)
		return;
	/* It was turned while a pin was out. Its range is tracked by the region that took its place. */
	if (h->pages && r->state == HP_REGION_RETIRED && !h->tracked_of[r - hp_regions])
		return;
	p = tracked_of(h, r, &new);
	if (!p)
		return;
	if (new)
		p->since = record->time;
	if (p->since - record->time - 1 < HP_RECORD_STALE)
		return;
	if (h->pages && kind != HP_RECORD_END && !p->uses)
		learn_use(p, at_ns);
	hit = kind == HP_RECORD_START && (p->told || !is_on_demand(p));
	if (kind != HP_RECORD_END && !hit)
		tell_start(d, p, record->site, at_ns, false);
	if (!p->told)
		tell_registered(h, p, at_ns);
	if (hit)
		tell_start(d, p, record->site, at_ns, true);
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
	uint32_t domain, sum; /* wraps: only the difference from an earlier sum has a meaning */
};

static void add_lost(void *losses, struct hp_records *q)
{
	struct losses *l = losses;

	l->sum += atomic_load_explicit(&q->lost[l->domain], memory_order_relaxed);
}

/* The number of the domain's records that were ever dropped because a ring was full. */
static uint32_t lost_by(const hugepin_domain *d)
{
	struct losses l = { .domain = d->number };

	_Static_assert(HP_RECORDS_DOMAINS == HUGEPIN_DOMAINS_MAX, "");
	hp_counts_each(add_lost, &l);
	return l.sum;
}

/* Move the domain's records into its queue, as far as there is room. False: records were lost. Then the others are
 * dropped, except those of misses: a sequence with gaps teaches nothing right, and must not slow down a program that
 * pins this often. */
static bool collect_records(hugepin_domain *d)
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

unsigned hp_helper_waiting(const hugepin_domain *d)
{
	return d->helper->queue.count;
}

void hp_helper_missed(hugepin_domain *d, struct hp_region *r, uint64_t time, uint64_t site, bool registered)
{
	struct hp_helper *h = d->helper;
	enum hp_record_kind kind = registered ? HP_RECORD_MISS : HP_RECORD_START;
	struct hp_record record = { time, HP_RECORD(kind, (uint64_t)(r - hp_regions)), site };
	struct tracked *p;
	bool new;

	if (r->kind == HP_REGION_UNCACHED)
		return;
	p = tracked_of(h, r, &new);
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

static void note_deregistered(hugepin_domain *d, struct hp_region *r, bool gone)
{
	struct hp_helper *h = d->helper;
	uint32_t index = (uint32_t)(r - hp_regions), id = h->tracked_of[index];
	struct tracked *p = &h->tracked[id];

	if (!id)
		return;
	h->tracked_of[index] = 0;
	p->region = 0;
	if (gone) {
		tracked_free(h, p);
		return;
	}
	for (; p->uses; p->uses--) /* the records of their ends are still queued, and will find no region */
		hp_plan_end(h->plan, id, now_of(d));
	if (p->told)
		hp_plan_deregistered(h->plan, id, now_of(d));
	p->told = false;
	list_released(h, p);
}

static void forget_gone(hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	struct hp_helper *h = d->helper;
	struct tracked key = { .start = start - HP_MIN(start, h->len_max) }, *p, *next;

	for (p = RB_NFIND(tracked_tree, &h->by_start, &key); p && p->start < end; p = next) {
		next = RB_NEXT(tracked_tree, &h->by_start, p);
		if (p->end > start)
			forget_released(h, p);
	}
}

/* ------------------------------------------------------------------ what to do */

static bool give_registration_back(hugepin_domain *d, struct tracked *p, enum hp_evicted why)
{
	struct hp_helper *h = d->helper;
	uint64_t bytes = p->end - p->start, start_ns = now_of(d);
	uint32_t id = id_of(h, p), backing = p->backing;
	bool on_demand = is_on_demand(p);

	if (!p->region || !hp_domain_may_register(d) || !hp_region_release(d, &hp_regions[p->region], why)) {
		hp_plan_failed(h->plan, id, now_of(d));
		return false;
	}
	if (!on_demand)
		hp_cost_learn(&h->cost, backing, bytes, HP_COST_DEREGISTER, now_of(d) - start_ns);
	return true;
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

/* ------------------------------------------------------------------ pinned, or on demand */

/* Budgets are for what is pinned. Within one, a region stays pinned until another one needs the room. */
static bool has_budget(const hugepin_domain *d)
{
	return d->bytes_max < UINT64_MAX - 1;
}

static uint64_t room_of(const hugepin_domain *d)
{
	return d->bytes_max - HP_MIN(d->stats.pinned_bytes, d->bytes_max);
}

/* The expected use of a range, and what operations on it take. */
struct expected {
	struct hp_paging_terms terms;
	struct hp_paging_use use;
};

static struct expected expect(const hugepin_domain *d, const struct tracked *p)
{
	const struct hp_helper *h = d->helper;
	uint64_t bytes = p->end - p->start;
	const double fault_ns = h->fault_ns[p->access & HUGEPIN_WRITE ? HP_PAGING_RECEIVES : HP_PAGING_SENDS];

	return (struct expected){
		.terms = { .pin.fixed_ns = (double)work_ns(h, p, bytes, HP_COST_REGISTER),
			   .unpin.fixed_ns = (double)work_ns(h, p, bytes, HP_COST_DEREGISTER),
			   .demand.fixed_ns = (double)work_ns(h, p, bytes, HP_COST_ON_DEMAND),
			   .bring.fixed_ns = (double)work_ns(h, p, bytes, HP_COST_BRING_IN),
			   .fault_ns = { fault_ns, fault_ns } },
		.use = { .pages = (double)(bytes / hp_base_page), .stays = has_budget(d), .habits = p->habits },
	};
}

/* Whether a refusal says more than that there is no room or no memory now, or that a discard is under way. */
static bool lasts(int err)
{
	return err != -ENOBUFS && err != -ENOMEM && err != -EFAULT && err != -EBUSY;
}

/* Register the region of p in the other way, if it is not in use. False: it is as it was. */
static bool turn(hugepin_domain *d, struct tracked *p, bool on_demand)
{
	struct hp_helper *h = d->helper;
	struct hp_region *r = &hp_regions[p->region], *other;
	uint64_t bytes = p->end - p->start, registered_ns = d->stats.registered_ns;
	uint64_t deregistered_ns = d->stats.deregistered_ns, deregistered = d->stats.deregistered;
	uint64_t since = hp_helper_time(d);
	int err;

	if (!hp_domain_may_register(d) || r->state != HP_REGION_LIVE || hp_region_pins(r))
		return false;
	h->tracked_of[p->region] = 0; /* p goes on, with the other region */
	err = hp_cover_turn(d, r, on_demand, false, &other);
	p->region = (uint32_t)((err ? r : other) - hp_regions);
	h->tracked_of[p->region] = id_of(h, p);
	if (err) {
		p->refused = !on_demand && lasts(err);
		return false;
	}
	hp_cost_learn(&h->cost, p->backing, bytes, on_demand ? HP_COST_ON_DEMAND : HP_COST_REGISTER,
		      d->stats.registered_ns - registered_ns);
	if (!on_demand)
		show_cost(d);
	else if (d->stats.deregistered == deregistered + 1)
		hp_cost_learn(&h->cost, p->backing, bytes, HP_COST_DEREGISTER,
			      d->stats.deregistered_ns - deregistered_ns);
	p->since = since;
	hp_region_clear_used(d, other);
	return true;
}

/* How long a range has not been used. */
static uint64_t idle_ns(const hugepin_domain *d, const struct tracked *p)
{
	uint64_t now_ns = now_of(d);

	return now_ns - HP_MIN(p->ended_ns, now_ns);
}

/* The plan does not expect p for a while. */
static void let_cool(hugepin_domain *d, struct tracked *p)
{
	struct hp_helper *h = d->helper;
	struct expected e = expect(d, p);

	if (!is_on_demand(p)) {
		hp_paging_wait(&e.use.habits, idle_ns(d, p));
		if (e.use.stays || hp_paging_is_hot(&e.terms, &e.use) || !turn(d, p, true)) {
			hp_plan_failed(h->plan, id_of(h, p), now_of(d));
			return;
		}
		HP_DSTAT(d, released, 1);
	}
	p->told = false;
	hp_plan_deregistered(h->plan, id_of(h, p), now_of(d));
}

/* How many pages of a range are not in memory. Of a range that is not mapped: none. */
static uint64_t pages_out(uintptr_t start, uintptr_t end)
{
	unsigned char in[LOOKED_AT];
	uint64_t out = 0;

	for (uintptr_t to; start < end; start = to) {
		to = start + HP_MIN(end - start, LOOKED_AT * hp_base_page);
		if (hp_sys(SYS_mincore, start, to - start, in) != 0)
			continue;
		for (uintptr_t i = 0; i < (to - start) / hp_base_page; i++)
			out += !(in[i] & 1);
	}
	return out;
}

/* Have the device bring the memory of p in, of which so many pages are out. fresh: it was just registered, so it says
 * nothing of what goes out between uses. */
static bool bring_in(hugepin_domain *d, struct tracked *p, uint64_t out, bool fresh)
{
	const struct hp_region *r = &hp_regions[p->region];
	uint64_t start_ns = now_of(d);
	int err = -EPERM;

	if (!fresh)
		hp_paging_learn_gone(&p->habits, out, (p->end - p->start) / hp_base_page);
	if (hp_domain_may_register(d))
		err = hp_cover_bring_in(d, r, p->start, p->end);
	if (err < 0)
		return false;
	if (out)
		hp_cost_learn(&d->helper->cost, p->backing, out * hp_base_page, HP_COST_BRING_IN,
			      now_of(d) - start_ns);
	return true;
}

/* Make room for p, which wants to be pinned: a range that is worth its room less goes on demand. */
static bool displace(hugepin_domain *d, struct tracked *p)
{
	struct hp_helper *h = d->helper;
	struct tracked *v = &h->tracked[hp_plan_victim(h->plan, now_of(d))];
	struct expected by = expect(d, p), pinned = expect(d, v);

	if (!v->region || v == p || is_on_demand(v) || p->end - p->start > room_of(d) + (v->end - v->start) ||
	    hp_region_is_used(d, &hp_regions[v->region]) ||
	    !hp_paging_displaces(&by.terms, &by.use, &pinned.terms, &pinned.use, idle_ns(d, v)) ||
	    !turn(d, v, true))
		return false;
	HP_DSTAT(d, released, 1);
	v->told = false;
	hp_plan_deregistered(h->plan, id_of(h, v), now_of(d));
	return true;
}

/* Pin p, which is on demand, if that takes least and there is room. */
static bool pin_if_best(hugepin_domain *d, struct tracked *p)
{
	struct expected e = expect(d, p);

	if (p->refused || hp_paging_choose(&e.terms, &e.use, UINT64_MAX) != HP_PAGING_PIN ||
	    (p->end - p->start > room_of(d) && !displace(d, p)) || !turn(d, p, false))
		return false;
	HP_DSTAT(d, repinned, 1);
	return true;
}

/* A use of p has ended. If p is hot and there is room, pin it before the next one, which the plan may not expect. */
static void keep_hot(hugepin_domain *d, struct tracked *p)
{
	if (is_on_demand(p) && !p->uses && !p->told && p->end - p->start <= room_of(d) && pin_if_best(d, p))
		tell_registered(d->helper, p, now_of(d));
}

/* The plan expects a use of p soon. */
static void make_ready(hugepin_domain *d, struct tracked *p)
{
	struct hp_helper *h = d->helper;
	uint64_t start_ns = now_of(d);
	struct expected e = expect(d, p);

	if (!pin_if_best(d, p) && hp_paging_choose(&e.terms, &e.use, 0) == HP_PAGING_BRING &&
	    !bring_in(d, p, pages_out(p->start, p->end), false)) {
		hp_plan_failed(h->plan, id_of(h, p), now_of(d));
		return;
	}
	p->begun_ns = HP_MAX(start_ns, UINT64_C(1));
	tell_registered(h, p, now_of(d));
}

void hp_helper_first_use(hugepin_domain *d, struct hp_region *r, bool fresh)
{
	struct hp_helper *h = d->helper;
	struct tracked *p;
	struct expected e;
	uint64_t out;
	bool new;

	if (!h->pages || !r->on_demand || !hp_region_is(r, d, HP_REGION_LIVE))
		return;
	p = tracked_of(h, r, &new);
	if (!p)
		return;
	e = expect(d, p);
	if (hp_paging_choose(&e.terms, &e.use, 0) != HP_PAGING_BRING)
		return;
	out = pages_out(p->start, p->end);
	if (out || !p->told)
		bring_in(d, p, out, fresh);
}

/* ------------------------------------------------------------------ steps */

/* Register a range ahead of its next use. If only the opener may register, make the pages present: then the opener
 * waits less. */
static void register_again(hugepin_domain *d, struct tracked *p)
{
	struct hp_helper *h = d->helper;
	uintptr_t start = p->start, end = p->end;
	uint32_t id = id_of(h, p), backing = p->backing;
	uint64_t start_ns = now_of(d), since = hp_helper_time(d);
	struct hp_region *r = NULL;
	bool new;
	int err = -EPERM;

	if (p->region && h->pages && is_on_demand(p)) {
		make_ready(d, p);
		return;
	}
	if (p->region) { /* another thread has registered it, and its record is still queued */
		tell_registered(h, p, start_ns);
		return;
	}
	if (!hp_domain_may_register(d)) {
		hp_populate(start, end - start, true);
	} else {
		err = hp_cover_ahead(d, (void *)start, end - start, p->access);
		r = err ? NULL : hp_cover_find(d, start, end - start, p->access);
	}
	if (!r) {
		hp_plan_failed(h->plan, id, now_of(d));
		return;
	}
	/* The range is now part of a larger region. Or r is tracked by another entry: without this one, the plan would
	 * ask for the range again and again. */
	if (r->start != start || r->end != end || tracked_of(h, r, &new) != p) {
		forget_released(h, p);
		return;
	}
	HP_DSTAT(d, repinned, 1);
	hp_cost_learn(&h->cost, backing, end - start, r->on_demand ? HP_COST_ON_DEMAND : HP_COST_REGISTER,
		      now_of(d) - start_ns);
	show_cost(d);
	p->since = since;
	hp_region_clear_used(d, r);
	if (r->on_demand)
		bring_in(d, p, pages_out(p->start, p->end), true);
	tell_registered(h, p, now_of(d));
}

/* Tell the plan of a few records, on a thread of the program that has to evict. After a loss only the helper tells
 * records. */
static void tell_some(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	if (h->crowded || (h->queue.count < TOLD_BY_A_MISS && !collect_records(d)))
		return;
	for (unsigned i = 0; i < TOLD_BY_A_MISS && h->queue.count; i++) {
		struct hp_record record = hp_record_dequeue(&h->queue);

		take_in(d, &record);
	}
}

/* Under hybrid the plan knows no more than what is ready, as all that is pinned. Evict what is neither ready nor in use:
 * to register it again takes least. */
static bool evict_cold(hugepin_domain *d, enum hp_evicted why)
{
	const struct hp_helper *h = d->helper;

	for (struct hp_region *r = TAILQ_FIRST(&d->live), *next; r; r = next) {
		const struct tracked *p = &h->tracked[h->tracked_of[r - hp_regions]];

		next = TAILQ_NEXT(r, order);
		if (r->on_demand && !p->told && !hp_region_is_used(d, r) && hp_region_release(d, r, why))
			return true;
	}
	return false;
}

static bool evict_farthest(hugepin_domain *d, enum hp_evicted why)
{
	struct hp_helper *h = d->helper;

	tell_some(d);
	if (h->pages && why != HP_EVICTED_BUDGET && evict_cold(d, why))
		return true;
	for (int i = 0; i < VICTIMS_TRIED; i++) {
		uint32_t id = hp_plan_victim(h->plan, now_of(d)), region = h->tracked[id].region;

		if (!id)
			return false;
		if (region && hp_region_is_used(d, &hp_regions[region]))
			hp_plan_failed(h->plan, id, now_of(d));
		else if (give_registration_back(d, &h->tracked[id], why))
			return true;
	}
	return false;
}

/* After records were lost: end the uses of regions that have no pins out, since the records of their ends may be lost.
 * False: as hp_domain_let_pass(). */
static bool end_lost(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	for (uint32_t i = 1, n = hp_regions_used(); i < n; i++) {
		struct tracked *p = &h->tracked[h->tracked_of[i]];
		struct hp_region *r = &hp_regions[i];

		if (hp_region_is(r, d, HP_REGION_LIVE)) {
			while (p->uses && !hp_region_pins(r))
				end_use(h, p, now_of(d));
			if (p->region && !p->told && !is_on_demand(p))
				tell_registered(h, p, now_of(d));
			hp_region_clear_used(d, r);
		}
		if (hp_domain_pins_wait(d) && !hp_domain_let_pass(d))
			return false;
	}
	return true;
}

/* Tell the plan of all records. Let waiting threads have the lock in between. False: as hp_domain_let_pass(). */
static bool tell_all(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	if (collect_records(d) && h->crowded) {
		if (!end_lost(d))
			return false;
		h->crowded = false;
	}
	while (h->queue.count) {
		struct hp_record record = hp_record_dequeue(&h->queue);

		take_in(d, &record);
		if (hp_domain_pins_wait(d) && !hp_domain_let_pass(d))
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
	hp_record_get_clock(&h->clock);
	h->sharers = hp_processors_sharers();
	hp_plan_set_lead(h->plan, hp_processors_delay_ns());
	HP_DSTAT(d, sharers, h->sharers - d->stats.sharers);
	HP_DSTAT(d, helper_delay_ns, hp_processors_delay_ns() - d->stats.helper_delay_ns);
	for (;;) {
		hp_gone_drain(d);
		hp_region_deregister_dead(d);
		if (!tell_all(d))
			return UINT64_MAX;
		/* Give nothing back after a loss: the lost records may be of uses. Do nothing at all if other processes
		 * leave no core. */
		if (!h->sharers) {
			step = (struct hp_plan_step){ .what = HP_PLAN_WAIT, .until_ns = UINT64_MAX };
			break;
		}
		if (h->last && !h->crowded) {
			keep_hot(d, &h->tracked[h->last]);
			h->last = 0;
		}
		step = h->crowded ? (struct hp_plan_step){ .what = HP_PLAN_WAIT, .until_ns = now_of(d) + HP_CROWDED_NS }
				  : hp_plan_next(h->plan, now_of(d));
		if (step.what == HP_PLAN_WAIT)
			break;
		if (step.what == HP_PLAN_REGISTER)
			register_again(d, &h->tracked[step.region]);
		else if (h->saves && !hp_processors_may_take(NULL))
			hp_plan_failed(h->plan, step.region, now_of(d));
		else if (h->pages)
			let_cool(d, &h->tracked[step.region]);
		else
			HP_DSTAT(d, released,
				 give_registration_back(d, &h->tracked[step.region], HP_EVICTED_IDLE));
		if (!hp_domain_let_pass(d))
			return UINT64_MAX;
	}
	HP_DSTAT(d, helper_ns, hp_clock_ns() - begun_ns);
	*ret = (struct hp_helper_news){ .any = h->any, .crowded = h->crowded };
	h->any = false;
	hp_unlock(&d->lock);
	return step.until_ns;
}

/* ------------------------------------------------------------------ among processes */

static void sum_bytes(hugepin_domain *d, void *bytes)
{
	if (d->helper)
		*(uint64_t *)bytes += atomic_load_explicit(&d->helper->bytes, memory_order_relaxed);
}

void hp_helper_begin(uint64_t late_ns)
{
	uint64_t bytes = 0;

	hp_record_calibrate();
	hp_processors_look(late_ns);
	if (!hp_processors_must_post())
		return;
	hp_domains_each(sum_bytes, &bytes);
	hp_processors_post(bytes);
}

uint64_t hp_helper_delay_ns(bool crowded)
{
	uint64_t wait_ns;

	if (!hp_processors_may_take(&wait_ns))
		return wait_ns ? wait_ns : HP_GATHER_NS;
	return crowded ? HP_CROWDED_NS : HP_GATHER_NS;
}

/* ------------------------------------------------------------------ opening */

static void destroy_helper(struct hp_helper *h)
{
	if (h->plan)
		hp_plan_free(h->plan);
	hp_meta_unmap(h->tracked, TRACKED_MAX * sizeof *h->tracked);
	hp_meta_unmap(h->tracked_of, HP_REGIONS_MAX * sizeof *h->tracked_of);
	hp_meta_unmap(h, sizeof *h);
}

/* Tell hugepin top where the tracked ranges are (base/stats.h). */
static void expose_helper(void)
{
	__typeof__(&hp_exposed.view.helper) v = &hp_exposed.view.helper;

	v->place_of = offsetof(struct hp_helper, tracked_of);
	v->places = offsetof(struct hp_helper, tracked);
	v->stride = sizeof(struct tracked);
	v->site = offsetof(struct tracked, site);
}

static const struct hp_helper_hooks helper_hooks = {
	.deregistered = note_deregistered,
	.gone = forget_gone,
	.evict = evict_farthest,
};

/* Under hybrid, begin with the terms of the device if they were measured. */
static void begin_with_terms(hugepin_domain *d, struct hp_helper *h)
{
	struct hugepin_terms t = { 0 };

	memcpy(h->fault_ns, hp_paging_defaults.fault_ns, sizeof h->fault_ns);
	if (!h->pages || !d->backend->terms || d->backend->terms(d->ctx, &t))
		return;
	hp_cost_begin(&h->cost, HP_COST_REGISTER, (double)t.reg, (double)t.reg_page);
	hp_cost_begin(&h->cost, HP_COST_DEREGISTER, (double)t.dereg, (double)t.dereg_page);
	hp_cost_begin(&h->cost, HP_COST_ON_DEMAND, (double)t.demand, (double)t.demand_page);
	hp_cost_begin(&h->cost, HP_COST_BRING_IN, (double)t.bring, (double)t.bring_page);
	if (t.fault_send > 0)
		h->fault_ns[HP_PAGING_SENDS] = (double)t.fault_send;
	if (t.fault_receive > 0)
		h->fault_ns[HP_PAGING_RECEIVES] = (double)t.fault_receive;
}

int hp_helper_open(hugepin_domain *d)
{
	const bool pages = d->policy == HUGEPIN_POLICY_HYBRID;
	struct hp_plan_config config = {
		.policy = d->policy == HUGEPIN_POLICY_CF11 ? HP_PLAN_CF11 : HP_PLAN_PREDICT,
		.budget = !has_budget(d) || pages ? UINT64_MAX : d->bytes_max,
		.memory = (size_t)hp_config.predict_memory,
		.cost_ns = tracked_cost_ns,
	};
	struct hp_helper *h;

	if ((d->policy != HUGEPIN_POLICY_CF11 && d->policy != HUGEPIN_POLICY_PREDICT && !pages) ||
	    hp_config.helper == HP_HELPER_OFF)
		return 0;
	config.mode = !pages && (hp_config.predict_mode == HP_PREDICT_BUDGET ||
				 (hp_config.predict_mode == HP_PREDICT_AUTO && config.budget != UINT64_MAX))
			      ? HP_PLAN_BUDGET
			      : HP_PLAN_SAVE;
	h = hp_meta_map(sizeof *h);
	if (!h)
		return -ENOMEM;
	config.arg = h;
	h->saves = config.mode == HP_PLAN_SAVE;
	h->pages = pages;
	begin_with_terms(d, h);
	h->tracked_of = hp_meta_map(HP_REGIONS_MAX * sizeof *h->tracked_of);
	h->tracked = hp_meta_reserve(TRACKED_MAX * sizeof *h->tracked);
	/* The first step gets memory now, since number 0 stands for none and is read. */
	if (h->tracked_of && h->tracked && hp_meta_open(h->tracked, TRACKED_STEP * sizeof *h->tracked)) {
		h->tracked_opened = TRACKED_STEP;
		h->plan = hp_plan_new(&config);
	}
	if (!h->plan) {
		destroy_helper(h);
		return -ENOMEM;
	}
	TAILQ_INIT(&h->released);
	RB_INIT(&h->by_start);
	hp_record_open_clock();
	hp_record_get_clock(&h->clock);
	h->lost_seen = lost_by(d);
	expose_helper();
	hp_region_set_helper(&helper_hooks);
	/* helpers of other domains may hold records that an earlier domain in this place left */
	hp_lock(&records_lock);
	d->helper = h;
	hp_unlock(&records_lock);
	return 0;
}

void hp_helper_close(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	hp_lock(&records_lock); /* helpers of other domains put records into our `pending` */
	d->helper = NULL;
	hp_unlock(&records_lock);
	if (h)
		destroy_helper(h);
}

void hp_helper_child(void)
{
	hp_processors_child();
	hp_lock_reset(&records_lock);
}
