/* See work.h. */
#include "reg/work.h"

static _Atomic uint64_t work[HP_WORK_KINDS][HP_DOMAINS_MAX / HP_WORK_WORD];

static uint64_t bit_of(const hugepin_domain *d)
{
	return UINT64_C(1) << d->number % HP_WORK_WORD;
}

/* seq_cst: who sees the bit sees the work; pairs with hp_work_clear() and hp_work_of(). */
void hp_work_set(const hugepin_domain *d, enum hp_work kind)
{
	atomic_fetch_or_explicit(&work[kind][d->number / HP_WORK_WORD], bit_of(d), memory_order_seq_cst);
}

/* seq_cst: the work of the bit that this clears is seen from here on; pairs with hp_work_set(). */
void hp_work_clear(const hugepin_domain *d, enum hp_work kind)
{
	atomic_fetch_and_explicit(&work[kind][d->number / HP_WORK_WORD], ~bit_of(d), memory_order_seq_cst);
}

uint64_t hp_work_of(enum hp_work kind, uint32_t from)
{
	return atomic_load_explicit(&work[kind][from / HP_WORK_WORD], memory_order_seq_cst); /* pairs with hp_work_set() */
}

/* There is no other thread, so no operation needs a memory order. */
void hp_work_child(void)
{
	for (unsigned kind = 0; kind < HP_WORK_KINDS; kind++)
		for (uint32_t i = 0; i < HP_DOMAINS_MAX / HP_WORK_WORD; i++)
			if (atomic_load_explicit(&work[kind][i], memory_order_relaxed))
				atomic_store_explicit(&work[kind][i], 0, memory_order_relaxed);
}
