/*
 * The variables of the MPI layer, in the form of HP_OPTIONS (base/config.h). hugepin_mpi(7) repeats them, and
 * tools/check-man compares. HUGEPIN_MPI_TRACE, a path, is not in this table.
 */
#ifndef HP_MPI_OPTIONS_H
#define HP_MPI_OPTIONS_H

#include "base/config.h"

enum { HP_MPI_URING, HP_MPI_VERBS };
enum { HP_MPI_BUDGET_NONE = -1 };

#define HP_MPI_OPTIONS(X) \
	X(MPI_MIN, min, SIZE, 16384, 0, INT64_C(1) << 40, NULL, "buffers with a smaller payload are not pinned") \
	X(MPI_BUDGET, budget, SIZE, 0, 0, INT64_C(1) << 50, "max", \
	  "memory that a rank may have registered; 0 means its part of what RLIMIT_MEMLOCK allows, max no limit") \
	X(MPI_BACKEND, backend, WORD, HP_MPI_URING, 0, 0, "uring|verbs", \
	  "where memory is registered: fixed buffers of an io_uring, or the first RDMA device") \
	X(MPI_STRICT, strict, FLAG, 0, 0, 1, NULL, \
	  "1: a buffer that cannot be registered aborts the program; 0: the program goes on, and the buffer is " \
	  "counted")

struct hp_mpi_options {
#define HP_MPI_MEMBER(NAME, member, ...) int64_t member;
	HP_MPI_OPTIONS(HP_MPI_MEMBER)
#undef HP_MPI_MEMBER
};
extern struct hp_mpi_options hp_mpi_options;

/* Read the options from the environment. Before that they have their defaults. */
void hp_mpi_options_load(void);

#endif
