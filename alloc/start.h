/*
 * The start of the heap, the process that owns it, and the hooks of the layer above. This is the lowest file of the
 * heap that knows both threads and pages, and other files of alloc/ begin their work here.
 */
#ifndef HP_ALLOC_START_H
#define HP_ALLOC_START_H

#include <stdatomic.h>

#include "alloc/hold.h"

#pragma GCC visibility push(hidden)

enum hp_heap_state { HP_HEAP_UNUSED, HP_HEAP_STARTING, HP_HEAP_READY, HP_HEAP_UNAVAILABLE };
/* relaxed: UNAVAILABLE says nothing of memory; else hp_heap_ready() is an acquire */
extern _Atomic uint32_t hp_heap_state;

/* Whether our constructor has run, so that threads may be started. */
extern bool hp_heap_constructed;

/* The number of ticks in the time HUGEPIN_DECAY. Memory that was wholly free for more than so many ticks is given
 * back. */
enum { HP_TICKS = 4 };

/* Which thread makes the ticks (decay.c). In a child there are no ticks at first. Guarded by hp_heap_lock, except
 * delay_ns. */
struct hp_ticking {
	enum {
		HP_TICKS_NONE,
		HP_TICKS_STARTING, /* a thread that has asked for it is about to call hp_ask_tick() */
		HP_TICKS_ALONE, /* the bare thread makes them */
		HP_TICKS_SERVICE, /* the service thread makes them; it may end before it has finished */
		HP_TICKS_CALLS, /* no thread can be had: slow paths make the ticks */
	} by;
	uint64_t next_ns; /* time of the next tick by a slow path */
	uint64_t delay_ns; /* time from tick to tick; set at start */
};
extern struct hp_ticking hp_ticking;

/* Reserve the span, once. False: there is no heap, or not yet. Then the lower tier serves all requests. */
bool hp_heap_start(void);

/* Whether this thread is inside hp_heap_start(). This can happen because hooks on mmap may allocate. */
bool hp_heap_starts_here(void);

/* Whether the heap has started. Does not start it. */
static inline bool hp_heap_ready(void)
{
	/* acquire: pairs with hp_heap_start() */
	return atomic_load_explicit(&hp_heap_state, memory_order_acquire) == HP_HEAP_READY;
}

/* Reset the process's state in a child in which no fork handler has run. The layer above does the same, unless it is
 * the caller, which then holds a lock. */
void hp_heap_know_process(void);

/* Called in a child, which has no other thread: forget the other threads and their pending work. */
void hp_heap_begin_process(void);

/* Called in the child of fork, in case another thread was just making the span, which does not exist here. */
void hp_heap_start_child(void);

/* The hooks of the layer above, as given to hp_heap_set_hooks(). If none were given, all members are NULL. */
const struct hp_heap_hooks *hp_heap_hooks(void);
bool hp_heap_has_hooks(void);

#pragma GCC visibility pop

#endif
