/*
 * Policy hybrid pins a region or registers it on demand, and carries out the plan in its own way. The plan counts a
 * region as registered while no transfer has to wait for its memory: while it is pinned, from bringing in to the end of
 * the next use, and during uses. Where the plan gives a region back, hybrid turns it from pinned to on demand. Where
 * the plan wants it registered, hybrid pins it, brings it in or leaves it to the device's faults, as the model says
 * (policy/paging.h). Memory for a use that was not foreseen is brought in by the thread that pins.
 *
 * Lock: the domain's, across the device's calls.
 */
#include "reg/hybrid.h"

#include <errno.h>
#include <string.h>

#include "base/sys.h"
#include "reg/cover.h"
#include "reg/domains.h"

enum { LOOKED_AT = 4096 }; /* pages per call that asks whether pages are in memory */

static uint64_t room_of(const hugepin_domain *d)
{
	return d->bytes_max - HP_MIN(d->stats.pinned_bytes, d->bytes_max);
}

/* The expected use of a range, and the expected times of operations on it. */
struct expected {
	struct hp_paging_terms terms;
	struct hp_paging_use use;
};

static struct expected expect(const hugepin_domain *d, const struct hp_tracked *p)
{
	const struct hp_helper *h = d->helper;
	uint64_t bytes = p->end - p->start;
	const double fault_ns = h->fault_ns[p->access & HUGEPIN_WRITE ? HP_PAGING_RECEIVES : HP_PAGING_SENDS];

	return (struct expected){
		.terms = { .pin.fixed_ns = (double)hp_tracked_work_ns(h, p, bytes, HP_COST_REGISTER),
			   .unpin.fixed_ns = (double)hp_tracked_work_ns(h, p, bytes, HP_COST_DEREGISTER),
			   .demand.fixed_ns = (double)hp_tracked_work_ns(h, p, bytes, HP_COST_ON_DEMAND),
			   .bring.fixed_ns = (double)hp_tracked_work_ns(h, p, bytes, HP_COST_BRING_IN),
			   .fault_ns = { fault_ns, fault_ns } },
		.use = { .pages = (double)(bytes / hp_base_page), .stays = hp_has_budget(d), .habits = p->habits },
	};
}

/* Whether a refusal is lasting, not just for want of room or memory now, or because a discard is under way. */
static bool lasts(int err)
{
	return err != -ENOBUFS && err != -ENOMEM && err != -EFAULT && err != -EBUSY;
}

/* Register the region of p in the other way, unless it is in use. False: it is unchanged. */
static bool turn(hugepin_domain *d, struct hp_tracked *p, bool on_demand)
{
	struct hp_helper *h = d->helper;
	struct hp_region *r = &hp_regions[p->region], *other;
	uint64_t bytes = p->end - p->start, registered_ns = d->stats.registered_ns;
	uint64_t deregistered_ns = d->stats.deregistered_ns, deregistered = d->stats.deregistered;
	uint64_t since = hp_track_time(d);
	int err;

	if (!hp_domain_may_register(d) || r->state != HP_REGION_LIVE || hp_region_pins(r))
		return false;
	h->tracked_of[p->region] = 0; /* p goes on, with the other region */
	err = hp_cover_turn(d, r, on_demand, false, &other);
	p->region = (uint32_t)((err ? r : other) - hp_regions);
	h->tracked_of[p->region] = hp_tracked_id(h, p);
	if (err) {
		p->refused = !on_demand && lasts(err);
		return false;
	}
	hp_tracked_learn(d, p, bytes, on_demand ? HP_COST_ON_DEMAND : HP_COST_REGISTER,
			 d->stats.registered_ns - registered_ns);
	if (on_demand && d->stats.deregistered == deregistered + 1)
		hp_tracked_learn(d, p, bytes, HP_COST_DEREGISTER, d->stats.deregistered_ns - deregistered_ns);
	p->since = since;
	hp_region_clear_used(d, other);
	return true;
}

/* The time since the last use of a range. */
static uint64_t idle_ns(const hugepin_domain *d, const struct hp_tracked *p)
{
	uint64_t now_ns = hp_track_now(d);

	return now_ns - HP_MIN(p->ended_ns, now_ns);
}

void hp_hybrid_let_cool(hugepin_domain *d, struct hp_tracked *p)
{
	struct hp_helper *h = d->helper;
	struct expected e = expect(d, p);

	if (!hp_tracked_on_demand(p)) {
		hp_paging_wait(&e.use.habits, idle_ns(d, p));
		if (e.use.stays || hp_paging_is_hot(&e.terms, &e.use) || !turn(d, p, true)) {
			hp_plan_failed(h->plan, hp_tracked_id(h, p), hp_track_now(d));
			return;
		}
		HP_DSTAT(d, released, 1);
	}
	hp_track_deregistered(h, p, hp_track_now(d));
}

/* The number of pages of a range that are not in memory; none if the range is not mapped. */
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

/* Have the device bring in the memory of p, of which `out` pages are out. fresh: the region was just registered, so the
 * number does not show how much goes out between uses. */
static bool bring_in(hugepin_domain *d, struct hp_tracked *p, uint64_t out, bool fresh)
{
	const struct hp_region *r = &hp_regions[p->region];
	uint64_t start_ns = hp_track_now(d);
	int err = -EPERM;

	if (!fresh)
		hp_paging_learn_gone(&p->habits, out, (p->end - p->start) / hp_base_page);
	if (hp_domain_may_register(d))
		err = hp_cover_bring_in(d, r, p->start, p->end);
	if (err < 0)
		return false;
	if (out)
		hp_tracked_learn(d, p, out * hp_base_page, HP_COST_BRING_IN, hp_track_now(d) - start_ns);
	return true;
}

/* Make room to pin p by turning a range that is worth its room less to on demand. */
static bool displace(hugepin_domain *d, struct hp_tracked *p)
{
	struct hp_helper *h = d->helper;
	struct hp_tracked *v = &h->tracked[hp_plan_victim(h->plan, hp_track_now(d))];
	struct expected by = expect(d, p), pinned = expect(d, v);

	if (!v->region || v == p || hp_tracked_on_demand(v) || p->end - p->start > room_of(d) + (v->end - v->start) ||
	    hp_region_is_used(d, &hp_regions[v->region]) ||
	    !hp_paging_displaces(&by.terms, &by.use, &pinned.terms, &pinned.use, idle_ns(d, v)) ||
	    !turn(d, v, true))
		return false;
	HP_DSTAT(d, released, 1);
	hp_track_deregistered(h, v, hp_track_now(d));
	return true;
}

/* Pin p, which is on demand, if pinning takes least and there is room. */
static bool pin_if_best(hugepin_domain *d, struct hp_tracked *p)
{
	struct expected e = expect(d, p);

	if (p->refused || hp_paging_choose(&e.terms, &e.use, UINT64_MAX) != HP_PAGING_PIN ||
	    (p->end - p->start > room_of(d) && !displace(d, p)) || !turn(d, p, false))
		return false;
	HP_DSTAT(d, repinned, 1);
	return true;
}

void hp_hybrid_keep_hot(hugepin_domain *d, struct hp_tracked *p)
{
	if (hp_tracked_on_demand(p) && !p->uses && !p->told && p->end - p->start <= room_of(d) && pin_if_best(d, p))
		hp_track_registered(d->helper, p, hp_track_now(d));
}

void hp_hybrid_make_ready(hugepin_domain *d, struct hp_tracked *p)
{
	struct hp_helper *h = d->helper;
	uint64_t start_ns = hp_track_now(d);
	struct expected e = expect(d, p);

	if (!pin_if_best(d, p) && hp_paging_choose(&e.terms, &e.use, 0) == HP_PAGING_BRING &&
	    !bring_in(d, p, pages_out(p->start, p->end), false)) {
		hp_plan_failed(h->plan, hp_tracked_id(h, p), hp_track_now(d));
		return;
	}
	p->begun_ns = HP_MAX(start_ns, UINT64_C(1));
	hp_track_registered(h, p, hp_track_now(d));
}

void hp_hybrid_bring_in_new(hugepin_domain *d, struct hp_tracked *p)
{
	bring_in(d, p, pages_out(p->start, p->end), true);
}

void hp_hybrid_first_use(hugepin_domain *d, struct hp_region *r, bool fresh)
{
	struct hp_helper *h = d->helper;
	struct hp_tracked *p;
	struct expected e;
	uint64_t out;
	bool new;

	if (!h->pages || !r->on_demand || !hp_region_is(r, d, HP_REGION_LIVE))
		return;
	p = hp_tracked_of(h, r, &new);
	if (!p)
		return;
	e = expect(d, p);
	if (hp_paging_choose(&e.terms, &e.use, 0) != HP_PAGING_BRING)
		return;
	out = pages_out(p->start, p->end);
	if (out || !p->told)
		bring_in(d, p, out, fresh);
}

void hp_hybrid_begin(hugepin_domain *d, struct hp_helper *h)
{
	struct hugepin_terms t = { 0 };
	int state, err = -EOPNOTSUPP;

	memcpy(h->fault_ns, hp_paging_defaults.fault_ns, sizeof h->fault_ns);
	if (d->backend->terms) {
		state = hp_foreign_begin();
		err = d->backend->terms(d->ctx, &t);
		hp_foreign_end(state);
	}
	if (err)
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
