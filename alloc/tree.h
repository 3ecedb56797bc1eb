/*
 * Free chunks, by address-ordered first fit: a request gets the lowest chunks that fit (Wilson, Johnstone, Neely,
 * Boles: Dynamic Storage Allocation, A Survey and Critical Review, 1995, section 3.4; Rex, Mietke, Rehm: Improving
 * Communication Performance on InfiniBand by Using Efficient Data Placement Strategies, 2006, section 3.2). A maximal
 * run of free chunks in one extent is a hole.
 *
 * The span has one table of holes. Each hugepage has a bitmap of its free chunks there. A tree is about the holes in
 * some of the extents. It has the length of the longest hole that begins in each block of 64 chunks, and above these
 * lengths the maxima, by which a search finds the lowest block with a hole that is long enough. The caller locks: the
 * entries of an extent's pages in the table belong to the tree of that extent.
 */
#ifndef HP_ALLOC_TREE_H
#define HP_ALLOC_TREE_H

#include "base/base.h"
#include "base/bits.h"

/* A block is what one word of a hugepage's bitmap is about. A node of the tree of maxima has so many nodes, or blocks,
 * below it. */
#define HP_TREE_BLOCK_SHIFT 6
#define HP_TREE_FAN_SHIFT 3
#define HP_TREE_LEVELS 16

/* The free-chunk map of one hugepage: bit set = free. Valid only if the page is neither wholly free nor wholly taken,
 * so that operations on whole hugepages need not write it. */
struct hp_map512 {
	uint64_t w[8];
};

struct hp_holes {
	size_t pages; /* hugepages of the span */
	struct hp_map512 *maps;
	/* By chunk, accessible for pages of extents: the first and the last chunk of a hole have its length in chunks.
	 * Entries of other chunks are meaningless. */
	uint32_t *len;
	uint64_t *starts; /* a bit for each page: an extent begins there, and holes do not go on across its border */
	uint32_t *stamps; /* per page: the value of `now` when the page became wholly free */
	uint16_t *free; /* per page: the number of free chunks */
	uint32_t now;
};

struct hp_tree {
	struct hp_holes *holes;
	/* [0]: by block, the chunks of the longest hole that begins there; 0: none does. [i]: the maxima of
	 * 1 << HP_TREE_FAN_SHIFT entries of [i - 1] each. */
	uint32_t *longest[HP_TREE_LEVELS];
};

/* Bytes of memory for the tables of so many pages. The functions below take them at `memory`, zeroed. */
size_t hp_holes_size(size_t pages);
size_t hp_tree_size(size_t pages);
void hp_holes_init(struct hp_holes *h, size_t pages, void *memory, uint32_t *len);
void hp_tree_init(struct hp_tree *t, struct hp_holes *h, void *memory);

/* Mark chunks of one of the tree's extents free or taken. All of them must be in the other state. */
void hp_tree_free(struct hp_tree *t, size_t chunk, size_t count);
void hp_tree_take(struct hp_tree *t, size_t chunk, size_t count);

/* Find the lowest n free chunks in one hole of the tree of which the first one, plus `phase`, is a multiple of `align`,
 * a power of two. Looks at holes that begin in pages [first, end). Returns the first chunk; 0: there are none. */
size_t hp_tree_find(const struct hp_tree *t, size_t first, size_t end, size_t n, size_t align, size_t phase);

/* The number of free chunks from `chunk` on, in one extent, at most `most`. */
size_t hp_holes_after(const struct hp_holes *h, size_t chunk, size_t most);

static inline bool hp_holes_page(const struct hp_holes *h, size_t page)
{
	return h->free[page] == HP_PAGE_CHUNKS;
}

#endif
