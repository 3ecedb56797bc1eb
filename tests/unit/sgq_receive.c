/*
 * Receiving queues (sge/receive.c): messages that are no frames, receives without bytes of their own, completions
 * handed in twice, and the close of a queue whose receives are out.
 */
#include "tests/unit/sgq.h"

static unsigned strange;

static void hear_strange(void *arg, const struct hugepin_sg_record *r)
{
	(void)arg;
	EXPECT(!r->tag && !r->data && !r->len && !r->part && !r->parts);
	strange++;
}

static void hear_or_strange(void *arg, const struct hugepin_sg_record *r)
{
	if (r->parts)
		hear(arg, r);
	else
		hear_strange(arg, r);
}

TEST(a_message_that_is_no_frame_is_told_as_one_and_its_receive_posted_again)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2, .flags = HUGEPIN_SGQ_RAW, .frame_bytes = 1000 },
	      NULL);
	struct ibv_qp_cap cap = { 1, 4, 1, 1, 0 };
	struct ibv_cq *cq = mock_cq(8);
	struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &cap, NULL);
	hugepin_sgq *q;
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = w.domain, .model = &model,
				      .frame_bytes = 1000,
				      .recv_depth = 4, .recv = hear_strange };
	EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
	mock_connect(w.qp[0], qp);
	strange = 0;
	for (int i = 0; i < 100; i++) {
		EXPECT(add_one(1 + dice(999), 0) >= 0);
		EXPECT_EQ(hugepin_sgq_poll(q, 5), 1);
		while (hugepin_sgq_poll(w.out, 5) > 0)
			;
	}
	EXPECT_EQ(strange, 100);
	EXPECT_EQ(hugepin_sgq_close(q), -EBUSY); /* its receives are out */
	mock_error(qp, IBV_WC_SUCCESS);
	EXPECT_EQ(hugepin_sgq_poll(q, 5), 4);
	EXPECT_EQ(hugepin_sgq_poll(q, 5), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_close(q), 0);
	mock_qp_free(qp);
	mock_cq_free(cq);
	lossy = true;
	for (unsigned i = 0; i < added; i++)
		sub[i].got = sub[i].len;
	end();
}

TEST(a_receive_that_brought_no_bytes_of_its_own_is_told_as_no_frame)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2, .frame_bytes = 256, .recv_depth = 1,
							    .recv = hear_or_strange }, NULL);
	static char target[64];
	uint32_t rkey = mock_reg(target, sizeof target, HUGEPIN_REMOTE_WRITE);
	strange = 0;
	EXPECT_EQ(add_one(24, 0), 1); /* a frame of 64 bytes, which stays in the slot */
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(heard, 1);
	/* the caller's own, as long as that frame was */
	struct ibv_sge sge = { (uintptr_t)memory, sizeof target, w.pin[0].lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
					.wr.rdma = { (uintptr_t)target, rkey | MOCK_RKEY } };
	EXPECT_EQ(ibv_post_send(&w.qp[0]->qp, &wr, &bad), 0);
	mock_run(w.qp[0], 1);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 1);
	EXPECT_EQ(strange, 1);
	EXPECT_EQ(add_one(10, 0), 1);
	EXPECT_EQ(drain(), 0);
	all_well();
	mock_dereg(rkey);
	end();
}

TEST(a_receive_that_is_handed_in_twice_counts_once)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .recv_depth = 2 }, NULL);
	struct ibv_wc wc;
	lossy = true;
	mock_error(w.qp[1], IBV_WC_SUCCESS);
	EXPECT_EQ(ibv_poll_cq(w.cq[1], 1, &wc), 1);
	EXPECT_EQ(hugepin_sg_wc(&wc), 1);
	for (int i = 0; i < 1000; i++)
		EXPECT_EQ(hugepin_sg_wc(&wc), 0);
	EXPECT_EQ(hugepin_sgq_close(w.in), -EBUSY);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 1);
	end();
}

/* ------------------------------------------------------------------ failure and close */

TEST(a_receiving_queue_notices_that_its_queue_pair_failed)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .recv_depth = 2 }, NULL);
	lossy = true;
	mock_error(w.qp[1], IBV_WC_SUCCESS);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 2);
	EXPECT_EQ(hugepin_sgq_wc_status(w.in, NULL), IBV_WC_WR_FLUSH_ERR);
	EXPECT_EQ(hugepin_sgq_add(w.in, NULL, 0, 0, NULL, NULL, 0), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), -ESHUTDOWN);
	end();
}

/* Close a receiving queue as hugepin_sgq(3) says, by polls of `max` completions. */
static void close_receiver(struct mock_qp *q, hugepin_sgq **queue, int max)
{
	int err = -EBUSY;
	to_error(q);
	for (int i = 0; i < 100 && (err = hugepin_sgq_close(*queue)) == -EBUSY; i++)
		hugepin_sgq_poll(*queue, max);
	EXPECT_EQ(err, 0);
	*queue = NULL;
}

/* Soft-RoCE never flushes a receive that was posted in the error state. */
TEST(a_receiving_queue_closes_whatever_was_in_its_completion_queue_when_the_queue_pair_went_to_error)
{
	for (int arrived = 0; arrived <= 4; arrived++)
		for (int max = 1; max <= 9; max += 4)
			for (int by_itself = 0; by_itself < 2; by_itself++) {
				begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .recv_depth = 4 },
				      NULL);
				w.qp[1]->late_stays = true;
				for (int i = 0; i < arrived; i++)
					EXPECT(add_one(10, HUGEPIN_SG_NOW) >= 0);
				mock_run(w.qp[0], 9);
				hugepin_sgq_poll(w.out, 9);
				if (by_itself) { /* and what is taken before that is noticed is posted again */
					mock_error(w.qp[1], IBV_WC_SUCCESS);
					for (int i = 0; i < 2; i++)
						hugepin_sgq_poll(w.in, 1);
				}
				close_receiver(w.qp[1], &w.in, max);
				EXPECT_EQ((int)heard, arrived);
				end();
				if (t_failures) {
					t_print("# %d arrived, polled by %d, by itself %d\n", arrived, max, by_itself);
					return;
				}
			}
}

/* The two receives have arrived and are not polled when the receiver's queue pair fails. */
static void fail_with_no_receive_out(void)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .recv_depth = 2 }, NULL);
	w.qp[1]->late_stays = true;
	for (int i = 0; i < 2; i++)
		EXPECT(add_one(10, 0) >= 0);
	mock_run(w.qp[0], 2);
	hugepin_sgq_poll(w.out, 9);
	to_error(w.qp[1]);
}

/* If no receive was out, none is flushed. Then the queue pair's state alone tells of the failure. */
TEST(a_queue_whose_receives_had_all_arrived_says_that_its_queue_pair_has_failed)
{
	fail_with_no_receive_out();
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 2);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_add(w.in, NULL, 0, 0, NULL, NULL, 0), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_close(w.in), 0);
	w.in = NULL;
	end();
}

/* Another thread's poll may post a receive after the change and before qp->state says so. */
TEST(a_receive_posted_while_the_queue_pair_goes_to_error_is_flushed_by_close)
{
	fail_with_no_receive_out();
	w.qp[1]->qp.state = IBV_QPS_RTS;
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 2);
	w.qp[1]->qp.state = IBV_QPS_ERR;
	EXPECT_EQ(hugepin_sgq_close(w.in), -EBUSY);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 2);
	EXPECT_EQ(hugepin_sgq_close(w.in), 0);
	EXPECT_EQ(w.qp[1]->modified, 2);
	w.in = NULL;
	end();
}

T_MAIN
