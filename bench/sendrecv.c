/*
 * Messages of large buffers between two ranks of MPI, as Rex et al. 2006 measured them (figure 5: SendRecv of the Intel
 * MPI benchmarks), and a ping-pong. Buffers are malloc's, and stay.
 *
 *	mpirun -n 2 sendrecv [-a] [-r ROUNDS] [KIB...]
 *
 * Rank 0 prints for each size "KIB US US": of ROUNDS (9) the fastest MPI_Sendrecv of both ranks with each other, and half of
 * the fastest round trip; with -a also the fastest MPI_Allreduce, for which MPI allocates buffers of its own each time (Gerofi
 * et al. 2016, figure 3b). The first of each is not counted: it registers the buffers if MPI keeps registrations. What arrives
 * is checked, and the last line says "bad 0".
 */
#include <err.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, rounds = 9;
static long bad;

/* The first byte, the last, and some between are of the peer and of this message. */
static void check(const char *in, size_t bytes, int stamp)
{
	for (size_t i = 0; i < bytes; i += bytes / 8)
		bad += in[i] != (char)stamp;
	bad += in[bytes - 1] != (char)stamp;
}

static double both_ways(char *out, char *in, int bytes, int stamp)
{
	const double start = MPI_Wtime();

	MPI_Sendrecv(out, bytes, MPI_CHAR, !rank, 1, in, bytes, MPI_CHAR, !rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	const double us = (MPI_Wtime() - start) * 1e6;

	check(in, (size_t)bytes, stamp + !rank);
	return us;
}

static double round_trip(char *out, char *in, int bytes, int stamp)
{
	const double start = MPI_Wtime();

	for (int turn = 0; turn < 2; turn++)
		if (turn == rank)
			MPI_Send(out, bytes, MPI_CHAR, !rank, 2, MPI_COMM_WORLD);
		else
			MPI_Recv(in, bytes, MPI_CHAR, !rank, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	const double us = (MPI_Wtime() - start) * 1e6;

	check(in, (size_t)bytes, stamp + !rank);
	return us / 2;
}

/* The ranks' bytes are a stamp and the next: no byte of a sum has a carry. */
static double reduce(char *out, char *in, int bytes, int stamp)
{
	const double start = MPI_Wtime();

	MPI_Allreduce(out, in, bytes / 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	const double us = (MPI_Wtime() - start) * 1e6;

	check(in, (size_t)bytes, 2 * stamp + 1);
	return us;
}

/* The first `count` of these are measured. */
static double (*const ways[])(char *out, char *in, int bytes, int stamp) = { both_ways, round_trip, reduce };

static void measure(size_t kib, int count)
{
	const size_t bytes = kib * 1024;
	char *out = malloc(bytes), *in = malloc(bytes);
	double least[3] = { 0 };

	if (!out || !in || bytes > 1 << 30)
		errx(1, "%zu KiB: no memory", kib);
	memset(in, -1, bytes);
	for (int i = -1; i < rounds; i++)
		for (int s = 0; s < count; s++) {
			const int stamp = (4 * (i + 1) + 2 * s) % 64;

			memset(out, stamp + rank, bytes);
			MPI_Barrier(MPI_COMM_WORLD);
			const double t = ways[s](out, in, (int)bytes, stamp);
			if (i == 0 || (i > 0 && t < least[s]))
				least[s] = t;
		}
	if (!rank) {
		printf("%zu", kib);
		for (int s = 0; s < count; s++)
			printf(" %.1f", least[s]);
		puts("");
	}
	fflush(stdout);
	free(out);
	free(in);
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 16, 64, 256, 1024, 4096 };
	int option, ranks, count = 2;
	long all;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	while ((option = getopt(argc, argv, "ar:")) != -1)
		if (option == 'a')
			count = 3;
		else
			rounds = option == 'r' ? atoi(optarg) : 0;
	if (ranks != 2 || rounds < 1)
		errx(2, "two ranks, and at least one round");
	for (int i = optind; i < argc; i++)
		measure(strtoul(argv[i], NULL, 0), count);
	for (size_t i = 0; optind == argc && i < sizeof sizes / sizeof *sizes; i++)
		measure(sizes[i], count);
	MPI_Reduce(&bad, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (!rank)
		printf("bad %ld\n", all);
	MPI_Finalize();
	return bad != 0;
}
