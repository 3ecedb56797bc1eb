/*
 * Nodes that lend to each other in one process: each has a fake device, a domain and a lend. Messages go through
 * queues, one for each pair of nodes, from which the test takes them when it likes. What a transfer by a key would do
 * is checked against the lender's device: the key's registration must be live and cover the range.
 */
#ifndef TESTS_UNIT_LEND_H
#define TESTS_UNIT_LEND_H

#include <stdlib.h>

#include "base/config.h"
#include "lend/state.h"
#include "reg/lent.h"
#include "tests/any.h"
#include "tests/device.h"
#include "tests/t.h"

enum { NODES_MAX = 4, QUEUE_MAX = 512, MESSAGE_ROOM = 512, READY_MAX = 512 };

struct message {
	size_t len;
	unsigned char bytes[MESSAGE_ROOM];
};

struct queue {
	struct message *m[QUEUE_MAX];
	unsigned first, count;
};

struct answer {
	void *token;
	int err;
	struct hugepin_far key;
};

struct node {
	struct device device;
	hugepin_domain *domain;
	hugepin_lend *lend;
	uint32_t number;
	/* what it lends: `offered` bytes from memory on */
	char *memory;
	size_t offered;
	char *mapped;
	size_t mapped_bytes;
	int offer_error;
	int send_error; /* what send() returns, if it is not 0 */
	unsigned send_again; /* of a hundred messages, how many send() has no room for */
	bool holds; /* send() takes messages and holds them */
	unsigned sends, asked_again; /* asked_again: calls of send() for what it holds */
	/* ready() notes answers here */
	struct answer answer[READY_MAX];
	unsigned answers;
	_Atomic unsigned wakes;
	void (*sent)(struct node *from, uint32_t to, const void *msg, size_t len);
};

static struct node node[NODES_MAX];
static struct queue queue[NODES_MAX][NODES_MAX]; /* [from][to] */

static inline struct message *take(unsigned from, unsigned to)
{
	struct queue *q = &queue[from][to];
	struct message *m = q->count ? q->m[q->first] : NULL;

	if (m) {
		q->first = (q->first + 1) % QUEUE_MAX;
		q->count--;
	}
	return m;
}

static struct message *spare[NODES_MAX * NODES_MAX * QUEUE_MAX];
static unsigned spares;

static inline void put(unsigned from, unsigned to, const void *msg, size_t len)
{
	struct queue *q = &queue[from][to];
	struct message *m = spares ? spare[--spares] : malloc(sizeof *m);

	if (!EXPECT(q->count < QUEUE_MAX && len <= MESSAGE_ROOM && m))
		return;
	m->len = len;
	memcpy(m->bytes, msg, len);
	q->m[(q->first + q->count++) % QUEUE_MAX] = m;
}

static int node_send(void *arg, uint32_t peer, const void *msg, size_t len)
{
	struct node *n = arg;

	n->asked_again += !msg;
	if (n->send_error)
		return n->send_error;
	if (!msg)
		return n->holds;
	if (n->send_again && any(100) < n->send_again)
		return -EAGAIN;
	n->sends++;
	if (n->sent)
		n->sent(n, peer, msg, len);
	put(n->number, peer, msg, len);
	return n->holds;
}

static void node_ready(void *arg, void *token, int err, const struct hugepin_far *key)
{
	struct node *n = arg;

	EXPECT(err <= 0 && (key != NULL) == (err == 0));
	if (!EXPECT(n->answers < READY_MAX))
		return;
	n->answer[n->answers++] = (struct answer){ token, err, key ? *key : (struct hugepin_far){ 0 } };
}

static int node_offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	struct node *n = arg;

	(void)peer;
	if (n->offer_error)
		return n->offer_error;
	if (addr < (uintptr_t)n->memory || addr - (uintptr_t)n->memory >= n->offered || !len)
		return -EACCES;
	*ret_buffer = (struct iovec){ n->memory, n->offered };
	return 0;
}

static void node_wake(void *arg)
{
	atomic_fetch_add_explicit(&((struct node *)arg)->wakes, 1, memory_order_relaxed);
}

static inline struct hugepin_lend_attr attr_of(uint32_t policy, uint64_t lent_max, uint64_t idle_max)
{
	return (struct hugepin_lend_attr){ .size = sizeof(struct hugepin_lend_attr),
					   .peers = NODES_MAX,
					   .policy = policy,
					   .carry_max = 128,
					   .lent_bytes_max = lent_max,
					   .idle_bytes_max = idle_max,
					   .peer_bytes_max = lent_max,
					   .send = node_send,
					   .ready = node_ready,
					   .offer = node_offer,
					   .wake = node_wake };
}

/* A node that offers `offered` bytes. budget: its domain's. */
static uint32_t node_watch __attribute__((unused)) = HUGEPIN_WATCH_PROGRAM;

static inline struct node *open_node(unsigned i, size_t offered, uint64_t budget,
				     const struct hugepin_lend_attr *lend_attr)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_LRU,
				     .pinned_bytes_max = budget,
				     .watch = node_watch };
	struct node *n = &node[i];

	memset(n, 0, sizeof *n);
	device_reset(&n->device);
	n->number = i;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &n->device, &attr, &n->domain), 0);
	n->offered = offered;
	if (offered) {
		/* At the start of a hugepage, but for node 1: there buckets begin inside pieces. */
		n->mapped_bytes = offered + 4 * MIB;
		n->mapped = map(n->mapped_bytes);
		n->memory = (char *)hp_round_up((uintptr_t)n->mapped, 2 * MIB) + (i == 1 ? 20 * KIB : 0);
	}
	EXPECT_EQ(hugepin_lend_open(n->domain, lend_attr, n, &n->lend), 0);
	return n;
}

static inline void close_node(unsigned i)
{
	struct node *n = &node[i];

	EXPECT_EQ(hugepin_lend_close(n->lend), 0);
	close_empty(&n->device, n->domain);
	if (n->mapped)
		munmap(n->mapped, n->mapped_bytes);
}

static inline void forget_messages(void)
{
	for (unsigned from = 0; from < NODES_MAX; from++)
		for (unsigned to = 0; to < NODES_MAX; to++)
			for (struct message *m; (m = take(from, to));)
				free(m);
	while (spares)
		free(spare[--spares]);
}

/* Hand in the next message of that queue. Its result, or 1: there is none. */
static inline int deliver(unsigned from, unsigned to)
{
	struct message *m = take(from, to);
	int err;

	if (!m)
		return 1;
	err = hugepin_lend_message(node[to].lend, from, m->bytes, m->len);
	spare[spares++] = m;
	return err;
}

/* Hand in all messages, until there are none. */
static inline void deliver_all(void)
{
	bool any_left = true;

	while (any_left && t_failures < 8) {
		any_left = false;
		for (unsigned from = 0; from < NODES_MAX; from++)
			for (unsigned to = 0; to < NODES_MAX; to++)
				while (queue[from][to].count) {
					bool lost = node[to].lend && node[to].lend->peer[from].lost;

					any_left = true;
					/* nothing is taken of a peer that is lost */
					EXPECT_EQ(deliver(from, to), lost ? -ENOTCONN : 0);
				}
	}
}

/* What a transfer by this key does at the lender: the registration is there, for the whole range and for writing. */
static inline bool works(unsigned lender, const struct hugepin_far *key)
{
	const struct device *v = &node[lender].device;
	uint32_t k = key->rkey & ~0x80000000u;

	return key->ref && key->len && k < DEVICE_REGS && v->reg[k].live && key->base >= v->reg[k].addr &&
	       key->base + key->len <= v->reg[k].addr + v->reg[k].len && v->reg[k].access & HUGEPIN_REMOTE_WRITE;
}

static inline struct hugepin_lend_stats lend_stats(unsigned i, uint32_t peer)
{
	struct hugepin_lend_stats s = { 0 };

	EXPECT_EQ(hugepin_lend_stats(node[i].lend, peer, &s, sizeof s), sizeof s);
	return s;
}

/* The pin cache says that the memory at addr is wanted. */
static inline void want_memory(unsigned i, const void *addr)
{
	hugepin_domain *d = node[i].domain;

	hp_lock(&d->lock);
	for (uint32_t r = 1; r < 4096; r++)
		if (hp_lender_of_region(&node[i].lend->lender, r) &&
		    hp_lender_of_region(&node[i].lend->lender, r)->start <= (uintptr_t)addr &&
		    hp_lender_of_region(&node[i].lend->lender, r)->end > (uintptr_t)addr)
			d->lend_hooks->wanted(d->lend, r);
	hp_unlock(&d->lock);
}

static int place[8] __attribute__((unused));

/* Node 0 lends, the others borrow. */
static inline void open_nodes(unsigned n, uint32_t policy, size_t offered, uint64_t lent_max, uint64_t idle_max)
{
	struct hugepin_lend_attr attr = attr_of(policy, lent_max, idle_max);

	T_DOMAIN_BEGINS();
	for (unsigned i = 0; i < n; i++)
		open_node(i, i == 0 ? offered : 0, 64 * MIB, &attr);
}

static inline void close_nodes(unsigned n)
{
	deliver_all();
	for (unsigned i = n; i--;) { /* the lender last */
		EXPECT_EQ(hugepin_lend_close(node[i].lend), 0);
		for (unsigned from = 0; from < n; from++)
			for (struct message *m; (m = take(from, i));)
				free(m);
		deliver_all();
		close_empty(&node[i].device, node[i].domain);
		if (node[i].mapped)
			munmap(node[i].mapped, node[i].mapped_bytes);
	}
	forget_messages();
}

/* A key of node 0's memory for node i, which asks for it if it must. */
static inline struct hugepin_far borrow(unsigned i, const void *addr, size_t len)
{
	struct hugepin_far key = { 0 };
	unsigned answers = node[i].answers;
	int r = hugepin_lend_key(node[i].lend, 0, (uintptr_t)addr, len, &place[0], &key);

	if (r == 1)
		return key;
	EXPECT_EQ(r, 0);
	deliver_all();
	if (EXPECT_EQ(node[i].answers, answers + 1)) {
		EXPECT(node[i].answer[answers].token == &place[0]);
		EXPECT_EQ(node[i].answer[answers].err, 0);
		key = node[i].answer[answers].key;
	}
	return key;
}

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)4 << 30;
	hp_config.pages = HP_PAGES_BASE;
	hp_config.decay_ms = 0;
}

#endif
