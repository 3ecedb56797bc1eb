/*
 * Calibration without a device: the CPU time of hugepin_sg_fill() and of posting. Work requests are written to memory
 * as a provider writes them (wqe.h). The pieces are in the CPU's cache, or were flushed from it. The keys come from a
 * domain whose backend registers nothing, and which has one registration or 256.
 *
 * Rounds of all cells alternate, so that a disturbance affects all cells alike.
 */
#include "sge/measure_cpu.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "sge/cells.h"
#include "sge/plan.h"
#include "sge/wqe.h"

#define BIT(term) HP_CELL_BIT(term)
#define CPU_TERMS \
	(BIT(wr) | BIT(element) | BIT(lookup) | BIT(piece) | BIT(copy_byte) | BIT(cold) | BIT(cold_piece) | \
	 BIT(cold_byte) | BIT(inline_wr) | BIT(inline_piece) | BIT(inline_byte))

enum {
	CPU_ROUNDS = 9,
	BATCH = 32, /* messages in one measurement; reading the clock takes as long as a few messages */
	BATCH_BYTES = 128 << 10, /* fewer messages if they have more bytes than this: flushing takes time */
	HOT = 4, /* different messages in the cache, used in turn */
	SLOTS = 8,
	REGISTRATIONS = 256,
};

#define REGION (2 * hp_base_page) /* one registered page, and one that is not */

struct bench {
	char *memory; /* holds all of the following, in one mapping */
	char *source, *slots, *regions;
	struct hp_wqe_ring ring;
	hugepin_domain *domain;
	struct hugepin_pin pins[REGISTRATIONS + 1];
	unsigned pinned;
	struct iovec iov[BATCH][HP_CELL_PIECES_MAX];
	struct hp_sg_cell cell[HP_CELLS_MAX];
	unsigned cells;
};
#define SOURCE_BYTES ((size_t)BATCH_BYTES + HP_CELL_LAYOUT_MAX)
#define BENCH_BYTES \
	(SOURCE_BYTES + SLOTS * (HP_CELL_SLOT_BYTES + 64) + HP_WQE_COUNT * HP_WQE_BYTES + REGISTRATIONS * REGION + \
	 4 * hp_base_page)

static int register_nothing(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access;
	*ret_ = (struct hugepin_reg){ .lkey = 1, .rkey = 1 };
	return 0;
}

static int deregister_nothing(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx, (void)reg;
	return 0;
}

static int limit_nothing(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE };
	return 0;
}

static int bench_open(struct bench *b)
{
	static const struct hugepin_backend nothing = {
		.size = sizeof nothing, .name = "calibration",
		.reg = register_nothing, .dereg = deregister_nothing, .limits = limit_nothing,
	};
	/* Nobody unmaps the measured memory. A hit that would have to ask the kernel about unmaps costs the same in
	 * each mode, so leave this question out. */
	const struct hugepin_attr attr = {
		.size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM
	};
	int err;

	b->memory = mmap(NULL, BENCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (b->memory == MAP_FAILED)
		return -ENOMEM;
	b->ring.base = (unsigned char *)b->memory;
	b->slots = b->memory + HP_WQE_COUNT * HP_WQE_BYTES;
	b->source = (char *)hp_round_up((uintptr_t)b->slots + SLOTS * (HP_CELL_SLOT_BYTES + 64), hp_base_page);
	b->regions = (char *)hp_round_up((uintptr_t)b->source + SOURCE_BYTES, hp_base_page) + hp_base_page;
	err = hugepin_domain_open(&nothing, NULL, &attr, &b->domain);
	if (err)
		return err;
	err = hugepin_pin(b->domain, b->source, SOURCE_BYTES, HUGEPIN_READ, &b->pins[0]);
	for (; !err && b->pinned < REGISTRATIONS; b->pinned++)
		err = hugepin_pin(b->domain, b->regions + b->pinned * REGION, hp_base_page, HUGEPIN_READ,
				  &b->pins[b->pinned + 1]);
	b->pinned += !err;
	return err;
}

static void bench_close(struct bench *b)
{
	if (b->domain) {
		hugepin_unpinv(b->domain, b->pins, REGISTRATIONS + 1); /* entries without a pin are skipped */
		hugepin_domain_close(b->domain);
	}
	if (b->memory && b->memory != MAP_FAILED)
		munmap(b->memory, BENCH_BYTES);
}

#if defined __x86_64__
#define CAN_FLUSH 1
static void flush_pieces(const struct iovec *iov, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		for (size_t at = 0; at < iov[i].iov_len + 64; at += 64)
			__builtin_ia32_clflush((char *)iov[i].iov_base + at);
}
static void wait_for_flush(void)
{
	__builtin_ia32_mfence();
}
#else
#define CAN_FLUSH 0 /* the cold terms keep their default values */
static void flush_pieces(const struct iovec *iov, unsigned n)
{
	(void)iov, (void)n;
}
static void wait_for_flush(void)
{
}
#endif

/* Lay out the messages of a batch. Hot: a few messages in turn, which stay in the cache. Cold: each message is
 * different. The pieces of a message follow each other; scattered pieces lie anywhere in some registration. Returns
 * the number of messages. */
static unsigned lay_batch(struct bench *b, const struct hp_sg_cell *c)
{
	const bool cold = c->mode & HUGEPIN_SG_COLD;
	const size_t stride = c->bytes + HP_CELL_STRIDE_MORE, layout = c->n * stride;
	const unsigned batch = cold && layout * BATCH > BATCH_BYTES ? (unsigned)(BATCH_BYTES / layout) : BATCH;
	uint32_t some = 1;

	for (unsigned k = 0; k < batch; k++) {
		if (!cold && k >= HOT) {
			memcpy(b->iov[k], b->iov[k % HOT], sizeof b->iov[k]);
			continue;
		}
		hp_cell_lay(b->iov[k], c->n, c->bytes, b->source + k * layout, stride);
		for (unsigned i = 0; c->scattered && i < c->n; i++) {
			some = some * 1664525u + 1013904223u;
			b->iov[k][i].iov_base = b->regions + (some >> 24) * REGION + (some >> 8 & 0xbf8);
		}
	}
	return batch;
}

/* volatile: the compiler does not know the address, as for a call of a provider. */
static int (*volatile post)(struct hp_wqe_ring *, const struct ibv_send_wr *,
			    const struct ibv_send_wr **) = hp_wqe_post;

/* Measure one round of one cell: nanoseconds per message. */
static int bench_cell(struct bench *b, const struct hp_sg_cell *c, float *ret_ns)
{
	const unsigned batch = lay_batch(b, c);
	const size_t slot = ((size_t)c->n * c->bytes + 63) / 64 * 64 + 64; /* the distance of frames in a queue */
	struct ibv_sge sge[HP_CELL_PIECES_MAX];
	struct ibv_send_wr wr, tmpl = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	const struct ibv_send_wr *bad;
	struct hugepin_pin pins[HP_CELL_PIECES_MAX];
	struct hugepin_sg_room room = {
		.size = sizeof room, .wr = &wr, .wrs = 1, .sge = sge, .sges = HP_CELL_PIECES_MAX,
		.pins = pins, .pins_max = HP_CELL_PIECES_MAX, .slot_len = HP_CELL_SLOT_BYTES, .slot_lkey = 1,
		.key = hugepin_sg_key, .arg = b->domain,
	};
	struct hugepin_sg_info info;
	uint64_t start;
	int err = 0;

	for (unsigned k = 0; k < batch && c->mode & HUGEPIN_SG_COLD; k++)
		flush_pieces(b->iov[k], c->n);
	wait_for_flush();
	start = hp_clock_ns();
	for (unsigned k = 0; k < batch && err >= 0; k++) {
		room.slot = b->slots + k % SLOTS * slot + HUGEPIN_SG_HEADER;
		err = hugepin_sg_fill(&c->plan, b->iov[k], (int)c->n, &tmpl, &room, &info);
		if (err < 0)
			break;
		post(&b->ring, &wr, &bad);
		hugepin_unpinv(b->domain, pins, (int)info.pins);
	}
	*ret_ns = (float)(hp_clock_ns() - start) / (float)batch;
	return err < 0 ? err : 0;
}

static int bench_run(struct bench *b, struct hugepin_sg_model *m)
{
	static const struct hugepin_sg_caps caps = { .max_sge = HP_CELL_PIECES_MAX, .max_recv_sge = HP_CELL_PIECES_MAX,
						     .max_inline = HP_WQE_INLINE_MAX, .max_wr = HP_WQE_COUNT,
						     .max_recv_wr = HP_WQE_COUNT, .max_msg = 1u << 30 };
	int err = bench_open(b);

	for (unsigned mode = HUGEPIN_SG_INLINE; !err && mode <= HUGEPIN_SG_GATHER; mode *= 2)
		err = hp_cells_add(b->cell, &b->cells, &caps, b->source, mode, false);
	if (!err)
		err = hp_cells_add(b->cell, &b->cells, &caps, b->source, HUGEPIN_SG_GATHER, true);
	if (!err)
		err = hp_cells_add(b->cell, &b->cells, &caps, b->source, HUGEPIN_SG_COPY, true);
	if (!err && CAN_FLUSH)
		err = hp_cells_add(b->cell, &b->cells, &caps, b->source, HUGEPIN_SG_COPY | HUGEPIN_SG_COLD, true);
	for (unsigned round = 0; round < CPU_ROUNDS; round++)
		for (unsigned i = 0; !err && i < b->cells; i++)
			err = bench_cell(b, &b->cell[i], &b->cell[i].ns[round]);
	if (!err && hp_cells_fit(m, CPU_TERMS, b->cell, b->cells, CPU_ROUNDS) >= 0)
		m->source = HUGEPIN_SG_MODEL_CPU;
	return err;
}

int hp_measure_cpu(struct hugepin_sg_model *ret_)
{
	struct hugepin_sg_model m = hp_sg_model_default;
	struct bench *b = calloc(1, sizeof *b);
	m.line = m.byte = 0; /* only a device's model has these terms */
	int err = b ? bench_run(b, &m) : -ENOMEM;

	if (b)
		bench_close(b);
	free(b);
	if (!err)
		*ret_ = m;
	return err;
}
