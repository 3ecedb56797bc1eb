/*
 * A call of the program to MPI, as all files of the layer see it: its buffers, the requests that it waits for, and its
 * frame.
 */
#ifndef HP_MPI_CALL_H
#define HP_MPI_CALL_H

#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "hugepin.h"

/* The layer is preloaded into whatever mpirun starts. So it needs no library of MPI, but finds the one that is there.
 * These are Open MPI's handles; MPICH's are numbers. */
#pragma weak ompi_mpi_byte
#pragma weak ompi_mpi_comm_world
#pragma weak ompi_mpi_op_no_op
#pragma weak ompi_request_null

/* One pin for each GiB, the longest registration of io_uring. Longer buffers count as failed. */
#define HP_MPI_PINS_MAX 4

struct hp_row; /* of the trace */

/* No peer. MPI's numbers for nobody and anybody are others: small and negative. */
#define HP_PEER_NONE INT_MIN

/* The memory that one argument of a call touches. */
struct hp_buffer {
	uintptr_t start;
	size_t len, payload; /* len: from the first to the last byte; payload: the bytes that are sent */
	char dir; /* S: it is read, R: it is written */
	int peer; /* a rank or root; below 0: none, or nobody in particular */
	int pins_count;
	struct hugepin_pin pins[HP_MPI_PINS_MAX];
	struct hp_row *row;
};

/* The buffers of a call or request. No function of MPI needs more than two beyond its return. */
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

/* A call of the program that is under way, one for each thread. It is not on the wrapper's stack, which is gone when an
 * error handler leaves the call by longjmp or throw. */
struct hp_call {
	struct hp_transfer transfer;
	struct hp_claims claims;
	const void *own; /* the wrapper's frame */
	/* The frame of the function that the program called: { the caller's frame, the return address }. */
	const void *frame;
	uint64_t seq, start_ns, cpu_ns; /* for the trace */
};

enum { HP_TARGET_ALL = INT_MIN + 1, HP_TARGET_WINDOW }; /* of operations; MPI has small negative numbers of its own */

#endif
