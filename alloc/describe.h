/*
 * The heap's memory as the kernel has it.
 */
#ifndef HP_ALLOC_DESCRIBE_H
#define HP_ALLOC_DESCRIBE_H

#include "base/there.h"

/* The memory of the heap that is not the pool's, by kind. False: the kernel does not tell. Called without a lock, so
 * pages may change meanwhile. */
__attribute__((visibility("hidden"))) bool hp_heap_there(struct hp_there *ret_);

#endif
