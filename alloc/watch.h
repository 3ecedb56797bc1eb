/*
 * The table of watchers, which are told when memory leaves the heap (hugepin_watch()).
 */
#ifndef HP_ALLOC_WATCH_H
#define HP_ALLOC_WATCH_H

#include "hugepin.h"

/* Call the watchers. The caller holds no lock of the heap. */
void hp_watch_leaving(const struct hugepin_extent *e);

/* Whether there are watchers. */
_Bool hp_watch_any(void);

/* True while this thread runs a watcher. */
_Bool hp_watch_inside(void);

/* In the child of fork: callbacks that other threads were running are gone. */
void hp_watch_child(void);

#endif
