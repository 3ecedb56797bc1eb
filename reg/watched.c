/* See watched.h. */
#include "reg/watched.h"

#include <string.h>

#include "reg/state.h"

enum {
	TABLE_STEP = 1 << 9, /* ranges that get memory at a time */
	/* Each use makes two ranges at most. */
	TABLE_MAX = 2 * (HP_REGIONS_MAX + HP_REGIONS_MAX / 8) + (int)HP_WATCHED_PARTS_MAX,
};

static int compare(const struct hp_watched_range *a, const struct hp_watched_range *b)
{
	return a->start < b->start ? -1 : a->start > b->start;
}

RB_GENERATE_INTERNAL(hp_watched_tree, hp_watched_range, node, compare, __attribute__((unused)) static)

/* The first range that ends behind addr. */
static struct hp_watched_range *first_behind(const struct hp_watched_tree *tree, uintptr_t addr)
{
	struct hp_watched_range *best = NULL;

	for (struct hp_watched_range *r = RB_ROOT(tree); r;) {
		const bool left = r->end > addr;

		best = left ? r : best;
		r = left ? RB_LEFT(r, node) : RB_RIGHT(r, node);
	}
	return best;
}

static bool overlaps(const struct hp_watched_tree *tree, uintptr_t start, uintptr_t end)
{
	const struct hp_watched_range *r = first_behind(tree, start);

	return r && r->start < end;
}

/* ------------------------------------------------------------------ the table */

/* Have memory for n more ranges, so that range_new() finds it. */
static bool reserve(struct hp_watched *w, uint32_t n)
{
	if (!w->table)
		w->table = hp_meta_reserve(TABLE_MAX * sizeof *w->table);
	while (w->table && w->free_count + w->opened < w->made + 1 + n) {
		if (w->opened + TABLE_STEP > TABLE_MAX ||
		    !hp_meta_open(&w->table[w->opened], TABLE_STEP * sizeof *w->table))
			return false;
		w->opened += TABLE_STEP;
	}
	return w->table;
}

static struct hp_watched_range *range_new(struct hp_watched *w, struct hp_watched_range value)
{
	struct hp_watched_range *r = &w->table[w->free ? w->free : w->made + 1];

	HP_ASSERT(w->free || w->made + 1 < w->opened);
	if (w->free) {
		w->free = r->next;
		w->free_count--;
	} else {
		w->made++;
	}
	*r = value;
	return r;
}

static void range_free(struct hp_watched *w, struct hp_watched_range *r)
{
	r->next = w->free;
	w->free = (uint32_t)(r - w->table);
	w->free_count++;
}

/* ------------------------------------------------------------------ uses */

/* Make `at`, which is inside r, a border. */
static void split(struct hp_watched *w, struct hp_watched_range *r, uintptr_t at)
{
	struct hp_watched_range *rest = range_new(w, *r);

	r->end = at;
	r->ends = 0;
	rest->start = at;
	rest->starts = 0;
	RB_INSERT(hp_watched_tree, &w->uses, rest);
}

/* Join r and the range before it, if they touch and no use begins or ends there. */
static void join(struct hp_watched *w, struct hp_watched_range *r)
{
	struct hp_watched_range *before = r ? RB_PREV(hp_watched_tree, &w->uses, r) : NULL;

	if (!before || before->end != r->start || before->ends || r->starts)
		return;
	HP_ASSERT(before->uses == r->uses);
	before->end = r->end;
	before->ends = r->ends;
	RB_REMOVE(hp_watched_tree, &w->uses, r);
	range_free(w, r);
}

bool hp_watched_use(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_watched_range *r, *last = NULL;
	uint32_t gaps = 3; /* two borders and the gap behind the last range; and a gap before each range */

	for (r = first_behind(&w->uses, start); r && r->start < end; r = RB_NEXT(hp_watched_tree, &w->uses, r))
		gaps++;
	if (!reserve(w, gaps))
		return false;
	r = first_behind(&w->uses, start);
	if (r && r->start < start)
		split(w, r, start);
	for (uintptr_t at = start; at < end; at = last->end) {
		r = first_behind(&w->uses, at);
		if (!r || r->start > at) {
			const uintptr_t to = r ? HP_MIN(end, r->start) : end;

			r = range_new(w, (struct hp_watched_range){ .start = at, .end = to });
			RB_INSERT(hp_watched_tree, &w->uses, r);
		} else if (r->end > end) {
			split(w, r, end);
		}
		r->uses++;
		r->starts += at == start;
		last = r;
	}
	last->ends++;
	return true;
}

void hp_watched_end_use(struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	struct hp_watched_range *r = first_behind(&w->uses, start), *next;

	if (!r || r->start != start || !r->starts) /* it was added when nothing could be watched */
		return;
	r->starts--;
	for (; r && r->start < end; r = next) {
		next = RB_NEXT(hp_watched_tree, &w->uses, r);
		r->ends -= r->end == end;
		if (!--r->uses) {
			RB_REMOVE(hp_watched_tree, &w->uses, r);
			range_free(w, r);
		}
	}
	r = first_behind(&w->uses, end);
	if (r && r->start == end)
		join(w, r);
	r = first_behind(&w->uses, start);
	if (r && r->start == start)
		join(w, r);
}

/* ------------------------------------------------------------------ parts */

bool hp_watched_overlaps(const struct hp_watched *w, uintptr_t start, uintptr_t end)
{
	return overlaps(&w->parts, start, end);
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

	if (!reserve(w, 1))
		return false;
	/* The kernel joins parts that touch. */
	while ((r = first_behind(&w->parts, start - 1)) && r->start <= end) {
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
	const bool room = reserve(w, 1);

	while ((r = first_behind(&w->parts, start)) && r->start < end) {
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

static bool is_idle(const struct hp_watched *w, const struct hp_watched_range *part)
{
	return !part->lasts && !overlaps(&w->uses, part->start, part->end);
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
	struct hp_watched_range *r = first_behind(&w->parts, start);

	while (r && r->start < end && (r->end - r->start > len_max || !is_idle(w, r)))
		r = RB_NEXT(hp_watched_tree, &w->parts, r);
	return take(w, r && r->start < end ? r : NULL, ret_);
}

bool hp_watched_take_any(struct hp_watched *w, struct hp_stretch *ret_)
{
	return take(w, first_behind(&w->parts, 0), ret_);
}

void hp_watched_clear(struct hp_watched *w)
{
	*w = (struct hp_watched){ .table = w->table, .opened = w->opened };
}
