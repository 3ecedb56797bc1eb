/*
 * What the kernel and a descriptor can do.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/base.h"
#include "uring/requests.h"

enum { IOV_MAX_KERNEL = 1024, ALIGN_DEFAULT = 4096 };

#ifndef STATX_DIOALIGN /* Linux 6.1 */
#define STATX_DIOALIGN 0x2000u
#endif

int hugepin_sg_uring_caps(struct io_uring *ring, struct hugepin_sg_uring_caps *ret_, size_t size)
{
	struct io_uring_probe *probe;
	size_t room = sizeof *probe + 256 * sizeof *probe->ops;
	int err;

	if (!ring || !ret_ || size < sizeof *ret_)
		return -EINVAL;
	probe = calloc(1, room);
	if (!probe)
		return -ENOMEM;
	err = io_uring_register_probe(ring, probe, 256);
	if (err >= 0) {
		struct hugepin_sg_uring_caps caps = {
			.size = sizeof caps,
			.vector = io_uring_opcode_supported(probe, OP_WRITEV_FIXED) &&
				  io_uring_opcode_supported(probe, OP_READV_FIXED),
			.zero_copy = !!io_uring_opcode_supported(probe, IORING_OP_SEND_ZC),
			.max_iov = IOV_MAX_KERNEL,
			.max_requests = *ring->sq.kring_entries,
			.slot_index = HUGEPIN_SG_URING_NONE,
		};
		*ret_ = caps;
	}
	free(probe);
	return err < 0 ? err : 0;
}

/* struct statx of newer headers, in part: the C library's may lack the members of STATX_DIOALIGN. */
static uint32_t direct_align(int fd)
{
	union {
		struct statx s;
		uint32_t words[64];
	} x = { 0 };
	const size_t mem = 0x98 / 4, offset = 0x9c / 4; /* stx_dio_mem_align, stx_dio_offset_align */

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x.s) < 0 || !(x.s.stx_mask & STATX_DIOALIGN))
		return ALIGN_DEFAULT;
	const uint32_t align = HP_MAX(x.words[mem], x.words[offset]);
	return hp_is_power_of_two(align) ? align : ALIGN_DEFAULT;
}

int hugepin_sg_uring_target(int fd, struct hugepin_sg_uring_target *ret_)
{
	const int saved_errno = errno;
	struct hugepin_sg_uring_target t = { .fd = fd, .align = 1 };
	int flags, type = SOCK_STREAM;
	socklen_t len = sizeof type;

	if (!ret_)
		return -EINVAL;
	flags = fcntl(fd, F_GETFL);
	if (flags >= 0) {
		if (flags & O_DIRECT)
			t.align = direct_align(fd);
		t.whole = !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) && type != SOCK_STREAM;
		*ret_ = t;
	}
	errno = saved_errno;
	return flags < 0 ? -EBADF : 0;
}
