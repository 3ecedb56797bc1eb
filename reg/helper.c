/*
 * The helper carries out the decisions of a plan (policy/plan.h) for domains whose policy predicts. It runs on the
 * service thread, and holds the domain's lock for one record or one action at a time. track.c keeps the helper's
 * knowledge, and hybrid.c carries out the plan under that policy.
 */
#include "reg/helper.h"

#include <errno.h>

#include "base/config.h"
#include "base/stats.h"
#include "base/sys.h"
#include "reg/cover.h"
#include "reg/domains.h"
#include "reg/evict.h"
#include "reg/gone.h"
#include "reg/hybrid.h"
#include "reg/processors.h"
#include "reg/retire.h"
#include "reg/share.h"
#include "reg/track.h"

/* ------------------------------------------------------------------ steps */

/* Register a range ahead of its next use. If only the opener may register, make the pages present, so that the opener
 * waits less. */
static void register_again(hugepin_domain *d, struct hp_tracked *p)
{
	struct hp_helper *h = d->helper;
	uintptr_t start = p->start, end = p->end;
	uint64_t start_ns = hp_track_now(d), since = hp_track_time(d);
	struct hp_region *r = NULL;
	bool new;

	if (p->region && h->pages && hp_tracked_on_demand(p)) {
		hp_hybrid_make_ready(d, p);
		return;
	}
	if (p->region) { /* another thread has registered it, and its record is still queued */
		hp_track_registered(h, p, start_ns);
		return;
	}
	if (!hp_domain_may_register(d))
		hp_populate(start, end - start, true);
	else
		hp_cover_ahead(d, (void *)start, end - start, p->access, &r);
	if (!r) {
		hp_plan_failed(h->plan, hp_tracked_id(h, p), hp_track_now(d));
		return;
	}
	/* Drop the entry p, because its range is now part of a larger region, or another entry tracks r. Otherwise the
	 * plan would ask for the range again and again. */
	if (r->start != start || r->end != end || hp_tracked_of(h, r, &new) != p) {
		hp_tracked_forget(h, p);
		return;
	}
	HP_DSTAT(d, repinned, 1);
	hp_tracked_learn(d, p, end - start, r->on_demand ? HP_COST_ON_DEMAND : HP_COST_REGISTER,
			 hp_track_now(d) - start_ns);
	p->since = since;
	hp_region_clear_used(d, r);
	if (r->on_demand)
		hp_hybrid_bring_in_new(d, p);
	hp_track_registered(h, p, hp_track_now(d));
}

/* After records were lost, end the uses of regions that have no pins out, since the records of their ends may be lost,
 * too. False: as hp_domain_let_pass(). */
static bool end_lost(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	for (uint32_t i = 1, n = hp_regions_used(); i < n; i++) {
		struct hp_tracked *p = &h->tracked[h->tracked_of[i]];
		struct hp_region *r = &hp_regions[i];

		if (hp_region_is(r, d, HP_REGION_LIVE)) {
			while (p->uses && !hp_region_pins(r))
				hp_track_end_use(h, p, hp_track_now(d));
			if (p->region && !p->told && !hp_tracked_on_demand(p))
				hp_track_registered(h, p, hp_track_now(d));
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

	if (hp_track_collect(d) && h->crowded) {
		if (!end_lost(d))
			return false;
		h->crowded = false;
	}
	while (h->queue.count) {
		hp_track_tell(d);
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
		/* After a loss, give nothing back, because the lost records may be of uses. Do nothing at all if other
		 * processes leave no core. */
		if (!h->sharers) {
			step = (struct hp_plan_step){ .what = HP_PLAN_WAIT, .until_ns = UINT64_MAX };
			break;
		}
		if (h->last && !h->crowded) {
			hp_hybrid_keep_hot(d, &h->tracked[h->last]);
			h->last = 0;
		}
		step = h->crowded ? (struct hp_plan_step){ .what = HP_PLAN_WAIT,
							   .until_ns = hp_track_now(d) + HP_CROWDED_NS }
				  : hp_plan_next(h->plan, hp_track_now(d));
		if (step.what == HP_PLAN_WAIT)
			break;
		if (step.what == HP_PLAN_REGISTER)
			register_again(d, &h->tracked[step.region]);
		else if (h->saves && !hp_processors_may_take(NULL))
			hp_plan_failed(h->plan, step.region, hp_track_now(d));
		else if (h->pages)
			hp_hybrid_let_cool(d, &h->tracked[step.region]);
		else
			HP_DSTAT(d, released,
				 hp_evict_tracked(d, &h->tracked[step.region], HP_EVICTED_IDLE));
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

void hp_helper_begin(uint64_t late_ns)
{
	hp_record_calibrate();
	hp_processors_look(late_ns);
	if (hp_processors_must_post())
		hp_processors_post(hp_track_bytes());
}

uint64_t hp_helper_delay_ns(bool crowded)
{
	uint64_t wait_ns;

	if (!hp_processors_may_take(&wait_ns))
		return wait_ns ? wait_ns : HP_GATHER_NS;
	return crowded ? HP_CROWDED_NS : HP_GATHER_NS;
}

/* ------------------------------------------------------------------ opening */

/* Tell hugepin top where the tracked ranges are (base/stats.h). */
static void expose_helper(void)
{
	__typeof__(&hp_exposed.view.helper) v = &hp_exposed.view.helper;

	v->place_of = offsetof(struct hp_helper, tracked_of);
	v->places = offsetof(struct hp_helper, tracked);
	v->stride = sizeof(struct hp_tracked);
	v->site = offsetof(struct hp_tracked, site);
}

/* The expected time of a step of the plan. Under hybrid, `registering` brings a range on demand in or pins it, and the
 * opposite turns a pinned range to on demand. */
static uint64_t tracked_cost_ns(void *helper, uint32_t id, uint64_t bytes, bool registering)
{
	const struct hp_helper *h = helper;
	const struct hp_tracked *p = &h->tracked[id];

	if (hp_tracked_on_demand(p))
		return registering ? hp_tracked_work_ns(h, p, bytes, HP_COST_BRING_IN) : 1;
	if (h->pages && !registering)
		return hp_tracked_work_ns(h, p, bytes, HP_COST_DEREGISTER) +
		       hp_tracked_work_ns(h, p, bytes, HP_COST_ON_DEMAND);
	return hp_tracked_work_ns(h, p, bytes, registering ? HP_COST_REGISTER : HP_COST_DEREGISTER);
}

int hp_helper_open(hugepin_domain *d)
{
	const bool pages = d->policy == HUGEPIN_POLICY_HYBRID;
	struct hp_plan_config config = {
		.policy = d->policy == HUGEPIN_POLICY_CF11 ? HP_PLAN_CF11 : HP_PLAN_PREDICT,
		.budget = !hp_has_budget(d) || pages ? UINT64_MAX : d->bytes_max,
		.memory = (size_t)hp_config.predict_memory,
		.cost_ns = tracked_cost_ns,
		.heard_ns = 2 * HP_GATHER_NS, /* the other half is waking up */
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
	if (pages)
		hp_hybrid_begin(d, h);
	if (hp_track_new(h) == 0)
		h->plan = hp_plan_new(&config);
	if (!h->plan) {
		hp_track_free(h, true);
		return -ENOMEM;
	}
	expose_helper();
	hp_track_attach(d, h);
	return 0;
}

void hp_helper_close(hugepin_domain *d)
{
	struct hp_helper *h = d->helper;

	hp_track_attach(d, NULL);
	if (!h)
		return;
	hp_plan_free(h->plan);
	hp_track_free(h, d->pid == hp_pid());
}

void hp_helper_child(void)
{
	hp_processors_child();
	hp_track_child();
}
