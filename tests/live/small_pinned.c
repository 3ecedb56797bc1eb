/* link: hugepin uring preload */
/*
 * HUGEPIN_SMALL_PINNED=1: the buffers and the internal memory of the built-in jemalloc are in extents of the heap, are
 * pinned by the extents' keys, and survive forks. The program executes itself again with the option.
 */
#include <hugepin_uring.h>

#include "live.h"

#include <dlfcn.h>
#include <liburing.h>
#include <malloc.h>

enum { THREADS = 4, KEPT = 1500, ROUNDS = 500000, LARGEST = 40000 };

static struct hugepin_stats stats(void)
{
	struct hugepin_stats s;

	hugepin_stats(&s, sizeof s);
	return s;
}

/* ------------------------------------------------------------------ a domain of io_uring */

static struct io_uring ring;
static hugepin_domain *domain;

static bool domain_open(const struct hugepin_attr *attr)
{
	int err = io_uring_queue_init(8, &ring, 0);

	if (err) {
		snprintf(t_skip_reason, sizeof t_skip_reason, "no io_uring: %s", strerror(-err));
		return false;
	}
	return EXPECT_EQ(hugepin_uring_open(&ring, 0, 4096, attr, &domain), 0);
}

static void domain_close(void)
{
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	io_uring_queue_exit(&ring);
}

static struct hugepin_domain_stats domain_stats(void)
{
	struct hugepin_domain_stats s;

	hugepin_domain_stats(domain, &s, sizeof s);
	return s;
}

/* Number of pairs of pins between which the extent was registered again. This may happen: if memory is given back
 * during the registration, the event comes a moment later and invalidates it. */
static _Atomic uint64_t differ;

/* ------------------------------------------------------------------ buffers of all kinds */

static void *(*new)(size_t);
static void (*delete)(void *);

struct buffer {
	char *p;
	size_t size;
};

/* Make a buffer, mostly below 600 bytes, and at most of size `largest`. */
static struct buffer make(uint64_t *seed, size_t largest)
{
	size_t size = 1 + rand_next(seed) % (rand_next(seed) % 8 ? 600 : largest);
	struct buffer b = { NULL, size };

	switch (rand_next(seed) % 5) {
	case 0:
		b.p = malloc(size);
		break;
	case 1:
		b.p = calloc(1, size);
		EXPECT_EQ(zero_check(b.p, size), -1);
		break;
	case 2:
		b.p = aligned_alloc((size_t)1 << rand_next(seed) % 14, size);
		break;
	case 3:
		b.p = new(size);
		break;
	default:
		b.p = realloc(malloc(1 + rand_next(seed) % LARGEST), size);
	}
	hide(b.p);
	EXPECT(b.p);
	pattern_write(b.p, size, (uintptr_t)b.p);
	return b;
}

static void drop(struct buffer *b, uint64_t *seed)
{
	EXPECT_EQ(pattern_check(b->p, b->size, (uintptr_t)b->p), -1);
	if (rand_next(seed) % 2)
		free(b->p);
	else
		delete (b->p);
	b->p = NULL;
}

/* Expect that the buffer is in one extent, and that the extent's key covers all of it. */
static void expect_pinned(const struct buffer *b)
{
	struct hugepin_extent e = { .len = 0 }, last;
	struct hugepin_pin pin, whole;

	if (!EXPECT_EQ(hugepin_extent(b->p, &e, sizeof e), sizeof e))
		return;
	EXPECT(b->p + b->size <= (char *)e.addr + e.len);
	/* small buffers must not be in the pool, or a child would need pages of it */
	EXPECT(b->size >= HUGEPIN_LARGE_MIN || e.kind != HUGEPIN_KIND_HUGETLB);
	EXPECT(hugepin_extent(b->p + b->size - 1, &last, sizeof last) > 0 && last.gen == e.gen);
	if (!domain || !EXPECT_EQ(hugepin_pin(domain, b->p, b->size, 0, &pin), 0))
		return;
	EXPECT_EQ(pin.len, b->size);
	EXPECT_EQ(hugepin_pin(domain, e.addr, e.len, 0, &whole), 0);
	EXPECT_EQ(whole.len, e.len);
	differ += whole.lkey != pin.lkey;
	hugepin_unpin(domain, &pin);
	hugepin_unpin(domain, &whole);
}

/* Each thread does `rounds` rounds and keeps its last buffers. All threads meet before and after. */
static struct buffer kept[THREADS][KEPT];
static pthread_barrier_t meet;
static _Atomic long rounds;

static void *churn(void *number)
{
	struct buffer *mine = kept[(intptr_t)number];
	uint64_t seed = 77 + (uint64_t)(intptr_t)number;

	for (;;) {
		pthread_barrier_wait(&meet);
		if (!rounds)
			return NULL;
		for (long i = 0; i < rounds; i++) {
			struct buffer *b = &mine[rand_next(&seed) % KEPT];

			if (b->p)
				drop(b, &seed);
			*b = make(&seed, LARGEST);
			if (i % 4 == 0)
				expect_pinned(b);
		}
		pthread_barrier_wait(&meet);
	}
}

static pthread_t churning[THREADS];

static void churn_start(void)
{
	pthread_barrier_init(&meet, NULL, THREADS + 1);
	for (intptr_t i = 0; i < THREADS; i++)
		EXPECT_EQ(pthread_create(&churning[i], NULL, churn, (void *)i), 0);
}

static void churn_run(long n)
{
	rounds = n;
	pthread_barrier_wait(&meet);
	if (n)
		pthread_barrier_wait(&meet);
}

static void churn_stop(void)
{
	churn_run(0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(churning[i], NULL);
}

static void kept_drop(void)
{
	uint64_t seed = 5;

	for (int t = 0; t < THREADS; t++)
		for (int i = 0; i < KEPT; i++)
			if (kept[t][i].p)
				drop(&kept[t][i], &seed);
}

/* ------------------------------------------------------------------ giving back; first, while few extents are in use elsewhere */

enum { MANY = 40000 };
static char *many[MANY];

static void fill(void)
{
	for (int i = 0; i < MANY; i++) {
		many[i] = hide(malloc(4096));
		if (EXPECT(many[i]))
			memset(many[i], i, 4096);
	}
}

/* Free the first buffers last: the thread's cache then keeps buffers in old extents, and no newer extent stays in
 * use. */
static void clear(int n)
{
	while (n--)
		free(many[n]);
}

/* jemalloc merges free neighbours, and cuts them in a new way. */
TEST(no_piece_lies_in_two_extents)
{
	fill();
	clear(MANY);
	for (int i = 0; i < MANY / 6; i++) {
		many[i] = hide(malloc(20 * KIB));
		expect_pinned(&(struct buffer){ many[i], 20 * KIB });
	}
	clear(MANY / 6);
	malloc_trim(0);
}

TEST(malloc_trim_gives_back_what_is_free_and_lets_go_of_registrations)
{
	size_t full;

	if (!domain_open(NULL))
		return;
	fill();
	for (int i = 0; i < MANY; i++)
		expect_pinned(&(struct buffer){ many[i], 4096 });
	full = resident();
	clear(MANY);
	malloc_trim(0);
	EXPECT(resident() + 100 * MIB < full);
	domain_close();
	domain = NULL;
}

TEST(what_stays_free_goes_back_by_itself)
{
	size_t full, now;

	free(hide(malloc(8 * MIB))); /* the heap serves a large buffer, too, so that its thread runs */
	fill();
	full = now = resident();
	clear(MANY);
	/* jemalloc gives memory back only during other calls */
	for (int i = 0; i < 1000 && now + 100 * MIB >= full; i++) {
		for (int k = 0; k < 5000; k++)
			free(hide(malloc((size_t)k)));
		sleep_ms(50);
		now = resident();
	}
	EXPECT(now + 100 * MIB < full);
}

/* ------------------------------------------------------------------ where memory is */

/* Bytes of writable private anonymous memory outside the heap's span. The span is taken to be the addresses from the
 * lowest to the highest extent. */
static size_t elsewhere(void)
{
	static char text[1 << 20];
	size_t sum = 0, n = 0;
	ssize_t got;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

	while (fd >= 0 && (got = read(fd, text + n, sizeof text - 1 - n)) > 0)
		n += (size_t)got;
	close(fd);
	text[n] = 0;
	for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
		struct hugepin_extent e;
		unsigned long from, to, inode;
		char perms[5];

		*end = 0;
		if (sscanf(line, "%lx-%lx %4s %*x %*s %lu", &from, &to, perms, &inode) != 4 || strcmp(perms, "rw-p") || inode)
			continue;
		if (hugepin_extent((void *)from, &e, sizeof e) < 0 && hugepin_extent((void *)(to - 1), &e, sizeof e) < 0)
			sum += to - from;
	}
	return sum;
}

TEST(every_piece_lies_in_an_extent_and_is_pinned_by_its_key)
{
	struct hugepin_stats s = stats();
	struct hugepin_domain_stats d;
	size_t before;

	if (!domain_open(NULL))
		return;
	EXPECT(s.small_bytes > 0);
	churn_start();
	churn_run(20000); /* such as tables of the heap and of the pin cache, and stacks */
	before = elsewhere();
	churn_run(ROUNDS);
	EXPECT(elsewhere() <= before + 32 * MIB); /* threads that meet begin shards, which have tables */
	s = stats();
	EXPECT_EQ(s.small_outside_bytes, 0);
	/* Extents are registered as they are made. A pin that comes earlier misses once. */
	d = domain_stats();
	EXPECT(differ <= d.invalidated);
	EXPECT(d.invalidated <= s.decayed_bytes / PAGE);
	EXPECT(d.misses <= s.extents + d.invalidated + d.decayed);
	for (int t = 0; t < THREADS; t++)
		for (int i = 0; i < KEPT; i++)
			if (kept[t][i].p)
				expect_pinned(&kept[t][i]);
	EXPECT_EQ(domain_stats().misses, d.misses);
	churn_stop();
	kept_drop();
	domain_close();
	domain = NULL;
}

/* ------------------------------------------------------------------ fork */

static _Atomic bool stop;

/* Make new arenas: jemalloc then asks for memory while it holds locks that its own fork handler takes. */
static void *make_arenas(void *unused)
{
	int (*mallctl)(const char *, void *, size_t *, void *, size_t);
	unsigned arena;
	size_t size = sizeof arena;

	*(void **)&mallctl = dlsym(RTLD_DEFAULT, "mallctl");
	for (int i = 0; i < 12 && !stop && mallctl; i++) {
		EXPECT_EQ(mallctl("arenas.create", &arena, &size, NULL, 0), 0);
		sleep_ms(20);
	}
	return unused;
}

static void *allocate(void *number)
{
	uint64_t seed = 1234 + (uint64_t)(intptr_t)number;
	struct buffer mine[500] = { { NULL, 0 } };

	while (!stop) {
		struct buffer *b = &mine[rand_next(&seed) % 500];

		if (b->p)
			drop(b, &seed);
		*b = make(&seed, LARGEST);
	}
	for (int i = 0; i < 500; i++)
		if (mine[i].p)
			drop(&mine[i], &seed);
	return NULL;
}

/* In a program with several threads, the C library uses small buffers in the child before any handler runs: for
 * streams, for values of keys beyond the first 32, and for handlers beyond the first 48. */
static int handlers, handled;
static void handler(void)
{
	handled++;
}

static int in_the_child(struct buffer *b, int n)
{
	uint64_t seed = 9;

	if (handled != 60)
		return 3;
	for (int i = 0; i < n; i++) {
		if (pattern_check(b[i].p, b[i].size, (uintptr_t)b[i].p) != -1)
			return 4;
		pattern_write(b[i].p, b[i].size, 1);
		free(b[i].p);
	}
	for (int i = 0; i < 3000; i++) {
		struct buffer x = make(&seed, LARGEST);
		drop(&x, &seed);
	}
	return t_failures ? 5 : 0;
}

static void fork_under_threads(int forks)
{
	enum { MINE = 3000 };
	static struct buffer b[MINE];
	static struct hugepin_pin pin[MINE];
	pthread_t thread[THREADS];
	pthread_key_t key;
	FILE *stream = fopen("/dev/null", "w");
	uint64_t seed = 21;

	EXPECT(stream);
	for (; handlers < 60; handlers++)
		pthread_atfork(NULL, NULL, handler);
	for (int i = 0; i < 100; i++)
		if (!pthread_key_create(&key, NULL))
			pthread_setspecific(key, &key);
	for (int i = 0; i < MINE; i++) {
		b[i] = make(&seed, HUGEPIN_LARGE_MIN - 1); /* HUGEPIN_FORK_DONTFORK applies to large buffers only */
		if (domain && i % 2)
			EXPECT_EQ(hugepin_pin(domain, b[i].p, b[i].size, 0, &pin[i]), 0);
	}
	stop = false;
	EXPECT_EQ(pthread_create(&thread[0], NULL, make_arenas, NULL), 0);
	for (intptr_t i = 1; i < THREADS; i++)
		EXPECT_EQ(pthread_create(&thread[i], NULL, allocate, (void *)i), 0);
	for (int i = 0; i < forks; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(in_the_child(b, MINE));
		if (!EXPECT_EQ(child_wait(pid), 0))
			break;
		pattern_write(b[i].p, b[i].size, (uintptr_t)b[i].p);
	}
	stop = true;
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < MINE; i++) {
		if (pin[i].ref)
			hugepin_unpin(domain, &pin[i]);
		drop(&b[i], &seed);
	}
	fclose(stream);
}

TEST(children_of_allocating_threads_have_all_and_none_hangs)
{
	fork_under_threads(120);
}

TEST(so_do_children_of_a_process_that_has_pinned_it)
{
	for (uint32_t how = HUGEPIN_FORK_DEFAULT; how <= HUGEPIN_FORK_DONTFORK; how++) {
		const struct hugepin_attr attr = { .size = sizeof attr, .fork = how };

		if (!domain_open(&attr))
			return;
		fork_under_threads(20);
		domain_close();
		domain = NULL;
	}
}

/* ------------------------------------------------------------------ when there is no more */

static int exhaust(void)
{
	fill();
	if (!stats().small_outside_bytes || stats().small_bytes > 8 * MIB)
		return 2;
	for (int i = 0; i < MANY; i++)
		for (int k = 0; k < 4096; k += 512)
			if (many[i][k] != (char)i)
				return 3;
	clear(MANY);
	malloc_trim(0);
	fill();
	clear(MANY);
	return t_failures ? 4 : 0;
}

static char *self;

/* Run this program with one more variable. Returns its exit status. */
static int run_with(const char *variable, const char *value, const char *test)
{
	pid_t pid = fork();

	if (pid == 0) {
		setenv(variable, value, 1);
		execl(self, self, test, NULL);
		_exit(127);
	}
	return child_wait(pid);
}

static bool readable(const char *p)
{
	int pipes[2];
	bool ok = pipe(pipes) == 0 && write(pipes[1], p, 1) == 1;

	close(pipes[0]);
	close(pipes[1]);
	return ok;
}

/* Advice for whole pages acts as without the library. */
TEST(what_a_program_keeps_from_its_children_they_do_not_have)
{
	char *p = malloc(24000), *page = (char *)(((uintptr_t)p + 4095) & ~(uintptr_t)4095);
	uint64_t seed = 31;

	memset(p, 7, 24000);
	EXPECT_EQ(madvise(page, 4096, MADV_DONTFORK), 0);
	EXPECT_EQ(madvise(page + 4096, 4096, MADV_WIPEONFORK), 0);
	for (int i = 0; i < 2; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			struct buffer b[50];
			pid_t next;

			t_failures = 0;
			for (int k = 0; k < 50; k++) /* no new memory may come to lie in a hole */
				b[k] = make(&seed, HUGEPIN_LARGE_MIN - 1);
			EXPECT(!readable(page) && page[4096] == 0 && page[8192] == 7);
			next = fork();
			if (next == 0)
				_exit(readable(page) || page[4096]);
			EXPECT_EQ(child_wait(next), 0);
			for (int k = 0; k < 50; k++)
				drop(&b[k], &seed);
			_exit(t_failures != 0);
		}
		EXPECT_EQ(child_wait(pid), 0);
		EXPECT(page[0] == 7 && page[4096] == 7);
	}
	EXPECT_EQ(madvise(page, 4096, MADV_DOFORK), 0);
	EXPECT_EQ(madvise(page + 4096, 4096, MADV_KEEPONFORK), 0);
	free(p);
}

TEST_CASE(what_no_longer_fits_comes_from_elsewhere_and_is_counted,
	  EXPECT_EQ(run_with("HUGEPIN_SPAN", "16M", "--exhaust"), 0))

static int is_off(void)
{
	struct hugepin_extent e;

	return hugepin_extent(hide(malloc(100)), &e, sizeof e) != -ENOENT;
}

TEST_CASE(without_the_option_small_buffers_are_in_no_extent,
	  EXPECT_EQ(run_with("HUGEPIN_SMALL_PINNED", "0", "--off"), 0))

int main(int argc, char **argv)
{
	void *cpp = dlopen("libstdc++.so.6", RTLD_NOW);

	self = argv[0];
	if (!getenv("HUGEPIN_SMALL_PINNED")) {
		setenv("HUGEPIN_SMALL_PINNED", "1", 1);
		setenv("HUGEPIN_DECAY", "400ms", 1);
		setenv("MALLOC_CONF", "dirty_decay_ms:200", 1);
		execv(argv[0], argv);
	}
	if (argc == 2 && !strcmp(argv[1], "--exhaust"))
		return exhaust();
	if (argc == 2 && !strcmp(argv[1], "--off"))
		return is_off();
	new = malloc;
	delete = free;
	if (cpp) {
		*(void **)&new = dlsym(cpp, "_Znwm");
		*(void **)&delete = dlsym(cpp, "_ZdlPv");
	}
	return t_run(argc, argv);
}
