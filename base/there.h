/*
 * How much memory a range has, by /proc/self/pagemap (Linux 6.7) or /proc/self/smaps. These functions find the memory
 * that the kernel gave, because it may give base pages where the heap asks for transparent hugepages. Makes raw system
 * calls.
 */
#ifndef HP_BASE_THERE_H
#define HP_BASE_THERE_H

#include "base/base.h"

/* Bytes in memory, without those that read as zero and were never written. */
struct hp_there {
	size_t huge; /* in hugepages of 2 MiB; pagemap also counts those of the pool */
	size_t other;
};

/* Whether the kernel tells about a range in one call (Linux 6.7). Otherwise each call of hp_there() reads the list of
 * all mappings. */
bool hp_there_is_quick(void);

/* Add the memory in [start, end) to *there. start and end are bounds of hugepages. With smaps, mappings are counted as
 * wholes. Takes microseconds for each GiB in hugepages, and milliseconds for each GiB in base pages. False: the kernel
 * does not tell. */
bool hp_there(uintptr_t start, uintptr_t end, struct hp_there *there);

/* Bytes from which hp_there_each() is worth its calls. It also opens a descriptor, and another thread may be about to
 * use that number. */
#define HP_BY_PARTS ((size_t)32 << 20)

/* Call each(arg, from, to) for the parts of [start, end), private memory, that may have been written to, in their
 * order, cut off at start and end. All else reads as zeros. Takes microseconds for each GiB in hugepages,
 * and milliseconds before Linux 6.7 or for each GiB in base pages. False: the kernel does not tell, or the program has
 * a filter of system calls; each() may have been called for some of the parts. */
bool hp_there_each(uintptr_t start, uintptr_t end, void (*each)(void *arg, uintptr_t from, uintptr_t to), void *arg);

/* Copy private memory without a touch of parts that have none, which are zeros in the copy: a userfaultfd of the
 * program's would make the touch wait for the program. If the kernel does not tell, all is touched. */
void hp_there_copy(void *to, const void *from, size_t len);

#endif
