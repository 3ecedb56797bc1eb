/* See leave.h. */
#include "alloc/leave.h"

#include "alloc/cache.h"
#include "alloc/place.h"
#include "alloc/start.h"

/* False: the page is not the pool's, or is leaving already. */
static bool begin_to_leave(size_t page)
{
	struct hp_page *g = &hp_span.page[page];
	size_t c = page << HP_PAGE_CHUNKS_SHIFT, in_use = HP_PAGE_CHUNKS;

	if (g->leaves || g->giant || g->kind != HUGEPIN_KIND_HUGETLB ||
	    (g->state != HP_PAGE_READY && g->state != HP_PAGE_RESERVED))
		return false;
	for (size_t end = c + HP_PAGE_CHUNKS, gap; c < end; c += gap ? gap : 1) {
		gap = hp_holes_after(&hp_span.holes, c, end - c);
		if (!gap)
			continue;
		hp_chunks_set_taken(c, gap);
		in_use -= gap;
	}
	g->leaves = 1;
	g->in_use = in_use & 0x7fff;
	hp_span.left += hp_page_has_left(page);
	return true;
}

void hp_leave_pool(void)
{
	bool any = false;

	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
		any |= begin_to_leave(p);
	if (!any)
		return;
	/* Make an interrupted free() look again. A signal handler of this thread may fork after that free() has read
	 * that its buffer is LIVE, and before it enters the cache; it then finds the cache shut, and reads the word
	 * again. */
	hp_cache_shut_own();
	/* Make the buffers on these pages ROOMY, so that a freed one returns to the tree, not to a list. */
	for (size_t c = HP_PAGE_CHUNKS; c < hp_span.end[HP_PART_HEAP] << HP_PAGE_CHUNKS_SHIFT;) {
		uint64_t w = hp_chunk_get(c);

		if (hp_span.page[hp_page_of(c)].state == HP_PAGE_NONE) {
			c = (hp_page_of(c) + 1) << HP_PAGE_CHUNKS_SHIFT;
			continue;
		}
		if (HP_CHUNK_STATE(w) == HP_CHUNK_LIVE && hp_buffer_leaves(c, HP_CHUNK_COUNT(w)))
			hp_chunk_set(c, w ^ HP_CHUNK_LIVE ^ HP_CHUNK_ROOMY);
		c += HP_CHUNK_STATE(w) == HP_CHUNK_FREE ? 1 : hp_chunk_extent(c);
	}
}

void hp_leave_end(void)
{
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP] && hp_span.left; p++) {
		if (!hp_page_has_left(p))
			continue;
		hp_span.left--;
		hp_span.page[p].leaves = 0;
		hp_chunks_set_free(p << HP_PAGE_CHUNKS_SHIFT, HP_PAGE_CHUNKS);
		hp_span.holes.stamps[p] = hp_span.holes.now - HP_TICKS - 1;
	}
}
