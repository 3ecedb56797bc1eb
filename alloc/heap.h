/*
 * What the tests, and later the pin cache, see of the heap beside hugepin.h.
 */
#ifndef HP_ALLOC_HEAP_H
#define HP_ALLOC_HEAP_H

#include "base/base.h"

/* One tick of the service thread: ticks are HUGEPIN_DECAY / HP_TICKS apart, and memory that was wholly free for more than
 * HP_TICKS of them is given back. Returns whether another tick has anything to do. */
bool hp_heap_tick(void);
enum { HP_TICKS = 4 };

#endif
