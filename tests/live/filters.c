/* link: hugepin preload */
/*
 * Programs behind the filters of system calls that others install: systemd, which does so before the program starts,
 * and sshd, for itself.
 */
#include "live.h"

#include "filter.h"
#include "hugepin.h"

#include <linux/capability.h>

/* What is in @system-service of systemd 252 and not in @privileged or @resources, as systemd-analyze syscall-filter
 * lists them. The newest calls are left out. */
static const uint16_t service[] = {
	SYS_accept, SYS_accept4, SYS_add_key, SYS_bind, SYS_brk, SYS_capget, SYS_chdir, SYS_clock_getres,
	SYS_clock_gettime, SYS_clock_nanosleep, SYS_clone, SYS_clone3, SYS_close, SYS_close_range, SYS_connect,
	SYS_copy_file_range, SYS_dup, SYS_dup3, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2,
	SYS_eventfd2, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_faccessat, SYS_faccessat2, SYS_fadvise64,
	SYS_fallocate, SYS_fchdir, SYS_fchmod, SYS_fchmodat, SYS_fcntl, SYS_fdatasync, SYS_fgetxattr, SYS_flistxattr,
	SYS_flock, SYS_fremovexattr, SYS_fsetxattr, SYS_fstat, SYS_fstatfs, SYS_fsync, SYS_ftruncate, SYS_futex,
	SYS_get_mempolicy, SYS_get_robust_list, SYS_getcpu, SYS_getcwd, SYS_getdents64, SYS_getegid, SYS_geteuid,
	SYS_getgid, SYS_getgroups, SYS_getitimer, SYS_getpeername, SYS_getpgid, SYS_getpid, SYS_getppid,
	SYS_getpriority, SYS_getrandom, SYS_getresgid, SYS_getresuid, SYS_getrlimit, SYS_getrusage, SYS_getsid,
	SYS_getsockname, SYS_getsockopt, SYS_gettid, SYS_gettimeofday, SYS_getuid, SYS_getxattr, SYS_inotify_add_watch,
	SYS_inotify_init1, SYS_inotify_rm_watch, SYS_io_cancel, SYS_io_destroy, SYS_io_getevents, SYS_io_pgetevents,
	SYS_io_setup, SYS_io_submit, SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup, SYS_ioctl,
	SYS_ioprio_get, SYS_kcmp, SYS_keyctl, SYS_kill, SYS_lgetxattr, SYS_linkat, SYS_listen, SYS_listxattr,
	SYS_llistxattr, SYS_lremovexattr, SYS_lseek, SYS_lsetxattr, SYS_madvise, SYS_membarrier, SYS_memfd_create,
	SYS_mkdirat, SYS_mknodat, SYS_mlock, SYS_mlock2, SYS_mlockall, SYS_mmap, SYS_mprotect, SYS_mq_getsetattr,
	SYS_mq_notify, SYS_mq_open, SYS_mq_timedreceive, SYS_mq_timedsend, SYS_mq_unlink, SYS_mremap, SYS_msgctl,
	SYS_msgget, SYS_msgrcv, SYS_msgsnd, SYS_msync, SYS_munlock, SYS_munlockall, SYS_munmap, SYS_name_to_handle_at,
	SYS_nanosleep, SYS_newfstatat, SYS_openat, SYS_openat2, SYS_personality, SYS_pidfd_open, SYS_pidfd_send_signal,
	SYS_pipe2, SYS_ppoll, SYS_prctl, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_prlimit64, SYS_process_madvise,
	SYS_process_vm_readv, SYS_process_vm_writev, SYS_pselect6, SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_read,
	SYS_readahead, SYS_readlinkat, SYS_readv, SYS_recvfrom, SYS_recvmmsg, SYS_recvmsg, SYS_remap_file_pages,
	SYS_removexattr, SYS_renameat, SYS_renameat2, SYS_request_key, SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction,
	SYS_rt_sigpending, SYS_rt_sigprocmask, SYS_rt_sigqueueinfo, SYS_rt_sigreturn, SYS_rt_sigsuspend,
	SYS_rt_sigtimedwait, SYS_rt_tgsigqueueinfo, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
	SYS_sched_getaffinity, SYS_sched_getattr, SYS_sched_getparam, SYS_sched_getscheduler,
	SYS_sched_rr_get_interval, SYS_sched_yield, SYS_semctl, SYS_semget, SYS_semop, SYS_semtimedop, SYS_sendfile,
	SYS_sendmmsg, SYS_sendmsg, SYS_sendto, SYS_set_robust_list, SYS_set_tid_address, SYS_setfsgid, SYS_setgid,
	SYS_setitimer, SYS_setns, SYS_setpgid, SYS_setregid, SYS_setresgid, SYS_setsid, SYS_setsockopt, SYS_setxattr,
	SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_shmget, SYS_shutdown, SYS_sigaltstack, SYS_signalfd4, SYS_socket,
	SYS_socketpair, SYS_splice, SYS_statfs, SYS_statx, SYS_symlinkat, SYS_sync, SYS_sync_file_range, SYS_syncfs,
	SYS_sysinfo, SYS_tee, SYS_tgkill, SYS_timer_create, SYS_timer_delete, SYS_timer_getoverrun, SYS_timer_gettime,
	SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_gettime, SYS_timerfd_settime, SYS_times, SYS_tkill,
	SYS_truncate, SYS_umask, SYS_uname, SYS_unlinkat, SYS_unshare, SYS_userfaultfd, SYS_utimensat, SYS_vmsplice,
	SYS_wait4, SYS_waitid, SYS_write, SYS_writev,
#ifdef SYS_open /* x86-64 */
	SYS_access, SYS_alarm, SYS_arch_prctl, SYS_chmod, SYS_creat, SYS_dup2, SYS_epoll_create, SYS_epoll_wait,
	SYS_eventfd, SYS_fork, SYS_futimesat, SYS_get_thread_area, SYS_getdents, SYS_getpgrp, SYS_inotify_init,
	SYS_link, SYS_lstat, SYS_mkdir, SYS_mknod, SYS_open, SYS_pause, SYS_pipe, SYS_poll, SYS_readlink, SYS_rename,
	SYS_rmdir, SYS_select, SYS_set_thread_area, SYS_signalfd, SYS_stat, SYS_symlink, SYS_time, SYS_unlink,
	SYS_utime, SYS_utimes, SYS_vfork,
#endif
};

/* What of @system-service is in @privileged or @resources, which many units take away again. */
static const uint16_t besides[] = {
	SYS_capset, SYS_fchown, SYS_fchownat, SYS_ioprio_set, SYS_mbind, SYS_migrate_pages, SYS_move_pages,
	SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_setparam, SYS_sched_setscheduler, SYS_set_mempolicy,
	SYS_setfsuid, SYS_setgroups, SYS_setpriority, SYS_setresuid, SYS_setreuid, SYS_setrlimit, SYS_setuid,
#ifdef SYS_open /* x86-64 */
	SYS_chown, SYS_lchown,
#endif
};

/* ------------------------------------------------------------------ what the program does */

static bool filled(char *p, size_t size, uint64_t seed)
{
	if (!EXPECT(p))
		return false;
	pattern_write(p, size, seed);
	return true;
}

/* Allocate, grow and free small and large buffers. */
static void *churn(void *first)
{
	enum { KEPT = 16 };
	struct {
		char *p;
		size_t size;
	} b[KEPT] = { { NULL, 0 } };
	uint64_t state = (uintptr_t)first;

	for (unsigned i = 0; i < 400; i++) {
		const unsigned k = i % KEPT;

		if (b[k].p)
			EXPECT_EQ(pattern_check(b[k].p, b[k].size, k), -1);
		if (i % 3) {
			free(b[k].p);
			b[k].p = NULL;
		}
		b[k].size = rand_size(&state, 16, 4 * MIB);
		b[k].p = realloc(b[k].p, b[k].size);
		if (!filled(b[k].p, b[k].size, k))
			break;
	}
	for (unsigned k = 0; k < KEPT; k++)
		free(b[k].p);
	return NULL;
}

static void run_threads(void)
{
	pthread_t t[3];

	for (uintptr_t i = 0; i < 3; i++)
		if (!EXPECT_EQ(pthread_create(&t[i], NULL, churn, (void *)(i + 1)), 0))
			return;
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
}

static void fork_with_memory(void)
{
	const size_t size = 24 * MIB;
	char *p = malloc(size);
	pid_t pid;

	if (!filled(p, size, 9))
		return;
	pid = fork();
	if (!pid) {
		t_failures = 0;
		EXPECT_EQ(pattern_check(p, size, 9), -1);
		pattern_write(p, size, 10);
		churn((void *)7);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT_EQ(pattern_check(p, size, 9), -1);
	free(p);
}

/* Free memory goes back to the kernel: by the thread, or by the program's calls. */
static void expect_given_back(bool by_thread)
{
	enum { PARTS = 16 };
	char *p[PARTS];
	size_t full;

	for (int i = 0; i < PARTS; i++)
		if (!filled(p[i] = malloc(4 * MIB), 4 * MIB, 1))
			return;
	full = resident();
	for (int i = 0; i < PARTS; i++)
		free(p[i]);
	for (unsigned i = 0; by_thread && !ticker() && EXPECT(i < 100 * t_seconds()); i++)
		sleep_ms(10);
	EXPECT(by_thread || !ticker());
	for (unsigned i = 0; resident() > full - (PARTS - 2) * 4 * MIB; i++) {
		if (!EXPECT(i < t_seconds()))
			return;
		sleep_ms(200);
		if (!by_thread)
			free(hide(malloc(MIB + i * 64 * KIB))); /* of a length that no list has */
	}
}

static void pin_memory(void)
{
	const size_t size = 256 * KIB;
	char *heap = malloc(size);
	char *foreign = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct hugepin_pin pin;
	hugepin_domain *d;

	if (!EXPECT(heap && foreign != MAP_FAILED) ||
	    !EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &d), 0))
		return;
	for (int i = 0; i < 3; i++) {
		if (EXPECT_EQ(hugepin_pin(d, foreign, size, 0, &pin), 0))
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		if (EXPECT_EQ(hugepin_pin(d, heap, size, 0, &pin), 0))
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(munmap(foreign, size), 0);
	free(heap);
	churn((void *)8);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

static void do_all(bool thread)
{
	churn((void *)5);
	run_threads();
	fork_with_memory();
	expect_given_back(thread);
	pin_memory();
	fork_with_memory();
}

static void do_all_with_thread(void)
{
	do_all(true);
}

static void do_all_without_thread(void)
{
	do_all(false);
}

/* ------------------------------------------------------------------ before the program starts */

static bool drop_capabilities(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { { 0 } };

	return syscall(SYS_capset, &head, none) == 0;
}

/* Run body() in this program, executed again behind a filter that gives this answer to all calls that are not in
 * `service` or, unless `less`, in `besides`. */
static void behind(uint32_t answer, bool less, bool capabilities, void (*body)(void))
{
	struct filter f = { .len = 0 };
	pid_t pid = fork();

	if (!pid) {
		t_failures = 0;
		setenv("HUGEPIN_DECAY", "500ms", 1);
		if (!capabilities && !drop_capabilities())
			_exit(78);
		if (!less)
			filter_calls(&f, besides, FILTER_COUNT(besides), SECCOMP_RET_ALLOW);
		filter_calls(&f, service, FILTER_COUNT(service), SECCOMP_RET_ALLOW);
		if (!filter_install(&f, answer))
			_exit(79);
		_exit(anew_status(body) != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

TEST_CASE(systemds_system_service_is_enough, behind(SECCOMP_RET_KILL_PROCESS, false, true, do_all_with_thread))

TEST_CASE(what_systemds_system_service_lacks_may_be_refused,
	  behind(FILTER_REFUSES(EPERM), false, true, do_all_with_thread))

TEST_CASE(without_capabilities_it_is_enough_less_privileged_and_resources,
	  behind(SECCOMP_RET_KILL_PROCESS, true, false, do_all_with_thread))

/* As the service manager sets it for CPUSchedulingPolicy=. */
TEST(a_policy_from_before_the_filter_needs_no_other_call)
{
	const struct sched_param none = { 0 };

	EXPECT_EQ(sched_setscheduler(0, SCHED_BATCH, &none), 0);
	behind(SECCOMP_RET_KILL_PROCESS, true, false, do_all_with_thread);
	EXPECT_EQ(sched_setscheduler(0, SCHED_OTHER, &none), 0);
}

/* A thread must not keep capabilities, so there is none if capset(2) is refused. */
TEST(with_capabilities_privileged_and_resources_may_be_refused)
{
	if (geteuid() != 0)
		SKIP("not root");
	behind(FILTER_REFUSES(EPERM), true, true, do_all_without_thread);
}

/* ------------------------------------------------------------------ installed by the program */

/* The filter of OpenSSH 10 for what a client says before it is known (sandbox-seccomp-filter.c): mappings may have no
 * other flags, and memory no other advice. */
static bool confine_as_sshd(void)
{
	static const uint16_t allowed[] = {
		SYS_brk, SYS_clock_gettime, SYS_clock_nanosleep, SYS_close, SYS_exit, SYS_exit_group, SYS_futex,
		SYS_getpid, SYS_getrandom, SYS_gettid, SYS_gettimeofday, SYS_mmap, SYS_mprotect, SYS_mremap,
		SYS_munmap, SYS_nanosleep, SYS_ppoll, SYS_pselect6, SYS_read, SYS_rt_sigprocmask, SYS_shutdown,
		SYS_write, SYS_writev,
	};
	static const uint16_t refused[] = { SYS_openat, SYS_fstat, SYS_newfstatat };
	static const uint16_t advice[] = { MADV_NORMAL,	  MADV_FREE,	 MADV_DONTNEED,
					   MADV_DONTFORK, MADV_DONTDUMP, MADV_WIPEONFORK };
	static const uint16_t advise[] = { SYS_madvise };
	const uint32_t flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | 0x100000 /* MAP_FIXED_NOREPLACE */;
	struct filter f = { .len = 0 };

	filter_calls(&f, refused, FILTER_COUNT(refused), FILTER_REFUSES(EACCES));
	for (size_t i = 0; i < sizeof advice / sizeof *advice; i++)
		filter_argument(&f, SYS_madvise, 2, BPF_JEQ, advice[i], SECCOMP_RET_ALLOW);
	filter_calls(&f, advise, 1, FILTER_REFUSES(EINVAL));
	filter_argument(&f, SYS_mmap, 3, BPF_JSET, ~flags, FILTER_REFUSES(EINVAL));
	filter_argument(&f, SYS_mmap, 2, BPF_JSET, PROT_EXEC, SECCOMP_RET_KILL_PROCESS);
	filter_calls(&f, allowed, FILTER_COUNT(allowed), SECCOMP_RET_ALLOW);
	return filter_install(&f, SECCOMP_RET_KILL_PROCESS);
}

static void allocates_as_sshd(bool before)
{
	if (before)
		churn((void *)3);
	if (!confine_as_sshd())
		_exit(80);
	churn((void *)4);
	_exit(t_failures != 0);
}

static void allocates_before(void)
{
	allocates_as_sshd(true);
}

static void allocates_first_there(void)
{
	allocates_as_sshd(false);
}

TEST(behind_the_filter_of_sshd_a_program_allocates)
{
	anew(allocates_before);
	anew(allocates_first_there);
}

LIVE_MAIN
