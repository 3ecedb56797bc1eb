/*
 * Requests of hugepin_pin_try() that wait. Locks: the queue's, of the domain.
 */
#include "reg/request.h"

#include <errno.h>
#include <string.h>

#include "reg/stakes.h"
#include "reg/queue.h"
#include "reg/work.h"

struct hp_job hp_request_job;

static bool is_same(const struct hp_pin_request *a, const struct hp_pin_request *b)
{
	return a->addr == b->addr && a->len == b->len && a->access == b->access && a->done == b->done &&
	       a->arg == b->arg;
}

/* Call with the queue's lock. */
static void take_out(hugepin_domain *d, unsigned i)
{
	d->requests_count--;
	memmove(&d->requests[i], &d->requests[i + 1], (d->requests_count - i) * sizeof d->requests[0]);
}

/* Take out a request like this, unless it is being served or has been served already. */
static bool withdraw(hugepin_domain *d, const struct hp_pin_request *q)
{
	uint64_t mask = hp_queue_lock(d);
	bool found = false;

	for (unsigned i = d->requests_count; i-- && !found;)
		if (is_same(&d->requests[i], q) && !d->requests[i].begun) {
			take_out(d, i);
			found = true;
		}
	hp_queue_unlock(d, mask);
	hp_stakes_listen(d, found ? -1 : 0);
	return found;
}

/* Whether a request without a callback is queued already. Call with the queue's lock. */
static bool is_known(const hugepin_domain *d, const struct hp_pin_request *q)
{
	for (unsigned i = 0; i < d->requests_count && !q->done; i++)
		if (is_same(&d->requests[i], q) && !d->requests[i].cancelled)
			return true;
	return false;
}

int hp_request_add(hugepin_domain *d, const struct hp_pin_request *q)
{
	bool added = false;
	uint64_t mask;
	int err = 0;

	hp_stakes_listen(d, 1);
	mask = hp_queue_lock(d);
	if (!is_known(d, q)) {
		added = d->requests_count < HP_REQUESTS_MAX;
		if (added)
			d->requests[d->requests_count++] = *q;
		else
			err = -EBUSY;
	}
	hp_queue_unlock(d, mask);
	hp_stakes_listen(d, added ? 0 : -1);
	hp_work_set(d, HP_WORK_ANSWER);
	if (!hp_service_ask(&hp_request_job) && !err && withdraw(d, q))
		err = -EBUSY;
	return err;
}

bool hp_request_begin(hugepin_domain *d, struct hp_pin_request *ret_)
{
	uint64_t mask = hp_queue_lock(d);
	struct hp_pin_request *q = d->requests;
	bool any;

	any = d->requests_count;
	if (any) {
		q->begun = true;
		q->doubtful |= q->again;
		q->again = false;
		*ret_ = *q;
	}
	hp_queue_unlock(d, mask);
	return any;
}

enum hp_request_end hp_request_end(hugepin_domain *d)
{
	uint64_t mask = hp_queue_lock(d);
	enum hp_request_end end;

	end = d->requests[0].cancelled ? HP_REQUEST_CANCELLED :
	      d->requests[0].again     ? HP_REQUEST_AGAIN :
					 HP_REQUEST_SERVED;
	if (end != HP_REQUEST_AGAIN)
		take_out(d, 0);
	hp_queue_unlock(d, mask);
	hp_stakes_listen(d, end == HP_REQUEST_AGAIN ? 0 : -1);
	return end;
}

unsigned hp_request_count(hugepin_domain *d)
{
	uint64_t mask = hp_queue_lock(d);
	unsigned n;

	n = d->requests_count;
	hp_queue_unlock(d, mask);
	return n;
}

void hp_request_cancel(hugepin_domain *d, const struct hp_range *range)
{
	for (unsigned i = 0; i < d->requests_count; i++) {
		struct hp_pin_request *q = &d->requests[i];

		if ((uintptr_t)q->addr < range->end && (uintptr_t)q->addr + q->len > range->start)
			*(range->past ? &q->again : &q->cancelled) = true;
	}
}
