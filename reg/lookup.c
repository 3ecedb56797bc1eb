/*
 * See lookup.h.
 *
 * The table has four buckets for each region, up to its largest size. So most regions are alone in their bucket and
 * found in its first word, which lets the processor predict the branch. The table grows with the number of regions;
 * growing changes the bucket of each page, so that each old entry is missed once.
 */
#include "reg/lookup.h"

#include "reg/region.h"

/* relaxed: writers have the lock of the domain or lend, and hits judge by the own words of the region or key. */
bool hp_lookup_put(_Atomic uint64_t *words, uint64_t hash, uint32_t index, uint32_t extra)
{
	unsigned way = (unsigned)(hash & (HP_LOOKUP_WAYS - 1));
	uint32_t check = hp_lookup_check(hash);
	bool full = true;

	for (unsigned i = 0; i < HP_LOOKUP_WAYS; i++) {
		uint64_t word = atomic_load_explicit(&words[i * HP_LOOKUP_WAY], memory_order_relaxed);

		if (!word || (word & HP_LOOKUP_CHECK) == check) {
			way = i;
			full = false;
			break;
		}
	}
	atomic_store_explicit(&words[way * HP_LOOKUP_WAY], (uint64_t)extra << 32 | index << HP_LOOKUP_CHECK_BITS | check,
			      memory_order_relaxed);
	return full;
}

void hp_lookup_remember(hugepin_domain *d, uintptr_t addr, const struct hp_region *r)
{
	uintptr_t page = addr & ~(uintptr_t)(HP_PAGE - 1);
	bool whole = r->start <= page && r->end >= page + HP_PAGE;
	uint64_t hash = hp_region_is_exact(r) ? hp_lookup_exact(r->start, r->end, r->access) :
			whole		      ? hp_lookup_hugepage(addr) :
						hp_lookup_page(addr);
	unsigned bits = hp_lookup_bits(atomic_load_explicit(&d->lookup_mask, memory_order_relaxed));

	if (d->stats.regions >> (bits - 2) && bits < HP_LOOKUP_BITS_MAX)
		atomic_store_explicit(&d->lookup_mask, HP_LOOKUP_MASK(bits + 1), memory_order_relaxed);
	hp_lookup_put(hp_lookup_bucket(d, hash), hash, hp_region_index(r), (uint32_t)r->keys);
}
