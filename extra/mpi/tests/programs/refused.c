/*
 * Calls that MPI refuses. For each: the class of the error, and how often the error handlers of the world and of the
 * program's own communicator and window ran; or that MPI does not survive it. The output is the same with and without
 * the layer. Two ranks, of which rank 0 prints.
 */
#include <mpi.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 16, TAG = 5, NOBODY = 77 };

static int rank, other, of_world, of_own;
static char *a, *b;
static sigjmp_buf back;

static void fault(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

static void world_handler(MPI_Comm *comm, int *error, ...)
{
	(void)comm, (void)error;
	of_world++;
}

static void own_handler(MPI_Comm *comm, int *error, ...)
{
	(void)comm, (void)error;
	of_own++;
}

static void window_handler(MPI_Win *win, int *error, ...)
{
	(void)win, (void)error;
	of_own++;
}

static void told(const char *call, int error)
{
	int class = 0;

	if (error)
		MPI_Error_class(error, &class);
	if (rank == 0)
		printf("class %d, world %d, own %d: %s\n", class, of_world, of_own, call);
	fflush(stdout);
	of_world = of_own = 0;
}
#define TRY_AS(NAME, CALL) \
	do { \
		if (!sigsetjmp(back, 1)) \
			told(NAME, CALL); \
		else if (rank == 0) \
			puts("fault: " NAME); \
	} while (0)
#define TRY(CALL) TRY_AS(#CALL, CALL)
#define BARE(...) __VA_ARGS__
/* The call, and its form with a request. */
#define BOTH(NAME, INAME, ARGUMENTS) \
	do { \
		TRY_AS("MPI_" #NAME #ARGUMENTS, MPI_##NAME ARGUMENTS); \
		TRY_AS("MPI_" #INAME #ARGUMENTS, MPI_##INAME(BARE ARGUMENTS, &q)); \
	} while (0)

static void point_to_point(MPI_Comm own)
{
	const MPI_Datatype none = MPI_DATATYPE_NULL, c = MPI_CHAR;
	MPI_Datatype raw;
	MPI_Request q;

	MPI_Type_contiguous(2, MPI_CHAR, &raw); /* not committed */
	TRY(MPI_Send(a, N, none, other, TAG, own));
	TRY(MPI_Send(a, N, raw, other, TAG, own));
	TRY(MPI_Send(a, -1, c, other, TAG, own));
	TRY(MPI_Send(a, N, c, NOBODY, TAG, own));
	TRY(MPI_Send(a, N, c, other, -TAG, own));
	TRY(MPI_Send(a, N, c, other, TAG, MPI_COMM_NULL));
	TRY(MPI_Recv(a, N, none, other, TAG, own, MPI_STATUS_IGNORE));
	TRY(MPI_Sendrecv(a, N, none, other, TAG, b, N, c, other, TAG, own, MPI_STATUS_IGNORE));
	TRY(MPI_Sendrecv(a, N, c, other, TAG, b, N, none, other, TAG, own, MPI_STATUS_IGNORE));
	TRY(MPI_Sendrecv_replace(a, N, none, other, TAG, other, TAG, own, MPI_STATUS_IGNORE));
	TRY(MPI_Isend(a, N, none, other, TAG, own, &q));
	TRY(MPI_Isend(a, N, c, other, TAG, own, NULL));
	TRY(MPI_Irecv(a, N, c, other, TAG, own, NULL));
	TRY(MPI_Irecv(a, N, none, other, TAG, own, &q));
	TRY(MPI_Send_init(a, N, none, other, TAG, own, &q));
	TRY(MPI_Send_init(a, N, c, other, TAG, own, NULL));
	TRY(MPI_Recv_init(a, N, c, NOBODY, TAG, own, &q));
	MPI_Type_free(&raw);
}

static void requests(MPI_Comm own)
{
	MPI_Request q = MPI_REQUEST_NULL;
	MPI_Status s[2];
	int flag = 0, index, indices[2];

	MPI_Irecv(a, N, MPI_CHAR, other, TAG, own, &q);
	TRY(MPI_Wait(NULL, s));
	TRY(MPI_Test(NULL, &flag, s));
	TRY(MPI_Waitall(2, NULL, s));
	TRY(MPI_Waitall(-1, &q, s));
	TRY(MPI_Waitany(2, NULL, &index, s));
	TRY(MPI_Waitsome(2, NULL, &index, indices, s));
	TRY(MPI_Testall(2, NULL, &flag, s));
	TRY(MPI_Testany(2, NULL, &index, &flag, s));
	TRY(MPI_Testsome(2, NULL, &index, indices, s));
	TRY(MPI_Start(NULL));
	TRY(MPI_Startall(2, NULL));
	TRY(MPI_Startall(-1, &q));
	TRY(MPI_Request_free(NULL));
	MPI_Cancel(&q);
	TRY(MPI_Wait(&q, s));
}

static void collectives(MPI_Comm own)
{
	const MPI_Comm nobodys = MPI_COMM_NULL;
	const MPI_Datatype none = MPI_DATATYPE_NULL, c = MPI_CHAR, types[2] = { none, none };
	const int counts[2] = { N / 2, N / 2 }, displs[2] = { 0, N / 2 };
	MPI_Request q;

	BOTH(Bcast, Ibcast, (a, N, c, 0, nobodys));
	BOTH(Reduce, Ireduce, (a, b, N, c, MPI_MAX, 0, nobodys));
	BOTH(Allreduce, Iallreduce, (a, b, N, c, MPI_MAX, nobodys));
	BOTH(Reduce_scatter_block, Ireduce_scatter_block, (a, b, N / 2, c, MPI_MAX, nobodys));
	BOTH(Reduce_scatter, Ireduce_scatter, (a, b, counts, c, MPI_MAX, nobodys));
	BOTH(Gather, Igather, (a, N / 2, c, b, N / 2, c, 0, nobodys));
	BOTH(Gatherv, Igatherv, (a, N / 2, c, b, counts, displs, c, 0, nobodys));
	BOTH(Scatter, Iscatter, (a, N / 2, c, b, N / 2, c, 0, nobodys));
	BOTH(Scatterv, Iscatterv, (a, counts, displs, c, b, N / 2, c, 0, nobodys));
	BOTH(Allgather, Iallgather, (a, N / 2, c, b, N / 2, c, nobodys));
	BOTH(Allgatherv, Iallgatherv, (a, N / 2, c, b, counts, displs, c, nobodys));
	BOTH(Alltoall, Ialltoall, (a, N / 2, c, b, N / 2, c, nobodys));
	BOTH(Alltoallv, Ialltoallv, (a, counts, displs, c, b, counts, displs, c, nobodys));
	BOTH(Alltoallw, Ialltoallw, (a, counts, displs, types, b, counts, displs, types, nobodys));

	BOTH(Bcast, Ibcast, (a, N, none, 0, own));
	BOTH(Bcast, Ibcast, (a, N, c, NOBODY, own));
	BOTH(Allreduce, Iallreduce, (a, b, N, c, MPI_OP_NULL, own));
	BOTH(Allreduce, Iallreduce, (a, b, N, none, MPI_MAX, own));
	BOTH(Alltoallw, Ialltoallw, (a, counts, displs, types, b, counts, displs, types, own));
	BOTH(Reduce_scatter, Ireduce_scatter, (a, b, NULL, c, MPI_MAX, own));
	BOTH(Gatherv, Igatherv, (a, N / 2, c, b, NULL, NULL, c, rank, own));
	BOTH(Scatterv, Iscatterv, (a, NULL, NULL, c, b, N / 2, c, rank, own));
	BOTH(Scatterv, Iscatterv, (NULL, NULL, NULL, c, b, N / 2, c, NOBODY, own));
	BOTH(Allgatherv, Iallgatherv, (a, N / 2, c, b, NULL, NULL, c, own));
	BOTH(Alltoallv, Ialltoallv, (a, NULL, NULL, c, b, NULL, NULL, c, own));
	BOTH(Alltoallw, Ialltoallw, (a, NULL, NULL, NULL, b, NULL, NULL, NULL, own));
	TRY(MPI_Ibcast(a, N, c, 0, own, NULL));
	TRY(MPI_Iallreduce(a, b, N, c, MPI_MAX, own, NULL));
}

static void windows(MPI_Comm own)
{
	const MPI_Datatype none = MPI_DATATYPE_NULL, c = MPI_CHAR;
	MPI_Win w, no_window = MPI_WIN_NULL;
	MPI_Errhandler handler;
	MPI_Request q;

	TRY(MPI_Win_create(b, N, 1, MPI_INFO_NULL, own, NULL));
	TRY(MPI_Win_create(b, N, 1, MPI_INFO_NULL, MPI_COMM_NULL, &w));
	TRY(MPI_Win_create(b, -1, 1, MPI_INFO_NULL, own, &w));
	TRY(MPI_Win_allocate(N, 1, MPI_INFO_NULL, own, &b, NULL));
	TRY(MPI_Win_free(&no_window));
	TRY(MPI_Win_free(NULL));
	TRY(MPI_Win_fence(0, no_window));
	TRY(MPI_Win_flush(other, no_window));
	TRY(MPI_Put(a, N, c, other, 0, N, c, no_window));
	TRY(MPI_Rput(a, N, c, other, 0, N, c, no_window, &q));

	MPI_Win_create(b, N, 1, MPI_INFO_NULL, own, &w);
	MPI_Win_create_errhandler(window_handler, &handler);
	MPI_Win_set_errhandler(w, handler);
	MPI_Win_lock_all(0, w);
	TRY(MPI_Put(a, N, none, other, 0, N, c, w));
	TRY(MPI_Put(a, N, c, NOBODY, 0, N, c, w));
	TRY(MPI_Get(a, N, none, other, 0, N, c, w));
	TRY(MPI_Accumulate(a, N, c, other, 0, N, c, MPI_OP_NULL, w));
	TRY(MPI_Get_accumulate(a, N, none, a, N, c, other, 0, N, c, MPI_SUM, w));
	TRY(MPI_Rput(a, N, c, other, 0, N, c, w, NULL));
	MPI_Win_unlock_all(w);
	TRY(MPI_Win_unlock_all(w));
	MPI_Win_free(&w);
	MPI_Errhandler_free(&handler);
}

int main(int argc, char **argv)
{
	MPI_Errhandler world, own;
	MPI_Comm mine;

	MPI_Init(&argc, &argv);
	signal(SIGSEGV, fault);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	other = !rank;
	MPI_Comm_create_errhandler(world_handler, &world);
	MPI_Comm_create_errhandler(own_handler, &own);
	MPI_Comm_dup(MPI_COMM_WORLD, &mine);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, world);
	MPI_Comm_set_errhandler(mine, own);
	a = calloc(1, N);
	b = calloc(1, N);
	point_to_point(mine);
	requests(mine);
	collectives(mine);
	windows(mine);
	MPI_Barrier(mine);
	MPI_Comm_free(&mine);
	free(a);
	free(b);
	if (rank == 0)
		puts("ok");
	MPI_Finalize();
	return 0;
}
