/*
 * The queue of requests of hugepin_pin_try(), one for each domain. The service thread serves them in order (answer.c).
 * A request stays in the queue until it is served, so that it can be marked as cancelled meanwhile.
 *
 * The queue's lock guards the queue. Functions take it, except where a comment says otherwise.
 */
#ifndef HP_REG_REQUEST_H
#define HP_REG_REQUEST_H

#include "base/service.h"
#include "reg/state.h"

/* The service thread's job for requests. answer.c has its function. */
extern struct hp_job hp_request_job;

/* Queue a request, and have the service thread serve it. This may start the thread, so no lock may be held. A request
 * without a callback is not queued twice. 0; -EBUSY: the queue is full, or there is no service thread. */
int hp_request_add(hugepin_domain *d, const struct hp_pin_request *q);

/* For the service thread. begin() begins to serve the first request, or returns false if none waits. end() takes it out
 * of the queue, except with AGAIN: what was pinned may have gone, and it has to be begun again. CANCELLED: its memory
 * went away. */
enum hp_request_end { HP_REQUEST_SERVED, HP_REQUEST_CANCELLED, HP_REQUEST_AGAIN };
bool hp_request_begin(hugepin_domain *d, struct hp_pin_request *ret_);
enum hp_request_end hp_request_end(hugepin_domain *d);

unsigned hp_request_count(hugepin_domain *d);

/* Mark the requests that overlap a range as cancelled, or as ones to be served again if the memory may have lain there
 * before. Call with the queue's lock. The service thread tells the program, because this runs inside munmap. */
void hp_request_cancel(hugepin_domain *d, const struct hp_range *range);

#endif
