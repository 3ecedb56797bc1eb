/* link: hugepin uring */
/*
 * copy SOURCE TARGET: copy a file past the page cache, several blocks at a time. Does so with ordinary buffers, whose
 * pages the kernel looks up and holds anew for each request, and with the same buffers pinned once: three times each,
 * in turn. Compares each copy with the source, and prints the best speed of both.
 */
#define _GNU_SOURCE 1 /* O_DIRECT */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <hugepin_uring.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	BLOCK = 256 << 10, /* more than HUGEPIN_LARGE_MIN, so buffers begin on a boundary of 4 KiB */
	DEPTH = 16, /* blocks under way */
	ALIGN = 4096, /* what O_DIRECT asks of addresses, offsets and lengths, at most */
};

/* One buffer and the block that it carries; one request at a time. */
struct slot {
	char *buffer;
	struct hugepin_pin pin;
	off_t at; /* of the block, in the file */
	size_t len, done; /* len: of the block; done: bytes read, or written, so far */
	bool writing; /* to TARGET; else reading from SOURCE */
};

enum { SOURCE, TARGET };
static char **names; /* of both files */
static int fds[2][2] = { { -1, -1 }, { -1, -1 } }; /* of both files: through the page cache, and past it */
static struct io_uring ring;
static hugepin_domain *domain;
static struct slot slots[DEPTH];
static int busy; /* slots with a request under way */
static off_t size, next; /* of the source; where the next block begins */
static bool fixed; /* use the pins */

_Noreturn static void fail(int error, const char *what)
{
	errx(1, "%s: %s", what, strerror(-error));
}

static void open_file(int which, int flags)
{
	fds[which][0] = open(names[which], flags | O_CLOEXEC, 0666);
	if (fds[which][0] < 0)
		err(1, "%s", names[which]);
	fds[which][1] = open(names[which], flags | O_CLOEXEC | O_DIRECT, 0666);
	if (fds[which][1] < 0) /* not every file system has it */
		fds[which][1] = dup(fds[which][0]);
}

/* Returns -1 with errno if what was written may be lost. */
static int close_file(int which)
{
	int *fd = fds[which], ret = 0;

	for (int i = 0; i < 2; i++) {
		if (fd[i] >= 0 && close(fd[i]) < 0)
			ret = -1;
		fd[i] = -1;
	}
	return ret;
}

/* At exit, after an error, too: first the requests, since the kernel uses the buffers until they are done. */
static void give_back(void)
{
	struct io_uring_cqe *cqe;
	int error;

	while (busy && ((error = io_uring_submit_and_wait(&ring, 1)) >= 0 || error == -EINTR))
		while (!io_uring_peek_cqe(&ring, &cqe)) {
			io_uring_cqe_seen(&ring, cqe);
			busy--;
		}
	for (struct slot *s = slots; domain && s < slots + DEPTH; s++) {
		hugepin_unpin(domain, &s->pin); /* -EINVAL where there is none */
		hugepin_free(s->buffer);
	}
	hugepin_domain_close(domain); /* before the ring */
	io_uring_queue_exit(&ring);
}

static void close_files(void)
{
	close_file(SOURCE);
	close_file(TARGET);
}

/* Ask for the rest of the slot's block. Through the page cache goes what is not whole blocks of the disk: the end of
 * most files, and what is left of a request that came back short. */
static void request(struct slot *s)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	off_t at = s->at + (off_t)s->done;
	unsigned len = (unsigned)(s->len - s->done);
	int fd = fds[s->writing][at % ALIGN == 0 && len % ALIGN == 0];
	bool by_index = fixed && s->pin.len == BLOCK; /* shorter: cut, or no pin at all */

	if (!sqe)
		fail(-EBUSY, "io_uring_get_sqe");
	if (by_index && s->writing)
		io_uring_prep_write_fixed(sqe, fd, s->buffer + s->done, len, (__u64)at, (int)s->pin.lkey);
	else if (by_index)
		io_uring_prep_read_fixed(sqe, fd, s->buffer + s->done, len, (__u64)at, (int)s->pin.lkey);
	else if (s->writing)
		io_uring_prep_write(sqe, fd, s->buffer + s->done, len, (__u64)at);
	else
		io_uring_prep_read(sqe, fd, s->buffer + s->done, len, (__u64)at);
	io_uring_sqe_set_data(sqe, s);
}

/* Read the next block into the slot. False: there is none. */
static bool start(struct slot *s)
{
	if (next >= size)
		return false;
	s->at = next;
	s->len = size - next < BLOCK ? (size_t)(size - next) : BLOCK;
	s->done = 0;
	s->writing = false;
	next += BLOCK;
	request(s);
	return true;
}

/* The slot's request is back. False: it has nothing more to do. */
static bool finish(struct slot *s, int result)
{
	if (result == 0)
		errx(1, "%s %s", names[s->writing], s->writing ? "takes no more" : "became shorter");
	if (result > 0)
		s->done += (size_t)result;
	else if (result != -EAGAIN && result != -EINTR)
		fail(result, names[s->writing]);
	if (s->done == s->len) {
		if (s->writing)
			return start(s);
		s->writing = true;
		s->done = 0;
	}
	request(s);
	return true;
}

/* Copy the file. Returns MiB/s. */
static double copy(void)
{
	struct timespec begin, end;
	struct io_uring_cqe *cqe;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (next = 0; busy < DEPTH && start(&slots[busy]); busy++)
		;
	while (busy) {
		int error = io_uring_submit_and_wait(&ring, 1);
		if (error < 0 && error != -EINTR)
			fail(error, "io_uring_submit_and_wait");
		while (!io_uring_peek_cqe(&ring, &cqe)) {
			busy -= !finish(io_uring_cqe_get_data(cqe), cqe->res);
			io_uring_cqe_seen(&ring, cqe);
		}
	}
	if (fdatasync(fds[TARGET][0]) < 0)
		err(1, "%s", names[TARGET]);
	clock_gettime(CLOCK_MONOTONIC, &end);
	long us = (end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000;
	return (double)size / 1.048576 / (double)us;
}

static void compare(void)
{
	static char text[2][BLOCK];

	for (ssize_t at = 0, n; at < size; at += n) {
		n = pread(fds[SOURCE][0], text[0], BLOCK, at);
		if (n <= 0 || pread(fds[TARGET][0], text[1], BLOCK, at) != n || memcmp(text[0], text[1], (size_t)n))
			errx(1, "%s differs from %s", names[TARGET], names[SOURCE]);
	}
}

int main(int argc, char **argv)
{
	double best[2] = { 0, 0 }, speed;
	struct stat from, to;
	int error;

	if (argc != 3)
		errx(2, "usage: copy SOURCE TARGET");
	names = argv + 1;
	atexit(close_files);
	open_file(SOURCE, O_RDONLY);
	if (fstat(fds[SOURCE][0], &from) < 0 || !S_ISREG(from.st_mode))
		errx(1, "%s is not a regular file", names[SOURCE]);
	if (!stat(names[TARGET], &to) && to.st_dev == from.st_dev && to.st_ino == from.st_ino)
		errx(1, "%s and %s are the same file", names[SOURCE], names[TARGET]);
	size = from.st_size;

	if ((error = io_uring_queue_init(DEPTH, &ring, 0)) < 0)
		fail(error, "io_uring");
	atexit(give_back);
	if ((error = hugepin_uring_open(&ring, 0, DEPTH, NULL, &domain)) < 0)
		fail(error, "io_uring");
	for (struct slot *s = slots; s < slots + DEPTH; s++) {
		s->buffer = hugepin_malloc(BLOCK); /* or malloc, under the drop-in */
		if (!s->buffer)
			err(1, "hugepin_malloc");
		if ((error = hugepin_pin(domain, s->buffer, BLOCK, 0, &s->pin)) < 0)
			warnx("hugepin_pin: %s; going on without", strerror(-error));
	}

	for (int i = 0; i < 6; i++) {
		fixed = i % 2;
		open_file(TARGET, O_RDWR | O_CREAT | O_TRUNC);
		speed = copy();
		compare();
		if (close_file(TARGET) < 0)
			err(1, "%s", names[TARGET]);
		if (best[fixed] < speed)
			best[fixed] = speed;
	}
	printf("%.0f MiB/s with ordinary buffers, %.0f MiB/s with pinned ones\n", best[0], best[1]);
	return 0;
}
