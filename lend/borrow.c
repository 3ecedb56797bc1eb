/*
 * The borrowing side: questions to peers, and their answers. Call with the lend's lock, on a thread that has counters
 * (hp_counts_self).
 *
 * Only one question is out for each frame of 128 KiB, the smallest bucket, and callers that want a key in the same
 * frame wait for its answer. If the key that comes does not reach far enough for them, the first of them asks next. A
 * question that carries bytes is always out by itself, and nobody waits for it.
 */
#include <errno.h>

#include "lend/borrow.h"
#include "lend/borrowed.h"
#include "lend/send.h"
#include "lend/state.h"

enum { FRAME_SHIFT = 17 };
_Static_assert((int)HP_ASKS_MAX <= (int)HP_LEND_WAITING_MAX,
	       "an honest peer is never refused for the number of its questions");

static uint64_t frame_of(uint32_t peer, uint64_t addr)
{
	return hp_lend_hash(addr >> FRAME_SHIFT, peer);
}

static struct hp_ask *find_by_number(hugepin_lend *l, uint32_t peer, uint32_t number)
{
	struct hp_link *at = hp_table_first(&l->asks_by_number, hp_lend_hash(number, peer));

	for (; at; at = hp_table_next(at)) {
		struct hp_ask *a = HP_OF(at, struct hp_ask, by_number);

		if (a->number == number && a->peer == peer)
			return a;
	}
	return NULL;
}

static struct hp_ask *find_by_frame(hugepin_lend *l, uint32_t peer, uint64_t addr)
{
	struct hp_link *at = hp_table_first(&l->asks_by_frame, frame_of(peer, addr));

	for (; at; at = hp_table_next(at)) {
		struct hp_ask *a = HP_OF(at, struct hp_ask, by_frame);

		if (a->peer == peer && a->addr >> FRAME_SHIFT == addr >> FRAME_SHIFT)
			return a;
	}
	return NULL;
}

/* Choose keys to give back in the question, so that the answer stays within our share. */
static uint8_t make_room(hugepin_lend *l, uint32_t peer, uint64_t *ret_refs)
{
	struct hp_peer *p = &l->peer[peer];
	uint64_t looks = hp_borrowed_looks(l, peer), bytes,
		 coming = p->bucket * (p->asks_out + 1); /* includes keys that were asked for */
	uint64_t most = p->share - HP_MIN(p->share, HP_MIN(coming, HP_MAX(p->bucket, p->share / 2)));

	if (p->stats.borrowed_bytes <= most)
		return 0;
	return (uint8_t)hp_borrowed_give(l, peer, p->stats.borrowed_bytes - most, &looks, ret_refs, &bytes);
}

static void take_out(hugepin_lend *l, struct hp_ask *a)
{
	hp_table_remove(&l->asks_by_number, &a->by_number);
	if (!a->put)
		hp_table_remove(&l->asks_by_frame, &a->by_frame);
	TAILQ_REMOVE(&l->peer[a->peer].asks, a, order);
	l->peer[a->peer].asks_out--;
	if (a->place)
		hp_borrowed_unreserve(l, a->place);
	a->place = NULL;
}

/* Send the question. After an error the question is no longer out. */
static int ask(hugepin_lend *l, struct hp_ask *a, const void *data)
{
	struct hp_peer *p = &l->peer[a->peer];
	struct hp_wire w = { .type = HP_WIRE_ASK, .addr = a->addr, .len = a->len };
	int err;

	a->place = hp_borrowed_reserve(l, a->peer);
	if (!a->place)
		return -ENOMEM;
	w.n = make_room(l, a->peer, w.refs);
	w.number = a->number = ++p->ask_last;
	w.carry = data;
	w.carried = data ? (uint32_t)a->len : 0;
	hp_table_add(&l->asks_by_number, &a->by_number, hp_lend_hash(a->number, a->peer));
	if (!a->put)
		hp_table_add(&l->asks_by_frame, &a->by_frame, frame_of(a->peer, a->addr));
	TAILQ_INSERT_TAIL(&p->asks, a, order);
	p->asks_out++;
	err = hp_send(l, a->peer, &w);
	if (err) {
		take_out(l, a);
		return err;
	}
	p->stats.asks++;
	p->stats.carried += w.carried;
	return 0;
}

int hp_borrow(hugepin_lend *l, uint32_t peer, uint64_t addr, uint64_t len, const void *data, void *token,
	      struct hugepin_far *ret_)
{
	struct hp_peer *p = &l->peer[peer];
	struct hp_borrowed *f;
	struct hp_ask *a, *first;
	int err;

	if (p->gone)
		return -ENOTCONN;
	f = hp_borrowed_find(l, peer, addr);
	if (f) {
		hp_borrowed_use(l, f, addr, len, ret_);
		return 1;
	}
	if (p->lost)
		return p->lost;
	if (data && len > l->attr.carry_max)
		return -EMSGSIZE;
	first = data ? NULL : find_by_frame(l, peer, addr);
	if (first ? p->waiters >= HP_WAITERS_MAX : p->asks_out >= HP_ASKS_MAX)
		return -EBUSY;
	a = malloc(sizeof *a);
	if (!a)
		return -ENOMEM;
	*a = (struct hp_ask){ .peer = peer, .addr = addr, .len = len, .token = token, .put = data };
	TAILQ_INIT(&a->waiters);
	if (first) {
		TAILQ_INSERT_TAIL(&first->waiters, a, order);
		p->waiters++;
	} else if ((err = ask(l, a, data)) != 0) {
		free(a);
		return err;
	}
	l->asks_count++;
	return 0;
}

/* ------------------------------------------------------------------ answers */

/* Note the answer; ready() is called once the lock is released. */
static void answer(hugepin_lend *l, struct hp_ask *a, int err)
{
	a->err = err;
	TAILQ_INSERT_TAIL(&l->ready, a, order);
}

/* Answer the calls that waited for `from`, as far as f, or an err that answers every question, can. The first of the
 * others asks. */
static void answer_waiters(hugepin_lend *l, struct hp_ask *from, const struct hp_borrowed *f, int err, bool all)
{
	struct hp_ask *a, *first = NULL;
	int failed = 0;

	while ((a = TAILQ_FIRST(&from->waiters))) {
		struct hp_borrowed *key = f ? hp_borrowed_find(l, a->peer, a->addr) : NULL;

		TAILQ_REMOVE(&from->waiters, a, order);
		l->peer[a->peer].waiters--;
		if (key) {
			hp_borrowed_use(l, key, a->addr, a->len, &a->key);
			answer(l, a, 0);
		} else if (all || failed) {
			answer(l, a, all ? err : failed);
		} else if (!first) {
			failed = ask(l, a, NULL);
			if (failed)
				answer(l, a, failed);
			else
				first = a;
		} else {
			TAILQ_INSERT_TAIL(&first->waiters, a, order);
			l->peer[a->peer].waiters++;
		}
	}
}

/* An equal key that we have already, so that the new one is of no use. */
static struct hp_borrowed *same_key(hugepin_lend *l, uint32_t peer, const struct hp_wire *w, uint64_t addr)
{
	struct hp_borrowed *f = hp_borrowed_find(l, peer, addr);

	return f && f->start == w->addr && f->len == w->len && f->rkey == w->rkey ? f : NULL;
}

int hp_borrow_lent(hugepin_lend *l, uint32_t peer, const struct hp_wire *w)
{
	struct hp_peer *p = &l->peer[peer];
	struct hp_ask *a = find_by_number(l, peer, w->number);
	struct hp_borrowed *f;

	if (!a || a->addr < w->addr || a->addr - w->addr >= w->len || w->ref <= p->ref_last ||
	    w->flags != (a->put ? HP_WIRE_CARRIED : 0))
		return -EILSEQ;
	p->ref_last = w->ref;
	p->share = w->share;
	p->bucket = w->len;
	f = same_key(l, peer, w, a->addr);
	if (f) {
		hp_send_return(l, peer, 0, &w->ref, 1, false);
	} else {
		f = a->place;
		a->place = NULL;
		hp_borrowed_begin(l, f, peer, w->addr, w->len, w->rkey, w->ref);
	}
	take_out(l, a);
	hp_borrowed_use(l, f, a->addr, a->len, &a->key);
	answer(l, a, 0);
	answer_waiters(l, a, f, 0, false);
	return 0;
}

int hp_borrow_refused(hugepin_lend *l, uint32_t peer, const struct hp_wire *w)
{
	struct hp_ask *a = find_by_number(l, peer, w->number);
	int err = -(int)w->error;

	if (!a)
		return -EILSEQ;
	l->peer[peer].share = w->share;
	l->peer[peer].stats.denied++;
	take_out(l, a);
	answer(l, a, err);
	answer_waiters(l, a, NULL, err, err == -ENOBUFS || err == -ENOMEM);
	return 0;
}

int hp_borrow_recalled(hugepin_lend *l, uint32_t peer, const struct hp_wire *w)
{
	struct hp_borrowed *list[HP_WIRE_REFS_MAX];
	uint64_t refs[HP_WIRE_REFS_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < w->n; i++)
		if (w->refs[i] > l->peer[peer].ref_last)
			return -EILSEQ;
	for (unsigned i = 0; i < w->n; i++) {
		struct hp_borrowed *f = hp_borrowed_by_ref(l, peer, w->refs[i]);

		/* A key that is missing here was given back while this message was under way. */
		if (f && f->state == HP_BORROWED_LIVE)
			list[n++] = f;
	}
	l->peer[peer].stats.recalled += n;
	if (n && (n = hp_borrowed_retire(l, list, n, HP_BORROWED_WANTED, refs)))
		hp_send_return(l, peer, 0, refs, n, false);
	return 0;
}

int hp_borrow_wanted(hugepin_lend *l, uint32_t peer, const struct hp_wire *w)
{
	struct hp_peer *p = &l->peer[peer];
	uint64_t refs[HP_WIRE_REFS_MAX], left = w->bytes, looks = hp_borrowed_looks(l, peer), bytes;
	bool more;

	if (w->number != (p->want_last == UINT32_MAX ? 1 : p->want_last + 1))
		return -EILSEQ;
	p->want_last = w->number;
	do {
		unsigned n = hp_borrowed_give(l, peer, left, &looks, refs, &bytes);

		p->stats.recalled += n;
		left -= HP_MIN(left, bytes);
		more = left && looks && !TAILQ_EMPTY(&p->borrowed);
		if (n || !more)
			hp_send_return(l, peer, w->number, refs, n, more);
	} while (more);
	return 0;
}

/* ------------------------------------------------------------------ the end */

void hp_borrow_gone(hugepin_lend *l, uint32_t peer, int err)
{
	struct hp_ask *a;

	while ((a = TAILQ_FIRST(&l->peer[peer].asks))) {
		take_out(l, a);
		answer(l, a, err);
		answer_waiters(l, a, NULL, err, true);
	}
}

void hp_borrow_return_all(hugepin_lend *l)
{
	for (uint32_t peer = 0; peer < l->attr.peers; peer++) {
		uint64_t refs[HP_WIRE_REFS_MAX], looks = 2 * l->peer[peer].stats.borrowed, bytes;
		unsigned n;

		do {
			n = hp_borrowed_give(l, peer, UINT64_MAX, &looks, refs, &bytes);
			if (n)
				hp_send_return(l, peer, 0, refs, n, false);
		} while (looks && !TAILQ_EMPTY(&l->peer[peer].borrowed));
	}
}
