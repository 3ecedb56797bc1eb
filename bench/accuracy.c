/*
 * How well the time of a registration is predicted, from the one before, by the two predictors that Li et al. 2011
 * compare (section 3.1, figures 5 and 6). One line of key=value pairs for each trace and each predictor:
 *
 *	accuracy [-t cpu|wall] [-c MS] TRACE...
 *
 * lastW and shortestW are the paper's own. The context of a use is its call site, its region and the W communication
 * points before it. The next start in a context is predicted one period after its last one. The period is the last time
 * between two starts in the context, or the shortest one: the paper takes the shortest for programs that are not
 * periodic (section 3.1), and in its implementation (4.2). The observed period is the time to the context's next start.
 * reg/policy/cf11.c plans by shortest2; of the callers it knows only the innermost, and it takes the call site for the
 * type of the call.
 *
 * periodN finds patterns in the stream of calls and regions (Freitag et al. 2003): the last N points equal those m
 * points before them, and the period is the least such m, less than N. The point m places on is predicted to start as
 * much later as the last one did after its predecessor. If another point has that place, the prediction is wrong.
 *
 * The error of a prediction is the difference between the predicted and the observed period, as a share of the observed
 * one. within_X has how many predictions have an error below X %, as a share of those whose time came before the trace
 * ended. covered has the share of uses that were predicted.
 *
 * Times are those of replay.c when everything stays registered and registering takes no time. Recorded traces measure
 * computing by the processor's clock, because their ranks shared cores.
 */
#include <argp.h>
#include <err.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "trace.h"

#define CONTEXT_POINTS_MAX 4
#define PATTERN_MIN 8
#define PATTERN_MAX 512

static struct trace_options option = { .unit = 4096, .cap_ns = 2e6 };

static const double threshold_pct[] = { 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50 };
#define THRESHOLDS (sizeof threshold_pct / sizeof *threshold_pct)

struct score {
	uint64_t predictions, within[THRESHOLDS];
};

static void count(struct score *s, double predicted_ns, double observed_ns)
{
	double difference = fabs(predicted_ns - observed_ns);

	s->predictions++;
	for (size_t i = 0; i < THRESHOLDS; i++)
		s->within[i] += difference <= 0 || difference < threshold_pct[i] / 100 * observed_ns;
}

static void print(const struct trace *t, const char *predictor, unsigned length, const struct score *s)
{
	printf("trace=%s predictor=%s%u uses=%zu predictions=%" PRIu64 " covered=%.2f", t->name, predictor, length, t->uses,
	       s->predictions, pct((double)s->predictions, (double)t->uses));
	for (size_t i = 0; i < THRESHOLDS; i++)
		printf(" within_%g=%.2f", threshold_pct[i], pct((double)s->within[i], (double)s->predictions));
	putchar('\n');
}

/* When each use starts. */
static int64_t *find_starts(const struct trace *t)
{
	int64_t *start = trace_get(t->uses, sizeof *start), *end = trace_get(t->uses, sizeof *end), now = 0;

	for (size_t i = 0; i < 2 * t->uses; i++) {
		uint32_t use = t->event[i].use;

		if (t->event[i].end) {
			now = end[use] > now ? end[use] : now;
		} else {
			now += t->use[use].compute_ns;
			start[use] = now;
			end[use] = now + t->use[use].length_ns;
		}
	}
	free(end);
	return start;
}

/* ------------------------------------------------------------------ contexts */

static uint64_t mix(uint64_t x) /* the finalizer of splitmix64 (Steele et al. 2014) */
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint64_t point(const struct use *u)
{
	return mix(u->call + mix(u->region));
}

struct context {
	uint64_t signature; /* 0: free */
	int64_t at_ns, last_ns, shortest_ns; /* its last start, and times between its starts; 0: not known */
};

static struct context *find_context(struct context *table, size_t mask, uint64_t signature)
{
	size_t i = signature & mask;

	while (table[i].signature && table[i].signature != signature)
		i = (i + 1) & mask;
	return &table[i];
}

static void by_context(const struct trace *t, const int64_t *start, unsigned points)
{
	struct context *table;
	struct score last = { 0 }, shortest = { 0 };
	size_t mask = 1;

	while (mask < 2 * t->uses)
		mask *= 2;
	table = trace_get(mask--, sizeof *table);
	for (size_t i = 0; i < t->uses; i++) {
		const struct use *u = &t->use[i];
		uint64_t signature = mix(u->stack + mix(u->region));

		for (unsigned k = 1; k <= points; k++)
			signature = mix(signature + (k <= i ? point(u - k) : 0));
		struct context *x = find_context(table, mask, signature);
		int64_t observed_ns = start[i] - x->at_ns;
		if (!x->signature) {
			*x = (struct context){ signature, start[i], 0, 0 };
			continue;
		}
		if (x->last_ns) {
			count(&last, (double)x->last_ns, (double)observed_ns);
			count(&shortest, (double)x->shortest_ns, (double)observed_ns);
		}
		if (!x->last_ns || observed_ns < x->shortest_ns)
			x->shortest_ns = observed_ns;
		x->last_ns = observed_ns;
		x->at_ns = start[i];
	}
	print(t, "last", points, &last);
	print(t, "shortest", points, &shortest);
	free(table);
}

/* ------------------------------------------------------------------ patterns */

static void by_pattern(const struct trace *t, const int64_t *start, size_t window)
{
	size_t *equal = trace_get(window, sizeof *equal); /* by m: so many of the last points equal those m before them */
	struct score s = { 0 };

	for (size_t i = 0; i < t->uses; i++) {
		size_t period = 0;

		for (size_t m = 1; m < window && m <= i; m++) {
			equal[m] = point(&t->use[i]) == point(&t->use[i - m]) ? equal[m] + 1 : 0;
			if (!period && equal[m] >= window)
				period = m;
		}
		if (!period || i + period >= t->uses)
			continue;
		bool comes = point(&t->use[i + period]) == point(&t->use[i]);
		count(&s, comes ? (double)(start[i] - start[i - period]) : INFINITY, (double)(start[i + period] - start[i]));
	}
	print(t, "period", (unsigned)window, &s);
	free(equal);
}

static void predict(const char *path)
{
	struct trace t;
	int64_t *start;

	trace_read(path, &option, &t);
	start = find_starts(&t);
	for (unsigned points = 0; points <= CONTEXT_POINTS_MAX; points++)
		by_context(&t, start, points);
	for (size_t window = PATTERN_MIN; window <= PATTERN_MAX; window *= 2)
		by_pattern(&t, start, window);
	free(start);
	trace_free(&t);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	double ms;

	switch (key) {
	case 't':
		option.wall = !strcmp(arg, "wall");
		if (!option.wall && strcmp(arg, "cpu"))
			argp_error(state, "not known: %s", arg);
		break;
	case 'c':
		numbers(state, arg, &ms, 1, 0);
		option.cap_ns = ms * 1e6;
		break;
	case ARGP_KEY_ARG: predict(arg); break;
	case ARGP_KEY_NO_ARGS: argp_usage(state); break;
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "time", 't', "cpu|wall", 0, "Which clock measures computing (cpu)", 0 },
		{ "cap", 'c', "MS", 0, "What a call lasts at most (2); 0: as long as it did", 0 },
		{ 0 }
	};
	static const struct argp argp = { options, parse, "TRACE...",
					  "How well the next time of a registration is predicted.", NULL, NULL, NULL };

	argp_err_exit_status = 1;
	error_t err = argp_parse(&argp, argc, argv, 0, NULL, NULL);
	return err || fflush(stdout) || ferror(stdout) ? 1 : 0;
}
