/*
 * Random interleavings of four nodes, each of which lends and borrows. Messages of one pair stay in order, those of
 * different pairs arrive in any order. At any point a connection dies, memory goes away, send() has no room, a message
 * comes twice or is forged, keys are asked back while others are on their way. A model that only reads messages knows
 * what is lent.
 *
 * After each step, and at each call of a device, what hugepin_lend(7) promises:
 *  1 while a use of a key is out, its registration is there
 *  2 lent <= M and lent + idle <= M + MAXVICTIM, by the lender's count and by the messages; the device is within its budget
 *  3 after a key was given back, no call gives it
 *  4 each question has one answer, each token one call of ready()
 *  5 (nothing waits: there is one thread)
 *  6 a message that is refused has changed nothing
 *  7 when all is asked back and delivered, nothing is lent, pinned or registered
 *
 * LEND_RANDOM=N: so many interleavings.
 */
#include "tests/unit/lend.h"

#include "lend/key.h"
#include "reg/gone.h"
#include "reg/retire.h"

enum { NODES = 4, STEPS = 70, USES = 64, TOKENS = 256, REFS = 256, ASKS = 64, PIECES = 16 };
#define PIECE (128 * KIB)
#define BUDGET ((uint64_t)3 * MIB)

/* ------------------------------------------------------------------ the model */

struct lent {
	uint64_t ref, base, len;
	bool returned; /* the borrower has sent it back */
};

struct asked {
	uint32_t number;
	uint64_t addr;
	unsigned char seed; /* of the bytes that it carries */
	uint32_t carried;
	bool out;
};

/* What was sent between two nodes: [the side that lends][the side that borrows]. */
static struct pair {
	struct lent lent[REFS];
	unsigned lents;
	struct asked asked[ASKS * 2];
	unsigned asks;
	uint32_t want; /* the number of the WANT that is out */
	bool down; /* nothing is delivered any more */
} pair[NODES][NODES];

/* One call of hugepin_lend_key, by the address of its place. */
static struct token {
	bool out;
	unsigned node, peer;
	uint64_t addr;
	size_t len;
	unsigned char seed;
} token[TOKENS];

static struct use {
	unsigned node;
	bool real; /* the peer's device counts it */
	struct hugepin_far key;
} use[USES];
static unsigned uses, interleaving;
static uint64_t lent_max, idle_max;

static struct lent *find_lent(unsigned lender, unsigned borrower, uint64_t ref)
{
	struct pair *p = &pair[lender][borrower];

	for (unsigned i = 0; i < p->lents; i++)
		if (p->lent[i].ref == ref)
			return &p->lent[i];
	return NULL;
}

static void forget_lent(struct pair *p, struct lent *x)
{
	*x = p->lent[--p->lents];
}

static struct asked *find_asked(struct pair *p, uint32_t number)
{
	for (unsigned i = 0; i < p->asks; i++)
		if (p->asked[i].number == number)
			return &p->asked[i];
	return NULL;
}

static void fill_bytes(unsigned char *to, size_t len, unsigned char seed)
{
	for (size_t i = 0; i < len; i++)
		to[i] = (unsigned char)(seed + 7 * i);
}

static bool has_bytes(const void *at, size_t len, unsigned char seed)
{
	unsigned char expected[128];

	fill_bytes(expected, len, seed);
	return !memcmp(at, expected, len);
}

/* A message is sent. */
static void note_sent(struct node *n, uint32_t to, const void *msg, size_t len)
{
	unsigned from = n->number;
	struct pair *lends = &pair[from][to], *borrows = &pair[to][from];
	struct asked *a;
	struct hp_wire w;

	if (!EXPECT_EQ(hp_wire_read(&w, msg, len), 0))
		return;
	if (w.type == HP_WIRE_LEND || w.type == HP_WIRE_NO) { /* 4 */
		a = find_asked(lends, w.number);
		if (!EXPECT(a && a->out))
			return;
		a->out = false;
		if (w.type == HP_WIRE_LEND) {
			EXPECT(a->addr >= w.addr && a->addr - w.addr < w.len);
			EXPECT_EQ(w.flags, a->carried ? HP_WIRE_CARRIED : 0);
			if (a->carried && !n->send_again) /* else others may have written there meanwhile */
				EXPECT(has_bytes((void *)(uintptr_t)a->addr,
						 HP_MIN((uint64_t)a->carried, w.addr + w.len - a->addr), a->seed));
			if (EXPECT(lends->lents < REFS))
				lends->lent[lends->lents++] = (struct lent){ w.ref, w.addr, w.len, false };
		}
		*a = lends->asked[--lends->asks];
	} else if (w.type == HP_WIRE_ASK) {
		EXPECT(!find_asked(borrows, w.number));
		if (EXPECT(borrows->asks < ASKS * 2))
			borrows->asked[borrows->asks++] = (struct asked){
				w.number, w.addr, w.carried ? *(const unsigned char *)w.carry : 0, w.carried, true
			};
	} else if (w.type == HP_WIRE_WANT) {
		EXPECT(!lends->want);
		lends->want = w.number;
	}
	if (w.type == HP_WIRE_ASK || w.type == HP_WIRE_RETURN)
		for (unsigned i = 0; i < w.n; i++) {
			struct lent *x = find_lent(to, from, w.refs[i]);

			if (EXPECT(x && !x->returned))
				x->returned = true;
		}
}

/* A message is handed in, and was taken. */
static void note_taken(unsigned from, unsigned to, const struct hp_wire *w)
{
	struct pair *p = &pair[to][from];

	if (w->type == HP_WIRE_ASK || w->type == HP_WIRE_RETURN)
		for (unsigned i = 0; i < w->n; i++) {
			struct lent *x = find_lent(to, from, w->refs[i]);

			if (EXPECT(x && x->returned))
				forget_lent(p, x);
		}
	if (w->type == HP_WIRE_RETURN && w->number && !(w->flags & HP_WIRE_MORE))
		p->want = 0;
}

/* 2: by the messages, buckets of several peers counted once, and by the lender's own lists. The pin cache counts no more
 * buckets than there are. */
static void check_sums(unsigned i)
{
	const struct hp_lender *ln = &node[i].lend->lender;
	uint64_t lent = 0, own = 0, idle = 0, buckets = 0;
	struct hp_bucket *b;
	struct hp_region *r;

	for (unsigned to = 0; to < NODES; to++)
		for (unsigned k = 0; k < pair[i][to].lents; k++) {
			const struct lent *x = &pair[i][to].lent[k];
			bool seen = pair[i][to].down;

			for (unsigned other = 0; other <= to && !seen; other++)
				for (unsigned j = 0; j < pair[i][other].lents && !(other == to && j >= k); j++)
					seen |= !pair[i][other].down && pair[i][other].lent[j].base == x->base &&
						pair[i][other].lent[j].len == x->len;
			lent += seen ? 0 : x->len;
		}
	TAILQ_FOREACH(b, &ln->lent_list, order)
		own += hp_bucket_bytes(b), buckets++;
	TAILQ_FOREACH(b, &ln->idle_list, order)
		idle += hp_bucket_bytes(b), buckets++;
	TAILQ_FOREACH(r, &node[i].domain->live, order)
		buckets -= hp_region_notes_of(r)->buckets;
	TAILQ_FOREACH(r, &node[i].domain->aside, order)
		buckets -= hp_region_notes_of(r)->buckets;
	EXPECT((int64_t)buckets >= 0);
	EXPECT(lent <= lent_max);
	EXPECT_EQ(own, ln->lent);
	EXPECT_EQ(idle, ln->idle);
	EXPECT(own <= lent_max && own + idle <= lent_max + idle_max);
}

/* At each registration. */
static int check_device(void *addr, size_t len)
{
	for (unsigned i = 0; i < NODES; i++) {
		struct node *n = &node[i];

		if ((uintptr_t)addr - (uintptr_t)n->memory >= n->offered)
			continue;
		EXPECT(n->device.bytes + len <= BUDGET);
		EXPECT(n->lend->lender.lent <= lent_max);
		EXPECT(n->lend->lender.lent + n->lend->lender.idle <= lent_max + idle_max);
		if (any(50) == 0)
			return any(2) ? -EFAULT : -ENOMEM;
	}
	return 0;
}

/* ------------------------------------------------------------------ uses */

static bool is_down(unsigned i, unsigned peer)
{
	return pair[i][peer].down;
}

/* Node i has got a use of a key. 1 and 3. */
static void begin_use(unsigned i, const struct hugepin_far *key)
{
	unsigned lender = key->peer;
	uint64_t ref = node[i].lend->borrowed[hp_key_slot(key->ref)].ref;
	struct lent *x;

	if (!EXPECT(uses < USES))
		return;
	use[uses] = (struct use){ i, !is_down(i, lender), *key };
	if (use[uses].real) {
		x = find_lent(lender, i, ref);
		EXPECT(x && !x->returned);
		EXPECT(works(lender, key));
		node[lender].device.reg[key->rkey & 0x7fffffff].uses++;
	}
	uses++;
}

static void stop_use(struct use *u)
{
	if (u->real) {
		EXPECT(works(u->key.peer, &u->key));
		node[u->key.peer].device.reg[u->key.rkey & 0x7fffffff].uses--;
		u->real = false;
	}
}

static void end_use(unsigned k)
{
	stop_use(&use[k]);
	EXPECT_EQ(hugepin_lend_done(node[use[k].node].lend, &use[k].key), 0);
	EXPECT_EQ(use[k].key.ref, 0);
	use[k] = use[--uses];
}

static void random_ready(void *arg, void *which, int err, const struct hugepin_far *key)
{
	struct node *n = arg;
	struct token *t = which;

	EXPECT(t->out && t->node == n->number); /* 4 */
	t->out = false;
	if (err) {
		EXPECT(err == -ENOBUFS || err == -EFAULT || err == -EACCES || err == -ECONNRESET || err == -ENOTCONN ||
		       err == -ENETDOWN);
		return;
	}
	EXPECT(key->base == t->addr && key->len && key->len <= t->len && key->peer == t->peer);
	begin_use(n->number, key);
}

static struct token *free_token(void)
{
	for (unsigned i = 0; i < TOKENS; i++)
		if (!token[i].out)
			return &token[i];
	return NULL;
}

static void ask_for_key(unsigned i, unsigned peer, bool with_data)
{
	struct token *t = free_token();
	struct hugepin_far key = { 0 };
	unsigned char data[128];
	int r;

	/* uses of tokens that are out will need a place */
	unsigned out = 0;
	for (unsigned k = 0; k < TOKENS; k++)
		out += token[k].out;
	if (!t || uses + out >= USES - 1)
		return;
	*t = (struct token){ .out = true, .node = i, .peer = peer, .seed = (unsigned char)any(256) };
	t->addr = (uintptr_t)node[peer].memory + any(PIECES) * PIECE + any(8) * 16 * KIB;
	t->len = with_data ? 1 + any(128) : 1 + any(3 * PIECE);
	if (any(40) == 0) /* behind what is offered */
		t->addr = (uintptr_t)node[peer].memory + node[peer].offered + any(1000);
	fill_bytes(data, with_data ? t->len : 0, t->seed);
	r = with_data ? hugepin_lend_put(node[i].lend, peer, t->addr, data, t->len, t, &key) :
			hugepin_lend_key(node[i].lend, peer, t->addr, t->len, t, &key);
	if (r == 0)
		return;
	t->out = false;
	if (r == 1) {
		EXPECT(key.base == t->addr && key.len && key.len <= t->len && key.peer == peer);
		begin_use(i, &key);
	} else {
		EXPECT(r == -EBUSY || ((r == -ENOTCONN || r == -ENETDOWN) && is_down(i, peer)));
	}
}

/* ------------------------------------------------------------------ messages */

static int random_send(void *arg, uint32_t peer, const void *msg, size_t len)
{
	struct node *n = arg;

	if (is_down(n->number, peer))
		return any(2) ? 0 : -ENETDOWN; /* it gets lost, with or without notice */
	return node_send(arg, peer, msg, len);
}

/* What a refused message may not change. */
struct digest {
	struct hp_lender lender;
	struct hp_holder holder[NODES];
	struct hp_peer peer[NODES];
	uint64_t borrowed_count, asks_count, unsent_bytes, regs, answers, calls;
};

static void digest(unsigned i, struct digest *ret_)
{
	const hugepin_lend *l = node[i].lend;

	memset(ret_, 0, sizeof *ret_);
	memcpy(&ret_->lender, &l->lender, sizeof ret_->lender);
	memcpy(ret_->holder, l->lender.holder, sizeof ret_->holder);
	memcpy(ret_->peer, l->peer, sizeof ret_->peer);
	for (unsigned p = 0; p < NODES; p++)
		ret_->peer[p].stats.broken = 0;
	ret_->borrowed_count = l->borrowed_count;
	ret_->asks_count = l->asks_count;
	ret_->unsent_bytes = l->unsent_bytes;
	ret_->regs = node[i].device.regs;
	ret_->calls = (uint64_t)node[i].device.calls + (uint64_t)node[i].sends;
}

/* Hand in bytes that are no message of that peer's now. 6 */
static void hand_in_bad(unsigned from, unsigned to, const void *bytes, size_t len)
{
	static struct digest before, after;

	hugepin_lend_progress(node[to].lend); /* what waits there would be done besides */
	digest(to, &before);
	EXPECT_EQ(hugepin_lend_message(node[to].lend, from, bytes, len), -EILSEQ);
	digest(to, &after);
	EXPECT(!memcmp(&before, &after, sizeof before));
}

static void forge(unsigned from, unsigned to)
{
	unsigned char buf[MESSAGE_ROOM];
	const struct pair *lends = &pair[to][from];
	struct hp_wire w = { .number = 1 + (uint32_t)any(1000) + (1u << 30) };
	size_t len;
	unsigned other = (unsigned)any(NODES);

	if (is_down(from, to) || node[to].lend->peer[from].gone)
		return;
	switch (any(12)) {
	case 0: /* an answer that nobody asked for */
		w.type = HP_WIRE_LEND;
		w.ref = UINT64_MAX / 2;
		w.addr = (uintptr_t)node[from].memory;
		w.len = 4096;
		break;
	case 1:
		w.type = HP_WIRE_NO;
		w.error = ENOBUFS;
		break;
	case 2: /* a key that was never lent */
		w.type = HP_WIRE_RECALL;
		w.number = 0;
		w.n = 1;
		w.refs[0] = UINT64_MAX / 2;
		break;
	case 3: /* not the next one */
		w.type = HP_WIRE_WANT;
		w.bytes = 1;
		break;
	case 4: /* what was not lent to it */
		w.type = HP_WIRE_RETURN;
		w.number = 0;
		w.n = 2;
		w.refs[0] = lends->lents ? lends->lent[0].ref : 5;
		w.refs[1] = UINT64_MAX / 2;
		break;
	case 5: /* what was lent to another */
		if (other == from || !pair[to][other].lents)
			return;
		w.type = HP_WIRE_RETURN;
		w.number = 0;
		w.n = 1;
		w.refs[0] = pair[to][other].lent[0].ref;
		break;
	case 6: /* of a WANT that is not out */
		w.type = HP_WIRE_RETURN;
		break;
	case 7: /* a question out of its order, which gives back */
		w.type = HP_WIRE_ASK;
		w.addr = (uintptr_t)node[to].memory;
		w.len = 1;
		w.n = lends->lents ? 1 : 0;
		w.refs[0] = lends->lents ? lends->lent[0].ref : 0;
		break;
	case 8: /* an answer that does not fit the question */
		if (!pair[from][to].asks)
			return;
		w.type = HP_WIRE_LEND;
		w.number = pair[from][to].asked[0].number;
		w.ref = UINT64_MAX / 2;
		w.addr = pair[from][to].asked[0].addr + 1;
		w.len = 10;
		break;
	case 9: /* an old ref in the answer to a question that is out */
		if (!pair[from][to].asks || !node[to].lend->peer[from].ref_last)
			return;
		w.type = HP_WIRE_LEND;
		w.number = pair[from][to].asked[0].number;
		w.ref = node[to].lend->peer[from].ref_last;
		w.addr = pair[from][to].asked[0].addr;
		w.len = 10;
		w.flags = pair[from][to].asked[0].carried ? HP_WIRE_CARRIED : 0;
		break;
	case 10: /* an answer that says of the carried bytes what is not so */
		if (!pair[from][to].asks)
			return;
		w.type = HP_WIRE_LEND;
		w.number = pair[from][to].asked[0].number;
		w.ref = UINT64_MAX / 2;
		w.addr = pair[from][to].asked[0].addr;
		w.len = 10;
		w.flags = pair[from][to].asked[0].carried ? 0 : HP_WIRE_CARRIED;
		break;
	default: /* no message at all */
		w.type = HP_WIRE_WANT;
		w.bytes = 1;
		len = hp_wire_write(buf, &w);
		buf[any(2)] ^= (unsigned char)(0x80 >> any(4));
		hand_in_bad(from, to, buf, len);
		hand_in_bad(from, to, buf, any(8));
		return;
	}
	len = hp_wire_write(buf, &w);
	hand_in_bad(from, to, buf, len);
	hand_in_bad(from, to, buf, len - 1);
}

/* Hand in the next message of a queue; sometimes twice. */
static void deliver_next(unsigned from, unsigned to)
{
	struct message *m = take(from, to);
	struct hp_wire w;
	int err;

	if (!m)
		return;
	EXPECT_EQ(hp_wire_read(&w, m->bytes, m->len), 0);
	note_taken(from, to, &w); /* first: what is done with it may send */
	err = hugepin_lend_message(node[to].lend, from, m->bytes, m->len);
	EXPECT_EQ(err, 0);
	if (any(8) == 0 && w.type != HP_WIRE_RECALL && !is_down(from, to))
		hand_in_bad(from, to, m->bytes, m->len);
	spare[spares++] = m;
}

/* ------------------------------------------------------------------ death */

/* The connection breaks: no transfer is under way, no message arrives any more. */
static void take_down(unsigned a, unsigned b)
{
	struct message *m;

	if (is_down(a, b))
		return;
	for (unsigned k = 0; k < uses; k++)
		if ((use[k].node == a && use[k].key.peer == b) || (use[k].node == b && use[k].key.peer == a))
			stop_use(&use[k]);
	for (int way = 0; way < 2; way++)
		while ((m = way ? take(a, b) : take(b, a)))
			spare[spares++] = m;
	pair[a][b] = pair[b][a] = (struct pair){ .down = true };
}

static void tell_gone(unsigned i, unsigned peer)
{
	int expected = node[i].lend->peer[peer].gone ? -EALREADY : 0;

	if (is_down(i, peer))
		EXPECT_EQ(hugepin_lend_gone(node[i].lend, peer), expected);
}

static void bring_up(unsigned a, unsigned b)
{
	if (!is_down(a, b) || !node[a].lend->peer[b].gone || !node[b].lend->peer[a].gone)
		return;
	for (unsigned k = 0; k < uses; k++) /* of keys from before, of which the model knows nothing */
		EXPECT(!use[k].real ||
		       !((use[k].node == a && use[k].key.peer == b) || (use[k].node == b && use[k].key.peer == a)));
	pair[a][b] = pair[b][a] = (struct pair){ 0 };
	EXPECT_EQ(hugepin_lend_again(node[a].lend, b), 0);
	EXPECT_EQ(hugepin_lend_again(node[b].lend, a), 0);
}

/* ------------------------------------------------------------------ an interleaving */

/* The memory goes away, and the cache has heard of it. */
static void forget(unsigned i, void *addr, size_t len)
{
	hugepin_domain *d = node[i].domain;

	EXPECT(hugepin_forget(addr, len) <= 0);
	hp_lock(&d->lock);
	hp_gone_drain(d);
	hp_region_deregister_dead(d);
	hp_unlock(&d->lock);
}

/* The cache has more news than there is room for. */
static void lose_news(unsigned i)
{
	hp_lock(&node[i].domain->lock);
	for (int k = 0; k <= HP_NEWS_MAX; k++)
		node[i].domain->lend_hooks->dropped(node[i].domain->lend, HP_REGIONS_MAX - 1);
	EXPECT(node[i].lend->news.lost);
	hp_unlock(&node[i].domain->lock);
}

static void step(void)
{
	unsigned a = (unsigned)any(NODES), b = (a + 1 + (unsigned)any(NODES - 1)) % NODES, what = (unsigned)any(1000);
	struct hugepin_pin pin;

	if (what < 2) {
		lose_news(a);
	} else if (what < 250) {
		ask_for_key(a, b, what < 50);
	} else if (what < 450) {
		if (uses)
			end_use((unsigned)any(uses));
	} else if (what < 850) {
		deliver_next(a, b);
	} else if (what < 880) {
		EXPECT_EQ(hugepin_lend_progress(node[a].lend), 0);
	} else if (what < 920) {
		forge(a, b);
	} else if (what < 950) { /* memory goes away */
		forget(a, node[a].memory + any(PIECES) * PIECE, 1 + any(4 * PIECE));
	} else if (what < 960) { /* it has long been free, says the cache */
		want_memory(a, node[a].memory + any(PIECES) * PIECE);
	} else if (what < 975) { /* others need room */
		if (hugepin_pin(node[a].domain, node[a].memory, any(2) ? PIECE : 2 * MIB, 0, &pin) == 0)
			EXPECT_EQ(hugepin_unpin(node[a].domain, &pin), 0);
	} else if (what < 980) {
		take_down(a, b);
	} else if (what < 990) {
		tell_gone(a, b);
	} else {
		bring_up(a, b);
	}
	check_sums(a);
}

static bool deliver_something(void)
{
	bool some = false;

	for (unsigned a = 0; a < NODES; a++) {
		EXPECT_EQ(hugepin_lend_progress(node[a].lend), 0);
		for (unsigned b = 0; b < NODES; b++)
			while (queue[a][b].count && t_failures < 8) {
				deliver_next(a, b);
				some = true;
			}
		some |= hp_lend_attends(node[a].lend, UINT32_MAX) && t_failures < 8;
	}
	return some;
}

/* 7 */
static void settle(void)
{
	for (unsigned a = 0; a < NODES; a++)
		for (unsigned b = 0; b < NODES; b++) {
			tell_gone(a, b);
			tell_gone(b, a);
			bring_up(a, b);
		}
	while (uses)
		end_use(0);
	do
		while (uses)
			end_use(0);
	while (deliver_something() || uses);
	for (unsigned i = 0; i < TOKENS; i++)
		EXPECT(!token[i].out);
	for (unsigned a = 0; a < NODES; a++)
		forget(a, node[a].memory, node[a].offered);
	while (deliver_something())
		;
	for (unsigned a = 0; a < NODES; a++) {
		const struct hp_lender *ln = &node[a].lend->lender;
		struct hugepin_lend_stats s = lend_stats(a, HUGEPIN_LEND_ALL);

		EXPECT(!s.lent && !s.lent_bytes && !s.borrowed && !s.borrowed_bytes && !s.idle_bytes);
		EXPECT(!ln->buckets_count && !ln->idle_count && !ln->waiting_count && !ln->ranks &&
		       TAILQ_EMPTY(&ln->asked));
		EXPECT(!node[a].lend->borrowed_count && !node[a].lend->asks_count && !node[a].lend->unsent_bytes);
		EXPECT_EQ(node[a].device.regs, 0);
		for (unsigned b = 0; b < NODES; b++) {
			EXPECT(!pair[a][b].lents && !pair[a][b].asks && !pair[a][b].want);
			EXPECT(!node[a].lend->lender.holder[b].bytes && !node[a].lend->lender.holder[b].want);
		}
	}
}

static void interleave(uint32_t policy, uint64_t lent, uint64_t idle, unsigned times, unsigned again)
{
	struct hugepin_lend_attr attr = attr_of(policy, lent, idle);

	T_DOMAIN_BEGINS();
	lent_max = lent;
	idle_max = idle;
	attr.send = random_send;
	attr.ready = random_ready;
	attr.wake = NULL; /* one thread */
	memset(pair, 0, sizeof pair);
	for (unsigned i = 0; i < NODES; i++) {
		open_node(i, PIECES * PIECE, BUDGET, &attr);
		node[i].sent = note_sent;
		node[i].send_again = again;
		node[i].device.refuse = check_device;
	}
	for (unsigned n = 0; n < times && !t_failures; n++) {
		uint64_t state = any_state;

		interleaving++;
		for (int i = 0; i < STEPS && !t_failures; i++)
			step();
		if (!t_failures)
			settle();
		if (t_failures)
			t_print("# interleaving %u, any_state %llu\n", interleaving, (unsigned long long)state);
	}
	for (unsigned i = 0; i < NODES; i++)
		close_node(i);
	EXPECT(hp_regions_used() < 4096); /* no index is lost */
	forget_messages();
}

static unsigned times(void)
{
	const char *s = getenv("LEND_RANDOM");

	return s ? (unsigned)strtoul(s, NULL, 10) : 20000;
}

TEST(whatever_the_order_of_messages_a_pool_keeps_its_promises)
{
	interleave(HUGEPIN_LEND_POOL, 4 * PIECE, 2 * PIECE, times() / 4, 0);
	interleave(HUGEPIN_LEND_POOL, 8 * PIECE, PIECE, times() / 4, 20);
}

TEST_CASE(a_pool_that_lends_all_memory_as_one_keeps_its_promises,
	  interleave(HUGEPIN_LEND_POOL, 2 * MIB, 4096, times() / 4, 5)) /* 0 would be an eighth of the budget */
TEST_CASE(whatever_the_order_of_messages_static_shares_keep_their_promises,
	  interleave(HUGEPIN_LEND_STATIC, 9 * PIECE, 2 * PIECE, times() / 4, 10))

T_MAIN
