/*
 * Which domains have something in a range of memory: registrations, ranges that a helper may register again, hints and
 * requests. Who tells of memory that goes away asks here, so that its work does not grow with the domains that have
 * nothing there. Functions take the index's lock, which is a queue's (queue.h).
 *
 * A domain looks whether it may register memory before it has an entry there, and ranges may go away in between. So the
 * last ranges are kept, and hp_stakes_add() says whether the domain has to be told of one.
 */
#ifndef HP_REG_STAKES_H
#define HP_REG_STAKES_H

#include "reg/state.h"

/* Add an entry of d for [start, end), before its memory is held, watched and registered. True: memory there went away
 * since d->gone_seen. Call with d's lock. remove() may be called for an entry that is not there, and for one of the
 * parent process. */
bool hp_stakes_add(struct hp_stake *h, hugepin_domain *d, uintptr_t start, uintptr_t end);
void hp_stakes_remove(struct hp_stake *h);

/* d has more hints and requests than before, or fewer: while it has any, it is asked for all memory. */
void hp_stakes_listen(hugepin_domain *d, int more);

/* d, which is being opened or was closed, has none. */
void hp_stakes_forget(hugepin_domain *d);

/* Keep a range that goes away. latest() is the number of such ranges so far. */
void hp_stakes_note(const struct hp_range *range);
uint64_t hp_stakes_latest(void);

/* Find the domains with an entry that overlaps a range, some at a time, most of them once. */
enum { HP_STAKES_STEP = 64 };
struct hp_stakes_walk {
	uintptr_t start, end;
	uint64_t number; /* of this walk; 0: it has not begun */
	unsigned class; /* where to go on: the class, and the first entry there */
	struct hp_stake from;
};
unsigned hp_stakes_next(struct hp_stakes_walk *w, hugepin_domain *ret_[HP_STAKES_STEP]);

/* Called in the child of fork, where no domain of the parent has anything. */
void hp_stakes_child(void);

/* The entries that hp_stakes_next() has looked at so far: for tests. */
extern uint64_t hp_stakes_looks;

#endif
