/*
 * Access to the tier below the heap: the small tier of libhugepin-malloc.so if that library is loaded, else the
 * process's own malloc.
 */
#ifndef HP_ALLOC_BELOW_H
#define HP_ALLOC_BELOW_H

#include "alloc/small.h"

#pragma GCC visibility push(hidden)
extern const struct hp_small hp_process_malloc;
#pragma GCC visibility pop

static inline const struct hp_small *hp_small(void)
{
	return &hugepin_small_ ? &hugepin_small_ : &hp_process_malloc;
}

#endif
