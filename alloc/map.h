/*
 * The system calls that map memory for the heap, advise it and unmap it. Fork's handlers (fork.c, move.c, copy.c) make
 * such calls themselves, with hp_heap_lock held. All other callers must hold no lock of the heap (debug builds assert
 * it).
 *
 * Pages of the pool need Linux 5.16, for MADV_POPULATE_WRITE (5.14) and mremap of hugetlb pages. Older kernels refuse
 * these calls, and the heap uses THP.
 *
 * Memory that comes into use is mapped by raw system calls (base/map.h), which no hook sees. Reserving the span and
 * giving memory back go through the C library's functions, which hooks see.
 *
 * All addresses and lengths are multiples of HP_PAGE and lie in a reserved span. Functions return 0 or -errno and leave
 * errno alone.
 */
#ifndef HP_ALLOC_MAP_H
#define HP_ALLOC_MAP_H

#include "base/lock.h"

/* Whether a hook comes between us and the kernel: a function with the name of one of the C library's, or a jump written
 * into the C library's code. A hook may allocate and take locks, so it has to run on a thread that the C library
 * knows. */
bool hp_map_hooked(void);

/* Reserve address space, aligned to `align`, without access or memory, and not dumped. Its place is random, unless the
 * process's addresses are not. Sets *ret_base and returns 0, or returns -ENOMEM. */
int hp_map_reserve(size_t size, size_t align, uintptr_t *ret_base);

/* Map hugetlb pages of 1 << shift bytes, reserved in the pool for this mapping alone (never MAP_NORESERVE). */
int hp_map_hugetlb(uintptr_t at, size_t len, unsigned shift);

/* Make anonymous memory accessible; thp: advise THP. Does not populate it. Returns HUGEPIN_KIND_THP, HUGEPIN_KIND_BASE
 * or -errno. */
int hp_map_normal(uintptr_t at, size_t len, bool thp);

/* Keep THP out of memory that hp_map_normal() has made accessible, because some kernels give THP unasked. */
void hp_map_avoid_thp(uintptr_t at, size_t len);

/* Have the kernel make hugepages of base pages that are there (Linux 6.1), in one attempt. It refuses if a device has
 * pinned one. */
int hp_map_collapse(uintptr_t at, size_t len);

/* Allocate the pages now, so that a shortage appears here and never as SIGBUS at an access. A hugetlb cgroup's fault
 * limit kills even after mmap was granted. */
int hp_map_populate(uintptr_t at, size_t len);

/* Give memory back to the kernel, but keep the addresses reserved. This maps over the memory, because only that returns
 * hugetlb pages to all users of the pool, whereas MADV_DONTNEED returns them to the mapping's own reservation. */
int hp_map_release(uintptr_t at, size_t len);

/* The NUMA nodes from which memory is to come. */
struct hp_nodes {
	enum { HP_NODES_LOCAL, HP_NODES_INTERLEAVE, HP_NODES_ONE } policy;
	int node; /* for HP_NODES_ONE; else -1 */
	uint64_t mask[16];
};

/* Choose the nodes for HUGEPIN_NUMA, and try them on the page at `at`. Returns 0, or -errno if the kernel does not let
 * us have memory there. */
int hp_map_choose_nodes(int64_t numa, uintptr_t at, struct hp_nodes *ret_);

/* Let memory that is not populated yet come from those nodes. strict: from no other nodes, so that populating fails if
 * they are short; otherwise other nodes help out. If the kernel refuses, memory comes from any node. Makes one raw
 * system call. */
int hp_map_bind(uintptr_t at, size_t len, const struct hp_nodes *nodes, bool strict);

/* Hugepages of 1 << shift bytes that are neither used nor reserved, on a node (-1: on all). 0 if there is no pool. */
size_t hp_map_pool_free(unsigned shift, int node);

/* Whether the kernel gives THP of any size to memory that is advised. hp_map_thp_allows() decides from the text of the
 * kernel's files, the one for all sizes and those of each size; "": no such file. A kernel without the latter has one
 * size, which may be larger than a page of the heap. Pure. */
bool hp_map_thp_allows(const char *global, const char *const *sizes, size_t count);
bool hp_map_thp_enabled(void);

#endif
