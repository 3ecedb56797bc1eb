/*
 * The heap's own entry below the public ones: for what decides about a request itself (realloc.c). And what unit tests
 * see of the heap beside hugepin.h.
 */
#ifndef HP_ALLOC_HEAP_H
#define HP_ALLOC_HEAP_H

#include "alloc/decay.h"
#include "alloc/place.h"

/* A buffer, or NULL, and the bytes at its start that may not be zero. In registers: a caller whose stack it were on
 * would have the stack protector's price on its way without a lock. */
struct hp_handed {
	void *p;
	size_t dirty;
};

/* A buffer from the shared lists or the tree. */
struct hp_handed hp_alloc_locked(struct hp_request r);

#endif
