/*
 * Communication traces that follow from a rule, in the format of recorded ones:
 *
 *	shapes [-j JITTER] [-s SEED] [-n ITERATIONS] [-k KIND] NAME >FILE
 *
 * bt, sp, lu, cg and ft have the calls of NAS benchmarks of class D on four nodes: how many, of what size, with what
 * computing in between. zipf puts single blocks, of which some are popular, in bursts; noreuse uses every buffer once;
 * fig1 is the program of Figure 1 and nested the one of Figure 4 of Li et al. 2011; phase changes its period three
 * times; thrash uses 64 buffers that come back sooner than they can be given back and had again; halo and transpose
 * exchange faces of a cube and blocks of a matrix. -j is how far computing times vary (0.01: by up to 1 %, or by a
 * log-normal factor of that sigma with -k lognormal).
 *
 * Transfers last what their bytes take at 1.2 GB/s, up to 28 ms: such a trace wants replay -c 0.
 */
#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KiB ((uint64_t)1 << 10)
#define MiB ((uint64_t)1 << 20)
#define NS_PER_BYTE (1e9 / 1.2e9)
#define MEMORY_START UINT64_C(0x100000000) /* of the first buffer */
#define MEMORY_EACH UINT64_C(0x10000000) /* from one buffer to the next: more than any is long */

#define SEED_SCALE UINT64_C(0x9e3779b97f4a7c15) /* near seeds, far apart */

static double jitter = 0.01;
static bool lognormal;
static uint64_t seed = SEED_SCALE; /* odd, so never 0 */
static int iterations; /* 0: the shape's own number */
static double clock_ns, cpu_ns;
static uint64_t calls;

static double uniform(void) /* in [0, 1); xorshift64* (Vigna 2016) */
{
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return (double)(seed * UINT64_C(2685821657736338717) >> 11) * 0x1p-53;
}

static double exponential(double mean)
{
	return -mean * log(1 - uniform());
}

static double normal(void) /* Box and Muller 1958 */
{
	double radius = sqrt(-2 * log(1 - uniform()));

	return radius * cos(2 * M_PI * uniform());
}

static double varied(double s, double by)
{
	return lognormal ? s * exp(by * normal()) : s * (1 + by * (2 * uniform() - 1));
}

/* The next call: at call site `site`, after `compute_s` of computing. */
static void call_in(char direction, double compute_s, int site, int buffer, uint64_t bytes, double ns)
{
	double start;

	if (calls++) {
		clock_ns += compute_s * 1e9;
		cpu_ns += compute_s * 1e9;
	}
	start = clock_ns;
	clock_ns += ns;
	printf("%" PRIu64 ",%.0f,%.0f,%.0f,%s,%c,", calls, start, clock_ns, cpu_ns, direction == 'S' ? "Send" : "Recv",
	       direction);
	printf("%" PRIx64 ",%" PRIu64 ",%" PRIu64 ",0,%x,0,0,0\n",
	       MEMORY_START + MEMORY_EACH * (uint64_t)buffer, bytes, bytes, 0x1000 + 16 * site);
}

static void call_lasting(double compute_s, int site, int buffer, uint64_t bytes, double ns)
{
	call_in('S', compute_s, site, buffer, bytes, ns);
}

static void call(double compute_s, int site, int buffer, uint64_t bytes)
{
	call_lasting(compute_s, site, buffer, bytes, (double)bytes * NS_PER_BYTE);
}

static int times(int n)
{
	return iterations ? iterations : n;
}

static void bt(void) /* six faces each way, back to back; then three solves, two exchanges each way */
{
	for (int i = 0; i < times(60); i++) {
		for (int k = 0; k < 12; k++)
			call(varied(k ? 0.0005 : 0.1, jitter), k, k, 8 * MiB);
		for (int k = 0; k < 12; k++)
			call(varied(k % 2 ? 0.002 : 0.11, jitter), 12 + k, 12 + k, 5 * MiB);
	}
}

static void sp(void) /* the solves share their buffers */
{
	for (int i = 0; i < times(120); i++) {
		for (int k = 0; k < 12; k++)
			call(varied(k ? 0.0003 : 0.03, jitter), k, k, 6 * MiB);
		for (int k = 0; k < 6; k++)
			call(varied(0.03, jitter), 12 + k, 12 + k % 2, 6 * MiB);
	}
}

static void lu(void) /* only one of its exchanges is large */
{
	for (int i = 0; i < times(120); i++) {
		for (int k = 0; k < 4; k++)
			call(varied(k ? 0.001 : 0.62, jitter), k, k, 10 * MiB);
		call_lasting(varied(0.05, jitter), 4, 4, 64 * KiB, 100000);
	}
}

static void cg(void) /* two vectors in the inner loop, a third after it */
{
	for (int i = 0; i < times(20); i++) {
		for (int k = 0; k < 25; k++) {
			call(varied(0.045, jitter), 0, 0, 6 * MiB);
			call(varied(0.004, jitter), 1, 1, 6 * MiB);
			call(varied(0.012, jitter), 2, 1, 6 * MiB);
		}
		call(varied(0.3, jitter), 3, 2, 6 * MiB);
	}
}

static void ft(void) /* all to all between two arrays, which change roles */
{
	for (int i = 0; i < times(20); i++) {
		for (int k = 0; k < 3; k++) {
			call(varied(k ? 0.001 : 3.6, jitter), k, 3 * (i % 2) + k, 34 * MiB);
			call(varied(0.0005, jitter), 3 + k, 3 * !(i % 2) + k, 34 * MiB);
		}
	}
}

static void zipf(void)
{
	enum { BLOCKS = 200 };
	double upto[BLOCKS], sum = 0;

	for (int k = 0; k < BLOCKS; k++)
		upto[k] = sum += pow(k + 1, -0.9);
	for (int n = times(2000); n > 0;) {
		double gap = exponential(0.25);
		int burst = 1 + (int)(8 * uniform());

		for (int k = 0; k < burst; k++, n--) {
			double at = sum * uniform();
			int block = 0;

			while (block < BLOCKS - 1 && upto[block] < at)
				block++;
			call(k ? 0.0002 : gap, 0, block, 2 * MiB);
		}
	}
}

static void noreuse(void)
{
	for (int i = 0; i < 3 * times(100); i++)
		call(1, i % 3, i, 4 * MiB);
}

static void fig1(void)
{
	for (int i = 0; i < times(100); i++)
		for (int k = 0; k < 3; k++)
			call(varied(1, jitter), k, k, 5 * MiB);
}

static void nested(void)
{
	for (int i = 0; i < times(40); i++) {
		for (int k = 0; k < 10; k++)
			call(varied(0.02, jitter), 0, 0, 16 * MiB);
		for (int k = 0; k < 10; k++)
			call(varied(0.05, jitter), 1, 1, 16 * MiB);
	}
}

static void phase(void)
{
	static const double period[] = { 0.2, 0.4, 0.1, 0.4 };

	for (int p = 0; p < 4; p++)
		for (int i = 0; i < times(60); i++)
			for (int k = 0; k < 4; k++)
				call(varied(period[p] / 4, jitter), k, k, 8 * MiB);
}

static void thrash(void)
{
	for (int i = 0; i < times(400); i++)
		for (int k = 0; k < 64; k++)
			call_lasting(varied(0.00003, 0.3), k, k, 1 * MiB, 30000);
}

static void exchange(double compute_s, int site, int buffer, uint64_t bytes)
{
	call(compute_s, site, buffer, bytes);
	call_in('R', 0, site + 1, buffer + 1, bytes, (double)bytes * NS_PER_BYTE);
}

static void halo(void) /* six faces of 256^3 numbers, each sent and received */
{
	for (int i = 0; i < times(100); i++)
		for (int k = 0; k < 6; k++)
			exchange(varied(k ? 0.0002 : 0.05, jitter), 2 * k, 2 * k, 512 * KiB);
}

static void transpose(void) /* 15 blocks to others and from them, of a matrix that is computed with in between */
{
	for (int i = 0; i < times(60); i++)
		for (int k = 0; k < 15; k++)
			exchange(varied(k ? 0.0002 : 0.2, jitter), 2 * k, 2 * k, 1 * MiB);
}

static const struct shape {
	const char *name;
	void (*print)(void);
} shapes[] = {
	{ "bt", bt },	  { "sp", sp },		  { "lu", lu },	    { "cg", cg },	  { "ft", ft },
	{ "zipf", zipf }, { "noreuse", noreuse }, { "fig1", fig1 }, { "nested", nested }, { "phase", phase },
	{ "thrash", thrash }, { "halo", halo },	  { "transpose", transpose },
};
static const struct shape *chosen;

static double number(struct argp_state *state, const char *arg, double most)
{
	char *end;
	double n = strtod(arg, &end);

	if (end == arg || *end || !(n >= 0 && n <= most))
		argp_error(state, "not understood: %s", arg);
	return n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	switch (key) {
	case 'j': jitter = number(state, arg, 1); break;
	case 's': seed = (2 * (uint64_t)number(state, arg, 1e9) + 1) * SEED_SCALE; break;
	case 'n': iterations = (int)number(state, arg, 1e6); break;
	case 'k':
		lognormal = !strcmp(arg, "lognormal");
		if (!lognormal && strcmp(arg, "uniform"))
			argp_error(state, "not known: %s", arg);
		break;
	case ARGP_KEY_ARG:
		if (state->arg_num)
			argp_usage(state);
		for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
			if (!strcmp(shapes[i].name, arg))
				chosen = &shapes[i];
		if (!chosen)
			argp_error(state, "no shape %s", arg);
		break;
	case ARGP_KEY_NO_ARGS: argp_usage(state); break;
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "jitter", 'j', "SHARE", 0, "How far computing times vary (0.01)", 0 },
		{ "kind", 'k', "uniform|lognormal", 0, "How they vary (uniform)", 0 },
		{ "seed", 's', "N", 0, "Of random numbers (0)", 0 },
		{ "iterations", 'n', "N", 0, "Time steps, or of zipf calls (the shape's own)", 0 },
		{ 0 }
	};
	static const struct argp argp = { options, parse, "bt|sp|lu|cg|ft|zipf|noreuse|fig1|nested|phase|thrash|halo|transpose",
					  "Write a communication trace that follows from a rule.", NULL, NULL, NULL };

	argp_err_exit_status = 1;
	if (argp_parse(&argp, argc, argv, 0, NULL, NULL))
		return 1;
	puts("seq,t_start(ns),t_end(ns),cpu_app(ns),op,dir,addr(hex),len(bytes),payload(bytes),peer,f0(hex),f1,f2,f3");
	chosen->print();
	return fflush(stdout) || ferror(stdout);
}
