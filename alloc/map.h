/*
 * The mapping tier's system calls: memory for the heap is mapped, advised and unmapped here. Fork's handlers (fork.c,
 * move.c, copy.c) do so themselves, with the lock held. Pages of the pool need Linux 5.16, for MADV_POPULATE_WRITE
 * (5.14) and mremap of hugetlb pages; older kernels refuse these, and THP is used. What comes into use comes straight
 * from the kernel (base/map.h); reserving, once, and giving back are calls that others see. All addresses and lengths
 * are multiples of HP_PAGE and lie in a reserved span. Functions return 0 or -errno and leave errno alone. No lock of
 * the heap may be held (debug builds assert it), except in fork's handlers, which do without.
 */
#ifndef HP_ALLOC_MAP_H
#define HP_ALLOC_MAP_H

#include "base/lock.h"

/* Whose absence is asserted; pages.c has it. */
extern struct hp_lock hp_heap_lock;

/* Whether somebody comes between us and the kernel, by functions of their own with the C library's names, or by jumps
 * written into the C library's. Such code may allocate and take locks, so that it has to run on a thread that the C
 * library knows. */
bool hp_map_hooked(void);

/* Reserve address space: no access, no memory, not dumped, aligned to `align`, at a random place, unless the process is
 * one whose addresses are not random. *ret_base and 0, or -ENOMEM. */
int hp_map_reserve(size_t size, size_t align, uintptr_t *ret_base);

/* Hugetlb pages of 1 << shift bytes, reserved in the pool for this mapping alone (never MAP_NORESERVE). */
int hp_map_hugetlb(uintptr_t at, size_t len, unsigned shift);

/* Anonymous memory; thp: advised as such. Returns HUGEPIN_KIND_THP, HUGEPIN_KIND_BASE or -errno. Not populated. */
int hp_map_normal(uintptr_t at, size_t len, bool thp);

/* Allocate the pages now, so that shortage shows here and never as SIGBUS at a touch: under a hugetlb cgroup's fault
 * limit a granted mmap still kills. */
int hp_map_populate(uintptr_t at, size_t len);

/* Give memory back to the kernel; the addresses stay reserved. Mapping over is the one way that returns hugetlb pages
 * to everybody: MADV_DONTNEED returns them to the mapping's own reservation. */
int hp_map_release(uintptr_t at, size_t len);

/* Which NUMA nodes memory is to come from. */
struct hp_nodes {
	enum { HP_NODES_LOCAL, HP_NODES_INTERLEAVE, HP_NODES_ONE } policy;
	int node; /* of HP_NODES_ONE; else -1 */
	uint64_t mask[16];
};

/* The nodes for HUGEPIN_NUMA. 0, or -errno: the kernel does not let us have memory there; tried on the page at `at`. */
int hp_map_choose_nodes(int64_t numa, uintptr_t at, struct hp_nodes *ret_);

/* Have memory that is not populated yet come from those nodes. strict: from no others; populating fails when they are
 * short. Otherwise other nodes help out. One raw system call. Memory that cannot be bound stays where it is. */
int hp_map_bind(uintptr_t at, size_t len, const struct hp_nodes *nodes, bool strict);

/* Hugepages of 1 << shift bytes that are neither used nor reserved, on a node (-1: on all). 0 where there is no
 * pool. */
size_t hp_map_pool_free(unsigned shift, int node);

/* Whether the kernel gives THP of any size on advice. allows: by its files, the one for all sizes and those of each;
 * "": there is none. Pure. */
bool hp_map_thp_allows(const char *global, const char *const *sizes, size_t count);
bool hp_map_thp_enabled(void);

/* vm.max_map_count. */
size_t hp_map_count_max(void);

#endif
