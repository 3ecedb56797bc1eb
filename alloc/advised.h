/*
 * libhugepin-malloc.so interposes madvise and mprotect, and reports advice to the heap by these calls. The heap keeps a
 * record of the advice (madvise.h).
 */
#ifndef HP_ALLOC_ADVISED_H
#define HP_ALLOC_ADVISED_H

#include <stddef.h>

#pragma GCC visibility push(default)

/* For libhugepin-malloc.so's madvise and mprotect. If no part of [addr, addr + len) lies in the heap's span, these
 * return 1, and the caller makes the system call itself. Otherwise they make it for the live buffers in that part and
 * for all parts outside the span, note the advice, and return 0 or -errno. */
int hugepin_advise_(void *addr, size_t len, int advice);
int hugepin_protect_(void *addr, size_t len, int prot);

/* For libhugepin-malloc.so's pthread_attr_setstack: [addr, addr + size) becomes the stack of a thread. */
void hugepin_stack_(void *addr, size_t size);

#pragma GCC visibility pop

#endif
