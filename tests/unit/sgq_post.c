/*
 * Queues whose work requests the program posts itself, at once or later, among work requests of its own.
 */
#include "tests/unit/sgq.h"

/* A loop of the program's own: what the queue hands over waits in a list until post_kept(). */
static struct ibv_send_wr *kept_first, *kept_last;
static unsigned handed_over, refuse_in; /* the n-th work request from now is refused, and those behind it */

static int keep(void *arg, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	EXPECT(arg == &kept_first);
	for (struct ibv_send_wr *next, *wr = first; wr; wr = next) {
		next = wr->next;
		if (refuse_in && !--refuse_in) {
			*bad = wr;
			return ENOMEM;
		}
		wr->next = NULL;
		if (kept_last)
			kept_last->next = wr;
		else
			kept_first = wr;
		kept_last = wr;
		handed_over++;
	}
	return 0;
}

static void post_kept(void)
{
	struct ibv_send_wr *bad = NULL;
	if (kept_first)
		EXPECT_EQ(ibv_post_send(&w.qp[0]->qp, kept_first, &bad), 0);
	kept_first = kept_last = NULL;
}

static void begin_kept(uint32_t flags)
{
	kept_first = kept_last = NULL;
	handed_over = refuse_in = 0;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 1 + dice(16), .frame_bytes = 256, .flags = flags,
		.hold_if_outstanding = dice(4), .post = keep, .post_arg = &kept_first }, NULL);
}

TEST(the_program_posts_what_the_queue_fills_whenever_it_likes)
{
	for (int round = 0; round < 200 && !t_failures; round++) {
		seed = (uint64_t)round;
		begin_kept(0);
		for (int i = 0; i < 200; i++) {
			const uint64_t posted = w.qp[0]->posted;
			if (!dice(20))
				refuse_in = 1 + dice(3);
			const int got = add_random(200, HUGEPIN_SG_COPY_OK | (dice(2) ? HUGEPIN_SG_MULTI : 0));
			EXPECT(got == 0 || got == 1 || got == -EAGAIN || got == -EMSGSIZE || got == -ENOMEM);
			const int flushed = dice(4) ? 0 : hugepin_sgq_flush(w.out);
			EXPECT(flushed == 0 || flushed == -ENOMEM);
			EXPECT_EQ(w.qp[0]->posted, posted); /* the queue posts nothing itself */
			if (!dice(3))
				post_kept();
			const int polled = hugepin_sgq_poll(w.out, (int)dice(4));
			EXPECT(polled >= 0 || polled == -ENOMEM);
			hugepin_sgq_poll(w.in, 16);
		}
		refuse_in = 0;
		for (int i = 0; i < 1000 && told < added; i++) {
			post_kept();
			hugepin_sgq_poll(w.out, 16);
			hugepin_sgq_poll(w.in, 16);
		}
		EXPECT_EQ(w.qp[0]->posted, handed_over);
		all_well();
		end();
	}
}

TEST(kept_work_requests_of_a_queue_pair_that_fails_are_told_when_they_are_posted)
{
	for (int round = 0; round < 200 && !t_failures; round++) {
		seed = (uint64_t)round;
		begin_kept(0);
		lossy = true;
		for (int i = 0; i < 40; i++) {
			add_random(200, HUGEPIN_SG_COPY_OK);
			if (!dice(3))
				post_kept();
			if (i == 20)
				mock_error(w.qp[0], IBV_WC_RETRY_EXC_ERR);
			hugepin_sgq_poll(w.out, (int)dice(4));
			hugepin_sgq_poll(w.in, 16);
		}
		const bool waits = kept_first;
		EXPECT(!waits || hugepin_sgq_close(w.out) == -EBUSY);
		for (int i = 0; i < 100 && told < added; i++) {
			post_kept();
			hugepin_sgq_poll(w.out, 16);
		}
		for (unsigned i = 1; i < added; i++)
			EXPECT(!sub[i - 1].status || sub[i].status);
		end();
	}
}

static int call_the_queue(void *arg, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	struct iovec piece = { memory, 4 };
	struct ibv_wc wc = { .wr_id = first->wr_id };
	(void)arg;
	errno = 5; /* add_pieces() sees that the program's errno stays */
	EXPECT_EQ(hugepin_sgq_add(w.out, &piece, 1, 0, NULL, NULL, 0), -EBUSY);
	EXPECT_EQ(hugepin_sgq_flush(w.out), -EBUSY);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 1), -EBUSY);
	EXPECT_EQ(hugepin_sg_wc(&wc), -EBUSY);
	EXPECT_EQ(hugepin_sgq_close(w.out), -EBUSY);
	EXPECT_EQ(hugepin_sgq_abort(w.out), -EBUSY);
	handed_over++;
	return ibv_post_send(&w.qp[0]->qp, first, bad);
}

TEST(a_post_function_must_not_call_the_queue)
{
	handed_over = 0;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .post = call_the_queue }, NULL);
	EXPECT_EQ(add_one(10, 0), 1);
	EXPECT_EQ(handed_over, 1);
	drain();
	all_well();
	end();
}

T_MAIN
