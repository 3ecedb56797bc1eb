/*
 * Shared by the live tests: the hugetlb pool and a process that drains it, the facts in smaps, children, and patterns.
 * Nothing here calls malloc, except where a comment says so.
 */
#ifndef TESTS_LIVE_LIVE_H
#define TESTS_LIVE_LIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "../t.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define PAGE ((size_t)2 << 20) /* a hugepage */

extern char **environ;

/* Sanitizers kill a program that asks for too much memory. Here malloc must return NULL instead. */
#ifdef __SANITIZE_THREAD__
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "allocator_may_return_null=1";
}
#endif
#ifdef __SANITIZE_ADDRESS__
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1:quarantine_size_mb=8:detect_leaks=0";
}
#endif

/* Hide from the compiler where a pointer comes from, so that it does not remove a pair of malloc and free. */
static inline void *hide(void *p)
{
	__asm__ volatile("" : "+r"(p) : : "memory");
	return p;
}

static inline uint64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static inline void sleep_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Memory far below where the kernel puts what may lie anywhere. So no other mapping of the process (a sanitizer's, say)
 * takes the place while a test has unmapped the memory, and waits until it can map it again. */
static inline char *map_far_away(size_t size)
{
	return mmap((void *)((uintptr_t)1 << 45), size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* ------------------------------------------------------------------ small files */

static inline ssize_t file_read(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = 0, got;
	while (n < (ssize_t)size - 1 && (got = read(fd, buf + n, size - 1 - (size_t)n)) > 0)
		n += got;
	buf[n] = 0;
	close(fd);
	return n;
}

static inline long file_number(const char *path)
{
	char buf[64];
	return file_read(path, buf, sizeof buf) > 0 ? strtol(buf, NULL, 10) : -1;
}

/* The number in the line of /proc/self/status that begins so: KiB, of most lines. -1: there is no such line. */
static inline long status_number(const char *name)
{
	char text[8192], *at;

	return file_read("/proc/self/status", text, sizeof text) > 0 && (at = strstr(text, name)) ?
		       strtol(at + strlen(name), NULL, 10) : -1;
}

/* Bytes that the kernel counts as pinned by this process. */
static inline size_t kernel_pinned(void)
{
	long kib = status_number("VmPin:");

	return EXPECT(kib >= 0) ? (size_t)kib * KIB : 0;
}

/* Leave this process `more` bytes beyond those that it has of what the limit counts. Lowers the soft limit alone.
 * False: the limit is as it was. */
static inline bool limit_to_present(__rlimit_resource_t which, size_t more, struct rlimit *ret_was)
{
	long kib = status_number(which == RLIMIT_AS ? "VmSize:" : "VmData:");

	return kib >= 0 && !getrlimit(which, ret_was) &&
	       !setrlimit(which, &(struct rlimit){ (rlim_t)kib * KIB + more, ret_was->rlim_max });
}

static inline bool file_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return ok;
}

/* ------------------------------------------------------------------ the pool of 2 MiB pages */

#define POOL_DIR "/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define MAP_POOL (MAP_HUGETLB | 21 << 26) /* with larger base pages, the kernel's default is another size */

/* The number of pages that a mapping can still get. */
static inline long pool_free(void)
{
	long free_pages = file_number(POOL_DIR "free_hugepages"), reserved = file_number(POOL_DIR "resv_hugepages");
	return free_pages > reserved ? free_pages - reserved : 0;
}

/* Whether a mapping can get so many pages. Waits a little, since a process that has just ended may still be giving its
 * pages back. */
static inline bool pool_has(long pages)
{
	for (int tries = 0; pool_free() < pages; tries++) {
		if (file_number(POOL_DIR "nr_hugepages") < pages || tries == 100)
			return false;
		nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
	}
	return true;
}

/* Skip a test that needs `pages` free pages of the pool, if there are fewer. */
#define NEEDS_POOL(pages)                                                                                              \
	do {                                                                                                           \
		if (!pool_has(pages))                                                                                  \
			SKIP("hugetlb pool: %d free pages needed, %ld there", (int)(pages), pool_free());              \
	} while (0)

/* Another process that takes all but `leave` free pages of the pool. It is this program, executed again without a
 * preloaded library, so that it has none of our memory. It ends when pool_refill() or our exit closes its input. */
struct drainer {
	pid_t pid;
	int hold;
};

static inline struct drainer pool_drain(long leave)
{
	struct drainer d = { -1, -1 };
	int in[2], out[2];
	char count[32], ready;
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
		return d;
	snprintf(count, sizeof count, "%ld", leave);
	char *args[] = { (char *)"drain", (char *)"--drain", count, NULL }, *none[] = { NULL };
	posix_spawn_file_actions_t fa;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, in[0], 0);
	posix_spawn_file_actions_adddup2(&fa, out[1], 1);
	if (!posix_spawn(&d.pid, "/proc/self/exe", &fa, NULL, args, none)) {
		close(out[1]);
		out[1] = -1;
		if (read(out[0], &ready, 1) == 1)
			d.hold = in[1];
	}
	posix_spawn_file_actions_destroy(&fa);
	close(in[0]);
	close(out[0]);
	if (out[1] >= 0)
		close(out[1]);
	if (d.hold < 0)
		close(in[1]);
	return d;
}

static inline void pool_refill(struct drainer d)
{
	if (d.hold >= 0)
		close(d.hold);
	if (d.pid > 0)
		waitpid(d.pid, NULL, 0);
}

static inline int pool_drain_main(long leave)
{
	long n;
	char c;
	while ((n = pool_free() - leave) > 0) { /* other processes may take or give back pages meanwhile */
		void *p = mmap(NULL, (size_t)n * PAGE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POOL | MAP_POPULATE, -1, 0);
		if (p == MAP_FAILED && errno != ENOMEM)
			return 1;
	}
	if (write(1, "d", 1) != 1)
		return 1;
	return read(0, &c, 1) != 0;
}

/* ------------------------------------------------------------------ what memory is made of */

struct kinds {
	size_t hugetlb, thp, base; /* resident bytes */
	size_t mappings;
};

/* Sum the mappings of process `pid` (0: this one) that touch [from, to), as wholes, from smaps. */
static inline struct kinds smaps_kinds(pid_t pid, uintptr_t from, uintptr_t to)
{
	static char buf[1 << 16]; /* one caller at a time */
	struct kinds k = { 0, 0, 0, 0 };
	char path[40] = "/proc/self/smaps";
	if (pid)
		snprintf(path, sizeof path, "/proc/%d/smaps", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t have = 0;
	ssize_t got;
	bool inside = false;
	size_t rss = 0;
	while (fd >= 0 && (got = read(fd, buf + have, sizeof buf - 1 - have)) > 0) {
		have += (size_t)got;
		buf[have] = 0;
		char *line = buf, *end;
		for (; (end = strchr(line, '\n')); line = end + 1) {
			unsigned long a, b, kb;
			*end = 0;
			if (sscanf(line, "%lx-%lx ", &a, &b) == 2) {
				inside = a < to && b > from;
				k.mappings += inside;
			} else if (!inside) {
				continue;
			} else if (sscanf(line, "Rss: %lu", &kb) == 1) {
				rss = kb * KIB;
				k.base += rss;
			} else if (sscanf(line, "AnonHugePages: %lu", &kb) == 1) {
				k.thp += kb * KIB;
				k.base -= kb * KIB;
			} else if (sscanf(line, "Private_Hugetlb: %lu", &kb) == 1 ||
				   sscanf(line, "Shared_Hugetlb: %lu", &kb) == 1) {
				k.hugetlb += kb * KIB;
			}
		}
		have = (size_t)(buf + have - line);
		memmove(buf, line, have);
	}
	if (fd >= 0)
		close(fd);
	return k;
}

/* Resident bytes of this process, hugetlb pages included. */
static inline size_t resident(void)
{
	struct kinds k = smaps_kinds(0, 0, UINTPTR_MAX);
	return k.hugetlb + k.thp + k.base;
}

/* ------------------------------------------------------------------ children */

/* Wait for a child. One that takes more than two thirds of what a test may take hangs, and is killed. Returns its exit
 * status, or 128 + the signal that ended it, or -1 if it hung. Also returns -1 for pid -1, from a fork that failed: as root,
 * kill(-1) would end all processes. */
static inline int child_wait(pid_t pid)
{
	int status;
	if (pid <= 0)
		return -1;
	for (unsigned i = 0; i < t_seconds() * 2 / 3 * 200; i++) {
		pid_t got = waitpid(pid, &status, WNOHANG);
		if (got == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		if (got < 0)
			return -1;
		sleep_ms(5);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return -1;
}

/* Execute this program again, with up to three arguments (NULL: no more). Returns the status as child_wait() does. */
static inline int run_again(char **env, const char *a, const char *b, const char *c)
{
	char *args[] = { (char *)"again", (char *)a, (char *)b, (char *)c, NULL };
	pid_t pid;

	return posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, env) ? -1 : child_wait(pid);
}

/* Run a function in this program executed again, with the environment of now: a process that has done nothing before.
 * A SKIP there is one here. Returns the status as child_wait() does. */
static int anew_main(char **args);

static inline int anew_status(void (*body)(void))
{
	char from_here[24], reason[12];
	int pipes[2], status;

	if (!EXPECT(!pipe2(pipes, O_NONBLOCK)))
		return -1;
	/* The program may lie at other addresses then. */
	snprintf(from_here, sizeof from_here, "%td", (char *)body - (char *)anew_main);
	snprintf(reason, sizeof reason, "%d", pipes[1]);
	status = run_again(environ, "--anew", from_here, reason);
	if (read(pipes[0], t_skip_reason, sizeof t_skip_reason - 1) < 0)
		t_skip_reason[0] = 0;
	close(pipes[0]);
	close(pipes[1]);
	return status;
}

static inline void anew(void (*body)(void))
{
	EXPECT_EQ(anew_status(body), 0);
}

/* What main() does then. args: behind "--anew". */
static inline int anew_main(char **args)
{
	((void (*)(void))((char *)anew_main + strtol(args[0], NULL, 10)))();
	if (t_skip_reason[0] && write((int)strtol(args[1], NULL, 10), t_skip_reason, strlen(t_skip_reason)) < 0)
		return 2;
	return t_failures != 0;
}

/* The number of the thread that ticks; 0: there is none. Opening a directory calls malloc. */
static inline int ticker(void)
{
	char path[300], name[32];
	int tid = 0;
	DIR *d = opendir("/proc/self/task");
	for (struct dirent *e; d && (e = readdir(d));) {
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
		if (e->d_name[0] != '.' && file_read(path, name, sizeof name) > 0 && !strcmp(name, "hugepin decay\n"))
			tid = atoi(e->d_name);
	}
	if (d)
		closedir(d);
	return tid;
}

/* Give this process its own /dev/shm, if possible, so that helpers of other programs on the machine do not learn of
 * ours. */
static inline void shm_unshare(void)
{
	if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
		mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL);
}

/* ------------------------------------------------------------------ patterns */

/* A pattern: every 8 bytes depend on their place and on their owner's seed, and so do the last size % 8 bytes. */
static inline uint64_t pattern_word(uint64_t seed, size_t i)
{
	uint64_t x = (seed + i) * UINT64_C(0x9e3779b97f4a7c15);
	return x ^ x >> 29;
}

static inline void pattern_write(void *p, size_t size, uint64_t seed)
{
	uint64_t *word = p;
	for (size_t i = 0; i < size / 8; i++)
		word[i] = pattern_word(seed, i);
	uint64_t last = pattern_word(seed, size / 8);
	memcpy((char *)p + size / 8 * 8, &last, size % 8);
}

/* The offset of the first difference, rounded down to 8; or -1. */
static inline ptrdiff_t pattern_check(const void *p, size_t size, uint64_t seed)
{
	const uint64_t *word = p;
	for (size_t i = 0; i < size / 8; i++)
		if (word[i] != pattern_word(seed, i))
			return (ptrdiff_t)(i * 8);
	uint64_t last = pattern_word(seed, size / 8);
	return memcmp((const char *)p + size / 8 * 8, &last, size % 8) ? (ptrdiff_t)(size / 8 * 8) : -1;
}

/* The offset of the first byte that is not zero, or -1. */
static inline ptrdiff_t zero_check(const void *p, size_t size)
{
	const char *c = p;
	if (!size || (!c[0] && !memcmp(c, c + 1, size - 1)))
		return -1;
	size_t i = 0;
	while (!c[i])
		i++;
	return (ptrdiff_t)i;
}

/* xorshift64*; state must not be 0. */
static inline uint64_t rand_next(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Log-uniform from min to below max. */
static inline size_t rand_size(uint64_t *state, size_t min, size_t max)
{
	int lo = 63 - __builtin_clzll(min), hi = 63 - __builtin_clzll(max - 1);
	for (;;) {
		size_t top = (size_t)1 << (lo + (int)(rand_next(state) % (uint64_t)(hi - lo + 1)));
		size_t n = top + rand_next(state) % top;
		if (n >= min && n < max)
			return n;
	}
}

/* main() of a live test. It also runs the drainer, and other parts that are started by name. */
#define LIVE_MAIN                                                                                                      \
	int main(int argc, char **argv)                                                                                \
	{                                                                                                              \
		if (argc == 3 && !strcmp(argv[1], "--drain"))                                                          \
			return pool_drain_main(strtol(argv[2], NULL, 10));                                             \
		if (argc == 4 && !strcmp(argv[1], "--anew"))                                                           \
			return anew_main(argv + 2);                                                                    \
		return t_run(argc, argv);                                                                              \
	}

/* How many entries /proc/PID/fd has, "." and ".." included: for comparison with another count. Allocates. */
static inline int descriptors_of(pid_t process)
{
	char name[40];
	int n = 0;

	snprintf(name, sizeof name, "/proc/%d/fd", (int)process);
	DIR *d = opendir(name);
	while (EXPECT(d) && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

#endif
