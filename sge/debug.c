/*
 * For HUGEPIN_SGQ_DEBUG: which sub-message a frame failed by.
 */
#include "sge/debug.h"

int64_t hp_sgq_guilty(const struct hugepin_sgq *q, const struct hp_sgq_frame *f, const struct hugepin_sge *sge)
{
	uint64_t at = 0;
	for (uint32_t i = 0; i < f->sges; i++) {
		uint64_t len = i ? sge[i].length : f->head;
		struct hugepin_pin pin = { 0 };
		bool ours = sge[i].lkey == q->slots_pin.lkey && sge[i].addr - (uintptr_t)q->slots < q->slots_pin.len;
		int err = ours ? 0 : hugepin_sg_key(q->domain, (void *)(uintptr_t)sge[i].addr, len, HUGEPIN_READ, &pin);
		bool good = ours || (!err && pin.lkey == sge[i].lkey && sge[i].addr + len <= pin.base + pin.len);
		if (pin.ref)
			hugepin_unpin(q->domain, &pin);
		if (!good) {
			uint32_t s = 0;
			for (uint64_t end = 0; s < f->subs; s++)
				if (at < (end += q->sub[(q->settled + s) & q->sub_mask].len))
					break;
			return s;
		}
		at += len;
	}
	return -1;
}
