/*
 * The receives of a queue: posting them, handing completed ones to the queue's receiver, and flushing them at the end.
 * receive.h has the contracts.
 */
#include "sge/receive.h"

#include <stddef.h>
#include <sys/uio.h>

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
	/* The completion of an RDMA WRITE with immediate data uses up a receive, too, but its slot holds no data. */
	uint32_t at = q->arrived_first + q->arrived_count++;
	q->arrived[at < q->recv_depth ? at : at - q->recv_depth] = (struct hp_sgq_arrival){
		.slot = slot, .len = wc->opcode == IBV_WC_RECV ? wc->byte_len : 0, .data = wc->opcode == IBV_WC_RECV };
	return true;
}

void hp_sgq_hand_out(struct hugepin_sgq *q, const struct hp_sgq_arrival *arrived)
{
	const char *data = q->recv_slots + arrived->slot * q->recv_bytes + q->grh;
	size_t len = arrived->len - q->grh;
	struct hugepin_sg_rx rx;
	struct iovec record;
	uint64_t tag = 0;
	if (!arrived->data || arrived->len < q->grh || len > q->frame_bytes ||
	    (!hp_sgq_raw(q) && hugepin_sg_iter(&rx, data, len) < 0))
		q->recv(q->recv_arg, 0, NULL, 0, 0, 0);
	else if (hp_sgq_raw(q))
		q->recv(q->recv_arg, 0, data, len, 0, 1);
	else
		while (hugepin_sg_next(&rx, &record, &tag))
			q->recv(q->recv_arg, tag, record.iov_base, record.iov_len, rx.part, rx.parts);
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
