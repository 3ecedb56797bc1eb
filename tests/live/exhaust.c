/* link: none */
/*
 * Memory that runs out. Run alone, and by limits.sh under limits of every kind. Whatever the limit, malloc returns NULL
 * with ENOMEM, buffers keep their contents, and freed memory can be allocated again.
 *
 * EXHAUST_MIB: how much to take at most; EXHAUST_MLOCK: the argument of mlockall() to begin with.
 */
#include "live.h"

enum { MANY = 20000 };

static size_t most(void)
{
	const char *s = getenv("EXHAUST_MIB");
	return (s ? strtoul(s, NULL, 10) : 400) * MIB;
}

/* The size of buffer i. step: the size of all buffers; 0: a size that depends on i only. */
static size_t size_at(size_t i, size_t step)
{
	return step ? step : 100 + i * 7919 % (i % 8 ? 60 * KIB : 3 * MIB);
}

/* Allocate until NULL or `limit` bytes. Returns bytes; *ret_count buffers. */
static size_t take(char **p, size_t *ret_count, size_t limit, size_t step)
{
	size_t sum = 0, n = 0;
	for (; n < MANY && sum < limit; n++) {
		size_t size = size_at(n, step);
		errno = 0;
		p[n] = hide(n % 3 ? malloc(size) : calloc(1, size));
		if (!p[n]) {
			EXPECT_EQ(errno, ENOMEM);
			break;
		}
		if (n % 3 == 0 && zero_check(p[n], size) != -1)
			T_FAIL("calloc of %zu is not zero", size);
		pattern_write(p[n], size, n);
		sum += size;
	}
	*ret_count = n;
	return sum;
}

static void give(char **p, size_t n, size_t step)
{
	for (size_t i = 0; i < n; i++) {
		EXPECT_EQ(pattern_check(p[i], size_at(i, step), i), -1);
		free(p[i]);
	}
}

static pthread_barrier_t all_there;

static void *exhaust(void *arg)
{
	size_t n, quarter = most() / 4;
	char **p = mmap(NULL, MANY * sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_barrier_wait(&all_there);
	if (p == MAP_FAILED)
		return arg;
	take(p, &n, quarter, 0);
	give(p, n, 0);
	munmap(p, MANY * sizeof *p);
	return NULL;
}

static int start_small(pthread_t *t, void *(*run)(void *))
{
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 256 * KIB);
	int r = pthread_create(t, &a, run, NULL);
	pthread_attr_destroy(&a);
	return r;
}

/* The threads start before memory is used up, since malloc may keep freed memory for some seconds. */
static void threads_exhaust(void)
{
	pthread_t t[4];
	pthread_barrier_init(&all_there, NULL, 5);
	for (int i = 0; i < 4; i++)
		if (!EXPECT(!start_small(&t[i], exhaust)))
			_exit(3); /* the threads that did start would wait for ever */
	pthread_barrier_wait(&all_there);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	pthread_barrier_destroy(&all_there);
}

TEST_CASE(threads_run_out_of_memory_together, threads_exhaust())

TEST(what_was_freed_can_be_had_again)
{
	static char *p[MANY];
	static const size_t steps[] = { 0, 64 * KIB, MIB, 0 };
	size_t n, first = 0;
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		size_t sum = take(p, &n, most(), steps[i]);
		give(p, n, steps[i]);
		if (!i)
			first = sum;
		else if (!EXPECT(sum >= first / 2))
			T_FAIL("%zu KiB at first, %zu KiB in round %zu", first / KIB, sum / KIB, i);
	}
	EXPECT(first > 0);
}

TEST(a_realloc_that_fails_loses_nothing)
{
	static char *p[MANY];
	size_t n, size = 200 * KIB;
	char *q = hide(malloc(size));
	if (!EXPECT(q))
		return;
	pattern_write(q, size, 1);
	take(p, &n, most(), MIB);
	for (int i = 0; i < 30; i++) {
		errno = 0;
		char *r = hide(realloc(hide(q), size * 2));
		if (!r) {
			EXPECT_EQ(errno, ENOMEM);
			break;
		}
		q = r;
		EXPECT_EQ(pattern_check(q, size, 1), -1);
		size *= 2;
		pattern_write(q, size, 1);
		if (size > most())
			break;
	}
	EXPECT_EQ(pattern_check(hide(q), size, 1), -1);
	free(hide(q));
	give(p, n, MIB);
}

TEST(after_a_request_that_is_too_large_others_succeed)
{
	for (size_t n = 64 * MIB; n < (size_t)1 << 50; n *= 4) {
		errno = 0;
		char *p = hide(malloc(n));
		if (!p)
			EXPECT_EQ(errno, ENOMEM);
		free(p);
		p = hide(malloc(200));
		char *q = hide(malloc(100 * KIB));
		if (EXPECT(p) && EXPECT(q))
			p[0] = q[0] = 1;
		free(p);
		free(q);
	}
}

/* ------------------------------------------------------------------ limits that a program sets itself */

static void lower_limit(__rlimit_resource_t which, rlim_t to)
{
	static char *p[MANY];
	size_t n, m;
	pid_t pid = fork();
	if (pid == 0) {
		struct rlimit r;
		t_failures = 0;
		getrlimit(which, &r);
		r.rlim_cur = to < r.rlim_cur ? to : r.rlim_cur;
		EXPECT(!setrlimit(which, &r));
		threads_exhaust();
		size_t first = take(p, &n, most(), 0);
		give(p, n, 0);
		size_t second = take(p, &m, most(), 0);
		give(p, m, 0);
		EXPECT(second >= first / 2);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

/* Bytes in buffers of that size that can be had at once, up to `limit`. All are freed. */
static size_t take_chain(size_t size, size_t limit)
{
	void **last = NULL, **p;
	size_t sum = 0;

	for (; sum < limit && (p = hide(malloc(size))); last = p, sum += size) {
		memset(p, 1, size);
		*p = last;
	}
	while ((p = last)) {
		last = *p;
		free(p);
	}
	return sum;
}

/* The heap has no memory left then, and jemalloc has the freed memory in small pieces. */
static void use_what_was_small(void)
{
	const struct rlimit limit = { 300 * MIB, 300 * MIB };

	EXPECT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
	EXPECT(take_chain(1000, 210 * MIB) >= 200 * MIB);
	EXPECT(take_chain(64 * KIB, 300 * MIB) >= 200 * MIB);
}

TEST(at_a_limit_large_buffers_get_the_memory_of_small_ones)
{
	setenv("HUGEPIN_PAGES", "thp", 1); /* the pool does not count as data */
	anew(use_what_was_small);
	unsetenv("HUGEPIN_PAGES");
}

TEST_CASE(a_program_may_limit_its_data, lower_limit(RLIMIT_DATA, 150 * MIB))
TEST_CASE(a_program_may_limit_its_address_space, lower_limit(RLIMIT_AS, 200 * MIB))

int main(int argc, char **argv)
{
	const char *lock = getenv("EXHAUST_MLOCK");
	if (argc == 4 && !strcmp(argv[1], "--anew"))
		return anew_main(argv + 2);
	if (argc == 3 && !strcmp(argv[1], "--drain"))
		return pool_drain_main(strtol(argv[2], NULL, 10));
	if (lock && mlockall((int)strtol(lock, NULL, 10))) {
		t_print("1..0 # SKIP mlockall: %s\n", strerror(errno));
		return 77;
	}
	return t_run(argc, argv);
}
