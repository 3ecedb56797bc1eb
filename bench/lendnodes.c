/*
 * Lent keys in virtual time: nodes, their devices, messages and puts.
 */
#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hugepin.h"
#include "lend.h"
#include "lend/state.h"
#include "trace.h"

enum { NODES_MAX = 49, WINDOW = 8, REGS = 32768, PIECES = 4096 };

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
	*latest = HP_MAX(*latest + 1, sim.now_ns + 1000 + lend_any(2000));
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

void lend_run(const char *name, const struct work *w, uint32_t nodes, struct setting s, uint64_t seed)
{
	static const char *const bucket[] = { "64M", "2M", "128K" };
	struct hugepin_lend_stats target, origin;
	uint64_t peak = 0;

	memset(&sim, 0, sizeof sim);
	lend_seed = seed;
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
