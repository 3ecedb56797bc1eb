/*
 * What is told at the end: with HUGEPIN_STATS=1 one summary of all ranks, with 2 a line of counts and averages of the
 * layer's work for each rank.
 */
#ifndef HP_MPI_REPORT_H
#define HP_MPI_REPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HP_MPI_COUNTERS(X) X(pins) X(unpins) X(not_pinned) X(bottom) X(sparse) X(left)
struct hp_mpi_counters {
#define HP_MPI_COUNTER(name) _Atomic uint64_t name; /* relaxed: a number, read at the end */
	HP_MPI_COUNTERS(HP_MPI_COUNTER)
#undef HP_MPI_COUNTER
};
extern struct hp_mpi_counters hp_mpi_counters;
#define HP_MPI_COUNT(name) ((void)atomic_fetch_add_explicit(&hp_mpi_counters.name, 1, memory_order_relaxed))

/* Begin the average of pinned memory. stats: the value of HUGEPIN_STATS, or NULL. Without "2" keep no average. */
void hp_report_open(const char *stats);

/* Add to the average. Called before and after each change of pinned memory. */
void hp_report_sample(void);

/* With HUGEPIN_STATS=2 write this rank's line to stderr. */
void hp_report_write(int rank);

/* With HUGEPIN_STATS=1 rank 0 writes the sum of all ranks to stderr. All ranks must call this, before MPI_Finalize. If
 * the job has several programs, some of which may be without the layer, nothing is sent: each rank then writes its own
 * summary at exit. */
void hp_report_sum(int rank);

#endif
