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

/* What takes how long, in ns. Pages are base pages of 4 KiB. */
struct costs {
	uint64_t message, message_more; /* a message: so much, and less than message_more more */
	uint64_t put, put_byte_ps; /* a put by a key, and ps for each byte */
	uint64_t pin, pin_page, unpin, unpin_page; /* one registration, and each page of it */
};

/* What the nodes of a run are. */
struct site {
	const struct costs *costs;
	uint64_t lent_max, idle_max; /* M, MAXVICTIM */
	unsigned window; /* puts of a node that are under way, at most */
	bool times; /* print what puts took */
};

/* How a node comes by keys: HUGEPIN_LEND_*, or without the library, by a message and its answer for each put. Then the
 * target keeps all that it has registered, or deregisters a page with its last put. */
enum { LEND_RENDEZVOUS = 16, LEND_RENDEZVOUS_UNPIN };

/* How large buckets are: as the library chooses; a class of lender.h; or pattern.page, because a node offers no more at
 * a time. */
enum { LEND_OWN = -1, LEND_64M, LEND_2M, LEND_128K, LEND_PAGE };

struct setting {
	uint32_t policy;
	int bucket;
};

struct work;
struct pattern {
	char name[40];
	void (*make)(struct work *w, const struct pattern *p);
	unsigned puts, origins; /* or iterations; the origins' number */
	uint64_t bytes;
	uint32_t nodes;
	bool slow; /* -q leaves it out; of the usual ones also: with pool and the library's bucket alone */
	const char *trace;
	const struct site *site; /* NULL: the usual one */
	uint64_t page; /* bytes: of LEND_PAGE */
};

struct put {
	uint64_t offset, len; /* in the target's memory */
	uint64_t source; /* in its own, if work.sources */
	uint32_t from, to;
};

struct work {
	struct put *put;
	size_t puts, room;
	uint32_t nodes; /* that exist */
	uint64_t memory; /* of each target */
	size_t counted; /* figures are of the puts from this one on; 0: of the second half */
	bool targets; /* all nodes are targets, not only node 0 */
	bool sources; /* what is put comes from memory that others put to, which is pinned for that, too */
	bool whole; /* times are of all puts */
};

/* Numbers that look random: the same ones after the same seed. */
extern uint64_t lend_seed;
uint64_t lend_any(uint64_t n);

void lend_add(struct work *w, struct put put);

/* For pattern.make: what is put where. */
void lend_gups(struct work *w, const struct pattern *p);
void lend_gups_own(struct work *w, const struct pattern *p);
void lend_gups_all(struct work *w, const struct pattern *p);
void lend_blocks(struct work *w, const struct pattern *p);
void lend_halo(struct work *w, const struct pattern *p);
void lend_sweep(struct work *w, const struct pattern *p);
void lend_vectors(struct work *w, const struct pattern *p);
void lend_random(struct work *w, const struct pattern *p);
void lend_cannon(struct work *w, const struct pattern *p);
void lend_bitonic(struct work *w, const struct pattern *p);
void lend_traced(struct work *w, const struct pattern *p);

/* The patterns of Bonachea and Bell 2003: how many, and each. */
size_t lend_paper_count(void);
struct pattern lend_paper(size_t i);

/* Do the puts and print the line. seed: of the times of messages. */
void lend_run(const struct pattern *p, const struct work *w, struct setting s, uint64_t seed);

#endif
