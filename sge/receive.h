/*
 * The receives of a queue (queue.h). The caller holds the queue's lock, or is the one thread in it.
 */
#ifndef HP_SGE_RECEIVE_H
#define HP_SGE_RECEIVE_H

#include <stdbool.h>

#include "sge/queue.h"

/* Hand the bytes of a completed receive to the queue's receiver. False: no such receive is out. */
bool hp_sgq_received(struct hugepin_sgq *q, const struct ibv_wc *wc);

/* Post the receives that are not. 0, or the provider's error: the next call tries the rest again. */
int hp_sgq_repost(struct hugepin_sgq *q);

/* Have the receives flushed that were posted while the queue pair changed to the error state. */
void hp_sgq_flush_receives(struct hugepin_sgq *q);

#endif
