/*
 * Queue pairs that fail and providers that refuse: each sub-message is told once and with a true status, and the queue
 * names the cause of the failure.
 */
#include "tests/unit/sgq.h"

/* Statuses are 0, then -EIO for at most one frame, then -ECANCELED. Exactly the sub-messages with status 0 arrived. */
static void true_statuses(void)
{
	unsigned i = 0, good;
	while (i < added && sub[i].status == 0)
		i++;
	good = i;
	while (i < added && sub[i].status == -EIO)
		i++;
	while (i < added && sub[i].status == -ECANCELED)
		i++;
	if (!EXPECT_EQ(i, added))
		t_print("# status %d after %d\n", sub[i].status, sub[i - 1].status);
	EXPECT_EQ(heard, good);
}

TEST(a_queue_pair_that_fails_at_any_moment_tells_each_sub_message_once_and_truly)
{
	static const enum ibv_wc_status statuses[] = { IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_RETRY_EXC_ERR,
						       IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS };
	unsigned failed = 0;
	for (int round = 0; round < 600; round++) {
		seed = (uint64_t)round;
		random_world(IBV_QPT_RC, &mock_providers[round % MOCK_PROVIDERS]);
		lossy = true;
		int when = (int)dice(100);
		bool late = dice(2);
		for (int i = 0; i < 100; i++) {
			if (i == when && late)
				w.qp[0]->fail = statuses[dice(4)];
			else if (i == when)
				mock_error(w.qp[0], statuses[dice(5)]);
			int got = add_random(w.attr.frame_bytes, HUGEPIN_SG_COPY_OK | (dice(2) ? HUGEPIN_SG_MULTI : 0));
			EXPECT(got == 0 || got == 1 || got == -EAGAIN || got == -EMSGSIZE || got == -ESHUTDOWN);
			int polled = dice(3) ? 0 : hugepin_sgq_poll(w.out, (int)dice(4));
			EXPECT(polled >= 0 || polled == -ESHUTDOWN);
			if (!dice(3))
				hugepin_sgq_poll(w.in, (int)dice(40));
			if (mock.pace == 0)
				mock_run(w.qp[0], dice(3));
			int flushed = dice(10) ? 0 : hugepin_sgq_flush(w.out);
			EXPECT(flushed == 0 || flushed == -ESHUTDOWN);
		}
		if (w.qp[0]->state == IBV_QPS_ERR)
			add_random(10, HUGEPIN_SG_COPY_OK); /* or nobody may have noticed */
		drain();
		mock.pace = UINT_MAX;
		drain();
		true_statuses();
		failed += hugepin_sgq_wc_status(w.out, NULL) != IBV_WC_SUCCESS;
		end();
		if (t_failed_in(round))
			return;
	}
	EXPECT(failed > 500);
}

TEST(each_error_of_each_provider_at_each_position_is_passed_on_and_nothing_is_lost)
{
	unsigned errors = 0;
	for (unsigned p = 0; p < MOCK_PROVIDERS; p++)
		for (unsigned k = 1; k <= 12; k++) {
			seed = k;
			begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .frame_bytes = 256,
				.hold_if_outstanding = 1 + k % 3 }, &mock_providers[p]);
			int expected = -abs(mock_providers[p].full);
			for (int i = 0; i < 60; i++) {
				mock.pace = i % 4 == 0;
				if (i % 10 == 0)
					w.qp[0]->refuse_in = k;
				/* 3000 bytes are a chain: some are posted and others not */
				int got = i % 5 ? add_random(200, HUGEPIN_SG_COPY_OK) : add_one(1000, HUGEPIN_SG_MULTI);
				EXPECT(got >= 0 || got == -EAGAIN || got == expected);
				errors += got == expected;
				got = hugepin_sgq_flush(w.out);
				EXPECT(got == 0 || got == expected);
				errors += got == expected;
				got = hugepin_sgq_poll(w.out, 2);
				EXPECT(got >= 0 || got == expected);
				hugepin_sgq_poll(w.in, 20);
			}
			w.qp[0]->refuse_in = 0;
			mock.pace = UINT_MAX;
			drain();
			all_well();
			end();
			if (t_failures) {
				t_print("# %s at %u\n", mock_providers[p].name, k);
				return;
			}
		}
	EXPECT(errors > 50);
}

TEST(a_provider_that_refuses_says_so_and_is_asked_again)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2 }, &mock_providers[1]);
	w.qp[0]->refuse_in = 1;
	EXPECT_EQ(add_one(10, 0), 1); /* held, for now */
	w.qp[0]->refuse_in = 1;
	EXPECT_EQ(hugepin_sgq_flush(w.out), -ENOMEM);
	w.qp[0]->refuse_in = 1;
	EXPECT_EQ(hugepin_sgq_poll(w.out, 1), -ENOMEM);
	EXPECT_EQ(w.qp[0]->posted, 0);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	drain_and_end();
}

TEST(the_first_failure_is_told_with_the_vendors_error)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .hold_if_outstanding = 8 }, NULL);
	lossy = true;
	uint32_t vendor = 1;
	EXPECT_EQ(hugepin_sgq_wc_status(w.out, &vendor), IBV_WC_SUCCESS);
	EXPECT_EQ(vendor, 0);
	mock.pace = 0;
	for (int i = 0; i < 5; i++)
		EXPECT(add_one(10, 0) >= 0);
	mock_run(w.qp[0], 2);
	mock_error(w.qp[0], IBV_WC_LOC_LEN_ERR);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 3), 3);
	EXPECT_EQ(told, 3);
	EXPECT_EQ(hugepin_sgq_wc_status(w.out, &vendor), IBV_WC_LOC_LEN_ERR);
	EXPECT_EQ(vendor, MOCK_VENDOR_ERR);
	EXPECT_EQ(add_one(10, 0), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_close(w.out), -EBUSY); /* two have yet to be flushed */
	EXPECT_EQ(hugepin_sgq_flush(w.out), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 9), 2);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 9), -ESHUTDOWN);
	EXPECT_EQ(sub[1].status, 0);
	EXPECT_EQ(sub[2].status, -EIO);
	EXPECT_EQ(sub[3].status, -ECANCELED);
	EXPECT_EQ(sub[4].status, -ECANCELED);
	hugepin_sgq_poll(w.in, 9);
	true_statuses();
	end();
}

/* A frame that completed unsignalled has no completion of its own. Its callback runs with status 0 also when the queue
 * pair fails later, for another reason. */
TEST(what_completed_unsignalled_before_a_failure_is_told_so)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 16, .frame_bytes = 256, .hold_if_outstanding = 1 },
	      NULL);
	lossy = true;
	mock.pace = 0;
	for (int i = 0; i < 3; i++)
		EXPECT(add_one(150, 0) >= 0); /* signalled; not; held */
	EXPECT_EQ(w.qp[0]->posted, 2);
	EXPECT_EQ(w.qp[0]->signalled, 1);
	mock_run(w.qp[0], 2);
	mock_error(w.qp[0], IBV_WC_SUCCESS);
	while (hugepin_sgq_poll(w.out, 1) >= 0)
		;
	EXPECT_EQ(told, 3);
	EXPECT_EQ(sub[1].status, 0);
	EXPECT_EQ(sub[2].status, -ECANCELED);
	while (hugepin_sgq_poll(w.in, 1) > 0)
		;
	true_statuses();
	end();
}

/* The same, where a receive tells of the failure first, on any completion queue. */
TEST(a_failure_that_a_receive_tells_of_first_changes_no_status)
{
	out_receives = 1;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 16, .frame_bytes = 256, .hold_if_outstanding = 1 },
	      NULL);
	out_receives = 0;
	lossy = true;
	struct ibv_cq *recv_cq = mock_cq(1);
	mock.pace = 0;
	for (int i = 0; i < 3; i++)
		EXPECT(add_one(150, 0) >= 0); /* signalled; not; held */
	mock_run(w.qp[0], 2);
	w.qp[0]->qp.recv_cq = recv_cq;
	mock_error(w.qp[0], IBV_WC_SUCCESS);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 2), 2); /* the first frame, and the receive */
	while (hugepin_sgq_poll(w.out, 1) >= 0)
		;
	EXPECT_EQ(told, 3);
	EXPECT_EQ(sub[1].status, 0);
	EXPECT_EQ(sub[2].status, -ECANCELED);
	while (hugepin_sgq_poll(w.in, 1) > 0)
		;
	true_statuses();
	end();
	mock_cq_free(recv_cq);
}

TEST(the_cause_of_a_failure_is_told_and_not_its_consequence)
{
	out_receives = 1;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .frame_bytes = 256 }, NULL);
	out_receives = 0;
	lossy = true;
	struct ibv_cq *recv_cq = mock_cq(1);
	w.qp[0]->qp.recv_cq = recv_cq;
	mock.pace = 0;
	EXPECT(add_one(10, 0) >= 0);
	/* a message that is longer than the receive: it fails, and what is being sent is flushed */
	static char long_one[300];
	uint32_t key = mock_reg(long_one, sizeof long_one, HUGEPIN_READ);
	struct ibv_sge sge = { (uintptr_t)long_one, sizeof long_one, key };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	EXPECT_EQ(ibv_post_send(&w.qp[1]->qp, &wr, &bad), 0);
	mock_run(w.qp[1], 1);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 9), 2);
	EXPECT_EQ(hugepin_sgq_wc_status(w.out, NULL), IBV_WC_LOC_LEN_ERR);
	EXPECT_EQ(sub[0].status, -ECANCELED);
	mock_dereg(key);
	end();
	mock_cq_free(recv_cq);
}

TEST(a_flush_that_was_not_handed_in_is_not_success)
{
	for (int first_too = 0; first_too < 2; first_too++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 4 }, NULL);
		lossy = true;
		mock.pace = 0;
		for (int i = 0; i < 3; i++)
			EXPECT(add_one(10, 0) >= 0);
		mock_error(w.qp[0], IBV_WC_LOC_QP_OP_ERR);
		struct ibv_wc wc[3];
		EXPECT_EQ(ibv_poll_cq(w.cq[0], 3, wc), 3);
		if (first_too)
			EXPECT_EQ(hugepin_sg_wc(&wc[0]), 1);
		EXPECT_EQ(hugepin_sg_wc(&wc[2]), 1);
		EXPECT_EQ(sub[0].status, first_too ? -EIO : -ECANCELED);
		EXPECT_EQ(sub[1].status, -ECANCELED);
		EXPECT_EQ(sub[2].status, -ECANCELED);
		end();
	}
}

TEST(parts_of_one_sub_message_have_one_status)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .frame_bytes = 256 }, NULL);
	lossy = true;
	mock.pace = 0;
	EXPECT(add_one(1000, HUGEPIN_SG_MULTI) >= 0);
	EXPECT(add_one(10, 0) >= 0);
	EXPECT_EQ(w.qp[0]->posted, 6);
	mock_run(w.qp[0], 2);
	mock_error(w.qp[0], IBV_WC_LOC_PROT_ERR);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 2), 2);
	EXPECT_EQ(told, 0); /* the rest of it may still be read */
	while (hugepin_sgq_poll(w.out, 9) > 0)
		;
	EXPECT_EQ(sub[0].status, -EIO);
	EXPECT_EQ(sub[1].status, -ECANCELED);
	while (hugepin_sgq_poll(w.in, 9) > 0)
		;
	EXPECT_EQ(heard, 0);
	end();
}

TEST(debug_names_the_sub_message_whose_memory_went_away)
{
	for (int debug = 0; debug < 2; debug++) {
		begin(IBV_QPT_RC, (struct ibv_qp_cap){ 8, 1, 8, 1, 0 },
		      (struct hugepin_sgq_attr){ .depth = 8, .hold_if_outstanding = 1,
						 .flags = debug ? HUGEPIN_SGQ_DEBUG : 0 }, NULL);
		lossy = true;
		mock.pace = 0;
		EXPECT(add_one(10, 0) >= 0);
		for (int i = 0; i < 3; i++) {
			struct iovec iov[] = { { memory, 10 }, { memory + (i + 4) * AREA, 200 }, { memory, 10 } };
			EXPECT_EQ(add_pieces(iov, 3, -1, 0), 0);
		}
		mock_run(w.qp[0], 1);
		EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 1);
		EXPECT_EQ(w.qp[0]->posted, 2);
		/* the second one's */
		uint32_t lkey = w.pin[5].lkey;
		EXPECT_EQ(hugepin_forget(memory + 5 * AREA, AREA), -EBUSY);
		mock_dereg(lkey);
		mock_run(w.qp[0], 1);
		EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 1);
		EXPECT_EQ(hugepin_sgq_wc_status(w.out, NULL), IBV_WC_LOC_PROT_ERR);
		EXPECT_EQ(told, 4);
		EXPECT_EQ(sub[1].status, debug ? -ECANCELED : -EIO);
		EXPECT_EQ(sub[2].status, -EIO);
		EXPECT_EQ(sub[3].status, debug ? -ECANCELED : -EIO);
		hugepin_sgq_poll(w.in, 9);
		end();
	}
}

T_MAIN
