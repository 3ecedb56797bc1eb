/* A plugin that communicates, in each way that the layer stands before: "ok" on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static char buf[1 << 16], in[1 << 16];

int work(void)
{
	int rank, sum = 0, flag = 0;
	MPI_Request q[2];
	MPI_Win win;

	MPI_Init(NULL, NULL);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	memset(buf, 'a' + rank, sizeof buf);
	MPI_Irecv(in, sizeof in, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, &q[0]);
	MPI_Isend(buf, sizeof buf, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, &q[1]);
	while (!flag)
		MPI_Testall(2, q, &flag, MPI_STATUSES_IGNORE);
	MPI_Win_create(buf, sizeof buf, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	MPI_Win_fence(0, win);
	MPI_Put(in, 1000, MPI_BYTE, !rank, 0, 1000, MPI_BYTE, win);
	MPI_Win_fence(0, win);
	MPI_Win_free(&win);
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	flag = sum == 1 && in[0] == 'a' + !rank && in[65535] == 'a' + !rank && buf[0] == 'a' + rank && buf[65535] == 'a' + rank;
	if (!flag || !rank)
		puts(flag ? "ok" : "wrong");
	MPI_Finalize();
	return !flag;
}

#ifdef PROGRAM
int main(void)
{
	return work();
}
#endif
