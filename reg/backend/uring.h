/*
 * The context of a domain of io_uring: its slots, and the rings that have copies of them.
 */
#ifndef HP_REG_BACKEND_URING_H
#define HP_REG_BACKEND_URING_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/queue.h>

#include "reg/backend/backend.h"
#include "reg/backend/ring.h"

struct hp_uring_slot {
	uint32_t holders; /* the rings that have a copy */
	uint32_t region; /* if a ring has a copy: the lower half of the ref of pins */
	size_t len;
};

struct hp_uring {
	struct hp_ring ring; /* where memory is registered */
	unsigned slot0, slots;
	pid_t pid; /* of the process that opened it; in a child, the list of rings may be half changed */
	/* Until then the first registration is tried again: see uring_reg(). 0: not any more. */
	uint64_t waits_until_ns;
	pid_t owner; /* the thread that alone may register, if the ring has an owner; 0: any thread */
	LIST_HEAD(, hugepin_ring) attached;
	/* How often a slot was deregistered of which a ring had a copy. relaxed: a ring that has seen fewer looks again
	 * with the lock. */
	_Atomic uint64_t outlived_count;
	struct hp_uring_slot *slot;
	uint32_t outlived_now; /* bits that are set in `outlived` */
	size_t outlived_bytes; /* in those slots */
	/* Bit i: slot slot0 + i is deregistered, but a ring has a copy. Its bit in `used` is set, too. */
	uint64_t *outlived;
	uint64_t used[]; /* bit i: slot slot0 + i is registered, or was and has copies */
};

/* ------------------------------------------------------------------ attached.c; all but new and delete with the lock */

/* A ring that is not attached yet; NULL: no memory. */
hugepin_ring *hp_attached_new(struct hp_uring *u, hugepin_domain *d);
void hp_attached_delete(hugepin_ring *r);

/* As the public functions. */
int hp_attached_begin(hugepin_ring *r, int fd, unsigned flags);
int hp_attached_use(hugepin_ring *r, const struct hugepin_pin *pin);
int hp_attached_end(hugepin_ring *r);

/* Slot slot0 + i is deregistered while rings have copies: it is not used again before the last has cleared its own. */
void hp_attached_outlive(struct hp_uring *u, unsigned i);

/* Clear what copies of deregistered slots this thread may clear. */
void hp_attached_let_go(struct hp_uring *u);

/* Delete all attached rings, which keep their copies. */
void hp_attached_forget(struct hp_uring *u);

#endif
