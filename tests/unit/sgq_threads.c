/*
 * Threads that share a queue, threads that must not, and children of fork.
 */
#include <sys/wait.h>

#include "tests/unit/sgq.h"

enum { THREADS = 4, EACH = 1500 };
static unsigned thread_heard[THREADS];
static _Atomic bool thread_stop;

static void hear_thread(void *arg, const struct hugepin_sg_record *r)
{
	(void)arg;
	unsigned t = (unsigned)(r->tag >> 32);
	uint32_t n;
	memcpy(&n, r->data, sizeof n);
	EXPECT(r->len == 4 && n == (uint32_t)r->tag && n == thread_heard[t]++); /* the order of each thread is kept */
}

static void *add_thread(void *arg)
{
	uint64_t t = (uintptr_t)arg;
	for (uint32_t i = 0; i < EACH; i++)
		while (hugepin_sgq_add(w.out, &(struct iovec){ &i, 4 }, 1, t << 32 | i, count_done, NULL, 0) == -EAGAIN)
			hugepin_sgq_poll(w.out, 4);
	return NULL;
}

static void *receive_thread(void *arg)
{
	while (!thread_stop)
		hugepin_sgq_poll(w.in, 4);
	return arg;
}

TEST(threads_share_a_queue_under_its_lock)
{
	T_THREADS_RUN(6);
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .frame_bytes = 300, .flags = HUGEPIN_SGQ_MT,
							    .recv = hear_thread }, NULL);
	memset(thread_heard, 0, sizeof thread_heard);
	thread_done = 0;
	thread_stop = false;
	pthread_t thread[THREADS + 1];
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, add_thread, (void *)i);
	pthread_create(&thread[THREADS], NULL, receive_thread, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	while (thread_done < THREADS * EACH)
		EXPECT(hugepin_sgq_poll(w.out, 4) >= 0);
	thread_stop = true;
	pthread_join(thread[THREADS], NULL);
	while (hugepin_sgq_poll(w.in, 9) > 0)
		;
	for (int i = 0; i < THREADS; i++)
		EXPECT_EQ(thread_heard[i], EACH);
	end();
}

/* ------------------------------------------------------------------ callbacks */

static unsigned waited; /* callbacks that have waited for another thread */

static void *call_from_outside(void *arg)
{
	hugepin_sgq *q = arg;
	EXPECT_EQ(hugepin_sgq_add(q, NULL, 0, 0, NULL, NULL, 0), 1);
	EXPECT_EQ(hugepin_sgq_flush(q), 0);
	EXPECT(hugepin_sgq_poll(q, 4) >= 0);
	EXPECT_EQ(hugepin_sgq_close(q), -EBUSY);
	EXPECT_EQ(hugepin_sgq_abort(q), -EBUSY);
	return NULL;
}

static void wait_for_another(hugepin_sgq *q)
{
	pthread_t thread;
	EXPECT_EQ(pthread_create(&thread, NULL, call_from_outside, q), 0);
	pthread_join(thread, NULL);
	EXPECT_EQ(hugepin_sgq_poll(q, 1), -EBUSY);
	waited++;
}

static void done_waits(void *arg, uint64_t tag, int status)
{
	(void)arg, (void)tag;
	EXPECT_EQ(status, 0);
	wait_for_another(w.out);
}

static void hear_waits(void *arg, const struct hugepin_sg_record *r)
{
	(void)arg;
	if (r->tag == 5)
		wait_for_another(w.in);
}

TEST(a_callback_may_wait_for_a_thread_that_calls_the_queue)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .flags = HUGEPIN_SGQ_MT,
							    .recv = hear_waits }, NULL);
	w.qp[0]->peer->peer = NULL; /* what the receiver's queue sends goes nowhere: it has one work request */
	w.qp[1]->peer = w.qp[0];
	waited = 0;
	EXPECT_EQ(hugepin_sgq_add(w.out, NULL, 0, 5, done_waits, NULL, 0), 1);
	EXPECT(hugepin_sgq_poll(w.out, 9) >= 1);
	EXPECT_EQ(waited, 1);
	EXPECT(hugepin_sgq_poll(w.in, 9) >= 1);
	EXPECT_EQ(waited, 2);
	while (hugepin_sgq_poll(w.out, 9) > 0)
		;
	end();
}

enum { MESSAGES = 3000, LONG = 700 };
static uint64_t parts_heard;
static _Atomic unsigned hearing;

static void hear_parts(void *arg, const struct hugepin_sg_record *r)
{
	(void)arg;
	EXPECT_EQ(hearing++, 0);
	EXPECT_EQ(r->tag * r->parts + r->part, parts_heard);
	parts_heard++;
	hearing--;
}

/* Each thread takes other parts out of the completion queue. */
TEST(threads_that_poll_one_queue_hand_out_the_parts_of_each_message_in_order_and_one_at_a_time)
{
	static char body[LONG];
	struct iovec piece = { body, LONG };
	pthread_t thread[THREADS];
	T_THREADS_RUN(6);
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 16, .frame_bytes = 100, .flags = HUGEPIN_SGQ_MT,
							    .recv = hear_parts }, NULL);
	parts_heard = 0;
	thread_stop = false;
	for (int i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, receive_thread, NULL);
	for (uint64_t i = 0; i < MESSAGES; i++)
		while (hugepin_sgq_add(w.out, &piece, 1, i, NULL, NULL, HUGEPIN_SG_MULTI | HUGEPIN_SG_COPY_OK) < 0)
			hugepin_sgq_poll(w.out, 4);
	while (hugepin_sgq_close(w.out) == -EBUSY)
		hugepin_sgq_poll(w.out, 4);
	w.out = NULL;
	thread_stop = true;
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	while (hugepin_sgq_poll(w.in, 9) > 0)
		;
	const uint64_t parts = (LONG + 100 - HUGEPIN_SG_TABLE(1) - 1) / (100 - HUGEPIN_SG_TABLE(1));
	EXPECT_EQ(parts_heard, MESSAGES * parts);
	end();
}

/* ------------------------------------------------------------------ queues without a lock, and processes */

static hugepin_sgq *_Atomic owned;
static _Atomic int got_there, told_by_another;

static void *add_as_another(void *arg)
{
	struct ibv_wc wc = { .wr_id = w.qp[0]->sq[0].id };
	(void)arg;
	got_there = hugepin_sgq_add(owned, &(struct iovec){ memory, 10 }, 1, 0, NULL, NULL, 0);
	EXPECT_EQ(hugepin_sgq_flush(owned), got_there);
	EXPECT_EQ(hugepin_sgq_poll(owned, 1), got_there);
	EXPECT_EQ(hugepin_sg_wc(&wc), got_there);
	EXPECT_EQ(hugepin_sgq_close(owned), got_there);
	EXPECT_EQ(hugepin_sgq_abort(owned), got_there);
	return NULL;
}

static void call_from_another(void *arg, uint64_t tag, int status)
{
	pthread_t thread;
	(void)arg, (void)tag, (void)status;
	pthread_create(&thread, NULL, add_as_another, NULL);
	pthread_join(thread, NULL);
	EXPECT_EQ(hugepin_sgq_flush(owned), 0); /* the calling thread owns the queue */
	told_by_another++;
}

static void *poll_as_another(void *arg)
{
	*(int *)arg = hugepin_sgq_poll(owned, 9);
	return NULL;
}

TEST(a_second_thread_in_a_queue_without_a_lock_is_told_so_and_a_later_one_is_served)
{
	for (uint32_t flags = 0; flags <= HUGEPIN_SGQ_DEBUG; flags += HUGEPIN_SGQ_DEBUG) {
		pthread_t thread;
		int polled = -1;
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .flags = flags,
								    .recv = hear_nothing }, NULL);
		owned = w.out;
		told_by_another = 0;
		EXPECT(hugepin_sgq_add(w.out, &(struct iovec){ memory, 10 }, 1, 0, call_from_another, NULL, 0) >= 0);
		EXPECT_EQ(hugepin_sgq_poll(w.out, 9), 1);
		EXPECT_EQ(told_by_another, 1);
		EXPECT_EQ(got_there, -EBUSY);
		EXPECT(hugepin_sgq_add(w.out, &(struct iovec){ memory, 10 }, 1, 0, call_from_another, NULL, 0) >= 0);
		pthread_create(&thread, NULL, poll_as_another, &polled); /* one after the other is what the rule asks */
		pthread_join(thread, NULL);
		EXPECT_EQ(polled, 1);
		EXPECT_EQ(told_by_another, 2);
		end();
	}
}

TEST(in_a_child_the_queue_is_the_parents)
{
	T_THREADS_RUN(2);
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	EXPECT(add_one(10, 0) >= 0);
	EXPECT(add_one(10, 0) >= 0);
	pid_t child = fork();
	if (!child) {
		struct ibv_wc wc = { .wr_id = w.qp[0]->sq[0].id };
		bool good = hugepin_sgq_add(w.out, NULL, 0, 0, NULL, NULL, 0) == -ESTALE &&
			hugepin_sgq_flush(w.out) == -ESTALE &&
			    hugepin_sgq_poll(w.out, 1) == -ESTALE && hugepin_sg_wc(&wc) == -ESTALE &&
			    hugepin_sgq_wc_status(w.out, NULL) == IBV_WC_GENERAL_ERR &&
			    hugepin_sgq_abort(w.in) == 0 && hugepin_sgq_close(w.out) == 0 && told == 0;
		_exit(good ? 0 : 1);
	}
	int status = -1;
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
	mock.pace = UINT_MAX;
	drain_and_end();
}

/* Each way to fork leaves a child with another part of the slots' memory. */
TEST(a_child_frees_its_copy_under_every_way_to_fork)
{
	for (uint32_t fork_mode = HUGEPIN_FORK_DEFAULT; fork_mode <= HUGEPIN_FORK_DONTFORK; fork_mode++) {
		struct hugepin_attr of_domain = { .size = sizeof of_domain, .fork = fork_mode,
						  .pinned_bytes_max = UINT64_MAX };
		struct ibv_cq *cq = mock_cq(16);
		struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &(struct ibv_qp_cap){ 16, 8, 4, 1, 0 }, NULL);
		hugepin_domain *d;
		hugepin_sgq *q;
		EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, &of_domain, &d), 0);
		struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = d, .model = &model,
					      .recv_depth = 8,
					      .recv = hear_nothing };
		EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
		pid_t child = fork();
		if (!child) {
			bool good = hugepin_sgq_close(q) == 0 && hugepin_domain_close(d) == 0;
			for (int i = 0; i < 50; i++) {
				char *p = hugepin_malloc(100000u * (1 + dice(30)));
				good &= p != NULL;
				if (p)
					p[0] = p[99999] = 1;
				hugepin_free(p);
			}
			_exit(good ? 0 : 1);
		}
		int status = -1;
		EXPECT_EQ(waitpid(child, &status, 0), child);
		EXPECT_EQ(status, 0);
		mock_error(qp, IBV_WC_SUCCESS);
		EXPECT_EQ(hugepin_sgq_poll(q, 9), 8);
		EXPECT_EQ(hugepin_sgq_close(q), 0);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		mock_qp_free(qp);
		mock_cq_free(cq);
	}
}

T_MAIN
