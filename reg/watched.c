/* See watched.h. */
#include "reg/watched.h"

#include <string.h>

#include "reg/state.h"

enum {
	TABLE_STEP = 1 << 9, /* ranges that get memory at a time */
	TABLE_MAX = HP_REGIONS_MAX + HP_REGIONS_MAX / 8 + (int)HP_WATCHED_PARTS_MAX,
};

/* ------------------------------------------------------------------ the table */

/* Have memory for one more range, so that range_new() finds it. */
static bool reserve(struct hp_watched *w)
{
	if (!w->table)
		w->table = hp_meta_reserve(TABLE_MAX * sizeof *w->table);
	if (!w->table)
		return false;
	if (w->free || w->made + 1 < w->opened)
		return true;
	if (w->opened + TABLE_STEP > TABLE_MAX || !hp_meta_open(&w->table[w->opened], TABLE_STEP * sizeof *w->table))
		return false;
	w->opened += TABLE_STEP;
	return true;
}

static struct hp_watched_range *range_new(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_watched_range *r = &w->table[w->free ? w->free : w->made + 1];

	HP_ASSERT(w->free || w->made + 1 < w->opened);
	if (w->free)
		w->free = r->next;
	else
		w->made++;
	*r = (struct hp_watched_range){ .range = { .start = start, .end = end } };
	return r;
}

static void range_free(struct hp_watched *w, struct hp_watched_range *r)
{
	r->next = w->free;
	w->free = (uint32_t)(r - w->table);
}

/* ------------------------------------------------------------------ uses */

/* The range that c has, or NULL. */
static struct hp_watched_range *range_of(struct hp_covering *c)
{
	return (struct hp_watched_range *)c;
}

bool hp_watched_use(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_watched_range *r = range_of(hp_covered_find(&w->uses, start, end));

	if (!r) {
		if (!reserve(w))
			return false;
		r = range_new(w, start, end);
		hp_covered_add(&w->uses, &r->range);
	}
	r->uses++;
	return true;
}

void hp_watched_end_use(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_watched_range *r = range_of(hp_covered_find(&w->uses, start, end));

	if (!r || --r->uses) /* none: it was added when nothing could be watched */
		return;
	hp_covered_drop(&w->uses, &r->range);
	range_free(w, r);
}

/* ------------------------------------------------------------------ parts */

/* The first part that overlaps [start, end), or NULL. */
static struct hp_watched_range *first_part(const struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	return range_of(hp_covered_first(&w->parts, start, end));
}

bool hp_watched_first(const struct hp_watched *w, uintptr_t start, uintptr_t end, struct hp_stretch *ret_)
{
	const struct hp_watched_range *r = first_part(w, start, end);

	if (r)
		*ret_ = (struct hp_stretch){ HP_MAX(r->range.start, start), HP_MIN(r->range.end, end) };
	return r;
}

static void part_remove(struct hp_watched *w, struct hp_watched_range *r)
{
	hp_covered_drop(&w->parts, &r->range);
	range_free(w, r);
	w->count--;
}

static void part_new(struct hp_watched *w, uintptr_t start, uintptr_t end, bool lasts)
{
	struct hp_watched_range *r = range_new(w, start, end);

	r->lasts = lasts;
	hp_covered_add(&w->parts, &r->range);
	w->count++;
}

bool hp_watched_add(struct hp_watched *w, uintptr_t start, uintptr_t end, bool lasts)
{
	struct hp_watched_range *r;

	if (!reserve(w))
		return false;
	/* The kernel joins parts that touch. */
	while ((r = first_part(w, start - 1, end + 1))) {
		start = HP_MIN(start, r->range.start);
		end = HP_MAX(end, r->range.end);
		lasts |= r->lasts;
		part_remove(w, r);
	}
	part_new(w, start, end, lasts);
	return true;
}

void hp_watched_last(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_watched_range *r = first_part(w, start, end);

	for (; r; r = first_part(w, r->range.end, end))
		r->lasts = true;
}

struct hp_stretch hp_watched_cut(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_stretch touched = { start, end };
	struct hp_watched_range *r;

	/* Without memory for one more range, the part behind is forgotten, and stays watched. */
	const bool room = reserve(w);

	while ((r = first_part(w, start, end))) {
		const uintptr_t from = r->range.start, to = r->range.end;
		const bool lasts = r->lasts;

		touched.start = HP_MIN(touched.start, from);
		touched.end = HP_MAX(touched.end, to);
		part_remove(w, r);
		if (from < start)
			part_new(w, from, start, lasts);
		if (to > end && (room || from >= start))
			part_new(w, end, to, lasts);
	}
	return touched;
}

static bool is_idle(const struct hp_watched *w, const struct hp_watched_range *part)
{
	return !part->lasts && !hp_covered_first(&w->uses, part->range.start, part->range.end);
}

static bool take(struct hp_watched *w, struct hp_watched_range *part, struct hp_stretch *ret_)
{
	if (!part)
		return false;
	*ret_ = (struct hp_stretch){ part->range.start, part->range.end };
	part_remove(w, part);
	return true;
}

bool hp_watched_take_idle(struct hp_watched *w, uintptr_t start, uintptr_t end, size_t len_max, struct hp_stretch *ret_)
{
	struct hp_watched_range *r = first_part(w, start, end);

	while (r && (r->range.end - r->range.start > len_max || !is_idle(w, r)))
		r = first_part(w, r->range.end, end);
	return take(w, r, ret_);
}

bool hp_watched_take_any(struct hp_watched *w, struct hp_stretch *ret_)
{
	return take(w, first_part(w, 0, UINTPTR_MAX), ret_);
}

/* ------------------------------------------------------------------ announcements */

void hp_watched_want(struct hp_watched *w, uintptr_t start, uintptr_t end, int thread)
{
	for (struct hp_watched_going *g = w->going; g < w->going + HP_WATCHED_GOING_MAX; g++)
		if (g->thread == thread || (g->range.start < end && g->range.end > start))
			*g = (struct hp_watched_going){ .thread = 0 };
}

void hp_watched_announce(struct hp_watched *w, uintptr_t start, uintptr_t end, int thread)
{
	unsigned i = 0;

	hp_watched_want(w, start, end, thread);
	while (i < HP_WATCHED_GOING_MAX && w->going[i].thread)
		i++;
	if (i == HP_WATCHED_GOING_MAX)
		i = w->dropped++ % HP_WATCHED_GOING_MAX;
	w->going[i] = (struct hp_watched_going){ .range = { start, end }, .thread = thread };
}

struct hp_stretch hp_watched_around(const struct hp_watched *w, uintptr_t addr, struct hp_stretch all)
{
	for (const struct hp_watched_going *g = w->going; g < w->going + HP_WATCHED_GOING_MAX; g++)
		if (g->range.end <= addr)
			all.start = HP_MAX(all.start, g->range.end);
		else
			all.end = HP_MIN(all.end, g->range.start);
	return all;
}

void hp_watched_clear(struct hp_watched *w)
{
	*w = (struct hp_watched){ .table = w->table, .opened = w->opened };
}
