/*
 * The one way to the kernel: system calls by an instruction of our own. The C library's functions have public names,
 * which the program, libhugepin-malloc.so (dropin/rights.c, dropin/unmap.c) or another preloaded library may replace by
 * code that allocates, takes locks, or needs a thread that the C library started. A call from here does none of that,
 * is no cancellation point, and leaves errno alone.
 *
 * Sleeping and waking by futexes are here, too, for locks.
 *
 * The C library's own mapping calls remain where memory goes away that others may have registered (base/map.h).
 */
#ifndef HP_BASE_SYS_H
#define HP_BASE_SYS_H

#include <stdbool.h>
#include <stdint.h>
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

/* getrlimit(2). Returns 0 or -errno. */
struct rlimit;
int hp_limit(int resource, struct rlimit *ret_);

/* Set this thread's signal mask, in which bit n - 1 stands for signal n, and return the old one. HP_SIGNALS: all but
 * the two that the C library itself sends to threads. */
#define HP_SIGNALS (~(UINT64_C(3) << 31))
uint64_t hp_signals_block(uint64_t mask);

/* secure_getenv(3), with the value in the environment itself. */
char *hp_env(const char *name);

/* Sleep until *word differs from expected, a wake comes or timeout_ns has passed (UINT64_MAX: no limit). May return
 * early without reason. Not a cancellation point. */
void hp_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);
void hp_futex_wake(_Atomic uint32_t *word);
void hp_futex_wake_one(_Atomic uint32_t *word);
void hp_futex_sleep(uint64_t ns); /* no other thread wakes this one */

#endif
