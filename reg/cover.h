/*
 * What is registered where nothing registered serves a pin, or ahead of pins. Under the domain's lock, but where it
 * says otherwise.
 */
#ifndef HP_REG_COVER_H
#define HP_REG_COVER_H

#include "reg/state.h"

/* What is registered and serves a pin of [addr, addr + len), or of its beginning if no registration could be longer; or
 * NULL. */
struct hp_region *hp_cover_find(hugepin_domain *d, uintptr_t addr, size_t len, unsigned access);

/* The same, or register it. once: for this pin alone. 0 and *ret_, or -errno as hugepin_pin. */
int hp_cover_pin(hugepin_domain *d, const void *addr, size_t len, unsigned access, bool once, struct hp_region **ret_);

/* Register what hugepin_pin would for this range, without a pin. */
int hp_cover_ahead(hugepin_domain *d, const void *addr, size_t len, unsigned access);

/* Register the extents that were made since the last call, as far as they fit the budget. */
void hp_cover_new_extents(hugepin_domain *d);

#endif
