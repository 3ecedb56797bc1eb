/*
 * What the plan decides for one piece, for those who carry it out.
 */
#ifndef HP_URING_PLAN_H
#define HP_URING_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "hugepin_sg_uring.h"

#define HP_URING_BYTES_MAX ((uint64_t)1 << 30)

extern const struct hugepin_sg_uring_model hp_uring_model_default;

static inline bool hp_uring_copies(const struct hugepin_sg_uring_plan *p, size_t len, uint32_t index)
{
	return len < p->copy_below || (p->copy_foreign && index == HUGEPIN_SG_URING_NONE);
}

/* The index by which a piece that is not copied goes, or else the slot. */
static inline uint32_t hp_uring_index(const struct hugepin_sg_uring_plan *p, const struct hugepin_sg_uring_caps *caps,
				      bool copied, uint32_t index)
{
	return !(p->mode & HUGEPIN_SG_URING_FIXED) ? HUGEPIN_SG_URING_NONE : copied ? caps->slot_index : index;
}

/* The most elements that one request with this index has. */
static inline uint32_t hp_uring_room(const struct hugepin_sg_uring_caps *caps, uint32_t index)
{
	return index == HUGEPIN_SG_URING_NONE || caps->vector ? caps->max_iov : 1;
}

#endif
