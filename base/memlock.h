/*
 * How much memory this process may have locked or pinned: RLIMIT_MEMLOCK, unless it has CAP_IPC_LOCK.
 */
#ifndef HP_BASE_MEMLOCK_H
#define HP_BASE_MEMLOCK_H

#include <stddef.h>

/*
 * The kernel holds the limit against three accounts that know nothing of each other:
 *
 *	mlock(2)	VmLck, of the process. A page counts once, however often it is locked.
 *	io_uring	what rings have registered, of the user over all of his processes. No file says how much.
 *	memory regions	VmPin, of the process. Each region counts in full, even if it covers what another one does.
 *			What io_uring has pinned for the process is in VmPin, too.
 *
 * So VmPin is what the process has used up where memory regions are made, and only there. VmLck says nothing of what is
 * left for mlock(2): what the program has locked may be what will be registered, and then costs nothing.
 */
enum hp_memlock_use {
	HP_MEMLOCK_LOCK, /* mlock(2), and for want of a better answer io_uring */
	HP_MEMLOCK_PIN, /* memory regions */
};

/* Bytes, in whole base pages; 1: less than a page. 0: no limit. A first guess. In a user namespace of its own a process
 * may hold the capability and be limited all the same, since the kernel asks for it in the initial one; other threads
 * and processes use memory up, and the limit may be changed. The pin cache learns from what the kernel refuses, but not
 * that it might have asked for more: where it is not known, this says too much. */
size_t hp_memlock_max(enum hp_memlock_use use);

#endif
