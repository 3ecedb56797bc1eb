/* link: hugepin-verbs hugepin ibverbs */
/*
 * Two sides that lend to each other from many threads, over the strict device of tests/mock_verbs.h: threads that ask
 * for keys and put by them, and threads that poll, hand in messages, and so send, too. The device looks keys up when it
 * carries a put out: a key that is in use must be registered. A thread that waited for another one's lock for ever
 * would end the test by its time limit.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "mock_verbs.h"

enum { WORKERS = 3, PUTS = 1500, DEPTH = 4, OWN = WORKERS, RECV = 16, PUT_MAX = 256 };
#define SLICE (512 * KIB) /* of a table: each worker of the other side has one for itself */
#define TABLE (WORKERS * SLICE)

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask != IBV_QP_STATE)
		return EINVAL;
	mock_modify((struct mock_qp *)qp, attr->qp_state);
	return 0;
}

struct worker {
	struct side *side;
	unsigned number;
	pthread_t thread;
	uint64_t seed;
	char *source, *shadow; /* shadow: what its slice of the other side's table must be */
	struct hugepin_pin source_pin;
	_Atomic bool answered, put; /* a question, a put */
	int error;
	struct hugepin_far key;
	unsigned asked, refused;
};

static struct side {
	hugepin_domain *domain;
	hugepin_lend *lend;
	hugepin_lendq *queue;
	struct ibv_cq *cq;
	struct mock_qp *qp;
	pthread_mutex_t polling; /* completions must be handed in in their order */
	char *table;
	struct worker worker[WORKERS];
} side[2];

static _Atomic bool stop;

/* ------------------------------------------------------------------ callbacks */

static int send_message(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)peer;
	return hugepin_lendq_send(((struct side *)arg)->queue, msg, len);
}

static void ready(void *arg, void *token, int error, const struct hugepin_far *key)
{
	struct worker *w = token;
	EXPECT(w->side == arg && !w->answered);
	w->error = error;
	if (key)
		w->key = *key;
	w->answered = true;
}

static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	const struct side *s = arg;
	(void)peer;
	*ret_buffer = (struct iovec){ s->table, TABLE };
	return addr - (uintptr_t)s->table < TABLE && len ? 0 : -EACCES;
}

/* ------------------------------------------------------------------ threads */

/* Several threads poll for a side, one at a time. */
static void look(struct side *s)
{
	struct ibv_wc wc;
	if (pthread_mutex_trylock(&s->polling))
		return;
	while (ibv_poll_cq(s->cq, 1, &wc) == 1) {
		if (wc.wr_id < WORKERS) {
			EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
			s->worker[wc.wr_id].put = true;
		} else {
			EXPECT_EQ(hugepin_sg_wc(&wc), 1);
		}
	}
	pthread_mutex_unlock(&s->polling);
	EXPECT_EQ(hugepin_lend_progress(s->lend), 0);
}

static void *poll_side(void *arg)
{
	while (!stop) {
		look(arg);
		sched_yield();
	}
	return NULL;
}

static void put(struct worker *w, struct hugepin_far *key, size_t at)
{
	struct ibv_sge sge = { w->source_pin.base, (uint32_t)key->len, w->source_pin.lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = w->number,
					.opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED,
					.sg_list = &sge,
					.num_sge = 1,
					.wr.rdma = { key->base, key->rkey } };
	pattern_write(w->source, key->len, rand_next(&w->seed));
	memcpy(w->shadow + at, w->source, key->len);
	w->put = false;
	EXPECT_EQ(ibv_post_send(&w->side->qp->qp, &wr, &bad), 0);
	while (!w->put && !stop) {
		look(w->side);
		sched_yield();
	}
	EXPECT_EQ(hugepin_lend_done(w->side->lend, key), 0);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct side *s = w->side, *other = &side[s == side];
	for (int n = 0; n < PUTS; n++) {
		size_t len = 8 * (1 + rand_next(&w->seed) % (PUT_MAX / 8));
		size_t at = 8 * (rand_next(&w->seed) % ((SLICE - PUT_MAX) / 8));
		if (rand_next(&w->seed) % 4)
			at %= SLICE / 16;
		w->answered = false;
		struct hugepin_far key;
		uint64_t to = (uintptr_t)other->table + w->number * SLICE + at;
		int ret = hugepin_lend_key(s->lend, 0, to, len, w, &key);
		if (!EXPECT(ret >= 0))
			break;
		if (!ret) {
			w->asked++;
			while (!w->answered) {
				look(s);
				sched_yield();
			}
			EXPECT(!w->error || w->error == -ENOBUFS);
			key = w->key;
			if (w->error) {
				w->refused++;
				continue;
			}
		}
		EXPECT(key.base == to && key.len && key.len <= len);
		put(w, &key, at);
	}
	return NULL;
}

/* ------------------------------------------------------------------ sides */

static void side_open(struct side *s)
{
	struct hugepin_attr domain = { .size = sizeof domain, .policy = HUGEPIN_POLICY_LRU,
				       .pinned_bytes_max = 256 * MIB };
	struct hugepin_lend_attr lend = { .size = sizeof lend, .peers = 1, .lent_bytes_max = TABLE / 2,
					  .idle_bytes_max = TABLE / 8, .send = send_message, .ready = ready,
					  .offer = offer };
	const struct ibv_qp_cap cap = { .max_send_wr = DEPTH + OWN, .max_recv_wr = RECV, .max_send_sge = 1,
					.max_recv_sge = 1 };
	pthread_mutex_init(&s->polling, NULL);
	s->table = hugepin_aligned_alloc(PAGE, TABLE); /* so that it is lent in pieces of 128 KiB, of which six fit */
	memset(s->table, 0, TABLE);
	s->cq = mock_cq(DEPTH + OWN + RECV);
	s->qp = mock_qp(IBV_QPT_RC, s->cq, &cap, NULL);
	EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, &domain, &s->domain), 0);
	EXPECT_EQ(hugepin_lend_open(s->domain, &lend, s, &s->lend), 0);
	for (unsigned i = 0; i < WORKERS; i++) {
		struct worker *w = &s->worker[i];
		*w = (struct worker){ .side = s, .number = i, .seed = i + (s == side ? 1 : 100) };
		w->source = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		w->shadow = mmap(NULL, SLICE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		EXPECT_EQ(hugepin_pin(s->domain, w->source, 4096, HUGEPIN_READ, &w->source_pin), 0);
	}
}

static void queue_open(struct side *s)
{
	struct hugepin_lendq_attr a = { .size = sizeof a, .qp = &s->qp->qp, .domain = s->domain, .lend = s->lend,
					.depth = DEPTH, .reserved_wr = OWN, .recv_depth = RECV };
	EXPECT_EQ(hugepin_lendq_open(&a, &s->queue), 0);
}

static void side_close(struct side *s)
{
	int err = -EBUSY;
	EXPECT_EQ(ibv_modify_qp(&s->qp->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), 0);
	for (int i = 0; i < 100 && (err = hugepin_lendq_close(s->queue)) == -EBUSY; i++)
		look(s);
	EXPECT_EQ(err, 0);
	EXPECT_EQ(hugepin_lend_close(s->lend), 0);
	for (unsigned i = 0; i < WORKERS; i++) {
		struct worker *w = &s->worker[i];
		EXPECT_EQ(hugepin_unpin(s->domain, &w->source_pin), 0);
		munmap(w->source, 4096);
		munmap(w->shadow, SLICE);
	}
	EXPECT_EQ(hugepin_domain_close(s->domain), 0); /* -EBUSY: pins are out */
	EXPECT_EQ(s->qp->mistakes, 0);
	mock_qp_free(s->qp);
	mock_cq_free(s->cq);
	hugepin_free(s->table);
	pthread_mutex_destroy(&s->polling);
}

TEST(threads_ask_put_poll_and_lend_at_once)
{
	pthread_t poller[4];
	stop = false;
	for (int i = 0; i < 2; i++)
		side_open(&side[i]);
	mock_connect(side[0].qp, side[1].qp);
	for (int i = 0; i < 2; i++)
		queue_open(&side[i]);
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(pthread_create(&poller[i], NULL, poll_side, &side[i % 2]), 0);
	for (int i = 0; i < 2 * WORKERS; i++) {
		struct worker *w = &side[i % 2].worker[i / 2];
		EXPECT_EQ(pthread_create(&w->thread, NULL, work, w), 0);
	}
	for (int i = 0; i < 2 * WORKERS; i++)
		pthread_join(side[i % 2].worker[i / 2].thread, NULL);
	stop = true;
	for (int i = 0; i < 4; i++)
		pthread_join(poller[i], NULL);
	for (int i = 0; i < 2; i++) {
		unsigned asked = 0, refused = 0;
		struct hugepin_lend_stats stats;
		hugepin_lend_stats(side[!i].lend, HUGEPIN_LEND_ALL, &stats, sizeof stats);
		for (unsigned k = 0; k < WORKERS; k++) {
			EXPECT(!memcmp(side[!i].table + k * SLICE, side[i].worker[k].shadow, SLICE));
			asked += side[i].worker[k].asked;
			refused += side[i].worker[k].refused;
		}
		EXPECT_EQ(refused, 0); /* no more than one piece of each worker's is in use */
		EXPECT(stats.bytes_peak <= TABLE / 2 + TABLE / 8);
		EXPECT_EQ(stats.broken, 0);
		t_print("# side %d: %u puts, %u questions, %u refused\n", i, WORKERS * PUTS, asked, refused);
	}
	for (int i = 0; i < 2; i++)
		side_close(&side[i]);
}

T_MAIN
