/*
 * The variables of the MPI layer, HUGEPIN_X_MPI_NAME. hugepin_mpi(7) repeats them, and tools/check-man compares.
 * HUGEPIN_X_MPI_TRACE, a path, is not in this table.
 *
 * X(NAME, member, default, its text, maximum, words, what is accepted, sentence)
 *   words    "first|second|...": with maximum 0 the value is the word's index, else -1, -2, ...; NULL: there are none
 *   maximum  of a number with a suffix K M G T; 0: a number is not accepted
 */
#ifndef HP_MPI_OPTIONS_H
#define HP_MPI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum { HP_MPI_AUTO, HP_MPI_URING, HP_MPI_VERBS };

#define HP_MPI_OPTIONS(X) \
	X(MIN, min, 16384, "16K", INT64_C(1) << 40, NULL, "a size from 0 to 1T", \
	  "buffers with a smaller payload are not pinned") \
	X(BACKEND, backend, HP_MPI_AUTO, "auto", 0, "auto|uring|verbs", "one of auto, uring, verbs", \
	  "where memory is registered: fixed buffers of an io_uring, or the first RDMA device; auto: nowhere if " \
	  "libhugepin-verbscache.so is loaded, which has what MPI registers, else uring") \
	X(STRICT, strict, 0, "0", 0, "0|1", "0 or 1", \
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

/* Parse a value of an option with this maximum and these words. Pure. */
bool hp_mpi_option_parse(const char *text, int64_t max, const char *words, int64_t *ret_value);

#endif
