/*
 * The regions that a schedule knows, by number, and where each that is idle stands: in one of five trees, by what is
 * meant for it. A tree is ordered by time and knows the latest start of its registrations, one after another, so that
 * each is done when it is due.
 *
 * Pure, as the plan (plan.h). Regions stand in an array, from 1 up: a slot of 0 is none.
 */
#ifndef HP_REG_POLICY_TIMELINE_H
#define HP_REG_POLICY_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

enum hp_tree {
	HP_TREE_KEPT, /* registered, a next use is expected; key: when */
	HP_TREE_IDLE, /* registered, nothing is expected; key: since when */
	HP_TREE_LEAVING, /* registered, to be released */
	HP_TREE_DUE, /* not registered, to be again; key: by when */
	HP_TREE_GONE, /* not registered, nothing is expected; key: since when it is idle */
	HP_TREES,
	HP_TREE_BUSY = HP_TREES, /* in use, and in no tree */
	HP_TREE_FREE, /* no region */
};

enum { HP_PLANNED_GUESSES = 4 }; /* last guesses of a gap that are scored; and the first */

struct hp_planned_guess {
	uint64_t at_ns;
	float low;
	uint16_t class;
};

struct hp_planned {
	/* Where it stands. */
	uint32_t left, right, next_free;
	uint8_t tree;
	bool registered;
	bool released; /* by the plan, and its return is the plan's, too */
	bool failed; /* not to be asked for again before its next event */
	bool reused;
	uint64_t key; /* the tree is ordered by it */
	int64_t first_ns; /* latest start of the first registration in this subtree, */
	int64_t work_ns; /* and time that all of them take */

	uint32_t number;
	uint32_t uses; /* running now */
	uint64_t bytes;
	uint64_t idle_ns; /* since */
	uint64_t next_ns; /* next use expected, or NEVER */
	uint64_t due_ns; /* to be registered then, or NEVER */
	uint64_t register_ns, deregister_ns;
	uint32_t chain;
	uint32_t site;
	uint32_t guesses; /* of this gap */
	struct hp_planned_guess scored[1 + HP_PLANNED_GUESSES];
};

struct hp_timeline {
	struct hp_planned *regions; /* from 1 up */
	uint32_t capacity, used_up, free, known;
	uint32_t *index; /* by number, probed in line */
	uint32_t index_mask;
	uint32_t roots[HP_TREES];
	uint64_t due; /* regions that are released and to be registered again */
};

/* The region with that number; NULL: it is not known. */
struct hp_planned *hp_timeline_find(const struct hp_timeline *t, uint32_t number);

/* A region that was not known, busy, all else 0. The timeline is not full. */
struct hp_planned *hp_timeline_make(struct hp_timeline *t, uint32_t number);
bool hp_timeline_is_full(const struct hp_timeline *t);

/* x is not known any more: its slot is free after this. */
void hp_timeline_drop(struct hp_timeline *t, struct hp_planned *x);

/* A region to make room for another: first what no context expects, then what is expected last; not what waits for its
 * registration, if anything else will do. NULL: all are busy. */
struct hp_planned *hp_timeline_forgettable(const struct hp_timeline *t);

/* x stands in that tree, by that key; or in none, and is busy. */
void hp_timeline_put(struct hp_timeline *t, struct hp_planned *x, enum hp_tree tree, uint64_t key);
void hp_timeline_leave(struct hp_timeline *t, struct hp_planned *x);

/* By key, the earliest and the latest of a tree; NULL: the tree is empty. */
struct hp_planned *hp_timeline_first(const struct hp_timeline *t, enum hp_tree tree);
struct hp_planned *hp_timeline_last(const struct hp_timeline *t, enum hp_tree tree);

/* The neighbour of x in its tree, later or earlier; NULL: there is none. */
struct hp_planned *hp_timeline_neighbour(const struct hp_timeline *t, const struct hp_planned *x, bool later);

#endif
