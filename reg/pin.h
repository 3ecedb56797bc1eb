/*
 * The functions of pin.c that lend/ and tests call. The public functions are in hugepin.h.
 */
#ifndef HP_REG_PIN_H
#define HP_REG_PIN_H

#include "reg/counts.h"

/* Undo a pin that was counted but is not a hit. No lock is held. A thread that retired the region meanwhile may have
 * seen the pin counted, and by now the index may belong to another region of another domain. */
void hp_count_back(struct hp_counts *counts, uint32_t index);

#endif
