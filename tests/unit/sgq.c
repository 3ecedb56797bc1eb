/*
 * sge/queue.c, with receive.c and open.c, on the strict device of tests/mock_verbs.h: what goes in comes out, once, in
 * order, and each sub-message is told of once, with a true status, whatever happens.
 */
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "hugepin_verbs.h"
#include "mock_verbs.h"

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask != IBV_QP_STATE)
		return EINVAL;
	mock_modify((struct mock_qp *)qp, attr->qp_state);
	return 0;
}

/* ------------------------------------------------------------------ a sender and a receiver, and memory to send */

enum { AREAS = 128, AREA = 16384, SUBS = 4096, PIECES = 12 };

static uint64_t seed;

static uint32_t dice(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)((seed >> 33) % n);
}

static char *memory; /* AREAS of AREA bytes, each in use by one sub-message at a time; every fourth is not registered */
static bool area_used[AREAS];

static bool registered(unsigned area)
{
	return area % 4 != 3;
}

static struct {
	struct ibv_cq *cq[2];
	struct mock_qp *qp[2];
	hugepin_domain *domain;
	struct hugepin_pin pin[AREAS];
	hugepin_sgq *out, *in;
	struct hugepin_sgq_attr attr;
} w;
static uint32_t out_receives; /* recv_depth of the sender's queue */

/* Sub-messages as they were added, in order. */
static struct {
	unsigned char *bytes;
	size_t len, got; /* got: of these received */
	int status, area; /* 1: not told yet; area -1: free */
} sub[SUBS];
static unsigned added, told, heard; /* heard: the one that is to be received next */
static bool in_done;
static bool lossy; /* cancelled sub-messages are not heard */

/* Pieces of 64 bytes and more are gathered. */
static const struct hugepin_sg_model model = {
	.size = sizeof model, .wr = 8, .element = 1, .copy_byte = 1 / 63.5f, .cold_byte = 1 / 63.5f
};

static void free_area(int area)
{
	memset(memory + area * AREA, 0xdd, AREA); /* who still reads it, reads this */
	area_used[area] = false;
}

static void done(void *arg, uint64_t tag, int status)
{
	unsigned i = (unsigned)(uintptr_t)arg;
	EXPECT_EQ(i, told);
	EXPECT_EQ(tag, i * UINT64_C(0x100000001));
	EXPECT_EQ(sub[i].status, 1);
	EXPECT(!in_done);
	in_done = true;
	if (w.out && hugepin_sgq_wc_status(w.out, NULL))
		EXPECT_EQ(hugepin_sgq_flush(w.out), -ESHUTDOWN);
	in_done = false;
	sub[i].status = status;
	if (sub[i].area >= 0)
		free_area(sub[i].area);
	sub[i].area = -1;
	told++;
}

static void hear(void *arg, uint64_t tag, const void *data, size_t len, unsigned part, unsigned parts)
{
	(void)arg;
	unsigned i = (unsigned)(tag / UINT64_C(0x100000001));
	if (!EXPECT(parts > 0) || !EXPECT_EQ(i, heard) || !EXPECT(i < added + 1))
		return;
	EXPECT_EQ(part ? sub[i].got > 0 : sub[i].got == 0, 1);
	EXPECT(sub[i].got + len <= sub[i].len && !memcmp(sub[i].bytes + sub[i].got, data, len));
	sub[i].got += len;
	heard += part + 1 == parts;
	if (part + 1 == parts)
		EXPECT_EQ(sub[i].got, sub[i].len);
}

static hugepin_domain *domain_of_mock(void)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .pinned_bytes_max = UINT64_MAX };
	hugepin_domain *d = NULL;
	EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, &attr, &d), 0);
	return d;
}

/* Queue pairs with these caps, a queue as *attr says on the first, and one that receives on the second. */
static void begin(enum ibv_qp_type type, struct ibv_qp_cap cap, struct hugepin_sgq_attr attr, const struct mock_provider *p)
{
	memset(&w, 0, sizeof w);
	memset(sub, 0, sizeof sub);
	memset(area_used, 0, sizeof area_used);
	added = told = heard = 0;
	lossy = false;
	mock.pace = UINT_MAX;
	if (!memory)
		memory = mmap(NULL, AREAS * AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	w.domain = domain_of_mock();
	for (unsigned i = 0; i < AREAS; i++)
		if (registered(i))
			EXPECT_EQ(hugepin_pin(w.domain, memory + i * AREA, AREA, HUGEPIN_READ, &w.pin[i]), 0);

	unsigned depth = attr.depth ? attr.depth : cap.max_send_wr;
	w.cq[0] = mock_cq(depth + attr.reserved_wr + out_receives); /* not one more than may be out */
	w.cq[1] = mock_cq(64);
	w.qp[0] = mock_qp(type, w.cq[0], &cap, p);
	struct ibv_qp_cap in_cap = { .max_send_wr = 1, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 };
	w.qp[1] = mock_qp(type, w.cq[1], &in_cap, p);
	if (type == IBV_QPT_RC)
		mock_connect(w.qp[0], w.qp[1]);

	static struct ibv_ah ah;
	attr.size = sizeof attr;
	attr.qp = &w.qp[0]->qp;
	attr.domain = w.domain;
	attr.model = attr.model ? attr.model : &model;
	attr.ah = &ah;
	attr.remote_qpn = w.qp[1]->qp.qp_num;
	attr.remote_qkey = w.qp[1]->qkey;
	struct hugepin_sgq_attr in = attr;
	in.qp = &w.qp[1]->qp;
	in.flags = attr.flags & HUGEPIN_SGQ_RAW;
	in.depth = 1;
	in.reserved_wr = 0;
	in.recv_depth = in.recv_depth ? in.recv_depth : 16;
	in.recv = in.recv ? in.recv : hear;
	attr.recv_depth = out_receives;
	attr.recv = hear;
	w.attr = attr;
	EXPECT_EQ(hugepin_sgq_open(&attr, &w.out), 0);
	EXPECT_EQ(hugepin_sgq_open(&in, &w.in), 0);
}

/* Both close, and nothing is pinned any more. */
static void end(void)
{
	mock.pace = UINT_MAX;
	if (w.out)
		EXPECT_EQ(hugepin_sgq_close(w.out), 0);
	if (w.in) {
		mock_error(w.qp[1], IBV_WC_SUCCESS);
		while (hugepin_sgq_poll(w.in, 16) > 0)
			;
		EXPECT_EQ(hugepin_sgq_close(w.in), 0);
	}
	EXPECT_EQ(told, added);
	for (unsigned i = 0; i < added; i++) {
		if (!sub[i].status || !lossy)
			EXPECT_EQ(sub[i].got, sub[i].len);
		free(sub[i].bytes);
	}
	for (unsigned i = 0; i < AREAS; i++)
		if (w.pin[i].ref)
			EXPECT_EQ(hugepin_unpin(w.domain, &w.pin[i]), 0);
	EXPECT_EQ(hugepin_domain_close(w.domain), 0); /* -EBUSY: pins are out */
	EXPECT_EQ(w.qp[0]->mistakes, 0);
	EXPECT_EQ(w.qp[1]->mistakes, 0);
	mock_qp_free(w.qp[0]);
	mock_qp_free(w.qp[1]);
	mock_cq_free(w.cq[0]);
	mock_cq_free(w.cq[1]);
}

/* Add the next sub-message, of these pieces, in `area`. What add() said. */
static int add_pieces(const struct iovec *iov, int n, int area, unsigned flags)
{
	unsigned i = added;
	size_t len = 0, at = 0;
	for (int k = 0; k < n; k++)
		len += iov[k].iov_len;
	sub[i].bytes = malloc(len + 1);
	sub[i].len = len;
	for (int k = 0; k < n; at += iov[k++].iov_len)
		if (iov[k].iov_len)
			memcpy(sub[i].bytes + at, iov[k].iov_base, iov[k].iov_len);
	sub[i].status = 1;
	sub[i].area = area;
	if (area >= 0)
		area_used[area] = true;
	errno = 77;
	int got = hugepin_sgq_add(w.out, iov, n, i * UINT64_C(0x100000001), done, (void *)(uintptr_t)i, flags);
	EXPECT_EQ(errno, 77);
	if (got < 0) {
		free(sub[i].bytes);
		if (area >= 0)
			area_used[area] = false;
		return got;
	}
	added++;
	if (got == 1 && area >= 0 && sub[i].area >= 0) { /* all copied: ours again at once */
		sub[i].area = -1;
		free_area(area);
	}
	return got;
}

static int free_area_index(bool is_registered)
{
	for (int tries = 0; tries < 1000; tries++) {
		int i = (int)dice(AREAS);
		if (!area_used[i] && registered((unsigned)i) == is_registered)
			return i;
	}
	return -1;
}

static void fill(char *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		p[i] = (char)dice(256);
}

/* A sub-message of one piece. */
static int add_one(size_t len, unsigned flags)
{
	int area = free_area_index(!(flags & HUGEPIN_SG_COPY_OK));
	if (!EXPECT(area >= 0))
		return -1;
	char *p = memory + area * AREA;
	fill(p, len);
	return add_pieces(&(struct iovec){ p, len }, 1, area, flags);
}

/* Of random pieces, which may overlap. */
static int add_random(size_t max, unsigned flags)
{
	bool unregistered = flags & HUGEPIN_SG_COPY_OK && dice(2);
	int area = free_area_index(!unregistered), n = (int)dice(PIECES + 1);
	struct iovec iov[PIECES];
	if (area < 0)
		return -EAGAIN;
	char *p = memory + area * AREA;
	fill(p, 64);
	memcpy(p + 64 + dice(512), &seed, 8);
	memcpy(p + 1024 + dice(8192), &seed, 8);
	for (int k = 0; k < n; k++) {
		size_t len = !dice(4) ? 0 : dice(3) ? dice(40) : dice((uint32_t)max / 2 + 1);
		len = len < max ? len : max;
		max -= len;
		iov[k] = (struct iovec){ len || dice(2) ? p + dice((uint32_t)(AREA - len)) : NULL, len };
	}
	return add_pieces(iov, n, area, flags);
}

/* Poll both sides until nothing comes any more. No flush: what is held has to go by itself. Returns the last errors. */
static int drain(void)
{
	int err = 0, idle = 0;
	for (int rounds = 0; idle < 3 && EXPECT(rounds < 20000); rounds++) {
		int a = hugepin_sgq_poll(w.out, 1 + (int)dice(20)), b = hugepin_sgq_poll(w.in, 1 + (int)dice(20));
		if (mock.pace == 0)
			mock_run(w.qp[0], 1 + dice(3));
		err = a < 0 ? a : b < 0 ? b : err;
		idle = a > 0 || b > 0 || (told < added && a != -ESHUTDOWN) ? 0 : idle + 1;
	}
	EXPECT_EQ(told, added);
	return err;
}

static void all_well(void)
{
	for (unsigned i = 0; i < added; i++)
		EXPECT_EQ(sub[i].status, 0);
	EXPECT_EQ(heard, added);
}

static const struct ibv_qp_cap usual = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 4, .max_recv_sge = 1,
					 .max_inline_data = 64 };

/* ------------------------------------------------------------------ what goes in comes out */

static void random_world(enum ibv_qp_type type, const struct mock_provider *p)
{
	static const uint32_t sges[] = { 1, 2, 3, 7, 30 }, bytes[] = { 100, 256, 1000, 4096 };
	struct ibv_qp_cap cap = { .max_send_wr = 1 + dice(20), .max_recv_wr = 1, .max_send_sge = sges[dice(5)], .max_recv_sge = 1,
				  .max_inline_data = dice(2) * dice(300) };
	struct hugepin_sgq_attr a = {
		.depth = 1 + dice(cap.max_send_wr),
		.frame_bytes = bytes[dice(4)],
		.flush_bytes = dice(2) * dice(2000),
		.flush_count = dice(2) * dice(20),
		.hold_if_outstanding = dice(2) * dice(20),
		.deadline_ns = dice(3) ? 0 : dice(2000),
		.recv_depth = 1 + dice(16),
	};
	begin(type, cap, a, p);
	mock.pace = dice(3) ? dice(4) : UINT_MAX;
}

TEST(random_sub_messages_arrive_whole_once_and_in_order)
{
	for (int round = 0; round < 300; round++) {
		seed = (uint64_t)round;
		random_world(IBV_QPT_RC, &mock_providers[round % MOCK_PROVIDERS]);
		for (int i = 0; i < 150; i++) {
			unsigned flags = (dice(2) ? HUGEPIN_SG_COPY_OK : 0) | (dice(2) ? HUGEPIN_SG_MULTI : 0) |
					 (dice(8) ? 0 : HUGEPIN_SG_NOW) | (dice(8) ? 0 : HUGEPIN_SG_SOLICITED);
			int got = add_random(flags & HUGEPIN_SG_MULTI ? 6000 : w.attr.frame_bytes, flags);
			EXPECT(got == 0 || got == 1 || got == -EAGAIN || got == -EMSGSIZE);
			if (!dice(4))
				EXPECT(hugepin_sgq_poll(w.out, (int)dice(4)) >= 0);
			if (!dice(4))
				EXPECT(hugepin_sgq_poll(w.in, (int)dice(40)) >= 0);
			if (mock.pace == 0)
				mock_run(w.qp[0], dice(3));
			if (!dice(10))
				EXPECT_EQ(hugepin_sgq_flush(w.out), 0);
		}
		EXPECT_EQ(drain(), 0);
		all_well();
		end();
		if (t_failures) {
			t_print("# round %d\n", round);
			return;
		}
	}
}

TEST(a_frame_is_one_message_of_small_pieces_inline)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	EXPECT_EQ(add_one(8, 0), 1); /* nothing is out: it goes at once */
	EXPECT_EQ(w.qp[0]->posted, 1);
	EXPECT_EQ(w.qp[0]->inlined, 1);
	for (int i = 0; i < 10; i++)
		EXPECT_EQ(add_one(30, 0), 1); /* backlog: these wait, and go together */
	EXPECT_EQ(hugepin_sgq_poll(w.out, 10), 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	mock_run(w.qp[0], 1);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 10), 1);
	EXPECT_EQ(w.qp[0]->posted, 2);
	EXPECT_EQ(w.qp[0]->inlined, 1);
	EXPECT_EQ(w.qp[0]->elements, 2);
	EXPECT_EQ(told, 1);
	mock.pace = 1;
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(w.qp[0]->posted, 2);
	all_well();
	end();
}

TEST(long_pieces_are_gathered_under_one_pin_each_registration)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4 }, NULL);
	fill(memory, 2 * AREA);
	struct iovec iov[] = { { memory, 10 }, { memory + 100, 200 }, { memory + 1000, 200 }, { memory + 1200, 300 } };
	EXPECT_EQ(add_pieces(iov, 4, 0, 0), 0);
	EXPECT_EQ(w.qp[0]->elements, 3); /* the last two are neighbours */
	EXPECT_EQ(drain(), 0);
	/* neighbours under two keys */
	EXPECT(w.pin[0].lkey != w.pin[1].lkey);
	EXPECT_EQ(add_pieces((struct iovec[]){ { memory + AREA - 100, 100 }, { memory + AREA, 100 } }, 2, -1, 0), 0);
	EXPECT_EQ(w.qp[0]->elements, 6);
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(what_is_gathered_stays_registered_until_its_frame_has_completed)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	char *p = memory + 5 * AREA;
	uint32_t lkey = w.pin[5].lkey;
	EXPECT_EQ(hugepin_unpin(w.domain, &w.pin[5]), 0); /* it stays in the cache */
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(add_pieces(&(struct iovec){ p + 200 * i, 100 }, 1, 5, 0), 0); /* the last two are one frame */
	EXPECT_EQ(hugepin_forget(p, AREA), -EBUSY);
	for (int i = 0; i < 2; i++) {
		EXPECT(mock_key_good(lkey, (uintptr_t)p, AREA, HUGEPIN_READ));
		EXPECT_EQ(mock_run(w.qp[0], 1), 1);
		EXPECT_EQ(hugepin_sgq_poll(w.out, 9), 1);
	}
	EXPECT_EQ(told, 3);
	EXPECT(!mock_key_good(lkey, (uintptr_t)p, AREA, HUGEPIN_READ));
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

/* While a frame is held, what its registration covers beside its pieces may be replaced. */
TEST(a_frame_does_not_go_on_using_a_key_that_was_invalidated)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	char *p = memory + 5 * AREA;
	uint32_t lkey = w.pin[5].lkey;
	struct hugepin_pin again;
	EXPECT_EQ(hugepin_unpin(w.domain, &w.pin[5]), 0);
	EXPECT_EQ(add_one(10, 0), 1);
	EXPECT_EQ(add_pieces(&(struct iovec){ p, 100 }, 1, -1, 0), 0);
	EXPECT_EQ(hugepin_forget(p + 8192, 4096), -EBUSY);
	EXPECT_EQ(add_pieces(&(struct iovec){ p + 8192, 100 }, 1, -1, 0), -ENOKEY);
	EXPECT_EQ(hugepin_pin(w.domain, p + 8192, 4096, HUGEPIN_READ, &again), 0);
	EXPECT(again.lkey != lkey);
	EXPECT_EQ(add_pieces(&(struct iovec){ p + 8192, 100 }, 1, -1, 0), 0);
	EXPECT_EQ(hugepin_sgq_flush(w.out), 0);
	EXPECT_EQ(w.qp[0]->sq[1].sge[1].lkey, lkey);
	EXPECT_EQ(w.qp[0]->sq[1].sge[2].lkey, again.lkey);
	EXPECT_EQ(hugepin_unpin(w.domain, &again), 0);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(neighbours_that_are_added_one_by_one_are_one_element_however_many)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	fill(memory, AREA);
	EXPECT_EQ(add_one(10, 0), 1);
	for (int i = 0; i < 40; i++)
		EXPECT_EQ(add_pieces(&(struct iovec){ memory + 100 * i, 100 }, 1, -1, 0), 0);
	EXPECT_EQ(hugepin_sgq_flush(w.out), 0);
	EXPECT_EQ(w.qp[0]->posted, 2);
	EXPECT_EQ(w.qp[0]->sq[1].num_sge, 2);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(of_more_pieces_than_elements_the_longest_are_gathered)
{
	struct ibv_qp_cap cap = usual;
	cap.max_send_sge = 3;
	begin(IBV_QPT_RC, cap, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	fill(memory, AREA);
	struct iovec iov[] = { { memory, 100 }, { memory + 200, 100 }, { memory + 400, 1000 }, { memory + 2000, 100 } };
	EXPECT_EQ(add_pieces(iov, 4, -1, 0), 0);
	EXPECT_EQ(w.qp[0]->sq[0].num_sge, 3);
	EXPECT_EQ(w.qp[0]->sq[0].sge[1].addr, (uintptr_t)memory + 400);
	/* and a frame that has too few left goes, so that nothing need be copied */
	EXPECT_EQ(add_pieces(iov, 1, -1, 0), 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	EXPECT_EQ(add_pieces(iov, 2, -1, HUGEPIN_SG_SOLICITED), 0);
	EXPECT_EQ(w.qp[0]->posted, 3); /* the second one's are all taken, too */
	EXPECT_EQ(w.qp[0]->sq[1].num_sge, 2);
	EXPECT_EQ(w.qp[0]->sq[2].num_sge, 3);
	EXPECT_EQ(w.qp[0]->sq[1].flags & IBV_SEND_SOLICITED, 0);
	EXPECT_EQ(w.qp[0]->sq[2].flags & IBV_SEND_SOLICITED, IBV_SEND_SOLICITED);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(add_one(10, 0), 1);
	EXPECT_EQ(w.qp[0]->sq[3].sge[0].addr, w.qp[0]->sq[0].sge[0].addr); /* idle: the first slot again */
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(what_the_model_refuses_is_not_done_and_cold_pieces_have_their_own_costs)
{
	struct hugepin_sg_model m = model;
	m.cold_byte *= 4;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .model = &m }, NULL);
	EXPECT_EQ(add_one(40, 0), 1);
	EXPECT_EQ(add_one(40, HUGEPIN_SG_COLD), 0);
	EXPECT_EQ(add_one(4, 0), 1);
	EXPECT_EQ(w.qp[0]->inlined, 1);
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
	m.refused = HUGEPIN_SG_INLINE | HUGEPIN_SG_GATHER;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .model = &m }, NULL);
	EXPECT_EQ(add_one(4, 0), 1);
	EXPECT_EQ(add_one(4000, 0), 1);
	EXPECT_EQ(w.qp[0]->inlined, 0);
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(hold_if_outstanding_sends_at_once_while_fewer_are_out)
{
	for (uint32_t hold = 0; hold <= 8; hold++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 6, .hold_if_outstanding = hold }, NULL);
		mock.pace = 0;
		for (int i = 0; i < 6; i++)
			EXPECT(add_one(20, 0) >= 0);
		/* 0: as long as there is another slot. 6 and more: always */
		uint32_t expected = hold == 0 ? 5 : hold < 6 ? hold : 6;
		EXPECT_EQ(w.qp[0]->posted, expected);
		EXPECT_EQ(add_one(20, 0), hold >= 6 ? -EAGAIN : 1);
		EXPECT_EQ(hugepin_sgq_flush(w.out), 0);
		EXPECT_EQ(w.qp[0]->posted, expected + (hold < 6));
		mock.pace = 1;
		EXPECT_EQ(drain(), 0);
		all_well();
		end();
	}
}

TEST(bytes_count_now_and_deadline_flush_what_is_held)
{
	static const struct {
		struct hugepin_sgq_attr attr;
		unsigned flags;
		int before; /* how many of 20 bytes are held before the one that flushes */
	} cases[] = {
		{ { .flush_bytes = 70 }, 0, 3 },
		{ { .flush_count = 3 }, 0, 2 },
		{ { .frame_bytes = 256 }, 0, 6 }, /* 24 + 7 * 12 + 4 of padding + 7 * 20 = 252 */
		{ { .deadline_ns = 1 }, 0, 0 },
		{ { .flush_bytes = 1000 }, HUGEPIN_SG_NOW, 0 },
	};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct hugepin_sgq_attr a = cases[c].attr;
		a.depth = 4;
		a.hold_if_outstanding = 1;
		begin(IBV_QPT_RC, usual, a, NULL);
		mock.pace = 0;
		EXPECT_EQ(add_one(20, 0), 1); /* goes, and makes the others wait */
		for (int i = 0; i < cases[c].before; i++)
			EXPECT_EQ(add_one(20, 0), 1);
		EXPECT_EQ(w.qp[0]->posted, 1);
		EXPECT_EQ(add_one(20, cases[c].flags), 1);
		if (a.deadline_ns) {
			nanosleep(&(struct timespec){ .tv_nsec = 1000 }, NULL);
			EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 0);
		}
		if (!EXPECT_EQ(w.qp[0]->posted, 2))
			t_print("# case %zu\n", c);
		mock.pace = UINT_MAX;
		EXPECT_EQ(drain(), 0);
		all_well();
		end();
	}
}

TEST(a_deadline_that_has_not_come_holds)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 1,
							    .deadline_ns = UINT64_C(3600000000000) }, NULL);
	mock.pace = 0;
	EXPECT_EQ(add_one(20, 0), 1);
	EXPECT_EQ(add_one(20, 0), 1);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	mock.pace = 1;
	EXPECT_EQ(drain(), 0);
	end();
}

TEST(a_stream_is_signalled_now_and_then_and_its_tail_always)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 16, .frame_bytes = 256, .hold_if_outstanding = 2 }, NULL);
	unsigned posted = 0;
	for (int i = 0; i < 1000; i++) {
		mock.pace = i % 20 ? 0 : 5;
		while (add_one(60, 0) == -EAGAIN) {
			mock.pace = 3;
			hugepin_sgq_poll(w.out, 1);
			hugepin_sgq_poll(w.in, 16);
		}
		posted = (unsigned)w.qp[0]->posted;
	}
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	all_well();
	EXPECT(w.qp[0]->signalled < posted / 2);
	EXPECT_EQ(w.qp[0]->freed, w.qp[0]->posted);
	end();
}

/* Two go at once, each with a completion to come, one is held; of those between, which others follow, every fourth of
 * the depth. */
TEST(of_a_stream_that_goes_on_every_fourth_of_the_depth_is_signalled)
{
	begin(IBV_QPT_RC, (struct ibv_qp_cap){ 32, 1, 4, 1, 0 },
	      (struct hugepin_sgq_attr){ .depth = 32, .frame_bytes = 256, .hold_if_outstanding = 2 }, NULL);
	mock.pace = 0;
	for (unsigned i = 0; i < 30; i++) {
		EXPECT(add_one(60, 0) >= 0);
		for (int j = 0; j < 3 && w.qp[0]->posted <= i; j++)
			EXPECT(add_one(60, 0) >= 0);
		if (w.qp[0]->posted > 2)
			EXPECT_EQ(w.qp[0]->signalled, 2 + (w.qp[0]->posted - 2) / 8);
	}
	EXPECT(w.qp[0]->posted >= 20);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(what_does_not_fit_or_has_no_key_leaves_everything_as_it_was)
{
	begin(IBV_QPT_RC, (struct ibv_qp_cap){ 16, 1, 8, 1, 0 },
	      (struct hugepin_sgq_attr){ .depth = 2, .frame_bytes = 512, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	char *foreign = memory + 3 * AREA;
	fill(memory, AREA);
	fill(foreign, AREA);
	fill(memory + AREA, AREA);
	struct iovec good = { memory, 100 }, bad[] = { { memory, 20 }, { memory + AREA, 70 }, { foreign, 100 } };
	EXPECT_EQ(add_pieces(&good, 1, -1, 0), 0);
	EXPECT_EQ(add_pieces(&good, 1, -1, 0), 0);
	EXPECT_EQ(add_pieces(&(struct iovec){ memory, 3 }, 1, -1, 0), 1);
	EXPECT_EQ(add_pieces(bad, 3, -1, 0), -ENOKEY);
	EXPECT_EQ(add_pieces(bad, 3, -1, HUGEPIN_SG_COPY_OK), 0);
	EXPECT_EQ(add_pieces(&(struct iovec){ foreign, 60 }, 1, -1, 0), 1); /* short: nobody asks for its key */
	EXPECT_EQ(add_pieces(&(struct iovec){ memory, 512 }, 1, -1, 0), -EMSGSIZE);
	EXPECT_EQ(add_pieces(&(struct iovec){ memory, 513 }, 1, -1, HUGEPIN_SG_MULTI), -EAGAIN);
	EXPECT_EQ(add_pieces(&(struct iovec){ memory, 1000 }, 1, -1, HUGEPIN_SG_MULTI), -EMSGSIZE); /* over two frames */
	EXPECT_EQ(hugepin_sgq_add(w.out, &(struct iovec){ (void *)-8, 9 }, 1, 0, NULL, NULL, 0), -EINVAL);
	EXPECT_EQ(hugepin_sgq_add(w.out, &good, -1, 0, NULL, NULL, 0), -EINVAL);
	EXPECT_EQ(hugepin_sgq_add(w.out, NULL, 1, 0, NULL, NULL, 0), -EINVAL);
	EXPECT_EQ(hugepin_sgq_add(w.out, &good, 1, 0, NULL, NULL, 1), -EINVAL);
	struct iovec long_ones[2] = { { memory, UINT32_MAX }, { memory, 1 } };
	EXPECT_EQ(hugepin_sgq_add(w.out, long_ones, 2, 0, NULL, NULL, 0), -EOVERFLOW);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	/* a part that has no key */
	struct iovec parts[] = { { memory, 480 }, { foreign, 400 } };
	EXPECT_EQ(add_pieces(parts, 2, -1, HUGEPIN_SG_MULTI), -ENOKEY);
	EXPECT_EQ(w.qp[0]->posted, w.qp[0]->freed);
	EXPECT_EQ(add_pieces(parts, 2, -1, HUGEPIN_SG_MULTI | HUGEPIN_SG_COPY_OK), 0);
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

/* A frame is closed since a sub-message does not fit behind it, and that one then fails: the frame must not wait for
 * it. */
TEST(nothing_waits_for_a_sub_message_that_was_refused)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .frame_bytes = 512, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	struct iovec good = { memory, 300 }, bad = { memory + 3 * AREA, 300 };
	for (unsigned i = 0; i < 3; i++) {
		EXPECT_EQ(add_pieces(&good, 1, -1, 0), 0);
		EXPECT_EQ(add_pieces(&bad, 1, -1, 0), -ENOKEY);
		EXPECT_EQ(w.qp[0]->posted, i + 1);
	}
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(a_frame_of_empty_sub_messages_is_no_longer_than_others)
{
	for (uint32_t bytes = 41; bytes < 300; bytes++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2, .frame_bytes = bytes, .hold_if_outstanding = 1 }, NULL);
		mock.pace = 0;
		for (int i = 0; i < 30; i++)
			EXPECT(add_pieces(NULL, 0, -1, 0) == 1 || hugepin_sgq_add(w.out, NULL, 0, 0, NULL, NULL, 0) == -EAGAIN);
		mock.pace = UINT_MAX;
		if (!EXPECT_EQ(drain(), 0))
			t_print("# %u bytes\n", bytes);
		all_well();
		end();
		if (t_failures)
			return;
	}
}

TEST(empty_sub_messages_are_sub_messages)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2 }, NULL);
	EXPECT_EQ(add_pieces(NULL, 0, -1, 0), 1);
	EXPECT_EQ(add_pieces((struct iovec[]){ { NULL, 0 }, { memory, 0 } }, 2, -1, 0), 1);
	EXPECT_EQ(add_pieces((struct iovec[]){ { NULL, 0 }, { memory, 100 }, { NULL, 0 } }, 3, -1, 0), 0);
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

/* ------------------------------------------------------------------ raw, datagrams */

static unsigned char raw_in[1 << 16];
static size_t raw_len;
static unsigned raw_messages;

static void hear_raw(void *arg, uint64_t tag, const void *data, size_t len, unsigned part, unsigned parts)
{
	(void)arg;
	EXPECT(tag == 0 && part == 0 && parts == 1);
	memcpy(raw_in + raw_len, data, len);
	raw_len += len;
	raw_messages++;
}

TEST(a_raw_queue_sends_the_bytes_alone_in_order)
{
	for (int round = 0; round < 60; round++) {
		seed = (uint64_t)round;
		raw_len = raw_messages = 0;
		struct ibv_qp_cap cap = usual;
		cap.max_send_sge = 1 + dice(5);
		begin(IBV_QPT_RC, cap, (struct hugepin_sgq_attr){ .depth = 4, .frame_bytes = 1000, .flags = HUGEPIN_SGQ_RAW,
			.hold_if_outstanding = dice(4), .recv = hear_raw }, NULL);
		for (int i = 0; i < 40; i++) {
			if (add_random(1000, dice(2) ? HUGEPIN_SG_COPY_OK : 0) == -EAGAIN)
				hugepin_sgq_poll(w.out, 1), hugepin_sgq_poll(w.in, 1);
		}
		EXPECT_EQ(add_one(1001, HUGEPIN_SG_MULTI), -EMSGSIZE);
		EXPECT_EQ(drain(), 0);
		size_t at = 0;
		for (unsigned i = 0; i < added; i++) {
			EXPECT(!memcmp(raw_in + at, sub[i].bytes, sub[i].len));
			at += sub[i].len;
			sub[i].got = sub[i].len;
			EXPECT_EQ(sub[i].status, 0);
		}
		EXPECT_EQ(at, raw_len);
		EXPECT_EQ(raw_messages, w.qp[0]->posted);
		end();
		if (t_failures)
			return;
	}
}

TEST(a_raw_frame_without_a_byte_is_a_message_without_elements)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2, .flags = HUGEPIN_SGQ_RAW, .recv = hear_raw }, NULL);
	raw_len = raw_messages = 0;
	EXPECT_EQ(add_pieces(NULL, 0, -1, 0), 1);
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(raw_messages, 1);
	EXPECT_EQ(raw_len, 0);
	EXPECT_EQ(w.qp[0]->elements, 0);
	end();
}

TEST(datagrams_arrive_behind_their_routing_header)
{
	for (int round = 0; round < 40; round++) {
		seed = (uint64_t)round;
		random_world(IBV_QPT_UD, NULL);
		lossy = true;
		for (int i = 0; i < 100; i++) {
			add_random(w.attr.frame_bytes, HUGEPIN_SG_COPY_OK);
			/* a receive for each that is out, so that none is lost */
			drain();
		}
		EXPECT_EQ(drain(), 0);
		EXPECT_EQ(w.qp[0]->dropped, 0);
		all_well();
		end();
		if (t_failures)
			return;
	}
}

/* A receiver takes parts for one sub-message as they come; of datagrams one may be missing. */
TEST(a_sub_message_of_datagrams_is_never_split)
{
	begin(IBV_QPT_UD, usual, (struct hugepin_sgq_attr){ .depth = 4, .frame_bytes = 256 }, NULL);
	EXPECT_EQ(add_one(600, HUGEPIN_SG_MULTI), -EMSGSIZE);
	EXPECT(add_one(100, HUGEPIN_SG_MULTI) >= 0);
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(a_datagram_is_no_longer_than_the_mtu)
{
	hugepin_domain *d = domain_of_mock();
	struct ibv_cq *cq = mock_cq(16);
	struct mock_qp *qp = mock_qp(IBV_QPT_UD, cq, &usual, NULL);
	hugepin_sgq *q = NULL;
	struct ibv_ah ah;
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = d, .model = &model, .ah = &ah };
	a.frame_bytes = 4097;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EMSGSIZE);
	a.frame_bytes = 0;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
	char byte[5000] = { 0 };
	EXPECT_EQ(hugepin_sgq_add(q, &(struct iovec){ byte, 4096 - 39 }, 1, 0, NULL, NULL, HUGEPIN_SG_COPY_OK), -EMSGSIZE);
	EXPECT_EQ(hugepin_sgq_add(q, &(struct iovec){ byte, 4096 - 40 }, 1, 0, NULL, NULL, HUGEPIN_SG_COPY_OK), 1);
	EXPECT_EQ(hugepin_sgq_poll(q, 1), 1);
	EXPECT_EQ(hugepin_sgq_close(q), 0);
	a.ah = NULL;
	EXPECT_EQ(hugepin_sgq_open(&a, &q), -EINVAL);
	mock_qp_free(qp);
	mock_cq_free(cq);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

static unsigned strange;

static void hear_strange(void *arg, uint64_t tag, const void *data, size_t len, unsigned part, unsigned parts)
{
	(void)arg;
	EXPECT(!tag && !data && !len && !part && !parts);
	strange++;
}

static void hear_or_strange(void *arg, uint64_t tag, const void *data, size_t len, unsigned part, unsigned parts)
{
	if (parts)
		hear(arg, tag, data, len, part, parts);
	else
		hear_strange(arg, tag, data, len, part, parts);
}

TEST(a_message_that_is_no_frame_is_told_as_one_and_its_receive_posted_again)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2, .flags = HUGEPIN_SGQ_RAW, .frame_bytes = 1000 }, NULL);
	struct ibv_qp_cap cap = { 1, 4, 1, 1, 0 };
	struct ibv_cq *cq = mock_cq(8);
	struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &cap, NULL);
	hugepin_sgq *q;
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = w.domain, .model = &model, .frame_bytes = 1000,
				      .recv_depth = 4, .recv = hear_strange };
	EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
	mock_connect(w.qp[0], qp);
	strange = 0;
	for (int i = 0; i < 100; i++) {
		EXPECT(add_one(1 + dice(999), 0) >= 0);
		EXPECT_EQ(hugepin_sgq_poll(q, 5), 1);
		while (hugepin_sgq_poll(w.out, 5) > 0)
			;
	}
	EXPECT_EQ(strange, 100);
	EXPECT_EQ(hugepin_sgq_close(q), -EBUSY); /* its receives are out */
	mock_error(qp, IBV_WC_SUCCESS);
	EXPECT_EQ(hugepin_sgq_poll(q, 5), 4);
	EXPECT_EQ(hugepin_sgq_poll(q, 5), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_close(q), 0);
	mock_qp_free(qp);
	mock_cq_free(cq);
	lossy = true;
	for (unsigned i = 0; i < added; i++)
		sub[i].got = sub[i].len;
	end();
}

TEST(a_receive_that_brought_no_bytes_of_its_own_is_told_as_no_frame)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2, .frame_bytes = 256, .recv_depth = 1,
							    .recv = hear_or_strange }, NULL);
	static char target[64];
	uint32_t rkey = mock_reg(target, sizeof target, HUGEPIN_REMOTE_WRITE);
	strange = 0;
	EXPECT_EQ(add_one(24, 0), 1); /* a frame of 64 bytes, which stays in the slot */
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(heard, 1);
	/* the caller's own, as long as that frame was */
	struct ibv_sge sge = { (uintptr_t)memory, sizeof target, w.pin[0].lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
					.wr.rdma = { (uintptr_t)target, rkey | MOCK_RKEY } };
	EXPECT_EQ(ibv_post_send(&w.qp[0]->qp, &wr, &bad), 0);
	mock_run(w.qp[0], 1);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 1);
	EXPECT_EQ(strange, 1);
	EXPECT_EQ(add_one(10, 0), 1);
	EXPECT_EQ(drain(), 0);
	all_well();
	mock_dereg(rkey);
	end();
}

TEST(a_receive_that_is_handed_in_twice_counts_once)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .recv_depth = 2 }, NULL);
	struct ibv_wc wc;
	lossy = true;
	mock_error(w.qp[1], IBV_WC_SUCCESS);
	EXPECT_EQ(ibv_poll_cq(w.cq[1], 1, &wc), 1);
	EXPECT_EQ(hugepin_sgq_wc(w.in, &wc), 1);
	for (int i = 0; i < 1000; i++)
		EXPECT_EQ(hugepin_sgq_wc(w.in, &wc), 0);
	EXPECT_EQ(hugepin_sgq_close(w.in), -EBUSY);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 1);
	end();
}

/* ------------------------------------------------------------------ what goes wrong */

/* Statuses are 0, then -EIO of at most one frame, then -ECANCELED; and what has status 0, and nothing else, arrived. */
static void true_statuses(void)
{
	unsigned i = 0, good;
	while (i < added && sub[i].status == 0)
		i++;
	good = i;
	while (i < added && sub[i].status == -EIO)
		i++;
	while (i < added && sub[i].status == -ECANCELED)
		i++;
	if (!EXPECT_EQ(i, added))
		t_print("# status %d after %d\n", sub[i].status, sub[i - 1].status);
	EXPECT_EQ(heard, good);
}

TEST(a_queue_pair_that_fails_at_any_moment_tells_each_sub_message_once_and_truly)
{
	static const enum ibv_wc_status statuses[] = { IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_RETRY_EXC_ERR,
						       IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS };
	unsigned failed = 0;
	for (int round = 0; round < 600; round++) {
		seed = (uint64_t)round;
		random_world(IBV_QPT_RC, &mock_providers[round % MOCK_PROVIDERS]);
		lossy = true;
		int when = (int)dice(100);
		bool late = dice(2);
		for (int i = 0; i < 100; i++) {
			if (i == when && late)
				w.qp[0]->fail = statuses[dice(4)];
			else if (i == when)
				mock_error(w.qp[0], statuses[dice(5)]);
			int got = add_random(w.attr.frame_bytes, HUGEPIN_SG_COPY_OK | (dice(2) ? HUGEPIN_SG_MULTI : 0));
			EXPECT(got == 0 || got == 1 || got == -EAGAIN || got == -EMSGSIZE || got == -ESHUTDOWN);
			int polled = dice(3) ? 0 : hugepin_sgq_poll(w.out, (int)dice(4));
			EXPECT(polled >= 0 || polled == -ESHUTDOWN);
			if (!dice(3))
				hugepin_sgq_poll(w.in, (int)dice(40));
			if (mock.pace == 0)
				mock_run(w.qp[0], dice(3));
			int flushed = dice(10) ? 0 : hugepin_sgq_flush(w.out);
			EXPECT(flushed == 0 || flushed == -ESHUTDOWN);
		}
		if (w.qp[0]->state == IBV_QPS_ERR)
			add_random(10, HUGEPIN_SG_COPY_OK); /* or nobody may have noticed */
		drain();
		mock.pace = UINT_MAX;
		drain();
		true_statuses();
		failed += hugepin_sgq_wc_status(w.out, NULL) != IBV_WC_SUCCESS;
		end();
		if (t_failures) {
			t_print("# round %d\n", round);
			return;
		}
	}
	EXPECT(failed > 500);
}

TEST(each_error_of_each_provider_at_each_position_is_passed_on_and_nothing_is_lost)
{
	unsigned errors = 0;
	for (unsigned p = 0; p < MOCK_PROVIDERS; p++)
		for (unsigned k = 1; k <= 12; k++) {
			seed = k;
			begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .frame_bytes = 256,
				.hold_if_outstanding = 1 + k % 3 }, &mock_providers[p]);
			int expected = -abs(mock_providers[p].full);
			for (int i = 0; i < 60; i++) {
				mock.pace = i % 4 == 0;
				if (i % 10 == 0)
					w.qp[0]->refuse_in = k;
				/* 3000 bytes are a chain: some are posted and others not */
				int got = i % 5 ? add_random(200, HUGEPIN_SG_COPY_OK) : add_one(1000, HUGEPIN_SG_MULTI);
				EXPECT(got >= 0 || got == -EAGAIN || got == expected);
				errors += got == expected;
				got = hugepin_sgq_flush(w.out);
				EXPECT(got == 0 || got == expected);
				errors += got == expected;
				got = hugepin_sgq_poll(w.out, 2);
				EXPECT(got >= 0 || got == expected);
				hugepin_sgq_poll(w.in, 20);
			}
			w.qp[0]->refuse_in = 0;
			mock.pace = UINT_MAX;
			drain();
			all_well();
			end();
			if (t_failures) {
				t_print("# %s at %u\n", mock_providers[p].name, k);
				return;
			}
		}
	EXPECT(errors > 50);
}

TEST(a_provider_that_refuses_says_so_and_is_asked_again)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2 }, &mock_providers[1]);
	w.qp[0]->refuse_in = 1;
	EXPECT_EQ(add_one(10, 0), 1); /* held, for now */
	w.qp[0]->refuse_in = 1;
	EXPECT_EQ(hugepin_sgq_flush(w.out), -ENOMEM);
	w.qp[0]->refuse_in = 1;
	EXPECT_EQ(hugepin_sgq_poll(w.out, 1), -ENOMEM);
	EXPECT_EQ(w.qp[0]->posted, 0);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(the_first_failure_is_told_with_the_vendors_error)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .hold_if_outstanding = 8 }, NULL);
	lossy = true;
	uint32_t vendor = 1;
	EXPECT_EQ(hugepin_sgq_wc_status(w.out, &vendor), IBV_WC_SUCCESS);
	EXPECT_EQ(vendor, 0);
	mock.pace = 0;
	for (int i = 0; i < 5; i++)
		EXPECT(add_one(10, 0) >= 0);
	mock_run(w.qp[0], 2);
	mock_error(w.qp[0], IBV_WC_LOC_LEN_ERR);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 3), 3);
	EXPECT_EQ(told, 3);
	EXPECT_EQ(hugepin_sgq_wc_status(w.out, &vendor), IBV_WC_LOC_LEN_ERR);
	EXPECT_EQ(vendor, MOCK_VENDOR_ERR);
	EXPECT_EQ(add_one(10, 0), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_close(w.out), -EBUSY); /* two have yet to be flushed */
	EXPECT_EQ(hugepin_sgq_flush(w.out), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 9), 2);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 9), -ESHUTDOWN);
	EXPECT_EQ(sub[1].status, 0);
	EXPECT_EQ(sub[2].status, -EIO);
	EXPECT_EQ(sub[3].status, -ECANCELED);
	EXPECT_EQ(sub[4].status, -ECANCELED);
	hugepin_sgq_poll(w.in, 9);
	true_statuses();
	end();
}

/* Frames that completed unsignalled have no completion of their own; when the queue pair then fails, by what is none of
 * theirs, they are told of all the same. */
TEST(what_completed_unsignalled_before_a_failure_is_told_so)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 16, .frame_bytes = 256, .hold_if_outstanding = 1 }, NULL);
	lossy = true;
	mock.pace = 0;
	for (int i = 0; i < 3; i++)
		EXPECT(add_one(150, 0) >= 0); /* signalled; not; held */
	EXPECT_EQ(w.qp[0]->posted, 2);
	EXPECT_EQ(w.qp[0]->signalled, 1);
	mock_run(w.qp[0], 2);
	mock_error(w.qp[0], IBV_WC_SUCCESS);
	while (hugepin_sgq_poll(w.out, 1) >= 0)
		;
	EXPECT_EQ(told, 3);
	EXPECT_EQ(sub[1].status, 0);
	EXPECT_EQ(sub[2].status, -ECANCELED);
	while (hugepin_sgq_poll(w.in, 1) > 0)
		;
	true_statuses();
	end();
}

/* The same where the failure is known first by a receive, of whatever completion queue. */
TEST(a_failure_that_a_receive_tells_of_first_changes_no_status)
{
	out_receives = 1;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 16, .frame_bytes = 256, .hold_if_outstanding = 1 }, NULL);
	out_receives = 0;
	lossy = true;
	struct ibv_cq *recv_cq = mock_cq(1);
	mock.pace = 0;
	for (int i = 0; i < 3; i++)
		EXPECT(add_one(150, 0) >= 0); /* signalled; not; held */
	mock_run(w.qp[0], 2);
	w.qp[0]->qp.recv_cq = recv_cq;
	mock_error(w.qp[0], IBV_WC_SUCCESS);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 2), 2); /* the first frame, and the receive */
	while (hugepin_sgq_poll(w.out, 1) >= 0)
		;
	EXPECT_EQ(told, 3);
	EXPECT_EQ(sub[1].status, 0);
	EXPECT_EQ(sub[2].status, -ECANCELED);
	while (hugepin_sgq_poll(w.in, 1) > 0)
		;
	true_statuses();
	end();
	mock_cq_free(recv_cq);
}

TEST(the_cause_of_a_failure_is_told_and_not_its_consequence)
{
	out_receives = 1;
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .frame_bytes = 256 }, NULL);
	out_receives = 0;
	lossy = true;
	struct ibv_cq *recv_cq = mock_cq(1);
	w.qp[0]->qp.recv_cq = recv_cq;
	mock.pace = 0;
	EXPECT(add_one(10, 0) >= 0);
	/* a message that is longer than the receive: it fails, and what is being sent is flushed */
	static char long_one[300];
	uint32_t key = mock_reg(long_one, sizeof long_one, HUGEPIN_READ);
	struct ibv_sge sge = { (uintptr_t)long_one, sizeof long_one, key };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	EXPECT_EQ(ibv_post_send(&w.qp[1]->qp, &wr, &bad), 0);
	mock_run(w.qp[1], 1);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 9), 2);
	EXPECT_EQ(hugepin_sgq_wc_status(w.out, NULL), IBV_WC_LOC_LEN_ERR);
	EXPECT_EQ(sub[0].status, -ECANCELED);
	mock_dereg(key);
	end();
	mock_cq_free(recv_cq);
}

TEST(a_flush_that_was_not_handed_in_is_not_success)
{
	for (int first_too = 0; first_too < 2; first_too++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .hold_if_outstanding = 4 }, NULL);
		lossy = true;
		mock.pace = 0;
		for (int i = 0; i < 3; i++)
			EXPECT(add_one(10, 0) >= 0);
		mock_error(w.qp[0], IBV_WC_LOC_QP_OP_ERR);
		struct ibv_wc wc[3];
		EXPECT_EQ(ibv_poll_cq(w.cq[0], 3, wc), 3);
		if (first_too)
			EXPECT_EQ(hugepin_sgq_wc(w.out, &wc[0]), 1);
		EXPECT_EQ(hugepin_sgq_wc(w.out, &wc[2]), 1);
		EXPECT_EQ(sub[0].status, first_too ? -EIO : -ECANCELED);
		EXPECT_EQ(sub[1].status, -ECANCELED);
		EXPECT_EQ(sub[2].status, -ECANCELED);
		end();
	}
}

TEST(parts_of_one_sub_message_have_one_status)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .frame_bytes = 256 }, NULL);
	lossy = true;
	mock.pace = 0;
	EXPECT(add_one(1000, HUGEPIN_SG_MULTI) >= 0);
	EXPECT(add_one(10, 0) >= 0);
	EXPECT_EQ(w.qp[0]->posted, 6);
	mock_run(w.qp[0], 2);
	mock_error(w.qp[0], IBV_WC_LOC_PROT_ERR);
	EXPECT_EQ(hugepin_sgq_poll(w.out, 2), 2);
	EXPECT_EQ(told, 0); /* the rest of it may still be read */
	while (hugepin_sgq_poll(w.out, 9) > 0)
		;
	EXPECT_EQ(sub[0].status, -EIO);
	EXPECT_EQ(sub[1].status, -ECANCELED);
	while (hugepin_sgq_poll(w.in, 9) > 0)
		;
	EXPECT_EQ(heard, 0);
	end();
}

TEST(debug_names_the_sub_message_whose_memory_went_away)
{
	for (int debug = 0; debug < 2; debug++) {
		begin(IBV_QPT_RC, (struct ibv_qp_cap){ 8, 1, 8, 1, 0 },
		      (struct hugepin_sgq_attr){ .depth = 8, .hold_if_outstanding = 1,
						 .flags = debug ? HUGEPIN_SGQ_DEBUG : 0 }, NULL);
		lossy = true;
		mock.pace = 0;
		EXPECT(add_one(10, 0) >= 0);
		for (int i = 0; i < 3; i++) {
			struct iovec iov[] = { { memory, 10 }, { memory + (i + 4) * AREA, 200 }, { memory, 10 } };
			EXPECT_EQ(add_pieces(iov, 3, -1, 0), 0);
		}
		mock_run(w.qp[0], 1);
		EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 1);
		EXPECT_EQ(w.qp[0]->posted, 2);
		/* the second one's */
		uint32_t lkey = w.pin[5].lkey;
		EXPECT_EQ(hugepin_forget(memory + 5 * AREA, AREA), -EBUSY);
		mock_dereg(lkey);
		mock_run(w.qp[0], 1);
		EXPECT_EQ(hugepin_sgq_poll(w.out, 1), 1);
		EXPECT_EQ(hugepin_sgq_wc_status(w.out, NULL), IBV_WC_LOC_PROT_ERR);
		EXPECT_EQ(told, 4);
		EXPECT_EQ(sub[1].status, debug ? -ECANCELED : -EIO);
		EXPECT_EQ(sub[2].status, -EIO);
		EXPECT_EQ(sub[3].status, debug ? -ECANCELED : -EIO);
		hugepin_sgq_poll(w.in, 9);
		end();
	}
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

TEST(a_receiving_queue_notices_that_its_queue_pair_failed)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .recv_depth = 2 }, NULL);
	lossy = true;
	mock_error(w.qp[1], IBV_WC_SUCCESS);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 2);
	EXPECT_EQ(hugepin_sgq_wc_status(w.in, NULL), IBV_WC_WR_FLUSH_ERR);
	EXPECT_EQ(hugepin_sgq_add(w.in, NULL, 0, 0, NULL, NULL, 0), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), -ESHUTDOWN);
	end();
}

static void to_error(struct mock_qp *q)
{
	EXPECT_EQ(ibv_modify_qp(&q->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), 0);
}

/* As hugepin_sgq(3) says, with `max` completions at a time. */
static void close_receiver(struct mock_qp *q, hugepin_sgq **queue, int max)
{
	int err = -EBUSY;
	to_error(q);
	for (int i = 0; i < 100 && (err = hugepin_sgq_close(*queue)) == -EBUSY; i++)
		hugepin_sgq_poll(*queue, max);
	EXPECT_EQ(err, 0);
	*queue = NULL;
}

/* Soft-RoCE never flushes a receive that was posted in the error state. */
TEST(a_receiving_queue_closes_whatever_was_in_its_completion_queue_when_the_queue_pair_went_to_error)
{
	for (int arrived = 0; arrived <= 4; arrived++)
		for (int max = 1; max <= 9; max += 4)
			for (int by_itself = 0; by_itself < 2; by_itself++) {
				begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .recv_depth = 4 }, NULL);
				w.qp[1]->late_stays = true;
				for (int i = 0; i < arrived; i++)
					EXPECT(add_one(10, HUGEPIN_SG_NOW) >= 0);
				mock_run(w.qp[0], 9);
				hugepin_sgq_poll(w.out, 9);
				if (by_itself) { /* and what is taken before that is noticed is posted again */
					mock_error(w.qp[1], IBV_WC_SUCCESS);
					for (int i = 0; i < 2; i++)
						hugepin_sgq_poll(w.in, 1);
				}
				close_receiver(w.qp[1], &w.in, max);
				EXPECT_EQ((int)heard, arrived);
				end();
				if (t_failures) {
					t_print("# %d arrived, polled by %d, by itself %d\n", arrived, max, by_itself);
					return;
				}
			}
}

/* Where nothing was out that could be flushed, nothing but the state tells. */
TEST(a_queue_whose_receives_had_all_arrived_says_that_its_queue_pair_has_failed)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .recv_depth = 2 }, NULL);
	w.qp[1]->late_stays = true;
	for (int i = 0; i < 2; i++)
		EXPECT(add_one(10, 0) >= 0);
	mock_run(w.qp[0], 2);
	hugepin_sgq_poll(w.out, 9);
	to_error(w.qp[1]);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 2);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_add(w.in, NULL, 0, 0, NULL, NULL, 0), -ESHUTDOWN);
	EXPECT_EQ(hugepin_sgq_close(w.in), 0);
	w.in = NULL;
	end();
}

/* Another thread's poll may post between the change and its note in qp->state. */
TEST(a_receive_posted_while_the_queue_pair_goes_to_error_is_flushed_by_close)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 4, .recv_depth = 2 }, NULL);
	w.qp[1]->late_stays = true;
	for (int i = 0; i < 2; i++)
		EXPECT(add_one(10, 0) >= 0);
	mock_run(w.qp[0], 2);
	hugepin_sgq_poll(w.out, 9);
	to_error(w.qp[1]);
	w.qp[1]->qp.state = IBV_QPS_RTS;
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 2);
	w.qp[1]->qp.state = IBV_QPS_ERR;
	EXPECT_EQ(hugepin_sgq_close(w.in), -EBUSY);
	EXPECT_EQ(hugepin_sgq_poll(w.in, 9), 2);
	EXPECT_EQ(hugepin_sgq_close(w.in), 0);
	EXPECT_EQ(w.qp[1]->modified, 2);
	w.in = NULL;
	end();
}

/* ------------------------------------------------------------------ giving up */

/* The queue pair is gone, and nobody looks at it again. */
static void destroy_qp(struct mock_qp **q)
{
	struct ibv_qp_cap cap = usual;
	struct mock_qp *gone = *q;
	*q = mock_qp(gone->qp.qp_type, gone->qp.send_cq, &cap, NULL); /* for end() */
	(*q)->mistakes = gone->mistakes;
	mock_qp_free(gone); /* fills it first */
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
			EXPECT(sub[i].status == -ECANCELED || (sub[i].status == -EIO && i == before)); /* a part of it had failed */
		cancelled += added - before;
		out_receives = 0;
		end(); /* -EBUSY of the domain: pins are out */
		if (t_failures) {
			t_print("# round %d\n", round);
			return;
		}
	}
	EXPECT(cancelled > 1000);
}

/* An overrun has eaten the completions: the queue waits for ever, but need not. */
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

/* ------------------------------------------------------------------ others on the same queue pair, callbacks,
 * threads */

static void hear_nothing(void *arg, uint64_t tag, const void *data, size_t len, unsigned part, unsigned parts)
{
	(void)arg, (void)tag, (void)data, (void)len, (void)part, (void)parts;
}

static _Atomic unsigned thread_done;

static void count_done(void *arg, uint64_t tag, int status)
{
	(void)arg, (void)tag;
	EXPECT_EQ(status, 0);
	thread_done++;
}

TEST(a_completion_queue_is_shared_with_the_callers_own_work_requests)
{
	struct ibv_qp_cap cap = usual;
	begin(IBV_QPT_RC, cap, (struct hugepin_sgq_attr){ .depth = 12, .reserved_wr = 4, .frame_bytes = 256 }, NULL);
	char own[16] = "mine", theirs[16] = "";
	uint32_t key = mock_reg(own, sizeof own, HUGEPIN_READ), rkey = mock_reg(theirs, sizeof theirs, HUGEPIN_REMOTE_WRITE);
	unsigned mine = 0, out = 0;
	for (int i = 0; i < 1000 || told < added || out; i++) {
		if (i < 1000 && dice(2))
			add_random(200, HUGEPIN_SG_COPY_OK);
		if (i < 1000 && out < 4) {
			struct ibv_sge sge = { (uintptr_t)own, sizeof own, key };
			struct ibv_send_wr *bad, wr = { .wr_id = 0x1234, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)theirs, rkey | MOCK_RKEY } };
			EXPECT_EQ(ibv_post_send(&w.qp[0]->qp, &wr, &bad), 0);
			out++;
		}
		struct ibv_wc wc[3];
		int n = dice(2) ? ibv_poll_cq(w.cq[0], 3, wc) : 0;
		for (int k = 0; k < n; k++) {
			struct ibv_wc elsewhere = wc[k];
			elsewhere.qp_num++;
			EXPECT_EQ(hugepin_sgq_wc(w.out, &elsewhere), 0);
			int ours = hugepin_sgq_wc(w.out, &wc[k]);
			EXPECT_EQ(ours, wc[k].wr_id >> 48 == HUGEPIN_SGQ_WR_ID);
			EXPECT_EQ(hugepin_sgq_wc(w.in, &wc[k]), 0); /* another queue */
			if (ours)
				EXPECT_EQ(hugepin_sgq_wc(w.out, &wc[k]), 0); /* it is not out any more */
			mine += !ours;
			out -= !ours;
		}
		hugepin_sgq_poll(w.in, 3);
		if (!EXPECT(i < 100000))
			break;
	}
	EXPECT(mine > 100 && !strcmp(theirs, "mine"));
	EXPECT_EQ(hugepin_sgq_wc(w.out, NULL), -EINVAL);
	mock_dereg(key);
	mock_dereg(rkey);
	drain();
	all_well();
	end();
}

/* The same by completions alone: of what a provider refused once, too, nothing waits for a call that does not come. */
TEST(completions_handed_in_are_all_that_a_queue_needs)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .frame_bytes = 256, .hold_if_outstanding = 1 }, NULL);
	mock.pace = 0;
	EXPECT(add_one(150, 0) >= 0);
	EXPECT(add_one(150, 0) >= 0);
	w.qp[0]->refuse_in = 1;
	EXPECT(add_one(150, 0) >= 0);
	EXPECT_EQ(w.qp[0]->posted, 1);
	mock.pace = UINT_MAX;
	struct ibv_wc wc;
	while (ibv_poll_cq(w.cq[0], 1, &wc) == 1)
		EXPECT_EQ(hugepin_sgq_wc(w.out, &wc), 1);
	EXPECT_EQ(told, 3);
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(a_completion_that_is_handed_in_late_or_twice_completes_no_other_frame)
{
	for (int idle = 0; idle < 2; idle++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 2 }, NULL);
		struct ibv_wc wc[2];
		mock.pace = 0;
		for (int i = 0; i < 2; i++)
			EXPECT(add_one(10, HUGEPIN_SG_NOW) >= 0);
		EXPECT_EQ(mock_run(w.qp[0], 2), 2);
		EXPECT_EQ(ibv_poll_cq(w.cq[0], 2, wc), 2);
		if (!idle) { /* another frame follows before the last one has completed */
			EXPECT_EQ(hugepin_sgq_wc(w.out, &wc[0]), 1);
			EXPECT(add_one(10, HUGEPIN_SG_NOW) >= 0);
		}
		EXPECT_EQ(hugepin_sgq_wc(w.out, &wc[1]), 1);
		EXPECT_EQ(told, 2);
		while (add_one(10, HUGEPIN_SG_NOW) >= 0)
			;
		EXPECT_EQ(w.qp[0]->posted, 4);
		for (int i = 0; i < 2; i++)
			EXPECT_EQ(hugepin_sgq_wc(w.out, &wc[i]), 0);
		EXPECT_EQ(told, 2);
		mock.pace = UINT_MAX;
		EXPECT_EQ(drain(), 0);
		all_well();
		end();
	}
}

TEST(queues_for_several_destinations_share_a_queue_pair_and_its_completions)
{
	enum { QUEUES = 3, ROUNDS = 300 };
	hugepin_domain *d = domain_of_mock();
	struct ibv_cq *cq = mock_cq(16);
	struct ibv_qp_cap cap = { 15, 4, 2, 1, 0 };
	struct mock_qp *qp = mock_qp(IBV_QPT_UD, cq, &cap, NULL);
	struct ibv_ah ah;
	hugepin_sgq *q[QUEUES];
	thread_done = 0;
	for (unsigned i = 0; i < QUEUES; i++) {
		struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = d, .model = &model, .ah = &ah, .depth = 5,
					      .reserved_wr = 10, .remote_qpn = 63, .hold_if_outstanding = 2, .frame_bytes = 256 };
		EXPECT_EQ(hugepin_sgq_open(&a, &q[i]), 0);
	}
	unsigned sent = 0;
	for (int i = 0; i < ROUNDS || thread_done < sent; i++) {
		if (i < ROUNDS)
			sent += hugepin_sgq_add(q[dice(QUEUES)], &(struct iovec){ &i, sizeof i }, 1, 0, count_done, NULL, 0) >= 0;
		struct ibv_wc wc[4];
		int n = dice(3) ? 0 : ibv_poll_cq(cq, 4, wc);
		for (int k = 0; k < n; k++) {
			int ours = 0;
			for (unsigned j = 0; j < QUEUES; j++)
				ours += hugepin_sgq_wc(q[j], &wc[k]);
			EXPECT_EQ(ours, 1);
		}
		if (!EXPECT(i < 10000))
			break;
	}
	EXPECT(sent > ROUNDS / 2);
	for (unsigned i = 0; i < QUEUES; i++)
		EXPECT_EQ(hugepin_sgq_close(q[i]), 0);
	EXPECT_EQ(qp->mistakes, 0);
	mock_qp_free(qp);
	mock_cq_free(cq);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

static void greedy(void *arg, uint64_t tag, int status)
{
	(void)arg;
	int got = 1;
	EXPECT_EQ(status, 0);
	EXPECT_EQ(tag, told);
	told++;
	while (got == 1 && added < 200) {
		got = hugepin_sgq_add(w.out, NULL, 0, added, greedy, NULL, 0);
		EXPECT(got == 1 || got == -EAGAIN);
		added += got == 1;
	}
}

TEST(a_callback_that_adds_all_it_can_overruns_nothing)
{
	begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 6, .flush_count = 4, .hold_if_outstanding = 1,
							    .recv = hear_nothing }, NULL);
	mock.pace = 0;
	while (hugepin_sgq_add(w.out, NULL, 0, added, greedy, NULL, 0) == 1)
		added++;
	EXPECT_EQ(added, 1 + 5 * 4);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	EXPECT_EQ(told, 200);
	end();
}

static unsigned echoes, echoed;

static void echo(void *arg, uint64_t tag, int status)
{
	hugepin_sgq *q = arg;
	struct ibv_wc wc = { .wr_id = 0 };
	(void)tag;
	EXPECT_EQ(status, 0);
	echoed++;
	EXPECT_EQ(hugepin_sgq_close(q), -EBUSY);
	EXPECT_EQ(hugepin_sgq_poll(q, 1), -EBUSY);
	EXPECT_EQ(hugepin_sgq_wc(q, &wc), -EBUSY);
	if (echoes) {
		echoes--;
		EXPECT_EQ(hugepin_sgq_add(q, &(struct iovec){ (void *)&echoes, 4 }, 1, 0, echo, q, 0), 1);
		EXPECT_EQ(hugepin_sgq_flush(q), 0);
	}
}

TEST(callbacks_may_add_even_when_one_frame_is_all_there_is)
{
	for (uint32_t depth = 1; depth < 4; depth++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = depth, .recv = hear_nothing }, NULL);
		echoes = 100;
		echoed = 0;
		EXPECT_EQ(hugepin_sgq_add(w.out, NULL, 0, 0, echo, w.out, 0), 1);
		for (int i = 0; i < 500; i++) {
			EXPECT(hugepin_sgq_poll(w.out, 9) >= 0);
			EXPECT(hugepin_sgq_poll(w.in, 9) >= 0);
		}
		EXPECT_EQ(echoed, 101);
		end();
	}
}

/* Two sides that send to each other, from callbacks, too, whatever these may do. */
static struct side {
	struct ibv_cq *cq;
	struct mock_qp *qp;
	hugepin_sgq *q;
	unsigned added, told, heard, parts, to_add;
	unsigned delivered; /* told with status 0 */
	bool by_hand;
} sides[2];

static void said(void *side, uint64_t tag, int status);

static int say(struct side *s)
{
	static char text[3000];
	uint32_t area = 4 * dice(AREAS / 4);
	struct iovec iov[] = { { text, dice(3) ? dice(30) : 0 }, { memory + area * AREA + dice(AREA - 400), dice(3) ? 0 : dice(400) },
			       { text, dice(10) ? 0 : dice(3000) } };
	int got = hugepin_sgq_add(s->q, iov, 3, s->added, said, s, HUGEPIN_SG_COPY_OK | HUGEPIN_SG_MULTI | (dice(4) ? 0 : HUGEPIN_SG_NOW));
	EXPECT(got == 0 || got == 1 || got == -EAGAIN || got == -EMSGSIZE || got == -ESHUTDOWN);
	s->added += got >= 0;
	return got;
}

static void misbehave(struct side *s)
{
	struct ibv_wc wc = { .wr_id = (uint64_t)HUGEPIN_SGQ_WR_ID << 48 };
	while (s->to_add && !dice(3)) {
		s->to_add--;
		if (say(s) == -EAGAIN && dice(2))
			break;
	}
	switch (dice(12)) {
	case 0:
		EXPECT_EQ(hugepin_sgq_close(s->q), -EBUSY);
		break;
	case 1:
		EXPECT_EQ(hugepin_sgq_poll(s->q, 3), -EBUSY);
		break;
	case 2:
		EXPECT_EQ(hugepin_sgq_wc(s->q, &wc), -EBUSY);
		break;
	case 3: {
		int e = hugepin_sgq_flush(s->q);
		EXPECT(e == 0 || e == -ESHUTDOWN);
	}
	}
}

static void said(void *side, uint64_t tag, int status)
{
	struct side *s = side;
	EXPECT_EQ(tag, s->told);
	s->told++;
	EXPECT(status == 0 || status == -EIO || status == -ECANCELED);
	EXPECT(status || s->delivered == tag); /* none behind one that failed */
	s->delivered += !status;
	misbehave(s);
}

static void heard_said(void *side, uint64_t tag, const void *data, size_t len, unsigned part, unsigned parts)
{
	struct side *s = side;
	(void)data, (void)len;
	EXPECT(parts && tag == s->heard && part == s->parts);
	s->parts = part + 1 == parts ? 0 : part + 1;
	s->heard += part + 1 == parts;
	misbehave(s);
}

static int take_in(struct side *s)
{
	if (!s->by_hand)
		return hugepin_sgq_poll(s->q, (int)dice(5));
	struct ibv_wc wc[4];
	int n = ibv_poll_cq(s->cq, 1 + (int)dice(4), wc);
	for (int i = 0; i < n; i++)
		EXPECT_EQ(hugepin_sgq_wc(s->q, &wc[i]), 1);
	return n;
}

TEST(whatever_callbacks_do_each_sub_message_is_told_once_and_in_order)
{
	for (int round = 0; round < 400; round++) {
		seed = (uint64_t)round * 7919 + 1;
		hugepin_domain *d = domain_of_mock();
		struct hugepin_pin pin[AREAS];
		for (unsigned i = 0; i < AREAS; i += 8)
			EXPECT_EQ(hugepin_pin(d, memory + i * AREA, AREA, HUGEPIN_READ, &pin[i]), 0);
		uint32_t bytes = dice(2) ? 100 + dice(200) : 1000 + dice(4000);
		mock.pace = dice(3) ? dice(4) : UINT_MAX;
		for (int k = 0; k < 2; k++) {
			struct side *s = &sides[k];
			uint32_t depth = 1 + dice(dice(2) ? 3 : 20), receives = 1 + dice(8);
			*s = (struct side){ .cq = mock_cq(depth + receives), .to_add = 300, .by_hand = dice(2) };
			s->qp = mock_qp(IBV_QPT_RC, s->cq, &(struct ibv_qp_cap){ depth, receives, 1 + dice(4), 1, dice(2) * 60 },
					&mock_providers[dice(MOCK_PROVIDERS)]);
			struct hugepin_sgq_attr a = {
				.size = sizeof a, .qp = &s->qp->qp, .domain = d, .model = &model, .depth = depth, .frame_bytes = bytes,
				.recv_depth = receives, .recv = heard_said, .recv_arg = s, .flush_bytes = dice(2) * dice(500),
				.flush_count = dice(2) * dice(6), .hold_if_outstanding = dice(2) * dice(5),
				.deadline_ns = dice(3) ? 0 : 1 + dice(5000), .flags = dice(2) ? HUGEPIN_SGQ_MT : 0,
			};
			EXPECT_EQ(hugepin_sgq_open(&a, &s->q), 0);
		}
		mock_connect(sides[0].qp, sides[1].qp);
		bool fails = dice(2);
		unsigned when = dice(400), idle = 0;
		for (unsigned i = 0; idle < 50 && EXPECT(i < 50000); i++) {
			struct side *s = &sides[dice(2)];
			if (fails && i == when)
				mock_error(s->qp, dice(2) ? IBV_WC_SUCCESS : IBV_WC_LOC_QP_OP_ERR);
			if (s->to_add && !dice(3)) {
				s->to_add--;
				say(s);
			}
			int before = (int)(sides[0].told + sides[1].told + sides[0].heard + sides[1].heard);
			if (take_in(s) == 0 && s->by_hand && !dice(5))
				hugepin_sgq_flush(s->q); /* nobody else looks at deadlines, or notices a failed queue pair */
			if (mock.pace == 0)
				mock_run(s->qp, dice(3));
			bool out = sides[0].told < sides[0].added || sides[1].told < sides[1].added || sides[0].to_add || sides[1].to_add;
			bool moved = before != (int)(sides[0].told + sides[1].told + sides[0].heard + sides[1].heard);
			idle = out || moved ? 0 : idle + 1;
		}
		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(sides[k].told, sides[k].added);
			if (!fails)
				EXPECT(sides[k].delivered == sides[k].added && sides[!k].heard == sides[k].added);
			EXPECT(sides[!k].heard >= sides[k].delivered || fails);
			EXPECT_EQ(sides[k].qp->mistakes, 0);
			mock_error(sides[k].qp, IBV_WC_SUCCESS);
		}
		for (int k = 0; k < 2; k++) {
			while (hugepin_sgq_poll(sides[k].q, 9) > 0)
				;
			EXPECT_EQ(hugepin_sgq_close(sides[k].q), 0);
			mock_qp_free(sides[k].qp);
			mock_cq_free(sides[k].cq);
		}
		for (unsigned i = 0; i < AREAS; i += 8)
			EXPECT_EQ(hugepin_unpin(d, &pin[i]), 0);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		if (t_failures) {
			t_print("# round %d\n", round);
			return;
		}
	}
}

enum { THREADS = 4, EACH = 1500 };
static unsigned thread_heard[THREADS];
static _Atomic bool thread_stop;

static void hear_thread(void *arg, uint64_t tag, const void *data, size_t len, unsigned part, unsigned parts)
{
	(void)arg, (void)part, (void)parts;
	unsigned t = (unsigned)(tag >> 32);
	uint32_t n;
	memcpy(&n, data, sizeof n);
	EXPECT(len == 4 && n == (uint32_t)tag && n == thread_heard[t]++); /* each thread's in its order */
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

static hugepin_sgq *_Atomic owned;
static _Atomic int got_there, told_by_another;

static void *add_as_another(void *arg)
{
	struct ibv_wc wc = { 0 };
	(void)arg;
	got_there = hugepin_sgq_add(owned, &(struct iovec){ memory, 10 }, 1, 0, NULL, NULL, 0);
	EXPECT_EQ(hugepin_sgq_flush(owned), got_there);
	EXPECT_EQ(hugepin_sgq_poll(owned, 1), got_there);
	EXPECT_EQ(hugepin_sgq_wc(owned, &wc), got_there);
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
	EXPECT_EQ(hugepin_sgq_flush(owned), 0); /* this one is the owner's */
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
		EXPECT_EQ(got_there, -EPERM);
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
		struct ibv_wc wc = { 0 };
		bool good = hugepin_sgq_add(w.out, NULL, 0, 0, NULL, NULL, 0) == -ESTALE && hugepin_sgq_flush(w.out) == -ESTALE &&
			    hugepin_sgq_poll(w.out, 1) == -ESTALE && hugepin_sgq_wc(w.out, &wc) == -ESTALE &&
			    hugepin_sgq_abort(w.in) == 0 && hugepin_sgq_close(w.out) == 0 && told == 0;
		_exit(good ? 0 : 1);
	}
	int status = -1;
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
	mock.pace = UINT_MAX;
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

TEST(slots_over_the_budget_are_refused_and_nothing_stays)
{
	struct hugepin_attr of_domain = { .size = sizeof of_domain, .policy = HUGEPIN_POLICY_LRU, .pinned_bytes_max = 1 << 20 };
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

/* The device looks keys up when it sends: what was given back meanwhile would fail. */
TEST(registrations_come_and_go_but_not_those_of_slots_and_of_what_is_out)
{
	for (uint32_t policy = HUGEPIN_POLICY_ARENA; policy <= HUGEPIN_POLICY_PREDICT; policy++) {
		begin(IBV_QPT_RC, usual, (struct hugepin_sgq_attr){ .depth = 8, .hold_if_outstanding = 2, .recv = hear_nothing }, NULL);
		struct hugepin_attr of_domain = { .size = sizeof of_domain, .policy = policy,
						  .pinned_bytes_max = (16 + 4) * AREA };
		hugepin_domain *d;
		hugepin_sgq *q;
		unsigned sent = 0, gathered = 0;
		struct mock_qp *qp = mock_qp(IBV_QPT_RC, w.cq[0], &usual, NULL);
		mock_connect(qp, w.qp[1]);
		EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, &of_domain, &d), 0);
		struct hugepin_sgq_attr a = w.attr;
		a.qp = &qp->qp;
		a.domain = d;
		a.flags = 0;
		EXPECT_EQ(hugepin_sgq_open(&a, &q), 0);
		thread_done = 0;
		for (int i = 0; i < 3000; i++) {
			struct hugepin_pin pin;
			struct iovec piece = { memory + dice(AREAS) * AREA + dice(AREA / 2), 100 + dice(2000) };
			mock.pace = dice(3);
			if (!hugepin_pin(d, piece.iov_base, piece.iov_len, HUGEPIN_READ, &pin))
				EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			if (!dice(50))
				hugepin_forget(memory + dice(AREAS) * AREA, AREA);
			int got = hugepin_sgq_add(q, &piece, 1, 0, count_done, NULL, HUGEPIN_SG_COPY_OK);
			EXPECT(got >= 0 || got == -EAGAIN);
			sent += got >= 0;
			gathered += got == 0;
			EXPECT(hugepin_sgq_poll(q, 2) >= 0);
			hugepin_sgq_poll(w.in, 16);
		}
		mock.pace = UINT_MAX;
		for (int i = 0; thread_done < sent && EXPECT(i < 1000); i++) {
			hugepin_sgq_poll(q, 9);
			hugepin_sgq_poll(w.in, 16);
		}
		EXPECT(gathered > 1000);
		EXPECT_EQ(hugepin_sgq_close(q), 0);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		EXPECT_EQ(qp->mistakes, 0);
		mock_qp_free(qp);
		end();
	}
}

/* Whatever of the slots' memory a child has. */
TEST(a_child_frees_its_copy_under_every_way_to_fork)
{
	for (uint32_t fork_mode = HUGEPIN_FORK_DEFAULT; fork_mode <= HUGEPIN_FORK_DONTFORK; fork_mode++) {
		struct hugepin_attr of_domain = { .size = sizeof of_domain, .fork = fork_mode, .pinned_bytes_max = UINT64_MAX };
		struct ibv_cq *cq = mock_cq(16);
		struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &(struct ibv_qp_cap){ 16, 8, 4, 1, 0 }, NULL);
		hugepin_domain *d;
		hugepin_sgq *q;
		EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, &of_domain, &d), 0);
		struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &qp->qp, .domain = d, .model = &model, .recv_depth = 8,
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
	REFUSED(-EINVAL, flags, 8);
	REFUSED(-EINVAL, depth, 17);
	REFUSED(-EINVAL, reserved_wr, 16);
	REFUSED(-EINVAL, frame_bytes, 40);
	REFUSED(-EMSGSIZE, frame_bytes, (1u << 30) + 1);
	REFUSED(-EINVAL, recv_depth, 1); /* and no function */
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
	a.model = NULL;
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

T_MAIN
