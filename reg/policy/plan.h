/*
 * A domain's plan: which registrations to give back for a while, and when to have them again. What a policy that
 * predicts (cf11, predict) is to the rest of the pin cache: it is told of uses and registrations, and asked what to do
 * next.
 *
 * Pure: no clock, no kernel, no lock, no memory but what hp_plan_new() took; the same calls give the same answers. So
 * the helper thread (helper.c) and a replay in virtual time (bench/replay.c) drive the same code. One thread at a time:
 * in the pin cache, who holds the domain's lock.
 *
 * Regions have numbers of their caller's, from 1 up and dense (below 2^20); a region keeps its number while it is not
 * registered. Times are in ns, of any one clock; a time before the last one told counts as that.
 */
#ifndef HP_REG_PLAN_H
#define HP_REG_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hp_plan;

enum hp_plan_policy { HP_PLAN_CF11, HP_PLAN_PREDICT };
enum hp_plan_mode {
	HP_PLAN_SAVE, /* fewest bytes registered, at almost no miss */
	HP_PLAN_BUDGET, /* fewest misses within the budget */
};

struct hp_plan_config {
	enum hp_plan_policy policy;
	enum hp_plan_mode mode;
	uint64_t budget; /* bytes; UINT64_MAX: none */
	/* Bytes that the plan may take in all, at least HP_PLAN_MEMORY_MIN; what does not fit is forgotten. */
	size_t memory;
	/* What the helper takes, by its clock, to register or deregister the region: as it was learnt. Called with
	 * arg. */
	uint64_t (*cost_ns)(void *arg, uint32_t region, uint64_t bytes, bool registering);
	void *arg;
};
#define HP_PLAN_MEMORY_MIN ((size_t)64 << 10)

/* NULL: no memory. */
struct hp_plan *hp_plan_new(const struct hp_plan_config *);
void hp_plan_free(struct hp_plan *);

/* More time than cost_ns says that the helper needs before anything is ready, from now on: others share its core (Li et
 * al. 2011, section 5). 0 at first. */
void hp_plan_set_lead(struct hp_plan *, uint64_t lead_ns);

/* ------------------------------------------------------------------ what happened, in the order of time */

/* A use begins at call site `site` (a hash). hit: it was found registered, and nobody waited. Uses of a region may
 * overlap. If it is a miss, this comes before hp_plan_registered(). */
void hp_plan_start(struct hp_plan *, uint32_t region, uint64_t bytes, uint64_t site, uint64_t now_ns, bool hit);
void hp_plan_end(struct hp_plan *, uint32_t region, uint64_t now_ns);

/* It is registered, or not any more, from now on: by the helper, by a miss, or because somebody evicted it. */
void hp_plan_registered(struct hp_plan *, uint32_t region, uint64_t now_ns);
void hp_plan_deregistered(struct hp_plan *, uint32_t region, uint64_t now_ns);

/* The helper was told to do it, and it cannot be done (it is in use after all, or the backend refused): not to be asked
 * for again before the region's next event. */
void hp_plan_failed(struct hp_plan *, uint32_t region, uint64_t now_ns);

/* Its memory is gone, or it is part of a larger region now: the number may be used for another. */
void hp_plan_forget(struct hp_plan *, uint32_t region);

/* ------------------------------------------------------------------ what to do */

struct hp_plan_step {
	enum { HP_PLAN_WAIT, HP_PLAN_REGISTER, HP_PLAN_DEREGISTER } what;
	uint32_t region;
	uint64_t until_ns; /* of WAIT: ask again then, or after the next event; UINT64_MAX: after the next event */
};

/* The one next thing for the helper, who does one at a time. Asking again gives the same until something is told or
 * time goes on. */
struct hp_plan_step hp_plan_next(struct hp_plan *, uint64_t now_ns);

/* Room is needed at once: the registered region in no use whose next use is farthest, or 0 if there is none that the
 * plan knows. */
uint32_t hp_plan_victim(struct hp_plan *, uint64_t now_ns);

/* ------------------------------------------------------------------ for the statistics */

struct hp_plan_stats {
	uint64_t memory; /* bytes in use of config.memory */
	uint64_t contexts; /* that are remembered */
	uint64_t regions; /* that are known */
	uint64_t forgotten; /* contexts and regions that had to make room */
};
void hp_plan_stats(const struct hp_plan *, struct hp_plan_stats *ret_);

#endif
