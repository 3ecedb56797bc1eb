/*
 * What registering memory costs, one workload and one subject a run:
 *
 *	pin [-q] [-s SEED] hits heap|foreign REGIONS tTHREADS ucx|arena|lru|peer|told|told-call|key|key-call|floor
 *	                   register SIZE 4K|4K-new|2M|hugepin
 *	                   cycle SIZE glibc|glibc-once|hugepin|hugepin-once
 *	                   fork first|thp plain|registered|kernel
 *	                   growth SIZE
 *	                   extent SIZE
 *	                   overlap forwards|backwards|shuffled|any
 *	                   miss predict|cf11|lru|ucx
 *	                   evict tTHREADS lru|ucx
 *
 * It prints "name value unit" lines, and "# ..." where this machine cannot show something. -q measures for a shorter
 * time; the order of regions depends on SEED alone. bench/run-pin runs the subjects in turn and compares them.
 */

#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"
#include "hugepin.h"
#include "pin_kernel.h"
#include "rcache.h"

#define THREADS_MAX 16

static bool quick;
static uint64_t seed = 1;

/* ------------------------------------------------------------------ a backend that registers nothing */

static long registrations; /* made, plus those given back */
static size_t registered_bytes;
static pthread_t registered_by;

static int nothing_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)access;
	registrations++;
	registered_bytes += len;
	registered_by = pthread_self();
	*ret_ = (struct hugepin_reg){ 0 };
	return 0;
}

static int nothing_dereg(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx, (void)reg;
	registrations++;
	return 0;
}

static int nothing_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE };
	return 0;
}

static hugepin_domain *domain;

static uint64_t budget = UINT64_C(1) << 40; /* never reached: the figures include the cost of keeping a budget */

static void open_nothing(uint32_t policy, uint32_t watch, uint32_t access)
{
	static const struct hugepin_backend nothing = { .size = sizeof nothing, .name = "nothing", .reg = nothing_reg,
							.dereg = nothing_dereg, .limits = nothing_limits };
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .pinned_bytes_max = budget,
				     .watch = watch, .access = access };

	check(hugepin_domain_open(&nothing, NULL, &attr, &domain), "hugepin_domain_open");
}

/* ------------------------------------------------------------------ hits */

#define REGION (32 * KiB) /* the smallest that the heap serves: 100000 are 3 GiB of addresses; nothing touches them */
#define STEP 200L /* uses between two signs of life to the other threads */
#define CHUNK 10 /* steps between two looks at the clock */
#define CHUNKS_MAX 16384

static inline uint32_t use_hugepin(void *p, size_t len)
{
	struct hugepin_pin pin;

	check(hugepin_pin(domain, p, len, 0, &pin), "hugepin_pin");
	uint32_t key = pin.lkey;
	hugepin_unpin(domain, &pin);
	return key;
}

static void walk_hugepin(struct walk *w, long n)
{
	walk(w, n, use_hugepin);
}

/* A program that pins by held keys has the key beside its buffer: here, in place of its address. */
static inline uint32_t use_key(void *p, size_t len)
{
	const struct hugepin_key *key = p;
	uint32_t lkey;

	(void)len;
	check(hugepin_key_pin(key), "hugepin_key_pin");
	lkey = key->pin.lkey;
	hugepin_key_unpin(key);
	return lkey;
}

static void walk_keys(struct walk *w, long n)
{
	walk(w, n, use_key);
}

/* The same by calls, as from a language that cannot compile the header. */
static int (*volatile call_pin)(const struct hugepin_key *) = hugepin_key_pin;
static int (*volatile call_unpin)(const struct hugepin_key *) = hugepin_key_unpin;

static inline uint32_t use_key_by_call(void *p, size_t len)
{
	const struct hugepin_key *key = p;
	uint32_t lkey;

	(void)len;
	check(call_pin(key), "hugepin_key_pin");
	lkey = key->pin.lkey;
	call_unpin(key);
	return lkey;
}

static void walk_keys_by_call(struct walk *w, long n)
{
	walk(w, n, use_key_by_call);
}

/* Beside each use, the cheapest system call on a descriptor, which threads share, too. */
static inline uint32_t use_hugepin_and_call(void *p, size_t len)
{
	return use_hugepin(p, len) + (uint32_t)(syscall(SYS_fcntl, STDOUT_FILENO, F_GETFD) < 0);
}

static void walk_hugepin_and_call(struct walk *w, long n)
{
	walk(w, n, use_hugepin_and_call);
}

static inline uint32_t use_nothing(void *p, size_t len)
{
	(void)len;
	return (uintptr_t)p & 1;
}

static void walk_floor(struct walk *w, long n)
{
	walk(w, n, use_nothing);
}

static long hugepin_registrations(void)
{
	return registrations;
}

static long no_registrations(void)
{
	return 0;
}

static const struct subject {
	const char *name;
	uint32_t policy, watch, access;
	void (*walk)(struct walk *, long n);
	long (*registrations)(void);
} subjects[] = {
	{ "arena", HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_DEFAULT, 0, walk_hugepin, hugepin_registrations },
	{ "lru", HUGEPIN_POLICY_LRU, HUGEPIN_WATCH_DEFAULT, 0, walk_hugepin, hugepin_registrations },
	/* The key is for a peer: each buffer has a registration of its own pages. */
	{ "peer", HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_DEFAULT, HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE, walk_hugepin,
	  hugepin_registrations },
	/* The program says when memory goes, as the drop-in does, so hits need not ask the kernel. */
	{ "told", HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_PROGRAM, 0, walk_hugepin, hugepin_registrations },
	{ "told-call", HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_PROGRAM, 0, walk_hugepin_and_call, hugepin_registrations },
	{ "key", HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_PROGRAM, 0, walk_keys, hugepin_registrations },
	{ "key-call", HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_PROGRAM, 0, walk_keys_by_call, hugepin_registrations },
	{ "floor", 0, 0, 0, walk_floor, no_registrations },
	{ "ucx", 0, 0, 0, rcache_walk, rcache_registrations },
};

struct worker {
	pthread_t thread;
	struct walk walk;
	void (*run)(struct walk *, long n);
	double ns[CHUNKS_MAX];
	size_t chunks;
	_Alignas(64) _Atomic long steps;
};

static struct worker workers[THREADS_MAX];
static unsigned worker_count;
static _Atomic long counted; /* chunks, of all threads */
static pthread_barrier_t start;

/* Stay on the i-th processor that the process may use. The kernel would run two threads on one processor for a
 * while. */
static void settle(unsigned i)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof all, &all))
		err(1, "sched_getaffinity");
	i %= (unsigned)CPU_COUNT(&all);
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && !i--) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			sched_setaffinity(0, sizeof one, &one);
		}
}

static long preemptions(void)
{
	struct rusage u;

	getrusage(RUSAGE_THREAD, &u);
	return u.ru_nivcsw;
}

/* A chunk counts if this thread kept its processor and every other did half as much meanwhile: they ran together. */
static void *use_chunks(void *arg)
{
	struct worker *w = arg;
	double end, t;

	settle((unsigned)(w - workers));
	pthread_barrier_wait(&start);
	end = now_ns() + (quick ? 100e6 : 300e6);
	/* On a busy machine this takes longer, but as long for each thread. */
	while (w->chunks < CHUNKS_MAX &&
	       ((t = now_ns()) < end || (t < end + 3e9 && atomic_load_explicit(&counted, memory_order_relaxed) < 50))) {
		long before[THREADS_MAX];
		long preempted = preemptions();
		for (unsigned i = 0; i < worker_count; i++)
			before[i] = atomic_load_explicit(&workers[i].steps, memory_order_relaxed);
		t = now_ns();
		for (int i = 0; i < CHUNK; i++) {
			w->run(&w->walk, STEP);
			atomic_fetch_add_explicit(&w->steps, 1, memory_order_relaxed);
		}
		t = now_ns() - t;
		bool together = true;
		for (unsigned i = 0; i < worker_count; i++)
			if (atomic_load_explicit(&workers[i].steps, memory_order_relaxed) - before[i] < CHUNK / 2)
				together = false;
		if (together && preemptions() == preempted) {
			w->ns[w->chunks++] = t / (CHUNK * STEP);
			atomic_fetch_add_explicit(&counted, 1, memory_order_relaxed);
		}
	}
	return NULL;
}

/* Print the ns of one use with all threads at it: the median of their chunks. */
static void time_hits(const char *name, const struct subject *s, char **regions, size_t count, unsigned threads)
{
	static double all[THREADS_MAX * CHUNKS_MAX];
	struct walk w = { .len = REGION, .mask = 16383 };
	size_t chunks = 0;

	if (!threads || threads > THREADS_MAX)
		errx(1, "%u threads", threads);
	while (w.mask < count)
		w.mask = w.mask * 2 + 1;
	w.order = calloc(w.mask + 1, sizeof *w.order);
	if (!w.order)
		err(1, "calloc");
	for (size_t i = 0; i <= w.mask; i++) { /* shuffled as it grows */
		size_t k = next_random(&seed) % (i + 1);
		w.order[i] = w.order[k];
		w.order[k] = regions[i % count];
	}
	s->walk(&w, (long)w.mask + 1); /* the first walk registers all of them */
	long before = s->registrations();
	if (before == 0 && s->walk != walk_floor)
		errx(1, "nothing was registered");
	worker_count = threads;
	pthread_barrier_init(&start, NULL, threads);
	for (unsigned i = 0; i < threads; i++) {
		workers[i].walk = w;
		workers[i].walk.at = w.mask / threads * i;
		workers[i].run = s->walk;
		if (i && pthread_create(&workers[i].thread, NULL, use_chunks, &workers[i]))
			err(1, "pthread_create");
	}
	use_chunks(&workers[0]);
	for (unsigned i = 0; i < threads; i++) {
		if (i)
			pthread_join(workers[i].thread, NULL);
		memcpy(all + chunks, workers[i].ns, workers[i].chunks * sizeof *all);
		chunks += workers[i].chunks;
	}
	if (s->registrations() != before)
		errx(1, "not all were hits");
	if (!chunks)
		not_shown("%s: the threads never ran at the same time", name);
	printf("%s %.4g ns\n", name, median(all, chunks));
}

/* Put a key of each region in its place. */
static void hold_keys(char **regions, size_t count)
{
	struct hugepin_key *keys = aligned_alloc(64, count * sizeof *keys);
	struct hugepin_pin pin;

	if (!keys)
		err(1, "aligned_alloc");
	for (size_t i = 0; i < count; i++) {
		check(hugepin_pin(domain, regions[i], REGION, 0, &pin), "hugepin_pin");
		check(hugepin_key_take(domain, &pin, HUGEPIN_KEY_LAYOUT, &keys[i]), "hugepin_key_take");
		hugepin_unpin(domain, &pin);
		regions[i] = (char *)&keys[i];
	}
}

static void hits(const char *where, size_t count, unsigned threads, const char *subject)
{
	const struct subject *s = subjects;
	char **regions = calloc(count, sizeof *regions), *foreign = NULL, name[64];

	while (strcmp(s->name, subject))
		if (++s == subjects + sizeof subjects / sizeof *subjects)
			errx(1, "no subject %s", subject);
	if (!s->walk)
		not_shown("hits: built without UCX");
	if (!strcmp(where, "foreign")) { /* as much memory between two regions, where UCX is at its best */
		foreign = mmap(NULL, 2 * REGION * count, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (foreign == MAP_FAILED)
			err(1, "mmap");
	}
	if (!regions)
		err(1, "calloc");
	for (size_t i = 0; i < count; i++)
		regions[i] = foreign ? foreign + 2 * REGION * i : get(REGION);
	if (s->policy)
		open_nothing(s->policy, s->watch, s->access);
	else if (s->walk == rcache_walk)
		rcache_open(SIZE_MAX);
	if (s->walk == walk_keys || s->walk == walk_keys_by_call)
		hold_keys(regions, count);
	snprintf(name, sizeof name, "hits.%s.%zu.t%u", where, count, threads);
	time_hits(name, s, regions, count, threads);
}

/* Hits in 256 places spread at random over a heap of `size`, in extents of 64 MiB. Nothing touches the memory: how much
 * of it the kernel has to find depends on what registering an extent populates. */
static void growth(size_t size)
{
	char *places[256];
	size_t extents = size / (64 * MiB);
	char **extent = calloc(extents, sizeof *extent);

	open_nothing(HUGEPIN_POLICY_ARENA, 0, 0);
	if (!extent)
		err(1, "calloc");
	for (size_t i = 0; i < extents; i++) {
		extent[i] = hugepin_malloc(64 * MiB);
		if (!extent[i] || (size_t)sysconf(_SC_AVPHYS_PAGES) * 4 * KiB < GiB)
			not_shown("growth to %zu GiB: memory for %zu extents of 64 MiB only", size / GiB, i);
		use_hugepin(extent[i], 64 * MiB);
	}
	for (size_t i = 0; i < 256; i++)
		places[i] = extent[next_random(&seed) % extents] + next_random(&seed) % (64 * MiB / REGION) * REGION;
	time_hits("growth.hit", &subjects[0], places, 256, 1);
}

/* ------------------------------------------------------------------ misses and evictions */

static char *map_for_regions(size_t count)
{
	char *p = mmap(NULL, 2 * REGION * count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		       -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	return p;
}

static double quantile(double *v, size_t n, double q)
{
	qsort(v, n, sizeof *v, compare);
	return v[(size_t)(q * (double)(n - 1))];
}

static void use_once(bool ucx, char *p)
{
	struct walk w = { .order = &p, .len = REGION };

	if (ucx)
		rcache_walk(&w, 1);
	else
		use_hugepin(p, REGION);
}

/* What is new is pinned after 240 hits, as by a program that sends an array of blocks and then something else; and what
 * is known after something else was unmapped, which has the next hit look what is gone. The device costs nothing. */
static void misses(const char *subject)
{
	enum { KNOWN = 240, NEW_MAX = 2000 };
	static double miss[NEW_MAX], unmapped[NEW_MAX];
	static const struct {
		const char *name;
		uint32_t policy;
	} policies[] = { { "predict", HUGEPIN_POLICY_PREDICT },
			 { "cf11", HUGEPIN_POLICY_CF11 },
			 { "lru", HUGEPIN_POLICY_LRU } };
	bool ucx = !strcmp(subject, "ucx");
	size_t count = quick ? 300 : NEW_MAX, at = 0;
	char *known = map_for_regions(KNOWN), *new = map_for_regions(NEW_MAX);

	for (size_t i = 0; i < 3; i++)
		if (!strcmp(policies[i].name, subject))
			open_nothing(policies[i].policy, 0, 0);
	if (ucx && !rcache_walk)
		not_shown("miss: built without UCX");
	if (ucx)
		rcache_open(SIZE_MAX);
	else if (!domain)
		errx(1, "no subject %s", subject);
	for (size_t n = 0; n < count; n++) {
		char *other = map_for_regions(1);

		for (int i = 0; i < KNOWN; i++)
			use_once(ucx, known + 2 * REGION * (at++ % KNOWN));
		double t = now_ns();
		use_once(ucx, new + 2 * REGION * n);
		miss[n] = (now_ns() - t) / 1e3;
		use_once(ucx, other);
		for (int i = 0; i < KNOWN; i++)
			use_once(ucx, known + 2 * REGION * (at++ % KNOWN));
		munmap(other, 2 * REGION);
		t = now_ns();
		use_once(ucx, known + 2 * REGION * (at++ % KNOWN));
		unmapped[n] = (now_ns() - t) / 1e3;
	}
	printf("miss %.4g us\nmiss.p99 %.4g us\n", quantile(miss, count, 0.5), quantile(miss, count, 0.99));
	printf("unmapped %.4g us\nunmapped.p99 %.4g us\n", quantile(unmapped, count, 0.5),
	       quantile(unmapped, count, 0.99));
}

static _Atomic bool done;
static sem_t pinned;

/* A thread that pins once, and exists from then on. */
static void *pin_once(void *arg)
{
	use_once(*(bool *)arg, workers[0].walk.order[0]);
	sem_post(&pinned);
	while (!atomic_load_explicit(&done, memory_order_relaxed))
		usleep(10000);
	return NULL;
}

/* Each new region takes the room of the one of 64 that was used longest ago. Prints the mean of 32 such misses. */
static void evictions(unsigned threads, const char *subject)
{
	enum { KEPT = 64, TOGETHER = 32, SAMPLES = 200 };
	static double ns[SAMPLES];
	bool ucx = !strcmp(subject, "ucx");
	char *regions = map_for_regions(KEPT + TOGETHER * (SAMPLES + 1)), name[32];
	pthread_t *t = calloc(threads, sizeof *t);

	if (!t)
		err(1, "calloc");
	if (ucx && !rcache_walk)
		not_shown("evict: built without UCX");
	budget = KEPT * REGION;
	if (ucx)
		rcache_open(KEPT);
	else
		open_nothing(HUGEPIN_POLICY_LRU, 0, 0);
	sem_init(&pinned, 0, 0);
	workers[0].walk.order = &regions;
	for (unsigned i = 0; i < threads; i++) {
		if (pthread_create(&t[i], NULL, pin_once, &ucx))
			err(1, "pthread_create");
		sem_wait(&pinned);
	}
	for (size_t i = 0; i < KEPT; i++)
		use_once(ucx, regions + 2 * REGION * i);
	for (size_t n = 0; n <= SAMPLES; n++) {
		double begun = now_ns();

		for (size_t i = 0; i < TOGETHER; i++)
			use_once(ucx, regions + 2 * REGION * (KEPT + n * TOGETHER + i));
		if (n)
			ns[n - 1] = (now_ns() - begun) / TOGETHER;
	}
	atomic_store_explicit(&done, true, memory_order_relaxed);
	for (unsigned i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	snprintf(name, sizeof name, "evict.t%u", threads);
	printf("%s %.4g us\n", name, median(ns, SAMPLES) / 1e3);
}

/* Each new region takes the room of the one of 64 that was used longest ago, while so many others are pinned. */
static void pinned_others(size_t others)
{
	enum { KEPT = 64, SAMPLES = 2000 };
	static double ns[SAMPLES];
	char *regions = map_for_regions(others + KEPT + SAMPLES);
	struct hugepin_pin pin;

	budget = (others + KEPT) * REGION;
	open_nothing(HUGEPIN_POLICY_LRU, 0, 0);
	for (size_t i = 0; i < others + KEPT; i++) {
		check(hugepin_pin(domain, regions + 2 * REGION * i, REGION, 0, &pin), "hugepin_pin");
		if (i >= others)
			check(hugepin_unpin(domain, &pin), "hugepin_unpin");
	}
	for (size_t n = 0; n < SAMPLES; n++) {
		double begun = now_ns();

		use_once(false, regions + 2 * REGION * (others + KEPT + n));
		ns[n] = now_ns() - begun;
	}
	printf("pinned.%zu %.4g us\npinned.%zu.most %.4g us\n", others, quantile(ns, SAMPLES, 0.5) / 1e3, others,
	       quantile(ns, SAMPLES, 1) / 1e3);
}

/* ------------------------------------------------------------------ one extent */

/* For callgrind: register one extent of this size whose memory is there. */
static void register_extent(size_t size)
{
	char *p = get(size);
	struct hugepin_extent e;

	touch(p, size);
	check(hugepin_extent(p, &e, sizeof e), "hugepin_extent");
	open_nothing(HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_NONE, 0); /* valgrind has no userfaultfd */
	if (registrations)
		errx(1, "registered before the pin, which is what is counted");
	use_hugepin(p, size);
	if (e.len != size || registrations != 1 || registered_bytes != size ||
	    !pthread_equal(registered_by, pthread_self()))
		errx(1, "the pin did not register one extent of that size");
}

static _Noreturn void usage(void)
{
	fputs("usage: pin [-q] [-s SEED] WORKLOAD ARGUMENT...\n"
	      "  hits heap|foreign REGIONS tTHREADS ucx|arena|lru|peer|told|told-call|key|key-call|floor\n"
	      "  register SIZE 4K|4K-new|2M|hugepin    cycle SIZE glibc|glibc-once|hugepin|hugepin-once\n"
	      "  fork first|thp plain|registered|kernel    growth SIZE    extent SIZE\n"
	      "  overlap forwards|backwards|shuffled|any    miss predict|cf11|lru|ucx    evict tTHREADS lru|ucx\n"
	      "  pinned OTHERS\n",
	      stderr);
	exit(2);
}

/* ------------------------------------------------------------------ ranges that overlap */

/* Bytes registered for each that misses ask for, as a program pins pieces of 64 KiB, which begin 64 bytes into a page
 * and so share one with the next, of a buffer of 64 MiB; or, `any`, ranges of up to a MiB anywhere in it. */
static void overlap(const char *order)
{
	const size_t piece = 64 * KiB, size = 64 * MiB;
	uint64_t asked = 0, state = seed;
	size_t n = size / piece - 1;
	bool any = !strcmp(order, "any"), shuffled = !strcmp(order, "shuffled"),
	     backwards = !strcmp(order, "backwards");
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	if (!any && !shuffled && !backwards && strcmp(order, "forwards") != 0)
		usage();
	open_nothing(HUGEPIN_POLICY_LRU, 0, 0);
	for (size_t i = 0; i < n; i++) {
		/* 389 has no divisor in common with n, which is 1023. */
		size_t at = 64 + (backwards ? n - 1 - i : shuffled ? i * 389 % n : i) * piece, len = piece;
		long before = registrations;

		if (any) {
			at = next_random(&state) % (size - MiB);
			len = piece + next_random(&state) % (MiB - piece);
		}
		use_hugepin(p + at, len);
		asked += registrations != before ? len : 0;
	}
	printf("overlap.%s %.4g bytes\n", order, (double)registered_bytes / (double)asked);
}

int main(int argc, char **argv)
{
	argv = options(&argc, argv, &quick, &seed);
	if (argc == 5 && !strcmp(argv[0], "hits"))
		hits(argv[1], strtoul(argv[2], NULL, 10), (unsigned)strtoul(argv[3] + 1, NULL, 10), argv[4]);
	else if (argc == 3 && !strcmp(argv[0], "register"))
		registering(argv[1], parse_size(argv[1]), argv[2], quick);
	else if (argc == 3 && !strcmp(argv[0], "cycle"))
		cycling(argv[1], parse_size(argv[1]), argv[2], quick);
	else if (argc == 3 && !strcmp(argv[0], "fork"))
		forking(argv[1], argv[2]);
	else if (argc == 2 && !strcmp(argv[0], "growth"))
		growth(parse_size(argv[1]));
	else if (argc == 2 && !strcmp(argv[0], "miss"))
		misses(argv[1]);
	else if (argc == 3 && !strcmp(argv[0], "evict"))
		evictions((unsigned)strtoul(argv[1] + 1, NULL, 10), argv[2]);
	else if (argc == 2 && !strcmp(argv[0], "pinned"))
		pinned_others(strtoul(argv[1], NULL, 10));
	else if (argc == 2 && !strcmp(argv[0], "extent"))
		register_extent(parse_size(argv[1]));
	else if (argc == 2 && !strcmp(argv[0], "overlap"))
		overlap(argv[1]);
	else
		usage();
	return fflush(stdout) ? 1 : 0;
}
