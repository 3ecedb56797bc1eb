/*
 * How much memory this process may have locked or pinned: RLIMIT_MEMLOCK, unless it has CAP_IPC_LOCK.
 */
#ifndef HP_BASE_MEMLOCK_H
#define HP_BASE_MEMLOCK_H

#include <stddef.h>

/*
 * The kernel compares the limit with three separate accounts:
 *
 *	mlock(2)	VmLck of the process. A page counts once, however often it is locked.
 *	io_uring	registered buffers of all rings of the user, in all his processes. No file shows the sum.
 *	memory regions	VmPin of the process. Each region counts in full, even if another one covers the same memory.
 *			Memory that io_uring has pinned for the process is in VmPin, too.
 *
 * So VmPin is the used part of the limit for memory regions, but not for the others. VmLck does not show how much is
 * left for mlock(2), because registering memory that the program has locked already costs nothing.
 */
enum hp_memlock_use {
	HP_MEMLOCK_LOCK, /* mlock(2); also io_uring, for lack of a better number */
	HP_MEMLOCK_PIN, /* memory regions */
};

/* The limit in bytes, in whole base pages. 1: less than a page. 0: no limit. This is a first guess, because other
 * threads and processes use up the limit, and because it may be changed. Besides, the kernel asks for the capability in
 * the initial namespace, so that a process may have it in its own and still be limited. The pin cache learns a lower
 * limit from refusals, but would never learn a higher one, so if the limit is not known, this returns too much. */
size_t hp_memlock_max(enum hp_memlock_use use);

#endif
