/*
 * A kernel of a test's own: the library's system calls (base/sys.h), and the C library's mapping calls and syscall(), come
 * to kernel(), which the test defines: the linker prefers the definitions here. raw() is the real one.
 */
#ifndef TESTS_UNIT_KERNEL_H
#define TESTS_UNIT_KERNEL_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/base.h"
#include "base/sys.h"
#include "tests/call.h"

#define UNINSTRUMENTED __attribute__((no_sanitize("address", "thread", "undefined")))

/* As syscall(2): -1 with errno. */
static long kernel(long nr, long a, long b, long c, long d, long e, long f);

/* The result, or -errno. */
UNINSTRUMENTED static long raw(long nr, long a, long b, long c, long d, long e, long f)
{
	return t_call(nr, a, b, c, d, e, f);
}

/* As syscall(2) says it: the result, or -1 with errno. */
UNINSTRUMENTED static inline long result_of(long r)
{
	if (r >= 0 || r <= -4096)
		return r;
	errno = (int)-r;
	return -1;
}

/* A descriptor from which this text is read, of some lines at most: what a file of the kernel's is to say. */
UNINSTRUMENTED static inline long file_with(const char *text)
{
	int fds[2] = { -1, -1 };

	raw(SYS_pipe2, (long)fds, O_CLOEXEC, 0, 0, 0, 0);
	raw(SYS_write, fds[1], (long)text, (long)strlen(text), 0, 0, 0);
	raw(SYS_close, fds[1], 0, 0, 0, 0, 0);
	return fds[0];
}

/* Other memory in place of pages of the pool: aligned as these are. */
UNINSTRUMENTED static inline long map_like_pool(long len, long prot, long flags)
{
	const long got = raw(SYS_mmap, 0, len + (long)HP_PAGE, prot, flags & ~(long)(MAP_HUGETLB | (63u << 26)), -1, 0);
	const long aligned = (long)hp_round_up((size_t)got, HP_PAGE);

	if (aligned > got)
		raw(SYS_munmap, got, aligned - got, 0, 0, 0, 0);
	raw(SYS_munmap, aligned + len, got + (long)HP_PAGE - aligned, 0, 0, 0, 0);
	return aligned;
}

/* As a kernel whose base pages have hp_base_page bytes, on one with smaller ones: it refuses addresses within a page, and
 * rounds lengths up. */
UNINSTRUMENTED static inline long paged(long nr, long a, long b, long c, long d, long e, long f)
{
	static unsigned char in[HP_PAGE / 4096];
	const long page = (long)hp_base_page, mask = -page, pieces = page / (long)getauxval(AT_PAGESZ);
	long at;

	switch (nr) {
	case SYS_mmap:
		if (d & MAP_FIXED || d & MAP_HUGETLB)
			return a & ~mask ? -EINVAL : raw(nr, a, (b + ~mask) & mask, c, d, e, f);
		b = (b + ~mask) & mask;
		at = raw(nr, 0, b + page, c, d, e, f);
		if (at < 0 && at > -4096)
			return at;
		a = (at + ~mask) & mask;
		if (a > at)
			raw(SYS_munmap, at, a - at, 0, 0, 0, 0);
		if (at + page > a)
			raw(SYS_munmap, a + b, at + page - a, 0, 0, 0, 0);
		return a;
	case SYS_mremap:
		if (e & ~mask)
			return -EINVAL;
		c = (c + ~mask) & mask; /* fall through */
	case SYS_munmap: case SYS_mprotect: case SYS_madvise: case SYS_mbind:
		return a & ~mask ? -EINVAL : raw(nr, a, (b + ~mask) & mask, c, d, e, f);
	case SYS_mincore: /* a byte for each page */
		b = (b + ~mask) & mask;
		if (a & ~mask || b > (long)HP_PAGE)
			return -EINVAL;
		at = raw(nr, a, b, (long)in, 0, 0, 0);
		for (long i = 0; !at && i < b / page; i++)
			for (long k = 0; k < pieces; k++)
				((unsigned char *)c)[i] = (unsigned char)(k ? ((unsigned char *)c)[i] | in[i * pieces + k] : in[i * pieces]);
		return at;
	case SYS_pread64: /* of pagemap, whose entries lie lower than the addresses that /proc/self/mem is read at */
		return raw(nr, a, b, c, d < 1L << 40 ? d / 8 * pieces * 8 : d, e, f);
	default: return raw(nr, a, b, c, d, e, f);
	}
}

UNINSTRUMENTED void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
	return (void *)kernel(SYS_mmap, (long)at, (long)len, prot, flags, fd, off);
}

UNINSTRUMENTED int munmap(void *at, size_t len)
{
	return (int)kernel(SYS_munmap, (long)at, (long)len, 0, 0, 0, 0);
}

UNINSTRUMENTED int mprotect(void *at, size_t len, int prot)
{
	return (int)kernel(SYS_mprotect, (long)at, (long)len, prot, 0, 0, 0);
}

UNINSTRUMENTED int madvise(void *at, size_t len, int advice)
{
	return (int)kernel(SYS_madvise, (long)at, (long)len, advice, 0, 0, 0);
}

UNINSTRUMENTED void *mremap(void *at, size_t old, size_t len, int flags, ...)
{
	va_list args;
	long to;

	va_start(args, flags);
	to = flags & MREMAP_FIXED ? va_arg(args, long) : 0;
	va_end(args);
	return (void *)kernel(SYS_mremap, (long)at, (long)old, (long)len, flags, to, 0);
}

/* Strong, where the library's own is weak. */
UNINSTRUMENTED long hp_sys_call(long nr, long a, long b, long c, long d, long e, long f)
{
	int saved_errno = errno;
	long r = kernel(nr, a, b, c, d, e, f);

	if (r == -1)
		r = -errno;
	errno = saved_errno;
	return r;
}

UNINSTRUMENTED long syscall(long nr, ...)
{
	va_list args;
	long v[6];

	va_start(args, nr);
	for (int i = 0; i < 6; i++)
		v[i] = va_arg(args, long);
	va_end(args);
	return kernel(nr, v[0], v[1], v[2], v[3], v[4], v[5]);
}

#endif
