/*
 * Rings that have copies of a domain's slots, which share the pages, so memory is pinned and charged once.
 *
 * A copy is made when the ring first needs it (hugepin_ring_use), by the thread that calls, because the kernel takes
 * changes of a ring with an owner from its owner only. So registering costs the same with any number of rings. For the
 * same reason a copy of a slot that was deregistered stays until that thread's next call. Until then the slot is not
 * used again, so an index never means other memory than the pin's, and slot and memory are not free: the domain counts
 * them as in use (`lingering` of the backend).
 *
 * A thread that sleeps lets go of nothing. So before it sleeps (a use without a pin) its ring keeps copies only of what
 * is pinned, if the domain is short of room. That is decided by halves: sleeping rings hold at most half of the budget
 * and of the slots, and the other half serves the threads that are awake. A ring with a descriptor
 * (hugepin_ring_fd) keeps its copies, because its thread wakes up when one has to go.
 *
 * Threads: `has` is read without a lock. A bit that is set belongs to the pin in the caller's hand: as long as the bit
 * is set the slot's memory stays the same, and the pin was made after that memory was registered.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "base/base.h"
#include "base/bits.h"
#include "base/sys.h"
#include "reg/backend/uring.h"
#include "reg/domain.h"

/* These came with Linux 6.13. liburing 2.3 lacks them. */
#define REGISTER_CLONE_BUFFERS 30
#define CLONE_BY_INDEX 1u /* IORING_REGISTER_SRC_REGISTERED */
#define CLONE_INTO_TABLE 2u /* IORING_REGISTER_DST_REPLACE */
struct clone_buffers {
	uint32_t src_fd, flags, src_off, dst_off, nr, pad[3];
};

struct hugepin_ring {
	LIST_ENTRY(hugepin_ring) all;
	hugepin_domain *domain;
	struct hp_uring *u;
	struct hp_ring ring;
	uint64_t ref; /* the domain's, which the refs of its pins begin with */
	pid_t tid; /* of the thread that attached the ring: its owner, if it has one */
	bool has_owner;
	/* The eventfd of hugepin_ring_fd(), if that was called. relaxed: the lock, and is_short() by the caller */
	struct hp_kept event;
	bool is_told; /* the eventfd is readable */
	_Atomic uint32_t copies; /* bits that are set in `has`; relaxed: the owner's calls change it */
	/* The domain's outlived_count up to which this ring has cleared its copies. relaxed: as that. */
	_Atomic uint64_t cleared;
	_Atomic uint64_t has[]; /* bit i: the ring has a copy of slot slot0 + i; changed with the lock */
};

/* acquire: the caller may use the index at once; pairs with hp_attached_use(). */
static inline bool has_slot(const hugepin_ring *r, size_t i)
{
	return atomic_load_explicit(&r->has[i >> 6], memory_order_acquire) >> (i & 63) & 1;
}

/* Clone slot slot0 + i of the domain's ring. 0 or -errno. -EPERM: another thread owns one of the rings. */
static int copy_slot(const hugepin_ring *r, size_t i)
{
	const struct hp_uring *u = r->u;
	struct clone_buffers c = {
		.src_fd = (uint32_t)hp_ring_number(&u->ring),
		.flags = CLONE_INTO_TABLE | (u->ring.by ? CLONE_BY_INDEX : 0),
		.src_off = u->slot0 + (uint32_t)i,
		.dst_off = u->slot0 + (uint32_t)i,
		.nr = 1,
	};
	int err;

	if (u->ring.by && u->ring.by != hp_tid()) /* here its index means another ring, or none */
		return -EPERM;
	err = hp_ring_register(&r->ring, REGISTER_CLONE_BUFFERS, &c, 1);
	return err == -EEXIST ? -EPERM : err;
}

static void drop_copy(hugepin_ring *r, size_t i)
{
	struct hp_uring *u = r->u;

	/* relaxed: who has a pin of the slot's next memory got it after this, by the lock */
	atomic_fetch_and_explicit(&r->has[i >> 6], ~(UINT64_C(1) << (i & 63)), memory_order_relaxed);
	atomic_fetch_sub_explicit(&r->copies, 1, memory_order_relaxed);
	if (--u->slot[i].holders || !hp_bit(u->outlived, i))
		return;
	hp_bit_clear(u->outlived, i);
	hp_bit_clear(u->used, i);
	u->outlived_now--;
	u->outlived_bytes -= u->slot[i].len;
}

/* Make the eventfd readable, or not. */
static void tell(hugepin_ring *r, bool told)
{
	uint64_t n = 1;

	if (r->is_told == told || !hp_kept_is_there(&r->event))
		return;
	r->is_told = told;
	hp_sys(told ? SYS_write : SYS_read, hp_kept_fd(&r->event), &n, sizeof n);
}

/* With the lock: none of the ring's copies outlives its registration. */
static void note_cleared(hugepin_ring *r)
{
	atomic_store_explicit(&r->cleared, atomic_load_explicit(&r->u->outlived_count, memory_order_relaxed),
			      memory_order_relaxed);
	tell(r, false);
}

void hp_attached_outlive(struct hp_uring *u, unsigned i)
{
	hugepin_ring *r;

	hp_bit_set(u->outlived, i);
	u->outlived_now++;
	u->outlived_bytes += u->slot[i].len;
	atomic_fetch_add_explicit(&u->outlived_count, 1, memory_order_relaxed);
	/* Behind the count, because a thread that wakes up before it finds nothing to clear, and would spin. */
	LIST_FOREACH(r, &u->attached, all)
		if (has_slot(r, i))
			tell(r, true);
}

hugepin_ring *hp_attached_new(struct hp_uring *u, hugepin_domain *d)
{
	hugepin_ring *r = calloc(1, sizeof *r + (u->slots + 63) / 64 * sizeof *r->has);

	if (!r)
		return NULL;
	r->domain = d;
	r->u = u;
	r->ref = d ? d->ref : 0;
	r->ring.kept = r->event = (struct hp_kept)HP_KEPT_NONE;
	return r;
}

void hp_attached_delete(hugepin_ring *r)
{
	if (r) {
		hp_ring_drop(&r->ring);
		hp_kept_close(&r->event);
	}
	free(r);
}

int hp_attached_begin(hugepin_ring *r, int fd, unsigned flags)
{
	struct hp_uring *u = r->u;
	int err = hp_ring_keep(fd, flags, &r->ring);

	if (!err)
		err = hp_ring_make_table(&r->ring, u->slot0 + u->slots);
	if (err < 0)
		return err;
	err = copy_slot(r, 0); /* can it? */
	if (err >= 0)
		err = hp_ring_set(&r->ring, u->slot0, NULL, 0);
	if (err < 0) {
		hp_ring_register(&r->ring, IORING_UNREGISTER_BUFFERS, NULL, 0);
		/* EBUSY: Linux 6.12 clones only into a ring without a table */
		return err == -EINVAL || err == -EBUSY ? -EOPNOTSUPP : err;
	}
	r->tid = hp_tid();
	r->has_owner = hp_ring_has_owner(flags);
	note_cleared(r);
	LIST_INSERT_HEAD(&u->attached, r, all);
	return 0;
}

static bool is_cleared(const hugepin_ring *r)
{
	return atomic_load_explicit(&r->cleared, memory_order_relaxed) ==
	       atomic_load_explicit(&r->u->outlived_count, memory_order_relaxed);
}

/* Clear the copy of slot slot0 + i. 0 or -errno. */
static int clear_copy(hugepin_ring *r, size_t i)
{
	const int err = hp_ring_set(&r->ring, r->u->slot0 + (unsigned)i, NULL, 0);

	if (err)
		return err == -EEXIST ? -EPERM : err;
	drop_copy(r, i);
	return 0;
}

/* Clear the copies of slots that were deregistered; idle: and of those that nobody has pinned. A pin that this thread
 * has taken over is seen, since it was counted before. 0 or -errno. */
static int clear_copies(hugepin_ring *r, bool idle)
{
	const struct hp_uring *u = r->u;
	int err = 0;

	for (size_t w = 0; w < (u->slots + 63) / 64 && !err; w++) {
		/* relaxed: changed with the lock */
		uint64_t has = atomic_load_explicit(&r->has[w], memory_order_relaxed);

		for (has = idle ? has : has & u->outlived[w]; has && !err; has &= has - 1) {
			const size_t i = w * 64 + (size_t)__builtin_ctzll(has);

			if (hp_bit(u->outlived, i) || !hp_domain_pins(u->slot[i].region))
				err = clear_copy(r, i);
		}
	}
	if (!err)
		note_cleared(r);
	return err;
}

void hp_attached_let_go(struct hp_uring *u)
{
	hugepin_ring *r;

	LIST_FOREACH(r, &u->attached, all)
		if (!is_cleared(r) && (!r->has_owner || r->tid == hp_tid()))
			clear_copies(r, false);
}

/* Whether the ring is to keep no copies of what is not pinned while its thread sleeps. A ring without an owner is
 * cleared by whoever needs the room, and one with an eventfd when it is told. Without the lock the domain's numbers may
 * be a little old. */
static bool is_short(const hugepin_ring *r)
{
	/* relaxed: the caller's own copies */
	return r->has_owner && r->domain && hp_kept_fd(&r->event) < 0 &&
	       atomic_load_explicit(&r->copies, memory_order_relaxed) && hp_domain_is_short(r->domain);
}

static inline bool is_of_domain(const hugepin_ring *r, const struct hugepin_pin *pin)
{
	return !((pin->ref ^ r->ref) >> 32);
}

int hp_attached_use(hugepin_ring *r, const struct hugepin_pin *pin)
{
	struct hp_uring *u = r->u;
	size_t i;
	const bool idle = !pin && is_short(r);
	int err = idle || !is_cleared(r) ? clear_copies(r, idle) : 0;

	if (err || !pin)
		return err;
	i = pin->lkey - u->slot0;
	if (!is_of_domain(r, pin) || i >= u->slots || !hp_bit(u->used, i) || hp_bit(u->outlived, i))
		return -EINVAL;
	if (has_slot(r, i))
		return 0;
	err = copy_slot(r, i);
	if (err < 0)
		return err;
	u->slot[i].holders++;
	u->slot[i].region = (uint32_t)pin->ref;
	atomic_fetch_add_explicit(&r->copies, 1, memory_order_relaxed); /* is_short() */
	/* release: pairs with has_slot() */
	atomic_fetch_or_explicit(&r->has[i >> 6], UINT64_C(1) << (i & 63), memory_order_release);
	return 0;
}

int hp_attached_end(hugepin_ring *r)
{
	const struct hp_uring *u = r->u;
	int err = hp_ring_register(&r->ring, IORING_UNREGISTER_BUFFERS, NULL, 0);

	/* A ring whose owner has ended is changed by nobody any more, and used by nobody. */
	if (err == -EEXIST && hp_sys(SYS_tgkill, hp_pid(), r->tid, 0) != -ESRCH)
		return -EPERM;
	for (size_t i = 0; i < u->slots; i++)
		if (has_slot(r, i))
			drop_copy(r, i);
	LIST_REMOVE(r, all);
	return 0;
}

void hp_attached_forget(struct hp_uring *u)
{
	hugepin_ring *r;

	while ((r = LIST_FIRST(&u->attached))) {
		LIST_REMOVE(r, all);
		hp_attached_delete(r);
	}
}

/* ------------------------------------------------------------------ the calls */

int hugepin_ring_use(hugepin_ring *r, const struct hugepin_pin *pin)
{
	uint32_t outlived;
	bool freed;
	int err;

	if (!r)
		return -EINVAL;
	if (HP_LIKELY(is_cleared(r) && (pin ? is_of_domain(r, pin) && pin->lkey - r->u->slot0 < r->u->slots &&
						      has_slot(r, pin->lkey - r->u->slot0) :
					      !is_short(r))))
		return 0;
	if (!hp_domain_mine(r->domain))
		return -ESTALE;
	hp_domain_lock(r->domain);
	outlived = r->u->outlived_now;
	err = hp_attached_use(r, pin);
	freed = r->u->outlived_now < outlived;
	hp_domain_unlock(r->domain);
	if (freed)
		hp_domain_has_room(r->domain);
	return err;
}

int hugepin_ring_fd(hugepin_ring *r)
{
	int fd;

	if (!r)
		return -EINVAL;
	if (!hp_domain_mine(r->domain))
		return -ESTALE;
	hp_domain_lock(r->domain);
	fd = hp_kept_fd(&r->event);
	if (fd < 0) {
		fd = (int)hp_sys(SYS_eventfd2, 0, EFD_NONBLOCK | EFD_CLOEXEC);
		fd = hp_kept_set_or_close(&r->event, fd) ? fd : fd < 0 ? fd : -EBADF;
		if (!is_cleared(r))
			tell(r, true);
	}
	hp_domain_unlock(r->domain);
	return fd;
}

int hugepin_ring_detach(hugepin_ring *r)
{
	int err;

	if (!r)
		return -EINVAL;
	if (!hp_domain_mine(r->domain))
		return -ESTALE;
	hp_domain_lock(r->domain);
	err = hp_attached_end(r);
	hp_domain_unlock(r->domain);
	if (err)
		return err;
	hp_domain_has_room(r->domain);
	hp_attached_delete(r);
	return 0;
}
