/*
 * The recorder of communication.
 */
#ifndef HP_MPI_TRACE_H
#define HP_MPI_TRACE_H

#include "call.h"

extern bool hp_trace_on;

/* Begin to record to PREFIX.rRANK.csv. If that fails, a message on stderr says so, and nothing is recorded. */
void hp_trace_open(const char *prefix, int rank, size_t min);

void hp_trace_begin(struct hp_call *);
void hp_trace_end(const struct hp_call *);

/* Count a buffer of a call, recorded or not. */
void hp_trace_payload(size_t payload);

/* Begin a row for a buffer. hp_trace_row_end() ends it. NULL: no memory. */
struct hp_row *hp_trace_row(const struct hp_call *, const char *op, const struct hp_buffer *);
void hp_trace_row_end(struct hp_row *);

/* Write the remaining rows. 0 or -errno. */
int hp_trace_close(void);

#endif
