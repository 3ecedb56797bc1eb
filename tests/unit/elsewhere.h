/* A ring of an io_uring that has registered memory of this process, and that only another process has open: what is
 * pinned, and nobody here can tell by whom. */
#ifndef TESTS_UNIT_ELSEWHERE_H
#define TESTS_UNIT_ELSEWHERE_H

#include <liburing.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Have it registered, and a read from `fd` begun to its start, of 5 bytes. Returns the other process, which ends with a
 * signal; -1: not to be had. */
static inline pid_t ring_elsewhere(void *p, size_t len, int fd)
{
	struct iovec memory = { p, len };
	struct io_uring ring;
	int tell[2], told[2];
	char c = 0;
	pid_t pid;

	if (pipe(tell) || pipe(told))
		return -1;
	/* It has this process's descriptors until it is told, and never its memory. */
	pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0L, 0L, 0L, 0L);
	if (pid == 0) {
		if (read(tell[0], &c, 1) == 1 && unshare(CLONE_FILES) == 0 && write(told[1], &c, 1) == 1)
			for (;;)
				pause();
		_exit(1);
	}
	if (io_uring_queue_init(4, &ring, 0)) {
		kill(pid, SIGKILL);
		return -1;
	}
	if (io_uring_register_buffers(&ring, &memory, 1)) {
		io_uring_queue_exit(&ring);
		kill(pid, SIGKILL);
		return -1;
	}
	io_uring_prep_read_fixed(io_uring_get_sqe(&ring), fd, p, 5, 0, 0);
	if (io_uring_submit(&ring) != 1 || write(tell[1], &c, 1) != 1 || read(told[0], &c, 1) != 1)
		return -1;
	io_uring_queue_exit(&ring);
	close(tell[0]);
	close(tell[1]);
	close(told[0]);
	close(told[1]);
	return pid;
}

#endif
