/*
 * Bare threads: what the C library and the kernel see of them, and what is left to them of the process's rights.
 */
#include "base/thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/process.h"
#include "tests/t.h"

static struct hp_thread thread;
static _Atomic uint32_t end, runs;
static struct hp_lock lock = HP_LOCK_INIT(HP_RANK_HEAP);
static struct {
	long opened, executable, read_fd;
	int error, own_error;
	unsigned held;
	bool stopped;
	char byte;
} seen;

/* Until it is told to end. */
static void wait_for_end(void *unused)
{
	(void)unused;
	runs++;
	hp_futex_wake(&runs);
	while (!end)
		hp_futex_wait(&end, 0, UINT64_MAX);
}

static const struct hp_thread_kind waiting = { .name = "test waits", .run = wait_for_end, .calls = { SYS_futex }, .calls_count = 1 };

static bool started(const struct hp_thread_kind *kind, int keep_fd)
{
	end = 0;
	return EXPECT(hp_thread_start(&thread, kind, NULL, keep_fd));
}

static void stop(void)
{
	end = 1;
	hp_futex_wake(&end);
	hp_thread_join(&thread);
}

/* The value of a line of /proc/self/task/TID/status. */
static const char *status(const char *key)
{
	static char text[8192];
	char path[64], *at, *to;

	snprintf(path, sizeof path, "/proc/self/task/%u/status", thread.tid);
	if (hp_read_file(path, text, sizeof text) <= 0 || !(at = strstr(text, key)))
		return "";
	at += strlen(key);
	at += strspn(at, "\t :");
	to = at + strcspn(at, "\n");
	*to = 0;
	return at;
}

static bool is(const char *key, const char *value)
{
	const char *s = status(key);

	return strcmp(s, value) == 0 || T_FAIL("%s is '%s', not '%s'", key, s, value);
}

static int file_count(void)
{
	char path[64];
	DIR *d;
	int n = 0;

	snprintf(path, sizeof path, "/proc/self/task/%u/fd", thread.tid);
	d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));)
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

TEST(the_c_library_does_not_know_it)
{
	if (!HP_THREAD_BARE)
		SKIP("threads are the C library's in this build");
	EXPECT(__libc_single_threaded);
	for (int i = 0; i < 20; i++) {
		if (!started(&waiting, -1))
			return;
		EXPECT_EQ(hp_thread_count(), 2);
		stop();
		EXPECT_EQ(hp_thread_count(), 1); /* at once: unshare(2) asks the same */
	}
	EXPECT_EQ(runs, 20);
	EXPECT(__libc_single_threaded);
}

TEST(it_has_no_rights_and_no_files)
{
	if (!HP_THREAD_BARE)
		SKIP("threads are the C library's in this build");

	int before = 0, kept = open("/dev/null", O_RDWR | O_CLOEXEC), after = dup(kept);

	if (!started(&waiting, -1))
		return;
	is("Name", "test waits");
	is("CapEff", "0000000000000000");
	is("CapPrm", "0000000000000000");
	is("NoNewPrivs", "1");
	is("Seccomp", "2");
	EXPECT(strncmp(status("SigBlk"), "fffffff", 7) == 0);
	EXPECT_EQ(file_count(), 0);
	stop();
	if (!started(&waiting, kept))
		return;
	EXPECT_EQ(file_count(), 1);
	stop();
	EXPECT(fcntl(before, F_GETFD) >= 0 && fcntl(kept, F_GETFD) >= 0 && fcntl(after, F_GETFD) >= 0); /* the program's are there */
	close(kept);
	close(after);
}

TEST(it_is_bound_to_no_processor_and_no_class)
{
	cpu_set_t old, one, its;
	struct sched_param first = { .sched_priority = 1 }, none = { 0 };
	bool fifo;

	if (!HP_THREAD_BARE)
		SKIP("threads are the C library's in this build");
	sched_getaffinity(0, sizeof old, &old);
	if (CPU_COUNT(&old) < 2)
		SKIP("one processor");
	CPU_ZERO(&one);
	for (size_t i = 0; CPU_COUNT(&one) == 0; i++)
		if (CPU_ISSET(i, &old))
			CPU_SET(i, &one);
	sched_setaffinity(0, sizeof one, &one);
	fifo = sched_setscheduler(0, SCHED_FIFO, &first) == 0;
	if (started(&waiting, -1)) {
		EXPECT_EQ(sched_getaffinity((pid_t)thread.tid, sizeof its, &its), 0);
		EXPECT(CPU_COUNT(&its) >= CPU_COUNT(&old));
		EXPECT_EQ(sched_getscheduler((pid_t)thread.tid), SCHED_OTHER);
		stop();
	}
	if (fifo)
		sched_setscheduler(0, SCHED_OTHER, &none);
	sched_setaffinity(0, sizeof old, &old);
}

static void try_things(void *unused)
{
	(void)unused;
	seen.opened = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
	seen.error = errno;
	if (seen.opened >= 0) /* where the thread is the C library's */
		close((int)seen.opened);
	seen.executable = (long)mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	seen.held = hp_locks_held;
	for (int i = 0; i < 100000; i++) {
		hp_lock(&lock);
		runs++;
		seen.byte++;
		hp_unlock(&lock);
	}
	seen.own_error = errno;
}

static const struct hp_thread_kind trying = {
	.name = "test tries", .run = try_things, .calls = { SYS_futex, SYS_mmap }, .calls_count = 2
};

TEST(it_opens_nothing_and_makes_nothing_executable)
{
	if (!HP_THREAD_BARE)
		SKIP("threads are the C library's in this build");
	errno = 77;
	if (!started(&trying, -1))
		return;
	hp_thread_join(&thread);
	EXPECT_EQ(seen.opened, -1);
	EXPECT_EQ(seen.error, EPERM);
	EXPECT(seen.executable == (long)MAP_FAILED);
	EXPECT_EQ(seen.own_error, EPERM);
	EXPECT_EQ(seen.held, 0); /* its own, not ours */
	EXPECT_EQ(errno, 77);
}

/* The C library's mutexes do without atomic instructions here. */
TEST(locks_hold_between_it_and_the_only_thread_that_the_c_library_knows)
{
	uint32_t before = runs;

	seen.byte = 0;
	if (!started(&trying, -1))
		return;
	for (int i = 0; i < 100000; i++) {
		hp_lock(&lock);
		runs = runs + 1;
		seen.byte++;
		hp_unlock(&lock);
	}
	hp_thread_join(&thread);
	EXPECT_EQ(runs - before, 200000);
	EXPECT_EQ(seen.byte, (char)(200000 & 0xff));
}

static int pipe_ends[2];

static void read_pipe(void *unused)
{
	(void)unused;
	seen.read_fd = read(pipe_ends[0], &seen.byte, 1);
}

static const struct hp_thread_kind reading = {
	.name = "test reads", .run = read_pipe, .calls = { SYS_read, SYS_futex }, .calls_count = 2
};

TEST(a_descriptor_that_it_keeps_is_its_own)
{
	if (!HP_THREAD_BARE)
		SKIP("threads are the C library's in this build");
	EXPECT_EQ(pipe(pipe_ends), 0);
	if (!started(&reading, pipe_ends[0]))
		return;
	close(pipe_ends[0]); /* what the program closes is the program's */
	seen.byte = 0;
	EXPECT_EQ(write(pipe_ends[1], "x", 1), 1);
	hp_thread_join(&thread);
	EXPECT_EQ(seen.read_fd, 1);
	EXPECT_EQ(seen.byte, 'x');
	close(pipe_ends[1]);
}

TEST(the_process_may_have_a_user_namespace_after_it)
{
	int status = -1;
	pid_t child;

	if (!HP_THREAD_BARE)
		SKIP("threads are the C library's in this build");
	child = fork();
	if (child == 0) {
		hp_thread_child(&thread);
		hp_process_begin();
		for (int i = 0; i < 50; i++) {
			if (!started(&waiting, -1))
				_exit(1);
			stop();
			if (unshare(CLONE_NEWUSER) != 0)
				_exit(errno == ENOSPC || errno == EPERM || errno == EUSERS ? i ? 0 : 3 : 2);
		}
		_exit(0);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 3)
		SKIP("no user namespaces");
	EXPECT_EQ(status, 0);
}

static char on_stack[65536];

static int vfork_child(void *ok)
{
	*(bool *)ok = !hp_thread_start(&thread, &waiting, NULL, -1);
	return 0;
}

TEST(a_child_of_vfork_gets_none)
{
	bool refused = false;
	pid_t child = clone(vfork_child, on_stack + sizeof on_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &refused);

	EXPECT(child > 0 && waitpid(child, NULL, 0) == child);
	EXPECT(refused);
	EXPECT_EQ(thread.tid, 0);
}

TEST(a_child_of_fork_starts_its_own)
{
	int status = -1;
	pid_t child;

	if (!HP_THREAD_BARE)
		SKIP("threads are the C library's in this build");
	if (!started(&waiting, -1))
		return;
	child = fork();
	if (child == 0) {
		hp_thread_child(&thread);
		hp_process_begin();
		if (!started(&waiting, -1))
			_exit(1);
		stop();
		_exit(0);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT_EQ(status, 0);
	stop();
}

/* The process ends when the last thread that the C library knows does, with the thread still there. */
TEST(it_keeps_no_process)
{
	int status = -1;
	pid_t child;

	if (!HP_THREAD_BARE)
		SKIP("threads are the C library's in this build");
	child = fork();
	if (child == 0) {
		hp_thread_child(&thread);
		hp_process_begin();
		alarm(10);
		if (!started(&waiting, -1))
			_exit(1);
		pthread_exit(NULL);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT_EQ(status, 0);
}

static void refuse(void *unused)
{
	(void)unused;
}

TEST(without_processes_to_spare_there_is_none)
{
	struct rlimit none = { 0, 0 };
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		static const struct hp_thread_kind kind = { .name = "test", .run = refuse };

		hp_thread_child(&thread);
		hp_process_begin();
		if (setgid(65534) || setuid(65534) || setrlimit(RLIMIT_NPROC, &none))
			_exit(3);
		errno = 77;
		_exit(hp_thread_start(&thread, &kind, NULL, -1) || thread.tid || errno != 77);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 3)
		SKIP("not root");
	EXPECT_EQ(status, 0);
}

T_MAIN
