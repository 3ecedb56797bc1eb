/* See ranges.h. */
#include "base/ranges.h"

#include <string.h>

bool hp_ranges_reserve(struct hp_ranges *r)
{
	size_t max = r->max ? 2 * r->max : 4096 / sizeof *r->at;
	struct hp_stretch *more;

	if (r->count + 2 <= r->max)
		return true;
	more = hp_meta_map(max * sizeof *more);
	if (!more)
		return false;
	if (r->count)
		memcpy(more, r->at, r->count * sizeof *more);
	hp_meta_unmap(r->at, r->max * sizeof *more);
	r->at = more;
	r->max = max;
	return true;
}

/* The first range that ends at or behind addr. */
static size_t find_range(const struct hp_ranges *r, uintptr_t addr)
{
	size_t low = 0, high = r->count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (r->at[mid].end < addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

const struct hp_stretch *hp_ranges_next(const struct hp_ranges *r, uintptr_t addr)
{
	size_t i = find_range(r, addr + 1);

	return i < r->count ? &r->at[i] : NULL;
}

/* Put n ranges in the place of [first, last). */
static void replace_ranges(struct hp_ranges *r, size_t first, size_t last, const struct hp_stretch *with, size_t n)
{
	memmove(&r->at[first + n], &r->at[last], (r->count - last) * sizeof *r->at);
	memcpy(&r->at[first], with, n * sizeof *with);
	r->count += n - (last - first);
}

void hp_ranges_set(struct hp_ranges *r, uintptr_t start, uintptr_t end, bool on)
{
	struct hp_stretch with[2];
	size_t first, last, n = 0;

	if (start >= end)
		return;
	/* [first, last) are the ranges that [start, end) touches or overlaps. */
	first = last = find_range(r, start);
	while (last < r->count && r->at[last].start <= end)
		last++;
	if (on) {
		with[n++] = (struct hp_stretch){ first < last ? HP_MIN(start, r->at[first].start) : start,
					       first < last ? HP_MAX(end, r->at[last - 1].end) : end };
	} else {
		if (first < last && r->at[first].start < start)
			with[n++] = (struct hp_stretch){ r->at[first].start, start };
		if (first < last && r->at[last - 1].end > end)
			with[n++] = (struct hp_stretch){ HP_MAX(end, r->at[last - 1].start), r->at[last - 1].end };
	}
	replace_ranges(r, first, last, with, n);
}
