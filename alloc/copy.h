/*
 * A copy of live buffers, by hugepage, in memory that is not the pool's. It is for the child of a fork (fork.c), or
 * takes the originals' place (move.c). There is one copy at a time. hp_page.fork says which pages are copied:
 * HP_PAGE_COPIED. The copy is packed: the n-th page so marked, in address order, is the n-th hugepage of the copy.
 *
 * All functions: hp_heap_lock held, in fork's handlers or before them; raw system calls.
 */
#ifndef HP_ALLOC_COPY_H
#define HP_ALLOC_COPY_H

#include "alloc/pages.h"

/* Left to the rest of the machine when a copy is made, in bytes. */
#define HP_COPY_MARGIN ((uint64_t)64 << 20)

/* Whether the child's part of fork() works on page p before our handler runs there. Such are the pages of the running
 * stack, of what the C library and we keep for this thread, and of the C library's descriptors of all threads, which
 * are in a list. Of a giant page: whether it works on any part. */
bool hp_copy_is_early(size_t p);

/* Mark the pages with live buffers, and with LISTED ones if listed_too, as fate() says. Returns how many are
 * HP_PAGE_COPIED. */
size_t hp_copy_mark(enum hp_page_fork (*fate)(size_t p), bool listed_too);
void hp_copy_unmark(void);
bool hp_copy_is_marked(size_t p);

/* Call each(arg, first, end) for every run of neighbouring pages for which take() says so, until it returns other than
 * 0. */
int hp_copy_runs(bool (*take)(size_t p), int (*each)(void *arg, size_t first, size_t end), void *arg);

/* Bytes that a copy of so many pages may take, as the machine and the memory cgroups of the process say, and what is
 * kept for it. UINT64_MAX: nobody says. Kept memory that will not do is dropped. */
uint64_t hp_copy_room(size_t pages);

/* Whether the limits on addresses, data and overcommit let a copy of so many pages be mapped. */
bool hp_copy_may_map(size_t pages);

/* Map memory for a copy of so many pages, where there is no copy yet. The memory is populated and one mapping; it is
 * zero, or what is kept. False: there is no memory. */
bool hp_copy_map(size_t pages);

/* Fill the copy with the live buffers of the pages marked, and zeros between them; again: of those marked `again` only.
 * False: something could not be read. */
bool hp_copy_fill(bool again, bool listed_too);

/* Have the copy left out of core dumps. False: the kernel refused. */
bool hp_copy_hide(void);

/* Put the next hugepages of the copy, beginning with its first, in the place of [first, end). Returns where that had to
 * end: at that page lies what lay there, or nothing. */
size_t hp_copy_put(size_t first, size_t end);

/* Drop what was not put anywhere, or is kept. Returns its bytes. */
size_t hp_copy_drop(void);

/* Keep the copy's memory for the next copy, if as much again could be mapped; else it is dropped. */
void hp_copy_keep(void);

/* Bytes that are kept, between one fork and the next. */
size_t hp_copy_kept(void);

/* Drop what is kept for so many ticks. Returns whether something is kept. */
bool hp_copy_age(uint32_t ticks);

#endif
