/* link: none */
/*
 * Fork: every child has its parent's memory, may rewrite it, and does not die because the pool is empty, now or later.
 * The kernel's copy-on-write of private hugetlb pages does not guarantee this: if the pool is empty, it kills the
 * child.
 */
#include <dlfcn.h>
#include <hugepin_stats.h>
#include <limits.h>
#include <malloc.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "cgroup.h"

/* A heap of many sizes, each buffer with a pattern of its own. */
enum { BUFFERS = 48 };
struct heap {
	char *p[BUFFERS];
	size_t size[BUFFERS];
	uint64_t seed[BUFFERS];
};

static size_t heap_fill(struct heap *h, size_t total, uint64_t seed)
{
	size_t sum = 0;
	for (int i = 0; i < BUFFERS; i++) {
		/* sizes from 40 KiB to some MiB, not multiples of a page; every fifth buffer is small */
		h->size[i] = i % 5 == 4 ? 100 * (size_t)i : 40 * KIB + total / BUFFERS * (size_t)(i % 7) / 4 + (size_t)i * 13;
		h->seed[i] = seed << 20 | (uint64_t)i << 8;
		h->p[i] = hide(malloc(h->size[i]));
		if (!EXPECT(h->p[i]))
			h->size[i] = 0;
		pattern_write(h->p[i], h->size[i], h->seed[i]);
		sum += h->size[i];
	}
	return sum;
}

/* The number of buffers whose contents have changed. */
static int heap_check(const struct heap *h)
{
	int bad = 0;
	for (int i = 0; i < BUFFERS; i++)
		bad += pattern_check(h->p[i], h->size[i], h->seed[i]) != -1;
	return bad;
}

static void heap_rewrite(struct heap *h, uint64_t seed)
{
	for (int i = 0; i < BUFFERS; i++) {
		h->seed[i] = seed << 20 | (uint64_t)i << 8;
		pattern_write(h->p[i], h->size[i], h->seed[i]);
	}
}

static void heap_free(struct heap *h)
{
	for (int i = 0; i < BUFFERS; i++)
		free(h->p[i]);
}

/* The work of a child: read all, write all, read all, then use its heap. */
static int use(struct heap *h, uint64_t seed)
{
	int bad = heap_check(h);
	heap_rewrite(h, seed);
	bad += heap_check(h);
	for (int i = 0; i < BUFFERS; i += 2) {
		h->p[i] = hide(realloc(h->p[i], h->size[i] + 100000));
		if (!h->p[i])
			return 100;
	}
	bad += heap_check(h);
	heap_free(h);
	struct heap fresh;
	heap_fill(&fresh, 20 * MIB, seed + 1);
	bad += heap_check(&fresh);
	heap_free(&fresh);
	return bad;
}

/* Fork a child that runs use(). Returns its exit status (0: no error), -1 if it hung, -2 if the fork was refused. */
static int fork_and_use(struct heap *h, uint64_t seed)
{
	pid_t pid = fork();
	if (pid == 0)
		_exit(use(h, seed));
	if (pid < 0)
		return errno == ENOMEM ? -2 : -3;
	return child_wait(pid);
}

TEST(a_child_has_its_own_copy_of_everything)
{
	struct heap h;
	heap_fill(&h, 150 * MIB, 1);
	for (uint64_t i = 0; i < 4; i++) {
		EXPECT_EQ(fork_and_use(&h, 100 + i), 0);
		EXPECT_EQ(heap_check(&h), 0);
		heap_rewrite(&h, 2 + i);
	}
	EXPECT_EQ(heap_check(&h), 0);
	heap_free(&h);
}

static int descend(struct heap *h, uint64_t seed, int generations)
{
	if (heap_check(h))
		return 10;
	heap_rewrite(h, seed);
	for (uint64_t i = 0; generations && i < 2; i++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(descend(h, seed * 3 + i, generations - 1));
		int status = pid < 0 ? 20 : child_wait(pid);
		if (status || heap_check(h))
			return status ? status : 11;
	}
	return use(h, seed + 1000);
}

TEST(children_may_fork_again_and_again)
{
	struct heap h;
	heap_fill(&h, 40 * MIB, 5);
	pid_t pid = fork();
	if (pid == 0)
		_exit(descend(&h, 6, 3));
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT_EQ(heap_check(&h), 0);
	heap_free(&h);
}

/* ------------------------------------------------------------------ many threads */

static _Atomic bool stop;
static _Atomic int forked;

static void *fork_often(void *arg)
{
	struct heap h;
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	heap_fill(&h, 12 * MIB, seed);
	for (uint64_t i = 0; i < 6; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			if (heap_check(&h))
				_exit(30);
			pid = fork();
			if (pid == 0)
				_exit(use(&h, seed + 50 + i));
			int status = pid < 0 ? 31 : child_wait(pid);
			_exit(status ? status : use(&h, seed + 100 + i));
		}
		EXPECT_EQ(pid < 0 ? -errno : child_wait(pid), 0);
		EXPECT_EQ(heap_check(&h), 0);
		heap_rewrite(&h, seed + 1000 + i);
		forked++;
	}
	heap_free(&h);
	return NULL;
}

static void *write_always(void *arg)
{
	uint64_t state = (uint64_t)(uintptr_t)arg;
	while (!stop) {
		struct heap h;
		heap_fill(&h, 5 * MIB, state++);
		EXPECT_EQ(heap_check(&h), 0);
		heap_free(&h);
	}
	return NULL;
}

static void fork_from_many_threads(void)
{
	pthread_t t[5];
	stop = false;
	forked = 0;
	for (uintptr_t i = 0; i < 5; i++)
		if (!EXPECT(!pthread_create(&t[i], NULL, i < 3 ? fork_often : write_always, (void *)(i + 1))))
			return;
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	stop = true;
	pthread_join(t[3], NULL);
	pthread_join(t[4], NULL);
	EXPECT_EQ(forked, 18);
}

TEST(threads_may_fork_while_others_allocate)
{
	fork_from_many_threads();
}

TEST(threads_may_fork_while_others_allocate_with_the_pool_empty)
{
	NEEDS_POOL(40);
	struct heap h;
	heap_fill(&h, 40 * MIB, 3);
	struct drainer d = pool_drain(0);
	EXPECT(d.hold >= 0);
	fork_from_many_threads();
	pool_refill(d);
	EXPECT_EQ(heap_check(&h), 0);
	heap_free(&h);
}

static void *come_and_go(void *arg)
{
	(void)arg;
	free(hide(malloc(100000)));
	return NULL;
}

TEST(a_fork_among_threads_that_come_and_go_does_not_hang)
{
	for (int i = 0; i < 60; i++) {
		pthread_t t[4];
		for (int j = 0; j < 4; j++)
			if (!EXPECT(!pthread_create(&t[j], NULL, come_and_go, NULL)))
				return;
		pid_t pid = fork();
		if (pid == 0) {
			pthread_t u; /* the child may start threads */
			if (pthread_create(&u, NULL, come_and_go, NULL) || pthread_join(u, NULL))
				_exit(1);
			come_and_go(NULL);
			_exit(0);
		}
		EXPECT_EQ(child_wait(pid), 0);
		for (int j = 0; j < 4; j++)
			pthread_join(t[j], NULL);
	}
}

/* ------------------------------------------------------------------ the pool runs dry */

TEST(a_child_lives_with_the_pool_empty_at_fork)
{
	NEEDS_POOL(45);
	struct heap h;
	heap_fill(&h, 60 * MIB, 7);
	struct drainer d = pool_drain(0);
	EXPECT(d.hold >= 0);
	for (uint64_t i = 0; i < 3; i++) {
		EXPECT_EQ(fork_and_use(&h, 8 + i), 0);
		EXPECT_EQ(heap_check(&h), 0);
	}
	pool_refill(d);
	heap_free(&h);
}

TEST(a_child_lives_with_the_pool_drained_after_fork)
{
	NEEDS_POOL(45);
	struct heap h;
	int go[2];
	char c = 0;
	heap_fill(&h, 60 * MIB, 9);
	if (!EXPECT(!pipe2(go, O_CLOEXEC)))
		return;
	pid_t pid = fork();
	if (pid == 0) {
		int bad = read(go[0], &c, 1) != 1;
		_exit(bad + use(&h, 10));
	}
	struct drainer d = pool_drain(0);
	EXPECT(d.hold >= 0);
	heap_rewrite(&h, 11); /* the parent writes first: copy-on-write would take the child's page */
	EXPECT(write(go[1], &c, 1) == 1);
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT_EQ(heap_check(&h), 0);
	pool_refill(d);
	close(go[0]);
	close(go[1]);
	heap_free(&h);
}

static char *written_by_children;
static volatile int handled, died;

static void fork_in_handler(int signal)
{
	const pid_t pid = fork();

	(void)signal;
	for (size_t i = 0; pid == 0 && i < 20 * MIB; i += 4096)
		((volatile char *)written_by_children)[i]++;
	if (pid == 0)
		_exit(0);
	died += pid > 0 && child_wait(pid) != 0;
	handled++;
}

static int handler_main(void)
{
	struct drainer d;

	written_by_children = memset(hide(malloc(20 * MIB)), 1, 20 * MIB);
	d = pool_drain(0);
	signal(SIGALRM, fork_in_handler);
	for (int k = 0; k < 60; k++) {
		const struct itimerval soon = { .it_value.tv_usec = 1000 + k * 50 };
		const int last = handled;

		for (setitimer(ITIMER_REAL, &soon, NULL); handled == last;) {
			free(hide(malloc(3 * MIB)));
			malloc_trim(0);
		}
	}
	pool_refill(d);
	return died;
}

/* Such a fork gets no copy. It fails where the pool does not cover the heap. */
TEST(no_child_of_a_handler_that_interrupts_the_heap_dies_with_the_pool_empty)
{
	NEEDS_POOL(20);
	EXPECT_EQ(run_again(environ, "--handler", NULL, NULL), 0);
}

TEST(spawned_programs_need_no_pool)
{
	struct heap h;
	heap_fill(&h, 60 * MIB, 12);
	struct drainer d = pool_drain(0);
	for (int i = 0; i < 5; i++) {
		EXPECT_EQ(system("exit 7"), 7 << 8);
		FILE *f = popen("echo spawned", "r");
		char line[20] = "";
		EXPECT(f && fgets(line, sizeof line, f) && !strcmp(line, "spawned\n"));
		EXPECT(f && pclose(f) == 0);
		pid_t pid = vfork();
		if (pid == 0) {
			execl("/bin/true", "true", NULL);
			_exit(127);
		}
		EXPECT_EQ(child_wait(pid), 0);
	}
	pool_refill(d);
	EXPECT_EQ(heap_check(&h), 0);
	heap_free(&h);
}

TEST(a_daemon_keeps_its_memory)
{
	struct heap h;
	int result[2];
	heap_fill(&h, 60 * MIB, 13);
	if (!EXPECT(!pipe2(result, O_CLOEXEC)))
		return;
	struct drainer d = pool_drain(0);
	pid_t pid = fork();
	if (pid == 0) { /* daemon() forks inside the C library, and its parent ends */
		char status = daemon(1, 1) ? 99 : (char)use(&h, 14);
		_exit(write(result[1], &status, 1) != 1);
	}
	char status = 98;
	close(result[1]);
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT(read(result[0], &status, 1) == 1);
	EXPECT_EQ(status, 0);
	close(result[0]);
	pool_refill(d);
	heap_free(&h);
}

/* ------------------------------------------------------------------ direct I/O */

enum { FILE_SIZE = 8 << 20, BLOCK = 1 << 20 };
static int direct_fd;
static _Atomic long direct_reads;

static void *read_directly(void *arg)
{
	char *p = hide(aligned_alloc(4096, FILE_SIZE));
	(void)arg;
	while (!stop && EXPECT(p)) {
		for (off_t at = 0; at < FILE_SIZE; at += BLOCK)
			if (!EXPECT_EQ(pread(direct_fd, p + at, BLOCK, at), BLOCK))
				stop = true;
		EXPECT_EQ(pattern_check(p, FILE_SIZE, 77), -1);
		memset(p, 0, FILE_SIZE);
		direct_reads++;
	}
	free(p);
	return NULL;
}

/* A file with the pattern, on a file system that supports O_DIRECT; or -1. */
static int direct_file(void)
{
	static const char *const dirs[] = { "/tmp", "/var/tmp", "." };
	int fd = -1;
	char *p = hide(aligned_alloc(4096, FILE_SIZE));
	pattern_write(p, FILE_SIZE, 77);
	for (size_t i = 0; fd < 0 && i < sizeof dirs / sizeof *dirs; i++) {
		char path[60];
		snprintf(path, sizeof path, "%s/hugepin-fork.XXXXXX", dirs[i]);
		int plain = mkstemp(path);
		if (plain < 0)
			continue;
		if (write(plain, p, FILE_SIZE) == FILE_SIZE && !fsync(plain))
			fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
		if (fd >= 0 && pread(fd, p, BLOCK, 0) != BLOCK) {
			close(fd);
			fd = -1;
		}
		close(plain);
		unlink(path);
	}
	free(p);
	return fd;
}

TEST(forks_work_with_direct_reads_in_flight)
{
	pthread_t t[3];
	struct heap h;
	direct_fd = direct_file();
	if (direct_fd < 0)
		SKIP("no file system that takes O_DIRECT");
	heap_fill(&h, 20 * MIB, 15);
	struct drainer d = pool_drain(0);
	stop = false;
	direct_reads = 0;
	for (uintptr_t i = 0; i < 3; i++)
		if (!EXPECT(!pthread_create(&t[i], NULL, read_directly, NULL)))
			return;
	while (!direct_reads)
		sleep_ms(1);
	for (uint64_t i = 0; i < 40; i++)
		EXPECT_EQ(fork_and_use(&h, 16 + i), 0);
	stop = true;
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	pool_refill(d);
	close(direct_fd);
	EXPECT_EQ(heap_check(&h), 0);
	heap_free(&h);
}

/* ------------------------------------------------------------------ a memory cgroup smaller than the heap */

/* Run this program again with one argument, in a cgroup. Returns its exit status as child_wait() does. */
static int again_in(struct cgroup *g, const char *what)
{
	char procs[sizeof g->path + 16];
	snprintf(procs, sizeof procs, "%s/cgroup.procs", g->path);
	return run_again(environ, what, procs, NULL);
}

/* Exit status 0: the forks worked; 40: they were refused with ENOMEM; others: an error. */
static int small_cgroup_main(const char *procs, bool drain)
{
	struct heap h;
	int refused = 0;
	heap_fill(&h, 200 * MIB, 20); /* memory from the pool is not charged to the group */
	if (!file_write(procs, "0"))
		return 50;
	struct drainer d = { -1, -1 };
	if (drain)
		d = pool_drain(0);
	for (uint64_t i = 0; i < 3; i++) {
		int status = fork_and_use(&h, 21 + i);
		if (status == -2)
			refused = 40;
		else if (status)
			return status < 0 ? 60 : status;
		if (heap_check(&h))
			return 61;
	}
	if (drain)
		pool_refill(d);
	heap_rewrite(&h, 30);
	return heap_check(&h) ? 62 : refused;
}

static void small_cgroup(const char *what, bool may_refuse)
{
	struct cgroup g;
	NEEDS_POOL(100);
	if (!cgroup_make(&g, "memory", "memory.limit_in_bytes", "memory.max", "67108864"))
		SKIP("no memory cgroup can be made: %s", g.path);
	int status = again_in(&g, what);
	if (!may_refuse || status != 40)
		EXPECT_EQ(status, 0);
	cgroup_remove(&g);
}

TEST_CASE(in_a_memory_cgroup_smaller_than_the_heap_forks_use_the_pool, small_cgroup("--small-cgroup", false))
TEST_CASE(in_a_memory_cgroup_smaller_than_the_heap_forks_fail_when_the_pool_is_empty,
	  small_cgroup("--small-cgroup-drained", true))

/* ------------------------------------------------------------------ no address space for a copy */

/* As small_cgroup_main(), with 40 MiB of addresses or of data left. */
static int small_limit_main(__rlimit_resource_t which)
{
	struct rlimit was;
	struct heap h;
	int refused = 0;
	heap_fill(&h, 200 * MIB, 50);
	struct drainer d = pool_drain(0);
	if (!limit_to_present(which, 40 * MIB, &was))
		return 51;
	for (uint64_t i = 0; i < 3; i++) {
		pid_t pid = fork();
		if (pid == 0) { /* the child may get no more memory, but must have its own contents */
			heap_rewrite(&h, 51 + i);
			_exit(heap_check(&h) != 0);
		}
		if (pid < 0 && errno != ENOMEM)
			return 53;
		int status = pid < 0 ? 40 : child_wait(pid);
		if (status && status != 40)
			return status < 0 ? 60 : status;
		refused = status;
		if (heap_check(&h))
			return 61;
	}
	pool_refill(d);
	return refused;
}

static void small_limit(const char *what)
{
	NEEDS_POOL(100);
	int status = run_again(environ, what, NULL, NULL);
	if (status != 40)
		EXPECT_EQ(status, 0);
}

TEST_CASE(without_addresses_for_a_copy_fork_fails_and_nobody_dies, small_limit("--small-as"))
TEST_CASE(without_data_for_a_copy_fork_fails_and_nobody_dies, small_limit("--small-data"))

/* ------------------------------------------------------------------ the cow mode */

TEST(the_cow_mode_forks_without_a_copy)
{
	NEEDS_POOL(100);
	setenv("HUGEPIN_FORK", "cow", 1);
	EXPECT_EQ(run_again(environ, "--cow", NULL, NULL), 0);
	unsetenv("HUGEPIN_FORK");
}

/* The child has all contents, in hugetlb pages by copy-on-write instead of a copy in other memory. */
static int cow_main(void)
{
	struct heap h;
	heap_fill(&h, 60 * MIB, 40);
	size_t mine = smaps_kinds(0, 0, UINTPTR_MAX).hugetlb;
	pid_t pid = fork();
	if (pid == 0) {
		if (mine < 20 * MIB || smaps_kinds(0, 0, UINTPTR_MAX).hugetlb < mine)
			_exit(70);
		_exit(use(&h, 41));
	}
	return child_wait(pid);
}

/* ------------------------------------------------------------------ past the handlers of fork */

static struct hugepin_stats stats_now(void)
{
	int (*stats)(struct hugepin_stats *, size_t);
	struct hugepin_stats s = { 0 };

	*(void **)&stats = dlsym(RTLD_DEFAULT, "hugepin_stats");
	EXPECT(stats && stats(&s, sizeof s) > 0);
	return s;
}

static int return_0(void *unused)
{
	(void)unused;
	return 0;
}

static int raw_main(void)
{
	static _Alignas(16) char stack[4096];
	uint64_t args[8] = { [4] = SIGCHLD }; /* struct clone_args */
	char *p = memset(hide(malloc(8 * MIB)), 1, 8 * MIB);

	for (int by = 0; by < 2; by++) {
		const long pid = by ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : syscall(SYS_clone3, args, sizeof args);

		if (pid == 0)
			_exit(p[0] != 1 || !memset(p, 2, 8 * MIB));
		EXPECT_EQ(child_wait((pid_t)pid), 0);
		EXPECT_EQ(p[0], 1);
	}
	EXPECT_EQ(stats_now().forks_cow, 1);
	EXPECT_EQ(stats_now().forks_copied, 1);
	EXPECT_EQ(syscall(SYS_clone, CLONE_THREAD | SIGCHLD, 0, 0, 0, 0), -1);
	EXPECT_EQ(syscall(SYS_clone3, NULL, 0), -1);
	EXPECT_EQ(child_wait(clone(return_0, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)), 0);
	EXPECT_EQ(stats_now().forks_cow, 1);
	free(p);
	return t_failures != 0;
}

/* fork(2) and clone(2) that return in the child are prepared as fork(3) is. The child of a clone3() may die once the
 * pool is empty, so the statistics say that there was one. */
TEST(a_child_made_by_a_system_call_gets_a_copy_or_is_counted)
{
	NEEDS_POOL(10);
	EXPECT_EQ(run_again(environ, "--raw", NULL, NULL), 0);
}

TEST(arguments_of_clone3_that_nobody_can_read_are_an_error)
{
	void *const unreadable = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const uintptr_t at[] = { (uintptr_t)unreadable, 1, UINTPTR_MAX, UINTPTR_MAX << 47 };

	for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
		errno = 0;
		EXPECT_EQ(syscall(SYS_clone3, at[i], (size_t)64), -1);
		EXPECT(errno == EFAULT || errno == ENOSYS); /* ENOSYS: behind a container's filter */
	}
	EXPECT_EQ(munmap(unreadable, 4096), 0);
}

/* The least page faults of a child that ends at once. */
static long faults_of(pid_t (*make)(void))
{
	long least = LONG_MAX;

	for (int i = 0; i < 5; i++) {
		struct rusage used;
		const pid_t pid = make();

		if (pid == 0)
			_exit(0);
		if (EXPECT_EQ(wait4(pid, NULL, 0, &used), pid) && used.ru_minflt < least)
			least = used.ru_minflt;
	}
	return least;
}

/* Scripts of a shell make thousands of such children. */
TEST(fork_costs_a_small_process_at_most_24_page_faults_more_than_without_handlers)
{
	EXPECT_EQ(run_again(environ, "--small", NULL, NULL), 0);
}

static int small_main(void)
{
	const long bare = faults_of(_Fork), handled = faults_of(fork);

	t_print("# %ld, %ld without handlers\n", handled, bare);
	return handled > bare + 24;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--raw"))
		return raw_main();
	if (argc == 2 && !strcmp(argv[1], "--handler"))
		return handler_main();
	if (argc == 2 && !strcmp(argv[1], "--small"))
		return small_main();
	if (argc == 3 && !strcmp(argv[1], "--drain"))
		return pool_drain_main(strtol(argv[2], NULL, 10));
	if (argc == 3 && !strncmp(argv[1], "--small-cgroup", 14))
		return small_cgroup_main(argv[2], argv[1][14]);
	if (argc == 2 && !strcmp(argv[1], "--small-as"))
		return small_limit_main(RLIMIT_AS);
	if (argc == 2 && !strcmp(argv[1], "--small-data"))
		return small_limit_main(RLIMIT_DATA);
	if (argc == 2 && !strcmp(argv[1], "--cow"))
		return cow_main();
	return t_run(argc, argv);
}
