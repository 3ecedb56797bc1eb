/*
 * For HUGEPIN_SGQ_DEBUG: which sub-message a frame failed by.
 */
#ifndef HP_SGE_DEBUG_H
#define HP_SGE_DEBUG_H

#include "sge/state.h"

/* The first sub-message of frame `done`, whose elements these are, that has a piece whose key has changed; -1: none. */
int64_t hp_sgq_guilty(const struct hugepin_sgq *q, const struct hp_sgq_frame *f, const struct hugepin_sge *sge);

#endif
