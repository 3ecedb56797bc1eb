/*
 * The io_uring backend: a registration is a slot of a ring's table of fixed buffers, its key the slot's index.
 *
 * Slots are filled and cleared one at a time, by IORING_REGISTER_BUFFERS_UPDATE without tags: a tag would post
 * completions on a ring that belongs to the program. A request that is in flight keeps the pages of its slot; a request
 * with an index that was cleared, or with an address outside the slot, gets -EFAULT, and never another page.
 *
 * Rings that are attached get copies of the slots (IORING_REGISTER_CLONE_BUFFERS), which share the pages and are
 * charged once. The kernel builds the whole table anew for each slot that is cloned, so the time grows with the table.
 *
 * Threads: every function here runs with the lock of its domain held, which guards struct hp_uring.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/base.h"
#include "base/bits.h"
#include "base/memlock.h"
#include "hugepin_uring.h"
#include "reg/backend/backend.h"
#include "reg/domain.h"

/* Of Linux 6.13; liburing 2.3 has none of it. */
#define REGISTER_CLONE_BUFFERS 30
#define CLONE_INTO_TABLE 2 /* IORING_REGISTER_DST_REPLACE */
struct clone_buffers {
	uint32_t src_fd, flags, src_off, dst_off, nr, pad[3];
};

enum { SLOTS_MAX = 16384, ATTACHED_MAX = 16 };
#define LEN_MAX ((size_t)1 << 30)

struct hp_uring {
	struct io_uring *rings[1 + ATTACHED_MAX]; /* the domain's own is the first */
	unsigned rings_count;
	unsigned slot0, slots;
	pid_t owner; /* the thread that may register with a ring that has an owner; 0: any */
	uint64_t used[]; /* bit i: slot slot0 + i is registered */
};

static bool has_owner(const struct io_uring *ring)
{
	return ring->flags & (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
}

/* len 0 clears the slot. */
static int slot_set(struct io_uring *ring, unsigned slot, void *addr, size_t len)
{
	struct iovec iov = { addr, len };
	int err = io_uring_register_buffers_update_tag(ring, slot, &iov, NULL, 1);

	return err < 0 ? err : 0;
}

/* Clear a slot in the first n rings. All of them are tried; the first failure is returned. */
static int slot_clear(struct hp_uring *u, unsigned slot, unsigned n)
{
	int err = 0;

	for (unsigned i = 0; i < n; i++) {
		int one = slot_set(u->rings[i], slot, NULL, 0);

		if (one < 0 && !err)
			err = one;
	}
	return err;
}

static int slots_clone(struct hp_uring *u, struct io_uring *to, unsigned slot, unsigned count, unsigned flags)
{
	struct clone_buffers c = {
		.src_fd = (uint32_t)u->rings[0]->ring_fd,
		.flags = flags,
		.src_off = slot,
		.dst_off = slot,
		.nr = count,
	};

	return io_uring_register((unsigned)to->ring_fd, REGISTER_CLONE_BUFFERS, &c, 1);
}

static int uring_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	struct hp_uring *u = ctx;
	size_t i = hp_bits_find(u->used, 0, u->slots, false);
	unsigned slot = u->slot0 + (unsigned)i;
	int err;

	(void)access; /* the kernel pins for writing, whatever the requests will be */
	if (i == u->slots)
		return -ENOMEM;
	err = slot_set(u->rings[0], slot, addr, len);
	if (err < 0)
		return err;
	for (unsigned n = 1; n < u->rings_count; n++) {
		err = slots_clone(u, u->rings[n], slot, 1, CLONE_INTO_TABLE);
		if (err < 0) {
			slot_clear(u, slot, n);
			return err;
		}
	}
	hp_bit_set(u->used, i);
	*ret_ = (struct hugepin_reg){ .lkey = slot };
	return 0;
}

/* A slot that could not be cleared may be given out again: filling it drops what it had. */
static int uring_dereg(void *ctx, struct hugepin_reg *reg)
{
	struct hp_uring *u = ctx;

	hp_bit_clear(u->used, reg->lkey - u->slot0);
	return slot_clear(u, reg->lkey, u->rings_count);
}

/* Until 6.3 what was cleared is unpinned by work that is put off for a second, and until 6.12 not before older requests
 * on any slot of the ring are done. Since 6.13 each slot counts its own. */
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
		.flags = (u->owner ? HUGEPIN_LIMIT_OPENER : 0u) | (kernel_unpins_late() ? HUGEPIN_LIMIT_LATE : 0u),
	};
	return 0;
}

const struct hugepin_backend hp_uring_backend = {
	.size = sizeof(struct hugepin_backend),
	.name = "io_uring",
	.reg = uring_reg,
	.dereg = uring_dereg,
	.limits = uring_limits,
	.close = free,
};

/* 0 and *ret_made, if the ring has, or now got, a table with slots up to `end`. */
static int table_make(struct io_uring *ring, unsigned end, bool *ret_made)
{
	/* What the slot would be filled with is not readable, so it stays as it is: -EFAULT says that there is such a
	 * slot, -EINVAL that the table is shorter, -ENXIO that there is none. */
	int err = io_uring_register_buffers_update_tag(ring, end - 1, (const struct iovec *)UINTPTR_MAX, NULL, 1);

	*ret_made = false;
	if (err == -EFAULT)
		return 0;
	if (err == -EEXIST) /* another thread owns the ring */
		return -EPERM;
	if (err != -ENXIO)
		return err;
	err = io_uring_register_buffers_sparse(ring, end);
	if (err < 0)
		return err == -EINVAL ? -EOPNOTSUPP : err; /* before 5.19 */
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
	err = table_make(ring, slot0 + slots, ret_made);
	if (err < 0) {
		free(u);
		return err;
	}
	u->rings[0] = ring;
	u->rings_count = 1;
	u->slot0 = slot0;
	u->slots = slots;
	u->owner = has_owner(ring) ? gettid() : 0;
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
	err = hp_uring_new(ring, slot0, slots, &u, &made);
	if (!err) {
		err = hugepin_domain_open(&hp_uring_backend, u, attr, ret_);
		if (err == -EINVAL) /* the one failure after which ctx is still ours */
			free(u);
		if (err < 0 && made)
			io_uring_unregister_buffers(ring);
	}
	errno = saved_errno;
	return err;
}

int hp_uring_attach(struct hp_uring *u, struct io_uring *ring)
{
	int err;

	/* The threads that may register are known since the domain was opened. */
	if (u->owner ? u->owner != gettid() : has_owner(ring))
		return -EPERM;
	if (u->rings_count > ATTACHED_MAX)
		return -ENOSPC;
	err = slots_clone(u, ring, u->slot0, u->slots, 0);
	if (err < 0)
		return err == -EINVAL ? -EOPNOTSUPP : err == -EEXIST ? -EPERM : err;
	u->rings[u->rings_count++] = ring;
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
