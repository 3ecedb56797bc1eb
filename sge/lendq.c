/*
 * The messages of a lend (hugepin_lend(3)) to one peer and from it, over one queue pair.
 *
 * The lend calls hugepin_lendq_send() with its lock held. A received message goes to hugepin_lend_message(), which
 * takes that lock and may send. So sending must not take a lock that is held while a message is handed in. Two queues
 * of sge/queue.c on the queue pair ensure this: `out` only sends, and runs no callback under its lock; `in` only
 * receives, under `receiving`. Locks are taken in this order: receiving, the lend's lock, the lock of `out`.
 *
 * A message is copied whole, because the lend may reuse it when hugepin_lendq_send() returns. Each message is a record
 * of one frame, and frames have room for the longest message. Messages are solicited, so that they wake a peer that
 * waits only for solicited completions.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "hugepin_verbs.h"
#include "sge/id.h"

enum { BATCH = 16, DEPTH = 16, RECV_DEPTH = 64, FRAME_MIN = 1024 };

struct hugepin_lendq {
	hugepin_sgq *in, *out;
	hugepin_lend *lend;
	struct ibv_qp *qp;
	uint32_t peer;
	uint32_t message_max; /* bytes */
	unsigned generation; /* hp_sgq_generation at opening: tells the process */
	pthread_mutex_t receiving; /* its thread hands completions to `in` */
	bool gone; /* the lend was told so, or is being told. Under `receiving` */
	/* relaxed: when hugepin_lend_gone() has returned, no send is under way */
	_Atomic bool ended; /* the queues are being closed: nothing is sent */
	bool broken; /* the peer sent what no lend sends, since the last look. Under `receiving` */
	int lost; /* the lend's error for a message that it could not take. Under `receiving` */
};

/* ------------------------------------------------------------------ sending */

int hugepin_lendq_send(hugepin_lendq *q, const void *msg, size_t len)
{
	if (!q || !msg)
		return -EINVAL;
	if (len > q->message_max)
		return -EMSGSIZE;
	if (atomic_load_explicit(&q->ended, memory_order_relaxed))
		return -ESHUTDOWN;
	struct iovec piece = { (void *)(uintptr_t)msg, len };
	int ret = hugepin_sgq_add(q->out, &piece, 1, 0, NULL, NULL, HUGEPIN_SG_SOLICITED);
	if (ret >= 0)
		return 0;
	/* Other errors are the provider's, which refused an earlier frame. The frame stays held, and is posted
	 * later. */
	return ret == -ESHUTDOWN || ret == -ESTALE || ret == -EINVAL ? ret : -EAGAIN;
}

/* ------------------------------------------------------------------ receiving */

/* Called by `in` for each record. A record that cannot be a message goes to the lend as an empty one, because the lend
 * counts these. */
static void hear(void *arg, uint64_t tag, const void *data, size_t len, unsigned part, unsigned parts)
{
	struct hugepin_lendq *q = arg;
	bool whole = data && !tag && !part && parts == 1;
	if (q->gone || q->lost)
		return;
	int err = hugepin_lend_message(q->lend, q->peer, whole ? data : "", whole ? len : 0);
	if (err == -EILSEQ)
		q->broken = true;
	else if (err != -ENOTCONN)
		q->lost = err;
}

static int begin_receiving(struct hugepin_lendq *q)
{
	if (q->generation != hp_sgq_generation)
		return -ESTALE;
	return pthread_mutex_lock(&q->receiving) ? -EBUSY : 0; /* EDEADLK: this is a callback */
}

/* End the connection after a message that the lend could not take, because no message may be left out. */
static int end_connection(struct hugepin_lendq *q)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int err = q->lost;
	q->lost = 0;
	ibv_modify_qp(q->qp, &attr, IBV_QP_STATE);
	return err;
}

/* End what begin_receiving() began. Release the lock before hugepin_lend_gone(), in which the lend's callbacks may
 * run. */
static int end_receiving(struct hugepin_lendq *q, int ret)
{
	bool lost = q->lost && !q->gone;
	if (lost)
		ret = end_connection(q);
	bool failed = lost || ret == -ESHUTDOWN || hugepin_lendq_wc_status(q) != IBV_WC_SUCCESS;
	bool tell = failed && !q->gone, broken = q->broken;
	q->gone |= failed;
	q->broken = false;
	pthread_mutex_unlock(&q->receiving);
	if (tell)
		hugepin_lend_gone(q->lend, q->peer);
	return broken ? -EILSEQ : ret;
}

/* Whether the completion is the lendq's. One that a queue cannot take is lost, and ends the connection. */
static bool take(struct hugepin_lendq *q, const struct ibv_wc *wc)
{
	int ret = hugepin_sgq_wc(q->out, wc);
	if (!ret && q->in) /* NULL: closed before `out` */
		ret = hugepin_sgq_wc(q->in, wc);
	if (ret < 0 && !q->lost)
		q->lost = ret;
	return ret;
}

/* Take at most `max` completions from one completion queue. Returns their number, or -errno. */
static int poll_one(struct hugepin_lendq *q, struct ibv_cq *cq, int max)
{
	struct ibv_wc wc[BATCH];
	int taken = 0, n = 1;
	while (taken < max && n > 0) {
		n = ibv_poll_cq(cq, HP_MIN(max - taken, BATCH), wc);
		for (int i = 0; i < n; i++)
			take(q, &wc[i]);
		taken += n > 0 ? n : 0;
	}
	return n < 0 && !taken ? -EIO : taken;
}

int hugepin_lendq_poll(hugepin_lendq *q, int max)
{
	if (!q || max < 0)
		return -EINVAL;
	int saved_errno = errno, ret = begin_receiving(q);
	if (ret)
		return ret;
	ret = poll_one(q, q->qp->send_cq, max);
	if (ret >= 0 && ret < max && q->qp->recv_cq != q->qp->send_cq) {
		int more = poll_one(q, q->qp->recv_cq, max - ret);
		ret = more > 0 || !ret ? ret + more : ret;
	}
	/* Nothing came, so see whether the program has moved the queue pair to the error state, and post what the
	 * provider has refused. */
	if (!ret) {
		int in = q->in ? hugepin_sgq_poll(q->in, 0) : 0;
		ret = hugepin_sgq_poll(q->out, 0);
		ret = ret ? ret : in;
	}
	ret = end_receiving(q, ret);
	hugepin_lend_progress(q->lend);
	errno = saved_errno;
	return ret;
}

int hugepin_lendq_wc(hugepin_lendq *q, const struct ibv_wc *wc)
{
	if (!q || !wc)
		return -EINVAL;
	int saved_errno = errno, ret = begin_receiving(q);
	if (ret)
		return ret;
	ret = end_receiving(q, take(q, wc));
	errno = saved_errno;
	return ret;
}

enum ibv_wc_status hugepin_lendq_wc_status(const hugepin_lendq *q)
{
	enum ibv_wc_status sent = q ? hugepin_sgq_wc_status(q->out, NULL) : IBV_WC_SUCCESS;
	if (!q || (sent != IBV_WC_SUCCESS && sent != IBV_WC_WR_FLUSH_ERR))
		return sent;
	enum ibv_wc_status received = hugepin_sgq_wc_status(q->in, NULL);
	return received == IBV_WC_SUCCESS ? sent : received;
}

/* ------------------------------------------------------------------ opening and closing */

/* Open the two queues. `in` comes last, because a queue that has posted receives cannot be closed at once. */
static int open_queues(struct hugepin_lendq *q, const struct hugepin_lendq_attr *a, const struct hugepin_sg_caps *caps)
{
	uint32_t wrs = caps->max_wr > a->reserved_wr ? caps->max_wr - a->reserved_wr : 0;
	uint64_t frame = HUGEPIN_SG_TABLE(1) + (uint64_t)q->message_max;
	/* only `refused` counts, because without gathering all is copied or inline */
	const struct hugepin_sg_model copying = { .size = sizeof copying, .refused = HUGEPIN_SG_GATHER };
	struct hugepin_sgq_attr attr = {
		.size = sizeof attr,
		.qp = a->qp,
		.granted = a->granted,
		.domain = a->domain,
		.model = &copying,
		.flags = HUGEPIN_SGQ_MT,
		.depth = a->depth ? a->depth : HP_MIN(wrs, (uint32_t)DEPTH),
		.reserved_wr = a->reserved_wr,
		.frame_bytes = (uint32_t)HP_MAX(frame, HP_MIN(caps->max_msg, (uint64_t)FRAME_MIN)),
	};
	int err = wrs ? hugepin_sgq_open(&attr, &q->out) : -EINVAL;
	if (err)
		return err;
	attr.flags = 0;
	attr.depth = 1; /* nothing is added to it */
	attr.recv_depth = a->recv_depth ? a->recv_depth : HP_MIN(caps->max_recv_wr, (uint32_t)RECV_DEPTH);
	attr.recv = hear;
	attr.recv_arg = q;
	err = attr.recv_depth ? hugepin_sgq_open(&attr, &q->in) : -EINVAL;
	if (err)
		hugepin_sgq_close(q->out);
	return err;
}

int hugepin_lendq_open(const struct hugepin_lendq_attr *attr, hugepin_lendq **ret_)
{
	struct hugepin_lendq_attr a = { 0 };
	struct hugepin_sg_caps caps;
	if (!attr || !ret_ || attr->size < offsetof(struct hugepin_lendq_attr, carry_max))
		return -EINVAL;
	memcpy(&a, attr, HP_MIN(attr->size, sizeof a));
	if (!a.qp || !a.domain || !a.lend)
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
	pthread_mutexattr_t checked;
	pthread_mutexattr_init(&checked);
	pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(&q->receiving, &checked);
	pthread_mutexattr_destroy(&checked);
	err = open_queues(q, &a, &caps);
	q->generation = hp_sgq_generation;
	errno = saved_errno;
	if (err) {
		pthread_mutex_destroy(&q->receiving);
		free(q);
		return err;
	}
	*ret_ = q;
	return 0;
}

/* Close one queue by `how`, and forget it. */
static int end_queue(hugepin_sgq **queue, int (*how)(hugepin_sgq *))
{
	int err = *queue ? how(*queue) : 0;
	if (!err)
		*queue = NULL;
	return err;
}

/* Close the queues in the reverse order of open_queues(): while the queue pair works, receives are out, and nothing is
 * closed. After hugepin_lend_gone() has returned, no call of the lend is or will be in hugepin_lendq_send(), because
 * the lend sends under its lock. In a child of fork the lend answers -ESTALE, and the queues free their copies. */
static int end(struct hugepin_lendq *q, int (*how)(hugepin_sgq *))
{
	if (!q)
		return -EINVAL;
	int saved_errno = errno, err = end_queue(&q->in, how);
	if (err)
		return err;
	atomic_store_explicit(&q->ended, true, memory_order_relaxed);
	if (!q->gone)
		hugepin_lend_gone(q->lend, q->peer);
	q->gone = true;
	err = end_queue(&q->out, how);
	if (!err) {
		pthread_mutex_destroy(&q->receiving);
		free(q);
	}
	errno = saved_errno;
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
