/*
 * Calibration over a device.
 */
#ifndef HP_SGE_MEASURE_DEVICE_H
#define HP_SGE_MEASURE_DEVICE_H

#include "hugepin_verbs.h"

/* Measure the thresholds of a device. Returns as hp_sg_measure(). After an error *ret_ may be changed. */
int hp_measure_device(struct ibv_pd *pd, struct hugepin_sg_model *ret_);

#endif
