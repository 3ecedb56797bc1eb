/*
 * Ranges of memory that went away, on their way from the thread that saw it to the domains. Pure: no lock, no kernel.
 */
#ifndef HP_REG_GONE_H
#define HP_REG_GONE_H

#include <stdbool.h>
#include <stdint.h>

enum { HP_GONE_MAX = 64 };

struct hp_gone {
	struct hp_range {
		uintptr_t start, end;
		bool discarded; /* announced before it happens: the mapping stays, its pages go at some time after this */
		bool late; /* the same, and nobody says when they have gone */
		bool widened; /* not all of it went away */
	} range[HP_GONE_MAX];
	unsigned count;
};

/* Record a range. Cannot fail: when the queue is full the one nearest to it is widened, since deregistering too much costs
 * time, and too little corrupts data. */
void hp_gone_push(struct hp_gone *g, struct hp_range range);

/* Take [start, end) out again: of a range around it, nothing. */
void hp_gone_cut(struct hp_gone *g, uintptr_t start, uintptr_t end);

bool hp_gone_overlaps(const struct hp_gone *g, uintptr_t start, uintptr_t end);

#endif
