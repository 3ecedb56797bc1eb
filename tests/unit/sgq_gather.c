/*
 * Pieces that a frame gathers: how many elements they take, under which keys, and how long their registrations stay.
 */
#include "tests/unit/sgq.h"

/* The device looks up a key when it sends. A registration that was given back meanwhile would fail. */
TEST(registrations_come_and_go_but_not_those_of_slots_and_of_what_is_out)
{
	for (uint32_t policy = HUGEPIN_POLICY_ARENA; policy <= HUGEPIN_POLICY_PREDICT; policy++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .hold_if_outstanding = 2,
								    .recv = hear_nothing }, NULL);
		struct hugepin_attr of_domain = { .size = sizeof of_domain, .policy = policy,
						  .pinned_bytes_max = (16 + 4) * AREA };
		hugepin_domain *d;
		hugepin_sgq *q;
		unsigned sent = 0, gathered = 0;
		struct mock_qp *qp = mock_qp(IBV_QPT_RC, w.cq[0], &usual, NULL);
		mock_connect(qp, w.qp[1]);
		EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, &of_domain, &d), 0);
		struct hugepin_sgq_attr a = w.attr;
		a.qp = &qp->qp;
		a.domain = d;
		a.flags = 0;
		EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
		thread_done = 0;
		for (int i = 0; i < 3000; i++) {
			struct hugepin_pin pin;
			struct iovec piece = { memory + dice(AREAS) * AREA + dice(AREA / 2), 100 + dice(2000) };
			mock.pace = dice(3);
			if (!hugepin_pin(d, piece.iov_base, piece.iov_len, HUGEPIN_READ, &pin))
				EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			if (!dice(50))
				hugepin_forget(memory + dice(AREAS) * AREA, AREA);
			int got = hugepin_sgq_add(q, &piece, 1, 0, count_done, NULL, HUGEPIN_SG_COPY_OK);
			EXPECT(got >= 0 || got == -EAGAIN);
			sent += got >= 0;
			gathered += got == 0;
			EXPECT(hugepin_sgq_poll(q, 2) >= 0);
			hugepin_sgq_poll(w.in, 16);
		}
		mock.pace = UINT_MAX;
		for (int i = 0; thread_done < sent && EXPECT(i < 1000); i++) {
			hugepin_sgq_poll(q, 9);
			hugepin_sgq_poll(w.in, 16);
		}
		EXPECT(gathered > 1000);
		EXPECT_EQ(hugepin_sgq_close(q), 0);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		EXPECT_EQ(qp->mistakes, 0);
		mock_qp_free(qp);
		end();
	}
}

TEST(long_pieces_are_gathered_under_one_pin_each_registration)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4 }, NULL);
	fill(memory, 2 * AREA);
	struct iovec iov[] = { { memory, 10 }, { memory + 100, 200 }, { memory + 1000, 200 }, { memory + 1200, 300 } };
	EXPECT_EQ(add_pieces(iov, 4, 0, 0), 0);
	EXPECT_EQ(w.qp[0]->elements, 3); /* the last two are neighbours */
	EXPECT_EQ(drain(), 0);
	/* neighbours under two keys */
	EXPECT(w.pin[0].lkey != w.pin[1].lkey);
	EXPECT_EQ(add_pieces((struct iovec[]){ { memory + AREA - 100, 100 }, { memory + AREA, 100 } }, 2, -1, 0), 0);
	EXPECT_EQ(w.qp[0]->elements, 6);
	drain_and_end();
}

TEST(what_is_gathered_stays_registered_until_its_frame_has_completed)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	char *p = memory + 5 * AREA;
	uint32_t lkey = w.pin[5].lkey;
	EXPECT_EQ(hugepin_unpin(w.domain, &w.pin[5]), 0); /* it stays in the cache */
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(add_pieces(&(struct iovec){ p + 200 * i, 100 }, 1, 5, 0), 0); /* the last two are one frame */
	EXPECT_EQ(hugepin_forget(p, AREA), -EBUSY);
	for (int i = 0; i < 2; i++) {
		EXPECT(mock_key_good(lkey, (uintptr_t)p, AREA, HUGEPIN_READ));
		EXPECT_EQ(mock_run(w.qp[0], 1), 1);
		EXPECT_EQ(hugepin_sgq_poll(w.out, 9), 1);
	}
	EXPECT_EQ(told, 3);
	EXPECT(!mock_key_good(lkey, (uintptr_t)p, AREA, HUGEPIN_READ));
	mock.pace = UINT_MAX;
	drain_and_end();
}

/* While a frame is held, the program may replace memory that the frame's registration covers beside its pieces. */
TEST(a_frame_does_not_go_on_using_a_key_that_was_invalidated)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	char *p = memory + 5 * AREA;
	uint32_t lkey = w.pin[5].lkey;
	struct hugepin_pin again;
	EXPECT_EQ(hugepin_unpin(w.domain, &w.pin[5]), 0);
	EXPECT_EQ(add_one(10, 0), 1);
	EXPECT_EQ(add_pieces(&(struct iovec){ p, 100 }, 1, -1, 0), 0);
	EXPECT_EQ(hugepin_forget(p + 8192, 4096), -EBUSY);
	EXPECT_EQ(add_pieces(&(struct iovec){ p + 8192, 100 }, 1, -1, 0), -ENOKEY);
	EXPECT_EQ(hugepin_pin(w.domain, p + 8192, 4096, HUGEPIN_READ, &again), 0);
	EXPECT(again.lkey != lkey);
	EXPECT_EQ(add_pieces(&(struct iovec){ p + 8192, 100 }, 1, -1, 0), 0);
	EXPECT_EQ(hugepin_sgq_flush(w.out), 0);
	EXPECT_EQ(w.qp[0]->sq[1].sge[1].lkey, lkey);
	EXPECT_EQ(w.qp[0]->sq[1].sge[2].lkey, again.lkey);
	EXPECT_EQ(hugepin_unpin(w.domain, &again), 0);
	mock.pace = UINT_MAX;
	drain_and_end();
}

TEST(neighbours_that_are_added_one_by_one_are_one_element_however_many)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	fill(memory, AREA);
	EXPECT_EQ(add_one(10, 0), 1);
	for (int i = 0; i < 40; i++)
		EXPECT_EQ(add_pieces(&(struct iovec){ memory + 100 * i, 100 }, 1, -1, 0), 0);
	EXPECT_EQ(hugepin_sgq_flush(w.out), 0);
	EXPECT_EQ(w.qp[0]->posted, 2);
	EXPECT_EQ(w.qp[0]->sq[1].num_sge, 2);
	mock.pace = UINT_MAX;
	drain_and_end();
}

TEST(of_more_pieces_than_elements_the_longest_are_gathered)
{
	struct ibv_qp_cap cap = usual;
	cap.max_send_sge = 3;
	begin(IBV_QPT_RC, cap, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	fill(memory, AREA);
	struct iovec iov[] = { { memory, 100 }, { memory + 200, 100 }, { memory + 400, 1000 }, { memory + 2000, 100 } };
	EXPECT_EQ(add_pieces(iov, 4, -1, 0), 0);
	EXPECT_EQ(w.qp[0]->sq[0].num_sge, 3);
	EXPECT_EQ(w.qp[0]->sq[0].sge[1].addr, (uintptr_t)memory + 400);
	/* and a frame that has too few left goes, so that nothing need be copied */
	EXPECT_EQ(add_pieces(iov, 1, -1, 0), 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	EXPECT_EQ(add_pieces(iov, 2, -1, HUGEPIN_SG_SOLICITED), 0);
	EXPECT_EQ(w.qp[0]->posted, 3); /* the second one's are all taken, too */
	EXPECT_EQ(w.qp[0]->sq[1].num_sge, 2);
	EXPECT_EQ(w.qp[0]->sq[2].num_sge, 3);
	EXPECT_EQ(w.qp[0]->sq[1].flags & IBV_SEND_SOLICITED, 0);
	EXPECT_EQ(w.qp[0]->sq[2].flags & IBV_SEND_SOLICITED, IBV_SEND_SOLICITED);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(add_one(10, 0), 1);
	EXPECT_EQ(w.qp[0]->sq[3].sge[0].addr, w.qp[0]->sq[0].sge[0].addr); /* idle: the first slot again */
	drain_and_end();
}

T_MAIN
