/*
 * The lending side: carries out what lender.c decides. Call with the lend's lock. Calls the pin cache, whose locks have
 * a higher rank, and so may block for its backend.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "lend/send.h"
#include "lend/serve.h"
#include "lend/state.h"
#include "reg/lent.h"

/* Keys that are asked back, or ended, and buckets that are dropped or retired, in one go. The caller releases the lock
 * before it goes on. */
enum { AT_ONCE = 64 };

/* ------------------------------------------------------------------ buckets */

static void drop(hugepin_lend *l, struct hp_bucket *b)
{
	hp_lent_drop(l->domain, b->region, b->start, b->end);
	free(b);
}

/* End a bucket that has no loans any more. */
static void end_bucket(hugepin_lend *l, struct hp_bucket *b)
{
	/* If its memory is wanted, the cache has no use for the rest of the registration. */
	hp_lent_unpin(l->domain, &b->pin, b->start, b->end, b->retired);
	if (b->retired) {
		hp_lender_forget(&l->lender, b);
		return;
	}
	hp_lender_idle(&l->lender, b);
	while ((b = hp_lender_over(&l->lender)))
		drop(l, b);
}

static void end_loan(hugepin_lend *l, struct hp_loan *loan, bool taken)
{
	struct hugepin_lend_stats *s = &l->peer[loan->peer].stats;
	const struct hp_holder *h = &l->lender.holder[loan->peer];
	struct hp_bucket *b = hp_lender_end(&l->lender, loan, taken);

	s->lent--;
	s->lent_bytes = h->bytes;
	if (b)
		end_bucket(l, b);
}

static void pin_bucket(hugepin_lend *l, struct hp_question *q, struct hp_bucket *b)
{
	struct hugepin_pin pin = { 0 };
	uint64_t start = 0, end = 0;
	int err;

	if (b->end) /* an idle bucket is lent again, and counts at the registration that the pin finds or makes */
		hp_lent_forget(l->domain, b->region, b->start, b->end);
	err = hp_lent_pin(l->domain, b->base, b->len, l->access, &pin, &start, &end);
	if (!hp_lender_pinned(&l->lender, q, b, err, &pin, start, end) && !err) {
		hp_lent_forget(l->domain, (uint32_t)pin.ref, start, end);
		hugepin_unpin(l->domain, &pin);
	}
}

/* ------------------------------------------------------------------ asking back */

/* Refs of one peer at a time to ask back. */
struct recall {
	uint32_t peer;
	struct hp_wire w;
};

static void send_recall(hugepin_lend *l, struct recall *r)
{
	if (r->w.n)
		hp_send(l, r->peer, &r->w);
	l->peer[r->peer].stats.recalls += r->w.n;
	r->w.n = 0;
}

void hp_serve_recalls(hugepin_lend *l)
{
	struct recall r = { .w.type = HP_WIRE_RECALL };
	struct hp_loan *loan;

	for (unsigned i = 0; i < AT_ONCE && (loan = hp_lender_recall(&l->lender)); i++) {
		if (loan->peer != r.peer || r.w.n == HP_WIRE_REFS_MAX)
			send_recall(l, &r);
		r.peer = loan->peer;
		r.w.refs[r.w.n++] = loan->ref;
	}
	send_recall(l, &r);
	if (!TAILQ_EMPTY(&l->lender.recalls))
		atomic_fetch_or_explicit(&l->attention, HP_ATTEND_RECALLS, memory_order_relaxed);
	else
		atomic_fetch_and_explicit(&l->attention, ~(uint32_t)HP_ATTEND_RECALLS, memory_order_relaxed);
}

/* Ask all keys of a lent bucket back, because its memory is wanted. */
static void recall(hugepin_lend *l, struct hp_bucket *b)
{
	if (!b)
		return;
	hp_lender_retire(&l->lender, b);
	hp_serve_recalls(l);
}

static void send_want(hugepin_lend *l, const struct hp_act *act)
{
	struct hp_wire w = { .type = HP_WIRE_WANT,
			     .number = l->lender.holder[act->peer].want,
			     .bytes = act->bytes };

	hp_send(l, act->peer, &w); /* if the peer is lost, nobody waits for its answer */
}

/* ------------------------------------------------------------------ questions */

/* Write to this process's memory as a peer would, so that missing memory is an error and not a signal. */
static int write_memory(uint64_t addr, const void *data, size_t len)
{
	struct iovec from = { (void *)data, len }, to = { (void *)(uintptr_t)addr, len };
	int saved_errno = errno;
	ssize_t written = process_vm_writev(hp_pid(), &from, 1, &to, 1, 0);

	int err = written == (ssize_t)len ? 0 : written < 0 && errno != EFAULT ? EOPNOTSUPP : EFAULT;

	errno = saved_errno; /* EOPNOTSUPP: a filter of system calls refuses */
	return err;
}

static void refuse(hugepin_lend *l, uint32_t peer, uint32_t number, int err)
{
	struct hp_wire w = { .type = HP_WIRE_NO,
			     .number = number,
			     .error = err > 0 && err <= HP_WIRE_ERRNO_MAX ? (uint32_t)err : EIO,
			     .share = hp_lender_share_now(&l->lender, peer, 1) };

	l->peer[peer].stats.refused++;
	hp_send(l, peer, &w);
}

/* Lend b, which is pinned. Returns 0, or a number of errno, with b as it was. */
static int lend_bucket(hugepin_lend *l, struct hp_question *q, struct hp_bucket *b)
{
	struct hugepin_lend_stats *s = &l->peer[q->peer].stats;
	uint64_t end = b->base + b->len;
	struct hp_wire w = { .type = HP_WIRE_LEND,
			     .number = q->number,
			     .addr = b->base,
			     .len = b->len,
			     .rkey = b->pin.rkey,
			     .flags = q->carried ? HP_WIRE_CARRIED : 0 };
	int err = q->carried ? write_memory(q->addr, q->carry, HP_MIN((uint64_t)q->carried, end - q->addr)) : 0;

	if (err)
		return err;
	w.ref = hp_lender_lend(&l->lender, b, q->peer)->ref;
	w.share = hp_lender_share_now(&l->lender, q->peer, hp_bucket_bytes(b));
	s->carried += q->carried;
	s->waited += q->queue != NULL;
	s->lent++;
	s->lent_bytes = l->lender.holder[q->peer].bytes;
	hp_send(l, q->peer, &w);
	return 0;
}

/* Carry out steps until the question is answered. False: it waits. */
static bool serve(hugepin_lend *l, struct hp_question *q)
{
	for (;;) {
		struct hp_act act = hp_lender_step(&l->lender, q);
		int err;

		switch (act.step) {
		case HP_STEP_LEND:
			/* lent memory may be gone without anybody having said so */
			err = l->settled ? 0 : EAGAIN;
			err = err ? err : lend_bucket(l, q, act.bucket);
			if (!err)
				return true;
			refuse(l, q->peer, q->number, err);
			if (TAILQ_EMPTY(&act.bucket->loans))
				end_bucket(l, act.bucket);
			return true;
		case HP_STEP_PIN:
			pin_bucket(l, q, act.bucket);
			break;
		case HP_STEP_DROP:
			drop(l, act.bucket);
			break;
		case HP_STEP_WANT:
			recall(l, act.bucket);
			send_want(l, &act);
			break;
		case HP_STEP_WAIT:
			return false;
		case HP_STEP_NO:
			recall(l, act.bucket);
			refuse(l, q->peer, q->number, act.err);
			return true;
		}
	}
}

/* Ask the program what may be lent around the address: 0 and its range in q, or a number of errno. */
static int ask_program(hugepin_lend *l, struct hp_question *q)
{
	struct iovec buffer = { 0 };
	int err = 0;

	if (l->attr.offer) {
		err = l->attr.offer(l->arg, q->peer, q->addr, q->len, &buffer);
	} else {
		struct hugepin_extent x;

		err = hugepin_extent((const void *)(uintptr_t)q->addr, &x, sizeof x) < 0 ? -EACCES : 0;
		if (!err)
			buffer = (struct iovec){ x.addr, x.len };
	}
	if (err)
		return err < 0 ? -err : EACCES;
	q->buffer = (uintptr_t)buffer.iov_base;
	q->buffer_end = q->buffer + buffer.iov_len;
	return q->addr >= q->buffer && q->addr < q->buffer_end ? 0 : EACCES;
}

/* Serve the questions of one queue in order. NULL, or a question that now waits in another queue. */
static struct hp_question *serve_queue(hugepin_lend *l, struct hp_questions *queue)
{
	struct hp_question *q;

	while ((q = TAILQ_FIRST(queue))) {
		/* Ask again, because the program may have withdrawn the buffer. Who is lost gets no memory. */
		int err = l->peer[q->peer].lost ? ENOTCONN : ask_program(l, q);

		if (err) {
			refuse(l, q->peer, q->number, err);
		} else if (!serve(l, q)) {
			if (q->next_queue == queue)
				return NULL;
			hp_lender_wait(&l->lender, q);
			return q;
		}
		hp_lender_unwait(&l->lender, q);
		free(q);
	}
	return NULL;
}

/* Serve the questions that wait for the peer's own limits, and all that wait for room. */
static void serve_waiting(hugepin_lend *l, uint32_t peer)
{
	struct hp_lender *ln = &l->lender;
	struct hp_question *moved;

	while (serve_queue(l, &ln->holder[peer].waiting))
		continue;
	while ((moved = serve_queue(l, &ln->waiting))) {
		struct hp_questions *own = moved->queue;

		while (serve_queue(l, own))
			continue;
	}
	hp_lend_note_late(l);
}

void hp_serve_late(hugepin_lend *l)
{
	l->lender.now = hp_clock_ns();
	serve_waiting(l, 0);
}

/* Keep the question until it can be served. False: it cannot wait. */
static bool keep(hugepin_lend *l, const struct hp_question *q)
{
	struct hp_question *kept;
	uint64_t unsent = l->peer[q->peer].unsent_bytes;

	if (!hp_lender_may_wait(&l->lender, q, l->attr.peer_kept_max - HP_MIN(l->attr.peer_kept_max, unsent)) ||
	    !(kept = malloc(sizeof *kept + q->carried)))
		return false;
	*kept = *q;
	if (q->carried) {
		memcpy(kept + 1, q->carry, q->carried);
		kept->carry = kept + 1;
	}
	hp_lender_wait(&l->lender, kept);
	return true;
}

int hp_serve_asked(hugepin_lend *l, uint32_t peer, const struct hp_wire *w)
{
	struct hp_holder *h = &l->lender.holder[peer];
	struct hp_question q = { .peer = peer,
				 .number = w->number,
				 .addr = w->addr,
				 .len = w->len,
				 .carry = w->carry,
				 .carried = w->carried,
				 .asking = HP_LEND_NOBODY };
	int err = 0;

	if (w->number != h->asked_last + 1)
		return -EILSEQ;
	for (unsigned i = 0; i < w->n; i++)
		if (!hp_lender_find(&l->lender, peer, w->refs[i]))
			return -EILSEQ;
	h->asked_last = w->number;
	l->lender.now = hp_clock_ns();
	l->peer[peer].stats.asked++;
	for (unsigned i = 0; i < w->n; i++)
		end_loan(l, hp_lender_find(&l->lender, peer, w->refs[i]), true);
	if (w->carried > l->attr.carry_max)
		err = EMSGSIZE;
	else if (w->carried && !(l->access & HUGEPIN_REMOTE_WRITE))
		err = EACCES;
	else
		err = ask_program(l, &q);
	if (err)
		refuse(l, peer, w->number, err);
	else if (!serve(l, &q) && !keep(l, &q))
		refuse(l, peer, w->number, ENOBUFS);
	serve_waiting(l, peer);
	return 0;
}

int hp_serve_returned(hugepin_lend *l, uint32_t peer, const struct hp_wire *w)
{
	if (w->number && w->number != l->lender.holder[peer].want)
		return -EILSEQ;
	for (unsigned i = 0; i < w->n; i++)
		if (!hp_lender_find(&l->lender, peer, w->refs[i]))
			return -EILSEQ;
	l->lender.now = hp_clock_ns();
	for (unsigned i = 0; i < w->n; i++)
		end_loan(l, hp_lender_find(&l->lender, peer, w->refs[i]), w->number);
	if (w->number && !(w->flags & HP_WIRE_MORE))
		hp_lender_answered(&l->lender, peer);
	serve_waiting(l, peer);
	return 0;
}

bool hp_serve_gone(hugepin_lend *l, uint32_t peer)
{
	struct hp_holder *h = &l->lender.holder[peer];
	struct hp_question *q;

	while ((q = TAILQ_FIRST(&h->questions))) {
		hp_lender_unwait(&l->lender, q);
		free(q);
	}
	for (unsigned i = 0; i < AT_ONCE && !TAILQ_EMPTY(&h->loans); i++)
		end_loan(l, TAILQ_FIRST(&h->loans), false);
	hp_lender_answered(&l->lender, peer);
	h->want_last = h->asked_last = 0;
	h->mute = !TAILQ_EMPTY(&h->loans);
	l->lender.now = hp_clock_ns();
	serve_waiting(l, peer);
	return h->mute;
}

void hp_serve_refuse_all(hugepin_lend *l)
{
	for (uint32_t peer = 0; peer < l->attr.peers; peer++) {
		struct hp_question *q;

		while ((q = TAILQ_FIRST(&l->lender.holder[peer].questions))) {
			refuse(l, peer, q->number, ECANCELED);
			hp_lender_unwait(&l->lender, q);
			free(q);
		}
	}
}

/* ------------------------------------------------------------------ news */

void hp_serve_region(hugepin_lend *l, uint32_t region, bool dropped)
{
	for (struct hp_bucket *b = hp_lender_of_region(&l->lender, region), *next; b; b = next) {
		next = hp_lender_next_of_region(b);
		if (b->state == HP_BUCKET_LENT) {
			if (!dropped)
				hp_lender_retire(&l->lender, b);
			continue;
		}
		if (!dropped)
			hp_lent_drop(l->domain, b->region, b->start, b->end);
		hp_lender_forget(&l->lender, b);
	}
}

void hp_serve_all_regions(hugepin_lend *l)
{
	l->drop_left = l->lender.idle_count;
	l->retire_left = l->lender.buckets_count - l->drop_left;
}

bool hp_serve_regions_left(hugepin_lend *l)
{
	struct hp_bucket *b;

	l->drop_left = hp_serve_drop_idle(l, l->drop_left);
	for (unsigned i = 0; i < AT_ONCE && l->retire_left; i++, l->retire_left--) {
		b = TAILQ_FIRST(&l->lender.lent_list);
		TAILQ_REMOVE(&l->lender.lent_list, b, order);
		TAILQ_INSERT_TAIL(&l->lender.lent_list, b, order);
		hp_lender_retire(&l->lender, b);
	}
	return l->drop_left || l->retire_left;
}

void hp_serve_crowded(hugepin_lend *l, uint64_t bytes)
{
	uint64_t dropped = 0;
	struct hp_bucket *b;
	struct hp_act act;

	while (dropped < bytes && (b = hp_lender_oldest(&l->lender))) {
		dropped += hp_bucket_bytes(b);
		drop(l, b);
	}
	if (dropped >= bytes)
		return;
	l->lender.now = hp_clock_ns();
	act = hp_lender_crowded(&l->lender, bytes - dropped);
	if (act.step == HP_STEP_WANT)
		send_want(l, &act);
}

uint32_t hp_serve_drop_idle(hugepin_lend *l, uint32_t most)
{
	uint32_t left = HP_MIN(most, l->lender.idle_count);

	most = most == UINT32_MAX ? most : AT_ONCE;
	for (; left && most; left--, most--)
		drop(l, hp_lender_oldest(&l->lender));
	return left;
}
