/* link: none */
/* Changes to a process on which its libraries depend: it is stopped, its clock steps, its limits fall to 0, it gives up
 * THP, locks all its memory, or loads a second C library. Each is in a program of its own, whose heap gives memory back
 * after 300 ms. */
#include "live.h"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { COUNT = 16 };

static void *buffers[COUNT];

static void fill(void)
{
	for (size_t i = 0; i < COUNT; i++) {
		size_t size = (i + 1) * MIB;

		if (EXPECT(buffers[i] = hide(malloc(size))))
			pattern_write(buffers[i], size, i);
	}
}

static void drop(void)
{
	for (size_t i = 0; i < COUNT; i++) {
		if (buffers[i])
			EXPECT_EQ(pattern_check(buffers[i], (i + 1) * MIB, i), -1);
		free(buffers[i]);
	}
}

/* Wait until less is resident than with all buffers (`full`), without calling the heap. */
static void expect_given_back(size_t full)
{
	size_t now = resident();

	for (int i = 0; i < 500 && (now = resident()) > full - 100 * MIB; i++)
		sleep_ms(100);
	EXPECT(now <= full - 100 * MIB);
}

static void alone(void (*body)(void))
{
	setenv("HUGEPIN_DECAY", "300ms", 1);
	setenv("HUGEPIN_PAGES", "thp", 1);
	anew(body);
}

static void give_back(void)
{
	size_t full;

	fill();
	full = resident();
	drop();
	expect_given_back(full);
}

/* ------------------------------------------------------------------ time */

/* Whether the kernel says that the process is stopped. */
static bool is_stopped(pid_t pid)
{
	char path[40], text[512], *state;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	state = file_read(path, text, sizeof text) > 0 ? strrchr(text, ')') : NULL;
	return state && state[2] == 'T';
}

TEST_BY(alone, a_program_that_was_stopped_for_long_gives_memory_back)
{
	pid_t pid = getpid(), other;
	int status;
	size_t full;

	fill();
	full = resident();
	drop();
	other = fork();
	if (other == 0) {
		while (!is_stopped(pid))
			sleep_ms(1);
		sleep_ms(2000); /* several decay times */
		kill(pid, SIGCONT);
		_exit(0);
	}
	raise(SIGSTOP);
	EXPECT_EQ(waitpid(other, &status, 0), other);
	expect_given_back(full);
	give_back();
}

/* Give a child another CLOCK_MONOTONIC, as after a checkpoint or in a container with time offsets. Times that its
 * parent noted are then far ahead, or long past. */
static void with_offset(const char *offset)
{
	pid_t pid;

	fill();
	if (syscall(SYS_unshare, CLONE_NEWTIME) || !file_write("/proc/self/timens_offsets", offset))
		SKIP("the kernel does not permit it here");
	drop(); /* now the heap makes ticks */
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		give_back();
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

TEST_BY(alone, a_child_whose_clock_is_behind_its_parents_gives_memory_back)
{
	char offset[60];
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	snprintf(offset, sizeof offset, "monotonic -%ld 0\n", (long)now.tv_sec - 1);
	with_offset(offset);
}

TEST_BY(alone, a_child_whose_clock_is_ahead_of_its_parents_gives_memory_back)
{
	with_offset("monotonic 100000000 0\n");
}

/* ------------------------------------------------------------------ limits */

static void have_no_limit_left(void)
{
	static const int limits[] = { RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_FSIZE, RLIMIT_CORE, RLIMIT_MEMLOCK, RLIMIT_SIGPENDING,
				      RLIMIT_MSGQUEUE, RLIMIT_STACK, RLIMIT_NICE, RLIMIT_RTPRIO, RLIMIT_LOCKS };
	static const struct rlimit none = { 0, 0 };

	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
		EXPECT_EQ(setrlimit((unsigned)limits[i], &none), 0);
	for (int i = 0; i < 3; i++) {
		fill();
		drop();
	}
}

TEST_CASE(with_every_limit_at_nothing_before_the_first_buffer_there_is_memory, alone(have_no_limit_left))

TEST_BY(alone, with_every_limit_at_nothing_later_there_is_memory)
{
	give_back();
	have_no_limit_left();
}

TEST_BY(alone, a_program_may_turn_thp_off_and_on_again)
{
	EXPECT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
	give_back();
	EXPECT_EQ(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
	give_back();
}

TEST_BY(alone, memory_that_is_locked_is_given_back)
{
	if (mlockall(MCL_CURRENT) != 0)
		SKIP("the kernel does not permit it here");
	give_back();
	EXPECT_EQ(munlockall(), 0);
	give_back();
}

/* ------------------------------------------------------------------ the loader */

TEST_BY(alone, a_second_c_library_has_a_malloc_of_its_own)
{
	void *lib = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW), *p;
	void *(*its_malloc)(size_t);
	void (*its_free)(void *);

	if (!EXPECT(lib))
		return;
	its_malloc = (void *(*)(size_t))dlsym(lib, "malloc");
	its_free = (void (*)(void *))dlsym(lib, "free");
	EXPECT(its_malloc != malloc);
	fill();
	p = its_malloc(8 * MIB);
	pattern_write(p, 8 * MIB, 99);
	drop();
	EXPECT_EQ(pattern_check(p, 8 * MIB, 99), -1);
	its_free(p);
	give_back();
	dlclose(lib);
	give_back();
}

LIVE_MAIN
