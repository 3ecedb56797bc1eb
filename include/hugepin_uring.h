/* hugepin with io_uring: registered ("fixed") buffers in any memory that malloc returns. The guide is
 * hugepin_uring(3). */
#ifndef HUGEPIN_URING_H
#define HUGEPIN_URING_H

#include "hugepin.h"

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

struct io_uring; /* of liburing, which only hugepin_uring_open and hugepin_uring_attach are for */

/* Open a domain that registers buffers with the ring of a descriptor, in the slots [slot0, slot0 + slots) of its buffer
 * table. flags: those that the ring was set up with (IORING_SETUP_*), because some give it an owner; and
 * HUGEPIN_URING_BY_INDEX if fd is an index of io_uring_register_ring_fd(3), which only this thread has. fd -1: a ring of
 * the library's own, which serves registrations alone, for rings that are attached to it; flags mean nothing then.
 * If the ring has no table, this registers a sparse one of that length. The table stays with the ring when the domain
 * is closed. A pin's lkey is the buffer index for io_uring_prep_read_fixed() and io_uring_prep_write_fixed(). A
 * registration has at most 1 GiB. The kernel pins for writing, so read-only memory cannot be registered. attr may be
 * NULL.
 * The domain keeps a duplicate of the descriptor. Nobody else may touch these slots: a slot that is already in use
 * looks like a free one.
 * A ring with IORING_SETUP_SINGLE_ISSUER or IORING_SETUP_DEFER_TASKRUN takes registrations only from its owner, and so
 * does one that is known by its index. Call this on the thread that owns the ring. Other threads then get hits, and
 * -EPERM for memory that is not registered. With fd -1 every thread may register, and hugepin_pin_try works.
 * -EINVAL: fd below -1, NULL, no slots, or slots beyond the table or beyond the kernel's 16384. -EPERM: another thread
 * owns the ring. -EBADF: no descriptor. -EOPNOTSUPP: no sparse tables (a kernel before 5.19), or not a ring. -ENOMEM: no
 * memory, or with fd -1 no room for a ring under RLIMIT_MEMLOCK, after 300 ms. Or as hugepin_domain_open. May block and
 * allocate. */
int hugepin_uring_open_fd(int fd, unsigned flags, unsigned slot0, unsigned slots, const struct hugepin_attr *attr,
			  hugepin_domain **ret_);
#define HUGEPIN_URING_BY_INDEX 0x80000000u

/* The same for a ring of liburing. *ring may be moved afterwards. -EINVAL, too: ring is NULL. */
int hugepin_uring_open(struct io_uring *ring, unsigned slot0, unsigned slots, const struct hugepin_attr *attr,
		       hugepin_domain **ret_);

/* A ring that is attached to a domain of io_uring. */
typedef struct hugepin_ring hugepin_ring;

/* Attach a further ring, so that the domain's indexes are valid there, too: after hugepin_ring_use. The kernel clones
 * the slots, so memory is pinned and charged once. Any number of rings may be attached.
 * The ring must have no buffer table of its own. It must have been set up with the same user and privilege as the
 * domain's. If the ring has an owner, that thread calls this, hugepin_ring_use and hugepin_ring_detach; and if the
 * domain's ring has one, the same thread.
 * -EOPNOTSUPP: the kernel cannot clone single slots (before 6.13), or not between these rings. -EBUSY: the ring has a
 * table. -EINVAL: NULL, fd below 0, or not an io_uring domain. -EBADF: no descriptor. -EPERM: another thread owns one of
 * the rings. -ENOMEM. -ESTALE: the domain is the parent process's. May block. */
int hugepin_uring_attach_fd(hugepin_domain *, int fd, unsigned flags, hugepin_ring **ret_);
int hugepin_uring_attach(hugepin_domain *, struct io_uring *ring, hugepin_ring **ret_);

/* Make the index of a pin of the domain valid in this ring: before the request that names it, while the pin is out. A
 * few instructions if it is valid already; otherwise the kernel clones the slot, and the call may wait for another
 * thread that registers. What was deregistered meanwhile is cleared in this ring. Until the last ring has done so, its
 * slot and its memory count as in use, and pins may wait up to 100 ms for that. So a thread calls this with pin NULL
 * before it sleeps, which does that alone, and when more than half of the budget or of the slots is in use also clears
 * what no pin holds. Indexes of pins that are out stay valid.
 * 0. -EINVAL: NULL, or the pin is none of the domain's. -EPERM: another thread owns the ring. -ENOMEM. -ESTALE: the
 * domain is the parent process's; only for what is not valid already. Or an error of io_uring_register(2). */
int hugepin_ring_use(hugepin_ring *, const struct hugepin_pin *pin);

/* A descriptor that is readable while the ring has something to let go of, until hugepin_ring_use is called: for a
 * thread that sleeps until then. With it, hugepin_ring_use with pin NULL keeps what is registered. It is the ring's: do
 * not read or close it. The first call makes it, the others return it. -EINVAL: NULL. -ESTALE: the domain is the parent
 * process's. -EMFILE, -ENFILE, -ENOMEM. Any thread. */
int hugepin_ring_fd(hugepin_ring *);

/* The ring is to be closed or used for something else: its buffer table is removed, and *ring freed. Requests under way
 * keep their memory. Call this before the ring is closed. hugepin_domain_close frees *ring, too; the ring then keeps its
 * table.
 * 0. -EINVAL: NULL. -EPERM: another thread owns the ring, and has not ended. -ESTALE: the domain is the parent's. */
int hugepin_ring_detach(hugepin_ring *);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
