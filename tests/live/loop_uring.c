/* link: hugepin uring */
/*
 * examples/loop_uring.c, the server of hugepin_loop(7), with a thousand peers at a time: each answer has the bytes of
 * its block. Peers hang up at any point, ask for what there is not, or ask and do not read.
 */
#include "live/live.h"
#include "live/filter.h"

#include <liburing.h>

/* What the server, a child, asks its ring for. Relaxed: numbers. */
static struct {
	_Atomic unsigned fixed, plain;
} *reads;

#define COUNTED(which, call) (atomic_fetch_add_explicit(&reads->which, 1, memory_order_relaxed), call)
#define io_uring_prep_read_fixed(...) COUNTED(fixed, io_uring_prep_read_fixed(__VA_ARGS__))
#define io_uring_prep_read(...) COUNTED(plain, io_uring_prep_read(__VA_ARGS__))
#define main serve
#include "../../examples/loop_uring.c"
#undef main

enum { CLIENTS = 1000, ROUNDS = 6, AHEAD = 8, BLOCKS = 64, CLONE_BUFFERS = 30 };

/* A client of ten is of each kind, the other four of ten read all that they ask for. */
enum { LEAVES_AT_ONCE, LEAVES_IN_A_NUMBER, LEAVES_IN_AN_ANSWER, ASKS_WRONGLY, STALLS, STALLS_AND_LEAVES, KINDS = 10 };

static struct client {
	int fd;
	unsigned kind, answered, rounds;
	size_t got; /* bytes of the answer that is coming */
} clients[CLIENTS];
static char *content, directory[64], file_name[80], socket_name[80];
static pid_t server;

static __u64 number_of(const struct client *c, unsigned round)
{
	return ((size_t)(c - clients) * 7 + round) % BLOCKS;
}

static void ask(struct client *c, unsigned round)
{
	const __u64 number = number_of(c, round);

	EXPECT_EQ(write(c->fd, &number, sizeof number), sizeof number);
}

static void leave(struct client *c)
{
	close(c->fd);
	c->fd = -1;
}

/* Take what has come. Compare it, and ask for more. False: the client has nothing more to do, or has been left. */
static bool hear(struct client *c)
{
	static char piece[BLOCK];
	const ssize_t n = read(c->fd, piece, BLOCK - c->got);

	if (c->kind == ASKS_WRONGLY) {
		EXPECT(n == 0 || (n < 0 && errno == ECONNRESET));
		return false;
	}
	if (!EXPECT(n > 0))
		return false;
	EXPECT(!memcmp(piece, content + number_of(c, c->answered) * BLOCK + c->got, (size_t)n));
	c->got += (size_t)n;
	if (c->kind == LEAVES_IN_AN_ANSWER)
		return false;
	if (c->got < BLOCK)
		return true;
	c->got = 0;
	c->answered++;
	if (c->answered < c->rounds && c->kind != STALLS)
		ask(c, c->answered);
	return c->answered < c->rounds;
}

static void join(struct client *c, unsigned kind, unsigned rounds)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };

	strcpy(to.sun_path, socket_name);
	*c = (struct client){ .fd = socket(AF_UNIX, SOCK_STREAM, 0), .kind = kind, .rounds = rounds };
	while (connect(c->fd, (struct sockaddr *)&to, sizeof to) < 0) { /* it is not there yet */
		if (!EXPECT(waitpid(server, NULL, WNOHANG) == 0))
			exit(1);
		sleep_ms(1);
	}
}

/* A client that asks, and hears the answers. */
static void converse(struct client *c, unsigned rounds)
{
	join(c, KINDS, rounds);
	ask(c, 0);
	while (hear(c))
		;
}

static unsigned reads_of(const _Atomic unsigned *which)
{
	return atomic_load_explicit(which, memory_order_relaxed);
}

static void begin(struct client *c, unsigned kind)
{
	const __u64 wrong = kind == ASKS_WRONGLY && (c - clients) % 20 < 10 ? BLOCKS : UINT64_MAX;

	join(c, kind, kind == STALLS ? AHEAD : ROUNDS);
	if (kind == LEAVES_IN_A_NUMBER)
		EXPECT_EQ(write(c->fd, &wrong, 3), 3);
	else if (kind == ASKS_WRONGLY)
		EXPECT_EQ(write(c->fd, &wrong, sizeof wrong), sizeof wrong);
	else if (kind != LEAVES_AT_ONCE)
		ask(c, 0);
	/* More answers than the socket takes. */
	for (unsigned i = 1; i < AHEAD && (kind == STALLS || kind == STALLS_AND_LEAVES); i++)
		ask(c, i);
	if (kind == LEAVES_AT_ONCE || kind == LEAVES_IN_A_NUMBER)
		leave(c);
}

static void load(void)
{
	const int poll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	unsigned left = 0;

	for (struct client *c = clients; c < clients + CLIENTS; c++) {
		begin(c, (unsigned)(c - clients) % KINDS);
		if (c->fd < 0 || c->kind == STALLS || c->kind == STALLS_AND_LEAVES)
			continue;
		event.data.ptr = c;
		EXPECT_EQ(epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event), 0);
		left++;
	}
	while (left && !t_failures)
		if (epoll_wait(poll, &event, 1, -1) == 1 && !hear(event.data.ptr)) {
			leave(event.data.ptr);
			left--;
		}
	close(poll);
	/* Those who stall have held up nobody. What they asked for is there when they read. */
	for (struct client *c = clients; c < clients + CLIENTS && !t_failures; c++) {
		while (c->kind == STALLS && hear(c))
			;
		if (c->fd >= 0)
			leave(c);
	}
}

static void start_server(bool clones)
{
	if ((server = fork()) == 0) {
		struct filter f = { .len = 0 };

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		filter_argument(&f, SYS_io_uring_register, 1, BPF_JEQ, CLONE_BUFFERS, FILTER_REFUSES(EINVAL));
		if (!clones && !filter_install(&f, SECCOMP_RET_ALLOW))
			_exit(2);
		exit(serve(3, (char *[]){ "loop_uring", file_name, socket_name, NULL }));
	}
}

static void serves_a_thousand(bool clones)
{
	struct client one = { 0 };
	struct io_uring_params params = { .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN };
	const int probe = (int)syscall(SYS_io_uring_setup, 1, &params);
	struct rlimit files, locked;

	if (probe < 0)
		SKIP("no io_uring, or one before Linux 6.1");
	close(probe);
	getrlimit(RLIMIT_NOFILE, &files);
	if (files.rlim_max < 1100)
		SKIP("no room for a thousand sockets: ulimit -n");
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	strcpy(directory, "/tmp/hugepin-loop-XXXXXX");
	if (!EXPECT(mkdtemp(directory)))
		return;
	snprintf(file_name, sizeof file_name, "%s/file", directory);
	snprintf(socket_name, sizeof socket_name, "%s/socket", directory);
	content = mmap(NULL, BLOCKS * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reads = mmap(NULL, sizeof *reads, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < BLOCKS * BLOCK; i++)
		content[i] = (char)(i * 31 + (i >> 8) * 7 + (i >> 16));
	const int fd = open(file_name, O_RDWR | O_CREAT | O_DIRECT, 0600);
	if (fd >= 0) {
		EXPECT_EQ(pwrite(fd, content, BLOCKS * BLOCK, 0), BLOCKS * BLOCK);
		close(fd);
		start_server(clones);
		converse(&one, 1);
		/* All but this connection. */
		const int own = descriptors_of(server) - 1;
		load();
		leave(&one);
		while (!t_failures && descriptors_of(server) != own)
			sleep_ms(1);
		/* Registered memory is found sooner or later, if 8 MiB may be locked. */
		getrlimit(RLIMIT_MEMLOCK, &locked);
		while (!t_failures && locked.rlim_cur >= 8 * MIB && !reads_of(&reads->fixed)) {
			converse(&one, ROUNDS);
			leave(&one);
		}
		t_print("# %u reads by registered buffers, %u without\n", reads_of(&reads->fixed),
			reads_of(&reads->plain));
		/* Nothing but this ends it. */
		int status = 0;
		kill(server, SIGTERM);
		EXPECT_EQ(waitpid(server, &status, 0), server);
		EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	}
	unlink(file_name);
	unlink(socket_name);
	rmdir(directory);
	munmap(content, BLOCKS * BLOCK);
	munmap(reads, sizeof *reads);
	if (fd < 0)
		SKIP("no O_DIRECT in /tmp");
}

TEST(a_loop_of_epoll_and_io_uring_serves_a_thousand_peers_though_some_stall_and_some_leave)
{
	serves_a_thousand(true);
}

/* Without copies of slots the domain is the ring's own, and the owner alone registers. */
TEST(it_does_so_on_a_kernel_before_6_13)
{
	serves_a_thousand(false);
}

T_MAIN
