/*
 * The MPI layer, libhugepin-mpi.so. Preloaded into an unmodified MPI program, it pins the buffers of each call as long
 * as MPI may access them.
 *
 * calls.c has the functions of MPI, with the buffers of each. fortran.c has the Fortran functions, which only note the
 * caller. next.c finds MPI's own functions. This file begins and ends calls, and opens and closes the layer.
 * transfer.c pins and unpins. requests.c and windows.c keep transfers that outlast a call. trace.c records, and
 * report.c counts.
 *
 * A buffer is pinned before MPI sees it. It is unpinned when MPI no longer uses it: when the call returns, when the
 * request is done, when the window's operations are closed, or when the window is freed.
 *
 * MPI checks a call's arguments, the layer does not. So before the call the layer follows no pointer that is NULL, and
 * asks MPI about no handle that MPI refuses. After a call that failed, it reads nothing that the call was to fill.
 *
 * The program's error handler may leave a call by longjmp or throw. The next call of the thread notices this, and ends
 * the call that was left.
 */
#include "layer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "domain.h"
#include "next.h"
#include "options.h"
#include "report.h"
#include "requests.h"
#include "stack.h"
#include "trace.h"
#include "transfer.h"
#include "windows.h"

/* MPI 4.1 deprecates Type_size_x. MPI 3 lacks Type_size_c. */
#if MPI_VERSION * 100 + MPI_SUBVERSION >= 401
#define REAL_TYPE_SIZE REAL(Type_size_c)
#else
#define REAL_TYPE_SIZE REAL(Type_size_x)
#endif

/* A buffer that spans more than so many times its payload is not pinned: any MPI would pack it instead of registering
 * it. */
#define SPARSE 16

HP_TLS const void *hp_fortran_frame;
static HP_TLS bool inside; /* a call of the program is under way: calls inside it come from MPI */
static HP_TLS struct hp_call call; /* this thread's call of the program that is under way */

static bool is_open; /* between MPI_Init and MPI_Finalize */
static int rank;

/* ------------------------------------------------------------------ calls */

/* End a call that was left by longjmp or throw. Its buffers are unpinned, although MPI does not say whether it still
 * uses them. */
static void HP_COLD call_abandon(void)
{
	hp_transfer_release(&call.transfer);
	hp_requests_unclaim(&call.claims);
	hp_window_closed(&call, MPI_ERR_OTHER); /* its operations may be open still */
	inside = false;
}

struct hp_call *hp_call_begin(const char *op, const void *frame)
{
	struct hp_call *c = &call;

	if (!is_open)
		return NULL;
	if (inside) {
		if (hp_frame_lives(c->own, frame))
			return NULL;
		call_abandon();
	}
	inside = true;
	c->own = frame;
	c->transfer.op = op;
	c->transfer.count = 0;
	c->claims.n = 0;
	c->closing = NULL;
	c->frame = hp_fortran_frame ? hp_fortran_frame : frame;
	if (hp_trace_on)
		hp_trace_begin(c);
	hp_requests_test_orphans();
	return c;
}

static void call_leave(struct hp_call *c)
{
	if (hp_trace_on)
		hp_trace_end(c);
	inside = false;
}

/* Add a buffer of len bytes at `start` to the call. */
static void buffer_add(struct hp_call *c, uintptr_t start, int64_t len, int64_t payload, char dir, int peer)
{
	if (hp_trace_on)
		hp_trace_payload((size_t)payload);
	if (payload < hp_mpi_options.min || payload <= 0)
		return;
	if (len / SPARSE > payload) {
		HP_MPI_COUNT(sparse);
		return;
	}
	c->transfer.buffers[c->transfer.count++] = (struct hp_buffer){
		.start = start, .len = (size_t)len, .payload = (size_t)payload, .dir = dir, .peer = peer
	};
}

/* The range of bytes that `count` elements of a type cover, relative to the buffer's address. */
static bool span_of(int64_t count, MPI_Datatype type, int64_t *ret_from, int64_t *ret_to, int64_t *ret_payload)
{
	MPI_Aint lb, extent, true_lb, true_extent;
	MPI_Count size;

	if (!hp_is_type(type) || REAL_TYPE_SIZE(type, &size) != MPI_SUCCESS || size <= 0 ||
	    REAL(Type_get_extent)(type, &lb, &extent) != MPI_SUCCESS ||
	    REAL(Type_get_true_extent)(type, &true_lb, &true_extent) != MPI_SUCCESS)
		return false;
	const int64_t last = (count - 1) * extent;
	*ret_from = true_lb + HP_MIN(last, 0);
	*ret_to = true_lb + true_extent + HP_MAX(last, 0);
	*ret_payload = count * size;
	return true;
}

void hp_call_buffer(struct hp_call *c, const void *buf, int64_t count, MPI_Datatype type, char dir, int peer)
{
	int64_t from, to, payload;

	if (count <= 0 || buf == MPI_IN_PLACE || peer == MPI_PROC_NULL || !span_of(count, type, &from, &to, &payload))
		return;
	if (buf == MPI_BOTTOM) { /* the type contains absolute addresses, which may lie anywhere */
		HP_MPI_COUNT(bottom);
		return;
	}
	buffer_add(c, (uintptr_t)buf + (uintptr_t)from, to - from, payload, dir, peer);
}

void hp_call_pieces(struct hp_call *c, const void *buf, int n, const int *counts, const int *displs, MPI_Datatype type,
		    const MPI_Datatype *types, char dir)
{
	int64_t from = INT64_MAX, to = INT64_MIN, payload = 0;
	MPI_Aint lb, extent = 1;

	if (buf == MPI_IN_PLACE || !counts || !displs)
		return;
	if (!types && (!hp_is_type(type) || REAL(Type_get_extent)(type, &lb, &extent) != MPI_SUCCESS))
		return;
	for (int i = 0; i < n; i++) {
		int64_t begin, end, bytes;

		if (counts[i] <= 0 || !span_of(counts[i], types ? types[i] : type, &begin, &end, &bytes))
			continue;
		from = HP_MIN(from, begin + displs[i] * extent);
		to = HP_MAX(to, end + displs[i] * extent);
		payload += bytes;
	}
	if (!payload)
		return;
	if (buf == MPI_BOTTOM) {
		HP_MPI_COUNT(bottom);
		return;
	}
	buffer_add(c, (uintptr_t)buf + (uintptr_t)from, to - from, payload, dir, HP_PEER_NONE);
}

void hp_call_pin(struct hp_call *c)
{
	hp_transfer_acquire(&c->transfer, c);
}

void hp_call_phase(const struct hp_call *c, unsigned phase, char dir)
{
	hp_transfer_phase(&c->transfer, phase, dir);
}

__attribute__((visibility("default"))) uintptr_t hugepin_mpi_site(void)
{
	return inside ? ((const uintptr_t *)call.frame)[1] : 0;
}

void hp_call_end(struct hp_call *c)
{
	hp_transfer_release(&c->transfer);
	call_leave(c);
}

void hp_call_end_request(struct hp_call *c, int err, const MPI_Request *handle)
{
	if (err != MPI_SUCCESS)
		hp_transfer_release(&c->transfer);
	else if (c->transfer.count)
		hp_requests_add(c, *handle, false);
	call_leave(c);
}

void hp_call_end_init(struct hp_call *c, int err, const MPI_Request *handle)
{
	if (err == MPI_SUCCESS && c->transfer.count)
		hp_requests_add(c, *handle, true);
	call_leave(c);
}

void hp_call_end_window(struct hp_call *c, int err, const MPI_Win *win, int target)
{
	if (err != MPI_SUCCESS)
		hp_transfer_release(&c->transfer);
	else if (c->transfer.count)
		hp_windows_add(*win, target, &c->transfer);
	call_leave(c);
}

/* ------------------------------------------------------------------ beginning and end */

void hp_layer_open(void)
{
	const char *trace = secure_getenv("HUGEPIN_X_MPI_TRACE"), *stats = secure_getenv("HUGEPIN_STATS");
	const bool stats_on = stats && strcmp(stats, "0") != 0;
	int err;

	if (is_open)
		return;
	if (!hp_mpi_is_ours()) {
		hp_pass_through();
		return;
	}
	hp_mpi_options_load();
	REAL(Comm_rank)(MPI_COMM_WORLD, &rank);
	err = hp_mpi_domain_open();
	if (err < 0) {
		if (stats_on || hp_mpi_options.strict)
			fprintf(stderr, "hugepin: MPI rank %d: no domain, nothing is registered: %s\n", rank,
				strerror(-err));
		if (hp_mpi_options.strict)
			REAL(Abort)(MPI_COMM_WORLD, 1);
	}
	if (trace && *trace)
		hp_trace_open(trace, rank, (size_t)hp_mpi_options.min);
	hp_report_open(stats);
	is_open = true;
}

void hp_layer_close(void)
{
	int err;

	if (!is_open)
		return;
	if (inside)
		call_abandon();
	hp_requests_close();
	hp_windows_close();
	is_open = false;
	hp_report_sample();
	hp_report_sum(rank);
	if (hp_trace_on && (err = hp_trace_close()) < 0)
		fprintf(stderr, "hugepin: MPI rank %d: the trace could not be written: %s\n", rank, strerror(-err));
	if (hp_mpi_domain) {
		hp_report_write(rank);
		hp_mpi_domain_close();
	}
	hp_mpi_phases = false;
}
