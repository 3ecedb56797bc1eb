/*
 * Calibration: the CPU time of messages on a ring of our own, to a loopback TCP connection and to a file past the page
 * cache, by address and by index. The messages go through a queue, so its own time is part of the terms. The thread
 * that sends also receives, so the time is that of both sides.
 *
 * Each cell is a number of elements of one length. The rounds of all cells alternate, so that a disturbance affects
 * all cells alike. A cell's time is the median of its rounds. The terms are fitted by least squares of relative errors;
 * none is negative.
 *
 * Time that the kernel's own threads spend on a request is not counted.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "hugepin_uring.h"
#include "uring/plan.h"

enum {
	ENTRIES = 64,
	ROUNDS = 9,
	BATCH = 16, /* messages of one measurement */
	CELLS = 8,
	TERMS = 3,
	ELEMENTS_MAX = 32,
	STRIDE = 32768, /* between elements */
	MEMORY = ELEMENTS_MAX * STRIDE,
	BUFFER = 1 << 20, /* of sockets */
	UNREAD = 100 << 10, /* what is sent before it is received, if there is room for it */
	PATIENCE_MS = 5000,
};

/* Elements, and their length: of sends, of files. Sends have long ones, too: what was copied. */
static const struct {
	uint32_t n, len;
} layouts[2][CELLS] = {
	{ { 1, 64 }, { 8, 64 }, { 32, 64 }, { 1, 2048 }, { 8, 2048 }, { 32, 2048 }, { 1, 16384 }, { 1, 65536 } },
	{ { 1, 4096 }, { 8, 4096 }, { 32, 4096 }, { 1, 16384 }, { 8, 16384 }, { 32, 16384 }, { 4, 8192 }, { 16, 8192 } },
};

struct bench {
	struct io_uring ring;
	hugepin_domain *domain;
	struct hugepin_pin pin;
	hugepin_sg_uring *queue;
	char *memory, *received;
	int peer, fd[2]; /* fd: a socket, a file */
	size_t unread; /* bytes sent and not received */
	struct hugepin_sg_uring_target target[2];
};

struct cell {
	double term[TERMS]; /* requests, elements, bytes */
	double ns;
};

/* ------------------------------------------------------------------ the fit */

/* Solve for the terms in `used`. False: they are not determined. */
static bool solve(const struct cell *cells, const bool used[TERMS], double x[TERMS])
{
	double a[TERMS][TERMS + 1] = { { 0 } };

	for (int c = 0; c < CELLS; c++)
		for (int i = 0; i < TERMS; i++) {
			const double scaled = cells[c].term[i] / (cells[c].ns * cells[c].ns);
			for (int j = 0; j < TERMS; j++)
				a[i][j] += scaled * cells[c].term[j];
			a[i][TERMS] += scaled * cells[c].ns;
		}
	for (int i = 0; i < TERMS; i++) {
		for (int j = 0; !used[i] && j <= TERMS; j++)
			a[i][j] = i == j;
		for (int j = 0; j < TERMS; j++)
			if (used[i] && !used[j])
				a[i][j] = 0;
	}
	for (int i = 0; i < TERMS; i++) {
		if (!(a[i][i] > 1e-30))
			return false;
		for (int k = 0; k < TERMS; k++) {
			const double f = k == i ? 0 : a[k][i] / a[i][i];
			for (int j = i; j <= TERMS; j++)
				a[k][j] -= f * a[i][j];
		}
	}
	for (int i = 0; i < TERMS; i++)
		x[i] = a[i][TERMS] / a[i][i];
	return true;
}

static bool fit(const struct cell *cells, struct hugepin_sg_uring_cost *ret_)
{
	bool used[TERMS] = { true, true, true };
	double x[TERMS];

	for (int c = 0; c < CELLS; c++)
		if (!(cells[c].ns > 0))
			return false;
	for (;;) {
		int worst = -1;

		if (!solve(cells, used, x))
			return false;
		for (int i = 0; i < TERMS; i++)
			if (x[i] < 0 && (worst < 0 || x[i] < x[worst]))
				worst = i;
		if (worst < 0)
			break;
		used[worst] = false;
	}
	*ret_ = (struct hugepin_sg_uring_cost){ (float)x[0], (float)x[1], (float)x[2] };
	return true;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* ------------------------------------------------------------------ messages */

static double cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

struct end {
	unsigned what;
	int err;
};

static void note(void *arg, int err, size_t bytes, unsigned what)
{
	struct end *e = arg;

	(void)bytes;
	e->what |= what;
	e->err = err;
}

/* Receive some of what was sent. */
static int receive(struct bench *b, int flags)
{
	const ssize_t got = recv(b->peer, b->received, HP_MIN(b->unread, (size_t)MEMORY), flags);

	if (got > 0)
		b->unread -= (size_t)got;
	return got > 0 || (got < 0 && (errno == EINTR || (errno == EAGAIN && flags & MSG_DONTWAIT))) ? 0 : -EIO;
}

/* Wait until the message has come so far. What is sent is received meanwhile: the peer may be what has no room. */
static int await(struct bench *b, const struct end *e, unsigned what)
{
	struct io_uring_cqe *cqe;
	int err = io_uring_submit(&b->ring);

	while (err >= 0) {
		struct pollfd fds[] = { { .fd = b->ring.ring_fd, .events = POLLIN },
					{ .fd = b->unread ? b->peer : -1, .events = POLLIN } };

		while (!io_uring_peek_cqe(&b->ring, &cqe)) {
			hugepin_sg_uring_cqe(b->queue, cqe);
			io_uring_cqe_seen(&b->ring, cqe);
		}
		if ((e->what & what) == what)
			return e->err;
		err = io_uring_submit(&b->ring);
		if (err >= 0 && !poll(fds, 2, PATIENCE_MS))
			err = -ETIMEDOUT;
		if (err >= 0 && fds[1].revents)
			err = receive(b, MSG_DONTWAIT);
	}
	return err;
}

static int begin(struct bench *b, unsigned verb, unsigned mode, const struct iovec *iov, uint32_t n, struct end *e)
{
	if (verb == HUGEPIN_SG_URING_SEND)
		return hugepin_sg_uring_send(b->queue, &b->target[0], iov, (int)n, mode, note, e);
	if (verb == HUGEPIN_SG_URING_WRITE)
		return hugepin_sg_uring_write(b->queue, &b->target[1], 0, iov, (int)n, mode, note, e);
	return hugepin_sg_uring_read(b->queue, &b->target[1], 0, iov, (int)n, mode, note, e);
}

/* Messages one after the other, received by the hundred KiB: as with a backlog, not as in ping-pong. */
static int measure_cell(struct bench *b, unsigned verb, unsigned mode, uint32_t n, uint32_t len, double *ret_ns)
{
	const size_t bytes = (size_t)n * len;
	struct iovec iov[ELEMENTS_MAX];
	struct end e[BATCH] = { { 0 } };
	double start;
	int err = 0, out = 0;

	for (uint32_t i = 0; i < n; i++)
		iov[i] = (struct iovec){ b->memory + (size_t)i * STRIDE, len };
	start = cpu_ns();
	while (out < BATCH && !err) {
		err = begin(b, verb, mode, iov, n, &e[out]);
		if (err)
			break;
		b->unread += verb == HUGEPIN_SG_URING_SEND ? bytes : 0;
		err = await(b, &e[out++], HUGEPIN_SG_URING_DONE);
		while (!err && b->unread + bytes > UNREAD && b->unread)
			err = receive(b, 0);
	}
	/* After an error the connection ends, so that the network lets go of what it has. */
	if (err)
		shutdown(b->peer, SHUT_RDWR);
	for (int i = 0; i < out; i++) {
		const int end = await(b, &e[i], HUGEPIN_SG_URING_DONE | HUGEPIN_SG_URING_FREE);
		err = err ? err : end;
	}
	while (!err && b->unread)
		err = receive(b, 0);
	*ret_ns = (cpu_ns() - start) / (double)BATCH;
	return err;
}

/* Measure a verb both ways. */
static int measure_verb(struct bench *b, unsigned verb, struct hugepin_sg_uring_model *m)
{
	static const unsigned modes[] = { HUGEPIN_SG_URING_PLAIN, HUGEPIN_SG_URING_FIXED };
	struct hugepin_sg_uring_cost cost[2];
	struct cell cells[2][CELLS];
	double ns[2][CELLS][ROUNDS];
	int err;

	for (int round = -1; round < ROUNDS; round++) /* the first warms up */
		for (int w = 0; w < 2; w++)
			for (int c = 0; c < CELLS; c++) {
				const uint32_t n = layouts[verb != HUGEPIN_SG_URING_SEND][c].n;
				const uint32_t len = layouts[verb != HUGEPIN_SG_URING_SEND][c].len;

				err = measure_cell(b, verb, modes[w], n, len, &ns[w][c][round < 0 ? 0 : round]);
				if (err)
					return err;
				cells[w][c] = (struct cell){ .term = { 1, n, (double)n * len } };
			}
	for (int w = 0; w < 2; w++) {
		for (int c = 0; c < CELLS; c++) {
			qsort(ns[w][c], ROUNDS, sizeof ns[w][c][0], by_value);
			cells[w][c].ns = ns[w][c][ROUNDS / 2];
		}
		if (!fit(cells[w], &cost[w]))
			return -EIO;
	}
	/* Then both ways were by address. */
	if (b->target[verb != HUGEPIN_SG_URING_SEND].refused)
		return -EOPNOTSUPP;
	m->plain[verb] = cost[0];
	m->fixed[verb] = cost[1];
	m->measured |= 1u << verb;
	return 0;
}

/* volatile: the compiler does not know which function it is. */
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;

static void measure_copies(struct bench *b, struct hugepin_sg_uring_model *m)
{
	enum { PIECES = 32, SHORT = 64, LONG = 4096, TIMES = 50 };
	const size_t len[2] = { SHORT, LONG };
	double ns[2][ROUNDS];

	for (int round = 0; round < ROUNDS; round++)
		for (int l = 0; l < 2; l++) {
			const double start = cpu_ns();
			for (int k = 0; k < TIMES; k++)
				for (size_t i = 0; i < PIECES; i++)
					copy(b->received + i * len[l], b->memory + i * STRIDE, len[l]);
			ns[l][round] = (cpu_ns() - start) / (double)(TIMES * PIECES);
		}
	for (int l = 0; l < 2; l++)
		qsort(ns[l], ROUNDS, sizeof ns[l][0], by_value);
	const double a = ns[0][ROUNDS / 2], z = ns[1][ROUNDS / 2];
	if (z > a) {
		m->copy_byte = (float)((z - a) / (LONG - SHORT));
		m->piece = (float)HP_MAX(1, a - (double)SHORT * (double)m->copy_byte);
	}
}

/* ------------------------------------------------------------------ what it takes */

static int open_sockets(struct bench *b)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	const int size = BUFFER, yes = 1;
	const struct timeval patience = { .tv_sec = PATIENCE_MS / 1000 };
	const int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool opened;

	setsockopt(l, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	opened = !bind(l, (struct sockaddr *)&a, len) && !listen(l, 1) && !getsockname(l, (struct sockaddr *)&a, &len);
	b->fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(b->fd[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	setsockopt(b->fd[0], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
	opened = opened && !connect(b->fd[0], (struct sockaddr *)&a, len);
	if (opened)
		b->peer = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	setsockopt(b->peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	if (l >= 0)
		close(l);
	return opened && b->peer >= 0 ? hugepin_sg_uring_target(b->fd[0], &b->target[0]) : -EIO;
}

/* The file has its blocks before anything is measured. */
static int open_file(struct bench *b, const char *directory)
{
	b->fd[1] = open(directory, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	if (b->fd[1] < 0)
		return -errno;
	for (size_t at = 0; at < MEMORY; at += STRIDE)
		if (pwrite(b->fd[1], b->memory, STRIDE, (off_t)at) != STRIDE)
			return -EIO;
	return hugepin_sg_uring_target(b->fd[1], &b->target[1]);
}

static int bench_open(struct bench *b)
{
	const struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .messages = BATCH,
						    .without = HUGEPIN_SG_URING_COPY };
	/* One pin serves all messages on every kernel: the memory is ours, and whole until the domain is closed. */
	const struct hugepin_attr domain = { .size = sizeof domain, .watch = HUGEPIN_WATCH_NONE };
	int err;

	b->memory = hugepin_aligned_alloc(STRIDE, MEMORY);
	b->received = hugepin_aligned_alloc(STRIDE, MEMORY);
	if (!b->memory || !b->received)
		return -ENOMEM;
	memset(b->memory, 1, MEMORY);
	memset(b->received, 1, MEMORY);
	err = hugepin_uring_open(&b->ring, 0, 8, &domain, &b->domain);
	if (!err)
		err = hugepin_pin(b->domain, b->memory, MEMORY, 0, &b->pin);
	if (!err)
		err = hugepin_sg_uring_open(&b->ring, b->domain, &attr, &b->queue);
	return err;
}

static void bench_close(struct bench *b)
{
	/* If the ring failed, a message is out for ever: the kernel may still use this memory. */
	if (b->queue && hugepin_sg_uring_close(b->queue))
		return;
	if (b->domain) {
		hugepin_unpin(b->domain, &b->pin); /* -EINVAL: no pin */
		hugepin_domain_close(b->domain);
	}
	const int fds[] = { b->peer, b->fd[0], b->fd[1] };
	for (int i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	hugepin_free(b->memory);
	hugepin_free(b->received);
	io_uring_queue_exit(&b->ring);
}

int hugepin_sg_uring_calibrate(const char *directory, struct hugepin_sg_uring_model *ret_, size_t size)
{
	struct bench b = { .peer = -1, .fd = { -1, -1 } };
	struct hugepin_sg_uring_model m = hp_uring_model_default;
	const int saved_errno = errno;
	int err;

	if (!ret_ || size < sizeof m)
		return -EINVAL;
	err = io_uring_queue_init(ENTRIES, &b.ring, 0);
	if (err < 0)
		return err;
	err = bench_open(&b);
	/* A failure of one of these leaves its terms as they are. */
	if (!err) {
		measure_copies(&b, &m);
		if (!open_sockets(&b))
			measure_verb(&b, HUGEPIN_SG_URING_SEND, &m);
		if (directory && !open_file(&b, directory)) {
			measure_verb(&b, HUGEPIN_SG_URING_WRITE, &m);
			measure_verb(&b, HUGEPIN_SG_URING_READ, &m);
		}
	}
	bench_close(&b);
	errno = saved_errno;
	if (err)
		return err;
	memset(ret_, 0, size);
	*ret_ = m;
	return 0;
}
