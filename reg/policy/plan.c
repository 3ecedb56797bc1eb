/*
 * The plan of a domain: which registrations to give back, and when to make them again. Calls the policy that decides,
 * predict (schedule.c) or cf11. The policies arena and lru have no plan, so hp_evict_one() in reg/evict.c chooses their
 * victims.
 */
#include "reg/policy/plan.h"

#include "base/base.h"
#include "reg/policy/cf11.h"
#include "reg/policy/schedule.h"

struct hp_plan {
	struct hp_cf11 *cf11; /* either this or `schedule` is set */
	struct hp_schedule *schedule;
};

#define CALL(p, verb, ...)                                                                                             \
	((p)->cf11 ? hp_cf11_##verb((p)->cf11, ##__VA_ARGS__) : hp_schedule_##verb((p)->schedule, ##__VA_ARGS__))

struct hp_plan *hp_plan_new(const struct hp_plan_config *config)
{
	struct hp_plan *p = hp_meta_map(sizeof *p);

	if (!p)
		return NULL;
	if (config->policy == HP_PLAN_CF11)
		p->cf11 = hp_cf11_new(config);
	else
		p->schedule = hp_schedule_new(config);
	if (p->cf11 || p->schedule)
		return p;
	hp_meta_unmap(p, sizeof *p);
	return NULL;
}

void hp_plan_free(struct hp_plan *p)
{
	CALL(p, free);
	hp_meta_unmap(p, sizeof *p);
}

void hp_plan_set_lead(struct hp_plan *p, uint64_t lead_ns)
{
	CALL(p, set_lead, lead_ns);
}

void hp_plan_start(struct hp_plan *p, uint32_t region, uint64_t bytes, uint64_t site, uint64_t now_ns, bool hit)
{
	CALL(p, start, region, bytes, site, now_ns, hit);
}

void hp_plan_end(struct hp_plan *p, uint32_t region, uint64_t now_ns)
{
	CALL(p, end, region, now_ns);
}

void hp_plan_registered(struct hp_plan *p, uint32_t region, uint64_t now_ns)
{
	CALL(p, registered, region, now_ns);
}

void hp_plan_deregistered(struct hp_plan *p, uint32_t region, uint64_t now_ns)
{
	CALL(p, deregistered, region, now_ns);
}

void hp_plan_failed(struct hp_plan *p, uint32_t region, uint64_t now_ns)
{
	CALL(p, failed, region, now_ns);
}

void hp_plan_forget(struct hp_plan *p, uint32_t region)
{
	CALL(p, forget, region);
}

struct hp_plan_step hp_plan_next(struct hp_plan *p, uint64_t now_ns)
{
	return CALL(p, next, now_ns);
}

uint32_t hp_plan_victim(struct hp_plan *p, uint64_t now_ns)
{
	return CALL(p, victim, now_ns);
}

void hp_plan_stats(const struct hp_plan *p, struct hp_plan_stats *ret_)
{
	CALL(p, stats, ret_);
}
