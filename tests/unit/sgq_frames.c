/*
 * Sub-messages become frames: which ones share a frame, when a frame goes, which frames are signalled, and which
 * sub-messages are refused. Frames with headers and raw frames, over reliable connections.
 */
#include <time.h>

#include "tests/unit/sgq.h"

TEST(random_sub_messages_arrive_whole_once_and_in_order)
{
	for (int round = 0; round < 300; round++) {
		seed = (uint64_t)round;
		random_world(IBV_QPT_RC, &mock_providers[round % MOCK_PROVIDERS]);
		for (int i = 0; i < 150; i++) {
			unsigned flags = (dice(2) ? HUGEPIN_SG_COPY_OK : 0) | (dice(2) ? HUGEPIN_SG_MULTI : 0) |
					 (dice(8) ? 0 : HUGEPIN_SG_NOW) | (dice(8) ? 0 : HUGEPIN_SG_SOLICITED);
			int got = add_random(flags & HUGEPIN_SG_MULTI ? 6000 : w.attr.frame_bytes, flags);
			EXPECT(got == 0 || got == 1 || got == -EAGAIN || got == -EMSGSIZE);
			if (!dice(4))
				EXPECT(hugepin_sgq_poll(w.out, (int)dice(4)) >= 0);
			if (!dice(4))
				EXPECT(hugepin_sgq_poll(w.in, (int)dice(40)) >= 0);
			if (mock.pace == 0)
				mock_run(w.qp[0], dice(3));
			if (!dice(10))
				EXPECT_EQ(hugepin_sgq_flush(w.out), 0);
		}
		drain_and_end();
		if (t_failed_in(round))
			return;
	}
}

TEST(a_frame_is_one_message_of_small_pieces_inline)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	EXPECT_EQ(add_one(8, 0), 1); /* nothing is out: it goes at once */
	EXPECT_EQ(w.qp[0]->posted, 1);
	EXPECT_EQ(w.qp[0]->inlined, 1);
	for (int i = 0; i < 10; i++)
		EXPECT_EQ(add_one(30, 0), 1); /* backlog: these wait, and go together */
	EXPECT_EQ(hugepin_sgq_poll(w.out, 10), 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	mock_run(w.qp[0], 1);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 10), 1);
	EXPECT_EQ(w.qp[0]->posted, 2);
	EXPECT_EQ(w.qp[0]->inlined, 1);
	EXPECT_EQ(w.qp[0]->elements, 2);
	EXPECT_EQ(told, 1);
	mock.pace = 1;
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(w.qp[0]->posted, 2);
	all_well();
	end();
}

TEST(what_the_model_refuses_is_not_done_and_cold_pieces_have_a_threshold_of_their_own)
{
	struct hugepin_sg_model m = model;
	m.apart_below[1] = 16;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .model = &m }, NULL);
	EXPECT_EQ(add_one(40, 0), 1);
	EXPECT_EQ(add_one(40, HUGEPIN_SG_COLD), 0);
	EXPECT_EQ(add_one(4, 0), 1);
	EXPECT_EQ(w.qp[0]->inlined, 1);
	drain_and_end();
	m.refused = HUGEPIN_SG_INLINE | HUGEPIN_SG_GATHER;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .model = &m }, NULL);
	EXPECT_EQ(add_one(4, 0), 1);
	EXPECT_EQ(add_one(4000, 0), 1);
	EXPECT_EQ(w.qp[0]->inlined, 0);
	drain_and_end();
}

TEST(hold_if_outstanding_sends_at_once_while_fewer_are_out)
{
	for (uint32_t hold = 0; hold <= 8; hold++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 6, .hold_if_outstanding = hold }, NULL);
		mock.pace = 0;
		for (int i = 0; i < 6; i++)
			EXPECT(add_one(20, 0) >= 0);
		/* 0: as long as there is another slot. 6 and more: always */
		uint32_t expected = hold == 0 ? 5 : hold < 6 ? hold : 6;
		EXPECT_EQ(w.qp[0]->posted, expected);
		EXPECT_EQ(add_one(20, 0), hold >= 6 ? -EAGAIN : 1);
		EXPECT_EQ(hugepin_sgq_flush(w.out), 0);
		EXPECT_EQ(w.qp[0]->posted, expected + (hold < 6));
		mock.pace = 1;
		drain_and_end();
	}
}

TEST(bytes_count_now_and_deadline_flush_what_is_held)
{
	static const struct {
		struct hugepin_sgq_attr attr;
		unsigned flags;
		int before; /* how many of 20 bytes are held before the one that flushes */
	} cases[] = {
		{ { .flush_bytes = 70 }, 0, 3 },
		{ { .flush_count = 3 }, 0, 2 },
		{ { .frame_bytes = 256 }, 0, 6 }, /* 24 + 7 * 12 + 4 of padding + 7 * 20 = 252 */
		{ { .deadline_ns = 1 }, 0, 0 },
		{ { .flush_bytes = 1000 }, HUGEPIN_SG_NOW, 0 },
	};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct hugepin_sgq_attr a = cases[c].attr;
		a.depth = 4;
		a.hold_if_outstanding = 1;
		begin(IBV_QPT_RC, usual, a, NULL);
		mock.pace = 0;
		EXPECT_EQ(add_one(20, 0), 1); /* goes, and makes the others wait */
		for (int i = 0; i < cases[c].before; i++)
			EXPECT_EQ(add_one(20, 0), 1);
		EXPECT_EQ(w.qp[0]->posted, 1);
		EXPECT_EQ(add_one(20, cases[c].flags), 1);
		if (a.deadline_ns) {
			nanosleep(&(struct timespec){ .tv_nsec = 1000 }, NULL);
			EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 0);
		}
		if (!EXPECT_EQ(w.qp[0]->posted, 2))
			t_print("# case %zu\n", c);
		mock.pace = UINT_MAX;
		drain_and_end();
	}
}

TEST(a_deadline_that_has_not_come_holds)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1,
							    .deadline_ns = UINT64_C(3600000000000) }, NULL);
	mock.pace = 0;
	EXPECT_EQ(add_one(20, 0), 1);
	EXPECT_EQ(add_one(20, 0), 1);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	mock.pace = 1;
	EXPECT_EQ(drain(), 0);
	end();
}

TEST(a_stream_is_signalled_now_and_then_and_its_tail_always)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 16, .frame_bytes = 256, .hold_if_outstanding = 2 },
	      NULL);
	unsigned posted = 0;
	for (int i = 0; i < 1000; i++) {
		mock.pace = i % 20 ? 0 : 5;
		while (add_one(60, 0) == -EAGAIN) {
			mock.pace = 3;
			hugepin_sgq_poll(w.out, 1);
			hugepin_sgq_poll(w.in, 16);
		}
		posted = (unsigned)w.qp[0]->posted;
	}
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	all_well();
	EXPECT(w.qp[0]->signalled < posted / 2);
	EXPECT_EQ(w.qp[0]->freed, w.qp[0]->posted);
	end();
}

/* Two frames go at once, each signalled. The last frame is held. Of the frames between, every fourth of the depth is
 * signalled. */
TEST(of_a_stream_that_goes_on_every_fourth_of_the_depth_is_signalled)
{
	begin(IBV_QPT_RC, (struct ibv_qp_cap){ 32, 1, 4, 1, 0 },
	      (struct hugepin_sgq_attr){ .depth = 32, .frame_bytes = 256, .hold_if_outstanding = 2 }, NULL);
	mock.pace = 0;
	for (unsigned i = 0; i < 30; i++) {
		EXPECT(add_one(60, 0) >= 0);
		for (int j = 0; j < 3 && w.qp[0]->posted <= i; j++)
			EXPECT(add_one(60, 0) >= 0);
		if (w.qp[0]->posted > 2)
			EXPECT_EQ(w.qp[0]->signalled, 2 + (w.qp[0]->posted - 2) / 8);
	}
	EXPECT(w.qp[0]->posted >= 20);
	mock.pace = UINT_MAX;
	drain_and_end();
}

TEST(what_does_not_fit_or_has_no_key_leaves_everything_as_it_was)
{
	begin(IBV_QPT_RC, (struct ibv_qp_cap){ 16, 1, 8, 1, 0 },
	      (struct hugepin_sgq_attr){ .depth = 2, .frame_bytes = 512, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	char *foreign = memory + 3 * AREA;
	fill(memory, AREA);
	fill(foreign, AREA);
	fill(memory + AREA, AREA);
	struct iovec good = { memory, 100 }, bad[] = { { memory, 20 }, { memory + AREA, 70 }, { foreign, 100 } };
	EXPECT_EQ(add_pieces(&good, 1, -1, 0), 0);
	EXPECT_EQ(add_pieces(&good, 1, -1, 0), 0);
	EXPECT_EQ(add_pieces(&(struct iovec){ memory, 3 }, 1, -1, 0), 1);
	EXPECT_EQ(add_pieces(bad, 3, -1, 0), -ENOKEY);
	EXPECT_EQ(add_pieces(bad, 3, -1, HUGEPIN_SG_COPY_OK), 0);
	EXPECT_EQ(add_pieces(&(struct iovec){ foreign, 60 }, 1, -1, 0), 1); /* short: nobody asks for its key */
	EXPECT_EQ(add_pieces(&(struct iovec){ memory, 512 }, 1, -1, 0), -EMSGSIZE);
	EXPECT_EQ(add_pieces(&(struct iovec){ memory, 513 }, 1, -1, HUGEPIN_SG_MULTI), -EAGAIN);
	/* over two frames */
	EXPECT_EQ(add_pieces(&(struct iovec){ memory, 1000 }, 1, -1, HUGEPIN_SG_MULTI), -EMSGSIZE);
	EXPECT_EQ(hugepin_sgq_add(w.out, &(struct iovec){ (void *)-8, 9 }, 1, 0, NULL, NULL, 0), -EINVAL);
	EXPECT_EQ(hugepin_sgq_add(w.out, &good, -1, 0, NULL, NULL, 0), -EINVAL);
	EXPECT_EQ(hugepin_sgq_add(w.out, NULL, 1, 0, NULL, NULL, 0), -EINVAL);
	EXPECT_EQ(hugepin_sgq_add(w.out, &good, 1, 0, NULL, NULL, 1), -EINVAL);
	struct iovec long_ones[2] = { { memory, UINT32_MAX }, { memory, 1 } };
	EXPECT_EQ(hugepin_sgq_add(w.out, long_ones, 2, 0, NULL, NULL, 0), -EOVERFLOW);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	/* a part that has no key */
	struct iovec parts[] = { { memory, 480 }, { foreign, 400 } };
	EXPECT_EQ(add_pieces(parts, 2, -1, HUGEPIN_SG_MULTI), -ENOKEY);
	EXPECT_EQ(w.qp[0]->posted, w.qp[0]->freed);
	EXPECT_EQ(add_pieces(parts, 2, -1, HUGEPIN_SG_MULTI | HUGEPIN_SG_COPY_OK), 0);
	drain_and_end();
}

/* The queue closes a frame, since a sub-message does not fit into it. Then that sub-message fails. The frame must not
 * wait for another. */
TEST(nothing_waits_for_a_sub_message_that_was_refused)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .frame_bytes = 512, .hold_if_outstanding = 1 },
	      NULL);
	mock.pace = 0;
	struct iovec good = { memory, 300 }, bad = { memory + 3 * AREA, 300 };
	for (unsigned i = 0; i < 3; i++) {
		EXPECT_EQ(add_pieces(&good, 1, -1, 0), 0);
		EXPECT_EQ(add_pieces(&bad, 1, -1, 0), -ENOKEY);
		EXPECT_EQ(w.qp[0]->posted, i + 1);
	}
	mock.pace = UINT_MAX;
	drain_and_end();
}

TEST(a_frame_of_empty_sub_messages_is_no_longer_than_others)
{
	for (uint32_t bytes = 41; bytes < 300; bytes++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2, .frame_bytes = bytes,
								    .hold_if_outstanding = 1 }, NULL);
		mock.pace = 0;
		for (int i = 0; i < 30; i++)
			EXPECT(add_pieces(NULL, 0, -1, 0) == 1 || hugepin_sgq_add(w.out, NULL, 0, 0, NULL, NULL,
										  0) == -EAGAIN);
		mock.pace = UINT_MAX;
		if (!EXPECT_EQ(drain(), 0))
			t_print("# %u bytes\n", bytes);
		all_well();
		end();
		if (t_failures)
			return;
	}
}

TEST(empty_sub_messages_are_sub_messages)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2 }, NULL);
	EXPECT_EQ(add_pieces(NULL, 0, -1, 0), 1);
	EXPECT_EQ(add_pieces((struct iovec[]){ { NULL, 0 }, { memory, 0 } }, 2, -1, 0), 1);
	EXPECT_EQ(add_pieces((struct iovec[]){ { NULL, 0 }, { memory, 100 }, { NULL, 0 } }, 3, -1, 0), 0);
	drain_and_end();
}

/* ------------------------------------------------------------------ raw frames */

static unsigned char raw_in[1 << 16];
static size_t raw_len;
static unsigned raw_messages;

static void hear_raw(void *arg, const struct hugepin_sg_record *r)
{
	(void)arg;
	EXPECT(r->tag == 0 && r->part == 0 && r->parts == 1);
	memcpy(raw_in + raw_len, r->data, r->len);
	raw_len += r->len;
	raw_messages++;
}

TEST(a_raw_queue_sends_the_bytes_alone_in_order)
{
	for (int round = 0; round < 60; round++) {
		seed = (uint64_t)round;
		raw_len = raw_messages = 0;
		struct ibv_qp_cap cap = usual;
		cap.max_send_sge = 1 + dice(5);
		begin(IBV_QPT_RC, cap, (struct hugepin_sgq_attr){ .depth = 4, .frame_bytes = 1000,
								  .flags = HUGEPIN_SGQ_RAW,
			.hold_if_outstanding = dice(4), .recv = hear_raw }, NULL);
		for (int i = 0; i < 40; i++) {
			if (add_random(1000, dice(2) ? HUGEPIN_SG_COPY_OK : 0) == -EAGAIN)
				hugepin_sgq_poll(w.out, 1), hugepin_sgq_poll(w.in, 1);
		}
		EXPECT_EQ(add_one(1001, HUGEPIN_SG_MULTI), -EMSGSIZE);
		EXPECT_EQ(drain(), 0);
		size_t at = 0;
		for (unsigned i = 0; i < added; i++) {
			EXPECT(!memcmp(raw_in + at, sub[i].bytes, sub[i].len));
			at += sub[i].len;
			sub[i].got = sub[i].len;
			EXPECT_EQ(sub[i].status, 0);
		}
		EXPECT_EQ(at, raw_len);
		EXPECT_EQ(raw_messages, w.qp[0]->posted);
		end();
		if (t_failures)
			return;
	}
}

TEST(a_raw_frame_without_a_byte_is_a_message_without_elements)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2, .flags = HUGEPIN_SGQ_RAW, .recv = hear_raw },
	      NULL);
	raw_len = raw_messages = 0;
	EXPECT_EQ(add_pieces(NULL, 0, -1, 0), 1);
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(raw_messages, 1);
	EXPECT_EQ(raw_len, 0);
	EXPECT_EQ(w.qp[0]->elements, 0);
	end();
}

T_MAIN
