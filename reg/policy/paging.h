/*
 * Whether the memory of a transfer had better be pinned, left to the device's faults, or brought in before the
 * transfer: the cost model of policy hybrid, in the terms of Li et al. 2016 (LogGP with o_prefetch, o_fault and the
 * times of registering). hugepin_odp(7) has the formulas and an example, which tests/unit/paging.c computes with this
 * code.
 *
 * Pure: no clock, no kernel, no memory, so that the helper (hybrid.c) and a replay in virtual time (bench/paging.c)
 * decide by the same code.
 */
#ifndef HP_REG_POLICY_PAGING_H
#define HP_REG_POLICY_PAGING_H

#include <stdbool.h>
#include <stdint.h>

/* The time of an operation on n base pages: fixed_ns + n * page_ns. */
struct hp_paging_line {
	double fixed_ns, page_ns;
};

/* The times of a device's operations. */
struct hp_paging_terms {
	struct hp_paging_line pin, unpin; /* registering and deregistering pinned memory */
	struct hp_paging_line demand; /* registering on demand */
	struct hp_paging_line bring; /* o_prefetch: bringing in what went out */
	double fault_ns[2]; /* o_fault of one page, at the sender and at the receiver */
};
enum { HP_PAGING_SENDS, HP_PAGING_RECEIVES }; /* which of them */

/* The terms for a device that was not measured: those of soft-RoCE, for memory that was paged out. */
extern const struct hp_paging_terms hp_paging_defaults;

/* The habits of a buffer, learnt from its uses. The last few uses weigh most. */
struct hp_paging_habits {
	uint32_t uses, looks, waits; /* how often each of the following was learnt; they stop at a few */
	float gap_ns; /* from one use to the next */
	float gone; /* q: the share of its pages that were out of memory before it was brought in */
	float foreseen; /* the share of uses that the helper saw coming */
	float slack_ns; /* of foreseen uses: the time from the helper's begin until the transfer needed the memory */
};

/* A use begins, gap_ns after the end of the one before. */
void hp_paging_learn_use(struct hp_paging_habits *, uint64_t gap_ns);

/* There was no use for idle_ns yet, so the gap is at least that long. */
void hp_paging_wait(struct hp_paging_habits *, uint64_t idle_ns);

/* `out` of `pages` pages were out of memory. */
void hp_paging_learn_gone(struct hp_paging_habits *, uint64_t out, uint64_t pages);

/* foreseen: the helper has brought the memory in for this use, and began slack_ns before it. */
void hp_paging_learn_slack(struct hp_paging_habits *, bool foreseen, uint64_t slack_ns);

/* A use that is to come. */
struct hp_paging_use {
	double pages; /* p */
	int side; /* HP_PAGING_SENDS, HP_PAGING_RECEIVES */
	double announced_ns; /* slack of a use that was not foreseen: from its announcement to the payload */
	bool stays; /* what is pinned stays so until another buffer needs the room */
	struct hp_paging_habits habits;
};

/* Whether the buffer is hot: once pinned, it should stay so until its next use. A buffer is not hot if its registration
 * is worth less than giving it back and having it again, and the next transfer need not wait too long. */
bool hp_paging_is_hot(const struct hp_paging_terms *, const struct hp_paging_use *);

/* The time that the use is expected to take beyond the transfer itself, if the memory is pinned, left to faults, or
 * brought in. A nanosecond of the helper counts as a part of one that the transfer waits. */
double hp_paging_pin_ns(const struct hp_paging_terms *, const struct hp_paging_use *);
double hp_paging_fault_ns(const struct hp_paging_terms *, const struct hp_paging_use *);
double hp_paging_bring_ns(const struct hp_paging_terms *, const struct hp_paging_use *);

/* What pinning saves, in ns for each byte and second that it is pinned. Negative: it costs. */
double hp_paging_saving(const struct hp_paging_terms *, const struct hp_paging_use *);

/* The way that takes least. PIN only if the budget has room for the buffer. BRING if it takes as much as faults do,
 * because the device may not know memory that is there, as after it was paged out and written. */
enum hp_paging_way { HP_PAGING_PIN, HP_PAGING_LEAVE, HP_PAGING_BRING };
enum hp_paging_way hp_paging_choose(const struct hp_paging_terms *, const struct hp_paging_use *, uint64_t room);

/* Whether `by`, which is not pinned, should have the room of `pinned`, which was not used for idle_ns. Each has terms
 * of its own, which may be for its size. */
bool hp_paging_displaces(const struct hp_paging_terms *by_terms, const struct hp_paging_use *by,
			 const struct hp_paging_terms *pinned_terms, const struct hp_paging_use *pinned,
			 uint64_t idle_ns);

#endif
