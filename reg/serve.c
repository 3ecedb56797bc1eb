/*
 * The service thread's work for domains: queued ranges, dead regions, registering ahead of pins, and the helpers' runs.
 */
#include "reg/serve.h"

#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/helper.h"
#include "reg/hints.h"
#include "reg/retire.h"

/* ------------------------------------------------------------------ domains */

static void make_present(const struct hp_prefetch *p)
{
	uintptr_t start = (uintptr_t)p->addr;

	start &= ~(hp_base_page - 1);
	hp_populate(start, hp_round_up((uintptr_t)p->addr + p->len, hp_base_page) - start, true);
}

/* Only the opener may register, so make the pages present for it to wait less. */
static void serve_opener(hugepin_domain *d)
{
	struct hp_prefetch hint;

	for (int i = 0; i < HP_PREFETCHES_MAX && hp_hints_take(d, &hint); i++)
		make_present(&hint);
}

/* Carries out at most HP_PREFETCHES_MAX hints, because whoever queues more asks for another run. */
static void serve_one(hugepin_domain *d, void *busy)
{
	struct hp_prefetch hint;

	if (!hp_domain_lock_soon(d)) {
		*(bool *)busy = true;
		return;
	}
	hp_work_clear(d, HP_WORK_SERVE);
	for (int i = 0;; i++) {
		hp_gone_drain(d);
		hp_region_deregister_dead(d);
		if (!hp_domain_may_register(d))
			break;
		if (!i && d->policy == HUGEPIN_POLICY_ARENA)
			hp_cover_new_extents(d);
		/* Take the hint after the drain, so that if its memory goes away from here on, the next drain finds it
		 * registered. */
		if (i == HP_PREFETCHES_MAX || !hp_hints_take(d, &hint))
			break;
		hp_cover_hint(d, &hint);
		/* One hint may take the device long. */
		if (hp_domain_pins_wait(d) && !hp_domain_let_pass(d)) {
			hp_work_set(d, HP_WORK_SERVE);
			*(bool *)busy = true;
			return;
		}
	}
	hp_unlock(&d->lock);
	if (d->opener_only)
		serve_opener(d);
}

/* There are extents that no domain has seen. relaxed: who sets it asks for the job next, and the job asks for none */
static _Atomic bool grown;

void hp_serve_grown(void)
{
	atomic_store_explicit(&grown, true, memory_order_relaxed);
	hp_domains_wake();
}

static void show_extents(hugepin_domain *d, void *unused)
{
	(void)unused;
	/* The place may just become another domain's, which looks at the extents by itself. */
	if (HP_READ(d->policy) == HUGEPIN_POLICY_ARENA)
		hp_work_set(d, HP_WORK_SERVE);
}

static bool serve_all(void)
{
	bool busy = false;

	hp_gone_heed();
	if (atomic_exchange_explicit(&grown, false, memory_order_relaxed))
		hp_domains_each(show_extents, NULL);
	hp_domains_each_held(HP_WORK_SERVE, serve_one, &busy);
	hp_domains_job.again_ns = busy ? hp_clock_ns() + HP_BUSY_AGAIN_NS : 0;
	return false;
}

/* ------------------------------------------------------------------ helpers */

struct round {
	uint64_t next_ns;
	struct hp_helper_news news;
};

static void help_one(hugepin_domain *d, void *round)
{
	struct round *now = round;
	uint64_t due_ns;
	struct hp_helper_news news;

	if (!d->helper) /* it had one when the place was another domain's */
		return;
	due_ns = hp_helper_serve(d, &news);
	now->news.any |= news.any;
	now->news.crowded |= news.crowded;
	if (news.busy)
		now->next_ns = HP_MIN(now->next_ns, hp_clock_ns() + HP_BUSY_AGAIN_NS);
	else if (!d->own_clock) /* if the backend has a clock of its own, its owner has to wake us */
		now->next_ns = HP_MIN(now->next_ns, due_ns);
	else if (news.crowded)
		now->next_ns = HP_MIN(now->next_ns, hp_clock_ns() + HP_CROWDED_NS);
}

static bool help_all(void)
{
	static uint64_t planned_ns = UINT64_MAX;
	struct round now = { .next_ns = UINT64_MAX };
	uint64_t begun_ns = hp_clock_ns();

	hp_domains_lock(); /* no domain may be closed meanwhile */
	hp_helper_begin(begun_ns > planned_ns ? begun_ns - planned_ns : 0);
	hp_domains_unlock();
	hp_domains_each_held(HP_WORK_HELP, help_one, &now);
	/* Use the barrier only in the last run before a long sleep, because it interrupts every thread. It pairs with
	 * record_use() in pin.c: a record that is pushed after the barrier asks for another run. */
	if (!now.news.any) {
		hp_counts_barrier();
		now.next_ns = UINT64_MAX;
		hp_domains_each_held(HP_WORK_HELP, help_one, &now);
	}
	if (now.news.any)
		now.next_ns = HP_MIN(now.next_ns, hp_clock_ns() + HP_AGAIN_NS);
	planned_ns = now.next_ns;
	hp_serve_helper_job.again_ns = now.next_ns == UINT64_MAX ? 0 : now.next_ns;
	/* The helper gains nothing for a program that pins without a pause, so make the next run wait longer. */
	hp_serve_helper_job.delay_ns = hp_helper_delay_ns(now.news.crowded);
	return false;
}

struct hp_job hp_serve_helper_job = { .run = help_all, .delay_ns = HP_GATHER_NS };

void hp_serve_wake_helper(void)
{
	if (hp_service_running())
		hp_service_ask(&hp_serve_helper_job);
}

/* ------------------------------------------------------------------ heap memory that is wanted back */

/* Whether no buffer lies in the hugepages that r holds. */
static bool is_free(const struct hp_region *r, uint32_t ticks)
{
	const struct hp_region_notes *n = hp_region_notes_of(r);

	return hp_heap_is_free(n->held_start, n->held_end - n->held_start, ticks);
}

/* Returns whether any region of the heap stays. */
static bool drop_unused_in(hugepin_domain *d, const struct hp_region_list *list, uint32_t ticks)
{
	bool any = false;

	for (struct hp_region *r = TAILQ_FIRST(list), *next; r; r = next) {
		next = TAILQ_NEXT(r, order);
		if (!hp_region_is_heap(r))
			continue;
		if (hp_region_pins(r)) {
			any = true;
			if (hp_region_hold_part(d, r, ticks))
				HP_DSTAT(d, decayed, 1);
			else if (is_free(r, ticks))
				hp_region_want_pins(r, true);
			else if (!is_free(r, 0))
				hp_region_want_pins(r, false);
		} else if (is_free(r, ticks)) {
			hp_region_evicted(r, ticks ? HP_EVICTED_DECAYED : HP_EVICTED_PURGED);
			hp_region_unpublish(r);
			HP_DSTAT(d, decayed, 1);
		} else {
			any = true;
		}
	}
	return any;
}

/* Deregister unused heap memory of one domain. ticks > 0: the memory decays, so skip a domain in a slow call, since the
 * next tick tries again. 0: the caller purges, so wait. */
static void drop_unused_of(hugepin_domain *d, void *ticks)
{
	struct hp_region *r;
	bool any;

	if (!*(uint32_t *)ticks)
		hp_lock(&d->lock);
	else if (!hp_domain_lock_soon(d))
		return;
	hp_gone_drain(d);
	any = drop_unused_in(d, &d->live, *(uint32_t *)ticks);
	any |= drop_unused_in(d, &d->aside, *(uint32_t *)ticks);
	TAILQ_FOREACH(r, &d->retired, order)
		if (hp_region_holds_part(r) && is_free(r, *(uint32_t *)ticks))
			hp_region_want_pins(r, true);
	hp_region_settle(d);
	hp_region_deregister_dead(d);
	if (!any && TAILQ_EMPTY(&d->retired) && TAILQ_EMPTY(&d->dead))
		hp_work_clear(d, HP_WORK_HELD);
	hp_unlock(&d->lock);
}

void hp_serve_drop_unused_holds(uint32_t ticks)
{
	if (hp_domains_any())
		hp_domains_each_held(HP_WORK_HELD, drop_unused_of, &ticks);
}

void hp_serve_open(void)
{
	if (!hp_domains_job.run)
		hp_domains_job.run = serve_all;
	hp_service_list(&hp_domains_job); /* here, because the watcher may wait for no lock when it asks for the job */
}

/* There is no other thread. */
void hp_serve_child(void)
{
	atomic_store_explicit(&hp_serve_helper_job.asked, false, memory_order_relaxed);
}
