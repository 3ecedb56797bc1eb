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

/* The model of a program that may have been compiled before its last members: itself if it has all of them, else *room
 * with what it has, or NULL if it lacks others, too. */
const struct hugepin_sg_model *hp_sg_model_whole(const struct hugepin_sg_model *model, struct hugepin_sg_model *room);

/* The length from which on a copy, which costs `rate` ns a byte more, no longer saves `saved` ns. */
static inline uint32_t hp_sg_break_even(float saved, float rate)
{
	if (!(saved > 0))
		return 0;
	return rate > 0 && saved / rate < 4e9f ? (uint32_t)(saved / rate) + 1 : UINT32_MAX;
}

/* The length in bytes from which on gathering a piece is cheaper than copying it. Gathering costs `lookups` searches
 * for a key, and a further element if a copy would join a neighbour's: otherwise the copy needs an element of its own,
 * too. A gathered piece touches one line, and one more for each 64 bytes. A copy takes the CPU's time alone, so the
 * larger of what gathering takes of the CPU and of the device counts. */
static inline uint32_t hp_sg_copy_below(const struct hugepin_sg_model *model, bool cold, bool joins, float lookups)
{
	const float piece = cold ? model->cold_piece : model->piece, byte = cold ? model->cold_byte : model->copy_byte;
	const uint32_t cpu = hp_sg_break_even((joins ? model->element : 0) + model->lookup * lookups + model->line - piece,
					      byte - model->line / 64);
	const uint32_t device = hp_sg_break_even((joins ? model->device_element : 0) + model->device_line - piece,
						 byte - model->device_line / 64);
	return device > cpu ? device : cpu;
}

#endif
