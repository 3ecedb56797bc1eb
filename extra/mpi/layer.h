/*
 * Beginning and end of the program's calls to MPI, and of the layer, which lives from MPI_Init to MPI_Finalize.
 */
#ifndef HP_MPI_LAYER_H
#define HP_MPI_LAYER_H

#include "call.h"

/* Begin a call of the program; returns the thread's call. NULL: the caller passes the call on, since MPI itself calls,
 * or MPI is not initialized. */
struct hp_call *hp_call_begin(const char *op, const void *frame);

/* Name a buffer of the call: `count` elements of `type` at buf. Buffers below the threshold are left out. Buffers that
 * cannot sensibly be pinned are left out and counted. */
void hp_call_buffer(struct hp_call *, const void *buf, int64_t count, MPI_Datatype type, char dir, int peer);

/* Name n pieces as one buffer: counts[i] elements at buf + displs[i] extents of type. With `types`: of types[i], at
 * buf + displs[i] bytes. */
void hp_call_pieces(struct hp_call *, const void *buf, int n, const int *counts, const int *displs, MPI_Datatype type,
		    const MPI_Datatype *types, char dir);

/* Pin the named buffers. */
void hp_call_pin(struct hp_call *);

/* A phase of the call's transfer, as hp_transfer_phase(). */
void hp_call_phase(const struct hp_call *, unsigned phase, char dir);

/* End a call. hp_call_end() releases its buffers. The other functions release them only if MPI has failed (err), and
 * then do not read the handle. Otherwise the buffers stay: with a request; with a persistent request, which pins them
 * when it is started; with a window's operations that a later call closes, or with the window itself. */
void hp_call_end(struct hp_call *);
void hp_call_end_request(struct hp_call *, int err, const MPI_Request *);
void hp_call_end_init(struct hp_call *, int err, const MPI_Request *);
void hp_call_end_window(struct hp_call *, int err, const MPI_Win *, int target);

/* The return address of the program's call of MPI that is under way on this thread; 0: there is none. For
 * libhugepin-verbscache.so, which asks for it inside that call. */
uintptr_t hugepin_mpi_site(void);

/* Open the layer after MPI_Init; close it before MPI_Finalize. */
void hp_layer_open(void);
void hp_layer_close(void);

/* The stack frame of the Fortran function that the program called, while that function runs; NULL: none. */
extern HP_TLS const void *hp_fortran_frame;

#endif
