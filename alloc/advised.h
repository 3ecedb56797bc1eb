/*
 * Between libhugepin-malloc.so, which interposes madvise and mprotect, and the heap's record of them (advice.h).
 */
#ifndef HP_ALLOC_ADVISED_H
#define HP_ALLOC_ADVISED_H

#include <stddef.h>

#pragma GCC visibility push(default)

/* For libhugepin-malloc.so's madvise and mprotect: carry the call out for what of [addr, addr + len) lies in live
 * buffers of the heap, and for what lies outside the heap, and note it. 0, or -errno; 1: nothing of it concerns the
 * heap, go on. */
int hugepin_advise_(void *addr, size_t len, int advice);
int hugepin_protect_(void *addr, size_t len, int prot);

/* For its pthread_attr_setstack: [addr, addr + size) becomes the stack of a thread. */
void hugepin_stack_(void *addr, size_t size);

#pragma GCC visibility pop

#endif
