/*
 * Giving memory back to the kernel: which hugepages have been free long enough, and what a purge empties first.
 *
 * All functions: the caller holds hp_heap_lock.
 */
#ifndef HP_ALLOC_BACK_H
#define HP_ALLOC_BACK_H

#include "alloc/pages.h"

/* Decay keeps so many free hugepages. */
#define HP_WATERMARK 1

/* Whether a page has been wholly free for so many ticks. */
bool hp_page_is_free(size_t page, uint32_t ticks);

/* Give back hugepages of [first, end) that have been wholly free for `ticks`, but keep `keep` free hugepages; giant
 * pages do not count. may_wait: if a fork is waiting, wait for it; otherwise end early. Returns bytes. Releases the
 * lock meanwhile. */
size_t hp_give_back(size_t first, size_t end, uint32_t ticks, size_t keep, bool may_wait);

/* Whether there will be more pages to give back later. held_too: count pages that domains hold, too. */
bool hp_more_to_give(bool held_too);

/* Bytes that are mapped but in no live buffer, and bytes of a copy that is kept for the next fork. Buffers in threads'
 * caches count as live. */
size_t hp_idle_bytes(void);

/* Give back all memory that can be given back. Returns bytes. may_wait: as for hp_give_back(). */
size_t hp_purge(bool may_wait);

#endif
