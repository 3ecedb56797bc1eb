/*
 * What other files, and tests, call of pin.c. The public functions are in hugepin.h.
 */
#ifndef HP_REG_PIN_H
#define HP_REG_PIN_H

#include "reg/counts.h"
#include "reg/state.h"

/* Undo a pin that was counted but is not a hit. No lock is held. A thread that retired the region meanwhile may have
 * seen the pin counted. By now the index may belong to another region, of another domain. */
void hp_count_back(struct hp_counts *counts, uint32_t index);

/* For the service thread: pin what a request asks for, as hugepin_pin(). False: the domain's lock stays taken. *ret_err:
 * 0 and *ret_, or -errno. */
bool hp_pin_for(hugepin_domain *d, const struct hp_request *q, struct hugepin_pin *ret_, int *ret_err);

#endif
