/*
 * The statistics at exit as text: the summary of HUGEPIN_STATS=1 with its advice, the counters of HUGEPIN_STATS=2, and
 * the lines of a file. Pure: numbers in, text out. alloc/peak.c collects the numbers of this process, and has the
 * public functions by which a launcher's library adds up those of all ranks.
 */
#ifndef HP_BASE_SUMMARY_H
#define HP_BASE_SUMMARY_H

#include "base/base.h"
#include "hugepin.h"

/* Below this, all memory together is too little to gain from, so the statistics at exit say nothing of a process
 * without a pin cache. */
#define HP_LITTLE_BYTES ((uint64_t)8 << 20)

/* An unknown number. */
#define HP_UNKNOWN UINT64_MAX

/* The pin cache's numbers: sums over all domains of this process that are or were open. */
struct hp_pin_sums {
	struct hugepin_domain_stats stats;
	uint64_t pins;
	uint32_t domains; /* domains that were opened */
	uint32_t limited; /* of these, with a budget that the backend's limit sets, not the program or its user */
};

/* The numbers of a run beside its counters, each uint64_t: X(name, how, group).
 *   how    of several ranks: the sum (ADD), the most (MOST), the least (LEAST), or the first rank's (OWN)
 *   group  what stands before the name in a file; NULL: a file has no such line */
#define HP_RUN_NUMBERS(X) \
	/* Large buffers at their peak, by the pages in which the kernel has them; untouched memory is in none. */ \
	X(hugetlb_bytes, ADD, "peak.") X(thp_bytes, ADD, "peak.") X(base_bytes, ADD, "peak.") \
	X(kinds_unknown, MOST, "") /* the kernel did not tell the kinds, and the three above are what it was asked for */ \
	X(small_bytes, ADD, "") /* memory of small buffers, at their peak; HP_UNKNOWN: their malloc does not tell */ \
	/* The most memory of the process (VmHWM) without the pool's, and without what a fork copied; 0: not known. */ \
	X(rss_peak_bytes, ADD, "") \
	X(fork_peak_bytes, MOST, "") /* the most that one fork copied, or moved out of the pool */ \
	X(fork_pool_bytes, MOST, NULL) /* the most that one fork copied only since it lay in the pool */ \
	X(large_min, LEAST, NULL) X(large_max, MOST, NULL) /* large buffers of one rank */ \
	X(ranks, ADD, NULL) X(local_ranks, OWN, NULL) /* local: on this machine; 0: not known */ \
	X(child, OWN, NULL) X(inherited_bytes, OWN, NULL) /* a child of fork, and its heap memory at the fork */ \
	X(pages, OWN, NULL) /* HUGEPIN_PAGES */ \
	X(thp_off, OWN, NULL) /* the process can have no THP */ \
	X(pool_pages, OWN, NULL) X(ram_bytes, OWN, NULL) /* pages of 2 MiB, free or not; MemTotal, 0: not known */

struct hp_run {
	char name[32]; /* the program's, without control characters */
	int64_t pid, rank; /* rank: -1: none */
#define HP_RUN_MEMBER(name, how, group) uint64_t name;
	HP_RUN_NUMBERS(HP_RUN_MEMBER)
#undef HP_RUN_MEMBER
	struct hugepin_stats heap;
	struct hp_pin_sums pin;
};

/* Bytes of large buffers at their peak. */
uint64_t hp_run_large_bytes(const struct hp_run *r);

/* Whether the process has something to say: large buffers of 8 MiB, 64 MiB in all, or a domain. A child of fork: large
 * buffers of 8 MiB more than at the fork, or a domain. */
bool hp_run_matters(const struct hp_run *r);

/* Append one sentence, without a line feed or a full stop: whether hugepages helped, and if not, why not. It fits 240
 * bytes. Returns its code, for programs: "huge", "pool-short". */
const char *hp_run_advice(struct hp_line *l, const struct hp_run *r);

/* Append the summary: two to four lines, each with the program's name and PID. */
void hp_run_summary(struct hp_line *l, const struct hp_run *r);

/* Append all counters that are not 0, a line each: "hugepin[PID] NAME: placed 12", and "pin.misses 3". */
void hp_run_list(struct hp_line *l, const struct hp_run *r);

/* Append all that is known, a line each: "peak.thp_bytes 4096", "heap.placed 12", "advice.code huge". */
void hp_run_file(struct hp_line *l, const struct hp_run *r);

/* Add the numbers of further ranks to *sum: of one rank, or a sum over several. PID 0: there is nothing to add. */
void hp_run_add(struct hp_run *sum, const struct hp_run *other);

#endif
