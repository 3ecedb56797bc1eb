/*
 * Guesses when a region will be used next, learnt from the sequence of uses, and learns how wrong the guesses were.
 *
 * A context is the recent past of an event: the last k uses (region and call site), for k = 1, 2, 4, ... 512, and how
 * many of them have ended. Each context remembers its last occurrences, and the time from each of these to the region's
 * next use is a sample for the time from now. Since programs repeat the order of uses more exactly than the times, the
 * longest context that was seen often enough is right about the next uses. It is asked again at every event, which
 * corrects errors in time as they add up. (Lempel-Ziv-like prefetching after Vitter and Krishnan 1996, with times.)
 *
 * For the same reason a guess also names the region's turn: the use that came before the region's in all samples, early
 * enough to register it. The turn has not come as long as that use has not begun, however late it is.
 *
 * Pure and bounded: hp_predict_init() gets all memory. If it is full, contexts are forgotten, first those that were
 * seen only once.
 */
#ifndef HP_REG_PREDICT_H
#define HP_REG_PREDICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HP_PREDICT_LEVELS 10 /* context lengths 1 .. 512 */
#define HP_PREDICT_SAMPLES 8 /* occurrences that a context remembers */
#define HP_PREDICT_MARGINS 15
#define HP_PREDICT_ORDERS 4
#define HP_PREDICT_NONE UINT32_MAX /* value of a chain: no use of the region is known */

struct hp_predict_past; /* a use that has begun */
struct hp_predict_errors;

struct hp_predict_context {
	uint32_t tag; /* identifies the context; 0: a free entry */
	uint32_t count; /* number of occurrences ever */
	uint32_t at[HP_PREDICT_SAMPLES]; /* events of the last occurrences; number i is at i % SAMPLES */
};

struct hp_predict {
	/* The last uses, and the last events (a use begins or ends). They are in rings, by number. */
	struct hp_predict_past *past;
	uint64_t *prefixes; /* hash of all uses up to this one, included */
	uint64_t *event_times;
	uint32_t *event_starts; /* the last use that had begun at this event */
	uint32_t past_mask, event_mask;
	uint32_t starts, events; /* numbers of the latest use and event; they wrap */
	uint32_t known; /* uses so far; stops counting when `past` is full */
	uint64_t powers[HP_PREDICT_LEVELS];

	struct hp_predict_context *contexts; /* sets of WAYS */
	uint32_t sets, used;
	uint64_t forgotten;

	/* The latest event. Its contexts are looked up at once, but the event is added to them only when the next event
	 * comes. */
	uint32_t ends; /* uses that have ended since the last use began */
	bool pending;
	uint64_t keys[HP_PREDICT_LEVELS];
	struct hp_predict_context *match[HP_PREDICT_LEVELS];
	/* The occurrences of these contexts, latest first: how many uses and ns ago. They are computed when needed. */
	struct hp_predict_ago {
		uint64_t ns;
		uint32_t uses;
	} ago[HP_PREDICT_LEVELS][HP_PREDICT_SAMPLES];
	int8_t ago_count[HP_PREDICT_LEVELS]; /* -1: not looked up yet */
	unsigned steps; /* links followed for guesses since the event */

	struct hp_predict_errors *errors;
	struct hp_predict_order {
		float late, all; /* decayed numbers of turns */
	} orders[HP_PREDICT_ORDERS];
};

/* The bytes that init() needs if the caller offers `bytes`. */
size_t hp_predict_size(size_t bytes);
void hp_predict_init(struct hp_predict *p, void *zeroed, size_t bytes);

/* A use begins, or ends. The caller keeps *chain for each region; it is HP_PREDICT_NONE at first. */
void hp_predict_start(struct hp_predict *p, uint32_t region, uint64_t site, uint64_t now_ns, uint32_t *chain);
void hp_predict_end(struct hp_predict *p, uint64_t now_ns);

/* The regions that were used after the last occurrence of the longest known context, nearest first. Returns the number
 * of regions put in ret_. */
unsigned hp_predict_followers(const struct hp_predict *p, uint32_t *ret_, unsigned max);

/* The region's next use, in ns after the latest event. */
struct hp_predict_guess {
	uint64_t low_ns, high_ns, median_ns; /* lowest, highest and median sample */
	unsigned samples; /* 0: guessed from the time between the region's last two uses */
	uint16_t class; /* class of guesses, for the table of errors */
	/* The region's turn comes when so many further uses have begun, the last of them of the region `before`, and its
	 * own use was then at least turn_ns away. 0: it is not known. */
	uint32_t turn, before;
	uint64_t turn_ns;
};
/* Guess by the longest context with samples_min samples, or else by the longest with any. If there is none and the
 * latest use is the region's, guess by the time since its use before. A turn is only named if from it to the region's
 * use there were need_ns, and more_ns for each of the uses. If need_ns is 0, only contexts are asked, and only for the
 * time. False: nothing is known, or no use is expected. */
bool hp_predict_next(struct hp_predict *p, uint32_t chain, unsigned samples_min, uint64_t need_ns, uint64_t more_ns,
		     struct hp_predict_guess *ret_);

/* Learn that a use came `ratio` times as late as the guess's `low`. */
void hp_predict_score(struct hp_predict *p, uint16_t class, float ratio);

/* Learn whether a turn that such a guess named came early enough. disorder() is the share of those that did not. */
void hp_predict_score_turn(struct hp_predict *p, uint16_t class, bool came);
float hp_predict_disorder(const struct hp_predict *p, uint16_t class);

/* When the use began that is so many uses before the latest, and of which region it is. */
uint64_t hp_predict_use(const struct hp_predict *p, uint32_t ago, uint32_t *ret_region);

/* The margin m of the class at which waiting until m * low costs least: cost = wait * (mean time used after m * low,
 * in low) + miss * (share of uses before m * low). Returns the cost. */
float hp_predict_margin(const struct hp_predict *p, uint16_t class, float wait, float miss, float *ret_margin);

#endif
