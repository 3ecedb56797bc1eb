/* Broadcasts from two functions, one of which is called from two places: sites that a trace must tell apart. Two
 * ranks. */
#include <mpi.h>
#include <stdio.h>

static char data[65536];

static void inner(void)
{
	MPI_Bcast(data, sizeof data, MPI_CHAR, 0, MPI_COMM_WORLD);
}

static void another(void)
{
	MPI_Bcast(data, sizeof data, MPI_CHAR, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	inner();
	inner();
	another();
	if (rank == 0)
		puts("ok");
	MPI_Finalize();
	return 0;
}
