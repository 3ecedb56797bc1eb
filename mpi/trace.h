/*
 * The recorder of communication.
 */
#ifndef HP_MPI_TRACE_H
#define HP_MPI_TRACE_H

#include "mpi/call.h"

extern bool hp_trace_on;

/* Begin to record into PREFIX.rRANK.csv; a failure is told on stderr, and nothing is recorded. */
void hp_trace_open(const char *prefix, int rank, size_t min);

void hp_trace_begin(struct hp_call *);
void hp_trace_end(const struct hp_call *);

/* Count every buffer of a call, logged or not. */
void hp_trace_payload(size_t payload);

/* A row for a buffer, which ends with hp_trace_row_end(). NULL: no memory. */
struct hp_row *hp_trace_row(const struct hp_call *, const char *op, const struct hp_buffer *);
void hp_trace_row_end(struct hp_row *);

/* Write the rows that are left. 0 or -errno. */
int hp_trace_close(void);

#endif
