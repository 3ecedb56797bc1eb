/* link: none */
/*
 * Allocation at unusual times: before all constructors and after all destructors, while threads end, are cancelled or
 * cannot start, and in the dynamic loader. lib/ has the test libraries.
 */
#include "live.h"

#include <dlfcn.h>
#include <limits.h>
#include <malloc.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "hugepin.h"

extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);

static char *dir(const char *name) /* a file in this program's directory */
{
	static char path[600];
	ssize_t n = readlink("/proc/self/exe", path, 500);
	path[n > 0 ? n : 0] = 0;
	char *slash = strrchr(path, '/');
	snprintf(slash ? slash + 1 : path, 90, "%s", name);
	return path;
}

/* ------------------------------------------------------------------ descriptors */

enum { OWN_FILE = 20 };

/* A program that closes all descriptors that it does not know, and then opens its own files under these numbers. */
static int closes_all(bool errors_too)
{
	free(hide(malloc(MIB)));
	closefrom(OWN_FILE + 1);
	for (int i = OWN_FILE + 1; i < 900; i++)
		dup2(OWN_FILE, i);
	if (errors_too)
		dup2(OWN_FILE, STDERR_FILENO);
	return 0;
}

static off_t size_of(int fd)
{
	struct stat s;
	return fstat(fd, &s) ? -1 : s.st_size;
}

TEST(statistics_at_exit_are_printed_into_no_file_of_the_programs)
{
	for (int errors_too = 0; errors_too < 2; errors_too++) {
		int file = (int)syscall(SYS_memfd_create, "own", 0), errors = (int)syscall(SYS_memfd_create, "errors", 0);
		int saved = dup(STDERR_FILENO);
		if (!EXPECT(file >= 0 && errors >= 0 && dup2(file, OWN_FILE) == OWN_FILE && dup2(errors, STDERR_FILENO) >= 0))
			return;
		setenv("HUGEPIN_STATS", "2", 1);
		int r = run_again(environ, errors_too ? "closes_more" : "closes", NULL, NULL);
		unsetenv("HUGEPIN_STATS");
		dup2(saved, STDERR_FILENO);
		EXPECT_EQ(r, 0);
		EXPECT_EQ(size_of(OWN_FILE), 0);
		EXPECT_EQ(size_of(errors) > 0, !errors_too);
		close(file);
		close(errors);
		close(saved);
		close(OWN_FILE);
	}
}

/* ------------------------------------------------------------------ before and after */

static char *preinit_small, *preinit_large, *preinit_break;

static void preinit(int argc, char **argv, char **env)
{
	(void)argc, (void)argv, (void)env;
	preinit_break = sbrk(4096);
	if (preinit_break != (char *)-1) /* sbrk() succeeded, so the memory may be used */
		preinit_break[4095] = 1;
	if (sbrk(0) != preinit_break + 4096 || brk(preinit_break + 8192) || sbrk(0) != preinit_break + 8192 || sbrk(-8192) == (void *)-1)
		preinit_break = (char *)-1;
	free(malloc(10));
	free(malloc(10000000));
	preinit_small = malloc(50);
	preinit_large = realloc(calloc(1, 60000), 4000000);
	if (preinit_small)
		pattern_write(preinit_small, 50, 1);
	if (preinit_large)
		pattern_write(preinit_large, 4000000, 2);
}

__attribute__((section(".preinit_array"), used)) static void (*const preinit_entry)(int, char **, char **) = preinit;

static void at_exit(void)
{
	char *p = calloc(1, 7000000), *q = malloc(70);
	if (!p || !q || zero_check(p, 7000000) != -1 || pattern_check(preinit_large, 4000000, 2) != -1)
		_exit(91);
	free(p);
	free(q);
	free(preinit_large);
}

static int around_main(void)
{
	int (*intact)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "around_intact");
	atexit(at_exit);
	if (!intact || !intact())
		return 92;
	return pattern_check(preinit_small, 50, 1) == -1 ? 0 : 93;
}

static void *allocate_both(void *unused)
{
	(void)unused;
	free(hide(malloc(100)));
	free(hide(malloc(MIB)));
	return NULL;
}

/* A key that the program forgot to create. */
static pthread_key_t no_key;

TEST(the_key_with_number_0_is_nobodys)
{
	pthread_t thread;
	allocate_both(NULL);
	if (EXPECT_EQ(pthread_create(&thread, NULL, allocate_both, NULL), 0))
		pthread_join(thread, NULL);
	EXPECT(!pthread_getspecific(no_key));
	EXPECT_EQ(pthread_setspecific(no_key, &thread), EINVAL);
	EXPECT(!pthread_getspecific(no_key));
}

TEST(memory_from_before_main_is_intact)
{
	if (EXPECT(preinit_small && preinit_large)) {
		EXPECT_EQ(pattern_check(preinit_small, 50, 1), -1);
		EXPECT_EQ(pattern_check(preinit_large, 4000000, 2), -1);
	}
}

TEST_CASE(the_break_can_be_moved_before_main, EXPECT(preinit_break != (char *)-1))

TEST(constructors_before_ours_and_destructors_after_may_allocate)
{
	char both[1300], *old = getenv("LD_PRELOAD");
	snprintf(both, sizeof both, "LD_PRELOAD=%.600s:%s", old ? old : "", dir("around.so"));
	char *behind[] = { both, NULL };
	EXPECT_EQ(run_again(behind, "--around", NULL, NULL), 0);
	snprintf(both, sizeof both, "LD_PRELOAD=%s:%.600s", dir("around.so"), old ? old : "");
	EXPECT_EQ(run_again(behind, "--around", NULL, NULL), 0);
}

/* Memory goes back to the kernel by a thread of the heap's. */
static int stood_in_main(void)
{
	size_t before = resident();
	char *p = hide(malloc(64 * MIB));
	pthread_t thread;
	pid_t pid;

	if (pthread_create(&thread, NULL, allocate_both, NULL) || pthread_join(thread, NULL))
		return 1;
	pid = fork();
	if (pid == 0)
		_exit(allocate_both(NULL) != NULL);
	if (child_wait(pid))
		return 2;
	free(hide(malloc(100)));
	malloc_trim(0);
	memset(p, 1, 64 * MIB);
	free(p);
	while (resident() > before + 8 * MIB)
		sleep_ms(10);
	return 0;
}

TEST(a_library_that_stands_in_for_the_c_library_is_not_called_inside_malloc)
{
	char both[1300], *old = getenv("LD_PRELOAD");
	char *env[] = { both, (char *)"HUGEPIN_DECAY=10ms", NULL };

	snprintf(both, sizeof both, "LD_PRELOAD=%.600s:%s", old ? old : "", dir("standin.so"));
	EXPECT_EQ(run_again(env, "--stood-in", NULL, NULL), 0);
	snprintf(both, sizeof both, "LD_PRELOAD=%s:%.600s", dir("standin.so"), old ? old : "");
	EXPECT_EQ(run_again(env, "--stood-in", NULL, NULL), 0);
}

/* ------------------------------------------------------------------ the dynamic loader */

static void *use_tls(void *lib)
{
	int (*first)(int) = (int (*)(int))dlsym(lib, "bigtls_first_use");
	int (*later)(int) = (int (*)(int))dlsym(lib, "bigtls_later_use");
	if (!EXPECT(first && later))
		return NULL;
	EXPECT(first(7));
	char *p = hide(malloc(300000));
	memset(p, 1, 300000);
	EXPECT(later(7));
	free(p);
	return NULL;
}

TEST(a_library_with_much_thread_local_memory_can_be_opened)
{
	for (int round = 0; round < 5; round++) {
		void *lib = dlopen(dir("bigtls.so"), RTLD_NOW);
		pthread_t t[4];
		if (!EXPECT(lib))
			return;
		for (int i = 0; i < 4; i++)
			EXPECT(!pthread_create(&t[i], NULL, use_tls, lib));
		if (!round)
			use_tls(lib);
		for (int i = 0; i < 4; i++)
			pthread_join(t[i], NULL);
		EXPECT(!dlclose(lib));
	}
}

static void *use_opened(void *lib)
{
	void *(*get)(size_t) = (void *(*)(size_t))dlsym(lib, "hugepin_malloc");
	void (*give)(void *) = (void (*)(void *))dlsym(lib, "hugepin_free");
	if (!get || !give)
		return (void *)1;
	for (size_t n = 1; n < 100 * MIB; n = n * 5 + 1) {
		char *p = get(n);
		if (!p)
			return (void *)2;
		pattern_write(p, n, n);
		if (pattern_check(p, n, n) != -1)
			return (void *)3;
		give(p);
	}
	return NULL;
}

/* A program that is not linked with the library opens it, uses it in threads, and closes it. The library's code and
 * memory must stay. */
static int dlopen_main(void)
{
	void *lib = dlopen(dir("../../libhugepin.so"), RTLD_NOW), *result = NULL;
	pthread_t t;
	if (!lib) {
		dprintf(STDERR_FILENO, "%s\n", dlerror());
		return 1;
	}
	if (use_opened(lib) || pthread_create(&t, NULL, use_opened, lib) || pthread_join(t, &result) || result)
		return 2;
	void *(*get)(size_t) = (void *(*)(size_t))dlsym(lib, "hugepin_malloc");
	char *p = get(MIB);
	pattern_write(p, MIB, 5);
	pid_t pid = fork();
	if (pid == 0)
		_exit(pattern_check(p, MIB, 5) != -1 || use_opened(lib));
	if (child_wait(pid) || dlclose(lib))
		return 3;
	sleep_ms(50); /* the library's service thread still runs */
	return pattern_check(p, MIB, 5) != -1 || !get(2 * MIB);
}

TEST(a_plain_program_may_open_and_close_the_library)
{
	char *short_decay[] = { (char *)"HUGEPIN_DECAY=10ms", NULL };
	EXPECT_EQ(run_again(short_decay, "--dlopen", NULL, NULL), 0);
}

/* What the module allocates is the heap's (1) or not (0). -1: no module. */
static int module_is_ours(void)
{
	void *lib = dlopen(dir("module.so"), RTLD_NOW | RTLD_DEEPBIND);
	void *(*get)(size_t) = lib ? (void *(*)(size_t))dlsym(lib, "module_malloc") : NULL;
	void (*give)(void *) = lib ? (void (*)(void *))dlsym(lib, "module_free") : NULL;
	int (*extent)(const void *, struct hugepin_extent *, size_t) =
		(int (*)(const void *, struct hugepin_extent *, size_t))dlsym(RTLD_DEFAULT, "hugepin_extent");
	struct hugepin_extent x;
	void *p = get && give && extent ? get(300000) : NULL;
	const int ours = p ? extent(p, &x, sizeof x) > 0 : -1;

	if (ours == 1) {
		free(hide(p));
		give(hide(malloc(300000)));
	} else if (p) {
		give(p);
	}
	return ours;
}

TEST(a_module_that_asks_for_the_c_librarys_malloc_has_the_programs_unless_that_is_kept)
{
	EXPECT_EQ(module_is_ours(), 1);
	setenv("HUGEPIN_DEEPBIND", "keep", 1);
	EXPECT_EQ(run_again(environ, "--module", NULL, NULL), 0);
	unsetenv("HUGEPIN_DEEPBIND");
}

/* The loader looks where the caller of dlopen() says. */
TEST(a_module_opens_others_from_its_own_directories)
{
	void *lib = dlopen(dir("module.so"), RTLD_NOW | RTLD_DEEPBIND);
	int (*opens)(const char *, int) = lib ? (int (*)(const char *, int))dlsym(lib, "module_opens") : NULL;

	EXPECT(!dlopen("bigtls.so", RTLD_NOW));
	EXPECT(opens && opens("bigtls.so", RTLD_NOW) && opens("bigtls.so", RTLD_NOW | RTLD_DEEPBIND));
}

/* ------------------------------------------------------------------ threads that end */

static pthread_key_t key;
static _Atomic int destroyed;

static void destroy(void *value)
{
	uintptr_t n = (uintptr_t)value;
	char *p = malloc(n * 30000), *q = calloc(1, 1000), *r = malloc(90 * MIB);
	if (!p || !q || !r || zero_check(q, 1000) != -1)
		_exit(94);
	pattern_write(p, n * 30000, n);
	p = realloc(p, n * 70000);
	if (!p || pattern_check(p, n * 30000 / 8 * 8, n) != -1)
		_exit(95);
	free(p);
	free(q);
	free(r);
	destroyed++;
	if (n < 4) /* destructors run again while keys have values */
		pthread_setspecific(key, (void *)(n + 1));
}

static void destroy_late(void *p)
{
	free(p);
	free(malloc(500000));
	destroyed++;
}

static void *end_with_values(void *arg)
{
	(void)arg;
	pthread_setspecific(key, (void *)1);
	__cxa_thread_atexit_impl(destroy_late, malloc(800000), &key);
	free(hide(malloc(60000)));
	return NULL;
}

TEST(destructors_of_threads_may_allocate_and_free)
{
	static char *held[40];
	if (!EXPECT(!pthread_key_create(&key, destroy)))
		return;
	destroyed = 0;
	for (int i = 0; i < 40; i++) {
		pthread_t t;
		if (EXPECT(!pthread_create(&t, NULL, end_with_values, NULL)))
			pthread_join(t, NULL);
		held[i] = hide(malloc(50000)); /* no other thread may get this buffer */
		pattern_write(held[i], 50000, (uint64_t)i);
	}
	EXPECT_EQ(destroyed, 40 * 5);
	for (int i = 0; i < 40; i++) {
		EXPECT_EQ(pattern_check(held[i], 50000, (uint64_t)i), -1);
		free(held[i]);
	}
}

static void (*last_use)(void);

static void use_heap(void)
{
	free(hide(malloc(100000)));
}

/* Runs in each round of destructors, but uses the heap in the last round only. After that round the C library calls no
 * more destructors. */
static void destroy_last(void *round)
{
	if ((intptr_t)round < PTHREAD_DESTRUCTOR_ITERATIONS)
		pthread_setspecific(key, (void *)((intptr_t)round + 1));
	else
		last_use();
}

static void *end_late(void *tid)
{
	pthread_setspecific(key, (void *)1);
	*(pid_t *)tid = gettid();
	return NULL;
}

/* The kernel forgets a thread a moment after the join. */
static void join_gone(pthread_t t, const pid_t *tid)
{
	bool gone = false;

	pthread_join(t, NULL);
	for (int ms = 0; ms < 50000 && !gone; ms++) {
		gone = tgkill(getpid(), *tid, 0);
		if (!gone)
			sleep_ms(1);
	}
	EXPECT(gone);
}

/* The threads that have a cache. */
static unsigned long caches(void)
{
	int (*stats)(struct hugepin_stats *, size_t);
	struct hugepin_stats s = { .threads = UINT32_MAX };

	*(void **)&stats = dlsym(RTLD_DEFAULT, "hugepin_stats");
	if (EXPECT(stats))
		stats(&s, sizeof s);
	return s.threads;
}

TEST(threads_that_use_the_heap_in_their_last_moment_leave_nothing)
{
	unsigned long left;

	last_use = use_heap;
	if (!EXPECT(!pthread_key_create(&key, destroy_last)))
		return;
	for (int i = 0; i < 500; i++) {
		pthread_t t;
		pid_t tid = 0;
		if (!EXPECT(!pthread_create(&t, NULL, end_late, &tid)))
			return;
		join_gone(t, &tid);
	}
	left = caches();
	if (!EXPECT(left <= 20))
		T_FAIL("%lu threads", left);
	pthread_key_delete(key);
}

static sem_t used, may_end, may_leave;

static void use_heap_and_wait(void)
{
	use_heap();
	sem_post(&used);
	sem_wait(&may_end);
}

static void *live_on(void *unused)
{
	use_heap();
	sem_post(&used);
	sem_wait(&may_leave);
	return unused;
}

/* Start a thread, and wait until it has used the heap. */
static void start_and_wait(pthread_t *t, void *(*run)(void *), void *arg)
{
	EXPECT(!pthread_create(t, NULL, run, arg));
	sem_wait(&used);
}

/* The heap looks at the latest thread first, and looks when it has no spare cache for a new thread. */
TEST(threads_that_ended_in_their_last_moment_are_found_behind_one_that_lives)
{
	enum { ENDED = 30, LIVING = 10 };
	const unsigned long before = caches();
	pthread_t ended[ENDED], living[LIVING];
	pid_t tid[ENDED] = { 0 };

	last_use = use_heap_and_wait;
	if (!EXPECT(!pthread_key_create(&key, destroy_last)))
		return;
	sem_init(&used, 0, 0);
	sem_init(&may_end, 0, 0);
	sem_init(&may_leave, 0, 0);
	for (int i = 0; i < ENDED; i++)
		start_and_wait(&ended[i], end_late, &tid[i]);
	start_and_wait(&living[0], live_on, NULL);
	for (int i = 0; i < ENDED; i++)
		sem_post(&may_end);
	for (int i = 0; i < ENDED; i++)
		join_gone(ended[i], &tid[i]);
	for (int i = 1; i < LIVING; i++)
		start_and_wait(&living[i], live_on, NULL);
	EXPECT(caches() <= before + LIVING); /* some had ended before */
	for (int i = 0; i < LIVING; i++)
		sem_post(&may_leave);
	for (int i = 0; i < LIVING; i++)
		pthread_join(living[i], NULL);
	pthread_key_delete(key);
}

/* Take every slow path of the heap with a cancellation pending. The thread must survive them. */
static void *allocate_cancelled(void *arg)
{
	char *p[40];
	pthread_cancel(pthread_self());
	for (size_t i = 0; i < 40; i++)
		p[i] = malloc(i % 4 * 20 * MIB + i * 5000 + 1);
	for (size_t i = 0; i < 40; i++)
		p[i] = realloc(p[i], i % 3 * 30 * MIB + i * 6000 + 1);
	for (int i = 0; i < 40; i++)
		free(p[i]);
	free(aligned_alloc(4 * MIB, 5 * MIB));
	free(calloc(3, 50 * MIB));
	malloc_trim(0);
	*(bool *)arg = true;
	pthread_testcancel();
	return NULL;
}

TEST(allocation_is_no_cancellation_point)
{
	for (int i = 0; i < 3; i++) {
		bool reached = false;
		void *result = NULL;
		pthread_t t;
		if (!EXPECT(!pthread_create(&t, NULL, allocate_cancelled, &reached)))
			return;
		pthread_join(t, &result);
		EXPECT(reached);
		EXPECT(result == PTHREAD_CANCELED);
	}
}

static void *allocate_forever(void *arg)
{
	for (size_t n = 1;; n = n * 7 % (8 * MIB) + 1) {
		char *p = hide(malloc(n));
		if (p)
			p[n - 1] = 1;
		free(p);
		pthread_testcancel();
	}
	return arg;
}

TEST(a_thread_that_allocates_can_be_cancelled)
{
	for (int i = 0; i < 60; i++) {
		pthread_t t[4];
		for (int j = 0; j < 4; j++)
			if (!EXPECT(!pthread_create(&t[j], NULL, allocate_forever, NULL)))
				return;
		sleep_ms(i % 5);
		for (int j = 0; j < 4; j++)
			pthread_cancel(t[j]);
		for (int j = 0; j < 4; j++)
			pthread_join(t[j], NULL);
	}
	char *p = hide(malloc(5 * MIB)); /* the cancelled threads left no lock taken */
	EXPECT(p);
	free(p);
}

/* ------------------------------------------------------------------ threads that cannot start */

static void *nothing(void *arg)
{
	return arg;
}

static int churn(void)
{
	for (int round = 0; round < 50; round++) {
		char *p[20];
		for (size_t i = 0; i < 20; i++) {
			p[i] = hide(malloc(30000 * (i + 1)));
			if (!p[i])
				return 96;
			pattern_write(p[i], 30000 * (i + 1), i);
		}
		for (size_t i = 0; i < 20; i++) {
			if (pattern_check(p[i], 30000 * (i + 1), i) != -1)
				return 97;
			free(p[i]);
		}
		if (round % 10 == 0)
			sleep_ms(20);
	}
	return 0;
}

/* A user whose limit allows no further thread, so that the heap cannot start one either. */
static int no_threads_main(void)
{
	struct rlimit one = { 1, 1 };
	pthread_t t;
	if (setrlimit(RLIMIT_NPROC, &one) || setresuid(65534, 65534, 65534))
		return 77;
	if (!pthread_create(&t, NULL, nothing, NULL))
		return 77; /* the limit has no effect for this user */
	return churn();
}

TEST(the_heap_works_without_its_service_thread)
{
	setenv("HUGEPIN_DECAY", "30ms", 1);
	int status = run_again(environ, "--no-threads", NULL, NULL);
	unsetenv("HUGEPIN_DECAY");
	if (status == 77)
		SKIP("RLIMIT_NPROC does not bind here");
	EXPECT_EQ(status, 0);
}

static _Atomic bool all_there;

static void *stay(void *arg)
{
	while (!all_there)
		sleep_ms(50);
	return arg;
}

/* Start threads until no more fit. When they have ended, another must fit. */
static int many_threads_main(void)
{
	static pthread_t t[2000];
	int n = 0;
	while (n < 2000 && !pthread_create(&t[n], NULL, stay, NULL))
		n++;
	if (n == 2000)
		return 77;
	/* the address space is used up: malloc may fail, but must not crash */
	for (size_t size = 1; size < 64 * MIB; size *= 2) {
		char *p = hide(malloc(size));
		if (p)
			memset(p, 1, size);
		else if (errno != ENOMEM)
			return 98;
		free(p);
	}
	all_there = true;
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	if (pthread_create(&t[0], NULL, nothing, NULL) || pthread_join(t[0], NULL))
		return 99;
	return churn();
}

TEST(failing_thread_creation_does_no_harm)
{
	pid_t pid = fork();
	if (pid == 0) {
		struct rlimit as = { 3 * GIB, 3 * GIB };
		setrlimit(RLIMIT_AS, &as);
		execl("/proc/self/exe", "early", "--many-threads", NULL);
		_exit(127);
	}
	int status = child_wait(pid);
	if (status == 77)
		SKIP("RLIMIT_AS does not bind here");
	EXPECT_EQ(status, 0);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strncmp(argv[1], "closes", 6))
		return closes_all(!strcmp(argv[1], "closes_more"));
	if (argc == 2 && !strcmp(argv[1], "--around"))
		return around_main();
	if (argc == 2 && !strcmp(argv[1], "--stood-in"))
		return stood_in_main();
	if (argc == 2 && !strcmp(argv[1], "--dlopen"))
		return dlopen_main();
	if (argc == 2 && !strcmp(argv[1], "--module"))
		return module_is_ours();
	if (argc == 2 && !strcmp(argv[1], "--no-threads"))
		return no_threads_main();
	if (argc == 2 && !strcmp(argv[1], "--many-threads"))
		return many_threads_main();
	return t_run(argc, argv);
}
