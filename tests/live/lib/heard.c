/*
 * A library that interposes the C library's mapping calls, counts them, and notes what they are for. For heard.c.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "heard.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT struct heard heard;

/* The loader gives a thread this variable at its first use, which ends the process on a thread that the C library does not
 * know, such as the ticker. */
static _Thread_local unsigned own_calls[1024] __attribute__((tls_model("global-dynamic")));

static void count(_Atomic unsigned *calls)
{
	atomic_fetch_add(calls, 1);
	own_calls[0]++;
}

static void *next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

EXPORT void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	static void *(*_Atomic libc)(void *, size_t, int, int, int, off_t);

	if (!libc)
		libc = (void *(*)(void *, size_t, int, int, int, off_t))next("mmap");
	count(&heard.mmap);
	if (flags & MAP_FIXED && prot == PROT_NONE)
		atomic_fetch_add(&heard.given_back, 1);
	return libc(addr, len, prot, flags, fd, offset);
}

EXPORT int munmap(void *addr, size_t len)
{
	static int (*_Atomic libc)(void *, size_t);

	if (!libc)
		libc = (int (*)(void *, size_t))next("munmap");
	count(&heard.munmap);
	return libc(addr, len);
}

EXPORT void *mremap(void *addr, size_t old_len, size_t len, int flags, ...)
{
	static void *(*_Atomic libc)(void *, size_t, size_t, int, ...);
	va_list args;
	void *to;

	va_start(args, flags);
	to = va_arg(args, void *);
	va_end(args);
	if (!libc)
		libc = (void *(*)(void *, size_t, size_t, int, ...))next("mremap");
	count(&heard.mremap);
	return libc(addr, old_len, len, flags, to);
}

EXPORT int mprotect(void *addr, size_t len, int prot)
{
	static int (*_Atomic libc)(void *, size_t, int);

	if (!libc)
		libc = (int (*)(void *, size_t, int))next("mprotect");
	count(&heard.mprotect);
	return libc(addr, len, prot);
}

EXPORT int madvise(void *addr, size_t len, int advice)
{
	static int (*_Atomic libc)(void *, size_t, int);

	if (!libc)
		libc = (int (*)(void *, size_t, int))next("madvise");
	count(&heard.madvise);
	return libc(addr, len, advice);
}
