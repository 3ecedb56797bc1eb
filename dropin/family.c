/*
 * Part of libhugepin-malloc.so: functions of malloc's family that are other functions of the family. They call these by
 * their public names, as those of the C library do: a program that has a malloc(), realloc() and free() of its own, and
 * none of these here, gets its own buffers. Hence they are not in malloc.c, where the compiler would call our own.
 */
#include <errno.h>
#include <stdlib.h>

#include "dropin/dropin.h"

EXPORT void *reallocarray(void *p, size_t count, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	return realloc(p, bytes);
}

EXPORT void free_sized(void *p, size_t size)
{
	(void)size;
	free(p);
}

EXPORT void free_aligned_sized(void *p, size_t align, size_t size)
{
	(void)align;
	(void)size;
	free(p);
}
