/* See covered.h. */
#include "reg/covered.h"

#include <stddef.h>

#include "base/base.h"

/* Ends at one address are in any order, because the depth matters only behind the last of them. */
static int compare_ends(const struct hp_covered_end *a, const struct hp_covered_end *b)
{
	if (a->addr != b->addr)
		return a->addr < b->addr ? -1 : 1;
	return a < b ? -1 : a > b;
}

RB_GENERATE_INTERNAL(hp_covered, hp_covered_end, node, compare_ends, __attribute__((unused)) static)

/* Put an end into the tree, with the depth of the end before it. */
static void insert(struct hp_covered *c, struct hp_covered_end *e)
{
	const struct hp_covered_end *before;

	RB_INSERT(hp_covered, c, e);
	before = RB_PREV(hp_covered, , e);
	e->depth = before ? before->depth : 0;
}

/* Add to the depth from r's start to its end. */
static void deepen(struct hp_covering *r, uint32_t by)
{
	for (struct hp_covered_end *e = &r->start; e != &r->end; e = RB_NEXT(hp_covered, , e))
		e->depth += by;
}

void hp_covered_add(struct hp_covered *c, struct hp_covering *r)
{
	insert(c, &r->start);
	insert(c, &r->end);
	deepen(r, 1);
}

void hp_covered_drop(struct hp_covered *c, struct hp_covering *r)
{
	deepen(r, (uint32_t)-1);
	RB_REMOVE(hp_covered, c, &r->start);
	RB_REMOVE(hp_covered, c, &r->end);
}

/* The last end at or before addr, or NULL. */
static struct hp_covered_end *last_until(struct hp_covered *c, uintptr_t addr)
{
	struct hp_covered_end *best = NULL;

	for (struct hp_covered_end *e = RB_ROOT(c); e;) {
		bool right = e->addr <= addr;

		best = right ? e : best;
		e = right ? RB_RIGHT(e, node) : RB_LEFT(e, node);
	}
	return best;
}

/* The end behind e; NULL: the first. */
static struct hp_covered_end *next_end(struct hp_covered *c, struct hp_covered_end *e)
{
	return e ? RB_NEXT(hp_covered, , e) : RB_MIN(hp_covered, c);
}

int hp_covered_each(struct hp_covered *c, uintptr_t start, uintptr_t end, bool covered,
		    int (*each)(uintptr_t start, uintptr_t end))
{
	struct hp_covered_end *e = last_until(c, start), *next;
	int one, err = 0;

	for (; start < end; e = next) {
		uintptr_t to;

		next = next_end(c, e);
		to = next ? HP_MIN(next->addr, end) : end;
		if (start < to && (e && e->depth) == covered) {
			one = each(start, to);
			err = err ? err : one;
		}
		start = HP_MAX(start, to);
	}
	return err;
}

bool hp_covered_any(struct hp_covered *c, uintptr_t start, uintptr_t end)
{
	struct hp_covered_end *e = last_until(c, start);

	/* Where no range covers the start, the next end is a range's start. */
	if (e && e->depth)
		return true;
	e = next_end(c, e);
	return e && e->addr < end;
}
