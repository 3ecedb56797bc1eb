/*
 * Part of libhugepin-malloc.so: functions of the C library for jemalloc, which calls them by these names
 * (JEMALLOC_RENAMED in the Makefile). By their public names another preloaded library could answer, and allocate, while
 * jemalloc holds its locks. jemalloc.c has those that map memory, and math.c those of the mathematical library.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/key.h"
#include "base/lock.h"
#include "base/sys.h"

/* Arguments that a call does not have, the kernel does not look at. */
long hpje_syscall(long n, long a, long b, long c, long d, long e, long f);
long hpje_syscall(long n, long a, long b, long c, long d, long e, long f)
{
	return hp_sys_errno(hp_sys(n, a, b, c, d, e, f));
}

#define CALLS(type, name, parameters, ...)                                                                             \
	type hpje_##name parameters;                                                                                   \
	type hpje_##name parameters                                                                                    \
	{                                                                                                              \
		return (type)hp_sys_errno(hp_sys(__VA_ARGS__));                                                        \
	}

CALLS(int, gettimeofday, (struct timeval *ret_, void *zone), SYS_gettimeofday, ret_, zone)
CALLS(pid_t, getpid, (void), SYS_getpid)
CALLS(int, mprotect, (void *p, size_t len, int prot), SYS_mprotect, p, len, prot)
CALLS(int, sched_yield, (void), SYS_sched_yield)
CALLS(int, open, (const char *path, int flags, mode_t mode), SYS_openat, AT_FDCWD, path, flags, mode)
CALLS(int, creat, (const char *path, mode_t mode), SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode)
CALLS(int, close, (int fd), SYS_close, fd)
CALLS(ssize_t, readlink, (const char *path, char *buf, size_t size), SYS_readlinkat, AT_FDCWD, path, buf, size)

/* Asked again and again for how long memory has been free, also behind a filter of system calls. */
int hpje_clock_gettime(clockid_t clock, struct timespec *ret_);
int hpje_clock_gettime(clockid_t clock, struct timespec *ret_)
{
	return (int)hp_sys_errno(hp_clock_gettime(clock, ret_));
}

/* jemalloc asks for the size of pages with its lock held, and for the number of processors without. */
long hpje_sysconf(int name);
long hpje_sysconf(int name)
{
	return name == _SC_PAGESIZE ? (long)getauxval(AT_PAGESZ) : sysconf(name);
}

int hpje_pthread_key_create(pthread_key_t *key, void (*at_exit)(void *));
int hpje_pthread_key_create(pthread_key_t *key, void (*at_exit)(void *))
{
	return hp_key_create(key, at_exit);
}

/* ------------------------------------------------------------------ locks */

/* A lock of ours lies at the beginning of jemalloc's mutex, for which it is free when zero. No rank is looked at. */
static struct hp_lock *lock_of(pthread_mutex_t *mutex)
{
	return (struct hp_lock *)mutex;
}

int hpje_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int hpje_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
	(void)attributes;
	hp_lock_reset(lock_of(mutex));
	return 0;
}

int hpje_pthread_mutex_trylock(pthread_mutex_t *mutex);
int hpje_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
	return hp_lock_try(lock_of(mutex)) ? 0 : EBUSY;
}

int hpje_pthread_mutex_lock(pthread_mutex_t *mutex);
int hpje_pthread_mutex_lock(pthread_mutex_t *mutex)
{
	if (!hp_lock_try(lock_of(mutex)))
		hp_lock_wait(lock_of(mutex));
	return 0;
}

int hpje_pthread_mutex_unlock(pthread_mutex_t *mutex);
int hpje_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	hp_lock_release(lock_of(mutex));
	return 0;
}

/* The number of signals so far. relaxed: the mutex, which jemalloc holds when it signals and until it waits. */
static _Atomic uint32_t *signals_of(pthread_cond_t *cond)
{
	return (_Atomic uint32_t *)cond;
}

int hpje_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes);
int hpje_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes)
{
	(void)attributes;
	atomic_store_explicit(signals_of(cond), 0, memory_order_relaxed); /* relaxed: the mutex */
	return 0;
}

int hpje_pthread_cond_signal(pthread_cond_t *cond);
int hpje_pthread_cond_signal(pthread_cond_t *cond)
{
	atomic_fetch_add_explicit(signals_of(cond), 1, memory_order_relaxed); /* relaxed: the mutex */
	hp_futex_wake_one(signals_of(cond));
	return 0;
}

/* until: by CLOCK_REALTIME; NULL: no limit. */
int hpje_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int hpje_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
	const uint32_t seen = atomic_load_explicit(signals_of(cond), memory_order_relaxed); /* relaxed: the mutex */
	long r;

	hp_lock_release(lock_of(mutex));
	r = hp_sys(SYS_futex, cond, FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME, seen, until, 0,
		   FUTEX_BITSET_MATCH_ANY);
	hpje_pthread_mutex_lock(mutex);
	return r == -ETIMEDOUT ? ETIMEDOUT : 0;
}

int hpje_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int hpje_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	return hpje_pthread_cond_timedwait(cond, mutex, NULL);
}
