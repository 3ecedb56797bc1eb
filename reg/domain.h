/*
 * Access to a domain, for backends whose functions get one as an argument.
 */
#ifndef HP_REG_DOMAIN_H
#define HP_REG_DOMAIN_H

#include "reg/state.h"

const struct hugepin_backend *hp_domain_backend(hugepin_domain *d, void **ret_ctx);
bool hp_domain_mine(const hugepin_domain *d); /* whether this process opened the domain, and has not closed it */
void hp_domain_lock(hugepin_domain *d);
void hp_domain_unlock(hugepin_domain *d);

/* Whether more than half of the budget or of the registrations that there may be is in use, or more was refused.
 * Without the lock it may be a little old. */
bool hp_domain_is_short(const hugepin_domain *d);

/* The pins out of a region, which is the lower half of their refs. */
uint32_t hp_domain_pins(uint32_t region);

/* Less lingers in the backend (struct hugepin_backend) than before: requests that wait for it are served. Call without
 * the lock. */
void hp_domain_has_room(hugepin_domain *d);

#endif
