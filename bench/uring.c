/*
 * What a message of many pieces costs, by how it goes: to a loopback TCP connection, to and from a file past the page
 * cache. The processor time of both sides: one thread sends and receives.
 *
 *	uring [-r ROUNDS] [-n PIECES] [-b BYTES] [-d DIRECTORY] [tcp | write | read]
 *
 * Subjects: each (a send(2), pwrite(2) or pread(2) for each piece), more (the same, with MSG_MORE but for the last),
 * copy (copied into a buffer, one call), vector (sendmsg(2), pwritev(2), preadv(2)), chain (a linked request of io_uring
 * for each piece, submitted at once); and by hugepin_sg_uring: plain (by address), fixed (by index, sends without a
 * copy), slot (copied into a registered slot), and plan (as hugepin_sg_uring_plan chose with the model measured at the
 * start). Rounds are interleaved; a sample is the mean of a batch. -b has pieces of one size only.
 *
 * Lines: "cell ROUND SUBJECT TARGET PIECES BYTES NS", "model TARGET WAY REQUEST ELEMENT BYTE", "copies PIECE BYTE".
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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
	BUFFER = 1 << 20, /* of sockets */
	UNREAD = 100 << 10, /* so many bytes sent and not received, at most */
};
static const unsigned tcp_bytes[] = { 64, 256, 1000, 3000 }, file_bytes[] = { 4096, 16384, BYTES_MAX };
#define COUNT(a) (sizeof(a) / sizeof *(a))

enum { TCP, WRITE, READ };
static const char *const targets[] = { "tcp", "write", "read" };
static const char *const subjects[] = { "each", "more", "copy", "vector", "chain", "plain", "fixed", "slot", "plan" };
enum { EACH, MORE, COPIED, VECTOR, CHAIN, PLAIN, FIXED, SLOT, PLAN };
static const unsigned modes[] = { [PLAIN] = HUGEPIN_SG_URING_PLAIN, [FIXED] = HUGEPIN_SG_URING_FIXED,
				  [SLOT] = HUGEPIN_SG_URING_COPY, [PLAN] = 0 };

static struct io_uring ring;
static hugepin_domain *domain;
static hugepin_sg_uring *queue;
static struct hugepin_sg_uring_target target[2]; /* a socket, a file */
static int peer, out, file;
static char *memory, *buffer;
static struct iovec iov[PIECES_MAX];
static int n = 30;
static size_t message, unread;

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

static unsigned said;
static int chained;

static void done(void *arg, int error, size_t bytes, unsigned what)
{
	(void)arg;
	if (error || bytes != message)
		errx(1, "a message ends with %zu bytes: %s", bytes, strerror(-error));
	said |= what;
}

static void receive(int flags)
{
	ssize_t got = recv(peer, buffer, unread, flags);

	check(got > 0 ? got : -EIO, "recv");
	unread -= (size_t)got;
}

/* Hand completions in until this is said, and the program's own requests have completed. */
static void await(unsigned what)
{
	struct io_uring_cqe *cqe;

	while ((said & what) != what || chained) {
		struct pollfd fds[] = { { .fd = ring.ring_fd, .events = POLLIN },
					{ .fd = unread ? peer : -1, .events = POLLIN } };

		check(io_uring_submit(&ring), "io_uring_submit");
		if (!io_uring_cq_ready(&ring) && poll(fds, 2, -1) > 0 && fds[1].revents)
			receive(0);
		while (!io_uring_peek_cqe(&ring, &cqe)) {
			if (!hugepin_sg_uring_cqe(queue, cqe)) {
				check(cqe->res, "a request of a chain");
				chained--;
			}
			io_uring_cqe_seen(&ring, cqe);
		}
	}
}

static void by_queue(int kind, unsigned mode)
{
	said = 0;
	if (kind == TCP)
		check(hugepin_sg_uring_send(queue, &target[0], iov, n, mode, done, NULL), "send");
	else if (kind == WRITE)
		check(hugepin_sg_uring_write(queue, &target[1], 0, iov, n, mode, done, NULL), "write");
	else
		check(hugepin_sg_uring_read(queue, &target[1], 0, iov, n, mode, done, NULL), "read");
	await(HUGEPIN_SG_URING_DONE);
}

static void chain(int kind)
{
	size_t at = 0;

	for (int i = 0; i < n; at += iov[i++].iov_len) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		const unsigned len = (unsigned)iov[i].iov_len;

		if (kind == TCP)
			io_uring_prep_send(sqe, out, iov[i].iov_base, len, MSG_WAITALL);
		else if (kind == WRITE)
			io_uring_prep_write(sqe, file, iov[i].iov_base, len, at);
		else
			io_uring_prep_read(sqe, file, iov[i].iov_base, len, at);
		sqe->flags |= i + 1 < n ? IOSQE_IO_LINK : 0;
		sqe->user_data = 0;
		chained++;
	}
	said = HUGEPIN_SG_URING_DONE;
	await(HUGEPIN_SG_URING_DONE);
}

static ssize_t transfer(int kind, void *p, size_t len, size_t at, int flags)
{
	return kind == TCP ? send(out, p, len, flags) :
	       kind == WRITE ? pwrite(file, p, len, (off_t)at) : pread(file, p, len, (off_t)at);
}

static void by_calls(int kind, bool more)
{
	size_t at = 0;

	for (int i = 0; i < n; at += iov[i++].iov_len)
		check(transfer(kind, iov[i].iov_base, iov[i].iov_len, at, more && i + 1 < n ? MSG_MORE : 0), "a piece");
}

static void copied(int kind)
{
	size_t at = 0;

	if (kind == READ)
		check(transfer(kind, buffer, message, 0, 0), "a copy");
	for (int i = 0; i < n; at += iov[i++].iov_len)
		if (kind == READ)
			memcpy(iov[i].iov_base, buffer + at, iov[i].iov_len);
		else
			memcpy(buffer + at, iov[i].iov_base, iov[i].iov_len);
	if (kind != READ)
		check(transfer(kind, buffer, message, 0, 0), "a copy");
}

static void vector(int kind)
{
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = (size_t)n };

	check(kind == TCP ? sendmsg(out, &m, 0) :
	      kind == WRITE ? pwritev(file, iov, n, 0) : preadv(file, iov, n, 0), "a vector");
}

static void one(int kind, int subject)
{
	unread += kind == TCP ? message : 0;
	switch (subject) {
	case EACH:
	case MORE:
		by_calls(kind, subject == MORE);
		break;
	case COPIED:
		copied(kind);
		break;
	case VECTOR:
		vector(kind);
		break;
	case CHAIN:
		chain(kind);
		break;
	default:
		by_queue(kind, modes[subject]);
	}
	if (unread && unread + message > UNREAD)
		receive(MSG_WAITALL);
}

/* Nanoseconds of a message. */
static double sample(int kind, int subject)
{
	struct hugepin_sg_uring_stats s = { .out = 1 };
	const double start = cpu_ns();

	for (int i = 0; i < BATCH; i++)
		one(kind, subject);
	if (unread)
		receive(MSG_WAITALL);
	while (hugepin_sg_uring_stats(queue, &s, sizeof s) == 0 && s.out) {
		said = 0;
		await(HUGEPIN_SG_URING_FREE);
	}
	return (cpu_ns() - start) / (double)BATCH;
}

/* ------------------------------------------------------------------ what it takes */

static void open_sockets(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	const int l = socket(AF_INET, SOCK_STREAM, 0), size = BUFFER, yes = 1;

	setsockopt(l, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	check(bind(l, (struct sockaddr *)&a, len), "bind");
	check(listen(l, 1), "listen");
	check(getsockname(l, (struct sockaddr *)&a, &len), "getsockname");
	out = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(out, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
	check(connect(out, (struct sockaddr *)&a, len), "connect");
	peer = accept(l, NULL, NULL);
	check(peer, "accept");
	close(l);
	check(hugepin_sg_uring_target(out, &target[0]), "a socket");
}

static void open_file(const char *directory)
{
	file = open(directory, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
	if (file < 0)
		err(1, "%s: a file past the page cache", directory);
	for (size_t at = 0; at < (size_t)PIECES_MAX * BYTES_MAX; at += BYTES_MAX)
		check(pwrite(file, memory, BYTES_MAX, (off_t)at), "pwrite");
	check(hugepin_sg_uring_target(file, &target[1]), "a file");
}

static void show_model(const struct hugepin_sg_uring_model *m)
{
	for (int v = 0; v < HUGEPIN_SG_URING_VERBS; v++)
		for (int way = 0; way < 2; way++) {
			const struct hugepin_sg_uring_cost *c = way ? &m->fixed[v] : &m->plain[v];
			printf("model %s %s %.0f %.1f %.4f\n", targets[v], way ? "fixed" : "plain", (double)c->request,
			       (double)c->element, (double)c->byte);
		}
	printf("copies %.2f %.4f\n", (double)m->piece, (double)m->copy_byte);
}

int main(int argc, char **argv)
{
	const char *directory = "/var/tmp", *only = NULL;
	struct hugepin_sg_uring_model model;
	struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .messages = BATCH, .pieces = PIECES_MAX,
					      .model = &model };
	struct hugepin_pin pin;
	int option, rounds = 15, error;
	unsigned bytes = 0;

	while ((option = getopt(argc, argv, "r:n:b:d:")) != -1) {
		if (option == 'r')
			rounds = atoi(optarg);
		else if (option == 'n')
			n = atoi(optarg);
		else if (option == 'b')
			bytes = (unsigned)atoi(optarg);
		else if (option == 'd')
			directory = optarg;
		else
			return 2;
	}
	only = argv[optind];
	if (n < 1 || n > PIECES_MAX || bytes > BYTES_MAX || rounds < 1)
		errx(2, "1 to %d pieces, of %d bytes at most, and rounds", PIECES_MAX, BYTES_MAX);
	attr.slot_len = (uint32_t)n * (bytes ? bytes : BYTES_MAX);
	check(hugepin_sg_uring_calibrate(directory, &model, sizeof model), "calibrate");
	show_model(&model);
	if ((error = io_uring_queue_init(256, &ring, 0)) < 0)
		check(error, "io_uring");
	check(hugepin_uring_open(&ring, 0, 64, NULL, &domain), "hugepin_uring_open");
	memory = hugepin_aligned_alloc(4096, (size_t)PIECES_MAX * STRIDE);
	buffer = hugepin_aligned_alloc(4096, (size_t)PIECES_MAX * STRIDE);
	if (!memory || !buffer)
		err(1, "memory");
	memset(memory, 1, (size_t)PIECES_MAX * STRIDE);
	memset(buffer, 1, (size_t)PIECES_MAX * STRIDE);
	check(hugepin_pin(domain, memory, (size_t)PIECES_MAX * STRIDE, 0, &pin), "hugepin_pin");
	check(hugepin_sg_uring_open(&ring, domain, &attr, &queue), "hugepin_sg_uring_open");
	open_sockets();
	open_file(directory);

	for (int round = -1; round < rounds; round++) /* the first warms up */
		for (int kind = TCP; kind <= READ; kind++) {
			const unsigned *size = bytes ? &bytes : kind == TCP ? tcp_bytes : file_bytes;

			for (size_t b = 0; b < (bytes ? 1 : kind == TCP ? COUNT(tcp_bytes) : COUNT(file_bytes)); b++) {
				message = (size_t)n * size[b];
				for (int i = 0; i < n; i++)
					iov[i] = (struct iovec){ memory + (size_t)i * STRIDE, size[b] };
				for (int s = EACH; s <= PLAN; s++) {
					if ((kind != TCP && s == MORE) || (only && strcmp(only, targets[kind])))
						continue;
					const double ns = sample(kind, s);
					if (round >= 0)
						printf("cell %d %s %s %d %u %.0f\n", round, subjects[s], targets[kind], n,
						       size[b], ns);
				}
			}
		}
	return 0;
}
