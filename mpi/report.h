/*
 * What the layer has done, counted and averaged, and told at the end (HUGEPIN_STATS=1).
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

/* The average of pinned memory begins now. Not `told`: it is not kept, and nothing is written at the end. */
void hp_report_open(bool told);

/* Before and after pinned memory changes: add to the average. */
void hp_report_sample(void);

/* One line on stderr, if the report is to be told. */
void hp_report_write(int rank);

#endif
