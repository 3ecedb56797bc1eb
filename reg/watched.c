/* See watched.h. */
#include "reg/watched.h"

#include <string.h>

#include "reg/state.h"

enum {
	TABLE_STEP = 1 << 9, /* ranges that get memory at a time */
	TABLE_MAX = HP_REGIONS_MAX + HP_REGIONS_MAX / 8 + (int)HP_WATCHED_PARTS_MAX,
};

static int compare(const struct hp_watched_range *a, const struct hp_watched_range *b)
{
	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	return a->end < b->end ? -1 : a->end > b->end;
}

RB_GENERATE_INTERNAL(hp_watched_tree, hp_watched_range, node, compare, __attribute__((unused)) static)

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

static struct hp_watched_range *range_new(struct hp_watched *w, struct hp_watched_range value)
{
	struct hp_watched_range *r = &w->table[w->free ? w->free : w->made + 1];

	HP_ASSERT(w->free || w->made + 1 < w->opened);
	if (w->free)
		w->free = r->next;
	else
		w->made++;
	*r = value;
	return r;
}

static void range_free(struct hp_watched *w, struct hp_watched_range *r)
{
	r->next = w->free;
	w->free = (uint32_t)(r - w->table);
}

/* ------------------------------------------------------------------ uses */

static struct hp_watched_range *find_use(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_watched_range key = { .start = start, .end = end };

	return RB_FIND(hp_watched_tree, &w->uses, &key);
}

bool hp_watched_use(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_watched_range *r = find_use(w, start, end);

	if (!r) {
		if (!reserve(w))
			return false;
		r = range_new(w, (struct hp_watched_range){ .start = start, .end = end });
		r->covering.start.addr = start;
		r->covering.end.addr = end;
		RB_INSERT(hp_watched_tree, &w->uses, r);
		hp_covered_add(&w->used, &r->covering);
	}
	r->uses++;
	return true;
}

void hp_watched_end_use(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_watched_range *r = find_use(w, start, end);

	if (!r || --r->uses) /* none: it was added when nothing could be watched */
		return;
	hp_covered_drop(&w->used, &r->covering);
	RB_REMOVE(hp_watched_tree, &w->uses, r);
	range_free(w, r);
}

/* ------------------------------------------------------------------ parts */

/* The first part that ends behind addr. */
static struct hp_watched_range *first_behind(const struct hp_watched *w, uintptr_t addr)
{
	struct hp_watched_range *best = NULL;

	for (struct hp_watched_range *r = RB_ROOT(&w->parts); r;) {
		const bool left = r->end > addr;

		best = left ? r : best;
		r = left ? RB_LEFT(r, node) : RB_RIGHT(r, node);
	}
	return best;
}

bool hp_watched_overlaps(const struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	const struct hp_watched_range *r = first_behind(w, start);

	return r && r->start < end;
}

static void part_remove(struct hp_watched *w, struct hp_watched_range *r)
{
	RB_REMOVE(hp_watched_tree, &w->parts, r);
	range_free(w, r);
	w->count--;
}

static void part_new(struct hp_watched *w, uintptr_t start, uintptr_t end, bool lasts)
{
	struct hp_watched_range *r =
		range_new(w, (struct hp_watched_range){ .start = start, .end = end, .lasts = lasts });

	RB_INSERT(hp_watched_tree, &w->parts, r);
	w->count++;
}

bool hp_watched_add(struct hp_watched *w, uintptr_t start, uintptr_t end, bool lasts)
{
	struct hp_watched_range *r;

	if (!reserve(w))
		return false;
	/* The kernel joins parts that touch. */
	while ((r = first_behind(w, start - 1)) && r->start <= end) {
		start = HP_MIN(start, r->start);
		end = HP_MAX(end, r->end);
		lasts |= r->lasts;
		part_remove(w, r);
	}
	part_new(w, start, end, lasts);
	return true;
}

struct hp_stretch hp_watched_cut(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_stretch touched = { start, end };
	struct hp_watched_range *r, part;

	/* Without memory for one more range, the part behind is forgotten, and stays watched. */
	const bool room = reserve(w);

	while ((r = first_behind(w, start)) && r->start < end) {
		part = *r;
		touched.start = HP_MIN(touched.start, part.start);
		touched.end = HP_MAX(touched.end, part.end);
		part_remove(w, r);
		if (part.start < start)
			part_new(w, part.start, start, part.lasts);
		if (part.end > end && (room || part.start >= start))
			part_new(w, end, part.end, part.lasts);
	}
	return touched;
}

static bool is_idle(struct hp_watched *w, const struct hp_watched_range *part)
{
	return !part->lasts && !hp_covered_any(&w->used, part->start, part->end);
}

static bool take(struct hp_watched *w, struct hp_watched_range *part, struct hp_stretch *ret_)
{
	if (!part)
		return false;
	*ret_ = (struct hp_stretch){ part->start, part->end };
	part_remove(w, part);
	return true;
}

bool hp_watched_take_idle(struct hp_watched *w, uintptr_t start, uintptr_t end, size_t len_max, struct hp_stretch *ret_)
{
	struct hp_watched_range *r = first_behind(w, start);

	while (r && r->start < end && (r->end - r->start > len_max || !is_idle(w, r)))
		r = RB_NEXT(hp_watched_tree, &w->parts, r);
	return take(w, r && r->start < end ? r : NULL, ret_);
}

bool hp_watched_take_any(struct hp_watched *w, struct hp_stretch *ret_)
{
	return take(w, first_behind(w, 0), ret_);
}

void hp_watched_clear(struct hp_watched *w)
{
	*w = (struct hp_watched){ .table = w->table, .opened = w->opened };
}
