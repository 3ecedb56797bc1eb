/*
 * Rings of io_uring: how they are reached, and their tables of buffers.
 */
#include "reg/backend/ring.h"

#include <errno.h>
#include <unistd.h>

#include "base/base.h"
#include "base/sys.h"

int hp_ring_keep(int fd, unsigned flags, struct hp_ring *ret_)
{
	int copy;

	ret_->number = fd;
	ret_->by = hp_ring_by_index(flags) ? hp_tid() : 0;
	if (ret_->by)
		return 0;
	copy = (int)hp_sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0);
	return hp_kept_set_or_close(&ret_->kept, copy) ? 0 : copy < 0 ? copy : -EBADF;
}

void hp_ring_drop(struct hp_ring *r)
{
	if (!r->by)
		hp_kept_close(&r->kept);
}

/* The program may have closed our descriptor, too, with all that it does not know. Another ring may have its number by
 * now. */
int hp_ring_number(const struct hp_ring *r)
{
	if (r->by || hp_kept_is_there(&r->kept))
		return r->by ? r->number : hp_kept_fd(&r->kept);
	return hp_kept_is(&r->kept, r->number) ? r->number : -1;
}

/* Called directly, because with liburing's functions every process under libhugepin-malloc.so would load that
 * library. */
int hp_ring_call(int number, bool by_index, unsigned opcode, const void *arg, unsigned count)
{
	const unsigned flag = by_index ? 1u << 31 : 0; /* IORING_REGISTER_USE_REGISTERED_RING, of Linux 6.3 */

	return (int)hp_sys(SYS_io_uring_register, number, opcode | flag, arg, count);
}

int hp_ring_register(const struct hp_ring *r, unsigned opcode, const void *arg, unsigned count)
{
	if (r->by && r->by != hp_tid())
		return -EEXIST; /* as the kernel says of a ring with an owner */
	return hp_ring_call(hp_ring_number(r), r->by, opcode, arg, count);
}

static int slot_update(const struct hp_ring *ring, unsigned slot, const struct iovec *iov)
{
	struct io_uring_rsrc_update2 u = { .offset = slot, .data = (uintptr_t)iov, .nr = 1 };

	return hp_ring_register(ring, IORING_REGISTER_BUFFERS_UPDATE, &u, sizeof u);
}

int hp_ring_set(const struct hp_ring *ring, unsigned slot, void *addr, size_t len)
{
	struct iovec iov = { addr, len };
	int err = slot_update(ring, slot, &iov);

	return err < 0 ? err : 0;
}

int hp_ring_make_table(const struct hp_ring *ring, unsigned end)
{
	struct io_uring_rsrc_register table = { .nr = end, .flags = IORING_RSRC_REGISTER_SPARSE };
	int err = hp_ring_register(ring, IORING_REGISTER_BUFFERS2, &table, sizeof table);

	if (err < 0)
		return err == -EINVAL ? -EOPNOTSUPP : err == -EEXIST ? -EPERM : err;
	return 0;
}

int hp_ring_table(const struct hp_ring *ring, unsigned end, bool *ret_made)
{
	/* Ask without changing the slot: the new contents are unreadable, so the update fails. -EFAULT: the slot
	 * exists; -EINVAL: the table is shorter; -ENXIO: there is no table. */
	int err = slot_update(ring, end - 1, (const struct iovec *)UINTPTR_MAX);

	*ret_made = false;
	if (err == -EFAULT)
		return 0;
	if (err == -EEXIST) /* another thread owns the ring */
		return -EPERM;
	if (err != -ENXIO)
		return err;
	err = hp_ring_make_table(ring, end);
	*ret_made = !err;
	return err;
}
