/*
 * Whether the heap is there, which process it is in, and what is above it. The lowest file of the heap that knows of
 * both threads and pages: others of alloc/ begin their work here.
 */
#ifndef HP_ALLOC_START_H
#define HP_ALLOC_START_H

#include <stdatomic.h>

#include "alloc/hold.h"

#pragma GCC visibility push(hidden)

enum hp_heap_state { HP_HEAP_UNUSED, HP_HEAP_STARTING, HP_HEAP_READY, HP_HEAP_UNAVAILABLE };
extern _Atomic uint32_t hp_heap_state;

/* Our constructor has run: threads may be started. */
extern bool hp_heap_constructed;

/* Ticks are HUGEPIN_DECAY / HP_TICKS apart, and memory that was wholly free for more than HP_TICKS of them is given
 * back. */
enum { HP_TICKS = 4 };

/* Who ticks (decay.c). In a child nobody does at first. Under hp_heap_lock, but for delay_ns. */
struct hp_ticking {
	bool on; /* somebody ticks */
	bool by_service; /* the service thread does, which may end before it is done */
	bool by_calls; /* no thread is to be had: slow paths tick */
	uint64_t next_ns; /* their next tick */
	uint64_t delay_ns; /* from tick to tick; set at start */
};
extern struct hp_ticking hp_ticking;

/* Reserve the span, once. False: there is no heap, or not yet; the tier below serves all. */
bool hp_heap_start(void);

/* This thread is in hp_heap_start(): hooks on mmap may allocate. */
bool hp_heap_starts_here(void);

/* Whether there is a heap, without making one. */
static inline bool hp_heap_ready(void)
{
	/* acquire: pairs with hp_heap_start() */
	return atomic_load_explicit(&hp_heap_state, memory_order_acquire) == HP_HEAP_READY;
}

/* A child in which no handler of fork has run finds out by itself, here. What lies above begins anew, too, unless the
 * caller is above: it holds a lock then. */
void hp_heap_know_process(void);

/* For a child: no thread is here but this one, and nothing will happen that was about to. */
void hp_heap_begin_process(void);

/* In the child of fork: a thread that was just making the span is gone. */
void hp_heap_start_child(void);

/* What is above the heap: what hp_heap_set_hooks() was given, or hooks that are all NULL. */
const struct hp_heap_hooks *hp_heap_hooks(void);
bool hp_heap_has_hooks(void);

#pragma GCC visibility pop

#endif
