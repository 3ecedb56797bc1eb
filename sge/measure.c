/*
 * Measuring thresholds. The cells of a grid are messages of some numbers of pieces and some lengths, with pieces in the
 * CPU's cache or flushed from it, in one registration or in many. Each is sent by RDMA WRITE in each way. The number of
 * messages per time counts, not the time of one, because packing is for a backlog. The threshold of a row of cells is
 * the one that chooses best: with the least sum, over the cells, of the time of its way over the time of the best way.
 *
 * Disturbances only make times longer, so the least time of each cell counts. Rounds of all cells alternate, so that a
 * disturbance affects all cells alike.
 *
 * Some providers report success but deliver less. So before any measurement, messages are sent in each way, by SEND and
 * by RDMA WRITE, and compared. A way that arrives wrong once is refused.
 */
#include "sge/measure.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"

/* The grid: numbers of pieces, limited to those that a work request takes, and lengths. */
static const unsigned counts[] = { 1, 2, 4, 8, 30 };
static const unsigned sizes[] = { 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048 };
enum { COUNTS = sizeof counts / sizeof *counts, SIZES = sizeof sizes / sizeof *sizes };
enum { PIECES_MAX = 30, PIECE_MAX = 2048 };
enum { COPY, GATHER, INLINE, WAYS };
static const unsigned modes[WAYS] = { HUGEPIN_SG_COPY, HUGEPIN_SG_GATHER, HUGEPIN_SG_INLINE };

enum {
	MESSAGES = 24, /* in one measurement */
	HOT = 4, /* different messages of those in the cache, used in turn */
	SLOTS = 4,
	/* registrations of pieces that lie apart: a page each, with a page between them that is not registered */
	REGIONS = 64,
	/* Bytes between pieces, chosen so that the pieces' offsets within a cache line differ, and the prefetcher does
	 * not help. */
	STRIDE_MORE = 168,
	SOURCE_BYTES = 256 << 10, /* pieces that are not in the cache have room for fewer messages */
	MESSAGE_MAX = PIECES_MAX * PIECE_MAX,
	ROUNDS_LEAST = 3, ROUNDS_MOST = 15,
};
#define BUDGET_NS UINT64_C(1000000000)
#define SPAN \
	(hp_round_up(SOURCE_BYTES + MESSAGE_MAX + PIECES_MAX * STRIDE_MORE + SLOTS * (MESSAGE_MAX + 128), hp_base_page))
#define TARGET (hp_round_up(MESSAGE_MAX + 1, hp_base_page))
#define BYTES (SPAN + TARGET + (2 * REGIONS + 2) * hp_base_page)

struct measure {
	struct hp_sg_carrier *c;
	/* One mapping: the messages' source with the slots, a page, their target, a page, the regions. */
	char *source, *slots, *target, *regions;
	struct hugepin_pin pins[2 + REGIONS]; /* of source and slots, of the target, and of the regions */
	uint32_t refused;
	struct iovec iov[MESSAGES][PIECES_MAX];
	float ns[2][2][COUNTS][SIZES][WAYS]; /* not in the cache, apart; the least time of a message; 0: none */
};

static int open_memory(struct measure *m)
{
	hugepin_domain *const d = m->c->domain;
	int err;

	m->source = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m->source == MAP_FAILED)
		return -ENOMEM;
	madvise(m->source, BYTES, MADV_DONTFORK);
	for (size_t i = 0; i < BYTES; i++)
		m->source[i] = (char)(i * 31 + (i >> 8) * 7);
	m->slots = m->source + SPAN - SLOTS * (MESSAGE_MAX + 128);
	m->target = m->source + SPAN + hp_base_page;
	m->regions = m->target + TARGET + hp_base_page;
	err = hugepin_pin(d, m->source, SPAN, HUGEPIN_READ, &m->pins[0]);
	err = err ? err : hugepin_pin(d, m->target, TARGET, HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE, &m->pins[1]);
	for (size_t i = 0; !err && i < REGIONS; i++)
		err = hugepin_pin(d, m->regions + 2 * i * hp_base_page, hp_base_page, HUGEPIN_READ, &m->pins[2 + i]);
	return err;
}

static void close_memory(struct measure *m)
{
	hugepin_unpinv(m->c->domain, m->pins, 2 + REGIONS); /* entries without a pin are skipped */
	if (m->source && m->source != MAP_FAILED)
		munmap(m->source, BYTES);
}

static unsigned pieces_of(const struct measure *m, unsigned i)
{
	return HP_MIN(counts[i], m->c->caps.max_sge);
}

static void lay(struct iovec *iov, unsigned n, unsigned bytes, char *at)
{
	for (unsigned i = 0; i < n; i++)
		iov[i] = (struct iovec){ at + i * (size_t)(bytes + STRIDE_MORE), bytes };
}

/* Lay out the messages of a cell: in the cache, a few messages in turn; not in the cache, each message a different one.
 * Returns the number of messages. */
static unsigned lay_all(struct measure *m, unsigned n, unsigned bytes, bool cold, bool apart)
{
	const size_t layout = n * (size_t)(bytes + STRIDE_MORE);
	const unsigned count = (unsigned)(cold ? HP_MIN(SOURCE_BYTES / layout + 1, (size_t)MESSAGES) : MESSAGES);

	for (unsigned k = 0; k < count; k++) {
		const size_t message = cold ? k : k % HOT;
		lay(m->iov[k], n, bytes, m->source + message * layout);
		for (size_t i = 0; apart && i < n; i++) { /* two places in each region, and more for short pieces */
			const size_t place = message * n + i, more = (PIECE_MAX - bytes) / 6 / 8 * 8;
			m->iov[k][i].iov_base = m->regions + place * 37 % REGIONS * 2 * hp_base_page +
						place / REGIONS % 2 * PIECE_MAX + place / REGIONS / 2 * more;
		}
	}
	return count;
}

/* Write the lines of the pieces back to memory, and drop them from all caches. */
static void flush(const struct iovec *iov, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		for (size_t at = 0; at < iov[i].iov_len + 64; at += 64) {
			char *const line = (char *)iov[i].iov_base + at;
#if defined __x86_64__
			__builtin_ia32_clflush(line);
#else
			__asm__ volatile("dc civac, %0" : : "r"(line) : "memory");
#endif
		}
#if defined __x86_64__
	__builtin_ia32_mfence();
#else
	__asm__ volatile("dsb ish" : : : "memory");
#endif
}

static bool send(struct measure *m, const struct hugepin_sg_plan *plan, const struct iovec *iov, char *slot)
{
	struct ibv_sge sge[PIECES_MAX];
	struct hugepin_pin pins[PIECES_MAX];
	struct hugepin_sg_info info;
	struct ibv_send_wr wr = { .opcode = plan->mode & HUGEPIN_SG_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)m->target, m->pins[1].rkey } };
	const struct hugepin_sg_room room = {
		.size = sizeof room, .wr = &wr, .wrs = 1, .sge = sge, .sges = PIECES_MAX,
		.pins = pins, .pins_max = PIECES_MAX, .key = hugepin_sg_key, .arg = m->c->domain,
		.slot = slot, .slot_len = MESSAGE_MAX, .slot_lkey = m->pins[0].lkey,
	};

	m->c->plan = plan;
	if (hugepin_sg_fill(plan, iov, (int)plan->n, &wr, &room, &info) != 1)
		return false;
	const bool ok = m->c->post(m->c, &wr);
	hugepin_unpinv(m->c->domain, pins, (int)info.pins); /* the registrations stay, by the pins of open_memory() */
	return ok;
}

/* ------------------------------------------------------------------ what arrives */

static bool arrives(struct measure *m, unsigned n, unsigned bytes, unsigned mode)
{
	const size_t len = (size_t)n * bytes;
	struct ibv_sge in = { (uintptr_t)m->target, (uint32_t)TARGET, m->pins[1].lkey };
	struct iovec *const iov = m->iov[0];
	struct hugepin_sg_plan plan;
	bool same = true;

	lay(iov, n, bytes, m->source);
	if (hugepin_sg_plan(NULL, &m->c->caps, iov, (int)n, mode, &plan))
		return true; /* too long to be inline */
	for (size_t i = 0; i <= len; i++)
		m->target[i] = (char)~(i < len ? ((char *)iov[i / bytes].iov_base)[i % bytes] : 0);
	if ((!(mode & HUGEPIN_SG_WRITE) && !m->c->recv(m->c, &in)) || !send(m, &plan, iov, m->slots) ||
	    !m->c->end(m->c))
		return false;
	for (size_t i = 0; i < n; i++)
		same &= !memcmp(m->target + i * bytes, iov[i].iov_base, bytes);
	return same && m->target[len] == (char)~0;
}

/* Refuse the ways by which messages arrive wrong. */
static int refuse_wrong(struct measure *m)
{
	int err = 0;

	for (unsigned i = 0; i < COUNTS * SIZES * WAYS && !err; i++) {
		const unsigned n = pieces_of(m, i / WAYS / SIZES), bytes = sizes[i / WAYS % SIZES];
		const unsigned mode = modes[i % WAYS];

		if (m->refused & mode ||
		    (arrives(m, n, bytes, mode) && arrives(m, n, bytes, mode | HUGEPIN_SG_WRITE)))
			continue;
		m->refused |= mode;
		err = m->c->reset(m->c);
	}
	return err ? err : m->refused & HUGEPIN_SG_COPY ? -EIO : 0;
}

/* ------------------------------------------------------------------ times */

/* Send messages from..to - 1 of those laid out, and wait for them. Slots follow each other like the frames of a
 * queue. */
static bool send_some(struct measure *m, const struct hugepin_sg_plan *plan, unsigned from, unsigned to)
{
	for (unsigned k = from; k < to; k++)
		if (!send(m, plan, m->iov[k], m->slots + k % SLOTS * (hp_round_up(plan->bytes, 64) + 64)))
			return false;
	return m->c->end(m->c);
}

/* Measure messages of pieces_of(i) pieces of sizes[j] bytes, sent in the mode modes[way]. cold: the pieces are not in
 * the cache. apart: each piece has a registration of its own. False: the connection is broken. */
static bool measure_cell(struct measure *m, bool cold, bool apart, unsigned i, unsigned j, unsigned way)
{
	const unsigned n = pieces_of(m, i);
	float *const least = &m->ns[cold][apart][i][j][way];
	struct hugepin_sg_plan plan;

	if (m->refused & modes[way])
		return true;
	m->c->cold = cold;
	const unsigned count = lay_all(m, n, sizes[j], cold, apart);
	if (hugepin_sg_plan(NULL, &m->c->caps, m->iov[0], (int)n, modes[way] | HUGEPIN_SG_WRITE, &plan))
		return true; /* too long to be inline */
	for (unsigned k = 0; k < count && cold; k++)
		flush(m->iov[k], n);
	if (!cold && !send_some(m, &plan, 0, HOT))
		return false;
	const uint64_t start = hp_clock_ns();
	const bool ok = send_some(m, &plan, 0, count);
	const float ns = (float)(hp_clock_ns() - start) / (float)count;
	if (ok && (*least <= 0 || ns < *least))
		*least = ns;
	return ok;
}

static bool measure_round(struct measure *m)
{
	bool ok = true;

	for (unsigned i = 0; i < 4 * COUNTS * SIZES * WAYS && ok; i++) {
		const unsigned cell = i / WAYS / 4;
		ok = measure_cell(m, i / WAYS & 2, i / WAYS & 1, cell / SIZES, cell % SIZES, i % WAYS);
	}
	return ok;
}

/* The length from which on pieces are gathered: the one with the least sum of times, each relative to the better way of
 * its cell. The length lies between two lengths of the grid. Only where pieces lie apart does a single piece count,
 * because a plan treats it as one that lies apart. `otherwise` is returned if nothing was measured. */
static uint32_t copy_below(float ns[COUNTS][SIZES][WAYS], bool apart, uint32_t otherwise)
{
	float least = 0;
	uint32_t best = otherwise;

	for (unsigned below = 0; below <= SIZES; below++) {
		float sum = 0;
		for (unsigned i = !apart; i < COUNTS; i++)
			for (unsigned j = 0; j < SIZES; j++) {
				const float copy = ns[i][j][COPY], gather = ns[i][j][GATHER];
				if (copy > 0 && gather > 0)
					sum += (j < below ? copy : gather) / HP_MIN(copy, gather);
			}
		if (sum > 0 && (least <= 0 || sum < least)) {
			least = sum;
			best = !below ? 0 : below < SIZES ? (sizes[below - 1] + sizes[below]) / 2 : 2 * PIECE_MAX;
		}
	}
	return best;
}

/* The number of pieces up to which inline messages are no dearer than the better of the other ways, give or take 3
 * %. */
static uint32_t inline_pieces(float ns[COUNTS][SIZES][WAYS])
{
	uint32_t best = 0;

	for (unsigned i = 0; i < COUNTS; best = counts[i++]) {
		float inlined = 0, other = 0;
		for (unsigned j = 0; j < SIZES; j++) {
			const float *const way = ns[i][j];
			inlined += way[INLINE];
			if (way[INLINE] > 0)
				other += way[GATHER] > 0 ? HP_MIN(way[COPY], way[GATHER]) : way[COPY];
		}
		if (inlined > other * 1.03f)
			break;
	}
	return best;
}

static int run(struct measure *m, struct hugepin_sg_model *model)
{
	int err = open_memory(m);
	const uint64_t start = hp_clock_ns();

	if (!err && m->c->recv)
		err = refuse_wrong(m);
	for (unsigned round = 0;
	     !err && round < ROUNDS_MOST && (round < ROUNDS_LEAST || hp_clock_ns() - start < BUDGET_NS); round++)
		err = measure_round(m) ? 0 : -EIO;
	if (err)
		return err;
	model->source = HUGEPIN_SG_MODEL_DEVICE;
	model->refused = m->refused;
	for (unsigned cold = 0; cold < 2; cold++) {
		model->copy_below[cold] = copy_below(m->ns[cold][0], false, model->copy_below[cold]);
		model->apart_below[cold] = copy_below(m->ns[cold][1], true, model->apart_below[cold]);
		model->inline_pieces[cold] = inline_pieces(m->ns[cold][0]);
	}
	return 0;
}

int hp_sg_measure(struct hp_sg_carrier *c, struct hugepin_sg_model *model)
{
	struct measure *m = calloc(1, sizeof *m);
	int err = -ENOMEM;

	if (m) {
		m->c = c;
		err = run(m, model);
		close_memory(m);
	}
	free(m);
	return err;
}
