/*
 * Flow control of a queue with HUGEPIN_SGQ_CREDITS (credit.c): how many frames the peer has receives for. The caller
 * holds the queue's lock, or is the only thread in the queue.
 */
#ifndef HP_SGE_CREDIT_H
#define HP_SGE_CREDIT_H

#include <stddef.h>

#include "sge/state.h"

#define HP_CREDIT_FIRST 4u /* receives that each side has at least, and that the other one counts on before it is told */

/* A message has arrived. A frame of a queue with credits gives the queue its credits, and looks like any other frame
 * then. If the queue has credits and the frame has none, or the other way round, the queue ends with -EPROTO. */
void hp_credit_arrived(struct hugepin_sgq *q, char *data, size_t len);

/* Write what the peer may send into the closed frames that may be posted now. Returns the number of the frame behind
 * them. */
uint64_t hp_credit_allow(struct hugepin_sgq *q);

/* So many frames of those were posted. */
void hp_credit_posted(struct hugepin_sgq *q, uint64_t frames);

/* Whether so much is owed to the peer that a frame must tell it now, if need be an empty one. */
bool hp_credit_due(const struct hugepin_sgq *q);

#endif
