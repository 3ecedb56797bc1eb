/* link: hugepin */
/*
 * Processes that lend to each other, with messages over socket pairs, and without a device: all have the same shared
 * memory, so a put is a copy into it. A backend writes down in shared memory what each process has registered. Whoever
 * copies by a key looks there first, and afterwards: a key that is in use must be registered. A process may be stopped,
 * or killed.
 */
#include "hugepin.h"
#include "lend_socket.h"
#include "live/live.h"

enum { NODES = 4, KEYS = 1 << 14, LONGEST = 512 };
#define SLICE (512 * KIB) /* of a node's table: each peer has one for itself, so that no two write the same bytes */
#define TABLE (NODES * SLICE)
#define LENT_MAX (MIB / 2)
#define IDLE_MAX (MIB / 8)

/* Memory of all processes. */
static struct shared {
	struct registered {
		_Atomic uint64_t start, len; /* len 0: not registered */
	} key[NODES][KEYS];
	_Atomic uint64_t bytes[NODES], most[NODES]; /* registered now, and the most that it has been */
	_Atomic uint32_t keys[NODES];
	_Atomic unsigned ready, primed, finished; /* nodes; primed: they have keys of node 0's */
	_Atomic unsigned hits; /* puts and gets while a node is stopped */
	_Atomic bool stopped, go_on;
} *shared;
static char *tables; /* of all nodes */

static struct lend_socket to[NODES][NODES]; /* to[a][b] is a's end of the pair with b */

/* ------------------------------------------------------------------ the backend */

static unsigned me;

static int note_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)access;
	uint32_t key = atomic_fetch_add(&shared->keys[me], 1) + 1;
	if (!EXPECT(key < KEYS))
		return -ENOMEM;
	atomic_store(&shared->key[me][key].start, (uintptr_t)addr);
	atomic_store(&shared->key[me][key].len, len);
	uint64_t now = atomic_fetch_add(&shared->bytes[me], len) + len;
	if (now > atomic_load(&shared->most[me]))
		atomic_store(&shared->most[me], now);
	*ret_ = (struct hugepin_reg){ .lkey = key, .rkey = key, .cookie = key };
	return 0;
}

static int note_dereg(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx;
	atomic_fetch_sub(&shared->bytes[me], atomic_exchange(&shared->key[me][reg->cookie].len, 0));
	return 0;
}

static int note_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ |
						   HUGEPIN_REMOTE_WRITE };
	return 0;
}

static const struct hugepin_backend backend = { .size = sizeof backend, .name = "notes", .reg = note_reg,
						.dereg = note_dereg, .limits = note_limits };

static bool is_registered(unsigned node, const struct hugepin_far *key)
{
	const struct registered *r = &shared->key[node][key->rkey % KEYS];
	uint64_t start = atomic_load(&r->start), len = atomic_load(&r->len);
	return key->base >= start && key->base + key->len <= start + len;
}

/* ------------------------------------------------------------------ a node */

static hugepin_domain *domain;
static hugepin_lend *lend;
static bool dead[NODES];
static char *shadow; /* what this node has put into its slices, of all nodes */
static uint64_t seed;
static unsigned refused, lost;

static struct question {
	bool answered;
	int error;
	struct hugepin_far key;
} question;

static uint32_t dice(uint32_t n)
{
	return (uint32_t)(rand_next(&seed) % n);
}

static int send_message(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)arg;
	return lend_socket_send(&to[me][peer], msg, len);
}

static void ready(void *arg, void *token, int error, const struct hugepin_far *key)
{
	struct question *q = token;
	(void)arg;
	EXPECT(q == &question && !q->answered && !error == !!key);
	q->error = error;
	if (key)
		q->key = *key;
	q->answered = true;
}

static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	(void)arg, (void)peer;
	*ret_buffer = (struct iovec){ tables + me * TABLE, TABLE };
	return addr - (uintptr_t)ret_buffer->iov_base < TABLE && len <= TABLE ? 0 : -EACCES;
}

static void look(void)
{
	for (unsigned i = 0; i < NODES; i++)
		if (i != me && !dead[i] && lend_socket_poll(&to[me][i], 100) == -ECONNRESET) {
			dead[i] = true;
			EXPECT_EQ(hugepin_lend_gone(lend, i), 0);
		}
}

static struct hugepin_lend_stats stats_of(uint32_t peer)
{
	struct hugepin_lend_stats s = { 0 };
	EXPECT(hugepin_lend_stats(lend, peer, &s, sizeof s) > 0);
	return s;
}

/* Copy by a key, and give the use back. */
static void copy(unsigned peer, struct hugepin_far *key)
{
	size_t at = key->base - (uintptr_t)tables, len = key->len;
	EXPECT(is_registered(peer, key));
	if (dice(2)) {
		pattern_write(shadow + at, len, rand_next(&seed));
		memcpy(tables + at, shadow + at, len);
	} else {
		EXPECT(!memcmp(tables + at, shadow + at, len));
	}
	EXPECT(is_registered(peer, key));
	EXPECT_EQ(hugepin_lend_done(lend, key), 0);
}

/* A random put or get of a peer's memory, in the first `range` bytes of the slice. False: the peer lends no more, or is
 * gone. */
static bool transfer(unsigned peer, uint32_t range)
{
	size_t len = 8 * (1 + dice(LONGEST / 8)), at = 8 * dice((range - LONGEST) / 8);
	struct hugepin_far key;
	if (dice(2))
		at %= SLICE / 8;
	question = (struct question){ 0 };
	int ret =
		hugepin_lend_key(lend, peer, (uintptr_t)tables + peer * TABLE + me * SLICE + at, len, &question, &key);
	if (ret == 1) {
		copy(peer, &key);
		return true;
	}
	if (ret == -ENOTCONN) {
		EXPECT(dead[peer]);
		return false;
	}
	/* the peer was killed since the last look() */
	if (ret == -EPIPE || ret == -ECONNRESET) {
		while (!dead[peer])
			look();
		return false;
	}
	if (!EXPECT_EQ(ret, 0))
		return false;
	while (!question.answered) {
		look();
		sched_yield();
	}
	refused += question.error == -ENOBUFS;
	lost += question.error == -ECONNRESET;
	EXPECT(!question.error || question.error == -ENOBUFS || (question.error == -ECONNRESET && dead[peer]));
	if (!question.error)
		copy(peer, &question.key);
	struct hugepin_lend_stats s = stats_of(HUGEPIN_LEND_ALL);
	EXPECT(s.lent_bytes <= LENT_MAX && s.lent_bytes + s.idle_bytes <= LENT_MAX + IDLE_MAX);
	return !question.error;
}

static void node_begin(unsigned number)
{
	struct hugepin_attr a = { .size = sizeof a, .policy = HUGEPIN_POLICY_LRU, .pinned_bytes_max = 64 * MIB,
				  .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_lend_attr l = { .size = sizeof l, .peers = NODES, .lent_bytes_max = LENT_MAX,
				       .idle_bytes_max = IDLE_MAX, .send = send_message, .ready = ready,
				       .offer = offer };
	me = number;
	seed = number + 1;
	alarm(t_seconds());
	for (unsigned a_node = 0; a_node < NODES; a_node++)
		for (unsigned b = 0; b < NODES; b++)
			if (a_node != me && b != a_node)
				lend_socket_close(&to[a_node][b]);
	shadow = calloc(1, (size_t)NODES * TABLE);
	EXPECT_EQ(hugepin_domain_open(&backend, NULL, &a, &domain), 0);
	EXPECT_EQ(hugepin_lend_open(domain, &l, NULL, &lend), 0);
	for (unsigned i = 0; i < NODES; i++) {
		to[me][i].lend = lend;
		to[me][i].peer = i;
	}
	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < NODES)
		sched_yield();
}

/* Serve the others until all have finished. Then close. */
static void node_end(void)
{
	atomic_fetch_add(&shared->finished, 1);
	while (atomic_load(&shared->finished) < NODES) {
		look();
		sched_yield();
	}
	struct hugepin_lend_stats s = stats_of(HUGEPIN_LEND_ALL);
	EXPECT_EQ(s.broken, 0);
	EXPECT(s.bytes_peak <= LENT_MAX + IDLE_MAX);
	for (unsigned i = 0; i < NODES; i++) {
		EXPECT(i == me || !to[me][i].broken);
		if (i != me && !dead[i])
			EXPECT_EQ(hugepin_lend_gone(lend, i), 0);
		if (i != me)
			lend_socket_close(&to[me][i]);
	}
	EXPECT_EQ(stats_of(HUGEPIN_LEND_ALL).lent_bytes, 0);
	EXPECT_EQ(hugepin_lend_close(lend), 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0); /* -EBUSY: pins are out */
	EXPECT_EQ(atomic_load(&shared->bytes[me]), 0);
	EXPECT(atomic_load(&shared->most[me]) <= LENT_MAX + IDLE_MAX);
	free(shadow);
}

static unsigned random_peer(void)
{
	return (me + 1 + dice(NODES - 1)) % NODES;
}

/* ------------------------------------------------------------------ what the nodes do */

static void only_traffic(void)
{
	unsigned done = 0;
	for (int n = 0; n < 2000; n++) {
		done += transfer(random_peer(), SLICE);
		look();
	}
	EXPECT(done > 1800);
	t_print("# node %u: %u transfers, %u refused, %llu questions\n", me, done, refused,
		(unsigned long long)stats_of(HUGEPIN_LEND_ALL).asks);
}

/* The others put and get by the keys that they have of node 0, which is stopped. */
static void traffic_with_a_stopped_node(void)
{
	if (me) {
		EXPECT(transfer(0, 4096));
		atomic_fetch_add(&shared->primed, 1);
		while (!atomic_load(&shared->stopped))
			look();
		for (int n = 0; n < 20000; n++)
			EXPECT(transfer(0, 4096));
		atomic_fetch_add(&shared->hits, 20000);
		EXPECT_EQ(stats_of(0).asks, 1);
	}
	while (!atomic_load(&shared->go_on))
		look();
}

/* Node 0 is killed meanwhile. */
static void traffic_with_a_killed_node(void)
{
	while (!dead[0]) {
		transfer(random_peer(), SLICE);
		look();
	}
	EXPECT_EQ(stats_of(0).lent_bytes, 0);
	EXPECT_EQ(stats_of(0).borrowed_bytes, 0);
	unsigned done = 0;
	for (int n = 0; n < 1000; n++) {
		done += transfer(random_peer(), SLICE);
		look();
	}
	EXPECT(done > 500);
	t_print("# node %u: %u transfers afterwards, %u questions lost\n", me, done, lost);
}

static void run_nodes(void (*traffic)(void), pid_t child[NODES])
{
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	tables = mmap(NULL, NODES * TABLE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (unsigned a = 0; a < NODES; a++)
		for (unsigned b = 0; b < a; b++) {
			struct lend_socket end[2];
			EXPECT(lend_socket_pair(end, 0));
			to[a][b] = end[0];
			to[b][a] = end[1];
		}
	for (unsigned i = 0; i < NODES; i++) {
		child[i] = fork();
		if (!child[i]) {
			node_begin(i);
			traffic();
			node_end();
			_exit(t_failures != 0);
		}
	}
	for (unsigned a = 0; a < NODES; a++)
		for (unsigned b = 0; b < NODES; b++)
			if (a != b)
				lend_socket_close(&to[a][b]);
}

static void wait_for_nodes(const pid_t child[NODES], unsigned from)
{
	for (unsigned i = from; i < NODES; i++)
		EXPECT_EQ(child_wait(child[i]), 0);
	munmap(shared, sizeof *shared);
	munmap(tables, NODES * TABLE);
}

TEST(processes_put_and_get_each_others_memory_by_keys_that_are_registered)
{
	pid_t child[NODES];
	run_nodes(only_traffic, child);
	wait_for_nodes(child, 0);
}

TEST(a_stopped_process_is_read_and_written_by_borrowed_keys)
{
	pid_t child[NODES];
	run_nodes(traffic_with_a_stopped_node, child);
	for (unsigned i = 0; i < 100 * t_seconds() && atomic_load(&shared->primed) < NODES - 1; i++)
		sleep_ms(10);
	EXPECT_EQ(kill(child[0], SIGSTOP), 0);
	EXPECT_EQ(waitpid(child[0], NULL, WUNTRACED), child[0]);
	atomic_store(&shared->stopped, true);
	for (unsigned i = 0; i < 20 * t_seconds() && atomic_load(&shared->hits) < (NODES - 1) * 20000; i++)
		sleep_ms(50);
	EXPECT_EQ(atomic_load(&shared->hits), (NODES - 1) * 20000);
	EXPECT_EQ(kill(child[0], SIGCONT), 0);
	atomic_store(&shared->go_on, true);
	wait_for_nodes(child, 0);
}

TEST(a_killed_process_holds_nothing_and_the_others_go_on)
{
	pid_t child[NODES];
	run_nodes(traffic_with_a_killed_node, child);
	while (atomic_load(&shared->ready) < NODES)
		sleep_ms(1);
	sleep_ms(200);
	EXPECT_EQ(kill(child[0], SIGKILL), 0);
	EXPECT_EQ(waitpid(child[0], NULL, 0), child[0]);
	atomic_fetch_add(&shared->finished, 1);
	wait_for_nodes(child, 1);
}

T_MAIN
