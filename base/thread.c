/*
 * The flags of clone(2) are those of pthread_create, since valgrind and user-mode emulators take no others; what is shared by
 * them is made the thread's own from within. Its memory, upwards: a page without access, the stack, thread-local variables, and
 * where the thread pointer points, room for the C library's descriptor of a thread, which is zero but for what compilers and
 * inline functions read (x86-64 ABI: TLS variant II, "Thread-Local Storage").
 */
#include "base/thread.h"

#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"

#if HP_THREAD_BARE
#include <elf.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <string.h>

#include "base/lock.h"
#else
#include <pthread.h>
#endif

static pid_t process; /* 0: not known yet */

void hp_thread_process(void)
{
	process = getpid();
}

bool hp_thread_process_same(void)
{
	return process == getpid();
}

/* Straight to the kernel: the program, or the drop-in for it, may have a syscall() of its own. */
#ifdef __x86_64__
static long raw(long n, long a, long b, long c, long d, long e)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	long r;

	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
	return r;
}
#else
#define raw(n, a, b, c, d, e) syscall(n, a, b, c, d, e)
#endif

bool hp_thread_drop_rights(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { { 0 } };

	return raw(SYS_capset, (long)&head, (long)none, 0, 0, 0) == 0 &&
	       raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

#if HP_THREAD_BARE

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum { GUARD = 4096, STACK = 65536, DESCRIPTOR = 8192, BELOW = 4096 };
enum { STARTING, RUNS, REFUSED };

/* clone(2), whose child calls what lies on its stack: the argument, then the function. Debuggers learn that nobody called it. */
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

/* Lies on the starting thread's stack: it waits until the new one has told how it goes. */
struct start {
	struct hp_thread *thread;
	const struct hp_thread_kind *kind;
	void *arg;
	int keep_fd;
};

static bool own_files(int keep_fd)
{
	if (keep_fd < 0)
		return raw(SYS_close_range, 0, ~0U, CLOSE_RANGE_UNSHARE, 0, 0) == 0;
	return raw(SYS_close_range, keep_fd + 1, ~0U, CLOSE_RANGE_UNSHARE, 0, 0) == 0 &&
	       (keep_fd == 0 || raw(SYS_close_range, 0, keep_fd - 1, 0, 0, 0) == 0);
}

/* The starting thread may be bound to a processor that it never leaves, or run before all others. What is refused here costs
 * time, or a directory that stays in use, but no more. */
static void own_place(const char *name)
{
	char cpus[1024];
	struct sched_param normal = { 0 };

	memset(cpus, 0xff, sizeof cpus);
	raw(SYS_prctl, PR_SET_NAME, (long)name, 0, 0, 0);
	raw(SYS_sched_setscheduler, 0, SCHED_OTHER, (long)&normal, 0, 0);
	raw(SYS_setpriority, PRIO_PROCESS, 0, 0, 0, 0);
	raw(SYS_sched_setaffinity, 0, sizeof cpus, (long)cpus, 0, 0);
	if (raw(SYS_unshare, CLONE_FS, 0, 0, 0, 0) == 0)
		raw(SYS_chdir, (long)"/", 0, 0, 0, 0);
}

/* Valgrind makes system calls of its own on every thread, and would be stopped by a filter. It answers where processors turn a
 * register round to where it was (its manual, "The Client Request mechanism"). */
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

/* Let through those calls, and others fail with EPERM. Nothing is made executable. */
static bool filter(const struct hp_thread_kind *kind)
{
	struct sock_filter f[2 * HP_THREAD_CALLS_MAX + 16];
	struct sock_fprog program = { .filter = f };
	unsigned n = 0;

#define LOAD(what) \
	((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, what)))
#define IF(op, value, yes, no) ((struct sock_filter)BPF_JUMP(BPF_JMP | (op) | BPF_K, (uint32_t)(value), (yes), (no)))
#define END(what) ((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, (what)))
	f[n++] = LOAD(arch);
	f[n++] = IF(BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0);
	f[n++] = END(SECCOMP_RET_ERRNO | EPERM);
	f[n++] = LOAD(nr);
	/* The third argument of both is the protection. */
	f[n++] = IF(BPF_JEQ, SYS_mmap, 1, 0);
	f[n++] = IF(BPF_JEQ, SYS_mprotect, 0, 4);
	f[n++] = LOAD(args[2]);
	f[n++] = IF(BPF_JSET, PROT_EXEC, 0, 1);
	f[n++] = END(SECCOMP_RET_ERRNO | EPERM);
	f[n++] = LOAD(nr);
	for (unsigned i = 0; i < kind->calls_count + 2; i++) {
		uint32_t call = i < kind->calls_count ? kind->calls[i] : i == kind->calls_count ? SYS_exit : SYS_rt_sigreturn;

		f[n++] = IF(BPF_JEQ, call, 0, 1);
		f[n++] = END(SECCOMP_RET_ALLOW);
	}
	f[n++] = END(SECCOMP_RET_ERRNO | EPERM);
#undef LOAD
#undef IF
#undef END
	program.len = (unsigned short)n;
	return raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program, 0, 0) == 0;
}

static _Noreturn void enter(struct start *s)
{
	struct hp_thread *t = s->thread;
	const struct hp_thread_kind *kind = s->kind;
	void *arg = s->arg;
	bool ok = own_files(s->keep_fd);

	own_place(kind->name);
	ok = ok && hp_thread_drop_rights() && (on_valgrind() || filter(kind));
	/* release: pairs with hp_thread_start(); *s is gone after this. */
	atomic_store_explicit(&t->told, ok ? RUNS : REFUSED, memory_order_release);
	hp_futex_wake(&t->told);
	if (ok)
		kind->run(arg);
	for (;;)
		raw(SYS_exit, 0, 0, 0, 0, 0);
}

extern const Elf64_Ehdr hp_ehdr __asm__("__ehdr_start") __attribute__((visibility("hidden"), weak));

/* Bytes below the thread pointer that hold our variables and errno. The thread-local variables of the file that this is linked
 * into lie together; where among them ours are is not known. */
static size_t tls_below(uintptr_t thread_pointer)
{
	const Elf64_Phdr *p;
	uintptr_t one_of_ours = (uintptr_t)&hp_locks_held;
	size_t ours = 0;

	__asm__("" : "+r"(one_of_ours)); /* linkers know how to find a variable of a program's, but not how to subtract it */

	if (&hp_ehdr) {
		p = (const Elf64_Phdr *)((const char *)&hp_ehdr + hp_ehdr.e_phoff);
		for (int i = 0; i < hp_ehdr.e_phnum; i++)
			if (p[i].p_type == PT_TLS)
				ours = p[i].p_memsz;
	}
	return hp_round_up(HP_MAX(thread_pointer - one_of_ours + ours, thread_pointer - (uintptr_t)&errno) + BELOW, 4096);
}

static bool map(struct hp_thread *t, uintptr_t thread_pointer)
{
	if (t->map)
		return true;
	t->tls_size = tls_below(thread_pointer);
	t->map_size = GUARD + STACK + t->tls_size + DESCRIPTOR + 4096;
	t->map = hp_meta_map(t->map_size);
	if (!t->map)
		return false;
	raw(SYS_mprotect, (long)t->map, GUARD, PROT_NONE, 0, 0);
	return true;
}

/* The new thread's pointer: as ours within its page, so that what is aligned here is aligned there. */
static char *make_tls(const struct hp_thread *t, uintptr_t thread_pointer)
{
	char *block = t->map + GUARD + STACK, *there = block + t->tls_size + (thread_pointer & 4095);
	const uint64_t *here = (const uint64_t *)thread_pointer;

	memset(block, 0, (size_t)(t->map + t->map_size - block));
	((uint64_t *)there)[0] = (uint64_t)there; /* what %fs:0 reads */
	((uint64_t *)there)[2] = (uint64_t)there; /* pthread_self() */
	((uint64_t *)there)[3] = 1; /* there are several threads */
	((uint64_t *)there)[5] = here[5]; /* of -fstack-protector */
	((uint64_t *)there)[6] = here[6]; /* of setjmp's pointers */
	return there;
}

bool hp_thread_start(struct hp_thread *t, const struct hp_thread_kind *kind, void *arg, int keep_fd)
{
	const unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
				    CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
	uintptr_t thread_pointer = (uintptr_t)__builtin_thread_pointer();
	struct start s = { t, kind, arg, keep_fd };
	uint64_t all = UINT64_MAX, old; /* the C library's own signals as well */
	void **stack;
	long tid;

	HP_ASSERT(!t->tid && kind->calls_count <= HP_THREAD_CALLS_MAX);
	if (!hp_thread_process_same() || !map(t, thread_pointer))
		return false;
	stack = (void **)(t->map + GUARD + STACK) - 2;
	stack[0] = &s;
	stack[1] = (void *)(uintptr_t)enter;
	t->told = STARTING;
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&old, sizeof all, 0);
	tid = hp_thread_clone(flags, stack, &t->tid, &t->tid, make_tls(t, thread_pointer));
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&old, 0, sizeof old, 0);
	if (tid < 0)
		return false;
	t->last_tid = (uint32_t)tid;
	/* acquire: pairs with enter() */
	while (atomic_load_explicit(&t->told, memory_order_acquire) == STARTING)
		hp_futex_wait(&t->told, STARTING, UINT64_MAX);
	if (t->told == RUNS)
		return true;
	hp_thread_join(t);
	return false;
}

void hp_thread_join(struct hp_thread *t)
{
	uint32_t tid;

	/* The kernel's wake is for waiters of any process. */
	while ((tid = t->tid) != 0)
		raw(SYS_futex, (long)&t->tid, FUTEX_WAIT, tid, 0, 0);
	/* It is still counted for a while: until then unshare(2) takes the process for one of two threads. */
	while (t->last_tid && raw(SYS_tgkill, getpid(), t->last_tid, 0, 0, 0) == 0)
		raw(SYS_sched_yield, 0, 0, 0, 0, 0);
	t->last_tid = 0;
}

#else

struct start {
	struct hp_thread *thread;
	const struct hp_thread_kind *kind;
	void *arg;
};

static void *enter(void *start)
{
	struct start s = *(struct start *)start;

	raw(SYS_prctl, PR_SET_NAME, (long)s.kind->name, 0, 0, 0);
	atomic_store_explicit(&s.thread->told, 1, memory_order_release); /* pairs with hp_thread_start(): *start is gone */
	hp_futex_wake(&s.thread->told);
	s.kind->run(s.arg);
	s.thread->tid = 0;
	hp_futex_wake(&s.thread->tid);
	return NULL;
}

bool hp_thread_start(struct hp_thread *t, const struct hp_thread_kind *kind, void *arg, int keep_fd)
{
	struct start s = { t, kind, arg };
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t thread;
	int saved = errno;
	bool ok = false;

	(void)keep_fd;
	if (!hp_thread_process_same())
		return false;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	t->told = 0;
	t->tid = 1;
	if (pthread_attr_init(&attr) == 0) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		ok = pthread_create(&thread, &attr, enter, &s) == 0;
		pthread_attr_destroy(&attr);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	/* acquire: pairs with enter() */
	while (ok && !atomic_load_explicit(&t->told, memory_order_acquire))
		hp_futex_wait(&t->told, 0, UINT64_MAX);
	if (!ok)
		t->tid = 0;
	errno = saved;
	return ok;
}

void hp_thread_join(struct hp_thread *t)
{
	uint32_t tid;

	while ((tid = t->tid) != 0)
		hp_futex_wait(&t->tid, tid, UINT64_MAX);
}

#endif

void hp_thread_child(struct hp_thread *t)
{
	t->tid = t->told = 0;
	t->last_tid = 0;
}
