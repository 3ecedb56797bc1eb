/*
 * Callbacks that call the queue: they may add and flush as they like, and may neither poll nor close.
 */
#include "tests/unit/sgq.h"

static void greedy(void *arg, uint64_t tag, int status)
{
	(void)arg;
	int got = 1;
	EXPECT_EQ(status, 0);
	EXPECT_EQ(tag, told);
	told++;
	while (got == 1 && added < 200) {
		got = hugepin_sgq_add(w.out, NULL, 0, added, greedy, NULL, 0);
		EXPECT(got == 1 || got == -EAGAIN);
		added += got == 1;
	}
}

TEST(a_callback_that_adds_all_it_can_overruns_nothing)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 6, .flush_count = 4, .hold_if_outstanding = 1,
							    .recv = hear_nothing }, NULL);
	mock.pace = 0;
	while (hugepin_sgq_add(w.out, NULL, 0, added, greedy, NULL, 0) == 1)
		added++;
	EXPECT_EQ(added, 1 + 5 * 4);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(told, 200);
	end();
}

static unsigned echoes, echoed;

static void echo(void *arg, uint64_t tag, int status)
{
	hugepin_sgq *q = arg;
	struct ibv_wc wc = { .wr_id = w.qp[0]->sq[0].id };
	(void)tag;
	EXPECT_EQ(status, 0);
	echoed++;
	EXPECT_EQ(hugepin_sgq_close(q), -EBUSY);
	EXPECT_EQ(hugepin_sgq_poll(q, 1), -EBUSY);
	EXPECT_EQ(hugepin_sg_wc(&wc), -EBUSY);
	if (echoes) {
		echoes--;
		EXPECT_EQ(hugepin_sgq_add(q, &(struct iovec){ (void *)&echoes, 4 }, 1, 0, echo, q, 0), 1);
		EXPECT_EQ(hugepin_sgq_flush(q), 0);
	}
}

TEST(callbacks_may_add_even_when_one_frame_is_all_there_is)
{
	for (uint32_t depth = 1; depth < 4; depth++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = depth, .recv = hear_nothing }, NULL);
		echoes = 100;
		echoed = 0;
		EXPECT_EQ(hugepin_sgq_add(w.out, NULL, 0, 0, echo, w.out, 0), 1);
		for (int i = 0; i < 500; i++) {
			EXPECT(hugepin_sgq_poll(w.out, 9) >= 0);
			EXPECT(hugepin_sgq_poll(w.in, 9) >= 0);
		}
		EXPECT_EQ(echoed, 101);
		end();
	}
}

/* Two sides that send to each other, from callbacks too. Callbacks do all that they may do. */
static struct side {
	struct ibv_cq *cq;
	struct mock_qp *qp;
	hugepin_sgq *q;
	unsigned added, told, heard, parts, to_add;
	unsigned delivered; /* callbacks with status 0 */
	bool by_hand;
} sides[2];

static void said(void *side, uint64_t tag, int status);

static int say(struct side *s)
{
	static char text[3000];
	uint32_t area = 4 * dice(AREAS / 4);
	struct iovec iov[] = { { text, dice(3) ? dice(30) : 0 }, { memory + area * AREA + dice(AREA - 400),
								   dice(3) ? 0 : dice(400) },
			       { text, dice(10) ? 0 : dice(3000) } };
	int got = hugepin_sgq_add(s->q, iov, 3, s->added, said, s,
				  HUGEPIN_SG_COPY_OK | HUGEPIN_SG_MULTI | (dice(4) ? 0 : HUGEPIN_SG_NOW));
	EXPECT(got == 0 || got == 1 || got == -EAGAIN || got == -EMSGSIZE || got == -ESHUTDOWN);
	s->added += got >= 0;
	return got;
}

static void misbehave(struct side *s)
{
	struct ibv_wc wc = { .wr_id = s->qp->rq[0].id };
	while (s->to_add && !dice(3)) {
		s->to_add--;
		if (say(s) == -EAGAIN && dice(2))
			break;
	}
	switch (dice(12)) {
	case 0:
		EXPECT_EQ(hugepin_sgq_close(s->q), -EBUSY);
		break;
	case 1:
		EXPECT_EQ(hugepin_sgq_poll(s->q, 3), -EBUSY);
		break;
	case 2:
		EXPECT_EQ(hugepin_sg_wc(&wc), -EBUSY);
		break;
	case 3: {
		int e = hugepin_sgq_flush(s->q);
		EXPECT(e == 0 || e == -ESHUTDOWN);
	}
	}
}

static void said(void *side, uint64_t tag, int status)
{
	struct side *s = side;
	EXPECT_EQ(tag, s->told);
	s->told++;
	EXPECT(status == 0 || status == -EIO || status == -ECANCELED);
	EXPECT(status || s->delivered == tag); /* none behind one that failed */
	s->delivered += !status;
	misbehave(s);
}

static void heard_said(void *side, const struct hugepin_sg_record *r)
{
	struct side *s = side;
	EXPECT(r->parts && r->tag == s->heard && r->part == s->parts);
	s->parts = r->part + 1 == r->parts ? 0 : r->part + 1;
	s->heard += r->part + 1 == r->parts;
	misbehave(s);
}

static int take_in(struct side *s)
{
	if (!s->by_hand)
		return hugepin_sgq_poll(s->q, (int)dice(5));
	struct ibv_wc wc[4];
	int n = ibv_poll_cq(s->cq, 1 + (int)dice(4), wc);
	for (int i = 0; i < n; i++)
		EXPECT_EQ(hugepin_sg_wc(&wc[i]), 1);
	return n;
}

TEST(whatever_callbacks_do_each_sub_message_is_told_once_and_in_order)
{
	for (int round = 0; round < 400; round++) {
		seed = (uint64_t)round * 7919 + 1;
		hugepin_domain *d = domain_of_mock();
		struct hugepin_pin pin[AREAS];
		for (unsigned i = 0; i < AREAS; i += 8)
			EXPECT_EQ(hugepin_pin(d, memory + i * AREA, AREA, HUGEPIN_READ, &pin[i]), 0);
		uint32_t bytes = dice(2) ? 100 + dice(200) : 1000 + dice(4000);
		mock.pace = dice(3) ? dice(4) : UINT_MAX;
		for (int k = 0; k < 2; k++) {
			struct side *s = &sides[k];
			uint32_t depth = 1 + dice(dice(2) ? 3 : 20), receives = 1 + dice(8);
			*s = (struct side){ .cq = mock_cq(depth + receives), .to_add = 300, .by_hand = dice(2) };
			s->qp = mock_qp(IBV_QPT_RC, s->cq, &(struct ibv_qp_cap){ depth, receives, 1 + dice(4), 1,
										 dice(2) * 60 },
					&mock_providers[dice(MOCK_PROVIDERS)]);
			struct hugepin_sgq_attr a = {
				.size = sizeof a, .qp = &s->qp->qp, .domain = d, .model = &model, .depth = depth,
				.frame_bytes = bytes,
				.recv_depth = receives, .recv = heard_said, .recv_arg = s,
				.flush_bytes = dice(2) * dice(500),
				.flush_count = dice(2) * dice(6), .hold_if_outstanding = dice(2) * dice(5),
				.deadline_ns = dice(3) ? 0 : 1 + dice(5000), .flags = dice(2) ? HUGEPIN_SGQ_MT : 0,
			};
			EXPECT_EQ(hugepin_sgq_open(&a, &s->q), 0);
		}
		mock_connect(sides[0].qp, sides[1].qp);
		bool fails = dice(2);
		unsigned when = dice(400), idle = 0;
		for (unsigned i = 0; idle < 50 && EXPECT(i < 50000); i++) {
			struct side *s = &sides[dice(2)];
			if (fails && i == when)
				mock_error(s->qp, dice(2) ? IBV_WC_SUCCESS : IBV_WC_LOC_QP_OP_ERR);
			if (s->to_add && !dice(3)) {
				s->to_add--;
				say(s);
			}
			int before = (int)(sides[0].told + sides[1].told + sides[0].heard + sides[1].heard);
			if (take_in(s) == 0 && s->by_hand && !dice(5))
				/* nobody else looks at deadlines, or notices a failed queue pair */
				hugepin_sgq_flush(s->q);
			if (mock.pace == 0)
				mock_run(s->qp, dice(3));
			bool out = sides[0].told < sides[0].added || sides[1].told < sides[1].added ||
				sides[0].to_add || sides[1].to_add;
			bool moved = before != (int)(sides[0].told + sides[1].told + sides[0].heard + sides[1].heard);
			idle = out || moved ? 0 : idle + 1;
		}
		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(sides[k].told, sides[k].added);
			if (!fails)
				EXPECT(sides[k].delivered == sides[k].added && sides[!k].heard == sides[k].added);
			EXPECT(sides[!k].heard >= sides[k].delivered || fails);
			EXPECT_EQ(sides[k].qp->mistakes, 0);
			mock_error(sides[k].qp, IBV_WC_SUCCESS);
		}
		for (int k = 0; k < 2; k++) {
			while (hugepin_sgq_poll(sides[k].q, 9) > 0)
				;
			EXPECT_EQ(hugepin_sgq_close(sides[k].q), 0);
			mock_qp_free(sides[k].qp);
			mock_cq_free(sides[k].cq);
		}
		for (unsigned i = 0; i < AREAS; i += 8)
			EXPECT_EQ(hugepin_unpin(d, &pin[i]), 0);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		if (t_failed_in(round))
			return;
	}
}

T_MAIN
