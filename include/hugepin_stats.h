/* hugepin: the statistics of the heap. The guide is hugepin_stats(3). The rules for all functions stand in hugepin.h,
 * which programs include. */
#ifndef HUGEPIN_STATS_H
#define HUGEPIN_STATS_H

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

/* X(name, unit, sentence): the one list behind the struct, the printing at exit and hugepin_stats(3). New members go to
 * the end. Units: B bytes now, n a number now, c a counter since the start, Bc bytes counted. */
#define HUGEPIN_STATS_LIST(X) \
	X(hugetlb_bytes, B, "heap memory mapped from the hugetlb pool") \
	X(thp_bytes, B, "heap memory that lies in transparent hugepages") \
	X(base_bytes, B, "heap memory that lies in base pages, or was mapped for THP and is not there yet") \
	X(reserved_bytes, B, "part of hugetlb_bytes that is reserved but not yet populated") \
	X(taken_bytes, B, "heap addresses in buffers, in the room behind them, and in freed buffers kept for reuse") \
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
	X(nomem, c, "requests that the heap could not serve; they got ENOMEM or went to the tier below") \
	X(decayed_bytes, Bc, "memory given back after the decay time") \
	X(purged_bytes, Bc, "memory given back on request or under pressure") \
	X(grown_in_place, c, "reallocations that grew in place") \
	X(moved, c, "reallocations that copied") \
	X(commit_waits, c, "allocations that waited for another thread's pages") \
	X(stolen, c, "idle threads' caches that another thread emptied") \
	X(forks_copied, c, "forks that copied memory of the pool, or registered memory") \
	X(forks_cow, c, "forks left to the kernel's copy-on-write") \
	X(forks_uncovered, c, "forks_cow where the pool did not cover the heap: such a child may die") \
	X(forks_refused, c, "forks refused with ENOMEM") \
	X(fork_copied_bytes, Bc, "memory copied for children") \
	X(bad_pointers, c, "misuses reported (HUGEPIN_ABORT=0)") \
	X(small_bytes, B, "address space in use by the built-in small allocator") \
	X(service_wakeups, c, "times that the library's threads woke") \
	X(small_outside_bytes, B, "memory of the built-in small allocator outside the range that is set aside for it") \
	X(sparse_bytes, Bc, "memory mapped in base pages since the program touches little of its large buffers") \
	X(repaired_bytes, Bc, "memory of which hugepages were made later, where there had been none for THP") \
	X(image_bytes, B, "HUGEPIN_IMAGE: the program's own bss, data and text that was advised or put in hugepages") \
	X(image_left_bytes, B, "HUGEPIN_IMAGE: of what was asked for, memory that was left alone") \
	X(watched_ranges, n, "ranges outside the heap that the kernel watches for the pin cache") \
	X(fork_longest_us, n, "microseconds that copying memory for a child took at most") \
	X(deepbinds_ignored, c, "modules that were opened as if without RTLD_DEEPBIND (HUGEPIN_DEEPBIND)")

struct hugepin_stats {
	uint64_t version; /* HUGEPIN_VERSION of the library that filled it */
#define HUGEPIN_STATS_MEMBER(name, unit, sentence) uint64_t name;
	HUGEPIN_STATS_LIST(HUGEPIN_STATS_MEMBER)
#undef HUGEPIN_STATS_MEMBER
};
typedef struct hugepin_stats hugepin_stats_t;

/* Copy the statistics. `size` is sizeof *ret_: the library writes as many bytes as both sides know. Returns the number
 * of bytes the library knows. -EINVAL: ret_ is NULL. Each member is exact at some moment of the call, but not all at
 * the same moment. Never blocks. */
int hugepin_stats(struct hugepin_stats *ret_, size_t size);

/* The summary of HUGEPIN_STATS=1, for a library of a job's launcher that writes one for all processes. The numbers of a
 * process are opaque bytes, aligned as for malloc(), which another process with the same libhugepin.so understands. Zeros
 * are those of a process that has nothing to tell.
 *  hugepin_summary       the numbers of this process so far to ret_run, if size is enough for them. Returns their size in
 *                        bytes, which does not change
 *  hugepin_summary_add   add the numbers of a process of higher rank, or a sum of such, to *sum. In any grouping
 *  hugepin_summary_text  write the lines to text, terminated. Returns their length: 0 if there is nothing to tell
 *  hugepin_summary_told  this process prints no summary of its own at exit
 * Any thread. */
size_t hugepin_summary(void *ret_run, size_t size);
void hugepin_summary_add(void *sum, const void *run);
size_t hugepin_summary_text(const void *run, char *text, size_t size);
void hugepin_summary_told(void);

/* The statistics lie on a page of their own. Another process may read it through /proc/PID/mem, at the dynamic symbol
 * hugepin_stats_page of libhugepin.so. No header declares the symbol, so that no program makes a copy of the page by a
 * copy relocation. magic is HUGEPIN_STATS_MAGIC once the heap is in use. */
#define HUGEPIN_STATS_MAGIC UINT64_C(0x6875676570696e31) /* "hugepin1" */
struct hugepin_stats_page {
	uint64_t magic, size; /* size: sizeof(struct hugepin_stats) */
	struct hugepin_stats stats;
};

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif
#endif
