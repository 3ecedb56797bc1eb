/*
 * Making and destroying a queue (state.h).
 */
#ifndef HP_SGE_OPEN_H
#define HP_SGE_OPEN_H

#include "sge/state.h"

/* Whose a queue is. */
struct hp_sgq_owner {
	int (*take)(struct hp_taker *, const struct ibv_wc *);
	void (*ended)(void *recv_arg); /* as in struct hugepin_sgq; NULL: nobody is told */
};

/* As hugepin_sgq_open(), for this owner. */
int hp_sgq_open(const struct hugepin_sgq_attr *attr, const struct hp_sgq_owner *owner, hugepin_sgq **ret_);

/* With a pool: double the ring of sub-messages. False: it has its full length, or there is no memory. */
bool hp_sgq_grow_subs(struct hugepin_sgq *q);

/* Free the queue's memory. Does not touch the queue pair, which may be destroyed already. */
void hp_sgq_destroy(struct hugepin_sgq *q);

#endif
