/*
 * Communication traces of real programs in virtual time, under a policy of the pin cache: what would have been
 * registered when, and which uses would have had to wait. One line of key=value pairs a trace; the same trace gives the
 * same line.
 *
 *	replay [-p leave|none|lru|cf11|predict] [-m save|budget] [-b BYTES|PCT%] [-g N] [-u 4k|2m] [-t cpu|wall] [-c MS]
 *	       [-k NS,NS_PER_KIB,SHARE] [-l N] TRACE...
 *
 * cf11 and predict are the library's own code behind reg/policy/plan.h; leave, none and lru are this program's.
 * tests/traces/README.md has the format of a trace.
 *
 * The timeline. Starts and ends of calls happen in the order of the trace: calls that overlapped overlap. A call starts
 * when the main thread comes to it: after the computing that was measured before it, and not before the calls that had
 * ended by then; it lasts as long as it did, but at most -c (a shared machine's waits are not a network's). What the
 * main thread waits for, a registration that it makes itself or one that the helper is at, moves everything that
 * follows.
 *
 * The helper does one thing at a time and is never interrupted. Bytes count as registered from the start of a
 * registration to the end of a deregistration. A miss is a use that finds its region unregistered, or waits more than 1
 * us for the helper; the first use of a region is none.
 *
 * The bound (bound_pct, and its peak bound_peak_pct) is what one helper reaches who knows the future, without a miss:
 * every idle interval is used in which a deregistration and, in time for the next use, a registration fit between those
 * of the others. Latest starts of the registrations are computed from the end of the trace backwards, deregistrations
 * go into the first room before them.
 */
#include <argp.h>
#include <err.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "reg/policy/plan.h"
#include "trace.h"

#define NEVER INT64_MAX
#define WAIT_FREE_NS 1000 /* longer is a miss */
#define PLAN_MEMORY ((size_t)4 << 20)

enum policy { LEAVE, NONE, LRU, CF11, PREDICT };
static const char *const policy_names[] = { "leave", "none", "lru", "cf11", "predict" };

static struct {
	enum policy policy;
	enum hp_plan_mode mode;
	bool mode_given;
	double budget; /* bytes, or a share of leave-pinned's peak; 0: none */
	bool budget_is_share;
	size_t largest; /* the budget holds at least so many of the largest regions */
	struct trace_options trace;
	size_t parts; /* of the run, for each of which the registered bytes are printed */
	double reg_ns, reg_ns_per_kib, dereg_share;
} option = {
	.trace = { .unit = 4096, .cap_ns = 2e6 }, .reg_ns = 16000, .reg_ns_per_kib = 0.06 * 1024, .dereg_share = 0.4
};

/* ------------------------------------------------------------------ a run */

static int64_t cost_ns(uint64_t bytes, bool registering)
{
	double ns = option.reg_ns + option.reg_ns_per_kib * (double)bytes / 1024;

	return (int64_t)(registering ? ns : ns * option.dereg_share);
}

struct region {
	enum { OUT, IN, BUSY } state; /* BUSY: being registered or deregistered */
	uint32_t uses; /* that have started and not ended */
	bool touched;
	bool refused; /* the plan was told that its step failed, and of nothing since */
	bool ahead; /* the helper has registered it, and no use has waited for that */
	uint64_t last_end; /* of its last use, in the order of ends */
};

struct run {
	const struct trace *t;
	enum policy policy;
	uint64_t budget; /* bytes; UINT64_MAX: none */
	struct hp_plan *plan;
	struct region *region;
	int64_t *start, *end; /* of each use */
	int64_t now_ns; /* the main thread's */
	uint64_t ends;

	struct {
		uint32_t region; /* 0: idle */
		bool registering;
		int64_t until_ns; /* end of its step, or the time when it was idle last */
	} helper;

	uint64_t bytes, promised, peak; /* promised: to a miss that makes room */
	double area; /* bytes * ns */
	int64_t area_ns, busy_ns;
	struct step {
		int64_t until_ns;
		uint64_t bytes;
	} *step; /* all of the run, if its parts are asked for */
	size_t steps, steps_max;
	uint64_t misses, reuses, ahead, reregistrations;
};

static void account(struct run *r, int64_t now_ns, int64_t bytes)
{
	if (option.parts && now_ns > r->area_ns) {
		if (r->steps == r->steps_max) {
			r->steps_max = 2 * r->steps_max + 1024;
			r->step = realloc(r->step, r->steps_max * sizeof *r->step);
			if (!r->step)
				errx(1, "no memory for the timeline");
		}
		r->step[r->steps++] = (struct step){ now_ns, r->bytes };
	}
	r->area += (double)r->bytes * (double)(now_ns - r->area_ns);
	r->area_ns = now_ns;
	r->bytes += (uint64_t)bytes;
	if (r->bytes > r->peak)
		r->peak = r->bytes;
}

static bool fits(const struct run *r, uint64_t bytes)
{
	return bytes <= r->budget && r->bytes + r->promised <= r->budget - bytes;
}

static void became(struct run *r, uint32_t region, int64_t now_ns, bool registered)
{
	struct region *g = &r->region[region];

	g->state = registered ? IN : OUT;
	g->refused = false;
	if (!registered)
		account(r, now_ns, -(int64_t)r->t->bytes[region]);
	if (r->plan && registered)
		hp_plan_registered(r->plan, region, (uint64_t)now_ns);
	else if (r->plan)
		hp_plan_deregistered(r->plan, region, (uint64_t)now_ns);
}

/* Begin a step of the plan. The helper is idle. */
static void begin(struct run *r, struct hp_plan_step step)
{
	bool registering = step.what == HP_PLAN_REGISTER;
	struct region *g = &r->region[step.region];
	uint64_t bytes = r->t->bytes[step.region];
	int64_t now_ns = r->helper.until_ns, cost = cost_ns(bytes, registering);

	if (!step.region || step.region > r->t->regions)
		errx(2, "%s: the plan speaks of region %u, which there is not", r->t->name, step.region);
	if (g->uses || g->state != (registering ? OUT : IN) || (registering && !fits(r, bytes))) {
		if (g->refused)
			errx(2, "%s: the plan asks again for what cannot be done, region %u", r->t->name, step.region);
		g->refused = true;
		hp_plan_failed(r->plan, step.region, (uint64_t)now_ns);
		return;
	}
	g->state = BUSY;
	g->ahead = registering;
	if (registering) {
		account(r, now_ns, (int64_t)bytes);
		r->reregistrations++;
		r->ahead++;
	}
	r->helper.region = step.region;
	r->helper.registering = registering;
	r->helper.until_ns = now_ns + cost;
	r->busy_ns += cost;
}

/* The helper goes on until now_ns. It may be at a step then that ends later. */
static void advance(struct run *r, int64_t now_ns)
{
	while (r->plan && r->helper.until_ns <= now_ns) {
		uint32_t done = r->helper.region;

		if (done) {
			r->helper.region = 0;
			became(r, done, r->helper.until_ns, r->helper.registering);
		}
		struct hp_plan_step step = hp_plan_next(r->plan, (uint64_t)r->helper.until_ns);
		if (step.what != HP_PLAN_WAIT) {
			begin(r, step);
		} else if (step.until_ns > (uint64_t)now_ns) {
			r->helper.until_ns = now_ns;
			return;
		} else if ((int64_t)step.until_ns > r->helper.until_ns) {
			r->helper.until_ns = (int64_t)step.until_ns;
		} else {
			errx(2, "%s: the plan waits for a time that has come", r->t->name);
		}
	}
}

static void main_goes_on(struct run *r, int64_t now_ns)
{
	advance(r, now_ns);
	r->now_ns = now_ns;
}

static uint32_t oldest_idle(const struct run *r)
{
	uint32_t oldest = 0;

	for (uint32_t i = 1; i <= r->t->regions; i++)
		if (r->region[i].state == IN && !r->region[i].uses &&
		    (!oldest || r->region[i].last_end < r->region[oldest].last_end))
			oldest = i;
	return oldest;
}

static uint32_t victim(const struct run *r)
{
	uint32_t v = r->plan ? hp_plan_victim(r->plan, (uint64_t)r->now_ns) : 0;

	if (v && (v > r->t->regions || r->region[v].state != IN || r->region[v].uses))
		errx(2, "%s: the plan would evict region %u, which cannot go", r->t->name, v);
	return v ? v : oldest_idle(r);
}

static void deregister(struct run *r, uint32_t region)
{
	int64_t until_ns = r->now_ns + cost_ns(r->t->bytes[region], false);

	r->region[region].state = BUSY;
	main_goes_on(r, until_ns);
	became(r, region, until_ns, false);
}

/* Register on the critical path. The budget holds at least the regions in use at once, so another region can go. */
static void register_at_once(struct run *r, uint32_t region)
{
	uint64_t bytes = r->t->bytes[region];
	int64_t until_ns;

	r->promised = 0;
	while (!fits(r, bytes)) {
		uint32_t v;

		r->promised = bytes;
		if (r->helper.region)
			main_goes_on(r, r->helper.until_ns);
		else if ((v = victim(r)))
			deregister(r, v);
		else
			errx(2, "%s: nothing can go", r->t->name);
		r->promised = 0;
	}
	r->region[region].state = BUSY;
	account(r, r->now_ns, (int64_t)bytes);
	until_ns = r->now_ns + cost_ns(bytes, true);
	main_goes_on(r, until_ns);
	became(r, region, until_ns, true);
}

static void use_starts(struct run *r, uint32_t use)
{
	const struct use *u = &r->t->use[use];
	struct region *g = &r->region[u->region];
	bool first = !g->touched, hit;

	main_goes_on(r, r->now_ns + u->compute_ns);
	r->start[use] = r->now_ns;
	hit = g->state == IN || (g->state == BUSY && r->helper.registering &&
				 r->helper.until_ns - r->now_ns <= WAIT_FREE_NS);
	g->uses++;
	g->touched = true;
	g->refused = false;
	if (!first) {
		r->reuses++;
		r->misses += !hit;
		if (!hit && g->ahead && g->state == BUSY)
			r->ahead--;
	}
	if (r->plan)
		hp_plan_start(r->plan, u->region, r->t->bytes[u->region], u->site, (uint64_t)r->now_ns, hit);
	if (g->state == BUSY)
		main_goes_on(r, r->helper.until_ns);
	if (g->state == OUT) {
		r->reregistrations += !first;
		register_at_once(r, u->region);
	}
	r->end[use] = r->now_ns + u->length_ns;
}

static void use_ends(struct run *r, uint32_t use)
{
	uint32_t region = r->t->use[use].region;
	struct region *g = &r->region[region];

	main_goes_on(r, r->end[use] > r->now_ns ? r->end[use] : r->now_ns);
	r->end[use] = r->now_ns;
	g->uses--;
	g->refused = false;
	g->last_end = ++r->ends;
	if (r->plan)
		hp_plan_end(r->plan, region, (uint64_t)r->now_ns);
	else if (r->policy == NONE && !g->uses)
		deregister(r, region);
}

static uint64_t plan_cost(void *arg, uint32_t region, uint64_t bytes, bool registering)
{
	(void)arg, (void)region;
	return (uint64_t)cost_ns(bytes, registering);
}

static void run(struct run *r, const struct trace *t, enum policy policy, uint64_t budget)
{
	memset(r, 0, sizeof *r);
	r->t = t;
	r->policy = policy;
	r->budget = budget;
	r->region = trace_get(t->regions + 1, sizeof *r->region);
	r->start = trace_get(t->uses, sizeof *r->start);
	r->end = trace_get(t->uses, sizeof *r->end);
	if (policy >= CF11) {
		struct hp_plan_config config = { .policy = policy == CF11 ? HP_PLAN_CF11 : HP_PLAN_PREDICT,
						 .mode = option.mode,
						 .budget = budget,
						 .memory = PLAN_MEMORY,
						 .cost_ns = plan_cost };

		r->plan = hp_plan_new(&config);
		if (!r->plan)
			errx(1, "no memory for the plan");
	}
	for (size_t i = 0; i < 2 * t->uses; i++) {
		if (t->event[i].end)
			use_ends(r, t->event[i].use);
		else
			use_starts(r, t->event[i].use);
	}
	account(r, r->now_ns, 0);
	if (r->plan)
		hp_plan_free(r->plan);
}

static void run_free(struct run *r)
{
	free(r->step);
	free(r->region);
	free(r->start);
	free(r->end);
}

/* ------------------------------------------------------------------ the bound */

struct gap {
	int64_t from, until; /* idle; until NEVER: after the last use */
	int64_t reg_at, reg_end; /* latest */
	uint32_t region;
};

static int by_until(const void *a, const void *b)
{
	const struct gap *x = a, *y = b;

	return x->until != y->until ? (x->until > y->until) - (x->until < y->until) :
				      (x->region > y->region) - (x->region < y->region);
}

static int by_from(const void *a, const void *b)
{
	const struct gap *x = *(struct gap *const *)a, *y = *(struct gap *const *)b;

	return x->from != y->from ? (x->from > y->from) - (x->from < y->from) :
				    (x->region > y->region) - (x->region < y->region);
}

/* Find the idle intervals of leave-pinned's run in which a deregistration pays. */
static size_t find_gaps(const struct run *r, struct gap *gap)
{
	int64_t *idle = trace_get(r->t->regions + 1, sizeof *idle);
	uint32_t *active = trace_get(r->t->regions + 1, sizeof *active);
	size_t n = 0;

	for (size_t i = 0; i < 2 * r->t->uses; i++) {
		struct event e = r->t->event[i];
		uint32_t region = r->t->use[e.use].region;
		int64_t pays = cost_ns(r->t->bytes[region], true) + cost_ns(r->t->bytes[region], false);

		if (e.end) {
			if (!--active[region])
				idle[region] = r->end[e.use];
		} else if (!active[region]++ && idle[region] && r->start[e.use] - idle[region] > pays) {
			gap[n++] = (struct gap){ .from = idle[region], .until = r->start[e.use], .region = region };
		}
	}
	for (uint32_t i = 1; i <= r->t->regions; i++)
		gap[n++] = (struct gap){ .from = idle[i], .until = NEVER, .region = i };
	free(idle);
	free(active);
	return n;
}

/* The first time from `at` when the helper, busy with the registrations of gap[0..n), has `length` free. */
static int64_t first_room(const struct gap *gap, size_t n, int64_t at, int64_t length)
{
	size_t low = 0, high = n; /* the first registration that ends after `at` */

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (gap[middle].reg_end <= at)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < n && gap[low].reg_at < at + length; low++)
		at = gap[low].reg_end;
	return at;
}

struct change { /* of the registered bytes */
	int64_t at_ns, bytes;
};

static int by_time(const void *a, const void *b)
{
	const struct change *x = a, *y = b;

	return x->at_ns != y->at_ns ? (x->at_ns > y->at_ns) - (x->at_ns < y->at_ns) :
				      (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int64_t highest(struct change *change, size_t n)
{
	int64_t bytes = 0, peak = 0;

	qsort(change, n, sizeof *change, by_time);
	for (size_t i = 0; i < n; i++) {
		bytes += change[i].bytes;
		peak = bytes > peak ? bytes : peak;
	}
	return peak;
}

/* When each region is registered for the first time in leave-pinned's run. */
static size_t find_first(const struct run *r, struct change *change)
{
	bool *touched = trace_get(r->t->regions + 1, sizeof *touched);
	size_t n = 0;

	for (size_t i = 0; i < 2 * r->t->uses; i++) {
		struct event e = r->t->event[i];
		uint32_t region = r->t->use[e.use].region;

		if (!touched[region])
			change[n++] = (struct change){ r->start[e.use], (int64_t)r->t->bytes[region] };
		touched[region] = true;
	}
	free(touched);
	return n;
}

static double bound(const struct run *r, double *ret_peak)
{
	struct gap *gap = trace_get(r->t->uses + r->t->regions, sizeof *gap), **order;
	struct change *change = trace_get(2 * r->t->uses + 3 * r->t->regions, sizeof *change);
	size_t n = find_gaps(r, gap), kept = 0, timed = 0, changes = find_first(r, change);
	int64_t next = NEVER, helper = 0;
	double area = r->area;

	qsort(gap, n, sizeof *gap, by_until);
	for (size_t i = n; i--;) {
		struct gap *g = &gap[i];

		g->reg_end = g->until < next ? g->until : next;
		g->reg_at = g->reg_end == NEVER ? NEVER : g->reg_end - cost_ns(r->t->bytes[g->region], true);
		if (g->reg_at <= g->from + cost_ns(r->t->bytes[g->region], false))
			g->region = 0; /* the helper has no time left in this gap: the region stays registered */
		else
			next = g->reg_at;
	}
	for (size_t i = 0; i < n; i++)
		if (gap[i].region)
			timed += (gap[kept++] = gap[i]).until != NEVER;
	order = trace_get(kept, sizeof *order);
	for (size_t i = 0; i < kept; i++)
		order[i] = &gap[i];
	qsort(order, kept, sizeof *order, by_from);
	for (size_t i = 0; i < kept; i++) {
		const struct gap *g = order[i];
		int64_t length = cost_ns(r->t->bytes[g->region], false);
		int64_t gone = first_room(gap, timed, g->from > helper ? g->from : helper, length) + length;
		int64_t back = g->reg_at < r->now_ns ? g->reg_at : r->now_ns;

		if (gone >= back)
			continue;
		helper = gone;
		area -= (double)r->t->bytes[g->region] * (double)(back - gone);
		change[changes++] = (struct change){ gone, -(int64_t)r->t->bytes[g->region] };
		if (back < r->now_ns)
			change[changes++] = (struct change){ back, (int64_t)r->t->bytes[g->region] };
	}
	*ret_peak = (double)highest(change, changes);
	free(change);
	free(order);
	free(gap);
	return area;
}

/* ------------------------------------------------------------------ the program */

static int largest_first(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x < y) - (x > y);
}

static uint64_t budget_bytes(const struct trace *t, uint64_t leave_peak)
{
	double asked = option.budget_is_share ? option.budget * (double)leave_peak : option.budget;
	uint64_t *bytes = trace_get(t->regions, sizeof *bytes), largest = 0, budget;

	if (!(option.budget > 0)) {
		free(bytes);
		return UINT64_MAX;
	}
	memcpy(bytes, t->bytes + 1, t->regions * sizeof *bytes);
	qsort(bytes, t->regions, sizeof *bytes, largest_first);
	for (size_t i = 0; i < option.largest && i < t->regions; i++)
		largest += bytes[i];
	free(bytes);
	budget = asked < (double)leave_peak ? (uint64_t)asked : leave_peak;
	budget = budget > t->inuse_peak ? budget : t->inuse_peak;
	return budget > largest ? budget : largest;
}

static double mib(double bytes)
{
	return bytes / (1 << 20);
}

/* The most of each part of the run. A step of the run is what was registered up to its time. */
static void print_timeline(const struct run *r)
{
	const double length = (double)r->now_ns / (double)option.parts;
	size_t step = 0;

	printf(" ms=%.3f avg_mib=%.2f peak_mib=%.2f timeline=", (double)r->now_ns / 1e6, mib(r->area / (double)r->now_ns),
	       mib((double)r->peak));
	for (size_t i = 1; i <= option.parts; i++) {
		uint64_t most = 0;

		while (step < r->steps) {
			most = r->step[step].bytes > most ? r->step[step].bytes : most;
			if ((double)r->step[step].until_ns > (double)i * length)
				break;
			step++;
		}
		printf("%s%.2f", i > 1 ? "," : "", mib((double)most));
	}
}

static void replay(const char *path)
{
	struct trace t;
	struct run leave, r;
	double area, peak, bound_area, bound_peak;
	uint64_t budget;

	trace_read(path, &option.trace, &t);
	run(&leave, &t, LEAVE, UINT64_MAX);
	area = leave.area / (double)leave.now_ns;
	peak = (double)leave.peak;
	budget = budget_bytes(&t, leave.peak);
	run(&r, &t, option.policy, budget);
	printf("trace=%s policy=%s regions=%u reuses=%" PRIu64, t.name, policy_names[r.policy], t.regions, r.reuses);
	printf(" avg_pct=%.2f peak_pct=%.2f", pct(r.area / (double)r.now_ns, area), pct((double)r.peak, peak));
	bound_area = bound(&leave, &bound_peak);
	printf(" bound_pct=%.2f bound_peak_pct=%.2f", pct(bound_area / (double)leave.now_ns, area), pct(bound_peak, peak));
	printf(" inuse_pct=%.2f", pct((double)t.inuse_peak, peak));
	if (budget != UINT64_MAX)
		printf(" budget_pct=%.2f", pct((double)budget, peak));
	printf(" misses=%" PRIu64 " miss_pct=%.2f", r.misses, pct((double)r.misses, (double)r.reuses));
	printf(" hidden_pct=%.2f", pct((double)r.ahead, (double)r.reregistrations));
	printf(" helper_busy_pct=%.2f time_pct=%.2f", pct((double)r.busy_ns, (double)r.now_ns),
	       pct((double)r.now_ns, (double)leave.now_ns));
	if (option.parts)
		print_timeline(&r);
	putchar('\n');
	run_free(&leave);
	run_free(&r);
	trace_free(&t);
}

static int one_of(struct argp_state *state, const char *const *names, int n, const char *arg)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(names[i], arg))
			return i;
	argp_error(state, "not known: %s", arg);
	return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	static const char *const modes[] = { "save", "budget" }, *const units[] = { "4k", "2m" };
	static const char *const times[] = { "cpu", "wall" };
	double n[3];

	switch (key) {
	case 'p': option.policy = (enum policy)one_of(state, policy_names, 5, arg); break;
	case 'm':
		option.mode = one_of(state, modes, 2, arg) ? HP_PLAN_BUDGET : HP_PLAN_SAVE;
		option.mode_given = true;
		break;
	case 'b':
		option.budget_is_share = numbers(state, arg, &option.budget, 1, '%');
		if (option.budget_is_share)
			option.budget /= 100;
		break;
	case 'g':
		numbers(state, arg, n, 1, 0);
		option.largest = (size_t)n[0];
		break;
	case 'u': option.trace.unit = one_of(state, units, 2, arg) ? 2 << 20 : 4 << 10; break;
	case 't': option.trace.wall = one_of(state, times, 2, arg); break;
	case 'c':
		numbers(state, arg, n, 1, 0);
		option.trace.cap_ns = n[0] * 1e6;
		break;
	case 'l':
		numbers(state, arg, n, 1, 0);
		option.parts = (size_t)n[0];
		break;
	case 'k':
		numbers(state, arg, n, 3, 0);
		option.reg_ns = n[0];
		option.reg_ns_per_kib = n[1];
		option.dereg_share = n[2];
		break;
	case ARGP_KEY_ARG: replay(arg); break;
	case ARGP_KEY_NO_ARGS: argp_usage(state); break;
	default: return ARGP_ERR_UNKNOWN;
	}
	if (!option.mode_given)
		option.mode = option.budget > 0 ? HP_PLAN_BUDGET : HP_PLAN_SAVE;
	return 0;
}

int main(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "policy", 'p', "leave|none|lru|cf11|predict", 0, "What is registered when (leave)", 0 },
		{ "mode", 'm', "save|budget", 0, "What predict is after (budget if there is one)", 0 },
		{ "budget", 'b', "BYTES|PCT%", 0,
		  "At most so many bytes, or so much of leave-pinned's peak, and at least what is in use at once", 0 },
		{ "largest", 'g', "N", 0, "The budget holds at least the N largest regions", 0 },
		{ "unit", 'u', "4k|2m", 0, "Pages (4k)", 0 },
		{ "time", 't', "cpu|wall", 0, "Which clock measures computing (cpu)", 0 },
		{ "cap", 'c', "MS", 0, "What a call lasts at most (2); 0: as long as it did", 0 },
		{ "cost", 'k', "NS,NS_PER_KIB,SHARE", 0,
		  "A registration's cost, and what share of it a deregistration's is (16000,61.44,0.4)", 0 },
		{ "timeline", 'l', "N", 0, "Print the most MiB that are registered in each of N parts of the run", 0 },
		{ 0 }
	};
	static const struct argp argp = { options, parse, "TRACE...",
					  "Replay communication traces under a policy of the pin cache.",
					  NULL, NULL, NULL };

	/* argp calls in order: options first, wherever they are, then traces. */
	argp_err_exit_status = 1;
	error_t err = argp_parse(&argp, argc, argv, 0, NULL, NULL);
	return err || fflush(stdout) || ferror(stdout) ? 1 : 0;
}
