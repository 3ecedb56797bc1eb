/* link: ibverbs */
/*
 * Messages from memory that is registered on demand, over a verbs device (Li et al. 2016, figures 2 and 3).
 *
 *	pagingverbs [-r ROUNDS] [DEVICE]
 *
 * One process has both ends, and sends and receives. On demand, the device does not know the pages of the buffers when
 * a measurement begins, but the kernel has them. Prints lines of figures (subject, name, value, unit), one for each of
 * ROUNDS (5) after one that only warms up:
 *
 *	pin, demand		latency.SIZE		half a round trip, the mean of a few, of which the first one faults
 *	pin, demand		bandwidth.SIZE		of messages one after the other, the same
 *	pin, demand		iteration.N		the N-th message of 1 MiB
 *	first, mean, call	prefetch.SIZE		bringing the buffer in: the first, the mean of five, and without waiting
 *	fault			prefetch.SIZE		what a message takes longer if both ends fault
 *	neither, sender, receiver, both, pin
 *				prefetched.SIZE		one message, one way, whose memory was brought in at these ends
 *	rc			post, latency, gap, byte	of messages of 8 bytes, in ns: o_post, l, g; and G
 *
 * Exit status 2: the device does not register on demand.
 */
#include "ends.h"

/* Few messages of each size: an emulated processor copies so slowly that a fault would be lost in the mean of many. */
enum { MESSAGES = 8, WINDOWS = 2, ITERATIONS = 10, PREFETCHES = 5 };
enum { SAMPLES = 20, SMALL = 8 }; /* for the terms: messages, and bytes of each */
#define LARGEST MiB

static const size_t sizes[] = { 1, 16, 256, 4 * KiB, 8 * KiB, 16 * KiB, 64 * KiB, 256 * KiB, MiB };
static const size_t prefetched[] = { 16, 4 * KiB, 16 * KiB, 64 * KiB, 256 * KiB, MiB };
#define COUNT(a) (sizeof(a) / sizeof *(a))

static struct ibv_pd *pd;
static struct end ends[2];
static int round_now; /* below 0: not shown */

static void figure(const char *subject, const char *name, double value, const char *unit)
{
	if (round_now >= 0)
		printf("figure %s %s %.6g %s\n", subject, name, value, unit);
}

static void figure_of(const char *subject, const char *what, size_t size, double value, const char *unit)
{
	char name[64];

	if (size >= MiB)
		snprintf(name, sizeof name, "%s.%zuM", what, size / MiB);
	else if (size >= KiB)
		snprintf(name, sizeof name, "%s.%zuK", what, size / KiB);
	else
		snprintf(name, sizeof name, "%s.%zu", what, size);
	figure(subject, name, value, unit);
}

static void lose(enum way w, size_t len)
{
	for (int i = 0; i < 2 && w == DEMAND; i++)
		ends_lose(&ends[i], len);
}

/* ------------------------------------------------------------------ messages */

static double one_way_ns(enum way w, size_t len)
{
	double start, taken;

	ends_receive(&ends[1], w, 0, len);
	start = now_ns();
	ends_send(&ends[0], w, 0, len);
	ends_await(&ends[1], ends[1].sent, ends[1].received + 1);
	taken = now_ns() - start;
	ends_await(&ends[0], ends[0].sent + 1, ends[0].received);
	return taken;
}

/* Half of a round trip. */
static double latency_ns(enum way w, size_t len)
{
	const unsigned sent[] = { ends[0].sent + 1, ends[1].sent + 1 };
	double start, taken;

	ends_receive(&ends[0], w, 0, len);
	ends_receive(&ends[1], w, 0, len);
	start = now_ns();
	ends_send(&ends[0], w, 0, len);
	ends_await(&ends[1], ends[1].sent, ends[1].received + 1);
	ends_send(&ends[1], w, 0, len);
	ends_await(&ends[0], ends[0].sent, ends[0].received + 1);
	taken = now_ns() - start;
	for (int i = 0; i < 2; i++)
		ends_await(&ends[i], sent[i], ends[i].received);
	return taken / 2;
}

/* Of ENDS_QUEUE messages, posted at once. */
static double window_ns(enum way w, size_t len)
{
	const double start = now_ns();

	for (int i = 0; i < ENDS_QUEUE; i++)
		ends_receive(&ends[1], w, 0, len);
	for (int i = 0; i < ENDS_QUEUE; i++)
		ends_send(&ends[0], w, 0, len);
	ends_await(&ends[1], ends[1].sent, ends[1].received + ENDS_QUEUE);
	ends_await(&ends[0], ends[0].sent + ENDS_QUEUE, ends[0].received);
	return now_ns() - start;
}

/* ------------------------------------------------------------------ figure 2 */

/* As in the paper the buffers are as long as the longest message, and sizes grow: a size faults where it is the first
 * to reach a page. */
static void measure_sizes(enum way w)
{
	lose(w, LARGEST);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		double ns = 0;

		for (int n = 0; n < MESSAGES; n++)
			ns += latency_ns(w, sizes[i]);
		figure_of(way_names[w], "latency", sizes[i], ns / MESSAGES / 1e3, "us");
	}
	lose(w, LARGEST);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		double ns = 0;

		for (int n = 0; n < WINDOWS; n++)
			ns += window_ns(w, sizes[i]);
		figure_of(way_names[w], "bandwidth", sizes[i], (double)(WINDOWS * ENDS_QUEUE * sizes[i]) / ns * 1e3, "MB/s");
	}
}

/* ------------------------------------------------------------------ figure 3 */

static void measure_iterations(enum way w)
{
	char name[32];

	lose(w, LARGEST);
	for (int n = 1; n <= ITERATIONS; n++) {
		snprintf(name, sizeof name, "iteration.%d", n);
		figure(way_names[w], name, latency_ns(w, LARGEST) / 1e3, "us");
	}
}

static double bring_ns(int end, size_t len, bool wait)
{
	const double start = now_ns();

	check(ends_bring(pd, &ends[end], len, wait), "ibv_advise_mr");
	return now_ns() - start;
}

static void measure_prefetch(size_t len)
{
	double first, all;

	lose(DEMAND, len);
	all = first = bring_ns(0, len, true);
	for (int i = 1; i < PREFETCHES; i++)
		all += bring_ns(0, len, true);
	figure_of("first", "prefetch", len, first / 1e3, "us");
	figure_of("mean", "prefetch", len, all / PREFETCHES / 1e3, "us");
	lose(DEMAND, len);
	figure_of("call", "prefetch", len, bring_ns(0, len, false) / 1e3, "us");
	bring_ns(0, len, true); /* what was not waited for does not run on */
}

static void measure_prefetched(size_t len)
{
	static const char *const where[] = { "neither", "sender", "receiver", "both" };
	double ns[COUNT(where)];

	for (unsigned at = 0; at < COUNT(where); at++) {
		lose(DEMAND, len);
		for (int i = 0; i < 2; i++)
			if (at & (i ? 2u : 1u))
				bring_ns(i, len, true);
		ns[at] = one_way_ns(DEMAND, len);
		figure_of(where[at], "prefetched", len, ns[at] / 1e3, "us");
	}
	figure_of("pin", "prefetched", len, one_way_ns(PIN, len) / 1e3, "us");
	figure_of("fault", "prefetch", len, (ns[0] - ns[COUNT(where) - 1]) / 1e3, "us");
}

/* ------------------------------------------------------------------ the terms of LogGP */

static double post_ns(void)
{
	double start, taken;

	ends_receive(&ends[1], PIN, 0, SMALL);
	start = now_ns();
	ends_send(&ends[0], PIN, 0, SMALL);
	taken = now_ns() - start;
	ends_await(&ends[1], ends[1].sent, ends[1].received + 1);
	ends_await(&ends[0], ends[0].sent + 1, ends[0].received);
	return taken;
}

static void measure_terms(void)
{
	double post[SAMPLES], way[SAMPLES], gap[SAMPLES], byte[3], p, l;

	for (int i = 0; i < SAMPLES; i++) {
		post[i] = post_ns();
		way[i] = latency_ns(PIN, SMALL);
		gap[i] = window_ns(PIN, SMALL) / ENDS_QUEUE;
	}
	for (size_t i = 0; i < COUNT(byte); i++)
		byte[i] = (one_way_ns(PIN, MiB) - one_way_ns(PIN, 64 * KiB)) / (double)(MiB - 64 * KiB);
	p = median(post, SAMPLES);
	l = median(way, SAMPLES) - p;
	figure("rc", "post", p, "ns");
	figure("rc", "latency", l > 0 ? l : 0, "ns");
	figure("rc", "gap", median(gap, SAMPLES), "ns");
	figure("rc", "byte", median(byte, COUNT(byte)), "ns");
}

int main(int argc, char **argv)
{
	int option, rounds = 5;

	while ((option = getopt(argc, argv, "r:")) != -1) {
		if (option != 'r' || (rounds = atoi(optarg)) < 1)
			return 1;
	}
	pd = rc_open(argv[optind]);
	if (!ends_on_demand(pd)) {
		printf("%s does not register on demand\n", ibv_get_device_name(pd->context->device));
		return 2;
	}
	ends_connect(pd, ends);
	for (int i = 0; i < 2; i++)
		for (int w = 0; w < WAYS; w++)
			ends_register(pd, &ends[i], (enum way)w, LARGEST);
	for (round_now = -1; round_now < rounds; round_now++) {
		for (int w = 0; w < WAYS; w++) { /* in turn: what else the machine does changes */
			measure_sizes((enum way)w);
			measure_iterations((enum way)w);
		}
		for (size_t i = 0; i < COUNT(prefetched); i++) {
			measure_prefetch(prefetched[i]);
			measure_prefetched(prefetched[i]);
		}
		measure_terms();
		fflush(stdout);
	}
	return 0;
}
