/*
 * A call of the program to MPI, as all files of the layer see it: its buffers, its requests, and its stack frame.
 */
#ifndef HP_MPI_CALL_H
#define HP_MPI_CALL_H

#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hugepin.h"
#include "util.h"

/* The layer is preloaded into every program that mpirun starts. So it must not need a library of MPI, but uses the one
 * that is loaded. These are handles of Open MPI; MPICH's handles are numbers. */
#pragma weak ompi_mpi_byte
#pragma weak ompi_mpi_comm_null
#pragma weak ompi_mpi_comm_world
#pragma weak ompi_mpi_datatype_null
#pragma weak ompi_mpi_op_no_op
#pragma weak ompi_request_null

/* One pin for each GiB, the longest registration of io_uring. Longer buffers are counted as not pinned. */
#define HP_MPI_PINS_MAX 4

struct hp_row; /* a row of the trace */

/* No peer. MPI's own special ranks (none, any) are other small negative numbers. */
#define HP_PEER_NONE INT_MIN

/* The memory that one argument of a call covers. */
struct hp_buffer {
	uintptr_t start;
	size_t len, payload; /* len: from the first to the last byte; payload: bytes that are transferred */
	char dir; /* S: MPI reads the buffer, R: MPI writes it */
	int peer; /* a rank or root; below 0: none, or no particular one */
	int pins_count;
	struct hugepin_pin pins[HP_MPI_PINS_MAX];
	struct hp_row *row;
};

/* The buffers of a call or request. No function of MPI uses more than two after its return. */
struct hp_transfer {
	const char *op;
	int count;
	struct hp_buffer buffers[2];
};

/* The layer's requests that belong to the MPI requests of a Wait or Test. */
struct hp_request;
struct hp_exposure;
struct hp_claims {
	int n;
	struct hp_request **of, *few[32];
};

/* A call of the program that is under way; one for each thread. It is not on the wrapper's stack, since an error
 * handler may leave the call by longjmp or throw, and then that stack is gone. */
struct hp_call {
	struct hp_transfer transfer;
	struct hp_claims claims;
	struct hp_exposure *closing; /* operations on a window that the call closes */
	const void *own; /* the wrapper's stack frame */
	/* The stack frame of the function that the program called: { the caller's frame, the return address }. */
	const void *frame;
	uint64_t seq, start_ns, cpu_ns; /* for the trace */
};

/* Whether a handle is one that MPI can be asked about. MPI refuses the others, and reports that to the error handler of
 * MPI_COMM_WORLD, which ends the program by default: the program's own call shall report it, to the handler that the
 * program expects. 0 is no handle of either MPI. */
static inline bool hp_is_comm(MPI_Comm comm)
{
	return comm && comm != MPI_COMM_NULL;
}

static inline bool hp_is_type(MPI_Datatype type)
{
	return type && type != MPI_DATATYPE_NULL;
}

/* for targets of window operations; MPI's own special ranks are other small negative numbers */
enum { HP_TARGET_ALL = INT_MIN + 1, HP_TARGET_WINDOW };

#endif
