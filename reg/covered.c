/* See covered.h. */
#define RB_AUGMENT(r) update(r) /* after each rotation */
#include "reg/covered.h"

#include <stddef.h>

#include "base/base.h"

static void update(struct hp_covering *r)
{
	const struct hp_covering *left = RB_LEFT(r, node), *right = RB_RIGHT(r, node);

	r->last = HP_MAX(r->end, HP_MAX(left ? left->last : 0, right ? right->last : 0));
}

/* Equal ranges are in any order. */
static int compare(const struct hp_covering *a, const struct hp_covering *b)
{
	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	if (a->end != b->end)
		return a->end < b->end ? -1 : 1;
	return a < b ? -1 : a > b;
}

RB_GENERATE_INTERNAL(hp_covered, hp_covering, node, compare, __attribute__((unused)) static)

static void update_up_from(struct hp_covering *r)
{
	for (; r; r = RB_PARENT(r, node))
		update(r);
}

void hp_covered_add(struct hp_covered *c, struct hp_covering *r)
{
	RB_INSERT(hp_covered, c, r);
	update_up_from(r);
}

void hp_covered_drop(struct hp_covered *c, struct hp_covering *r)
{
	struct hp_covering *lowest = RB_PARENT(r, node); /* that has something else below it afterwards */

	if (RB_LEFT(r, node) && RB_RIGHT(r, node)) { /* the next one takes its place */
		struct hp_covering *next = RB_NEXT(hp_covered, , r);

		lowest = RB_PARENT(next, node) == r ? next : RB_PARENT(next, node);
	}
	RB_REMOVE(hp_covered, c, r);
	update_up_from(lowest);
}

struct hp_covering *hp_covered_find(const struct hp_covered *c, uintptr_t start, uintptr_t end)
{
	struct hp_covering *r = RB_ROOT(c);

	while (r && (r->start != start || r->end != end))
		r = start < r->start || (start == r->start && end < r->end) ? RB_LEFT(r, node) : RB_RIGHT(r, node);
	return r;
}

struct hp_covering *hp_covered_first(const struct hp_covered *c, uintptr_t start, uintptr_t end)
{
	struct hp_covering *r = RB_ROOT(c);

	while (r) {
		struct hp_covering *left = RB_LEFT(r, node);

		if (left && left->last > start)
			r = left;
		else if (r->end > start)
			break;
		else
			r = RB_RIGHT(r, node);
	}
	return r && r->start < end ? r : NULL;
}

/* The largest end of the ranges that start at addr or before. 0: there is none. */
static uintptr_t last_end(const struct hp_covered *c, uintptr_t addr)
{
	uintptr_t last = 0;

	for (const struct hp_covering *r = RB_ROOT(c), *left; r;) {
		if (r->start > addr) {
			r = RB_LEFT(r, node);
			continue;
		}
		left = RB_LEFT(r, node);
		last = HP_MAX(last, HP_MAX(r->end, left ? left->last : 0));
		r = RB_RIGHT(r, node);
	}
	return last;
}

int hp_covered_each(const struct hp_covered *c, uintptr_t start, uintptr_t end, bool covered,
		    int (*each)(uintptr_t start, uintptr_t end))
{
	int one, err = 0;

	for (uintptr_t to; start < end; start = to) {
		uintptr_t last = last_end(c, start);

		if (last > start) {
			to = HP_MIN(last, end);
		} else {
			const struct hp_covering *next = hp_covered_first(c, start, end);

			to = next ? next->start : end;
		}
		if ((last > start) == covered) {
			one = each(start, to);
			err = err ? err : one;
		}
	}
	return err;
}
