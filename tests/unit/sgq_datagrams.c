/*
 * Queues over queue pairs for datagrams (UD): a frame is one datagram, which may be lost.
 */
#include "tests/unit/sgq.h"

TEST(datagrams_arrive_behind_their_routing_header)
{
	for (int round = 0; round < 40; round++) {
		seed = (uint64_t)round;
		random_world(IBV_QPT_UD, NULL);
		lossy = true;
		for (int i = 0; i < 100; i++) {
			add_random(w.attr.frame_bytes, HUGEPIN_SG_COPY_OK);
			/* a receive for each that is out, so that none is lost */
			drain();
		}
		EXPECT_EQ(drain(), 0);
		EXPECT_EQ(w.qp[0]->dropped, 0);
		all_well();
		end();
		if (t_failures)
			return;
	}
}

/* A receiver joins parts in the order of their arrival. A datagram may be lost. */
TEST(a_sub_message_of_datagrams_is_never_split)
{
	begin(IBV_QPT_UD, usual, (struct hugepin_sgq_attr){ .depth = 4, .frame_bytes = 256 }, NULL);
	EXPECT_EQ(add_one(600, HUGEPIN_SG_MULTI), -EMSGSIZE);
	EXPECT(add_one(100, HUGEPIN_SG_MULTI) >= 0);
	drain_and_end();
}

TEST(a_datagram_is_no_longer_than_the_mtu)
{
	hugepin_domain *d = domain_of_mock();
	struct ibv_cq *cq = mock_cq(16);
	struct mock_qp *qp = mock_qp(IBV_QPT_UD, cq, &usual, NULL);
	hugepin_sgq *q = NULL;
	struct ibv_ah ah;
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = d, .model = &model, .ah = &ah };
	a.frame_bytes = 4097;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EMSGSIZE);
	a.frame_bytes = 0;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
	char byte[5000] = { 0 };
	EXPECT_EQ(hugepin_sgq_add(q, &(struct iovec){ byte, 4096 - 39 }, 1, 0, NULL, NULL, HUGEPIN_SG_COPY_OK),
		  -EMSGSIZE);
	EXPECT_EQ(hugepin_sgq_add(q, &(struct iovec){ byte, 4096 - 40 }, 1, 0, NULL, NULL, HUGEPIN_SG_COPY_OK), 1);
	EXPECT_EQ(hugepin_sgq_poll(q, 1), 1);
	EXPECT_EQ(hugepin_sgq_close(q), 0);
	a.ah = NULL;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	mock_qp_free(qp);
	mock_cq_free(cq);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

TEST(queues_for_several_destinations_share_a_queue_pair_and_its_completions)
{
	enum { QUEUES = 3, ROUNDS = 300 };
	hugepin_domain *d = domain_of_mock();
	struct ibv_cq *cq = mock_cq(16);
	struct ibv_qp_cap cap = { 15, 4, 2, 1, 0 };
	struct mock_qp *qp = mock_qp(IBV_QPT_UD, cq, &cap, NULL);
	struct ibv_ah ah;
	hugepin_sgq *q[QUEUES];
	thread_done = 0;
	for (unsigned i = 0; i < QUEUES; i++) {
		struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = d, .model = &model, .ah = &ah,
					      .depth = 5,
					      .reserved_wr = 10, .remote_qpn = 63, .hold_if_outstanding = 2,
					      .frame_bytes = 256 };
		EXPECT_EQ(hugepin_sgq_open(&a, &q[i]), 0);
	}
	unsigned sent = 0;
	for (int i = 0; i < ROUNDS || thread_done < sent; i++) {
		if (i < ROUNDS)
			sent += hugepin_sgq_add(q[dice(QUEUES)], &(struct iovec){ &i, sizeof i }, 1, 0, count_done,
						NULL, 0) >= 0;
		struct ibv_wc wc[4];
		int n = dice(3) ? 0 : ibv_poll_cq(cq, 4, wc);
		for (int k = 0; k < n; k++) {
			EXPECT_EQ(hugepin_sg_wc(&wc[k]), 1);
		}
		if (!EXPECT(i < 10000))
			break;
	}
	EXPECT(sent > ROUNDS / 2);
	for (unsigned i = 0; i < QUEUES; i++)
		EXPECT_EQ(hugepin_sgq_close(q[i]), 0);
	EXPECT_EQ(qp->mistakes, 0);
	mock_qp_free(qp);
	mock_cq_free(cq);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

T_MAIN
