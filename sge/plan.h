/* Shared by all files that make work requests: the layout of elements, and whether the model prefers to copy a
 * piece. */
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

/* The model used if nothing was measured. */
extern const struct hugepin_sg_model hp_sg_model_default;

/* The length in bytes from which on gathering a piece is cheaper than copying it. Gathering costs `lookups` searches
 * for a key, and `element` ns for a further element. `element` is model->element if a copy would join a neighbour's
 * element, and 0 if a copy would need an element of its own, too. A gathered piece touches one line, and one more for
 * each 64 bytes. */
static inline uint32_t hp_sg_copy_below(const struct hugepin_sg_model *model, bool cold, float element, float lookups)
{
	float saved = element + model->lookup * lookups + model->line - (cold ? model->cold_piece : model->piece);
	float rate = (cold ? model->cold_byte : model->copy_byte) - model->line / 64;
	if (!(saved > 0))
		return 0;
	return rate > 0 && saved / rate < 4e9f ? (uint32_t)(saved / rate) + 1 : UINT32_MAX;
}

#endif
