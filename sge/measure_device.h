/*
 * Calibration over a device.
 */
#ifndef HP_SGE_MEASURE_DEVICE_H
#define HP_SGE_MEASURE_DEVICE_H

#include "hugepin_verbs.h"

/* Measure the terms of *m that the device determines, and note the modes in which messages arrive wrong. Other terms
 * stay. 0 or -errno; after an error *m may be partly changed. */
int hp_measure_device(struct ibv_pd *pd, struct hugepin_sg_model *m);

#endif
