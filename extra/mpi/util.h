/*
 * What all files of the layer use: bounds, marks for the compiler, the clocks.
 */
#ifndef HP_MPI_UTIL_H
#define HP_MPI_UTIL_H

#include <stdint.h>
#include <time.h>

#define HP_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HP_MAX(a, b) ((a) > (b) ? (a) : (b))
#define HP_TLS _Thread_local __attribute__((tls_model("initial-exec")))
#define HP_COLD __attribute__((cold, noinline))

static inline uint64_t hp_ns_of(clockid_t clock)
{
	struct timespec t = { 0 };

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* CLOCK_MONOTONIC in ns. */
static inline uint64_t hp_clock_ns(void)
{
	return hp_ns_of(CLOCK_MONOTONIC);
}

/* The processor time of this thread, in ns. */
static inline uint64_t hp_thread_ns(void)
{
	return hp_ns_of(CLOCK_THREAD_CPUTIME_ID);
}

#endif
