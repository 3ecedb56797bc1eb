/*
 * The Fortran functions of the layer. They only note the program's stack frame, and call the next function, which calls
 * PMPI_* (calls.c). Without these functions, calls from different places would look alike to the policy predict, since
 * all would come from the bindings.
 *
 * All arguments in Fortran are addresses. mpif.h and `use mpi' call `mpi_send_', and mpi_f08 calls `mpi_send_f08_'.
 * MPICH's mpi_f08 passes buffers as descriptors, and calls `mpi_send_f08ts_'.
 */
#include "layer.h"
#include "next.h"
#include "stack.h"

#define P1 void *a
#define P2 P1, void *b
#define P3 P2, void *c
#define P4 P3, void *d
#define P5 P4, void *e
#define P6 P5, void *f
#define P7 P6, void *g
#define P8 P7, void *h
#define P9 P8, void *i
#define P10 P9, void *j
#define P11 P10, void *k
#define P12 P11, void *l
#define P13 P12, void *m
#define P14 P13, void *n
#define A1 a
#define A2 A1, b
#define A3 A2, c
#define A4 A3, d
#define A5 A4, e
#define A6 A5, f
#define A7 A6, g
#define A8 A7, h
#define A9 A8, i
#define A10 A9, j
#define A11 A10, k
#define A12 A11, l
#define A13 A12, m
#define A14 A13, n

/* One binding may call another. The outermost one is then the program's call, unless that call was left by longjmp. */
#define FUNCTION(SYMBOL, COUNT) \
	void SYMBOL(P##COUNT); \
	void SYMBOL(P##COUNT) \
	{ \
		static _Atomic(void *) found; \
		void (*next)(P##COUNT) = (void (*)(P##COUNT))hp_next(&found, #SYMBOL); \
		const void *here = __builtin_frame_address(0), *outer = hp_fortran_frame; \
		\
		if (outer && !hp_frame_lives(outer, here)) \
			outer = NULL; \
		hp_fortran_frame = outer ? outer : here; \
		next(A##COUNT); \
		hp_fortran_frame = outer; \
	}
#define EACH(NAME, COUNT) \
	FUNCTION(mpi_##NAME##_, COUNT) FUNCTION(mpi_##NAME##_f08_, COUNT) FUNCTION(mpi_##NAME##_f08ts_, COUNT)

/* The number is the function's number of arguments, ierror included. A nonblocking collective has one more. */
#define SENDS(X) X(send, 7) X(ssend, 7) X(rsend, 7) X(isend, 8) X(issend, 8) X(irsend, 8) X(recv, 8) X(irecv, 8) \
	X(mrecv, 6) X(imrecv, 6) X(sendrecv, 13) X(sendrecv_replace, 10) X(start, 2) X(startall, 3)
#define COLLECTIVES(X) X(bcast, 6) X(reduce, 8) X(allreduce, 7) X(scan, 7) X(exscan, 7) X(reduce_scatter, 7) \
	X(reduce_scatter_block, 7) X(gather, 9) X(gatherv, 10) X(scatter, 9) X(scatterv, 10) X(allgather, 8) \
	X(allgatherv, 9) X(alltoall, 8) X(alltoallv, 10) X(alltoallw, 10)
#define NONBLOCKING(X) X(ibcast, 7) X(ireduce, 9) X(iallreduce, 8) X(iscan, 8) X(iexscan, 8) X(ireduce_scatter, 8) \
	X(ireduce_scatter_block, 8) X(igather, 10) X(igatherv, 11) X(iscatter, 10) X(iscatterv, 11) X(iallgather, 9) \
	X(iallgatherv, 10) X(ialltoall, 9) X(ialltoallv, 11) X(ialltoallw, 11)
#define OPERATIONS(X) X(win_create, 7) X(win_allocate, 7) X(put, 9) X(get, 9) X(accumulate, 10) X(get_accumulate, 13) \
	X(rput, 10) X(rget, 10) X(raccumulate, 11) X(rget_accumulate, 14)

SENDS(EACH)
COLLECTIVES(EACH)
NONBLOCKING(EACH)
OPERATIONS(EACH)
