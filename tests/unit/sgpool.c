/*
 * Queues that share a pool of slots (sge/pool.c): who gets a slot, that each byte arrives, that a slow destination stops
 * nobody, and that a pool has all of its slots again when its queues are gone.
 */
#include <malloc.h>

#include "sge/pool.h"
#include "tests/unit/allocated.h"
#include "tests/unit/sgq.h"

/* ------------------------------------------------------------------ the rule */

TEST(a_queue_without_a_slot_gets_one_whatever_the_others_have)
{
	enum { SLOTS = 40, QUEUES = 30 };
	for (int round = 0; round < 300 && !t_failures; round++) {
		uint32_t slot[QUEUES][SLOTS], mine[QUEUES] = { 0 }, list[SLOTS];
		bool open[QUEUES] = { false }, out[SLOTS] = { false };
		struct hugepin_sgpool p = { .slots_max = SLOTS, .free = list, .lock = PTHREAD_MUTEX_INITIALIZER };
		seed = (uint64_t)round;
		for (uint32_t i = 0; i < SLOTS; i++)
			p.free[p.free_count++] = i;
		const uint32_t greed = 1 + dice(10); /* the first queues take more than they give */
		for (int step = 0; step < 2000 && !t_failures; step++) {
			const uint32_t q = dice(QUEUES);
			uint32_t got, owed = 0, taken = 0;
			for (uint32_t i = 0; i < QUEUES; i++) {
				owed += open[i] && !mine[i];
				taken += mine[i];
			}
			EXPECT_EQ(p.owed, owed);
			EXPECT_EQ(p.free_count, SLOTS - taken);
			EXPECT(owed <= p.free_count);
			if (!open[q]) {
				open[q] = hp_sgpool_attach(&p);
				EXPECT_EQ(open[q], owed < SLOTS - taken);
			} else if (q < greed ? dice(8) : dice(2)) {
				const bool took = hp_sgpool_take(&p, mine[q], &got);
				EXPECT_EQ(took, !mine[q] || mine[q] <= SLOTS - taken - owed);
				if (took) {
					EXPECT(!out[got]);
					out[got] = true;
					slot[q][mine[q]++] = got;
				}
			} else if (mine[q]) {
				hp_sgpool_give(&p, mine[q], slot[q][mine[q] - 1]);
				out[slot[q][--mine[q]]] = false;
			} else if (!dice(4)) {
				hp_sgpool_detach(&p);
				open[q] = false;
			}
		}
	}
}

/* ------------------------------------------------------------------ queues */

enum { PAIRS = 6, RECORDS = 400 };

static struct pair {
	struct ibv_cq *cq[2];
	struct mock_qp *qp[2];
	hugepin_sgq *out, *in;
	unsigned added, told, cancelled, heard;
} pair[PAIRS];
static hugepin_domain *domain;
static hugepin_sgpool *pool;
static char *text;
static struct hugepin_pin text_pin;

static void pair_done(void *arg, uint64_t tag, int status)
{
	struct pair *p = arg;
	EXPECT_EQ(tag, p->told);
	p->told++;
	p->cancelled += !!status;
}

static size_t length_of(uint64_t tag)
{
	return (size_t)(tag * 37 % 300);
}

static bool any_length;

static void pair_hear(void *arg, const struct hugepin_sg_record *r)
{
	struct pair *p = arg;
	EXPECT_EQ(r->tag, p->heard);
	if (r->parts == 1 && !any_length) {
		EXPECT_EQ(r->len, length_of(r->tag));
		EXPECT(!memcmp(r->data, text + r->tag, r->len));
	}
	p->heard += r->part + 1 == r->parts;
}

/* The last `slow` pairs have nobody who receives. */
static void begin_pool(uint32_t slots, unsigned slow)
{
	memset(pair, 0, sizeof pair);
	mock.pace = UINT_MAX;
	domain = domain_of_mock();
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = slots, .frame_bytes = 512,
					  .max_sge = 3 };
	EXPECT_EQ(hugepin_sgpool_open(&pa, &pool), 0);
	if (!text) {
		text = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (int i = 0; i < AREA; i++)
			text[i] = (char)(i * 7 + i / 256);
	}
	EXPECT_EQ(hugepin_pin(domain, text, AREA, HUGEPIN_READ, &text_pin), 0);
	for (unsigned i = 0; i < PAIRS; i++) {
		struct pair *p = &pair[i];
		struct ibv_qp_cap cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1 + i, .max_recv_sge = 1 };
		struct ibv_qp_cap in_cap = { .max_send_wr = 1, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 };
		for (int k = 0; k < 2; k++) {
			p->cq[k] = mock_cq(32);
			p->qp[k] = mock_qp(IBV_QPT_RC, p->cq[k], k ? &in_cap : &cap, NULL);
		}
		mock_connect(p->qp[0], p->qp[1]);
		struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &p->qp[0]->qp, .domain = domain, .model = &model,
					      .pool = pool };
		EXPECT_EQ(hugepin_sgq_open(&a, &p->out), 0);
		struct hugepin_sgq_attr in = { .size = sizeof in, .qp = &p->qp[1]->qp, .domain = domain, .model = &model,
					       .frame_bytes = 512, .recv_depth = 8, .recv = pair_hear, .recv_arg = p };
		if (i < PAIRS - slow)
			EXPECT_EQ(hugepin_sgq_open(&in, &p->in), 0);
	}
}

static int add_record(struct pair *p)
{
	struct iovec iov[2] = { { text + p->added, length_of(p->added) / 3 }, { NULL, 0 } };
	iov[1] = (struct iovec){ text + p->added + iov[0].iov_len, length_of(p->added) - iov[0].iov_len };
	const int got = hugepin_sgq_add(p->out, iov, 2, p->added, pair_done, p, 0);
	EXPECT(got == 0 || got == 1 || got == -EAGAIN);
	p->added += got >= 0;
	return got;
}

static void end_pool(void)
{
	for (unsigned i = 0; i < PAIRS; i++) {
		struct pair *p = &pair[i];
		if (p->out)
			EXPECT_EQ(hugepin_sgq_close(p->out), 0);
		EXPECT_EQ(p->told, p->added);
		if (p->in) {
			mock_error(p->qp[1], IBV_WC_SUCCESS);
			while (hugepin_sgq_poll(p->in, 16) > 0)
				;
			EXPECT_EQ(hugepin_sgq_close(p->in), 0);
		}
	}
	EXPECT_EQ(pool->free_count, pool->slots_max);
	EXPECT_EQ(pool->owed, 0);
	EXPECT_EQ(hugepin_sgpool_close(pool), 0);
	EXPECT_EQ(hugepin_unpin(domain, &text_pin), 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0); /* -EBUSY: pins are out */
	for (unsigned i = 0; i < PAIRS; i++)
		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(pair[i].qp[k]->mistakes, 0);
			mock_qp_free(pair[i].qp[k]);
			mock_cq_free(pair[i].cq[k]);
		}
}

TEST(queues_that_share_few_slots_deliver_every_record_in_order)
{
	T_DOMAIN_BEGINS();
	for (uint32_t slots = PAIRS; slots <= 40 && !t_failures; slots += 1 + slots / 4) {
		begin_pool(slots, 0);
		unsigned waited = 0, finished = 0;
		for (int rounds = 0; finished < PAIRS && EXPECT(rounds < 200000); rounds++) {
			struct pair *p = &pair[dice(PAIRS)];
			mock.pace = dice(3);
			for (uint32_t n = dice(20); n && p->added < RECORDS; n--)
				waited += add_record(p) == -EAGAIN;
			EXPECT(hugepin_sgq_poll(p->out, (int)dice(5)) >= 0);
			EXPECT(hugepin_sgq_poll(p->in, (int)dice(5)) >= 0);
			finished = 0;
			for (unsigned i = 0; i < PAIRS; i++)
				finished += pair[i].heard == RECORDS && pair[i].told == RECORDS;
		}
		EXPECT(waited > 0);
		for (unsigned i = 0; i < PAIRS; i++)
			EXPECT_EQ(pair[i].cancelled, 0);
		end_pool();
	}
}

/* Ask for a message of so many frames again and again, while completions are taken. */
static int add_frames(unsigned frames)
{
	struct iovec iov = { text, (size_t)frames * (512 - HUGEPIN_SG_TABLE(1)) };
	int got = -EAGAIN;
	for (int i = 0; i < 100 && got == -EAGAIN; i++) {
		got = hugepin_sgq_add(pair[0].out, &iov, 1, pair[0].added, pair_done, &pair[0],
				      HUGEPIN_SG_MULTI | HUGEPIN_SG_COPY_OK);
		hugepin_sgq_poll(pair[0].out, 16);
		hugepin_sgq_poll(pair[0].in, 16);
	}
	pair[0].added += got >= 0;
	for (int i = 0; i < 100 && pair[0].told < pair[0].added; i++) {
		hugepin_sgq_poll(pair[0].out, 16);
		hugepin_sgq_poll(pair[0].in, 16);
	}
	return got;
}

TEST(a_message_of_more_frames_than_the_pool_ever_gives_a_queue_is_refused_at_once_and_a_shorter_one_goes)
{
	any_length = true;
	for (uint32_t slots = PAIRS; slots < 20; slots++) {
		begin_pool(slots, 0);
		const unsigned most = 1 + (slots - PAIRS + 1) / 2; /* the last one leaves as many spare as it has */
		EXPECT(add_frames(most) >= 0);
		EXPECT_EQ(add_frames(most + 1), -EMSGSIZE);
		EXPECT_EQ(hugepin_sgq_close(pair[1].out), 0); /* one slot less is owed */
		EXPECT_EQ(hugepin_sgq_close(pair[2].out), 0);
		pair[1].out = pair[2].out = NULL;
		EXPECT(add_frames(most + 1) >= 0);
		EXPECT_EQ(pair[0].told, 2);
		EXPECT_EQ(pair[0].heard, 2);
		end_pool();
	}
	any_length = false;
}

/* Nothing is out, so that no completion would end the wait. */
TEST(where_the_provider_refuses_what_holds_the_only_slot_its_error_is_told)
{
	any_length = true;
	begin_pool(PAIRS, 0);
	struct iovec iov = { text, 400 };
	pair[0].qp[0]->refuse_in = 1;
	EXPECT_EQ(hugepin_sgq_add(pair[0].out, &iov, 1, pair[0].added++, pair_done, &pair[0], HUGEPIN_SG_COPY_OK), 1);
	pair[0].qp[0]->refuse_in = 1;
	EXPECT_EQ(hugepin_sgq_add(pair[0].out, &iov, 1, 1, pair_done, &pair[0], HUGEPIN_SG_COPY_OK), -ENOMEM);
	EXPECT_EQ(hugepin_sgq_add(pair[0].out, &iov, 1, 1, pair_done, &pair[0], HUGEPIN_SG_COPY_OK), -EAGAIN);
	pair[0].qp[0]->refuse_in = 0;
	hugepin_sgq_poll(pair[0].out, 16);
	hugepin_sgq_poll(pair[0].in, 16);
	EXPECT_EQ(pair[0].told, 1);
	end_pool();
	any_length = false;
}

TEST(destinations_that_never_receive_stop_nobody_and_give_all_back_when_given_up)
{
	for (unsigned slow = 1; slow < PAIRS && !t_failures; slow++) {
		begin_pool(24, slow);
		for (int n = 0; n < 1000; n++) /* they take what they get */
			for (unsigned i = PAIRS - slow; i < PAIRS; i++)
				add_record(&pair[i]);
		for (unsigned i = 0; i < PAIRS; i++)
			EXPECT(pair[i].out->slots_taken <= 12);
		for (unsigned i = 0; i < PAIRS - slow; i++)
			for (int rounds = 0; pair[i].heard < RECORDS && EXPECT(rounds < 20000); rounds++) {
				if (pair[i].added < RECORDS)
					add_record(&pair[i]);
				hugepin_sgq_poll(pair[i].out, 4);
				hugepin_sgq_poll(pair[i].in, 4);
			}
		EXPECT_EQ(hugepin_sgpool_close(pool), -EBUSY);
		for (unsigned i = PAIRS - slow; i < PAIRS; i++) {
			EXPECT_EQ(hugepin_sgq_close(pair[i].out), -EBUSY);
			mock_modify(pair[i].qp[0], IBV_QPS_RESET);
			EXPECT_EQ(hugepin_sgq_abort(pair[i].out), 0);
			pair[i].out = NULL;
			EXPECT_EQ(pair[i].cancelled, pair[i].added);
		}
		end_pool();
	}
}

TEST(queue_pairs_that_fail_give_their_slots_back)
{
	for (int round = 0; round < 100 && !t_failures; round++) {
		seed = (uint64_t)round;
		begin_pool(16, 0);
		for (int step = 0; step < 300; step++) {
			struct pair *p = &pair[dice(PAIRS)];
			mock.pace = dice(3);
			if (!dice(60))
				mock_error(p->qp[0], IBV_WC_RETRY_EXC_ERR);
			if (!dice(20))
				p->qp[0]->refuse_in = 1 + dice(3);
			if (!p->out->failed) {
				struct iovec iov = { text + p->added, length_of(p->added) };
				const int got = hugepin_sgq_add(p->out, &iov, 1, p->added, pair_done, p,
								dice(2) ? HUGEPIN_SG_MULTI : 0);
				p->added += got >= 0;
			}
			hugepin_sgq_poll(p->out, (int)dice(5));
			hugepin_sgq_poll(p->in, (int)dice(5));
		}
		mock.pace = UINT_MAX;
		for (unsigned i = 0; i < PAIRS; i++) {
			pair[i].qp[0]->refuse_in = 0;
			for (int n = 0; n < 50; n++) {
				hugepin_sgq_flush(pair[i].out);
				hugepin_sgq_poll(pair[i].out, 16);
				hugepin_sgq_poll(pair[i].in, 16);
			}
		}
		end_pool();
	}
}

/* ------------------------------------------------------------------ receives */

static hugepin_sgpool *in_pool;
static unsigned spoiled;

static void shared_hear(void *arg, const struct hugepin_sg_record *r)
{
	EXPECT(arg == pair);
	EXPECT_EQ(hugepin_sgpool_close(in_pool), -EBUSY);
	if (!r->parts) {
		spoiled++;
		return;
	}
	for (unsigned i = 0; i < PAIRS; i++)
		if (pair[i].qp[1]->qp.qp_num == r->wc->qp_num)
			pair_hear(&pair[i], r);
}

/* All receive by one shared queue, with one completion queue for all. */
TEST(receives_of_all_queue_pairs_come_out_of_one_shared_queue)
{
	for (uint32_t slots = 1; slots < 12 && !t_failures; slots += 5) {
		begin_pool(20, PAIRS);
		struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = slots, .max_send_sge = 1, .max_recv_sge = 1 };
		struct ibv_cq *cq = mock_cq(64);
		struct mock_qp *shared = mock_qp(IBV_QPT_RC, cq, &cap, NULL);
		struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = 1, .frame_bytes = 512,
						  .recv_slots = slots, .srq = &shared->srq, .recv_arg = pair };
		EXPECT_EQ(hugepin_sgpool_open(&pa, &in_pool), -EINVAL); /* nobody to hand records to */
		pa.recv = shared_hear;
		shared->refuse_recv_in = 1;
		EXPECT_EQ(hugepin_sgpool_open(&pa, &in_pool), -ENOMEM);
		shared->refuse_recv_in = 2; /* with one receive posted, the others follow */
		EXPECT_EQ(hugepin_sgpool_open(&pa, &in_pool), 0);
		EXPECT_EQ(shared->recv_posted, 1);
		shared->refuse_recv_in = 0;
		for (unsigned i = 0; i < PAIRS; i++) {
			pair[i].qp[1]->shared = shared;
			pair[i].qp[1]->qp.recv_cq = cq;
		}
		unsigned finished = 0;
		for (int rounds = 0; finished < PAIRS && EXPECT(rounds < 200000); rounds++) {
			struct pair *p = &pair[dice(PAIRS)];
			struct ibv_wc wc;
			if (p->added < RECORDS)
				add_record(p);
			if (!dice(50))
				shared->refuse_recv_in = 1 + dice(2);
			hugepin_sgq_poll(p->out, 3);
			while (ibv_poll_cq(cq, 1, &wc) > 0) {
				EXPECT_EQ(hugepin_sg_wc(&wc), 1);
				const bool again = in_pool->recv_out[wc.wr_id & HP_SGQ_ID_LOW];
				EXPECT(again || hugepin_sg_wc(&wc) == 0); /* twice */
				uint32_t idle = slots;
				for (uint32_t i = 0; i < slots; i++)
					idle -= in_pool->recv_out[i];
				EXPECT_EQ(in_pool->idle_count, idle);
			}
			/* without any receive nothing would come again */
			if (in_pool->idle_count == slots) {
				shared->refuse_recv_in = 1;
				EXPECT_EQ(hugepin_sgpool_flush(in_pool), -ENOMEM);
				shared->refuse_recv_in = 0;
				EXPECT_EQ(hugepin_sgpool_flush(in_pool), 0);
				EXPECT_EQ(in_pool->idle_count, 0);
			}
			shared->refuse_recv_in = 0;
			finished = 0;
			for (unsigned i = 0; i < PAIRS; i++)
				finished += pair[i].heard == RECORDS && pair[i].told == RECORDS;
		}
		EXPECT_EQ(finished, PAIRS);
		EXPECT_EQ(spoiled, 0);
		EXPECT_EQ(hugepin_sgpool_flush(NULL), -EINVAL);
		mock_qp_free(shared); /* as ibv_destroy_srq() */
		for (unsigned i = 0; i < PAIRS; i++)
			pair[i].qp[1]->shared = NULL;
		EXPECT_EQ(hugepin_sgpool_close(in_pool), 0);
		mock_cq_free(cq);
		end_pool();
	}
}

TEST(a_thousand_queues_take_less_than_64_MiB)
{
	enum { QUEUES = 1000, SLOTS = 2048 };
	static hugepin_sgq *queue[QUEUES];
	struct ibv_qp_cap cap = { .max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 30, .max_recv_sge = 1 };
	struct ibv_cq *cq = mock_cq(16);
	struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &cap, NULL);
	domain = domain_of_mock();
	struct ibv_qp_cap shared_cap = { .max_send_wr = 1, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1 };
	struct mock_qp *shared = mock_qp(IBV_QPT_RC, cq, &shared_cap, NULL);
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = SLOTS, .recv_slots = SLOTS,
					  .srq = &shared->srq, .recv = shared_hear };
	const struct mallinfo2 before = mallinfo2();
	EXPECT_EQ(hugepin_sgpool_open(&pa, &pool), 0);
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = domain, .model = &model, .pool = pool };
	for (int i = 0; i < QUEUES; i++)
		EXPECT_EQ(hugepin_sgq_open(&a, &queue[i]), 0);
	const struct mallinfo2 after = mallinfo2();
	const size_t slots = SLOTS * (pool->slot_bytes + pool->recv_bytes);
	const size_t bytes = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd + slots;
	t_print("# %zu KiB, %zu a queue beside %zu KiB of slots\n", bytes >> 10,
		(after.uordblks - before.uordblks) / QUEUES, slots >> 10);
	EXPECT(bytes < (size_t)64 << 20);
	for (int i = 0; i < QUEUES; i++)
		EXPECT_EQ(hugepin_sgq_close(queue[i]), 0);
	EXPECT_EQ(hugepin_sgpool_close(pool), 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	mock_qp_free(qp);
	mock_qp_free(shared);
	mock_cq_free(cq);
}

TEST(queues_that_a_pool_refuses_leave_no_number_taken)
{
	begin_pool(PAIRS, 0); /* each slot is owed to a queue */
	hugepin_sgq *q = NULL;
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &pair[0].qp[0]->qp, .domain = domain, .model = &model,
				      .pool = pool };
	for (int i = 0; i < 1 << 16; i++) /* as many as there are numbers at a time */
		if (!EXPECT_EQ(hugepin_sgq_open(&a, &q), -ENOBUFS))
			break;
	a.pool = NULL; /* it has slots of its own */
	if (EXPECT_EQ(hugepin_sgq_open(&a, &q), 0))
		EXPECT_EQ(hugepin_sgq_close(q), 0);
	end_pool();
}

TEST(a_pool_and_its_queues_give_all_their_memory_back_when_they_are_closed)
{
	enum { SLOTS = 8, ROUNDS = 20 };
	struct ibv_qp_cap cap = { .max_send_wr = 16, .max_recv_wr = SLOTS, .max_send_sge = 4, .max_recv_sge = 1 };
	struct ibv_cq *cq = mock_cq(64);
	struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &cap, NULL), *shared = mock_qp(IBV_QPT_RC, cq, &cap, NULL);
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .slots = SLOTS, .recv_slots = SLOTS, .srq = &shared->srq,
					  .recv = shared_hear };
	size_t before = 0;
	for (int round = 0; round < ROUNDS; round++) {
		if (round == ROUNDS / 2)
			before = allocated();
		struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .model = &model };
		hugepin_sgq *q, *with_own_slots;
		pa.domain = a.domain = domain_of_mock();
		EXPECT_EQ(hugepin_sgpool_open(&pa, &pool), 0);
		EXPECT_EQ(hugepin_sgq_open(&a, &with_own_slots), 0);
		a.pool = pool;
		EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
		EXPECT_EQ(hugepin_sgq_close(q), 0);
		EXPECT_EQ(hugepin_sgq_close(with_own_slots), 0);
		mock_qp_free(shared); /* takes its receives along */
		EXPECT_EQ(hugepin_sgpool_close(pool), 0);
		EXPECT_EQ(hugepin_domain_close(pa.domain), 0);
		shared = mock_qp(IBV_QPT_RC, cq, &cap, NULL);
		pa.srq = &shared->srq;
	}
	EXPECT_EQ(allocated(), before);
	mock_qp_free(shared);
	mock_qp_free(qp);
	mock_cq_free(cq);
}

TEST(what_does_not_suit_a_pool_is_refused)
{
	begin_pool(PAIRS, 0);
	struct hugepin_sgpool *other;
	hugepin_sgq *q = NULL;
	hugepin_domain *elsewhere = domain_of_mock();
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = 4, .frame_bytes = 8 };
	EXPECT_EQ(hugepin_sgpool_open(&pa, &other), -EINVAL); /* no room for a byte */
	pa = (struct hugepin_sgpool_attr){ .size = sizeof pa, .domain = domain };
	EXPECT_EQ(hugepin_sgpool_open(&pa, &other), -EINVAL); /* no slots */
	pa = (struct hugepin_sgpool_attr){ .size = sizeof pa, .slots = 1 };
	EXPECT_EQ(hugepin_sgpool_open(&pa, &other), -EINVAL); /* no domain */
	pa = (struct hugepin_sgpool_attr){ .size = sizeof pa - 1, .domain = domain, .slots = 1 };
	EXPECT_EQ(hugepin_sgpool_open(&pa, &other), -EINVAL);
	EXPECT_EQ(hugepin_sgpool_open(NULL, &other), -EINVAL);
	EXPECT_EQ(hugepin_sgpool_close(NULL), -EINVAL);
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &pair[0].qp[0]->qp, .domain = domain, .model = &model,
				      .pool = pool };
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -ENOBUFS); /* each slot is owed to a queue already */
	a.domain = elsewhere;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	a.domain = domain;
	a.frame_bytes = 513;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EMSGSIZE);
	a.frame_bytes = 0;
	a.recv_depth = 1;
	a.recv = hear_nothing;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	EXPECT(!q);
	EXPECT_EQ(hugepin_domain_close(elsewhere), 0);
	end_pool();
}

T_MAIN
