/*
 * Serves the requests of hugepin_pin_try(), and tells the program how they end.
 */
#ifndef HP_REG_ANSWER_H
#define HP_REG_ANSWER_H

#include "reg/state.h"

/* Called when a domain is opened, before the job is asked for. */
void hp_answer_open(void);

/* Tell each request of a closed domain -ECANCELED. Call with no lock held, while no thread holds the domain open. */
void hp_answer_closed(hugepin_domain *d);

/* The domain was not closed after all, so serve the requests that the service thread has skipped meanwhile. */
void hp_answer_stays(hugepin_domain *d);

#endif
