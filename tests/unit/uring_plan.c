/*
 * The plan of messages on io_uring: what it claims is what a naive reading of the header makes of the pieces, it stays
 * within the limits, and it is the cheapest of the simple ways.
 */
#include "uring/plan.h"

#include <errno.h>
#include <math.h>

#include "tests/t.h"

enum { N = 14 };
#define PLAIN HUGEPIN_SG_URING_PLAIN
#define FIXED HUGEPIN_SG_URING_FIXED
#define COPY HUGEPIN_SG_URING_COPY
#define NONE HUGEPIN_SG_URING_NONE

static uint64_t seed = 1;
static uint32_t any(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(seed >> 33) % n;
}

static struct hugepin_sg_uring_caps caps(void)
{
	return (struct hugepin_sg_uring_caps){ .size = sizeof(struct hugepin_sg_uring_caps), .vector = 1, .zero_copy = 1,
					       .max_iov = 1024, .max_requests = 64, .slot_len = 16384,
					       .slot_index = NONE };
}

/* ------------------------------------------------------------------ naive */

struct case_ {
	struct hugepin_sg_uring_model model;
	struct hugepin_sg_uring_caps caps;
	struct iovec iov[N];
	uint32_t index[N];
	int n;
	unsigned verb, mode, align;
};

struct naive {
	uint32_t requests, elements, ways;
	uint64_t bytes, copied;
	double cost;
	bool allowed;
};

/* Elements one after the other, then requests of neighbours, as the header says it. */
static struct naive naive(const struct case_ *c, bool fixed, uint32_t below, bool foreign)
{
	const unsigned mode = c->mode ? c->mode : PLAIN | FIXED | COPY;
	struct { uint32_t by; uint64_t bytes; bool copied; } e[N];
	uint32_t elements = 0, in_request = 0;
	struct naive r = { .allowed = true };
	bool aligned = true;

	for (int i = 0; i < c->n; i++) {
		const size_t len = c->iov[i].iov_len;
		const bool copied = len < below || (foreign && c->index[i] == NONE);
		const uint32_t by = !fixed ? NONE : copied ? c->caps.slot_index : c->index[i];

		if (!len)
			continue;
		r.bytes += len;
		if (copied) {
			r.copied += len;
			r.cost += (double)c->model.piece + (double)c->model.copy_byte * (double)len;
			r.ways |= COPY;
		} else {
			r.allowed &= (mode & (by == NONE ? PLAIN : FIXED)) != 0;
			aligned &= !c->align || (!((uintptr_t)c->iov[i].iov_base % c->align) && !(len % c->align));
		}
		if (copied && elements && e[elements - 1].copied) {
			e[elements - 1].bytes += len;
			continue;
		}
		e[elements].by = by;
		e[elements].copied = copied;
		e[elements++].bytes = len;
	}
	for (uint32_t i = 0; i < elements; i++) {
		const struct hugepin_sg_uring_cost *cost = e[i].by == NONE ? &c->model.plain[c->verb] :
									      &c->model.fixed[c->verb];
		const uint32_t room = e[i].by == NONE || c->caps.vector ? c->caps.max_iov : 1;

		if (!i || e[i].by != e[i - 1].by || in_request == room) {
			r.requests++;
			r.cost += (double)cost->request;
			in_request = 0;
		}
		in_request++;
		r.ways |= e[i].by == NONE ? PLAIN : FIXED;
		r.cost += (double)cost->element + (double)cost->byte * (double)e[i].bytes;
	}
	r.elements = elements;
	r.allowed &= aligned && r.requests <= c->caps.max_requests && r.copied <= c->caps.slot_len &&
		     (!r.copied || mode & COPY) &&
		     (c->verb != HUGEPIN_SG_URING_SEND || c->caps.zero_copy || !(r.ways & FIXED));
	return r;
}

static struct case_ some_case(void)
{
	static const size_t lengths[] = { 0, 8, 100, 512, 512, 4096, 4096, 9000 };
	static const uint32_t indexes[] = { NONE, 3, 3, 3, 5, 9 };
	struct case_ c = { .caps = caps(), .n = (int)any(N + 1), .verb = any(3), .mode = any(8) };

	c.model = (struct hugepin_sg_uring_model){ .size = sizeof c.model, .piece = (float)any(50),
						   .copy_byte = (float)any(100) / 100 };
	for (int v = 0; v < 3; v++) {
		c.model.plain[v] = (struct hugepin_sg_uring_cost){ (float)any(3000), (float)any(200),
								   (float)any(100) / 200 };
		c.model.fixed[v] = (struct hugepin_sg_uring_cost){ (float)any(3000), (float)any(200),
								   (float)any(100) / 200 };
	}
	c.caps.vector = any(2);
	c.caps.zero_copy = any(4) > 0;
	c.caps.max_requests = 1 + any(N);
	c.caps.max_iov = any(3) ? 1024 : 1 + any(4);
	c.caps.slot_len = any(3) * 8192;
	c.caps.slot_index = any(2) ? NONE : 3;
	c.align = any(3) ? any(2) : 512;
	for (int i = 0; i < c.n; i++) {
		c.iov[i] = (struct iovec){ (void *)(uintptr_t)(0x100000 + any(4) * 512 + (uint32_t)i * 65536 + (any(8) ? 0u : 4u)),
					   lengths[any(8)] };
		c.index[i] = indexes[any(6)];
	}
	return c;
}

TEST(a_plan_is_what_it_says_stays_within_the_limits_and_beats_the_simple_ways)
{
	double costs = 0, best_costs = 0;
	int planned = 0, copied = 0, refused = 0;

	for (int round = 0; round < 200000 && !t_failures; round++) {
		const struct case_ c = some_case();
		struct hugepin_sg_uring_plan p = { .mode = 77 };
		uint64_t bytes = 0;
		double best = -1;
		bool simple = false;

		for (int i = 0; i < c.n; i++)
			bytes += c.iov[i].iov_len;
		int err = hugepin_sg_uring_plan(&c.model, &c.caps, c.verb, c.iov, c.index, c.n, c.mode, c.align, &p);
		if (c.mode == FIXED && c.verb == HUGEPIN_SG_URING_SEND && !c.caps.zero_copy) {
			EXPECT_EQ(err, c.align && bytes % c.align ? -EINVAL : -EOPNOTSUPP);
			continue;
		}
		if (c.align && bytes % c.align) {
			EXPECT_EQ(err, -EINVAL);
			continue;
		}
		for (int fixed = 0; fixed < 2; fixed++)
			for (int i = -1; i <= c.n; i++)
				for (int foreign = 0; foreign < 2; foreign++) {
					uint32_t below = i < 0 ? 0 : i == c.n ? UINT32_MAX :
								   (uint32_t)c.iov[i].iov_len + 1;
					struct naive n = naive(&c, fixed, below, foreign);
					if (!n.allowed)
						continue;
					if (best < 0 || n.cost < best)
						best = n.cost;
					if (!foreign && (i < 0 || i == c.n)) {
						simple = true;
						EXPECT(!err && (double)p.cost_ns <= n.cost * 1.0001 + 0.01);
					}
				}
		if (err) {
			EXPECT(!simple);
			EXPECT_EQ(err, -EMSGSIZE);
			EXPECT_EQ(p.mode, 77);
			refused++;
			continue;
		}
		struct naive n = naive(&c, p.mode & FIXED, p.copy_below, p.copy_foreign);
		EXPECT(n.allowed);
		EXPECT_EQ(p.requests, n.requests);
		EXPECT_EQ(p.elements, n.elements);
		EXPECT_EQ(p.bytes, n.bytes);
		EXPECT_EQ(p.copied, n.copied);
		EXPECT_EQ(p.mode, n.ways);
		EXPECT(fabs((double)p.cost_ns - n.cost) <= n.cost * 0.0001 + 0.01);
		EXPECT((double)p.cost_ns >= best * 0.9999 - 0.01);
		costs += (double)p.cost_ns;
		best_costs += best;
		planned++;
		copied += p.copied && p.copied < p.bytes;
	}
	EXPECT(planned > 100000 && copied > 5000 && refused > 5000);
	/* Not the best of all lengths, but near. */
	t_print("# %.4f of the best\n", costs / best_costs);
	EXPECT(costs < best_costs * 1.01);
}

TEST(pieces_of_one_registration_are_one_request)
{
	struct hugepin_sg_uring_caps k = caps();
	struct hugepin_sg_uring_plan p;
	struct iovec iov[30];
	uint32_t index[30];

	for (uint32_t i = 0; i < 30; i++) {
		iov[i] = (struct iovec){ (void *)(uintptr_t)(0x10000 + i * 65536), 5000 };
		index[i] = 4;
	}
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, HUGEPIN_SG_URING_WRITE, iov, index, 30, FIXED, 1, &p), 0);
	EXPECT_EQ(p.requests, 1);
	EXPECT_EQ(p.elements, 30);
	EXPECT_EQ(p.mode, FIXED);
	k.vector = 0;
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, HUGEPIN_SG_URING_WRITE, iov, index, 30, FIXED, 1, &p), 0);
	EXPECT_EQ(p.requests, 30);
	/* There the default model knows better. */
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, HUGEPIN_SG_URING_WRITE, iov, index, 30, 0, 1, &p), 0);
	EXPECT_EQ(p.requests, 1);
	index[17] = 5;
	k.vector = 1;
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, HUGEPIN_SG_URING_WRITE, iov, index, 30, FIXED, 1, &p), 0);
	EXPECT_EQ(p.requests, 3);
}

TEST(a_piece_without_a_registration_is_copied_rather_than_a_request)
{
	struct hugepin_sg_uring_caps k = caps();
	struct hugepin_sg_uring_plan p;
	struct iovec iov[30];
	uint32_t index[30];

	k.slot_index = 4;
	for (uint32_t i = 0; i < 30; i++) {
		iov[i] = (struct iovec){ (void *)(uintptr_t)(0x10000 + i * 65536), 5000 };
		index[i] = 4;
	}
	index[17] = NONE;
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, HUGEPIN_SG_URING_WRITE, iov, index, 30, 0, 1, &p), 0);
	EXPECT_EQ(p.mode, FIXED | COPY);
	EXPECT_EQ(p.requests, 1);
	EXPECT_EQ(p.elements, 30);
	EXPECT_EQ(p.copied, 5000);
}

TEST(bad_arguments_are_refused)
{
	struct hugepin_sg_uring_model small = { .size = 8 };
	struct hugepin_sg_uring_caps k = caps(), none = { 0 };
	struct hugepin_sg_uring_plan p;
	struct iovec iov[2] = { { (void *)4096, 10 }, { (void *)8192, 10 } };
	const unsigned w = HUGEPIN_SG_URING_WRITE;

	EXPECT_EQ(hugepin_sg_uring_plan(NULL, NULL, w, iov, NULL, 2, 0, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &none, w, iov, NULL, 2, 0, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, w, iov, NULL, 2, 0, 0, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, w, NULL, NULL, 2, 0, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, w, iov, NULL, -1, 0, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, 3, iov, NULL, 2, 0, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, w, iov, NULL, 2, 8, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(&small, &k, w, iov, NULL, 2, 0, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, w, iov, NULL, 2, 0, 3, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, w, iov, NULL, 2, 0, 16, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, w, iov, NULL, 2, FIXED, 0, &p), -EMSGSIZE);
	k.zero_copy = 0;
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, HUGEPIN_SG_URING_SEND, iov, NULL, 2, FIXED, 0, &p), -EOPNOTSUPP);
	iov[1].iov_len = (size_t)1 << 30;
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, w, iov, NULL, 2, 0, 0, &p), -EOVERFLOW);
	iov[1].iov_base = NULL;
	EXPECT_EQ(hugepin_sg_uring_plan(NULL, &k, w, iov, NULL, 2, 0, 0, &p), -EINVAL);
}

T_MAIN
