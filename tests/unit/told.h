/* As under the drop-in, which tells the heap what the program says of its buffers: nothing is asked of the kernel. */
#ifndef TESTS_UNIT_TOLD_H
#define TESTS_UNIT_TOLD_H

#include <malloc.h>
#include <stdlib.h>

#include "alloc/small.h"

static size_t told_usable_size(const void *p)
{
	return malloc_usable_size((void *)p);
}

const struct hp_small hugepin_small_ = {
	.malloc = malloc,
	.calloc = calloc,
	.realloc = realloc,
	.aligned_alloc = aligned_alloc,
	.free = free,
	.usable_size = told_usable_size,
};

#endif
