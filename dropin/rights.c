/*
 * Part of libhugepin-malloc.so: interposes the calls by which a program gives up rights or changes namespaces,
 * including syscall().
 *
 * Our threads are ended before each such call. So a call that the kernel applies to all threads, or refuses if there
 * are several, finds no thread of ours. And after a call that changes only the calling thread, such as a raw setresuid,
 * no thread of ours keeps more rights. Calls made without the C library are not seen.
 *
 * The thread that ticks may stay if user or groups change and the program can change back (alloc/confine.c). This
 * matters because a file server changes them for each request, and a thread's end and start take hundreds of
 * microseconds.
 */
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/small.h"
#include "base/base.h"
#include "base/seal.h"
#include "base/sys.h"
#include "dropin/dropin.h"
#include "dropin/jemalloc.h"

static HP_SEALED(struct {
	bool found;
	int (*unshare)(int), (*setns)(int, int), (*prctl)(int, ...);
	long (*syscall)(long, ...);
	int (*setuid)(uid_t), (*seteuid)(uid_t), (*setgid)(gid_t), (*setegid)(gid_t);
	int (*setreuid)(uid_t, uid_t), (*setregid)(gid_t, gid_t);
	int (*setresuid)(uid_t, uid_t, uid_t), (*setresgid)(gid_t, gid_t, gid_t);
	int (*setgroups)(size_t, const gid_t *), (*initgroups)(const char *, gid_t);
}) next_calls;

void hp_rights_find(void)
{
	if (next_calls.is.found)
		return;
#define FIND(name) (*(void **)&next_calls.is.name = dlsym(RTLD_NEXT, #name))
	FIND(unshare), FIND(setns), FIND(prctl), FIND(syscall);
	FIND(setuid), FIND(seteuid), FIND(setgid), FIND(setegid);
	FIND(setreuid), FIND(setregid), FIND(setresuid), FIND(setresgid);
	FIND(setgroups), FIND(initgroups);
#undef FIND
	next_calls.is.found = true;
	hp_seal(&next_calls, sizeof next_calls);
}

#define INTERPOSE(name, begin, end, parameters, ...)                                                                   \
	EXPORT int name parameters                                                                                     \
	{                                                                                                              \
		int r;                                                                                                 \
                                                                                                                       \
		if (!next_calls.is.found) /* in the constructor of another library */                                  \
			hp_rights_find();                                                                              \
		begin();                                                                                               \
		r = next_calls.is.name(__VA_ARGS__);                                                                   \
		end();                                                                                                 \
		return r;                                                                                              \
	}

INTERPOSE(unshare, hugepin_threads_end_, hugepin_threads_allow_, (int flags), flags)
INTERPOSE(setns, hugepin_threads_end_, hugepin_threads_allow_, (int fd, int type), fd, type)

#define CHANGES_USER(name, ...) INTERPOSE(name, hugepin_user_changes_, hugepin_user_changed_, __VA_ARGS__)

CHANGES_USER(setuid, (uid_t id), id)
CHANGES_USER(seteuid, (uid_t id), id)
CHANGES_USER(setgid, (gid_t id), id)
CHANGES_USER(setegid, (gid_t id), id)
CHANGES_USER(setreuid, (uid_t real, uid_t effective), real, effective)
CHANGES_USER(setregid, (gid_t real, gid_t effective), real, effective)
CHANGES_USER(setresuid, (uid_t real, uid_t effective, uid_t saved), real, effective, saved)
CHANGES_USER(setresgid, (gid_t real, gid_t effective, gid_t saved), real, effective, saved)
CHANGES_USER(setgroups, (size_t count, const gid_t *groups), count, groups)
CHANGES_USER(initgroups, (const char *user, gid_t group), user, group)

EXPORT int prctl(int option, ...)
{
	unsigned long a[4];
	va_list args;
	bool was;
	int r;

	va_start(args, option);
	for (int i = 0; i < 4; i++)
		a[i] = va_arg(args, unsigned long);
	va_end(args);
	if (!next_calls.is.found)
		hp_rights_find();
	if (option != PR_SET_SECCOMP)
		return next_calls.is.prctl(option, a[0], a[1], a[2], a[3]);
	hp_small_start(); /* the filter may forbid what it does then */
	was = hugepin_confining_(false);
	r = next_calls.is.prctl(option, a[0], a[1], a[2], a[3]);
	hugepin_confined_(false, was || r == 0);
	return r;
}

/* Call the next syscall(), or the kernel if our constructor has not run: malloc may call this, and looking up the next
 * function would allocate. */
static long next_syscall(long n, const long *a)
{
	if (next_calls.is.found)
		return next_calls.is.syscall(n, a[0], a[1], a[2], a[3], a[4], a[5]);
	return hp_sys_errno(hp_sys(n, a[0], a[1], a[2], a[3], a[4], a[5]));
}

/* Whether the call is a fork: it makes a process with a copy of this one's memory, which returns from the call, too. */
static bool forks(long n, const long *a)
{
#ifdef SYS_fork
	if (n == SYS_fork)
		return true;
#endif
	return n == SYS_clone && !(a[0] & CLONE_VM) && !a[1];
}

/* Whether the call, which succeeded, has made such a process that goes on elsewhere. */
static bool has_forked(long n, const long *a)
{
	/* the first member of struct clone_args, which the kernel could read */
	return (n == SYS_clone && !(a[0] & CLONE_VM)) || (n == SYS_clone3 && !(*(const uint64_t *)a[0] & CLONE_VM));
}

struct call {
	long n;
	const long *a;
};

static long make_call(void *call)
{
	const struct call *c = call;

	return next_syscall(c->n, c->a);
}

EXPORT long syscall(long n, ...)
{
	long a[6], r;
	va_list args;
	bool all, was;

	va_start(args, n);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	switch (n) {
	case SYS_unshare:
	case SYS_setns:
		hugepin_threads_end_();
		r = next_syscall(n, a);
		hugepin_threads_allow_();
		return r;
	case SYS_setuid:
	case SYS_setgid:
	case SYS_setreuid:
	case SYS_setregid:
	case SYS_setresuid:
	case SYS_setresgid:
	case SYS_setgroups:
		hugepin_user_changes_();
		r = next_syscall(n, a);
		hugepin_user_changed_();
		return r;
	case SYS_prctl:
		if (a[0] != PR_SET_SECCOMP)
			return next_syscall(n, a);
		break;
	case SYS_seccomp:
		if (a[0] != SECCOMP_SET_MODE_STRICT && a[0] != SECCOMP_SET_MODE_FILTER)
			return next_syscall(n, a);
		break;
	default:
		if (forks(n, a))
			return hugepin_fork_by_(make_call, &(struct call){ n, a });
		r = next_syscall(n, a);
		if (r > 0 && has_forked(n, a))
			hugepin_fork_bypassed_();
		return r;
	}
	/* With TSYNC the kernel gives all threads a filter. It fails if a thread has a filter of its own, as our
	 * threads have. */
	all = n == SYS_seccomp && a[0] == SECCOMP_SET_MODE_FILTER && (unsigned)a[1] & SECCOMP_FILTER_FLAG_TSYNC;
	hp_small_start();
	was = hugepin_confining_(all);
	r = next_syscall(n, a);
	hugepin_confined_(all, was || r == 0); /* with TSYNC, r > 0 is a thread that prevented it */
	return r;
}
