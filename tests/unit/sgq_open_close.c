/*
 * A queue opens or is refused (sge/open.c). A queue closes or is given up, and each sub-message is told once.
 */
#include "sge/model.h"
#include "sge/state.h"
#include "tests/unit/sgq.h"

static struct ibv_device named = { .name = "mock0" };

TEST(slots_over_the_budget_are_refused_and_nothing_stays)
{
	struct hugepin_attr of_domain = { .size = sizeof of_domain, .policy = HUGEPIN_POLICY_LRU,
					  .pinned_bytes_max = 1 << 20 };
	struct ibv_cq *cq = mock_cq(16);
	struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &usual, NULL);
	hugepin_domain *d;
	hugepin_sgq *q = NULL;
	EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, &of_domain, &d), 0);
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = d, .model = &model, .depth = 16,
				      .frame_bytes = 1 << 20 };
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -ENOBUFS);
	EXPECT(!q);
	a.frame_bytes = 1 << 12;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
	EXPECT_EQ(hugepin_sgq_close(q), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	mock_qp_free(qp);
	mock_cq_free(cq);
}

TEST(without_a_model_a_queue_has_what_is_kept_of_the_device_or_the_defaults)
{
	const struct hp_testbed testbed = { "mock0 0:0", "", "" };
	const struct hugepin_sg_model kept = { .size = sizeof kept, .refused = HUGEPIN_SG_INLINE, .apart_below = { 777, 66 } };
	char cache[] = "/tmp/sgq_open.XXXXXX", path[HP_RESULTS_PATH_MAX], command[64];
	struct ibv_cq *cq = mock_cq(16);
	struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &usual, NULL);
	hugepin_domain *d = domain_of_mock();
	const struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = d };
	struct hp_testbed here = testbed;
	hugepin_sgq *q;

	mock.context.device = &named;
	EXPECT(mkdtemp(cache) && !setenv("XDG_CACHE_HOME", cache, 1));
	hp_results_cpu(here.cpu, sizeof here.cpu);
	for (int keeps = 0; keeps < 3; keeps++) { /* nothing, this version's, an older one's */
		if (keeps == 1)
			EXPECT_EQ(hp_sg_model_keep(&here, &kept), 0);
		if (keeps == 2)
			EXPECT(!hp_results_path(HP_SG_KEPT, &here, path) &&
		       !hp_results_store(path, "hugepin-sg-model 2\n"));
		if (!EXPECT_EQ(hugepin_sgq_open(&a, &q), 0))
			break;
		EXPECT_EQ(q->copy_below, keeps == 1 ? 777 : 256);
		EXPECT_EQ(q->copy_below_cold, keeps == 1 ? 66 : 24);
		EXPECT_EQ(!q->max_inline, keeps == 1);
		EXPECT_EQ(hugepin_sgq_close(q), 0);
	}
	snprintf(command, sizeof command, "rm -r %s", cache);
	EXPECT_EQ(system(command), 0);
	unsetenv("XDG_CACHE_HOME");
	EXPECT_EQ(hugepin_domain_close(d), 0);
	mock_qp_free(qp);
	mock_cq_free(cq);
}

static int post_nothing(void *arg, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	(void)arg;
	*bad = first;
	return EINVAL;
}

TEST(what_cannot_be_opened_is_refused)
{
	hugepin_domain *d = domain_of_mock();
	struct ibv_cq *cq = mock_cq(16);
	struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &usual, NULL);
	hugepin_sgq *q = NULL;
	const struct hugepin_sgq_attr good = { .size = sizeof good, .qp = &qp->qp, .domain = d, .model = &model };
	struct hugepin_sgq_attr a;
	EXPECT_EQ(hugepin_sgq_open(NULL, &q), -EINVAL);
	EXPECT_EQ(hugepin_sgq_open(&good, NULL), -EINVAL);
#define REFUSED(error, member, value)                                                                                  \
	(a = good, a.member = value, EXPECT_EQ(hugepin_sgq_open(&a, &q), error))
	REFUSED(-EINVAL, size, 0);
	REFUSED(-EINVAL, qp, NULL);
	REFUSED(-EINVAL, domain, NULL);
	REFUSED(-EINVAL, flags, 16);
	REFUSED(-EINVAL, depth, 17);
	REFUSED(-EINVAL, reserved_wr, 16);
	REFUSED(-EINVAL, frame_bytes, 40);
	REFUSED(-EMSGSIZE, frame_bytes, (1u << 30) + 1);
	REFUSED(-EINVAL, recv_depth, 1); /* and no function */
	a = good;
	a.flags = HUGEPIN_SGQ_MT;
	a.post = post_nothing; /* it would run under the lock */
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	a = good;
	a.recv = hear;
	a.recv_depth = 2; /* max_recv_wr is 1 */
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	struct hugepin_sg_model of_no_size = model;
	of_no_size.size = 0;
	REFUSED(-EINVAL, model, &of_no_size);
	qp->qp.qp_type = IBV_QPT_UC;
	EXPECT_EQ(hugepin_sgq_open(&good, &q), -EOPNOTSUPP);
	qp->qp.qp_type = IBV_QPT_RC;
	EXPECT(!q);
	a = good;
	a.granted = &qp->cap;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
	EXPECT_EQ(hugepin_sgq_poll(q, -1), -EINVAL);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY); /* its slots are pinned */
	EXPECT_EQ(hugepin_sgq_close(q), 0);
	EXPECT_EQ(hugepin_sgq_close(NULL), -EINVAL);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	mock_qp_free(qp);
	mock_cq_free(cq);
}

TEST(closing_cancels_what_is_held_and_refuses_while_something_is_out)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	lossy = true;
	mock.pace = 0;
	EXPECT(add_one(10, 0) >= 0);
	EXPECT(add_one(100, 0) >= 0);
	EXPECT_EQ(hugepin_sgq_close(w.out), -EBUSY);
	EXPECT_EQ(told, 0);
	w.qp[0]->refuse_in = 1; /* or the second one would go when the first has */
	mock_run(w.qp[0], 1);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 1);
	EXPECT_EQ(told, 1);
	EXPECT_EQ(hugepin_sgq_close(w.out), 0);
	w.out = NULL;
	EXPECT_EQ(told, 2);
	EXPECT_EQ(sub[0].status, 0);
	EXPECT_EQ(sub[1].status, -ECANCELED);
	hugepin_sgq_poll(w.in, 9);
	EXPECT_EQ(heard, 1);
	end();
}

/* ------------------------------------------------------------------ giving up */

/* Destroy a queue pair. No part of the library may use it again. */
static void destroy_qp(struct mock_qp **q)
{
	struct ibv_qp_cap cap = usual;
	struct mock_qp *gone = *q;
	*q = mock_qp(gone->qp.qp_type, gone->qp.send_cq, &cap, NULL); /* for end() */
	(*q)->mistakes = gone->mistakes;
	mock_qp_free(gone); /* fills its memory with other bytes first */
}

TEST(a_queue_that_is_given_up_at_any_moment_tells_each_sub_message_once)
{
	unsigned cancelled = 0;
	for (int round = 0; round < 600; round++) {
		seed = (uint64_t)round;
		out_receives = round % 3 ? 0 : 1;
		random_world(IBV_QPT_RC, &mock_providers[round % MOCK_PROVIDERS]);
		lossy = true;
		for (int i = 0, when = (int)dice(60); i < when; i++) {
			if (i && !dice(40))
				mock_error(w.qp[0], IBV_WC_LOC_QP_OP_ERR);
			add_random(w.attr.frame_bytes, HUGEPIN_SG_COPY_OK | (dice(2) ? HUGEPIN_SG_MULTI : 0));
			if (!dice(3))
				hugepin_sgq_poll(w.out, (int)dice(4));
			if (!dice(3))
				hugepin_sgq_poll(w.in, (int)dice(40));
			if (mock.pace == 0)
				mock_run(w.qp[0], dice(3));
		}
		unsigned before = told;
		if (dice(2))
			mock_modify(w.qp[0], IBV_QPS_RESET);
		else
			destroy_qp(&w.qp[0]);
		EXPECT_EQ(hugepin_sgq_abort(w.out), 0);
		w.out = NULL;
		EXPECT_EQ(told, added);
		for (unsigned i = before; i < added; i++)
			/* a part of it had failed */
			EXPECT(sub[i].status == -ECANCELED || (sub[i].status == -EIO && i == before));
		cancelled += added - before;
		out_receives = 0;
		end(); /* -EBUSY of the domain: pins are out */
		if (t_failed_in(round))
			return;
	}
	EXPECT(cancelled > 1000);
}

/* A completion queue overran and lost completions. The queue would wait for ever: the program gives the queue up. */
TEST(what_lost_completions_leave_open_is_given_up)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .recv_depth = 4 }, NULL);
	lossy = true;
	for (int i = 0; i < 3; i++)
		EXPECT(add_one(100, HUGEPIN_SG_NOW) >= 0);
	mock_run(w.qp[0], 9);
	((struct mock_cq *)w.cq[0])->count = 0;
	to_error(w.qp[0]);
	to_error(w.qp[1]);
	((struct mock_cq *)w.cq[1])->count = 0;
	hugepin_sgq_poll(w.out, 9);
	hugepin_sgq_poll(w.in, 9);
	EXPECT_EQ(hugepin_sgq_close(w.out), -EBUSY);
	EXPECT_EQ(hugepin_sgq_close(w.in), -EBUSY);
	destroy_qp(&w.qp[0]);
	destroy_qp(&w.qp[1]);
	EXPECT_EQ(hugepin_sgq_abort(w.out), 0);
	EXPECT_EQ(hugepin_sgq_abort(w.in), 0);
	w.out = w.in = NULL;
	EXPECT_EQ(told, 3);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(sub[i].status, -ECANCELED);
	end();
}

static unsigned asked;

static void ask(void *arg, uint64_t tag, int status)
{
	hugepin_sgq *q = *(hugepin_sgq **)arg;
	EXPECT_EQ(tag, asked++);
	EXPECT_EQ(status, -ECANCELED);
	EXPECT_EQ(hugepin_sgq_add(q, NULL, 0, 7, ask, arg, 0), -ESHUTDOWN);
	hugepin_sgq_flush(q);
	EXPECT_EQ(hugepin_sgq_poll(q, 1), -EBUSY);
	EXPECT_EQ(hugepin_sgq_close(q), -EBUSY);
	EXPECT_EQ(hugepin_sgq_abort(q), -EBUSY);
}

TEST(callbacks_of_a_queue_that_is_given_up_find_it_closed_and_its_queue_pair_untouched)
{
	for (int failed = 0; failed < 2; failed++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 2 }, NULL);
		mock.pace = 0;
		asked = 0;
		for (uint64_t i = 0; i < 5; i++)
			EXPECT(hugepin_sgq_add(w.out, &(struct iovec){ memory, 10 }, 1, i, ask, &w.out, 0) >= 0);
		EXPECT_EQ(asked, 0);
		if (failed) { /* noticed, with sends out whose completions are not there yet */
			struct ibv_wc wc = { .wr_id = 0 };
			mock_error(w.qp[0], IBV_WC_SUCCESS);
			EXPECT_EQ(ibv_poll_cq(w.cq[0], 1, &wc), 1);
			w.qp[0]->qp.state = IBV_QPS_ERR;
			hugepin_sgq_poll(w.out, 0);
			EXPECT_EQ(asked, 0);
		}
		destroy_qp(&w.qp[0]);
		EXPECT_EQ(hugepin_sgq_abort(w.out), 0);
		EXPECT_EQ(asked, 5);
		w.out = NULL;
		end();
	}
	EXPECT_EQ(hugepin_sgq_abort(NULL), -EINVAL);
}

T_MAIN
