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

enum { UNKNOWN = 77, COUNT = 16 }; /* UNKNOWN: exit status if the kernel does not allow this test */

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

static void be_stopped(void)
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
		_exit(UNKNOWN);
	drop(); /* now the heap makes ticks */
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		give_back();
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

static void go_back(void)
{
	char offset[60];
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	snprintf(offset, sizeof offset, "monotonic -%ld 0\n", (long)now.tv_sec - 1);
	with_offset(offset);
}

static void go_ahead(void)
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

static void lose_limits_later(void)
{
	give_back();
	have_no_limit_left();
}

static void live_without_thp(void)
{
	EXPECT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
	give_back();
	EXPECT_EQ(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
	give_back();
}

static void lock_all(void)
{
	if (mlockall(MCL_CURRENT) != 0)
		_exit(UNKNOWN);
	give_back();
	EXPECT_EQ(munlockall(), 0);
	give_back();
}

/* ------------------------------------------------------------------ the loader */

static void load_another_c_library(void)
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

/* ------------------------------------------------------------------ */

static void (*const subjects[])(void) = { be_stopped,	    go_back,	      go_ahead, have_no_limit_left,
					  lose_limits_later, live_without_thp, lock_all, load_another_c_library };

static void alone(int subject)
{
	char number[8];
	char *args[] = { (char *)"underneath", (char *)"--subject", number, NULL };
	pid_t pid;
	int status;

	snprintf(number, sizeof number, "%d", subject);
	setenv("HUGEPIN_DECAY", "300ms", 1);
	setenv("HUGEPIN_PAGES", "thp", 1);
	if (!EXPECT(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ)))
		return;
	status = child_wait(pid);
	if (status == UNKNOWN)
		SKIP("the kernel does not permit it here");
	EXPECT_EQ(status, 0);
}

TEST(a_program_that_was_stopped_for_long_gives_memory_back)
{
	alone(0);
}

TEST(a_child_whose_clock_is_behind_its_parents_gives_memory_back)
{
	alone(1);
}

TEST(a_child_whose_clock_is_ahead_of_its_parents_gives_memory_back)
{
	alone(2);
}

TEST(with_every_limit_at_nothing_before_the_first_buffer_there_is_memory)
{
	alone(3);
}

TEST(with_every_limit_at_nothing_later_there_is_memory)
{
	alone(4);
}

TEST(a_program_may_turn_thp_off_and_on_again)
{
	alone(5);
}

TEST(memory_that_is_locked_is_given_back)
{
	alone(6);
}

TEST(a_second_c_library_has_a_malloc_of_its_own)
{
	alone(7);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--subject")) {
		subjects[strtol(argv[2], NULL, 10)]();
		return t_failures != 0;
	}
	return t_run(argc, argv);
}
