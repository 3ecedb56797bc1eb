/*
 * Which of the heap's memory any thread has written to since the last hp_written_each(). A userfaultfd with
 * asynchronous write protection makes the kernel note writes. PAGEMAP_SCAN lists them (Linux 6.7). Nobody waits for
 * anybody, and no privilege is needed. Writes of devices are not noted.
 *
 * Raw system calls. One user at a time: fork's prepare handler, with hp_heap_lock held. hp_written_end() closes the
 * descriptors.
 */
#ifndef HP_ALLOC_WRITTEN_H
#define HP_ALLOC_WRITTEN_H

#include "base/base.h"

/* False: the kernel cannot; or a filter of system calls is in force, which may end who calls what it does not know. */
bool hp_written_begin(void);

/* Note what is written to in [start, end) from now on: multiples of a hugepage. False: somebody else watches a part of
 * it, the pin cache of what is registered, say. */
bool hp_written_watch(uintptr_t start, uintptr_t end);

/* Call each() for every range of [start, end) that was written to since it was asked for last, or since watch: whole
 * pages of those that the memory is made of. False: it is not known any more. */
bool hp_written_each(uintptr_t start, uintptr_t end, void (*each)(uintptr_t start, uintptr_t end));

void hp_written_end(void);

#endif
