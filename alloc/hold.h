/*
 * What the pin cache may ask of the heap, and what the heap tells it. Held pages are what registrations stand on: they
 * have memory, and are not given back to the kernel until they are dropped as often as they were held.
 *
 * Addresses and lengths are multiples of HP_PAGE within one extent. No lock of the heap may be held by the caller, who
 * may hold locks of lower rank; none of these calls the hooks below.
 */
#ifndef HP_ALLOC_HOLD_H
#define HP_ALLOC_HOLD_H

#include "base/base.h"
#include "hugepin.h"

/* What a forked child gets of held pages. Pages of the small tier it gets from the kernel in any case. Where several
 * hold a page, the first of these that one of them wants holds. COW: as if the page were not held (the pool's pages are
 * copied nevertheless, unless HUGEPIN_FORK=cow). */
enum hp_hold { HP_HOLD_COPY, HP_HOLD_COW, HP_HOLD_DONTFORK };

/* The range of the heap's addresses: the same from the first call on, for the life of the process. False: there is no
 * heap. */
bool hp_heap_span(uintptr_t *ret_base, size_t *ret_size);

/* Hold [addr, addr + len) of the extent whose gen is given, after giving memory to all of it that has none. 0; -ENOENT:
 * no such extent any more; -ENOMEM: memory cannot be had for all of it; -ENOBUFS: held too often; -EFAULT, in a child
 * of fork only: a part was DONTFORK in the parent, whose buffers remain there without memory. May block for the
 * kernel's zeroing. In a child of fork nothing is held: what the parent held is not to be dropped there. */
int hp_heap_hold(uintptr_t addr, size_t len, uint64_t gen, enum hp_hold how);
void hp_heap_drop(uintptr_t addr, size_t len, enum hp_hold how);

/* The extent of p: as hugepin_extent(), but its kind is what was asked for. False: none. */
bool hp_heap_extent(const void *p, struct hugepin_extent *ret_);

/* The extent with the lowest address at or above `from`. False: none. */
bool hp_heap_next_extent(uintptr_t from, struct hugepin_extent *ret_);

/* Bytes from addr on that surely belong to one mapping of the kernel's, in one extent. 0: not mapped. */
size_t hp_heap_mapping(uintptr_t addr);

/* Whether no buffer lies in [addr, addr + len), and none did for so many ticks. */
bool hp_heap_is_free(uintptr_t addr, size_t len, uint32_t ticks);

/* Report a misuse: "hugepin: FUNCTION(PTR): REASON", then abort, unless HUGEPIN_ABORT=0. */
void hugepin_misuse_(const char *function, const void *ptr, const char *reason);

/* The pin cache's side; members may be NULL. All are called without a lock of the heap, but for fork's. */
struct hp_heap_hooks {
	/* An extent was made: end of an allocation. Must not block or allocate. */
	void (*grown)(void);
	/* Drop what you can of held pages that are free for `ticks`, so that they can be given back. On the service
	 * thread, or in hugepin_purge() with 0, on a thread that holds none of our locks. */
	void (*let_go)(uint32_t ticks);
	/* In the child of fork, before anything else runs there: under the heap's locks, signals blocked. Locks of
	 * higher rank may be taken, and nothing may be allocated, asked of the functions above or of the service. The
	 * memory is in place, nothing is held, and there is no service thread. Not called for a fork in a signal
	 * handler that interrupted the heap. */
	void (*postfork_child)(void);
};

/* The side that knows what else is locked (reg/locks.c). Called without a lock of the heap; `child` in the child of
 * fork. */
struct hp_heap_locks {
	int (*lock)(uintptr_t start, uintptr_t end);
	void (*unlock)(uintptr_t start, uintptr_t end);
	void (*child)(void);
};

/* Before any lock of theirs is taken that a child of fork is to have free. *l is not copied. */
void hp_heap_set_locks(const struct hp_heap_locks *l);

/* Note that the program has locked, or unlocked, what of [start, end) lies in live buffers of large requests. */
void hp_heap_locked(uintptr_t start, uintptr_t end, bool on);

/* Set the hooks, once for the life of the process. *h is not copied. From then on a fork takes no other thread for
 * idle. */
void hp_heap_set_hooks(const struct hp_heap_hooks *h);

#endif
