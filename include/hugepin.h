/*
 * hugepin: large buffers in hugepages, and (later) their registrations.
 *
 * Rules for every function here, unless its comment says otherwise:
 *  - `int` functions return 0 or more, or -errno; on failure errno, stderr and every ret_ argument are left alone.
 *    Functions shaped like malloc return NULL and set errno.
 *  - Sizes are bytes. Any thread may call; the handles and buffers may be handed between threads.
 *  - Nothing prints or exits, except: a malformed HUGEPIN_ variable (one line), HUGEPIN_STATS=1 at exit, and a heap
 *    found misused (one line, then abort; HUGEPIN_ABORT=0 makes it a reported no-op).
 *
 * The guide is hugepin(7); each group of functions has its page in section 3.
 */
#ifndef HUGEPIN_H
#define HUGEPIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define HUGEPIN_VERSION_MAJOR 0
#define HUGEPIN_VERSION_MINOR 1
#define HUGEPIN_VERSION ((HUGEPIN_VERSION_MAJOR << 16) | HUGEPIN_VERSION_MINOR)

/* The version of the library that runs, as HUGEPIN_VERSION is the one compiled against. Never blocks. */
unsigned hugepin_version(void);

/* ------------------------------------------------------------------ heap: hugepin_malloc(3) */

/* The smallest request, in bytes, that the heap serves from hugepages; what is smaller goes to the next malloc down
 * (Rex, Mietke, Rehm 2006, section 3.2, item 1). */
#define HUGEPIN_LARGE_MIN 32768

/* As malloc, calloc, realloc and free of ISO C. Buffers that the heap serves start on a 4 KiB boundary.
 * hugepin_realloc(p, 0) frees p and returns NULL, as glibc does. The caller owns the buffer until he frees it, on any
 * thread; buffers of hugepin_malloc must go to hugepin_free, except where libhugepin-malloc.so is loaded: then the two
 * families are one. May block (a lock, mostly held for less than a microsecond, by fork for the time of the copy; the kernel's
 * zeroing of new pages).
 * NULL with ENOMEM; hugepin_free leaves errno alone.
 * Not async-signal-safe; may be called from fork handlers and thread destructors.
 * Algorithm: address-ordered first fit over 4 KiB chunks without coalescing on free (Rex et al. 2006, section 3.2;
 * Wilson et al. 1995), found by packed summaries in a radix tree (the page allocator of Go 1.14). */
void *hugepin_malloc(size_t size);
void *hugepin_calloc(size_t count, size_t size);
void *hugepin_realloc(void *ptr, size_t size);
void hugepin_free(void *ptr);

/* A buffer aligned to `align`, a power of two. NULL with EINVAL for another `align`, with ENOMEM otherwise. An alignment
 * of HUGEPIN_LARGE_MIN or more is served by the heap whatever the size. Give back with hugepin_free. */
void *hugepin_aligned_alloc(size_t align, size_t size);

/* How many bytes may be used behind ptr: never less than was asked. 0 for NULL. Never blocks for a heap buffer. */
size_t hugepin_usable_size(const void *ptr);

/* ------------------------------------------------------------------ extents: hugepin_extent(3) */

/* What an extent's memory is made of. A mixed extent reports the weakest kind in it. */
enum { HUGEPIN_KIND_BASE = 0, HUGEPIN_KIND_THP = 1, HUGEPIN_KIND_HUGETLB = 2 };

/* A naturally aligned run of hugepages, the unit in which the heap maps memory and in which it should be registered.
 * gen tells two extents that had the same address apart. page_shift: log2 of the smallest page that backs it for certain
 * (12 for base pages and for THP, which the kernel may split; 21 for hugetlb). node: -1, no NUMA binding. */
struct hugepin_extent {
	void *addr;
	size_t len;
	uint64_t gen;
	uint32_t page_shift, kind;
	int32_t node;
	uint32_t pad;
};

/* Describe the extent that ptr (anywhere inside a heap buffer) lies in. `size` is sizeof *ret_: as many bytes are
 * written as both sides know. Returns the number of bytes the library knows, -ENOENT if ptr is not in the heap, -EINVAL
 * if ret_ is NULL or size is 0. Takes the heap's lock for some nanoseconds; may be called from a watcher. */
int hugepin_extent(const void *ptr, struct hugepin_extent *ret_, size_t size);

/* Call leaving(arg, extent) each time before memory leaves the heap: addr and len are the part that leaves, the rest
 * describes its extent. When the call returns, the kernel takes the pages.
 * The callback runs on the thread that gives the memory back: the service thread, a caller of hugepin_purge or
 * malloc_trim, or a thread whose allocation would otherwise fail. No lock of the heap is held: it may allocate and free;
 * it must not open or close stdio streams (a fork in another thread would wait for it for ever), nor call hugepin_watch, hugepin_unwatch (both -EDEADLK) or hugepin_purge (which then does nothing).
 * *ret_id is to be given to hugepin_unwatch. -EINVAL (no function or no ret_id), -ENOSPC (16 watchers), -EDEADLK. */
int hugepin_watch(void (*leaving)(void *arg, const struct hugepin_extent *), void *arg, int *ret_id);

/* End a watch. When it returns, the callback is not running and will not run again. -ENOENT, -EDEADLK. May block for as
 * long as a callback runs. */
int hugepin_unwatch(int id);

/* Give back now all memory of the heap that is wholly free, without waiting for the decay time. Returns 0. Blocks for
 * some microseconds a hugepage; does nothing inside a watcher. */
int hugepin_purge(void);

/* ------------------------------------------------------------------ statistics: hugepin_stats(3) */

/* X(name, unit, sentence). The one list that the struct, the printing at exit and hugepin_stats(3) are made from. New
 * members are added at the end. Units: B bytes now, n a number now, c a counter since the start, Bc bytes counted. */
#define HUGEPIN_STATS_LIST(X) \
	X(hugetlb_bytes, B, "heap memory mapped from the hugetlb pool") \
	X(thp_bytes, B, "heap memory mapped as transparent hugepages") \
	X(base_bytes, B, "heap memory mapped as base pages") \
	X(reserved_bytes, B, "part of hugetlb_bytes that is reserved but not yet populated") \
	X(taken_bytes, B, "heap addresses in buffers, with room behind them and freed ones kept for reuse") \
	X(taken_peak_bytes, B, "the most that taken_bytes has been") \
	X(listed_bytes, B, "freed buffers in the shared lists, not yet coalesced") \
	X(room_bytes, B, "address space kept free behind growing buffers") \
	X(extents, n, "extents that exist") \
	X(threads, n, "threads that own a cache") \
	X(mappings, n, "mappings of the process that the heap accounts for") \
	X(placed, c, "buffers cut from the tree") \
	X(relisted, c, "buffers taken from the shared lists") \
	X(cleared, c, "freed buffers coalesced") \
	X(pool_short, c, "hugepages that the pool refused at mmap") \
	X(pool_denied, c, "hugepages that were granted but could not be populated") \
	X(thp_failed, c, "mappings that could not be advised as THP") \
	X(nomem, c, "heap requests that ended in ENOMEM or in the tier below") \
	X(decayed_bytes, Bc, "memory given back after the decay time") \
	X(purged_bytes, Bc, "memory given back on request or under pressure") \
	X(grown_in_place, c, "reallocations that grew in place") \
	X(moved, c, "reallocations that copied") \
	X(commit_waits, c, "allocations that waited for another thread's pages") \
	X(stolen, c, "idle threads' caches emptied by the service thread") \
	X(forks_copied, c, "forks whose child got a copy of the pool's memory") \
	X(forks_cow, c, "forks left to the kernel's copy-on-write") \
	X(forks_uncovered, c, "forks_cow where the pool did not cover the heap: such a child may die") \
	X(forks_refused, c, "forks refused with ENOMEM") \
	X(fork_copied_bytes, Bc, "memory copied for children") \
	X(bad_pointers, c, "misuses reported (HUGEPIN_ABORT=0)") \
	X(small_bytes, B, "address space in use by the built-in small allocator") \
	X(service_wakeups, c, "times the service thread woke")

struct hugepin_stats {
	uint64_t version; /* HUGEPIN_VERSION of the library that filled it */
#define HUGEPIN_STATS_MEMBER(name, unit, sentence) uint64_t name;
	HUGEPIN_STATS_LIST(HUGEPIN_STATS_MEMBER)
#undef HUGEPIN_STATS_MEMBER
};

/* Copy the statistics. `size` is sizeof *ret_: as many bytes are written as both sides know. Returns the number of bytes
 * the library knows; -EINVAL if ret_ is NULL. Each member is exact at some moment of the call, not all at the same.
 * Never blocks. */
int hugepin_stats(struct hugepin_stats *ret_, size_t size);

/* The statistics live on a page of their own, which another process may read through /proc/PID/mem: it is the object
 * that the dynamic symbol hugepin_stats_page of libhugepin.so names (not declared here, so that no program makes a copy of
 * it by a copy relocation). magic is HUGEPIN_STATS_MAGIC once the heap is in use. */
#define HUGEPIN_STATS_MAGIC UINT64_C(0x6875676570696e31) /* "hugepin1" */
struct hugepin_stats_page {
	uint64_t magic, size; /* size: sizeof(struct hugepin_stats) */
	struct hugepin_stats stats;
};

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
