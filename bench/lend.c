/*
 * Lent keys in virtual time: nodes that put into each other's memory, by patterns made by rule and by recorded traces,
 * through the library's own lend/. One line of key=value pairs for each run; the same options give the same lines.
 *
 *	lend [-q] [-s SEED] [PATTERN...]
 *
 * The patterns are those of Bonachea and Bell 2003 (Firehose), of random updates, a store of blocks, and stencils;
 * table `patterns` below has them. -q leaves out what takes longer. Each is run with the paper's policy (static) for
 * each size of bucket, and with static and pool as the library chooses the size. Figures a put are of the second half
 * of a run. hits_pct is of all puts: those that found all keys that they needed. The target has M = 512 MiB to lend,
 * and M / 4 to leave idle.
 *
 * A node has a domain, a lend, and a device that only counts. Memory is address space that nothing touches, so
 * gigabytes cost nothing. A message takes 1 to 3 us: those between two nodes keep their order, others overtake each
 * other. A put takes 2 us and 0.1 ns a byte, and needs a key for each piece of its range. A node has WINDOW puts under
 * way at most. At its begin and at its end, each piece is checked against the target's device: the program ends if a
 * key does not open what it should.
 *
 * Only nodes that put or are put to exist. The others, up to `nodes` in all, are what the target has tables and shares
 * for.
 */
#include <argp.h>
#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hugepin.h"
#include "lend/state.h"
#include "trace.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define LENT_MAX (512 * MIB)
#define IDLE_MAX (LENT_MAX / 4)

enum { NODES_MAX = 49, WINDOW = 8, REGS = 32768, PIECES = 4096 };

/* ------------------------------------------------------------------ numbers that look random */

static uint64_t seed, seed_given = 1;

static uint64_t next_random(void) /* splitmix64 (Steele, Lea and Flood 2014) */
{
	uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static uint64_t any(uint64_t n)
{
	return next_random() % n;
}

/* ------------------------------------------------------------------ what is put where */

struct work;
struct pattern {
	const char *name;
	void (*make)(struct work *w, const struct pattern *p);
	unsigned puts, origins; /* or iterations; the origins' number */
	uint64_t bytes;
	uint32_t nodes;
	bool slow; /* also: with pool and the library's bucket alone */
	const char *trace;
};

struct put {
	uint64_t offset, len; /* in the target's memory */
	uint32_t from, to;
};

struct work {
	struct put *put;
	size_t puts, room;
	uint32_t nodes; /* that exist */
	uint64_t memory; /* of each target */
	bool targets; /* all nodes are targets, not only node 0 */
};

static void add(struct work *w, uint32_t from, uint32_t to, uint64_t offset, uint64_t len)
{
	if (w->puts == w->room) {
		w->room = w->room ? 2 * w->room : 4096;
		w->put = reallocarray(w->put, w->room, sizeof *w->put);
		if (!w->put)
			err(1, "reallocarray");
	}
	w->put[w->puts++] = (struct put){ offset, len, from, to };
	w->nodes = HP_MAX(w->nodes, HP_MAX(from, to) + 1);
	w->memory = HP_MAX(w->memory, offset + len);
}

/* Updates of 8 bytes anywhere. */
static void gups(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++)
		add(w, 1 + (uint32_t)any(p->origins), 0, any(p->bytes / 8) * 8, 8);
}

/* The same by peers that each have memory of their own. */
static void gups_own(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++) {
		uint32_t from = (uint32_t)any(p->origins);

		add(w, 1 + from, 0, from * p->bytes + any(p->bytes / 8) * 8, 8);
	}
}

/* The same between all nodes. */
static void gups_all(struct work *w, const struct pattern *p)
{
	w->targets = true;
	for (unsigned i = 0; i < p->puts; i++) {
		uint32_t from = (uint32_t)any(p->origins), to = (uint32_t)any(p->origins - 1);

		add(w, from, to + (to >= from), any(p->bytes / 8) * 8, 8);
	}
}

/* Blocks of 256 KiB. A quarter of them is in use, and one is replaced by another after every 50 puts. */
static void blocks(struct work *w, const struct pattern *p)
{
	uint64_t block = 256 * KIB, count = p->bytes / block, used = count / 4, *live = trace_get(used, sizeof *live);

	for (uint64_t i = 0; i < used; i++)
		live[i] = any(count);
	for (unsigned i = 0; i < p->puts; i++) {
		if (i % 50 == 0)
			live[any(used)] = any(count);
		add(w, 1 + (uint32_t)any(p->origins), 0, live[any(used)] * block, block);
	}
	free(live);
}

/* Faces of a cube of n^3 doubles, which two arrays have in turn: two in one piece, two in rows. */
static void halo(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++) {
		uint64_t n = p->bytes, cube = i % 2 * n * n * n * 8;

		for (uint32_t face = 0; face < 2; face++)
			add(w, 1 + face, 0, cube + face * (n - 1) * n * n * 8, n * n * 8);
		for (uint32_t face = 0; face < 2; face++)
			for (uint64_t z = 0; z < n; z++)
				add(w, 3 + face, 0, cube + z * n * n * 8 + face * (n - 1) * n * 8, n * 8);
	}
}

/* All of the memory, one piece of 64 KiB after the other. */
static void sweep(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++)
		for (uint64_t at = 0; at < p->bytes; at += 64 * KIB)
			for (uint32_t from = 0; from < 2; from++)
				add(w, 1 + from, 0, (at + from * p->bytes / 2) % p->bytes, 64 * KIB);
}

/* Three vectors, of which each of four peers has a piece of 300 KB. */
static void vectors(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++)
		for (uint64_t v = 0; v < 3; v++)
			for (uint32_t from = 0; from < 4; from++)
				add(w, 1 + from, 0, v * 40 * MIB + from * 300000, 300000);
}

/* Two nodes send each other the rows of two blocks in each step (Cannon's matrix multiply), into two buffers in
 * turn. */
static void cannon(struct work *w, const struct pattern *p)
{
	uint64_t row = 4 * KIB, rows = 512;

	w->targets = true;
	for (uint64_t step = 0; w->puts < p->puts; step++)
		for (uint64_t block = 0; block < 2; block++)
			for (uint64_t i = 0; i < rows; i++)
				for (uint32_t from = 0; from < 2; from++)
					add(w, from, !from, ((step % 2 * 2 + block) * rows + i) * row, row);
}

/* Two nodes compare what they have by pieces of 512 bytes in each pass (bitonic sort). */
static void bitonic(struct work *w, const struct pattern *p)
{
	w->targets = true;
	while (w->puts < p->puts)
		for (uint64_t at = 0; at < MIB; at += 512)
			for (uint32_t from = 0; from < 2; from++)
				add(w, from, !from, at, 512);
}

/* What the ranks 0 and 1 of a traced run sent and received, as puts of two peers. Each GiB of addresses that they use
 * has its place in the target's memory. */
static void traced(struct work *w, const struct pattern *p)
{
	struct trace_options options = { .unit = 4096, .cap_ns = 2e6 };
	uint64_t place[64];
	size_t places = 0;

	for (uint32_t rank = 0; rank < 2; rank++) {
		struct trace t;
		char path[512];

		snprintf(path, sizeof path, "tests/traces/%s.r%u.csv.gz", p->trace, rank);
		trace_read(path, &options, &t);
		for (size_t i = 0; i < t.uses; i++) {
			uint64_t at = 0;

			while (at < places && place[at] != t.use[i].addr / GIB)
				at++;
			if (at == 64)
				errx(1, "%s: too many places", path);
			if (at == places)
				place[places++] = t.use[i].addr / GIB;
			add(w, 1 + rank, 0, at * GIB + t.use[i].addr % GIB, t.use[i].limit - t.use[i].addr);
		}
		trace_free(&t);
	}
}

/* ------------------------------------------------------------------ nodes */

struct reg {
	uint64_t addr, len;
	uint32_t next_free;
	bool live;
};

struct node {
	hugepin_domain *domain;
	hugepin_lend *lend;
	char *memory;
	uint64_t bytes;
	/* The device. */
	struct reg *reg;
	uint32_t regs, reg_free;
	uint64_t registered, registered_peak, registrations, registered_sum;
	/* The puts. */
	size_t next; /* in work */
	unsigned under_way;
	uint64_t sent;
};

struct message {
	struct message *next;
	size_t len;
	unsigned char bytes[HUGEPIN_LEND_MESSAGE_MAX];
};

/* A put under way; its pieces; what happens when. */
struct put_now {
	bool used, asked;
	uint32_t from, to;
	uint64_t at, end; /* addresses that have no key yet */
	unsigned pieces;
};
struct piece {
	struct hugepin_far key;
	uint32_t put, next_free;
};
struct moment {
	uint64_t at_ns, order;
	bool message; /* from node a to node b; else: the end of piece a */
	uint32_t a, b;
};

static struct {
	const struct work *work;
	struct node node[NODES_MAX];
	struct message *first[NODES_MAX][NODES_MAX], **last[NODES_MAX][NODES_MAX];
	uint64_t latest_ns[NODES_MAX][NODES_MAX];
	struct put_now put[NODES_MAX * WINDOW];
	struct piece piece[PIECES];
	uint32_t piece_free;
	struct moment *moment; /* a heap */
	size_t moments, moments_room;
	uint64_t now_ns, order;
	size_t puts; /* begun */
	/* Of the counted half. */
	uint64_t handshakes, refused, counted, messages_before, registrations_before, registered_before;
	uint64_t misses; /* of all puts */
} sim;

static int device_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	struct node *n = ctx;
	uint32_t key = n->reg_free;

	(void)access;
	if (key)
		n->reg_free = n->reg[key].next_free;
	else
		key = ++n->regs;
	if (key == REGS)
		errx(2, "too many registrations");
	n->reg[key] = (struct reg){ .addr = (uintptr_t)addr, .len = len, .live = true };
	n->registrations++;
	n->registered += len;
	n->registered_sum += len;
	n->registered_peak = HP_MAX(n->registered_peak, n->registered);
	*ret_ = (struct hugepin_reg){ key, key, key };
	return 0;
}

static int device_dereg(void *ctx, struct hugepin_reg *reg)
{
	struct node *n = ctx;
	struct reg *r = &n->reg[reg->lkey];

	n->registered -= r->len;
	*r = (struct reg){ .next_free = n->reg_free };
	n->reg_free = reg->lkey;
	return 0;
}

static int device_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ |
						   HUGEPIN_REMOTE_WRITE };
	return 0;
}

static uint64_t device_now(void *ctx)
{
	(void)ctx;
	return sim.now_ns;
}

static const struct hugepin_backend backend = {
	.size = sizeof backend,
	.name = "counts",
	.reg = device_reg,
	.dereg = device_dereg,
	.limits = device_limits,
	.now_ns = device_now,
};

/* ------------------------------------------------------------------ events */

static bool before(const struct moment *a, const struct moment *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void schedule(struct moment e)
{
	size_t i = sim.moments++;

	if (i == sim.moments_room) {
		sim.moments_room = sim.moments_room ? 2 * sim.moments_room : 1024;
		sim.moment = reallocarray(sim.moment, sim.moments_room, sizeof *sim.moment);
		if (!sim.moment)
			err(1, "reallocarray");
	}
	e.order = sim.order++;
	for (; i && before(&e, &sim.moment[(i - 1) / 2]); i = (i - 1) / 2)
		sim.moment[i] = sim.moment[(i - 1) / 2];
	sim.moment[i] = e;
}

static struct moment next_moment(void)
{
	struct moment first = sim.moment[0], e = sim.moment[--sim.moments];
	size_t i = 0, child;

	for (; (child = 2 * i + 1) < sim.moments; i = child) {
		if (child + 1 < sim.moments && before(&sim.moment[child + 1], &sim.moment[child]))
			child++;
		if (!before(&sim.moment[child], &e))
			break;
		sim.moment[i] = sim.moment[child];
	}
	sim.moment[i] = e;
	return first;
}

/* ------------------------------------------------------------------ messages and puts */

static uint32_t number_of(const struct node *n)
{
	return (uint32_t)(n - sim.node);
}

static int node_send(void *arg, uint32_t peer, const void *msg, size_t len)
{
	struct node *n = arg;
	uint32_t from = number_of(n);
	struct message *m = malloc(sizeof *m);
	uint64_t *latest = &sim.latest_ns[from][peer];

	if (!m || len > sizeof m->bytes)
		errx(2, "no room for a message");
	m->next = NULL;
	m->len = len;
	memcpy(m->bytes, msg, len);
	*sim.last[from][peer] = m;
	sim.last[from][peer] = &m->next;
	n->sent++;
	*latest = HP_MAX(*latest + 1, sim.now_ns + 1000 + any(2000));
	schedule((struct moment){ .at_ns = *latest, .message = true, .a = from, .b = peer });
	return 0;
}

static int node_offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	struct node *n = arg;

	(void)peer, (void)len;
	if (!n->memory || addr - (uintptr_t)n->memory >= n->bytes)
		return -EACCES;
	*ret_buffer = (struct iovec){ n->memory, n->bytes };
	return 0;
}

static void check_key(const struct hugepin_far *key, const char *when)
{
	const struct node *to = &sim.node[key->peer];
	const struct reg *r = &to->reg[key->rkey < REGS ? key->rkey : 0];

	if (!r->live || key->base < r->addr || key->base + key->len > r->addr + r->len)
		errx(2, "%s of a put, its key opens nothing", when);
}

static void begin_piece(uint32_t put, const struct hugepin_far *key)
{
	struct put_now *p = &sim.put[put];
	uint32_t at = sim.piece_free;

	if (!at)
		errx(2, "too many pieces");
	sim.piece_free = sim.piece[at].next_free;
	sim.piece[at] = (struct piece){ .key = *key, .put = put };
	check_key(key, "at the begin");
	p->pieces++;
	p->at += key->len;
	schedule((struct moment){ .at_ns = sim.now_ns + 2000 + key->len / 10, .a = at });
}

static void begin_puts(struct node *n);

/* The put is over when all its pieces are. */
static void end_put(uint32_t put)
{
	struct put_now *p = &sim.put[put];

	if (p->at < p->end || p->pieces || !p->used)
		return;
	p->used = false;
	sim.node[p->from].under_way--;
}

/* A piece that no key is lent for goes by other means, in a message. */
static void do_without(struct put_now *p)
{
	uint64_t end = (p->at / (128 * KIB) + 1) * (128 * KIB);

	sim.refused++;
	p->at = HP_MIN(end, p->end);
}

/* Go on with a put, until it waits for an answer. */
static void go_on(uint32_t put)
{
	struct put_now *p = &sim.put[put];
	struct node *n = &sim.node[p->from];

	while (p->at < p->end) {
		struct hugepin_far key;
		uint64_t sent = n->sent;
		int r = hugepin_lend_key(n->lend, p->to, p->at, p->end - p->at, p, &key);

		if (r == 1) {
			begin_piece(put, &key);
			continue;
		}
		if (n->sent != sent && !p->asked) {
			p->asked = true;
			sim.handshakes++;
			sim.misses++;
		}
		if (r == 0)
			return;
		errx(2, "hugepin_lend_key: %s", strerror(-r));
	}
	end_put(put);
}

static void node_ready(void *arg, void *token, int error, const struct hugepin_far *key)
{
	struct put_now *p = token;
	uint32_t put = (uint32_t)(p - sim.put);

	(void)arg;
	if (!error)
		begin_piece(put, key);
	else if (error == -ENOBUFS)
		do_without(p);
	else
		errx(2, "no key: %s", strerror(-error));
	go_on(put);
}

static void count_from_here(void);

static void begin_puts(struct node *n)
{
	const struct work *w = sim.work;

	while (n->under_way < WINDOW) {
		uint32_t put = number_of(n) * WINDOW;
		const struct put *next;

		while (n->next < w->puts && w->put[n->next].from != number_of(n))
			n->next++;
		if (n->next == w->puts)
			return;
		next = &w->put[n->next++];
		while (sim.put[put].used)
			put++;
		if (sim.puts++ == w->puts / 2)
			count_from_here();
		sim.counted++;
		n->under_way++;
		uint64_t at = (uintptr_t)sim.node[next->to].memory + next->offset;
		sim.put[put] = (struct put_now){
			.used = true, .from = number_of(n), .to = next->to, .at = at, .end = at + next->len
		};
		go_on(put);
	}
}

static void happen(struct moment e)
{
	sim.now_ns = e.at_ns;
	if (e.message) {
		struct message *m = sim.first[e.a][e.b];
		int r = hugepin_lend_message(sim.node[e.b].lend, e.a, m->bytes, m->len);

		if (r < 0)
			errx(2, "hugepin_lend_message: %s", strerror(-r));
		sim.first[e.a][e.b] = m->next;
		if (!m->next)
			sim.last[e.a][e.b] = &sim.first[e.a][e.b];
		free(m);
		begin_puts(&sim.node[e.b]);
	} else {
		struct piece *c = &sim.piece[e.a];
		uint32_t from = sim.put[c->put].from;

		check_key(&c->key, "at the end");
		if (hugepin_lend_done(sim.node[from].lend, &c->key) != 0)
			errx(2, "hugepin_lend_done");
		sim.put[c->put].pieces--;
		end_put(c->put);
		c->next_free = sim.piece_free;
		sim.piece_free = e.a;
		begin_puts(&sim.node[from]);
	}
}

/* ------------------------------------------------------------------ a run */

/* The sum of a member of all nodes. */
#define SUM(member) \
	({ \
		uint64_t sum = 0; \
		for (uint32_t i = 0; i < sim.work->nodes; i++) \
			sum += sim.node[i].member; \
		sum; \
	})

static void count_from_here(void)
{
	sim.handshakes = sim.refused = sim.counted = 0;
	sim.messages_before = SUM(sent);
	sim.registrations_before = SUM(registrations);
	sim.registered_before = SUM(registered_sum);
}

/* bucket: a class of lender.h, or -1: what the library chooses. */
struct setting {
	uint32_t policy;
	int bucket;
};

static void open_node(struct node *n, const struct work *w, uint32_t nodes, struct setting s)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_LRU,
				     .pinned_bytes_max = LENT_MAX + IDLE_MAX,
				     .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_lend_attr lend_attr = { .size = sizeof lend_attr,
					       .peers = nodes,
					       .policy = s.policy,
					       .lent_bytes_max = LENT_MAX,
					       .idle_bytes_max = IDLE_MAX,
					       .send = node_send,
					       .ready = node_ready,
					       .offer = node_offer };
	int r;

	*n = (struct node){ .reg = trace_get(REGS, sizeof *n->reg) };
	if (w->targets || number_of(n) == 0) {
		n->bytes = (w->memory + 4095) & ~UINT64_C(4095);
		/* Hashes of addresses decide what is remembered, so addresses are always the same. */
		n->memory = mmap((void *)((UINT64_C(16) + number_of(n)) << 40), n->bytes, PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
		if (n->memory == MAP_FAILED)
			err(1, "mmap");
	}
	r = hugepin_domain_open(&backend, n, &attr, &n->domain);
	if (r < 0)
		errx(1, "hugepin_domain_open: %s", strerror(-r));
	r = hugepin_lend_open(n->domain, &lend_attr, n, &n->lend);
	if (r < 0)
		errx(1, "hugepin_lend_open: %s", strerror(-r));
	if (s.bucket >= 0)
		hp_lender_fix_class(&n->lend->lender, (unsigned)s.bucket);
}

/* Nothing is under way any more: each node tells the others that it is gone. */
static void close_nodes(const struct work *w)
{
	for (uint32_t i = 0; i < w->nodes; i++)
		for (uint32_t other = 0; other < w->nodes; other++)
			hugepin_lend_gone(sim.node[i].lend, other);
	for (uint32_t i = 0; i < w->nodes; i++) {
		struct node *n = &sim.node[i];
		int r = hugepin_lend_close(n->lend);

		if (r < 0)
			errx(2, "hugepin_lend_close: %s", strerror(-r));
		r = hugepin_domain_close(n->domain);
		if (r < 0)
			errx(2, "hugepin_domain_close: %s", strerror(-r));
		if (n->registered)
			errx(2, "something stays registered");
		if (n->memory)
			munmap(n->memory, n->bytes);
		free(n->reg);
	}
}

static struct hugepin_lend_stats stats_of(uint32_t i)
{
	struct hugepin_lend_stats s;

	if (hugepin_lend_stats(sim.node[i].lend, HUGEPIN_LEND_ALL, &s, sizeof s) < 0)
		errx(2, "hugepin_lend_stats");
	return s;
}

static double per_put(uint64_t n)
{
	return sim.counted ? (double)n / (double)sim.counted : 0;
}

static void run(const char *name, const struct work *w, uint32_t nodes, struct setting s)
{
	static const char *const bucket[] = { "64M", "2M", "128K" };
	struct hugepin_lend_stats target, origin;
	uint64_t peak = 0;

	memset(&sim, 0, sizeof sim);
	seed = seed_given + 4;
	sim.work = w;
	for (uint32_t i = 0; i < NODES_MAX; i++)
		for (uint32_t k = 0; k < NODES_MAX; k++)
			sim.last[i][k] = &sim.first[i][k];
	for (uint32_t i = PIECES; --i;) {
		sim.piece[i].next_free = sim.piece_free;
		sim.piece_free = i;
	}
	for (uint32_t i = 0; i < w->nodes; i++)
		open_node(&sim.node[i], w, nodes, s);
	for (uint32_t i = 0; i < w->nodes; i++)
		begin_puts(&sim.node[i]);
	while (sim.moments)
		happen(next_moment());
	for (uint32_t i = 0; i < w->nodes; i++) {
		if (sim.node[i].under_way)
			errx(2, "%s: puts that never end", name);
		peak = HP_MAX(peak, HP_MAX(stats_of(i).bytes_peak, sim.node[i].registered_peak));
	}
	target = stats_of(0);
	origin = stats_of(1);
	printf("pattern=%s policy=%s bucket=%s nodes=%u puts=%zu", name,
	       s.policy == HUGEPIN_LEND_POOL ? "pool" : "static", s.bucket < 0 ? "own" : bucket[s.bucket], nodes,
	       w->puts);
	printf(" share=%" PRIu64,
	       s.policy == HUGEPIN_LEND_STATIC ? hp_lender_share(&sim.node[0].lend->lender) : LENT_MAX);
	printf(" handshakes=%.6f messages=%.6f registrations=%.6f registered_bytes=%.1f", per_put(sim.handshakes),
	       per_put(SUM(sent) - sim.messages_before), per_put(SUM(registrations) - sim.registrations_before),
	       per_put(SUM(registered_sum) - sim.registered_before));
	printf(" time_us=%.0f", (double)sim.now_ns / 1000);
	printf(" refused=%.6f hits_pct=%.4f", per_put(sim.refused), 100 - 100 * (double)sim.misses / (double)w->puts);
	printf(" peak_bytes=%" PRIu64 " limit_bytes=%" PRIu64, peak, (uint64_t)(LENT_MAX + IDLE_MAX));
	printf(" bucket_bytes=%" PRIu64 " target_tables=%" PRIu64 " origin_tables=%" PRIu64 "\n", target.bucket_bytes,
	       target.table_bytes, origin.table_bytes);
	fflush(stdout);
	close_nodes(w);
	free(sim.moment);
}

/* ------------------------------------------------------------------ the program */

static const struct pattern patterns[] = {
	{ "gups-256M-4of63", gups, 60000, 4, 256 * MIB, .nodes = 64 },
	{ "gups-256M-3of3", gups, 60000, 3, 256 * MIB, .nodes = 4 },
	{ "gups-4G-3of3", gups, 40000, 3, 4 * GIB, .nodes = 4 },
	{ "blocks-256K-4of63", blocks, 30000, 4, GIB, .nodes = 64 },
	{ "halo-256-4of63", halo, 30, 4, 256, .nodes = 64 },
	{ "vectors-300K-4of63", vectors, 600, 4, 0, .nodes = 64 },
	{ "gups-16M-48of63", gups_own, 400000, 48, 16 * MIB, .nodes = 64 },
	{ "sweep-1G-2of63", sweep, 8, 2, GIB, .nodes = 64 },
	{ "gups-256M-all4", gups_all, 80000, 4, 256 * MIB, .nodes = 4 },
	{ "trace-cg", traced, .nodes = 64, .trace = "cg.B.4" },
	{ "trace-lammps", traced, .nodes = 64, .trace = "lammps-lj.4" },
	{ "trace-hpcg", traced, .nodes = 64, .trace = "hpcg48.2" },
	{ "tables-4", gups, 60000, 4, 256 * MIB, .nodes = 5, .slow = true },
	{ "tables-64", gups, 60000, 4, 256 * MIB, .nodes = 64, .slow = true },
	{ "tables-1024", gups, 60000, 4, 256 * MIB, .nodes = 1024, .slow = true },
	{ "tables-4096", gups, 60000, 4, 256 * MIB, .nodes = 4096, .slow = true },
	{ "paper-cannon", cannon, 1500000, 2, 0, .nodes = 2, .slow = true },
	{ "paper-bitonic", bitonic, 2100000, 2, 0, .nodes = 2, .slow = true },
};

static bool quick;
static const char *wanted[64];
static int wanted_count;

static bool is_wanted(const struct pattern *p)
{
	for (int i = 0; i < wanted_count; i++)
		if (!strcmp(wanted[i], p->name))
			return true;
	return !wanted_count && !(quick && p->slow);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	switch (key) {
	case 'q': quick = true; return 0;
	case 's': seed_given = strtoull(arg, NULL, 0); return 0;
	case ARGP_KEY_ARG:
		for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
			if (!strcmp(arg, patterns[i].name) && wanted_count < 64) {
				wanted[wanted_count++] = arg;
				return 0;
			}
		argp_error(state, "not known: %s", arg);
		return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

int main(int argc, char **argv)
{
	static const struct argp_option options[] = { { "quick", 'q', NULL, 0, "Leave out what takes longer", 0 },
						      { "seed", 's', "SEED", 0, "Other random numbers (1)", 0 },
						      { 0 } };
	static const struct argp argp = {
		options, parse, "[PATTERN...]", "Lent keys in virtual time.", NULL, NULL, NULL
	};
	static const struct setting settings[] = {
		{ HUGEPIN_LEND_STATIC, 2 }, { HUGEPIN_LEND_STATIC, 1 }, { HUGEPIN_LEND_STATIC, 0 },
		{ HUGEPIN_LEND_STATIC, -1 }, { HUGEPIN_LEND_POOL, -1 },
	};

	argp_err_exit_status = 1;
	if (argp_parse(&argp, argc, argv, 0, NULL, NULL))
		return 1;
	for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
		const struct pattern *p = &patterns[i];
		struct work w = { 0 };

		if (!is_wanted(p))
			continue;
		seed = seed_given;
		p->make(&w, p);
		for (size_t k = p->slow ? 4 : 0; k < sizeof settings / sizeof *settings; k++)
			run(p->name, &w, p->nodes, settings[k]);
		free(w.put);
	}
	return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
