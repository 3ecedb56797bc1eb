/*
 * Eviction: chooses the registration that goes when there is no room for another one, and deregisters it. Under a
 * policy that predicts, the plan (policy/plan.h) chooses by the records of threads so far. Otherwise, or where the plan
 * knows nothing, the clock algorithm does (Corbato 1968): regions are in the order in which they were registered or
 * last passed over, and a hit sets a flag in its region, so that the clock roughly follows the order of last use.
 *
 * A region that the clock finds pinned is set aside, so that no later miss passes over it again. Each run of the clock
 * looks at a few of these, and takes back what is pinned no more.
 *
 * Invariant: a region with pins out is never evicted. Lock: the domain's, across the backend's calls.
 */
#include "reg/evict.h"

#include "reg/domains.h"
#include "reg/retire.h"
#include "reg/track.h"

enum {
	TOLD_BY_A_MISS = 8, /* records; each takes some 3 us */
	VICTIMS_TRIED = 16,
	EXACT_MAX = 1 << 15,
	EXACT_LOOKS = 64,
	COLD_LOOKS = 64,
	ASIDE_LOOKS = 16,
};

static void to_tail(hugepin_domain *d, struct hp_region *r)
{
	TAILQ_REMOVE(&d->live, r, order);
	TAILQ_INSERT_TAIL(&d->live, r, order);
}

/* ------------------------------------------------------------------ by the plan */

bool hp_evict_tracked(hugepin_domain *d, struct hp_tracked *p, enum hp_evicted why)
{
	struct hp_helper *h = d->helper;
	uint64_t bytes = p->end - p->start, start_ns = hp_track_now(d);
	bool on_demand = hp_tracked_on_demand(p);

	if (!p->region || !hp_domain_may_register(d) || !hp_region_release(d, &hp_regions[p->region], why)) {
		hp_plan_failed(h->plan, hp_tracked_id(h, p), hp_track_now(d));
		return false;
	}
	if (!on_demand)
		hp_tracked_learn(d, p, bytes, HP_COST_DEREGISTER, hp_track_now(d) - start_ns);
	return true;
}

/* Tell the plan of a few records only, because this thread of the program waits meanwhile. After a loss only the helper
 * tells records. */
static void tell_some(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	if (h->crowded || (h->queue.count < TOLD_BY_A_MISS && !hp_track_collect(d)))
		return;
	for (unsigned i = 0; i < TOLD_BY_A_MISS && h->queue.count; i++)
		hp_track_tell(d);
}

/* Under hybrid the plan knows ready regions, not all that are pinned. Evict a region that is neither ready nor in use,
 * because registering it again costs least. Look at a few, from where the last look ended. */
static bool evict_cold(hugepin_domain *d, enum hp_evicted why)
{
	const struct hp_helper *h = d->helper;
	struct hp_region *r;

	for (unsigned looks = COLD_LOOKS; looks && (r = TAILQ_FIRST(&d->live)); looks--) {
		const struct hp_tracked *p = &h->tracked[h->tracked_of[hp_region_index(r)]];

		if (r->on_demand && !p->told && !hp_region_is_used(d, r) && hp_region_release(d, r, why))
			return true;
		if (r->state == HP_REGION_LIVE)
			to_tail(d, r);
	}
	return false;
}

/* Pass over a region whose `used` flag is set, because it was used after the plan last heard of it. */
static bool by_plan(hugepin_domain *d, enum hp_evicted why)
{
	struct hp_helper *h = d->helper;

	tell_some(d);
	if (h->pages && why != HP_EVICTED_BUDGET && evict_cold(d, why))
		return true;
	for (int i = 0; i < VICTIMS_TRIED; i++) {
		uint32_t id = hp_plan_victim(h->plan, hp_track_now(d)), region = h->tracked[id].region;

		if (!id)
			return false;
		if (region && hp_region_is_used(d, &hp_regions[region]))
			hp_plan_failed(h->plan, id, hp_track_now(d));
		else if (hp_evict_tracked(d, &h->tracked[id], why))
			return true;
	}
	return false;
}

/* ------------------------------------------------------------------ by the clock */

static void set_aside(hugepin_domain *d, struct hp_region *r)
{
	TAILQ_REMOVE(&d->live, r, order);
	TAILQ_INSERT_TAIL(&d->aside, r, order);
	r->is_aside = true;
}

/* Look at so many of the regions set aside, and take back those that are pinned no more. Returns whether there were
 * any. */
static bool take_back(hugepin_domain *d, uint64_t looks)
{
	struct hp_region *r;
	bool any = false;

	for (; looks && (r = TAILQ_FIRST(&d->aside)); looks--) {
		TAILQ_REMOVE(&d->aside, r, order);
		r->is_aside = hp_region_pins(r) != 0;
		TAILQ_INSERT_TAIL(r->is_aside ? &d->aside : &d->live, r, order);
		any |= !r->is_aside;
	}
	return any;
}

/* If bytes of the budget are wanted, the clock passes over regions on demand, since these pin none. */
static bool run_clock(hugepin_domain *d, enum hp_evicted why)
{
	struct hp_region *r;

	for (uint64_t looks = 2 * d->stats.regions; looks && (r = TAILQ_FIRST(&d->live)); looks--) {
		bool may = !(r->on_demand && why == HP_EVICTED_BUDGET);

		if (may && hp_region_pins(r)) {
			set_aside(d, r);
			continue;
		}
		if (may && !hp_region_clear_used(d, r) && hp_region_release(d, r, why))
			return true;
		if (r->state == HP_REGION_LIVE)
			to_tail(d, r);
	}
	return false;
}

static bool by_clock(hugepin_domain *d, enum hp_evicted why)
{
	take_back(d, ASIDE_LOOKS);
	return run_clock(d, why) || (take_back(d, d->stats.regions) && run_clock(d, why));
}

/* ------------------------------------------------------------------ for want of room */

bool hp_evict_one(hugepin_domain *d, enum hp_evicted why)
{
	const bool evicted = (d->helper && by_plan(d, why)) || by_clock(d, why);

	HP_DSTAT(d, evicted, evicted);
	return evicted;
}

bool hp_evict_frees(const hugepin_domain *d, uint64_t bytes)
{
	const struct hp_region_list *const lists[] = { &d->live, &d->aside };
	const struct hp_region *r;

	for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++)
		TAILQ_FOREACH(r, lists[i], order) {
			if (r->on_demand || r == d->turning || hp_region_pins(r))
				continue;
			if (r->end - r->start >= bytes)
				return true;
			bytes -= r->end - r->start;
		}
	return false;
}

void hp_evict_exact(hugepin_domain *d)
{
	struct hp_region *r;

	for (unsigned looks = EXACT_LOOKS; d->exact_count >= EXACT_MAX && looks && (r = TAILQ_FIRST(&d->live)); looks--)
		if (hp_region_is_exact(r) && !hp_region_clear_used(d, r) && hp_region_release(d, r, HP_EVICTED_TABLE))
			HP_DSTAT(d, evicted, 1);
		else if (r->state == HP_REGION_LIVE && r == TAILQ_FIRST(&d->live))
			to_tail(d, r);
}
