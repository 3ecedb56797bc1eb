/*
 * Regions: registering, publishing, evicting, retiring, deregistering. Call with the domain's lock, except
 * hp_regions_init(), hp_regions_used() and hp_regions_child().
 */
#ifndef HP_REG_REGION_H
#define HP_REG_REGION_H

#include "reg/state.h"

/* Whether a registration that is asked for with this access pins its memory. */
static inline bool hp_is_pinning(unsigned access)
{
	return !(access & HUGEPIN_ON_DEMAND);
}

/* table of HP_REGIONS_MAX regions; NULL before the first domain */
extern struct hp_region *hp_regions __attribute__((visibility("hidden")));
/* relaxed: the domain's lock; the lowest bit, mark_key_used(), is a hint */
extern uint64_t *hp_lives; /* their lives, by index: hp_region_life() while LIVE, else 0 */

/* The life of r that held keys look for: the last bit says that it is used. r is registered. */
static inline uint64_t hp_region_life(const struct hp_region *r)
{
	return r->number << 1 | 1;
}

/* Make the tables, once. 0 or -ENOMEM. */
int hp_regions_init(void);

/* A place in the table, FREE still, or NULL; give a place back. Any thread. */
struct hp_region *hp_region_new(void);
void hp_region_free(struct hp_region *r);

/* All indexes that were ever in use are below this number. */
uint32_t hp_regions_used(void);

/* Called in the child of fork, which has no regions. */
void hp_regions_child(void);

/* The functions by which a domain tells its helper. They are set under the lock of opening, when the first helper is
 * opened, and then sealed. */
void hp_region_set_helper(const struct hp_helper_hooks *hooks);
const struct hp_helper_hooks *hp_region_helper(void);

/* Register [start, end) for `access`, without publishing the region. If HUGEPIN_ON_DEMAND is in `access`, no memory is
 * pinned, held, watched or charged to the budget. An UNCACHED region is never published: no pin finds it except the one
 * that it is made for, which the caller must count next. Keeps within the budget. evict: other regions may be evicted to
 * make room. gen: the number of the heap's extent; 0 for foreign memory. 0 and *ret_, or -ENOBUFS, -ENOMEM, or the
 * backend's error. -ENXIO: nobody would tell when it goes away. Of foreign memory also: -EXDEV: it is shared or a file's;
 * -EADDRINUSE: the kernel refuses to watch it. */
int hp_region_register(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
		       uint64_t gen, bool evict, struct hp_region **ret_);

/* Registering ahead of the pins, for d->ready. may_be_ready(): whether the budget has room for one more of that access.
 * keep_ready(): hold or watch the memory of *r, whose range, access, kind and gen are set. make_ready(): register it; on
 * any thread, while the caller's thread holds the lock. end_ready(): forget *r; nobody has asked for it if it is not
 * taken. */
bool hp_region_may_be_ready(const hugepin_domain *d, size_t len, unsigned access);
void hp_region_keep_ready(hugepin_domain *d, struct hp_ready *r);
void hp_region_make_ready(hugepin_domain *d, struct hp_ready *r);
void hp_region_end_ready(hugepin_domain *d, struct hp_ready *r);

/* Let pins find r. told: let pins find it without the lock, too. The caller has already unpublished the regions that
 * lie inside r and have the same access. */
void hp_region_publish(struct hp_region *r, bool told);

/* Name r in the granules, after a pin at addr found this LIVE region of the heap under the lock only. */
void hp_region_name(struct hp_region *r, uintptr_t addr);

/* Find the LIVE region that covers addr with at least this access, or NULL. Of several, the one that reaches
 * farthest. */
struct hp_region *hp_region_find(hugepin_domain *d, uintptr_t addr, unsigned access);

/* Whether r, which is registered, is exact (state.h). A region for one pin is not, as no other pin finds it. */
static inline bool hp_region_is_exact(const struct hp_region *r)
{
	return hp_is_exact(r->domain, r->access) && r->kind != HP_REGION_UNCACHED;
}

/* The LIVE exact region of this range and access, or NULL. */
struct hp_region *hp_region_find_exact(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access);

/* Call each() for the LIVE regions that overlap [start, end): for exact ones, and for the others. each() may unpublish
 * that region, and no other. */
void hp_region_each_exact(hugepin_domain *d, uintptr_t start, uintptr_t end,
			  void (*each)(void *arg, struct hp_region *), void *arg);
void hp_region_each(hugepin_domain *d, uintptr_t start, uintptr_t end, void (*each)(void *arg, struct hp_region *),
		    void *arg);

/* Take regions out of the cache, so that no pin finds them. Call unpublish() for any number of regions, then settle()
 * once. Regions in use become RETIRED until their last unpin. The others become dead. */
void hp_region_unpublish(struct hp_region *r);
void hp_region_settle(hugepin_domain *d);

/* Tell the probe that the LIVE region r leaves the cache while its memory stays. The caller unpublishes it next. */
void hp_region_evicted(const struct hp_region *r, enum hp_evicted why);

/* Unpublish and deregister r, if it is not in use. False: it is in use, and nothing has changed. why: for the probe. */
bool hp_region_release(hugepin_domain *d, struct hp_region *r, enum hp_evicted why);

/* Note a pin of [start, end) in the extent r. The caller has the lock and counts the pin next. */
void hp_region_note(struct hp_region *r, uintptr_t start, uintptr_t end);

/* If it is known which part of the extent r is pinned, and the rest has been free for `ticks`: unpublish r, and hold
 * only the pinned part. Returns whether this was done. */
bool hp_region_hold_less(hugepin_domain *d, struct hp_region *r, uint32_t ticks);

/* Whether a retired region of an extent in [start, end) is still pinned, and may hold only a part of its memory. */
bool hp_region_held_less(const hugepin_domain *d, uintptr_t start, uintptr_t end);

/* Clear the `used` flag: the next pin of r is a first use again. Returns whether the flag was set. */
bool hp_region_clear_used(hugepin_domain *d, struct hp_region *r);
bool hp_region_is_used(const hugepin_domain *d, const struct hp_region *r);

/* Note whether the pins of r are wanted back: r's memory was freed, or has gone away, or r was superseded. The next
 * hp_region_deregister_dead() tells the domain's lend and the program's callback. It tells once of the pins that are
 * out, and again if there were others since, or if the memory was in use again. */
void hp_region_want_pins(struct hp_region *r, bool wanted);

/* The heap pages that r holds, and whether r is an extent that holds only a part of its own. */
void hp_region_held(const struct hp_region *r, uintptr_t *ret_start, uintptr_t *ret_end);
bool hp_region_holds_less(const struct hp_region *r);

/* A bucket of the lend's begins or ends in r. The end of r is news for the lend while there are any. */
void hp_region_count_bucket(struct hp_region *r, bool begins);

/* Note that the lend has given its last pin of r back; whether no pin was made since. */
void hp_region_note_idle(struct hp_region *r);
bool hp_region_is_idle(const struct hp_region *r);

/* Deregister the dead regions, if this thread may call the backend. Otherwise leave them to the opener. Tell of pins
 * that are wanted back, on any thread. */
void hp_region_deregister_dead(hugepin_domain *d);

/* Deregister a RETIRED region if it has no pins left. */
void hp_region_last_unpin(hugepin_domain *d, struct hp_region *r);

/* The number of pins out of a region; whether any region of a domain has pins out. Exact only if no new pins are being
 * made. */
uint32_t hp_region_pins(const struct hp_region *r);
bool hp_regions_pinned(hugepin_domain *d);

/* Whether this thread is inside a backend's call that registers or deregisters. */
extern HP_TLS bool hp_registering;

#endif
