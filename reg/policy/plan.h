/*
 * A domain's plan: which registrations to give back for a while, and when to make them again. This is the interface of
 * the policies that predict (cf11, predict) to the rest of the pin cache, which tells the plan of uses and
 * registrations, and asks it for the next step.
 *
 * Pure: no clock, no kernel, no lock, and only the memory that hp_plan_new() took. The same calls give the same
 * answers, so the helper (track.c, helper.c) and a replay in virtual time (bench/replay.c) drive the same code. One
 * thread at a time uses a plan: in the pin cache, the holder of the domain's lock.
 *
 * The caller numbers the regions, from 1 up and densely (below 2^20). A region keeps its number while it is not
 * registered. Times are in ns, of any one clock. A time before the last one told counts as that one.
 */
#ifndef HP_REG_PLAN_H
#define HP_REG_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hp_plan;

enum hp_plan_policy { HP_PLAN_CF11, HP_PLAN_PREDICT };
enum hp_plan_mode {
	HP_PLAN_SAVE, /* keep as few bytes registered as possible, with almost no miss */
	HP_PLAN_BUDGET, /* have as few misses as possible within the budget */
};

struct hp_plan_config {
	enum hp_plan_policy policy;
	enum hp_plan_mode mode;
	uint64_t budget; /* bytes; UINT64_MAX: none */
	/* Bytes of memory that the plan may take, at least HP_PLAN_MEMORY_MIN. Regions and contexts that do not fit are
	 * forgotten. */
	size_t memory;
	/* The learnt time that the helper takes to register or deregister the region. Called with `arg`. */
	uint64_t (*cost_ns)(void *arg, uint32_t region, uint64_t bytes, bool registering);
	void *arg;
	uint64_t heard_ns; /* time from a use to its being told, because several are told at once */
};
#define HP_PLAN_MEMORY_MIN ((size_t)64 << 10)

/* NULL: no memory. */
struct hp_plan *hp_plan_new(const struct hp_plan_config *);
void hp_plan_free(struct hp_plan *);

/* Set the time that the helper needs beyond cost_ns before a region is ready, because others share its core (Li et al.
 * 2011, section 5). At first it is 0. */
void hp_plan_set_lead(struct hp_plan *, uint64_t lead_ns);

/* ------------------------------------------------------------------ what happened, in the order of time */

/* A use begins at call site `site` (0: not known), or ends. hit: the region was found registered, so no pin waited.
 * Uses of a region may overlap. After a miss, start() is called before hp_plan_registered(). */
void hp_plan_start(struct hp_plan *, uint32_t region, uint64_t bytes, uint64_t site, uint64_t now_ns, bool hit);
void hp_plan_end(struct hp_plan *, uint32_t region, uint64_t now_ns);

/* The region is registered from now on, by the helper or by a miss; or the helper or a miss has deregistered it. */
void hp_plan_registered(struct hp_plan *, uint32_t region, uint64_t now_ns);
void hp_plan_deregistered(struct hp_plan *, uint32_t region, uint64_t now_ns);

/* The helper could not do the step that the plan asked for, because the region is in use after all or the backend
 * refused. The plan does not ask again before the region's next event. */
void hp_plan_failed(struct hp_plan *, uint32_t region, uint64_t now_ns);

/* The region's memory is gone or part of a larger region, so its number may be used for another region. */
void hp_plan_forget(struct hp_plan *, uint32_t region);

/* ------------------------------------------------------------------ what to do */

struct hp_plan_step {
	enum { HP_PLAN_WAIT, HP_PLAN_REGISTER, HP_PLAN_DEREGISTER } what;
	uint32_t region;
	/* for WAIT: ask again then, or after the next event; UINT64_MAX: only after the next event */
	uint64_t until_ns;
};

/* The next step for the helper, which does one at a time. The answer stays the same until an event is told or time goes
 * on. */
struct hp_plan_step hp_plan_next(struct hp_plan *, uint64_t now_ns);

/* The region to evict if room is needed at once: registered, not in use, and with the farthest next use. 0: the plan
 * knows none. */
uint32_t hp_plan_victim(struct hp_plan *, uint64_t now_ns);

/* ------------------------------------------------------------------ for the statistics */

struct hp_plan_stats {
	uint64_t memory; /* bytes in use of config.memory */
	uint64_t contexts; /* contexts remembered */
	uint64_t regions; /* regions known */
	uint64_t forgotten; /* contexts and regions that were forgotten to make room */
};
void hp_plan_stats(const struct hp_plan *, struct hp_plan_stats *ret_);

#endif
