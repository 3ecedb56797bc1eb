/*
 * Rings of io_uring: how they are reached, and their tables of buffers.
 */
#ifndef HP_REG_BACKEND_RING_H
#define HP_REG_BACKEND_RING_H

#include <liburing.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/kept.h"
#include "hugepin_uring.h"

struct hp_ring {
	int number; /* the program's own: its descriptor, or the index of its registration */
	/* A duplicate of the ring's descriptor, because the program may close its own. A child of fork has it, too, so
	 * the ring and what it pins outlive the parent's until the child calls exec or ends. */
	struct hp_kept kept;
	/* Not 0: the ring is known by the index of its registration (io_uring_register_ring_fd(3)), which this thread
	 * alone has. With other threads the same index may mean a ring of theirs. */
	pid_t by;
};

/* flags: as hugepin_uring_open_fd(). 0 or -errno. */
int hp_ring_keep(int fd, unsigned flags, struct hp_ring *ret_);
void hp_ring_drop(struct hp_ring *r);

/* The descriptor or index by which this thread reaches the ring; -1: none. */
int hp_ring_number(const struct hp_ring *r);

/* io_uring_register(2). 0 or more, or -errno; -EEXIST: another thread owns the ring. */
int hp_ring_register(const struct hp_ring *r, unsigned opcode, const void *arg, unsigned count);

/* The same for a ring that is not kept. */
int hp_ring_call(int number, bool by_index, unsigned opcode, const void *arg, unsigned count);

/* Fill a slot. len 0 clears it. 0 or -errno. */
int hp_ring_set(const struct hp_ring *ring, unsigned slot, void *addr, size_t len);

/* Give a ring without a table one of `end` empty slots. 0, or -errno; -EBUSY: it has a table; -EPERM: another thread owns
 * the ring; -EOPNOTSUPP: before Linux 5.19, or no ring. */
int hp_ring_make_table(const struct hp_ring *ring, unsigned end);

/* Make sure that the ring has a table with slots up to `end`. *ret_made: the table was made now. 0 or -errno. */
int hp_ring_table(const struct hp_ring *ring, unsigned end, bool *ret_made);

/* Whether a ring of these flags is known by the index of its registration. IORING_SETUP_REGISTERED_FD_ONLY, of Linux
 * 6.5, which liburing 2.3 lacks: it never had a descriptor. */
static inline bool hp_ring_by_index(unsigned flags)
{
	return flags & (HUGEPIN_URING_BY_INDEX | 1u << 15);
}

/* Whether the kernel lets one thread alone change a ring of these flags. */
static inline bool hp_ring_has_owner(unsigned flags)
{
	return flags & (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) || hp_ring_by_index(flags);
}

/* liburing's ring as hugepin_uring_open_fd() takes it. */
static inline int hp_ring_fd(const struct io_uring *ring)
{
	return ring->ring_fd < 0 ? ring->enter_ring_fd : ring->ring_fd;
}

static inline unsigned hp_ring_flags(const struct io_uring *ring)
{
	return (ring->flags & ~HUGEPIN_URING_BY_INDEX) | (ring->ring_fd < 0 ? HUGEPIN_URING_BY_INDEX : 0);
}

#endif
