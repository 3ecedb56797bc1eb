/*
 * The plan that predicts (reg/policy/plan.h has the functions' contract) decides by the guesses of reg/policy/predict.h
 * and by the price of a miss. In save mode it decides which registrations to give back, and when to make them again. In
 * budget mode it decides which registrations to have at all.
 */
#ifndef HP_REG_SCHEDULE_H
#define HP_REG_SCHEDULE_H

#include "reg/policy/plan.h"

struct hp_schedule;

struct hp_schedule *hp_schedule_new(const struct hp_plan_config *);
void hp_schedule_free(struct hp_schedule *);
void hp_schedule_set_lead(struct hp_schedule *, uint64_t lead_ns);
void hp_schedule_start(struct hp_schedule *, uint32_t region, uint64_t bytes, uint64_t site, uint64_t now_ns, bool hit);
void hp_schedule_end(struct hp_schedule *, uint32_t region, uint64_t now_ns);
void hp_schedule_registered(struct hp_schedule *, uint32_t region, uint64_t now_ns);
void hp_schedule_deregistered(struct hp_schedule *, uint32_t region, uint64_t now_ns);
void hp_schedule_failed(struct hp_schedule *, uint32_t region, uint64_t now_ns);
void hp_schedule_forget(struct hp_schedule *, uint32_t region);
struct hp_plan_step hp_schedule_next(struct hp_schedule *, uint64_t now_ns);
uint32_t hp_schedule_victim(struct hp_schedule *, uint64_t now_ns);
void hp_schedule_stats(const struct hp_schedule *, struct hp_plan_stats *ret_);

#endif
