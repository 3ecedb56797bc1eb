/*
 * Decay: memory that is free for HUGEPIN_DECAY is given back by a thread that ticks. That is a bare thread
 * (base/ticker.h), or where others have a say the service thread, or where no thread is to be had the slow paths
 * themselves.
 */
#ifndef HP_ALLOC_DECAY_H
#define HP_ALLOC_DECAY_H

#include "alloc/start.h"

/* One tick of the service thread. Returns whether another tick has anything to do. */
bool hp_heap_tick(void);

/* hp_heap_lock held: have somebody tick from now on, if the heap is so large that memory may be given back. Returns
 * whether the caller must call hp_ask_tick() once the lock is released. allocating: not within free(). */
bool hp_want_tick(bool allocating);

/* may_start: no lock is held, and the C library may be called. */
void hp_ask_tick(bool may_start);

/* Whether the ticks may be a bare thread's. Hooks on mapping calls, watchers and backends may do anything, and need a
 * thread that the C library knows. */
bool hp_may_tick_alone(void);

#endif
