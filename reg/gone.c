#include "reg/gone.h"

#include "base/base.h"

/* Bytes that r would grow by. */
static uintptr_t growth(const struct hp_range *r, uintptr_t start, uintptr_t end)
{
	return (start < r->start ? r->start - start : 0) + (end > r->end ? end - r->end : 0);
}

void hp_gone_push(struct hp_gone *g, struct hp_range range)
{
	struct hp_range *best = NULL;

	HP_ASSERT(range.start < range.end);
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
	best->widened |= range.widened || growth(best, range.start, range.end);
	best->start = HP_MIN(best->start, range.start);
	best->end = HP_MAX(best->end, range.end);
	best->discarded |= range.discarded;
	best->late |= range.late;
}

void hp_gone_cut(struct hp_gone *g, uintptr_t start, uintptr_t end)
{
	for (unsigned i = 0; i < g->count;) {
		struct hp_range *r = &g->range[i];

		if (start <= r->start && end > r->start)
			r->start = HP_MIN(end, r->end);
		else if (start < r->end && end >= r->end)
			r->end = start;
		if (r->start == r->end)
			*r = g->range[--g->count];
		else
			i++;
	}
}

bool hp_gone_overlaps(const struct hp_gone *g, uintptr_t start, uintptr_t end)
{
	for (unsigned i = 0; i < g->count; i++)
		if (start < g->range[i].end && end > g->range[i].start)
			return true;
	return false;
}
