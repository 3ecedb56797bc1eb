/*
 * Making and destroying a queue (queue.h).
 */
#ifndef HP_SGE_OPEN_H
#define HP_SGE_OPEN_H

#include "sge/queue.h"

/* This process, counted by forks: a queue is its opener's only. */
extern __attribute__((visibility("hidden"))) unsigned hp_sgq_generation; /* no detour by the table of addresses */

/* Give back the queue's memory. Looks at no queue pair, which may be gone. */
void hp_sgq_destroy(struct hugepin_sgq *q);

#endif
