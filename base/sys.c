/* See sys.h. */
#include "base/sys.h"

#include <errno.h>
#if !(defined(__x86_64__) && defined(__LP64__)) && !(defined(__aarch64__) && defined(__LP64__))
#include <unistd.h>
#endif

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
