/*
 * Regions: their table, publishing and finding (region.c). Call with the domain's lock, except hp_regions_init(),
 * hp_regions_used(), hp_region_of() and hp_regions_child().
 */
#ifndef HP_REG_REGION_H
#define HP_REG_REGION_H

#include "reg/state.h"

/* Whether a registration for this access pins its memory. */
static inline bool hp_is_pinning(unsigned access)
{
	return !(access & HUGEPIN_ON_DEMAND);
}

/* table of HP_REGIONS_MAX regions; NULL before the first domain */
extern struct hp_region *hp_regions __attribute__((visibility("hidden")));
/* relaxed: the domain's lock; the lowest bit, mark_key_used(), is a hint */
extern uint64_t *hp_lives; /* their lives, by index: hp_region_life() while LIVE, else 0 */

static inline uint32_t hp_region_index(const struct hp_region *r)
{
	return (uint32_t)(r - hp_regions);
}

/* Notes on a region, guarded by the domain's lock. They are not in struct hp_region, because the code of hits depends
 * on its size. */
struct hp_region_notes {
	uintptr_t held_start, held_end; /* the range of heap pages that the region holds */
	uintptr_t start, end; /* the hugepages that contain all noted pins; 0 and 0: no pin is noted */
	/* Numbers of pins made wrap after 2^32. So a difference that was seen once is noted by a flag, whatever the
	 * numbers are later. */
	uint32_t before, count; /* before: pins made before the noted ones; count: noted pins */
	bool hit; /* a pin was made since that is not noted */
	bool pinned; /* the region was pinned */
	uint32_t idle; /* as hp_region.made, before the lend gave its last pin back (lent.h) */
	uint32_t buckets; /* of the lend (lent.h), which is told of the region's end while there are any */
	uint32_t told; /* as hp_region.made, before anybody was told that the pins are wanted back */
	bool pinned_since; /* the region was pinned again */
	size_t rounded; /* by so many bytes rounding made it longer */
	enum { HP_NOT_WANTED, HP_WANTED, HP_WANTED_TOLD } wanted; /* the pins are wanted back */
	TAILQ_ENTRY(hp_region_notes) order; /* in domain.wanted, while HP_WANTED */
};
extern struct hp_region_notes *hp_region_notes; /* by index */

static inline struct hp_region_notes *hp_region_notes_of(const struct hp_region *r)
{
	return &hp_region_notes[hp_region_index(r)];
}

/* The stake of its domain, from before it is registered until after it was deregistered; by index. */
extern struct hp_stake *hp_region_stakes;

/* The life of r, which is registered, for held keys to compare; the last bit is the `used` flag. */
static inline uint64_t hp_region_life(const struct hp_region *r)
{
	return r->number << 1 | 1;
}

/* Make the tables, once. 0 or -ENOMEM. */
int hp_regions_init(void);

/* A place in the table for a region of d, still FREE; or NULL. A quarter of the table is kept for the first places of
 * each domain. So while no more than HP_REGIONS_KEPT / HP_REGIONS_SURE = 1024 domains are open, each can have this
 * many, however many others have. Above that the quarter goes to those who come first. free() gives a place of d back.
 * d NULL: of a lend. Any thread. */
enum { HP_REGIONS_SURE = 64 };
#define HP_REGIONS_KEPT (HP_REGIONS_MAX / 4)
struct hp_region *hp_region_new(hugepin_domain *d);
void hp_region_free(hugepin_domain *d, struct hp_region *r);

/* All indexes that were ever in use are below this number. Takes no lock. */
uint32_t hp_regions_used(void);

/* Called in the child of fork, which has no regions. */
void hp_regions_child(void);

/* Let pins find r. told: also without the lock. The caller has already unpublished the regions that lie inside r and
 * have the same access. */
void hp_region_publish(struct hp_region *r, bool told);

/* Write r into its granules, because a pin at addr has found r only under the lock; the next pin is then a hit. r is
 * LIVE and of the heap. */
void hp_region_name(struct hp_region *r, uintptr_t addr);

/* The region of a pin that is out, whose members do not change meanwhile; or NULL: it is no such pin of d's. A copy of a
 * pin that was given back is noticed mostly. Takes no lock. */
const struct hp_region *hp_region_of(const hugepin_domain *d, const struct hugepin_pin *pin);

/* Find the LIVE region that covers addr with at least this access, or NULL. Of several, the one that reaches
 * farthest. */
struct hp_region *hp_region_find(hugepin_domain *d, uintptr_t addr, unsigned access);

/* Whether r, which is registered, is exact (state.h). A region for one pin is not, because no other pin finds it. */
static inline bool hp_region_is_exact(const struct hp_region *r)
{
	return hp_is_exact(r->domain, r->access) && r->kind != HP_REGION_UNCACHED;
}

/* The LIVE exact region of this range and access, or NULL. */
struct hp_region *hp_region_find_exact(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access);

/* Call each() for the regions that overlap [start, end): the LIVE ones, exact or others, or those that wait for their
 * last unpin. each() may take that region out of its tree, and no other. */
void hp_region_each_waiting(hugepin_domain *d, uintptr_t start, uintptr_t end,
			    void (*each)(void *arg, struct hp_region *), void *arg);
void hp_region_each_exact(hugepin_domain *d, uintptr_t start, uintptr_t end,
			  void (*each)(void *arg, struct hp_region *), void *arg);
void hp_region_each(hugepin_domain *d, uintptr_t start, uintptr_t end, void (*each)(void *arg, struct hp_region *),
		    void *arg);

/* Take r out of the trees and granules, so that no pin finds it. r becomes RETIRED. The caller settles it
 * (retire.h). */
void hp_region_unpublish(struct hp_region *r);

/* waits(): r is RETIRED and waits for its last unpin, so hp_region_each_waiting() finds r until waits_no_more(). */
void hp_region_waits(struct hp_region *r);
void hp_region_waits_no_more(struct hp_region *r);

/* Tell the probe that the LIVE region r leaves the cache while its memory stays. The caller unpublishes it next. */
void hp_region_evicted(const struct hp_region *r, enum hp_evicted why);

/* Clear the `used` flag: the next pin of r is a first use again. Returns whether the flag was set. */
bool hp_region_clear_used(hugepin_domain *d, struct hp_region *r);
bool hp_region_is_used(const hugepin_domain *d, const struct hp_region *r);

/* The number of pins out of a region. Exact only if no new pins are being made. */
uint32_t hp_region_pins(const struct hp_region *r);

#endif
