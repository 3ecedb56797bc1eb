/*
 * An allocator that does nothing, for the least that a call to malloc and one to free cost. Every request gets the same
 * memory. So only a program that has one large buffer at a time can use it (pairs). Small requests are cut from a piece
 * that never comes back.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#define LARGE ((size_t)32 << 10)

static _Alignas(4096) char large[(size_t)64 << 20];
static _Alignas(4096) char small[(size_t)1 << 20];
static size_t small_used;

static void *take_small(size_t size)
{
	size = (size + 15) & ~(size_t)15;
	if (size > sizeof small - small_used) {
		errno = ENOMEM;
		return NULL;
	}
	small_used += size;
	return small + small_used - size;
}

void *malloc(size_t size)
{
	return size >= LARGE && size <= sizeof large ? large : take_small(size);
}

void free(void *p)
{
	(void)p;
}

void *calloc(size_t count, size_t size)
{
	return malloc(count * size); /* the program's few small ones, from memory that is still zero */
}

void *realloc(void *p, size_t size)
{
	void *q = malloc(size);

	if (p && q && p != q) /* the old size is not known; what lies behind it is readable and does not matter */
		memmove(q, p, size < LARGE ? size : LARGE);
	return q;
}
