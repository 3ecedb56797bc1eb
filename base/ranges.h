/*
 * A set of addresses: sorted, disjoint ranges that do not touch, in table memory. Pure but for that; not locked.
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

/* Make room for two more ranges: the next change needs no more. False: no memory. */
bool hp_ranges_reserve(struct hp_ranges *r);

/* Add or take out [start, end). After hp_ranges_reserve(). */
void hp_ranges_set(struct hp_ranges *r, uintptr_t start, uintptr_t end, bool on);

/* The first range that ends behind addr, or NULL. */
const struct hp_stretch *hp_ranges_next(const struct hp_ranges *r, uintptr_t addr);

#endif
