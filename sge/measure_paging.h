/*
 * Calibration of memory that is registered on demand.
 */
#ifndef HP_SGE_MEASURE_PAGING_H
#define HP_SGE_MEASURE_PAGING_H

#include "hugepin_verbs.h"

/* Measure the times of a device that registers on demand. 0 or -errno; after an error *ret_ may be partly changed. */
int hp_measure_paging(struct ibv_pd *pd, struct hugepin_terms *ret_);

#endif
