/* hugepin: large buffers in hugepages, and the extents that they lie in. The guides are hugepin_malloc(3) and
 * hugepin_extent(3). The rules for all functions stand in hugepin.h, which programs include. */
#ifndef HUGEPIN_MALLOC_H
#define HUGEPIN_MALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
/* A struct and a function of one name: to C++, the function hides a constructor that nobody calls. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* The smallest request, in bytes, that the heap serves from hugepages. Smaller requests go to the next malloc down
 * (Rex, Mietke, Rehm 2006, section 3.2, item 1). */
#define HUGEPIN_LARGE_MIN 32768

/* As malloc, calloc, realloc and free of ISO C. Buffers that the heap serves start with a base page.
 * hugepin_realloc(p, 0) frees p and returns NULL, as glibc does.
 * The caller owns the buffer until he frees it, on any thread. Buffers of hugepin_malloc must go to hugepin_free. If
 * libhugepin-malloc.so is loaded, the two families are one.
 * Errors: NULL with ENOMEM. hugepin_free leaves errno alone.
 * May block: on a lock, mostly held for less than a microsecond (fork holds it for the time of the copy), and while the
 * kernel zeroes new pages. Not async-signal-safe. May be called from fork handlers and thread destructors.
 * Algorithm: lists of freed buffers by class of length before an address-ordered first fit over 4 KiB chunks, with
 * coalescing only when lists are emptied (Rex et al. 2006, section 3.2; Wilson et al. 1995, section 3.4). */
void *hugepin_malloc(size_t size);
void *hugepin_calloc(size_t count, size_t size);
void *hugepin_realloc(void *ptr, size_t size);
void hugepin_free(void *ptr);

/* A buffer aligned to `align`, a power of two. NULL with EINVAL for another `align`, with ENOMEM otherwise. The heap
 * serves an alignment of HUGEPIN_LARGE_MIN or more, whatever the size. Give back with hugepin_free. */
void *hugepin_aligned_alloc(size_t align, size_t size);

/* The number of bytes that may be used from ptr on: never less than was asked for. 0 for NULL. Never blocks for a heap
 * buffer. */
size_t hugepin_usable_size(const void *ptr);

/* ------------------------------------------------------------------ extents: hugepin_extent(3) */

/* The kind of memory in an extent. A mixed extent reports the weakest kind in it. */
enum { HUGEPIN_KIND_BASE = 0, HUGEPIN_KIND_THP = 1, HUGEPIN_KIND_HUGETLB = 2 };

/* An extent is a naturally aligned run of hugepages. The heap maps memory by extents, and memory should be registered
 * by extents. gen differs between two extents that had the same address. page_shift is log2 of the smallest page that
 * certainly backs the extent: that of base pages, 12 where they have 4 KiB, also for THP (the kernel may split them); 21
 * or 30 for hugetlb. node is that of HUGEPIN_NUMA, or -1. */
struct hugepin_extent {
	void *addr;
	size_t len;
	uint64_t gen;
	uint32_t page_shift, kind;
	int32_t node;
	uint32_t pad;
};
typedef struct hugepin_extent hugepin_extent_t;

/* Describe the extent that contains ptr, an address anywhere inside a heap buffer. `size` is sizeof *ret_: the library
 * writes as many bytes as both sides know. Returns the number of bytes the library knows. -ENOENT: ptr is not in the
 * heap. -EINVAL: ret_ is NULL or size is 0. Takes the heap's lock for some nanoseconds. A watcher may call it. */
int hugepin_extent(const void *ptr, struct hugepin_extent *ret_, size_t size);

/* Call leaving(arg, extent) each time before memory leaves the heap. addr and len are the part that leaves; the other
 * members describe its extent. The kernel takes the pages when the callback returns.
 * The callback runs on the thread that gives the memory back: the service thread, a caller of hugepin_purge or
 * malloc_trim, or a thread whose allocation would otherwise fail. No lock of the heap is held, so the callback may
 * allocate and free. It must not open or close stdio streams: a fork in another thread would wait for it for ever. It
 * must not call hugepin_watch or hugepin_unwatch (both return -EDEADLK), nor hugepin_purge (which then does nothing).
 * Give *ret_id to hugepin_unwatch. -EINVAL (no function or no ret_id), -ENOSPC (16 watchers), -EDEADLK, -ENOMEM
 * (RLIMIT_DATA does not let the list be written). */
int hugepin_watch(void (*leaving)(void *arg, const struct hugepin_extent *), void *arg, int *ret_id);

/* End a watch. When this returns, the callback is not running and will not run again. -ENOENT, -EDEADLK. May block for
 * as long as a callback runs. */
int hugepin_unwatch(int id);

/* Give back all memory of the heap that is wholly free now, without waiting for the decay time. Returns 0. Blocks for
 * some microseconds a hugepage. Does nothing inside a watcher. */
int hugepin_purge(void);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif
#endif
