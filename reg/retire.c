/*
 * The end of regions: pins out, retiring, wanting pins back, deregistering. All functions run under the domain's lock
 * (state.h), which is held across the backend's calls.
 *
 * Invariants:
 * 1. Regions on the list `dead` have no pins and can get none.
 * 2. Each region of the heap, except on-demand and uncached ones, holds its heap pages once (alloc/hold.h) until it is
 *    deregistered. An extent may come to hold only the pages of its pins.
 */
#include "reg/retire.h"

#include "reg/counts.h"
#include "reg/domains.h"
#include "reg/trace.h"
#include "reg/track.h"
#include "reg/uffd.h"

/* ------------------------------------------------------------------ pins out */

static uint32_t made_of(const struct hp_region *r)
{
	return hp_counts_made(hp_region_index(r));
}

bool hp_regions_pinned(hugepin_domain *d)
{
	const struct hp_region_list *const lists[] = { &d->live, &d->aside, &d->retired, &d->uncached };
	const struct hp_region *r;

	hp_counts_barrier();
	for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++)
		TAILQ_FOREACH(r, lists[i], order)
			if (hp_region_pins(r))
				return true;
	return false;
}

/* Lower the bit if no region waits for its last unpin. */
static void lower_if_none_waits(hugepin_domain *d)
{
	if (TAILQ_EMPTY(&d->retired) && TAILQ_EMPTY(&d->uncached))
		hp_attention_lower(d, HP_RETIRED);
}

static void declare_dead(hugepin_domain *d, struct hp_region *r)
{
	HP_WRITE(r->state, HP_REGION_DEAD);
	TAILQ_INSERT_TAIL(&d->dead, r, order);
}

/* Each region is summed once. If pins are out then, the last unpin sees the bit, and does the rest. */
void hp_region_settle(hugepin_domain *d)
{
	struct hp_region *r;

	if (TAILQ_EMPTY(&d->unsettled))
		return;
	/* Raise the bit before the barrier, so that an unpin that the sums do not see sees the bit. */
	hp_attention_raise(d, HP_RETIRED);
	hp_counts_barrier();
	while ((r = TAILQ_FIRST(&d->unsettled))) {
		TAILQ_REMOVE(&d->unsettled, r, order);
		if (!hp_region_pins(r)) {
			declare_dead(d, r);
			continue;
		}
		TAILQ_INSERT_TAIL(&d->retired, r, order);
		hp_region_waits(r);
		HP_DSTAT(d, retired, 1);
		/* Do not ask for the pins of an extent that holds only its pinned pages, which may still be wanted. */
		if (!hp_region_holds_part(r))
			hp_region_want_pins(r, true);
	}
	lower_if_none_waits(d);
}

/* ------------------------------------------------------------------ deregistering */

HP_TLS bool hp_registering;

/* Whether somebody is told of r's end, because a peer may have its rkey, or the program its lkey: r was pinned. */
static bool is_handed_out(const struct hp_region *r)
{
	struct hp_region_notes *n = hp_region_notes_of(r);

	if (!(r->access & HP_ACCESS_REMOTE) && !r->domain->expire_local)
		return false;
	n->pinned = n->pinned || made_of(r) != HP_READ(r->made);
	return n->pinned;
}

/* Tell the lend and the program that r ends, or (pinned) that its pins are wanted back. */
static void tell_end(hugepin_domain *d, const struct hp_region *r, bool pinned)
{
	const struct hugepin_expiry expiry = {
		.addr = r->start, .len = r->end - r->start, .rkey = r->reg.rkey, .pinned = pinned, .lkey = r->reg.lkey
	};
	const bool lent = d->lend_hooks && r->access & HP_ACCESS_REMOTE;
	int state;

	if (!is_handed_out(r))
		return;
	if (lent && pinned)
		d->lend_hooks->wanted(d->lend, hp_region_index(r));
	else if (lent && hp_region_notes_of(r)->buckets)
		d->lend_hooks->dropped(d->lend, hp_region_index(r));
	if (d->expire) {
		state = hp_foreign_begin();
		d->expire(d->expire_arg, &expiry);
		hp_foreign_end(state);
	}
}

/* Whether the pins that are out were told of already. A region that is not LIVE gets no others. */
static bool is_told(const struct hp_region *r)
{
	struct hp_region_notes *n = hp_region_notes_of(r);

	if (n->wanted != HP_WANTED_TOLD)
		return false;
	n->pinned_since = n->pinned_since || (r->tag && made_of(r) != n->told);
	return !n->pinned_since;
}

void hp_region_want_pins(struct hp_region *r, bool wanted)
{
	struct hp_region_notes *n = hp_region_notes_of(r);

	if (n->wanted == HP_WANTED)
		return;
	if (!wanted) {
		n->wanted = HP_NOT_WANTED; /* the memory was given to another buffer */
	} else if (!is_told(r) && is_handed_out(r)) {
		n->wanted = HP_WANTED;
		TAILQ_INSERT_TAIL(&r->domain->wanted, n, order);
	}
}

static void tell_wanted(hugepin_domain *d)
{
	struct hp_region_notes *n;

	while ((n = TAILQ_FIRST(&d->wanted))) {
		const struct hp_region *r = &hp_regions[n - hp_region_notes];

		TAILQ_REMOVE(&d->wanted, n, order);
		n->wanted = HP_WANTED_TOLD;
		n->told = made_of(r);
		n->pinned_since = false;
		tell_end(d, r, true);
	}
}

void hp_region_call_dereg(hugepin_domain *d, struct hugepin_reg *reg)
{
	int state = hp_foreign_begin();

	hp_registering = true;
	if (d->backend->dereg(d->ctx, reg) != 0)
		HP_DSTAT(d, failed, 1);
	hp_registering = false;
	hp_foreign_end(state);
	d->deregistered_at_ns = d->backend->now_ns(d->ctx);
}

/* Deregister r. gone: its memory went away, or is now part of another region. */
static void deregister(hugepin_domain *d, struct hp_region *r, bool gone)
{
	uint64_t start_ns = d->backend->now_ns(d->ctx);
	struct hp_region_notes *n = hp_region_notes_of(r);
	size_t len = r->end - r->start;
	uint32_t made;

	if (n->wanted == HP_WANTED)
		TAILQ_REMOVE(&d->wanted, n, order);
	tell_end(d, r, false);
	hp_region_call_dereg(d, &r->reg);
	made = made_of(r);
	hp_move_hits(d);
	hp_add_hits(d, made - HP_READ(r->made));
	HP_WRITE(r->made, made);
	hp_move_hits(d);
	HP_DSTAT(d, deregistered_ns, d->deregistered_at_ns - start_ns);
	HP_DSTAT(d, deregistered, 1);
	if (!r->on_demand)
		HP_DSTAT(d, pinned_bytes, -len);
	if (r->kind == HP_REGION_EXTENT) {
		HP_DSTAT(d, extents, -1);
		d->extent_bytes -= r->on_demand ? 0 : len;
	}
	d->exact_count -= hp_region_is_exact(r);
	d->rounded_bytes -= n->rounded;
	hp_probe_deregistration(d->number, r->start, len, r->kind, d->deregistered_at_ns - start_ns);
	if (hp_trace_on)
		hp_trace(HP_TRACE_DEREGISTER, d, r->start, r->end);
	if (hp_region_is_heap(r) && !r->on_demand)
		hp_heap_drop(n->held_start, n->held_end - n->held_start, d->hold);
	if (hp_is_watched(d, r->kind, r->on_demand))
		hp_uffd_unwatch(r->start, r->end);
	if (d->helper)
		hp_track_left(d, r, gone);
	hp_region_free(d, r);
	HP_DSTAT(d, regions, -1); /* not before it is free: hits_of() looks for so many */
}

void hp_region_deregister_dead(hugepin_domain *d)
{
	struct hp_region *r;

	tell_wanted(d);
	if (TAILQ_EMPTY(&d->dead))
		return;
	if (!hp_domain_may_register(d)) {
		hp_attention_raise(d, HP_TODO);
		return;
	}
	hp_attention_lower(d, HP_TODO);
	while ((r = TAILQ_FIRST(&d->dead))) {
		TAILQ_REMOVE(&d->dead, r, order);
		deregister(d, r, true);
	}
}

void hp_region_last_unpin(hugepin_domain *d, struct hp_region *r)
{
	/* Another thread may have handled the last unpin already. By now the index may belong to another region. */
	if (!hp_region_is(r, d, HP_REGION_RETIRED))
		return;
	/* The one pin of an uncached region is back. A count by another thread is no hit, and is undone. */
	if (r->kind != HP_REGION_UNCACHED || hp_region_pins(r))
		hp_counts_barrier();
	if (hp_region_pins(r))
		return;
	TAILQ_REMOVE(r->kind == HP_REGION_UNCACHED ? &d->uncached : &d->retired, r, order);
	if (!r->is_dmabuf)
		hp_region_waits_no_more(r);
	declare_dead(d, r);
	HP_DSTAT(d, retired, -1);
	lower_if_none_waits(d);
	hp_region_deregister_dead(d);
}

/* ------------------------------------------------------------------ extents of which little is pinned */

/* A hit does not note the range that it pins. But if the number of pins made equals the number noted, there was no hit.
 * `made` is read before the sum of pins, so that if the sum is 0, all pins in `made` have been given back. */
void hp_region_note(struct hp_region *r, uintptr_t start, uintptr_t end)
{
	uint32_t made = made_of(r);
	struct hp_region_notes *n = hp_region_notes_of(r);

	start &= ~(HP_PAGE - 1);
	end = hp_round_up(end, HP_PAGE);
	if (!hp_region_pins(r)) {
		n->before = made;
		n->hit = false;
		n->count = 0;
		n->start = n->end = 0;
	}
	n->hit = n->hit || made - n->before != n->count;
	n->count++;
	n->start = n->end ? HP_MIN(n->start, start) : start;
	n->end = HP_MAX(n->end, end);
}

static bool is_all_noted(const struct hp_region *r)
{
	struct hp_region_notes *n = hp_region_notes_of(r);

	n->hit = n->hit || made_of(r) - n->before != n->count;
	return n->count && !n->hit;
}

static bool is_part_idle(uintptr_t start, uintptr_t end, uint32_t ticks)
{
	return start == end || hp_heap_is_free(start, end - start, ticks);
}

bool hp_region_hold_part(hugepin_domain *d, struct hp_region *r, uint32_t ticks)
{
	struct hp_region_notes *n = hp_region_notes_of(r);

	if (r->kind != HP_REGION_EXTENT || r->on_demand || !is_all_noted(r) || n->end - n->start == r->end - r->start ||
	    !is_part_idle(r->start, n->start, ticks) || !is_part_idle(n->end, r->end, ticks))
		return false;
	hp_region_unpublish(r);
	hp_counts_barrier();
	/* The counts are no longer reliable (UINT32_MAX), or a hit came meanwhile: undo. */
	if (hp_region_pins(r) == UINT32_MAX || !is_all_noted(r)) {
		TAILQ_REMOVE(&d->unsettled, r, order);
		hp_region_publish(r, true);
		return false;
	}
	hp_region_evicted(r, HP_EVICTED_PARTLY);
	n->held_start = n->start;
	n->held_end = n->end;
	if (r->start < n->start)
		hp_heap_drop(r->start, n->start - r->start, d->hold);
	if (n->end < r->end)
		hp_heap_drop(n->end, r->end - n->end, d->hold);
	return true;
}

static void note_extent(void *any, struct hp_region *r)
{
	*(bool *)any |= r->kind == HP_REGION_EXTENT;
}

/* If an extent holds a part, the caller registers no new region for the whole extent. Otherwise several regions in turn
 * could each hold a part, and the budget would be charged the extent's whole length for each. */
bool hp_region_any_holds_part(hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	bool any = false;

	hp_region_each_waiting(d, start, end, note_extent, &any);
	return any;
}

/* ------------------------------------------------------------------ at once */

bool hp_region_release(hugepin_domain *d, struct hp_region *r, enum hp_evicted why)
{
	/* Look at the counters first, which saves most barriers. */
	if (r->state != HP_REGION_LIVE || r == d->turning || hp_region_pins(r))
		return false;
	hp_region_unpublish(r);
	hp_counts_barrier();
	TAILQ_REMOVE(&d->unsettled, r, order);
	if (hp_region_pins(r)) {
		hp_region_publish(r, true); /* a pin came meanwhile */
		return false;
	}
	hp_region_evicted(r, why);
	deregister(d, r, false);
	return true;
}
