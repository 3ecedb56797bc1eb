/* Children that are not fork's, and the changes that a child makes of itself, for good. */
#ifndef TESTS_SOAK_CHANGE_CHILDREN_H
#define TESTS_SOAK_CHANGE_CHILDREN_H

#include <grp.h>
#include <linux/capability.h>
#include <linux/landlock.h>

#include "../live/filter.h"
#include "change_addresses.h"
#include "change_limits.h"
#include "change_registrations.h"
#include "remains.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
enum { SYSTEM_CALL_MSEAL = 462 };

static int daemon_says = -1; /* in a daemon: the end of its pipe */

/* ------------------------------------------------------------------ children of vfork, clone and _Fork */

static __attribute__((noinline)) bool vfork_and_allocate(struct worker *w)
{
	const uint64_t rand = rand_next(&w->rand);
	const pid_t pid = vfork();

	if (pid == 0) {
		allocate_some(rand);
		_exit(0);
	}
	return pid > 0 && EXPECT_EQ(waitpid(pid, NULL, 0), pid);
}

static int do_nothing_for_long(void *unused)
{
	const struct timespec moment = { 0, 5000000 };

	(void)unused;
	syscall(SYS_nanosleep, &moment, NULL);
	return 0;
}

/* A process with our memory and with descriptors of its own. The process shares the thread pointer too, and so does
 * nothing. */
static bool clone_with_memory(struct worker *w)
{
	static _Alignas(16) char stack[65536];
	const pid_t pid = clone(do_nothing_for_long, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);

	if (pid < 0)
		return false;
	allocate_some(rand_next(&w->rand));
	return EXPECT_EQ(child_wait(pid), 0);
}

/* No handlers of fork run: other threads may hold any lock. The child has its parent's descriptors, and looks at memory
 * only. */
static bool child_without_handlers(struct worker *w)
{
	const uint64_t seed = rand_next(&w->rand);
	pid_t pid;

	pattern_write(w->buffer, IO_MAX, seed);
	pid = w->with ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : _Fork();
	if (pid == 0) {
		do_nothing_for_long(NULL);
		_exit(pattern_check(w->buffer, IO_MAX, seed) != -1);
	}
	if (pid < 0)
		return false;
	pattern_write(w->buffer, IO_MAX, ~seed);
	return EXPECT_EQ(child_wait(pid), 0);
}

/* ------------------------------------------------------------------ of a child, for good */

/* A child that hangs ends by itself. Its parent goes on. */
static void end_in_time(void)
{
	signal(SIGALRM, SIG_DFL);
	alarm(t_seconds());
}

/* Go on as a child of this process. This process waits and ends with the child's status. */
static bool go_on_as(pid_t child)
{
	if (child == 0)
		end_in_time();
	if (child > 0)
		_exit(child_wait(child) & 255);
	return child == 0;
}

static bool by_fork(struct worker *unused)
{
	(void)unused;
	return go_on_as(fork());
}

static bool by_fork_without_handlers(struct worker *unused)
{
	(void)unused;
	return go_on_as(_Fork());
}

static bool by_clone(struct worker *unused)
{
	(void)unused;
	return go_on_as((pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL));
}

/* Make mappings until few are left, then fork. The child needs a mapping for each second hugepage, which is registered.
 * The fork is refused, or its child has its memory and goes on. */
static bool few_mappings(struct worker *w)
{
	enum { MANY = 100000, BUFFERS = 32, BUFFER = 2 << 20 };
	const long few = (long)(rand_next(&w->rand) % BUFFERS);
	hugepin_domain *d = own_domain(0);
	char *buffer[BUFFERS], *p = NULL;
	size_t len = 0;
	pid_t pid = -1;
	bool ok = d;

	for (int i = 0; i < BUFFERS; i++) {
		buffer[i] = hugepin_aligned_alloc(BUFFER, BUFFER);
		ok = ok && buffer[i] && touch(d, memset(buffer[i], i, BUFFER), BUFFER, 0);
	}
	for (int i = 0; i < BUFFERS; i += 2)
		hugepin_free(buffer[i]);
	const long left = file_number("/proc/sys/vm/max_map_count") - lines("/proc/self/maps");
	if (ok && left > few && left < MANY)
		p = foreign_map(len = (size_t)(left - few) * 4096);
	for (size_t at = 4096; p && at + 4096 < len && mprotect(p + at, 4096, PROT_READ) == 0; at += 2 * 4096)
		;
	if (p) {
		pid = fork();
		if (pid < 0) /* EAGAIN: this process is the child of one that had RLIMIT_NPROC lowered just then */
			EXPECT(errno == ENOMEM || errno == EAGAIN);
		munmap(p, len);
	}
	for (int i = 1; i < BUFFERS; i += 2) {
		for (size_t at = 0; pid == 0 && at < BUFFER; at += 4096)
			EXPECT_EQ(buffer[i][at], i);
		hugepin_free(buffer[i]);
	}
	if (d)
		EXPECT_EQ(hugepin_domain_close(d), 0);
	if (pid >= 0)
		go_on_as(pid);
	return pid == 0;
}

/* daemon(3). The waiting process reads the daemon's result from a pipe. The pipe closes when the daemon ends. */
static bool by_daemon(struct worker *unused)
{
	int ends[2];
	char failed = 1;
	pid_t pid;

	(void)unused;
	if (pipe2(ends, O_CLOEXEC))
		return false;
	pid = fork();
	if (pid == 0 && daemon(1, 1) == 0) {
		end_in_time();
		daemon_says = ends[1];
		close(ends[0]);
		return true;
	}
	if (pid < 0)
		return false;
	if (pid == 0)
		_exit(1);
	close(ends[1]);
	_exit(child_wait(pid) || read(ends[0], &failed, 1) != 1 || failed);
}

static bool close_everything(struct worker *w)
{
	if (w->with)
		for (int fd = 3; fd < 1024; fd++)
			dup2(0, fd);
	else
		syscall(SYS_close_range, 3, ~0u, 0);
	return true;
}

static bool enter_namespaces(struct worker *w)
{
	/* A process of one thread may enter a user namespace where any user may. Under libhugepin-malloc.so each child
	 * begins with one thread. */
	if (unshare(w->with) == 0)
		return true;
	EXPECT(!preloaded || errno != EINVAL);
	return false;
}

static bool set_namespace(struct worker *unused)
{
	const int fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	const bool ok = fd >= 0 && setns(fd, CLONE_NEWNS) == 0;

	(void)unused;
	if (fd >= 0)
		close(fd);
	return ok;
}

/* The children are in a new namespace: the first has number 1 there, or another time. */
static bool in_namespace_of_children(struct worker *w)
{
	const char *const offset = rand_next(&w->rand) % 2 ? "monotonic 100000000 0\n" : "monotonic -1000 0\n";

	if (syscall(SYS_unshare, w->with) || (w->with == CLONE_NEWTIME && !file_write("/proc/self/timens_offsets",
										      offset)))
		return false;
	return go_on_as(fork());
}

static bool give_user_up(struct worker *unused)
{
	(void)unused;
	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !setgroups(0, NULL) && !setresgid(65534, 65534, 65534) &&
	       !setresuid(65534, 65534, 65534);
}

static bool give_capabilities_up(struct worker *unused)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { { .effective = 0 } };

	(void)unused;
	return syscall(SYS_capset, &head, none) == 0;
}

/* From then on the process may open no file. */
static bool give_files_up(struct worker *unused)
{
	const struct landlock_ruleset_attr all =
		{ .handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
									LANDLOCK_ACCESS_FS_READ_DIR };
	const int fd = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);

	(void)unused;
	return fd >= 0 && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !syscall(SYS_landlock_restrict_self, fd, 0);
}

/* Allow the calls that the C library's malloc needs and that a child of the soak makes. w->with: the action for all
 * others. */
static bool confine(struct worker *w)
{
	static const uint16_t calls[] = { SYS_mmap,  SYS_munmap, SYS_mremap,     SYS_madvise, SYS_mprotect, SYS_brk,
					  SYS_futex, SYS_write,  SYS_exit,       SYS_exit_group, SYS_pipe2, SYS_close,
					  SYS_getpid, SYS_rt_sigreturn };
	struct filter f = { .len = 0 };

	filter_calls(&f, calls, FILTER_COUNT(calls), SECCOMP_RET_ALLOW);
	struct sock_fprog program = filter_end(&f, (uint32_t)w->with);

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

static bool have_no_limit_left(struct worker *unused)
{
	static const int limits[] = { RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_FSIZE,      RLIMIT_CORE,
				      RLIMIT_STACK, RLIMIT_NICE,   RLIMIT_RTPRIO,  RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE };
	static const struct rlimit none = { 0, 0 };
	bool ok = true;

	(void)unused;
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
		ok = !setrlimit((unsigned)limits[i], &none) && ok;
	return ok;
}

static bool have_few_addresses(struct worker *w)
{
	const struct rlimit limit = { (rlim_t)(status_number("VmSize:") / (1 + (long)(rand_next(&w->rand) % 4))) * KIB,
				      RLIM_INFINITY };

	return setrlimit(RLIMIT_AS, &limit) == 0;
}

static bool block_signals(struct worker *unused)
{
	sigset_t all;

	(void)unused;
	sigfillset(&all);
	return !sigprocmask(SIG_SETMASK, &all, NULL) && !prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
}

static bool raise_break(struct worker *unused)
{
	(void)unused;
	return sbrk(65536) != (void *)-1;
}

static bool seal(struct worker *unused)
{
	char *p = foreign_map(AREA);

	(void)unused;
	return p && syscall(SYSTEM_CALL_MSEAL, p, AREA, 0) == 0 && EXPECT(munmap(p, AREA) != 0);
}

/* Another thread of the parent may have lowered a limit for the moment of the fork. A shell needs memory and files, so
 * the limits go up again. */
static bool run_program(struct worker *unused)
{
	static const int lowered[] = { RLIMIT_AS, RLIMIT_DATA, RLIMIT_NOFILE, RLIMIT_NPROC };
	struct rlimit limit;

	(void)unused;
	for (size_t i = 0; i < sizeof lowered / sizeof *lowered; i++) {
		if (getrlimit((unsigned)lowered[i], &limit))
			continue;
		limit.rlim_cur = limit.rlim_max;
		EXPECT_EQ(setrlimit((unsigned)lowered[i], &limit), 0);
	}
	return EXPECT_EQ(system("exit 3"), 3 << 8);
}

static bool stay_in_group(struct worker *unused)
{
	(void)unused;
	return group_home && group_enter(group.path);
}

static bool keep_everything_locked(struct worker *w)
{
	return mlockall(w->with) == 0;
}

#endif
