/*
 * What is locked in memory, and for whom: for the program itself, by calls that libhugepin-malloc.so sees, and for the
 * mlock backend. mlock(2) does not nest. So a range is unlocked when nobody needs it any more, and no earlier.
 */
#ifndef HP_REG_LOCKS_H
#define HP_REG_LOCKS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

/* The backend's: in the order of their addresses; they may overlap. */
struct hp_locked {
	uintptr_t start, end;
	LIST_ENTRY(hp_locked) links;
};

/* Lock *r, which stays the caller's until hp_locks_drop(). 0 or -errno; then no lock of it remains that nobody else
 * needs. */
int hp_locks_take(struct hp_locked *r);
int hp_locks_drop(struct hp_locked *r);

/* [addr, addr + len) is unmapped, says libhugepin-malloc.so, which sees the program's mlock then, too. Waits for
 * nobody: what is missed stays locked when registrations of it go. */
void hp_locks_unmapping(const void *addr, size_t len);

/* A forked child has nothing locked (mlock(2)). */
void hp_locks_child(void);

#pragma GCC visibility push(default)

/* For libhugepin-malloc.so's mlock2, munlock, and mlockall (munlockall: flags 0). 0 or -errno. Addresses are numbers,
 * since glibc 2.41 declares that mlock reads nothing through its pointer, and gcc warns where such a pointer is handed
 * on. */
int hugepin_lock_(uintptr_t addr, size_t len, unsigned flags);
int hugepin_unlock_(uintptr_t addr, size_t len);
int hugepin_lock_all_(int flags);

#pragma GCC visibility pop

#endif
