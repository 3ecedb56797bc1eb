/*
 * The calls of the program, from their beginning to their end, and the layer from MPI_Init to MPI_Finalize.
 */
#ifndef HP_MPI_LAYER_H
#define HP_MPI_LAYER_H

#include "mpi/call.h"

/* A call of the program begins: the thread's. NULL: MPI itself calls, or MPI is not initialized; then the call is
 * passed on. */
struct hp_call *hp_call_begin(const char *op, const void *frame);

/* A buffer of the call: count elements of type at buf. A buffer below the threshold is left out. So is one that cannot
 * be pinned in a sensible way, and that is counted. */
void hp_call_buffer(struct hp_call *, const void *buf, int64_t count, MPI_Datatype type, char dir, int peer);

/* n pieces, counts[i] elements at buf + displs[i] extents of type, or with types: bytes and types[i]. */
void hp_call_pieces(struct hp_call *, const void *buf, int n, const int *counts, const int *displs, MPI_Datatype type,
		    const MPI_Datatype *types, char dir);

/* Pin the buffers that were named. */
void hp_call_pin(struct hp_call *);

/* The call has returned, and its buffers are released; or they stay with a request, with a persistent one (which is not
 * started: they were not pinned), with the operations of a window that a later call closes, or with the window itself.
 * err: what MPI returned; if it is not MPI_SUCCESS the buffers are released in any case. */
void hp_call_end(struct hp_call *);
void hp_call_end_request(struct hp_call *, int err, MPI_Request);
void hp_call_end_init(struct hp_call *, int err, MPI_Request);
void hp_call_end_window(struct hp_call *, int err, MPI_Win, int target);

/* MPI is up; is about to go down. */
void hp_layer_open(void);
void hp_layer_close(void);

/* The frame of the Fortran function that the program called, while it runs; NULL: none. */
extern HP_TLS const void *hp_fortran_frame;

#endif
