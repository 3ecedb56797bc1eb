/*
 * The statistics at exit as text: the summary of HUGEPIN_STATS=1, the list of HUGEPIN_STATS=2, and JSON. Pure: numbers
 * in, text out. alloc/peak.c collects the numbers of this process; the MPI layer adds up those of all ranks.
 */
#ifndef HP_BASE_SUMMARY_H
#define HP_BASE_SUMMARY_H

#include "base/advice.h"
#include "base/base.h"
#include "hugepin.h"

/* The pin cache's numbers: sums over all domains of this process that are or were open. */
struct hp_pin_sums {
	struct hugepin_domain_stats stats;
	uint64_t pins;
	uint32_t domains; /* domains that were opened */
};

struct hp_summary {
	char name[32]; /* the program's */
	int64_t pid, rank; /* rank: -1: none */
	bool child; /* a child of fork: what follows is since the fork */
	bool small_inside; /* HUGEPIN_SMALL_PINNED: small buffers lie among the large ones */
	bool times_unknown; /* a filter of system calls forbids to ask */
	uint64_t ns, user_us, system_us, minor_faults, major_faults;
	uint64_t inherited_bytes; /* heap memory that a child had at its fork */
	uint64_t image_bytes, image_left_bytes; /* HUGEPIN_IMAGE: put in hugepages, or left alone */
	uint32_t domains;
	struct hp_run run;
	/* sums over ranks: the least and the most of one rank */
	uint64_t large_min, large_max;
};

/* Whether the process has something to say: large buffers of 8 MiB, 64 MiB in all, or a domain. A child of fork: large
 * buffers of 8 MiB more than at the fork, or a domain. */
bool hp_summary_matters(const struct hp_summary *s);

/* Append the summary: two to six lines, each with the program's name and PID. */
void hp_summary_text(struct hp_line *l, const struct hp_summary *s);

/* Append all counters that are not 0, a line each: "hugepin[PID] NAME: placed 12", and "pin.misses 3". pin may be
 * NULL. */
void hp_summary_list(struct hp_line *l, const struct hp_summary *s, const struct hugepin_stats *heap,
		     const struct hp_pin_sums *pin);

/* Append all of it as one JSON object. pin may be NULL. */
void hp_summary_json(struct hp_line *l, const struct hp_summary *s, const struct hugepin_stats *heap,
		     const struct hp_pin_sums *pin);

/* Add the numbers of further ranks to *sum: of one rank, or a sum over several. PID 0: there is nothing to add. */
void hp_summary_add(struct hp_summary *sum, const struct hp_summary *other);

/* The name of the program as it may be printed: UTF-8 without what controls a terminal, and cut after a whole
 * character. */
void hp_summary_name(char ret_name[32], const char *name);

/* Between the libraries: what this process has to tell so far (false: nothing was asked for, or the size differs), and
 * that the caller has told it, so that no summary is printed at exit. */
#pragma GCC visibility push(default)
_Bool hugepin_summary_(struct hp_summary *ret_, size_t size);
void hugepin_summary_told_(void);
#pragma GCC visibility pop

#endif
