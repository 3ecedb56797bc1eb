/*
 * The messages of a lend (hugepin_lend(3)) to one peer and from it, over one queue pair: a queue of sge/queue.c.
 *
 * The lend calls hugepin_lendq_send() with its lock held. A received message goes to hugepin_lend_message(), which
 * takes that lock and may send. So the queue's lock is never held while a message is handed in: it is taken under the
 * lend's, for one post. And no callback of the queue runs in a send.
 *
 * Messages are handed in, and the peer's end is told, by callbacks of the queue, which run one at a time. So what is
 * told of an end comes behind the last message, and no message comes behind it.
 *
 * If the provider refuses a frame, perhaps no completion will come that has it posted. So while the queue holds messages,
 * the lend is told so, and hugepin_lend_progress(), which all programs call, sends nothing once more.
 *
 * A message is copied whole, because the lend may reuse it when hugepin_lendq_send() returns. Each message is a record
 * of one frame, and frames have room for the longest message. Messages are solicited, so that they wake a peer that
 * waits only for solicited completions.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "hugepin_verbs.h"
#include "sge/open.h"
#include "sge/state.h"

enum { DEPTH = 16, RECV_DEPTH = 64, FRAME_MIN = 1024 };

struct hugepin_lendq {
	hugepin_sgq *queue;
	hugepin_lend *lend;
	struct ibv_qp *qp;
	uint32_t peer;
	uint32_t message_max; /* bytes */
	bool over; /* nothing is handed in any more; the queue's callbacks alone look */
	/* What the next call has to return: -EILSEQ, or the lend's error for a message that it could not take. relaxed:
	 * whoever takes it reads nothing else. */
	_Atomic int report;
};

/* ------------------------------------------------------------------ sending */

int hugepin_lendq_send(hugepin_lendq *q, const void *msg, size_t len)
{
	if (!q || (!msg && len))
		return -EINVAL;
	if (len > q->message_max)
		return -EMSGSIZE;
	struct iovec piece = { (void *)(uintptr_t)msg, len };
	int ret = msg ? hugepin_sgq_add(q->queue, &piece, 1, 0, NULL, NULL, HUGEPIN_SG_SOLICITED) : 0;
	if (ret >= 0)
		return hp_sgq_push(q->queue);
	/* Other errors are the provider's, which refused an earlier frame. The frame stays held, and is posted
	 * later. */
	return ret == -ESHUTDOWN || ret == -ESTALE || ret == -EINVAL ? ret : -EAGAIN;
}

/* ------------------------------------------------------------------ receiving */

/* A callback of the queue, for each record. A record that cannot be a message goes to the lend as an empty one, because
 * the lend counts these. If the lend cannot take a message, the connection ends, because none may be left out. So it does
 * if the lend has lost the peer, since otherwise the program would not hear of that. */
static void hear(void *arg, const struct hugepin_sg_record *r)
{
	struct hugepin_lendq *q = arg;
	bool whole = r->data && !r->tag && !r->part && r->parts == 1;
	if (q->over)
		return;
	int err = hugepin_lend_message(q->lend, q->peer, whole ? r->data : "", whole ? r->len : 0);
	if (!err)
		return;
	atomic_store_explicit(&q->report, err, memory_order_relaxed);
	q->over = err != -EILSEQ;
	if (q->over)
		ibv_modify_qp(q->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE);
}

/* A callback of the queue, once: the queue pair has failed, or the queue is being closed. */
static void tell_end(void *arg)
{
	struct hugepin_lendq *q = arg;
	q->over = true;
	hugepin_lend_gone(q->lend, q->peer);
}

/* The result of a call that may have run callbacks. */
static int result_of(struct hugepin_lendq *q, int ret)
{
	int report = atomic_load_explicit(&q->report, memory_order_relaxed);
	if (report)
		report = atomic_exchange_explicit(&q->report, 0, memory_order_relaxed);
	return report ? report : ret;
}

int hugepin_lendq_poll(hugepin_lendq *q, int max)
{
	if (!q || max < 0)
		return -EINVAL;
	int saved_errno = errno, ret = hugepin_sgq_poll(q->queue, max);
	if (ret == -EBUSY || ret == -ESTALE)
		return ret;
	ret = result_of(q, ret);
	hugepin_lend_progress(q->lend);
	errno = saved_errno;
	return ret;
}

static int take(struct hp_taker *taker, const struct ibv_wc *wc)
{
	struct hugepin_lendq *q = ((struct hugepin_sgq *)taker)->recv_arg;
	int ret = hp_sgq_take(taker, wc);
	return ret < 0 ? ret : result_of(q, ret); /* below 0 it was not taken */
}

enum ibv_wc_status hugepin_lendq_wc_status(const hugepin_lendq *q)
{
	return hugepin_sgq_wc_status(q ? q->queue : NULL, NULL);
}

int hugepin_lendq_due(const hugepin_lendq *q, uint64_t *ret_ns)
{
	return q ? hugepin_sgq_due(q->queue, ret_ns) : -EINVAL;
}

int hugepin_lendq_fd(const hugepin_lendq *q)
{
	return q ? hugepin_sgq_fd(q->queue) : -EINVAL;
}

/* ------------------------------------------------------------------ opening and closing */

static int open_queue(struct hugepin_lendq *q, const struct hugepin_lendq_attr *a, const struct hugepin_sg_caps *caps)
{
	uint32_t wrs = caps->max_wr > a->reserved_wr ? caps->max_wr - a->reserved_wr : 0;
	uint64_t frame = HUGEPIN_SG_TABLE(1) + (uint64_t)q->message_max;
	/* only `refused` counts, because without gathering all is copied or inline */
	const struct hugepin_sg_model copying = { .size = sizeof copying, .refused = HUGEPIN_SG_GATHER };
	static const struct hp_sgq_owner owner = { .take = take, .ended = tell_end };
	const struct hugepin_sgq_attr attr = {
		.size = sizeof attr,
		.qp = a->qp,
		.granted = a->granted,
		.domain = a->domain,
		.model = &copying,
		.flags = HUGEPIN_SGQ_MT | a->flags,
		.depth = a->depth ? a->depth : HP_MIN(wrs, (uint32_t)DEPTH),
		.reserved_wr = a->reserved_wr,
		.frame_bytes = (uint32_t)HP_MAX(frame, HP_MIN(caps->max_msg, (uint64_t)FRAME_MIN)),
		.recv_depth = a->recv_depth ? a->recv_depth : HP_MIN(caps->max_recv_wr, (uint32_t)RECV_DEPTH),
		.recv = hear,
		.recv_arg = q,
	};
	return wrs && attr.recv_depth ? hp_sgq_open(&attr, &owner, &q->queue) : -EINVAL;
}

int hugepin_lendq_open(const struct hugepin_lendq_attr *attr, hugepin_lendq **ret_)
{
	struct hugepin_lendq_attr a = { 0 };
	struct hugepin_sg_caps caps;
	if (!attr || !ret_ || attr->size < offsetof(struct hugepin_lendq_attr, carry_max))
		return -EINVAL;
	memcpy(&a, attr, HP_MIN(attr->size, sizeof a));
	if (!a.qp || !a.domain || !a.lend || a.flags & ~(uint32_t)HUGEPIN_SGQ_WAIT)
		return -EINVAL;
	if (a.qp->qp_type != IBV_QPT_RC)
		return -EOPNOTSUPP;
	if (a.carry_max > UINT32_MAX - HUGEPIN_SG_TABLE(1) - HUGEPIN_LEND_MESSAGE_MAX)
		return -EMSGSIZE;

	struct hugepin_lend_stats of_lend = { 0 };
	int err = hugepin_lend_stats(a.lend, a.peer, &of_lend, sizeof of_lend);
	if (err >= 0 && of_lend.carry_max > a.carry_max)
		err = -EMSGSIZE;
	int saved_errno = errno;
	if (err >= 0)
		err = hugepin_sg_caps(a.qp, a.granted, &caps, sizeof caps);
	struct hugepin_lendq *q = err < 0 ? NULL : calloc(1, sizeof *q);
	if (!q) {
		errno = saved_errno;
		return err < 0 ? err : -ENOMEM;
	}
	q->lend = a.lend;
	q->peer = a.peer;
	q->qp = a.qp;
	q->message_max = HUGEPIN_LEND_MESSAGE_MAX + a.carry_max;
	err = open_queue(q, &a, &caps);
	errno = saved_errno;
	if (err) {
		free(q);
		return err;
	}
	*ret_ = q;
	return 0;
}

/* Close the queue by `how`, which tells the lend of the end unless that was told. When hugepin_lend_gone() has
 * returned, no call of the lend is or will be in hugepin_lendq_send(), because the lend sends under its lock. */
static int end(struct hugepin_lendq *q, int (*how)(hugepin_sgq *))
{
	int err = q ? how(q->queue) : -EINVAL;
	if (!err)
		free(q);
	return err;
}

int hugepin_lendq_close(hugepin_lendq *q)
{
	return end(q, hugepin_sgq_close);
}

int hugepin_lendq_abort(hugepin_lendq *q)
{
	return end(q, hugepin_sgq_abort);
}
