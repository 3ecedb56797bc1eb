/*
 * Where a call comes from: a number for the chain of callers, by frame pointers.
 *
 * Never backtrace(), which loads a library, and never a fault: code without frame pointers leaves anything in that
 * register.
 */
#ifndef HP_REG_SITE_H
#define HP_REG_SITE_H

#include <stdbool.h>
#include <stdint.h>

#define HP_SITE_DEPTH 4 /* return addresses that count */

/* In the upper half a hash of return_address and of those that the chain of frames leads to, from the caller's
 * outwards, at most HP_SITE_DEPTH; in the lower half that of return_address. frame: __builtin_frame_address(0) of a
 * function that has not returned, and return_address its own. Addresses are hashed as they are: the number means
 * something in this process alone. *ret_short: of return_address alone, since the chain is broken at once, or this is
 * not the thread's own stack (a fiber's, or that of signals). Any thread, signal handlers, too. A thread's first call
 * reads /proc/self/maps; allocates nothing, leaves errno alone. */
uint64_t hp_site(const void *frame, const void *return_address, bool *ret_short);

/* The caller of the function that says this. */
#define HP_SITE(ret_short) hp_site(__builtin_frame_address(0), __builtin_return_address(0), ret_short)

#endif
