/*
 * What a message of small pieces costs the CPU, by how it is sent: work requests written into memory as a provider
 * writes them into its queue (wqe.h), keys found by hugepin_sg_key in a domain that registers nothing, pins given
 * back.
 *
 *	sg [-r ROUNDS] [-q] [cells | offsets | plans | elements]
 *
 * Subjects: each (a work request and a post for each piece), chain (a work request for each, one post), gather, pack
 * (copied into a slot), inline (where it fits, else pack), and plan (what hugepin_sg_plan chose, made once for equal
 * layouts), the last four carried out by hugepin_sg_fill; floor-gather and floor-pack are the same by a loop that
 * checks nothing and holds its key. Sources are in the cache (hot) or flushed from it (cold), and lie in the heap,
 * registered as a whole, or each in one of 256 registrations. Rounds are interleaved; a sample is the least of three
 * batches: disturbances only add.
 *
 * Lines: "cell ROUND SUBJECT PIECES BYTES hot|cold REGISTRATIONS NS", "offset ROUND SUBJECT PIECES BYTES OFFSET NS",
 * "plan ROUND PIECES BYTES NS", "model NAME VALUE", "mode PIECES BYTES hot|cold REGISTRATIONS MODE".
 *
 * elements alone prints "figure SUBJECT elements.PIECESxBYTES NS ns": one work request as Rex et al. 2006 post it (figure 3), by
 * a bare loop (post), and by hugepin_sg_fill (fill). It runs only if it is asked for.
 */
#include <err.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "common.h"
#include "hugepin_verbs.h"
#include "sge/measure.h"
#include "wqe.h"

enum {
	PIECES_MAX = HP_WQE_SGE_MAX,
	BYTES_MAX = 4096,
	MESSAGES = 32, /* in a batch */
	COLD_BYTES = 512 << 10, /* in a batch of cold messages, but one message at least */
	REPEATS = 3,
	HOT = 4, /* different messages, of those in the cache */
	SLOTS = 8,
	REGISTRATIONS = 256,
	REGION = 6 << 20, /* three pages of it are there and registered; far from the next, as the planner guesses */
	REGION_BYTES = 3 * 4096,
};
/* Few sizes are those that sge/measure.c measures. */
static const unsigned pieces[] = { 1, 2, 3, 4, 5, 7, 10, 14, 20, 30 };
static const unsigned bytes[] = { 12, 24, 48, 100, 128, 200, 360, 700, 1500, 2800, BYTES_MAX };
#define COUNT(a) (sizeof(a) / sizeof *(a))

static const struct hugepin_sg_caps caps = {
	.max_sge = PIECES_MAX, .max_recv_sge = PIECES_MAX, .max_inline = HP_WQE_INLINE_MAX, .max_wr = HP_WQE_COUNT,
	.max_recv_wr = HP_WQE_COUNT, .max_msg = 1u << 30,
};
static struct hp_wqe_ring ring;
static int (*volatile post)(struct hp_wqe_ring *, const struct ibv_send_wr *,
			    const struct ibv_send_wr **) = hp_wqe_post;
static hugepin_domain *domain;
static char *heap, *slots, *regions;
#define STRIDE_MAX (BYTES_MAX + 168)
#define HEAP_BYTES ((size_t)MESSAGES * PIECES_MAX * STRIDE_MAX + 8192)
#define SLOT_BYTES ((size_t)PIECES_MAX * BYTES_MAX + 64)

/* ------------------------------------------------------------------ memory that is registered */

static struct hugepin_pin held; /* the heap's */

static void set_up(void)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_ARENA };
	struct hugepin_pin pin;

	int e = hugepin_domain_open(&unregistered, NULL, &attr, &domain);
	if (e)
		errx(1, "domain: %s", strerror(-e));
	heap = hugepin_malloc(HEAP_BYTES);
	slots = hugepin_malloc(SLOTS * SLOT_BYTES);
	ring.base = hugepin_aligned_alloc(4096, HP_WQE_COUNT * HP_WQE_BYTES);
	regions = mmap(NULL, (size_t)REGISTRATIONS * REGION, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!heap || !slots || !ring.base || regions == MAP_FAILED)
		err(1, "memory");
	memset(heap, 1, HEAP_BYTES);
	memset(slots, 2, SLOTS * SLOT_BYTES);
	memset(ring.base, 4, HP_WQE_COUNT * HP_WQE_BYTES);
	madvise(regions, (size_t)REGISTRATIONS * REGION, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < REGISTRATIONS && !e; i++) {
		memset(regions + i * REGION, 3, REGION_BYTES);
		e = hugepin_pin(domain, regions + i * REGION, REGION_BYTES, HUGEPIN_READ, &pin);
	}
	if (!e)
		e = hugepin_pin(domain, heap, HEAP_BYTES, HUGEPIN_READ, &held);
	if (e)
		errx(1, "pin: %s", strerror(-e));
}

/* ------------------------------------------------------------------ subjects */

struct message {
	const struct iovec *iov;
	unsigned n;
	char *slot;
	const struct hugepin_sg_plan *plan; /* of the subjects that are filled */
};

static const struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
static const struct ibv_send_wr *bad;

static inline void send_filled(const struct message *m)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge[PIECES_MAX];
	struct hugepin_pin pins[PIECES_MAX];
	struct hugepin_sg_info info;
	const struct hugepin_sg_room room = {
		.size = sizeof room, .wr = &wr, .wrs = 1, .sge = sge, .sges = PIECES_MAX,
		.pins = pins, .pins_max = PIECES_MAX, .slot = m->slot, .slot_len = SLOT_BYTES, .slot_lkey = 1,
		.key = hugepin_sg_key, .arg = domain,
	};

	const int n = hugepin_sg_fill(m->plan, m->iov, (int)m->n, &tmpl, &room, &info);
	if (n != 1 || post(&ring, &wr, &bad))
		errx(1, "fill: %d", n);
	if (info.pins)
		hugepin_unpinv(domain, pins, (int)info.pins);
}

/* Find the key of each piece, where the key of the piece before does not serve. */
static inline unsigned keys_of(const struct message *m, struct ibv_sge *sge, struct hugepin_pin *pins)
{
	unsigned taken = 0;

	for (unsigned i = 0; i < m->n; i++) {
		const uintptr_t addr = (uintptr_t)m->iov[i].iov_base;
		if (!taken || addr - pins[taken - 1].base >= pins[taken - 1].len) {
			if (hugepin_sg_key(domain, m->iov[i].iov_base, m->iov[i].iov_len, HUGEPIN_READ, &pins[taken]))
				errx(1, "no key");
			taken++;
		}
		sge[i] = (struct ibv_sge){ addr, (uint32_t)m->iov[i].iov_len, pins[taken - 1].lkey };
	}
	return taken;
}

static inline void send_apart(const struct message *m, bool chained)
{
	struct ibv_send_wr wr[PIECES_MAX];
	struct ibv_sge sge[PIECES_MAX];
	struct hugepin_pin pins[PIECES_MAX];
	const unsigned taken = keys_of(m, sge, pins);

	for (unsigned i = 0; i < m->n; i++) {
		wr[i] = tmpl;
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = 1;
		wr[i].next = chained && i + 1 < m->n ? &wr[i + 1] : NULL;
		if (!chained)
			post(&ring, &wr[i], &bad);
	}
	if (chained)
		post(&ring, wr, &bad);
	hugepin_unpinv(domain, pins, (int)taken);
}

static inline void send_floor(const struct message *m, bool gather)
{
	static struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	static struct ibv_sge sge[PIECES_MAX];
	char *to = m->slot;

	for (unsigned i = 0; i < m->n; i++) {
		if (gather) {
			sge[i] = (struct ibv_sge){ (uintptr_t)m->iov[i].iov_base, (uint32_t)m->iov[i].iov_len,
						   held.lkey };
		} else {
			memcpy(to, m->iov[i].iov_base, m->iov[i].iov_len);
			to += m->iov[i].iov_len;
		}
	}
	if (!gather)
		sge[0] = (struct ibv_sge){ (uintptr_t)m->slot, (uint32_t)(to - m->slot), 1 };
	wr.sg_list = sge;
	wr.num_sge = gather ? (int)m->n : 1;
	post(&ring, &wr, &bad);
}

enum subject { EACH, CHAIN, GATHER, PACK, INLINE, PLAN, FLOOR_GATHER, FLOOR_PACK, SUBJECTS };
static const char *const subject_names[] = { "each", "chain", "gather", "pack", "inline", "plan", "floor-gather",
					     "floor-pack" };
static const unsigned subject_modes[SUBJECTS] = { [GATHER] = HUGEPIN_SG_GATHER, [PACK] = HUGEPIN_SG_COPY,
						  [INLINE] = HUGEPIN_SG_INLINE };

static inline void send_one(enum subject s, const struct message *m)
{
	switch (s) {
	case EACH: send_apart(m, false); break;
	case CHAIN: send_apart(m, true); break;
	case FLOOR_GATHER: send_floor(m, true); break;
	case FLOOR_PACK: send_floor(m, false); break;
	default: send_filled(m);
	}
}

/* ------------------------------------------------------------------ cells */

struct cell {
	unsigned n, bytes, registrations;
	bool cold;
};

static struct iovec iov[MESSAGES][PIECES_MAX];
static struct hugepin_sg_model model = { .size = sizeof model };
static uint32_t seed = 1;

static unsigned rnd(unsigned n)
{
	seed = seed * 1664525u + 1013904223u;
	return (seed >> 8) % n;
}

/* Lay the messages out, and return their number. Hot ones are a few in turn. */
static unsigned lay(const struct cell *c)
{
	const size_t stride = c->bytes + 168, message = c->n * stride;
	unsigned count = c->cold && message * MESSAGES > COLD_BYTES ? (unsigned)(COLD_BYTES / message) : MESSAGES;

	count = count ? count : 1;
	for (unsigned k = 0; k < count; k++)
		for (unsigned i = 0; i < c->n; i++) {
			char *at = heap + k * message + i * stride;
			if (c->registrations > 1)
				at = regions + (size_t)rnd(REGISTRATIONS) * REGION +
				     rnd(REGION_BYTES - c->bytes) / 8 * 8;
			iov[k][i] = !c->cold && k >= HOT ? iov[k % HOT][i] : (struct iovec){ at, c->bytes };
		}
	return count;
}

/* Of other processors no instruction is known here: their rows `cold` are of memory as it lies. */
static void flush(unsigned count, unsigned n)
{
#ifdef __x86_64__
	for (unsigned k = 0; k < count; k++)
		for (unsigned i = 0; i < n; i++)
			for (size_t at = 0; at < iov[k][i].iov_len + 64; at += 64)
				__builtin_ia32_clflush((char *)iov[k][i].iov_base + at);
	__builtin_ia32_mfence();
#else
	(void)count, (void)n;
#endif
}

static int make_plan(enum subject s, const struct cell *c, struct hugepin_sg_plan *ret_)
{
	unsigned mode = subject_modes[s];

	if (s == INLINE && c->n * c->bytes > caps.max_inline)
		mode = HUGEPIN_SG_COPY;
	return hugepin_sg_plan(&model, &caps, iov[0], (int)c->n, mode | (c->cold ? HUGEPIN_SG_COLD : 0), ret_);
}

static double batch_ns(enum subject s, unsigned count, const struct cell *c, const struct hugepin_sg_plan *plan)
{
	/* As the frames of a queue are placed. What is gathered needs none, and may be longer than all of them. */
	const size_t slot = s == GATHER || s == FLOOR_GATHER ? 0 : ((size_t)c->n * c->bytes + 63) / 64 * 64 + 64;
	const double start = now_ns();

	for (unsigned k = 0; k < count; k++)
		send_one(s, &(struct message){ iov[k], c->n, slots + k % SLOTS * slot, plan });
	return (now_ns() - start) / count;
}

/* Warm up, then take the least time of a few. All subjects of a cell see the same pieces. */
static double sample(enum subject s, unsigned count, const struct cell *c)
{
	struct hugepin_sg_plan plan;
	double least = 0;

	if (make_plan(s, c, &plan))
		errx(1, "no plan for %u pieces of %u bytes", c->n, c->bytes);
	for (int i = 0; i <= REPEATS; i++) {
		if (c->cold)
			flush(count, c->n);
		const double ns = batch_ns(s, count, c, &plan);
		if (i == 1 || (i && ns < least))
			least = ns;
	}
	return least;
}

static void measure_cell(int round, const struct cell *c)
{
	const uint32_t same = 77 + c->n * 4096 + c->bytes;
	static const char *const modes[] = { "-", "inline", "pack", "", "gather", "", "mixed" };
	struct hugepin_sg_plan plan;

	seed = same;
	const unsigned count = lay(c);
	if (!round && !make_plan(PLAN, c, &plan))
		printf("mode %u %u %s %u %s\n", c->n, c->bytes, c->cold ? "cold" : "hot", c->registrations,
		       modes[!(plan.mode & HUGEPIN_SG_GATHER) ? plan.mode : plan.slot ? 6 : 4]);
	for (unsigned i = 0; i < SUBJECTS; i++) {
		const enum subject s = (i + (unsigned)round) % SUBJECTS; /* each round begins with another subject */
		if (c->registrations == 1 || s < FLOOR_GATHER)
			printf("cell %d %s %u %u %s %u %.2f\n", round, subject_names[s], c->n, c->bytes,
			       c->cold ? "cold" : "hot", c->registrations, sample(s, count, c));
	}
}

static void measure_cells(int round, bool quick)
{
	for (unsigned r = 1; r <= REGISTRATIONS; r += REGISTRATIONS - 1)
		for (int cold = 0; cold < 2; cold++)
			for (unsigned i = 0; i < COUNT(pieces); i += quick ? 3 : 1)
				for (unsigned j = 0; j < COUNT(bytes); j += quick ? 2 : 1)
					measure_cell(round, &(struct cell){ pieces[i], bytes[j], r, cold });
}

/* ------------------------------------------------------------------ offsets within a page; elements; the cost of a plan */

static void measure_offset(int round, const struct cell *c, unsigned offset)
{
	char *const page = (char *)(((uintptr_t)heap + 4095) & ~(uintptr_t)4095);

	for (unsigned k = 0; k < MESSAGES; k++)
		for (unsigned p = 0; p < c->n; p++)
			iov[k][p] = (struct iovec){ page + p * 8192 + offset, c->bytes };
	printf("offset %d gather %u %u %u %.2f\n", round, c->n, c->bytes, offset, sample(GATHER, MESSAGES, c));
	printf("offset %d pack %u %u %u %.2f\n", round, c->n, c->bytes, offset, sample(PACK, MESSAGES, c));
}

static void measure_offsets(int round)
{
	static const struct cell cells[] = { { 1, 64, 1, false }, { 4, 64, 1, false }, { 4, 8, 1, false } };
	static const unsigned paper[] = { 0, 8, 16, 32, 48, 64, 80, 96, 128 }; /* Rex et al. 2006, figure 4 */

	for (unsigned i = 0; i < COUNT(cells); i++)
		for (unsigned offset = 0; offset < 4096; offset += 64)
			measure_offset(round, &cells[i], offset);
	for (unsigned size = 8; size <= 64; size *= 2)
		for (unsigned i = 0; i < COUNT(paper); i++)
			if (size < 64 || paper[i] % 64) /* the others are above */
				measure_offset(round, &(struct cell){ 1, size, 1, false }, paper[i]);
}

/* Nothing is read of the elements, so all messages are the same. */
static void measure_elements(void)
{
	static const unsigned elements[] = { 1, 2, 4, 8, 16, 30 }, sizes[] = { 1, 8, 64, 128, 512, 4096, 65536 };

	for (unsigned i = 0; i < COUNT(elements); i++)
		for (unsigned j = 0; j < COUNT(sizes); j++) {
			const struct cell c = { elements[i], sizes[j], 1, false };
			for (unsigned k = 0; k < MESSAGES; k++)
				for (unsigned p = 0; p < c.n; p++)
					iov[k][p] = (struct iovec){ heap + p * (c.bytes + 168), c.bytes };
			printf("figure post elements.%ux%u %.2f ns\n", c.n, c.bytes, sample(FLOOR_GATHER, MESSAGES, &c));
			printf("figure fill elements.%ux%u %.2f ns\n", c.n, c.bytes, sample(GATHER, MESSAGES, &c));
		}
}

static void measure_plans(int round)
{
	for (unsigned i = 0; i < COUNT(pieces); i++)
		for (unsigned j = 0; j < COUNT(bytes); j += 3) {
			const struct cell c = { pieces[i], bytes[j], 1, false };
			struct hugepin_sg_plan plan;
			double least = 0;
			lay(&c);
			for (int r = 0; r <= REPEATS; r++) {
				const double start = now_ns();
				for (unsigned k = 0; k < MESSAGES; k++)
					make_plan(PLAN, &c, &plan);
				const double ns = (now_ns() - start) / (double)MESSAGES;
				least = !r || ns < least ? ns : least;
			}
			printf("plan %d %u %u %.2f\n", round, c.n, c.bytes, least);
		}
}

/* ------------------------------------------------------------------ thresholds */

static bool carry(struct hp_sg_carrier *c, struct ibv_send_wr *wr)
{
	(void)c;
	return !post(&ring, wr, &bad);
}

static bool carried(struct hp_sg_carrier *c)
{
	(void)c;
	return true;
}

#define PRINT(name) printf("model " #name " %u\nmodel " #name "_cold %u\n", model.name[0], model.name[1])

int main(int argc, char **argv)
{
	int rounds = 9, option;
	bool quick = false;

	while ((option = getopt(argc, argv, "r:q")) != -1) {
		if (option == 'r')
			rounds = atoi(optarg);
		else if (option == 'q')
			quick = true;
		else
			return 2;
	}
	const char *only = optind < argc ? argv[optind] : "";
	set_up();
	const double start = now_ns();
	struct hp_sg_carrier carrier = { .domain = domain, .caps = caps, .post = carry, .end = carried };
	const int e = hp_sg_measure(&carrier, &model);
	if (e)
		errx(1, "calibrate: %s", strerror(-e));
	printf("model ms %.1f\n", (now_ns() - start) / 1e6);
	PRINT(copy_below), PRINT(apart_below), PRINT(inline_pieces);
	for (int round = 0; round < rounds; round++) {
		if (!*only || !strcmp(only, "cells"))
			measure_cells(round, quick);
		if (!*only || !strcmp(only, "offsets"))
			measure_offsets(round);
		if (!*only || !strcmp(only, "plans"))
			measure_plans(round);
		if (!strcmp(only, "elements"))
			measure_elements();
	}
	return 0;
}
