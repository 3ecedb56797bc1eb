/*
 * The receives of a queue: posting them, handing completed ones to the queue's receiver, and flushing them at the end.
 * receive.h has the contracts.
 */
#include "sge/receive.h"

#include <stddef.h>
#include <sys/uio.h>

#include "sge/credit.h"
#include "sge/error.h"

bool hp_sgq_received(struct hugepin_sgq *q, const struct ibv_wc *wc)
{
	uint32_t slot = wc->wr_id & HP_SGQ_ID_LOW;
	if (slot >= q->recv_depth || !q->recv_out[slot])
		return false;
	q->recv_out[slot] = false;
	if (wc->status) {
		q->idle[q->idle_count++] = slot;
		hp_sgq_fail(q, wc);
		return true;
	}
	if (wc->opcode == IBV_WC_RECV && !q->grh && !hp_sgq_raw(q) && !q->ended) /* a lend judges what it gets itself */
		hp_credit_arrived(q, q->recv_slots + slot * q->recv_bytes, wc->byte_len);
	uint32_t at = q->arrived_first + q->arrived_count++;
	q->arrived[at < q->recv_depth ? at : at - q->recv_depth] = (struct hp_sgq_arrival){ .slot = slot, .wc = *wc };
	return true;
}

void hp_sg_hand_out(const struct hp_sg_receiver *to, const struct ibv_wc *wc, char *slot)
{
	struct hugepin_sg_record r = { .wc = wc, .grh = to->grh ? (struct ibv_grh *)slot : NULL };
	struct ibv_wc not_last = *wc;
	struct hugepin_sg_rx rx;
	struct iovec record;
	const char *data = slot + to->grh;
	size_t len = wc->byte_len - to->grh;
	int left = -EILSEQ;

	not_last.wc_flags &= ~(unsigned)IBV_WC_WITH_IMM;
	/* The completion of an RDMA WRITE with immediate data uses up a receive, too, but its slot holds no data. */
	if (wc->opcode == IBV_WC_RECV && wc->byte_len >= to->grh && len <= to->frame_bytes)
		left = to->raw ? 1 : hugepin_sg_iter(&rx, data, len);
	if (left < 0 || (!left && wc->wc_flags & IBV_WC_WITH_IMM)) {
		to->recv(to->arg, &r);
	} else if (to->raw) {
		r.data = data;
		r.len = len;
		r.parts = 1;
		to->recv(to->arg, &r);
	} else {
		r.part = rx.part;
		r.parts = rx.parts;
		while (hugepin_sg_next(&rx, &record, &r.tag)) {
			r.data = record.iov_base;
			r.len = record.iov_len;
			r.wc = --left ? &not_last : wc;
			to->recv(to->arg, &r);
		}
	}
}

void hp_sgq_hand_out(struct hugepin_sgq *q, const struct hp_sgq_arrival *arrived)
{
	const struct hp_sg_receiver to = { q->recv, q->recv_arg, q->grh, q->frame_bytes, hp_sgq_raw(q) };

	hp_sg_hand_out(&to, &arrived->wc, q->recv_slots + arrived->slot * q->recv_bytes);
}

/* In the error state nothing is posted, because the receive might be outstanding for ever: some providers do not flush
 * it, and soft-RoCE flushes only receives that were posted before the state changed. */
int hp_sgq_repost(struct hugepin_sgq *q)
{
	if (!q->idle_count || hp_sgq_moved_to_error(q))
		return 0;
	struct ibv_recv_wr *first = NULL, *bad;
	for (uint32_t i = 0; i < q->idle_count; i++) {
		struct ibv_recv_wr *wr = &q->recv_wr[q->idle[i]];
		wr->next = first;
		first = wr;
	}
	bad = first;
	int err = hp_verbs_error(ibv_post_recv(q->qp, first, &bad));
	/* The chain begins with the last slot in `idle`. */
	while (q->idle_count && !(err && &q->recv_wr[q->idle[q->idle_count - 1]] == bad))
		q->recv_out[q->idle[--q->idle_count]] = true;
	return err;
}

/* Set the same state again, because a receive that was posted while the state changed may not have been flushed. */
void hp_sgq_flush_receives(struct hugepin_sgq *q)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	if (q->idle_count < q->recv_depth && hp_sgq_moved_to_error(q))
		ibv_modify_qp(q->qp, &attr, IBV_QP_STATE);
}
