/*
 * The service thread's work for requests of hugepin_pin_try().
 *
 * A request's memory may go away before the program is told the result. The thread that takes the memory away marks the
 * request (request.h). This file looks at the mark after the pin is made, so that the program never gets a pin of
 * memory that is gone. But the kernel tells of an unmapping when the addresses are free already. Then a thread may have
 * mapped other memory there before it asked, and what is there now is pinned.
 *
 * Locks: none is held while the program is told, but hp_domains_each_held() keeps the domain open.
 */
#include "reg/answer.h"

#include <errno.h>

#include "reg/domains.h"
#include "reg/mapped.h"
#include "reg/miss.h"
#include "reg/request.h"
#include "reg/uffd.h"

static void tell(hugepin_domain *d, const struct hp_pin_request *q, int err, struct hugepin_pin *pin)
{
	if (q->done)
		q->done(q->arg, err, err ? NULL : pin);
	else if (!err)
		hugepin_unpin(d, pin);
}

/* Whether all of the request's addresses are mapped. */
static bool is_there(const struct hp_pin_request *q)
{
	struct hp_mapped m = { .end = (uintptr_t)q->addr };

	while (m.end < (uintptr_t)q->addr + q->len && hp_mapped_at(m.end, &m))
		;
	return m.end >= (uintptr_t)q->addr + q->len;
}

/* Serve as many requests as there are now: a callback may add further ones. */
static void answer_one(hugepin_domain *d, void *busy)
{
	struct hp_pin_request q;
	struct hugepin_pin pin;

	hp_work_clear(d, HP_WORK_ANSWER);
	for (unsigned n = hp_request_count(d); n && hp_request_begin(d, &q); n--) {
		enum hp_request_end end;
		int err = -ECANCELED;

		if (!q.cancelled && (!q.doubtful || is_there(&q)) && !hp_pin_for(d, &q, &pin, &err)) {
			hp_work_set(d, HP_WORK_ANSWER);
			*(bool *)busy = true;
			return;
		}
		if (hp_attention_is(d, HP_BUSY)) /* the range of a change that has ended may not be queued yet */
			hp_uffd_wait();
		end = hp_request_end(d);
		if (end != HP_REQUEST_SERVED) {
			if (!err)
				hugepin_unpin(d, &pin);
			err = -ECANCELED;
		}
		if (end == HP_REQUEST_AGAIN) { /* not at once, so that other domains have their turn */
			hp_work_set(d, HP_WORK_ANSWER);
			hp_service_ask(&hp_request_job);
		} else {
			tell(d, &q, err, &pin);
		}
	}
}

static bool answer_all(void)
{
	bool busy = false;

	hp_domains_each_held(HP_WORK_ANSWER, answer_one, &busy);
	hp_request_job.again_ns = busy ? hp_clock_ns() + HP_BUSY_AGAIN_NS : 0;
	return false;
}

void hp_answer_open(void)
{
	if (!hp_request_job.run)
		hp_request_job.run = answer_all;
}

void hp_answer_closed(hugepin_domain *d)
{
	struct hp_pin_request q;

	while (hp_request_begin(d, &q)) {
		if (hp_request_end(d) == HP_REQUEST_AGAIN)
			continue;
		tell(d, &q, -ECANCELED, NULL);
	}
}

void hp_answer_stays(hugepin_domain *d)
{
	if (hp_request_count(d))
		hp_service_ask(&hp_request_job);
}
