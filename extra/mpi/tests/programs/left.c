/*
 * An error handler that leaves MPI by longjmp, from a call of each of these, which has its buffer pinned; then messages from
 * frames in front of that call's, behind it, and at its place. Prints "ok" on rank 0.
 */
#include <mpi.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES = 65536 };

static jmp_buf back;
static char *buf;
static int rank, left;

static void leave(MPI_Comm *comm, int *error, ...)
{
	(void)comm, (void)error;
	left++;
	longjmp(back, 1);
}

__attribute__((noinline)) static void fail(int deep)
{
	volatile char room[256];

	room[deep] = 0;
	if (deep)
		fail(deep - 1);
	else if (!setjmp(back))
		MPI_Send(buf, BYTES, MPI_BYTE, 99, 0, MPI_COMM_WORLD);
	room[deep] = room[0];
}

__attribute__((noinline)) static void exchange(int deep)
{
	volatile char room[256];

	room[deep] = 0;
	if (deep)
		exchange(deep - 1);
	else if (rank)
		MPI_Recv(buf, BYTES, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	else
		MPI_Send(buf, BYTES, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
	room[deep] = room[0];
}

int main(int argc, char **argv)
{
	static const int depths[][2] = { { 0, 0 }, { 5, 0 }, { 0, 5 }, { 3, 3 }, { 0, 1 }, { 1, 2 } };
	MPI_Errhandler handler;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_create_errhandler(leave, &handler);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
	buf = malloc(BYTES);
	for (int i = 0; i < 6; i++) {
		fail(depths[i][0]);
		exchange(depths[i][1]);
		exchange(depths[i][1]);
	}
	fail(3);
	free(buf);
	if (!rank)
		puts(left == 7 ? "ok" : "the error handler was not called");
	MPI_Finalize();
	return left != 7;
}
