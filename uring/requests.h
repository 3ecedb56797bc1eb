/*
 * The requests of the kernel that liburing 2.3 lacks, and the one place that fills an entry of the ring.
 */
#ifndef HP_URING_REQUESTS_H
#define HP_URING_REQUESTS_H

#include <string.h>
#include <sys/socket.h>

#include "uring/message.h"

/* From the kernel's include/uapi/linux/io_uring.h. They came with Linux 6.15. So did an index for SENDMSG_ZC. */
enum { OP_READV_FIXED = 60, OP_WRITEV_FIXED = 61 };

static inline unsigned char hp_uring_opcode(unsigned verb, bool fixed, bool many)
{
	static const unsigned char codes[HUGEPIN_SG_URING_VERBS][2][2] = {
		[HUGEPIN_SG_URING_SEND] = { { IORING_OP_SEND, IORING_OP_SENDMSG },
					    { IORING_OP_SEND_ZC, IORING_OP_SENDMSG_ZC } },
		[HUGEPIN_SG_URING_WRITE] = { { IORING_OP_WRITE, IORING_OP_WRITEV },
					     { IORING_OP_WRITE_FIXED, OP_WRITEV_FIXED } },
		[HUGEPIN_SG_URING_READ] = { { IORING_OP_READ, IORING_OP_READV },
					    { IORING_OP_READ_FIXED, OP_READV_FIXED } },
	};

	return codes[verb][fixed][many];
}

/* Fill the entry. The header is for sends, and stays until the request has completed. A send waits for room until all
 * of it is sent: a link breaks only after an error. */
static inline void hp_uring_fill(struct io_uring_sqe *sqe, unsigned verb, int fd, uint64_t offset, const struct hp_uring_part *p,
				struct iovec *elements, struct msghdr *header)
{
	const bool fixed = p->index != HUGEPIN_SG_URING_NONE, many = p->count > 1;
	struct iovec *iov = elements + p->first;

	memset(sqe, 0, sizeof *sqe);
	sqe->opcode = hp_uring_opcode(verb, fixed, many);
	sqe->fd = fd;
	sqe->addr = (uintptr_t)(many ? (void *)iov : iov->iov_base);
	sqe->len = many ? p->count : (uint32_t)iov->iov_len;
	if (verb == HUGEPIN_SG_URING_SEND) {
		sqe->msg_flags = MSG_WAITALL; /* no SIGPIPE comes: the kernel adds MSG_NOSIGNAL */
		sqe->ioprio = fixed ? IORING_RECVSEND_FIXED_BUF : 0;
		if (many) {
			*header = (struct msghdr){ .msg_iov = iov, .msg_iovlen = p->count };
			sqe->addr = (uintptr_t)header;
			sqe->len = 1;
		}
	} else {
		sqe->off = offset;
	}
	if (fixed)
		sqe->buf_index = (uint16_t)p->index;
}

#endif
