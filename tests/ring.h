/* What the kernel answers on a ring of io_uring. */
#ifndef TESTS_RING_H
#define TESTS_RING_H

#include <errno.h>

#include <liburing.h>

/* The result of the next completion, or the error of waiting. A stop (SIGSTOP) ends a wait without a completion: then
 * wait again. */
static inline int ring_result(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	int res;

	do
		res = io_uring_wait_cqe(ring, &cqe);
	while (res == -EINTR);
	if (res == 0) {
		res = cqe->res;
		io_uring_cqe_seen(ring, cqe);
	}
	return res;
}

#endif
