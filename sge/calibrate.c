/*
 * Measuring what sending costs (model.h has the terms). Each term is fitted to what hugepin_sg_fill and posting together take
 * for messages of a grid: pieces of 8 to 1024 bytes, from one to as many as there are elements.
 *
 *  - Without a device: work requests are written into memory (wqe.h), sources lie in the CPU's cache or have been flushed from
 *    it, keys come from a domain of a backend that registers nothing, with one registration or 256.
 *  - With one: two queue pairs of this process, connected to each other; post to completion. Before anything is timed, each
 *    message of the grid is sent in each mode, by SEND and by RDMA WRITE, and compared: providers exist that report success
 *    and deliver less. A mode that arrives wrong once is refused. What the CPU alone decides (copying, lookups) is
 *    kept from the part without a device.
 *
 * Rounds are interleaved, so that a disturbance meets all cells alike, and the lower quartile of a cell counts: disturbances
 * only add.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/base.h"
#include "sge/model.h"
#include "sge/plan.h"
#include "sge/wqe.h"

enum {
	PIECES_MAX = HP_WQE_SGE_MAX,
	PIECE_MAX = 1024,
	STRIDE_MORE = 168, /* between pieces: their offsets within a line differ, and the prefetcher is of no help */
	LAYOUT_MAX = PIECES_MAX * (PIECE_MAX + STRIDE_MORE),
	CELLS_MAX = 128,
	ROUNDS_MAX = 32,
};
static const unsigned piece_bytes[] = { 8, 64, 256, PIECE_MAX };
enum { PIECE_SIZES = sizeof piece_bytes / sizeof *piece_bytes };
#define BIT(term) (1u << HP_SG_##term)
#define CPU_TERMS                                                                                                      \
	(BIT(wr) | BIT(element) | BIT(lookup) | BIT(piece) | BIT(copy_byte) | BIT(cold) | BIT(cold_piece) |            \
	 BIT(cold_byte) | BIT(inline_wr) | BIT(inline_piece) | BIT(inline_byte))
#define DEVICE_TERMS                                                                                                   \
	(BIT(wr) | BIT(element) | BIT(line) | BIT(byte) | BIT(inline_wr) | BIT(inline_piece) | BIT(inline_byte))

/* One kind of message. */
struct cell {
	unsigned mode, n, bytes; /* of each of n pieces */
	bool scattered; /* each piece in a registration of its own, else all in one */
	struct hugepin_sg_plan plan;
	struct hp_sg_count count;
	float ns[ROUNDS_MAX];
};

static int compare(const void *a, const void *b)
{
	const float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* Of `pieces` pieces that begin `stride` bytes after each other. */
static void lay(struct iovec *iov, unsigned pieces, unsigned bytes, char *at, size_t stride)
{
	for (unsigned i = 0; i < pieces; i++)
		iov[i] = (struct iovec){ at + i * stride, bytes };
}

/* Cells of a mode, for all numbers of pieces that `caps` allow; they will lie at `source`. */
static int add_cells(struct cell *cells, unsigned *count, const struct hugepin_sg_caps *caps, char *source, unsigned mode,
		     bool scattered)
{
	const unsigned most = caps->max_sge < PIECES_MAX ? caps->max_sge : PIECES_MAX;
	const unsigned pieces[] = { 1, 2, 4, 8, most };
	struct iovec iov[PIECES_MAX];

	for (unsigned i = 0; i < sizeof pieces / sizeof *pieces; i++)
		for (unsigned j = 0; j < PIECE_SIZES; j++) {
			struct cell c = { .mode = mode, .n = pieces[i], .bytes = piece_bytes[j], .scattered = scattered };
			const uint64_t bytes = (uint64_t)c.n * c.bytes;

			if (c.n > most || (i == 4 && most <= 8) || (mode & HUGEPIN_SG_INLINE && bytes > caps->max_inline))
				continue;
			lay(iov, c.n, c.bytes, source, c.bytes + STRIDE_MORE);
			const int err = hugepin_sg_plan(NULL, caps, iov, (int)c.n, mode & ~(unsigned)HUGEPIN_SG_COLD, &c.plan);
			if (err)
				return err;
			c.count = hp_sg_count(mode, c.n, bytes, scattered ? c.n : 1, hugepin_sg_lines(iov, (int)c.n));
			cells[(*count)++] = c;
		}
	return 0;
}

/* The lower quartile of each cell; how well the model says them. */
static double fit(struct hugepin_sg_model *m, unsigned terms, struct cell *cells, unsigned count, unsigned rounds)
{
	struct hp_sg_sample samples[CELLS_MAX];

	for (unsigned i = 0; i < count; i++) {
		qsort(cells[i].ns, rounds, sizeof *cells[i].ns, compare);
		samples[i] = (struct hp_sg_sample){ cells[i].count, (double)cells[i].ns[rounds / 4] };
	}
	return hp_sg_model_fit(m, terms, samples, count);
}

/* ------------------------------------------------------------------ without a device */

enum {
	CPU_ROUNDS = 9,
	BATCH = 32, /* messages in one measurement; the clock takes as long as a few */
	BATCH_BYTES = 128 << 10, /* or as many as have so many bytes: what is flushed takes time */
	HOT = 4, /* of those in the cache */
	SLOTS = 8,
	REGISTRATIONS = 256,
	REGION = 2 * 4096, /* a page that is registered and one that is not */
};

struct bench {
	char *memory; /* all of the below, in one mapping */
	char *source, *slots, *regions;
	struct hp_wqe_ring ring;
	hugepin_domain *domain;
	struct hugepin_pin pins[REGISTRATIONS + 1];
	unsigned pinned;
	struct iovec iov[BATCH][PIECES_MAX];
	struct cell cell[CELLS_MAX];
	unsigned cells;
};
#define SOURCE_BYTES ((size_t)BATCH_BYTES + LAYOUT_MAX)
#define SLOT_BYTES ((size_t)PIECES_MAX * PIECE_MAX)
#define BENCH_BYTES (SOURCE_BYTES + SLOTS * (SLOT_BYTES + 64) + HP_WQE_COUNT * HP_WQE_BYTES + REGISTRATIONS * REGION + 4 * 4096)

static int reg_nothing(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access;
	*ret_ = (struct hugepin_reg){ .lkey = 1, .rkey = 1 };
	return 0;
}

static int dereg_nothing(void *ctx, struct hugepin_reg *reg)
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
	static const struct hugepin_backend nothing = { sizeof nothing, "calibration", reg_nothing, dereg_nothing, NULL,
							limit_nothing, NULL, NULL };
	/* Nobody unmaps what is measured: that a hit may have to ask the kernel is no cost of any mode. */
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	int err;

	b->memory = mmap(NULL, BENCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (b->memory == MAP_FAILED)
		return -ENOMEM;
	b->ring.base = (unsigned char *)b->memory;
	b->slots = b->memory + HP_WQE_COUNT * HP_WQE_BYTES;
	b->source = b->slots + (SLOTS * (SLOT_BYTES + 64) + 4095) / 4096 * 4096;
	b->regions = b->source + (SOURCE_BYTES + 2 * 4096 - 1) / 4096 * 4096;
	err = hugepin_domain_open(&nothing, NULL, &attr, &b->domain);
	if (err)
		return err;
	err = hugepin_pin(b->domain, b->source, SOURCE_BYTES, HUGEPIN_READ, &b->pins[0]);
	for (; !err && b->pinned < REGISTRATIONS; b->pinned++)
		err = hugepin_pin(b->domain, b->regions + b->pinned * REGION, 4096, HUGEPIN_READ, &b->pins[b->pinned + 1]);
	b->pinned += !err;
	return err;
}

static void bench_close(struct bench *b)
{
	if (b->domain) {
		hugepin_unpinv(b->domain, b->pins, REGISTRATIONS + 1); /* what is no pin is skipped */
		hugepin_domain_close(b->domain);
	}
	if (b->memory && b->memory != MAP_FAILED)
		munmap(b->memory, BENCH_BYTES);
}

#if defined __x86_64__
#define CAN_FLUSH 1
static void flush(const struct iovec *iov, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		for (size_t at = 0; at < iov[i].iov_len + 64; at += 64)
			__builtin_ia32_clflush((char *)iov[i].iov_base + at);
}
static void flushed(void)
{
	__builtin_ia32_mfence();
}
#else
#define CAN_FLUSH 0 /* cold terms stay what they are by default */
static void flush(const struct iovec *iov, unsigned n)
{
	(void)iov, (void)n;
}
static void flushed(void)
{
}
#endif

/* The messages of the batch: a few in turn, which stay in the cache, or all different ones. Their pieces lie one after the
 * other, or each somewhere in some registration. */
static unsigned lay_batch(struct bench *b, const struct cell *c)
{
	const bool cold = c->mode & HUGEPIN_SG_COLD;
	const size_t stride = c->bytes + STRIDE_MORE, layout = c->n * stride;
	const unsigned batch = cold && layout * BATCH > BATCH_BYTES ? (unsigned)(BATCH_BYTES / layout) : BATCH;
	uint32_t some = 1;

	for (unsigned k = 0; k < batch; k++) {
		if (!cold && k >= HOT) {
			memcpy(b->iov[k], b->iov[k % HOT], sizeof b->iov[k]);
			continue;
		}
		lay(b->iov[k], c->n, c->bytes, b->source + k * layout, stride);
		for (unsigned i = 0; c->scattered && i < c->n; i++) {
			some = some * 1664525u + 1013904223u;
			b->iov[k][i].iov_base = b->regions + (some >> 24) * REGION + (some >> 8 & 0xbf8);
		}
	}
	return batch;
}

static int (*volatile post)(struct hp_wqe_ring *, const struct ibv_send_wr *, const struct ibv_send_wr **) = hp_wqe_post;

/* One round of one cell, in nanoseconds a message. */
static int bench_cell(struct bench *b, const struct cell *c, float *ret_ns)
{
	const unsigned batch = lay_batch(b, c);
	const size_t slot = ((size_t)c->n * c->bytes + 63) / 64 * 64 + 64; /* as frames of a queue lie */
	struct ibv_sge sge[PIECES_MAX];
	struct ibv_send_wr wr, tmpl = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	const struct ibv_send_wr *bad;
	struct hugepin_pin pins[PIECES_MAX];
	struct hugepin_sg_room room = { sizeof room, &wr, sge, pins, NULL, SLOT_BYTES, 1, PIECES_MAX, PIECES_MAX, 1,
					hugepin_sg_key, b->domain };
	struct hugepin_sg_info info;
	uint64_t start;
	int err = 0;

	for (unsigned k = 0; k < batch && c->mode & HUGEPIN_SG_COLD; k++)
		flush(b->iov[k], c->n);
	flushed();
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
	static const struct hugepin_sg_caps caps = { .max_sge = PIECES_MAX, .max_recv_sge = PIECES_MAX,
						     .max_inline = HP_WQE_INLINE_MAX, .max_wr = HP_WQE_COUNT,
						     .max_recv_wr = HP_WQE_COUNT, .max_msg = 1u << 30 };
	int err = bench_open(b);

	for (unsigned mode = HUGEPIN_SG_INLINE; !err && mode <= HUGEPIN_SG_GATHER; mode *= 2)
		err = add_cells(b->cell, &b->cells, &caps, b->source, mode, false);
	if (!err)
		err = add_cells(b->cell, &b->cells, &caps, b->source, HUGEPIN_SG_GATHER, true);
	if (!err)
		err = add_cells(b->cell, &b->cells, &caps, b->source, HUGEPIN_SG_COPY, true);
	if (!err && CAN_FLUSH)
		err = add_cells(b->cell, &b->cells, &caps, b->source, HUGEPIN_SG_COPY | HUGEPIN_SG_COLD, true);
	for (unsigned round = 0; round < CPU_ROUNDS; round++)
		for (unsigned i = 0; !err && i < b->cells; i++)
			err = bench_cell(b, &b->cell[i], &b->cell[i].ns[round]);
	if (!err && fit(m, CPU_TERMS, b->cell, b->cells, CPU_ROUNDS) >= 0)
		m->source = HUGEPIN_SG_MODEL_CPU;
	return err;
}

static int measure_cpu(struct hugepin_sg_model *ret_)
{
	struct hugepin_sg_model m = hp_sg_model_default;
	struct bench *b = calloc(1, sizeof *b);
	m.line = m.byte = 0; /* of a device */
	int err = b ? bench_run(b, &m) : -ENOMEM;

	if (b)
		bench_close(b);
	free(b);
	if (!err)
		*ret_ = m;
	return err;
}

/* ------------------------------------------------------------------ with a device */

enum { DEVICE_ROUNDS = 24, LOST_MS = 2000 };

struct wire {
	struct ibv_pd *pd;
	struct ibv_port_attr attr;
	uint8_t port;
	int gid_index;
	union ibv_gid gid;
	char *memory; /* source, slot, destination */
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2]; /* qp[0] sends to qp[1] */
	struct hugepin_sg_caps caps;
	struct cell cell[CELLS_MAX];
	unsigned cells;
};
#define WIRE_BYTES ((size_t)2 * SLOT_BYTES + LAYOUT_MAX)

/* Functions of libibverbs return errno, or -1 and set it, or a negative one. */
static int err_of(int ret)
{
	return ret < -1 ? ret : ret > 0 ? -ret : ret == 0 ? 0 : errno ? -errno : -EIO;
}

static int find_port(struct wire *w)
{
	struct ibv_device_attr device;
	int err = err_of(ibv_query_device(w->pd->context, &device));

	if (err)
		return err;
	for (w->port = 1; ibv_query_port(w->pd->context, w->port, &w->attr) || w->attr.state != IBV_PORT_ACTIVE; w->port++)
		if (w->port >= device.phys_port_cnt)
			return -EOPNOTSUPP;
	/* RoCE wants the IPv4 address of its interface, InfiniBand takes its first GID. */
	for (w->gid_index = w->attr.gid_tbl_len - 1; w->gid_index > 0; w->gid_index--)
		if (!ibv_query_gid(w->pd->context, w->port, w->gid_index, &w->gid) && IN6_IS_ADDR_V4MAPPED(w->gid.raw))
			return 0;
	return err_of(ibv_query_gid(w->pd->context, w->port, w->gid_index = 0, &w->gid));
}

/* As many elements and as much inline data as the device grants: what it cannot do it says by failing. */
static struct ibv_qp *create_qp(struct wire *w, struct ibv_qp_cap *ret_granted)
{
	static const uint32_t inlines[] = { HP_WQE_INLINE_MAX, 220, 60, 0 };

	for (uint32_t sges = PIECES_MAX; sges; sges /= 2)
		for (unsigned i = 0; i < sizeof inlines / sizeof *inlines; i++) {
			struct ibv_qp_init_attr init = {
				.send_cq = w->cq, .recv_cq = w->cq, .qp_type = IBV_QPT_RC,
				.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = sges, .max_recv_sge = 1,
					 .max_inline_data = inlines[i] },
			};
			struct ibv_qp *qp = ibv_create_qp(w->pd, &init);
			*ret_granted = init.cap;
			if (qp)
				return qp;
		}
	return NULL;
}

static int connect_qp(struct wire *w, struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = w->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .path_mtu = w->attr.active_mtu, .dest_qp_num = peer,
		.max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .port_num = w->port, .dlid = w->attr.lid,
			     .is_global = w->attr.link_layer == IBV_LINK_LAYER_ETHERNET,
			     .grh = { .dgid = w->gid, .sgid_index = (uint8_t)w->gid_index, .hop_limit = 64 } },
	};
	int err = err_of(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));

	a.qp_state = IBV_QPS_RTR;
	if (!err)
		err = err_of(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
							   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
							   IBV_QP_MIN_RNR_TIMER));
	a.qp_state = IBV_QPS_RTS;
	if (!err)
		err = err_of(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
							   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	return err;
}

static void wire_disconnect(struct wire *w)
{
	for (int i = 0; i < 2; i++)
		if (w->qp[i])
			ibv_destroy_qp(w->qp[i]);
	if (w->cq)
		ibv_destroy_cq(w->cq);
	w->qp[0] = w->qp[1] = NULL;
	w->cq = NULL;
}

static int wire_connect(struct wire *w)
{
	struct ibv_qp_cap granted[2];
	int err = 0;

	errno = 0;
	w->cq = ibv_create_cq(w->pd->context, 16, NULL, NULL, 0);
	for (int i = 0; i < 2 && w->cq; i++)
		w->qp[i] = create_qp(w, &granted[i]);
	if (!w->cq || !w->qp[0] || !w->qp[1])
		return err_of(-1);
	for (int i = 0; i < 2 && !err; i++)
		err = connect_qp(w, w->qp[i], w->qp[!i]->qp_num);
	return err ? err : hugepin_sg_caps(w->qp[0], &granted[0], &w->caps, sizeof w->caps);
}

static int wire_open(struct wire *w)
{
	int err = find_port(w);

	if (err)
		return err;
	w->memory = mmap(NULL, WIRE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (w->memory == MAP_FAILED)
		return -ENOMEM;
	madvise(w->memory, WIRE_BYTES, MADV_DONTFORK);
	for (size_t i = 0; i < WIRE_BYTES; i++)
		w->memory[i] = (char)(i * 31 + (i >> 8) * 7);
	errno = 0;
	w->mr = ibv_reg_mr(w->pd, w->memory, WIRE_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	return w->mr ? wire_connect(w) : err_of(-1);
}

static void wire_close(struct wire *w)
{
	wire_disconnect(w);
	if (w->mr)
		ibv_dereg_mr(w->mr);
	if (w->memory && w->memory != MAP_FAILED)
		munmap(w->memory, WIRE_BYTES);
}

static int wire_key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	const struct wire *w = arg;

	(void)len, (void)access;
	if (addr)
		*ret_ = (struct hugepin_pin){ (uintptr_t)w->memory, WIRE_BYTES, w->mr->lkey, w->mr->rkey, 0 };
	return 0;
}

/* All `wanted` completions have come, and none says error. */
static bool complete(struct wire *w, int wanted)
{
	const uint64_t end = hp_clock_ns() + LOST_MS * 1000000ull;
	struct ibv_wc wc;

	while (wanted) {
		const int n = ibv_poll_cq(w->cq, 1, &wc);
		if (n < 0 || (n && wc.status != IBV_WC_SUCCESS) || (!n && hp_clock_ns() > end))
			return false;
		wanted -= n;
	}
	return true;
}

/* Send one message of the cell, fill to completion on both sides. *ret_ns: what that took. */
static bool transfer(struct wire *w, const struct cell *c, enum ibv_wr_opcode opcode, float *ret_ns)
{
	char *const slot = w->memory + LAYOUT_MAX, *const to = slot + SLOT_BYTES;
	struct iovec iov[PIECES_MAX];
	struct ibv_sge sge[PIECES_MAX], in = { (uintptr_t)to, (uint32_t)SLOT_BYTES, w->mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr wr, *bad, tmpl = { .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
					      .wr.rdma = { (uintptr_t)to, w->mr->rkey } };
	const struct hugepin_sg_room room = { sizeof room, &wr, sge, NULL, slot, SLOT_BYTES, 1, PIECES_MAX, 0, w->mr->lkey,
					      wire_key, w };
	const bool two_sided = opcode == IBV_WR_SEND;

	lay(iov, c->n, c->bytes, w->memory, c->bytes + STRIDE_MORE);
	if (two_sided && ibv_post_recv(w->qp[1], &recv, &bad_recv))
		return false;
	const uint64_t start = hp_clock_ns();
	const bool ok = hugepin_sg_fill(&c->plan, iov, (int)c->n, &tmpl, &room, NULL) == 1 &&
			!ibv_post_send(w->qp[0], &wr, &bad) && complete(w, 1 + two_sided);
	*ret_ns = (float)(hp_clock_ns() - start);
	return ok;
}

/* The message arrives, its bytes and no others. */
static bool arrives(struct wire *w, const struct cell *c, enum ibv_wr_opcode opcode)
{
	char *const to = w->memory + LAYOUT_MAX + SLOT_BYTES;
	const size_t stride = c->bytes + STRIDE_MORE, len = (size_t)c->n * c->bytes;
	struct iovec iov[PIECES_MAX];
	struct cell planned = *c;
	float ns;

	lay(iov, c->n, c->bytes, w->memory, stride);
	if (hugepin_sg_plan(NULL, &w->caps, iov, (int)c->n, c->mode | (opcode == IBV_WR_SEND ? 0 : HUGEPIN_SG_WRITE),
			    &planned.plan))
		return false;
	for (size_t i = 0; i < c->n; i++)
		for (size_t j = 0; j < c->bytes; j++)
			to[i * c->bytes + j] = (char)~w->memory[i * stride + j];
	const char behind = len < SLOT_BYTES ? to[len] : 0;
	if (!transfer(w, &planned, opcode, &ns))
		return false;
	for (size_t i = 0; i < c->n; i++)
		if (memcmp(to + i * c->bytes, w->memory + i * stride, c->bytes))
			return false;
	return len == SLOT_BYTES || to[len] == behind;
}

/* Take the cells of a mode that arrives wrong out of the list. */
static int refuse_wrong(struct wire *w, uint32_t *refused)
{
	unsigned kept = 0;
	int err = 0;

	for (unsigned i = 0; i < w->cells && !err; i++) {
		const struct cell *c = &w->cell[i];
		if (!(*refused & c->mode) && !(arrives(w, c, IBV_WR_SEND) && arrives(w, c, IBV_WR_RDMA_WRITE))) {
			*refused |= c->mode;
			wire_disconnect(w);
			err = wire_connect(w);
		}
	}
	for (unsigned i = 0; i < w->cells; i++)
		if (!(*refused & w->cell[i].mode))
			w->cell[kept++] = w->cell[i];
	w->cells = kept;
	return err ? err : *refused & HUGEPIN_SG_COPY ? -EIO : 0;
}

static int wire_run(struct wire *w, struct hugepin_sg_model *m)
{
	int err = wire_open(w);

	for (unsigned mode = HUGEPIN_SG_INLINE; !err && mode <= HUGEPIN_SG_GATHER; mode *= 2)
		err = add_cells(w->cell, &w->cells, &w->caps, w->memory, mode, false);
	m->refused = 0;
	if (!err)
		err = refuse_wrong(w, &m->refused);
	for (unsigned round = 0; round < DEVICE_ROUNDS; round++)
		for (unsigned i = 0; !err && i < w->cells; i++)
			if (!transfer(w, &w->cell[i], IBV_WR_SEND, &w->cell[i].ns[round]))
				err = -EIO;
	if (!err && fit(m, DEVICE_TERMS, w->cell, w->cells, DEVICE_ROUNDS) >= 0)
		m->source = HUGEPIN_SG_MODEL_DEVICE;
	return err;
}

static int measure_device(struct ibv_pd *pd, struct hugepin_sg_model *m)
{
	struct wire *w = calloc(1, sizeof *w);
	int err;

	if (!w)
		return -ENOMEM;
	w->pd = pd;
	err = wire_run(w, m);
	wire_close(w);
	free(w);
	return err;
}

/* ------------------------------------------------------------------ what is known already */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* one measures at a time, and finds what another has */
static struct hugepin_sg_model cpu; /* source DEFAULT: not measured yet */

/* In a child, whoever was measuring is not there to end it. */
static void forked(void)
{
	if (pthread_mutex_trylock(&lock)) {
		pthread_mutex_init(&lock, NULL);
		cpu.source = HUGEPIN_SG_MODEL_DEFAULT;
	} else {
		pthread_mutex_unlock(&lock);
	}
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked);
}

static int known_cpu(bool anew, struct hugepin_sg_model *ret_)
{
	int err = 0;

	if (anew || cpu.source == HUGEPIN_SG_MODEL_DEFAULT)
		err = measure_cpu(&cpu);
	if (!err)
		*ret_ = cpu;
	return err;
}

/* No line breaks: the file has lines. */
static void put_name(char *to, size_t size, const char *format, const char *text, unsigned a, unsigned b)
{
	snprintf(to, size, format, text, a, b);
	for (; *to; to++)
		if ((unsigned char)*to < ' ')
			*to = '_';
}

static int find_place(struct ibv_pd *pd, struct hp_sg_place *ret_)
{
	struct ibv_device_attr a;
	const int err = err_of(ibv_query_device(pd->context, &a));

	if (err)
		return err;
	put_name(ret_->device, sizeof ret_->device, "%.32s %x:%x", ibv_get_device_name(pd->context->device), a.vendor_id,
		 a.vendor_part_id);
	put_name(ret_->firmware, sizeof ret_->firmware, "%s", a.fw_ver, 0, 0);
	hp_sg_cpu_name(ret_->cpu, sizeof ret_->cpu);
	return 0;
}

static int known_device(struct ibv_pd *pd, bool anew, struct hugepin_sg_model *ret_)
{
	char path[HP_SG_PATH_MAX] = "";
	struct hp_sg_place place, found;
	int err = find_place(pd, &place);

	if (err)
		return err;
	if (!hp_sg_model_path(&place, path) && !anew && !hp_sg_model_load(path, ret_, &found) &&
	    !strcmp(found.device, place.device) && !strcmp(found.firmware, place.firmware) && !strcmp(found.cpu, place.cpu))
		return 0;
	err = known_cpu(anew, ret_);
	if (!err)
		err = measure_device(pd, ret_);
	if (!err && *path && ret_->source == HUGEPIN_SG_MODEL_DEVICE)
		hp_sg_model_store(path, ret_, &place);
	return err;
}

int hugepin_sg_calibrate(struct ibv_pd *pd, unsigned flags, struct hugepin_sg_model *ret_, size_t size)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const int errno_before = errno;
	struct hugepin_sg_model m;
	int err;

	if (!ret_ || size < sizeof m.size || flags & ~(unsigned)HUGEPIN_SG_ANEW)
		return -EINVAL;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	err = pd ? known_device(pd, flags, &m) : known_cpu(flags, &m);
	pthread_mutex_unlock(&lock);
	errno = errno_before;
	if (err)
		return err;
	m.size = size < sizeof m ? size : sizeof m;
	memset(ret_, 0, size);
	memcpy(ret_, &m, m.size);
	return 0;
}
