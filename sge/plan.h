/*
 * What those share who make work requests: the layout of elements, and what the cost model says of one piece.
 */
#ifndef HP_SGE_PLAN_H
#define HP_SGE_PLAN_H

#include "hugepin_verbs.h"

#include <stdbool.h>
#include <stddef.h>

_Static_assert(sizeof(struct hugepin_sge) == sizeof(struct ibv_sge) &&
		       offsetof(struct hugepin_sge, addr) == offsetof(struct ibv_sge, addr) &&
		       offsetof(struct hugepin_sge, length) == offsetof(struct ibv_sge, length) &&
		       offsetof(struct hugepin_sge, lkey) == offsetof(struct ibv_sge, lkey),
	       "elements are laid out as those of verbs");

/* Where nothing has been measured. */
extern const struct hugepin_sg_model hp_sg_model_default;

/* The length in bytes from which on a piece is better gathered, by an element of its own that costs `element` ns and
 * `lookups` searches for a key, than copied behind its neighbour: model->element where it joins one that is copied, 0 where it
 * needs an element of the slot for itself. A line more is touched, and what is longer, again for each 64 bytes. */
static inline uint32_t hp_sg_copy_below(const struct hugepin_sg_model *model, bool cold, float element, float lookups)
{
	float saved = element + model->lookup * lookups + model->line - (cold ? model->cold_piece : model->piece);
	float rate = (cold ? model->cold_byte : model->copy_byte) - model->line / 64;
	if (!(saved > 0))
		return 0;
	return rate > 0 && saved / rate < 4e9f ? (uint32_t)(saved / rate) + 1 : UINT32_MAX;
}

#endif
