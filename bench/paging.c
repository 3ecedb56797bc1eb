/*
 * Communication traces in virtual time on a device that registers on demand: how many of their pages the device has to
 * fault in, what is brought in before, what is pinned, and how long the program takes. One line of key=value pairs a
 * trace and scheme; the same trace gives the same line.
 *
 *	paging [-p pin|native|enhanced|optimal|hybrid]... [-b BYTES|PCT%] [-o] [-r NS] [-k NAME=FIXED,PAGE]... [-t] TRACE...
 *
 * The first four schemes are those of Li et al. 2016. hybrid is the library's own: reg/policy/paging.h decides, and
 * reg/policy/plan.h foresees. tests/traces/README.md has the format of a trace.
 *
 * The timeline is that of replay.c. A call announces its transfer when it begins. The payload follows after a round
 * trip of control messages (-r). What the main thread does itself moves everything that follows: a registration, and
 * under enhanced what it brings in. What is brought in after the announcement, or faulted in, delays the transfer by as
 * much as goes beyond the round trip. The helper does one thing at a time, and is never interrupted. If it is busy until
 * the payload is due, the program's own thread brings the memory in.
 *
 * Memory that is registered on demand is not known to the device at first. With -o it is paged out each time when its
 * last use ends: then the device and the kernel have to get it back at the next one. What is pinned stays.
 *
 * brought counts the pages that were brought in, asked those that a prefetch named: optimal asks at each transfer, because
 * it cannot know what the device has.
 */
#include <argp.h>
#include <err.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "reg/policy/paging.h"
#include "reg/policy/plan.h"
#include "trace.h"

#define PLAN_MEMORY ((size_t)4 << 20)
#define PAGE 4096u

enum scheme { PIN, NATIVE, ENHANCED, OPTIMAL, HYBRID, SCHEMES };
/* As hp_paging_defaults, for memory that is not paged out. */
static const struct hp_paging_terms in_memory = {
	.pin = { 26000, 740 },
	.unpin = { 19000, 880 },
	.demand = { 49000, 1580 },
	.bring = { 15000, 430 },
	.fault_ns = { 40000, 40000 },
};

static const char *const scheme_names[] = { "pin", "native", "enhanced", "optimal", "hybrid" };

static struct {
	bool scheme[SCHEMES];
	double budget; /* of pin and hybrid: bytes, or a share of what pin has without one; 0: none */
	bool budget_is_share, paged_out;
	double trip_ns;
	struct trace_options trace;
	struct hp_paging_terms terms;
	bool terms_given, show_terms;
} option = { .trip_ns = 4000, .trace = { .unit = PAGE, .cap_ns = 2e6 } };

struct region {
	enum { UNREGISTERED, PINNED, ON_DEMAND } how;
	bool there; /* on demand: the device knows the pages */
	bool busy; /* the helper is at it */
	uint32_t uses; /* that have started and not ended */
	bool refused; /* the plan was told that its step failed, and of nothing since */
	int64_t ahead_ns; /* when the helper began to bring it in for the next use; 0: it has not */
	int64_t idle_ns; /* end of the last use */
	uint64_t last_end; /* of its last use, in the order of ends */
	bool receives;
	struct hp_paging_habits habits;
};

enum step { PINS, UNPINS, BRINGS, BRINGS_AT_ONCE };

struct run {
	const struct trace *t;
	enum scheme scheme;
	uint64_t budget; /* bytes; UINT64_MAX: none */
	struct hp_plan *plan;
	struct region *region;
	int64_t *end; /* of each use */
	int64_t now_ns; /* the main thread's */

	struct {
		uint32_t region; /* 0: idle */
		enum step what;
		int64_t until_ns; /* end of its step, or the time when it was idle last */
	} helper;

	uint32_t last; /* the region on demand whose use has ended last; or 0 */
	uint64_t pinned, peak, ends;
	double area; /* pinned bytes * ns */
	int64_t area_ns, busy_ns;
	uint64_t faulting, faults, brought, asked, turned; /* uses, pages, pages, pages, registrations of another kind */
};

/* ------------------------------------------------------------------ times */

static int64_t line_ns(const struct hp_paging_line *line, uint64_t bytes)
{
	return (int64_t)(line->fixed_ns + line->page_ns * (double)(bytes / PAGE));
}

static int64_t turn_ns(uint64_t bytes, bool pins)
{
	const struct hp_paging_terms *t = &option.terms;

	return pins ? line_ns(&t->pin, bytes) : line_ns(&t->unpin, bytes) + line_ns(&t->demand, bytes);
}

static void account(struct run *r, int64_t now_ns, int64_t bytes)
{
	r->area += (double)r->pinned * (double)(now_ns - r->area_ns);
	r->area_ns = now_ns;
	r->pinned += (uint64_t)bytes;
	if (r->pinned > r->peak)
		r->peak = r->pinned;
}

static uint64_t room_of(const struct run *r)
{
	return r->pinned < r->budget ? r->budget - r->pinned : 0;
}

static struct hp_paging_use use_of(const struct run *r, uint32_t region)
{
	const struct region *g = &r->region[region];

	return (struct hp_paging_use){ .pages = (double)(r->t->bytes[region] / PAGE),
				       .side = g->receives ? HP_PAGING_RECEIVES : HP_PAGING_SENDS,
				       .announced_ns = option.trip_ns,
				       .stays = r->budget != UINT64_MAX,
				       .habits = g->habits };
}

/* ------------------------------------------------------------------ the helper */

/* The plan counts a region as registered while a transfer could begin without any delay. */
static void tell_ready(struct run *r, uint32_t region, int64_t now_ns, bool ready)
{
	r->region[region].refused = false;
	if (ready)
		hp_plan_registered(r->plan, region, (uint64_t)now_ns);
	else
		hp_plan_deregistered(r->plan, region, (uint64_t)now_ns);
}

static void start_step(struct run *r, uint32_t region, enum step what, int64_t now_ns, int64_t cost_ns)
{
	r->region[region].busy = true;
	r->helper.region = region;
	r->helper.what = what;
	r->helper.until_ns = now_ns + cost_ns;
	r->busy_ns += cost_ns;
}

static int64_t bring_in(struct run *r, uint32_t region)
{
	r->brought += r->t->bytes[region] / PAGE;
	r->asked += r->t->bytes[region] / PAGE;
	return line_ns(&option.terms.bring, r->t->bytes[region]);
}

/* A pinned region that is not in use, and is worth its room much less than this one. */
static uint32_t displaced_by(struct run *r, uint32_t region, int64_t now_ns)
{
	struct hp_paging_use by = use_of(r, region), pinned;
	uint32_t v = hp_plan_victim(r->plan, (uint64_t)now_ns);
	uint64_t idle_ns;

	if (!v || r->region[v].how != PINNED || r->region[v].uses || r->region[v].busy ||
	    r->t->bytes[region] > room_of(r) + r->t->bytes[v])
		return 0;
	pinned = use_of(r, v);
	idle_ns = (uint64_t)(now_ns - r->region[v].idle_ns);
	return hp_paging_displaces(&option.terms, &by, &option.terms, &pinned, idle_ns) ? v : 0;
}

/* Pin a region that is on demand, if that takes least and there is room. Otherwise the helper may have begun to make
 * room. False: it has nothing to do. */
static bool pin_if_best(struct run *r, uint32_t region, int64_t now_ns)
{
	uint64_t bytes = r->t->bytes[region];
	struct hp_paging_use use = use_of(r, region);
	uint32_t v;

	if (hp_paging_choose(&option.terms, &use, UINT64_MAX) != HP_PAGING_PIN)
		return false;
	if (bytes <= room_of(r)) {
		account(r, now_ns, (int64_t)bytes);
		start_step(r, region, PINS, now_ns, turn_ns(bytes, true));
		return true;
	}
	v = displaced_by(r, region, now_ns);
	if (v)
		start_step(r, v, UNPINS, now_ns, turn_ns(r->t->bytes[v], false));
	return v;
}

/* A use of the region is coming. */
static void make_ready(struct run *r, uint32_t region, int64_t now_ns)
{
	struct region *g = &r->region[region];
	struct hp_paging_use use = use_of(r, region);

	if (pin_if_best(r, region, now_ns)) {
		g->ahead_ns = r->helper.region == region ? now_ns : 0; /* else the plan asks again */
		return;
	}
	g->ahead_ns = now_ns;
	if (!g->there && hp_paging_choose(&option.terms, &use, 0) == HP_PAGING_BRING)
		start_step(r, region, BRINGS, now_ns, bring_in(r, region));
	else
		tell_ready(r, region, now_ns, true);
}

/* A use of the region has ended. If it is hot and there is room, pin it before the next one, which the plan may not
 * expect. */
static bool keep_hot(struct run *r, int64_t now_ns)
{
	uint32_t region = r->last;
	const struct region *g = &r->region[region];

	r->last = 0;
	return region && g->how == ON_DEMAND && !g->uses && !g->busy && r->t->bytes[region] <= room_of(r) &&
	       pin_if_best(r, region, now_ns);
}

static bool stays(const struct run *r, uint32_t region, int64_t now_ns)
{
	struct hp_paging_use use = use_of(r, region);

	hp_paging_wait(&use.habits, (uint64_t)(now_ns - r->region[region].idle_ns));
	return use.stays || hp_paging_is_hot(&option.terms, &use);
}

/* Begin a step of the plan. The helper is idle. */
static void begin(struct run *r, struct hp_plan_step step)
{
	struct region *g = &r->region[step.region];
	int64_t now_ns = r->helper.until_ns;

	if (g->uses || (step.what == HP_PLAN_DEREGISTER && g->how == PINNED && stays(r, step.region, now_ns))) {
		if (g->refused)
			errx(2, "%s: the plan asks again for what cannot be done, region %u", r->t->name, step.region);
		g->refused = true;
		hp_plan_failed(r->plan, step.region, (uint64_t)now_ns);
	} else if (step.what == HP_PLAN_REGISTER) {
		make_ready(r, step.region, now_ns);
	} else if (g->how == PINNED) {
		start_step(r, step.region, UNPINS, now_ns, turn_ns(r->t->bytes[step.region], false));
	} else { /* what was brought in may stay, but nobody keeps it */
		tell_ready(r, step.region, now_ns, false);
	}
}

static void end_step(struct run *r)
{
	struct region *g = &r->region[r->helper.region];
	uint32_t region = r->helper.region;
	int64_t now_ns = r->helper.until_ns;

	r->helper.region = 0;
	g->busy = false;
	switch (r->helper.what) {
	case PINS:
		g->how = PINNED;
		r->turned++;
		break;
	case UNPINS:
		account(r, now_ns, -(int64_t)r->t->bytes[region]);
		g->how = ON_DEMAND;
		g->there = false;
		r->turned++;
		break;
	case BRINGS:
	case BRINGS_AT_ONCE: g->there = true; break;
	}
	if (r->plan && r->helper.what != BRINGS_AT_ONCE)
		tell_ready(r, region, now_ns, r->helper.what != UNPINS);
}

/* The helper goes on until now_ns. It may be at a step then that ends later. */
static void advance(struct run *r, int64_t now_ns)
{
	while (r->helper.until_ns <= now_ns) {
		if (r->helper.region)
			end_step(r);
		if (!r->plan) {
			r->helper.until_ns = now_ns;
			return;
		}
		if (keep_hot(r, r->helper.until_ns))
			continue;
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

/* ------------------------------------------------------------------ uses */

/* Make room for a pin: deregister what was not used for longest. The budget holds what is in use at once. */
static void evict(struct run *r)
{
	uint32_t oldest = 0;

	for (uint32_t i = 1; i <= r->t->regions; i++)
		if (r->region[i].how == PINNED && !r->region[i].uses &&
		    (!oldest || r->region[i].last_end < r->region[oldest].last_end))
			oldest = i;
	if (!oldest)
		errx(2, "%s: nothing can go", r->t->name);
	main_goes_on(r, r->now_ns + line_ns(&option.terms.unpin, r->t->bytes[oldest]));
	account(r, r->now_ns, -(int64_t)r->t->bytes[oldest]);
	r->region[oldest].how = UNREGISTERED;
}

static void register_at_once(struct run *r, uint32_t region)
{
	struct region *g = &r->region[region];
	uint64_t bytes = r->t->bytes[region];

	while (r->scheme == PIN && bytes > room_of(r))
		evict(r);
	g->how = r->scheme == PIN || (r->scheme == HYBRID && bytes <= room_of(r)) ? PINNED : ON_DEMAND;
	if (g->how == PINNED)
		account(r, r->now_ns, (int64_t)bytes);
	main_goes_on(r, r->now_ns + line_ns(g->how == PINNED ? &option.terms.pin : &option.terms.demand, bytes));
	if (r->scheme == ENHANCED) {
		main_goes_on(r, r->now_ns + bring_in(r, region));
		g->there = true;
	}
}

/* The device faults the pages in. Returns the time. */
static int64_t fault_in(struct run *r, uint32_t region)
{
	uint64_t pages = r->t->bytes[region] / PAGE;

	r->faulting++;
	r->faults += pages;
	return (int64_t)(option.terms.fault_ns[r->region[region].receives] * (double)pages);
}

/* The transfer was announced. Returns how much later it can begin than a round trip from now. */
static int64_t bring_in_now(struct run *r, uint32_t region)
{
	struct region *g = &r->region[region];
	int64_t payload_ns = r->now_ns + (int64_t)option.trip_ns, done_ns;

	if (g->busy) { /* the helper is bringing it in */
		done_ns = r->helper.until_ns;
	} else if (r->helper.region && r->helper.until_ns >= payload_ns) {
		done_ns = payload_ns + bring_in(r, region);
		g->there = true;
	} else {
		if (r->helper.region)
			advance(r, r->helper.until_ns);
		start_step(r, region, BRINGS_AT_ONCE, r->helper.until_ns, bring_in(r, region));
		done_ns = r->helper.until_ns;
	}
	return done_ns > payload_ns ? done_ns - payload_ns : 0;
}

/* What the transfer of a region that is registered on demand has to wait for. */
static int64_t delay_of(struct run *r, uint32_t region)
{
	struct region *g = &r->region[region];
	struct hp_paging_use use = use_of(r, region);

	if (g->there) {
		r->asked += r->scheme == OPTIMAL ? r->t->bytes[region] / PAGE : 0;
		return 0;
	}
	if (r->scheme == OPTIMAL || g->busy ||
	    (r->scheme == HYBRID && hp_paging_choose(&option.terms, &use, 0) == HP_PAGING_BRING))
		return bring_in_now(r, region);
	g->there = true;
	return fault_in(r, region);
}

static void learn(struct run *r, uint32_t region, bool first)
{
	struct region *g = &r->region[region];

	if (first)
		return;
	hp_paging_learn_use(&g->habits, (uint64_t)(r->now_ns - g->idle_ns));
	if (g->how == ON_DEMAND) {
		hp_paging_learn_gone(&g->habits, option.paged_out, 1);
		hp_paging_learn_slack(&g->habits, g->ahead_ns, (uint64_t)(r->now_ns - g->ahead_ns));
	}
	g->ahead_ns = 0;
}

static void use_starts(struct run *r, uint32_t use)
{
	const struct use *u = &r->t->use[use];
	struct region *g = &r->region[u->region];
	bool first = g->how == UNREGISTERED;
	int64_t delay_ns = 0;

	main_goes_on(r, r->now_ns + u->compute_ns);
	g->receives = u->receives;
	g->refused = false;
	if (g->busy && r->helper.what < BRINGS) /* its registration is being replaced */
		main_goes_on(r, r->helper.until_ns);
	if (!g->uses++)
		learn(r, u->region, first);
	if (r->plan)
		hp_plan_start(r->plan, u->region, r->t->bytes[u->region], u->site, (uint64_t)r->now_ns,
			      g->how == PINNED || g->there);
	if (first)
		register_at_once(r, u->region);
	if (g->how == ON_DEMAND)
		delay_ns = delay_of(r, u->region);
	if (r->plan)
		tell_ready(r, u->region, r->now_ns, true);
	r->end[use] = r->now_ns + delay_ns + u->length_ns;
}

static void use_ends(struct run *r, uint32_t use)
{
	uint32_t region = r->t->use[use].region;
	struct region *g = &r->region[region];

	main_goes_on(r, r->end[use] > r->now_ns ? r->end[use] : r->now_ns);
	g->refused = false;
	g->last_end = ++r->ends;
	g->idle_ns = r->now_ns;
	if (!--g->uses && g->how == ON_DEMAND) {
		g->there &= !option.paged_out;
		r->last = region;
		if (r->plan && !g->there)
			tell_ready(r, region, r->now_ns, false);
	}
	if (r->plan)
		hp_plan_end(r->plan, region, (uint64_t)r->now_ns);
}

static uint64_t plan_cost(void *arg, uint32_t region, uint64_t bytes, bool registering)
{
	const struct run *r = arg;

	if (r->region[region].how == PINNED)
		return (uint64_t)turn_ns(bytes, registering);
	return registering ? (uint64_t)line_ns(&option.terms.bring, bytes) : 1;
}

static void run(struct run *r, const struct trace *t, enum scheme scheme, uint64_t budget)
{
	struct hp_plan_config config = { .policy = HP_PLAN_PREDICT,
					 .mode = HP_PLAN_SAVE,
					 .budget = UINT64_MAX,
					 .memory = PLAN_MEMORY,
					 .cost_ns = plan_cost,
					 .arg = r };

	memset(r, 0, sizeof *r);
	r->t = t;
	r->scheme = scheme;
	r->budget = budget;
	r->region = trace_get(t->regions + 1, sizeof *r->region);
	r->end = trace_get(t->uses, sizeof *r->end);
	if (scheme == HYBRID && !(r->plan = hp_plan_new(&config)))
		errx(1, "no memory for the plan");
	for (size_t i = 0; i < 2 * t->uses; i++) {
		if (t->event[i].end)
			use_ends(r, t->event[i].use);
		else
			use_starts(r, t->event[i].use);
	}
	account(r, r->now_ns, 0);
	if (r->plan)
		hp_plan_free(r->plan);
	free(r->region);
	free(r->end);
}

/* ------------------------------------------------------------------ the program */

static void replay(const char *path)
{
	struct trace t;
	struct run pin, r;
	uint64_t budget = UINT64_MAX;

	trace_read(path, &option.trace, &t);
	run(&pin, &t, PIN, UINT64_MAX);
	if (option.budget > 0) {
		budget = (uint64_t)(option.budget_is_share ? option.budget * (double)pin.peak : option.budget);
		budget = budget > t.inuse_peak ? budget : t.inuse_peak;
	}
	for (enum scheme s = 0; s < SCHEMES; s++) {
		if (!option.scheme[s])
			continue;
		run(&r, &t, s, budget);
		printf("trace=%s scheme=%s regions=%u uses=%zu", t.name, scheme_names[s], t.regions, t.uses);
		printf(" faulting=%" PRIu64 " faulting_pct=%.2f", r.faulting, pct((double)r.faulting, (double)t.uses));
		printf(" faults=%" PRIu64 " brought=%" PRIu64 " asked=%" PRIu64 " turned=%" PRIu64, r.faults, r.brought,
		       r.asked, r.turned);
		printf(" pinned_kib=%.0f pinned_peak_kib=%" PRIu64, r.area / (double)r.now_ns / 1024, r.peak / 1024);
		if (budget != UINT64_MAX && (s == PIN || s == HYBRID))
			printf(" budget_kib=%" PRIu64, budget / 1024);
		printf(" helper_busy_pct=%.2f", pct((double)r.busy_ns, (double)r.now_ns));
		printf(" us=%.0f time_pct=%.2f\n", (double)r.now_ns / 1e3, pct((double)r.now_ns, (double)pin.now_ns));
	}
	trace_free(&t);
}

static void choose_scheme(struct argp_state *state, const char *arg)
{
	for (enum scheme s = 0; s < SCHEMES; s++) {
		if (!strcmp(scheme_names[s], arg)) {
			option.scheme[s] = true;
			return;
		}
	}
	argp_error(state, "not known: %s", arg);
}

static void choose_terms(void)
{
	if (!option.terms_given)
		option.terms = option.paged_out ? hp_paging_defaults : in_memory;
	option.terms_given = true;
}

static void show_terms(void)
{
	const struct hp_paging_terms *t = &option.terms;

	printf("pin=%g,%g unpin=%g,%g", t->pin.fixed_ns, t->pin.page_ns, t->unpin.fixed_ns, t->unpin.page_ns);
	printf(" demand=%g,%g bring=%g,%g", t->demand.fixed_ns, t->demand.page_ns, t->bring.fixed_ns, t->bring.page_ns);
	printf(" fault=%g,%g\n", t->fault_ns[0], t->fault_ns[1]);
	option.show_terms = false; /* once */
}

static void set_term(struct argp_state *state, char *arg)
{
	struct hp_paging_terms *t = &option.terms;
	const struct {
		const char *name;
		struct hp_paging_line *line;
	} lines[] = { { "pin", &t->pin }, { "unpin", &t->unpin }, { "demand", &t->demand }, { "bring", &t->bring } };
	char *value = strchr(arg, '=');
	double n[2];

	choose_terms();
	if (value)
		*value++ = 0;
	for (size_t i = 0; value && i < sizeof lines / sizeof *lines; i++) {
		if (!strcmp(arg, lines[i].name)) {
			numbers(state, value, n, 2, 0);
			*lines[i].line = (struct hp_paging_line){ n[0], n[1] };
			return;
		}
	}
	if (!value || strcmp(arg, "fault") != 0)
		argp_error(state, "not known: %s", arg);
	numbers(state, value, t->fault_ns, 2, 0);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	bool any = false;

	switch (key) {
	case 'p': choose_scheme(state, arg); break;
	case 'b':
		option.budget_is_share = numbers(state, arg, &option.budget, 1, '%');
		if (option.budget_is_share)
			option.budget /= 100;
		break;
	case 'o': option.paged_out = true; break;
	case 'r': numbers(state, arg, &option.trip_ns, 1, 0); break;
	case 'k': set_term(state, arg); break;
	case 't': option.show_terms = true; break;
	case 'c':
		numbers(state, arg, &option.trace.cap_ns, 1, 0);
		option.trace.cap_ns *= 1e6;
		break;
	case ARGP_KEY_ARG:
		for (enum scheme s = 0; s < SCHEMES; s++)
			any |= option.scheme[s];
		if (!any)
			memset(option.scheme, true, sizeof option.scheme);
		choose_terms();
		if (option.show_terms)
			show_terms();
		replay(arg);
		break;
	case ARGP_KEY_NO_ARGS: argp_usage(state); break;
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "scheme", 'p', "pin|native|enhanced|optimal|hybrid", 0, "One of those to show (all)", 0 },
		{ "budget", 'b', "BYTES|PCT%", 0,
		  "What pin and hybrid pin at most, or a share of what pin does without a budget. At least what is in use "
		  "at once",
		  0 },
		{ "out", 'o', NULL, 0, "Page out what is not pinned, between its uses", 0 },
		{ "round-trip", 'r', "NS", 0, "From the announcement of a transfer to its payload (4000)", 0 },
		{ "term", 'k', "NAME=FIXED,PAGE", 0,
		  "What pin, unpin, demand or bring takes, in ns; or fault=SENDER,RECEIVER; after -o", 0 },
		{ "show-terms", 't', NULL, 0, "First print what -k takes, as it is", 0 },
		{ "cap", 'c', "MS", 0, "What a call lasts at most (2); 0: as long as it did", 0 },
		{ 0 }
	};
	static const struct argp argp = { options, parse, "TRACE...",
					  "Replay communication traces on a device that registers on demand.",
					  NULL, NULL, NULL };

	/* argp calls in order: options first, wherever they are, then traces. */
	argp_err_exit_status = 1;
	error_t err = argp_parse(&argp, argc, argv, 0, NULL, NULL);
	return err || fflush(stdout) || ferror(stdout) ? 1 : 0;
}
