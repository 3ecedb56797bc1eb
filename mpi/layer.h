/*
 * The MPI layer, libhugepin-mpi.so: preloaded under an unmodified MPI program, it pins the buffers of each call for as
 * long as MPI may touch them. What its files share.
 *
 * calls.c has the functions of MPI, by name what each is told and which buffers follow from that; fortran.c those of
 * Fortran, which only note who called; next.c finds MPI's own; layer.c pins, and keeps what lasts longer than a call (requests,
 * windows, which windows.c finds); trace.c records.
 */
#ifndef HP_MPI_LAYER_H
#define HP_MPI_LAYER_H

#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "hugepin.h"

/* The layer is preloaded into whatever mpirun starts: it needs no library of MPI, but finds the one that is there.
 * These are Open MPI's handles; MPICH's are numbers. */
#pragma weak ompi_mpi_byte
#pragma weak ompi_mpi_comm_world
#pragma weak ompi_mpi_op_no_op
#pragma weak ompi_request_null

/* One for each GiB, the longest registration of io_uring: longer buffers count as failed. */
#define HP_MPI_PINS_MAX 4

struct hp_row; /* of the trace */

/* No peer: not MPI's numbers for nobody and anybody, which are small and negative. */
#define HP_PEER_NONE INT_MIN

/* What one argument of a call touches. */
struct hp_buffer {
	uintptr_t start;
	size_t len, payload; /* from the first to the last byte; what is sent of it */
	char dir; /* S: it is read, R: it is written */
	int peer; /* a rank or root; below 0: none, or nobody in particular */
	int pins_count;
	struct hugepin_pin pins[HP_MPI_PINS_MAX];
	struct hp_row *row;
};

/* The buffers of a call or request. No function of MPI has more than two for long. */
struct hp_transfer {
	const char *op;
	int count;
	struct hp_buffer buffers[2];
};

/* The layer's part of requests that are waited for or tested. */
struct hp_request;
struct hp_claims {
	int n;
	struct hp_request **of, *few[32];
};

/* A call of the program that is under way; one for each thread. Not on the wrapper's stack, which is gone when an error handler
 * leaves the call by longjmp or throw. */
struct hp_call {
	struct hp_transfer transfer;
	struct hp_claims claims;
	const void *own; /* the wrapper's frame */
	const void *frame; /* of the function that the program called: { the caller's frame, the return address } */
	uint64_t seq, start_ns, cpu_ns; /* for the trace */
};

/* ------------------------------------------------------------------ next.c */

/* The next function of that name, behind ours; kept in *slot. */
void *hp_next(void **slot, const char *name);

/* The same, or NULL. */
void *hp_find(const char *name);

/* MPI's own function of that name: what the layer calls for itself. */
#define REAL(name) \
	({ \
		static void *found_; \
		(__typeof__(&PMPI_##name))hp_next(&found_, "PMPI_" #name); \
	})

/* The program's MPI is the one that this library was built for, and its handles can be seen. False: it has said so, if it is
 * another. */
bool hp_mpi_is_ours(void);

/* The function of ours that has this frame, { the caller's frame, the return address }, has neither returned nor been left
 * otherwise; now: the frame of the function of ours that asks. Of a fiber's frame, or for a fiber: true. */
bool hp_frame_lives(const void *frame, const void *now);

/* ------------------------------------------------------------------ calls.c */

/* From now on the functions of calls.c are MPI's own. */
void hp_pass_through(void);

/* ------------------------------------------------------------------ layer.c */

/* A call of the program begins: the thread's. NULL: it is MPI itself that calls, or MPI is not initialized; pass it on. */
struct hp_call *hp_call_begin(const char *op, const void *frame);

/* A buffer of the call: count elements of type at buf. Nothing, if it is below the threshold; counted and left out,
 * if it cannot be pinned in a sensible way. */
void hp_call_buffer(struct hp_call *, const void *buf, int64_t count, MPI_Datatype type, char dir, int peer);

/* n pieces, counts[i] elements at buf + displs[i] extents of type, or with types: bytes and types[i]. */
void hp_call_pieces(struct hp_call *, const void *buf, int n, const int *counts, const int *displs, MPI_Datatype type,
		    const MPI_Datatype *types, char dir);

/* Pin what was named. */
void hp_call_pin(struct hp_call *);

/* The call has returned, and with it the buffers; or they stay with a request, with a persistent one (which is not
 * started: they were not pinned), with the operations of a window that a later call closes, or with the window itself.
 * err: what MPI returned; if it is not MPI_SUCCESS the call ends in any case. */
void hp_call_end(struct hp_call *);
void hp_call_end_request(struct hp_call *, int err, MPI_Request);
void hp_call_end_init(struct hp_call *, int err, MPI_Request);
void hp_call_end_window(struct hp_call *, int err, MPI_Win, int target);
enum { HP_TARGET_ALL = INT_MIN + 1, HP_TARGET_WINDOW }; /* MPI has small negative numbers of its own */

/* The operations of win towards target, or all of them, are done; HP_TARGET_WINDOW: the window is gone, too. */
void hp_window_close(MPI_Win win, int target);

/* Start persistent requests: pins their buffers. To be called before MPI is. */
void hp_requests_start(struct hp_call *, int n, const MPI_Request *);

/* The requests that are about to be waited for or tested, and afterwards: those that are done let go. */
void hp_requests_claim(struct hp_call *, int n, const MPI_Request *);
void hp_requests_settle(struct hp_call *, const MPI_Request *);

/* MPI_Request_free(): the transfer goes on without a request, so the layer keeps the request until it is done. */
int hp_request_free(struct hp_call *, MPI_Request *, int (*next)(MPI_Request *));

/* MPI is up; is about to go down. */
void hp_layer_open(void);
void hp_layer_close(void);

/* The frame of the Fortran function that the program called, while it runs; NULL: none. */
extern HP_TLS const void *hp_fortran_frame;

/* ------------------------------------------------------------------ windows.c */

/* An operation of a window that nothing has closed yet, or the window itself (HP_TARGET_WINDOW). */
struct hp_exposure {
	struct hp_exposure *next;
	struct hp_transfer transfer;
};

/* False: no memory, and nothing was added. */
bool hp_windows_add(MPI_Win, int target, struct hp_exposure *);

/* What hp_window_close() closes, or everything: a list, which is the caller's. */
struct hp_exposure *hp_windows_take(MPI_Win, int target);
struct hp_exposure *hp_windows_take_all(void);

/* ------------------------------------------------------------------ trace.c */

extern bool hp_trace_on;

uint64_t hp_now_ns(void);
/* The end of the stack that `frame` lies in; 0 where that is not the thread's own, but a fiber's. */
uintptr_t hp_stack_end(uintptr_t frame);
void hp_trace_open(const char *prefix, int rank, size_t min);
void hp_trace_begin(struct hp_call *);
void hp_trace_end(const struct hp_call *);
/* Every buffer of a call, logged or not. */
void hp_trace_payload(size_t payload);
struct hp_row *hp_trace_row(const struct hp_call *, const char *op, const struct hp_buffer *);
void hp_trace_row_end(struct hp_row *);
/* Writes what is left. 0 or -errno. */
int hp_trace_close(void);

#endif
