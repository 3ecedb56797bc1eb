/*
 * The helper's share of the machine's processors: on which it runs, how much of their time it may take, how late it
 * wakes, and how many helpers of other processes share its core. Call on the service thread, except where a comment
 * says otherwise.
 */
#ifndef HP_REG_PROCESSORS_H
#define HP_REG_PROCESSORS_H

#include <stdbool.h>
#include <stdint.h>

/* Called when the helper wakes. Looks at the load of the machine, once in a period. late_ns: how long after the planned
 * time the helper woke; 0: a record woke it. */
void hp_processors_look(uint64_t late_ns);

/* Whether to tell other processes of this one: at first, and then after each HP_SHARE_PERIOD uses. The first call also
 * chooses the processors that the calling thread runs on. */
bool hp_processors_must_post(void);

/* Tell other processes that this one would pin so many bytes without a helper, and read what they have told. */
void hp_processors_post(uint64_t bytes);

/* Count a use that was told to a plan. Any thread may call this. */
void hp_processors_count_use(void);

/* Whether the helper may take more of the processors' time to save memory. If not, and ret_wait_ns is not NULL,
 * *ret_wait_ns is the time until it may; 0: soon. Any thread may call this if ret_wait_ns is NULL. */
bool hp_processors_may_take(uint64_t *ret_wait_ns);

/* The number of helpers on this helper's core, itself included. 0: it may not run. */
uint32_t hp_processors_sharers(void);

/* The helper's recent worst lateness, in nanoseconds. */
uint64_t hp_processors_delay_ns(void);

/* Called in the child of fork, which has not posted to other processes yet. */
void hp_processors_child(void);

#endif
