/*
 * Lent keys in virtual time: the patterns of puts.
 */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>

#include "lend.h"
#include "trace.h"

/* ------------------------------------------------------------------ numbers that look random */

uint64_t lend_seed;

static uint64_t next_random(void) /* splitmix64 (Steele, Lea and Flood 2014) */
{
	uint64_t z = lend_seed += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

uint64_t lend_any(uint64_t n)
{
	return next_random() % n;
}

/* ------------------------------------------------------------------ patterns */

void lend_add(struct work *w, struct put put)
{
	if (w->puts == w->room) {
		w->room = w->room ? 2 * w->room : 4096;
		w->put = reallocarray(w->put, w->room, sizeof *w->put);
		if (!w->put)
			err(1, "reallocarray");
	}
	w->put[w->puts++] = put;
	for (; w->nodes <= put.from || w->nodes <= put.to; w->nodes++)
		continue;
	if (w->memory < put.offset + put.len)
		w->memory = put.offset + put.len;
}

static void add(struct work *w, uint32_t from, uint32_t to, uint64_t offset, uint64_t len)
{
	lend_add(w, (struct put){ .from = from, .to = to, .offset = offset, .len = len });
}

/* Updates of 8 bytes anywhere. */
void lend_gups(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++)
		add(w, 1 + (uint32_t)lend_any(p->origins), 0, lend_any(p->bytes / 8) * 8, 8);
}

/* The same by peers that each have memory of their own. */
void lend_gups_own(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++) {
		uint32_t from = (uint32_t)lend_any(p->origins);

		add(w, 1 + from, 0, from * p->bytes + lend_any(p->bytes / 8) * 8, 8);
	}
}

/* The same between all nodes. */
void lend_gups_all(struct work *w, const struct pattern *p)
{
	w->targets = true;
	for (unsigned i = 0; i < p->puts; i++) {
		uint32_t from = (uint32_t)lend_any(p->origins), to = (uint32_t)lend_any(p->origins - 1);

		add(w, from, to + (to >= from), lend_any(p->bytes / 8) * 8, 8);
	}
}

/* Blocks of 256 KiB. A quarter of them is in use, and one is replaced by another after every 50 puts. */
void lend_blocks(struct work *w, const struct pattern *p)
{
	uint64_t block = 256 * KIB, count = p->bytes / block, used = count / 4, *live = trace_get(used, sizeof *live);

	for (uint64_t i = 0; i < used; i++)
		live[i] = lend_any(count);
	for (unsigned i = 0; i < p->puts; i++) {
		if (i % 50 == 0)
			live[lend_any(used)] = lend_any(count);
		add(w, 1 + (uint32_t)lend_any(p->origins), 0, live[lend_any(used)] * block, block);
	}
	free(live);
}

/* Faces of a cube of n^3 doubles, which two arrays have in turn: two in one piece, two in rows. */
void lend_halo(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++) {
		uint64_t n = p->bytes, cube = i % 2 * n * n * n * 8;

		for (uint32_t face = 0; face < 2; face++)
			add(w, 1 + face, 0, cube + face * (n - 1) * n * n * 8, n * n * 8);
		for (uint32_t face = 0; face < 2; face++)
			for (uint64_t z = 0; z < n; z++)
				add(w, 3 + face, 0, cube + z * n * n * 8 + face * (n - 1) * n * 8, n * 8);
	}
}

/* All of the memory, one piece of 64 KiB after the other. */
void lend_sweep(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++)
		for (uint64_t at = 0; at < p->bytes; at += 64 * KIB)
			for (uint32_t from = 0; from < 2; from++)
				add(w, 1 + from, 0, (at + from * p->bytes / 2) % p->bytes, 64 * KIB);
}

/* Three vectors, of which each of four peers has a piece of 300 KB. */
void lend_vectors(struct work *w, const struct pattern *p)
{
	for (unsigned i = 0; i < p->puts; i++)
		for (uint64_t v = 0; v < 3; v++)
			for (uint32_t from = 0; from < 4; from++)
				add(w, 1 + from, 0, v * 40 * MIB + from * 300000, 300000);
}

/* What the ranks 0 and 1 of a traced run sent and received, as puts of two peers. Each GiB of addresses that they use
 * has its place in the target's memory. */
void lend_traced(struct work *w, const struct pattern *p)
{
	struct trace_options options = { .unit = 4096, .cap_ns = 2e6 };
	uint64_t place[64];
	size_t places = 0;

	for (uint32_t rank = 0; rank < 2; rank++) {
		struct trace t;
		char path[512];

		snprintf(path, sizeof path, "tests/traces/%s.r%u.csv.gz", p->trace, rank);
		trace_read(path, &options, &t);
		for (size_t i = 0; i < t.uses; i++) {
			uint64_t at = 0;

			while (at < places && place[at] != t.use[i].addr / GIB)
				at++;
			if (at == 64)
				errx(1, "%s: too many places", path);
			if (at == places)
				place[places++] = t.use[i].addr / GIB;
			add(w, 1 + rank, 0, at * GIB + t.use[i].addr % GIB, t.use[i].limit - t.use[i].addr);
		}
		trace_free(&t);
	}
}
