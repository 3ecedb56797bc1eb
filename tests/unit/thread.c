/*
 * Bare threads: what the C library and the kernel see of them, and what is left to them of the process's rights.
 */
#include "base/sys.h"
#include "base/thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/proc.h"
#include "base/process.h"
#include "tests/t.h"

static struct hp_thread thread;
static _Atomic uint32_t end, runs;
static struct hp_lock lock = HP_LOCK_INIT(HP_LOCK_RANK_HEAP);
static struct {
	long opened, executable, read_fd;
	int error, own_error;
	unsigned held;
	bool stopped, bare;
	char byte;
} seen;

/* Each thread has memory for all of the program's thread-local variables. */
static _Thread_local volatile char much[100000]; /* volatile: all of it is there */

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

/* Leave a test of what only bare threads do. */
#define BARE_ONLY()                                                                                                    \
	do {                                                                                                           \
		if (!HP_THREAD_BARE)                                                                                   \
			SKIP("threads are the C library's in this build");                                             \
	} while (0)

/* A child that begins anew, as the heap's handler has it, and ends in time. */
static pid_t fork_anew(void)
{
	pid_t child = fork();

	if (child == 0) {
		t_failures = 0;
		hp_thread_child(&thread);
		hp_process_begin();
		alarm(t_seconds());
	}
	return child;
}

/* In a child that may start a bare thread. */
static void in_bare_child(void (*body)(void))
{
	int status = -1;
	pid_t child;

	BARE_ONLY();
	child = fork_anew();
	if (child == 0) {
		body();
		_exit(t_failures != 0);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT_EQ(status, 0);
}

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
	BARE_ONLY();
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
	BARE_ONLY();

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

	BARE_ONLY();
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
		if (fifo || !hp_is_filtered()) /* as in a container */
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
	seen.bare = hp_thread_is_bare;
	much[0] = much[sizeof much - 1] = 1;
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
	BARE_ONLY();
	errno = 77;
	if (!started(&trying, -1))
		return;
	hp_thread_join(&thread);
	EXPECT_EQ(seen.opened, -1);
	EXPECT_EQ(seen.error, EPERM);
	EXPECT(seen.executable == (long)MAP_FAILED);
	EXPECT_EQ(seen.own_error, EPERM);
	EXPECT_EQ(seen.held, 0); /* its own, not ours */
	EXPECT(seen.bare && !hp_thread_is_bare);
	EXPECT(!much[0] && !much[sizeof much - 1] && thread.tls_size > sizeof much);
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
	BARE_ONLY();
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

	BARE_ONLY();
	child = fork_anew();
	if (child == 0) {
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

	BARE_ONLY();
	if (!started(&waiting, -1))
		return;
	child = fork_anew();
	if (child == 0) {
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
TEST_BY(in_bare_child, it_keeps_no_process)
{
	if (!started(&waiting, -1))
		_exit(1);
	pthread_exit(NULL);
}

static void refuse(void *unused)
{
	(void)unused;
}

TEST(without_processes_to_spare_there_is_none)
{
	struct rlimit none = { 0, 0 };
	int status = -1;
	pid_t child = fork_anew();

	if (child == 0) {
		static const struct hp_thread_kind kind = { .name = "test", .run = refuse };

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

/* ------------------------------------------------------------------ where it is */

TEST_BY(in_bare_child, it_has_a_place_of_its_own_and_the_program_keeps_its)
{
	char path[64], cwd[100] = "", line[200];
	uintptr_t start, end, below = 0;
	char rights[5];
	struct sched_param idle = { 0 };
	FILE *maps;

	if (chdir("/tmp") || setpriority(PRIO_PROCESS, 0, 19) || sched_setscheduler(0, SCHED_BATCH, &idle) ||
	    !started(&waiting, -1))
		_exit(1);
	snprintf(path, sizeof path, "/proc/self/task/%u/cwd", thread.tid);
	EXPECT(readlink(path, cwd, sizeof cwd - 1) == 1 && cwd[0] == '/');
	EXPECT(getcwd(cwd, sizeof cwd) && !strcmp(cwd, "/tmp"));
	EXPECT_EQ(sched_getscheduler((pid_t)thread.tid), hp_is_filtered() ? SCHED_BATCH : SCHED_OTHER);
	EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH);
	errno = 0;
	if (geteuid() == 0 && !hp_is_filtered())
		EXPECT_EQ(getpriority(PRIO_PROCESS, thread.tid), 0);
	EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 19);
	/* Below its stack lies a page that nobody can touch. */
	maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && start == (uintptr_t)thread.map) {
			below = end - start;
			EXPECT(!strcmp(rights, "---p"));
		}
	EXPECT_EQ(below, 4096);
	EXPECT_EQ(hp_thread_count_bare(), 1);
	EXPECT(!hp_thread_alone());
	stop();
	EXPECT_EQ(hp_thread_count_bare(), 0);
	EXPECT(hp_thread_alone());
}

static bool only_file_is(int fd)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/self/task/%u/fd/%d", thread.tid, fd);
	return EXPECT_EQ(file_count(), fd >= 0) && (fd < 0 || EXPECT(access(path, F_OK) == 0));
}

TEST(of_the_descriptors_it_keeps_that_one_wherever_it_is)
{
	int high;

	BARE_ONLY();
	high = fcntl(1, F_DUPFD_CLOEXEC, 700);
	for (int fd = -1; fd < 4; fd++) {
		if (fd == 3)
			fd = high;
		if (!started(&waiting, fd))
			return;
		only_file_is(fd);
		stop();
	}
	EXPECT(fcntl(high, F_GETFD) >= 0);
	close(high);
}

/* ------------------------------------------------------------------ what it may call */

enum { TRIED = 8, PAGE = 4096 };
static long tried[TRIED];
static char *page;

static void try_filter(void *unused)
{
	int n = 0;

	(void)unused;
	tried[n++] = hp_sys(SYS_mmap, 0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1) < 0;
	tried[n++] = hp_sys(SYS_mmap, 0, PAGE, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	tried[n++] = hp_sys(SYS_mprotect, (long)page, PAGE, PROT_READ);
	tried[n++] = hp_sys(SYS_mprotect, (long)page, PAGE, PROT_READ | PROT_EXEC);
	tried[n++] = hp_sys(SYS_sched_yield);
	tried[n++] = hp_sys(SYS_getpid);
	tried[n++] = hp_sys(0x40000000 + SYS_sched_yield);
	tried[n++] = hp_sys(SYS_futex, 0, 99);
}

TEST_BY(in_bare_child, it_makes_the_calls_that_it_was_started_with_and_no_others)
{
	static const struct hp_thread_kind kinds[] = {
		{ .name = "test filter", .run = try_filter, .calls = { SYS_futex, SYS_mmap, SYS_mprotect, SYS_sched_yield }, .calls_count = 4 },
		{ .name = "test filter", .run = try_filter, .calls = { SYS_futex, SYS_sched_yield, SYS_mmap, SYS_mprotect }, .calls_count = 3 },
		{ .name = "test filter", .run = try_filter, .calls = { SYS_futex, SYS_mmap }, .calls_count = 1 },
	};
	static const long want[][TRIED] = {
		{ 0, -EPERM, 0, -EPERM, 0, -EPERM, -EPERM, -ENOSYS },
		{ 0, -EPERM, -EPERM, -EPERM, 0, -EPERM, -EPERM, -ENOSYS },
		{ 1, -EPERM, -EPERM, -EPERM, -EPERM, -EPERM, -EPERM, -ENOSYS },
	};

	page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int k = 0; k < 3; k++) {
		memset(tried, 0x55, sizeof tried);
		EXPECT(hp_thread_start(&thread, &kinds[k], NULL, -1));
		hp_thread_join(&thread);
		for (int i = 0; i < TRIED; i++)
			if (!EXPECT_EQ(tried[i], want[k][i]))
				T_FAIL("kind %d, call %d", k, i);
	}
}

static bool on_valgrind(void)
{
	char line[300];
	bool found = false;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof line, maps))
		found |= strstr(line, "vgpreload") != NULL;
	if (maps)
		fclose(maps);
	return found;
}

/* In a child with one thread: the filter, then run(). */
static void confined(bool opens_files, void (*run)(bool opens_files))
{
	int status = -1;
	pid_t child;

	BARE_ONLY();
	if (on_valgrind())
		SKIP("under valgrind there is no filter");
	child = fork();
	if (child == 0) {
		t_failures = 0;
		alarm(t_seconds());
		EXPECT(hp_thread_confine(opens_files));
		run(opens_files);
		_exit(t_failures != 0);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT_EQ(status, 0);
}

#if HP_THREAD_BARE /* some of these calls have no number elsewhere */

/* Calls without sense: refused by the filter with EPERM, and by the kernel, of a call that it lets through, with another error. */
static void call_senselessly(bool opens_files)
{
	static const int refused[] = {
		SYS_execve, SYS_execveat, SYS_fork, SYS_vfork, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp,
		434 /* pidfd_open */, 438 /* pidfd_getfd */, SYS_pidfd_send_signal, SYS_kill, SYS_tkill, SYS_rt_sigqueueinfo,
		SYS_rt_tgsigqueueinfo, SYS_setfsuid, SYS_setfsgid, SYS_unshare, SYS_setns, SYS_setpgid, SYS_setsid, SYS_personality,
		SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_unlink, SYS_rename, SYS_renameat, SYS_renameat2, SYS_link,
		SYS_linkat, SYS_symlink, SYS_symlinkat, SYS_mknod, SYS_mknodat, SYS_mkdir, SYS_mkdirat, SYS_rmdir, SYS_truncate,
		SYS_chmod, SYS_fchmodat, 452 /* fchmodat2 */, SYS_chown, SYS_lchown, SYS_fchownat, SYS_setxattr, SYS_lsetxattr,
		SYS_removexattr, SYS_lremovexattr, SYS_utimensat, SYS_chroot, SYS_pivot_root, SYS_mount, SYS_umount2,
		428 /* open_tree */, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, 442 /* mount_setattr */,
		SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl, SYS_socket, SYS_connect, SYS_bind, SYS_accept, SYS_accept4,
		SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_setup, SYS_io_submit, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
		SYS_add_key, SYS_request_key, SYS_keyctl, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load,
		SYS_reboot, SYS_iopl, SYS_ioperm, 0x40000000, 0x40000000 + SYS_getpid, 0x40000000 + 512,
	};
	static const int opening[] = { SYS_open, SYS_openat, 437 /* openat2 */, SYS_creat, SYS_unlinkat };
	static const int changes[] = { SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups };

	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
		if (!EXPECT_EQ(hp_sys(refused[i], -1, 1, -1, -1), -EPERM))
			T_FAIL("call %d", refused[i]);
	for (size_t i = 0; i < sizeof opening / sizeof *opening; i++)
		if (!EXPECT_EQ(hp_sys(opening[i], -1, 1, 1, 1) == -EPERM, !opens_files))
			T_FAIL("call %d", opening[i]);
	for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
		if (!EXPECT_EQ(hp_sys(changes[i], 5, 5, 5), 0))
			T_FAIL("call %d", changes[i]);
	EXPECT(getuid() != 5 && getgid() != 5);
}

TEST_CASE(a_confined_thread_has_no_calls_that_change_what_is_outside_of_it, confined(false, call_senselessly))
TEST_CASE(one_that_opens_files_has_no_others_than_these, confined(true, call_senselessly))

#endif

static void call_with_sense(bool opens_files)
{
	long pid = getpid(), tid = hp_sys(SYS_gettid);
	struct { uint32_t version; int pid; } head = { 0x20080522, 0 };
	uint32_t sets[6] = { 1, 1, 1, 1, 1, 1 };
	char c;

	(void)opens_files;
	EXPECT_EQ(hp_sys(SYS_getpid), pid);
	EXPECT_EQ(hp_sys(SYS_sched_yield), 0);
	EXPECT_EQ(hp_sys(SYS_read, -1, &c, 1), -EBADF);
	/* Threads, but no processes; by clone3, whose flags nobody sees, neither. Alone CLONE_THREAD makes no sense. */
	EXPECT_EQ(hp_sys(SYS_clone, CLONE_THREAD), -EINVAL);
	EXPECT_EQ(hp_sys(SYS_clone, CLONE_THREAD | CLONE_FS), -EINVAL);
	EXPECT_EQ(hp_sys(SYS_clone, SIGCHLD), -EPERM);
	EXPECT_EQ(hp_sys(SYS_clone, CLONE_VM | CLONE_VFORK), -EPERM);
	EXPECT_EQ(hp_sys(435 /* clone3 */, 0, 0), -ENOSYS);
	EXPECT_EQ(hp_sys(436 /* close_range: not clone3's neighbour */, 2, 1, 0), -EINVAL);
	/* Signals to itself. */
	EXPECT_EQ(hp_sys(SYS_tgkill, pid, tid, 0), 0);
	EXPECT_EQ(hp_sys(SYS_tgkill, pid, tid, 99), -EINVAL);
	EXPECT_EQ(hp_sys(SYS_tgkill, pid, tid + 1, 0), -EPERM);
	EXPECT_EQ(hp_sys(SYS_tgkill, getppid(), getppid(), 0), -EPERM);
	EXPECT_EQ(hp_sys(SYS_tgkill, getppid(), tid, 0), -EPERM);
	EXPECT_EQ(hp_sys(SYS_tgkill, 0, tid, 0), -EPERM);
	EXPECT_EQ(hp_sys(SYS_capget, &head, sets), 0);
	EXPECT(!sets[0] && !sets[1] && !sets[3] && !sets[4]);
	EXPECT_EQ(hp_sys(SYS_prctl, 39 /* PR_GET_NO_NEW_PRIVS */), 1);
	EXPECT_EQ(hp_sys(SYS_prctl, 21 /* PR_GET_SECCOMP */), 2);
}

TEST_CASE(a_confined_thread_may_start_threads_and_abort, confined(false, call_with_sense))

/* ------------------------------------------------------------------ sleep and end */

static struct hp_thread sleepers[2], *sleeper; /* a bare one, and one that the C library knows */
static _Atomic uint32_t rounds;

static void sleep_often(void *unused)
{
	uint32_t seen;

	(void)unused;
	do {
		seen = hp_thread_alarm(sleeper);
		rounds++;
		hp_futex_wake(&rounds);
	} while (hp_thread_sleep(sleeper, seen, UINT64_MAX));
}

static const struct hp_thread_kind sleeping[] = {
	{ .name = "test sleeps", .run = sleep_often },
	{ .name = "test sleeps", .run = sleep_often, .known = true, .place = &sleepers[1] },
};

static void wait_for_rounds(uint32_t n)
{
	for (uint32_t seen; (seen = rounds) < n;)
		hp_futex_wait(&rounds, seen, UINT64_MAX);
}

/* In a child, since the C library knows of several threads once it has started one. */
static void sleeps_and_ends(int which)
{
	const struct hp_thread_kind *kind = &sleeping[which];
	int status = -1;
	pid_t child = fork_anew();

	if (child == 0) {
		sleeper = &sleepers[which];
		for (uint32_t i = 0; i < 20; i++) {
			rounds = 0;
			EXPECT(hp_thread_start(sleeper, kind, NULL, -1));
			EXPECT(hp_thread_start(sleeper, kind, NULL, -1)); /* it runs already */
			EXPECT(hp_thread_runs(sleeper));
			for (uint32_t n = 1; n < 20; n++) {
				wait_for_rounds(n);
				hp_thread_wake(sleeper);
			}
			wait_for_rounds(20);
			hp_thread_forbid(sleeper);
			hp_thread_forbid(sleeper);
			EXPECT(!hp_thread_runs(sleeper) && !hp_thread_tid(sleeper));
			EXPECT_EQ(hp_thread_count(), 1);
			EXPECT(!hp_thread_start(sleeper, kind, NULL, -1));
			hp_thread_allow(sleeper);
			EXPECT(hp_thread_forbidden(sleeper) && !hp_thread_start(sleeper, kind, NULL, -1));
			hp_thread_allow(sleeper);
			EXPECT(hp_thread_start(sleeper, kind, NULL, -1));
			hp_thread_end(sleeper);
			hp_thread_end(sleeper);
			EXPECT(!hp_thread_runs(sleeper) && !hp_thread_tid(sleeper));
		}
		_exit(t_failures != 0);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT_EQ(status, 0);
}

TEST(a_bare_thread_sleeps_until_it_is_woken_and_ends_when_it_is_told)
{
	BARE_ONLY();
	sleeps_and_ends(0);
}

TEST(so_does_one_that_the_c_library_knows)
{
	BARE_ONLY(); /* a sanitizer may have threads of its own, which are counted here */
	sleeps_and_ends(1);
}

/* Whoever wants one may ask at each call of the program. */
TEST(one_that_the_c_library_could_not_make_is_not_asked_of_it_for_a_thousand_times)
{
	int status = -1;
	pid_t child;

	BARE_ONLY();
	child = fork_anew();
	if (child == 0) {
		struct rlimit old, none = { 0 };
		int tries = 0;

		sleeper = &sleepers[1];
		EXPECT_EQ(getrlimit(RLIMIT_AS, &old), 0);
		none.rlim_max = old.rlim_max;
		EXPECT_EQ(setrlimit(RLIMIT_AS, &none), 0); /* no stack */
		EXPECT(!hp_thread_start(sleeper, &sleeping[1], NULL, -1));
		EXPECT_EQ(setrlimit(RLIMIT_AS, &old), 0);
		while (tries < 5000 && !hp_thread_start(sleeper, &sleeping[1], NULL, -1))
			tries++;
		EXPECT_EQ(tries, 1024);
		hp_thread_end(sleeper);
		_exit(t_failures != 0);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT_EQ(status, 0);
}

static void *start_and_end(void *kind)
{
	for (int i = 0; i < 300; i++) {
		hp_thread_start(sleeper, kind, NULL, -1);
		if (i % 3 == 0)
			hp_thread_end(sleeper);
		hp_thread_forbid(sleeper);
		hp_thread_allow(sleeper);
	}
	return NULL;
}

TEST(several_threads_may_start_and_end_one_at_a_time)
{
	int status = -1;
	pid_t child = fork_anew();

	if (child == 0) {
		for (int k = 0; k < 2; k++) {
			pthread_t other[3];

			sleeper = &sleepers[k];
			for (int i = 0; i < 3; i++)
				pthread_create(&other[i], NULL, start_and_end, (void *)&sleeping[k]);
			for (int i = 0; i < 3; i++)
				pthread_join(other[i], NULL);
			hp_thread_end(sleeper);
			EXPECT(!hp_thread_runs(sleeper) && !hp_thread_forbidden(sleeper));
		}
		_exit(t_failures != 0);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT_EQ(status, 0);
}

/* ------------------------------------------------------------------ several */

TEST_BY(in_bare_child, there_are_four_at_most)
{
	static struct hp_thread more[4];

	for (int round = 0; round < 2; round++) {
		started(&waiting, -1);
		for (int i = 0; i < 3; i++) {
			EXPECT(hp_thread_start(&more[i], &waiting, NULL, -1));
			EXPECT_EQ(hp_thread_count_bare(), i + 2);
			EXPECT_EQ(hp_thread_count(), i + 3);
		}
		EXPECT(!hp_thread_start(&more[3], &waiting, NULL, -1));
		EXPECT(!more[3].tid && !more[3].map);
		EXPECT_EQ(hp_thread_count_bare(), 4);
		stop();
		for (int i = 0; i < 3; i++)
			hp_thread_join(&more[i]);
		EXPECT_EQ(hp_thread_count_bare(), 0);
		EXPECT_EQ(hp_thread_count(), 1);
	}
}

T_MAIN
