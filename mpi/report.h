/*
 * Counts and averages of the layer's work, reported at the end with HUGEPIN_STATS=1.
 */
#ifndef HP_MPI_REPORT_H
#define HP_MPI_REPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HP_MPI_COUNTERS(X) X(pins) X(unpins) X(not_pinned) X(bottom) X(sparse) X(left)
struct hp_mpi_counters {
#define HP_MPI_COUNTER(name) _Atomic uint64_t name;
	HP_MPI_COUNTERS(HP_MPI_COUNTER)
#undef HP_MPI_COUNTER
};
extern struct hp_mpi_counters hp_mpi_counters;
#define HP_MPI_COUNT(name) ((void)atomic_fetch_add_explicit(&hp_mpi_counters.name, 1, memory_order_relaxed))

/* Begin the average of pinned memory. Not `told`: keep no average, and write nothing at the end. */
void hp_report_open(bool told);

/* Add to the average. Called before and after each change of pinned memory. */
void hp_report_sample(void);

/* Write the report to stderr as one line, if hp_report_open() was `told`. */
void hp_report_write(int rank);

#endif
