/*
 * The lookup table of a domain leads from an address outside the heap to the region that may cover it. Hits read the
 * table without a lock.
 *
 * A bucket has four words. A word has a region's index, some bits of the hash, and the region's lkey. The bits of the
 * hash keep most readers from looking at a wrong region. Because the lkey is in the word, a program that needs it waits
 * for the bucket's cache line alone, while the processor checks the region behind it. A word may be stale, so the
 * reader checks the region's own members.
 *
 * The hash is of the page's address, or of the hugepage's if a region covers all of it; for an exact region, of its
 * range and access. Fibonacci hashing (Knuth, volume 3, 6.4).
 */
#ifndef HP_REG_LOOKUP_H
#define HP_REG_LOOKUP_H

#include "reg/state.h"

/* All first words lie side by side, and so do all second ones, because most regions are found by a first word. */
enum { HP_LOOKUP_CHECK_BITS = 14, HP_LOOKUP_WAY = 1 << HP_LOOKUP_BITS_MAX /* from a word to the next of its bucket */ };
_Static_assert(HP_REGIONS_MAX <= 1u << (32 - HP_LOOKUP_CHECK_BITS), "an index and the check share a word");
#define HP_LOOKUP_CHECK ((1u << HP_LOOKUP_CHECK_BITS) - 1)

/* log2 of the bytes of one key, whatever the size of base pages. */
#define HP_LOOKUP_GRAIN_SHIFT 12

static inline uint64_t hp_lookup_hash(uint64_t key)
{
	return key * UINT64_C(0x9e3779b97f4a7c15);
}

static inline uint64_t hp_lookup_page(uintptr_t addr)
{
	return hp_lookup_hash(addr >> HP_LOOKUP_GRAIN_SHIFT);
}

static inline uint64_t hp_lookup_hugepage(uintptr_t addr)
{
	return hp_lookup_hash(addr >> HP_PAGE_SHIFT | UINT64_C(1) << 63); /* the bit tells a hugepage from a page */
}

/* The key of an exact region is its range and access, because it serves only pins of just these. */
static inline uint64_t hp_lookup_exact(uintptr_t start, uintptr_t end, unsigned access)
{
	return hp_lookup_hash(hp_lookup_hash(start >> HP_LOOKUP_GRAIN_SHIFT) + (end >> HP_LOOKUP_GRAIN_SHIFT) +
			      ((uint64_t)access << 48));
}

/* A word: the index, and the check of its hash; above them 32 bits of the caller's. */
static inline uint32_t hp_lookup_index(uint64_t word)
{
	return (uint32_t)word >> HP_LOOKUP_CHECK_BITS;
}

static inline uint32_t hp_lookup_extra(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

/* log2 of the number of buckets of a mask. */
static inline unsigned hp_lookup_bits(uint32_t mask)
{
	return 32 - 3 - (unsigned)__builtin_clz(mask);
}

/* The first word of the bucket, chosen by the uppermost bits of the hash. */
static inline _Atomic uint64_t *hp_lookup_words(_Atomic uint64_t *table, uint32_t mask, uint64_t hash)
{
	_Static_assert(sizeof *table == 8, "HP_LOOKUP_MASK");
	return (_Atomic uint64_t *)((char *)table + (hash >> (64 - HP_LOOKUP_BITS_MAX - 3) & mask));
}

static inline _Atomic uint64_t *hp_lookup_bucket(const hugepin_domain *d, uint64_t hash)
{
	return hp_lookup_words(d->lookup, atomic_load_explicit(&d->lookup_mask, memory_order_relaxed), hash);
}

static inline uint32_t hp_lookup_check(uint64_t hash)
{
	return hash >> 8 & HP_LOOKUP_CHECK;
}

/* The word in the bucket whose check matches, mostly the first; 0: none. With `first` only the first is looked at.
 * relaxed: the own words of the region or key judge. */
static inline __attribute__((always_inline)) uint64_t hp_lookup_word(const _Atomic uint64_t *words, uint32_t check,
								     bool first)
{
	for (unsigned i = 0; i < (first ? 1 : HP_LOOKUP_WAYS); i++) {
		uint64_t word = atomic_load_explicit(&words[i * HP_LOOKUP_WAY], memory_order_relaxed);

		if (HP_LIKELY(!((word ^ check) & HP_LOOKUP_CHECK)))
			return word;
	}
	return 0;
}

/* Put an index into its bucket, with 32 bits of the caller's. Returns whether another index had to leave. One thread at
 * a time. */
bool hp_lookup_put(_Atomic uint64_t *words, uint64_t hash, uint32_t index, uint32_t extra);

/* Let pins at addr find r, which covers addr. An exact region is found by all pins that it serves, whatever addr is.
 * Call with the domain's lock. */
void hp_lookup_remember(hugepin_domain *d, uintptr_t addr, const struct hp_region *r);

#endif
