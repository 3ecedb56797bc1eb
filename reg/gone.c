/*
 * See gone.h.
 *
 * Memory that went away is handled in three steps. First hp_gone_tell() queues the range in every domain, without the
 * domain's lock. The next thread that has the lock unpublishes the regions there (hp_gone_drain()). Later
 * hp_region_deregister_dead() tells the device.
 */
#include "reg/gone.h"

#include <errno.h>

#include "base/bits.h"
#include "reg/domains.h"
#include "reg/hints.h"
#include "reg/locks.h"
#include "reg/queue.h"
#include "reg/request.h"
#include "reg/retire.h"
#include "reg/track.h"
#include "reg/uffd.h"
#include "reg/unmapping.h"

/* ------------------------------------------------------------------ sets of ranges */

/* The number of bytes by which r would grow to cover [start, end). */
static uintptr_t growth(const struct hp_range *r, uintptr_t start, uintptr_t end)
{
	return (start < r->start ? r->start - start : 0) + (end > r->end ? end - r->end : 0);
}

/* Take an unmapped range out of the discards in the set, because what was discarded there has gone by now. So whoever
 * applies all unmaps of the set before all discards applies them in the order in which they came. */
static void end_discards(struct hp_gone *g, uintptr_t start, uintptr_t end)
{
	for (unsigned i = 0; i < g->count;) {
		struct hp_range *r = &g->range[i];
		const bool left = r->start < start, right = r->end > end;

		if (!r->discarded || start >= r->end || end <= r->start || (left && right && g->count == HP_GONE_MAX)) {
			i++;
		} else if (!left && !right) {
			*r = g->range[--g->count];
		} else {
			if (left && right) {
				g->range[g->count] = *r;
				g->range[g->count++].start = end;
			}
			*(left ? &r->end : &r->start) = left ? start : end;
			i++;
		}
	}
}

void hp_gone_push(struct hp_gone *g, struct hp_range range)
{
	struct hp_range *best = NULL;

	HP_ASSERT(range.start < range.end);
	if (!range.discarded && !range.widened)
		end_discards(g, range.start, range.end);
	for (unsigned i = 0; i < g->count; i++) {
		struct hp_range *r = &g->range[i];

		if (!best || growth(r, range.start, range.end) < growth(best, range.start, range.end))
			best = r;
	}
	if (g->count < HP_GONE_MAX &&
	    (!best || growth(best, range.start, range.end) || best->discarded != range.discarded)) {
		g->range[g->count++] = range;
		return;
	}
	best->widened |= range.widened || best->late != range.late || growth(best, range.start, range.end);
	best->start = HP_MIN(best->start, range.start);
	best->end = HP_MAX(best->end, range.end);
	best->discarded |= range.discarded;
	best->late |= range.late;
}

/* Whether the set has room for one more range. */
static bool late_has_room(struct hp_ranges *late)
{
	return late->count < HP_LATE_MAX && hp_ranges_reserve(late);
}

void hp_gone_late_on(struct hp_ranges *late, uintptr_t start, uintptr_t end)
{
	if (!late_has_room(late)) { /* widen the range until it touches the nearest one */
		const struct hp_stretch *next = hp_ranges_next(late, start);
		const size_t i = next ? (size_t)(next - late->at) : late->count;

		if (i && (!next || start - late->at[i - 1].end < next->start - HP_MIN(next->start, end)))
			start = late->at[i - 1].end;
		else
			end = HP_MAX(end, next->start);
	}
	hp_ranges_set(late, start, end, true);
}

void hp_gone_late_off(struct hp_ranges *late, uintptr_t start, uintptr_t end)
{
	const struct hp_stretch *first = hp_ranges_next(late, start);
	const bool middle = first && first->start < start && first->end > end;

	if (!middle || late_has_room(late))
		hp_ranges_set(late, start, end, false);
}

/* ------------------------------------------------------------------ queueing */

void hp_gone_tell(hugepin_domain *d, void *range_)
{
	const struct hp_range *range = range_;
	uint64_t mask = hp_queue_lock(d);

	hp_gone_push(&d->gone, *range);
	hp_attention_raise(d, HP_PENDING);
	/* These hints are older than the event, so they meant the memory that is going. */
	hp_hints_drop(d, range->start, range->end);
	hp_request_cancel(d, range->start, range->end);
	hp_queue_unlock(d, mask);
}

/* ------------------------------------------------------------------ what is queued */

static size_t granule_index(const hugepin_domain *d, uintptr_t addr)
{
	return (addr - d->span_base) >> HP_PAGE_SHIFT;
}

bool hp_gone_discarded(const hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	size_t from = granule_index(d, start), to = granule_index(d, end - 1) + 1;

	return hp_bits_find(d->discarded, from, to, true) != to;
}

bool hp_gone_late(const hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	const struct hp_stretch *r = hp_ranges_next(&d->late_gone, start);

	return r && r->start < end;
}

/* Note which granules have discarded pages, unmaps first (end_discards()). Only an unmap of a whole hugepage clears its
 * bit, because only then can other memory come to lie there. */
static void note_discarded(hugepin_domain *d, const struct hp_gone *queued)
{
	for (unsigned pass = 0; pass < 2; pass++)
		for (unsigned i = 0; i < queued->count; i++) {
			const struct hp_range *range = &queued->range[i];
			uintptr_t start = HP_MAX(range->start, d->span_base),
				  end = HP_MIN(range->end, d->span_base + d->span_size);

			if (range->discarded != pass || (range->widened && !pass) || start >= end)
				continue;
			if (!pass) {
				start = hp_round_up(start, HP_PAGE);
				end &= ~(HP_PAGE - 1);
			}
			if (start < end)
				hp_bits_fill(d->discarded, granule_index(d, start),
					     granule_index(d, end - 1) + 1 - granule_index(d, start), pass);
		}
}

/* Note discards of foreign memory. Since the event of a discard comes before the pages go and no other event says when
 * they have gone, a registration in between may contain pages that are going. So no region is cached there until all of
 * that memory has been unmapped. Unmaps first (end_discards()). */
static void note_late(hugepin_domain *d, const struct hp_gone *queued)
{
	for (unsigned i = 0; i < queued->count; i++)
		if (!queued->range[i].discarded && !queued->range[i].widened)
			hp_gone_late_off(&d->late_gone, queued->range[i].start, queued->range[i].end);
	for (unsigned i = 0; i < queued->count; i++)
		if (queued->range[i].late)
			hp_gone_late_on(&d->late_gone, queued->range[i].start, queued->range[i].end);
}

/* hugepin_forget() queues a range as a discard, too, but its pages do not go later. */
static enum hp_gone_reason reason_of(const struct hp_range *range)
{
	return range->widened	   ? HP_GONE_WIDENED
	       : !range->discarded ? HP_GONE_UNMAPPED
	       : range->late	   ? HP_GONE_DISCARDED
				   : HP_GONE_FORGOTTEN;
}

static void take_out(void *range_, struct hp_region *r)
{
	const struct hp_range *range = range_;

	/* After a discard the mapping stays and the device follows it, so a region on demand stays right. Pins keep the
	 * key for which the next hints bring memory in. */
	if (r->on_demand && range->late && !range->widened)
		return;
	if (r->tag) { /* otherwise an earlier range of the same batch has taken it out */
		HP_DSTAT(r->domain, invalidated, 1);
		hp_probe_invalidation(r->domain->number, r->start, r->end - r->start, reason_of(range), range->start,
				      range->end - range->start);
	}
	hp_region_unpublish(r);
}

/* Ask for the pins of regions that serve one pin only, which end with that pin. */
static void want_uncached(void *unused, struct hp_region *r)
{
	(void)unused;
	if (r->kind == HP_REGION_UNCACHED)
		hp_region_want_pins(r, true);
}

void hp_gone_drain(hugepin_domain *d)
{
	struct hp_gone queued;
	uint64_t mask;

	if (!hp_attention_is(d, HP_PENDING))
		return;
	mask = hp_queue_lock(d);
	queued = d->gone;
	d->gone.count = 0;
	hp_queue_unlock(d, mask);
	for (unsigned i = 0; i < queued.count; i++) {
		hp_region_each(d, queued.range[i].start, queued.range[i].end, take_out, &queued.range[i]);
		hp_region_each_exact(d, queued.range[i].start, queued.range[i].end, take_out, &queued.range[i]);
		hp_region_each_waiting(d, queued.range[i].start, queued.range[i].end, want_uncached, NULL);
		/* Parts in a range that was widened may be watched still, and are forgotten. */
		if (d->watched && !queued.range[i].discarded)
			hp_uffd_unmapped(queued.range[i].start, queued.range[i].end);
		/* After the registration has ended, the unmap has to be heard all the same (note_late()). */
		if (d->watched && queued.range[i].late && !queued.range[i].widened)
			hp_uffd_discarded(queued.range[i].start, queued.range[i].end);
		if (d->helper)
			hp_track_gone(d, queued.range[i].start, queued.range[i].end);
	}
	note_discarded(d, &queued);
	note_late(d, &queued);
	/* Lower PENDING only after the tags are gone: a pin that does not see PENDING relies on the tags. */
	mask = hp_queue_lock(d);
	if (!d->gone.count)
		hp_attention_lower(d, HP_PENDING);
	hp_queue_unlock(d, mask);
	hp_region_settle(d);
}

/* ------------------------------------------------------------------ announcements */

struct forgotten {
	struct hp_range range;
	bool waits; /* wait for the domain's lock, to find out whether memory in the range is pinned */
	bool in_use;
	bool left; /* the service thread has work left to do */
};

/* The service thread may have drained the range before the thread that announced it. */
static void note_pinned(void *in_use, struct hp_region *r)
{
	*(bool *)in_use |= hp_region_pins(r) != 0;
}

static void forget(hugepin_domain *d, void *forgotten)
{
	struct forgotten *f = forgotten;
	/* this thread may be in a backend of another domain, whose lock has the same rank */
	unsigned held = hp_locks_held;

	hp_gone_tell(d, &f->range);
	/* If the lock is taken, its holder or the next holder drains. Do not wait for a backend's call, which may even
	 * be the caller of this function; memory in use is then not reported. */
	if (hp_lock_mine(&d->lock) || !(f->waits ? hp_domain_lock_soon(d) : hp_trylock(&d->lock))) {
		f->left = true;
		return;
	}
	/* Locks that a handler's thread holds: no holder of them waits for one of the domain's. */
	hp_locks_held &= (2u << HP_LOCK_RANK_DOMAIN) - 1;
	hp_gone_drain(d);
	if (f->waits)
		hp_region_each_waiting(d, f->range.start, f->range.end, note_pinned, &f->in_use);
	f->left |= !TAILQ_EMPTY(&d->dead) || !TAILQ_EMPTY(&d->wanted);
	hp_unlock(&d->lock);
	hp_locks_held = held;
}

static int forget_in_all(const void *addr, size_t len, bool discarded, bool late, bool waits)
{
	struct forgotten f = { .waits = waits };
	uintptr_t end;

	if (!len || __builtin_add_overflow((uintptr_t)addr, len, &end))
		return -EINVAL;
	if (!hp_domains_any())
		return 0;
	f.range.start = (uintptr_t)addr & ~(hp_base_page - 1);
	f.range.end = HP_MAX(end, (end + hp_base_page - 1) & ~(hp_base_page - 1));
	f.range.discarded = discarded;
	f.range.late = late;
	hp_domains_each(forget, &f);
	if (f.left)
		hp_domains_wake();
	return f.in_use ? -EBUSY : 0;
}

int hugepin_forget(const void *addr, size_t len)
{
	return forget_in_all(addr, len, true, false, true);
}

void hugepin_unmapping_(const void *addr, size_t len, enum hp_unmapping how)
{
	HP_SET_FLAG(hp_sees_unmaps);
	if (how == HP_UNMAPPED)
		hp_locks_unmapping(addr, len);
	/* If the kernel's events are read, the kernel tells of discarded pages in time. */
	if (hp_domains_any() && !(how == HP_DISCARDED && hp_uffd_works()))
		forget_in_all(addr, len, how != HP_UNMAPPED, how != HP_UNMAPPED, false);
}

int hugepin_registering(void)
{
	return hp_registering;
}
