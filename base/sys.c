/* See sys.h. */
#include "base/sys.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

__attribute__((weak)) long hp_sys_call(long n, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__) && defined(__LP64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long r;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return r;
#elif defined(__aarch64__) && defined(__LP64__)
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#else
	int saved_errno = errno;
	long r = syscall(n, a, b, c, d, e, f);

	r = r == -1 ? -errno : r;
	errno = saved_errno;
	return r;
#endif
}

long hp_sys_errno(long result)
{
	if (!hp_sys_failed(result))
		return result;
	errno = (int)-result;
	return -1;
}

int hp_limit(int resource, struct rlimit *ret_)
{
	return (int)hp_sys(SYS_prlimit64, 0, resource, NULL, ret_);
}

uint64_t hp_signals_block(uint64_t mask)
{
	uint64_t old = 0;

	hp_sys(SYS_rt_sigprocmask, SIG_SETMASK, &mask, &old, sizeof mask);
	return old;
}

char *hp_env(const char *name)
{
	const size_t len = strlen(name);

	if (!environ || getauxval(AT_SECURE))
		return NULL;
	for (char **e = environ; *e; e++)
		if (**e == *name && !strncmp(*e, name, len) && (*e)[len] == '=')
			return *e + len + 1;
	return NULL;
}

void hp_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
	struct timespec t = { (time_t)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000) };

	hp_sys(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout_ns == UINT64_MAX ? 0 : (long)&t);
}

void hp_futex_sleep(uint64_t ns)
{
	static _Atomic uint32_t never;

	hp_futex_wait(&never, 0, ns);
}

void hp_futex_wake(_Atomic uint32_t *word)
{
	hp_sys(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX);
}

void hp_futex_wake_one(_Atomic uint32_t *word)
{
	hp_sys(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1);
}
