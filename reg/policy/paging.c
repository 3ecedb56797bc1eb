/* See paging.h. */
#include "reg/policy/paging.h"

#include "base/base.h"

/* Means are of about this many last samples. */
enum { MEMORY = 8 };

/* The weight of a nanosecond of the helper, against one that a transfer waits: it takes a core, but nobody waits. */
static const double helper_part = 0.1;

/* A buffer displaces another one only if that pays back the helper's work for it within this many of its gaps. */
static const double pays_back = 16;

/* A pinned buffer is cold once it was not used for more than this many of its gaps, because gaps differ. */
enum { COLD = 2 };

/* A registration is given back only in gaps longer than `gives_back` times the cost of doing so, as in schedule.c.
 * Besides, transfers must then wait for at most the part `waits` of the gap. */
static const double gives_back = 2, waits = 0.005;

static const double ns_per_s = 1e9;

/* Fits to the minima for 4 KiB and 1 MiB, in an emulated guest. */
const struct hp_paging_terms hp_paging_defaults = {
	.pin = { 42000, 24980 },
	.unpin = { 19000, 880 },
	.demand = { 49000, 1580 },
	.bring = { 32000, 17580 },
	.fault_ns = { 86000, 86000 },
};

/* ------------------------------------------------------------------ habits */

static void mean(float *m, uint32_t *count, double sample)
{
	*count += *count < MEMORY;
	*m += ((float)sample - *m) / (float)*count;
}

void hp_paging_learn_use(struct hp_paging_habits *h, uint64_t gap_ns)
{
	mean(&h->gap_ns, &h->uses, (double)gap_ns);
}

void hp_paging_wait(struct hp_paging_habits *h, uint64_t idle_ns)
{
	h->gap_ns = HP_MAX(h->gap_ns, (float)idle_ns);
}

void hp_paging_learn_gone(struct hp_paging_habits *h, uint64_t out, uint64_t pages)
{
	mean(&h->gone, &h->looks, (double)out / (double)HP_MAX(pages, 1u));
}

void hp_paging_learn_slack(struct hp_paging_habits *h, bool foreseen, uint64_t slack_ns)
{
	if (foreseen) /* the first one is the mean */
		h->slack_ns += ((float)slack_ns - h->slack_ns) /
			       (!(h->foreseen > 0) ? 1 : (float)slack_ns < h->slack_ns ? 2 : MEMORY);
	mean(&h->foreseen, &h->waits, foreseen);
}

/* Assume that a buffer which was never looked at is out of memory each time. */
static double gone_of(const struct hp_paging_habits *h)
{
	return h->looks ? (double)h->gone : 1;
}

/* ------------------------------------------------------------------ times */

static double line_ns(const struct hp_paging_line *line, double pages)
{
	return line->fixed_ns + line->page_ns * pages;
}

/* The time to turn a buffer from on demand to pinned and back. */
static double turn_ns(const struct hp_paging_terms *t, double pages)
{
	return line_ns(&t->pin, pages) + line_ns(&t->unpin, pages) + line_ns(&t->demand, pages);
}

static double late_ns(double work_ns, double slack_ns)
{
	return HP_MAX(0, work_ns - slack_ns);
}

/* The time that a transfer waits for work that the helper begins ahead of a foreseen use, or at the announcement of
 * another. Assume that the helper foresees every use of a buffer that was always pinned. */
static double waited_ns(const struct hp_paging_use *u, double work_ns)
{
	const struct hp_paging_habits *h = &u->habits;
	double foreseen = h->waits ? (double)h->foreseen : 1;
	double slack_ns = h->waits ? (double)h->slack_ns : (double)h->gap_ns;

	return foreseen * late_ns(work_ns, slack_ns) + (1 - foreseen) * late_ns(work_ns, u->announced_ns);
}

static double price_ns(const struct hp_paging_use *u, double work_ns)
{
	return waited_ns(u, work_ns) + helper_part * work_ns;
}

static double bring_work_ns(const struct hp_paging_terms *t, const struct hp_paging_use *u)
{
	return gone_of(&u->habits) * line_ns(&t->bring, u->pages);
}

bool hp_paging_is_hot(const struct hp_paging_terms *t, const struct hp_paging_use *u)
{
	double gap_ns = (double)u->habits.gap_ns;

	return gap_ns < gives_back * turn_ns(t, u->pages) || waited_ns(u, bring_work_ns(t, u)) > waits * gap_ns;
}

double hp_paging_pin_ns(const struct hp_paging_terms *t, const struct hp_paging_use *u)
{
	return u->stays || hp_paging_is_hot(t, u) ? 0 : price_ns(u, turn_ns(t, u->pages));
}

double hp_paging_fault_ns(const struct hp_paging_terms *t, const struct hp_paging_use *u)
{
	return gone_of(&u->habits) * t->fault_ns[u->side] * u->pages;
}

double hp_paging_bring_ns(const struct hp_paging_terms *t, const struct hp_paging_use *u)
{
	return price_ns(u, bring_work_ns(t, u));
}

/* ------------------------------------------------------------------ decisions */

/* The time that pinning saves in each ns of the run. */
static double saved_share(const struct hp_paging_terms *t, const struct hp_paging_use *u)
{
	double otherwise = HP_MIN(hp_paging_fault_ns(t, u), hp_paging_bring_ns(t, u));

	return (otherwise - hp_paging_pin_ns(t, u)) / HP_MAX((double)u->habits.gap_ns, 1);
}

double hp_paging_saving(const struct hp_paging_terms *t, const struct hp_paging_use *u)
{
	return saved_share(t, u) * ns_per_s / (u->pages * (double)hp_base_page);
}

enum hp_paging_way hp_paging_choose(const struct hp_paging_terms *t, const struct hp_paging_use *u, uint64_t room)
{
	double faults = hp_paging_fault_ns(t, u), brings = hp_paging_bring_ns(t, u);

	if (u->pages * (double)hp_base_page <= (double)room && hp_paging_pin_ns(t, u) < HP_MIN(faults, brings))
		return HP_PAGING_PIN;
	return faults < brings ? HP_PAGING_LEAVE : HP_PAGING_BRING;
}

bool hp_paging_displaces(const struct hp_paging_terms *by_terms, const struct hp_paging_use *by,
			 const struct hp_paging_terms *pinned_terms, const struct hp_paging_use *pinned,
			 uint64_t idle_ns)
{
	struct hp_paging_use idle = *pinned;
	double work_ns = turn_ns(by_terms, by->pages) + turn_ns(pinned_terms, pinned->pages), gain;

	hp_paging_wait(&idle.habits, idle_ns / COLD);
	gain = saved_share(by_terms, by) - saved_share(pinned_terms, &idle);
	return hp_paging_saving(by_terms, by) > hp_paging_saving(pinned_terms, &idle) &&
	       gain * pays_back * (double)by->habits.gap_ns > helper_part * work_ns;
}
