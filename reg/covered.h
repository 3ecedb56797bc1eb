/*
 * The addresses that at least one of many ranges covers, where ranges may overlap. A tree has both ends of each range,
 * and each end has the number of ranges that cover the addresses from there to the next end. A change, and a search,
 * takes time for the ends inside its own range and for the height of the tree. Pure: takes no lock and allocates
 * nothing.
 */
#ifndef HP_REG_COVERED_H
#define HP_REG_COVERED_H

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stdint.h>

struct hp_covered_end {
	RB_ENTRY(hp_covered_end) node;
	uintptr_t addr;
	uint32_t depth; /* ranges that cover [addr, the next end's addr) */
};

/* A range. It must stay valid while it is in the tree. */
struct hp_covering {
	struct hp_covered_end start, end;
};

RB_HEAD(hp_covered, hp_covered_end);

/* Add *r, whose addresses are set and differ, or take it out. */
void hp_covered_add(struct hp_covered *c, struct hp_covering *r);
void hp_covered_drop(struct hp_covered *c, struct hp_covering *r);

/* Call each() for the parts of [start, end) that are covered, or for those that are not; neighbours may come one by
 * one. each() must not change the tree. Returns the first error. */
int hp_covered_each(struct hp_covered *c, uintptr_t start, uintptr_t end, bool covered,
		    int (*each)(uintptr_t start, uintptr_t end));

/* Whether a part of [start, end) is covered. */
bool hp_covered_any(struct hp_covered *c, uintptr_t start, uintptr_t end);

#endif
