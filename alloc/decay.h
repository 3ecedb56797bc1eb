/*
 * Decay: a thread that ticks gives back memory that has been free for HUGEPIN_DECAY. Usually this is a bare thread
 * (base/thread.h), but the service thread ticks if hooks may run in mapping calls, and the slow paths tick themselves
 * if no thread can be started.
 */
#ifndef HP_ALLOC_DECAY_H
#define HP_ALLOC_DECAY_H

#include "alloc/start.h"

/* One tick of the service thread. Returns whether another tick will have work. */
bool hp_heap_tick(void);

/* Whether hp_want_tick() would have something to do. The caller holds the lock of a shard. */
bool hp_tick_is_wanted(void);

/* Make sure that somebody ticks from now on, if the heap is so large that memory may be given back. The caller holds
 * hp_heap_lock, and if true is returned must call hp_ask_tick() once the lock is released. allocating: false within
 * free(). */
bool hp_want_tick(bool allocating);

/* Release hp_heap_lock, and make sure that somebody ticks from now on. may_start: as below. */
void hp_unlock_and_tick(bool allocating, bool may_start);

/* Start the ticks, or wake the thread that ticks. may_start: the caller holds no lock and may call the C library, so
 * the service thread may be started. */
void hp_ask_tick(bool may_start);

#endif
