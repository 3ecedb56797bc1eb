/*
 * Making and destroying a queue (state.h).
 */
#ifndef HP_SGE_OPEN_H
#define HP_SGE_OPEN_H

#include "sge/state.h"

/* Free the queue's memory. Does not touch the queue pair, which may be destroyed already. */
void hp_sgq_destroy(struct hugepin_sgq *q);

#endif
