/*
 * Ranges that are locked in memory by the program, whose calls libhugepin-malloc.so reports, and by the mlock backend.
 * Locks of mlock(2) do not nest, so a range is unlocked only when neither the program nor the backend needs its lock.
 */
#ifndef HP_REG_LOCKS_H
#define HP_REG_LOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "reg/covered.h"

/* For the backend. take() locks the range *r, whose addresses are set; ranges may overlap. *r must stay valid until
 * drop(), which removes this lock. The memory stays locked if the program or another range needs it. 0 or -errno; if
 * take() fails, it leaves no lock of its own. */
int hp_locks_take(struct hp_covering *r);
int hp_locks_drop(struct hp_covering *r);

/* libhugepin-malloc.so calls this when [addr, addr + len) is unmapped, and from the first call on also reports the
 * program's mlock calls. Never waits for the lock: if another thread holds it, the range stays noted as the program's,
 * and so stays locked when registrations of it go. */
void hp_locks_unmapping(const void *addr, size_t len);

/* Called in the child of fork, in which no memory is locked (mlock(2)). */
void hp_locks_child(void);

#pragma GCC visibility push(default)

/* For mlock2, munlock and mlockall in libhugepin-malloc.so (munlockall: flags 0). 0 or -errno. Addresses are numbers:
 * glibc 2.41 declares that mlock reads nothing through its pointer, and gcc warns if the pointer is passed on. */
int hugepin_lock_(uintptr_t addr, size_t len, unsigned flags);
int hugepin_unlock_(uintptr_t addr, size_t len);
int hugepin_lock_all_(int flags);

#pragma GCC visibility pop

#endif
