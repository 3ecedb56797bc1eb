/* A system call by an instruction of the test's own: no function of the C library, which the library could replace. */
#ifndef T_CALL_H
#define T_CALL_H

/* The result, or -errno. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static inline long t_call(long nr, long a, long b, long c, long d,
									       long e, long f)
{
#if defined __x86_64__
	long r;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return r;
#elif defined __aarch64__
	register long x8 __asm__("x8") = nr, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#else
#error "the instruction of a system call is missing here"
#endif
}

#endif
