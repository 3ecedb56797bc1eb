/* Random numbers, a queue pair's caps and thresholds: shared by the tests of sge/plan.c and sge/fill.c. */
#ifndef TESTS_UNIT_SG_PLAN_H
#define TESTS_UNIT_SG_PLAN_H

#include "sge/plan.h"
#include "tests/mock_verbs.h"

static uint64_t seed = 88172645463325252;

static inline uint32_t rnd(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return n ? (uint32_t)(seed >> 20) % n : 0;
}

static const struct hugepin_sg_caps rc = {
	.max_sge = 30, .max_recv_sge = 20, .max_inline = 220, .max_sge_rd = 30, .max_wr = 64, .max_recv_wr = 64,
	.max_msg = UINT64_C(1) << 31,
};

static const struct hugepin_sg_model measured = {
	.size = sizeof measured, .source = HUGEPIN_SG_MODEL_DEVICE,
	.copy_below = { 200, 40 }, .apart_below = { 800, 100 }, .inline_pieces = { 8, 2 },
};

enum { INLINE = HUGEPIN_SG_INLINE, COPY = HUGEPIN_SG_COPY, GATHER = HUGEPIN_SG_GATHER, COLD = HUGEPIN_SG_COLD,
       WRITE = HUGEPIN_SG_WRITE, RECV = HUGEPIN_SG_RECV, MODES = INLINE | COPY | GATHER };

#endif
