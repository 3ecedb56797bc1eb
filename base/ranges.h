/*
 * A set of addresses: sorted ranges that neither overlap nor touch, in table memory (hp_meta_map()). Otherwise pure.
 * Takes no lock.
 */
#ifndef HP_BASE_RANGES_H
#define HP_BASE_RANGES_H

#include "base/base.h"

struct hp_stretch {
	uintptr_t start, end;
};

struct hp_ranges {
	struct hp_stretch *at;
	size_t count, max;
};

/* Make room for two more ranges, which is enough for the next change. False: no memory. */
bool hp_ranges_reserve(struct hp_ranges *r);

/* Add [start, end), or take it out. Call hp_ranges_reserve() before. */
void hp_ranges_set(struct hp_ranges *r, uintptr_t start, uintptr_t end, bool on);

/* The first range that ends behind addr, or NULL. */
const struct hp_stretch *hp_ranges_next(const struct hp_ranges *r, uintptr_t addr);

#endif
