/*
 * Shared by the tests of messages on io_uring: a ring with what belongs to it, and messages that are carried out.
 */
#ifndef TESTS_URING_RIG_H
#define TESTS_URING_RIG_H

#include <hugepin_sg_uring.h>
#include <hugepin_uring.h>
#include <liburing.h>

#include "live/live.h"
#include "live/watched.h"

enum { TABLE = 64 };
enum { OP_READV_FIXED = 60, OP_WRITEV_FIXED = 61 }; /* liburing 2.3 lacks them */

/* A ring, a domain on it, room for copies, and a file. */
struct rig {
	struct io_uring ring;
	hugepin_domain *domain;
	hugepin_sg_uring *s;
	int fd;
	bool vector; /* the kernel has these requests */
};

static inline bool rig_open(struct rig *r, const struct hugepin_sg_uring_attr *attr, uint64_t budget)
{
	struct hugepin_attr lru = { .size = sizeof lru,
				    .policy = HUGEPIN_POLICY_LRU,
				    .pinned_bytes_max = budget,
				    .watch = WATCH_ANYHOW };
	const int err = io_uring_queue_init(16, &r->ring, 0);

	if (err == -ENOSYS || err == -EPERM) {
		snprintf(t_skip_reason, sizeof t_skip_reason, "no io_uring: %s", strerror(-err));
		return false;
	}
	struct io_uring_probe *probe = io_uring_get_probe();
	r->vector = probe && io_uring_opcode_supported(probe, OP_READV_FIXED);
	io_uring_free_probe(probe);
	r->fd = memfd_create("messages", MFD_CLOEXEC);
	return EXPECT_EQ(err, 0) && EXPECT(r->fd >= 0) &&
	       EXPECT_EQ(hugepin_uring_open(&r->ring, 0, TABLE, &lru, &r->domain), 0) &&
	       EXPECT_EQ(hugepin_sg_uring_open(r->domain, attr, &r->s), 0);
}

/* No pin is out, since the domain can be closed. */
static inline void rig_close(struct rig *r)
{
	EXPECT_EQ(hugepin_sg_uring_close(r->s), 0);
	EXPECT_EQ(hugepin_domain_close(r->domain), 0);
	io_uring_queue_exit(&r->ring);
	close(r->fd);
}

/* The result of the next request, whose user_data is this. */
static inline int result(struct rig *r, uint64_t user_data)
{
	struct io_uring_cqe *cqe;
	int res;

	EXPECT(io_uring_submit(&r->ring) >= 0);
	if (!EXPECT_EQ(io_uring_wait_cqe(&r->ring, &cqe), 0))
		return -EIO;
	EXPECT_EQ(cqe->user_data, user_data);
	res = cqe->res;
	io_uring_cqe_seen(&r->ring, cqe);
	return res;
}

static inline int prepare(struct rig *r, struct io_uring_sqe *sqe, bool read, const struct iovec *iov, int n,
			  uint64_t offset, struct hugepin_sg_uring_message *m)
{
	return read ? hugepin_sg_uring_read(r->s, sqe, r->fd, iov, n, offset, m) :
		      hugepin_sg_uring_write(r->s, sqe, r->fd, iov, n, offset, m);
}

/* Carry a message out; returns its result. It has this opcode. */
static inline int goes(struct rig *r, bool read, const struct iovec *iov, int n, uint64_t offset, int opcode,
		       bool copied)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
	struct hugepin_sg_uring_message m;
	int res;

	if (!EXPECT_EQ(prepare(r, sqe, read, iov, n, offset, &m), 0))
		return -EIO;
	sqe->user_data = 7;
	EXPECT_EQ(sqe->opcode, opcode);
	EXPECT_EQ(m.copy != NULL, copied);
	res = result(r, 7);
	EXPECT_EQ(hugepin_sg_uring_done(r->s, &m, res), 0);
	EXPECT_EQ(hugepin_sg_uring_done(r->s, &m, res), -EINVAL);
	return res;
}

static inline void fill(char *p, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++) {
		seed = seed * 1103515245u + 12345;
		p[i] = (char)(seed >> 16);
	}
}

/* n pieces of so many bytes; returns their sum. */
static inline int lay(struct iovec *iov, int n, char *base, size_t apart, size_t len)
{
	for (int i = 0; i < n; i++)
		iov[i] = (struct iovec){ base + (size_t)i * apart, len };
	return n * (int)len;
}

/* Whether the file has the pieces at this offset. */
static inline bool has(const struct rig *r, const struct iovec *iov, int n, off_t at)
{
	char *found = malloc(MIB);
	bool same = found != NULL;

	for (int i = 0; same && i < n; at += (off_t)iov[i++].iov_len)
		same = pread(r->fd, found, iov[i].iov_len, at) == (ssize_t)iov[i].iov_len &&
		       !memcmp(found, iov[i].iov_base, iov[i].iov_len);
	free(found);
	return same;
}

#endif
