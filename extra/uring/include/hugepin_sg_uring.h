/* hugepin with io_uring: a message of many pieces as one request of the program's own ring. Linked with
 * libhugepin-uring. The guide is hugepin_sg_uring(3). */
#ifndef HUGEPIN_SG_URING_H
#define HUGEPIN_SG_URING_H

#include <hugepin_uring.h>
#include <liburing.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* A domain of io_uring (hugepin_uring_open), and room for copies of short pieces, which is pinned. */
typedef struct hugepin_sg_uring hugepin_sg_uring;

struct hugepin_sg_uring_attr {
	size_t size; /* sizeof(struct hugepin_sg_uring_attr); all else 0: defaults */
	uint32_t copies; /* messages that may be out as copies; default 32, at most 4096 */
	uint32_t copy_len; /* bytes of a copied message; default 32768, rounded up to 4096; at most 1 MiB */
	/* Several pieces are copied if they are shorter than this on average, in bytes. Default 2048; 1: never. */
	uint32_t copy_below;
	/* Addresses and lengths of pieces that are no multiples of this power of two are copied. For files opened with
	 * O_DIRECT. Default 1. */
	uint32_t align;
	hugepin_ring *ring; /* of the requests, if it is attached to the domain; NULL: the domain's */
};
typedef struct hugepin_sg_uring_attr hugepin_sg_uring_attr_t;

/* A message that is out. The caller's memory, which may be moved. All members are the library's. */
struct hugepin_sg_uring_message {
	const struct iovec *iov; /* of a read that is scattered at the end; otherwise NULL */
	char *copy; /* the pieces one after the other; NULL: not copied */
	struct hugepin_pin pin; /* of pieces that go by their registration */
	uint32_t n, out;
};
typedef struct hugepin_sg_uring_message hugepin_sg_uring_message_t;

/* Make room for copies and pin it with the domain, which must outlive it. If the limit of locked memory leaves no room
 * for this pin, or only another thread may register (hugepin_uring_open), copies go by address. domain NULL: all goes
 * by address. It belongs to one thread at a time. 0, -EINVAL, -ENOMEM, or an error of hugepin_pin. */
int hugepin_sg_uring_open(hugepin_domain *domain, const struct hugepin_sg_uring_attr *attr, hugepin_sg_uring **ret_);

/* -EBUSY: messages are out. -EINVAL: NULL. In a child of fork it frees the child's copy, whatever is out. */
int hugepin_sg_uring_close(hugepin_sg_uring *);

/* Fill an entry that io_uring_get_sqe returned, as liburing's io_uring_prep_readv and io_uring_prep_writev do. Set
 * flags, user_data and the like afterwards. The ring is attr.ring, or else the domain's. iov and the
 * pieces must stay until hugepin_sg_uring_done. Pieces that one registration has become IORING_OP_READ_FIXED or
 * WRITE_FIXED, if they lie one after the other; else READV_FIXED or WRITEV_FIXED (Linux 6.15). Short or unaligned
 * pieces become READ_FIXED or WRITE_FIXED, through a copy. Others become READV or WRITEV. Nothing is registered.
 * 0 and *ret_. On failure the entry is IORING_OP_NOP with user_data 0, and nothing is out. -EINVAL: a NULL, n outside
 * 0..1024, a piece at NULL or one that wraps, no bytes. -EOVERFLOW: more than 2 GiB - 4 KiB. Of unaligned pieces only:
 * -EMSGSIZE: longer than copy_len. -EAGAIN: all copies are out. -ESTALE: a child of fork, whose parent opened this. Or
 * an error of hugepin_sg_key. */
int hugepin_sg_uring_read(hugepin_sg_uring *, struct io_uring_sqe *, int fd, const struct iovec *iov, int n,
			  uint64_t offset, struct hugepin_sg_uring_message *ret_);
int hugepin_sg_uring_write(hugepin_sg_uring *, struct io_uring_sqe *, int fd, const struct iovec *iov, int n,
			   uint64_t offset, struct hugepin_sg_uring_message *ret_);

/* The request has completed with this result (cqe->res), or is not going to be submitted (-ECANCELED). Of a read
 * that was copied, the first `res` bytes come to their pieces. Gives the pin back, and clears *message. 0. -EINVAL:
 * not out. -ESTALE: as above. */
int hugepin_sg_uring_done(hugepin_sg_uring *, struct hugepin_sg_uring_message *message, int res);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
