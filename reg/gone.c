/*
 * See gone.h.
 *
 * Memory that went away is handled in three steps. First hp_gone_tell_all() queues the range in the domains that have
 * something there (stakes.h), without the domain's lock. The next thread that has the lock unpublishes the regions
 * there (hp_gone_drain()). Later hp_region_deregister_dead() tells the device.
 *
 * What is true of memory for all domains has a queue of its own, and is noted once: where pages were discarded, and
 * what is no longer watched. Each drain of a domain notes it first.
 */
#include "reg/gone.h"

#include <errno.h>

#include "base/bits.h"
#include "reg/domains.h"
#include "reg/hints.h"
#include "reg/stakes.h"
#include "reg/locks.h"
#include "reg/queue.h"
#include "reg/request.h"
#include "reg/retire.h"
#include "reg/track.h"
#include "reg/uffd.h"
#include "reg/unmapping.h"

/* Ranges for all domains, which nobody has noted yet. */
static struct {
	struct hp_lock lock; /* a queue's (queue.h) */
	struct hp_gone queue;
	bool told; /* all domains know that the queue is long */
	_Atomic bool waiting; /* ranges are queued, or are being noted */
} news = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_GONE) };

/* What was noted, while domains are open. */
static struct {
	struct hp_lock lock; /* taken with a domain's, or with none: see drain_forgotten() */
	uint64_t *discarded; /* a bit for each granule of the heap, see cover_heap() in cover.c */
	uintptr_t base; /* of the heap's span */
	size_t granules;
	struct hp_ranges late; /* foreign memory in which no region is cached */
} facts = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_FACTS) };

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

void hp_gone_tell(hugepin_domain *d, const struct hp_range *range)
{
	uint64_t mask = hp_queue_lock(d);
	unsigned dropped;

	hp_gone_push(&d->gone, *range);
	hp_attention_raise(d, HP_PENDING);
	hp_work_set(d, HP_WORK_SERVE);
	/* These hints are older than the event, so they meant the memory that is going. */
	dropped = hp_hints_drop(d, range->start, range->end);
	hp_request_cancel(d, range);
	hp_queue_unlock(d, mask);
	hp_stakes_listen(d, -(int)dropped);
}

/* What the range was is not known, but only regions in it have to go. */
void hp_gone_missed(hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	uint64_t mask = hp_queue_lock(d);

	hp_gone_push(&d->gone, (struct hp_range){ .start = start, .end = end, .discarded = true, .widened = true });
	hp_attention_raise(d, HP_PENDING);
	hp_work_set(d, HP_WORK_SERVE);
	hp_queue_unlock(d, mask);
}

static void raise_pending(hugepin_domain *d, void *unused)
{
	(void)unused;
	hp_attention_raise(d, HP_PENDING);
}

/* Queue the range for all domains, and keep it for those that are about to register there. If nobody has noted ranges
 * for long, since no pin has missed and there is no service thread, have the next pin of any domain do it. Once will do,
 * because the first pin of a domain that is opened later misses. */
static void announce(const struct hp_range *range)
{
	uint64_t mask = hp_queue_lock_any(&news.lock);
	bool many;

	hp_gone_push(&news.queue, *range);
	many = news.queue.count > HP_GONE_MAX / 2 && !news.told && !hp_service_running();
	news.told |= many;
	atomic_store_explicit(&news.waiting, true, memory_order_seq_cst); /* pairs with is_news() */
	hp_queue_unlock_any(&news.lock, mask);
	hp_stakes_note(range);
	if (many)
		hp_domains_each(raise_pending, NULL);
}

void hp_gone_tell_all(const struct hp_range *range)
{
	struct hp_stakes_walk w = { .start = range->start, .end = range->end };
	hugepin_domain *d[HP_STAKES_STEP];
	unsigned n;

	announce(range);
	while ((n = hp_stakes_next(&w, d)))
		for (unsigned i = 0; i < n; i++)
			hp_gone_tell(d[i], range);
}

/* ------------------------------------------------------------------ facts */

static size_t granule_index(uintptr_t addr)
{
	return (addr - facts.base) >> HP_PAGE_SHIFT;
}

bool hp_gone_discarded(uintptr_t start, uintptr_t end)
{
	size_t from = granule_index(start), to = granule_index(end - 1) + 1;
	bool any;

	hp_lock(&facts.lock);
	any = hp_bits_find(facts.discarded, from, to, true) != to;
	hp_unlock(&facts.lock);
	return any;
}

bool hp_gone_late(uintptr_t start, uintptr_t end)
{
	const struct hp_stretch *r;
	bool any;

	hp_lock(&facts.lock);
	r = hp_ranges_next(&facts.late, start);
	any = r && r->start < end;
	hp_unlock(&facts.lock);
	return any;
}

/* Note which granules have discarded pages, unmaps first (end_discards()). Only an unmap of a whole hugepage clears its
 * bit, because only then can other memory come to lie there. */
static void note_discarded(const struct hp_gone *queued)
{
	for (unsigned pass = 0; pass < 2; pass++)
		for (unsigned i = 0; i < queued->count; i++) {
			const struct hp_range *range = &queued->range[i];
			uintptr_t start = HP_MAX(range->start, facts.base),
				  end = HP_MIN(range->end, facts.base + (facts.granules << HP_PAGE_SHIFT));

			if (range->discarded != pass || (range->widened && !pass) || start >= end)
				continue;
			if (!pass) {
				start = hp_round_up(start, HP_PAGE);
				end &= ~(HP_PAGE - 1);
			}
			if (start < end)
				hp_bits_fill(facts.discarded, granule_index(start),
					     granule_index(end - 1) + 1 - granule_index(start), pass);
		}
}

/* Note discards of foreign memory. Since the event of a discard comes before the pages go and no other event says when
 * they have gone, a registration in between may contain pages that are going. So no region is cached there until all of
 * that memory has been unmapped. Unmaps first (end_discards()). */
static void note_late(const struct hp_gone *queued)
{
	for (unsigned i = 0; i < queued->count; i++)
		if (!queued->range[i].discarded && !queued->range[i].widened)
			hp_gone_late_off(&facts.late, queued->range[i].start, queued->range[i].end);
	for (unsigned i = 0; i < queued->count; i++)
		if (queued->range[i].late)
			hp_gone_late_on(&facts.late, queued->range[i].start, queued->range[i].end);
}

/* Call with the facts' lock. */
static void note_facts(void)
{
	struct hp_gone queued;
	uint64_t mask = hp_queue_lock_any(&news.lock);

	queued = news.queue;
	news.queue.count = 0;
	news.told = false;
	hp_queue_unlock_any(&news.lock, mask);
	for (unsigned i = 0; i < queued.count; i++) {
		const struct hp_range *range = &queued.range[i];

		/* Parts in a range that was widened may be watched still, and are forgotten. */
		if (!range->discarded)
			hp_uffd_unmapped(range->start, range->end);
		/* After the registration has ended, the unmap has to be heard all the same (note_late()). */
		if (range->late && !range->widened)
			hp_uffd_discarded(range->start, range->end);
	}
	note_discarded(&queued);
	note_late(&queued);
	mask = hp_queue_lock_any(&news.lock);
	if (!news.queue.count)
		atomic_store_explicit(&news.waiting, false, memory_order_seq_cst); /* pairs with is_news() */
	hp_queue_unlock_any(&news.lock, mask);
}

/* seq_cst: if it is lowered, the facts of all ranges up to hp_stakes_latest() are noted; pairs with announce() and
 * note_facts(). */
static bool is_news(void)
{
	return atomic_load_explicit(&news.waiting, memory_order_seq_cst);
}

void hp_gone_heed(void)
{
	if (!is_news())
		return;
	hp_lock(&facts.lock);
	note_facts();
	hp_unlock(&facts.lock);
}

static size_t bits_bytes(size_t granules)
{
	return granules / 8 + sizeof *facts.discarded;
}

/* Facts of earlier domains may be of memory that was unmapped while nobody heard of it. */
int hp_gone_open(uintptr_t base, size_t granules)
{
	int err = 0;

	hp_lock(&facts.lock);
	if (granules && !facts.discarded) {
		facts.discarded = hp_meta_map_own(bits_bytes(granules));
		facts.base = base;
		facts.granules = facts.discarded ? granules : 0;
		err = facts.discarded ? 0 : -ENOMEM;
	}
	err = err || hp_ranges_reserve(&facts.late) ? err : -ENOMEM;
	if (!err && !hp_domains_any()) {
		uint64_t mask = hp_queue_lock_any(&news.lock);

		if (facts.granules)
			hp_meta_zero(facts.discarded, bits_bytes(facts.granules));
		facts.late.count = 0;
		news.queue.count = 0;
		news.told = false;
		atomic_store_explicit(&news.waiting, false, memory_order_seq_cst); /* pairs with is_news() */
		hp_queue_unlock_any(&news.lock, mask);
	}
	hp_unlock(&facts.lock);
	return err;
}

/* There is no other thread. The kernel has emptied the bits. */
void hp_gone_child(void)
{
	hp_lock_reset(&facts.lock);
	hp_lock_reset(&news.lock);
	facts.late.count = 0;
	news.queue.count = 0;
	news.told = false;
	atomic_store_explicit(&news.waiting, false, memory_order_relaxed);
}

/* ------------------------------------------------------------------ what is queued in a domain */

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

static void drain_domain(hugepin_domain *d)
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
		if (d->helper)
			hp_track_gone(d, queued.range[i].start, queued.range[i].end);
	}
	/* Lower PENDING only after the tags are gone: a pin that does not see PENDING relies on the tags. */
	mask = hp_queue_lock(d);
	if (!d->gone.count)
		hp_attention_lower(d, HP_PENDING);
	hp_queue_unlock(d, mask);
	hp_region_settle(d);
}

/* The number first: ranges up to it have their facts queued by now. What is made ready was looked at before, so that it
 * is told of ranges that have gone since then. */
void hp_gone_drain(hugepin_domain *d)
{
	if (!d->ready)
		d->gone_seen = hp_stakes_latest();
	hp_gone_heed();
	drain_domain(d);
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

static void drain_forgotten(hugepin_domain *d, struct forgotten *f)
{
	/* this thread may be in a backend of another domain, whose lock has the same rank */
	unsigned held = hp_locks_held;

	/* If the lock is taken, its holder or the next holder drains. Do not wait for a backend's call, which may even
	 * be the caller of this function; memory in use is then not reported. */
	if (hp_lock_mine(&d->lock) || !(f->waits ? hp_domain_lock_soon(d) : hp_trylock(&d->lock))) {
		f->left = true;
		return;
	}
	/* Locks that a handler's thread holds: no holder of them waits for one of the domain's. */
	hp_locks_held &= (2u << HP_LOCK_RANK_DOMAIN) - 1;
	drain_domain(d);
	if (f->waits)
		hp_region_each_waiting(d, f->range.start, f->range.end, note_pinned, &f->in_use);
	if (!TAILQ_EMPTY(&d->dead) || !TAILQ_EMPTY(&d->wanted)) {
		hp_work_set(d, HP_WORK_SERVE);
		f->left = true;
	}
	hp_unlock(&d->lock);
	hp_locks_held = held;
}

/* Tell of a range that the program forgets, and end its watch. The kernel tells of a discard before the pages go, and
 * never that they have gone. If the program announces it, nobody else need tell, and the memory is cached again once it
 * is registered again. But where pages were discarded, the unmap has to be heard (note_late()). */
static void forget_watched(const struct hp_range *range)
{
	const bool may_note = !hp_locks_held, locked = !hp_lock_mine(&facts.lock) && hp_lock_soon(&facts.lock);
	struct hp_range part = *range;

	/* A discard whose event is read was before, but would be noted afterwards, and keep the memory uncached. */
	hp_uffd_wait();
	if (locked && may_note && is_news())
		note_facts();
	for (; part.start < range->end; part.start = part.end) {
		const struct hp_stretch *late = locked ? hp_ranges_next(&facts.late, part.start) : NULL;
		const bool is_late = late && late->start <= part.start;

		part.end = late ? HP_MIN(range->end, is_late ? late->end : late->start) : range->end;
		if (is_late || !locked)
			hp_gone_tell_all(&part);
		else
			hp_uffd_forget(&part, range, hp_gone_tell_all);
	}
	if (locked)
		hp_unlock(&facts.lock);
}

static int forget_in_all(const void *addr, size_t len, bool discarded, bool late, bool waits)
{
	struct forgotten f = { .waits = waits };
	struct hp_stakes_walk w = { 0 };
	hugepin_domain *d[HP_STAKES_STEP];
	uintptr_t end;
	unsigned n;

	if (!len || __builtin_add_overflow((uintptr_t)addr, len, &end))
		return -EINVAL;
	if (!hp_domains_any())
		return 0;
	f.range.start = (uintptr_t)addr & ~(hp_base_page - 1);
	f.range.end = HP_MAX(end, (end + hp_base_page - 1) & ~(hp_base_page - 1));
	f.range.discarded = discarded;
	f.range.late = late;
	w.start = f.range.start;
	w.end = f.range.end;
	if (waits)
		forget_watched(&f.range);
	else
		hp_gone_tell_all(&f.range);
	while ((n = hp_stakes_next(&w, d)))
		for (unsigned i = 0; i < n; i++)
			drain_forgotten(d[i], &f);
	/* Do not wait for who notes facts: a handler that interrupted that thread may wait for this one. */
	if (is_news() && !hp_locks_held && hp_trylock(&facts.lock)) {
		note_facts();
		hp_unlock(&facts.lock);
	}
	if (f.left || is_news())
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
