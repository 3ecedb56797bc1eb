/*
 * The statistics page. Members that change under the heap's lock only are updated with HP_STAT_ADD, others with
 * HP_STAT_COUNT; readers take each word as it is.
 */
#ifndef HP_BASE_STATS_H
#define HP_BASE_STATS_H

#include "hugepin.h"

extern struct hugepin_stats_page hp_stats_page;

#define HP_STAT(name) (hp_stats_page.stats.name)
#define HP_STAT_GET(name) __atomic_load_n(&HP_STAT(name), __ATOMIC_RELAXED)
#define HP_STAT_ADD(name, n) __atomic_store_n(&HP_STAT(name), HP_STAT(name) + (uint64_t)(n), __ATOMIC_RELAXED)
#define HP_STAT_COUNT(name, n) ((void)__atomic_fetch_add(&HP_STAT(name), (uint64_t)(n), __ATOMIC_RELAXED))

/* Print all of them to fd, "hugepin: name value" a line. */
void hp_stats_print(int fd);

#endif
