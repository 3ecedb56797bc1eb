/* Shared by all files that make work requests: the layout of elements, and the default thresholds. */
#ifndef HP_SGE_PLAN_H
#define HP_SGE_PLAN_H

#include "hugepin_verbs.h"

#include <stddef.h>

_Static_assert(sizeof(struct hugepin_sge) == sizeof(struct ibv_sge) &&
		       offsetof(struct hugepin_sge, addr) == offsetof(struct ibv_sge, addr) &&
		       offsetof(struct hugepin_sge, length) == offsetof(struct ibv_sge, length) &&
		       offsetof(struct hugepin_sge, lkey) == offsetof(struct ibv_sge, lkey),
	       "elements are laid out as those of verbs");

/* The model if nothing was measured. */
extern const struct hugepin_sg_model hp_sg_model_default;

#endif
