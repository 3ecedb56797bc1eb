/*
 * Decides whether a process touches little of its large buffers, from samples of one buffer after the other. Pure.
 *
 * A hugepage is filled with zeros as a whole, so base pages are cheaper if a program touches only a few of them. The
 * kernel cannot tell how much of a hugepage was touched, so the heap looks at a sample (sparse.h).
 */
#ifndef HP_ALLOC_TOUCHED_H
#define HP_ALLOC_TOUCHED_H

#include <stdbool.h>
#include <stdint.h>

/* The number of buffers to look at before anything is decided. */
#define HP_TOUCHED_MIN 16

struct hp_touched {
	uint32_t looked, little; /* buffers in the window, and those of them of which little was touched */
	/* How often the decision was taken back. Each time doubles the number of buffers needed for the next one. */
	uint32_t reversals;
	bool sparse; /* the decision: little is touched */
};

/* Note one more buffer. */
void hp_touched_add(struct hp_touched *t, bool little);

/* Whether most buffers so far were used well. Then it is enough to look at few. */
bool hp_touched_is_dense(const struct hp_touched *t);

#endif
