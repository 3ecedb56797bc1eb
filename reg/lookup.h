/*
 * The lookup table of a domain: from an address outside the heap to the region that may cover it. Hits read it without
 * a lock.
 *
 * A bucket has four words. Each word is a region's index and some bits of the hash, so few regions are looked at in
 * vain. The key is the page's address, or the hugepage's if a region covers all of it; of an exact region, its range
 * and access. Fibonacci hashing (Knuth, volume 3, 6.4). A word may be stale, so the reader checks the region's own
 * members.
 */
#ifndef HP_REG_LOOKUP_H
#define HP_REG_LOOKUP_H

#include "reg/state.h"

enum { HP_LOOKUP_WAYS = 4, HP_LOOKUP_CHECK_BITS = 14 };
_Static_assert(HP_REGIONS_MAX <= 1u << (32 - HP_LOOKUP_CHECK_BITS), "an index and the check share a word");
#define HP_LOOKUP_CHECK ((1u << HP_LOOKUP_CHECK_BITS) - 1)

/* The hash of the page of addr, and of its hugepage. */
static inline uint64_t hp_lookup_hash(uint64_t key)
{
	return key * UINT64_C(0x9e3779b97f4a7c15);
}

static inline uint64_t hp_lookup_page(uintptr_t addr)
{
	return hp_lookup_hash(addr >> 12);
}

static inline uint64_t hp_lookup_hugepage(uintptr_t addr)
{
	return hp_lookup_hash(addr >> HP_PAGE_SHIFT | UINT64_C(1) << 63); /* the bit tells a hugepage from a page */
}

/* The key of an exact region is its range and access: the pins that it serves have just these. */
static inline uint64_t hp_lookup_exact(uintptr_t start, uintptr_t end, unsigned access)
{
	return hp_lookup_hash(hp_lookup_hash(start >> 12) + (end >> 12) + ((uint64_t)access << 48));
}

/* The words of the bucket, in a table of 2^(64 - shift) buckets. */
static inline _Atomic uint32_t *hp_lookup_words(_Atomic uint32_t *table, uint32_t shift, uint64_t hash)
{
	return &table[(hash >> shift) * HP_LOOKUP_WAYS];
}

static inline _Atomic uint32_t *hp_lookup_bucket(const hugepin_domain *d, uint64_t hash)
{
	return hp_lookup_words(d->lookup, atomic_load_explicit(&d->lookup_shift, memory_order_relaxed), hash);
}

static inline uint32_t hp_lookup_check(uint64_t hash)
{
	return hash >> 8 & HP_LOOKUP_CHECK;
}

/* The index in the bucket whose check matches. If none matches, any index: the region's members then show that it does
 * not cover the address. */
static inline uint32_t hp_lookup_index(const _Atomic uint32_t *words, uint32_t check)
{
	uint32_t a = atomic_load_explicit(&words[0], memory_order_relaxed);
	uint32_t b = atomic_load_explicit(&words[1], memory_order_relaxed);
	uint32_t c = atomic_load_explicit(&words[2], memory_order_relaxed);
	uint32_t d = atomic_load_explicit(&words[3], memory_order_relaxed);
	bool is_a = !((a ^ check) & HP_LOOKUP_CHECK), is_b = !((b ^ check) & HP_LOOKUP_CHECK),
	     is_c = !((c ^ check) & HP_LOOKUP_CHECK);

	_Static_assert(HP_LOOKUP_WAYS == 4, "");
	return (is_a ? a : is_b ? b : is_c ? c : d) >> HP_LOOKUP_CHECK_BITS;
}

/* Put an index into its bucket. Returns whether another one had to leave. One thread at a time. */
bool hp_lookup_put(_Atomic uint32_t *words, uint64_t hash, uint32_t index);

/* Let pins at addr find r, which covers addr. An exact region is found by all pins that it serves, whatever addr is.
 * Call with the domain's lock. */
void hp_lookup_remember(hugepin_domain *d, uintptr_t addr, const struct hp_region *r);

#endif
