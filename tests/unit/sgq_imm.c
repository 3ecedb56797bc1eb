/*
 * Immediate data, and who has sent a message: what the receiver of a queue or of a pool is told beside the bytes.
 */
#include "tests/unit/sgq.h"

enum { HEARD = 64 };

static struct {
	uint64_t tag;
	size_t len;
	unsigned part, parts;
	bool imm;
	uint32_t value;
	enum ibv_wc_opcode opcode;
	uint32_t src_qp, qp_num;
	bool grh;
} got[HEARD];
static unsigned gots;

static void note(void *arg, const struct hugepin_sg_record *r)
{
	(void)arg;
	if (!EXPECT(gots < HEARD))
		return;
	got[gots].tag = r->tag;
	got[gots].len = r->len;
	got[gots].part = r->part;
	got[gots].parts = r->parts;
	got[gots].imm = r->wc->wc_flags & IBV_WC_WITH_IMM;
	got[gots].value = r->wc->imm_data;
	got[gots].opcode = r->wc->opcode;
	got[gots].src_qp = r->wc->src_qp;
	got[gots].qp_num = r->wc->qp_num;
	got[gots].grh = r->grh != NULL;
	if (r->grh)
		EXPECT(((const unsigned char *)r->grh)[0] == 0xee && ((const unsigned char *)r->grh)[39] == 0xee);
	gots++;
}

static void begin_noting(enum ibv_qp_type type, uint32_t flags, struct ibv_qp_cap cap)
{
	gots = 0;
	begin(type, cap, (struct hugepin_sgq_attr){ .depth = 4, .frame_bytes = 256, .flags = flags, .recv = note }, NULL);
	lossy = true;
}

/* What was sent is told, though nobody compares its bytes. */
static void end_noting(void)
{
	EXPECT_EQ(drain(), 0);
	for (unsigned i = 0; i < added; i++)
		sub[i].got = sub[i].len;
	end();
}

static int add_with(size_t len, uint64_t tag, unsigned flags, uint32_t value)
{
	return hugepin_sgq_add_imm(w.out, &(struct iovec){ memory, len }, 1, tag, NULL, NULL, flags, value);
}

static int add_plain(size_t len, uint64_t tag)
{
	return hugepin_sgq_add(w.out, &(struct iovec){ memory, len }, 1, tag, NULL, NULL, 0);
}

TEST(immediate_data_arrives_with_the_last_record_of_its_frame_and_with_no_other)
{
	begin_noting(IBV_QPT_RC, 0, usual);
	mock.pace = 0;
	EXPECT_EQ(add_plain(8, 1), 1);
	EXPECT_EQ(add_with(10, 2, 0, 0x11223344), 1);
	EXPECT_EQ(add_plain(12, 3), 1);
	EXPECT_EQ(add_with(0, 4, HUGEPIN_SG_SOLICITED, 0), 1); /* 0 is a number, too */
	EXPECT_EQ(w.qp[0]->posted, 4);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(gots, 4);
	for (unsigned i = 0; i < 4; i++) {
		EXPECT(got[i].tag == i + 1 && got[i].part == 0 && got[i].parts == 1);
		EXPECT_EQ(got[i].imm, i % 2);
	}
	EXPECT_EQ(got[1].value, 0x11223344);
	EXPECT_EQ(got[3].value, 0);
	end_noting();
}

TEST(records_before_one_with_immediate_data_share_its_frame_and_have_none)
{
	gots = 0;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .frame_bytes = 256, .hold_if_outstanding = 1,
							    .recv = note }, NULL);
	mock.pace = 0;
	EXPECT_EQ(add_plain(8, 1), 1);
	EXPECT_EQ(add_plain(8, 2), 1); /* held */
	EXPECT_EQ(w.qp[0]->posted, 1);
	EXPECT_EQ(add_with(8, 3, 0, 77), 1); /* ends the frame, which is sent */
	EXPECT_EQ(w.qp[0]->posted, 2);
	EXPECT_EQ(add_plain(8, 4), 1);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(gots, 4);
	for (unsigned i = 0; i < 4; i++)
		EXPECT_EQ(got[i].imm, i == 2);
	EXPECT_EQ(got[2].value, 77);
	end_noting();
}

TEST(immediate_data_of_a_message_of_several_frames_arrives_with_its_last_part)
{
	begin_noting(IBV_QPT_RC, 0, usual);
	EXPECT(add_with(700, 9, HUGEPIN_SG_MULTI, 5) >= 0);
	EXPECT(add_plain(700, 10) < 0); /* too long without the flag */
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(gots, 4);
	for (unsigned i = 0; i < gots; i++)
		EXPECT(got[i].tag == 9 && got[i].part == i && got[i].imm == (i == 3));
	EXPECT_EQ(got[3].value, 5);
	end_noting();
}

TEST(an_add_that_fails_leaves_no_immediate_data_behind)
{
	begin_noting(IBV_QPT_RC, 0, usual);
	EXPECT_EQ(hugepin_sgq_add_imm(NULL, NULL, 0, 0, NULL, NULL, 0, 1), -EINVAL);
	EXPECT_EQ(add_with(8, 1, 1u << 31, 1), -EINVAL);
	EXPECT_EQ(hugepin_sgq_add(w.out, NULL, 0, 0, NULL, NULL, 1u << 31), -EINVAL);
	EXPECT_EQ(add_with(1000, 1, 0, 1), -EMSGSIZE);
	EXPECT_EQ(hugepin_sgq_add_imm(w.out, &(struct iovec){ memory + 3 * AREA, 200 }, 1, 1, NULL, NULL, 0, 1), -ENOKEY);
	EXPECT_EQ(add_plain(8, 2), 1);
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(gots, 1);
	EXPECT(!got[0].imm);
	end_noting();
}

TEST(a_raw_message_may_be_its_immediate_data_alone)
{
	begin_noting(IBV_QPT_RC, HUGEPIN_SGQ_RAW, usual);
	EXPECT_EQ(add_with(0, 0, 0, 42), 1);
	EXPECT_EQ(add_plain(3, 0), 1);
	EXPECT_EQ(add_with(4, 0, 0, 43), 1);
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(gots, 3);
	EXPECT(got[0].imm && got[0].value == 42 && got[0].len == 0 && got[0].parts == 1);
	EXPECT(!got[1].imm && got[1].len == 3);
	EXPECT(got[2].imm && got[2].value == 43 && got[2].len == 4);
	end_noting();
}

static void post_foreign(enum ibv_wr_opcode opcode, const void *bytes, uint32_t len, uint32_t value)
{
	uint32_t key = mock_reg(bytes, 64, HUGEPIN_READ);
	static char target[64];
	uint32_t rkey = mock_reg(target, sizeof target, HUGEPIN_REMOTE_WRITE);
	struct ibv_sge sge = { (uintptr_t)bytes, len, key };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = len > 0, .opcode = opcode, .imm_data = value,
					.wr.rdma = { (uintptr_t)target, rkey | MOCK_RKEY } };

	EXPECT_EQ(ibv_post_send(&w.qp[0]->qp, &wr, &bad), 0);
	mock_run(w.qp[0], 1);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 1);
	mock_dereg(key);
	mock_dereg(rkey);
}

TEST(immediate_data_that_others_post_is_told_whatever_comes_with_it)
{
	static unsigned char bytes[64];
	const uint64_t tags[2] = { 5, 6 };
	begin_noting(IBV_QPT_RC, 0, usual);
	post_foreign(IBV_WR_RDMA_WRITE_WITH_IMM, bytes, 64, 1);
	post_foreign(IBV_WR_SEND_WITH_IMM, bytes, 64, 2); /* no frame */
	post_foreign(IBV_WR_SEND_WITH_IMM, bytes, 0, 3); /* nor this */
	EXPECT_EQ(hugepin_sg_frame(bytes, 64, NULL, NULL, 0), 24);
	post_foreign(IBV_WR_SEND_WITH_IMM, bytes, 24, 4); /* a frame without a record */
	EXPECT_EQ(gots, 4);
	for (unsigned i = 0; i < 4; i++)
		EXPECT(got[i].parts == 0 && got[i].imm && got[i].value == i + 1);
	EXPECT_EQ(got[0].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	post_foreign(IBV_WR_SEND, bytes, 24, 0); /* and without that, there is nothing to tell */
	EXPECT_EQ(gots, 4);
	EXPECT_EQ(hugepin_sg_frame(bytes, 64, (struct iovec[]){ { "", 0 }, { "", 0 } }, tags, 2), 48);
	post_foreign(IBV_WR_SEND_WITH_IMM, bytes, 48, 5); /* of the last record */
	EXPECT_EQ(gots, 6);
	EXPECT(!got[4].imm && got[4].tag == 5 && got[5].imm && got[5].value == 5 && got[5].tag == 6);
	end_noting();
}

TEST(the_receiver_of_a_datagram_learns_who_has_sent_it)
{
	begin_noting(IBV_QPT_UD, 0, usual);
	EXPECT_EQ(add_plain(10, 1), 1);
	EXPECT_EQ(add_with(10, 2, 0, 99), 1);
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(gots, 2);
	for (unsigned i = 0; i < 2; i++) {
		EXPECT_EQ(got[i].src_qp, w.qp[0]->qp.qp_num);
		EXPECT_EQ(got[i].qp_num, w.qp[1]->qp.qp_num);
		EXPECT(got[i].grh && got[i].imm == (i == 1));
	}
	EXPECT_EQ(got[1].value, 99);
	end_noting();
}

TEST(a_pool_tells_immediate_data_and_the_queue_pair)
{
	begin_noting(IBV_QPT_RC, 0, usual);
	const struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_cq *cq = mock_cq(8);
	struct mock_qp *shared = mock_qp(IBV_QPT_RC, cq, &cap, NULL), *in = mock_qp(IBV_QPT_RC, cq, &cap, NULL);
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = w.domain, .slots = 1, .frame_bytes = 256,
					  .recv_slots = 4, .srq = &shared->srq, .recv = note };
	hugepin_sgpool *pool;
	struct ibv_wc wc;

	EXPECT_EQ(hugepin_sgpool_open(&pa, &pool), 0);
	in->shared = shared;
	mock_connect(w.qp[0], in);
	EXPECT_EQ(add_with(10, 1, 0, 98), 1);
	EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 1);
	EXPECT_EQ(hugepin_sg_wc(&wc), 1);
	EXPECT_EQ(gots, 1);
	EXPECT(got[0].imm && got[0].value == 98 && got[0].qp_num == in->qp.qp_num && !got[0].grh);
	EXPECT_EQ(drain(), 0);
	mock_qp_free(in);
	mock_qp_free(shared);
	EXPECT_EQ(hugepin_sgpool_close(pool), 0);
	mock_cq_free(cq);
	end_noting();
}

T_MAIN
