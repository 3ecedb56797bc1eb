/*
 * What the helper gets of the machine's processors: on which it runs, how much of their time it may take, how late it
 * comes, and how many helpers of other processes share its core. On the service thread, but where it says otherwise.
 */
#ifndef HP_REG_PROCESSORS_H
#define HP_REG_PROCESSORS_H

#include <stdbool.h>
#include <stdint.h>

/* The helper is awake: look at the load of the machine, once in a period. late_ns: how long after it was to wake it
 * woke; 0: it woke for a record. */
void hp_processors_look(uint64_t late_ns);

/* Whether other processes are to be told of this one now: at first, and after so many uses. The first call chooses the
 * processors that the thread runs on. */
bool hp_processors_must_post(void);

/* Tell them that this process would pin so many bytes without a helper, and hear what they have told. */
void hp_processors_post(uint64_t bytes);

/* A use was told to a plan. From any thread. */
void hp_processors_count_use(void);

/* Whether the helper may take more of the processors' time to save memory. If not, and ret_wait_ns is not NULL:
 * *ret_wait_ns until it may; 0: soon. From any thread where ret_wait_ns is NULL. */
bool hp_processors_may_take(uint64_t *ret_wait_ns);

/* Helpers on its core, this one included; 0: it may not run. */
uint32_t hp_processors_sharers(void);

/* How late the helper came at most, of late. */
uint64_t hp_processors_delay_ns(void);

/* The child of fork calls this: it shares no core with its parent's helpers yet. */
void hp_processors_child(void);

#endif
