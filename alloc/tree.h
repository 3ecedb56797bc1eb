/*
 * The free chunks of the whole span. Each hugepage has a bitmap of its free chunks. Above the bitmaps stands a radix
 * tree of summaries with fan-out 8; each level is one flat array (Go's page allocator, mpagealloc.go). The tree finds
 * holes in address order.
 *
 * A root covers 8 GiB of the span. Roots are searched one after another. The caller locks.
 */
#ifndef HP_ALLOC_TREE_H
#define HP_ALLOC_TREE_H

#include "alloc/hpage.h"

#define HP_TREE_LEVELS 5 /* hugepage (2 MiB), 16 MiB, 128 MiB, 1 GiB, 8 GiB */

struct hp_tree {
	size_t pages; /* hugepages of the span, a multiple of 8^4 */
	size_t upper; /* first page of the part that is searched separately; `pages` if there is no such part */
	/* Searches end here, below `upper` and above it: no page at or behind this was ever freed. */
	size_t used, upper_used;
	struct hp_map512 *maps;
	hp_sum *sums[HP_TREE_LEVELS];
	uint64_t *dirty[HP_TREE_LEVELS]; /* nodes to recompute; all clear between calls of hp_tree_settle() */
	size_t dirty_from[HP_TREE_LEVELS], dirty_to[HP_TREE_LEVELS]; /* the range of words of `dirty` to look at */
	uint64_t *starts; /* a bit for each page: an extent begins there */
	uint32_t *stamps; /* per page: the value of `now` when the page became wholly free */
	uint32_t now;
};

struct hp_hole {
	size_t start, len; /* chunks */
};

/* Bytes of table memory for a tree of so many pages. hp_tree_init() takes them at `memory`, zeroed. */
size_t hp_tree_size(size_t pages);
void hp_tree_init(struct hp_tree *t, size_t pages, void *memory);

/* Mark chunks free or taken. All of them must be in the other state. hp_tree_settle() must follow before any search;
 * several changes may share one call of it. */
void hp_tree_free(struct hp_tree *t, size_t chunk, size_t count);
void hp_tree_take(struct hp_tree *t, size_t chunk, size_t count);
void hp_tree_settle(struct hp_tree *t);

/* The first maximal free run of at least n chunks that begins at or after chunk `from`. `from` must not lie inside a
 * free run: it is 0, or the end of a hole found before. Searches the side of `upper` on which `from` lies; the first
 * chunk of page `upper` counts as the lower side. False: there is none. */
bool hp_tree_next_hole(const struct hp_tree *t, size_t from, size_t n, struct hp_hole *ret_hole);

/* The number of free chunks from `chunk` on, at most `most`. */
size_t hp_tree_free_after(const struct hp_tree *t, size_t chunk, size_t most);

static inline bool hp_tree_page_free(const struct hp_tree *t, size_t page)
{
	return t->sums[0][page] == HP_SUM_PAGE;
}

#endif
