/*
 * The table of those who are told what leaves the heap: hugepin_watch().
 */
#ifndef HP_ALLOC_WATCH_H
#define HP_ALLOC_WATCH_H

#include "hugepin.h"

/* Call the watchers. No lock of the heap held. */
void hp_watch_leaving(const struct hugepin_extent *e);

/* Whether there are any. */
_Bool hp_watch_any(void);

/* True while this thread runs a watcher. */
_Bool hp_watch_inside(void);

/* In the child of fork: other threads' callbacks are gone. */
void hp_watch_child(void);

#endif
