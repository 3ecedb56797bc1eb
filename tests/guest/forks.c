/* link: preload */
/* guest: plain odp */
/*
 * Forks of a heap in the pool with one thread, on kernels that differ in what mremap moves: before Linux 6.17 one mapping at a time,
 * and before 6.7 nothing moves in the parent. And under strict overcommit, which counts what mremap moves twice: at some limit it
 * refuses when it has unmapped the target. In a guest, since that setting is the whole machine's.
 */
#include "live/live.h"

#include <sys/utsname.h>

enum { BUFFERS = 2, SIZE = 10 << 20, STEPS = 10 };
static char *buffers[BUFFERS];

static bool moves(void)
{
	struct utsname u;
	int major = 0, minor = 0;
	uname(&u);
	sscanf(u.release, "%d.%d", &major, &minor);
	return major > 6 || (major == 6 && minor >= 7);
}

static size_t in_pool(void)
{
	size_t bytes = 0;
	for (int i = 0; i < BUFFERS; i++)
		bytes += smaps_kinds(0, (uintptr_t)buffers[i], (uintptr_t)buffers[i] + SIZE).hugetlb;
	return bytes;
}

static bool intact(uint64_t seed)
{
	bool ok = true;
	for (int i = 0; i < BUFFERS; i++)
		ok &= pattern_check(buffers[i], SIZE, seed + (uint64_t)i) == -1;
	return ok;
}

static void fill(uint64_t seed)
{
	for (int i = 0; i < BUFFERS; i++)
		pattern_write(buffers[i], SIZE, seed + (uint64_t)i);
}

/* Several runs of pages: something else lies between the buffers, which is gone by the time of the forks. */
static void take(void)
{
	char *between[BUFFERS];
	for (int i = 0; i < BUFFERS; i++) {
		buffers[i] = hide(aligned_alloc(PAGE, SIZE));
		between[i] = hide(malloc(5 * MIB));
	}
	for (int i = 0; i < BUFFERS; i++)
		free(between[i]);
}

static void give(void)
{
	for (int i = 0; i < BUFFERS; i++)
		free(buffers[i]);
}

/* 0: the child had all, and wrote to it; -1: there was none. */
static int fork_once(uint64_t seed)
{
	pid_t pid = fork();
	if (pid == 0) {
		bool ok = intact(seed);
		fill(1000);
		_exit(ok && intact(1000) ? 0 : 1);
	}
	return pid < 0 ? -1 : child_wait(pid);
}

TEST(a_child_of_each_fork_has_all_and_the_heap_leaves_the_pool_where_the_kernel_lets_it)
{
	NEEDS_POOL(30);
	take();
	fill(1);
	EXPECT(in_pool() >= BUFFERS * (size_t)SIZE);
	for (uint64_t i = 1; i <= 3; i++) {
		EXPECT_EQ(fork_once(i), 0);
		EXPECT(intact(i));
		EXPECT(moves() ? in_pool() == 0 : in_pool() >= BUFFERS * (size_t)SIZE);
		fill(i + 1);
	}
	EXPECT(intact(4));
	give();
}

static long meminfo(const char *key)
{
	static char text[8192];
	file_read("/proc/meminfo", text, sizeof text);
	const char *at = strstr(text, key);
	return at ? strtol(at + strlen(key), NULL, 10) : -1;
}

static int fork_near(long kib)
{
	char text[32];
	int status;
	take();
	fill(7);
	snprintf(text, sizeof text, "%ld", meminfo("Committed_AS:") + kib);
	if (!file_write("/proc/sys/vm/overcommit_kbytes", text) || !file_write("/proc/sys/vm/overcommit_memory", "2"))
		return 90;
	status = fork_once(7);
	file_write("/proc/sys/vm/overcommit_memory", "0");
	if (!intact(7))
		return 91;
	return status > 0 ? status : in_pool() == 0 ? 50 : 51;
}

TEST(no_limit_on_what_may_be_committed_costs_a_process_that_forks_its_heap)
{
	int moved = 0, stayed = 0;
	NEEDS_POOL(30);
	for (int i = 0; i < STEPS; i++) {
		char kib[24], *args[] = { (char *)"forks", (char *)"--near", kib, NULL };
		pid_t pid;
		int status;
		snprintf(kib, sizeof kib, "%ld", file_number("/proc/sys/vm/user_reserve_kbytes") + 8L * i * 1024);
		EXPECT(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ));
		status = child_wait(pid);
		EXPECT(status == 50 || status == 51);
		moved += status == 50;
		stayed += status == 51;
	}
	EXPECT(stayed > 0); /* else the limits are none */
	EXPECT(!moves() || moved > 0);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--near"))
		return fork_near(strtol(argv[2], NULL, 10));
	if (argc == 3 && !strcmp(argv[1], "--drain"))
		return pool_drain_main(strtol(argv[2], NULL, 10));
	return t_run(argc, argv);
}
