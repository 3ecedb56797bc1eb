/*
 * A malloc that fails once, for tests of one source file.
 */
#ifndef TESTS_UNIT_ALLOC_FAILS_H
#define TESTS_UNIT_ALLOC_FAILS_H

#include <stdbool.h>
#include <stddef.h>

/* Allocation number `nth` fails (1 is the next); 0: none. Sanitizers have allocators of their own: there this says
 * nothing. */
static long nth;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CAN_FAIL = false };
#else
enum { CAN_FAIL = true };

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
	*__libc_memalign(size_t, size_t);

static bool fails(void)
{
	return nth && --nth == 0;
}

void *malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	return fails() ? NULL : __libc_realloc(p, size);
}

void *aligned_alloc(size_t align, size_t size)
{
	return fails() ? NULL : __libc_memalign(align, size);
}
#endif

#endif
