/*
 * The carrier of a lend's messages (sge/lendq.c), over the strict device of tests/mock_verbs.h. A lend of this file's
 * own stands in for lend/: it has a lock, as the real one, under which it sends, also from within a received message.
 * Each message arrives once, in order and whole, or the peer is told to be gone, once.
 */
#include <sys/wait.h>

#include "hugepin_verbs.h"
#include "mock_verbs.h"

enum { PEERS = 2, CARRY = 2000, LONGEST = HUGEPIN_LEND_MESSAGE_MAX + CARRY };

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask != IBV_QP_STATE)
		return EINVAL;
	mock_modify((struct mock_qp *)qp, attr->qp_state);
	return 0;
}

static _Thread_local uint64_t seed = 42;

static uint32_t dice(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)((seed >> 33) % n);
}

/* ------------------------------------------------------------------ the lend */

struct hugepin_lend {
	pthread_mutex_t lock;
	hugepin_lendq *queue[PEERS];
	uint32_t said[PEERS], heard[PEERS]; /* numbers of messages */
	uint32_t owed[PEERS]; /* answers that found no room */
	bool held[PEERS]; /* the queue has taken messages that it has not posted */
	unsigned gone[PEERS], broken, looked; /* looked: calls of hugepin_lend_progress */
	int answers[PEERS]; /* whom to send a message when the peer has sent one; -1: nobody */
	int refuses; /* the error of the next message */
	uint32_t carry_max;
	int polled; /* what the poll in a callback returned; 1: not tried */
	const struct ibv_wc *in_callback; /* a completion that a callback hands in, */
	int handed_in; /* with this result */
};

static unsigned char byte_of(uint32_t number, size_t at)
{
	return (unsigned char)(number * 31 + at * 7 + (at >> 8));
}

/* Send the next message to the peer, of len bytes. The lock is held. */
static int say(struct hugepin_lend *l, uint32_t peer, size_t len)
{
	unsigned char msg[LONGEST];
	for (size_t i = 4; i < len; i++)
		msg[i] = byte_of(l->said[peer], i);
	memcpy(msg, &l->said[peer], 4);
	errno = 77;
	int ret = hugepin_lendq_send(l->queue[peer], msg, len);
	EXPECT_EQ(errno, 77);
	memset(msg, 0xdd, len); /* it is the lend's again */
	l->said[peer] += ret >= 0;
	l->held[peer] = ret == 1;
	return ret < 0 ? ret : 0;
}

static int say_locked(struct hugepin_lend *l, uint32_t peer, size_t len)
{
	pthread_mutex_lock(&l->lock);
	int ret = say(l, peer, len);
	pthread_mutex_unlock(&l->lock);
	return ret;
}

static void pay(struct hugepin_lend *l)
{
	for (uint32_t p = 0; p < PEERS; p++)
		while (l->owed[p] && say(l, p, 4 + dice(60)) == 0)
			l->owed[p]--;
}

/* What is sent and taken by a thread that a callback waits for. */
static void *call_from_outside(void *queue)
{
	EXPECT(hugepin_lendq_send(queue, "\0\0\0", 4) >= 0);
	EXPECT(hugepin_lendq_poll(queue, 1) >= 0);
	EXPECT_EQ(hugepin_lendq_close(queue), -EBUSY);
	return NULL;
}

int hugepin_lend_message(hugepin_lend *l, uint32_t peer, const void *msg, size_t len)
{
	const unsigned char *p = msg;
	uint32_t number;
	pthread_mutex_lock(&l->lock);
	EXPECT(!l->gone[peer]);
	if (l->refuses) {
		int err = l->refuses;
		l->refuses = 0;
		pthread_mutex_unlock(&l->lock);
		return err;
	}
	if (len < 4) {
		EXPECT_EQ(len, 0);
		l->broken++;
		pthread_mutex_unlock(&l->lock);
		return -EILSEQ;
	}
	memcpy(&number, p, 4);
	EXPECT_EQ(number, l->heard[peer]);
	l->heard[peer]++;
	bool same = true;
	for (size_t i = 4; i < len; i++)
		same &= p[i] == byte_of(number, i);
	EXPECT(same);
	if (l->answers[peer] >= 0) {
		l->owed[l->answers[peer]]++;
		pay(l);
	}
	pthread_mutex_unlock(&l->lock);
	if (l->in_callback)
		l->handed_in = hugepin_sg_wc(l->in_callback);
	if (!l->polled) {
		pthread_t thread;
		EXPECT_EQ(pthread_create(&thread, NULL, call_from_outside, l->queue[peer]), 0);
		pthread_join(thread, NULL);
		l->polled = hugepin_lendq_poll(l->queue[peer], 1);
	}
	return 0;
}

int hugepin_lend_progress(hugepin_lend *l)
{
	pthread_mutex_lock(&l->lock);
	l->looked++;
	for (uint32_t p = 0; p < PEERS; p++)
		if (l->held[p] && !l->gone[p])
			l->held[p] = hugepin_lendq_send(l->queue[p], NULL, 0) == 1;
	pay(l);
	pthread_mutex_unlock(&l->lock);
	return 0;
}

int hugepin_lend_stats(hugepin_lend *l, uint32_t peer, struct hugepin_lend_stats *ret_, size_t size)
{
	*ret_ = (struct hugepin_lend_stats){ .carry_max = l->carry_max };
	return peer < PEERS ? (int)size : -EINVAL;
}

int hugepin_lend_gone(hugepin_lend *l, uint32_t peer)
{
	pthread_mutex_lock(&l->lock);
	l->gone[peer]++;
	EXPECT_EQ(l->gone[peer], 1);
	/* whoever asks for a key now has a peer that does not answer */
	int ret = say(l, peer, 10);
	EXPECT(ret == -ESHUTDOWN || ret == 0 || ret == -EAGAIN);
	l->owed[peer] = 0;
	pthread_mutex_unlock(&l->lock);
	return 0;
}

/* ------------------------------------------------------------------ sides */

/* A process with a lend, and its connections to others. */
struct side {
	struct hugepin_lend lend;
	struct ibv_cq *cq[PEERS];
	struct mock_qp *qp[PEERS];
};
static struct side side[3];
static hugepin_domain *domain;
static const struct ibv_qp_cap usual = { .max_send_wr = 8, .max_recv_wr = 6, .max_send_sge = 1, .max_recv_sge = 1,
					 .max_inline_data = 128 };

static void side_begin(struct side *s)
{
	memset(s, 0, sizeof *s);
	pthread_mutex_init(&s->lend.lock, NULL);
	for (int i = 0; i < PEERS; i++)
		s->lend.answers[i] = -1;
	s->lend.polled = 1;
}

static int queue_open(struct side *s, uint32_t peer, struct hugepin_lendq_attr a)
{
	a.size = sizeof a;
	a.qp = &s->qp[peer]->qp;
	a.domain = domain;
	a.lend = &s->lend;
	a.peer = peer;
	return hugepin_lendq_open(&a, &s->lend.queue[peer]);
}

/* Connect a, to which b is the peer pb, with b, to which a is the peer pa. */
static void connect_sides(struct side *a, uint32_t pb, struct side *b, uint32_t pa, struct hugepin_lendq_attr attr)
{
	unsigned room = usual.max_send_wr + usual.max_recv_wr;
	a->cq[pb] = mock_cq(room);
	b->cq[pa] = mock_cq(room);
	a->qp[pb] = mock_qp(IBV_QPT_RC, a->cq[pb], &usual, NULL);
	b->qp[pa] = mock_qp(IBV_QPT_RC, b->cq[pa], &usual, NULL);
	mock_connect(a->qp[pb], b->qp[pa]);
	EXPECT_EQ(queue_open(a, pb, attr), 0);
	EXPECT_EQ(queue_open(b, pa, attr), 0);
}

static void begin(struct hugepin_lendq_attr attr)
{
	struct hugepin_attr of_domain = { .size = sizeof of_domain, .policy = HUGEPIN_POLICY_LRU,
					  .pinned_bytes_max = UINT64_MAX };
	mock.pace = UINT_MAX;
	EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, &of_domain, &domain), 0);
	for (int i = 0; i < 3; i++)
		side_begin(&side[i]);
	connect_sides(&side[0], 0, &side[1], 0, attr);
}

static void poll_all(void)
{
	for (int s = 0; s < 3; s++)
		for (int p = 0; p < PEERS; p++)
			if (side[s].lend.queue[p])
				hugepin_lendq_poll(side[s].lend.queue[p], 1 + (int)dice(20));
}

static void drain(void)
{
	for (int i = 0; i < 300; i++)
		poll_all();
}

static void to_error(struct mock_qp *q)
{
	EXPECT_EQ(ibv_modify_qp(&q->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), 0);
}

static void side_end(struct side *s)
{
	for (uint32_t p = 0; p < PEERS; p++) {
		if (s->lend.queue[p]) {
			int err = -EBUSY;
			to_error(s->qp[p]);
			for (int i = 0; i < 100 && (err = hugepin_lendq_close(s->lend.queue[p])) == -EBUSY; i++)
				hugepin_lendq_poll(s->lend.queue[p], 3);
			EXPECT_EQ(err, 0);
			EXPECT_EQ(s->lend.gone[p], 1);
		}
		if (s->qp[p]) {
			EXPECT_EQ(s->qp[p]->mistakes, 0);
			mock_qp_free(s->qp[p]);
			mock_cq_free(s->cq[p]);
		}
	}
	pthread_mutex_destroy(&s->lend.lock);
}

static void end(void)
{
	mock.pace = UINT_MAX;
	for (int i = 0; i < 3; i++)
		side_end(&side[i]);
	EXPECT_EQ(hugepin_domain_close(domain), 0); /* -EBUSY: pins are out */
}

/* ------------------------------------------------------------------ messages */

TEST(messages_of_every_length_go_both_ways_in_order)
{
	static const unsigned paces[] = { UINT_MAX, 1, 2 };
	for (int round = 0; round < 6; round++) {
		begin((struct hugepin_lendq_attr){
			.carry_max = CARRY, .depth = (uint32_t)round % 3, .reserved_wr = 2 });
		mock.pace = paces[round % 3];
		for (int i = 0; i < 1500; i++)
			for (int k = 0; k < 2; k++) {
				size_t len = dice(4) ? 4 + dice(200) : 4 + dice(LONGEST - 3);
				int ret;
				while ((ret = say_locked(&side[k].lend, 0, len)) == -EAGAIN)
					poll_all();
				EXPECT_EQ(ret, 0);
			}
		drain();
		EXPECT_EQ(say_locked(&side[0].lend, 0, LONGEST), 0);
		drain();
		EXPECT_EQ(side[1].lend.heard[0], 1501);
		EXPECT_EQ(side[0].lend.heard[0], 1500);
		EXPECT_EQ(hugepin_lendq_wc_status(side[0].lend.queue[0]), IBV_WC_SUCCESS);
		end();
	}
}

TEST(a_message_longer_than_was_announced_is_refused)
{
	char msg[LONGEST + 1] = { 0 };
	begin((struct hugepin_lendq_attr){ .carry_max = CARRY });
	EXPECT_EQ(hugepin_lendq_send(side[0].lend.queue[0], msg, sizeof msg), -EMSGSIZE);
	EXPECT_EQ(hugepin_lendq_send(side[0].lend.queue[0], NULL, 4), -EINVAL);
	EXPECT_EQ(hugepin_lendq_send(side[0].lend.queue[0], NULL, 0), 0); /* there is nothing to be sent once more */
	EXPECT_EQ(hugepin_lendq_send(NULL, msg, 4), -EINVAL);
	drain();
	EXPECT_EQ(side[1].lend.heard[0], 0);
	end();
}

TEST(a_message_is_answered_while_it_is_handed_in_to_its_sender_and_to_another_peer)
{
	begin((struct hugepin_lendq_attr){ .depth = 2 });
	connect_sides(&side[0], 1, &side[2], 0, (struct hugepin_lendq_attr){ .depth = 1 });
	side[0].lend.answers[0] = 1; /* the second side's messages to the third, */
	side[0].lend.answers[1] = 1; /* the third's to itself */
	mock.pace = 1;
	for (int i = 0; i < 500; i++)
		for (int k = 1; k < 3; k++)
			while (say_locked(&side[k].lend, 0, 4 + dice(200)) == -EAGAIN)
				poll_all();
	drain();
	drain();
	EXPECT_EQ(side[0].lend.heard[0], 500);
	EXPECT_EQ(side[0].lend.heard[1], 500);
	EXPECT_EQ(side[2].lend.heard[0], 1000);
	EXPECT(side[0].lend.looked > 0);
	end();
}

static void at_depth_four(void (*body)(void))
{
	begin((struct hugepin_lendq_attr){ .depth = 4 });
	body();
	end();
}

TEST_BY(at_depth_four, a_callback_may_wait_for_a_thread_that_polls_and_its_own_poll_is_refused)
{
	mock.pace = 0;
	side[1].lend.polled = 0;
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(say_locked(&side[0].lend, 0, 20), 0);
	mock_run(side[0].qp[0], 3);
	EXPECT_EQ(hugepin_lendq_poll(side[1].lend.queue[0], 1), 1);
	EXPECT_EQ(side[1].lend.polled, -EBUSY);
	mock.pace = UINT_MAX;
	drain();
	EXPECT_EQ(side[1].lend.heard[0], 3); /* the refused poll has taken no completion */
}

TEST(messages_are_solicited)
{
	begin((struct hugepin_lendq_attr){ .depth = 2 });
	mock.pace = 0;
	EXPECT_EQ(say_locked(&side[0].lend, 0, 20), 0);
	EXPECT(side[0].qp[0]->sq[0].flags & IBV_SEND_SOLICITED);
	mock.pace = UINT_MAX;
	drain();
	end();
}

static struct ibv_send_wr own_write(struct ibv_sge *sge)
{
	return (struct ibv_send_wr){ .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				     .sg_list = sge, .num_sge = 1, .wr.rdma.remote_addr = sge->addr + 64,
				     .wr.rdma.rkey = sge->lkey | MOCK_RKEY };
}

TEST(the_programs_own_work_requests_have_their_place_and_their_completions_are_its_own)
{
	static char memory[128];
	uint32_t lkey = mock_reg(memory, sizeof memory, HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE);
	struct ibv_sge sge = { (uintptr_t)memory, 64, lkey };
	struct ibv_send_wr *bad, wr = own_write(&sge);
	struct ibv_wc wc;
	unsigned own = 0, theirs = 0, left = 0;
	begin((struct hugepin_lendq_attr){ .reserved_wr = 3 });
	mock.pace = 0;
	EXPECT_EQ(hugepin_sg_wc(NULL), -EINVAL);
	while (say_locked(&side[0].lend, 0, 200) == 0)
		EXPECT(side[0].lend.said[0] < 100);
	EXPECT_EQ(side[0].qp[0]->posted, 5);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(ibv_post_send(&side[0].qp[0]->qp, &wr, &bad), 0);
	mock.pace = UINT_MAX;
	for (int i = 0; i < 300; i++) {
		while (ibv_poll_cq(side[0].cq[0], 1, &wc) == 1) {
			int ret = hugepin_sg_wc(&wc);
			own += ret == 0 && wc.wr_id == 1;
			theirs += ret == 1;
			left += ret != 1 && wc.wr_id != 1;
			if (ret == 1)
				EXPECT_EQ(hugepin_sg_wc(&wc), 0);
		}
		hugepin_lendq_poll(side[1].lend.queue[0], 3);
	}
	EXPECT_EQ(own, 3);
	EXPECT(theirs > 0);
	EXPECT_EQ(left, 0);
	EXPECT_EQ(side[1].lend.heard[0], side[0].lend.said[0]);
	mock_dereg(lkey);
	end();
}

/* Post bytes of this test's own as one message of side 0. */
static void post_raw(const void *bytes, uint32_t len)
{
	static char memory[2 * LONGEST];
	memcpy(memory, bytes, len);
	uint32_t lkey = mock_reg(memory, sizeof memory, HUGEPIN_READ);
	struct ibv_sge sge = { (uintptr_t)memory, len, lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
					.sg_list = &sge, .num_sge = 1 };
	EXPECT_EQ(ibv_post_send(&side[0].qp[0]->qp, &wr, &bad), 0);
	mock_run(side[0].qp[0], 1);
	mock_dereg(lkey);
}

TEST(what_no_lend_sends_is_reported_and_the_messages_behind_it_arrive)
{
	char frame[200], record[40] = { 0 };
	struct iovec iov = { record, sizeof record };
	begin((struct hugepin_lendq_attr){ .depth = 4 });
	for (int kind = 0; kind < 3; kind++) {
		uint64_t tag = 5;
		size_t len = sizeof iov.iov_len;
		ssize_t n = kind == 1 ? hugepin_sg_frame(frame, sizeof frame, &iov, &tag, 1) : 30; /* a tag */
		if (kind == 0)
			memset(frame, 0xaa, 30); /* no frame */
		if (kind == 2) /* a part */
			n = hugepin_sg_table(frame, sizeof frame, &len, NULL, 1, 0, 2) + (ssize_t)len;
		post_raw(frame, (uint32_t)n);
		EXPECT_EQ(hugepin_lendq_poll(side[1].lend.queue[0], 9), -EILSEQ);
		EXPECT_EQ(side[1].lend.broken, kind + 1);
		EXPECT_EQ(say_locked(&side[0].lend, 0, 30), 0);
		EXPECT_EQ(hugepin_lendq_poll(side[1].lend.queue[0], 9), 1);
		EXPECT_EQ(side[1].lend.heard[0], kind + 1);
	}
	end();
}

TEST_BY(at_depth_four, a_provider_that_refuses_gets_the_message_again)
{
	for (int i = 0; i < 200; i++) {
		side[0].qp[0]->refuse_in = 1 + dice(2);
		int ret = say_locked(&side[0].lend, 0, 20);
		EXPECT(ret == 0 || ret == -EAGAIN);
		if (!dice(3))
			poll_all();
	}
	side[0].qp[0]->refuse_in = 0;
	drain();
	EXPECT(side[0].lend.said[0] > 100);
	EXPECT_EQ(side[1].lend.heard[0], side[0].lend.said[0]);
}

/* As a program with work requests of its own, whose completion queue has nothing more. */
static void look(struct side *s)
{
	for (struct ibv_wc wc; ibv_poll_cq(s->cq[0], 1, &wc) == 1;)
		EXPECT_EQ(hugepin_sg_wc(&wc), 1);
	EXPECT_EQ(hugepin_lend_progress(&s->lend), 0);
}

/* held: the message has waited for a completion, which finds the send queue full. Else it is refused at once. */
TEST(a_message_that_the_provider_refused_goes_with_the_progress_of_its_lend)
{
	for (int held = 0; held < 2; held++) {
		begin((struct hugepin_lendq_attr){ .depth = 2 });
		struct mock_qp *qp = side[0].qp[0];
		mock.pace = 0;
		if (held)
			EXPECT_EQ(say_locked(&side[0].lend, 0, 20), 0);
		qp->refuse_in = qp->refuse_on = !held;
		EXPECT_EQ(say_locked(&side[0].lend, 0, 20), 0);
		qp->refuse_in = qp->refuse_on = true;
		mock_run(qp, 1);
		for (int i = 0; i < 3; i++) {
			look(&side[0]);
			EXPECT(side[0].lend.held[0]);
			EXPECT_EQ(qp->posted, held);
		}
		mock.pace = UINT_MAX;
		qp->refuse_in = qp->refuse_on = false;
		look(&side[0]);
		EXPECT(!side[0].lend.held[0]);
		look(&side[1]);
		EXPECT_EQ(side[1].lend.heard[0], 1 + held);
		end();
	}
}

/* What the peer has sent before is told by the call around the callback. */
TEST_BY(at_depth_four, a_completion_that_is_refused_in_a_callback_is_not_taken_for_one_that_was_taken)
{
	struct ibv_wc last;
	mock.pace = 0;
	post_raw("no frame, no frame, no frame", 20);
	EXPECT_EQ(say_locked(&side[0].lend, 0, 20), 0);
	mock_run(side[0].qp[0], 1);
	last = (struct ibv_wc){ .wr_id = side[1].qp[0]->rq[2].id, .opcode = IBV_WC_RECV,
				.qp_num = side[1].qp[0]->qp.qp_num };
	side[1].lend.in_callback = &last;
	EXPECT_EQ(hugepin_lendq_poll(side[1].lend.queue[0], 9), -EILSEQ);
	EXPECT_EQ(side[1].lend.handed_in, -EBUSY);
	EXPECT_EQ(side[1].lend.heard[0], 1);
	side[1].lend.in_callback = NULL;
}

/* ------------------------------------------------------------------ peers that go */

TEST(a_queue_pair_that_fails_makes_the_peer_gone_once_however_it_is_noticed)
{
	for (int way = 0; way < 5; way++) {
		begin((struct hugepin_lendq_attr){ .depth = 4 });
		struct hugepin_lend *l = &side[0].lend;
		EXPECT_EQ(say_locked(&side[1].lend, 0, 20), 0);
		drain();
		EXPECT_EQ(l->heard[0], 1);
		switch (way) {
		case 0: /* a send fails */
			side[0].qp[0]->fail = IBV_WC_RETRY_EXC_ERR;
			EXPECT_EQ(say_locked(l, 0, 20), 0);
			break;
		case 1: /* the receives are flushed */
			mock_error(side[0].qp[0], IBV_WC_SUCCESS);
			break;
		case 2: /* the program ends the connection */
			to_error(side[0].qp[0]);
			break;
		case 3: /* the peer has ended it */
			to_error(side[1].qp[0]);
			EXPECT_EQ(say_locked(l, 0, 20), 0);
			break;
		case 4: /* completions come one by one */
			mock_error(side[0].qp[0], IBV_WC_SUCCESS);
			for (struct ibv_wc wc; ibv_poll_cq(side[0].cq[0], 1, &wc) == 1;) {
				EXPECT_EQ(hugepin_sg_wc(&wc), 1);
				EXPECT_EQ(l->gone[0], 1);
			}
			break;
		}
		for (int i = 0; i < 20; i++)
			hugepin_lendq_poll(l->queue[0], 3);
		EXPECT_EQ(l->gone[0], 1);
		EXPECT_EQ(hugepin_lendq_poll(l->queue[0], 3), -ESHUTDOWN);
		if (way == 0 || way == 3)
			EXPECT_EQ(hugepin_lendq_wc_status(l->queue[0]), IBV_WC_RETRY_EXC_ERR);
		pthread_mutex_lock(&l->lock);
		if (way == 0 || way == 3)
			EXPECT_EQ(say(l, 0, 20), -ESHUTDOWN);
		pthread_mutex_unlock(&l->lock);
		end();
	}
}

TEST(a_message_that_the_lend_cannot_take_ends_the_connection)
{
	static const int errors[] = { -ENOMEM, -ENOTCONN /* the peer is lost */ };
	for (int i = 0; i < 4; i++) {
		const int error = errors[i / 2];
		struct ibv_wc wc;
		begin((struct hugepin_lendq_attr){ .depth = 4 });
		struct hugepin_lend *l = &side[0].lend;
		mock.pace = 0;
		for (int k = 0; k < 3; k++)
			EXPECT_EQ(say_locked(&side[1].lend, 0, 20), 0);
		mock_run(side[1].qp[0], 3);
		l->refuses = error;
		if (i % 2) {
			EXPECT_EQ(ibv_poll_cq(side[0].cq[0], 1, &wc), 1);
			EXPECT_EQ(hugepin_sg_wc(&wc), error);
		} else {
			EXPECT_EQ(hugepin_lendq_poll(l->queue[0], 9), error);
		}
		EXPECT_EQ(l->gone[0], 1);
		EXPECT_EQ(side[0].qp[0]->qp.state, IBV_QPS_ERR);
		mock.pace = UINT_MAX;
		drain();
		EXPECT_EQ(l->heard[0], 0);
		EXPECT_EQ(hugepin_lendq_poll(l->queue[0], 9), -ESHUTDOWN);
		end();
	}
}

TEST(messages_that_wait_behind_a_failure_are_not_handed_in)
{
	struct ibv_wc wc[8], failed = { 0 };
	begin((struct hugepin_lendq_attr){ .depth = 4 });
	mock.pace = 0;
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(say_locked(&side[1].lend, 0, 20), 0);
	mock_run(side[1].qp[0], 3);
	EXPECT_EQ(ibv_poll_cq(side[0].cq[0], 8, wc), 3);
	EXPECT_EQ(hugepin_sg_wc(&wc[0]), 1);
	mock_error(side[0].qp[0], IBV_WC_SUCCESS);
	EXPECT_EQ(ibv_poll_cq(side[0].cq[0], 1, &failed), 1);
	EXPECT_EQ(hugepin_sg_wc(&failed), 1);
	EXPECT_EQ(side[0].lend.gone[0], 1);
	for (int i = 1; i < 3; i++)
		EXPECT_EQ(hugepin_sg_wc(&wc[i]), 1);
	EXPECT_EQ(side[0].lend.heard[0], 1);
	end();
}

TEST_BY(at_depth_four, a_queue_that_works_does_not_close_and_one_given_up_does)
{
	EXPECT_EQ(hugepin_lendq_close(NULL), -EINVAL);
	EXPECT_EQ(hugepin_lendq_close(side[0].lend.queue[0]), -EBUSY);
	EXPECT_EQ(side[0].lend.gone[0], 0);
	EXPECT_EQ(say_locked(&side[0].lend, 0, 20), 0); /* and nothing has changed */
	drain();
	EXPECT_EQ(side[1].lend.heard[0], 1);
	mock.pace = 0;
	EXPECT_EQ(say_locked(&side[0].lend, 0, 20), 0);
	mock_modify(side[0].qp[0], IBV_QPS_RESET);
	EXPECT_EQ(hugepin_lendq_abort(side[0].lend.queue[0]), 0);
	EXPECT_EQ(side[0].lend.gone[0], 1);
	side[0].lend.queue[0] = NULL;
}

TEST_BY(at_depth_four, a_queue_opens_only_over_what_can_carry_the_messages)
{
	struct side *s = &side[2];
	hugepin_lendq *q = NULL;
	struct ibv_cq *cq = mock_cq(64);
	struct mock_qp *ud = mock_qp(IBV_QPT_UD, cq, &usual, NULL);
	s->cq[0] = mock_cq(64);
	s->qp[0] = mock_qp(IBV_QPT_RC, s->cq[0], &usual, NULL);
	EXPECT_EQ(queue_open(s, 0, (struct hugepin_lendq_attr){ .carry_max = UINT32_MAX }), -EMSGSIZE);
	EXPECT_EQ(queue_open(s, 0, (struct hugepin_lendq_attr){ .carry_max = mock.port.max_msg_sz }), -EMSGSIZE);
	EXPECT_EQ(queue_open(s, 0, (struct hugepin_lendq_attr){ .reserved_wr = usual.max_send_wr }), -EINVAL);
	EXPECT_EQ(queue_open(s, 0, (struct hugepin_lendq_attr){ .depth = 5, .reserved_wr = 4 }), -EINVAL);
	EXPECT_EQ(queue_open(s, 0, (struct hugepin_lendq_attr){ .recv_depth = 7 }), -EINVAL);
	/* a message of the lend would find no room, or none would come to this peer */
	s->lend.carry_max = CARRY;
	struct hugepin_lendq_attr a = { .carry_max = CARRY - 1 };
	EXPECT_EQ(queue_open(s, 0, a), -EMSGSIZE);
	a = (struct hugepin_lendq_attr){ .size = sizeof a, .qp = &s->qp[0]->qp, .domain = domain, .lend = &s->lend,
					 .peer = PEERS, .carry_max = CARRY };
	EXPECT_EQ(hugepin_lendq_open(&a, &q), -EINVAL);
	a = (struct hugepin_lendq_attr){ .size = sizeof a, .qp = &ud->qp, .domain = domain, .lend = &s->lend };
	EXPECT_EQ(hugepin_lendq_open(&a, &q), -EOPNOTSUPP);
	a.qp = &s->qp[0]->qp;
	struct hugepin_lendq_attr without[] = { a, a, a, a };
	without[0].qp = NULL;
	without[1].domain = NULL;
	without[2].lend = NULL;
	without[3].flags = HUGEPIN_SGQ_WAIT << 1; /* no flag yet */
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(hugepin_lendq_open(&without[i], &q), -EINVAL);
	EXPECT_EQ(hugepin_lendq_open(&a, NULL), -EINVAL);
	a.size = 8;
	EXPECT_EQ(hugepin_lendq_open(&a, &q), -EINVAL);
	EXPECT_EQ(hugepin_lendq_open(NULL, &q), -EINVAL);
	EXPECT(!q);
	s->lend.queue[0] = NULL;
	mock_qp_free(ud);
	mock_cq_free(cq);
}

/* ------------------------------------------------------------------ threads and processes */

static _Atomic bool stop;

static void *poll_side(void *arg)
{
	struct side *s = arg;
	while (!stop)
		hugepin_lendq_poll(s->lend.queue[0], 4);
	return NULL;
}

static void *ask_status(void *arg)
{
	struct side *s = arg;
	while (!stop)
		EXPECT_EQ(hugepin_lendq_wc_status(s->lend.queue[0]), IBV_WC_SUCCESS);
	return NULL;
}

static uint32_t heard_locked(struct side *s)
{
	pthread_mutex_lock(&s->lend.lock);
	uint32_t n = s->lend.heard[0];
	pthread_mutex_unlock(&s->lend.lock);
	return n;
}

static void *talk(void *arg)
{
	struct side *s = arg;
	for (int i = 0; i < 2000;)
		i += say_locked(&s->lend, 0, 4 + dice(100)) == 0;
	return NULL;
}

/* A thread that talks holds the lend's lock and sends. A thread that polls hands in messages, for which it takes that
 * lock, and sends. Neither may wait for the other for ever. */
TEST(threads_that_send_that_poll_and_that_ask_for_the_status_share_a_queue)
{
	T_THREADS_RUN(10);
	pthread_t poller[4], talker[4], asker[2];
	begin((struct hugepin_lendq_attr){ .depth = 4 });
	side[0].lend.answers[0] = 0; /* so each message of the second side has an answer */
	stop = false;
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(pthread_create(&asker[i], NULL, ask_status, &side[i]), 0);
	for (int i = 0; i < 4; i++) {
		EXPECT_EQ(pthread_create(&poller[i], NULL, poll_side, &side[i % 2]), 0);
		EXPECT_EQ(pthread_create(&talker[i], NULL, talk, &side[i % 2]), 0);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(talker[i], NULL);
	for (int i = 0; i < 20000 && heard_locked(&side[1]) < 8000; i++)
		poll_all();
	stop = true;
	for (int i = 0; i < 4; i++)
		pthread_join(poller[i], NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(asker[i], NULL);
	EXPECT_EQ(side[0].lend.heard[0], 4000);
	EXPECT_EQ(side[1].lend.heard[0], 8000);
	end();
}

TEST(in_a_child_the_lendq_is_the_parents)
{
	T_THREADS_RUN(2);
	begin((struct hugepin_lendq_attr){ .depth = 4 });
	hugepin_lendq *q = side[0].lend.queue[0];
	pid_t child = fork();
	if (!child) {
		struct ibv_wc wc = { .wr_id = side[0].qp[0]->rq[0].id };
		bool good = hugepin_lendq_send(q, "abcd", 4) == -ESTALE && hugepin_lendq_poll(q, 1) == -ESTALE &&
			    hugepin_sg_wc(&wc) == -ESTALE && hugepin_lendq_close(q) == 0 &&
			    hugepin_lendq_abort(side[1].lend.queue[0]) == 0;
		_exit(good ? 0 : 1);
	}
	int status = -1;
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(say_locked(&side[0].lend, 0, 20), 0);
	drain();
	EXPECT_EQ(side[1].lend.heard[0], 1);
	end();
}

T_MAIN
