/*
 * What calibration shares with the verbs backend.
 */
#ifndef HP_REG_BACKEND_VERBS_H
#define HP_REG_BACKEND_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#include "reg/backend/results.h"

/* Whether the device registers on demand, for all operations that a reliable connection has on memory of pins. */
bool hp_verbs_odp(struct ibv_context *);

/* What is measured of the device here is kept for this testbed. 0 or -errno. */
int hp_verbs_testbed(struct ibv_context *, struct hp_testbed *ret_);

/* Have the device bring in memory that is registered on demand, for writing or for reading alone. 0 or errno. */
int hp_verbs_bring(struct ibv_pd *, uint32_t lkey, bool writable, void *addr, size_t len);

#endif
