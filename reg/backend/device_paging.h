/*
 * The paging activity of a device for memory that is registered on demand.
 */
#ifndef HP_REG_BACKEND_DEVICE_PAGING_H
#define HP_REG_BACKEND_DEVICE_PAGING_H

#include <infiniband/verbs.h>

#include "hugepin.h"

/* The counts of all memory regions of a protection domain, for the backend's function `paging`. The device must be able
 * to register on demand. 0, or -errno. */
int hp_verbs_paging(struct ibv_pd *pd, struct hugepin_paging *ret_);

#endif
