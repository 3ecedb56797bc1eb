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
#include <err.h>
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
#include <sys/resource.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib.h"
#include "textbook.h"

#define UNUSED __attribute__((unused))
#define ARGS UNUSED const char *name, UNUSED const char *a, UNUSED const char *b /* of a workload */

static bool quick;
static uint64_t seed = 1;

static long faults(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_minflt + u.ru_majflt;
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
	for (double t = now_ns(); run(size, n), now_ns() - t < 1e6; t = now_ns())
		n *= 2;
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
		err(1, "malloc");
	return p;
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
		touch(p, size);
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

/* Touch as much memory as the process uses next, and free it, so that this machine has it. A virtual machine's host may
 * have taken back what was free a moment ago, blocks of hugepages first. Their first touch then takes ten times as long. */
static void have_memory(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	madvise(p, len, MADV_HUGEPAGE);
	touch(p, len);
	munmap(p, len);
}

/* For callgrind: so many pairs; "SIZE after": in a process that has had others before. */
static void repeat(ARGS)
{
	char *before = strchr(b, ',');

	if (before)
		run_pairs(parse_size(before + 1), 1000);
	run_pairs(parse_size(a), strtol(b, NULL, 10));
}

static void fresh(ARGS)
{
	static char *p[1024];
	long f;
	double t;

	have_memory(GiB + GiB / 4);
	f = faults();
	t = now_ns();
	for (int i = 0; i < 1024; i++) {
		p[i] = get(MiB);
		touch(p[i], MiB);
	}
	say("fresh.1G", "", (now_ns() - t) / 1e6, "ms");
	say("fresh.1G", ".faults", (double)(faults() - f), "n");
	t = now_ns();
	for (int i = 0; i < 1024; i++)
		free(p[i]);
	say("fresh.1G", ".free", (now_ns() - t) / 1e6, "ms");
}

/* The bytes that the process has in memory; the kernel counts hugetlb pages apart. at_once: by counters, which may be
 * some dozen pages late, for programs that are timed. */
static double resident_bytes(bool at_once)
{
	const char *own = at_once ? "\nVmRSS:" : "\nRss:", *huge = at_once ? "\nHugetlbPages:" : "\nPrivate_Hugetlb:";
	int fd = open(at_once ? "/proc/self/status" : "/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);
	char text[4096], *a, *b;
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

	text[n < 0 ? 0 : n] = 0;
	close(fd);
	a = strstr(text, own);
	b = strstr(text, huge);
	if (!a || !b)
		err(1, "%s", own);
	return (strtod(a + strlen(own), NULL) + strtod(b + strlen(huge), NULL)) * 1024;
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
		touch(live[i].p, size);
}

/* Pairs of each size in one process. Before each: pairs of all the others ("sizes"), or buffers of random sizes that
 * were replaced at random and of which every other is still alive ("mixed"). */
static void after(const char *name, const char *which, UNUSED const char *b)
{
	enum { LEAST = 15, SIZES = 12, MIXED = 200 }; /* 32 KiB to 64 MiB */
	bool mixed = !strcmp(which, "mixed");
	uint64_t rng = seed;

	if (!mixed && strcmp(which, "sizes"))
		err(1, "%s", which);
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

	for (size_t i = 0; i < 3 * w->count; i++) /* until the heap is mixed */
		replace(w->first + (i < w->count ? i : next_random(&w->rng) % w->count), random_size(&w->rng),
			w->touched);
	pthread_barrier_wait(&start);
	w->began = now_ns();
	for (long i = 0; i < w->ops; i++)
		replace(w->first + next_random(&w->rng) % w->count, random_size(&w->rng), w->touched);
	w->ended = now_ns();
	return NULL;
}

static struct worker workers[LIVE];

static void run_workers(void *(*run)(void *), size_t threads)
{
	for (size_t i = 0; i < threads; i++)
		if (pthread_create(&workers[i].thread, NULL, run, &workers[i]))
			err(1, "pthread_create");
	for (size_t i = 0; i < threads; i++)
		pthread_join(workers[i].thread, NULL);
}

static void random_sizes(const char *name, const char *which, const char *number)
{
	struct worker *w = workers;
	bool touched = !strcmp(which, "touched");
	size_t threads = strtoul(number + (*number == 't'), NULL, 10);
	long ops = (touched ? 20000 : 200000) / (quick ? 4 : 1);
	double began = INFINITY, ended = 0;

	fill_sizes(32 * KiB, 4 * MiB);
	pthread_barrier_init(&start, NULL, (unsigned)threads);
	long f = faults();
	for (size_t i = 0; i < threads; i++)
		w[i] = (struct worker){ .rng = seed * 1000 + i + 1, .first = LIVE / threads * i, .touched = touched,
					.count = LIVE / threads, .ops = ops / (long)threads };
	run_workers(replace_at_random, threads);
	for (size_t i = 0; i < threads; i++) {
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
			err(1, "a buffer's content was lost");
		/* the size has been read; pairs with handover() */
		atomic_store_explicit(&ring[i % RING], NULL, memory_order_release);
		free(p);
	}
	return NULL;
}

static void handover(ARGS)
{
	uint64_t rng = seed;
	long n = quick ? 30000 : 150000;
	pthread_t t;

	fill_sizes(32 * KiB, 4 * MiB);
	if (pthread_create(&t, NULL, consume, &n))
		err(1, "pthread_create");
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
	say(name, "", (now_ns() - began) / (double)n, "ns");
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

static void larson(const char *name, const char *which, const char *number)
{
	struct worker *w = workers;
	size_t threads = strtoul(number + (*number == 't'), NULL, 10);
	bool large = !strcmp(which, "large");
	size_t each = large ? 300 : 5000; /* more of the large ones, and glibc trims its heap all the time */
	long ops = (large ? 10000 : 200000) / (quick ? 4 : 1);
	uint64_t rng = seed;

	if ((!large && strcmp(which, "small")) || !threads || each * threads > SLOTS_MAX)
		err(1, "%s", which);
	for (int i = 0; i < 4096; i++) /* sizes are uniform, as Larson's are */
		sizes[i] = (uint32_t)(large ? 32 * KiB + next_random(&rng) % (480 * KiB) : 8 + next_random(&rng) % 992);
	for (size_t i = 0; i < each * threads; i++) { /* shuffled as it grows: no thread has neighbours only */
		size_t k = next_random(&rng) % (i + 1);
		slots[i] = slots[k];
		slots[k] = get(random_size(&rng));
	}
	for (size_t i = 0; i < threads; i++)
		w[i] = (struct worker){ .rng = seed * 1000 + i + 1, .first = each * i, .count = each, .ops = ops };
	double v[10];
	for (int generation = 0; generation < 10; generation++) {
		double t = now_ns();
		run_workers(serve, threads);
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

static void sparse(ARGS)
{
	size_t size = parse_size(a);
	long n = quick ? 2 : 6;
	double most = 0;
	pthread_t t;

	if (pthread_create(&t, NULL, consume_batches, &n))
		err(1, "pthread_create");
	double began = now_ns();
	for (long b = 0; b < n; b++) {
		/* the consumer has taken the batch before; pairs with consume_batches() */
		while (atomic_load_explicit(&batch_full[b % 2], memory_order_acquire))
			sched_yield();
		for (int i = 0; i < BATCH; i++) {
			batches[b % 2][i] = get(size);
			memset(batches[b % 2][i], i % 256, 128);
		}
		most = fmax(most, resident_bytes(true));
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
				err(1, "realloc");
			touch(v[i] + size, bigger - size);
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
static void grow(const char *name, const char *which, UNUSED const char *b)
{
	for (size_t i = 0; i < sizeof growths / sizeof *growths; i++)
		if (!strcmp(which, growths[i].name)) {
			double v[3], total = 0;
			size_t n = 0;
			have_memory(GiB + GiB / 4);
			say(name, ".first", grow_once(&growths[i]), "ms");
			for (; n < 3 && total < 1000; total += v[n++]) /* some allocators take seconds */
				v[n] = grow_once(&growths[i]);
			say(name, "", median(v, n), "ms");
			return;
		}
	err(1, "%s", which);
}

/* ------------------------------------------------------------------ peak and decay */

/* The addresses in which buffers were. */
static uintptr_t lowest = UINTPTR_MAX, highest;

static void replace_counted(size_t i, size_t size)
{
	live_bytes += size - live[i].size;
	replace(i, size, true);
	textbook_replace(i, size);
	if (live_bytes > live_peak)
		live_peak = live_bytes;
	if ((uintptr_t)live[i].p < lowest)
		lowest = (uintptr_t)live[i].p;
	if ((uintptr_t)live[i].p + size > highest)
		highest = (uintptr_t)live[i].p + size;
}

/* Replace one of `count` live buffers after the other, in order or at random. Returns the most that was resident. */
static double churn(uint64_t *rng, int replacements, size_t count, bool in_order)
{
	double most = 0;

	for (int i = 0; i < replacements; i++) {
		replace_counted((in_order ? (size_t)i : next_random(rng)) % count, random_size(rng));
		if (i % 250 == 0 || i == replacements - 1)
			most = fmax(most, resident_bytes(false));
	}
	return most;
}

/* 1000 live buffers of random sizes, replaced at random, all memory touched. */
static double mix(uint64_t *rng, int replacements)
{
	for (size_t i = 0; i < LIVE; i++)
		replace_counted(i, random_size(rng));
	return churn(rng, replacements, LIVE, false);
}

/* So many of ten live buffers, at random. */
static void free_some(uint64_t *rng, unsigned of_ten)
{
	for (size_t i = 0; i < LIVE; i++)
		if (next_random(rng) % 10 >= 10 - of_ten) {
			free(live[i].p);
			live_bytes -= live[i].size;
		}
}

/* fifo: buffers are freed in the order in which they came. phases: sizes become larger by and by, and of each phase, each
 * buffer is replaced by some of the next. */
static void peak(const char *name, const char *which, UNUSED const char *b)
{
	uint64_t rng = seed;
	int replacements = quick ? 4000 : 20000;
	double most = 0, spread;

	if (which && strcmp(which, "fifo") && strcmp(which, "phases"))
		err(1, "%s", which);
	fill_sizes(32 * KiB, 4 * MiB);
	if (!which)
		most = mix(&rng, replacements);
	else if (!strcmp(which, "fifo"))
		most = churn(&rng, replacements, LIVE, true);
	else
		for (size_t least = 32 * KiB; least < 4 * MiB; least *= 2) {
			fill_sizes(least, 2 * least);
			most = fmax(most, churn(&rng, replacements / 7, LIVE / 2, false));
		}
	say(name, ".resident-over-live", most / (double)live_peak, "x");
	spread = (double)(highest - lowest) / (double)textbook.end_most;
	say(name, ".addresses-over-first-fit", spread > 100 ? NAN : spread, "x"); /* NAN: in places far apart */
	if (which)
		return;
	free_some(&rng, 9);
	say("peak", ".after-free-90%", resident_bytes(false) / (double)live_bytes, "x");
}

/* What is in memory beyond the start, at least a page so that a ratio to it is one. */
static double resident_since(double at_start)
{
	return fmax(resident_bytes(false) - at_start, 4 * KiB);
}

/* The bytes that stay in memory after use and free, at once and some seconds later. "90%": nine of ten buffers are freed,
 * and the bytes are over those that are alive. */
static void decay(UNUSED const char *name, const char *seconds, const char *share)
{
	uint64_t rng = seed;
	double at_start = resident_bytes(false), whole = (double)MiB;

	fill_sizes(32 * KiB, 4 * MiB);
	mix(&rng, 3000);
	free_some(&rng, share ? 9 : 10);
	if (share)
		whole = (double)live_bytes;
	say("decay", share ? ".after-free-90%" : ".after-free-all", resident_since(at_start) / whole, share ? "x" : "MiB");
	sleep((unsigned)strtoul(seconds, NULL, 10));
	say("decay", share ? ".90%-after-the-decay-time" : ".after-the-decay-time", resident_since(at_start) / whole,
	    share ? "x" : "MiB");
}

/* ------------------------------------------------------------------ small requests */

#define SMALL_LIVE 10000

static void run_small_mix(UNUSED size_t size, long n)
{
	static char *p[SMALL_LIVE];
	static uint64_t rng;

	if (!rng)
		rng = seed;
	for (long i = 0; i < n; i++) {
		size_t bytes = random_size(&rng), k = next_random(&rng) % (SMALL_LIVE * 8);
		char **q = &p[k / 8];
		if (k % 8 == 0) {
			*q = realloc(*q, bytes);
		} else {
			free(*q);
			*q = k % 8 == 1 ? calloc(1, bytes) : malloc(bytes);
		}
		if (!*q)
			err(1, "malloc");
		memset(*q, 1, bytes);
	}
}

#define MANY 200000

/* Many buffers of 16 to 256 bytes, written to, then freed together in the order in which they came. */
static void run_many_small(UNUSED size_t size, long n)
{
	static char *p[MANY];
	uint64_t rng = seed;

	for (long k = 0; k < n; k++) {
		for (int i = 0; i < MANY; i++) {
			p[i] = get(random_size(&rng));
			p[i][0] = 1;
		}
		for (int i = 0; i < MANY; i++)
			free(p[i]);
	}
}

static void small(const char *name, const char *which, UNUSED const char *b)
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

static FILE *file;

static void run_getc(UNUSED size_t size, long n)
{
	for (long i = 0; i < n; i++)
		if (getc(file) == EOF)
			rewind(file);
}

/* A byte by getc, in a program with one thread that has used large buffers. The C library takes a lock for each byte
 * once it knows of a second thread. */
static void read_bytes(ARGS)
{
	touch(get(IN_USE), IN_USE);
	file = fopen("/proc/self/exe", "re");
	if (!file)
		err(1, "/proc/self/exe");
	say(name, "", measure(run_getc, 0), "ns");
}

static void write_all(void *buffers)
{
	char **p = buffers;

	for (size_t i = 0; i < IN_USE / MiB; i++)
		touch(p[i], MiB);
}

static void forks(ARGS)
{
	static char *p[IN_USE / MiB];
	double v[2][11];
	int n = quick ? 5 : 11;

	for (size_t i = 0; i < IN_USE / MiB; i++) {
		p[i] = get(MiB);
		touch(p[i], MiB);
	}
	say(name, ".first", fork_ms(NULL, NULL), "ms");
	for (int i = 0; i < n; i++) {
		v[0][i] = fork_ms(NULL, NULL);
		v[1][i] = fork_ms(write_all, p);
	}
	say(name, "", median(v[0], (size_t)n), "ms");
	say(name, ".written", median(v[1], (size_t)n), "ms");
}

/* A thousand forks in turn, each until the child has ended, in a process with next to no memory. */
static void many_forks(ARGS)
{
	free(get(100));
	double t = now_ns();
	for (int i = 0; i < 1000; i++) {
		pid_t child = fork();
		if (!child)
			_exit(0);
		if (child < 0 || waitpid(child, NULL, 0) != child)
			err(1, "fork");
	}
	say(name, "", (now_ns() - t) / 1e6, "ms");
}

/* A process from its start to its end. The environment hands the preloaded library on to it. */
static void run_process(UNUSED size_t size, long n)
{
	char *argv[] = { "true", NULL };
	pid_t child;
	int status;

	for (long i = 0; i < n; i++)
		if (posix_spawn(&child, "/bin/true", NULL, NULL, argv, environ) ||
		    waitpid(child, &status, 0) != child || status)
			err(1, "/bin/true did not succeed");
}

static const struct workload {
	const char *name, *arguments;
	int least, most; /* arguments */
	void (*run)(const char *name, const char *a, const char *b);
	void (*one)(size_t size, long n); /* in its place: measured as it is */
	double ns; /* of what it is printed in, or pairs of an operation */
	const char *unit;
} workloads[] = {
	{ "pair", "SIZE", 1, 1, .one = run_pairs, 1, "ns" },
	{ "batch", "SIZE", 1, 1, .one = run_batches, 64, "ns" },
	{ "touch", "SIZE", 1, 1, .one = run_touched, 1, "ns" },
	{ "after", "sizes|mixed", 1, 1, .run = after },
	{ "fresh", "", 0, 0, .run = fresh },
	{ "random", "touched|untouched tTHREADS", 2, 2, .run = random_sizes },
	{ "handover", "", 0, 0, .run = handover },
	{ "larson", "large|small tTHREADS", 2, 2, .run = larson },
	{ "sparse", "SIZE", 1, 1, .run = sparse },
	{ "grow", "1.5x|64K|1.25x-blocked|2-64K|2-1M|8-2x", 1, 1, .run = grow },
	{ "peak", "[fifo|phases]", 0, 1, .run = peak },
	{ "decay", "SECONDS [90%]", 1, 2, .run = decay },
	{ "small", "pair|mixed|many", 1, 1, .run = small },
	{ "getc", "", 0, 0, .run = read_bytes },
	{ "fork64M", "", 0, 0, .run = forks },
	{ "fork1000", "", 0, 0, .run = many_forks },
	{ "start", "", 0, 0, .one = run_process, 1e6, "ms" },
	{ "repeat", "SIZE COUNT[,SIZE-BEFORE]", 2, 2, .run = repeat },
};

static _Noreturn void usage(void)
{
	fputs("usage: alloc [-q] [-s SEED] WORKLOAD [ARGUMENT...]\n", stderr);
	for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
		fprintf(stderr, "  %s %s\n", workloads[i].name, workloads[i].arguments);
	exit(2);
}

int main(int argc, char **argv)
{
	static char out[BUFSIZ];
	const struct workload *w = workloads;
	char name[64];

	setvbuf(stdout, out, _IOFBF, sizeof out); /* stdio's own buffer would be malloc'ed */
	argv = options(&argc, argv, &quick, &seed);
	argc--; /* the workload's arguments */
	while (argc < 0 || strcmp(w->name, *argv) || argc < w->least || argc > w->most)
		if (argc < 0 || ++w == workloads + sizeof workloads / sizeof *workloads)
			usage();
	snprintf(name, sizeof name, "%s%s%s%s%s", w->name, argc ? "." : "", argc ? argv[1] : "", argc > 1 ? "." : "",
		 argc > 1 ? argv[2] : "");
	if (w->run)
		w->run(name, argc ? argv[1] : NULL, argc > 1 ? argv[2] : NULL);
	else
		say(name, "", measure(w->one, argc ? parse_size(argv[1]) : 0) / w->ns, w->unit);
	if (w->one == run_touched)
		say(name, ".faults", measured_faults, "a pair");
	return fflush(stdout) ? 1 : 0;
}
