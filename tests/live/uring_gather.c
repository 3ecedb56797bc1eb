/* link: hugepin-uring hugepin uring */
/* Messages of many pieces on real rings: over TCP, to and from files, by the indexes of what is registered. */
#include <hugepin_sg_uring.h>
#include <hugepin_uring.h>

#include "live.h"
#include "watched.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { PIECES = 30, TABLE = 64 };

/* A ring, a domain on it, and a queue. */
struct rig {
	struct io_uring ring;
	hugepin_domain *domain;
	hugepin_sg_uring *q;
	bool vector;
};

/* What the queue has said of a message. */
struct told {
	int err, calls;
	size_t bytes;
	unsigned what;
};

static void tell(void *arg, int err, size_t bytes, unsigned what)
{
	struct told *t = arg;

	EXPECT_EQ(t->what & what, 0);
	EXPECT(t->what || what & HUGEPIN_SG_URING_DONE);
	t->what |= what;
	t->err = err;
	t->bytes = bytes;
	t->calls++;
}

static uint64_t budget; /* of the next domain; 0: any */

static bool rig_open(struct rig *r, unsigned entries, const struct hugepin_sg_uring_attr *attr)
{
	struct hugepin_attr lru = { .size = sizeof lru, .policy = HUGEPIN_POLICY_LRU, .pinned_bytes_max = budget,
				    .watch = WATCH_ANYHOW };
	struct hugepin_sg_uring_caps caps;
	int err = io_uring_queue_init(entries, &r->ring, 0);

	if (err == -ENOSYS || err == -EPERM) {
		snprintf(t_skip_reason, sizeof t_skip_reason, "no io_uring: %s", strerror(-err));
		return false;
	}
	if (!EXPECT_EQ(err, 0) || !EXPECT_EQ(hugepin_sg_uring_caps(&r->ring, &caps, sizeof caps), 0))
		return false;
	r->vector = caps.vector;
	return EXPECT_EQ(hugepin_uring_open(&r->ring, 0, TABLE, &lru, &r->domain), 0) &&
	       EXPECT_EQ(hugepin_sg_uring_open(&r->ring, r->domain, attr, &r->q), 0);
}

/* Submit, and hand in what has completed. */
static void turn(struct rig *r)
{
	struct io_uring_cqe *cqe;

	io_uring_submit(&r->ring);
	while (!io_uring_peek_cqe(&r->ring, &cqe)) {
		EXPECT_EQ(hugepin_sg_uring_cqe(r->q, cqe), cqe->user_data != 0);
		io_uring_cqe_seen(&r->ring, cqe);
	}
}

static void rig_close(struct rig *r)
{
	int err;

	/* A message may be told of before its cancellation has completed. */
	for (const uint64_t end = clock_ms() + 20000; (err = hugepin_sg_uring_close(r->q)) == -EBUSY && clock_ms() < end;)
		turn(r);
	EXPECT_EQ(err, 0);
	EXPECT_EQ(hugepin_domain_close(r->domain), 0);
	io_uring_queue_exit(&r->ring);
}

static bool until(struct rig *r, const struct told *t, unsigned what)
{
	for (const uint64_t end = clock_ms() + 20000; (t->what & what) != what && clock_ms() < end;)
		turn(r);
	return EXPECT_EQ(t->what & what, what);
}

static const unsigned ALL = HUGEPIN_SG_URING_DONE | HUGEPIN_SG_URING_FREE;

static struct hugepin_sg_uring_stats stats(const struct rig *r)
{
	struct hugepin_sg_uring_stats s;

	EXPECT_EQ(hugepin_sg_uring_stats(r->q, &s, sizeof s), 0);
	return s;
}

static void tcp_pair(int fd[2], int sndbuf, int rcvbuf)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0);

	if (rcvbuf)
		setsockopt(l, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
	EXPECT_EQ(bind(l, (struct sockaddr *)&a, len), 0);
	EXPECT_EQ(listen(l, 1), 0);
	EXPECT_EQ(getsockname(l, (struct sockaddr *)&a, &len), 0);
	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (sndbuf)
		setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf);
	EXPECT_EQ(connect(fd[0], (struct sockaddr *)&a, len), 0);
	fd[1] = accept(l, NULL, NULL);
	close(l);
}

static void fill(char *p, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++) {
		seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		p[i] = (char)(seed >> 56);
	}
}

/* Pieces of different lengths, `apart` bytes after each other. */
static size_t lay(struct iovec *iov, int n, char *base, size_t apart)
{
	size_t sum = 0;

	for (int i = 0; i < n; i++) {
		iov[i] = (struct iovec){ base + (size_t)i * apart, 100 + (size_t)i * 70 };
		sum += iov[i].iov_len;
	}
	return sum;
}

/* Whether the bytes are those of the pieces, one after the other. */
static bool equal(const char *got, const struct iovec *iov, int n)
{
	for (int i = 0; i < n; i++) {
		if (memcmp(got, iov[i].iov_base, iov[i].iov_len))
			return false;
		got += iov[i].iov_len;
	}
	return true;
}

/* Read len bytes from the peer while the queue works. */
static char *receive(struct rig *r, int fd, size_t len)
{
	char *got = malloc(len);
	size_t at = 0;

	for (const uint64_t end = clock_ms() + 20000; at < len && clock_ms() < end; turn(r)) {
		ssize_t n = recv(fd, got + at, len - at, MSG_DONTWAIT);
		if (n == 0)
			break;
		at += n > 0 ? (size_t)n : 0;
	}
	EXPECT_EQ(at, len);
	return got;
}

static char *registered(struct rig *r, size_t len, struct hugepin_pin *ret_pin)
{
	char *p = hugepin_malloc(len);

	fill(p, len, len);
	EXPECT_EQ(hugepin_pin(r->domain, p, len, 0, ret_pin), 0);
	return p;
}

/* Of a kernel whose requests cost nothing, but what goes by address does. */
static const struct hugepin_sg_uring_model cheap = {
	.size = sizeof cheap,
	.piece = 1, .copy_byte = 1,
	.plain = { { 0, 0, 1 }, { 0, 0, 1 }, { 0, 0, 1 } },
};

static char *pages(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	fill(p, len, len);
	return p;
}

TEST(pieces_of_one_registration_are_sent_as_one_request_without_a_copy)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct iovec iov[PIECES];
	struct told told = { 0 };
	int fd[2];

	if (!rig_open(&r, 64, NULL))
		return;
	tcp_pair(fd, 0, 0);
	char *p = registered(&r, MIB, &pin);
	size_t sum = lay(iov, PIECES, p, 30011);
	EXPECT_EQ(hugepin_sg_uring_target(fd[0], &t), 0);
	EXPECT_EQ(t.align, 1);
	EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, PIECES, HUGEPIN_SG_URING_FIXED, tell, &told), 0);
	char *got = receive(&r, fd[1], sum);
	EXPECT(equal(got, iov, PIECES));
	until(&r, &told, ALL);
	EXPECT_EQ(told.err, 0);
	EXPECT_EQ(told.bytes, sum);
	EXPECT_EQ(stats(&r).requests, r.vector ? 1 : PIECES);
	EXPECT_EQ(stats(&r).fixed_bytes, sum);
	EXPECT_EQ(stats(&r).copied_bytes, 0);
	EXPECT_EQ(stats(&r).out, 0);
	free(got);
	close(fd[0]);
	close(fd[1]);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

/* Send by these ways what lies in two registrations and in none, in turn. Returns the requests. */
static uint64_t send_mixed(const struct hugepin_sg_uring_attr *attr, unsigned mode, struct hugepin_sg_uring_stats *ret_)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin[2];
	struct iovec iov[PIECES];
	struct told told = { 0 };
	size_t sum = 0;
	int fd[2];

	if (!rig_open(&r, 64, attr))
		return 0;
	tcp_pair(fd, 0, 0);
	char *place[3] = { registered(&r, MIB, &pin[0]), pages(MIB), pages(MIB) };
	EXPECT_EQ(hugepin_pin(r.domain, place[1], MIB, 0, &pin[1]), 0);
	for (int i = 0; i < PIECES; i++) {
		iov[i] = (struct iovec){ place[i / 2 % 3] + i * 30011, i % 5 ? 3000 : 40 };
		sum += iov[i].iov_len;
	}
	hugepin_sg_uring_target(fd[0], &t);
	EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, PIECES, mode, tell, &told), 0);
	char *got = receive(&r, fd[1], sum);
	EXPECT(equal(got, iov, PIECES));
	until(&r, &told, ALL);
	EXPECT_EQ(told.err, 0);
	EXPECT_EQ(told.bytes, sum);
	*ret_ = stats(&r);
	free(got);
	close(fd[0]);
	close(fd[1]);
	EXPECT_EQ(hugepin_unpinv(r.domain, pin, 2), 0);
	hugepin_free(place[0]);
	munmap(place[1], MIB);
	munmap(place[2], MIB);
	rig_close(&r);
	return ret_->requests;
}

TEST(pieces_of_several_registrations_and_of_none_are_linked_requests)
{
	const struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .model = &cheap };
	struct hugepin_sg_uring_stats s;

	if (send_mixed(&attr, HUGEPIN_SG_URING_FIXED | HUGEPIN_SG_URING_PLAIN, &s)) {
		EXPECT(s.requests >= PIECES / 2);
		EXPECT_EQ(s.copied_bytes, 0);
		EXPECT(s.fixed_bytes > 0);
	}
}

TEST(or_they_are_copied_and_one_request)
{
	struct hugepin_sg_uring_stats s;

	if (send_mixed(&(struct hugepin_sg_uring_attr){ .size = sizeof(struct hugepin_sg_uring_attr),
							.slot_len = 100000 }, HUGEPIN_SG_URING_COPY, &s)) {
		EXPECT_EQ(s.requests, 1);
		EXPECT_EQ(s.copied_bytes, 6 * 40 + 24 * 3000);
	}
}

TEST(or_they_go_by_address_as_one_request)
{
	struct hugepin_sg_uring_stats s;

	if (send_mixed(NULL, HUGEPIN_SG_URING_PLAIN, &s)) {
		EXPECT_EQ(s.requests, 1);
		EXPECT_EQ(s.fixed_bytes, 0);
	}
	if (send_mixed(&(struct hugepin_sg_uring_attr){ .size = sizeof(struct hugepin_sg_uring_attr),
							.without = HUGEPIN_SG_URING_FIXED }, 0, &s))
		EXPECT_EQ(s.fixed_bytes, 0);
}

TEST(where_requests_with_an_index_have_one_piece_messages_arrive_too)
{
	const struct hugepin_sg_uring_attr old = { .size = sizeof old, .single = 1, .model = &cheap };
	struct hugepin_sg_uring_stats s;

	if (send_mixed(&old, HUGEPIN_SG_URING_FIXED | HUGEPIN_SG_URING_PLAIN, &s))
		EXPECT(s.requests > PIECES / 2);
	send_mixed(&old, 0, &s);
}

TEST(a_message_that_the_socket_has_no_room_for_arrives_whole)
{
	/* As one request, by address and by index, and as a chain. */
	const unsigned modes[] = { HUGEPIN_SG_URING_PLAIN, HUGEPIN_SG_URING_FIXED, HUGEPIN_SG_URING_FIXED };
	enum { N = 16, LEN = 1024 * 1024 };

	for (int m = 0; m < 3; m++) {
		const struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .single = m == 2 };
		struct rig r;
		struct hugepin_sg_uring_target t;
		struct hugepin_pin pin;
		struct iovec iov[N];
		struct told told = { 0 };
		int fd[2];

		if (!rig_open(&r, 64, &attr))
			return;
		tcp_pair(fd, 1 << 20, 0); /* with little room at the receiver, loopback drops what comes without a copy */
		char *p = registered(&r, N * LEN, &pin);
		for (int i = 0; i < N; i++)
			iov[N - 1 - i] = (struct iovec){ p + i * LEN, LEN };
		hugepin_sg_uring_target(fd[0], &t);
		EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, N, modes[m], tell, &told), 0);
		for (int i = 0; i < 50; i++)
			turn(&r);
		EXPECT_EQ(told.what, 0);
		EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, 1, 0, tell, &told), -EBUSY);
		EXPECT_EQ(hugepin_sg_uring_close(r.q), -EBUSY);
		char *got = receive(&r, fd[1], N * LEN);
		EXPECT(equal(got, iov, N));
		until(&r, &told, ALL);
		EXPECT_EQ(told.bytes, N * LEN);
		free(got);
		close(fd[0]);
		close(fd[1]);
		EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
		hugepin_free(p);
		rig_close(&r);
	}
}

TEST(a_registration_stays_while_requests_are_under_way_and_may_go_before_the_network_lets_go)
{
	enum { LEN = 2 * 1024 * 1024, N = 4 };
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_domain_stats d;
	struct hugepin_pin pin, other;
	struct iovec iov[N];
	struct told told = { 0 };
	int fd[2];
	bool kept = false;

	budget = LEN; /* room for one of the two */
	bool opened = rig_open(&r, 64, &(struct hugepin_sg_uring_attr){ .size = sizeof(struct hugepin_sg_uring_attr),
									.without = HUGEPIN_SG_URING_COPY });
	budget = 0;
	if (!opened)
		return;
	tcp_pair(fd, 1 << 20, 2 * (int)sysconf(_SC_PAGESIZE)); /* packets have whole base pages */
	char *p = pages(LEN), *q = pages(LEN), *want = malloc(LEN);
	EXPECT_EQ(hugepin_pin(r.domain, p, LEN, 0, &pin), 0);
	unsigned index = pin.lkey;
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	memcpy(want, p, LEN);
	for (int i = 0; i < N; i++)
		iov[i] = (struct iovec){ p + i * LEN / N, LEN / N };
	hugepin_sg_uring_target(fd[0], &t);
	EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, N, HUGEPIN_SG_URING_FIXED, tell, &told), 0);
	for (int i = 0; i < 50; i++)
		turn(&r);
	EXPECT_EQ(told.what, 0);
	/* Under way: the message has a pin. */
	EXPECT_EQ(hugepin_pin(r.domain, q, LEN, 0, &other), -ENOBUFS);

	char *got = malloc(LEN);
	size_t at = 0;
	for (const uint64_t end = clock_ms() + 20000; at < LEN && clock_ms() < end; turn(&r)) {
		/* Done, but not free: the network still reads the pieces. The index gets other memory. */
		if (told.what == HUGEPIN_SG_URING_DONE && !kept) {
			kept = true;
			EXPECT_EQ(hugepin_pin(r.domain, q, LEN, 0, &other), 0);
			EXPECT_EQ(other.lkey, index);
			hugepin_domain_stats(r.domain, &d, sizeof d);
			EXPECT_EQ(d.evicted, 1);
			memset(q, 7, LEN);
		}
		ssize_t n = recv(fd[1], got + at, LEN - at < 16384 ? LEN - at : 16384, MSG_DONTWAIT);
		at += n > 0 ? (size_t)n : 0;
	}
	EXPECT_EQ(at, LEN);
	EXPECT_EQ(memcmp(got, want, LEN), 0);
	EXPECT(kept);
	until(&r, &told, ALL);
	EXPECT_EQ(told.calls, 2);
	if (kept)
		EXPECT_EQ(hugepin_unpin(r.domain, &other), 0);
	free(got);
	free(want);
	close(fd[0]);
	close(fd[1]);
	munmap(p, LEN);
	munmap(q, LEN);
	rig_close(&r);
}

static void send_to_unix(bool single)
{
	const struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .single = single };
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct iovec iov[PIECES];
	int fd[2];

	if (!rig_open(&r, 64, &attr))
		return;
	EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	char *p = registered(&r, MIB, &pin);
	size_t sum = lay(iov, PIECES, p, 30011);
	hugepin_sg_uring_target(fd[0], &t);
	for (int i = 0; i < 2; i++) {
		struct told told = { 0 };
		EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, PIECES,
						HUGEPIN_SG_URING_FIXED | (i ? HUGEPIN_SG_URING_PLAIN : 0), tell,
						&told), 0);
		char *got = receive(&r, fd[1], sum);
		EXPECT(equal(got, iov, PIECES));
		free(got);
		until(&r, &told, ALL);
		EXPECT_EQ(told.err, 0);
		EXPECT_EQ(t.refused, HUGEPIN_SG_URING_FIXED);
		EXPECT_EQ(stats(&r).refused, 1);
	}
	struct told told = { 0 };
	EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, PIECES, HUGEPIN_SG_URING_FIXED, tell, &told), -EOPNOTSUPP);
	close(fd[0]);
	close(fd[1]);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

TEST(a_socket_that_cannot_send_without_a_copy_gets_the_message_by_address)
{
	send_to_unix(false);
	send_to_unix(true);
}

/* Send 30 pieces as a datagram: of one registration, or the eighth of none. */
static void send_datagram(bool mixed)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct iovec iov[PIECES];
	struct told told = { 0 };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	char got[65536];

	if (!rig_open(&r, 64, &(struct hugepin_sg_uring_attr){ .size = sizeof(struct hugepin_sg_uring_attr),
							       .model = &cheap }))
		return;
	int to = socket(AF_INET, SOCK_DGRAM, 0), from = socket(AF_INET, SOCK_DGRAM, 0);
	EXPECT_EQ(bind(to, (struct sockaddr *)&a, len), 0);
	EXPECT_EQ(getsockname(to, (struct sockaddr *)&a, &len), 0);
	EXPECT_EQ(setsockopt(to, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 20, 0 }, sizeof(struct timeval)), 0);
	EXPECT_EQ(connect(from, (struct sockaddr *)&a, len), 0);
	char *p = registered(&r, MIB, &pin);
	size_t sum = lay(iov, PIECES, p, 30011);
	char outside[100] = "not registered";
	if (mixed) {
		sum -= iov[7].iov_len - sizeof outside;
		iov[7] = (struct iovec){ outside, sizeof outside };
	}
	EXPECT_EQ(hugepin_sg_uring_target(from, &t), 0);
	EXPECT_EQ(t.whole, 1);
	EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, PIECES, 0, tell, &told), 0);
	until(&r, &told, ALL);
	EXPECT_EQ(told.err, 0);
	EXPECT_EQ(recv(to, got, sizeof got, 0), sum);
	EXPECT(equal(got, iov, PIECES));
	EXPECT_EQ(stats(&r).requests, 1 + stats(&r).refused);
	close(to);
	close(from);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

TEST(a_message_to_a_socket_of_datagrams_is_one_datagram)
{
	send_datagram(true);
}

/* Linux gives a datagram that is not copied 17 pieces. */
TEST(so_is_one_of_more_pieces_than_the_kernel_sends_without_a_copy)
{
	send_datagram(false);
}

TEST(a_cancelled_message_says_how_much_of_it_went)
{
	enum { LEN = 8 * 1024 * 1024 };
	const unsigned modes[] = { HUGEPIN_SG_URING_PLAIN, HUGEPIN_SG_URING_FIXED };

	for (int m = 0; m < 2; m++) {
		struct rig r;
		struct hugepin_sg_uring_target t;
		struct hugepin_pin pin;
		struct iovec iov[2];
		struct told told = { 0 };
		size_t at = 0;
		int fd[2];

		if (!rig_open(&r, 64, NULL))
			return;
		tcp_pair(fd, 65536, 65536);
		char *p = registered(&r, LEN, &pin);
		iov[0] = (struct iovec){ p + LEN / 2, LEN / 2 };
		iov[1] = (struct iovec){ p, LEN / 2 };
		hugepin_sg_uring_target(fd[0], &t);
		EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, 2, modes[m], tell, &told), 0);
		for (int i = 0; i < 50; i++)
			turn(&r);
		EXPECT_EQ(hugepin_sg_uring_cancel(r.q, &r), 0);
		EXPECT_EQ(hugepin_sg_uring_cancel(r.q, &told), 1);
		until(&r, &told, HUGEPIN_SG_URING_DONE);
		EXPECT_EQ(told.err, -ECANCELED);
		EXPECT(told.bytes > 0 && told.bytes < LEN / 2);
		EXPECT_EQ(shutdown(fd[0], SHUT_WR), 0);
		char *got = malloc(LEN);
		for (ssize_t n; (n = recv(fd[1], got + at, LEN - at, 0)) > 0; turn(&r))
			at += (size_t)n;
		EXPECT_EQ(at, told.bytes);
		EXPECT_EQ(memcmp(got, iov[0].iov_base, at), 0);
		until(&r, &told, ALL);
		free(got);
		close(fd[0]);
		close(fd[1]);
		EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
		hugepin_free(p);
		rig_close(&r);
	}
}

TEST(a_chain_that_goes_on_before_it_is_cancelled_is_cancelled_at_the_next_request)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct told told = { 0 };
	char text[1000];
	int fd[2];

	if (!rig_open(&r, 64, &(struct hugepin_sg_uring_attr){ .size = sizeof(struct hugepin_sg_uring_attr),
							       .single = 1 }))
		return;
	EXPECT_EQ(pipe(fd), 0);
	char *p = registered(&r, MIB, &pin);
	struct iovec iov[2] = { { p, sizeof text }, { p + 5000, 2000 } };
	hugepin_sg_uring_target(fd[0], &t);
	EXPECT_EQ(hugepin_sg_uring_read(r.q, &t, UINT64_MAX, iov, 2, HUGEPIN_SG_URING_FIXED, tell, &told), 0);
	EXPECT_EQ(stats(&r).requests, 2);
	turn(&r);
	/* Prepared for the first request, and submitted when that is done. */
	EXPECT_EQ(hugepin_sg_uring_cancel(r.q, &told), 1);
	fill(text, sizeof text, 3);
	EXPECT_EQ(write(fd[1], text, sizeof text), sizeof text);
	sleep_ms(100);
	until(&r, &told, ALL);
	EXPECT_EQ(told.err, -ECANCELED);
	EXPECT_EQ(told.bytes, sizeof text);
	EXPECT_EQ(memcmp(p, text, sizeof text), 0);
	close(fd[0]);
	close(fd[1]);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

/* The user_data of the newest entry, which is the n-th. It is not submitted. */
static uint64_t newest(const struct rig *r, unsigned n, uint64_t *ret_addr)
{
	const struct io_uring_sqe *sqe = &r->ring.sq.sqes[n - 1];

	EXPECT_EQ(io_uring_sq_ready(&r->ring), n);
	*ret_addr = sqe->addr;
	return sqe->user_data;
}

static void complete(struct rig *r, uint64_t user_data, int res)
{
	EXPECT_EQ(hugepin_sg_uring_cqe(r->q, &(struct io_uring_cqe){ .user_data = user_data, .res = res }), 1);
}

/* The kernel answers -EALREADY while a request runs on a thread of its own. Its answers are made up here. */
TEST(a_chain_whose_request_was_running_already_is_cancelled_at_the_next_request)
{
	for (int first = 0; first < 2; first++) { /* which completion comes first */
		struct rig r;
		struct hugepin_sg_uring_target t;
		struct hugepin_pin pin;
		struct told told = { 0 };
		uint64_t part[2], cancel, addr;

		if (!rig_open(&r, 64, &(struct hugepin_sg_uring_attr){ .size = sizeof(struct hugepin_sg_uring_attr),
								       .single = 1 }))
			return;
		char *p = registered(&r, MIB, &pin);
		struct iovec iov[2] = { { p, 1000 }, { p + 5000, 2000 } };
		hugepin_sg_uring_target(0, &t);
		EXPECT_EQ(hugepin_sg_uring_read(r.q, &t, UINT64_MAX, iov, 2, HUGEPIN_SG_URING_FIXED, tell, &told), 0);
		part[0] = r.ring.sq.sqes[0].user_data;
		part[1] = newest(&r, 2, &addr);
		EXPECT_EQ(hugepin_sg_uring_cancel(r.q, &told), 1);
		cancel = newest(&r, 3, &addr);
		EXPECT_EQ(addr, part[0]);
		if (first)
			complete(&r, part[0], 1000);
		else
			complete(&r, cancel, -EALREADY);
		EXPECT_EQ(io_uring_sq_ready(&r.ring), 3);
		if (first)
			complete(&r, cancel, -EALREADY);
		else
			complete(&r, part[0], 1000);
		cancel = newest(&r, 4, &addr);
		EXPECT_EQ(addr, part[1]);
		complete(&r, part[1], -ECANCELED);
		EXPECT_EQ(told.what, HUGEPIN_SG_URING_DONE | HUGEPIN_SG_URING_FREE);
		EXPECT_EQ(told.err, -ECANCELED);
		EXPECT_EQ(told.bytes, 1000);
		complete(&r, cancel, 0);
		EXPECT_EQ(io_uring_sq_ready(&r.ring), 4);
		EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
		hugepin_free(p);
		EXPECT_EQ(hugepin_sg_uring_close(r.q), 0);
		EXPECT_EQ(hugepin_domain_close(r.domain), 0);
		io_uring_queue_exit(&r.ring);
	}
}

TEST(a_cancellation_that_finds_no_room_on_the_ring_is_asked_for_once_there_is)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct told told = { 0 };
	int fd[2];

	if (!rig_open(&r, 4, NULL))
		return;
	EXPECT_EQ(pipe(fd), 0);
	char *p = registered(&r, MIB, &pin);
	struct iovec iov = { p, 1000 };
	hugepin_sg_uring_target(fd[0], &t);
	EXPECT_EQ(hugepin_sg_uring_read(r.q, &t, UINT64_MAX, &iov, 1, 0, tell, &told), 0);
	turn(&r);
	for (struct io_uring_sqe *sqe; (sqe = io_uring_get_sqe(&r.ring));) {
		io_uring_prep_nop(sqe);
		sqe->user_data = 0;
	}
	EXPECT_EQ(hugepin_sg_uring_cancel(r.q, &told), 1);
	EXPECT_EQ(hugepin_sg_uring_again(r.q), 1); /* it waits for room */
	turn(&r);
	EXPECT_EQ(hugepin_sg_uring_again(r.q), 0);
	until(&r, &told, ALL);
	EXPECT_EQ(told.err, -ECANCELED);
	if (told.what != ALL) /* do not wait for ever for the end of the read */
		EXPECT_EQ(write(fd[1], p, 1), 1);
	until(&r, &told, ALL);
	close(fd[0]);
	close(fd[1]);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

TEST(a_peer_that_has_gone_is_an_error_and_no_signal)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct iovec iov[PIECES];
	int fd[2], err = 0;

	if (!rig_open(&r, 64, NULL))
		return;
	tcp_pair(fd, 0, 0);
	close(fd[1]);
	char *p = registered(&r, MIB, &pin);
	lay(iov, PIECES, p, 30011);
	hugepin_sg_uring_target(fd[0], &t);
	for (int i = 0; i < 3; i++) {
		struct told told = { 0 };
		EXPECT_EQ(hugepin_sg_uring_send(r.q, &t, iov, PIECES, 0, tell, &told), 0);
		until(&r, &told, ALL);
		err = told.err;
	}
	EXPECT(err == -EPIPE || err == -ECONNRESET);
	close(fd[0]);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

/* ------------------------------------------------------------------ files */

static int temporary(int flags)
{
	char name[] = "/var/tmp/uring_gather.XXXXXX";
	int fd = mkstemp(name), again;

	if (!flags) {
		unlink(name);
		return fd;
	}
	again = open(name, O_RDWR | flags);
	unlink(name);
	close(fd);
	return again;
}

/* Write pieces, and read them back into others, by these ways. */
static void write_and_read(const struct hugepin_sg_uring_attr *attr, int flags, unsigned mode, size_t unit, size_t shift)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct iovec iov[PIECES], back[PIECES];
	struct told told = { 0 }, again = { 0 };
	size_t sum = 0;
	int fd = temporary(flags);

	if (fd < 0) {
		EXPECT_EQ(errno, EINVAL);
		SKIP("the file system has no O_DIRECT");
	}
	if (!rig_open(&r, 64, attr))
		return;
	char *p = registered(&r, 4 * MIB, &pin);
	for (int i = 0; i < PIECES; i++) {
		iov[i] = (struct iovec){ p + i * 32768 + shift, unit * (1 + (size_t)i % 5) };
		back[i] = (struct iovec){ p + 2 * MIB + (PIECES - i) * 32768, iov[i].iov_len };
		sum += iov[i].iov_len;
	}
	memset(p + 2 * MIB, 0, 2 * MIB);
	EXPECT_EQ(hugepin_sg_uring_target(fd, &t), 0);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 8192, iov, PIECES, mode, tell, &told), 0);
	until(&r, &told, ALL);
	EXPECT_EQ(told.err, 0);
	EXPECT_EQ(told.bytes, sum);
	EXPECT_EQ(hugepin_sg_uring_read(r.q, &t, 8192, back, PIECES, mode, tell, &again), 0);
	until(&r, &again, ALL);
	EXPECT_EQ(again.err, 0);
	EXPECT_EQ(again.bytes, sum);
	for (int i = 0; i < PIECES; i++)
		EXPECT_EQ(memcmp(iov[i].iov_base, back[i].iov_base, iov[i].iov_len), 0);
	if (r.vector && !attr && mode == HUGEPIN_SG_URING_FIXED)
		EXPECT_EQ(stats(&r).requests, 2);
	close(fd);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

TEST(files_get_and_give_pieces_by_each_way)
{
	const struct hugepin_sg_uring_attr big = { .size = sizeof big, .slot_len = 1 << 20 };
	const struct hugepin_sg_uring_attr old = { .size = sizeof old, .slot_len = 1 << 20, .single = 1 };

	write_and_read(NULL, 0, HUGEPIN_SG_URING_FIXED, 1000, 5);
	write_and_read(NULL, 0, HUGEPIN_SG_URING_PLAIN, 1000, 5);
	write_and_read(&big, 0, HUGEPIN_SG_URING_COPY, 1000, 5);
	write_and_read(&big, 0, 0, 1000, 5);
	write_and_read(&old, 0, HUGEPIN_SG_URING_FIXED, 1000, 5);
	write_and_read(&old, 0, 0, 10, 5);
}

TEST(files_past_the_page_cache_too)
{
	const struct hugepin_sg_uring_attr big = { .size = sizeof big, .slot_len = 1 << 20 };

	write_and_read(NULL, O_DIRECT, HUGEPIN_SG_URING_FIXED, 4096, 0);
	write_and_read(NULL, O_DIRECT, HUGEPIN_SG_URING_PLAIN, 4096, 0);
	write_and_read(&big, O_DIRECT, HUGEPIN_SG_URING_COPY, 4096, 0);
	write_and_read(&big, O_DIRECT, 0, 4096, 0);
}

TEST(pieces_that_o_direct_does_not_take_are_copied)
{
	const struct hugepin_sg_uring_attr big = { .size = sizeof big, .slot_len = 1 << 20 };
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct told told = { 0 };
	int fd = temporary(O_DIRECT);

	if (fd < 0)
		SKIP("the file system has no O_DIRECT");
	close(fd);
	write_and_read(&big, O_DIRECT, 0, 4096, 12);

	fd = temporary(O_DIRECT);
	if (!rig_open(&r, 64, NULL))
		return;
	char *p = registered(&r, MIB, &pin);
	hugepin_sg_uring_target(fd, &t);
	EXPECT(t.align >= 512);
	struct iovec iov[2] = { { p, 1000 }, { p + 5000, 7192 } };
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, 2, HUGEPIN_SG_URING_FIXED, tell, &told), -EMSGSIZE);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, 2, 0, tell, &told), 0);
	until(&r, &told, ALL);
	EXPECT_EQ(told.err, 0);
	EXPECT_EQ(told.bytes, 8192);
	iov[1].iov_len = 7191;
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, 2, 0, tell, &told), -EINVAL);
	close(fd);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

TEST(a_read_ends_where_the_file_ends)
{
	const unsigned modes[] = { HUGEPIN_SG_URING_FIXED, HUGEPIN_SG_URING_PLAIN, HUGEPIN_SG_URING_COPY, 0 };
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	char text[10000];
	int fd = temporary(0);

	if (!rig_open(&r, 64, &(struct hugepin_sg_uring_attr){ .size = sizeof(struct hugepin_sg_uring_attr),
							       .single = 1 }))
		return;
	char *p = registered(&r, MIB, &pin);
	fill(text, sizeof text, 1);
	EXPECT_EQ(write(fd, text, sizeof text), sizeof text);
	hugepin_sg_uring_target(fd, &t);
	for (int m = 0; m < 4; m++) {
		struct told told = { 0 };
		struct iovec iov[3] = { { p, 6000 }, { p + 10000, 5000 }, { p + 20000, 5000 } };

		memset(p, 0, 30000);
		EXPECT_EQ(hugepin_sg_uring_read(r.q, &t, 0, iov, 3, modes[m], tell, &told), 0);
		until(&r, &told, ALL);
		EXPECT_EQ(told.err, 0);
		EXPECT_EQ(told.bytes, 10000);
		EXPECT_EQ(memcmp(p, text, 6000), 0);
		EXPECT_EQ(memcmp(p + 10000, text + 6000, 4000), 0);
		EXPECT(!p[14000] && !p[20000]);
	}
	close(fd);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

TEST(an_error_in_the_middle_of_a_chain_ends_it_there)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct iovec iov[8];
	struct rlimit before, limit;
	struct told told = { 0 };
	char got[8 * 4096];
	int fd = temporary(0);

	if (!rig_open(&r, 64, &(struct hugepin_sg_uring_attr){ .size = sizeof(struct hugepin_sg_uring_attr),
							       .single = 1 }))
		return;
	char *p = registered(&r, MIB, &pin);
	for (int i = 0; i < 8; i++)
		iov[i] = (struct iovec){ p + i * 8192, 4096 };
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &before);
	limit = before;
	limit.rlim_cur = 3 * 4096 + 1000;
	EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	hugepin_sg_uring_target(fd, &t);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, 8, HUGEPIN_SG_URING_FIXED, tell, &told), 0);
	until(&r, &told, ALL);
	EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
	EXPECT_EQ(told.err, -EFBIG);
	EXPECT_EQ(told.bytes, limit.rlim_cur);
	EXPECT_EQ(pread(fd, got, sizeof got, 0), limit.rlim_cur);
	EXPECT(equal(got, iov, 3));
	EXPECT(stats(&r).continued >= 1);
	close(fd);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

static void nops(struct rig *r)
{
	for (struct io_uring_sqe *sqe; (sqe = io_uring_get_sqe(&r->ring));) {
		io_uring_prep_nop(sqe);
		sqe->user_data = 0;
	}
}

TEST(a_full_ring_takes_no_message_and_the_rest_of_one_later)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct hugepin_pin pin;
	struct told told = { 0 };
	struct io_uring_cqe *cqe;
	char text[3000];
	int fd[2];

	if (!rig_open(&r, 4, NULL))
		return;
	EXPECT_EQ(pipe(fd), 0);
	char *p = registered(&r, MIB, &pin);
	struct iovec iov[2] = { { p, 1000 }, { p + 5000, 2000 } };
	hugepin_sg_uring_target(fd[0], &t);
	nops(&r);
	EXPECT_EQ(hugepin_sg_uring_read(r.q, &t, UINT64_MAX, iov, 2, HUGEPIN_SG_URING_PLAIN, tell, &told), -EAGAIN);
	turn(&r);
	EXPECT_EQ(hugepin_sg_uring_read(r.q, &t, UINT64_MAX, iov, 2, HUGEPIN_SG_URING_PLAIN, tell, &told), 0);
	io_uring_submit(&r.ring);
	fill(text, sizeof text, 5);
	EXPECT_EQ(write(fd[1], text, 1500), 1500);
	nops(&r);
	while (io_uring_wait_cqe(&r.ring, &cqe) == -EINTR)
		;
	EXPECT_EQ(hugepin_sg_uring_cqe(r.q, cqe), 1);
	io_uring_cqe_seen(&r.ring, cqe);
	EXPECT_EQ(told.what, 0);
	EXPECT_EQ(hugepin_sg_uring_again(r.q), 1);
	io_uring_submit(&r.ring);
	EXPECT_EQ(hugepin_sg_uring_again(r.q), 0);
	EXPECT_EQ(write(fd[1], text + 1500, 1500), 1500);
	until(&r, &told, ALL);
	EXPECT_EQ(told.err, 0);
	EXPECT_EQ(told.bytes, 3000);
	EXPECT(equal(text, iov, 2));
	EXPECT_EQ(stats(&r).continued, 1);

	/* Cancelled while it waits for room. */
	told = (struct told){ 0 };
	EXPECT_EQ(hugepin_sg_uring_read(r.q, &t, UINT64_MAX, iov, 2, HUGEPIN_SG_URING_PLAIN, tell, &told), 0);
	io_uring_submit(&r.ring);
	EXPECT_EQ(write(fd[1], text, 1500), 1500);
	nops(&r);
	while (io_uring_wait_cqe(&r.ring, &cqe) == -EINTR || cqe->user_data == 0)
		io_uring_cqe_seen(&r.ring, cqe);
	EXPECT_EQ(hugepin_sg_uring_cqe(r.q, cqe), 1);
	io_uring_cqe_seen(&r.ring, cqe);
	EXPECT_EQ(hugepin_sg_uring_cancel(r.q, &told), 1);
	EXPECT_EQ(hugepin_sg_uring_again(r.q), 0);
	EXPECT_EQ(told.what, ALL);
	EXPECT_EQ(told.err, -ECANCELED);
	EXPECT_EQ(told.bytes, 1500);
	EXPECT_EQ(stats(&r).out, 0);
	turn(&r);
	close(fd[0]);
	close(fd[1]);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	hugepin_free(p);
	rig_close(&r);
}

TEST(a_queue_without_a_domain_and_one_whose_messages_are_all_out)
{
	struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .messages = 2, .pieces = 3 };
	struct rig r;
	struct hugepin_sg_uring_target t;
	hugepin_sg_uring *q;
	struct told told[3] = { 0 };
	char p[4][10] = { "abc" };
	struct iovec iov[4] = { { p[0], 10 }, { p[1], 10 }, { p[2], 10 }, { p[3], 10 } };
	int fd = temporary(0);

	if (!rig_open(&r, 64, NULL))
		return;
	EXPECT_EQ(hugepin_sg_uring_close(r.q), 0);
	EXPECT_EQ(hugepin_sg_uring_open(&r.ring, NULL, &attr, &r.q), 0);
	hugepin_sg_uring_target(fd, &t);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, 4, 0, tell, &told[0]), -EMSGSIZE);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, 3, 0, tell, &told[0]), 0);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 30, iov, 3, 0, tell, &told[1]), 0);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 60, iov, 3, 0, tell, &told[2]), -EAGAIN);
	until(&r, &told[0], ALL);
	until(&r, &told[1], ALL);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 60, iov, 3, 0, tell, &told[2]), 0);
	until(&r, &told[2], ALL);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, 3, 8, tell, &told[0]), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, NULL, 0, iov, 3, 0, tell, &told[0]), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, NULL, 3, 0, tell, &told[0]), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, 0, 0, tell, &told[0]), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, 3, HUGEPIN_SG_URING_FIXED, tell, &told[0]), -EMSGSIZE);
	attr.pieces = 1025;
	EXPECT_EQ(hugepin_sg_uring_open(&r.ring, NULL, &attr, &q), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_open(NULL, NULL, NULL, &q), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_open(&r.ring, NULL, NULL, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_close(NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_target(-1, &t), -EBADF);
	close(fd);
	rig_close(&r);
}

TEST(slots_that_cannot_be_registered_go_by_address)
{
	struct rig r;
	struct hugepin_sg_uring_target t;
	struct told told = { 0 };
	struct iovec iov[PIECES];
	char *p = pages(MIB), got[65536];
	int fd = temporary(0);

	budget = 4096;
	bool opened = rig_open(&r, 64, &(struct hugepin_sg_uring_attr){ .size = sizeof(struct hugepin_sg_uring_attr),
									.slot_len = 65536 });
	budget = 0;
	if (!opened)
		return;
	size_t sum = lay(iov, PIECES, p, 30011);
	hugepin_sg_uring_target(fd, &t);
	EXPECT_EQ(hugepin_sg_uring_write(r.q, &t, 0, iov, PIECES, HUGEPIN_SG_URING_COPY, tell, &told), 0);
	until(&r, &told, ALL);
	EXPECT_EQ(told.bytes, sum);
	EXPECT_EQ(pread(fd, got, sizeof got, 0), sum);
	EXPECT(equal(got, iov, PIECES));
	EXPECT_EQ(stats(&r).fixed_bytes, 0);
	EXPECT_EQ(stats(&r).copied_bytes, sum);
	close(fd);
	munmap(p, MIB);
	rig_close(&r);
}

static int count_fds(void)
{
	int count = 0;

	for (int fd = 0; fd < 1000; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

TEST(calibration_measures_what_is_there_and_leaves_nothing_open)
{
	struct hugepin_sg_uring_model model = { .size = 1 };
	struct rig r;

	if (!rig_open(&r, 8, NULL))
		return;
	rig_close(&r);
	int fds = count_fds();

	EXPECT_EQ(hugepin_sg_uring_calibrate(NULL, NULL, sizeof model), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_calibrate(NULL, &model, sizeof model - 1), -EINVAL);
	EXPECT_EQ(model.size, 1);
	EXPECT_EQ(hugepin_sg_uring_calibrate("/nowhere", &model, sizeof model), 0);
	EXPECT_EQ(model.size, sizeof model);
	EXPECT_EQ(model.measured, 1u << HUGEPIN_SG_URING_SEND);
	EXPECT_EQ(hugepin_sg_uring_calibrate("/var/tmp", &model, sizeof model), 0);
	EXPECT(model.measured & 1u << HUGEPIN_SG_URING_SEND);
	for (int v = 0; v < HUGEPIN_SG_URING_VERBS; v++)
		for (int way = 0; way < 2; way++) {
			const struct hugepin_sg_uring_cost *c = way ? &model.fixed[v] : &model.plain[v];
			EXPECT(c->request >= 0 && c->element >= 0 && c->byte >= 0);
			EXPECT(c->request + c->element + c->byte > 0);
		}
	EXPECT(model.piece > 0 && model.copy_byte > 0);
	EXPECT_EQ(count_fds(), fds);
}

TEST(calibration_measures_where_the_kernel_tells_of_no_memory)
{
	struct hugepin_sg_uring_model model;
	pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		refuse_features();
		EXPECT_EQ(hugepin_sg_uring_calibrate("/nowhere", &model, sizeof model), 0);
		EXPECT_EQ(model.measured, 1u << HUGEPIN_SG_URING_SEND);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

T_MAIN
