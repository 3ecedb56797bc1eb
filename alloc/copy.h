/*
 * A copy of live buffers, by hugepage, in memory outside the pool. The copy is for the child of a fork (fork.c), or
 * takes the originals' place (move.c), and at most one exists at a time. It has the pages with hp_page.fork ==
 * HP_PAGE_COPIED, packed: the n-th marked page, in address order, is the n-th hugepage of the copy.
 *
 * All functions: the caller holds hp_heap_lock, in fork's handlers or before them. They make raw system calls only.
 */
#ifndef HP_ALLOC_COPY_H
#define HP_ALLOC_COPY_H

#include "alloc/pages.h"

/* Bytes of memory that must remain free for the rest of the machine when a copy is made. */
#define HP_COPY_MARGIN ((uint64_t)64 << 20)

/* Whether the child's part of fork() uses page p before our handler runs there. These are the pages of the running
 * stack, of the thread-local data of the C library and of ours, and of the C library's list of all threads'
 * descriptors. For a part of a giant page: whether fork() uses any part of the giant page. */
bool hp_copy_is_early(size_t p);

/* Mark each page with live buffers as fate() says. listed_too: also pages with LISTED buffers. Returns the number of
 * pages that became HP_PAGE_COPIED. */
size_t hp_copy_mark(enum hp_page_fork (*fate)(size_t p), bool listed_too);
void hp_copy_unmark(void);
bool hp_copy_is_marked(size_t p);

/* Call each(arg, first, end) for every run of neighbouring pages for which take() is true. Stops when each() returns
 * other than 0, and returns that value. */
int hp_copy_runs(bool (*take)(size_t p), int (*each)(void *arg, size_t first, size_t end), void *arg);

/* Bytes that a copy of so many pages may use: what the machine and the process's memory cgroups allow, plus the memory
 * that is kept for a copy. UINT64_MAX: unknown. Drops the kept memory if this copy cannot use it. */
uint64_t hp_copy_room(size_t pages);

/* Whether the process's limits on addresses and data, and the kernel's overcommit, allow mapping a copy of so many
 * pages. */
bool hp_copy_may_map(size_t pages);

/* Whether the process may have so many more mappings. Takes a system call for each two. */
bool hp_copy_may_split(size_t mappings);

/* Map memory for a copy of so many pages, as one mapping. There must be no copy yet, but there may be kept memory.
 * False: it cannot be mapped. */
bool hp_copy_map(size_t pages);

/* Fill the copy with the live buffers of the marked pages, and with zeros between them. Each page is filled as
 * soon as it is populated, while it is in the processor's cache. again: copy only pages with page.again set. False:
 * there is no memory, or a part could not be read. */
bool hp_copy_fill(bool again, bool listed_too);

/* Leave the copy out of core dumps. False: the kernel refused. */
bool hp_copy_hide(void);

/* Move the next hugepages of the copy, beginning with its first, to [first, end). Returns `end`, or the first page that
 * could not be moved, at which the old mapping or none remains. */
size_t hp_copy_put(size_t first, size_t end);

/* Unmap the rest of the copy, or the memory that is kept. Returns bytes. */
size_t hp_copy_drop(void);

/* Keep the copy's memory for the next copy, or drop it if as much again could not be mapped. */
void hp_copy_keep(void);

/* Bytes of memory kept between two forks. */
size_t hp_copy_kept(void);

/* Drop memory that was kept for so many ticks. Returns whether memory is still kept. */
bool hp_copy_age(uint32_t ticks);

#endif
