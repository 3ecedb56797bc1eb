/*
 * libhugepin-malloc.so interposes the calls that unmap or discard, and tells the pin cache of them by these functions
 * (reg/gone.c).
 */
#ifndef HP_REG_UNMAPPING_H
#define HP_REG_UNMAPPING_H

#include <stddef.h>

#pragma GCC visibility push(default)

enum hp_unmapping {
	HP_UNMAPPED,
	HP_DISCARDED, /* the pages go away, the mapping stays */
	HP_DISCARDED_UNTOLD, /* the same, by a call for which a userfaultfd gets no event */
};

/* Announce that [addr, addr + len) is about to go away. Costs one read of memory if no domain is open. Called once with
 * a length of 0 to say that announcements will come. Keeps errno. */
void hugepin_unmapping_(const void *addr, size_t len, enum hp_unmapping how);

#pragma GCC visibility pop

#endif
