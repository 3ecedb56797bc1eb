/*
 * Finds the parts of the heap's memory that were written to since the last hp_written_each(). A userfaultfd with
 * asynchronous write protection makes the kernel note writes, and PAGEMAP_SCAN lists them (Linux 6.7). No thread waits,
 * and no privilege is needed. Writes by devices are not noted.
 *
 * Raw system calls. One user at a time: fork's prepare handler, with hp_heap_lock held. hp_written_end() closes the
 * descriptors.
 */
#ifndef HP_ALLOC_WRITTEN_H
#define HP_ALLOC_WRITTEN_H

#include "base/base.h"

/* False: the kernel cannot do this, or a filter of system calls is in force, which might end the process for an unknown
 * call. */
bool hp_written_begin(void);

/* Note writes to [start, end) from now on. Both are multiples of a hugepage. False: another userfaultfd watches a part
 * of the range, for instance the pin cache's, which watches registered memory. */
bool hp_written_watch(uintptr_t start, uintptr_t end);

/* Call each() for every part of [start, end) that was written to since the last call, or since hp_written_watch().
 * Parts consist of whole pages of the kernel's. False: the writes are no longer known. */
bool hp_written_each(uintptr_t start, uintptr_t end, void (*each)(uintptr_t start, uintptr_t end));

void hp_written_end(void);

#endif
