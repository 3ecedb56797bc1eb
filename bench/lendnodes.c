/*
 * Lent keys in virtual time: nodes, their devices, messages and puts.
 *
 * A node has a processor for messages and registrations. It does one thing at a time, so messages that come or go wait
 * while it registers or deregisters. Puts need no processor.
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
#include "numbers.h"
#include "trace.h"

enum { NODES_MAX = 49, WINDOW_MAX = 8, REGS = 65536, PIECES = 4096, KEYS_MAX = 32768 };

static const struct costs registering_is_free = {
	.message = 1000, .message_more = 2000, .put = 2000, .put_byte_ps = 100
};
static const struct site usual = {
	&registering_is_free, .lent_max = 512 * MIB, .idle_max = 128 * MIB, .window = WINDOW_MAX
};

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
	uint64_t busy_until; /* the processor */
	uint32_t *page_puts; /* rendezvous: of each page, puts and one more while it is registered */
	/* The device. */
	struct reg *reg;
	uint32_t regs, reg_free;
	uint64_t registered, registered_peak, registrations, registered_sum;
	uint64_t registered_here; /* registrations of sources */
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

/* A message of a rendezvous: a put is wished, may begin, has ended. */
struct order {
	enum { WISH, BEGIN, END } what;
	uint32_t put;
	uint64_t at, end; /* addresses */
};

/* Times of puts. */
struct times {
	uint64_t ns, puts;
};

/* A put under way; its pieces; what happens when. */
struct put_now {
	bool used, asked;
	uint32_t from, to;
	uint64_t at, end; /* addresses that have no key yet */
	unsigned pieces;
	uint64_t begun_ns;
	struct hugepin_pin source[2]; /* of each page */
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
	const struct site *site;
	struct setting setting;
	uint64_t page;
	struct node node[NODES_MAX];
	struct message *first[NODES_MAX][NODES_MAX], **last[NODES_MAX][NODES_MAX];
	uint64_t latest_ns[NODES_MAX][NODES_MAX];
	struct put_now put[NODES_MAX * WINDOW_MAX];
	struct piece piece[PIECES];
	uint32_t piece_free;
	struct moment *moment; /* a heap */
	size_t moments, moments_room;
	uint64_t now_ns, order;
	size_t puts; /* begun */
	/* Of the counted half. */
	uint64_t handshakes, refused, counted, messages_before, registrations_before, registered_before;
	uint64_t misses; /* of all puts */
	/* Of all puts if work.whole, else of the counted ones: what those took that had all keys, and the others;
	 * answers that brought a key before, and registrations for these. */
	struct times hit, missed;
	uint64_t keys_before, pinned_before;
} sim;

static bool is_rendezvous(void)
{
	return sim.setting.policy >= LEND_RENDEZVOUS;
}

/* The processor works for so long, after what it does already. */
static void work_for(struct node *n, uint64_t ns)
{
	n->busy_until = HP_MAX(n->busy_until, sim.now_ns) + ns;
}

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
	work_for(n, sim.site->costs->pin + len / 4096 * sim.site->costs->pin_page);
	*ret_ = (struct hugepin_reg){ key, key, key };
	return 0;
}

static int device_dereg(void *ctx, struct hugepin_reg *reg)
{
	struct node *n = ctx;
	struct reg *r = &n->reg[reg->lkey];

	n->registered -= r->len;
	work_for(n, sim.site->costs->unpin + r->len / 4096 * sim.site->costs->unpin_page);
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
	*latest = HP_MAX(*latest + 1, HP_MAX(sim.now_ns, n->busy_until) + sim.site->costs->message +
					      lend_any(sim.site->costs->message_more));
	schedule((struct moment){ .at_ns = *latest, .message = true, .a = from, .b = peer });
	return 0;
}

static int node_offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	struct node *n = arg;

	(void)peer, (void)len;
	if (!n->memory || addr - (uintptr_t)n->memory >= n->bytes)
		return -EACCES;
	if (sim.setting.bucket == LEND_PAGE)
		*ret_buffer = (struct iovec){ (void *)(uintptr_t)(addr & -sim.page), sim.page };
	else
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
	if (!is_rendezvous())
		check_key(key, "at the begin");
	p->pieces++;
	p->at += key->len;
	schedule((struct moment){ .at_ns = sim.now_ns + sim.site->costs->put +
					   key->len * sim.site->costs->put_byte_ps / 1000,
				  .a = at });
}

static void begin_puts(struct node *n);

/* The put is over when all its pieces are. */
static void end_put(uint32_t put)
{
	struct put_now *p = &sim.put[put];
	struct times *t = p->asked ? &sim.missed : &sim.hit;

	if (p->at < p->end || p->pieces || !p->used)
		return;
	p->used = false;
	sim.node[p->from].under_way--;
	t->ns += sim.now_ns - p->begun_ns;
	t->puts++;
	for (int i = 0; i < 2; i++)
		if (p->source[i].ref)
			hugepin_unpin(sim.node[p->from].domain, &p->source[i]);
}

/* ------------------------------------------------------------------ rendezvous */

static void send_order(struct node *from, uint32_t to, struct order o)
{
	node_send(from, to, &o, sizeof o);
}

/* The target registers what it has not registered. */
static void register_pages(struct node *n, uint64_t at, uint64_t end)
{
	for (uint64_t page = at / sim.page; page <= (end - 1) / sim.page; page++) {
		uint32_t *puts = &n->page_puts[page - (uintptr_t)n->memory / sim.page];

		if (!*puts) {
			n->registrations++;
			n->registered += sim.page;
			n->registered_sum += sim.page;
			n->registered_peak = HP_MAX(n->registered_peak, n->registered);
			work_for(n, sim.site->costs->pin + sim.page / 4096 * sim.site->costs->pin_page);
			*puts = 1;
		}
		++*puts;
	}
}

static void end_pages(struct node *n, uint64_t at, uint64_t end)
{
	for (uint64_t page = at / sim.page; page <= (end - 1) / sim.page; page++) {
		uint32_t *puts = &n->page_puts[page - (uintptr_t)n->memory / sim.page];

		if (--*puts > 1)
			continue;
		*puts = 0;
		n->registered -= sim.page;
		work_for(n, sim.site->costs->unpin + sim.page / 4096 * sim.site->costs->unpin_page);
	}
}

static void wish(uint32_t put)
{
	struct put_now *p = &sim.put[put];

	p->asked = true;
	sim.handshakes++;
	sim.misses++;
	send_order(&sim.node[p->from], p->to, (struct order){ WISH, put, p->at, p->end });
}

static void take_order(struct node *n, uint32_t from, const void *message)
{
	struct order o;

	memcpy(&o, message, sizeof o);
	if (o.what == WISH) {
		register_pages(n, o.at, o.end);
		send_order(n, from, (struct order){ BEGIN, o.put, o.at, o.end });
	} else if (o.what == BEGIN) {
		begin_piece(o.put, &(struct hugepin_far){ .peer = from, .base = o.at, .len = o.end - o.at });
	} else {
		end_pages(n, o.at, o.end);
	}
}

/* ------------------------------------------------------------------ puts by lent keys */

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

	if (is_rendezvous()) {
		wish(put);
		return;
	}
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

/* Register the pages that a put comes from, if they are not. They are those that others put to, so both find what the
 * other has registered. Takes no time: with all strategies it happens once. */
static void pin_source(struct node *n, struct put_now *p, uint64_t at, uint64_t len)
{
	uint64_t before = n->registrations, busy_until = n->busy_until;

	for (uint64_t i = 0, page = at & -sim.page; page < at + len; i++, page += sim.page) {
		int r = hugepin_pin(n->domain, n->memory + page, sim.page, HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE,
				    &p->source[i]);

		if (r < 0)
			errx(2, "hugepin_pin: %s", strerror(-r));
	}
	n->registered_here += n->registrations - before;
	n->busy_until = busy_until;
}

static void begin_puts(struct node *n)
{
	const struct work *w = sim.work;

	while (n->under_way < sim.site->window) {
		uint32_t put = number_of(n) * WINDOW_MAX;
		const struct put *next;

		while (n->next < w->puts && w->put[n->next].from != number_of(n))
			n->next++;
		if (n->next == w->puts)
			return;
		next = &w->put[n->next++];
		while (sim.put[put].used)
			put++;
		if (sim.puts++ == (w->counted ? w->counted : w->puts / 2))
			count_from_here();
		sim.counted++;
		n->under_way++;
		uint64_t at = (uintptr_t)sim.node[next->to].memory + next->offset;
		sim.put[put] = (struct put_now){
			.used = true, .from = number_of(n), .to = next->to, .at = at, .end = at + next->len,
			.begun_ns = sim.now_ns
		};
		if (w->sources && !is_rendezvous())
			pin_source(n, &sim.put[put], next->source, next->len);
		go_on(put);
	}
}

static void happen(struct moment e)
{
	sim.now_ns = e.at_ns;
	if (e.message && sim.node[e.b].busy_until > sim.now_ns) {
		e.at_ns = sim.node[e.b].busy_until;
		schedule(e);
	} else if (e.message) {
		struct message *m = sim.first[e.a][e.b];
		int r = 0;

		if (is_rendezvous())
			take_order(&sim.node[e.b], e.a, m->bytes);
		else
			r = hugepin_lend_message(sim.node[e.b].lend, e.a, m->bytes, m->len);
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

		if (sim.setting.policy == LEND_RENDEZVOUS_UNPIN)
			send_order(&sim.node[from], c->key.peer,
				   (struct order){ END, c->put, c->key.base, c->key.base + c->key.len });
		if (!is_rendezvous())
			check_key(&c->key, "at the end");
		if (!is_rendezvous() && hugepin_lend_done(sim.node[from].lend, &c->key) != 0)
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

static struct hugepin_lend_stats stats_of(uint32_t i)
{
	struct hugepin_lend_stats s = { 0 };

	if (!is_rendezvous() && hugepin_lend_stats(sim.node[i].lend, HUGEPIN_LEND_ALL, &s, sizeof s) < 0)
		errx(2, "hugepin_lend_stats");
	return s;
}

/* Answers that brought a key, of all nodes; and registrations that were made for these. */
static uint64_t keys(void)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < sim.work->nodes; i++)
		sum += stats_of(i).asked - stats_of(i).refused;
	return sum;
}

static uint64_t pinned(void)
{
	return SUM(registrations) - SUM(registered_here);
}

static void count_from_here(void)
{
	if (!sim.work->whole) {
		sim.hit = sim.missed = (struct times){ 0 };
		sim.keys_before = keys();
		sim.pinned_before = pinned();
	}
	sim.handshakes = sim.refused = sim.counted = 0;
	sim.messages_before = SUM(sent);
	sim.registrations_before = SUM(registrations);
	sim.registered_before = SUM(registered_sum);
}

static void open_node(struct node *n, const struct work *w, uint32_t nodes)
{
	const struct site *site = sim.site;
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_LRU,
				     .pinned_bytes_max = site->lent_max + site->idle_max,
				     .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_lend_attr lend_attr = { .size = sizeof lend_attr,
					       .peers = nodes,
					       .policy = sim.setting.policy,
					       .lent_bytes_max = site->lent_max,
					       .idle_bytes_max = site->idle_max,
					       .peer_keys_max = sim.setting.bucket == LEND_PAGE ? KEYS_MAX : 0,
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
	if (is_rendezvous()) {
		n->page_puts = trace_get(n->bytes / sim.page + 1, sizeof *n->page_puts);
		return;
	}
	r = hugepin_domain_open(&backend, n, &attr, &n->domain);
	if (r < 0)
		errx(1, "hugepin_domain_open: %s", strerror(-r));
	r = hugepin_lend_open(n->domain, &lend_attr, n, &n->lend);
	if (r < 0)
		errx(1, "hugepin_lend_open: %s", strerror(-r));
	if (sim.setting.bucket != LEND_OWN)
		hp_lender_fix_class(&n->lend->lender, (unsigned)HP_MIN(sim.setting.bucket, (int)LEND_128K));
}

/* Nothing is under way any more: each node tells the others that it is gone. */
static void close_node(struct node *n)
{
	int r = is_rendezvous() ? 0 : hugepin_lend_close(n->lend);

	if (r < 0)
		errx(2, "hugepin_lend_close: %s", strerror(-r));
	r = is_rendezvous() ? 0 : hugepin_domain_close(n->domain);
	if (r < 0)
		errx(2, "hugepin_domain_close: %s", strerror(-r));
	if (n->registered && sim.setting.policy != LEND_RENDEZVOUS)
		errx(2, "something stays registered");
	if (n->memory)
		munmap(n->memory, n->bytes);
	free(n->page_puts);
	free(n->reg);
}

static void close_nodes(const struct work *w)
{
	for (uint32_t i = 0; i < w->nodes && !is_rendezvous(); i++)
		for (uint32_t other = 0; other < w->nodes; other++)
			hugepin_lend_gone(sim.node[i].lend, other);
	for (uint32_t i = 0; i < w->nodes; i++)
		close_node(&sim.node[i]);
}

static double per_put(uint64_t n)
{
	return sim.counted ? (double)n / (double)sim.counted : 0;
}

static double us(const struct times *t)
{
	return t->puts ? (double)t->ns / (double)t->puts / 1000 : 0;
}

/* What puts took, and of the keys that came with an answer, how many are of memory that was registered already. */
static void print_times(void)
{
	struct times all = { sim.hit.ns + sim.missed.ns, sim.hit.puts + sim.missed.puts };
	uint64_t came = keys() - sim.keys_before, made = pinned() - sim.pinned_before;

	printf(" put_us=%.3f hit_us=%.3f missed_us=%.3f missed_pct=%.4f", us(&all), us(&sim.hit), us(&sim.missed),
	       pct((double)sim.missed.puts, (double)all.puts));
	printf(" keys=%" PRIu64 " found_pct=%.2f", came, pct((double)came - (double)made, (double)came));
}

static void print_line(const struct pattern *p, uint64_t peak)
{
	static const char *const bucket[] = { "own", "64M", "2M", "128K", "page" };
	struct hugepin_lend_stats target = stats_of(0), origin = stats_of(1);
	const struct setting s = sim.setting;

	printf("pattern=%s policy=%s bucket=%s nodes=%u puts=%zu", p->name,
	       s.policy == LEND_RENDEZVOUS	     ? "rendezvous" :
	       s.policy == LEND_RENDEZVOUS_UNPIN     ? "rendezvous-unpin" :
	       s.policy == HUGEPIN_LEND_POOL	     ? "pool" :
						       "static",
	       bucket[s.bucket - LEND_OWN], p->nodes, sim.work->puts);
	printf(" share=%" PRIu64, s.policy == HUGEPIN_LEND_STATIC ? hp_lender_share(&sim.node[0].lend->lender) :
								    sim.site->lent_max);
	printf(" handshakes=%.6f messages=%.6f registrations=%.6f registered_bytes=%.1f", per_put(sim.handshakes),
	       per_put(SUM(sent) - sim.messages_before), per_put(SUM(registrations) - sim.registrations_before),
	       per_put(SUM(registered_sum) - sim.registered_before));
	printf(" time_us=%.0f", (double)sim.now_ns / 1000);
	printf(" refused=%.6f hits_pct=%.4f", per_put(sim.refused),
	       100 - 100 * (double)sim.misses / (double)sim.work->puts);
	printf(" peak_bytes=%" PRIu64 " limit_bytes=%" PRIu64, peak, sim.site->lent_max + sim.site->idle_max);
	printf(" bucket_bytes=%" PRIu64 " target_tables=%" PRIu64 " origin_tables=%" PRIu64, target.bucket_bytes,
	       target.table_bytes, origin.table_bytes);
	if (sim.site->times)
		print_times();
	puts("");
	fflush(stdout);
}

void lend_run(const struct pattern *p, const struct work *w, struct setting s, uint64_t seed)
{
	uint64_t peak = 0;

	memset(&sim, 0, sizeof sim);
	lend_seed = seed;
	sim.work = w;
	sim.site = p->site ? p->site : &usual;
	sim.setting = s;
	sim.page = is_rendezvous() ? 4 * KIB : p->page;
	for (uint32_t i = 0; i < NODES_MAX; i++)
		for (uint32_t k = 0; k < NODES_MAX; k++)
			sim.last[i][k] = &sim.first[i][k];
	for (uint32_t i = PIECES; --i;) {
		sim.piece[i].next_free = sim.piece_free;
		sim.piece_free = i;
	}
	for (uint32_t i = 0; i < w->nodes; i++)
		open_node(&sim.node[i], w, p->nodes);
	for (uint32_t i = 0; i < w->nodes; i++)
		begin_puts(&sim.node[i]);
	while (sim.moments)
		happen(next_moment());
	for (uint32_t i = 0; i < w->nodes; i++) {
		if (sim.node[i].under_way)
			errx(2, "%s: puts that never end", p->name);
		peak = HP_MAX(peak, HP_MAX(stats_of(i).bytes_peak, sim.node[i].registered_peak));
	}
	print_line(p, peak);
	close_nodes(w);
	free(sim.moment);
}
