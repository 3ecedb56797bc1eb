/*
 * A sender and a receiver over the strict device of tests/mock_verbs.h, and memory to send: the frame of the tests of
 * sge/queue.c, sge/receive.c and sge/open.c. Every byte that is added arrives once and in order. The callback of each
 * sub-message runs once, with a true status.
 */
#ifndef TESTS_UNIT_SGQ_H
#define TESTS_UNIT_SGQ_H

#include <sys/mman.h>

#include "hugepin_verbs.h"
#include "mock_verbs.h"

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask != IBV_QP_STATE)
		return EINVAL;
	mock_modify((struct mock_qp *)qp, attr->qp_state);
	return 0;
}

enum { AREAS = 128, AREA = 16384, SUBS = 4096, PIECES = 12 };

static uint64_t seed;

static inline uint32_t dice(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)((seed >> 33) % n);
}

/* AREAS of AREA bytes; one sub-message at a time uses an area; every fourth area is unregistered */
static char *memory;
static bool area_used[AREAS];

static inline bool registered(unsigned area)
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

/* The sub-messages that were added, in order. */
static struct {
	unsigned char *bytes;
	size_t len, got; /* got: the bytes that have arrived */
	int status, area; /* status 1: not told yet; area -1: none in use */
} sub[SUBS];
static unsigned added, told, heard; /* heard: the sub-message that has to arrive next */
static bool in_done;
static bool lossy; /* cancelled sub-messages need not arrive */

/* Pieces of 64 bytes and more are gathered. */
static const struct hugepin_sg_model model = {
	.size = sizeof model, .apart_below = { 64, 64 },
};

static inline void free_area(int area)
{
	memset(memory + area * AREA, 0xdd, AREA); /* a late reader finds these bytes */
	area_used[area] = false;
}

static inline void done(void *arg, uint64_t tag, int status)
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

static inline void hear(void *arg, const struct hugepin_sg_record *r)
{
	(void)arg;
	unsigned i = (unsigned)(r->tag / UINT64_C(0x100000001));
	if (!EXPECT(r->parts > 0) || !EXPECT_EQ(i, heard) || !EXPECT(i < added + 1))
		return;
	EXPECT_EQ(r->part ? sub[i].got > 0 : sub[i].got == 0, 1);
	EXPECT(sub[i].got + r->len <= sub[i].len && !memcmp(sub[i].bytes + sub[i].got, r->data, r->len));
	sub[i].got += r->len;
	heard += r->part + 1 == r->parts;
	if (r->part + 1 == r->parts)
		EXPECT_EQ(sub[i].got, sub[i].len);
}

static inline hugepin_domain *domain_of_mock(void)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU,
				     .pinned_bytes_max = UINT64_MAX };
	hugepin_domain *d = NULL;
	EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, &attr, &d), 0);
	return d;
}

/* Make two queue pairs with these caps. The first has a queue as `attr` says, the second a queue that receives. */
static inline void begin(enum ibv_qp_type type, struct ibv_qp_cap cap, struct hugepin_sgq_attr attr,
			 const struct mock_provider *p)
{
	memset(&w, 0, sizeof w);
	memset(sub, 0, sizeof sub);
	memset(area_used, 0, sizeof area_used);
	added = told = heard = 0;
	lossy = false;
	mock.pace = UINT_MAX;
	if (!memory) {
		memory = mmap(NULL, AREAS * AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(memory, 0xdd, AREAS * AREA); /* as free_area() leaves an area */
	}
	w.domain = domain_of_mock();
	for (unsigned i = 0; i < AREAS; i++)
		if (registered(i))
			EXPECT_EQ(hugepin_pin(w.domain, memory + i * AREA, AREA, HUGEPIN_READ, &w.pin[i]), 0);

	unsigned depth = attr.depth ? attr.depth : cap.max_send_wr;
	/* no room beyond the work requests that may be out */
	w.cq[0] = mock_cq(depth + attr.reserved_wr + out_receives);
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
	in.flags = attr.flags & (HUGEPIN_SGQ_RAW | HUGEPIN_SGQ_MT | HUGEPIN_SGQ_WAIT);
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

/* Both queues close. Nothing stays pinned. */
static inline void end(void)
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

/* Add the next sub-message: these pieces, in `area`. Returns the result of hugepin_sgq_add(). */
static inline int add_pieces(const struct iovec *iov, int n, int area, unsigned flags)
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
	if (got == 1 && area >= 0 && sub[i].area >= 0) { /* every piece was copied: the area is free at once */
		sub[i].area = -1;
		free_area(area);
	}
	return got;
}

static inline int free_area_index(bool is_registered)
{
	for (int tries = 0; tries < 1000; tries++) {
		int i = (int)dice(AREAS);
		if (!area_used[i] && registered((unsigned)i) == is_registered)
			return i;
	}
	return -1;
}

static inline void fill(char *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		p[i] = (char)dice(256);
}

/* Add a sub-message of one piece. */
static inline int add_one(size_t len, unsigned flags)
{
	int area = free_area_index(!(flags & HUGEPIN_SG_COPY_OK));
	if (!EXPECT(area >= 0))
		return -1;
	char *p = memory + area * AREA;
	fill(p, len);
	return add_pieces(&(struct iovec){ p, len }, 1, area, flags);
}

/* Add a sub-message of random pieces, which may overlap. */
static inline int add_random(size_t max, unsigned flags)
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

/* Poll both sides until both are idle. The function does not flush: held frames have to go by themselves. Returns the
 * last error. */
static inline int drain(void)
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

static inline void all_well(void)
{
	for (unsigned i = 0; i < added; i++)
		EXPECT_EQ(sub[i].status, 0);
	EXPECT_EQ(heard, added);
}

static inline void drain_and_end(void)
{
	EXPECT_EQ(drain(), 0);
	all_well();
	end();
}

static const struct ibv_qp_cap usual = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 4, .max_recv_sge = 1,
					 .max_inline_data = 64 };

/* A sender and a receiver with random caps and attributes. */
static inline void random_world(enum ibv_qp_type type, const struct mock_provider *p)
{
	static const uint32_t sges[] = { 1, 2, 3, 7, 30 }, bytes[] = { 100, 256, 1000, 4096 };
	struct ibv_qp_cap cap = { .max_send_wr = 1 + dice(20), .max_recv_wr = 1, .max_send_sge = sges[dice(5)],
				  .max_recv_sge = 1,
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

/* Callbacks of tests that compare no bytes: the receiver ignores them, the sender counts sub-messages. */
static inline void hear_nothing(void *arg, const struct hugepin_sg_record *r)
{
	(void)arg, (void)r;
}

static _Atomic unsigned thread_done;

static inline void count_done(void *arg, uint64_t tag, int status)
{
	(void)arg, (void)tag;
	EXPECT_EQ(status, 0);
	thread_done++;
}

static inline void to_error(struct mock_qp *q)
{
	EXPECT_EQ(ibv_modify_qp(&q->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), 0);
}

#endif
