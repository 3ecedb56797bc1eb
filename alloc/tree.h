/*
 * The free chunks of the whole span. A maximal run of free chunks is a hole. Holes are found by their length, for which
 * they are sorted into bins, eight for each power of two. The holes of one bin are a heap-ordered tree by address (a
 * pairing heap: Fredman, Sedgewick, Sleator, Tarjan 1986), so the lowest is at its root. Each hugepage also has a
 * bitmap of its free chunks.
 *
 * A search takes the lowest hole of the first bin that has one that fits. This is segregated fit in address order
 * (Wilson, Johnstone, Neely, Boles: Dynamic Storage Allocation, A Survey and Critical Review, 1995). The caller locks.
 */
#ifndef HP_ALLOC_TREE_H
#define HP_ALLOC_TREE_H

#include "base/base.h"
#include "base/bits.h"

/* Each length up to 15 chunks has a bin of its own; the last bin is for holes of HP_TREE_LONG chunks and more. */
#define HP_TREE_LONG ((size_t)8192)
#define HP_TREE_BINS 89

/* The free-chunk map of one hugepage: bit set = free. Valid only if the page is neither wholly free nor wholly taken,
 * so that operations on whole hugepages need not write it. */
struct hp_map512 {
	uint64_t w[8];
};

/* A hole, stored at its first chunk. The last chunk also has the length; entries of other chunks are meaningless. */
struct hp_hole {
	uint32_t len; /* chunks */
	uint32_t child; /* the first of the holes below it; 0: none */
	uint32_t next, prev; /* siblings. prev of the first one: the parent; of the root: 0 */
};

struct hp_bins {
	uint64_t some[(HP_TREE_BINS + 63) / 64]; /* bins that have a hole */
	uint32_t root[HP_TREE_BINS]; /* 0: none */
};

struct hp_tree {
	size_t pages; /* hugepages of the span */
	size_t upper; /* first page of the part that is searched separately; `pages` if there is no such part */
	/* Below `upper` and above it: no page at or behind this was ever freed. */
	size_t used, upper_used;
	struct hp_bins bins[2]; /* [1]: of the part from `upper` on */
	struct hp_map512 *maps;
	struct hp_hole *holes; /* by chunk; accessible for pages of extents */
	uint64_t *starts; /* a bit for each page: an extent begins there, and holes do not go on across its border */
	uint32_t *stamps; /* per page: the value of `now` when the page became wholly free */
	uint16_t *free; /* per page: the number of free chunks */
	uint32_t now;
};

/* Bytes of table memory for a tree of so many pages. hp_tree_init() takes them at `memory`, zeroed. */
size_t hp_tree_size(size_t pages);
void hp_tree_init(struct hp_tree *t, size_t pages, void *memory, struct hp_hole *holes);

/* Mark chunks free or taken. All of them must be in the other state, and chunks that are taken lie in one extent. */
void hp_tree_free(struct hp_tree *t, size_t chunk, size_t count);
void hp_tree_take(struct hp_tree *t, size_t chunk, size_t count);

/* Find n free chunks in one hole. The first one, plus `phase`, is a multiple of `align`, a power of two. upper: in the
 * part from `upper` on. Returns the first chunk; 0: there is no such hole. */
size_t hp_tree_find(const struct hp_tree *t, bool upper, size_t n, size_t align, size_t phase);

/* The number of free chunks from `chunk` on, at most `most`. */
size_t hp_tree_free_after(const struct hp_tree *t, size_t chunk, size_t most);

/* The bin for a hole of so many chunks. */
unsigned hp_tree_bin(size_t len);

static inline bool hp_tree_page_free(const struct hp_tree *t, size_t page)
{
	return t->free[page] == HP_PAGE_CHUNKS;
}

#endif
