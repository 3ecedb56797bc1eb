/*
 * Serves the requests of hugepin_pin_try(), and tells the program how they end.
 */
#ifndef HP_REG_ANSWER_H
#define HP_REG_ANSWER_H

#include "reg/state.h"

/* Called when a domain is opened, before the job is asked for. */
void hp_answer_open(void);

/* The domain is closed: tell each request -ECANCELED. Call with no lock held, while no thread holds the domain open. */
void hp_answer_closed(hugepin_domain *d);

/* The domain is not closed after all: the service thread has skipped its requests meanwhile. */
void hp_answer_stays(hugepin_domain *d);

#endif
