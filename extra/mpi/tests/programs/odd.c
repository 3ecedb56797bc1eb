/*
 * What the MPI layer cannot pin, or should not: two buffers by absolute addresses, two with little in a large span,
 * one that nobody may write to; and a request that is never completed. The data must arrive all the same. Two ranks.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { N = 16384 };

int main(int argc, char **argv)
{
	int rank, other, bad = 0;
	MPI_Datatype both, thin;
	MPI_Request q;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	other = 1 - rank;
	double *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b);
	for (int i = 0; i < N; i++)
		a[i] = rank + i;
	memset(b, 0, N * sizeof *b);

	MPI_Aint at[2];
	MPI_Get_address(a, &at[0]);
	MPI_Get_address(b, &at[1]);
	const int one = 1;
	for (int way = 0; way < 2; way++) { /* there the first is sent from, here the second is received into */
		MPI_Datatype doubles;
		MPI_Type_contiguous(N, MPI_DOUBLE, &doubles);
		MPI_Type_create_hindexed(1, &one, &at[way], doubles, &both);
		MPI_Type_commit(&both);
		if (way == 0)
			MPI_Isend(MPI_BOTTOM, 1, both, other, 1, MPI_COMM_WORLD, &q);
		else
			MPI_Recv(MPI_BOTTOM, 1, both, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Type_free(&both);
		MPI_Type_free(&doubles);
	}
	MPI_Wait(&q, MPI_STATUS_IGNORE);
	bad += b[N - 1] != other + N - 1;

	/* one double in 64 */
	double *wide = malloc(64 * N * sizeof *wide), *narrow = malloc(64 * N * sizeof *narrow);
	for (int i = 0; i < N; i++)
		wide[64 * i] = rank - i;
	MPI_Type_vector(N, 1, 64, MPI_DOUBLE, &thin);
	MPI_Type_commit(&thin);
	MPI_Sendrecv(wide, 1, thin, other, 2, narrow, 1, thin, other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	bad += narrow[64 * (N - 1)] != other - (N - 1);
	MPI_Type_free(&thin);

	/* io_uring pins for writing */
	double *locked = mmap(NULL, N * sizeof *locked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(locked, a, N * sizeof *locked);
	mprotect(locked, N * sizeof *locked, PROT_READ);
	MPI_Isend(locked, N, MPI_DOUBLE, other, 3, MPI_COMM_WORLD, &q);
	memset(b, 0, N * sizeof *b);
	MPI_Recv(b, N, MPI_DOUBLE, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Wait(&q, MPI_STATUS_IGNORE);
	bad += b[N - 1] != other + N - 1;
	MPI_Irecv(wide, N, MPI_DOUBLE, other, 4, MPI_COMM_WORLD, &q);
	int all;
	MPI_Allreduce(&bad, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0 && !all)
		puts("ok");
	MPI_Finalize();
	return all != 0;
}
