/*
 * Preloaded into a program of Open MPI: how much of its time it is in calls of MPI, as mpiP tells it (Rex et al. 2006,
 * figure 6). At MPI_Finalize each rank appends a line to the file $MPITIME: "RANK NS NS CALLS", the time since MPI_Init, the
 * part of it in MPI, and the number of calls.
 *
 * C and Fortran call different functions. Arguments are pointers and integers, so that one forwarding function with as many
 * as any call has does for all: what is too much is not looked at. Calls of other threads are not counted.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static uint64_t began_ns, inside_ns, calls;
static __thread unsigned depth;
static __thread uint64_t entered_ns;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void enter(void)
{
	if (!depth++)
		entered_ns = now_ns();
}

static void leave(void)
{
	if (--depth || !began_ns || gettid() != getpid())
		return;
	inside_ns += now_ns() - entered_ns;
	calls++;
}

static void tell(void)
{
	const char *path = getenv("MPITIME"), *rank = getenv("OMPI_COMM_WORLD_RANK");
	char line[128];
	const int n = snprintf(line, sizeof line, "%s %llu %llu %llu\n", rank ? rank : "0",
			       (unsigned long long)(now_ns() - began_ns), (unsigned long long)inside_ns, (unsigned long long)calls);
	const int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;

	if (fd < 0 || write(fd, line, (size_t)n) != n) /* one write: lines of several ranks stay whole */
		abort();
	close(fd);
}

#define TAKES long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l, long m
#define GIVES a, b, c, d, e, f, g, h, i, j, k, l, m
#define FORWARD(name, real, before, after) \
	long real(TAKES); \
	long name(TAKES) \
	{ \
		before; \
		const long ret = real(GIVES); \
		after; \
		return ret; \
	}
#define CALL(C, fortran) \
	FORWARD(MPI_##C, PMPI_##C, enter(), leave()) \
	FORWARD(mpi_##fortran##_, pmpi_##fortran##_, enter(), leave())

FORWARD(MPI_Init, PMPI_Init, (void)0, began_ns = now_ns())
FORWARD(MPI_Init_thread, PMPI_Init_thread, (void)0, began_ns = now_ns())
FORWARD(mpi_init_, pmpi_init_, (void)0, began_ns = now_ns())
FORWARD(mpi_init_thread_, pmpi_init_thread_, (void)0, began_ns = now_ns())
FORWARD(MPI_Finalize, PMPI_Finalize, tell(), (void)0)
FORWARD(mpi_finalize_, pmpi_finalize_, tell(), (void)0)
CALL(Send, send)
CALL(Ssend, ssend)
CALL(Recv, recv)
CALL(Isend, isend)
CALL(Irecv, irecv)
CALL(Sendrecv, sendrecv)
CALL(Start, start)
CALL(Startall, startall)
CALL(Wait, wait)
CALL(Waitall, waitall)
CALL(Waitany, waitany)
CALL(Waitsome, waitsome)
CALL(Test, test)
CALL(Testall, testall)
CALL(Probe, probe)
CALL(Iprobe, iprobe)
CALL(Barrier, barrier)
CALL(Bcast, bcast)
CALL(Reduce, reduce)
CALL(Allreduce, allreduce)
CALL(Gather, gather)
CALL(Gatherv, gatherv)
CALL(Scatter, scatter)
CALL(Scatterv, scatterv)
CALL(Allgather, allgather)
CALL(Allgatherv, allgatherv)
CALL(Alltoall, alltoall)
CALL(Alltoallv, alltoallv)
CALL(Scan, scan)
