/*
 * Between libhugepin-malloc.so, which interposes the calls that unmap or discard memory, and the pin cache.
 */
#ifndef HP_REG_UNMAPPING_H
#define HP_REG_UNMAPPING_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(default)

enum hp_unmapping {
	HP_UNMAPPED,
	HP_DISCARDED, /* the pages, not the mapping */
	HP_DISCARDED_UNTOLD, /* the same, by a call of which the kernel says nothing to who watches */
};

/* [addr, addr + len) is about to go away. No more than a look at a word where there are no domains. Called once with a
 * length of 0 to say that it will be called. errno is left alone. */
void hugepin_unmapping_(const void *addr, size_t len, enum hp_unmapping how);

/* Whether this thread is inside a call of a backend: what registers memory, or lets go of it. */
bool hugepin_registering_(void);

#pragma GCC visibility pop

#endif
