/*
 * The free chunks of one hugepage: a bitmap and its summary. Summaries of neighbours can be merged. Pure values.
 *
 * A node is a hugepage, or 8, 64, ... of them. Its summary packs the lengths, in chunks, of three free runs inside the
 * node: at the start, the longest anywhere, at the end (Go's page allocator, mpallocbits.go and mpagealloc.go:
 * pallocSum). 0 means that nothing is free, so tables that were never written read as full. A length needs 22 bits
 * only for a root that is wholly free (2^21 chunks, 8 GiB): the top bit stands for that.
 *
 * A free run never crosses the border of an extent: a node that begins an extent does not join its left neighbour.
 */
#ifndef HP_ALLOC_HPAGE_H
#define HP_ALLOC_HPAGE_H

#include "base/base.h"
#include "base/bits.h"

typedef uint64_t hp_sum;

#define HP_SUM_BITS 21
#define HP_SUM_MASK ((UINT64_C(1) << HP_SUM_BITS) - 1)
#define HP_SUM_WHOLE (UINT64_C(1) << 63)
#define HP_SUM_NONE UINT64_C(0)

/* The free-chunk map of one hugepage: bit set = free. Valid only if the summary is neither HP_SUM_NONE nor
 * HP_SUM_PAGE. So operations on whole hugepages write only the summary. */
struct hp_map512 {
	uint64_t w[8];
};

static inline hp_sum hp_sum_pack(size_t start, size_t longest, size_t end)
{
	if (start == HP_SUM_MASK + 1)
		return HP_SUM_WHOLE;
	return start | (uint64_t)longest << HP_SUM_BITS | (uint64_t)end << (2 * HP_SUM_BITS);
}

static inline size_t hp_sum_start(hp_sum s)
{
	return s & HP_SUM_WHOLE ? HP_SUM_MASK + 1 : s & HP_SUM_MASK;
}

static inline size_t hp_sum_longest(hp_sum s)
{
	return s & HP_SUM_WHOLE ? HP_SUM_MASK + 1 : s >> HP_SUM_BITS & HP_SUM_MASK;
}

static inline size_t hp_sum_end(hp_sum s)
{
	return s & HP_SUM_WHOLE ? HP_SUM_MASK + 1 : s >> (2 * HP_SUM_BITS) & HP_SUM_MASK;
}

#define HP_SUM_PAGE hp_sum_pack(HP_PAGE_CHUNKS, HP_PAGE_CHUNKS, HP_PAGE_CHUNKS)

/* The summary of a hugepage's map. */
hp_sum hp_map512_sum(const struct hp_map512 *m);

/* The summary of eight neighbours, each `chunks` long. Bit i of `borders`: child i begins an extent. */
hp_sum hp_sum_merge(const hp_sum child[8], size_t chunks, unsigned borders);

#endif
