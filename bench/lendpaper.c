/*
 * Lent keys in virtual time: the patterns of Bonachea and Bell 2003, "Application benchmarks" and "Roundtrip put
 * latency". A node waits for each put, as a latency is measured.
 *
 * Their slides give no sizes. Those of the two programs here are such that as many puts miss as theirs did, when each
 * page misses once: 0.2 and 0.02 %. M and MAXVICTIM are 400 and 50 MiB, since theirs of 1 GB end at 450 MB.
 */
#include <stdio.h>

#include "lend.h"

/* Myrinet, by the paper alone: 40 us to pin a page, 6 ms to unpin, which is mostly waiting for messages that are under
 * way, so for each registration. A put takes 14 us, its hits' average; a message takes half of what a rendezvous takes
 * longer than that (34 us). */
static const struct costs myrinet = {
	.message = 10000, .message_more = 1, .put = 14000, .pin_page = 40000, .unpin = 6000000
};
/* soft-RoCE in a guest, as bench/verbs.c and bench/lendverbs.c measured it in one run: registering and deregistering
 * 64 KiB and 64 MiB in base pages, puts of 1 and 64 KiB, and a rendezvous of 1 KiB. */
static const struct costs rxe = { .message = 68000,
				  .message_more = 1,
				  .put = 55000,
				  .put_byte_ps = 20000,
				  .pin = 45000,
				  .pin_page = 240,
				  .unpin = 10000,
				  .unpin_page = 140 };

static const struct site sites[] = {
	{ &myrinet, .lent_max = 400 * MIB, .idle_max = 50 * MIB, .window = 1, .times = true },
	{ &rxe, .lent_max = 400 * MIB, .idle_max = 50 * MIB, .window = 1, .times = true },
};
static const char *const site_names[] = { "myrinet", "rxe" };
enum { SITES = 2 };

static const struct {
	const char *name;
	void (*make)(struct work *w, const struct pattern *p);
	unsigned puts;
	uint32_t nodes;
} programs[] = {
	{ "cannon", lend_cannon, 1500000, 2 },
	{ "bitonic", lend_bitonic, 2100000, 2 },
	{ "cannon", lend_cannon, 3000000, 4 },
	{ "bitonic", lend_bitonic, 4200000, 4 },
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* MiB of memory that is put to. */
static const unsigned sets[] = { 1, 4, 16, 64, 256, 400, 425, 450, 475, 512, 640, 768, 1024, 2048, 4096 };
enum { SETS = sizeof sets / sizeof *sets };

size_t lend_paper_count(void)
{
	return SITES * (PROGRAMS + SETS);
}

struct pattern lend_paper(size_t i)
{
	size_t site = i % SITES;
	struct pattern p = { .site = &sites[site], .slow = true };

	i /= SITES;
	if (i < PROGRAMS) {
		p.make = programs[i].make;
		p.puts = programs[i].puts;
		p.nodes = p.origins = programs[i].nodes;
		p.page = 4 * KIB;
		snprintf(p.name, sizeof p.name, "paper.%s.%u.%s", programs[i].name, programs[i].nodes,
			 site_names[site]);
		return p;
	}
	i -= PROGRAMS;
	p.make = lend_random;
	p.puts = 100000;
	p.nodes = 2;
	p.bytes = sets[i] * MIB;
	p.page = 16 * KIB; /* a domain keeps at most 32768 registrations of exact ranges that are not pinned */
	p.slow = sets[i] > 16;
	snprintf(p.name, sizeof p.name, "paper.random.%uM.%s", sets[i], site_names[site]);
	return p;
}

static void add(struct work *w, uint32_t from, uint32_t to, uint64_t offset, uint64_t len)
{
	lend_add(w, (struct put){ .from = from, .to = to, .offset = offset, .len = len });
}

/* 8 bytes anywhere. Before the puts that count, each page has one, and then there are as many as count. */
void lend_random(struct work *w, const struct pattern *p)
{
	for (uint64_t at = 0; at < p->bytes; at += 4 * KIB)
		add(w, 1, 0, at, 8);
	for (unsigned i = 0; i < 2 * p->puts; i++)
		add(w, 1, 0, lend_any(p->bytes / 8) * 8, 8);
	w->counted = w->puts - p->puts;
}

/* A put from one of two buffers into the other node's other buffer. */
static void pass(struct work *w, uint32_t from, uint32_t to, uint64_t step, uint64_t buffer, uint64_t at, uint64_t len)
{
	lend_add(w, (struct put){ .from = from,
				  .to = to,
				  .offset = (step + 1) % 2 * buffer + at,
				  .source = step % 2 * buffer + at,
				  .len = len });
}

/* Nodes in a square, or two, pass a block of each of two matrices on in each step, row by row (Cannon's matrix
 * multiplication). */
void lend_cannon(struct work *w, const struct pattern *p)
{
	const uint64_t n = 384, row = n * 8, pitch = 4 * KIB;

	w->targets = w->sources = w->whole = true;
	for (uint64_t step = 0; w->puts < p->puts; step++)
		for (uint64_t i = 0; i < 2 * n; i++)
			for (uint32_t from = 0; from < p->origins; from++)
				pass(w, from, from ^ (i < n || p->origins == 2 ? 1 : 2), step, 2 * n * pitch,
				     i * pitch, row);
}

/* Nodes exchange their part of an array, by small pieces, with the node whose number differs in one bit (bitonic
 * sort). */
void lend_bitonic(struct work *w, const struct pattern *p)
{
	const uint64_t part = 512 * KIB, piece = 512;

	w->targets = w->sources = w->whole = true;
	for (uint64_t step = 0; w->puts < p->puts;)
		for (uint32_t size = 2; size <= p->origins; size *= 2)
			for (uint32_t bit = size / 2; bit; bit /= 2, step++)
				for (uint64_t at = 0; at < part; at += piece)
					for (uint32_t from = 0; from < p->origins; from++)
						pass(w, from, from ^ bit, step, part, at, piece);
}
