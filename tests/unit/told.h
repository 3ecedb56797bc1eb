/* As under the drop-in, which tells the heap what the program says of its buffers: nothing is asked of the kernel. */
#ifndef TESTS_UNIT_TOLD_H
#define TESTS_UNIT_TOLD_H

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

#include "alloc/small.h"

/* Of any size, and where a sanitizer is the malloc, too. */
static void *told_aligned_alloc(size_t align, size_t size)
{
	void *p = NULL;
	int e = posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size);

	if (e)
		errno = e;
	return p;
}

static size_t told_usable_size(const void *p)
{
	return malloc_usable_size((void *)p);
}

const struct hp_small hugepin_small_ = {
	.malloc = malloc,
	.calloc = calloc,
	.realloc = realloc,
	.aligned_alloc = told_aligned_alloc,
	.free = free,
	.usable_size = told_usable_size,
};

#endif
