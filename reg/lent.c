/*
 * The pin cache's functions for lend/. Locks: the domain's.
 */
#include "reg/lent.h"

#include <errno.h>
#include <unistd.h>

#include "base/sys.h"
#include "reg/counts.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/miss.h"
#include "reg/retire.h"
#include "reg/uffd.h"

int hp_lent_set(hugepin_domain *d, const struct hp_lend_hooks *hooks, void *lend)
{
	int err = 0;

	if (!d || d->pid != hp_pid())
		return -EINVAL;
	if (d->opener_only)
		return -EOPNOTSUPP;
	hp_lock(&d->lock);
	if (d->lend_hooks) {
		err = -EBUSY;
	} else {
		d->lend_hooks = hooks;
		d->lend = lend;
	}
	hp_unlock(&d->lock);
	return err;
}

void hp_lent_clear(hugepin_domain *d)
{
	hp_lock(&d->lock);
	d->lend_hooks = NULL;
	hp_unlock(&d->lock);
}

static void hear(hugepin_domain *d)
{
	hp_lock(&d->lock);
	hp_gone_drain(d);
	hp_region_deregister_dead(d);
	hp_unlock(&d->lock);
}

void hp_lent_listen(hugepin_domain *d)
{
	if (hp_attention_is(d, HP_PENDING))
		hear(d);
}

/* Another thread may have drained the queue without having told the lend yet. That thread holds the lock until it
 * has. */
bool hp_lent_settle(hugepin_domain *d)
{
	bool settled = !d->watched || hp_uffd_settle(0);

	hp_uffd_heed(d);
	hear(d);
	return settled;
}

uint64_t hp_lent_budget(const hugepin_domain *d)
{
	return d->bytes_max;
}

bool hp_lent_exact(const hugepin_domain *d)
{
	return d->exact != 0;
}

bool hp_lent_access(const hugepin_domain *d, unsigned access)
{
	return !(access & ~d->access_mask);
}

/* Whether the registration of that range, or a later one of the same index, is there. */
static bool stands(const hugepin_domain *d, const struct hp_region *r, uint64_t start, uint64_t end)
{
	return hp_region_is(r, d, HP_REGION_LIVE) && r->start == start && r->end == end;
}

static void end_bucket(struct hp_region *r)
{
	struct hp_region_notes *n = hp_region_notes_of(r);

	n->buckets -= !!n->buckets; /* 0: r is a later registration of the same range and index */
}

int hp_lent_pin(hugepin_domain *d, uint64_t addr, size_t len, unsigned access, struct hugepin_pin *ret_,
		uint64_t *ret_start, uint64_t *ret_end)
{
	int err = hp_pin_for_lend(d, (const void *)(uintptr_t)addr, len, access, ret_);
	struct hp_region *r;

	if (err)
		return err;
	r = &hp_regions[(uint32_t)ret_->ref];
	*ret_start = r->start;
	*ret_end = r->end;
	hp_lock(&d->lock);
	hp_region_notes_of(r)->buckets++;
	hp_unlock(&d->lock);
	return 0;
}

void hp_lent_unpin(hugepin_domain *d, struct hugepin_pin *pin, uint64_t start, uint64_t end, bool ends)
{
	struct hp_region *r = &hp_regions[(uint32_t)pin->ref];

	if (ends) {
		hp_lock(&d->lock);
		end_bucket(r);
		hp_unlock(&d->lock);
	}
	hugepin_unpin(d, pin);
	hp_lock(&d->lock);
	if (stands(d, r, start, end)) {
		hp_region_notes_of(r)->idle = hp_counts_made(hp_region_index(r));
		if (ends)
			hp_region_release(d, r, HP_EVICTED_BUDGET);
	}
	hp_unlock(&d->lock);
}

void hp_lent_drop(hugepin_domain *d, uint32_t region, uint64_t start, uint64_t end)
{
	struct hp_region *r = &hp_regions[region];

	hp_lock(&d->lock);
	if (stands(d, r, start, end)) {
		end_bucket(r);
		if (hp_region_notes_of(r)->idle == hp_counts_made(region))
			hp_region_release(d, r, HP_EVICTED_BUDGET);
	}
	hp_unlock(&d->lock);
}

void hp_lent_forget(hugepin_domain *d, uint32_t region, uint64_t start, uint64_t end)
{
	struct hp_region *r = &hp_regions[region];

	hp_lock(&d->lock);
	if (stands(d, r, start, end))
		end_bucket(r);
	hp_unlock(&d->lock);
}

static _Atomic uint32_t indexes; /* relaxed: a number */

uint32_t hp_lent_index_new(void)
{
	struct hp_region *r = NULL;

	/* the table of regions also serves the pins of all domains */
	if (atomic_fetch_add_explicit(&indexes, 1, memory_order_relaxed) < HP_REGIONS_MAX / 2)
		r = hp_region_new(NULL);
	if (!r)
		atomic_fetch_sub_explicit(&indexes, 1, memory_order_relaxed);
	return r ? hp_region_index(r) : 0;
}

void hp_lent_index_free(uint32_t index)
{
	atomic_fetch_sub_explicit(&indexes, 1, memory_order_relaxed);
	hp_region_free(NULL, &hp_regions[index]);
}
