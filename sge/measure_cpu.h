/*
 * Calibration without a device.
 */
#ifndef HP_SGE_MEASURE_CPU_H
#define HP_SGE_MEASURE_CPU_H

#include "hugepin_verbs.h"

/* Measure the terms that the CPU alone determines. 0 or -errno; an error leaves *ret_ alone. */
int hp_measure_cpu(struct hugepin_sg_model *ret_);

#endif
