/*
 * See thread.h. The flags of clone(2) for a bare thread are those of pthread_create, because valgrind and user-mode
 * emulators accept no others. By these flags the new thread shares its descriptors and its directory with the program,
 * so it begins by taking its own. Its memory is, upwards: a page without access, the stack, the thread-local variables,
 * and at the thread pointer room for the C library's descriptor of a thread. The descriptor is zero except the members
 * that compilers and inline functions read (x86-64 ABI: TLS variant II, "Thread-Local Storage").
 *
 * Start and end are sequentially consistent, because they are handshakes of two words: one side writes the first word
 * and reads the second, the other side does the reverse, so that at least one side sees the other's write.
 *	forbidden, state	hp_thread_forbid() and hp_thread_start(): the start is waited for, or given up
 *	alarm, asleep		hp_thread_wake() and hp_thread_sleep(): the thread is woken, or does not sleep
 */
#include "base/thread.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/process.h"
#include "base/stats.h"
#include "base/sys.h"

#if HP_THREAD_BARE
#include <elf.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#endif

struct hp_thread hp_ticker;
HP_TLS bool hp_thread_is_bare;

/* STARTING, ENDING, ENDED: some thread is starting or ending this one, and all others wait. ENDED: run() has
 * returned. */
enum { OFF, STARTING, RUNNING, ENDING, ENDED };
enum { RUNS = 1, REFUSED };
enum { TRIES_BETWEEN_FAILURES = 1024 };
enum { SANITIZER_NS = 200000000 };
enum { LONG_NS = INT64_C(1) << 55 }; /* a year */

/* The arguments for a new bare thread. They are on the stack of the starting thread, which waits until the new thread
 * has set `told`. */
struct start {
	struct hp_thread *thread;
	const struct hp_thread_kind *kind;
	void *arg;
	int keep_fd;
};

/* seq_cst: pairs with set_state() and change_state(). */
static uint32_t get_state(const struct hp_thread *t)
{
	return atomic_load_explicit(&t->state, memory_order_seq_cst);
}

/* Called by the thread that has the right to change the state. seq_cst: pairs with get_state() and change_state(). */
static void set_state(struct hp_thread *t, uint32_t state)
{
	atomic_store_explicit(&t->state, state, memory_order_seq_cst);
	hp_futex_wake(&t->state);
}

/* Change the state to `to` if it is `from`. Returns the state before. seq_cst: pairs with get_state() and set_state(),
 * and with other threads that change it. */
static uint32_t change_state(struct hp_thread *t, uint32_t from, uint32_t to)
{
	atomic_compare_exchange_strong_explicit(&t->state, &from, to, memory_order_seq_cst, memory_order_seq_cst);
	return from;
}

/* Called by the new thread. *s may not be used after this. */
static void tell_start(struct start *s, bool ok)
{
	struct hp_thread *t = s->thread;

	/* release: pairs with hp_thread_start() */
	atomic_store_explicit(&t->told, ok ? RUNS : REFUSED, memory_order_release);
	hp_futex_wake(&t->told);
}

/* Called by the new thread before run(). The starting thread changes the state, when it needs *t no longer. */
static void await_start(struct hp_thread *t)
{
	while (get_state(t) == STARTING)
		hp_futex_wait(&t->state, STARTING, UINT64_MAX);
}

/* Called by the thread when run() has returned. False: another thread is ending it, and will set the state. */
static bool tell_end(struct hp_thread *t)
{
	bool alone = change_state(t, RUNNING, OFF) == RUNNING;

	if (alone)
		hp_futex_wake(&t->state);
	else
		set_state(t, ENDED);
	return alone;
}

/* Wait until the kernel no longer counts the thread of this number, which is about to end. */
static void wait_uncounted(uint32_t tid)
{
	while (tid && hp_sys(SYS_tgkill, hp_pid(), tid) == 0)
		hp_sys(SYS_sched_yield);
}

/* Wait until the thread, whose run() has returned, is gone. Called by the thread that may change the state. */
static void wait_gone(struct hp_thread *t)
{
	uint32_t tid;

	if (!t->map) {
		wait_uncounted(hp_thread_tid(t));
		atomic_store_explicit(&t->tid, 0, memory_order_relaxed);
		return;
	}
	/* The kernel wakes `tid` as a futex shared between processes, so this wait must not be FUTEX_WAIT_PRIVATE. */
	while ((tid = hp_thread_tid(t)) != 0)
		hp_sys(SYS_futex, &t->tid, FUTEX_WAIT, tid);
	/* Wait until the kernel no longer counts the ended thread, because unshare(2) would see two threads. */
	wait_uncounted(t->last_tid);
	t->last_tid = 0;
}

/* ------------------------------------------------------------------ threads of the C library */

static void *run_known(struct start s)
{
	struct hp_thread *t = s.thread;
	uint32_t own = (uint32_t)hp_tid();

	hp_sys(SYS_prctl, PR_SET_NAME, s.kind->name);
	if (s.kind->known)
		hp_thread_confine(s.kind->opens_files);
	atomic_store_explicit(&t->tid, own, memory_order_relaxed);
	tell_start(&s, true);
	await_start(t);
	s.kind->run(s.arg);
	if (tell_end(t)) /* unless another thread has been started meanwhile */
		/* release: pairs with hp_thread_tid() */
		atomic_compare_exchange_strong_explicit(&t->tid, &own, 0, memory_order_release, memory_order_relaxed);
	return NULL;
}

/* Nobody needs a known thread to begin before it does, so its arguments are not on the stack of the starting thread. In
 * a child of a process with threads a sanitizer's runtime may even stop it for ever. */
static void *enter_known(void *kind_)
{
	const struct hp_thread_kind *kind = kind_;

	return run_known((struct start){ kind->place, kind, NULL, -1 });
}

/* For a bare kind where there are no bare threads. The starting thread waits. */
static void *enter_waited(void *start)
{
	return run_known(*(struct start *)start);
}

static int create_detached(struct start *s, size_t stack_size)
{
	pthread_attr_t attr;
	pthread_t thread;
	int err = pthread_attr_init(&attr);

	if (err)
		return err;
	if (stack_size)
		pthread_attr_setstacksize(&attr, stack_size);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	err = s->kind->known ? pthread_create(&thread, &attr, enter_known, (void *)s->kind) :
			       pthread_create(&thread, &attr, enter_waited, s);
	pthread_attr_destroy(&attr);
	return err;
}

static bool start_known(struct start *s)
{
	struct hp_thread *t = s->thread;
	int saved_errno = errno, err;

	/* The C library puts the program's thread-local variables on the stack, too. If they do not fit, use the usual
	 * stack size. */
	err = create_detached(s, s->kind->stack_size);
	if (err && s->kind->stack_size)
		err = create_detached(s, 0);
	if (err)
		atomic_store_explicit(&t->skip, TRIES_BETWEEN_FAILURES, memory_order_relaxed);
	errno = saved_errno;
	return err == 0;
}

/* ------------------------------------------------------------------ bare threads */

#if HP_THREAD_BARE

/* All bare threads that were ever started. Each is a static object. */
enum { THREADS_MAX = 4 };
static struct hp_thread *_Atomic threads[THREADS_MAX]; /* relaxed: the exchange alone decides, and an entry stays */

static bool thread_listed(struct hp_thread *t)
{
	for (int i = 0; i < THREADS_MAX; i++) {
		struct hp_thread *there = NULL;

		if (atomic_compare_exchange_strong_explicit(&threads[i], &there, t, memory_order_relaxed,
							    memory_order_relaxed) ||
		    there == t)
			return true;
	}
	return false;
}

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* Bytes. Base pages have 4096, because bare threads exist only on x86-64. */
enum { GUARD = 4096, STACK = 65536, DESCRIPTOR = 8192, BELOW = 4096 };
/* Calls clone(2). The child pops an argument and a function from its stack and calls the function. .cfi_undefined tells
 * debuggers that the child has no caller. */
long hp_thread_clone(unsigned long flags, void *stack, void *parent_tid, void *child_tid, void *thread_pointer)
	__attribute__((visibility("hidden")));
__asm__(".pushsection .text\n"
	".globl hp_thread_clone\n"
	".hidden hp_thread_clone\n"
	".type hp_thread_clone, @function\n"
	"hp_thread_clone:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	movq %rcx, %r10\n"
	"	movl $56, %eax\n"
	"	syscall\n"
	"	testq %rax, %rax\n"
	"	jz 1f\n"
	"	ret\n"
	"1:	.cfi_undefined rip\n"
	"	xorl %ebp, %ebp\n"
	"	popq %rdi\n"
	"	popq %rax\n"
	"	call *%rax\n"
	"	ud2\n"
	"	.cfi_endproc\n"
	".size hp_thread_clone, . - hp_thread_clone\n"
	".popsection\n");

/* Call capset(2) only if there is something to drop, because a filter without systemd's @privileged kills for it. */
static bool drop_capabilities(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { { 0 } }, has[2] = { { 0 } };

	return (hp_sys(SYS_capget, &head, has) == 0 && !memcmp(has, none, sizeof none)) ||
	       hp_sys(SYS_capset, &head, none) == 0;
}

static bool own_files(int keep_fd)
{
	if (keep_fd < 0)
		return hp_sys(SYS_close_range, 0, ~0U, CLOSE_RANGE_UNSHARE) == 0;
	return hp_sys(SYS_close_range, keep_fd + 1, ~0U, CLOSE_RANGE_UNSHARE) == 0 &&
	       (keep_fd == 0 || hp_sys(SYS_close_range, 0, keep_fd - 1) == 0);
}

/* Whether the starting thread, whose policy this one has, could starve this one, and has probably made a call itself
 * that changed its policy. A policy that the whole process has may be its service manager's, set before the filter. */
static bool may_starve(void)
{
	const long policy = hp_sys(SYS_sched_getscheduler, 0);

	return policy == SCHED_FIFO || policy == SCHED_RR || policy == SCHED_DEADLINE ||
	       (policy > SCHED_OTHER && policy != hp_sys(SYS_sched_getscheduler, hp_pid()));
}

/* Give the new thread its own name, scheduling, processors and directory, because the starting thread may be bound to
 * one processor which it keeps busy, or have real-time priority. Refusals are harmless: they cost time, or keep a
 * directory in use. But a filter without systemd's @resources kills for three of these calls, which are then made only
 * if this thread could starve. */
static void own_place(const char *name)
{
	char cpus[1024];
	struct sched_param normal = { 0 };

	memset(cpus, 0xff, sizeof cpus);
	hp_sys(SYS_prctl, PR_SET_NAME, name);
	if (!hp_is_filtered() || may_starve()) {
		hp_sys(SYS_sched_setscheduler, 0, SCHED_OTHER, &normal);
		hp_sys(SYS_setpriority, PRIO_PROCESS);
		hp_sys(SYS_sched_setaffinity, 0, sizeof cpus, (long)cpus);
	}
	if (hp_sys(SYS_unshare, CLONE_FS) == 0)
		hp_sys(SYS_chdir, "/");
}

/* Whether valgrind runs this program, whose own system calls on every thread a filter would stop. The rotations below
 * leave a register unchanged on a processor, but valgrind sees them as a question and answers (its manual, "The Client
 * Request mechanism"). */
static bool on_valgrind(void)
{
	volatile uint64_t question[6] = { 0x1001 };
	uint64_t answer = 0;

	__asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx"
			 : "+d"(answer)
			 : "a"(question)
			 : "cc", "memory");
	return answer;
}

#define LOAD(what) \
	((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, what)))
#define IF(op, value, yes, no) ((struct sock_filter)BPF_JUMP(BPF_JMP | (op) | BPF_K, (uint32_t)(value), (yes), (no)))
#define END(what) ((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, (what)))
#define REFUSE END(SECCOMP_RET_ERRNO | EPERM)

/* The beginning of a filter: checks the architecture and loads the number of the system call. */
static unsigned begin_filter(struct sock_filter *f)
{
	unsigned n = 0;

	f[n++] = LOAD(arch);
	f[n++] = IF(BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0);
	f[n++] = REFUSE;
	f[n++] = LOAD(nr);
	return n;
}

/* By prctl(2), because systemd's @system-service has no seccomp(2). */
static bool set_filter(struct sock_filter *f, unsigned n)
{
	struct sock_fprog program = { .len = (unsigned short)n, .filter = f };

	return hp_sys(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1) == 0 &&
	       hp_sys(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Install a filter that allows only the calls of the kind, and never executable memory. Other calls fail with EPERM. */
static bool allow(const struct hp_thread_kind *kind)
{
	static const uint16_t always[] = { SYS_futex, SYS_exit, SYS_rt_sigreturn };
	struct sock_filter f[2 * HP_THREAD_CALLS_MAX + 24];
	unsigned n = begin_filter(f);

	/* The third argument of mmap and mprotect is the protection. */
	f[n++] = IF(BPF_JEQ, SYS_mmap, 1, 0);
	f[n++] = IF(BPF_JEQ, SYS_mprotect, 0, 4);
	f[n++] = LOAD(args[2]);
	f[n++] = IF(BPF_JSET, PROT_EXEC, 0, 1);
	f[n++] = REFUSE;
	f[n++] = LOAD(nr);
	for (unsigned i = 0; i < kind->calls_count + 3; i++) {
		f[n++] = IF(BPF_JEQ, i < 3 ? always[i] : kind->calls[i - 3], 0, 1);
		f[n++] = END(SECCOMP_RET_ALLOW);
	}
	f[n++] = REFUSE;
	return set_filter(f, n);
}

/* Calls without a name in Debian 12's headers. Their numbers are the same on all architectures. */
enum {
	OPEN_TREE = 428,
	PIDFD_OPEN = 434,
	CLONE3 = 435,
	OPENAT2 = 437,
	PIDFD_GETFD = 438,
	MOUNT_SETATTR = 442,
	FCHMODAT2 = 452
};

static const uint16_t changes_of_id[] = { SYS_setuid,	 SYS_setgid,	SYS_setreuid, SYS_setregid,
					  SYS_setresuid, SYS_setresgid, SYS_setgroups };

static const uint16_t opening[] = { SYS_open, SYS_openat, OPENAT2, SYS_creat, SYS_unlinkat };

static const uint16_t refused[] = {
	/* programs and processes */
	SYS_execve, SYS_execveat, SYS_fork, SYS_vfork, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev,
	SYS_kcmp, PIDFD_OPEN, PIDFD_GETFD, SYS_pidfd_send_signal, SYS_kill, SYS_tkill, SYS_rt_sigqueueinfo,
	SYS_rt_tgsigqueueinfo, SYS_setfsuid, SYS_setfsgid, SYS_unshare, SYS_setns, SYS_setpgid, SYS_setsid,
	SYS_personality,
	/* files */
	SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_unlink, SYS_rename, SYS_renameat, SYS_renameat2, SYS_link,
	SYS_linkat, SYS_symlink, SYS_symlinkat, SYS_mknod, SYS_mknodat, SYS_mkdir, SYS_mkdirat, SYS_rmdir,
	SYS_truncate, SYS_chmod, SYS_fchmodat, FCHMODAT2, SYS_chown, SYS_lchown, SYS_fchownat, SYS_setxattr,
	SYS_lsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_utimensat, SYS_chroot, SYS_pivot_root, SYS_mount,
	SYS_umount2, OPEN_TREE, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, MOUNT_SETATTR,
	SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl,
	/* sockets, rings, and code that the kernel runs for the caller */
	SYS_socket, SYS_connect, SYS_bind, SYS_accept, SYS_accept4, SYS_io_uring_setup, SYS_io_uring_enter,
	SYS_io_setup, SYS_io_submit, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_add_key, SYS_request_key,
	SYS_keyctl, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_reboot, SYS_iopl,
	SYS_ioperm,
};

bool hp_thread_confine(bool opens_files)
{
	enum { COUNT = sizeof refused / sizeof *refused + sizeof opening / sizeof *opening +
		       sizeof changes_of_id / sizeof *changes_of_id };
	struct sock_filter f[2 * COUNT + 32];
	unsigned n = begin_filter(f);

	if (on_valgrind())
		return false;
#define EACH(list, end)                                                                                                \
	for (size_t i = 0; i < sizeof(list) / sizeof *(list); i++) {                                                   \
		f[n++] = IF(BPF_JEQ, (list)[i], 0, 1);                                                                 \
		f[n++] = (end);                                                                                        \
	}
	EACH(changes_of_id, END(SECCOMP_RET_ERRNO | 0));
	EACH(refused, REFUSE);
	if (!opens_files)
		EACH(opening, REFUSE);
#undef EACH
	f[n++] = IF(BPF_JGE, 0x40000000, 0, 1); /* the numbers of the x32 ABI */
	f[n++] = REFUSE;
	/* a filter cannot read its flags, which are in memory; callers then use clone */
	f[n++] = IF(BPF_JEQ, CLONE3, 0, 1);
	f[n++] = END(SECCOMP_RET_ERRNO | ENOSYS);
	f[n++] = IF(BPF_JEQ, SYS_clone, 0, 4);
	f[n++] = LOAD(args[0]);
	f[n++] = IF(BPF_JSET, CLONE_THREAD, 0, 1);
	f[n++] = END(SECCOMP_RET_ALLOW);
	f[n++] = REFUSE;
	/* Allow a signal only to this thread, for abort(). */
	f[n++] = IF(BPF_JEQ, SYS_tgkill, 0, 5);
	f[n++] = LOAD(args[0]);
	f[n++] = IF(BPF_JEQ, hp_pid(), 0, 2);
	f[n++] = LOAD(args[1]);
	f[n++] = IF(BPF_JEQ, hp_tid(), 1, 0);
	f[n++] = REFUSE;
	f[n++] = END(SECCOMP_RET_ALLOW);
	return set_filter(f, n) && drop_capabilities();
}

static _Noreturn void enter_bare(struct start *s)
{
	struct start copy = *s;
	bool ok = own_files(s->keep_fd);

	own_place(copy.kind->name);
	ok = ok && drop_capabilities() && (on_valgrind() || allow(copy.kind));
	tell_start(s, ok);
	hp_thread_is_bare = true;
	if (ok) {
		await_start(copy.thread);
		copy.kind->run(copy.arg);
		tell_end(copy.thread);
	}
	for (;;)
		hp_sys(SYS_exit);
}

extern const Elf64_Ehdr hp_ehdr __asm__("__ehdr_start") __attribute__((visibility("hidden"), weak));

/* The number of bytes below the thread pointer that contain our thread-local variables and errno. The variables of one
 * file (library or program) are contiguous, but the place of ours among them is not known, so the result covers the
 * file's whole block on either side. */
static size_t tls_below(uintptr_t thread_pointer)
{
	const Elf64_Phdr *p;
	uintptr_t one_of_ours = (uintptr_t)&hp_locks_held;
	size_t ours = 0;

	/* Hide the address from the compiler, because linkers have no relocation for a difference of thread-local
	 * addresses. */
	__asm__("" : "+r"(one_of_ours));

	if (&hp_ehdr) {
		p = (const Elf64_Phdr *)((const char *)&hp_ehdr + hp_ehdr.e_phoff);
		for (int i = 0; i < hp_ehdr.e_phnum; i++)
			if (p[i].p_type == PT_TLS)
				ours = p[i].p_memsz;
	}
	return hp_round_up(HP_MAX(thread_pointer - one_of_ours + ours, thread_pointer - (uintptr_t)&errno) + BELOW,
			   4096);
}

static bool map_thread(struct hp_thread *t, uintptr_t thread_pointer)
{
	if (t->map)
		return true;
	t->tls_size = tls_below(thread_pointer);
	t->map_size = GUARD + STACK + t->tls_size + DESCRIPTOR + 4096;
	/* Make a raw system call, since hooks on mmap might allocate. */
	t->map = (char *)hp_sys(SYS_mmap, 0, t->map_size, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1);
	if (hp_sys_failed((long)t->map))
		t->map = NULL;
	else
		hp_sys(SYS_mprotect, t->map, GUARD, PROT_NONE);
	return t->map;
}

/* Fill in the new thread's TLS and return its thread pointer, which has the same offset in its page as ours, to keep
 * the alignment of all variables. */
static char *make_tls(const struct hp_thread *t, uintptr_t thread_pointer)
{
	char *block = t->map + GUARD + STACK, *there = block + t->tls_size + (thread_pointer & 4095);
	const uint64_t *here = (const uint64_t *)thread_pointer;

	memset(block, 0, (size_t)(t->map + t->map_size - block));
	((uint64_t *)there)[0] = (uint64_t)there; /* read by %fs:0 */
	((uint64_t *)there)[2] = (uint64_t)there; /* pthread_self() */
	((uint64_t *)there)[3] = 1; /* there are several threads */
	((uint64_t *)there)[5] = here[5]; /* the canary of -fstack-protector */
	((uint64_t *)there)[6] = here[6]; /* the guard of setjmp's pointers */
	return there;
}

static bool start_bare(struct start *s)
{
	const unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
				    CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
	uintptr_t thread_pointer = (uintptr_t)__builtin_thread_pointer();
	struct hp_thread *t = s->thread;
	void **stack;
	long tid;

	HP_ASSERT(s->kind->calls_count <= HP_THREAD_CALLS_MAX);
	if (!thread_listed(t) || !map_thread(t, thread_pointer))
		return false;
	wait_gone(t); /* the last thread may still use the memory */
	/* hp_thread_clone() takes these two words from the stack in the new thread: the argument, and the function. */
	stack = (void **)(t->map + GUARD + STACK) - 2;
	stack[0] = s;
	stack[1] = (void *)(uintptr_t)enter_bare;
	tid = hp_thread_clone(flags, stack, &t->tid, &t->tid, make_tls(t, thread_pointer));
	if (tid > 0)
		t->last_tid = (uint32_t)tid;
	return tid > 0;
}

bool hp_thread_alone(void)
{
	/* unshare(CLONE_VM) tests this, because it does nothing if no other thread or process shares the memory, and
	 * fails otherwise. */
	return !on_valgrind() && hp_sys(SYS_unshare, CLONE_VM) == 0;
}

unsigned hp_thread_count_bare(void)
{
	unsigned n = 0;

	for (int i = 0; i < THREADS_MAX; i++) {
		const struct hp_thread *t = atomic_load_explicit(&threads[i], memory_order_relaxed);

		n += t && hp_thread_tid(t);
	}
	return n;
}

#else

bool hp_thread_confine(bool opens_files)
{
	(void)opens_files;
	return false;
}

static bool start_bare(struct start *s)
{
	return start_known(s);
}

bool hp_thread_alone(void)
{
	return false;
}

unsigned hp_thread_count_bare(void)
{
	return 0;
}

#endif

/* ------------------------------------------------------------------ start and end */

/* Whether a known thread could not be had a short while ago. The count never falls below 0, even if other threads do
 * the same. */
static bool is_skipped(struct hp_thread *t)
{
	uint32_t skip = atomic_load_explicit(&t->skip, memory_order_relaxed);

	if (skip)
		atomic_store_explicit(&t->skip, skip - 1, memory_order_relaxed);
	return skip;
}

bool hp_thread_start(struct hp_thread *t, const struct hp_thread_kind *kind, void *arg, int keep_fd)
{
	struct start s = { t, kind, arg, keep_fd };
	uint32_t was, told = 0;
	uint64_t old;

	if (hp_thread_is_bare || hp_process() != HP_PROCESS_OWN)
		return false;
	/* Before the state changes: no system call is made in vain, and no other thread takes it for started. */
	if (kind->known && get_state(t) == OFF && (hp_thread_forbidden(t) || is_skipped(t)))
		return false;
	/* If a handler forked while the state is changed, the child would wait for ever. A bare thread inherits the
	 * mask, and takes not even the C library's own signals. */
	old = hp_signals_block(HP_THREAD_BARE && !kind->known ? UINT64_MAX : HP_SIGNALS);
	while ((was = change_state(t, OFF, STARTING)) != OFF && was != RUNNING && !kind->known)
		hp_futex_wait(&t->state, was, UINT64_MAX);
	if (was == OFF) {
		atomic_store_explicit(&t->told, 0, memory_order_relaxed);
		/* seq_cst: read after the state was written; pairs with hp_thread_forbid(). */
		if (!atomic_load_explicit(&t->forbidden, memory_order_seq_cst) &&
		    (kind->known ? start_known(&s) : start_bare(&s))) {
			/* acquire: pairs with tell_start() */
			while (!kind->known && !(told = atomic_load_explicit(&t->told, memory_order_acquire)))
				hp_futex_wait(&t->told, 0, UINT64_MAX);
			/* A sanitizer's runtime takes locks when a thread begins. If a fork met that moment, they would
			 * stay taken in the child, and no thread could begin there. So give the thread time to pass
			 * it, but not for ever, because this may be such a child. */
			if (HP_SANITIZED && kind->known)
				hp_futex_wait(&t->told, 0, SANITIZER_NS);
			if (told == REFUSED)
				wait_gone(t);
			else
				told = RUNS;
		}
		set_state(t, told == RUNS ? RUNNING : OFF);
	}
	hp_signals_block(old);
	return told == RUNS || was == RUNNING || was == STARTING;
}

void hp_thread_join(struct hp_thread *t)
{
	while (get_state(t) == RUNNING)
		hp_futex_wait(&t->state, RUNNING, UINT64_MAX);
	wait_gone(t);
}

void hp_thread_end(struct hp_thread *t)
{
	uint32_t was;
	uint64_t old;

	if (hp_process() != HP_PROCESS_OWN || hp_thread_tid(t) == (uint32_t)hp_tid())
		return;
	old = hp_signals_block(HP_SIGNALS); /* as in hp_thread_start() */
	for (;;) {
		was = get_state(t);
		/* Do not wait for a change of OFF or RUNNING: it may have come and gone, and nobody wakes then. */
		if (was != OFF && was != RUNNING)
			hp_futex_wait(&t->state, was, UINT64_MAX);
		else if (change_state(t, was, ENDING) == was)
			break;
	}
	if (was == RUNNING)
		hp_thread_wake(t);
	while (was == RUNNING && get_state(t) == ENDING)
		hp_futex_wait(&t->state, ENDING, UINT64_MAX);
	/* A thread that the C library knows may be ending itself, and wait there for a lock of this thread's. */
	if (was == RUNNING || t->map)
		wait_gone(t);
	set_state(t, OFF);
	hp_signals_block(old);
}

void hp_thread_forbid_new(struct hp_thread *t)
{
	/* seq_cst: written before the state is read; pairs with hp_thread_start(). */
	atomic_fetch_add_explicit(&t->forbidden, 1, memory_order_seq_cst);
}

void hp_thread_forbid(struct hp_thread *t)
{
	hp_thread_forbid_new(t);
	/* This may be a signal handler that interrupted the thread while it held the heap's lock, or was about to take
	 * it. Waiting for the end could deadlock, because the other thread may wait for that lock. Letting it run is
	 * harmless, since it has no rights. */
	if (hp_locks_held >> HP_LOCK_RANK_HEAP == 0)
		hp_thread_end(t);
}

void hp_thread_allow(struct hp_thread *t)
{
	/* release: writes made while starting was forbidden are seen with it; pairs with hp_thread_start(). */
	atomic_fetch_sub_explicit(&t->forbidden, 1, memory_order_release);
}

bool hp_thread_runs(const struct hp_thread *t)
{
	return get_state(t) == RUNNING;
}

void hp_thread_child(struct hp_thread *t)
{
	t->last_tid = 0;
	atomic_store_explicit(&t->skip, 0, memory_order_relaxed);
	atomic_store_explicit(&t->state, OFF, memory_order_relaxed);
	atomic_store_explicit(&t->tid, 0, memory_order_relaxed);
	atomic_store_explicit(&t->alarm, 0, memory_order_relaxed);
	atomic_store_explicit(&t->asleep, false, memory_order_relaxed);
	atomic_store_explicit(&t->forbidden, 0, memory_order_relaxed);
}

/* ------------------------------------------------------------------ sleep */

bool hp_thread_sleep(struct hp_thread *t, uint32_t seen, uint64_t ns)
{
	struct timespec limit;
	long r = 0;

	/* After a signal handler, the kernel restarts a wait without a limit, but a wait with a limit fails. */
	ns = HP_MIN(ns, (uint64_t)LONG_NS);
	limit = (struct timespec){ (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
	/* seq_cst: written before the kernel reads the alarm; pairs with hp_thread_wake(). */
	atomic_store_explicit(&t->asleep, true, memory_order_seq_cst);
	if (get_state(t) == RUNNING) /* read after the alarm: hp_thread_end() changes the state first */
		r = hp_sys(SYS_futex, &t->alarm, FUTEX_WAIT_PRIVATE, seen, &limit);
	/* relaxed: a caller that sees the old value only wakes in vain */
	atomic_store_explicit(&t->asleep, false, memory_order_relaxed);
	HP_STAT_COUNT(service_wakeups, 1);
	return r != -EINTR && hp_thread_runs(t);
}

void hp_thread_wake(struct hp_thread *t)
{
	/* seq_cst: pairs with hp_thread_alarm(), which is read before the thread looks for work. */
	atomic_fetch_add_explicit(&t->alarm, 1, memory_order_seq_cst);
	/* seq_cst: read after the alarm was counted; pairs with hp_thread_sleep(). */
	if (atomic_load_explicit(&t->asleep, memory_order_seq_cst))
		hp_futex_wake(&t->alarm);
}
