/*
 * Read files into NumPy's arrays by io_uring, with the arrays as registered ("fixed") buffers: the C side of the
 * example in README.md, which calls it by ctypes. The kernel holds the pages of an extent from the first read on.
 * Further reads into arrays of that extent look up no page.
 *
 * cc -O2 -shared -fPIC uring_read.c -o uring_read.so $(pkgconf --cflags --libs hugepin liburing)
 *
 * One thread at a time may use a reader. ctypes.CDLL lets other threads of Python run meanwhile.
 */
#include <errno.h>
#include <hugepin_uring.h>
#include <liburing.h>
#include <stdlib.h>

#define MOST (1U << 30) /* bytes of one read */

struct reader {
	struct io_uring ring;
	hugepin_domain *domain;
};

/* NULL with errno: no io_uring, or none that takes buffers one by one (before Linux 5.19). */
struct reader *reader_open(void)
{
	struct reader *r = calloc(1, sizeof *r);
	int err;

	if (!r)
		return NULL;
	err = io_uring_queue_init(8, &r->ring, 0);
	if (err == 0) {
		err = hugepin_uring_open(&r->ring, 0, 64, NULL, &r->domain);
		if (err == 0)
			return r;
		io_uring_queue_exit(&r->ring);
	}
	free(r);
	errno = -err;
	return NULL;
}

/* Read up to `bytes` from fd at offset `at`. The number of bytes, less at the end of the file, or -errno. */
ssize_t reader_read(struct reader *r, int fd, char *to, size_t bytes, off_t at)
{
	size_t done = 0;

	while (done < bytes) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring); /* never NULL: one request at a time */
		struct io_uring_cqe *cqe;
		struct hugepin_pin pin = { 0 };
		unsigned len = bytes - done < MOST ? (unsigned)(bytes - done) : MOST;
		__u64 from = (__u64)at + done;
		int err = hugepin_pin(r->domain, to + done, len, HUGEPIN_WRITE, &pin);
		int got;

		if (err == 0) /* a registration may end before the buffer does */
			io_uring_prep_read_fixed(sqe, fd, to + done, (unsigned)pin.len, from, (int)pin.lkey);
		else /* over the limit of `ulimit -l`, say: an ordinary read does the same */
			io_uring_prep_read(sqe, fd, to + done, len, from);
		do
			err = io_uring_submit_and_wait(&r->ring, 1);
		while (err == -EINTR);
		if (err >= 0)
			err = io_uring_wait_cqe(&r->ring, &cqe);
		if (err < 0) /* the request may still be under way: its buffer stays pinned */
			return err;
		got = cqe->res;
		io_uring_cqe_seen(&r->ring, cqe);
		if (pin.ref)
			hugepin_unpin(r->domain, &pin);
		if (got < 0)
			return got;
		if (got == 0)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done;
}

/* How often memory has been registered so far. */
long reader_registrations(struct reader *r)
{
	struct hugepin_domain_stats stats;

	return hugepin_domain_stats(r->domain, &stats, sizeof stats) < 0 ? -1 : (long)stats.registered;
}

void reader_close(struct reader *r)
{
	hugepin_domain_close(r->domain);
	io_uring_queue_exit(&r->ring);
	free(r);
}
