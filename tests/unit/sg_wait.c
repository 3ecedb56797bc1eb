/*
 * Programs that sleep until a solicited completion, or the descriptor of a queue, wakes them (sge/wait.c), over the
 * strict device of tests/mock_verbs.h. The clock and the timer are this file's own.
 */
#include <poll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "sge/state.h"
#include "tests/unit/sgq.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

static uint64_t now_ns = 1000 * SECOND;

static uint64_t fake_clock(void)
{
	return now_ns;
}

/* ------------------------------------------------------------------ timers */

enum { TIMERS = 1024 };
static uint64_t timer_at[TIMERS]; /* by descriptor; 0: disarmed */
static unsigned timer_calls;
static bool real_timer;

int timerfd_settime(int fd, int flags, const struct itimerspec *t, struct itimerspec *old)
{
	timer_calls++;
	if (real_timer)
		return (int)syscall(SYS_timerfd_settime, fd, flags, t, old);
	EXPECT(fd >= 0 && fd < TIMERS && flags == TFD_TIMER_ABSTIME && !old);
	timer_at[fd] = (uint64_t)t->it_value.tv_sec * SECOND + (uint64_t)t->it_value.tv_nsec;
	return 0;
}

static bool is_readable(int fd)
{
	return timer_at[fd] && timer_at[fd] <= now_ns;
}

static void with_clock(void (*body)(void))
{
	hp_clock_set(fake_clock);
	body();
	hp_clock_set(NULL);
}

/* ------------------------------------------------------------------ a queue */

static void expect_due(uint64_t ns)
{
	uint64_t got = 0;
	const unsigned calls = timer_calls;
	EXPECT_EQ(hugepin_sgq_due(w.out, &got), 1);
	EXPECT_EQ(got, ns);
	EXPECT_EQ(hugepin_sgq_due(w.out, NULL), 1);
	EXPECT_EQ(timer_calls, calls);
}

static void expect_nothing_due(void)
{
	uint64_t got = 5;
	EXPECT_EQ(hugepin_sgq_due(w.out, &got), 0);
	EXPECT_EQ(got, 5);
}

static void begin_waiting(struct hugepin_sgq_attr a)
{
	a.flags |= HUGEPIN_SGQ_WAIT;
	begin(IBV_QPT_RC, usual, a, NULL);
	mock.pace = 0;
	timer_calls = 0;
}

TEST_BY(with_clock, a_queue_that_holds_nothing_is_never_due_and_sets_no_timer)
{
	begin_waiting((struct hugepin_sgq_attr){ .depth = 8, .deadline_ns = MS });
	mock.pace = UINT_MAX;
	for (int i = 0; i < 1000; i++) {
		EXPECT(add_one(20, 0) >= 0);
		expect_nothing_due();
		hugepin_sgq_poll(w.out, 9);
		hugepin_sgq_poll(w.in, 9);
		now_ns += MS;
	}
	EXPECT_EQ(timer_calls, 0);
	EXPECT(!is_readable(hugepin_sgq_fd(w.out)));
	drain_and_end();
}

TEST_BY(with_clock, a_held_frame_is_due_at_its_deadline)
{
	begin_waiting((struct hugepin_sgq_attr){ .depth = 8, .hold_if_outstanding = 1, .deadline_ns = 3 * MS });
	const int fd = hugepin_sgq_fd(w.out);
	EXPECT(fd >= 0);
	EXPECT(add_one(20, 0) >= 0); /* goes */
	expect_nothing_due();
	EXPECT(add_one(20, 0) >= 0); /* is held */
	expect_due(3 * MS);
	now_ns += MS;
	EXPECT(add_one(20, 0) >= 0); /* in the same frame */
	expect_due(2 * MS);
	EXPECT_EQ(timer_calls, 1);
	now_ns += 2 * MS - 1;
	EXPECT(!is_readable(fd));
	now_ns += 1;
	EXPECT(is_readable(fd));
	expect_due(0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 9), 0);
	EXPECT_EQ(w.qp[0]->posted, 2);
	EXPECT(!is_readable(fd));
	expect_nothing_due();
	mock.pace = UINT_MAX;
	drain_and_end();
}

/* Each look in vain makes the next one twice as far, up to a second. */
TEST_BY(with_clock, what_only_a_completion_of_the_queues_own_ends_is_looked_after_less_and_less_often)
{
	for (int kind = 0; kind < 3; kind++) {
		begin_waiting((struct hugepin_sgq_attr){ .depth = 2, .hold_if_outstanding = kind == 0 });
		const int fd = hugepin_sgq_fd(w.out);
		EXPECT(add_one(20, 0) >= 0);
		if (kind == 0) { /* held without a deadline */
			EXPECT(add_one(20, 0) >= 0);
		} else if (kind == 1) { /* no room */
			EXPECT(add_one(20, HUGEPIN_SG_NOW) >= 0);
			EXPECT_EQ(add_one(20, 0), -EAGAIN);
		} else { /* the provider refuses */
			w.qp[0]->refuse_in = 1;
			EXPECT(add_one(20, HUGEPIN_SG_NOW) >= 0);
		}
		uint64_t begun = now_ns, looks = 0;
		for (uint64_t wait = MS / 10; now_ns < begun + 20 * SECOND; wait = wait * 2 < SECOND ? wait * 2 : SECOND) {
			expect_due(wait);
			now_ns += wait;
			EXPECT(is_readable(fd));
			w.qp[0]->refuse_in = kind == 2;
			hugepin_sgq_poll(w.out, 9);
			EXPECT(!is_readable(fd));
			looks++;
		}
		EXPECT(looks < 40);
		w.qp[0]->refuse_in = 0;
		mock.pace = UINT_MAX;
		while (now_ns < timer_at[fd])
			now_ns += MS;
		hugepin_sgq_poll(w.out, 9);
		hugepin_sgq_poll(w.in, 9);
		EXPECT_EQ(w.qp[1]->recv_done, 2);
		hugepin_sgq_poll(w.out, 9);
		expect_nothing_due();
		drain_and_end();
	}
}

TEST_BY(with_clock, a_receive_that_the_provider_refused_is_due_again)
{
	begin_waiting((struct hugepin_sgq_attr){ .depth = 2 });
	const int fd = hugepin_sgq_fd(w.in);
	EXPECT(add_one(20, 0) >= 0);
	mock_run(w.qp[0], 1);
	w.qp[1]->refuse_recv_in = 1;
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 1);
	EXPECT_EQ(hugepin_sgq_due(w.in, NULL), 1);
	EXPECT_EQ(w.qp[1]->recv_posted, 16);
	now_ns += MS;
	EXPECT(is_readable(fd));
	EXPECT_EQ(hugepin_sgq_poll(w.in, 0), 0);
	EXPECT_EQ(hugepin_sgq_due(w.in, NULL), 0);
	EXPECT_EQ(w.qp[1]->recv_posted, 17);
	EXPECT(!is_readable(fd));
	mock.pace = UINT_MAX;
	drain_and_end();
}

TEST(the_descriptor_of_a_queue_that_is_due_is_readable)
{
	struct pollfd p = { .events = POLLIN };
	real_timer = true;
	begin_waiting((struct hugepin_sgq_attr){ .depth = 8, .hold_if_outstanding = 1, .deadline_ns = MS });
	p.fd = hugepin_sgq_fd(w.out);
	EXPECT(add_one(20, 0) >= 0);
	EXPECT_EQ(poll(&p, 1, 0), 0);
	EXPECT(add_one(20, 0) >= 0);
	EXPECT_EQ(poll(&p, 1, -1), 1);
	EXPECT_EQ(w.qp[0]->posted, 1);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 9), 0);
	EXPECT_EQ(w.qp[0]->posted, 2);
	EXPECT_EQ(poll(&p, 1, 0), 0);
	mock.pace = UINT_MAX;
	drain_and_end();
	real_timer = false;
}

TEST(a_queue_that_was_not_asked_to_tell_says_so)
{
	uint64_t ns = 5;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4 }, NULL);
	EXPECT_EQ(hugepin_sgq_due(w.out, &ns), -EINVAL);
	EXPECT_EQ(hugepin_sgq_fd(w.out), -EINVAL);
	EXPECT_EQ(hugepin_sgq_due(NULL, &ns), -EINVAL);
	EXPECT_EQ(hugepin_sgq_fd(NULL), -EINVAL);
	EXPECT_EQ(hugepin_lendq_due(NULL, &ns), -EINVAL);
	EXPECT_EQ(hugepin_lendq_fd(NULL), -EINVAL);
	EXPECT_EQ(ns, 5);
	end();
}

/* ------------------------------------------------------------------ a lender that sleeps */

enum { BUCKET = 1 << 17, BUCKETS = 1500 };

static struct {
	hugepin_domain *domain;
	hugepin_lend *lend;
	hugepin_lendq *queue;
	struct ibv_cq *cq;
	struct mock_qp *qp;
} peer[2]; /* 0 lends, 1 borrows */
static char *lent;
static unsigned answered;

static int send_message(void *arg, uint32_t to, const void *msg, size_t len)
{
	(void)to;
	return hugepin_lendq_send(peer[(size_t)arg].queue, msg, len);
}

static int offer(void *arg, uint32_t to, uint64_t addr, size_t len, struct iovec *ret_)
{
	(void)arg, (void)to, (void)addr, (void)len;
	*ret_ = (struct iovec){ lent, (size_t)BUCKETS * BUCKET };
	return 0;
}

static void ready(void *arg, void *token, int error, const struct hugepin_far *key)
{
	(void)token, (void)error;
	if (key) {
		struct hugepin_far use = *key;
		EXPECT_EQ(hugepin_lend_done(peer[(size_t)arg].lend, &use), 0);
	}
	answered++;
}

static void begin_peers(void)
{
	const struct ibv_qp_cap cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 4, .max_recv_sge = 1 };
	char *p = mmap(NULL, (size_t)(BUCKETS + 1) * BUCKET, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	lent = (char *)hp_round_up((uintptr_t)p, BUCKET);
	mock.pace = 0;
	answered = 0;
	for (size_t i = 0; i < 2; i++) {
		peer[i].domain = domain_of_mock();
		peer[i].cq = mock_cq(256);
		peer[i].qp = mock_qp(IBV_QPT_RC, peer[i].cq, &cap, NULL);
	}
	mock_connect(peer[0].qp, peer[1].qp);
	for (size_t i = 0; i < 2; i++) {
		struct hugepin_lend_attr la = { .size = sizeof la, .peers = 2, .send = send_message, .ready = ready,
						.offer = offer, .lent_bytes_max = 50 * BUCKET,
						.idle_bytes_max = 8 * BUCKET };
		struct hugepin_lendq_attr qa = { .size = sizeof qa, .qp = &peer[i].qp->qp, .peer = (uint32_t)(1 - i),
						 .flags = HUGEPIN_SGQ_WAIT };
		EXPECT_EQ(hugepin_lend_open(peer[i].domain, &la, (void *)i, &peer[i].lend), 0);
		qa.domain = peer[i].domain;
		qa.lend = peer[i].lend;
		EXPECT_EQ(hugepin_lendq_open(&qa, &peer[i].queue), 0);
	}
}

static void end_peers(void)
{
	for (int i = 0; i < 2; i++)
		to_error(peer[i].qp);
	for (int i = 0; i < 2; i++) {
		while (hugepin_lendq_close(peer[i].queue) == -EBUSY)
			hugepin_lendq_poll(peer[i].queue, 64);
		EXPECT_EQ(hugepin_lend_close(peer[i].lend), 0);
		EXPECT_EQ(hugepin_domain_close(peer[i].domain), 0);
		mock_qp_free(peer[i].qp);
		mock_cq_free(peer[i].cq);
	}
}

static unsigned wakes, wakes_by_timer;

/* The lender takes all completions there are when an event or the descriptor has woken it, and then sleeps again. */
static void lender_may_wake(void)
{
	static unsigned seen;
	struct mock_cq *cq = (struct mock_cq *)peer[0].cq;
	const bool event = cq->events != seen, due = is_readable(hugepin_lendq_fd(peer[0].queue));
	seen = cq->events;
	if (!event && !due)
		return;
	wakes++;
	wakes_by_timer += !event;
	while (hugepin_lendq_poll(peer[0].queue, 64) > 0)
		;
}

TEST_BY(with_clock, a_lender_that_sleeps_until_solicited_completions_and_its_descriptor_answers_everything_for_an_hour)
{
	const uint64_t hour = now_ns + 3600 * SECOND;
	unsigned asked = 0, busy_until = 0;
	seed = 3;
	begin_peers();
	for (unsigned i = 0; now_ns < hour || answered < asked; i++) {
		/* from microseconds to seconds go by; now and then the network stands still */
		now_ns += 1000 + ((uint64_t)dice(1000) << dice(22));
		for (unsigned n = now_ns < hour && !dice(4) ? dice(60) : 0; n; n--) {
			struct hugepin_far key;
			int got = hugepin_lend_key(peer[1].lend, 0, (uintptr_t)lent + (size_t)dice(BUCKETS) * BUCKET, 8,
						   NULL, &key);
			EXPECT(got >= 0 || got == -EBUSY);
			if (got == 1)
				EXPECT_EQ(hugepin_lend_done(peer[1].lend, &key), 0);
			asked += got == 0;
		}
		if (!dice(200))
			busy_until = i + dice(40);
		for (int k = 0; k < 2 && i >= busy_until; k++)
			mock_run(peer[dice(2)].qp, dice(20));
		hugepin_lendq_poll(peer[1].queue, 64);
		lender_may_wake();
		if (!EXPECT(now_ns < hour + 600 * SECOND))
			break;
	}
	EXPECT(asked > 10000);
	EXPECT_EQ(answered, asked);
	EXPECT(wakes_by_timer > 0);
	t_print("# %u questions, %u wakes, %u by the descriptor\n", asked, wakes, wakes_by_timer);
	end_peers();
}

T_MAIN
