/*
 * Registers memory for pins that no existing registration serves, and ahead of pins. Call with the domain's lock held.
 */
#ifndef HP_REG_COVER_H
#define HP_REG_COVER_H

#include "reg/state.h"

/* The region that serves a pin of [addr, addr + len), or NULL. A region that serves only the beginning counts if no
 * registration could be longer. */
struct hp_region *hp_cover_find(hugepin_domain *d, uintptr_t addr, size_t len, unsigned access);

/* Find a region that serves this pin, or register one. once: HP_CACHED, or the reason to register only for this pin
 * (enum hp_once). evict: others may be evicted to make room. waits: -EAGAIN if there will be room when other threads
 * let go of what the backend holds. 0 and *ret_, or -errno as hugepin_pin(). */
enum { HP_CACHED = -1 };
int hp_cover_pin(hugepin_domain *d, const void *addr, size_t len, unsigned access, int once, bool evict, bool waits,
		 struct hp_region **ret_);

/* Register a part of a dma-buf for one pin, with addresses from `start` on, or as much of it as the device takes at a
 * time. evict: as for hp_cover_pin(). 0 and *ret_, or -errno as hugepin_pin_dmabuf(). */
int hp_cover_dmabuf(hugepin_domain *d, const struct hp_dmabuf *dmabuf, uintptr_t start, size_t len, unsigned access,
		    bool evict, struct hp_region **ret_);

/* Register the range of r, which is LIVE, in the other way: on demand instead of pinned, or the reverse. The new region
 * takes the place of r, which stays until the last pin that is out is given back. evict: others may be evicted to make
 * room. 0 and *ret_; on failure r is as it was, and the error is as hp_region_register(), -EPERM, -ENOENT, or -EBUSY
 * (pages there were discarded). */
int hp_cover_turn(hugepin_domain *d, struct hp_region *r, bool on_demand, bool evict, struct hp_region **ret_);

/* Have the device bring in [start, end) of r, which is on demand, except free hugepages of the heap, whose memory would
 * come back. 0 or -errno; 1: a part was brought in by touching its pages. */
int hp_cover_bring_in(hugepin_domain *d, const struct hp_region *r, uintptr_t start, uintptr_t end);

/* Register the same range that hugepin_pin() would register, but make no pin. 0 and *ret_, or -errno. */
int hp_cover_ahead(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hp_region **ret_);

/* Carry out a hint: register its range, unless a miss made the hint, and have the device bring in on-demand memory.
 * Counts the hint if all of this succeeded. */
void hp_cover_hint(hugepin_domain *d, const struct hp_prefetch *hint);

/* The range, access, kind and gen that hp_cover_pin() would register first for this pin, which no region serves yet,
 * once all of d->ready is registered. False: nothing can be said, or there is no room without evicting. */
bool hp_cover_foresee(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hp_ready *ret_);

/* Register the extents that were made since the last call, as far as they fit the budget. */
void hp_cover_new_extents(hugepin_domain *d);

#endif
