/*
 * Registrations that the program asks for: hugepin_register() and hugepin_deregister().
 *
 * If the backend can register several ranges at a time, the ranges that the pins will need are registered first, on
 * several threads (together.c), into d->ready. Then the pins are made one after the other as by hugepin_pin(), and
 * hp_region_register() takes a ready registration instead of calling the backend. So budget, eviction and every failure
 * are those of a pin. The calling thread has the domain's lock all the time, so memory that goes away meanwhile is
 * dealt with when the regions are published, as for any registration.
 */
#include <errno.h>

#include "reg/admit.h"
#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/miss.h"
#include "reg/retire.h"
#include "reg/together.h"

/* Starting a thread takes as long as registering about this many bytes. */
#define WORTH_BYTES ((uintptr_t)1 << 20)

/* A position in the pieces. */
struct walk {
	const struct iovec *v;
	int n, i; /* the number of pieces; the piece, n: behind the last */
	size_t done; /* bytes of the piece in front of the position */
};

static const char *walk_addr(const struct walk *w)
{
	return (const char *)w->v[w->i].iov_base + w->done;
}

static size_t walk_left(const struct walk *w)
{
	return w->v[w->i].iov_len - w->done;
}

static void walk_on(struct walk *w, size_t bytes)
{
	w->done += bytes;
	if (w->done < w->v[w->i].iov_len)
		return;
	w->i++;
	w->done = 0;
}

static bool is_before(const struct walk *a, const struct walk *b)
{
	return a->i < b->i || (a->i == b->i && a->done < b->done);
}

static int check_pieces(const hugepin_domain *d, const struct iovec *v, int n, unsigned access)
{
	for (int i = 0; i < n; i++) {
		int err = hp_pin_check(d, v[i].iov_base, v[i].iov_len, access);

		if (err)
			return err;
	}
	return 0;
}

/* ------------------------------------------------------------------ ahead */

/* The leading part of [addr, addr + len) for which a pin registers nothing, since it is registered or will be. 0:
 * none. */
static size_t known(hugepin_domain *d, const char *addr, size_t len, unsigned access, const struct hp_ready_set *set)
{
	const struct hp_region *r = hp_cover_find(d, (uintptr_t)addr, len, access);
	uintptr_t at = (uintptr_t)addr;

	if (r)
		return HP_MIN(len, r->end - at);
	for (unsigned i = 0; i < set->count && !hp_is_exact(d, access); i++) {
		const struct hp_ready *s = &set->list[i];

		if (s->start <= at && s->end > at && (s->cut || len <= s->end - at))
			return HP_MIN(len, s->end - at);
	}
	return 0;
}

/* Whether the set has a registration of the same range. */
static bool is_in(const struct hp_ready_set *set, const struct hp_ready *r)
{
	for (unsigned i = 0; i < set->count; i++)
		if (set->list[i].start == r->start && set->list[i].end == r->end && set->list[i].access == r->access)
			return true;
	return false;
}

/* Fill the set with the ranges that the pins from *w on are going to register. Moves *w behind the last of them. */
static void plan(hugepin_domain *d, struct walk *w, unsigned access, bool foreign, struct hp_ready_set *set)
{
	while (w->i < w->n && set->count < HP_READY_MAX) {
		const char *addr = walk_addr(w);
		size_t left = walk_left(w), part = known(d, addr, left, access, set);
		struct hp_ready *r = &set->list[set->count];

		if (!part && (foreign || hp_in_span(d, (uintptr_t)addr)) &&
		    hp_cover_foresee(d, addr, left, access, r)) {
			part = HP_MIN(left, r->end - (uintptr_t)addr);
			r->cut = part < left;
			set->count += !is_in(set, r);
		}
		walk_on(w, part ? part : left);
	}
}

/* Put the longest first. Extents double in size, so a thread that began with the longest one last would be left alone
 * with it. */
static void sort_by_length(struct hp_ready_set *set)
{
	for (unsigned i = 1; i < set->count; i++) {
		struct hp_ready r = set->list[i];
		unsigned k = i;

		for (; k && set->list[k - 1].end - set->list[k - 1].start < r.end - r.start; k--)
			set->list[k] = set->list[k - 1];
		set->list[k] = r;
	}
}

static void make_one(void *d_, unsigned i)
{
	hugepin_domain *d = d_;

	hp_region_make_ready(d, &d->ready->list[i]);
}

/* Register the set on several threads, unless so few are worth a thread that the pins register them. Hold and watch the
 * memory before, because the kernel watches under its lock of the mappings, for which it would wait until another
 * thread's pages are there. */
static void make_ready(hugepin_domain *d, unsigned threads)
{
	struct hp_ready_set *set = d->ready;
	unsigned worth = 0;

	for (unsigned i = 0; i < set->count; i++)
		worth += set->list[i].end - set->list[i].start >= WORTH_BYTES;
	threads = HP_MIN(threads, worth);
	if (threads < 2)
		set->count = 0;
	sort_by_length(set);
	for (unsigned i = 0; i < set->count; i++)
		set->list[i].err = hp_region_keep(d, &set->list[i]);
	if (set->count)
		hp_together(make_one, d, set->count, threads);
}

/* ------------------------------------------------------------------ pins */

/* Pin from *w on to `until`, and add to *pins. 0 or -errno. */
static int pin_pieces(hugepin_domain *d, struct walk *w, const struct walk *until, unsigned access, bool foreign,
		      struct hugepin_pin *ret_, int max, int *pins)
{
	while (is_before(w, until)) {
		const char *addr = walk_addr(w);
		int once = foreign || hp_in_span(d, (uintptr_t)addr) ? (int)HP_CACHED : (int)HP_ONCE_CHANGING;
		int err = -EMSGSIZE;

		if (*pins < max)
			err = hp_pin_locked(d, addr, walk_left(w), access, once, false, 0, 0, &ret_[*pins]);
		hp_pin_tell_crowded(d, addr, walk_left(w), access, err);
		if (err)
			return err;
		walk_on(w, ret_[(*pins)++].len);
	}
	return 0;
}

/* Whether memory outside the heap may be cached now, because no memory is changing. One question, about the first such
 * piece, stands for all. */
static bool is_settled(const hugepin_domain *d, const struct walk *w)
{
	for (int i = w->i; i < w->n; i++)
		if (!hp_in_span(d, (uintptr_t)w->v[i].iov_base))
			return hp_pin_settled(d, w->v[i].iov_base, w->v[i].iov_len);
	return true;
}

/* Make the next registrations, as many as may lie ready at a time, and their pins. */
static int register_some(hugepin_domain *d, struct walk *w, unsigned access, unsigned threads,
			 struct hugepin_pin *ret_, int max, int *pins)
{
	struct hp_ready_set set;
	struct walk until = *w;
	bool foreign = is_settled(d, w);
	int err;

	hp_pin_enter(d);
	set.count = 0;
	d->ready = &set;
	plan(d, &until, access & ~HP_PIN_BITS, foreign, &set);
	make_ready(d, threads);
	err = pin_pieces(d, w, &until, access, foreign, ret_, max, pins);
	d->ready = NULL;
	for (unsigned i = 0; i < set.count; i++)
		hp_region_end_ready(d, &set.list[i]);
	hp_pin_leave(d);
	return err;
}

int hugepin_register(hugepin_domain *d, const struct iovec *v, int n, unsigned access, struct hugepin_pin *ret_,
		     int max)
{
	struct walk w = { .v = v, .n = n };
	unsigned threads, wanted = hp_pin_access(d, access & ~HP_RELAXED);
	int pins = 0, err = 0;

	/* Nothing may lie ready under a helper, which has to be told of each pin, nor for uncached memory, whose pins
	 * would not find it. */
	if (n < 1 || max < n || !v || !ret_ || !d->parallel || d->helper || d->policy == HUGEPIN_POLICY_NONE ||
	    wanted & HUGEPIN_PIN_UNCACHED || (threads = hp_together_threads()) < 2)
		return hugepin_pinv(d, v, n, access, ret_, max);
	err = check_pieces(d, v, n, wanted);
	if (!err && !hp_counts_self && !hp_counts_adopt())
		err = -ENOMEM;
	while (!err && w.i < n)
		err = register_some(d, &w, wanted, threads, ret_, max, &pins);
	if (!err)
		return pins;
	hugepin_unpinv(d, ret_, pins);
	return err;
}

/* ------------------------------------------------------------------ giving back */

/* A region that one of the caller's pins is of. */
struct pinned {
	struct hp_region *r;
	uintptr_t start, end;
	unsigned access;
};
enum { PINNED_MAX = 64 };

static bool is_live_there(const hugepin_domain *d, const struct hp_region *r, const struct pinned *p)
{
	return hp_region_is(r, d, HP_REGION_LIVE) && r->start == p->start && r->end == p->end;
}

/* Deregister the listed regions that are still there and have no other pin. By now a region's index may be another
 * region's, or a helper may have registered its range in the other way. Then the region that has the range now goes, if
 * it has no pin. */
static void deregister_unpinned(hugepin_domain *d, const struct pinned *list, int n)
{
	hp_pin_enter(d);
	for (int i = 0; i < n; i++) {
		struct hp_region *r = list[i].r;

		if (!is_live_there(d, r, &list[i]))
			r = hp_cover_find(d, list[i].start, list[i].end - list[i].start, list[i].access);
		if (r && is_live_there(d, r, &list[i]) && !hp_region_pins(r)) {
			hp_region_evicted(r, HP_EVICTED_ASKED);
			hp_region_unpublish(r);
		}
	}
	hp_region_settle(d);
	hp_region_deregister_dead(d);
	hp_pin_leave(d);
}

int hugepin_deregister(hugepin_domain *d, struct hugepin_pin *pins, int n)
{
	struct pinned list[PINNED_MAX];
	int count = 0, err = 0;

	if (n < 0 || (n && !pins))
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		struct hp_region *r = &hp_regions[(uint32_t)pins[i].ref];
		bool own = !((pins[i].ref ^ d->ref) >> 32);

		if (!pins[i].ref)
			continue;
		if (own) /* while r has a pin, it keeps its range */
			list[count++] = (struct pinned){ r, r->start, r->end, r->access };
		if (hugepin_unpin(d, &pins[i]) != 0)
			err = -EINVAL;
		if (count == PINNED_MAX) {
			deregister_unpinned(d, list, count);
			count = 0;
		}
	}
	if (count)
		deregister_unpinned(d, list, count);
	return err;
}
