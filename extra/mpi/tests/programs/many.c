/*
 * What is open must not make other calls slow. "flush": 16,000 operations of a window are open towards the other rank; what a
 * flush of this rank's own takes with and without them, the least of many, in nanoseconds of this thread. "freed": 500 requests
 * that were freed while they were under way; then 100 calls. Prints "ok" on rank 0.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PUTS = 16000, FREED = 500, CALLS = 100, BYTES = 64 };

static int rank;

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long flush_ns(MPI_Win win)
{
	long least = 1L << 60;

	for (int i = 0; i < 300; i++) {
		long t = now();
		MPI_Win_flush(rank, win);
		t = now() - t;
		least = t < least ? t : least;
	}
	return least;
}

static void flush(void)
{
	char *mine, *buf = calloc(1, BYTES);
	long before, with;
	MPI_Win win;

	MPI_Win_allocate(PUTS, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &win);
	MPI_Win_lock_all(0, win);
	before = flush_ns(win);
	for (int i = 0; i < PUTS; i++)
		MPI_Put(buf, BYTES, MPI_BYTE, !rank, i / BYTES * BYTES, BYTES, MPI_BYTE, win);
	with = flush_ns(win);
	MPI_Win_unlock_all(win);
	MPI_Win_free(&win);
	free(buf);
	if (!rank)
		printf("flush: %ld ns, with %d open %ld ns\n", before, PUTS, with);
}

static void freed(void)
{
	static char buf[FREED][BYTES];
	int flag;

	for (int i = 0; i < FREED; i++) {
		MPI_Request q;
		MPI_Irecv(buf[i], BYTES, MPI_BYTE, !rank, 1, MPI_COMM_WORLD, &q);
		MPI_Request_free(&q);
	}
	for (int i = 0; i < CALLS; i++)
		MPI_Iprobe(!rank, 2, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < FREED; i++)
		MPI_Send(buf[0], BYTES - 1, MPI_BYTE, !rank, 1, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < 2 * FREED; i++) /* each is looked at again */
		MPI_Iprobe(!rank, 2, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc > 1 && !strcmp(argv[1], "flush"))
		flush();
	else
		freed();
	if (!rank)
		puts("ok");
	MPI_Finalize();
	return 0;
}
