/*
 * The functions that calibration shares with the verbs backend.
 */
#ifndef HP_REG_BACKEND_VERBS_H
#define HP_REG_BACKEND_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#include "reg/backend/results.h"

/* Whether the device registers on demand, for all operations of a reliable connection on pinned memory. */
bool hp_verbs_odp(struct ibv_context *);

/* The testbed for which measurements of the device are kept here. 0 or -errno. */
int hp_verbs_testbed(struct ibv_context *, struct hp_testbed *ret_);

/* Have the device bring in memory that is registered on demand, for writing or for reading alone. 0 or errno. */
int hp_verbs_bring(struct ibv_pd *, uint32_t lkey, bool writable, void *addr, size_t len);

#endif
