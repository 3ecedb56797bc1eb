/*
 * The regions that a schedule knows, by number. Each idle region is in one of six trees, by the plan's intention for
 * it. A tree is ordered by time, or TURN by uses, and knows when its registrations must begin at the latest, if they
 * are made one after another and each is done when it is due.
 *
 * Pure, as the plan (plan.h). Regions are in an array, in slots from 1 up; slot 0 means none.
 */
#ifndef HP_REG_POLICY_TIMELINE_H
#define HP_REG_POLICY_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

enum hp_timeline_tree {
	HP_TREE_KEPT, /* registered, a next use is expected; key: the time of that use */
	HP_TREE_IDLE, /* registered, no use is expected; key: since when it is idle */
	HP_TREE_LEAVING, /* registered, going to be released; key: since when */
	HP_TREE_DUE, /* not registered, going to be registered; key: by when */
	HP_TREE_TURN, /* not registered, going to be registered when its turn comes; key: the use at which that is */
	HP_TREE_GONE, /* not registered, no use is expected; key: since when it is idle */
	HP_TREES,
	HP_TREE_BUSY = HP_TREES, /* in use, and in no tree */
	HP_TREE_FREE, /* an unused slot */
};

enum { HP_PLANNED_GUESSES = 4 }; /* this many last guesses of each gap are scored, and the first */

struct hp_planned_guess {
	uint64_t at_ns;
	float low;
	uint16_t class;
};

struct hp_planned {
	/* The region's place in a tree. */
	uint32_t left, right, next_free;
	uint8_t tree;
	bool registered;
	bool released; /* the plan released the region, and will register it again */
	bool failed; /* a step failed: the plan does not ask again before the region's next event */
	bool reused;
	bool unforeseen; /* the plan released the region without knowing its next use */
	uint64_t key; /* orders the regions in the tree */
	int64_t first_ns; /* latest start of the first registration in this subtree */
	int64_t work_ns; /* time that all registrations in this subtree take */

	uint32_t number;
	uint32_t uses; /* uses under way */
	uint64_t bytes;
	uint64_t idle_ns; /* idle since then */
	uint64_t next_ns; /* expected next use, or NEVER */
	uint64_t due_ns; /* registered again by then, or NEVER */
	uint64_t turn; /* registered again when this use, by number, has begun, if it is of `before`; 0: by due_ns */
	uint64_t scored_turn; /* of the last guess that had one */
	uint32_t before;
	uint16_t scored_class;
	uint64_t register_ns, deregister_ns;
	uint32_t chain;
	uint32_t site;
	uint32_t guesses; /* number of guesses in this gap */
	struct hp_planned_guess scored[1 + HP_PLANNED_GUESSES];
};

struct hp_timeline {
	struct hp_planned *regions; /* from 1 up */
	uint32_t capacity, used_up, free, known;
	uint32_t *index; /* slots by number, with linear probing */
	uint32_t index_mask;
	uint32_t roots[HP_TREES];
};

/* The region with this number. NULL: it is not known. */
struct hp_planned *hp_timeline_find(const struct hp_timeline *t, uint32_t number);

/* Add a region that is not known. It is busy, and all other members are 0. The timeline must not be full. */
struct hp_planned *hp_timeline_make(struct hp_timeline *t, uint32_t number);
bool hp_timeline_is_full(const struct hp_timeline *t);

/* Remove x from the known regions. Its slot is free after this. */
void hp_timeline_drop(struct hp_timeline *t, struct hp_planned *x);

/* A region to forget to make room for another: one without an expected use, else the one expected last. A region that
 * waits for its registration comes only if there is no other. NULL: all are busy. */
struct hp_planned *hp_timeline_forgettable(const struct hp_timeline *t);

/* put() moves x to a tree, with this key. leave() takes x out of its tree and makes it busy. */
void hp_timeline_put(struct hp_timeline *t, struct hp_planned *x, enum hp_timeline_tree tree, uint64_t key);
void hp_timeline_leave(struct hp_timeline *t, struct hp_planned *x);

/* The region of a tree with the earliest and with the latest key. NULL: the tree is empty. */
struct hp_planned *hp_timeline_first(const struct hp_timeline *t, enum hp_timeline_tree tree);
struct hp_planned *hp_timeline_last(const struct hp_timeline *t, enum hp_timeline_tree tree);

/* The neighbour of x in its tree, later or earlier; NULL: there is none. */
struct hp_planned *hp_timeline_neighbour(const struct hp_timeline *t, const struct hp_planned *x, bool later);

#endif
