/*
 * The end of regions: retiring, wanting pins back, deregistering (retire.c). Call with the domain's lock.
 */
#ifndef HP_REG_RETIRE_H
#define HP_REG_RETIRE_H

#include "reg/region.h"

/* Whether any region of a domain has pins out. Exact only if no new pins are being made. */
bool hp_regions_pinned(hugepin_domain *d);

/* Called once after any number of regions were unpublished. Regions in use stay RETIRED until their last unpin; the
 * others become dead. */
void hp_region_settle(hugepin_domain *d);

/* Note whether the pins of r are wanted back, because r's memory was freed or has gone away, or r was superseded. The
 * next hp_region_deregister_dead() tells the domain's lend and the program's callback. They hear once of the pins that
 * are out, and again after another pin, or after the memory was in use meanwhile. */
void hp_region_want_pins(struct hp_region *r, bool wanted);

/* Deregister the dead regions, if this thread may call the backend; otherwise leave them to the opener. On any thread,
 * also tell of pins that are wanted back. */
void hp_region_deregister_dead(hugepin_domain *d);

/* Deregister a RETIRED region if it has no pins left. */
void hp_region_last_unpin(hugepin_domain *d, struct hp_region *r);

/* Whether a region of this kind is watched by the kernel from before its registration until after its end. */
static inline bool hp_is_watched(const hugepin_domain *d, uint32_t kind, bool on_demand)
{
	return d->watched && kind == HP_REGION_FOREIGN && !on_demand;
}

/* Call the backend to deregister. */
void hp_region_call_dereg(hugepin_domain *d, struct hugepin_reg *reg);

/* Whether this thread is inside a backend's call that registers or deregisters. */
extern HP_TLS bool hp_registering;

/* ------------------------------------------------------------------ extents of which little is pinned */

/* Whether r is an extent that holds only a part of its own pages. */
static inline bool hp_region_holds_part(const struct hp_region *r)
{
	const struct hp_region_notes *n = hp_region_notes_of(r);

	return r->kind == HP_REGION_EXTENT && n->held_end - n->held_start < r->end - r->start;
}

/* Note a pin of [start, end) in the extent r. The caller has the lock and counts the pin next. */
void hp_region_note(struct hp_region *r, uintptr_t start, uintptr_t end);

/* If the part of the extent r that is pinned is known, and the rest has been free for `ticks`, unpublish r and hold
 * only the pinned part. Returns whether this was done. */
bool hp_region_hold_part(hugepin_domain *d, struct hp_region *r, uint32_t ticks);

/* Whether a retired region of an extent in [start, end) is still pinned, and may hold only a part of its memory. */
bool hp_region_any_holds_part(hugepin_domain *d, uintptr_t start, uintptr_t end);

/* Unpublish and deregister r, if it is not in use. False: it is in use, and nothing has changed. why: for the probe. */
bool hp_region_release(hugepin_domain *d, struct hp_region *r, enum hp_evicted why);

#endif
