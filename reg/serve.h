/*
 * The service thread's jobs for domains.
 */
#ifndef HP_REG_SERVE_H
#define HP_REG_SERVE_H

#include "base/service.h"
#include "reg/state.h"

/* Give hp_domains_job its function. Call with the lock of opening. */
void hp_serve_open(void);

/* Called in the child of fork. */
void hp_serve_child(void);

/* Asks for a run of the helpers, which takes records. Asking again before the run does nothing. */
extern struct hp_job hp_serve_helper_job;
void hp_serve_wake_helper(void);

/* For the heap (alloc/hold.h): an extent was made, which domains may register before it is pinned. */
void hp_serve_grown(void);

/* For the heap, too: deregister regions on memory that was free for so many ticks. */
void hp_serve_drop_unused_holds(uint32_t ticks);

#endif
