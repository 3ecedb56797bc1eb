/*
 * One lender and five peers at random: two are honest, one is honest and loses its connection again and again, one
 * lies, one sleeps. The honest ones want keys all the time. After each step, what hugepin_lend(7) promises of limits;
 * and
 *  - an honest peer has the key that it wants within WITHIN steps, whatever the others do: three may be silent, and
 *    each is waited for until it is late
 *  - while a use of a key is out, its registration is there
 *  - an honest peer's bytes are as it wrote them: it alone writes to its pages, by keys and in questions
 *  - what the liar gets are keys of what is offered to it, and what it sends costs others nothing
 *
 * The clock advances by a millisecond a step. LEND_SOAK=STEPS[,SEED]: so many steps, with these random numbers.
 */
#include "tests/unit/lend.h"

enum { LENDER, STEADY, OTHER, FICKLE, REAL, LIAR = REAL, SLEEPER, PEERS };
enum { PIECES = 16, USES = 2, BYTES = 64, REFS = 64, LETTERS = 256 };
enum { KEYS_MAX = 10, ANSWER_MS = 50, WITHIN = 3 * ANSWER_MS + 100 };
#define PIECE (128 * KIB)
#define PAGE ((size_t)4096)
#define LENT_MAX (16 * PIECE)
#define IDLE_MAX (4 * PIECE)
#define PEER_MAX (4 * PIECE) /* so that three that give nothing back leave a quarter */

static unsigned long step_now;
static bool ending;

static uint64_t clock_of_steps(void)
{
	return step_now * UINT64_C(1000000);
}

/* ------------------------------------------------------------------ honest peers */

static struct user {
	struct use {
		struct hugepin_far key;
		unsigned char stamp;
		bool out, real; /* real: the lender's device counts it */
	} use[USES];
	bool wants, asked; /* asked: ready() follows */
	bool put;
	uint64_t addr;
	unsigned char stamp;
	unsigned long since, longest, got, refused;
} user[REAL];
static bool down; /* the connection of FICKLE */

static bool is_up(unsigned i)
{
	return i != FICKLE || !down;
}

static struct use *free_use(struct user *u)
{
	for (unsigned k = 0; k < USES; k++)
		if (!u->use[k].out)
			return &u->use[k];
	return NULL;
}

static bool has_stamp(const struct use *s)
{
	const unsigned char *at = (const unsigned char *)(uintptr_t)s->key.base;

	for (unsigned k = 0; k < BYTES; k++)
		if (at[k] != s->stamp)
			return false;
	return true;
}

/* Peer i has the key that it wanted. carried: its bytes rode in the question. */
static void begin_use(unsigned i, const struct hugepin_far *key, bool carried)
{
	struct user *u = &user[i];
	struct use *s = free_use(u);

	if (!EXPECT(s && key->base == u->addr && key->len == BYTES && works(LENDER, key)))
		return;
	*s = (struct use){ .key = *key, .stamp = u->stamp, .out = true, .real = true };
	node[LENDER].device.reg[key->rkey & 0x7fffffff].uses++;
	if (!carried)
		memset((void *)(uintptr_t)key->base, u->stamp, BYTES);
	EXPECT(has_stamp(s));
	u->longest = HP_MAX(u->longest, step_now - u->since);
	u->got++;
	u->wants = false;
}

/* No transfer by this key is under way any more. */
static void stop_use(struct use *s)
{
	if (!s->out || !s->real)
		return;
	EXPECT(works(LENDER, &s->key) && has_stamp(s));
	node[LENDER].device.reg[s->key.rkey & 0x7fffffff].uses--;
	s->real = false;
}

static void end_use(unsigned i, struct use *s)
{
	if (!s->out)
		return;
	stop_use(s);
	s->out = false;
	EXPECT_EQ(any(8) ? hugepin_lend_done(node[i].lend, &s->key) : hugepin_lend_return(node[i].lend, &s->key), 0);
}

static void choose_want(unsigned i)
{
	struct user *u = &user[i];

	u->addr = (uintptr_t)node[LENDER].memory + any(PIECES) * PIECE + i * PAGE;
	for (unsigned k = 0; k < USES; k++)
		if (u->use[k].out && u->use[k].key.base == u->addr)
			return;
	u->wants = true;
	u->put = any(3) == 0;
	u->stamp = (unsigned char)(1 + any(255));
	u->since = step_now;
}

static void ask(unsigned i)
{
	struct user *u = &user[i];
	struct hugepin_far key = { 0 };
	unsigned char data[BYTES];
	int r;

	memset(data, u->stamp, sizeof data);
	u->asked = true;
	r = u->put ? hugepin_lend_put(node[i].lend, LENDER, u->addr, data, BYTES, u, &key) :
		     hugepin_lend_key(node[i].lend, LENDER, u->addr, BYTES, u, &key);
	if (r == 0)
		return;
	u->asked = false;
	if (EXPECT_EQ(r, 1))
		begin_use(i, &key, false);
}

static void live(unsigned i)
{
	struct user *u = &user[i];

	if (!is_up(i))
		return;
	if (any(4) == 0)
		end_use(i, &u->use[any(USES)]);
	if (!u->wants && free_use(u) && any(3) == 0)
		choose_want(i);
	if (u->wants && !u->asked)
		ask(i);
	if (u->wants && !EXPECT(step_now - u->since < WITHIN))
		u->since = step_now;
}

/* ------------------------------------------------------------------ what the liar and the sleeper have */

static struct shady {
	uint64_t ref[REFS];
	unsigned refs;
	uint32_t want; /* the number of the last WANT */
	bool owes;
} shady[PEERS];

/* Its own, or another peer's, or none. */
static uint64_t any_ref(const struct shady *s)
{
	const struct hp_loan *other = TAILQ_FIRST(&node[LENDER].lend->lender.holder[STEADY + any(REAL - 1)].loans);

	if (other && any(8) == 0)
		return other->ref;
	return s->refs ? s->ref[any(s->refs)] : 1 + any(1000);
}

static void note_letter(unsigned peer, const struct hp_wire *w)
{
	struct shady *s = &shady[peer];
	const uint64_t theirs = (uintptr_t)node[LENDER].memory + PIECES * PIECE;

	if (w->type == HP_WIRE_LEND) {
		EXPECT(w->addr >= theirs && w->addr + w->len <= theirs + PIECES * PIECE);
		s->ref[s->refs < REFS ? s->refs++ : any(REFS)] = w->ref;
	} else if (w->type == HP_WIRE_WANT) {
		s->want = w->number;
		s->owes = true;
	}
}

static int hand_in(unsigned peer, const void *bytes, size_t len)
{
	return hugepin_lend_message(node[LENDER].lend, peer, bytes, len);
}

static void fill_ask(unsigned peer, struct hp_wire *w)
{
	*w = (struct hp_wire){ .type = HP_WIRE_ASK,
			       .number = node[LENDER].lend->lender.holder[peer].asked_last + 1,
			       .addr = (uintptr_t)node[LENDER].memory + (PIECES + any(PIECES)) * PIECE,
			       .len = BYTES };
}

static void leave(unsigned peer)
{
	EXPECT_EQ(hugepin_lend_gone(node[LENDER].lend, peer), 0);
	shady[peer] = (struct shady){ 0 };
	EXPECT_EQ(hugepin_lend_again(node[LENDER].lend, peer), 0);
}

/* ------------------------------------------------------------------ the liar */

static unsigned long lies, believed;
static struct hugepin_far of_liar[USES];

/* What could be an answer to a question of the lender's. */
static void fill_answer(struct hp_wire *w)
{
	const struct hp_ask *a = TAILQ_FIRST(&node[LENDER].lend->peer[LIAR].asks);
	const struct hp_peer *p = &node[LENDER].lend->peer[LIAR];

	*w = (struct hp_wire){ .type = (uint8_t)(any(3) ? HP_WIRE_LEND : HP_WIRE_NO),
			       .number = a ? a->number : (uint32_t)any(100),
			       .share = any(100) ? UINT64_MAX : any(MIB) };
	w->error = ENOBUFS;
	w->addr = a && any(8) ? a->addr - any(PAGE) : any(UINT32_MAX);
	w->len = 1 + any(any(1000) ? PAGE : (size_t)1 << 40);
	w->ref = p->ref_last + any(3);
	w->rkey = (uint32_t)any(UINT32_MAX);
}

static void fill_lie(struct hp_wire *w)
{
	const struct shady *s = &shady[LIAR];

	switch (any(12)) {
	case 0: /* without end, of what is not offered, too, with keys that it does not have */
	case 1:
	case 2:
		fill_ask(LIAR, w);
		w->number += any(16) == 0;
		w->addr = any(8) ? w->addr : any(4) ? (uintptr_t)node[LENDER].memory + any(PIECES) * PIECE : any(SIZE_MAX);
		w->len = any(8) ? w->len : 1 + any(SIZE_MAX);
		if (any(4) == 0 && w->len == BYTES)
			w->carried = BYTES;
		w->n = any(8) == 0;
		w->refs[0] = any_ref(s);
		break;
	case 3:
	case 4:
		*w = (struct hp_wire){ .type = HP_WIRE_RETURN, .n = (uint8_t)any(3), .number = any(2) ? s->want : 0 };
		w->flags = any(4) == 0 ? HP_WIRE_MORE : 0;
		for (unsigned k = 0; k < w->n; k++)
			w->refs[k] = any_ref(s) + (any(4) == 0 ? any(3) : 0);
		break;
	case 5:
		*w = (struct hp_wire){ .type = HP_WIRE_RECALL, .n = 1 };
		w->refs[0] = node[LENDER].lend->peer[LIAR].ref_last + any(2) - any(20);
		break;
	case 6:
		*w = (struct hp_wire){ .type = HP_WIRE_WANT,
				       .number = node[LENDER].lend->peer[LIAR].want_last + 1,
				       .bytes = any(100) ? any(PAGE) : any(SIZE_MAX) };
		break;
	default:
		fill_answer(w);
	}
}

static void lie(void)
{
	unsigned char bytes[HUGEPIN_LEND_MESSAGE_MAX + BYTES] = { 0 };
	static const unsigned char carry[BYTES];
	struct hp_wire w;
	size_t len;
	int err;

	fill_lie(&w);
	w.carry = carry;
	len = hp_wire_write(bytes, &w);
	if (any(8) == 0)
		bytes[any(len)] ^= (unsigned char)(1u << any(8));
	if (any(8) == 0)
		len = any(len + 1);
	err = hand_in(LIAR, bytes, len);
	EXPECT(!err || err == -EILSEQ || err == -ENOTCONN);
	lies++;
	believed += !err;
	if (err == -ENOTCONN || (err && any(1000) == 0))
		leave(LIAR);
}

/* The lender uses the liar's memory, too. */
static void ask_liar(void)
{
	struct hugepin_far *key = &of_liar[any(USES)];
	int r;

	if (key->ref)
		EXPECT_EQ(hugepin_lend_done(node[LENDER].lend, key), 0);
	r = hugepin_lend_key(node[LENDER].lend, LIAR, (1 + any(1000)) * MIB, 1, of_liar, key);
	EXPECT(r == 0 || r == 1 || r == -EBUSY || r == -ENOMEM || r == -EPIPE);
	if (r != 1)
		*key = (struct hugepin_far){ 0 };
}

/* ------------------------------------------------------------------ the sleeper */

static struct message letter[LETTERS];
static unsigned letters;
static unsigned long wakes_at, sleeps_at;

static void give_back(struct hp_wire *w, uint64_t ref)
{
	struct shady *s = &shady[SLEEPER];

	for (unsigned k = 0; k < s->refs; k++)
		if (s->ref[k] == ref) {
			s->ref[k] = s->ref[--s->refs];
			w->refs[w->n++] = ref;
			return;
		}
}

static void send_as_sleeper(const struct hp_wire *w)
{
	unsigned char bytes[HUGEPIN_LEND_MESSAGE_MAX];

	EXPECT_EQ(hand_in(SLEEPER, bytes, hp_wire_write(bytes, w)), 0);
}

/* It reads what has come, and answers as it should. */
static void read_letters(void)
{
	for (unsigned k = 0; k < letters; k++) { /* answers may bring more */
		struct hp_wire in, out = { .type = HP_WIRE_RETURN };

		EXPECT_EQ(hp_wire_read(&in, letter[k].bytes, letter[k].len), 0);
		note_letter(SLEEPER, &in);
		if (in.type == HP_WIRE_RECALL)
			for (unsigned r = 0; r < in.n; r++)
				give_back(&out, in.refs[r]);
		if (in.type == HP_WIRE_WANT) {
			out.number = in.number;
			if (shady[SLEEPER].refs)
				give_back(&out, shady[SLEEPER].ref[0]);
		}
		if (out.n || out.number)
			send_as_sleeper(&out);
	}
	letters = 0;
}

static void sleep_mostly(void)
{
	struct hp_wire w;

	if (step_now < wakes_at)
		return;
	read_letters();
	if (step_now >= sleeps_at) {
		wakes_at = step_now + 100 + any(1000);
		sleeps_at = wakes_at + any(50);
	}
	if (shady[SLEEPER].refs < 8 && any(4) == 0) {
		fill_ask(SLEEPER, &w);
		send_as_sleeper(&w);
	}
}

/* ------------------------------------------------------------------ the one that is lost and comes back */

static unsigned long changes_at;

static void drop_queues(void)
{
	struct message *m;

	while ((m = take(LENDER, FICKLE)) || (m = take(FICKLE, LENDER)))
		spare[spares++] = m;
}

static void come_and_go(void)
{
	struct user *u = &user[FICKLE];

	if (step_now < changes_at)
		return;
	changes_at = step_now + 20 + any(600);
	if (!down) {
		for (unsigned k = 0; k < USES; k++)
			stop_use(&u->use[k]);
		drop_queues();
		down = true;
		return;
	}
	EXPECT_EQ(hugepin_lend_gone(node[FICKLE].lend, LENDER), 0);
	EXPECT_EQ(hugepin_lend_gone(node[LENDER].lend, FICKLE), 0);
	for (unsigned k = 0; k < USES; k++)
		end_use(FICKLE, &u->use[k]);
	EXPECT(!u->asked);
	u->wants = false;
	EXPECT_EQ(hugepin_lend_again(node[LENDER].lend, FICKLE), 0);
	EXPECT_EQ(hugepin_lend_again(node[FICKLE].lend, LENDER), 0);
	down = false;
}

/* ------------------------------------------------------------------ the callbacks, and a step */

static int send_any(void *arg, uint32_t to, const void *msg, size_t len)
{
	struct node *n = arg;
	struct hp_wire w;

	if (n->number == FICKLE || to == FICKLE)
		if (down)
			return any(2) ? 0 : -ENETDOWN;
	if (any(20) == 0)
		return -EAGAIN;
	if (to < REAL) {
		put(n->number, to, msg, len);
	} else if (to == LIAR) {
		if (any(500) == 0)
			return -EPIPE;
		EXPECT_EQ(hp_wire_read(&w, msg, len), 0);
		note_letter(LIAR, &w);
	} else if (EXPECT(letters < LETTERS)) {
		letter[letters].len = len;
		memcpy(letter[letters++].bytes, msg, len);
	}
	return 0;
}

static void ready_any(void *arg, void *token, int err, const struct hugepin_far *key)
{
	unsigned i = ((struct node *)arg)->number;
	struct hugepin_far copy;

	if (i == LENDER) {
		if (key) {
			copy = *key;
			EXPECT_EQ(hugepin_lend_done(node[LENDER].lend, &copy), 0);
		}
		return;
	}
	EXPECT(token == &user[i] && user[i].asked);
	user[i].asked = false;
	if (key)
		begin_use(i, key, user[i].put);
	else
		EXPECT(err == -ENOBUFS || ((i == FICKLE || ending) && err == -ECONNRESET));
	user[i].refused += !key;
}

/* The first half is the honest ones', the second is the others'. */
static int offer_half(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	char *half = ((struct node *)arg)->memory + (peer < REAL ? 0 : PIECES * PIECE);

	(void)len;
	if (addr < (uintptr_t)half || addr - (uintptr_t)half >= PIECES * PIECE)
		return -EACCES;
	*ret_buffer = (struct iovec){ half, PIECES * PIECE };
	return 0;
}

static void check_limits(void)
{
	const struct hp_lender *ln = &node[LENDER].lend->lender;

	EXPECT(ln->lent <= LENT_MAX && ln->lent + ln->idle <= LENT_MAX + IDLE_MAX);
	for (unsigned i = 1; i < PEERS; i++) {
		EXPECT(ln->holder[i].bytes <= PEER_MAX && ln->holder[i].loans_count <= KEYS_MAX);
		EXPECT(node[LENDER].lend->peer[i].stats.borrowed <= KEYS_MAX);
	}
	if (step_now % 256 == 0)
		EXPECT(lend_stats(LENDER, HUGEPIN_LEND_ALL).table_bytes < MIB);
}

static void step(void)
{
	step_now++;
	for (unsigned i = STEADY; i < REAL; i++) {
		live(i);
		if (any(2) && queue[i][LENDER].count)
			EXPECT_EQ(deliver(i, LENDER), node[LENDER].lend->peer[i].lost ? -ENOTCONN : 0);
		if (any(2) && queue[LENDER][i].count)
			EXPECT_EQ(deliver(LENDER, i), node[i].lend->peer[LENDER].lost ? -ENOTCONN : 0);
		EXPECT_EQ(hugepin_lend_progress(node[i].lend), 0);
	}
	lie();
	if (any(4) == 0)
		ask_liar();
	sleep_mostly();
	come_and_go();
	if (any(100) == 0) /* it has long been free, says the cache */
		want_memory(LENDER, node[LENDER].memory + any(2 * PIECES) * PIECE);
	EXPECT_EQ(hugepin_lend_progress(node[LENDER].lend), 0);
	check_limits();
}

TEST(honest_peers_have_their_share_beside_one_that_lies_one_that_sleeps_and_one_that_is_lost)
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, LENT_MAX, IDLE_MAX);
	const char *set = getenv("LEND_SOAK"), *seed = set ? strchr(set, ',') : NULL;
	const unsigned long steps = set ? strtoul(set, NULL, 10) : 500000;

	any_state = seed ? strtoull(seed + 1, NULL, 10) : any_state;
	t_print("# LEND_SOAK=%lu,%llu\n", steps, (unsigned long long)any_state);
	T_DOMAIN_BEGINS();
	hp_clock_set(clock_of_steps);
	attr.peers = PEERS;
	attr.peer_bytes_max = PEER_MAX;
	attr.peer_keys_max = KEYS_MAX;
	attr.answer_ms = ANSWER_MS;
	attr.send = send_any;
	attr.ready = ready_any;
	attr.offer = offer_half;
	attr.wake = NULL; /* one thread */
	for (unsigned i = 0; i < REAL; i++)
		open_node(i, i == LENDER ? 2 * PIECES * PIECE : 0, 64 * MIB, &attr);
	while (step_now < steps && !t_failures)
		step();
	if (t_failures)
		t_print("# at step %lu\n", step_now);
	for (unsigned i = STEADY; i < REAL; i++) {
		t_print("# peer %u: %lu keys, %lu refusals, %lu steps at most\n", i, user[i].got, user[i].refused,
			user[i].longest);
		EXPECT(user[i].got > steps / 20);
	}
	t_print("# %lu lies, of which %lu were believed\n", lies, believed);
	EXPECT(lend_stats(LENDER, SLEEPER).late && lend_stats(LENDER, LIAR).broken);
	t_print("# %lu late answers, %lu keys asked back, %lu questions waited\n",
		(unsigned long)lend_stats(LENDER, HUGEPIN_LEND_ALL).late,
		(unsigned long)lend_stats(LENDER, HUGEPIN_LEND_ALL).recalls,
		(unsigned long)lend_stats(LENDER, HUGEPIN_LEND_ALL).waited);
	ending = true;
	for (unsigned k = 0; k < USES; k++)
		if (of_liar[k].ref)
			EXPECT_EQ(hugepin_lend_done(node[LENDER].lend, &of_liar[k]), 0);
	for (unsigned i = STEADY; i < PEERS; i++) {
		for (unsigned k = 0; i < REAL && k < USES; k++)
			end_use(i, &user[i].use[k]);
		hugepin_lend_gone(node[LENDER].lend, i);
		if (i < REAL)
			hugepin_lend_gone(node[i].lend, LENDER);
	}
	for (unsigned i = 0; i < REAL; i++)
		close_node(i);
	forget_messages();
	hp_clock_set(NULL);
}

T_MAIN
