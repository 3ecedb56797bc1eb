/* link: none */
/*
 * The first small request of a process: jemalloc starts with it, and not before.
 */
#include "live.h"

#include "filter.h"

#include <dlfcn.h>

/* Whether this process has a mapping as long as the spans of addresses that the heap and jemalloc reserve. */
static bool has_span(void)
{
	static char text[65536];
	size_t start, end;

	if (file_read("/proc/self/maps", text, sizeof text) <= 0)
		_exit(90);
	for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
		if (sscanf(line, "%zx-%zx", &start, &end) == 2 && end - start >= 8 * GIB)
			return true;
	return false;
}

/* ------------------------------------------------------------------ what the program does, started anew */

static int makes_a_request_late(void)
{
	if (has_span())
		return 1;
	free(hide(malloc(10)));
	return has_span() ? 0 : 2;
}

/* From here on the kernel kills the process that opens or reads a file, or asks for random numbers. */
static bool forbid_files(bool by_syscall)
{
	static const uint16_t calls[] = { SYS_openat, SYS_readlinkat, SYS_read, SYS_faccessat, SYS_getrandom,
#ifdef SYS_open
					  SYS_open, SYS_readlink, SYS_access,
#endif
	};
	struct filter f = { .len = 0 };
	struct sock_fprog filter;

	filter_calls(&f, calls, FILTER_COUNT(calls), SECCOMP_RET_KILL_PROCESS);
	if (!by_syscall)
		return filter_install(&f, SECCOMP_RET_ALLOW);
	filter = filter_end(&f, SECCOMP_RET_ALLOW);
	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
}

static int makes_a_request_confined(bool by_syscall)
{
	if (!forbid_files(by_syscall))
		return 77;
	free(hide(malloc(10)));
	_exit(0); /* a build that counts coverage writes files in exit() */
}

static void *(*libc_malloc)(size_t);
static atomic_bool go;

static void *ask(void *unused)
{
	(void)unused;
	while (!atomic_load(&go))
		;
	return libc_malloc(10);
}

/* Another thread asks jemalloc, as a library below us does, at the time of a fork. */
static int forks_meanwhile(long wait)
{
	pthread_t t;
	pid_t pid;

	*(void **)&libc_malloc = dlsym(RTLD_DEFAULT, "__libc_malloc");
	if (!libc_malloc || pthread_create(&t, NULL, ask, NULL))
		return 1;
	atomic_store(&go, true);
	for (volatile long i = 0; i < wait; i++)
		;
	pid = fork();
	if (!pid)
		_exit(!libc_malloc(20));
	return pid < 0 || child_wait(pid) || pthread_join(t, NULL);
}

/* Whether jemalloc has these settings: the number of arenas, and the bytes between looks at a thread's cache. */
static int has_settings(const char *expected)
{
	int (*control)(const char *, void *, size_t *, void *, size_t);
	unsigned arenas = 0;
	size_t bytes = 0, arenas_size = sizeof arenas, bytes_size = sizeof bytes;
	char text[64];

	*(void **)&control = dlsym(RTLD_DEFAULT, "mallctl");
	if (!control || control("opt.narenas", &arenas, &arenas_size, NULL, 0) ||
	    control("opt.tcache_gc_incr_bytes", &bytes, &bytes_size, NULL, 0))
		return 1;
	snprintf(text, sizeof text, "is %u %zu", arenas, bytes);
	return strcmp(text, expected) ? 2 : 0;
}

/* ------------------------------------------------------------------ tests */

static void expect_settings(const char *malloc_conf, unsigned arenas, size_t bytes)
{
	char text[64];

	snprintf(text, sizeof text, "is %u %zu", arenas, bytes);
	if (malloc_conf)
		setenv("MALLOC_CONF", malloc_conf, 1);
	EXPECT_EQ(run_again(environ, text, NULL, NULL), 0);
	unsetenv("MALLOC_CONF");
}

TEST(the_users_settings_of_jemalloc_win_over_ours)
{
	cpu_set_t cpus;

	if (!EXPECT(!sched_getaffinity(0, sizeof cpus, &cpus)))
		return;
	const unsigned arenas = (unsigned)CPU_COUNT(&cpus);

	expect_settings(NULL, arenas, 262144);
	expect_settings("narenas:7", 7, 262144);
	expect_settings("narenas_ratio:3", 3 * arenas, 262144);
	expect_settings("tcache_gc_incr_bytes:65536,narenas:5", 5, 65536);
}

TEST_CASE(jemalloc_starts_with_the_first_small_request, EXPECT_EQ(run_again(environ, "late", NULL, NULL), 0))

TEST(the_first_small_request_may_come_behind_a_filter)
{
	for (int by_syscall = 0; by_syscall < 2; by_syscall++) {
		int status = run_again(environ, by_syscall ? "confined-by-syscall" : "confined", NULL, NULL);

		if (status == 77)
			SKIP("no seccomp");
		EXPECT_EQ(status, 0);
	}
}

TEST(a_fork_waits_for_jemallocs_start)
{
	char wait[32];

	setenv("HUGEPIN_SMALL", "next", 1);
	for (int i = 0; i < 60; i++) {
		snprintf(wait, sizeof wait, "%d", i * 2000);
		if (!EXPECT_EQ(run_again(environ, wait, NULL, NULL), 0))
			break;
	}
	unsetenv("HUGEPIN_SMALL");
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "late"))
		return makes_a_request_late();
	if (argc == 2 && !strncmp(argv[1], "confined", 8))
		return makes_a_request_confined(argv[1][8]);
	if (argc == 2 && !strncmp(argv[1], "is ", 3))
		return has_settings(argv[1]);
	if (argc == 2 && argv[1][0] >= '0' && argv[1][0] <= '9')
		return forks_meanwhile(strtol(argv[1], NULL, 10));
	return t_run(argc, argv);
}
