/* link: hugepin */
/*
 * Lending between processes, by the public API alone. A child lends; this process borrows and writes to the child's
 * memory by process_vm_writev, as a device would, after it has looked up the key in the table of what the child has
 * registered. Messages go over a socket, and so do commands to the child.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "hugepin.h"
#include "tests/t.h"

#define HP_MIN_OF(a, b) ((a) < (b) ? (a) : (b))
enum { REGS = 256, PIECE = 128 << 10, MESSAGE = 512, PEERS = 3 };

/* The child's adapter, in memory that all processes see. */
struct device {
	struct {
		uint64_t addr, len;
		_Atomic bool live;
	} reg[REGS];
	_Atomic uint64_t bytes, most;
	char *buffer; /* what it lends */
	size_t size;
};
static struct device *device;

static int device_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)access;
	for (uint32_t i = 1; i < REGS; i++) {
		if (device->reg[i].live)
			continue;
		device->reg[i].addr = (uintptr_t)addr;
		device->reg[i].len = len;
		device->reg[i].live = true;
		device->bytes += len;
		if (device->bytes > device->most)
			device->most = device->bytes;
		*ret_ = (struct hugepin_reg){ i, i, 0 };
		return 0;
	}
	return -ENOMEM;
}

static int device_dereg(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx;
	device->bytes -= device->reg[reg->rkey].len;
	device->reg[reg->rkey].live = false;
	return 0;
}

static int device_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ |
						   HUGEPIN_REMOTE_WRITE };
	return 0;
}

static const struct hugepin_backend backend = {
	.size = sizeof backend, .name = "window", .reg = device_reg, .dereg = device_dereg, .limits = device_limits
};

/* ------------------------------------------------------------------ both sides */

static hugepin_domain *domain;
static hugepin_lend *lend;
static int sock[PEERS] = { -1, -1, -1 };
static uint64_t lent_max = 4 * PIECE;

static int send_message(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)arg;
	return send(sock[peer], msg, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len ? 0 : -errno;
}

static struct hugepin_far answer;
static int answer_error = 1;

static void ready(void *arg, void *token, int err, const struct hugepin_far *key)
{
	(void)arg, (void)token;
	answer_error = err;
	if (key)
		answer = *key;
}

static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	(void)arg, (void)peer, (void)len;
	if (addr < (uintptr_t)device->buffer || addr - (uintptr_t)device->buffer >= device->size)
		return -EACCES;
	*ret_buffer = (struct iovec){ device->buffer, device->size };
	return 0;
}

static void open_lend(void)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_LRU,
				     .watch = HUGEPIN_WATCH_PROGRAM,
				     .pinned_bytes_max = 8 * MIB };
	struct hugepin_lend_attr lend_attr = { .size = sizeof lend_attr,
					       .peers = PEERS,
					       .carry_max = 128,
					       .lent_bytes_max = lent_max,
					       .peer_bytes_max = lent_max,
					       .idle_bytes_max = 2 * PIECE,
					       .send = send_message,
					       .ready = ready,
					       .offer = offer };

	if (hugepin_domain_open(&backend, NULL, &attr, &domain) != 0 ||
	    hugepin_lend_open(domain, &lend_attr, NULL, &lend) != 0)
		abort();
}

/* ------------------------------------------------------------------ the child */

enum { FREE = 100, UNMAP, LENT, IDLE, CLOSE, PURGE, MAPPED };

static uint64_t lend_sum(int what)
{
	struct hugepin_lend_stats s;

	hugepin_lend_stats(lend, HUGEPIN_LEND_ALL, &s, sizeof s);
	return what == LENT ? s.lent_bytes : s.idle_bytes;
}

static uint64_t obey(unsigned char command)
{
	switch (command) {
	case FREE:
		hugepin_free(device->buffer);
		device->size = 0;
		return (uint64_t)hugepin_purge();
	case UNMAP:
		hugepin_forget(device->buffer, device->size);
		munmap(device->buffer, device->size);
		device->size = 0;
		hugepin_prefetch(domain, &lend, 1, 0); /* the service thread takes the news in */
		return 0;
	case PURGE:
		return (uint64_t)hugepin_purge();
	case MAPPED: { /* whether the heap still has the memory */
		struct hugepin_extent x;

		return hugepin_extent(device->buffer, &x, sizeof x) > 0;
	}
	case CLOSE:
		return (uint64_t)-hugepin_lend_close(lend);
	default:
		return lend_sum(command);
	}
}

/* Serve until the first peer closes its end. */
static void lend_memory(void)
{
	unsigned char msg[MESSAGE];
	uint64_t result;

	open_lend();
	for (;;) {
		struct pollfd p[PEERS];

		for (uint32_t i = 0; i < PEERS; i++)
			p[i] = (struct pollfd){ .fd = sock[i], .events = POLLIN };
		poll(p, PEERS, 10);
		hugepin_lend_progress(lend);
		for (uint32_t i = 0; i < PEERS; i++) {
			ssize_t n = p[i].revents ? recv(sock[i], msg, sizeof msg, MSG_DONTWAIT) : -1;

			if (n < 0)
				continue;
			if (n == 0) { /* the peer has ended */
				if (i == 0)
					_exit(0);
				close(sock[i]);
				sock[i] = -1;
				hugepin_lend_gone(lend, i);
			} else if (n == 1) {
				result = obey(msg[0]);
				send(sock[i], &result, sizeof result, MSG_NOSIGNAL);
			} else if (hugepin_lend_message(lend, i, msg, (size_t)n) != 0) {
				_exit(2);
			}
		}
	}
}

/* ------------------------------------------------------------------ this process, which borrows */

static pid_t child;
static int second; /* the other end of the child's sock[1] */
static bool commanded;
static uint64_t result;

/* Take one message from the child, and hand it in. The result of a command has eight bytes. */
static void listen_once(void)
{
	unsigned char msg[MESSAGE];
	ssize_t n;
	struct pollfd p = { .fd = sock[0], .events = POLLIN };

	if (poll(&p, 1, 20) != 1)
		return;
	n = recv(sock[0], msg, sizeof msg, 0);
	if (n == sizeof result && commanded) {
		memcpy(&result, msg, sizeof result);
		commanded = false;
	} else if (n > 0) {
		EXPECT_EQ(hugepin_lend_message(lend, 0, msg, (size_t)n), 0);
	}
}

static uint64_t command(unsigned char what)
{
	commanded = true;
	EXPECT_EQ(send(sock[0], &what, 1, 0), 1);
	while (commanded && !t_failures)
		listen_once();
	return result;
}

static void start(bool heap)
{
	int pair[2], other[2];

	device = mmap(NULL, sizeof *device, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, other) == 0);
	child = fork();
	if (child == 0) {
		close(pair[1]);
		close(other[1]);
		sock[0] = pair[0];
		sock[1] = other[0];
		device->size = 2 * MIB;
		device->buffer =
			heap ? hugepin_malloc(device->size)
			     : mmap(NULL, device->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		lend_memory();
	}
	close(pair[0]);
	close(other[0]);
	sock[0] = pair[1];
	second = other[1];
	open_lend();
	command(LENT); /* it is there */
}

static void finish(void)
{
	int status;

	EXPECT_EQ(hugepin_lend_gone(lend, 0), 0);
	EXPECT_EQ(hugepin_lend_close(lend), 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	close(sock[0]);
	close(second);
	sock[0] = -1;
	waitpid(child, &status, 0);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	munmap(device, sizeof *device);
}

/* A key of the child's memory at that offset; the error of ready(). */
static int borrow(size_t offset, size_t len, struct hugepin_far *ret_)
{
	int r = hugepin_lend_key(lend, 0, (uintptr_t)device->buffer + offset, len, NULL, ret_);

	if (r)
		return r < 0 ? r : 0;
	answer_error = 1;
	while (answer_error == 1 && !t_failures)
		listen_once();
	*ret_ = answer;
	return answer_error;
}

/* The adapter: the key is live, covers the range, and the bytes get there. */
static bool transfer(const struct hugepin_far *key, const void *data, size_t len)
{
	struct iovec from = { (void *)data, len }, to = { (void *)(uintptr_t)key->base, len };

	return key->rkey < REGS && device->reg[key->rkey].live && key->base >= device->reg[key->rkey].addr &&
	       key->base + len <= device->reg[key->rkey].addr + device->reg[key->rkey].len && len <= key->len &&
	       process_vm_writev(child, &from, 1, &to, 1, 0) == (ssize_t)len;
}

static bool has(size_t offset, const void *data, size_t len)
{
	char there[64];
	struct iovec to = { there, len }, from = { device->buffer + offset, len };

	return process_vm_readv(child, &to, 1, &from, 1, 0) == (ssize_t)len && !memcmp(there, data, len);
}

TEST(what_is_written_by_a_borrowed_key_is_in_the_lenders_memory)
{
	struct hugepin_far key;

	start(false);
	for (unsigned i = 0; i < 100; i++) {
		size_t offset = i * 7919 % (2 * MIB - 4);

		EXPECT_EQ(borrow(offset, 4, &key), 0);
		EXPECT(transfer(&key, &i, HP_MIN_OF(sizeof i, key.len)));
		EXPECT(has(offset, &i, HP_MIN_OF(sizeof i, key.len)));
		EXPECT_EQ(hugepin_lend_done(lend, &key), 0);
	}
	EXPECT(command(LENT) <= lent_max);
	EXPECT(device->most <= lent_max + 2 * PIECE + 4096);
	finish();
}

TEST(bytes_that_ride_in_the_question_are_in_the_lenders_memory)
{
	static const char data[] = "carried to the other process";
	struct hugepin_far key;

	start(true);
	answer_error = 1;
	EXPECT_EQ(hugepin_lend_put(lend, 0, (uintptr_t)device->buffer + 5, data, sizeof data, NULL, &key), 0);
	while (answer_error == 1)
		listen_once();
	EXPECT_EQ(answer_error, 0);
	EXPECT(has(5, data, sizeof data));
	EXPECT_EQ(hugepin_lend_done(lend, &answer), 0);
	EXPECT_EQ(borrow(3 * MIB, 1, &key), -EACCES);
	finish();
}

/* Until nothing is lent, messages go to and fro. */
static void wait_for_return(void)
{
	for (int i = 0; i < 2000 && command(LENT); i++)
		usleep(10000);
	EXPECT_EQ(command(LENT), 0);
}

TEST(a_key_of_memory_that_is_unmapped_is_asked_back_and_good_until_then)
{
	struct hugepin_far key, other;

	start(false);
	EXPECT_EQ(borrow(0, 100, &key), 0);
	EXPECT(transfer(&key, "x", 1));
	EXPECT_EQ(command(UNMAP), 0);
	EXPECT(command(LENT) && device->reg[key.rkey].live); /* a use is out */
	EXPECT_EQ(hugepin_lend_done(lend, &key), 0);
	wait_for_return();
	EXPECT_EQ(borrow(0, 1, &other), -EACCES);
	finish();
}

TEST(a_key_of_memory_that_is_freed_and_purged_is_asked_back)
{
	struct hugepin_far key;

	start(true);
	EXPECT_EQ(borrow(0, 100, &key), 0);
	EXPECT(transfer(&key, "x", 1));
	EXPECT_EQ(hugepin_lend_done(lend, &key), 0);
	EXPECT_EQ(command(FREE), 0);
	wait_for_return();
	EXPECT_EQ(device->bytes, 0); /* so the heap can give the memory back */
	EXPECT_EQ(command(PURGE), 0);
	EXPECT_EQ(command(MAPPED), 0);
	finish();
}

TEST(a_peer_that_is_killed_leaves_nothing_lent)
{
	struct hugepin_far key;
	int status;
	pid_t peer;

	start(false);
	peer = fork();
	if (peer == 0) { /* the second peer of the lender; its lend is its own */
		close(sock[0]);
		sock[0] = second;
		hugepin_lend_close(lend);
		hugepin_domain_close(domain);
		open_lend();
		for (size_t at = 0; at < 4; at++)
			if (borrow(at * PIECE, 1, &key) != 0)
				_exit(1);
		raise(SIGKILL);
	}
	close(second);
	second = -1;
	waitpid(peer, &status, 0);
	EXPECT(WIFSIGNALED(status));
	for (int i = 0; i < 2000 && command(LENT); i++)
		usleep(10000);
	EXPECT_EQ(command(LENT), 0);
	EXPECT(command(IDLE) <= 2 * PIECE);
	EXPECT_EQ(borrow(0, 1, &key), 0); /* and others are served */
	EXPECT(transfer(&key, "y", 1));
	EXPECT_EQ(command(CLOSE), EBUSY);
	EXPECT_EQ(hugepin_lend_done(lend, &key), 0);
	finish();
}

T_MAIN
