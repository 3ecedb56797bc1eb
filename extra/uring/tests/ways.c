/* link: hugepin-uring hugepin uring */
/* Each way that a message can go: to each kind of file, and across a fork. */
#include "rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { BY_ADDRESS, VECTORED, BY_INDEX, VECTORED_BY_INDEX, COPIED, WAYS };
enum { PIECES = 3, PIECE = 1000, MESSAGE = PIECES * PIECE, MESSAGES = 8, APART = 8192 };

/* A rig whose messages go one way, and memory for MESSAGES of them: registered for the ways by index, else not. */
struct way {
	struct rig rig;
	int way, reads, writes; /* opcodes */
	char *memory;
	struct hugepin_pin pin;
};

static bool way_open(struct way *w, int way)
{
	static const int opcodes[][2] = { { IORING_OP_READ, IORING_OP_WRITE },
					  { IORING_OP_READV, IORING_OP_WRITEV },
					  { IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED },
					  { OP_READV_FIXED, OP_WRITEV_FIXED },
					  { IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED } };
	const struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .copy_below = way == COPIED ? UINT32_MAX : 1 };

	*w = (struct way){ .way = way };
	if (!rig_open(&w->rig, &attr, 0))
		return false;
	const int goes_as = way == VECTORED_BY_INDEX && !w->rig.vector ? VECTORED : way;
	w->reads = opcodes[goes_as][0];
	w->writes = opcodes[goes_as][1];
	if (way == BY_INDEX || way == VECTORED_BY_INDEX) {
		w->memory = hugepin_calloc(MESSAGES, APART);
		return EXPECT_EQ(hugepin_pin(w->rig.domain, w->memory, MESSAGES * APART, 0, &w->pin), 0);
	}
	w->memory = mmap(NULL, MESSAGES * APART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return EXPECT(w->memory != MAP_FAILED);
}

static void way_close(struct way *w)
{
	if (w->pin.ref) {
		EXPECT_EQ(hugepin_unpin(w->rig.domain, &w->pin), 0);
		hugepin_free(w->memory);
	} else {
		munmap(w->memory, MESSAGES * APART);
	}
	rig_close(&w->rig);
}

/* The pieces of message i: together for the ways of one range. */
static void lay_way(const struct way *w, struct iovec *iov, int i)
{
	const bool together = w->way == BY_ADDRESS || w->way == BY_INDEX;

	lay(iov, PIECES, w->memory + i * APART, together ? PIECE : 2 * PIECE, PIECE);
}

/* Fill n pieces, or compare them with what fill_way() put there. */
static void fill_way(const struct iovec *iov, int n, unsigned seed)
{
	for (int i = 0; i < n; i++)
		fill(iov[i].iov_base, PIECE, seed + (unsigned)i);
}

static bool is_filled(const struct iovec *iov, int n, unsigned seed)
{
	char expected[PIECE];
	bool same = true;

	for (int i = 0; i < n; i++) {
		fill(expected, PIECE, seed + (unsigned)i);
		same = same && !memcmp(iov[i].iov_base, expected, PIECE);
	}
	return same;
}

/* A message of the first n pieces. */
static int send_way(struct way *w, int fd, const struct iovec *iov, int n)
{
	w->rig.fd = fd;
	return goes(&w->rig, false, iov, n, 0, w->writes, w->way == COPIED);
}

static int receive_way(struct way *w, int fd, const struct iovec *iov, int n)
{
	w->rig.fd = fd;
	return goes(&w->rig, true, iov, n, 0, w->reads, w->way == COPIED);
}

/* Two descriptors: what is written to the first is read from the second. */
struct channel {
	int fd[2];
	bool whole; /* a read ends where a write ended */
};

enum { PIPE = -1, UDP = -2 }; /* the others are types of sockets of AF_UNIX */

/* False: there is no loopback here. */
static bool udp_open(int fd[2])
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr *const at = (struct sockaddr *)&to;
	socklen_t len = sizeof to;

	fd[0] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	fd[1] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (!bind(fd[1], at, len) && !getsockname(fd[1], at, &len) && !connect(fd[0], at, len))
		return true;
	close(fd[0]);
	close(fd[1]);
	return false;
}

/* The next of some kinds of channels; false: there are no more. */
static bool channel_open(int *kind, struct channel *ret_)
{
	static const struct {
		int type;
		bool whole;
	} kinds[] = { { PIPE, false },
		      { UDP, true },
		      { SOCK_STREAM, false },
		      { SOCK_DGRAM, true },
		      { SOCK_SEQPACKET, true } };
	int ends[2];

	if (*kind < (int)(sizeof kinds / sizeof *kinds) && kinds[*kind].type == UDP && !udp_open(ret_->fd))
		++*kind;
	if (*kind == (int)(sizeof kinds / sizeof *kinds))
		return false;
	ret_->whole = kinds[*kind].whole;
	switch (kinds[(*kind)++].type) {
	case PIPE:
		EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
		ret_->fd[0] = ends[1];
		ret_->fd[1] = ends[0];
		return true;
	case UDP:
		return true;
	default:
		return EXPECT_EQ(socketpair(AF_UNIX, kinds[*kind - 1].type | SOCK_CLOEXEC, 0, ret_->fd), 0);
	}
}

static void channel_close(struct channel *c)
{
	close(c->fd[0]);
	close(c->fd[1]);
}

TEST(a_message_is_one_write_and_one_read_of_a_pipe_or_a_socket)
{
	for (int way = 0; way < WAYS; way++) {
		struct iovec first[PIECES], second[PIECES], in[PIECES], next[PIECES];
		struct channel c;
		struct way w;

		if (!way_open(&w, way))
			return;
		const int file = w.rig.fd;
		lay_way(&w, first, 0);
		lay_way(&w, second, 1);
		lay_way(&w, in, 2);
		lay_way(&w, next, 3);
		fill_way(first, PIECES, 10);
		fill_way(second, PIECES, 20);
		for (int kind = 0; channel_open(&kind, &c);) {
			/* both are sent before either is read; the second is shorter by a piece */
			EXPECT_EQ(send_way(&w, c.fd[0], first, PIECES), MESSAGE);
			EXPECT_EQ(send_way(&w, c.fd[0], second, PIECES - 1), MESSAGE - PIECE);
			EXPECT_EQ(receive_way(&w, c.fd[1], in, PIECES), MESSAGE);
			EXPECT_EQ(receive_way(&w, c.fd[1], next, PIECES), MESSAGE - PIECE);
			EXPECT(is_filled(in, PIECES, 10) && is_filled(next, PIECES - 1, 20));
			if (c.whole) { /* what a read has no room for does not come with the next one */
				EXPECT_EQ(send_way(&w, c.fd[0], first, PIECES), MESSAGE);
				EXPECT_EQ(send_way(&w, c.fd[0], second, PIECES - 1), MESSAGE - PIECE);
				EXPECT_EQ(receive_way(&w, c.fd[1], in, PIECES - 1), MESSAGE - PIECE);
				EXPECT_EQ(receive_way(&w, c.fd[1], next, PIECES), MESSAGE - PIECE);
				EXPECT(is_filled(in, PIECES - 1, 10) && is_filled(next, PIECES - 1, 20));
			}
			channel_close(&c);
			if (t_failed_in(10 * way + kind))
				return;
		}
		w.rig.fd = file;
		way_close(&w);
	}
}

TEST(messages_to_a_file_that_is_appended_to_stay_whole)
{
	for (int way = 0; way < WAYS; way++) {
		struct hugepin_sg_uring_message m[MESSAGES];
		struct iovec iov[MESSAGES][PIECES];
		unsigned seen = 0;
		struct way w;

		if (!way_open(&w, way))
			return;
		EXPECT_EQ(fcntl(w.rig.fd, F_SETFL, O_APPEND), 0);
		for (int i = 0; i < MESSAGES; i++) { /* all are out at a time; where they were to go does not count */
			struct io_uring_sqe *sqe = io_uring_get_sqe(&w.rig.ring);

			lay_way(&w, iov[i], i);
			for (int k = 0; k < PIECES; k++)
				memset(iov[i][k].iov_base, 'a' + i, PIECE);
			EXPECT_EQ(prepare(&w.rig, sqe, false, iov[i], PIECES, i % 2 ? UINT64_MAX : 0, &m[i]), 0);
			sqe->flags |= IOSQE_ASYNC; /* by several threads of the kernel's */
			sqe->user_data = (unsigned)i;
		}
		EXPECT_EQ(io_uring_submit(&w.rig.ring), MESSAGES);
		for (int i = 0; i < MESSAGES; i++) {
			struct io_uring_cqe *cqe;

			if (!EXPECT_EQ(io_uring_wait_cqe(&w.rig.ring, &cqe), 0))
				return;
			EXPECT_EQ(cqe->res, MESSAGE);
			EXPECT_EQ(hugepin_sg_uring_done(w.rig.s, &m[cqe->user_data], cqe->res), 0);
			io_uring_cqe_seen(&w.rig.ring, cqe);
		}
		for (int i = 0; i < MESSAGES; i++) {
			char found[MESSAGE];
			bool whole = pread(w.rig.fd, found, MESSAGE, i * MESSAGE) == MESSAGE;

			for (int k = 1; k < MESSAGE && whole; k++)
				whole = found[k] == found[0];
			if (EXPECT(whole))
				seen |= 1u << (found[0] - 'a');
		}
		EXPECT_EQ(seen, (1u << MESSAGES) - 1);
		way_close(&w);
	}
}

TEST(a_counter_takes_and_gives_a_message_of_eight_bytes)
{
	const struct hugepin_sg_uring_attr attr = { .size = sizeof attr };
	struct { uint32_t low, gap, high; } out = { 5, 0, 1 }, in = { 0, 0, 0 };
	const struct iovec from[] = { { &out.low, 4 }, { &out.high, 4 } }, to[] = { { &in.low, 4 }, { &in.high, 4 } };
	struct rig r;

	if (!rig_open(&r, &attr, 0))
		return;
	const int file = r.fd;
	r.fd = eventfd(0, EFD_CLOEXEC);
	EXPECT_EQ(goes(&r, false, from, 2, UINT64_MAX, IORING_OP_WRITE_FIXED, true), 8);
	EXPECT_EQ(goes(&r, true, to, 2, UINT64_MAX, IORING_OP_READ_FIXED, true), 8);
	EXPECT(in.low == 5 && in.high == 1);
	close(r.fd);
	r.fd = file;
	rig_close(&r);
}

TEST(a_file_without_vectored_functions_takes_a_copy_and_pieces_by_address)
{
	static char to[MESSAGE];
	const int ways[] = { COPIED, VECTORED };

	for (int i = 0; i < 2; i++) {
		struct iovec iov[PIECES];
		struct way w;

		if (!way_open(&w, ways[i]))
			return;
		const int file = w.rig.fd;
		lay_way(&w, iov, 0);
		fill_way(iov, PIECES, 70);
		memset(to, 0, sizeof to);
		w.rig.fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
		EXPECT_EQ(goes(&w.rig, false, iov, PIECES, (uintptr_t)to, w.writes, ways[i] == COPIED), MESSAGE);
		for (int k = 0; k < PIECES; k++)
			EXPECT(!memcmp(to + k * PIECE, iov[k].iov_base, PIECE));
		close(w.rig.fd);
		w.rig.fd = file;
		way_close(&w);
	}
}

/* ------------------------------------------------------------------ fork */

static void child_ends_well(pid_t child)
{
	int status = -1;

	EXPECT(child > 0);
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
}

TEST(a_child_has_no_messages_and_closes_its_copy_alone)
{
	for (int way = 0; way <= WAYS; way++) { /* the last one: without a domain */
		struct hugepin_sg_uring_message m, mine = { .out = 1 };
		struct io_uring_sqe sqe = { 0 };
		struct iovec iov[PIECES];
		struct way w;

		if (!way_open(&w, way % WAYS))
			return;
		hugepin_sg_uring *const with = w.rig.s;
		if (way == WAYS)
			EXPECT_EQ(hugepin_sg_uring_open(NULL, NULL, &w.rig.s), 0);
		lay_way(&w, iov, 0);
		fill_way(iov, PIECES, 30);
		EXPECT_EQ(prepare(&w.rig, io_uring_get_sqe(&w.rig.ring), false, iov, PIECES, 0, &m), 0);
		const pid_t child = fork();
		if (!child) {
			for (int read = 0; read < 2; read++) {
				sqe.opcode = IORING_OP_WRITE;
				if (prepare(&w.rig, &sqe, read, iov, PIECES, 0, &mine) != -ESTALE ||
				    sqe.opcode != IORING_OP_NOP)
					_exit(1);
			}
			if (hugepin_sg_uring_done(w.rig.s, &m, 1) != -ESTALE || !m.out)
				_exit(2);
			_exit(hugepin_sg_uring_close(w.rig.s) ? 3 : 0);
		}
		child_ends_well(child);
		EXPECT_EQ(hugepin_sg_uring_done(w.rig.s, &m, result(&w.rig, 0)), 0);
		EXPECT(has(&w.rig, iov, PIECES, 0));
		if (way == WAYS) {
			EXPECT_EQ(hugepin_sg_uring_close(w.rig.s), 0);
			w.rig.s = with;
		}
		way_close(&w);
	}
}

/* One message waits in the kernel, the other is prepared; the child writes over the memory of both. */
TEST(what_is_out_at_a_fork_stays_the_parents)
{
	for (int way = 0; way < WAYS; way++) {
		struct hugepin_sg_uring_message reads, writes;
		struct iovec in[PIECES], out[PIECES];
		char expected[MESSAGE];
		int ends[2];
		struct way w;

		if (!way_open(&w, way))
			return;
		EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
		lay_way(&w, in, 0);
		lay_way(&w, out, 1);
		fill_way(out, PIECES, 40);
		const int file = w.rig.fd;
		w.rig.fd = ends[0];
		struct io_uring_sqe *sqe = io_uring_get_sqe(&w.rig.ring);
		EXPECT_EQ(prepare(&w.rig, sqe, true, in, PIECES, 0, &reads), 0);
		sqe->user_data = 1;
		EXPECT_EQ(io_uring_submit(&w.rig.ring), 1);
		w.rig.fd = file;
		sqe = io_uring_get_sqe(&w.rig.ring);
		EXPECT_EQ(prepare(&w.rig, sqe, false, out, PIECES, 0, &writes), 0);
		sqe->user_data = 2;
		const pid_t child = fork();
		if (!child) {
			memset(w.memory, 'c', MESSAGES * APART);
			_exit(hugepin_sg_uring_close(w.rig.s) ? 1 : 0);
		}
		child_ends_well(child);
		EXPECT_EQ(hugepin_sg_uring_done(w.rig.s, &writes, result(&w.rig, 2)), 0);
		EXPECT(is_filled(out, PIECES, 40) && has(&w.rig, out, PIECES, 0));
		for (int i = 0; i < PIECES; i++)
			fill(expected + i * PIECE, PIECE, 50 + (unsigned)i);
		EXPECT_EQ(write(ends[1], expected, MESSAGE), MESSAGE);
		EXPECT_EQ(hugepin_sg_uring_done(w.rig.s, &reads, result(&w.rig, 1)), 0);
		EXPECT(is_filled(in, PIECES, 50));
		close(ends[0]);
		close(ends[1]);
		way_close(&w);
	}
}

TEST(a_child_has_messages_on_a_ring_of_its_own)
{
	struct way w;

	if (!way_open(&w, BY_INDEX))
		return;
	const pid_t child = fork();
	if (!child) {
		struct iovec out[PIECES], in[PIECES];
		struct way own;

		if (!way_open(&own, VECTORED_BY_INDEX))
			_exit(1);
		lay_way(&own, out, 0);
		lay_way(&own, in, 1);
		fill_way(out, PIECES, 60);
		if (send_way(&own, own.rig.fd, out, PIECES) != MESSAGE ||
		    receive_way(&own, own.rig.fd, in, PIECES) != MESSAGE || !is_filled(in, PIECES, 60))
			_exit(2);
		way_close(&own);
		_exit(hugepin_sg_uring_close(w.rig.s) ? 3 : 0);
	}
	child_ends_well(child);
	way_close(&w);
}

T_MAIN
