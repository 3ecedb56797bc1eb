/* The loop that measures hits, and UCX's registration cache in it. Weak: pin is linked without it, pin-ucx with it. */
#ifndef BENCH_RCACHE_H
#define BENCH_RCACHE_H

#include <stddef.h>
#include <stdint.h>

/* Regions in random order. `mask` is the number of entries less one, a power of two less one. */
struct walk {
	char **order;
	size_t mask, at, len;
};

/* Use n regions, one after the other: which is next depends on the key of this one (0, which the compiler cannot know),
 * so no use begins before the last has its key. Inlined, for the call of `use` to go. */
static inline __attribute__((always_inline)) void walk(struct walk *w, long n, uint32_t (*use)(void *, size_t len))
{
	size_t at = w->at;

	for (long i = 0; i < n; i++)
		at = (at + 1 + use(w->order[at], w->len)) & w->mask;
	w->at = at;
}

void rcache_open(size_t regions_max) __attribute__((weak)); /* SIZE_MAX: no limit */
void rcache_walk(struct walk *, long n) __attribute__((weak));
long rcache_registrations(void) __attribute__((weak)); /* made so far, plus those given back */

#endif
