/*
 * transpose ARRAYS KIB ITERATIONS WORK: what a three-dimensional Fourier transform does with memory: ARRAYS pairs of
 * arrays of KIB, each transposed between the ranks by MPI_Alltoall in each iteration, with WORK passes over it before.
 * No call has more than two arrays in use, the program communicates with all of them. What arrives is checked. Prints
 * "ok SECONDS" on rank 0.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int arrays = argc > 1 ? atoi(argv[1]) : 8, kib = argc > 2 ? atoi(argv[2]) : 1024;
	int iterations = argc > 3 ? atoi(argv[3]) : 20, work = argc > 4 ? atoi(argv[4]) : 1;
	int rank, ranks, bad = 0, all;
	double seconds;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int part = kib * 1024 / (int)sizeof(double) / ranks, n = part * ranks;
	double **from = malloc((size_t)arrays * sizeof *from), **to = malloc((size_t)arrays * sizeof *to);
	for (int k = 0; k < arrays; k++) {
		from[k] = malloc((size_t)n * sizeof **from);
		to[k] = malloc((size_t)n * sizeof **to);
		for (int i = 0; i < n; i++)
			from[k][i] = rank * 1e7 + k * 1e5 + i;
	}
	seconds = -MPI_Wtime();
	for (int it = 0; it < iterations; it++)
		for (int k = 0; k < arrays; k++) {
			for (int w = 0; w < work; w++) /* an even number of times is none: the numbers stay as they are */
				for (int i = 0; i < n; i++)
					from[k][i] = -from[k][i];
			MPI_Alltoall(from[k], part, MPI_DOUBLE, to[k], part, MPI_DOUBLE, MPI_COMM_WORLD);
			double sign = ((it + 1) * work) % 2 ? -1 : 1;
			for (int r = 0; r < ranks; r++)
				for (int i = 0; i < part; i += part > 977 ? 977 : 1)
					bad += to[k][r * part + i] != sign * (r * 1e7 + k * 1e5 + rank * part + i);
		}
	seconds += MPI_Wtime();
	MPI_Allreduce(&bad, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s %.6f\n", all ? "wrong" : "ok", seconds);
	MPI_Finalize();
	return all != 0;
}
