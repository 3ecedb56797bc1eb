/*
 * The heap's internal entry, for callers that build the request themselves (realloc.c), and for unit tests.
 */
#ifndef HP_ALLOC_HEAP_H
#define HP_ALLOC_HEAP_H

#include "alloc/decay.h"
#include "alloc/place.h"

/* p: a buffer, or NULL. dirty: the bytes at its start that may not be zero. The struct is small enough to be returned
 * in registers, because on the caller's stack it would add stack protection to the path without a lock. */
struct hp_handed {
	void *p;
	size_t dirty;
};

/* Take a buffer from the shared lists or the tree, under hp_heap_lock. */
struct hp_handed hp_alloc_locked(struct hp_placement r);

#endif
