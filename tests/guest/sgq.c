/* link: hugepin-verbs hugepin ibverbs */
/* guest: plain */
/*
 * Queues that pack, over a real provider: two over a connected pair of queue pairs in this process, which both send and
 * receive, or over two for datagrams. Sub-messages of random layouts out of the heap and of memory that is not registered;
 * each byte is compared, and each callback counted, whatever becomes of the queue pair.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"

enum { AREAS = 96, AREA = 16384, UNREGISTERED = AREAS / 4, DEPTH = 16, SUB_MAX = 12000 };

static struct {
	struct wire_port port;
	struct ibv_ah *ah;
	uint32_t flags; /* of the queues */
} wire;

/* One queue with its queue pair, and what it has sent and received. */
static struct side {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_qp_cap granted;
	hugepin_sgq *queue;
	char *memory; /* AREAS of AREA bytes, each in use by one sub-message at a time; the last ones are not registered */
	bool used[AREAS];
	unsigned added, told, good, heard; /* sub-messages; good: told 0 */
	int last; /* status */
	size_t got; /* bytes of the one that is arriving */
	uint32_t *len; /* of each */
	int16_t *area;
} side[2];

static hugepin_domain *domain;
static struct hugepin_pin memory_pin[2];
static uint64_t seed = 4711;

static uint32_t dice(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)((seed >> 33) % n);
}

/* Byte `at` of sub-message `number` of side 0 or 1. */
static char byte_of(unsigned number, size_t at, bool second)
{
	return (char)(number * 131 + at * 7 + (at >> 8) + second);
}

static void free_area(struct side *s, unsigned number)
{
	if (s->area[number] < 0)
		return;
	memset(s->memory + s->area[number] * AREA, 0xdd, AREA);
	s->used[s->area[number]] = false;
	s->area[number] = -1;
}

static void done(void *arg, uint64_t tag, int status)
{
	struct side *s = arg;
	EXPECT_EQ(tag, s->told);
	EXPECT(status == 0 || status == -EIO || status == -ECANCELED);
	/* good ones, then those of the frame that failed, then those behind it */
	EXPECT(!s->told || status == s->last || (status == -EIO && s->last == 0) || status == -ECANCELED);
	s->good += !status;
	s->last = status;
	free_area(s, s->told++);
}

static void hear(void *arg, const struct hugepin_sg_record *r)
{
	struct side *s = arg, *from = &side[s == side];
	bool second = from != side, same = true;
	EXPECT_EQ(r->tag, s->heard);
	EXPECT(r->parts > 0 && r->tag < from->added + 1 && s->got + r->len <= from->len[r->tag]);
	EXPECT_EQ(r->part == 0, s->got == 0 || r->part == 0);
	for (size_t i = 0; i < r->len; i++)
		same &= ((const char *)r->data)[i] == byte_of((unsigned)r->tag, s->got + i, second);
	EXPECT(same);
	if (wire.ah) { /* what an answer to a datagram needs */
		EXPECT(r->grh && r->wc->src_qp == from->qp->qp_num);
		struct ibv_wc wc = *r->wc;
		struct ibv_ah *back = r->tag % 100 ? NULL : ibv_create_ah_from_wc(wire.port.pd, &wc, r->grh, 1);
		EXPECT(r->tag % 100 || back);
		if (back)
			EXPECT_EQ(ibv_destroy_ah(back), 0);
	}
	EXPECT_EQ(!!(r->wc->wc_flags & IBV_WC_WITH_IMM), r->tag % 50 == 7 && r->part + 1 == r->parts);
	if (r->wc->wc_flags & IBV_WC_WITH_IMM)
		EXPECT_EQ(r->wc->imm_data, htobe32((uint32_t)r->tag));
	s->got += r->len;
	if (r->part + 1 == r->parts) {
		EXPECT_EQ(s->got, from->len[r->tag]);
		s->got = 0;
		s->heard++;
	}
}

/* A sub-message of up to `max` bytes in random pieces, with gaps between them. What add() said. */
static int add(struct side *s, uint32_t max, unsigned flags)
{
	bool unregistered = flags & HUGEPIN_SG_COPY_OK && !dice(3), second = s != side;
	int a = -1;
	for (int tries = 0; tries < 200 && a < 0; tries++) {
		int i = (int)dice(AREAS);
		if (!s->used[i] && (i >= AREAS - UNREGISTERED) == unregistered)
			a = i;
	}
	if (a < 0)
		return -EAGAIN;
	struct iovec iov[24];
	int n = (int)dice(24);
	size_t at = 0, end = dice(64), room = max;
	for (int i = 0; i < n; i++) {
		size_t len = !dice(6) ? 0 : dice(2) ? dice(64) : dice((uint32_t)(1 + room / 2));
		len = len < room ? len : room;
		len = end + len <= AREA ? len : 0;
		char *p = s->memory + a * AREA + end;
		for (size_t k = 0; k < len; k++)
			p[k] = byte_of(s->added, at + k, second);
		iov[i] = (struct iovec){ p, len };
		room -= len;
		at += len;
		end += len + (dice(2) ? dice(40) : 0);
		end = end < AREA ? end : AREA;
	}
	unsigned number = s->added;
	s->len[number] = (uint32_t)at;
	s->area[number] = (int16_t)a;
	int got = number % 50 == 7 ?
		hugepin_sgq_add_imm(s->queue, iov, n, number, done, s, flags, htobe32(number)) :
		hugepin_sgq_add(s->queue, iov, n, number, done, s, flags);
	if (got < 0)
		return got;
	s->used[a] = true;
	s->added++;
	if (got == 1)
		free_area(s, number);
	return got;
}

/* ------------------------------------------------------------------ queue pairs and queues */

static bool wire_open(void)
{
	if (!wire_port_open(&wire.port))
		return false;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	EXPECT_EQ(hugepin_verbs_open(wire.port.pd, &attr, &domain), 0);
	for (int i = 0; i < 2; i++) {
		side[i].memory = mmap(NULL, AREAS * AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		/* in two registrations, whose border an area straddles */
		size_t half = (AREAS - UNREGISTERED) / 2 * AREA + 4096, rest = (AREAS - UNREGISTERED) * AREA - half;
		struct hugepin_pin first;
		EXPECT_EQ(hugepin_pin(domain, side[i].memory, half, HUGEPIN_READ, &first), 0);
		EXPECT_EQ(hugepin_pin(domain, side[i].memory + half, rest, HUGEPIN_READ, &memory_pin[i]), 0);
		EXPECT_EQ(hugepin_unpin(domain, &first), 0); /* it stays */
	}
	return true;
}

static void qp_make(struct side *s, enum ibv_qp_type type)
{
	s->cq = ibv_create_cq(wire.port.device, 2 * DEPTH, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq, .recv_cq = s->cq, .qp_type = type,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1 + dice(8), .max_recv_sge = 1,
			 .max_inline_data = dice(2) * 128 },
	};
	s->qp = ibv_create_qp(wire.port.pd, &init);
	s->granted = init.cap;
	EXPECT(wire_init(s->qp));
}

static void begin(enum ibv_qp_type type, uint32_t frame_bytes, uint32_t hold)
{
	for (int i = 0; i < 2; i++) {
		struct side *s = &side[i];
		*s = (struct side){ .memory = s->memory, .len = calloc(SUB_MAX, sizeof *s->len),
				    .area = calloc(SUB_MAX, sizeof *s->area) };
		qp_make(s, type);
	}
	struct ibv_ah_attr to = wire_address(&wire.port);
	wire.ah = type == IBV_QPT_UD ? ibv_create_ah(wire.port.pd, &to) : NULL;
	for (int i = 0; i < 2; i++) /* with credits, a message without a receive is an error at once */
		EXPECT(wire_connect_rnr(&wire.port, side[i].qp, side[!i].qp->qp_num, 3,
					wire.flags & HUGEPIN_SGQ_CREDITS ? 0 : 7));
	for (int i = 0; i < 2; i++) {
		struct hugepin_sgq_attr a = {
			.size = sizeof a, .qp = side[i].qp, .granted = &side[i].granted, .domain = domain, .depth = DEPTH,
			.frame_bytes = frame_bytes, .hold_if_outstanding = hold, .ah = wire.ah, .remote_qpn = side[!i].qp->qp_num,
			.remote_qkey = WIRE_QKEY, .flags = wire.flags, .recv_depth = DEPTH, .recv = hear, .recv_arg = &side[i],
		};
		EXPECT_EQ(hugepin_sgq_open(&a, &side[i].queue), 0);
	}
}

/* Poll both until all is told, and heard if `heard`. */
static void drain(bool heard)
{
	time_t limit = time(NULL) + t_seconds();
	for (;;) {
		bool more = false;
		for (int i = 0; i < 2; i++) {
			hugepin_sgq_poll(side[i].queue, 8);
			more |= side[i].told < side[i].added || (heard && side[!i].heard < side[i].added);
		}
		if (!more || !EXPECT(time(NULL) < limit))
			return;
	}
}

static void qp_break(struct side *s)
{
	EXPECT_EQ(ibv_modify_qp(s->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), 0);
}

static void end(void)
{
	for (int i = 0; i < 2; i++) {
		qp_break(&side[i]);
		time_t limit = time(NULL) + t_seconds();
		int err;
		while ((err = hugepin_sgq_close(side[i].queue)) == -EBUSY && time(NULL) < limit)
			hugepin_sgq_poll(side[i].queue, 8);
		EXPECT_EQ(err, 0);
		EXPECT_EQ(side[i].told, side[i].added);
		EXPECT_EQ(ibv_destroy_qp(side[i].qp), 0);
		EXPECT_EQ(ibv_destroy_cq(side[i].cq), 0);
	}
	for (int i = 0; i < 2; i++) { /* what arrives last is compared with the other side's */
		free(side[i].len);
		free(side[i].area);
	}
	if (wire.ah)
		EXPECT_EQ(ibv_destroy_ah(wire.ah), 0);
}

#define NEEDS_WIRE                                                                                                     \
	do {                                                                                                           \
		if (!wire.port.device && !wire_open())                                                                      \
			SKIP("no verbs device: made for the guest");                                                   \
	} while (0)

/* ------------------------------------------------------------------ tests */

TEST(thousands_of_sub_messages_go_both_ways_over_a_connection)
{
	NEEDS_WIRE;
	static const uint32_t holds[] = { 0, 1, 4 };
	for (int round = 0; round < 6; round++) {
		begin(IBV_QPT_RC, round < 3 ? 8192 : 1000, holds[round % 3]);
		for (unsigned i = 0; i < 1000; i++)
			for (int k = 0; k < 2; k++) {
				struct side *s = &side[k];
				unsigned flags = HUGEPIN_SG_COPY_OK | HUGEPIN_SG_MULTI | (dice(10) ? 0 : HUGEPIN_SG_NOW);
				int got;
				while ((got = add(s, dice(8) ? 300 : 6000, flags)) == -EAGAIN)
					for (int j = 0; j < 2; j++)
						EXPECT(hugepin_sgq_poll(side[j].queue, 4) >= 0);
				EXPECT(got >= 0);
			}
		drain(true);
		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(side[k].added, 1000);
			EXPECT_EQ(side[k].good, side[k].added);
			EXPECT_EQ(side[!k].heard, side[k].added);
		}
		if (t_failed_in(round))
			return;
		end();
	}
}

TEST(with_credits_no_message_comes_without_a_receive_though_one_side_polls_seldom)
{
	NEEDS_WIRE;
	for (int round = 0; round < 3; round++) {
		wire.flags = HUGEPIN_SGQ_CREDITS;
		begin(IBV_QPT_RC, 1000, (uint32_t)round);
		wire.flags = 0;
		unsigned waits = 0;
		for (unsigned i = 0; i < 2000; i++) {
			int got;
			while ((got = add(&side[0], 300, HUGEPIN_SG_COPY_OK | HUGEPIN_SG_MULTI | HUGEPIN_SG_NOW)) == -EAGAIN) {
				EXPECT(hugepin_sgq_poll(side[0].queue, 4) >= 0);
				if (!(++waits % 16))
					EXPECT(hugepin_sgq_poll(side[1].queue, 4) >= 0);
			}
			EXPECT(got >= 0);
			if (round == 2 && !dice(8)) /* something goes back, or nothing does */
				add(&side[1], 300, HUGEPIN_SG_COPY_OK);
		}
		drain(true);
		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(side[k].good, side[k].added);
			EXPECT_EQ(side[!k].heard, side[k].added);
			EXPECT_EQ(hugepin_sgq_wc_status(side[k].queue, NULL), IBV_WC_SUCCESS);
		}
		EXPECT_EQ(side[0].added, 2000);
		t_print("# %u waits\n", waits);
		if (t_failed_in(round))
			return;
		end();
	}
}

TEST(datagrams_arrive_too_as_long_as_receives_are_posted)
{
	NEEDS_WIRE;
	begin(IBV_QPT_UD, 0, 1);
	for (unsigned i = 0; i < 600; i++) {
		EXPECT(add(&side[0], dice(8) ? 200 : 900, HUGEPIN_SG_COPY_OK) >= 0);
		EXPECT(add(&side[1], 900, HUGEPIN_SG_COPY_OK) >= 0);
		if (i % 8 == 7)
			drain(true);
	}
	drain(true);
	EXPECT_EQ(side[0].heard, 600);
	EXPECT_EQ(side[1].heard, 600);
	end();
}

TEST(a_queue_pair_broken_in_flight_tells_each_sub_message_once)
{
	NEEDS_WIRE;
	unsigned cancelled = 0;
	for (int round = 0; round < 30; round++) {
		begin(IBV_QPT_RC, 2048, (uint32_t)round % 4);
		for (int i = 0, when = (int)dice(60); i < 80; i++) {
			if (i == when)
				qp_break(&side[0]);
			int got = add(&side[0], dice(4) ? 300 : 3000, HUGEPIN_SG_COPY_OK | HUGEPIN_SG_MULTI);
			EXPECT(got >= 0 || got == -EAGAIN || got == -ESHUTDOWN);
			if (!dice(3)) {
				got = hugepin_sgq_poll(side[0].queue, 3);
				EXPECT(got >= 0 || got == -ESHUTDOWN);
			}
			hugepin_sgq_poll(side[1].queue, 4);
		}
		drain(false);
		for (int i = 0; i < 100; i++)
			hugepin_sgq_poll(side[1].queue, 8);
		EXPECT(side[1].heard >= side[0].good); /* what was told to have arrived did */
		cancelled += side[0].added - side[0].good;
		/* A fast device may have sent all before, or all that was posted: then the queue sees the queue pair's state. */
		EXPECT(side[0].good == side[0].added ||
		       hugepin_sgq_wc_status(side[0].queue, NULL) != IBV_WC_SUCCESS ||
		       hugepin_sgq_poll(side[0].queue, 1) == -ESHUTDOWN);
		end();
		if (t_failed_in(round))
			return;
	}
	t_print("# %u sub-messages were cancelled\n", cancelled);
	EXPECT(cancelled > 30);
}

TEST(a_peer_that_is_gone_is_told_as_an_error)
{
	NEEDS_WIRE;
	begin(IBV_QPT_RC, 2048, 1);
	qp_break(&side[1]);
	for (int i = 0; i < 20; i++)
		EXPECT(add(&side[0], 100, HUGEPIN_SG_COPY_OK) >= 0);
	drain(false);
	EXPECT_EQ(side[0].good, 0);
	EXPECT_EQ(side[0].last, -ECANCELED); /* of the first frame -EIO */
	EXPECT_EQ(hugepin_sgq_wc_status(side[0].queue, NULL), IBV_WC_RETRY_EXC_ERR);
	end();
}

/* Soft-RoCE flushes the receives that it finds when the state changes, and none that are posted then. */
TEST(a_queue_closes_though_messages_had_arrived_that_nobody_had_taken)
{
	NEEDS_WIRE;
	for (unsigned round = 0; round < 20 && !t_failures; round++) {
		begin(IBV_QPT_RC, 2048, 0);
		unsigned n = round % DEPTH + 1;
		for (unsigned i = 0; i < n; i++)
			EXPECT(add(&side[0], 100, HUGEPIN_SG_COPY_OK | HUGEPIN_SG_NOW) >= 0);
		time_t limit = time(NULL) + t_seconds();
		while (side[0].told < side[0].added && EXPECT(time(NULL) < limit))
			hugepin_sgq_poll(side[0].queue, 8);
		EXPECT_EQ(side[1].heard, 0);
		end();
		EXPECT_EQ(side[1].heard, n);
	}
}

TEST(a_queue_whose_queue_pair_is_gone_is_given_up)
{
	NEEDS_WIRE;
	for (int round = 0; round < 20 && !t_failures; round++) {
		begin(round % 4 ? IBV_QPT_RC : IBV_QPT_UD, round % 4 ? 2048 : 0, (uint32_t)round % 3);
		for (int i = (int)dice(60); i; i--) {
			add(&side[dice(2)], 300, HUGEPIN_SG_COPY_OK | HUGEPIN_SG_MULTI);
			if (!dice(3))
				hugepin_sgq_poll(side[0].queue, 3);
			if (!dice(3))
				hugepin_sgq_poll(side[1].queue, 3);
		}
		for (int i = 0; i < 2; i++) {
			struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
			if (round % 2)
				EXPECT_EQ(ibv_destroy_qp(side[i].qp), 0);
			else
				EXPECT_EQ(ibv_modify_qp(side[i].qp, &reset, IBV_QP_STATE), 0);
			EXPECT_EQ(hugepin_sgq_abort(side[i].queue), 0);
			EXPECT_EQ(side[i].told, side[i].added);
			if (!(round % 2))
				EXPECT_EQ(ibv_destroy_qp(side[i].qp), 0);
			EXPECT_EQ(ibv_destroy_cq(side[i].cq), 0);
			free(side[i].len);
			free(side[i].area);
		}
		if (wire.ah)
			EXPECT_EQ(ibv_destroy_ah(wire.ah), 0);
	}
}

TEST(nothing_is_pinned_afterwards)
{
	NEEDS_WIRE;
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(hugepin_unpin(domain, &memory_pin[i]), 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0); /* -EBUSY: pins are out */
	EXPECT_EQ(ibv_dealloc_pd(wire.port.pd), 0);
	EXPECT_EQ(ibv_close_device(wire.port.device), 0);
}

T_MAIN
