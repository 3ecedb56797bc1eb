/*
 * Giving memory back to the kernel: which hugepages are free for long enough, and what a purge empties before.
 *
 * All functions: hp_heap_lock held.
 */
#ifndef HP_ALLOC_BACK_H
#define HP_ALLOC_BACK_H

#include "alloc/pages.h"

/* Give-back by decay keeps so many free hugepages. */
#define HP_WATERMARK 1

/* Whether a page is wholly free since so many ticks. */
bool hp_page_is_free(size_t page, uint32_t ticks);

/* Give back hugepages of [first, end) that are wholly free for `ticks`, all but `keep` of those that are not giant.
 * Returns their bytes. may_wait: for a fork to pass. Releases the lock meanwhile. */
size_t hp_give_back(size_t first, size_t end, uint32_t ticks, size_t keep, bool may_wait);

/* Whether there is more to give back, by and by. held_too: of pages that domains hold, too. */
bool hp_more_to_give(bool held_too);

/* Bytes that are mapped, but in no live buffer as far as is known without asking the threads; or kept of a fork's
 * copy. */
size_t hp_idle_bytes(void);

/* Give back freed buffers that were kept inaccessible for long enough (HUGEPIN_GUARD), or all. */
void hp_unguard(bool all);

/* Give back all that can be given back. Returns bytes. */
size_t hp_purge(bool may_wait);

#endif
