/*
 * A pool of slots (sge/pool.c) between threads, in a child of fork, and where memory or registrations are refused.
 */
#include <sys/wait.h>

#include "sge/pool.h"
#include "tests/unit/alloc_fails.h"
#include "tests/unit/sgq.h"

enum { PAIRS = 4, RECORDS = 3000, FRAME = 512 };

static struct pair {
	struct ibv_cq *cq[2];
	struct mock_qp *qp[2];
	hugepin_sgq *out, *in;
	_Atomic unsigned told, heard;
} pair[PAIRS];
static hugepin_domain *domain;
static hugepin_sgpool *pool;

/* ------------------------------------------------------------------ a device that refuses */

static unsigned registrations, refused_from; /* the n-th registration is refused, and all after it; 0: none */

static int reg_or_refuse(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	return ++registrations >= refused_from && refused_from ? -ENOSPC : mock_backend_reg(ctx, addr, len, access, ret_);
}

static const struct hugepin_backend refusing = {
	.size = sizeof refusing,
	.name = "mock",
	.reg = reg_or_refuse,
	.dereg = mock_backend_dereg,
	.limits = mock_backend_limits,
};

/* ------------------------------------------------------------------ queues of a pool */

static void hear_pair(void *arg, const struct hugepin_sg_record *r)
{
	struct pair *p = arg;

	EXPECT(r->part == 0 && r->parts == 1);
	EXPECT_EQ(r->tag, p->heard);
	EXPECT(r->len == sizeof r->tag && !memcmp(r->data, &r->tag, r->len));
	p->heard++;
}

static void tell_pair(void *arg, uint64_t tag, int status)
{
	struct pair *p = arg;

	EXPECT_EQ(status, 0);
	EXPECT_EQ(tag, p->told);
	p->told++;
}

static void open_domain(void)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .pinned_bytes_max = UINT64_MAX };

	EXPECT_EQ(hugepin_domain_open(&refusing, NULL, &attr, &domain), 0);
	mock.pace = UINT_MAX;
}

static void make_pair(struct pair *p)
{
	struct ibv_qp_cap out = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 4, .max_recv_sge = 1 };
	struct ibv_qp_cap in = { .max_send_wr = 1, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 };

	*p = (struct pair){ 0 };
	for (int k = 0; k < 2; k++) {
		p->cq[k] = mock_cq(32);
		p->qp[k] = mock_qp(IBV_QPT_RC, p->cq[k], k ? &in : &out, NULL);
	}
	mock_connect(p->qp[0], p->qp[1]);
}

static int open_pair(struct pair *p)
{
	struct hugepin_sgq_attr out = { .size = sizeof out, .qp = &p->qp[0]->qp, .domain = domain, .model = &model,
					.pool = pool };
	struct hugepin_sgq_attr in = { .size = sizeof in, .qp = &p->qp[1]->qp, .domain = domain, .model = &model,
				       .frame_bytes = FRAME, .recv_depth = 8, .recv = hear_pair, .recv_arg = p };
	const int err = hugepin_sgq_open(&out, &p->out);

	return err ? err : hugepin_sgq_open(&in, &p->in);
}

static void end_pair(struct pair *p)
{
	if (p->out)
		EXPECT_EQ(hugepin_sgq_close(p->out), 0);
	if (p->in) {
		mock_error(p->qp[1], IBV_WC_SUCCESS);
		while (hugepin_sgq_poll(p->in, 16) > 0)
			;
		EXPECT_EQ(hugepin_sgq_close(p->in), 0);
	}
	for (int k = 0; k < 2; k++) {
		EXPECT_EQ(p->qp[k]->mistakes, 0);
		mock_qp_free(p->qp[k]);
		mock_cq_free(p->cq[k]);
	}
	p->out = p->in = NULL;
}

/* Everything that the pool gave out is back, and nothing is pinned. */
static void end_pool(void)
{
	if (pool) {
		EXPECT_EQ(pool->free_count, pool->slots_max);
		EXPECT_EQ(pool->owed, 0);
		EXPECT_EQ(hugepin_sgpool_close(pool), 0);
		pool = NULL;
	}
	EXPECT_EQ(hugepin_domain_close(domain), 0);
}

/* ------------------------------------------------------------------ threads */

static void *send_and_receive(void *arg)
{
	struct pair *p = arg;
	uint64_t tag = 0;

	while (p->told < RECORDS || p->heard < RECORDS) {
		if (tag < RECORDS) {
			const int got = hugepin_sgq_add(p->out, &(struct iovec){ &tag, sizeof tag }, 1, tag, tell_pair, p,
							HUGEPIN_SG_COPY_OK);
			EXPECT(got >= 0 || got == -EAGAIN);
			tag += got >= 0;
		}
		EXPECT(hugepin_sgq_poll(p->out, 3) >= 0);
		EXPECT(hugepin_sgq_poll(p->in, 3) >= 0);
	}
	return NULL;
}

TEST(queues_of_one_pool_may_be_in_different_threads)
{
	T_DOMAIN_BEGINS();
	T_THREADS_RUN(PAIRS + 1);
	open_domain();
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = PAIRS + 2, .frame_bytes = FRAME,
					  .max_sge = 3 };
	pthread_t thread[PAIRS];

	EXPECT_EQ(hugepin_sgpool_open(&pa, &pool), 0);
	for (int i = 0; i < PAIRS; i++) {
		make_pair(&pair[i]);
		EXPECT_EQ(open_pair(&pair[i]), 0);
	}
	for (int i = 0; i < PAIRS; i++)
		pthread_create(&thread[i], NULL, send_and_receive, &pair[i]);
	for (int i = 0; i < PAIRS; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < PAIRS; i++)
		end_pair(&pair[i]);
	end_pool();
}

/* ------------------------------------------------------------------ fork */

TEST(in_a_child_the_pool_is_the_parents_and_closes_there_without_a_trace)
{
	T_THREADS_RUN(2);
	open_domain();
	struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_cq *cq = mock_cq(8);
	struct mock_qp *shared = mock_qp(IBV_QPT_RC, cq, &cap, NULL);
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = 4, .frame_bytes = FRAME,
					  .recv_slots = 4, .srq = &shared->srq, .recv = hear_pair };
	uint64_t tag = 0;

	EXPECT_EQ(hugepin_sgpool_open(&pa, &pool), 0);
	make_pair(&pair[0]);
	EXPECT_EQ(open_pair(&pair[0]), 0);
	mock.pace = 0; /* the frame is out at the time of the fork */
	EXPECT(hugepin_sgq_add(pair[0].out, &(struct iovec){ &tag, sizeof tag }, 1, 0, tell_pair, &pair[0], HUGEPIN_SG_COPY_OK) >= 0);
	EXPECT_EQ(hugepin_sgpool_close(pool), -EBUSY);
	const pid_t child = fork();
	if (!child) {
		struct ibv_wc wc = { .wr_id = shared->rq[0].id };
		bool good = hugepin_sg_wc(&wc) == -ESTALE && hugepin_sgpool_flush(pool) == -ESTALE &&
			    hugepin_sgq_close(pair[0].out) == 0 && hugepin_sgpool_close(pool) == 0 && pair[0].told == 0;

		/* and another one may be opened */
		good = good && hugepin_domain_close(domain) == 0;
		open_domain();
		pa.domain = domain;
		pa.recv_slots = 0;
		good = good && hugepin_sgpool_open(&pa, &pool) == 0 && hugepin_sgpool_close(pool) == 0;
		_exit(good ? 0 : 1);
	}
	int status = -1;
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
	mock.pace = UINT_MAX;
	while (pair[0].told < 1 || pair[0].heard < 1) {
		EXPECT(hugepin_sgq_poll(pair[0].out, 3) >= 0);
		EXPECT(hugepin_sgq_poll(pair[0].in, 3) >= 0);
	}
	end_pair(&pair[0]);
	mock_qp_free(shared); /* as ibv_destroy_srq() */
	mock_cq_free(cq);
	end_pool();
}

/* ------------------------------------------------------------------ faults */

/* The mock's own allocations succeed. For tests of one thread. */
static void poll_both(struct pair *p)
{
	const long kept = nth;

	nth = 0;
	EXPECT(hugepin_sgq_poll(p->out, 3) >= 0);
	EXPECT(hugepin_sgq_poll(p->in, 3) >= 0);
	nth = kept;
}

/* Open a pool and a queue of it, and send. What is refused is refused whole. Returns the errors. */
static int open_and_send(struct ibv_srq *srq)
{
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = 4, .frame_bytes = FRAME, .max_sge = 3,
					  .recv_slots = 4, .srq = srq,
					  .recv = hear_pair };
	int errors = 0, err;

	errno = 77;
	err = hugepin_sgpool_open(&pa, &pool);
	EXPECT_EQ(errno, 77);
	EXPECT(!err == (pool != NULL));
	errors += err != 0;
	EXPECT(!err || err == -ENOMEM || err == -ENOSPC);
	if (err)
		return errors;
	err = open_pair(&pair[0]);
	errors += err != 0;
	EXPECT(!err || err == -ENOMEM || err == -ENOSPC);
	for (uint64_t tag = 0; !err && tag < 400;) {
		const int got = hugepin_sgq_add(pair[0].out, &(struct iovec){ &tag, sizeof tag }, 1, tag, tell_pair, &pair[0],
						HUGEPIN_SG_COPY_OK);

		errors += got == -ENOMEM;
		EXPECT(got >= 0 || got == -ENOMEM || got == -EAGAIN);
		tag += got >= 0;
		if (got == -EAGAIN || tag % 100 == 0)
			poll_both(&pair[0]);
	}
	while (!err && (pair[0].told < 400 || pair[0].heard < 400))
		poll_both(&pair[0]);
	return errors;
}

static int try_with_faults(long allocation, unsigned registration)
{
	struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_cq *cq = mock_cq(8);
	struct mock_qp *shared = mock_qp(IBV_QPT_RC, cq, &cap, NULL);
	int errors;

	open_domain();
	make_pair(&pair[0]);
	registrations = 0;
	refused_from = registration;
	nth = allocation;
	errors = open_and_send(&shared->srq);
	refused_from = 0;
	if (nth)
		errors = -1; /* so many allocations there were not */
	nth = 0;
	end_pair(&pair[0]);
	mock_qp_free(shared);
	mock_cq_free(cq);
	end_pool();
	return errors;
}

TEST(each_allocation_may_fail_and_each_registration_may_be_refused)
{
	T_DOMAIN_BEGINS();
	int failed = 0, errors = 0;

	EXPECT_EQ(try_with_faults(0, 0), 0);
	const unsigned all = registrations;
	EXPECT(all >= 2); /* neighbours may share one */
	for (unsigned n = 1; n <= all; n++)
		failed += try_with_faults(0, n) > 0;
	EXPECT_EQ(failed, all);
	if (!CAN_FAIL)
		return;
	for (long n = 1; n < 200 && !t_failures && (errors = try_with_faults(n, 0)) >= 0; n++)
		failed += errors > 0;
	EXPECT_EQ(errors, -1);
	t_print("# %d were refused\n", failed);
	EXPECT(failed > 10);
}

T_MAIN
