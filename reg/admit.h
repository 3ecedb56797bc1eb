/*
 * How a range becomes a region (admit.c). Call with the domain's lock, except where a comment says otherwise.
 */
#ifndef HP_REG_ADMIT_H
#define HP_REG_ADMIT_H

#include "reg/region.h"

/* Register [start, end) for `access` within the budget, without publishing the region. With HUGEPIN_ON_DEMAND in
 * `access`, no memory is pinned, held, watched or charged to the budget. An UNCACHED region is never published: only
 * the pin that it is made for finds it, and the caller must count that pin next. evict: other regions may be evicted to
 * make room; -EAGAIN: there will be room when other threads let go of what lingers, so no more is evicted.
 * gen: the number of the heap's extent, or 0 for foreign memory. Returns 0 and *ret_, -ENOBUFS, -ENOMEM, or
 * the backend's error; -ENXIO: nobody would tell when the memory goes away. For foreign memory also -EXDEV: it is
 * shared or a file's; -EADDRINUSE: the kernel refuses to watch it. */
int hp_region_register(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
		       uint64_t gen, bool evict, struct hp_region **ret_);

/* Whether the budget has room for one more region of that length. Registrations in d->ready keep their room, except
 * `own`, which the new region takes over. */
bool hp_region_fits(const hugepin_domain *d, size_t len, unsigned access, const struct hp_ready *own);

/* Less lingers in the backend than before. */
void hp_region_sweep(hugepin_domain *d);

/* Registering ahead of the pins, for d->ready. keep() holds or watches the memory of *r, whose range, access, kind and
 * gen are set; returns 0, or as hp_region_register(). make_ready() registers *r unless it has an error; any thread may
 * call it while the caller's thread holds the lock. end_ready() gives up *r if no region has taken it over. */
int hp_region_keep(const hugepin_domain *d, const struct hp_ready *r);
void hp_region_make_ready(hugepin_domain *d, struct hp_ready *r);
void hp_region_end_ready(hugepin_domain *d, struct hp_ready *r);

#endif
