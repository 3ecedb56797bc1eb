/*
 * Call sites: a number for the chain of callers, found by frame pointers.
 *
 * backtrace() is not used, since it loads a library. Reading the chain never faults, although code without frame
 * pointers leaves any value in the register.
 */
#ifndef HP_REG_SITE_H
#define HP_REG_SITE_H

#include <stdbool.h>
#include <stdint.h>

#define HP_SITE_DEPTH 4 /* return addresses in the hash */

/* A number for a call site. Its upper half is a hash of return_address and of the return addresses of outer frames, at
 * most HP_SITE_DEPTH in all. Its lower half is the lower half of return_address. Addresses are hashed as they are, so
 * the number means something in this process only.
 *
 * frame: __builtin_frame_address(0) of a function that has not returned; return_address: its return address.
 * *ret_short: the hash has return_address alone, because the chain is broken at once, or because this is not the
 * thread's own stack (but a fiber's or a signal stack).
 *
 * Any thread and signal handlers may call this. A thread's first call reads /proc/self/maps. Allocates nothing and
 * keeps errno. */
uint64_t hp_site(const void *frame, const void *return_address, bool *ret_short);

/* The site of the caller of the function that uses this macro. */
#define HP_SITE(ret_short) hp_site(__builtin_frame_address(0), __builtin_return_address(0), ret_short)

#endif
