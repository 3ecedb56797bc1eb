/*
 * The io_uring backend. A registration is a slot in a ring's table of fixed buffers, and its key is the slot's index.
 *
 * Slots are filled and cleared one at a time, by IORING_REGISTER_BUFFERS_UPDATE without tags, because a tag would post
 * completions on a ring that belongs to the program. A request in flight keeps the pages of its slot. A request with a
 * cleared index, or with an address outside the slot, gets -EFAULT, and never reaches another page.
 *
 * The domain's ring is the program's, or one of ours that serves registrations alone. attached.c copies slots into
 * further rings. A slot of which a ring still has a copy is not used again.
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
#include "base/memlock.h"
#include "base/sys.h"
#include "hugepin_uring.h"
#include "reg/backend/uring.h"
#include "reg/domain.h"

enum { SLOTS_MAX = 16384 };
#define LEN_MAX ((size_t)1 << 30)

/* The kernel ends the rings of a process that has died in the background. Until then, some 200 ms, it charges their
 * memory to the user, and a program that is started again finds no room. */
#define SUCCESSOR_NS UINT64_C(300000000)
#define SUCCESSOR_STEP_NS UINT64_C(5000000)

/* ------------------------------------------------------------------ the backend */

/* Fill a free slot. */
static int fill_slot(struct hp_uring *u, void *addr, size_t len, struct hugepin_reg *ret_)
{
	size_t i = hp_bits_find(u->used, 0, u->slots, false);
	unsigned slot = u->slot0 + (unsigned)i;
	int err = i == u->slots ? -ENOMEM : hp_ring_set(&u->ring, slot, addr, len);

	if (err < 0)
		return err;
	hp_bit_set(u->used, i);
	u->slot[i].len = len;
	*ret_ = (struct hugepin_reg){ .lkey = slot };
	return 0;
}

static int uring_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	struct hp_uring *u = ctx;
	int err = fill_slot(u, addr, len, ret_);

	(void)access; /* the kernel always pins for writing */
	while (err == -ENOMEM && u->waits_until_ns && hp_clock_ns() < u->waits_until_ns) {
		hp_futex_sleep(SUCCESSOR_STEP_NS);
		err = fill_slot(u, addr, len, ret_);
	}
	u->waits_until_ns = err == 0 ? 0 : u->waits_until_ns;
	return err;
}

/* A slot that could not be cleared may be used again, because filling it drops its old pages. */
static int uring_dereg(void *ctx, struct hugepin_reg *reg)
{
	struct hp_uring *u = ctx;
	unsigned i = reg->lkey - u->slot0;

	if (u->slot[i].holders)
		hp_attached_outlive(u, i);
	else
		hp_bit_clear(u->used, i);
	return hp_ring_set(&u->ring, reg->lkey, NULL, 0);
}

/* Copies in attached rings keep the slots and the memory of what was deregistered. */
static void uring_lingering(void *ctx, size_t *ret_bytes, uint32_t *ret_regs)
{
	struct hp_uring *u = ctx;

	if (u->outlived_now)
		hp_attached_let_go(u);
	*ret_bytes = u->outlived_bytes;
	*ret_regs = u->outlived_now;
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

	if (u->pid == hp_pid())
		hp_attached_forget(u);
	hp_ring_drop(&u->ring);
	free(u->slot);
	free(u);
}

const struct hugepin_backend hp_uring_backend = {
	.size = sizeof(struct hugepin_backend),
	.name = "io_uring",
	.reg = uring_reg,
	.dereg = uring_dereg,
	.limits = uring_limits,
	.close = uring_close,
	.lingering = uring_lingering,
};

/* A ring that serves registrations alone, which all threads may use. Its descriptor, or -errno. The kernel may charge
 * the memory of rings, too. */
static int ring_make(void)
{
	const uint64_t until_ns = hp_clock_ns() + SUCCESSOR_NS;

	for (;;) {
		struct io_uring_params params = { 0 };
		int fd = (int)hp_sys(SYS_io_uring_setup, 1, &params);

		if (fd != -ENOMEM || hp_clock_ns() >= until_ns)
			return fd;
		hp_futex_sleep(SUCCESSOR_STEP_NS);
	}
}

int hp_uring_new(int fd, unsigned flags, unsigned slot0, unsigned slots, struct hp_uring **ret_, bool *ret_made)
{
	const size_t words = (slots + 63) / 64;
	int own = -1, err;
	struct hp_uring *u;

	if (!slots || slots > SLOTS_MAX || slot0 > SLOTS_MAX - slots)
		return -EINVAL;
	u = calloc(1, sizeof *u + 2 * words * sizeof *u->used);
	if (!u)
		return -ENOMEM;
	u->pid = hp_pid();
	u->ring.kept = (struct hp_kept)HP_KEPT_NONE;
	u->outlived = u->used + words;
	u->slot = calloc(slots, sizeof *u->slot);
	err = u->slot ? 0 : -ENOMEM;
	flags = fd < 0 ? 0 : flags;
	if (!err && fd < 0)
		err = own = ring_make();
	if (err >= 0)
		err = hp_ring_keep(fd < 0 ? own : fd, flags, &u->ring);
	if (own >= 0)
		hp_sys(SYS_close, own);
	err = err ? err : hp_ring_table(&u->ring, slot0 + slots, ret_made);
	if (err < 0) {
		uring_close(u);
		return err;
	}
	u->slot0 = slot0;
	u->slots = slots;
	u->waits_until_ns = hp_clock_ns() + SUCCESSOR_NS;
	u->owner = hp_ring_has_owner(flags) ? hp_tid() : 0;
	*ret_ = u;
	return 0;
}

int hugepin_uring_open_fd(int fd, unsigned flags, unsigned slot0, unsigned slots, const struct hugepin_attr *attr,
			  hugepin_domain **ret_)
{
	int saved_errno = errno, err;
	struct hp_uring *u;
	bool made;

	if (fd < -1 || !ret_)
		return -EINVAL;
	err = hp_uring_new(fd, flags, slot0, slots, &u, &made);
	if (!err) {
		err = hugepin_domain_open(&hp_uring_backend, u, attr, ret_);
		if (err == -EINVAL) /* only this error leaves ctx to the caller */
			uring_close(u);
		if (err < 0 && made && fd >= 0)
			hp_ring_call(fd, hp_ring_by_index(flags), IORING_UNREGISTER_BUFFERS, NULL, 0);
	}
	errno = saved_errno;
	return err;
}

int hugepin_uring_open(struct io_uring *ring, unsigned slot0, unsigned slots, const struct hugepin_attr *attr,
		       hugepin_domain **ret_)
{
	return ring ? hugepin_uring_open_fd(hp_ring_fd(ring), hp_ring_flags(ring), slot0, slots, attr, ret_) : -EINVAL;
}

int hugepin_uring_attach_fd(hugepin_domain *d, int fd, unsigned flags, hugepin_ring **ret_)
{
	hugepin_ring *r;
	void *u;
	int err;

	if (!d || fd < 0 || !ret_ || hp_domain_backend(d, &u)->reg != hp_uring_backend.reg)
		return -EINVAL;
	if (!hp_domain_mine(d))
		return -ESTALE;
	r = hp_attached_new(u, d);
	if (!r)
		return -ENOMEM;
	hp_domain_lock(d);
	err = hp_attached_begin(r, fd, flags);
	hp_domain_unlock(d);
	if (err)
		hp_attached_delete(r);
	else
		*ret_ = r;
	return err;
}

int hugepin_uring_attach(hugepin_domain *d, struct io_uring *ring, hugepin_ring **ret_)
{
	return ring ? hugepin_uring_attach_fd(d, hp_ring_fd(ring), hp_ring_flags(ring), ret_) : -EINVAL;
}
