/* link: hugepin-verbs hugepin ibverbs */
/* guest: plain */
/*
 * Queues to some dozens of destinations over a real provider, which share a pool of slots, and receive by one shared
 * receive queue: each record arrives once, in order and with its bytes, while one destination does not receive at all.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"

#include <sched.h>

enum { PAIRS = 24, RECORDS = 200, LONGEST = 3000, AREA = 1 << 20 };

static struct wire_port port;
static struct pair {
	struct ibv_qp *qp[2]; /* 0 sends, 1 receives */
	hugepin_sgq *queue;
	unsigned added, told, heard, cancelled;
} pair[PAIRS + 1]; /* the last one has no receives */
static unsigned char *memory;

static size_t length_of(uint64_t tag)
{
	return (size_t)(tag * 977 % LONGEST);
}

static void done(void *arg, uint64_t tag, int status)
{
	struct pair *p = arg;
	EXPECT_EQ(tag, p->told);
	p->told++;
	p->cancelled += !!status;
}

static void hear(void *arg, const struct hugepin_sg_record *r)
{
	struct pair *p = NULL;
	(void)arg;
	for (int i = 0; i < PAIRS; i++)
		if (pair[i].qp[1]->qp_num == r->wc->qp_num)
			p = &pair[i];
	if (!EXPECT(p) || !EXPECT_EQ(r->parts, 1))
		return;
	EXPECT_EQ(r->tag, p->heard);
	EXPECT_EQ(r->len, length_of(r->tag));
	EXPECT(!memcmp(r->data, memory + r->tag * LONGEST, r->len));
	p->heard++;
}

static struct ibv_qp *qp_new(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = srq ? 0 : 1, .max_send_sge = 4, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(port.pd, &init);
	return qp && wire_init(qp) ? qp : NULL;
}

TEST(many_queues_share_slots_and_receives_beside_one_destination_that_never_receives)
{
	if (!(port.device = wire_device()))
		SKIP("no verbs device: made for the guest");
	if (!EXPECT(wire_port_open(&port)))
		return;
	struct ibv_cq *cq = ibv_create_cq(port.device, 4096, NULL, NULL, 0);
	struct ibv_srq *srq = ibv_create_srq(port.pd, &(struct ibv_srq_init_attr){ .attr = { .max_wr = 64, .max_sge = 1 } });
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	hugepin_domain *domain = NULL;
	hugepin_sgpool *pool = NULL;
	struct hugepin_pin pin;
	memory = hugepin_malloc(AREA);
	if (!EXPECT(cq && srq && memory) || !EXPECT_EQ(hugepin_verbs_open(port.pd, &attr, &domain), 0) ||
	    !EXPECT_EQ(hugepin_pin(domain, memory, AREA, HUGEPIN_READ, &pin), 0))
		return;
	for (size_t i = 0; i < AREA; i++)
		memory[i] = (unsigned char)(i * 31 + (i >> 8) * 7);
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = 2 * PAIRS, .max_sge = 4,
					  .recv_slots = 48, .srq = srq, .recv = hear };
	if (!EXPECT_EQ(hugepin_sgpool_open(&pa, &pool), 0))
		return;
	for (int i = 0; i <= PAIRS; i++) {
		struct pair *p = &pair[i];
		p->qp[0] = qp_new(cq, NULL);
		p->qp[1] = qp_new(cq, i < PAIRS ? srq : NULL);
		if (!EXPECT(p->qp[0] && p->qp[1]) ||
		    !EXPECT(wire_connect(&port, p->qp[0], p->qp[1]->qp_num, 7) &&
			    wire_connect(&port, p->qp[1], p->qp[0]->qp_num, 7)))
			return;
		struct hugepin_sgq_attr a = { .size = sizeof a, .qp = p->qp[0], .domain = domain, .pool = pool };
		if (!EXPECT_EQ(hugepin_sgq_open(&a, &p->queue), 0))
			return;
	}
	const time_t end = time(NULL) + t_seconds();
	unsigned finished = 0, waited = 0, frames = 0;
	while (finished < PAIRS && time(NULL) < end && !t_failures) {
		finished = 0;
		for (int i = 0; i <= PAIRS; i++) {
			struct pair *p = &pair[i];
			for (int burst = 0; burst < 8 && p->added < RECORDS; burst++) {
				const size_t len = length_of(p->added);
				struct iovec iov[2] = { { memory + (size_t)p->added * LONGEST, len / 4 } };
				iov[1] = (struct iovec){ (char *)iov[0].iov_base + len / 4, len - len / 4 };
				const int got = hugepin_sgq_add(p->queue, iov, 2, p->added, done, p, 0);
				EXPECT(got == 0 || got == 1 || got == -EAGAIN);
				waited += got == -EAGAIN;
				if (got < 0)
					break;
				p->added++;
			}
			finished += i < PAIRS && p->heard == RECORDS && p->told == RECORDS;
		}
		struct ibv_wc wc[32];
		const int n = ibv_poll_cq(cq, 32, wc);
		for (int k = 0; k < n; k++) {
			int taken = hugepin_sg_wc(&wc[k]);
			frames += taken == 1;
			EXPECT_EQ(taken, 1);
		}
		if (!n)
			sched_yield();
	}
	t_print("# %u frames of %u records, %u waits; the one that never receives added %u\n", frames, PAIRS * RECORDS,
		waited, pair[PAIRS].added);
	EXPECT_EQ(finished, PAIRS);
	EXPECT_EQ(pair[PAIRS].told, 0);
	EXPECT(waited > 0);
	for (int i = 0; i < PAIRS; i++) {
		EXPECT_EQ(pair[i].cancelled, 0);
		EXPECT_EQ(hugepin_sgq_close(pair[i].queue), 0);
	}
	EXPECT_EQ(hugepin_sgpool_close(pool), -EBUSY);
	EXPECT_EQ(ibv_destroy_qp(pair[PAIRS].qp[0]), 0);
	EXPECT_EQ(hugepin_sgq_abort(pair[PAIRS].queue), 0);
	EXPECT_EQ(pair[PAIRS].cancelled, pair[PAIRS].added);
	EXPECT_EQ(ibv_destroy_qp(pair[PAIRS].qp[1]), 0);
	for (int i = 0; i < PAIRS; i++)
		for (int k = 0; k < 2; k++)
			EXPECT_EQ(ibv_destroy_qp(pair[i].qp[k]), 0);
	EXPECT_EQ(ibv_destroy_srq(srq), 0);
	EXPECT_EQ(hugepin_sgpool_close(pool), 0);
	EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	EXPECT_EQ(ibv_destroy_cq(cq), 0);
	EXPECT_EQ(ibv_dealloc_pd(port.pd), 0);
	EXPECT_EQ(ibv_close_device(port.device), 0);
	hugepin_free(memory);
}

T_MAIN
