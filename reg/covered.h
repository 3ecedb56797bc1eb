/*
 * Ranges of addresses that may overlap, in a tree by their starts. Each range knows the largest end of all ranges below
 * it, so that an addition, a removal and a search visit one path of the tree, however many ranges overlap. Pure: takes
 * no lock and allocates nothing.
 */
#ifndef HP_REG_COVERED_H
#define HP_REG_COVERED_H

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stdint.h>

/* A range. It must stay valid while it is in the tree. */
struct hp_covering {
	RB_ENTRY(hp_covering) node;
	uintptr_t start, end;
	uintptr_t last; /* the largest end of this range and those below it */
};

RB_HEAD(hp_covered, hp_covering);

/* Add *r, whose addresses are set and differ, or take it out. */
void hp_covered_add(struct hp_covered *c, struct hp_covering *r);
void hp_covered_drop(struct hp_covered *c, struct hp_covering *r);

/* A range of these addresses, or NULL. */
struct hp_covering *hp_covered_find(const struct hp_covered *c, uintptr_t start, uintptr_t end);

/* Of the ranges that overlap [start, end) the one that starts first, or NULL. */
struct hp_covering *hp_covered_first(const struct hp_covered *c, uintptr_t start, uintptr_t end);

/* Call each() for the parts of [start, end) that are covered, or for those that are not; neighbours may come one by
 * one. each() must not change the tree. Returns the first error. */
int hp_covered_each(const struct hp_covered *c, uintptr_t start, uintptr_t end, bool covered,
		    int (*each)(uintptr_t start, uintptr_t end));

#endif
