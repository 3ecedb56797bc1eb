/*
 * What a process changes under the library that it uses, while its other threads go on: the table "What a process changes under us"
 * of docs/ARCHITECTURE.md, as far as a process can do it and go on. Each change is a function in a table of its own name; all are as
 * likely as each other. One thread makes the changes of the process, one after the other; each child of fork makes one, for good.
 *
 * Part of soak.c, whose slots, pins and forks it uses. A change says whether it has come about: what the machine refuses has not.
 */
#include <dlfcn.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "../live/cgroup.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, SYSTEM_CALL_MSEAL = 462 };

/* What a change needs. */
enum {
	IN_CHILD = 1, /* for good */
	PLAIN = 2,    /* no sanitizer, which knows nothing of it or would end the program */
	DROP_IN = 4,  /* the library has to be told, or the C library's malloc is in the way */
	ROOT = 8,
	AT_LAST = 16, /* from then on nothing is cached of other memory, or the heap is smaller */
};

struct change {
	const char *name;
	bool (*run)(struct worker *w);
	int with; /* w->with, then */
	unsigned needs;
};

static unsigned lacking = AT_LAST; /* needs that are not met here, */
static _Atomic bool at_last;	   /* or not before this */
static struct cgroup group; /* with a limit that is never met */
static char *group_home;

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER; /* the process is being changed, by the thread that has it */
static int daemon_says = -1;				       /* the end of a daemon's pipe, in the daemon */

static void fork_once(struct worker *w);

/* ------------------------------------------------------------------ threads and stacks */

static void allocate_some(uint64_t rand)
{
	rand |= 1; /* a state that is not 0 */
	for (int i = 0; i < 4; i++) {
		const size_t size = rand_size(&rand, 1, 4 * MIB);
		char *p = preloaded && i % 2 ? hide(malloc(size)) : hugepin_malloc(size);

		if (!p)
			continue;
		pattern_write(p, size, rand);
		EXPECT_EQ(pattern_check(p, size, rand), -1);
		if (preloaded && i % 2)
			free(p);
		else
			hugepin_free(p);
	}
}

/* Ends in one of three ways. */
static void *live_shortly(void *rand)
{
	allocate_some((uintptr_t)rand | 1);
	if ((uintptr_t)rand % 3 == 0)
		pthread_exit(NULL);
	/* The thread is cancelled here. A cancellation within a call that blocks makes the thread sanitizer blind to its locks. */
	while ((uintptr_t)rand % 3 == 1) {
		pthread_testcancel();
		sched_yield();
	}
	return NULL;
}

static bool thread_comes_and_goes(struct worker *w)
{
	const uint64_t rand = rand_next(&w->rand);
	pthread_t t;

	if (pthread_create(&t, NULL, live_shortly, (void *)(uintptr_t)rand))
		return false;
	if ((uintptr_t)rand % 3 == 1)
		EXPECT_EQ(pthread_cancel(t), 0);
	return EXPECT_EQ(pthread_join(t, NULL), 0);
}

/* Threads on stacks from the heap, which live while others fork. Below the stack is a pattern. */
enum { LODGERS = 4, LODGER_STACK = 256 * 1024, BELOW = 64 * 1024 };
static struct lodger {
	char *stack;
	bool by_malloc;
	uint64_t seed;
	pthread_t thread;
	_Atomic bool leave;
} lodgers[LODGERS];

static void *lodge(void *l_)
{
	struct lodger *l = l_;

	for (uint64_t rand = l->seed; !l->leave; sleep_ms(1 + (long)(rand_next(&rand) % 20)))
		allocate_some(rand);
	return NULL;
}

static void lodger_leaves(struct lodger *l)
{
	if (!l->stack)
		return;
	l->leave = true;
	EXPECT_EQ(pthread_join(l->thread, NULL), 0);
	EXPECT_EQ(pattern_check(l->stack, BELOW, l->seed), -1);
	if (l->by_malloc)
		free(l->stack);
	else
		hugepin_free(l->stack);
	l->stack = NULL;
}

static bool stack_from_the_heap(struct worker *w)
{
	struct lodger *l = &lodgers[rand_next(&w->rand) % LODGERS];
	pthread_attr_t a;

	lodger_leaves(l);
	l->by_malloc = preloaded && rand_next(&w->rand) % 2;
	l->seed = rand_next(&w->rand) | 1;
	l->leave = false;
	l->stack = l->by_malloc ? hide(malloc(LODGER_STACK)) : hugepin_malloc(LODGER_STACK);
	if (!l->stack)
		return false;
	pattern_write(l->stack, BELOW, l->seed);
	pthread_attr_init(&a);
	EXPECT_EQ(pthread_attr_setstack(&a, l->stack + BELOW, LODGER_STACK - BELOW), 0);
	if (pthread_create(&l->thread, &a, lodge, l) == 0)
		return true;
	if (l->by_malloc)
		free(l->stack);
	else
		hugepin_free(l->stack);
	l->stack = NULL;
	return false;
}

static struct worker *on_other_stack; /* who is there */

static void pin_here(int unused)
{
	struct worker *w = on_other_stack;
	char here[4096];

	(void)unused;
	allocate_some(rand_next(&w->rand));
	device_fills(w, here, sizeof here);
}

static void fork_here(void)
{
	pin_here(0);
	fork_once(on_other_stack);
}

/* A coroutine, that pins its own stack and forks. */
static bool fiber(struct worker *w)
{
	ucontext_t here, there;
	char *stack = hugepin_malloc(MIB);

	if (!stack)
		return false;
	on_other_stack = w;
	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = MIB;
	there.uc_link = &here;
	makecontext(&there, fork_here, 0);
	EXPECT_EQ(swapcontext(&here, &there), 0);
	hugepin_free(stack);
	return true;
}

static bool signal_stack(struct worker *w)
{
	struct sigaction action = { .sa_handler = pin_here, .sa_flags = SA_ONSTACK | SA_RESTART };
	stack_t stack = { .ss_sp = hugepin_malloc(MIB), .ss_size = MIB }, before;

	if (!stack.ss_sp)
		return false;
	on_other_stack = w;
	EXPECT_EQ(sigaction(SIGUSR2, &action, NULL), 0);
	EXPECT_EQ(sigaltstack(&stack, &before), 0);
	EXPECT_EQ(raise(SIGUSR2), 0);
	EXPECT_EQ(sigaltstack(&before, NULL), 0);
	hugepin_free(stack.ss_sp);
	return true;
}

static bool move_about(struct worker *unused)
{
	const struct sched_param none = { 0 };
	cpu_set_t before, one;
	bool ok;

	(void)unused;
	if (sched_getaffinity(0, sizeof before, &before))
		return false;
	CPU_ZERO(&one);
	CPU_SET((unsigned)sched_getcpu(), &one);
	ok = !sched_setaffinity(0, sizeof one, &one) && !sched_setscheduler(0, SCHED_BATCH, &none);
	if (ok)
		EXPECT_EQ(sched_setscheduler(0, SCHED_OTHER, &none), 0);
	sched_setaffinity(0, sizeof before, &before);
	return ok;
}

/* ------------------------------------------------------------------ signals */

static bool all_blocked(struct worker *w)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	allocate_some(rand_next(&w->rand));
	return EXPECT_EQ(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
}

static void fork_in_handler(int unused)
{
	const int saved = errno;
	const pid_t pid = _Fork();

	(void)unused;
	if (pid == 0)
		_exit(0);
	if (pid > 0)
		EXPECT_EQ(waitpid(pid, NULL, 0), pid);
	errno = saved;
}

/* To a thread, whatever it is at. */
static bool signal_that_forks(struct worker *w)
{
	struct sigaction action = { .sa_handler = fork_in_handler, .sa_flags = SA_RESTART };

	EXPECT_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	return EXPECT_EQ(pthread_kill(workers[rand_next(&w->rand) % THREADS].thread, SIGUSR1), 0);
}

/* By a process that is not ours, for a moment. */
static bool be_stopped(struct worker *unused)
{
	static const char *const script = "kill -STOP $0; sleep 0.05; kill -CONT $0";
	char number[16];
	char *args[] = { (char *)"sh", (char *)"-c", (char *)script, number, NULL };
	pid_t pid;

	(void)unused;
	snprintf(number, sizeof number, "%d", (int)getpid());
	return !posix_spawn(&pid, "/bin/sh", NULL, NULL, args, environ) && EXPECT_EQ(child_wait(pid, 20), 0);
}

/* ------------------------------------------------------------------ children that are none of fork */

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

/* A process with our memory, and descriptors of its own. It shares the thread pointer too, and so does nothing. */
static bool clone_with_memory(struct worker *w)
{
	static _Alignas(16) char stack[65536];
	const pid_t pid = clone(do_nothing_for_long, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);

	if (pid < 0)
		return false;
	allocate_some(rand_next(&w->rand));
	return EXPECT_EQ(child_wait(pid, 20), 0);
}

/* No handlers run: other threads may have had any lock. The child has its parent's descriptors, and looks at memory. */
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
	return EXPECT_EQ(child_wait(pid, 20), 0);
}

/* ------------------------------------------------------------------ the loader */

static bool open_and_close_library(struct worker *unused)
{
	void *lib = dlopen("libresolv.so.2", RTLD_NOW | RTLD_LOCAL);

	(void)unused;
	return lib && EXPECT_EQ(dlclose(lib), 0);
}

/* Its malloc is its own. */
/* Not often: what a C library keeps free for its malloc stays mapped, a MiB at least, when it is closed. */
enum { SECOND_C_LIBRARIES = 16 };

static bool second_c_library(struct worker *w)
{
	static int opened; /* by the one thread that changes the process */
	void *lib = opened < SECOND_C_LIBRARIES ? dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW | RTLD_LOCAL) : NULL;
	void *(*its_malloc)(size_t) = lib ? (void *(*)(size_t))dlsym(lib, "malloc") : NULL;
	void (*its_free)(void *) = lib ? (void (*)(void *))dlsym(lib, "free") : NULL;

	if (!lib)
		return false;
	opened++;
	if (EXPECT(its_malloc && its_free)) {
		const size_t size = 1 + rand_next(&w->rand) % MIB;
		char *p = its_malloc(size);

		if (p) {
			pattern_write(p, size, w->rand);
			allocate_some(w->rand);
			EXPECT_EQ(pattern_check(p, size, w->rand), -1);
		}
		its_free(p);
	}
	return EXPECT_EQ(dlclose(lib), 0);
}

/* ------------------------------------------------------------------ limits, rights, room */

/* For a moment, in which threads come, too. told: by the C library's function, which libhugepin-malloc.so sees. */
static bool limit_lowered(struct worker *w, int which, rlim_t to, bool told)
{
	struct rlimit before, limit;

	if (getrlimit((unsigned)which, &before))
		return false;
	limit = (struct rlimit){ before.rlim_max < to ? before.rlim_max : to, before.rlim_max };
	if ((told ? setrlimit((unsigned)which, &limit) : (int)syscall(SYS_prlimit64, 0, which, &limit, NULL)) != 0)
		return false;
	for (int i = 0; i < 4; i++)
		thread_comes_and_goes(w);
	sleep_ms((long)(rand_next(&w->rand) % 5));
	return EXPECT_EQ(syscall(SYS_prlimit64, 0, which, &before, NULL), 0);
}

/* To what there is, or somewhat more. The library lets reserved addresses go for good, if it is told. */
static bool less_addresses(struct worker *w)
{
	return limit_lowered(w, RLIMIT_AS, (rlim_t)(status_kib("VmSize:") + (long)(rand_next(&w->rand) % 65536)) * KIB, w->with);
}

static bool less_data(struct worker *w)
{
	return limit_lowered(w, RLIMIT_DATA, (rlim_t)(status_kib("VmData:") + (long)(rand_next(&w->rand) % 65536)) * KIB, true);
}

static bool limit_is_little(struct worker *w)
{
	return limit_lowered(w, w->with, rand_next(&w->rand) % 64, true);
}

static bool be_another_user(struct worker *w)
{
	if (seteuid(65534))
		return false;
	allocate_some(rand_next(&w->rand));
	return EXPECT_EQ(seteuid(0), 0) && EXPECT_EQ(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
}

static bool group_enter(const char *path)
{
	char procs[600], number[16];

	snprintf(procs, sizeof procs, "%s/cgroup.procs", path);
	snprintf(number, sizeof number, "%d", (int)getpid());
	return file_write(procs, number);
}

static bool be_in_group(struct worker *w)
{
	if (!group_home || !group_enter(group.path))
		return false;
	allocate_some(rand_next(&w->rand));
	return EXPECT(group_enter(group_home));
}

static bool thp_off_or_on(struct worker *w)
{
	return prctl(PR_SET_THP_DISABLE, rand_next(&w->rand) % 4 == 0, 0, 0, 0) == 0;
}

static bool lock_everything(struct worker *w)
{
	if (mlockall(w->with))
		return false;
	allocate_some(rand_next(&w->rand));
	return EXPECT_EQ(munlockall(), 0);
}

/* ------------------------------------------------------------------ descriptors */

/* The library's have high numbers, ours low ones. */
enum { HIGH = 512 };

static bool close_high_descriptors(struct worker *w)
{
	bool any = false;

	for (int fd = HIGH; fd < 1024; fd++) {
		if (fcntl(fd, F_GETFD) < 0)
			continue;
		any = true;
		if (w->with)
			EXPECT_EQ(dup2(0, fd), fd);
	}
	return any && (w->with || syscall(SYS_close_range, HIGH, ~0u, 0) == 0);
}

/* ------------------------------------------------------------------ memory of the program's own */

enum { AREA = 1 << 20 };

static bool mapped_over(struct worker *w)
{
	char *p = foreign_map(AREA);
	const size_t at = rand_next(&w->rand) % (AREA / 4096) * 4096;

	if (!p)
		return false;
	device_fills(w, p + at, 4096);
	if (mmap(p + at, AREA - at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + at)
		device_fills(w, p + at, 4096);
	return EXPECT_EQ(munmap(p, AREA), 0);
}

/* Onto other memory that is pinned. */
static bool moved_over(struct worker *w)
{
	char *p = foreign_map(AREA), *q = foreign_map(AREA);
	const uint64_t seed = rand_next(&w->rand);
	bool moved = false;

	if (p && q) {
		device_fills(w, q, IO_MAX);
		device_fills(w, p, IO_MAX);
		pattern_write(p, AREA, seed);
		/* Mappings that have merged with others, some of which are watched, are not moved. */
		moved = mremap(p, AREA, AREA, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q;
		if (moved) {
			EXPECT_EQ(pattern_check(q, AREA, seed), -1);
			device_fills(w, q, IO_MAX);
		}
	}
	if (p && !moved)
		munmap(p, AREA);
	if (q)
		EXPECT_EQ(munmap(q, AREA), 0);
	return moved;
}

static bool break_moved(struct worker *w)
{
	char *p = sbrk(AREA + 4096);

	if (p == (void *)-1)
		return false;
	char *page = p + (-(uintptr_t)p & 4095);

	device_fills(w, page, IO_MAX);
	if (EXPECT(sbrk(-AREA) != (void *)-1)) {
		if (sbrk(AREA) != (void *)-1) {
			device_fills(w, page, IO_MAX);
			sbrk(-AREA);
		}
	}
	return EXPECT(sbrk(-4096) != (void *)-1);
}

static bool shared_segment(struct worker *w)
{
	int id = shmget(IPC_PRIVATE, AREA, 0600);
	char *p = id < 0 ? (void *)-1 : shmat(id, NULL, 0);

	if (p != (void *)-1) {
		device_fills(w, p, IO_MAX);
		if (shmat(id, p, SHM_REMAP) == p)
			device_fills(w, p, IO_MAX);
		EXPECT_EQ(shmdt(p), 0);
	}
	if (id >= 0)
		shmctl(id, IPC_RMID, NULL);
	return p != (void *)-1;
}

/* w->with: 0, other pages of the file; 1, the file cut off and made longer again; 2, a hole in it. */
static bool file_changed(struct worker *w)
{
	const int fd = memfd_create("changed", MFD_CLOEXEC);
	char *p = fd >= 0 && !ftruncate(fd, AREA) ? mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
	bool ok = p != MAP_FAILED;

	if (ok) {
		device_fills(w, p, IO_MAX);
		ok = w->with == 0 ? syscall(SYS_remap_file_pages, p, IO_MAX, 0, 8, 0) == 0 :
		     w->with == 1 ? ftruncate(fd, 0) == 0 && ftruncate(fd, AREA) == 0 :
				   fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, AREA) == 0;
		device_fills(w, p, IO_MAX);
		EXPECT_EQ(munmap(p, AREA), 0);
	}
	if (fd >= 0)
		close(fd);
	return ok;
}

/* The program watches its memory itself. */
static bool own_userfaultfd(struct worker *w)
{
	const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = { .api = UFFD_API };
	char *p = foreign_map(AREA);
	struct uffdio_register r = { .range = { (uintptr_t)p, AREA }, .mode = UFFDIO_REGISTER_MODE_WP };
	const bool ok = fd >= 0 && p && !ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &r);

	if (ok) {
		device_fills(w, p, IO_MAX);
		if (madvise(p, AREA, MADV_DONTNEED) == 0)
			device_fills(w, p, IO_MAX);
		EXPECT_EQ(ioctl(fd, UFFDIO_UNREGISTER, &r.range), 0);
		device_fills(w, p, IO_MAX);
	}
	if (p)
		EXPECT_EQ(munmap(p, AREA), 0);
	if (fd >= 0)
		close(fd);
	return ok;
}

/* ------------------------------------------------------------------ memory that slots have */

/* A slot with memory of some pages, locked; NULL: none was free. [*ret_at, + *ret_len) are whole pages within. */
static struct slot *slot_of_pages(struct worker *w, size_t *ret_at, size_t *ret_len)
{
	for (int tries = 0; tries < SLOTS; tries++) {
		struct slot *s = &slots[rand_next(&w->rand) % SLOTS];
		size_t first, pages;

		if (pthread_mutex_trylock(&s->lock))
			continue;
		first = -(uintptr_t)s->p & 4095;
		pages = s->p && s->size > first ? (s->size - first) / 4096 : 0;
		if (pages && !s->hidden_len) {
			const size_t skip = rand_next(&w->rand) % pages;

			*ret_at = first + skip * 4096;
			*ret_len = (1 + rand_next(&w->rand) % (pages - skip)) * 4096;
			return s;
		}
		pthread_mutex_unlock(&s->lock);
	}
	return NULL;
}

static bool slot_done(struct slot *s, const char *when, bool ok)
{
	slot_check(s, when);
	pthread_mutex_unlock(&s->lock);
	return ok;
}

/* Each kind that leaves the contents alone; what stays said is taken back. */
static bool advised(struct worker *w)
{
	enum { OF_FORK = 3 }; /* the first; without the drop-in a fork that is under way would be undone */
	static const int kinds[] = {
		MADV_DONTFORK,	MADV_WIPEONFORK, MADV_DONTDUMP,	MADV_NORMAL,	MADV_RANDOM,	    MADV_SEQUENTIAL,	 MADV_WILLNEED,
		MADV_HUGEPAGE,	MADV_NOHUGEPAGE, MADV_MERGEABLE, MADV_COLD,	MADV_PAGEOUT,	    MADV_POPULATE_READ, MADV_POPULATE_WRITE,
		25 /* MADV_COLLAPSE */,
	};
	static const int back[] = { MADV_DOFORK, MADV_KEEPONFORK, MADV_DODUMP, MADV_NORMAL, MADV_UNMERGEABLE };
	const size_t first = preloaded ? 0 : OF_FORK;
	const int kind = kinds[first + rand_next(&w->rand) % (sizeof kinds / sizeof *kinds - first)];
	size_t at, len;
	struct slot *s = slot_of_pages(w, &at, &len);
	bool ok;

	if (!s)
		return false;
	ok = madvise(s->p + at, len, kind) == 0;
	slot_check(s, "after advice");
	if (kind == MADV_NOHUGEPAGE)
		madvise(s->p + at, len, MADV_HUGEPAGE);
	for (size_t i = first; i < sizeof back / sizeof *back; i++)
		madvise(s->p + at, len, back[i]);
	return slot_done(s, "after advice that was taken back", ok);
}

static bool locked(struct worker *w)
{
	size_t at, len;
	struct slot *s = slot_of_pages(w, &at, &len);
	bool ok;

	if (!s)
		return false;
	ok = mlock2(s->p + at, len, rand_next(&w->rand) % 2 ? MLOCK_ONFAULT : 0) == 0;
	/* Under the drop-in it goes with the buffer. */
	if (!preloaded || rand_next(&w->rand) % 2)
		munlock(s->p + at, len);
	return slot_done(s, "after it was locked", ok);
}

static bool protected(struct worker *w)
{
	size_t at, len;
	struct slot *s = slot_of_pages(w, &at, &len);
	bool ok;

	if (!s)
		return false;
	ok = mprotect(s->p + at, len, w->with) == 0;
	if (ok)
		sleep_ms((long)(rand_next(&w->rand) % 5));
	/* A part may have been done. */
	if (mprotect(s->p + at, len, PROT_READ | PROT_WRITE) && ok)
		T_FAIL("memory that was protected is so for ever: %s", strerror(errno));
	return slot_done(s, "after it was protected", ok);
}

static bool guarded(struct worker *w)
{
	size_t at, len;
	struct slot *s = slot_of_pages(w, &at, &len);
	bool ok;

	if (!s)
		return false;
	slot_unpin(s);
	ok = madvise(s->p + at, len, GUARD_INSTALL) == 0;
	if (ok)
		sleep_ms((long)(rand_next(&w->rand) % 5));
	/* Of what is locked in part the part before is guarded. Of pages of the pool nothing is. */
	if (madvise(s->p + at, len, GUARD_REMOVE) == 0 && ok)
		EXPECT_EQ(zero_check(s->p + at, len), -1);
	slot_write(s);
	return slot_done(s, "after it was guarded", ok);
}

/* ------------------------------------------------------------------ of a child, for good */

/* Who waits for a child that hangs ends that child alone. */
static void end_in_time(void)
{
	signal(SIGALRM, SIG_DFL);
	alarm(100);
}

/* Go on as a child of this process, whose end is this one's. */
static bool go_on_as(pid_t child)
{
	if (child == 0)
		end_in_time();
	if (child > 0)
		_exit(child_wait(child, 20) & 255);
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

/* daemon(3): who waits for it is told by a pipe, whose end closes when the daemon ends. */
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
	_exit(child_wait(pid, 20) || read(ends[0], &failed, 1) != 1 || failed);
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
	/* A process of one thread, as which libhugepin-malloc.so has each child begin, may enter a user namespace where anybody may. */
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

/* Children of whom have another number, the first, or another time. */
static bool in_namespace_of_children(struct worker *w)
{
	const char *const offset = rand_next(&w->rand) % 2 ? "monotonic 100000000 0\n" : "monotonic -1000 0\n";

	if (syscall(SYS_unshare, w->with) || (w->with == CLONE_NEWTIME && !file_write("/proc/self/timens_offsets", offset)))
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

/* No file may be opened from then on. */
static bool give_files_up(struct worker *unused)
{
	const struct landlock_ruleset_attr all = { .handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
									LANDLOCK_ACCESS_FS_READ_DIR };
	const int fd = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);

	(void)unused;
	return fd >= 0 && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !syscall(SYS_landlock_restrict_self, fd, 0);
}

/* What the C library's malloc needs, and what a child of ours does; for all else, w->with. */
static bool confine(struct worker *w)
{
	static const int calls[] = { SYS_mmap,	SYS_munmap, SYS_mremap,	    SYS_madvise, SYS_mprotect, SYS_brk,		SYS_futex,
				     SYS_write, SYS_exit,   SYS_exit_group, SYS_pipe2,	 SYS_close,    SYS_getpid, SYS_rt_sigreturn };
	enum { COUNT = sizeof calls / sizeof *calls };
	struct sock_filter f[2 * COUNT + 2];
	struct sock_fprog program = { .filter = f };

	f[program.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < COUNT; i++) {
		f[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i], 0, 1);
		f[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	f[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, (uint32_t)w->with);
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
	const struct rlimit limit = { (rlim_t)(status_kib("VmSize:") / (1 + (long)(rand_next(&w->rand) % 4))) * KIB, RLIM_INFINITY };

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

/* Under no limit that another thread of the parent had lowered for the moment of the fork: a shell needs memory and files. */
static bool run_program(struct worker *unused)
{
	static const int lowered[] = { RLIMIT_AS, RLIMIT_DATA, RLIMIT_NOFILE, RLIMIT_NPROC };
	struct rlimit limit;

	(void)unused;
	for (size_t i = 0; i < sizeof lowered / sizeof *lowered; i++)
		if (!getrlimit((unsigned)lowered[i], &limit)) {
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

/* ------------------------------------------------------------------ all of them */

static const struct change changes[] = {
	{ "a thread comes and goes", thread_comes_and_goes, 0, 0 },
	{ "a thread on a stack from the heap", stack_from_the_heap, 0, PLAIN },
	{ "a fiber that forks", fiber, 0, PLAIN },
	{ "a stack for signals", signal_stack, 0, PLAIN },
	{ "affinity and scheduling class", move_about, 0, 0 },
	{ "all signals blocked", all_blocked, 0, 0 },
	{ "a signal whose handler forks", signal_that_forks, 0, PLAIN },
	{ "SIGSTOP", be_stopped, 0, 0 },
	{ "vfork", vfork_and_allocate, 0, PLAIN },
	{ "clone with VM", clone_with_memory, 0, PLAIN },
	{ "clone without VM", child_without_handlers, true, PLAIN },
	{ "_Fork", child_without_handlers, false, PLAIN },
	{ "dlopen", open_and_close_library, 0, 0 },
	{ "dlmopen", second_c_library, 0, PLAIN },
	{ "RLIMIT_AS from outside", less_addresses, false, PLAIN },
	{ "RLIMIT_AS", less_addresses, true, PLAIN | AT_LAST },
	{ "RLIMIT_DATA", less_data, 0, PLAIN },
	{ "RLIMIT_NOFILE", limit_is_little, RLIMIT_NOFILE, 0 },
	{ "RLIMIT_NPROC", limit_is_little, RLIMIT_NPROC, 0 },
	{ "RLIMIT_MEMLOCK", limit_is_little, RLIMIT_MEMLOCK, 0 },
	{ "seteuid", be_another_user, 0, ROOT | PLAIN },
	{ "a memory cgroup", be_in_group, 0, ROOT },
	{ "PR_SET_THP_DISABLE", thp_off_or_on, 0, 0 },
	{ "mlockall, current", lock_everything, MCL_CURRENT, PLAIN },
	{ "mlockall, current on fault", lock_everything, MCL_CURRENT | MCL_ONFAULT, PLAIN },
	{ "mlockall, future", lock_everything, MCL_FUTURE, PLAIN },
	{ "descriptors replaced", close_high_descriptors, true, PLAIN | AT_LAST },
	{ "descriptors closed", close_high_descriptors, false, PLAIN | AT_LAST },
	{ "MAP_FIXED", mapped_over, 0, 0 },
	{ "mremap", moved_over, 0, PLAIN },
	{ "brk", break_moved, 0, DROP_IN },
	{ "shmat, shmdt", shared_segment, 0, 0 },
	{ "remap_file_pages", file_changed, 0, 0 },
	{ "ftruncate", file_changed, 1, 0 },
	{ "a hole in a file", file_changed, 2, 0 },
	{ "userfaultfd", own_userfaultfd, 0, 0 },
	{ "madvise", advised, 0, 0 },
	{ "mlock, munlock", locked, 0, PLAIN },
	{ "mprotect, not to be written", protected, PROT_READ, 0 },
	{ "mprotect, no access", protected, PROT_NONE, DROP_IN },
	{ "guards", guarded, 0, DROP_IN },

	{ "child: of another fork", by_fork, 0, IN_CHILD },
	{ "child: of _Fork", by_fork_without_handlers, 0, IN_CHILD },
	{ "child: of clone", by_clone, 0, IN_CHILD },
	{ "child: daemon", by_daemon, 0, IN_CHILD },
	{ "child: vfork", vfork_and_allocate, 0, IN_CHILD },
	{ "child: a program run", run_program, 0, IN_CHILD },
	{ "child: close", close_everything, false, IN_CHILD },
	{ "child: dup2", close_everything, true, IN_CHILD },
	{ "child: a user namespace", enter_namespaces, CLONE_NEWUSER | CLONE_NEWNS, IN_CHILD },
	{ "child: setns", set_namespace, 0, IN_CHILD | ROOT },
	{ "child: a pid namespace", in_namespace_of_children, CLONE_NEWPID, IN_CHILD | ROOT },
	{ "child: a time namespace", in_namespace_of_children, CLONE_NEWTIME, IN_CHILD | ROOT },
	{ "child: setresuid, no_new_privs", give_user_up, 0, IN_CHILD | ROOT },
	{ "child: capset", give_capabilities_up, 0, IN_CHILD },
	{ "child: Landlock", give_files_up, 0, IN_CHILD },
	{ "child: seccomp that kills", confine, (int)SECCOMP_RET_KILL_PROCESS, IN_CHILD | DROP_IN },
	{ "child: seccomp that refuses", confine, SECCOMP_RET_ERRNO | EPERM, IN_CHILD },
	{ "child: all limits", have_no_limit_left, 0, IN_CHILD },
	{ "child: RLIMIT_AS", have_few_addresses, 0, IN_CHILD },
	{ "child: signals blocked, no THP", block_signals, 0, IN_CHILD },
	{ "child: brk", raise_break, 0, IN_CHILD },
	{ "child: mseal", seal, 0, IN_CHILD },
	{ "child: a memory cgroup", stay_in_group, 0, IN_CHILD | ROOT },
	{ "child: mlockall", keep_everything_locked, MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT, IN_CHILD },
	{ "child: affinity and scheduling class", move_about, 0, IN_CHILD },
};
enum { CHANGES = sizeof changes / sizeof *changes };

static _Atomic unsigned long *happened; /* of each; children count there, too */

static bool may(const struct change *c)
{
	return !(c->needs & IN_CHILD) == !in_child && !(c->needs & lacking & (at_last ? ~(unsigned)AT_LAST : ~0u));
}

/* Those of the last moments have no others. */
static bool comes_first(const struct change *c)
{
	return at_last && c->needs & AT_LAST && !happened[c - changes];
}

static void change(struct worker *w)
{
	const struct change *c = changes;

	while (c < changes + CHANGES && !(may(c) && comes_first(c)))
		c++;
	while (c == changes + CHANGES || !may(c))
		c = &changes[rand_next(&w->rand) % CHANGES];
	w->doing = c->name;
	w->with = c->with;
	if (c->run(w))
		happened[c - changes]++;
}

/* Before there are threads. */
static void changes_begin(void)
{
	char procs[600], text[65536];
	pthread_t t;

	/* The C library loads what it needs for this at the first time, and aborts if it has no memory then. */
	EXPECT(!pthread_create(&t, NULL, live_shortly, NULL) && !pthread_join(t, NULL));
	happened = mmap(NULL, CHANGES * sizeof *happened, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	lacking |= (SANITIZED ? PLAIN | IN_CHILD : 0) | (preloaded ? 0 : DROP_IN) | (geteuid() ? ROOT : 0);
	if (!cgroup_make(&group, "memory", "memory.limit_in_bytes", "memory.max", "64G"))
		return;
	/* Made below our own group, or not at all. */
	group_home = strdup(group.path);
	*strrchr(group_home, '/') = 0;
	snprintf(procs, sizeof procs, "%s/cgroup.procs", group_home);
	snprintf(text + 60000, 100, "\n%d\n", (int)getpid());
	text[0] = '\n';
	if (file_read(procs, text + 1, 60000 - 1) <= 0 || !strstr(text, text + 60000)) {
		cgroup_remove(&group);
		free(group_home);
		group_home = NULL;
	}
}

static void changes_end(void)
{
	if (group_home)
		cgroup_remove(&group);
	free(group_home);
	for (int i = 0; i < CHANGES; i++)
		if (!(changes[i].needs & lacking & ~(unsigned)AT_LAST))
			t_print("# %6lu %s%s\n", happened[i], changes[i].name,
				happened[i] || option.seconds < 60 ? "" : ": never, in a minute or more");
}
