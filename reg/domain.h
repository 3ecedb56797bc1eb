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

#endif
