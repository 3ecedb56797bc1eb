/*
 * What malloc costs, one workload a run:
 *
 *	alloc [-q] [-s SEED] WORKLOAD [ARGUMENT...]
 *
 * A plain C program that knows nothing of the allocator under test: that comes by LD_PRELOAD (bench/run-alloc).
 * It prints "name value unit" lines; a value that this machine cannot give is "-". -q measures for a shorter time.
 * Sequences of sizes depend on SEED alone, so every allocator sees the same.
 *
 * The program itself allocates nothing but what it measures; it reads files with plain system calls.
 */
#include "counters.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)
#define GiB ((size_t)1 << 30)
#define LIVE 1000 /* buffers alive at a time in the workloads with random sizes */

static bool quick;
static uint64_t seed = 1;

static _Noreturn void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void say(const char *name, const char *part, double value, const char *unit)
{
	if (isnan(value))
		printf("%s%s - %s\n", name, part, unit);
	else
		printf("%s%s %.7g %s\n", name, part, value, unit);
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static long faults(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_minflt + u.ru_majflt;
}

static double median(double *v, size_t n)
{
	for (size_t i = 1; i < n; i++) /* insertion sort: qsort may allocate */
		for (size_t j = i; j && v[j - 1] > v[j]; j--) {
			double t = v[j];
			v[j] = v[j - 1];
			v[j - 1] = t;
		}
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* The ns that one of run's operations takes: the median of chunks of a millisecond or more. Finding out how many
 * operations fill a millisecond is the warm-up. The page faults of one operation go to measured_faults. */
static double measured_faults;

static double measure(void (*run)(size_t size, long n), size_t size)
{
	double budget = quick ? 15e6 : 80e6, total = 0, v[101];
	size_t samples = 0;
	long n = 1;

	run(size, 1); /* another bench measures how the kernel zeroes new pages */
	for (;; n *= 2) {
		double t = now_ns();
		run(size, n);
		if (now_ns() - t >= 1e6)
			break;
	}
	long f = faults();
	while (samples < 101 && (samples < 3 || total < budget)) {
		double t = now_ns();
		run(size, n);
		t = now_ns() - t;
		total += t;
		v[samples++] = t / (double)n;
	}
	measured_faults = (double)(faults() - f) / (double)(n * (long)samples);
	return median(v, samples);
}

static uint64_t next_random(uint64_t *state) /* xorshift64* (Vigna 2016) */
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(2685821657736338717);
}

/* Sizes from `least` to `most`, their logarithms uniform. A table, so that drawing one costs next to nothing. */
static uint32_t sizes[4096];

static void fill_sizes(size_t least, size_t most)
{
	uint64_t r = seed * 977 + 5;

	for (int i = 0; i < 4096; i++) {
		double u = (double)(next_random(&r) >> 11) * 0x1p-53;
		sizes[i] = (uint32_t)((double)least * pow((double)most / (double)least, u));
	}
}

static size_t random_size(uint64_t *state)
{
	return sizes[next_random(state) >> 52];
}

static void *get(size_t size)
{
	void *p = malloc(size);

	if (!p)
		fail("malloc");
	return p;
}

static void touch(void *p, size_t from, size_t to)
{
	for (size_t i = from; i < to; i += 4096)
		((volatile char *)p)[i] = 1;
}

/* ------------------------------------------------------------------ one size */

static void run_pairs(size_t size, long n)
{
	for (long i = 0; i < n; i++)
		free(get(size));
}

static void run_touched(size_t size, long n)
{
	for (long i = 0; i < n; i++) {
		char *p = get(size);
		touch(p, 0, size);
		free(p);
	}
}

static void run_batches(size_t size, long n)
{
	void *p[64];

	for (long i = 0; i < n; i++) {
		for (int k = 0; k < 64; k++)
			p[k] = get(size);
		for (int k = 0; k < 64; k++)
			free(p[k]);
	}
}

static void fresh(void)
{
	static char *p[1024];
	long f = faults();
	double t = now_ns();

	for (int i = 0; i < 1024; i++) {
		p[i] = get(MiB);
		touch(p[i], 0, MiB);
	}
	say("fresh.1G", "", (now_ns() - t) / 1e6, "ms");
	say("fresh.1G", ".faults", (double)(faults() - f), "n");
	t = now_ns();
	for (int i = 0; i < 1024; i++)
		free(p[i]);
	say("fresh.1G", ".free", (now_ns() - t) / 1e6, "ms");
}

/* ------------------------------------------------------------------ resident memory */

static double resident_in(const char *path, const char *own, const char *huge)
{
	char text[4096];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

	if (n <= 0)
		fail(path);
	close(fd);
	text[n] = 0;
	const char *a = strstr(text, own), *b = strstr(text, huge);
	if (!a || !b)
		fail(own);
	return (strtod(a + strlen(own), NULL) + strtod(b + strlen(huge), NULL)) * 1024;
}

/* The bytes that the process has in memory. The kernel counts hugetlb pages apart. */
static double resident_bytes(void)
{
	return resident_in("/proc/self/smaps_rollup", "\nRss:", "\nPrivate_Hugetlb:");
}

/* The same by the kernel's counters, which may be some dozen pages late: for programs that are timed. */
static double resident_now(void)
{
	return resident_in("/proc/self/status", "\nVmRSS:", "\nHugetlbPages:");
}

/* ------------------------------------------------------------------ random sizes, threads */

static struct {
	char *p;
	size_t size;
} live[LIVE];

static size_t live_bytes, live_peak;

static void replace(size_t i, size_t size, bool touched)
{
	free(live[i].p);
	live[i].p = get(size);
	live[i].size = size;
	if (touched)
		touch(live[i].p, 0, size);
}

/* Pairs of each size in one process. Before each: pairs of all the others ("sizes"), or buffers of random sizes that
 * were replaced at random and of which every other is still alive ("mixed"). */
static void after(const char *name, const char *which)
{
	enum { LEAST = 15, SIZES = 12, MIXED = 200 }; /* 32 KiB to 64 MiB */
	bool mixed = !strcmp(which, "mixed");
	uint64_t rng = seed;

	if (!mixed && strcmp(which, "sizes"))
		fail(which);
	fill_sizes(32 * KiB, 4 * MiB);
	for (int k = 0; k < SIZES; k++) {
		size_t size = (size_t)1 << (LEAST + k);
		char part[32];

		for (int i = 1; i < SIZES && !mixed; i++)
			run_pairs((size_t)1 << (LEAST + (k + i) % SIZES), i < 6 ? 1000 : 100);
		for (int i = 0; i < 10 * MIXED && mixed; i++)
			replace(i < MIXED ? (size_t)i : next_random(&rng) % MIXED, random_size(&rng), false);
		for (int i = 0; i < MIXED && mixed; i += 2) {
			free(live[i].p);
			live[i].p = NULL;
		}
		snprintf(part, sizeof part, size < MiB ? ".%zuK" : ".%zuM", size < MiB ? size / KiB : size / MiB);
		say(name, part, measure(run_pairs, size), "ns");
	}
}

static pthread_barrier_t start;

struct worker {
	pthread_t thread;
	uint64_t rng;
	size_t first, count; /* the worker's part of live[] */
	long ops;
	bool touched;
	double began, ended;
};

static void *replace_at_random(void *arg)
{
	struct worker *w = arg;

	for (size_t i = 0; i < w->count; i++)
		replace(w->first + i, random_size(&w->rng), w->touched);
	for (size_t i = 0; i < 2 * w->count; i++) /* until the heap is mixed */
		replace(w->first + next_random(&w->rng) % w->count, random_size(&w->rng), w->touched);
	pthread_barrier_wait(&start);
	w->began = now_ns();
	for (long i = 0; i < w->ops; i++)
		replace(w->first + next_random(&w->rng) % w->count, random_size(&w->rng), w->touched);
	w->ended = now_ns();
	return NULL;
}

static void random_sizes(const char *name, bool touched, size_t threads)
{
	static struct worker w[LIVE];
	long ops = (touched ? 20000 : 200000) / (quick ? 4 : 1);
	double began = INFINITY, ended = 0;

	fill_sizes(32 * KiB, 4 * MiB);
	pthread_barrier_init(&start, NULL, (unsigned)threads);
	long f = faults();
	for (size_t i = 0; i < threads; i++) {
		w[i] = (struct worker){ .rng = seed * 1000 + i + 1, .first = LIVE / threads * i, .touched = touched,
					.count = LIVE / threads, .ops = ops / (long)threads };
		if (pthread_create(&w[i].thread, NULL, replace_at_random, &w[i]))
			fail("pthread_create");
	}
	for (size_t i = 0; i < threads; i++) {
		pthread_join(w[i].thread, NULL);
		began = fmin(began, w[i].began);
		ended = fmax(ended, w[i].ended);
	}
	say(name, "", (ended - began) / (double)ops, "ns");
	say(name, ".faults", (double)(faults() - f) / (double)ops, "an op");
}

/* One thread allocates, and another frees. At most RING buffers are on their way. */
#define RING 256
static _Atomic(size_t *) ring[RING];

static void *consume(void *arg)
{
	long n = *(long *)arg;

	for (long i = 0; i < n; i++) {
		size_t *p;
		/* the size is written before the pointer; pairs with handover() */
		while (!(p = atomic_load_explicit(&ring[i % RING], memory_order_acquire)))
			sched_yield();
		if (*p < 32 * KiB)
			fail("a buffer's content was lost");
		/* the size has been read; pairs with handover() */
		atomic_store_explicit(&ring[i % RING], NULL, memory_order_release);
		free(p);
	}
	return NULL;
}

static void handover(void)
{
	uint64_t rng = seed;
	long n = quick ? 30000 : 150000;
	pthread_t t;

	fill_sizes(32 * KiB, 4 * MiB);
	if (pthread_create(&t, NULL, consume, &n))
		fail("pthread_create");
	double began = now_ns();
	for (long i = 0; i < n; i++) {
		size_t size = random_size(&rng), *p = get(size);
		*p = size;
		/* the slot's previous buffer is taken; pairs with consume() */
		while (atomic_load_explicit(&ring[i % RING], memory_order_acquire))
			sched_yield();
		/* pairs with consume() */
		atomic_store_explicit(&ring[i % RING], p, memory_order_release);
	}
	pthread_join(t, NULL);
	say("handover", "", (now_ns() - began) / (double)n, "ns");
}

/* A server's buffers, after Larson and Krishnan 1998: each thread replaces buffers of its own at random, and writes to
 * the first bytes of each. After some time it ends, and a new thread goes on with the same buffers. */
#define SLOTS_MAX 20000
static char *slots[SLOTS_MAX];

static void *serve(void *arg)
{
	struct worker *w = arg;

	for (long i = 0; i < w->ops; i++) {
		char **slot = &slots[w->first + next_random(&w->rng) % w->count];
		free(*slot);
		*slot = get(random_size(&w->rng));
		((volatile char *)*slot)[0] = 'a';
		((volatile char *)*slot)[1] = 'b';
	}
	return NULL;
}

static void larson(const char *name, const char *which, size_t threads)
{
	static struct worker w[LIVE];
	bool large = !strcmp(which, "large");
	size_t each = large ? 300 : 5000; /* more of the large ones, and glibc trims its heap all the time */
	long ops = (large ? 10000 : 200000) / (quick ? 4 : 1);
	uint64_t rng = seed;

	if ((!large && strcmp(which, "small")) || !threads || each * threads > SLOTS_MAX)
		fail(which);
	for (int i = 0; i < 4096; i++) /* sizes are uniform, as Larson's are */
		sizes[i] = (uint32_t)(large ? 32 * KiB + next_random(&rng) % (480 * KiB) : 8 + next_random(&rng) % 992);
	for (size_t i = 0; i < each * threads; i++)
		slots[i] = get(random_size(&rng));
	for (size_t i = each * threads; i > 1; i--) { /* no thread has neighbours only */
		size_t k = next_random(&rng) % i;
		char *p = slots[k];
		slots[k] = slots[i - 1];
		slots[i - 1] = p;
	}
	for (size_t i = 0; i < threads; i++)
		w[i] = (struct worker){ .rng = seed * 1000 + i + 1, .first = each * i, .count = each, .ops = ops };
	double v[10];
	for (int generation = 0; generation < 10; generation++) {
		double t = now_ns();
		for (size_t i = 0; i < threads; i++)
			if (pthread_create(&w[i].thread, NULL, serve, &w[i]))
				fail("pthread_create");
		for (size_t i = 0; i < threads; i++)
			pthread_join(w[i].thread, NULL);
		v[generation] = (now_ns() - t) / (double)(ops * (long)threads);
	}
	say(name, "", median(v, 10), "ns");
}

/* Large buffers of which little is touched, from producers to consumers in batches: xmalloc-test (Lever and Boreham
 * 2000) with 1 MiB, of which 128 bytes are written. Values and length of a batch are its own: the heap cannot tell zeros
 * from memory that was not touched (alloc/sparse.h). At most two batches are alive. */
#define BATCH 4096
static char *batches[2][BATCH];
static _Atomic bool batch_full[2];

static void *consume_batches(void *arg)
{
	long n = *(long *)arg;

	for (long b = 0; b < n; b++) {
		/* the batch is written before it is full; pairs with sparse() */
		while (!atomic_load_explicit(&batch_full[b % 2], memory_order_acquire))
			sched_yield();
		for (int i = 0; i < BATCH; i++)
			free(batches[b % 2][i]);
		/* the batch has been read; pairs with sparse() */
		atomic_store_explicit(&batch_full[b % 2], false, memory_order_release);
	}
	return NULL;
}

static void sparse(const char *name, size_t size)
{
	long n = quick ? 2 : 6;
	double most = 0;
	pthread_t t;

	if (pthread_create(&t, NULL, consume_batches, &n))
		fail("pthread_create");
	double began = now_ns();
	for (long b = 0; b < n; b++) {
		/* the consumer has taken the batch before; pairs with consume_batches() */
		while (atomic_load_explicit(&batch_full[b % 2], memory_order_acquire))
			sched_yield();
		for (int i = 0; i < BATCH; i++) {
			batches[b % 2][i] = get(size);
			memset(batches[b % 2][i], i % 256, 128);
		}
		most = fmax(most, resident_now());
		/* pairs with consume_batches() */
		atomic_store_explicit(&batch_full[b % 2], true, memory_order_release);
	}
	pthread_join(t, NULL);
	say(name, "", (now_ns() - began) / 1e6, "ms");
	say(name, ".peak", most / (double)MiB, "MiB");
}

/* ------------------------------------------------------------------ vectors */

/* How vectors grow: `count` of them in turn, from 64 KiB to `most`, each step size * num / den + plus. `blocked`: a
 * buffer is allocated after each step, most likely where the vector would have grown to. */
static const struct growth {
	const char *name;
	size_t count, most, num, den, plus;
	bool blocked;
} growths[] = {
	{ "1.5x", 1, 512 * MiB, 3, 2, 0, false },
	{ "64K", 1, 128 * MiB, 1, 1, 64 * KiB, false },
	{ "1.25x-blocked", 1, 256 * MiB, 5, 4, 0, true },
	{ "2-64K", 2, 64 * MiB, 1, 1, 64 * KiB, false },
	{ "2-1M", 2, 128 * MiB, 1, 1, MiB, false },
	{ "8-2x", 8, 64 * MiB, 2, 1, 0, false },
};

static double grow_once(const struct growth *g)
{
	static void *blocks[256];
	size_t nblocks = 0, size = 0;
	char *v[8] = { NULL };
	double t = now_ns();

	while (size < g->most) {
		size_t bigger = size ? size * g->num / g->den + g->plus : 64 * KiB;
		if (bigger > g->most)
			bigger = g->most;
		for (size_t i = 0; i < g->count; i++) {
			v[i] = realloc(v[i], bigger);
			if (!v[i])
				fail("realloc");
			touch(v[i], size, bigger);
			if (g->blocked)
				blocks[nblocks++] = get(64 * KiB);
		}
		size = bigger;
	}
	t = now_ns() - t;
	for (size_t i = 0; i < g->count; i++)
		free(v[i]);
	while (nblocks)
		free(blocks[--nblocks]);
	return t / 1e6;
}

/* .first: in a process that has not used its memory before; the other figure is with a used heap. */
static void grow(const char *name, const char *which)
{
	for (size_t i = 0; i < sizeof growths / sizeof *growths; i++)
		if (!strcmp(which, growths[i].name)) {
			double v[3], total = 0;
			size_t n = 0;
			say(name, ".first", grow_once(&growths[i]), "ms");
			for (; n < 3 && total < 1000; total += v[n++]) /* some allocators take seconds */
				v[n] = grow_once(&growths[i]);
			say(name, "", median(v, n), "ms");
			return;
		}
	fail(which);
}

/* ------------------------------------------------------------------ peak and decay */

static void replace_counted(size_t i, size_t size)
{
	live_bytes += size - live[i].size;
	replace(i, size, true);
	if (live_bytes > live_peak)
		live_peak = live_bytes;
}

/* 1000 live buffers of random sizes, replaced at random, all memory touched. Returns the most that was resident. */
static double mix(uint64_t *rng, int replacements)
{
	double most = 0;

	fill_sizes(32 * KiB, 4 * MiB);
	for (size_t i = 0; i < LIVE; i++)
		replace_counted(i, random_size(rng));
	for (int i = 0; i < replacements; i++) {
		replace_counted(next_random(rng) % LIVE, random_size(rng));
		if (i % 250 == 0 || i == replacements - 1)
			most = fmax(most, resident_bytes());
	}
	return most;
}

/* Buffers are freed in the order in which they came. */
static double first_in_first_out(uint64_t *rng, int replacements)
{
	double most = 0;

	fill_sizes(32 * KiB, 4 * MiB);
	for (int i = 0; i < replacements; i++) {
		replace_counted((size_t)i % LIVE, random_size(rng));
		if (i % 250 == 0 || i == replacements - 1)
			most = fmax(most, resident_bytes());
	}
	return most;
}

/* Sizes become larger by and by: of each phase, each buffer is replaced by some of the next. */
static double phases(uint64_t *rng, int replacements)
{
	double most = 0;

	for (size_t least = 32 * KiB; least < 4 * MiB; least *= 2) {
		fill_sizes(least, 2 * least);
		for (int i = 0; i < replacements / 7; i++) {
			replace_counted(next_random(rng) % (LIVE / 2), random_size(rng));
			if (i % 250 == 0)
				most = fmax(most, resident_bytes());
		}
	}
	return fmax(most, resident_bytes());
}

static void peak(const char *name, const char *which)
{
	uint64_t rng = seed;
	int replacements = quick ? 4000 : 20000;

	if (which && strcmp(which, "fifo") && strcmp(which, "phases"))
		fail(which);
	double most = !which ? mix(&rng, replacements) : !strcmp(which, "fifo") ? first_in_first_out(&rng, replacements)
										  : phases(&rng, replacements);

	say(name, ".resident-over-live", most / (double)live_peak, "x");
	if (which)
		return;
	for (size_t i = 0; i < LIVE; i++)
		if (next_random(&rng) % 10) {
			free(live[i].p);
			live_bytes -= live[i].size;
		}
	say("peak", ".after-free-90%", resident_bytes() / (double)live_bytes, "x");
}

/* The bytes that stay in memory after use and free, beyond those at the start. */
static void decay(unsigned seconds)
{
	uint64_t rng = seed;
	double at_start = resident_bytes();

	mix(&rng, 3000);
	for (size_t i = 0; i < LIVE; i++)
		free(live[i].p);
	say("decay", ".after-free-all", (resident_bytes() - at_start) / (double)MiB, "MiB");
	sleep(seconds);
	say("decay", ".after-the-decay-time", (resident_bytes() - at_start) / (double)MiB, "MiB");
}

/* ------------------------------------------------------------------ random access */

#define WORDS_SHIFT 27 /* of 8 bytes: 1 GiB */

/* All words are 0, which the compiler cannot know: the next address needs the value just loaded, or does not. */
static uint64_t walk(const uint64_t *m, long n, uint64_t x, bool dependent)
{
	uint64_t sum = 0;

	if (dependent)
		for (long i = 0; i < n; i++)
			x = x * UINT64_C(6364136223846793005) + 1442695040888963407 + m[x >> (64 - WORDS_SHIFT)];
	else
		for (long i = 0; i < n; i++) {
			sum += m[x >> (64 - WORDS_SHIFT)];
			x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		}
	return x + sum;
}

static uint64_t walk_on(const uint64_t *m, long n, bool dependent)
{
	static uint64_t x; /* each walk goes on where the last one ended, so that no two are alike */

	return x = walk(m, n, x, dependent);
}

static double time_walk(const uint64_t *m, bool dependent)
{
	long n = (dependent ? 400000 : 4000000) / (quick ? 4 : 1);

	if (!m)
		return NAN;
	double t = now_ns();
	walk_on(m, n, dependent);
	return (now_ns() - t) / (double)n;
}

/* The same GiB in the heap and in a hugetlb mapping made by hand, in turn. */
static void access_random(void)
{
	static double heap[5], plain[5], ratio[5];
	uint64_t *h = get(GiB), *p;

	memset(h, 0, GiB);
	p = mmap(NULL, GiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);
	if (p == MAP_FAILED)
		p = NULL;
	for (int dependent = 1; dependent >= 0; dependent--) {
		const char *name = dependent ? "access.dependent" : "access.independent";
		for (int i = 0; i < 5; i++) {
			heap[i] = time_walk(h, dependent);
			plain[i] = time_walk(p, dependent);
			ratio[i] = heap[i] / plain[i];
		}
		say(name, "", median(heap, 5), "ns");
		say(name, ".plain", median(plain, 5), "ns");
		say(name, ".over-plain", median(ratio, 5), "x");
	}
}

/* Count the dTLB misses of accesses to the heap's GiB, and the page faults of its first use (an op: 4 KiB). */
static void access_counted(void)
{
	counters_start();
	uint64_t *h = get(GiB);
	memset(h, 0, GiB);
	counters_stop("fill", 262144);
	counters_start();
	walk_on(h, 4000000, true);
	counters_stop("dependent", 4e6);
	counters_start();
	walk_on(h, 16000000, false);
	counters_stop("independent", 16e6);
}

/* ------------------------------------------------------------------ small requests */

#define SMALL_LIVE 10000

static void run_small_mix(size_t unused, long n)
{
	static char *p[SMALL_LIVE];
	static uint64_t rng;

	(void)unused;
	if (!rng)
		rng = seed;
	for (long i = 0; i < n; i++) {
		size_t size = random_size(&rng), k = next_random(&rng) % (SMALL_LIVE * 8);
		char **q = &p[k / 8];
		if (k % 8 == 0) {
			*q = realloc(*q, size);
		} else {
			free(*q);
			*q = k % 8 == 1 ? calloc(1, size) : malloc(size);
		}
		if (!*q)
			fail("malloc");
		memset(*q, 1, size);
	}
}

#define MANY 200000

/* Many buffers of 16 to 256 bytes, written to, then freed together in the order in which they came. */
static void run_many_small(size_t unused, long n)
{
	static char *p[MANY];
	uint64_t rng = seed;

	(void)unused;
	for (long k = 0; k < n; k++) {
		for (int i = 0; i < MANY; i++) {
			p[i] = get(random_size(&rng));
			p[i][0] = 1;
		}
		for (int i = 0; i < MANY; i++)
			free(p[i]);
	}
}

static void small(const char *name, const char *which)
{
	fill_sizes(16, !strcmp(which, "many") ? 256 : 2048);
	if (!strcmp(which, "pair"))
		say(name, "", measure(run_pairs, 64), "ns");
	else if (!strcmp(which, "many"))
		say(name, "", measure(run_many_small, 0) / MANY, "ns");
	else {
		run_small_mix(0, SMALL_LIVE * 20L);
		say(name, "", measure(run_small_mix, 0), "ns");
	}
}

/* ------------------------------------------------------------------ the rest of the process */

#define IN_USE (64 * MiB)

/* A byte by getc, in a program with one thread that has used large buffers. The C library takes a lock for each byte
 * once it knows of a second thread. */
static void read_bytes(const char *name)
{
	FILE *f = fopen("/proc/self/exe", "re");
	double v[21];
	long n = 0;

	if (!f)
		fail("/proc/self/exe");
	char *p = get(IN_USE);
	touch(p, 0, IN_USE);
	for (int i = 0; i < (quick ? 5 : 21); i++) {
		double t = now_ns();
		for (n = 0; n < 3000000; n++)
			if (getc(f) == EOF)
				rewind(f);
		v[i] = (now_ns() - t) / (double)n;
	}
	say(name, "", median(v, quick ? 5 : 21), "ns");
	free(p);
	fclose(f);
}

/* The time of a fork. `written`: then the parent writes to each of its pages while the child lives. */
static double fork_once(char **p, bool written)
{
	int go[2];
	char c = 0;

	if (pipe(go))
		fail("pipe");
	double t = now_ns();
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (!child) {
		close(go[1]);
		_exit(read(go[0], &c, 1) != 0); /* until the parent closes its end */
	}
	for (size_t i = 0; written && i < IN_USE / MiB; i++)
		touch(p[i], 0, MiB);
	t = now_ns() - t;
	close(go[1]);
	close(go[0]);
	waitpid(child, NULL, 0);
	return t / 1e6;
}

static void forks(const char *name)
{
	static char *p[IN_USE / MiB];
	double v[2][11];
	int n = quick ? 5 : 11;

	for (size_t i = 0; i < IN_USE / MiB; i++) {
		p[i] = get(MiB);
		touch(p[i], 0, MiB);
	}
	say(name, ".first", fork_once(p, false), "ms");
	for (int i = 0; i < n; i++) {
		v[0][i] = fork_once(p, false);
		v[1][i] = fork_once(p, true);
	}
	say(name, "", median(v[0], (size_t)n), "ms");
	say(name, ".written", median(v[1], (size_t)n), "ms");
}

/* A process from its start to its end. The environment hands the preloaded library on to it. */
static void processes(const char *name)
{
	enum { SAMPLES = 101 };
	static double v[SAMPLES];
	char *argv[] = { "true", NULL };
	size_t n = quick ? 31 : SAMPLES;
	int status;

	for (size_t i = 0; i < n; i++) {
		pid_t child;
		double t = now_ns();
		if (posix_spawn(&child, "/bin/true", NULL, NULL, argv, environ))
			fail("/bin/true");
		if (waitpid(child, &status, 0) != child || status)
			fail("/bin/true did not succeed");
		v[i] = (now_ns() - t) / 1e6;
	}
	say(name, "", median(v, n), "ms");
}

/* ------------------------------------------------------------------ preparation */

/* Touch the whole free pool and 3 GiB of ordinary memory once: in a virtual machine the first touch of a page that the
 * host has taken back costs several times the guest's own fault, whoever makes it. */
static void warm(void)
{
	size_t touched = 0;

	for (size_t left = 4 * KiB; left--; touched++) {
		char *p = mmap(NULL, 2 * MiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
		if (p == MAP_FAILED)
			break;
		*(volatile char *)p = 1;
	}
	say("warm", ".pool-pages", (double)touched, "n");
	fflush(stdout);
	size_t ordinary = 3 * GiB, half = (size_t)sysconf(_SC_AVPHYS_PAGES) / 2 * 4096;
	if (ordinary > half)
		ordinary = half;
	char *p = mmap(NULL, ordinary, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	touch(p, 0, ordinary);
	say("warm", ".ordinary", (double)(ordinary / MiB), "MiB");
}

static size_t parse_size(const char *text)
{
	char *end;
	size_t n = strtoul(text, &end, 10);

	return n << (*end == 'K' ? 10 : *end == 'M' ? 20 : 0);
}

static _Noreturn void usage(void)
{
	fputs("usage: alloc [-q] [-s SEED] WORKLOAD [ARGUMENT...]\n"
	      "  pair|batch|touch SIZE    after sizes|mixed    fresh    random touched|untouched tTHREADS    handover\n"
	      "  larson large|small tTHREADS    sparse SIZE    grow 1.5x|64K|1.25x-blocked|2-64K|2-1M|8-2x    peak [fifo|phases]\n"
	      "  decay SECONDS    access    small pair|mixed|many    getc    fork64M    start    repeat SIZE COUNT [SIZE-BEFORE]    warm\n",
	      stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	static char out[BUFSIZ];
	char name[64];
	int c;

	setvbuf(stdout, out, _IOFBF, sizeof out); /* stdio's own buffer would be malloc'ed */
	while ((c = getopt(argc, argv, "qs:")) != -1)
		if (c == 'q')
			quick = true;
		else if (c == 's')
			seed = strtoul(optarg, NULL, 10) + 1;
		else
			usage();
	argc -= optind;
	argv += optind;
	if (argc < 1)
		usage();
	const char *w = argv[0], *a = argc > 1 ? argv[1] : NULL, *b = argc > 2 ? argv[2] : NULL;
	snprintf(name, sizeof name, "%s%s%s", w, a ? "." : "", a ? a : "");

	if (!strcmp(w, "pair") && a) {
		say(name, "", measure(run_pairs, parse_size(a)), "ns");
	} else if (!strcmp(w, "batch") && a) {
		say(name, "", measure(run_batches, parse_size(a)) / 64, "ns");
	} else if (!strcmp(w, "touch") && a) {
		say(name, "", measure(run_touched, parse_size(a)), "ns");
		say(name, ".faults", measured_faults, "a pair");
	} else if (!strcmp(w, "fresh")) {
		fresh();
	} else if (!strcmp(w, "random") && a && b) {
		snprintf(name, sizeof name, "random.%s.%s", a, b);
		random_sizes(name, !strcmp(a, "touched"), strtoul(b + (*b == 't'), NULL, 10));
	} else if (!strcmp(w, "handover")) {
		handover();
	} else if (!strcmp(w, "after") && a) {
		after(name, a);
	} else if (!strcmp(w, "larson") && a && b) {
		snprintf(name, sizeof name, "larson.%s.%s", a, b);
		larson(name, a, strtoul(b + (*b == 't'), NULL, 10));
	} else if (!strcmp(w, "sparse") && a) {
		sparse(name, parse_size(a));
	} else if (!strcmp(w, "getc")) {
		read_bytes(name);
	} else if (!strcmp(w, "fork64M")) {
		forks(name);
	} else if (!strcmp(w, "start")) {
		processes(name);
	} else if (!strcmp(w, "grow") && a) {
		grow(name, a);
	} else if (!strcmp(w, "peak")) {
		peak(name, a);
	} else if (!strcmp(w, "decay") && a) {
		decay((unsigned)strtoul(a, NULL, 10));
	} else if (!strcmp(w, "access") && !counters_start) {
		access_random();
	} else if (!strcmp(w, "access")) {
		access_counted();
	} else if (!strcmp(w, "small") && a) {
		small(name, a);
	} else if (!strcmp(w, "repeat") && a && b) {
		if (argc > 3)
			run_pairs(parse_size(argv[3]), 1000);
		run_pairs(parse_size(a), strtol(b, NULL, 10));
	} else if (!strcmp(w, "warm")) {
		warm();
	} else {
		usage();
	}
	return fflush(stdout) ? 1 : 0;
}
