/* hugepin with io_uring: registered ("fixed") buffers in any memory that malloc returns. The guide is
 * hugepin_uring(3). */
#ifndef HUGEPIN_URING_H
#define HUGEPIN_URING_H

#include "hugepin.h"

#include <liburing.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Open a domain that registers buffers with `ring`, in the slots [slot0, slot0 + slots) of its buffer table. If the
 * ring has no table, this registers a sparse one of that length. The table stays with the ring when the domain is
 * closed. A pin's lkey is the buffer index for io_uring_prep_read_fixed() and io_uring_prep_write_fixed(). A
 * registration has at most 1 GiB. The kernel pins for writing, so read-only memory cannot be registered. attr may be
 * NULL.
 * The ring must outlive the domain, which keeps a duplicate of its descriptor. Nobody else may touch these slots: a
 * slot that is already in use looks like a free one.
 * A ring with IORING_SETUP_SINGLE_ISSUER or IORING_SETUP_DEFER_TASKRUN takes registrations only from its owner, and so
 * does one whose descriptor is closed by now (io_uring_close_ring_fd(3)). Call this on the thread that owns the ring.
 * Other threads then get hits, and -EPERM for memory that is not registered.
 * -EINVAL: NULL, no slots, or slots beyond the table or beyond the kernel's 16384. -EPERM: another thread owns the
 * ring. -EOPNOTSUPP: no sparse tables (a kernel before 5.19). Or as hugepin_domain_open. May block and allocate. */
int hugepin_uring_open(struct io_uring *ring, unsigned slot0, unsigned slots, const struct hugepin_attr *attr,
		       hugepin_domain **ret_);

/* Keep the same slots of another ring equal, so that the domain's buffer indexes are valid there, too. Nothing is
 * pinned twice: the kernel clones the slots. Every later registration and deregistration is done in each attached ring.
 * A long table makes this slower. Memory is unpinned when the last ring has cleared it.
 * The ring must have no buffer table of its own. It must have been set up with the same user and privilege as the
 * domain's, and must outlive the domain.
 * -EOPNOTSUPP: the kernel cannot clone single slots (before 6.13), or not between these rings. -EBUSY: the ring has a
 * table. -EINVAL: NULL, or not an io_uring domain. -ENOSPC: 16 rings. -EPERM: not the opener of a domain that only its
 * opener may use, or the ring has an owner and the domain has none. -ENOMEM. -ESTALE: the
 * domain is the parent process's. May block. */
int hugepin_uring_attach(hugepin_domain *, struct io_uring *ring);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
