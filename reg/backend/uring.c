/*
 * The io_uring backend. A registration is a slot in a ring's table of fixed buffers, and its key is the slot's index.
 *
 * Slots are filled and cleared one at a time, by IORING_REGISTER_BUFFERS_UPDATE without tags, because a tag would post
 * completions on a ring that belongs to the program. A request in flight keeps the pages of its slot. A request with a
 * cleared index, or with an address outside the slot, gets -EFAULT, and never reaches another page.
 *
 * Attached rings get copies of the slots (IORING_REGISTER_CLONE_BUFFERS), which share the pages, so these are charged
 * once. The kernel builds the whole table anew for each cloned slot, so the time grows with the table.
 *
 * Threads: all functions run with the lock of their domain held, which guards struct hp_uring.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/base.h"
#include "base/bits.h"
#include "base/kept.h"
#include "base/memlock.h"
#include "base/sys.h"
#include "hugepin_uring.h"
#include "reg/backend/backend.h"
#include "reg/domain.h"

/* These came with Linux 6.13. liburing 2.3 lacks them. */
#define REGISTER_CLONE_BUFFERS 30
#define CLONE_BY_INDEX 1u /* IORING_REGISTER_SRC_REGISTERED */
#define CLONE_INTO_TABLE 2u /* IORING_REGISTER_DST_REPLACE */
struct clone_buffers {
	uint32_t src_fd, flags, src_off, dst_off, nr, pad[3];
};

enum { SLOTS_MAX = 16384, ATTACHED_MAX = 16 };
#define LEN_MAX ((size_t)1 << 30)

struct ring {
	struct io_uring *ring;
	/* A duplicate of the ring's descriptor, because the program may close its own. A child of fork has it, too, so
	 * the ring and what it pins outlive the parent's until the child closes the domain, calls exec or ends. */
	struct hp_kept kept;
	/* Not 0: the program had closed the descriptor before. Then only this thread reaches the ring, by the index of
	 * its registration (io_uring_register_ring_fd(3)), so the ring has an owner. With other threads the same index
	 * may mean a ring of theirs. */
	pid_t by;
};

struct hp_uring {
	struct ring rings[1 + ATTACHED_MAX]; /* rings[0] is the domain's own */
	unsigned rings_count;
	unsigned slot0, slots;
	pid_t owner; /* the thread that alone may register, if a ring has an owner; 0: any thread */
	uint64_t used[]; /* bit i: slot slot0 + i is registered */
};

/* 0 or -errno. */
static int ring_keep(struct io_uring *ring, struct ring *ret_)
{
	int fd;

	ret_->ring = ring;
	ret_->by = ring->ring_fd < 0 ? hp_tid() : 0;
	if (ret_->by)
		return 0;
	fd = (int)hp_sys(SYS_fcntl, ring->ring_fd, F_DUPFD_CLOEXEC, 0);
	return hp_kept_set_or_close(&ret_->kept, fd) ? 0 : fd < 0 ? fd : -EBADF;
}

static void ring_drop(struct ring *r)
{
	if (!r->by)
		hp_kept_close(&r->kept);
}

/* The program may have closed our descriptor, too, with all that it does not know. Another ring may have its number by
 * now. */
static int ring_number(const struct ring *r)
{
	if (r->by)
		return r->ring->enter_ring_fd;
	if (hp_kept_is_there(&r->kept))
		return hp_kept_fd(&r->kept);
	return hp_kept_is(&r->kept, r->ring->ring_fd) ? r->ring->ring_fd : -1;
}

/* io_uring_register(2), called directly because with liburing's functions every process under libhugepin-malloc.so
 * would load that library. 0 or more, or -errno. */
static int call_register(int number, bool by_index, unsigned opcode, const void *arg, unsigned count)
{
	const unsigned flag = by_index ? 1u << 31 : 0; /* IORING_REGISTER_USE_REGISTERED_RING, of Linux 6.3 */

	return (int)hp_sys(SYS_io_uring_register, number, opcode | flag, arg, count);
}

static int ring_register(const struct ring *r, unsigned opcode, const void *arg, unsigned count)
{
	if (r->by && r->by != hp_tid())
		return -EEXIST; /* as the kernel says of a ring with an owner */
	return call_register(ring_number(r), r->by, opcode, arg, count);
}

static bool has_owner(const struct io_uring *ring)
{
	return ring->ring_fd < 0 || ring->flags & (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
}

static int slot_update(const struct ring *ring, unsigned slot, const struct iovec *iov)
{
	struct io_uring_rsrc_update2 u = { .offset = slot, .data = (uintptr_t)iov, .nr = 1 };

	return ring_register(ring, IORING_REGISTER_BUFFERS_UPDATE, &u, sizeof u);
}

/* len 0 clears the slot. */
static int slot_set(const struct ring *ring, unsigned slot, void *addr, size_t len)
{
	struct iovec iov = { addr, len };
	int err = slot_update(ring, slot, &iov);

	return err < 0 ? err : 0;
}

/* Clear a slot in the first n rings. Tries all rings, and returns the first error. */
static int slot_clear(struct hp_uring *u, unsigned slot, unsigned n)
{
	int err = 0;

	for (unsigned i = 0; i < n; i++) {
		int one = slot_set(&u->rings[i], slot, NULL, 0);

		if (one < 0 && !err)
			err = one;
	}
	return err;
}

/* Clone `count` slots, from `slot` on, of the first ring into the same slots of ring `to`. */
static int slots_clone(struct hp_uring *u, const struct ring *to, unsigned slot, unsigned count, unsigned flags)
{
	struct clone_buffers c = {
		.src_fd = (uint32_t)ring_number(&u->rings[0]),
		.flags = flags | (u->rings[0].by ? CLONE_BY_INDEX : 0),
		.src_off = slot,
		.dst_off = slot,
		.nr = count,
	};

	return ring_register(to, REGISTER_CLONE_BUFFERS, &c, 1);
}

static int uring_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	struct hp_uring *u = ctx;
	size_t i = hp_bits_find(u->used, 0, u->slots, false);
	unsigned slot = u->slot0 + (unsigned)i;
	int err;

	(void)access; /* the kernel always pins for writing */
	if (i == u->slots)
		return -ENOMEM;
	err = slot_set(&u->rings[0], slot, addr, len);
	if (err < 0)
		return err;
	for (unsigned n = 1; n < u->rings_count; n++) {
		err = slots_clone(u, &u->rings[n], slot, 1, CLONE_INTO_TABLE);
		if (err < 0) {
			slot_clear(u, slot, n);
			return err;
		}
	}
	hp_bit_set(u->used, i);
	*ret_ = (struct hugepin_reg){ .lkey = slot };
	return 0;
}

/* Clear the slot in all rings. A slot that could not be cleared may be reused, because filling it drops its old
 * pages. */
static int uring_dereg(void *ctx, struct hugepin_reg *reg)
{
	struct hp_uring *u = ctx;

	hp_bit_clear(u->used, reg->lkey - u->slot0);
	return slot_clear(u, reg->lkey, u->rings_count);
}

/* Whether the kernel may unpin a cleared slot late. Up to 6.3 unpinning is deferred work, which waits a second. Up to
 * 6.12 it also waits for older requests on any slot of the ring; from 6.13 on each slot counts its own requests. */
static bool kernel_unpins_late(void)
{
	struct utsname name;
	unsigned long major, minor = 0;
	char *end;

	if (uname(&name) < 0)
		return true;
	major = strtoul(name.release, &end, 10);
	if (*end == '.')
		minor = strtoul(end + 1, NULL, 10);
	return major < 6 || (major == 6 && minor < 13);
}

static int uring_limits(void *ctx, struct hugepin_limits *ret_)
{
	struct hp_uring *u = ctx;

	*ret_ = (struct hugepin_limits){
		.len_max = LEN_MAX,
		.bytes_max = hp_memlock_max(HP_MEMLOCK_LOCK),
		.regs_max = u->slots,
		.access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_RELAXED,
		.flags = HUGEPIN_LIMIT_BOTH | (u->owner ? HUGEPIN_LIMIT_OPENER : 0u) |
			 (kernel_unpins_late() ? HUGEPIN_LIMIT_LATE : 0u),
	};
	return 0;
}

static void uring_close(void *ctx)
{
	struct hp_uring *u = ctx;

	for (unsigned n = 0; n < u->rings_count; n++)
		ring_drop(&u->rings[n]);
	free(u);
}

const struct hugepin_backend hp_uring_backend = {
	.size = sizeof(struct hugepin_backend),
	.name = "io_uring",
	.reg = uring_reg,
	.dereg = uring_dereg,
	.limits = uring_limits,
	.close = uring_close,
};

/* Make sure that the ring has a table with slots up to `end`. *ret_made: the table was made now. 0 or -errno. */
static int table_make(const struct ring *ring, unsigned end, bool *ret_made)
{
	/* Ask without changing the slot: the new contents are unreadable, so the update fails. -EFAULT: the slot
	 * exists; -EINVAL: the table is shorter; -ENXIO: there is no table. */
	int err = slot_update(ring, end - 1, (const struct iovec *)UINTPTR_MAX);
	struct io_uring_rsrc_register table = { .nr = end, .flags = IORING_RSRC_REGISTER_SPARSE };

	*ret_made = false;
	if (err == -EFAULT)
		return 0;
	if (err == -EEXIST) /* another thread owns the ring */
		return -EPERM;
	if (err != -ENXIO)
		return err;
	err = ring_register(ring, IORING_REGISTER_BUFFERS2, &table, sizeof table);
	if (err < 0)
		return err == -EINVAL ? -EOPNOTSUPP : err; /* before Linux 5.19 */
	*ret_made = true;
	return 0;
}

int hp_uring_new(struct io_uring *ring, unsigned slot0, unsigned slots, struct hp_uring **ret_, bool *ret_made)
{
	struct hp_uring *u;
	int err;

	if (!slots || slots > SLOTS_MAX || slot0 > SLOTS_MAX - slots)
		return -EINVAL;
	u = calloc(1, sizeof *u + (slots + 63) / 64 * sizeof *u->used);
	if (!u)
		return -ENOMEM;
	err = ring_keep(ring, &u->rings[0]);
	u->rings_count = !err;
	err = err ? err : table_make(&u->rings[0], slot0 + slots, ret_made);
	if (err < 0) {
		uring_close(u);
		return err;
	}
	u->slot0 = slot0;
	u->slots = slots;
	u->owner = has_owner(ring) ? hp_tid() : 0;
	*ret_ = u;
	return 0;
}

int hugepin_uring_open(struct io_uring *ring, unsigned slot0, unsigned slots, const struct hugepin_attr *attr,
		       hugepin_domain **ret_)
{
	int saved_errno = errno, err;
	struct hp_uring *u;
	bool made;

	if (!ring || !ret_)
		return -EINVAL;
	const bool closed = ring->ring_fd < 0;
	err = hp_uring_new(ring, slot0, slots, &u, &made);
	if (!err) {
		err = hugepin_domain_open(&hp_uring_backend, u, attr, ret_);
		if (err == -EINVAL) /* only this error leaves ctx to the caller */
			uring_close(u);
		if (err < 0 && made)
			call_register(closed ? ring->enter_ring_fd : ring->ring_fd, closed, IORING_UNREGISTER_BUFFERS,
				      NULL, 0);
	}
	errno = saved_errno;
	return err;
}

int hp_uring_attach(struct hp_uring *u, struct io_uring *ring)
{
	struct ring *to = &u->rings[u->rings_count];
	int err;

	/* The domain was told at opening which threads may register, and attaching must not change that. */
	if (u->owner ? u->owner != hp_tid() : has_owner(ring))
		return -EPERM;
	if (u->rings_count > ATTACHED_MAX)
		return -ENOSPC;
	err = ring_keep(ring, to);
	if (err)
		return err;
	err = slots_clone(u, to, u->slot0, u->slots, 0);
	if (err < 0) {
		ring_drop(to);
		return err == -EINVAL ? -EOPNOTSUPP : err == -EEXIST ? -EPERM : err;
	}
	u->rings_count++;
	return 0;
}

int hugepin_uring_attach(hugepin_domain *d, struct io_uring *ring)
{
	void *u;
	int err;

	if (!d || !ring || hp_domain_backend(d, &u)->reg != uring_reg)
		return -EINVAL;
	if (!hp_domain_mine(d))
		return -ESTALE;
	hp_domain_lock(d);
	err = hp_uring_attach(u, ring);
	hp_domain_unlock(d);
	return err;
}
