/*
 * When a region will be used next, learnt from the sequence of uses; and how wrong such guesses were.
 *
 * What came before now is the context: the last k uses (region and call site), for k = 1, 2, 4, ... 512, and how many
 * of them have ended since. Each context remembers its last occurrences; how long after those the region was used
 * next are the samples for how long after now it will be. Programs repeat themselves in order, more exactly than in
 * time: the longest context that has been seen often enough is right about what comes, and is asked again at every
 * event, so that what time adds up to is corrected as it is seen. (Lempel-Ziv-like prefetching after Vitter and
 * Krishnan 1996, with times.)
 *
 * Pure, bounded: all memory is given to hp_predict_init(). What no longer fits is forgotten, contexts never seen
 * again first.
 */
#ifndef HP_REG_PREDICT_H
#define HP_REG_PREDICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HP_PREDICT_LEVELS 10 /* context lengths 1 .. 512 */
#define HP_PREDICT_SAMPLES 8 /* occurrences that a context remembers */
#define HP_PREDICT_MARGINS 15
#define HP_PREDICT_NONE UINT32_MAX /* of a chain: no use of the region is known */

struct hp_predict_past; /* a use that has begun */
struct hp_predict_errors;

struct hp_predict_context {
	uint32_t tag; /* 0: free */
	uint32_t count; /* occurrences, ever */
	uint32_t at[HP_PREDICT_SAMPLES]; /* numbers of the events, the ith at i % SAMPLES */
};

struct hp_predict {
	/* The last uses, and the last events (a use begins, a use ends), by number, in rings. */
	struct hp_predict_past *past;
	uint64_t *prefixes; /* hash of all uses up to and with this one */
	uint64_t *event_times;
	uint32_t *event_starts; /* the last use that had begun at this event */
	uint32_t past_mask, event_mask;
	uint32_t starts, events; /* numbers of the latest; they wrap */
	uint32_t known; /* uses since the first, as far as they matter */
	uint64_t powers[HP_PREDICT_LEVELS];

	struct hp_predict_context *contexts; /* sets of WAYS */
	uint32_t sets, used;
	uint64_t forgotten;

	/* The latest event: its contexts are looked up at once, and told of it when the next comes. */
	uint32_t ends; /* uses that have ended since the last began */
	bool pending;
	uint64_t keys[HP_PREDICT_LEVELS];
	struct hp_predict_context *match[HP_PREDICT_LEVELS];
	/* Their occurrences, latest first: how many uses and ns ago; looked up when they are asked for. */
	struct hp_predict_ago {
		uint64_t ns;
		uint32_t uses;
	} ago[HP_PREDICT_LEVELS][HP_PREDICT_SAMPLES];
	int8_t ago_count[HP_PREDICT_LEVELS]; /* -1: not looked up yet */
	unsigned steps; /* what the guesses have cost since the event: links followed */

	struct hp_predict_errors *errors;
};

/* Bytes that it makes of so many for itself. */
size_t hp_predict_size(size_t bytes);
void hp_predict_init(struct hp_predict *p, void *zeroed, size_t bytes);

/* A use begins, or ends. *chain is the region's: HP_PREDICT_NONE at first. */
void hp_predict_start(struct hp_predict *p, uint32_t region, uint64_t site, uint64_t now_ns, uint32_t *chain);
void hp_predict_end(struct hp_predict *p, uint64_t now_ns);

/* The regions that followed the last occurrence of the longest context known, nearest first: how many were put in
 * ret_. */
unsigned hp_predict_followers(const struct hp_predict *p, uint32_t *ret_, unsigned max);

/* The region's next use, in ns after the latest event. */
struct hp_predict_guess {
	uint64_t low_ns, high_ns, median_ns; /* of the samples */
	unsigned samples;
	uint16_t class; /* of errors */
};
/* By the longest context with so many samples, else the longest with any; false: nothing is known, or it is not
 * expected. */
bool hp_predict_next(struct hp_predict *p, uint32_t chain, unsigned samples_min, struct hp_predict_guess *ret_);

/* The region was used `ratio` times as late as the guess's low said. */
void hp_predict_score(struct hp_predict *p, uint16_t class, float ratio);

/* The margin m of the class at which waiting until m * low costs least: cost = wait * (mean time used after m * low,
 * in low) + miss * (share of uses before m * low). Returns the cost. */
float hp_predict_margin(const struct hp_predict *p, uint16_t class, float wait, float miss, float *ret_margin);

#endif
