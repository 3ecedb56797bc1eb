/*
 * The memory outside the heap that the kernel watches. Pure: no lock, no kernel.
 *
 * A use is a range that a registration needs to be watched; several registrations may use the same memory. A part is a
 * range that was given to the kernel, which is a whole mapping where possible, and so larger than the uses in it. A
 * part without any use is idle, unless it lasts until it is unmapped, and the caller may take it back. Each call takes
 * time by the logarithm of the number of ranges, and by the number of parts that it touches.
 *
 * A thread announces a range that it is about to discard. Until the discard is over, no part for a neighbour may take
 * the range in. Nobody tells of its end. So a range counts until its thread announces the next one or has other memory
 * watched, or until any thread uses the range.
 */
#ifndef HP_REG_WATCHED_H
#define HP_REG_WATCHED_H

#include "base/ranges.h"
#include "reg/covered.h"

#define HP_WATCHED_PARTS_MAX ((size_t)1 << 16)

/* A use, or a part. */
struct hp_watched_range {
	struct hp_covering range; /* must be first */
	uint32_t uses; /* equal ones; 0: a part */
	bool lasts; /* of a part */
	uint32_t next; /* the next free one */
};

/* The announcements that count, at most one of each thread. Seldom are more threads between the two calls. */
enum { HP_WATCHED_GOING_MAX = 64 };
struct hp_watched_going {
	struct hp_stretch range;
	int thread; /* 0: none, and the range is empty */
};

struct hp_watched {
	struct hp_covered uses, parts; /* parts are apart from each other */
	size_t count; /* of parts */
	struct hp_watched_range *table; /* from number 1 up */
	/* Numbers up to `made` were in use; numbers below `opened` have memory; the first free one. */
	uint32_t made, opened, free;
	struct hp_watched_going going[HP_WATCHED_GOING_MAX];
	unsigned dropped; /* announcements that gave way to later ones; wraps */
};

/* Add a use, or end one that was added. False: no memory, and nothing has changed. */
bool hp_watched_use(struct hp_watched *w, uintptr_t start, uintptr_t end);
void hp_watched_end_use(struct hp_watched *w, uintptr_t start, uintptr_t end);

/* The first of the memory in [start, end) that is in a part. False: there is none. */
bool hp_watched_first(const struct hp_watched *w, uintptr_t start, uintptr_t end, struct hp_stretch *ret_);

/* Add a part, which joins those that it overlaps or touches. False: no memory, and nothing has changed. */
bool hp_watched_add(struct hp_watched *w, uintptr_t start, uintptr_t end, bool lasts);

/* The parts that overlap [start, end) last. */
void hp_watched_last(struct hp_watched *w, uintptr_t start, uintptr_t end);

/* Memory is watched no more, because it was unmapped or forgotten. Returns the range of all parts that lost some of it,
 * with what they lost. */
struct hp_stretch hp_watched_cut(struct hp_watched *w, uintptr_t start, uintptr_t end);

/* Take out the first idle part of len_max bytes at most that overlaps [start, end); or any part. False: there is
 * none. */
bool hp_watched_take_idle(struct hp_watched *w, uintptr_t start, uintptr_t end, size_t len_max,
			  struct hp_stretch *ret_);
bool hp_watched_take_any(struct hp_watched *w, struct hp_stretch *ret_);

/* The thread announces that it is about to discard [start, end). */
void hp_watched_announce(struct hp_watched *w, uintptr_t start, uintptr_t end, int thread);

/* The thread wants [start, end), so no announcement counts that overlaps it or is of this thread. */
void hp_watched_want(struct hp_watched *w, uintptr_t start, uintptr_t end, int thread);

/* What of `all` lies around addr up to the next announced ranges. addr is in none of them. */
struct hp_stretch hp_watched_around(const struct hp_watched *w, uintptr_t addr, struct hp_stretch all);

/* In the child of fork: nothing is watched. */
void hp_watched_clear(struct hp_watched *w);

#endif
