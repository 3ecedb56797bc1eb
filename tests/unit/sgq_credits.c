/*
 * Flow control between two queues (sge/credit.c), over the strict device of tests/mock_verbs.h: a message without a
 * receive is an error here, never waited for. Both sides send and receive in random turns, and a naive model counts.
 */
#include "sge/state.h"
#include "tests/unit/sgq.h"

static struct end {
	struct ibv_cq *cq;
	struct mock_qp *qp;
	hugepin_sgq *q;
	struct hugepin_sgq_attr attr;
	uint64_t added, told, good, heard;
	unsigned part; /* of the sub-message that arrives */
	unsigned strange, blocked;
} ends[2];
static hugepin_domain *domain;
static bool empty; /* sub-messages have no bytes, and no immediate data */
static char *text;
enum { TEXT = 1 << 14 };

static size_t length_of(uint64_t tag)
{
	return (size_t)(tag * 2654435761u >> 7) % (tag % 16 ? 60 : 700);
}

static void told_end(void *arg, uint64_t tag, int status)
{
	struct end *e = arg;
	EXPECT_EQ(tag, e->told);
	e->told++;
	e->good += !status;
}

static void hear_end(void *arg, const struct hugepin_sg_record *r)
{
	struct end *e = arg;
	if (!r->parts) {
		e->strange++;
		return;
	}
	EXPECT(r->tag == e->heard && r->part == e->part);
	if (r->parts == 1 && !empty)
		EXPECT(r->len == length_of(r->tag) && !memcmp(r->data, text + r->tag % 64, r->len));
	EXPECT_EQ(!!(r->wc->wc_flags & IBV_WC_WITH_IMM), !empty && r->tag % 32 == 5 && r->part + 1 == r->parts);
	e->part = r->part + 1 == r->parts ? 0 : r->part + 1;
	e->heard += !e->part;
}

static void open_end(struct end *e, uint32_t flags, uint32_t depth, uint32_t receives, uint32_t hold)
{
	const struct ibv_qp_cap cap = { .max_send_wr = depth, .max_recv_wr = receives, .max_send_sge = 3, .max_recv_sge = 1,
					.max_inline_data = dice(2) * 64 };
	*e = (struct end){ .cq = mock_cq(depth + receives) };
	e->qp = mock_qp(IBV_QPT_RC, e->cq, &cap, NULL);
	e->qp->rnr_fails = true;
	e->attr = (struct hugepin_sgq_attr){
		.size = sizeof e->attr, .qp = &e->qp->qp, .domain = domain, .model = &model, .flags = flags, .frame_bytes = 256,
		.hold_if_outstanding = hold, .recv_depth = receives, .recv = hear_end, .recv_arg = e,
	};
}

static void open_ends(uint32_t flags_of_second)
{
	mock_connect(ends[0].qp, ends[1].qp);
	ends[1].attr.flags = flags_of_second;
	for (int k = 0; k < 2; k++)
		EXPECT_EQ(hugepin_sgq_open(&ends[k].attr, &ends[k].q), 0);
}

static void begin_ends(uint32_t flags)
{
	mock.pace = 0;
	empty = false;
	domain = domain_of_mock();
	if (!text) {
		text = mmap(NULL, TEXT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		fill(text, TEXT);
	}
	for (int k = 0; k < 2; k++)
		open_end(&ends[k], flags, 1 + dice(12), 4 + dice(dice(3) ? 4 : 20), dice(4));
	open_ends(ends[1].attr.flags);
}

static void close_ends(void)
{
	mock.pace = UINT_MAX;
	for (int k = 0; k < 2; k++) {
		struct end *e = &ends[k];
		int err = -EBUSY;
		to_error(e->qp);
		for (int i = 0; i < 100 && (err = hugepin_sgq_close(e->q)) == -EBUSY; i++)
			hugepin_sgq_poll(e->q, 9);
		EXPECT_EQ(err, 0);
		EXPECT_EQ(e->told, e->added);
		EXPECT_EQ(e->qp->mistakes, 0);
		mock_qp_free(e->qp);
		mock_cq_free(e->cq);
	}
	EXPECT_EQ(hugepin_domain_close(domain), 0);
}

static int add_end(struct end *e)
{
	const uint64_t tag = e->added;
	struct iovec piece = { text + tag % 64, length_of(tag) };
	const unsigned flags = HUGEPIN_SG_COPY_OK | HUGEPIN_SG_MULTI | (dice(8) ? 0 : HUGEPIN_SG_NOW);
	e->added++; /* its callback may run before the call returns */
	int got = tag % 32 == 5 ? hugepin_sgq_add_imm(e->q, &piece, 1, tag, told_end, e, flags, 1) :
				  hugepin_sgq_add(e->q, &piece, 1, tag, told_end, e, flags);
	e->added -= got < 0;
	e->blocked += got == -EAGAIN && e->q->limit - e->q->sent <= 1;
	return got;
}

/* What must hold at any moment. The first is of the device, and knows nothing of credits. */
static bool sound(void)
{
	bool good = true;
	for (int k = 0; k < 2; k++) {
		const struct end *e = &ends[k], *peer = &ends[!k];
		good &= EXPECT(e->qp->posted <= peer->qp->recv_posted);
		good &= EXPECT_EQ((uint32_t)e->qp->posted, e->q->sent);
		good &= EXPECT((int32_t)(e->q->limit - e->q->sent) >= 0); /* never negative */
		good &= EXPECT((int32_t)(peer->q->announced - e->q->limit) >= 0);
		good &= EXPECT((int32_t)((uint32_t)peer->qp->recv_posted - peer->q->announced) >= 0);
	}
	return good;
}

static bool step(struct end *e, bool adds, bool faults)
{
	static const int fault = ENOMEM;
	int got = 0;
	switch (dice(8)) {
	case 0: case 1: case 2:
		got = adds ? add_end(e) : 0;
		break;
	case 3: case 4:
		got = hugepin_sgq_poll(e->q, (int)dice(6));
		break;
	case 5: case 6:
		mock_run(e->qp, dice(5));
		break;
	default:
		got = hugepin_sgq_flush(e->q);
	}
	if (faults && !dice(20))
		e->qp->refuse_in = 1 + dice(3);
	if (faults && !dice(20))
		e->qp->refuse_recv_in = 1 + dice(6);
	return EXPECT(got >= 0 || got == -EAGAIN || got == -fault || got == -EMSGSIZE);
}

/* Until nothing happens any more. */
static void settle(void)
{
	for (int k = 0; k < 2; k++)
		ends[k].qp->refuse_in = ends[k].qp->refuse_recv_in = 0;
	for (int idle = 0, rounds = 0; idle < 5 && EXPECT(rounds < 100000); rounds++) {
		int moved = 0;
		for (int k = 0; k < 2; k++) {
			int got = hugepin_sgq_poll(ends[k].q, 9);
			EXPECT(got >= 0);
			moved += got > 0;
			moved += mock_run(ends[k].qp, 9) > 0;
		}
		idle = moved ? 0 : idle + 1;
	}
}

/* A million steps. */
TEST(two_sides_in_any_turns_never_send_without_a_receive_lose_nothing_and_never_wait_for_each_other)
{
	enum { WORLDS = 250, STEPS = 4000 };
	unsigned blocked = 0, frames = 0, messages = 0;
	for (unsigned world = 0; world < WORLDS; world++) {
		seed = world;
		begin_ends(HUGEPIN_SGQ_CREDITS | (world % 3 ? 0 : HUGEPIN_SGQ_MT));
		const unsigned first = dice(4) ? 8 : dice(9); /* of eight turns that the first side has */
		const bool one_way = !dice(3), faults = !dice(3);
		for (unsigned i = 0; i < STEPS; i++) {
			const int k = dice(8) >= first;
			if (!step(&ends[first == 8 ? dice(2) : (unsigned)k], !(one_way && (first == 8 ? i & 1 : (unsigned)k)), faults) ||
			    !sound())
				break;
		}
		settle();
		sound();
		for (int k = 0; k < 2; k++) {
			const struct end *e = &ends[k], *peer = &ends[!k];
			EXPECT_EQ(e->good, e->added);
			EXPECT_EQ(peer->heard, e->added);
			EXPECT_EQ(peer->strange, 0);
			/* no credit is lost: what was told has come, and all receives are posted and counted */
			EXPECT_EQ(peer->q->taken, e->q->sent);
			EXPECT_EQ(peer->q->announced, e->q->limit);
			EXPECT_EQ((uint32_t)peer->qp->recv_posted, peer->q->taken + peer->q->recv_depth);
			EXPECT((uint32_t)peer->qp->recv_posted - peer->q->announced < peer->q->recv_depth / 2 || !peer->q->taken);
			blocked += e->blocked;
			frames += e->q->sent;
			messages += (unsigned)e->added;
		}
		/* idle queues send nothing more */
		const uint64_t posted = ends[0].qp->posted + ends[1].qp->posted;
		settle();
		EXPECT_EQ(ends[0].qp->posted + ends[1].qp->posted, posted);
		close_ends();
		if (t_failed_in((int)world))
			return;
	}
	t_print("# %u messages in %u frames, %u waits for credits\n", messages, frames, blocked);
	EXPECT(blocked > 1000);
}

TEST(a_queue_pair_that_fails_while_frames_wait_for_credits_tells_each_message_once)
{
	for (unsigned world = 0; world < 300; world++) {
		seed = world;
		begin_ends(HUGEPIN_SGQ_CREDITS);
		for (unsigned i = 0, when = dice(300); i < 300; i++) {
			struct end *e = &ends[dice(2)];
			if (i == when)
				mock_error(ends[dice(2)].qp, dice(2) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR);
			if (dice(2))
				add_end(e);
			else
				hugepin_sgq_poll(e->q, (int)dice(4));
			mock_run(ends[dice(2)].qp, dice(3));
		}
		for (int i = 0; i < 50; i++)
			for (int k = 0; k < 2; k++) {
				hugepin_sgq_poll(ends[k].q, 9);
				mock_run(ends[k].qp, 9);
			}
		for (int k = 0; k < 2; k++) {
			EXPECT(ends[!k].heard >= ends[k].good);
			EXPECT_EQ(ends[k].strange, 0);
		}
		close_ends();
		if (t_failed_in((int)world))
			return;
	}
}

/* Two ends of given sizes. */
static void begin_sized(uint32_t depth, uint32_t receives, uint32_t flags)
{
	mock.pace = UINT_MAX;
	empty = true;
	domain = domain_of_mock();
	seed = 1;
	for (int k = 0; k < 2; k++)
		open_end(&ends[k], HUGEPIN_SGQ_CREDITS | flags, depth, receives, 0);
	open_ends(ends[1].attr.flags);
}

static int add_short(struct end *e)
{
	int got = hugepin_sgq_add(e->q, NULL, 0, e->added, told_end, e, HUGEPIN_SG_NOW);
	e->added += got >= 0;
	return got;
}

TEST(an_add_without_credits_ends_by_a_message_of_the_peer_alone_and_the_descriptor_says_when_to_look)
{
	begin_sized(4, 8, HUGEPIN_SGQ_WAIT);
	for (int i = 0; i < 3 + 4; i++) { /* the first credits but one, then a frame in each slot */
		EXPECT_EQ(add_short(&ends[0]), 1);
		hugepin_sgq_poll(ends[0].q, 9);
		EXPECT_EQ(hugepin_sgq_due(ends[0].q, NULL), i >= 3);
	}
	EXPECT_EQ(ends[0].qp->posted, 3);
	for (int i = 0; i < 10; i++) {
		EXPECT_EQ(add_short(&ends[0]), -EAGAIN);
		EXPECT_EQ(hugepin_sgq_poll(ends[0].q, 9), 0);
		EXPECT_EQ(hugepin_sgq_due(ends[0].q, NULL), 1);
	}
	unsigned events = ((struct mock_cq *)ends[0].cq)->events;
	EXPECT_EQ(hugepin_sgq_poll(ends[1].q, 9), 3); /* and an empty frame goes back, solicited */
	EXPECT_EQ(ends[1].qp->posted, 1);
	EXPECT(hugepin_sgq_poll(ends[0].q, 9) >= 1);
	EXPECT_EQ(((struct mock_cq *)ends[0].cq)->events, events + 1);
	EXPECT_EQ(ends[0].qp->posted, 7);
	settle();
	EXPECT_EQ(hugepin_sgq_due(ends[0].q, NULL), 0);
	EXPECT_EQ(add_short(&ends[0]), 1);
	settle();
	EXPECT_EQ(ends[1].strange, 0);
	close_ends();
}

TEST(frames_that_go_back_anyway_carry_the_credits)
{
	begin_sized(4, 8, 0);
	uint64_t rounds = 1000;
	for (uint64_t i = 0; i < rounds; i++)
		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(add_short(&ends[k]), 1);
			settle();
		}
	EXPECT(ends[0].qp->posted + ends[1].qp->posted <= 2 * rounds + 2); /* beside those at the start */
	close_ends();
}

/* The peer's queue may not be open yet. */
TEST(a_queue_that_has_heard_nothing_says_nothing)
{
	begin_sized(4, 20, 0);
	settle();
	EXPECT_EQ(ends[0].qp->posted + ends[1].qp->posted, 0);
	EXPECT_EQ(add_short(&ends[0]), 1);
	settle();
	EXPECT_EQ(ends[1].q->limit, 20);
	EXPECT_EQ(ends[1].qp->posted, 1); /* the peer tells of its receives, too */
	EXPECT_EQ(ends[0].q->limit, 21);
	EXPECT_EQ(ends[0].qp->posted, 1);
	close_ends();
}

TEST(sub_messages_that_wait_for_credits_go_together)
{
	begin_sized(8, 8, 0);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(add_short(&ends[0]), 1);
	for (int i = 0; i < 12; i++) {
		EXPECT_EQ(hugepin_sgq_add(ends[0].q, NULL, 0, ends[0].added++, told_end, &ends[0], 0), 1);
		hugepin_sgq_poll(ends[0].q, 9);
	}
	EXPECT_EQ(ends[0].qp->posted, 3);
	EXPECT_EQ(ends[0].q->next - ends[0].q->posted, 1); /* and one is held, with 11 */
	settle();
	EXPECT_EQ(ends[1].heard, 15);
	EXPECT_EQ(ends[0].qp->posted, 5);
	close_ends();
}

TEST(a_message_of_the_programs_own_takes_back_no_credit)
{
	begin_sized(4, 8, 0);
	EXPECT_EQ(add_short(&ends[0]), 1);
	settle();
	static char bytes[8];
	uint32_t key = mock_reg(bytes, sizeof bytes, HUGEPIN_READ), told = ends[1].q->announced;
	struct ibv_sge sge = { (uintptr_t)bytes, sizeof bytes, key };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	const uint64_t posted = ends[1].qp->posted;
	EXPECT_EQ(ibv_post_send(&ends[0].qp->qp, &wr, &bad), 0);
	ends[1].qp->refuse_recv_in = 1; /* its receive is not there again at once */
	EXPECT_EQ(hugepin_sgq_poll(ends[1].q, 1), 1);
	EXPECT_EQ(ends[1].strange, 1);
	EXPECT_EQ(add_short(&ends[1]), 1);
	EXPECT_EQ(ends[1].qp->posted, posted + 1);
	EXPECT_EQ(ends[1].q->announced, told);
	mock_dereg(key);
	close_ends();
}

TEST(a_side_with_credits_and_one_without_are_both_told_so_whoever_sends_first)
{
	for (int first = 0; first < 2; first++) {
		begin_sized(4, 8, 0);
		close_ends();
		mock.pace = UINT_MAX;
		domain = domain_of_mock();
		for (int k = 0; k < 2; k++)
			open_end(&ends[k], HUGEPIN_SGQ_CREDITS, 4, 8, 0);
		open_ends(0);
		EXPECT_EQ(add_short(&ends[first]), 1);
		int end[2] = { 0 };
		for (int i = 0; i < 20; i++)
			for (int k = 0; k < 2; k++)
				end[k] = hugepin_sgq_poll(ends[k].q, 9);
		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(end[k], -EPROTO);
			EXPECT_EQ(add_short(&ends[k]), -EPROTO);
			EXPECT_EQ(hugepin_sgq_flush(ends[k].q), -EPROTO);
			EXPECT_EQ(hugepin_sgq_wc_status(ends[k].q, NULL), IBV_WC_SUCCESS);
		}
		EXPECT_EQ(ends[first].good, 1);
		close_ends();
	}
}

TEST(credits_that_no_queue_can_give_end_the_queue)
{
	begin_sized(4, 8, 0);
	unsigned char frame[24];
	EXPECT_EQ(hugepin_sg_frame(frame, sizeof frame, NULL, NULL, 0), 24);
	frame[3] = 1;
	memset(frame + 20, 0x70, 4);
	uint32_t key = mock_reg(frame, sizeof frame, HUGEPIN_READ);
	struct ibv_sge sge = { (uintptr_t)frame, sizeof frame, key };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	EXPECT_EQ(ibv_post_send(&ends[0].qp->qp, &wr, &bad), 0);
	for (int i = 0; i < 5; i++)
		hugepin_sgq_poll(ends[1].q, 9);
	EXPECT_EQ(hugepin_sgq_poll(ends[1].q, 9), -EPROTO);
	mock_dereg(key);
	close_ends();
}

TEST(credits_need_a_connection_frames_and_receives_of_the_queues_own)
{
	begin_sized(4, 8, 0);
	hugepin_sgq *q;
	struct hugepin_sgq_attr a = ends[0].attr;
	a.flags |= HUGEPIN_SGQ_RAW;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	a = ends[0].attr;
	a.recv_depth = 3;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = 4, .frame_bytes = 256 };
	a = ends[0].attr;
	a.recv_depth = 0;
	EXPECT_EQ(hugepin_sgpool_open(&pa, &a.pool), 0);
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	EXPECT_EQ(hugepin_sgpool_close(a.pool), 0);
	struct mock_qp *ud = mock_qp(IBV_QPT_UD, ends[0].cq, &(struct ibv_qp_cap){ 4, 8, 1, 1, 0 }, NULL);
	struct ibv_ah ah;
	a = ends[0].attr;
	a.qp = &ud->qp;
	a.ah = &ah;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	mock_qp_free(ud);
	close_ends();
}

T_MAIN
