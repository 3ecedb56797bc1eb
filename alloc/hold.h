/*
 * The heap's functions for the pin cache, and the pin cache's hooks in the heap. Registrations stand on held pages: a
 * held page has memory, which the heap does not give back to the kernel until each hold is dropped.
 *
 * Addresses and lengths are multiples of HP_PAGE within one extent. The caller holds no lock of the heap, but may hold
 * locks of lower rank. None of these functions calls the hooks below.
 */
#ifndef HP_ALLOC_HOLD_H
#define HP_ALLOC_HOLD_H

#include "base/base.h"
#include "base/summary.h"
#include "hugepin.h"

/* What a forked child gets of held pages: a copy, the kernel's copy-on-write, or nothing. If a page has several holds,
 * the first value in this order wins. With COW, fork treats the page as if it were not held, so pages of the pool are
 * copied nevertheless, unless HUGEPIN_FORK=cow. The child always gets pages of the small tier from the kernel. */
enum hp_hold { HP_HOLD_COPY, HP_HOLD_COW, HP_HOLD_DONTFORK };

/* The range of the heap's addresses. It never changes after the first call. False: there is no heap. */
bool hp_heap_span(uintptr_t *ret_base, size_t *ret_size);

/* Hold [addr, addr + len) of the extent with number `gen`, and give memory to pages that have none. Returns 0 or:
 * -ENOENT: this extent no longer exists; -ENOMEM: there is no memory for all of the pages; -ENOBUFS: a page is held too
 * often; -EFAULT, in a child of fork only: a part was DONTFORK in the parent, and live buffers there have no memory.
 *
 * May block while the kernel zeroes memory. A child of fork begins without holds, so it must not drop the parent's. */
int hp_heap_hold(uintptr_t addr, size_t len, uint64_t gen, enum hp_hold how);
void hp_heap_drop(uintptr_t addr, size_t len, enum hp_hold how);

/* The extent of p: as hugepin_extent(), but `kind` is the kind that was asked for. False: none. */
bool hp_heap_extent(const void *p, struct hugepin_extent *ret_);

/* The number of the youngest extent that there was so far. 0: there was none. */
uint64_t hp_heap_latest_extent(void);

/* The extent with the lowest address at or above `from`. False: none. */
bool hp_heap_next_extent(uintptr_t from, struct hugepin_extent *ret_);

/* The number of bytes from addr on that certainly belong to one mapping of the kernel's, in one extent. 0: not
 * mapped. */
size_t hp_heap_mapping(uintptr_t addr);

/* Whether [addr, addr + len) contains no part of a buffer, and has contained none for so many ticks. */
bool hp_heap_is_free(uintptr_t addr, size_t len, uint32_t ticks);

/* Report a misuse: "hugepin: FUNCTION(PTR): REASON", then abort, unless HUGEPIN_ABORT=0. */
void hugepin_misuse_(const char *function, const void *ptr, const char *reason);

/* The pin cache's hooks; members may be NULL. The heap calls them without a lock of its own, except postfork_child. */
struct hp_heap_hooks {
	/* An extent was made. Called at the end of an allocation. Must not block or allocate. */
	void (*grown)(void);
	/* Drop as many holds as possible on pages that have been free for `ticks`, so that the heap can give them back.
	 * Runs on the service thread, or with ticks 0 in hugepin_purge(), on a thread that holds none of our locks. */
	void (*let_go)(uint32_t ticks);
	/* Add up the numbers of all domains that are or were open. Called at exit, without a lock. */
	void (*sums)(struct hp_pin_sums *ret_);
	/* In the child of fork, before anything else runs there. The heap's locks are held, signals are blocked, the
	 * memory is in place, no page is held, and there is no service thread. The hook may take locks of higher rank,
	 * but must not allocate, or call the functions above or the service. It is not called for a fork by a signal
	 * handler that interrupted the heap. */
	void (*postfork_child)(void);
};

/* The functions that know which other memory is locked by mlock (reg/locks.c). The heap calls them without a lock of
 * its own, and `child` in the child of fork. */
struct hp_heap_locks {
	int (*lock)(uintptr_t start, uintptr_t end);
	void (*unlock)(uintptr_t start, uintptr_t end);
	void (*child)(void);
};

/* Set the functions above. Call this before taking any lock of theirs that must be free in a child of fork. *l is not
 * copied. */
void hp_heap_set_locks(const struct hp_heap_locks *l);

/* Note that the program has locked (on) or unlocked [start, end). Only live buffers of large requests matter. */
void hp_heap_locked(uintptr_t start, uintptr_t end, bool on);

/* Set the hooks, once for the life of the process. *h is not copied. From then on fork assumes that other threads may
 * be active in the hooks. */
void hp_heap_set_hooks(const struct hp_heap_hooks *h);

#endif
