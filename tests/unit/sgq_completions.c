/*
 * Completions that the program polls itself and hands in: among completions of its own work requests, late, or twice.
 */
#include "sge/state.h"
#include "tests/unit/sgq.h"

TEST(a_completion_queue_is_shared_with_the_callers_own_work_requests)
{
	struct ibv_qp_cap cap = usual;
	begin(IBV_QPT_RC, cap, (struct hugepin_sgq_attr){ .depth = 12, .reserved_wr = 4, .frame_bytes = 256 }, NULL);
	char own[16] = "mine", theirs[16] = "";
	uint32_t key = mock_reg(own, sizeof own, HUGEPIN_READ), rkey = mock_reg(theirs, sizeof theirs,
										HUGEPIN_REMOTE_WRITE);
	unsigned mine = 0, out = 0;
	for (int i = 0; i < 1000 || told < added || out; i++) {
		if (i < 1000 && dice(2))
			add_random(200, HUGEPIN_SG_COPY_OK);
		if (i < 1000 && out < 4) {
			struct ibv_sge sge = { (uintptr_t)own, sizeof own, key };
			struct ibv_send_wr *bad, wr = { .wr_id = 0x1234, .sg_list = &sge, .num_sge = 1,
							.opcode = IBV_WR_RDMA_WRITE,
				.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)theirs, rkey | MOCK_RKEY } };
			EXPECT_EQ(ibv_post_send(&w.qp[0]->qp, &wr, &bad), 0);
			out++;
		}
		struct ibv_wc wc[3];
		int n = dice(2) ? ibv_poll_cq(w.cq[0], 3, wc) : 0;
		for (int k = 0; k < n; k++) {
			struct ibv_wc elsewhere = wc[k];
			elsewhere.qp_num++;
			EXPECT_EQ(hugepin_sg_wc(&elsewhere), 0);
			int ours = hugepin_sg_wc(&wc[k]);
			EXPECT_EQ(ours, wc[k].wr_id >> 48 == HUGEPIN_SGQ_WR_ID);
			if (ours)
				EXPECT_EQ(hugepin_sg_wc(&wc[k]), 0); /* it is not out any more */
			mine += !ours;
			out -= !ours;
		}
		hugepin_sgq_poll(w.in, 3);
		if (!EXPECT(i < 100000))
			break;
	}
	EXPECT(mine > 100 && !strcmp(theirs, "mine"));
	EXPECT_EQ(hugepin_sg_wc(NULL), -EINVAL);
	mock_dereg(key);
	mock_dereg(rkey);
	drain();
	all_well();
	end();
}

/* Completions alone drive the queue, also after a provider refused a frame once. No frame waits for a further call. */
TEST(completions_handed_in_are_all_that_a_queue_needs)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .frame_bytes = 256, .hold_if_outstanding = 1 },
	      NULL);
	mock.pace = 0;
	EXPECT(add_one(150, 0) >= 0);
	EXPECT(add_one(150, 0) >= 0);
	w.qp[0]->refuse_in = 1;
	EXPECT(add_one(150, 0) >= 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	mock.pace = UINT_MAX;
	struct ibv_wc wc;
	while (ibv_poll_cq(w.cq[0], 1, &wc) == 1)
		EXPECT_EQ(hugepin_sg_wc(&wc), 1);
	EXPECT_EQ(told, 3);
	drain_and_end();
}

TEST(a_completion_that_is_handed_in_late_or_twice_completes_no_other_frame)
{
	for (int idle = 0; idle < 2; idle++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2 }, NULL);
		struct ibv_wc wc[2];
		mock.pace = 0;
		for (int i = 0; i < 2; i++)
			EXPECT(add_one(10, HUGEPIN_SG_NOW) >= 0);
		EXPECT_EQ(mock_run(w.qp[0], 2), 2);
		EXPECT_EQ(ibv_poll_cq(w.cq[0], 2, wc), 2);
		if (!idle) { /* another frame follows before the last one has completed */
			EXPECT_EQ(hugepin_sg_wc(&wc[0]), 1);
			EXPECT(add_one(10, HUGEPIN_SG_NOW) >= 0);
		}
		EXPECT_EQ(hugepin_sg_wc(&wc[1]), 1);
		EXPECT_EQ(told, 2);
		while (add_one(10, HUGEPIN_SG_NOW) >= 0)
			;
		EXPECT_EQ(w.qp[0]->posted, 4);
		for (int i = 0; i < 2; i++)
			EXPECT_EQ(hugepin_sg_wc(&wc[i]), 0);
		EXPECT_EQ(told, 2);
		mock.pace = UINT_MAX;
		drain_and_end();
	}
}

/* ------------------------------------------------------------------ numbers */

enum { OPEN = 1000, PLACES = 1 << 16 };
static struct hp_taker taker[PLACES];
static unsigned taken_by;

static int take_as(struct hp_taker *t, const struct ibv_wc *wc)
{
	EXPECT_EQ(wc->wr_id & HP_SGQ_ID_LOW, 5);
	taken_by = (unsigned)(t - taker);
	return 1;
}

static void expect_takers(unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct ibv_wc wc = { .wr_id = taker[i].id | HP_SGQ_ID_RECV | 5 };
		EXPECT_EQ(hugepin_sg_wc(&wc), 1);
		EXPECT_EQ(taken_by, i);
	}
}

static void open_takers(unsigned first, unsigned end)
{
	for (unsigned i = first; i < end; i++) {
		taker[i].take = take_as;
		EXPECT_EQ(hp_taker_open(&taker[i]), 0);
		hp_taker_begin(&taker[i]);
	}
}

TEST(each_completion_finds_its_queue_after_any_number_of_openings)
{
	struct hp_taker other = { .take = take_as };
	open_takers(0, OPEN);
	const uint64_t first = taker[0].id;
	unsigned again = 0;
	for (int i = 0; i < 5 * PLACES; i++) {
		EXPECT_EQ(hp_taker_open(&other), 0);
		struct ibv_wc wc = { .wr_id = other.id | HP_SGQ_ID_RECV | 5 };
		EXPECT_EQ(hugepin_sg_wc(&wc), 0); /* it has not begun */
		hp_taker_close(&other);
		again += other.id == first;
		if (i % PLACES == 0)
			expect_takers(OPEN);
	}
	EXPECT_EQ(again, 0);
	for (unsigned i = 0; i < OPEN; i++)
		hp_taker_close(&taker[i]);
	struct ibv_wc late = { .wr_id = first | 5 };
	EXPECT_EQ(hugepin_sg_wc(&late), 0);
	late.wr_id = 5; /* the program's */
	EXPECT_EQ(hugepin_sg_wc(&late), 0);
}

TEST(more_queues_than_have_numbers_are_refused)
{
	hugepin_domain *d = domain_of_mock();
	struct ibv_cq *cq = mock_cq(16);
	struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &usual, NULL);
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = d, .model = &model };
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = d, .slots = 1 };
	hugepin_sgq *q = NULL;
	hugepin_sgpool *pool = NULL;
	open_takers(0, PLACES);
	EXPECT_EQ(hp_taker_open(&(struct hp_taker){ 0 }), -ENOBUFS);
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -ENOBUFS);
	EXPECT_EQ(hugepin_sgpool_open(&pa, &pool), -ENOBUFS);
	EXPECT(!q && !pool);
	expect_takers(PLACES);
	for (unsigned i = 0; i < PLACES; i++)
		hp_taker_close(&taker[i]);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	mock_qp_free(qp);
	mock_cq_free(cq);
}

T_MAIN
