/*
 * Lending keys to peers: the public functions. hugepin_lend(7) has the protocol, state.h the state and its locks.
 *
 * Source: Bonachea and Bell 2003, "A New DMA Registration Strategy for Pinning-Based High Performance Networks"
 * (Firehose).
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/stats.h"
#include "base/sys.h"
#include "lend/borrow.h"
#include "lend/borrowed.h"
#include "lend/key.h"
#include "lend/news.h"
#include "lend/send.h"
#include "lend/serve.h"
#include "lend/state.h"
#include "reg/counts.h"
#include "reg/lent.h"
#include "reg/pin.h"

/* Whether the lend is this process's. */
static inline bool is_ours(const hugepin_lend *l)
{
	return l->pid == hp_pid();
}

static bool is_peer(const hugepin_lend *l, uint32_t peer)
{
	return peer < l->attr.peers;
}

static void enter(hugepin_lend *l)
{
	enum { LOOKS = 16 };
	bool settled = hp_lent_settle(l->domain);

	hp_lock(&l->lock);
	if (hp_lend_attends(l, HP_ATTEND_NEWS))
		hp_news_take(l);
	while (HP_UNLIKELY(l->drop_left || l->retire_left) && hp_serve_regions_left(l)) {
		hp_unlock(&l->lock);
		hp_lock(&l->lock);
	}
	l->settled = settled;
	if (!TAILQ_EMPTY(&l->lender.recalls) || hp_lend_attends(l, HP_ATTEND_RECALLS))
		hp_serve_recalls(l);
	/* A use that was undone, or counted at the index before it was the key's, may have hidden the last one. */
	if (hp_lend_attends(l, HP_ATTEND_USES))
		hp_borrowed_settle(l, LOOKS);
}

/* Whether a question that waits goes on without an answer. */
static bool is_late(const hugepin_lend *l)
{
	return hp_lend_attends(l, HP_ATTEND_LATE) &&
	       hp_clock_ns() >= atomic_load_explicit(&l->late_at, memory_order_relaxed);
}

/* Have the program call hugepin_lend_progress() if there is work that no message brings, or when there will be. Call
 * without the lend's lock. */
static void wake(hugepin_lend *l)
{
	if (hp_lend_attends(l, HP_ATTEND_RECALLS))
		hp_news_wake(l);
	if (hp_lend_attends(l, HP_ATTEND_LATE))
		hp_news_late(l);
}

/* Unlock, and call ready() for the questions that were answered meanwhile. */
static void leave(hugepin_lend *l)
{
	struct hp_asks ready = TAILQ_HEAD_INITIALIZER(ready);
	struct hp_ask *a;

	TAILQ_CONCAT(&ready, &l->ready, order);
	TAILQ_FOREACH(a, &ready, order)
		l->asks_count--;
	hp_unlock(&l->lock);
	wake(l);
	while ((a = TAILQ_FIRST(&ready))) {
		TAILQ_REMOVE(&ready, a, order);
		l->attr.ready(l->arg, a->token, a->err, a->err ? NULL : &a->key);
		free(a);
	}
}

/* ------------------------------------------------------------------ hits */

/* The slot that a bucket of the lookup table has for this hash; 0: none. Most often it is in the first word, and only
 * there `first` looks. */
static inline __attribute__((always_inline)) uint32_t slot_at(const hugepin_lend *l, uint64_t hash, bool first)
{
	uint32_t mask = atomic_load_explicit(&l->lookup_mask, memory_order_relaxed);

	return hp_lookup_index(hp_lookup_word(hp_lookup_words(l->lookup, mask, hash), hp_lookup_check(hash), first));
}

/* Take a use of the borrowed key in that slot. 1: a hit. 0: it does not cover addr, or len is 0. -1: a use was counted
 * at *ret_index but is not valid, and has to be undone. whole: a key that ends earlier is no hit, because `first` looks
 * no closer. */
static inline __attribute__((always_inline)) int hit(hugepin_lend *l, uint32_t slot, uint32_t peer, uint64_t addr,
						     size_t len, struct hugepin_far *ret_, uint32_t *ret_index,
						     bool whole)
{
	struct hp_borrowed *f = &l->borrowed[slot];
	/* HP_READ pairs with HP_WRITE in hp_borrowed_begin() and publish() */
	uint64_t tag = HP_READ(f->tag), off, left, keys, name;
	struct hp_counts *counts;

	if (HP_UNLIKELY(!tag || HP_READ(f->peer) != peer))
		return 0;
	off = addr - HP_READ(f->start);
	left = HP_READ(f->len);
	if (HP_UNLIKELY(off >= left))
		return 0;
	left -= off;
	if (HP_UNLIKELY(!len || (len > left && whole)))
		return 0;
	if (len > left)
		len = left;
	counts = hp_counts_self;
	if (HP_UNLIKELY(!counts))
		return 0;
	hp_count(&counts[HP_TAG_INDEX(tag)].pins);
	hp_barrier_often(); /* pairs with hp_counts_barrier() in hp_borrowed_retire() */
	__asm__("" : "+r"(tag)); /* take the index anew below: keeping it would need a saved register */
	name = HP_READ(f->name);
	keys = HP_READ(f->keys);
	if (HP_UNLIKELY(HP_READ(f->tag) != tag)) {
		*ret_index = HP_TAG_INDEX(tag);
		return -1;
	}
	if (HP_UNLIKELY(!HP_PEEK(f->used)))
		HP_WRITE(f->used, 1);
	hp_key_fill(ret_, addr, len, keys, name);
	return 1;
}

static HP_COLD int borrow(hugepin_lend *l, uint32_t peer, uint64_t addr, size_t len, const void *data, void *token,
			  struct hugepin_far *ret_)
{
	int err;

	if (!is_peer(l, peer) || !len || addr + len <= addr)
		return -EINVAL;
	if (!is_ours(l))
		return -ESTALE;
	if (!hp_counts_self && !hp_counts_adopt())
		return -ENOMEM;
	enter(l);
	err = l->closing ? -ECANCELED : hp_borrow(l, peer, addr, len, data, token, ret_);
	leave(l);
	return err;
}

/* A use was counted at an index but is not valid. By now the index may be a region's, or another key's. use: the index
 * in the upper half, and the peer, as one argument in one register. These are functions of their own, so that the most
 * frequent hit saves no registers: it ends in calls with as many arguments as its own. */
static HP_COLD int key_undone(hugepin_lend *l, uint64_t use, uint64_t addr, size_t len, void *token,
			      struct hugepin_far *ret_)
{
	hp_count_back(hp_counts_self, (uint32_t)(use >> 32));
	return borrow(l, (uint32_t)use, addr, len, NULL, token, ret_);
}

/* The empty asm keeps the compiler from making a second copy of the peer, for which each hit would need a register. */
static inline uint64_t undone(uint32_t peer, uint32_t index)
{
	__asm__("" : "+r"(peer));
	return (uint64_t)index << 32 | peer;
}

static HP_COLD int key_unknown(hugepin_lend *l, uint32_t peer, uint64_t addr, size_t len, void *token,
			       struct hugepin_far *ret_)
{
	return borrow(l, peer, addr, len, NULL, token, ret_);
}

#define KEY_FUNCTION(name_, hash, first, next) \
	static __attribute__((noinline)) int name_(hugepin_lend *l, uint32_t peer, uint64_t addr, size_t len, \
						   void *token, struct hugepin_far *ret_) \
	{ \
		uint32_t index; \
		int found = hit(l, slot_at(l, hash(peer, addr), first), peer, addr, len, ret_, &index, first); \
		if (HP_LIKELY(found > 0)) \
			return 1; \
		if (HP_LIKELY(!found)) \
			return next(l, peer, addr, len, token, ret_); \
		return key_undone(l, undone(peer, index), addr, len, token, ret_); \
	}
KEY_FUNCTION(key_of_any_page, hp_key_page, false, key_unknown)
KEY_FUNCTION(key_of_any_hugepage, hp_key_hugepage, false, key_of_any_page)
KEY_FUNCTION(key_of_page, hp_key_page, true, key_of_any_hugepage)

int hugepin_lend_key(hugepin_lend *l, uint32_t peer, uint64_t addr, size_t len, void *token, struct hugepin_far *ret_)
{
	uint32_t index;
	int found = hit(l, slot_at(l, hp_key_hugepage(peer, addr), true), peer, addr, len, ret_, &index, true);

	if (HP_LIKELY(found > 0))
		return 1;
	if (HP_LIKELY(!found))
		return key_of_page(l, peer, addr, len, token, ret_);
	return key_undone(l, undone(peer, index), addr, len, token, ret_);
}

int hugepin_lend_put(hugepin_lend *l, uint32_t peer, uint64_t addr, const void *data, size_t len, void *token,
		     struct hugepin_far *ret_)
{
	uint32_t index;
	int found = hit(l, slot_at(l, hp_key_hugepage(peer, addr), false), peer, addr, len, ret_, &index, false);

	if (!found)
		found = hit(l, slot_at(l, hp_key_page(peer, addr), false), peer, addr, len, ret_, &index, false);
	if (HP_LIKELY(found > 0))
		return 1;
	if (found)
		hp_count_back(hp_counts_self, index);
	return data ? borrow(l, peer, addr, len, data, token, ret_) : -EINVAL;
}

static HP_COLD void unused(hugepin_lend *l, uint32_t slot)
{
	hp_borrowed_unused(l, slot);
	wake(l); /* its RETURN may have failed */
}

/* A key that is not of this lend, or a thread without counters. */
static HP_COLD int done_slow(hugepin_lend *l, struct hugepin_far *key)
{
	uint64_t ref;

	if (!key->ref)
		return -EINVAL;
	if (!is_ours(l))
		return -ESTALE;
	ref = key->ref;
	if ((ref ^ l->borrowed[0].name) >> HP_KEY_HEAD_SHIFT)
		return -EINVAL;
	if (hp_counts_adopt())
		return hugepin_lend_done(l, key);
	hp_counts_unpin_shared((uint32_t)ref & HP_KEY_MASK);
	*key = (struct hugepin_far){ 0 };
	/* seq_cst: the bit is read after the count; pairs with attend() in borrowed.c */
	if (atomic_load_explicit(&l->attention, memory_order_seq_cst) & HP_ATTEND_USES)
		unused(l, hp_key_slot(ref));
	return 0;
}

int hugepin_lend_done(hugepin_lend *l, struct hugepin_far *key)
{
	struct hp_counts *counts = hp_counts_self;
	uint64_t ref = key->ref;

	if (HP_UNLIKELY((ref ^ l->borrowed[0].name) >> HP_KEY_HEAD_SHIFT || !counts))
		return done_slow(l, key);
	hp_count(&counts[(uint32_t)ref & HP_KEY_MASK].unpins);
	*key = (struct hugepin_far){ 0 };
	hp_barrier_often(); /* pairs with hp_counts_barrier() in hp_borrowed_retire() */
	if (HP_UNLIKELY(hp_lend_attends(l, HP_ATTEND_USES)))
		unused(l, hp_key_slot(ref));
	return 0;
}

int hugepin_lend_return(hugepin_lend *l, struct hugepin_far *key)
{
	if (!l || !key || !key->ref)
		return -EINVAL;
	if (!is_ours(l))
		return -ESTALE;
	if ((key->ref ^ l->borrowed[0].name) >> HP_KEY_HEAD_SHIFT)
		return -EINVAL;
	enter(l);
	hp_borrowed_return(l, key->ref);
	leave(l);
	return hugepin_lend_done(l, key);
}

/* ------------------------------------------------------------------ messages */

static int dispatch(hugepin_lend *l, uint32_t peer, const struct hp_wire *w)
{
	switch (w->type) {
	case HP_WIRE_ASK:
		return hp_serve_asked(l, peer, w);
	case HP_WIRE_LEND:
		return hp_borrow_lent(l, peer, w);
	case HP_WIRE_NO:
		return hp_borrow_refused(l, peer, w);
	case HP_WIRE_RECALL:
		return hp_borrow_recalled(l, peer, w);
	case HP_WIRE_WANT:
		return hp_borrow_wanted(l, peer, w);
	default:
		return hp_serve_returned(l, peer, w);
	}
}

int hugepin_lend_message(hugepin_lend *l, uint32_t peer, const void *msg, size_t len)
{
	struct hp_wire w;
	int err;

	if (!l || !msg || !is_peer(l, peer))
		return -EINVAL;
	if (!is_ours(l))
		return -ESTALE;
	if (!hp_counts_self && !hp_counts_adopt())
		return -ENOMEM;
	enter(l);
	if (l->peer[peer].gone || l->peer[peer].lost || l->closing) {
		leave(l);
		return -ENOTCONN;
	}
	err = hp_wire_read(&w, msg, len);
	err = err ? err : dispatch(l, peer, &w);
	if (err)
		l->peer[peer].stats.broken++;
	else
		l->peer[peer].stats.received++;
	leave(l);
	return err;
}

int hugepin_lend_progress(hugepin_lend *l)
{
	if (!l)
		return -EINVAL;
	if (!is_ours(l))
		return -ESTALE;
	hp_lent_listen(l->domain);
	if (HP_LIKELY(!hp_lend_attends(l, ~(uint32_t)HP_ATTEND_LATE) && !is_late(l)))
		return 0;
	do {
		enter(l);
		if (hp_lend_attends(l, HP_ATTEND_UNSENT))
			hp_send_kept(l);
		if (is_late(l))
			hp_serve_late(l);
		leave(l);
	} while (hp_lend_attends(l, HP_ATTEND_RECALLS));
	return 0;
}

/* ------------------------------------------------------------------ peers */

/* Take back what the peer had, and end the keys of its memory: some of them each time that the lock is held. Then drop
 * the buckets that are idle, since the peer may know their keys. */
static void take_back(hugepin_lend *l, uint32_t peer)
{
	struct hp_peer *p = &l->peer[peer];
	uint32_t idle = UINT32_MAX - 1;
	bool more;

	do {
		enter(l);
		more = p->leaving && hp_borrowed_lose(l, peer);
		more |= p->leaving && hp_serve_gone(l, peer);
		if (p->leaving && !more) {
			idle = hp_serve_drop_idle(l, idle);
			p->leaving = idle;
		}
		more = p->leaving;
		leave(l);
	} while (more);
}

int hugepin_lend_gone(hugepin_lend *l, uint32_t peer)
{
	struct hp_peer *p;

	if (!l || !is_peer(l, peer))
		return -EINVAL;
	if (!is_ours(l))
		return -ESTALE;
	enter(l);
	p = &l->peer[peer];
	if (p->gone) {
		leave(l);
		return -EALREADY;
	}
	p->gone = p->leaving = true;
	hp_send_forget(l, peer);
	hp_borrow_gone(l, peer, -ECONNRESET);
	p->lost = 0;
	p->ask_last = p->want_last = 0;
	p->ref_last = p->bucket = 0;
	p->share = UINT64_MAX;
	leave(l);
	take_back(l, peer);
	return 0;
}

int hugepin_lend_again(hugepin_lend *l, uint32_t peer)
{
	int err = -EALREADY;

	if (!l || !is_peer(l, peer))
		return -EINVAL;
	if (!is_ours(l))
		return -ESTALE;
	take_back(l, peer); /* another thread may be in hugepin_lend_gone() */
	enter(l);
	if (l->peer[peer].gone) {
		l->peer[peer].gone = false;
		err = 0;
	}
	leave(l);
	return err;
}

/* ------------------------------------------------------------------ opening and closing */

enum {
	KEPT_MAX = 1 << 20, /* bytes, beside what the questions that may be out take */
	PEER_KEYS_MAX = 16384,
	ANSWER_MS = 1000,
};

/* What one peer may cost the others: hugepin_lend(7), SECURITY. */
static void default_limits(struct hugepin_lend_attr *a)
{
	uint64_t bucket = hp_lend_class_bytes[HP_LEND_CLASSES - 1], rest = HP_MAX(a->lent_bytes_max / 32, bucket);

	/* An only peer has nobody to leave anything to. */
	if (!a->peer_bytes_max && a->peers > 2 && a->lent_bytes_max >= 2 * bucket)
		a->peer_bytes_max = a->lent_bytes_max - rest;
	else if (!a->peer_bytes_max)
		a->peer_bytes_max = a->lent_bytes_max;
	if (!a->peer_kept_max)
		a->peer_kept_max = KEPT_MAX + HP_ASKS_MAX * ((uint64_t)HUGEPIN_LEND_MESSAGE_MAX + a->carry_max);
	if (!a->peer_keys_max)
		a->peer_keys_max = PEER_KEYS_MAX;
	if (!a->answer_ms)
		a->answer_ms = ANSWER_MS;
}

static int check_attr(hugepin_domain *d, struct hugepin_lend_attr *a)
{
	uint64_t budget = hp_lent_budget(d), sum;

	if (!a->send || !a->ready || (!a->offer && hp_lent_exact(d)) || !a->peers || a->policy > HUGEPIN_LEND_STATIC ||
	    a->access & ~HP_ACCESS_REMOTE || a->carry_max > HP_WIRE_CARRY_MAX)
		return -EINVAL;
	if (budget >= UINT64_MAX - 1)
		budget = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	if (!a->access)
		a->access = HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE;
	if (!a->lent_bytes_max)
		a->lent_bytes_max = budget / 2;
	if (!a->idle_bytes_max)
		a->idle_bytes_max = budget / 8;
	default_limits(a);
	if (a->peer_bytes_max > a->lent_bytes_max || a->peer_keys_max > HP_REGIONS_MAX)
		return -EINVAL;
	if (__builtin_add_overflow(a->lent_bytes_max, a->idle_bytes_max, &sum))
		return -EINVAL;
	return hp_lent_access(d, a->access) ? 0 : -EOPNOTSUPP;
}

/* Tell hugepin top where lends are (base/stats.h). */
static void expose_lends(void)
{
	__typeof__(&hp_exposed.view.lend) v = &hp_exposed.view.lend;

	v->hooks = offsetof(struct hugepin_domain, lend_hooks);
	v->lend = offsetof(struct hugepin_domain, lend);
	v->peers = offsetof(hugepin_lend, attr.peers);
	v->table = offsetof(hugepin_lend, peer);
	v->lent = offsetof(hugepin_lend, lender.lent);
	v->idle = offsetof(hugepin_lend, lender.idle);
	v->stats = offsetof(struct hp_peer, stats);
	v->stats_size = sizeof(struct hugepin_lend_stats);
	v->stride = sizeof(struct hp_peer);
}

/* Free the lend. In a child, leave linked lists alone, because they may have been changing at the fork. */
static void free_lend(hugepin_lend *l, bool child)
{
	hp_borrowed_close(l, child);
	if (!child) {
		hp_lender_free(&l->lender);
		hp_table_free(&l->asks_by_number);
		hp_table_free(&l->asks_by_frame);
	}
	free(l->peer);
	free(l->buf);
	free(l);
}

static int set_up(hugepin_lend *l)
{
	l->peer = calloc(l->attr.peers, sizeof *l->peer);
	l->buf = malloc(HUGEPIN_LEND_MESSAGE_MAX + (size_t)l->attr.carry_max);
	if (!l->peer || !l->buf || !hp_table_init(&l->asks_by_number) || !hp_table_init(&l->asks_by_frame) ||
	    !hp_lender_init(&l->lender, &l->attr))
		return -ENOMEM;
	for (uint32_t i = 0; i < l->attr.peers; i++) {
		struct hp_peer *p = &l->peer[i];

		TAILQ_INIT(&p->borrowed);
		LIST_INIT(&p->wanted);
		TAILQ_INIT(&p->asks);
		STAILQ_INIT(&p->messages);
		p->share = UINT64_MAX;
	}
	return hp_borrowed_open(l);
}

int hugepin_lend_open(hugepin_domain *d, const struct hugepin_lend_attr *attr, void *arg, hugepin_lend **ret_)
{
	struct hugepin_lend_attr a = { 0 };
	hugepin_lend *l;
	int err;

	if (!d || !attr || !ret_ || attr->size < offsetof(struct hugepin_lend_attr, peer_bytes_max) || !d->pid)
		return -EINVAL;
	if (d->pid != hp_pid())
		return -ESTALE;
	memcpy(&a, attr, HP_MIN(attr->size, sizeof a));
	err = check_attr(d, &a);
	if (err)
		return err;
	l = aligned_alloc(_Alignof(hugepin_lend), sizeof *l);
	if (!l)
		return -ENOMEM;
	memset(l, 0, sizeof *l);
	l->pid = hp_pid();
	l->domain = d;
	l->attr = a;
	l->arg = arg;
	l->access = a.access;
	l->lock = (struct hp_lock)HP_LOCK_INIT(HP_LOCK_RANK_LEND);
	TAILQ_INIT(&l->ready);
	TAILQ_INIT(&l->lenders);
	STAILQ_INIT(&l->unsent);
	err = set_up(l);
	expose_lends();
	err = err ? err : hp_news_begin(l);
	if (err) {
		free_lend(l, false);
		return err;
	}
	*ret_ = l;
	return 0;
}

/* Whether peers have keys of ours, or uses are out. */
static bool is_busy(hugepin_lend *l)
{
	for (uint32_t i = 0; i < l->attr.peers; i++)
		if (l->lender.holder[i].loans_count)
			return true;
	return hp_borrowed_uses(l);
}

int hugepin_lend_close(hugepin_lend *l)
{
	if (!l)
		return -EINVAL;
	if (!is_ours(l)) {
		free_lend(l, true);
		return 0;
	}
	enter(l);
	if (is_busy(l)) {
		leave(l);
		return -EBUSY;
	}
	l->closing = true; /* ready() may ask again */
	for (uint32_t i = 0; i < l->attr.peers; i++)
		hp_borrow_gone(l, i, -ECANCELED);
	hp_serve_refuse_all(l);
	hp_borrow_return_all(l);
	hp_serve_drop_idle(l, UINT32_MAX);
	hp_send_kept(l);
	for (uint32_t i = 0; i < l->attr.peers; i++) {
		hp_send_forget(l, i);
		while (hp_borrowed_lose(l, i))
			continue;
	}
	leave(l);
	hp_news_end(l);
	free_lend(l, false);
	return 0;
}

/* ------------------------------------------------------------------ statistics */

int hugepin_lend_stats(hugepin_lend *l, uint32_t peer, struct hugepin_lend_stats *ret_, size_t size)
{
	struct hugepin_lend_stats s = { 0 };

	if (!l || !ret_ || (peer != HUGEPIN_LEND_ALL && !is_peer(l, peer)))
		return -EINVAL;
	if (!is_ours(l))
		return -ESTALE;
	hp_lock(&l->lock);
	for (uint32_t i = 0; i < l->attr.peers; i++) {
		if (peer != HUGEPIN_LEND_ALL && peer != i)
			continue;
#define ADD(name, unit, sentence) s.name += l->peer[i].stats.name;
		HUGEPIN_LEND_STATS_LIST(ADD)
#undef ADD
		s.owes += l->lender.holder[i].want != 0;
		s.late += l->lender.holder[i].lates;
	}
	if (peer == HUGEPIN_LEND_ALL) {
		s.lent_bytes = l->lender.lent;
		s.idle_bytes = l->lender.idle;
		s.idle_bytes_max = l->lender.idle_max;
		s.bytes_peak = l->lender.peak;
		s.bucket_bytes = hp_lend_class_bytes[l->lender.class];
		s.table_bytes = sizeof *l + HUGEPIN_LEND_MESSAGE_MAX + l->attr.carry_max +
				l->attr.peers * sizeof *l->peer + l->unsent_bytes +
				l->asks_count * sizeof(struct hp_ask) + hp_table_bytes(&l->asks_by_number) +
				hp_table_bytes(&l->asks_by_frame) + hp_borrowed_bytes(l) +
				hp_lender_table_bytes(&l->lender);
	}
	s.carry_max = l->attr.carry_max;
	s.version = HUGEPIN_VERSION;
	hp_unlock(&l->lock);
	memcpy(ret_, &s, HP_MIN(size, sizeof s));
	return (int)sizeof s;
}
