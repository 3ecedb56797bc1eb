/*
 * Messages to peers. A message for which send() has no room is kept, and all later ones to that peer wait behind it. If
 * there is no memory to keep it, the peer is lost, as after an error of send(), because no message may be left out. A
 * peer that never takes its messages is lost, too. Call with the lend's lock.
 *
 * If send() has taken a message but still holds it, the program may have nothing else that has it sent. So send() is
 * called again, without a message, until it holds none.
 */
#include <errno.h>
#include <string.h>

#include "lend/send.h"
#include "lend/state.h"

static void drop_first(hugepin_lend *l, struct hp_peer *p)
{
	struct hp_unsent *m = STAILQ_FIRST(&p->messages);

	STAILQ_REMOVE_HEAD(&p->messages, next);
	l->unsent_bytes -= sizeof *m + m->len;
	p->unsent_bytes -= sizeof *m + m->len;
	free(m);
}

/* Lose the peer: no message reaches it any more, so no question waits for its answer. This may be within the work on
 * such a question, so the next call goes on with it. */
static int lose(hugepin_lend *l, uint32_t peer, int err)
{
	hp_send_forget(l, peer);
	l->peer[peer].lost = err;
	l->lender.holder[peer].mute = true;
	hp_lender_answered(&l->lender, peer);
	hp_lend_note_late(l);
	return err;
}

/* The next hugepin_lend_progress() turns to the peer. */
static void turn_later(hugepin_lend *l, struct hp_peer *p)
{
	if (!p->unsent) {
		p->unsent = true;
		STAILQ_INSERT_TAIL(&l->unsent, p, next_unsent);
	}
	atomic_fetch_or_explicit(&l->attention, HP_ATTEND_UNSENT, memory_order_relaxed);
}

/* Send a message, or, with NULL, what send() holds. 0, -EAGAIN, or the peer is lost. */
static int send_now(hugepin_lend *l, uint32_t peer, const void *msg, size_t len)
{
	struct hp_peer *p = &l->peer[peer];
	int err = l->attr.send(l->arg, peer, msg, len);

	if (err == -EAGAIN)
		return err;
	if (err && err != 1)
		return lose(l, peer, err < 0 ? err : -EIO);
	p->held = err;
	if (p->held)
		turn_later(l, p);
	p->stats.sent += msg != NULL;
	return 0;
}

/* Send the messages that are kept for the peer, as far as there is room. */
static void send_kept(hugepin_lend *l, uint32_t peer)
{
	struct hp_peer *p = &l->peer[peer];
	struct hp_unsent *m;

	while ((m = STAILQ_FIRST(&p->messages)) && send_now(l, peer, m->bytes, m->len) == 0)
		drop_first(l, p);
}

static int keep(hugepin_lend *l, uint32_t peer, size_t len)
{
	struct hp_peer *p = &l->peer[peer];
	uint64_t kept = p->unsent_bytes + l->lender.holder[peer].waiting_carried;
	struct hp_unsent *m;

	/* A peer that exceeds this asks questions and takes no answers. */
	if (kept + sizeof *m + len > l->attr.peer_kept_max || !(m = malloc(sizeof *m + len)))
		return lose(l, peer, -ENOMEM);
	m->len = len;
	memcpy(m->bytes, l->buf, len);
	l->unsent_bytes += sizeof *m + len;
	p->unsent_bytes += sizeof *m + len;
	STAILQ_INSERT_TAIL(&p->messages, m, next);
	turn_later(l, p);
	return 0;
}

int hp_send(hugepin_lend *l, uint32_t peer, const struct hp_wire *w)
{
	struct hp_peer *p = &l->peer[peer];
	int err = p->gone ? -ENOTCONN : p->lost;
	size_t len;

	if (err)
		return err;
	send_kept(l, peer);
	if (p->lost)
		return p->lost;
	len = hp_wire_write(l->buf, w);
	err = STAILQ_EMPTY(&p->messages) ? send_now(l, peer, l->buf, len) : -EAGAIN;
	return err == -EAGAIN ? keep(l, peer, len) : err;
}

int hp_send_return(hugepin_lend *l, uint32_t peer, uint32_t number, const uint64_t *refs, unsigned n, bool more)
{
	struct hp_wire w = {
		.type = HP_WIRE_RETURN, .n = (uint8_t)n, .number = number, .flags = more ? HP_WIRE_MORE : 0
	};

	memcpy(w.refs, refs, n * sizeof *refs);
	return hp_send(l, peer, &w);
}

void hp_send_kept(hugepin_lend *l)
{
	STAILQ_HEAD(, hp_peer) all = STAILQ_HEAD_INITIALIZER(all);
	struct hp_peer *p;

	atomic_fetch_and_explicit(&l->attention, ~(uint32_t)HP_ATTEND_UNSENT, memory_order_relaxed);
	STAILQ_CONCAT(&all, &l->unsent);
	while ((p = STAILQ_FIRST(&all))) {
		STAILQ_REMOVE_HEAD(&all, next_unsent);
		p->unsent = false;
		if (p->held)
			send_now(l, (uint32_t)(p - l->peer), NULL, 0);
		send_kept(l, (uint32_t)(p - l->peer));
		if (p->held || !STAILQ_EMPTY(&p->messages))
			turn_later(l, p);
	}
}

void hp_send_forget(hugepin_lend *l, uint32_t peer)
{
	l->peer[peer].held = false;
	while (!STAILQ_EMPTY(&l->peer[peer].messages))
		drop_first(l, &l->peer[peer]);
}
