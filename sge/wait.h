/*
 * When a queue has to be called though nothing happens to it (wait.c).
 */
#ifndef HP_SGE_WAIT_H
#define HP_SGE_WAIT_H

#include "sge/state.h"

/* 0, or -errno: there is no descriptor. */
int hp_sgq_wait_open(struct hugepin_sgq *q);
void hp_sgq_wait_close(struct hugepin_sgq *q);

/* At the end of a call: note when the queue is due, and set the timer. `held` is the frame that is under construction,
 * or NULL; `refused`: the call answered -EAGAIN. The caller holds the queue's lock, or is the only thread in it. */
void hp_sgq_wait_note(struct hugepin_sgq *q, const struct hp_sgq_frame *held, bool refused);

#endif
