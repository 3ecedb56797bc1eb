/*
 * Pins, for tests: the API is hugepin.h's.
 */
#ifndef HP_REG_PIN_H
#define HP_REG_PIN_H

#include "reg/counts.h"

/* A pin of the region was counted and did not come about. No lock is held. Whoever retired the region meanwhile may
 * have counted the pin; and the index may be another region's by now, of another domain. */
void hp_count_back(struct hp_counts *counts, uint32_t index);

#endif
