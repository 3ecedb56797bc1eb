/*
 * Lent keys in virtual time: what the files of the program share (lend.c).
 */
#ifndef HP_BENCH_LEND_H
#define HP_BENCH_LEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define LENT_MAX (512 * MIB)
#define IDLE_MAX (LENT_MAX / 4)

struct work;
struct pattern {
	const char *name;
	void (*make)(struct work *w, const struct pattern *p);
	unsigned puts, origins; /* or iterations; the origins' number */
	uint64_t bytes;
	uint32_t nodes;
	bool slow; /* also: with pool and the library's bucket alone */
	const char *trace;
};

struct put {
	uint64_t offset, len; /* in the target's memory */
	uint32_t from, to;
};

struct work {
	struct put *put;
	size_t puts, room;
	uint32_t nodes; /* that exist */
	uint64_t memory; /* of each target */
	bool targets; /* all nodes are targets, not only node 0 */
};

/* bucket: a class of lender.h, or -1: what the library chooses. */
struct setting {
	uint32_t policy;
	int bucket;
};

/* Numbers that look random: the same ones after the same seed. */
extern uint64_t lend_seed;
uint64_t lend_any(uint64_t n);

/* What is put where: for pattern.make. */
void lend_gups(struct work *w, const struct pattern *p);
void lend_gups_own(struct work *w, const struct pattern *p);
void lend_gups_all(struct work *w, const struct pattern *p);
void lend_blocks(struct work *w, const struct pattern *p);
void lend_halo(struct work *w, const struct pattern *p);
void lend_sweep(struct work *w, const struct pattern *p);
void lend_vectors(struct work *w, const struct pattern *p);
void lend_cannon(struct work *w, const struct pattern *p);
void lend_bitonic(struct work *w, const struct pattern *p);
void lend_traced(struct work *w, const struct pattern *p);

/* Do the puts and print the line. seed: of the times of messages. */
void lend_run(const char *name, const struct work *w, uint32_t nodes, struct setting s, uint64_t seed);

#endif
