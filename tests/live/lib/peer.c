/* Preloaded: the C library's malloc, as a mimalloc of version 3.4.3 (tests/live/peers.sh). */
#include <stddef.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void __libc_free(void *p);
int mi_version(void);

int mi_version(void)
{
	return 30403;
}

void *malloc(size_t size)
{
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	return __libc_calloc(count, size);
}

void *realloc(void *p, size_t size)
{
	return __libc_realloc(p, size);
}

void free(void *p)
{
	__libc_free(p);
}
