/*
 * How much memory a range has, by /proc/self/pagemap (Linux 6.7) or /proc/self/smaps. The kernel is asked for
 * transparent hugepages and gives what it has: this tells what that was. Raw system calls.
 */
#ifndef HP_BASE_THERE_H
#define HP_BASE_THERE_H

#include "base/base.h"

/* Bytes, without those that read as zero and were never written. */
struct hp_there {
	size_t huge; /* in hugepages of 2 MiB, the pool's too with the first way */
	size_t other;
};

/* Whether the kernel tells of ranges in one call each (Linux 6.7). Else each time the list of all mappings is read. */
bool hp_there_is_quick(void);

/* Add what is there of [start, end), in whole hugepages; the second way tells of mappings as wholes. Takes microseconds
 * for each GiB in hugepages, and milliseconds in base pages. False: the kernel does not say. */
bool hp_there(uintptr_t start, uintptr_t end, struct hp_there *there);

#endif
