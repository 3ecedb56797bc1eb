/*
 * What a message of many pieces costs, to and from a file, by how it goes: processor time.
 *
 *	uring [-r ROUNDS] [-n PIECES] [-b BYTES] [-d DIRECTORY] [cached | write | read]
 *
 * Targets: cached (written to the page cache), write and read (past it, O_DIRECT). Subjects: each (a pwrite(2) or pread(2)
 * for each piece), copy (copied into a buffer, one call), vector (pwritev(2), preadv(2)), chain (a linked request of
 * io_uring for each piece, submitted at once); and by hugepin_sg_uring(3): address (nothing is copied or registered), slot
 * (always copied, up to 1 MiB), and hugepin (as it does by default). Rounds are interleaved; a sample is the mean of a batch. -b has
 * pieces of one size only.
 *
 * Lines: "cell ROUND SUBJECT TARGET PIECES BYTES NS".
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "hugepin_sg_uring.h"
#include "hugepin_uring.h"

enum {
	PIECES_MAX = 128,
	BYTES_MAX = 65536,
	STRIDE = BYTES_MAX + 8192, /* between pieces */
	BATCH = 32, /* messages of a sample */
	ENTRIES = 256,
};
static const unsigned cached_bytes[] = { 64, 256, 1000, 4096 }, direct_bytes[] = { 4096, 16384, BYTES_MAX };
#define COUNT(a) (sizeof(a) / sizeof *(a))

enum { CACHED, WRITE, READ };
static const char *const targets[] = { "cached", "write", "read" };
enum { EACH, COPIED, VECTOR, CHAIN, ADDRESS, SLOT, HUGEPIN };
static const char *const subjects[] = { "each", "copy", "vector", "chain", "address", "slot", "hugepin" };

static struct io_uring ring;
static hugepin_domain *domain;
static hugepin_sg_uring *object[COUNT(subjects)];
static int file[COUNT(targets)];
static char *memory, *buffer;
static struct iovec iov[PIECES_MAX];
static int n;
static size_t message;

static double cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void check(long ret, const char *what)
{
	if (ret < 0)
		errx(1, "%s: %s", what, strerror(ret == -1 && errno ? errno : (int)-ret));
}

/* ------------------------------------------------------------------ messages */

/* Submit, and wait for so many requests, which transfer so many bytes. */
static int await(int requests, size_t bytes)
{
	struct io_uring_cqe *cqe;
	size_t sum = 0;

	check(io_uring_submit(&ring), "io_uring_submit");
	for (int i = 0; i < requests; i++) {
		check(io_uring_wait_cqe(&ring, &cqe), "io_uring_wait_cqe");
		check(cqe->res, "a request");
		sum += (size_t)cqe->res;
		io_uring_cqe_seen(&ring, cqe);
	}
	if (sum != bytes)
		errx(1, "%zu of %zu bytes", sum, bytes);
	return (int)sum;
}

static void by_hugepin(int kind, hugepin_sg_uring *s)
{
	struct hugepin_sg_uring_message m;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

	if (kind == READ)
		check(hugepin_sg_uring_read(s, sqe, file[kind], iov, n, 0, &m), "hugepin_sg_uring_read");
	else
		check(hugepin_sg_uring_write(s, sqe, file[kind], iov, n, 0, &m), "hugepin_sg_uring_write");
	hugepin_sg_uring_done(s, &m, await(1, message));
}

static void chain(int kind)
{
	size_t at = 0;

	for (int i = 0; i < n; at += iov[i++].iov_len) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		const unsigned len = (unsigned)iov[i].iov_len;

		if (kind == READ)
			io_uring_prep_read(sqe, file[kind], iov[i].iov_base, len, at);
		else
			io_uring_prep_write(sqe, file[kind], iov[i].iov_base, len, at);
		sqe->flags |= i + 1 < n ? IOSQE_IO_LINK : 0;
	}
	await(n, message);
}

static ssize_t transfer(int kind, void *p, size_t len, size_t at)
{
	return kind == READ ? pread(file[kind], p, len, (off_t)at) : pwrite(file[kind], p, len, (off_t)at);
}

static void each(int kind)
{
	size_t at = 0;

	for (int i = 0; i < n; at += iov[i++].iov_len)
		check(transfer(kind, iov[i].iov_base, iov[i].iov_len, at), "a piece");
}

static void copied(int kind)
{
	size_t at = 0;

	if (kind == READ)
		check(transfer(kind, buffer, message, 0), "a copy");
	for (int i = 0; i < n; at += iov[i++].iov_len)
		if (kind == READ)
			memcpy(iov[i].iov_base, buffer + at, iov[i].iov_len);
		else
			memcpy(buffer + at, iov[i].iov_base, iov[i].iov_len);
	if (kind != READ)
		check(transfer(kind, buffer, message, 0), "a copy");
}

static void one(int kind, int subject)
{
	switch (subject) {
	case EACH:
		each(kind);
		break;
	case COPIED:
		copied(kind);
		break;
	case VECTOR:
		check(kind == READ ? preadv(file[kind], iov, n, 0) : pwritev(file[kind], iov, n, 0), "a vector");
		break;
	case CHAIN:
		chain(kind);
		break;
	default:
		by_hugepin(kind, object[subject]);
	}
}

/* Nanoseconds of a message. */
static double sample(int kind, int subject)
{
	const double start = cpu_ns();

	for (int i = 0; i < BATCH; i++)
		one(kind, subject);
	return (cpu_ns() - start) / (double)BATCH;
}

/* ------------------------------------------------------------------ what it takes */

static void open_files(const char *directory)
{
	file[CACHED] = open(directory, O_TMPFILE | O_RDWR, 0600);
	file[WRITE] = file[READ] = open(directory, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
	if (file[CACHED] < 0 || file[WRITE] < 0)
		err(1, "%s: a file past the page cache", directory);
	for (size_t at = 0; at < (size_t)PIECES_MAX * BYTES_MAX; at += BYTES_MAX)
		check(pwrite(file[WRITE], memory, BYTES_MAX, (off_t)at), "pwrite");
}

static void open_object(int subject, hugepin_domain *d, unsigned copy_below)
{
	struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .copies = 1, .copy_len = 1 << 20, .copy_below = copy_below };

	check(hugepin_sg_uring_open(d, &attr, &object[subject]), "hugepin_sg_uring_open");
}

static void cell(int kind, int pieces, unsigned bytes, int rounds)
{
	n = pieces;
	message = (size_t)n * bytes;
	for (int i = 0; i < n; i++)
		iov[i] = (struct iovec){ memory + (size_t)i * STRIDE, bytes };
	for (int round = -1; round < rounds; round++)
		for (int s = 0; s < (int)COUNT(subjects); s++) {
			const double ns = sample(kind, s);
			if (round >= 0) /* the first one warms up */
				printf("cell %d %s %s %d %u %.0f\n", round, subjects[s], targets[kind], n, bytes, ns);
		}
}

int main(int argc, char **argv)
{
	const char *directory = "/var/tmp", *only = NULL;
	struct hugepin_pin pin;
	int option, pieces = 30, rounds = 15;
	unsigned bytes = 0;

	while ((option = getopt(argc, argv, "r:n:b:d:")) != -1) {
		if (option == 'r')
			rounds = atoi(optarg);
		else if (option == 'n')
			pieces = atoi(optarg);
		else if (option == 'b')
			bytes = (unsigned)atoi(optarg);
		else if (option == 'd')
			directory = optarg;
		else
			return 2;
	}
	only = argv[optind];
	if (pieces < 1 || pieces > PIECES_MAX || bytes > BYTES_MAX || rounds < 1)
		errx(2, "up to %d pieces of up to %d bytes", PIECES_MAX, BYTES_MAX);

	check(io_uring_queue_init(ENTRIES, &ring, 0), "io_uring");
	check(hugepin_uring_open(&ring, 0, 64, NULL, &domain), "hugepin_uring_open");
	memory = hugepin_calloc(PIECES_MAX, STRIDE);
	buffer = hugepin_calloc(PIECES_MAX, BYTES_MAX);
	if (!memory || !buffer)
		err(1, "hugepin_calloc");
	check(hugepin_pin(domain, memory, (size_t)PIECES_MAX * STRIDE, 0, &pin), "hugepin_pin");
	open_files(directory);
	open_object(ADDRESS, NULL, 1);
	open_object(SLOT, domain, UINT32_MAX);
	open_object(HUGEPIN, domain, 0);

	for (int kind = 0; kind < (int)COUNT(targets); kind++) {
		const unsigned *sizes = kind == CACHED ? cached_bytes : direct_bytes;
		const size_t count = kind == CACHED ? COUNT(cached_bytes) : COUNT(direct_bytes);

		if (only && strcmp(only, targets[kind]))
			continue;
		for (size_t i = 0; i < (bytes ? 1 : count); i++)
			cell(kind, pieces, bytes ? bytes : sizes[i], rounds);
		if (!bytes && kind != CACHED)
			cell(kind, 1, BYTES_MAX, rounds); /* by its registration */
	}
	return 0;
}
