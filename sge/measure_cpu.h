/*
 * Calibration without a device.
 */
#ifndef HP_SGE_MEASURE_CPU_H
#define HP_SGE_MEASURE_CPU_H

#include "hugepin_verbs.h"

/* Measure those terms that the CPU alone decides. 0 or -errno, and *ret_ is as it was. */
int hp_measure_cpu(struct hugepin_sg_model *ret_);

#endif
