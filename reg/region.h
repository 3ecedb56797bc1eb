/*
 * Regions: registering, publishing, evicting, retiring, deregistering. Under the domain's lock, but where it says
 * otherwise.
 */
#ifndef HP_REG_REGION_H
#define HP_REG_REGION_H

#include "reg/state.h"

extern struct hp_region *hp_regions; /* HP_REGIONS_MAX; NULL before the first domain */

/* Make the tables, once. 0 or -ENOMEM. */
int hp_regions_init(void);

/* Indexes below were in use. */
uint32_t hp_regions_used(void);

/* In the child of fork: there are none. */
void hp_regions_child(void);

/* What a domain with a helper tells it. Set when the first helper is opened, under the lock of opening; then sealed. */
void hp_region_set_helper(const struct hp_helper_hooks *hooks);
const struct hp_helper_hooks *hp_region_helper(void);

/* Register [start, end) for `access`; not yet published. An UNCACHED one is never published: no pin but the one that it
 * is made for finds it, and that one is to be counted next. Makes room for it within the budget; evict: by giving other
 * regions back. gen: of the heap's extent, 0 for foreign memory. 0 and *ret_, or -ENOBUFS, -ENOMEM, -ENXIO (foreign
 * memory that nobody would see going away), or what the backend said. */
int hp_region_register(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
		       uint64_t gen, bool evict, struct hp_region **ret_);

/* Let pins find it; told: without the lock. What lies inside it, and has the same access, was unpublished before. */
void hp_region_publish(struct hp_region *r, bool told);

/* A LIVE region of the heap was found to serve pins at addr, and its granule had not told of it. */
void hp_region_name(struct hp_region *r, uintptr_t addr);

/* Of the LIVE regions that cover addr, and have this access at least, the one that reaches farthest; or NULL. */
struct hp_region *hp_region_find(hugepin_domain *d, uintptr_t addr, unsigned access);

/* Call each() for the LIVE regions that overlap [start, end); it may take that region out, and no other. */
void hp_region_each(hugepin_domain *d, uintptr_t start, uintptr_t end, void (*each)(void *arg, struct hp_region *),
		    void *arg);

/* Take regions out of the cache: no pin finds them any more. unpublish() any number of them, then settle() once: those
 * in use become RETIRED, for the last unpin, the others dead. */
void hp_region_unpublish(struct hp_region *r);
void hp_region_settle(hugepin_domain *d);

/* Take r out and deregister it, if it is in no use; else nothing has changed. */
bool hp_region_release(hugepin_domain *d, struct hp_region *r);

/* A pin of [start, end) in the heap is about to be counted by who has the lock. */
void hp_region_note(struct hp_region *r, uintptr_t start, uintptr_t end);

/* An extent is pinned; if it is known where, and all else of it has been free for `ticks`: take it out, and hold no
 * more than what is pinned. */
bool hp_region_hold_less(hugepin_domain *d, struct hp_region *r, uint32_t ticks);

/* Whether an extent in [start, end) is registered for pins that last, and holds but a part of its memory by now. */
bool hp_region_held_less(const hugepin_domain *d, uintptr_t start, uintptr_t end);

/* The next pin of it is a first use again. Returns whether it was used. */
bool hp_region_clear_used(hugepin_domain *d, struct hp_region *r);
bool hp_region_is_used(const hugepin_domain *d, const struct hp_region *r);

/* Deregister what is dead. Calls the backend, if this thread may; else leaves it to the opener. */
void hp_region_deregister_dead(hugepin_domain *d);

/* A RETIRED region may have lost its last pin: see, and deregister it. */
void hp_region_last_unpin(hugepin_domain *d, struct hp_region *r);

/* Pins out of a region, or of the domain; exact only if no pins are being made. */
uint32_t hp_region_pins(const struct hp_region *r);
bool hp_regions_pinned(hugepin_domain *d);

/* This thread is inside a call of a backend that registers or deregisters. */
extern HP_TLS bool hp_registering;

#endif
