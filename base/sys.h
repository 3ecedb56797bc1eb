/*
 * The one way to the kernel: system calls by an instruction of our own. The C library's functions have public names,
 * which the program, libhugepin-malloc.so (dropin/rights.c, dropin/unmap.c) or another preloaded library may replace by
 * code that allocates, takes locks, or needs a thread that the C library started. A call from here does none of that,
 * is no cancellation point, and leaves errno alone.
 *
 * The C library's own mapping calls remain where memory goes away that others may have registered (base/map.h).
 */
#ifndef HP_BASE_SYS_H
#define HP_BASE_SYS_H

#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/types.h>

/* Whether a sanitizer has to see each mapping and each thread. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define HP_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define HP_SANITIZED 1
#endif
#endif
#ifndef HP_SANITIZED
#define HP_SANITIZED 0
#endif

/* A system call. Arguments are integers or pointers; those left out are 0. Returns the kernel's result, or -errno. */
#define hp_sys(...) HP_SYS_CALL(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define HP_SYS_CALL(n, a, b, c, d, e, f, ...)                                                                          \
	hp_sys_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* Weak in sys.c, because a unit test puts a kernel of its own in its place. */
long hp_sys_call(long n, long a, long b, long c, long d, long e, long f);

/* Whether a result is an error, even if the result may be a mapping's address, which can have any bit set. */
static inline bool hp_sys_failed(long result)
{
	return (unsigned long)result > -4096UL;
}

static inline pid_t hp_pid(void)
{
	return (pid_t)hp_sys(SYS_getpid);
}

/* The number of this thread. */
static inline pid_t hp_tid(void)
{
	return (pid_t)hp_sys(SYS_gettid);
}

/* A result as the C library gives it: -1 and errno for an error. */
long hp_sys_errno(long result);

#endif
