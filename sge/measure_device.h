/*
 * Calibration over a device.
 */
#ifndef HP_SGE_MEASURE_DEVICE_H
#define HP_SGE_MEASURE_DEVICE_H

#include "hugepin_verbs.h"

/* Measure those terms of *m that the device decides, and note the modes that it gets wrong. The other terms stay. 0 or
 * -errno, and *m may be partly changed. */
int hp_measure_device(struct ibv_pd *pd, struct hugepin_sg_model *m);

#endif
