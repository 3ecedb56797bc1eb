/*
 * The policy of Li, Cameron, Nikolopoulos, de Supinski and Schulz, "Scalable Memory Registration for High Performance
 * Networks Using Helper Threads" (CF 2011), sections 3 to 5: a period for each call site in its context, deadlines, two
 * queues. The functions are those of reg/policy/plan.h.
 */
#ifndef HP_REG_CF11_H
#define HP_REG_CF11_H

#include "reg/policy/plan.h"

struct hp_cf11;

struct hp_cf11 *hp_cf11_new(const struct hp_plan_config *);
void hp_cf11_free(struct hp_cf11 *);
void hp_cf11_set_lead(struct hp_cf11 *, uint64_t lead_ns);
void hp_cf11_start(struct hp_cf11 *, uint32_t region, uint64_t bytes, uint64_t site, uint64_t now_ns, bool hit);
void hp_cf11_end(struct hp_cf11 *, uint32_t region, uint64_t now_ns);
void hp_cf11_registered(struct hp_cf11 *, uint32_t region, uint64_t now_ns);
void hp_cf11_deregistered(struct hp_cf11 *, uint32_t region, uint64_t now_ns);
void hp_cf11_failed(struct hp_cf11 *, uint32_t region, uint64_t now_ns);
void hp_cf11_forget(struct hp_cf11 *, uint32_t region);
struct hp_plan_step hp_cf11_next(struct hp_cf11 *, uint64_t now_ns);
uint32_t hp_cf11_victim(struct hp_cf11 *, uint64_t now_ns);
void hp_cf11_stats(const struct hp_cf11 *, struct hp_plan_stats *ret_);

/* The time that the algorithm takes for its own work: HASH for finding a context, COMPARE for each item of a search. */
#define HP_CF11_HASH_NS 200
#define HP_CF11_COMPARE_NS 10
#define HP_CF11_DONE_MAX 128 /* finished uses that wait for the helper; more overwrite the oldest */

#endif
