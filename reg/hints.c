/*
 * The queue of hints. Each function looks at all of the queue, because it is short.
 */
#include "reg/hints.h"

#include <errno.h>
#include <string.h>

#include "reg/stakes.h"
#include "reg/queue.h"
#include "reg/work.h"

int hp_hints_push(hugepin_domain *d, struct hp_prefetch hint)
{
	/* Misses may fill only half of the queue, so that many in a row leave room for announcements of the program. */
	const unsigned most = hint.missed ? HP_PREFETCHES_MAX / 2 : HP_PREFETCHES_MAX;
	uint64_t mask;
	int err = -EBUSY;

	hp_stakes_listen(d, 1);
	mask = hp_queue_lock(d);
	if (d->prefetches_count < most) {
		d->prefetches[d->prefetches_count++] = hint;
		err = 0;
	}
	hp_queue_unlock(d, mask);
	hp_stakes_listen(d, err ? -1 : 0);
	if (!err)
		hp_work_set(d, HP_WORK_SERVE);
	return err;
}

bool hp_hints_take(hugepin_domain *d, struct hp_prefetch *ret_)
{
	uint64_t mask;
	bool any;

	mask = hp_queue_lock(d);
	any = d->prefetches_count;
	if (any) {
		*ret_ = d->prefetches[0];
		memmove(d->prefetches, d->prefetches + 1, --d->prefetches_count * sizeof *d->prefetches);
	}
	hp_queue_unlock(d, mask);
	hp_stakes_listen(d, any ? -1 : 0);
	return any;
}

bool hp_hints_overtake(hugepin_domain *d, const void *addr, size_t len, unsigned access)
{
	unsigned n = 0, before;
	uint64_t mask;

	mask = hp_queue_lock(d);
	before = d->prefetches_count;
	for (unsigned i = 0; i < before; i++) {
		const struct hp_prefetch *h = &d->prefetches[i];

		if (h->addr != addr || h->len != len || h->access != access || h->missed)
			d->prefetches[n++] = *h;
	}
	d->prefetches_count = n;
	hp_queue_unlock(d, mask);
	hp_stakes_listen(d, -(int)(before - n));
	return n < before;
}

unsigned hp_hints_drop(hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	const unsigned before = d->prefetches_count;
	unsigned n = 0;

	for (unsigned i = 0; i < before; i++) {
		const struct hp_prefetch *h = &d->prefetches[i];

		if ((uintptr_t)h->addr >= end || (uintptr_t)h->addr + h->len <= start)
			d->prefetches[n++] = *h;
	}
	d->prefetches_count = n;
	return before - n;
}
