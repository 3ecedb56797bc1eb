/*
 * Every function that the MPI layer stands before, with data that is checked; two ranks. Each case leaves nothing
 * behind. Prints "ok" on rank 0 and ends with 0, or says what arrived wrong.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 16384, TAG = 3 }; /* 128 KiB of doubles */

static int rank, other, bad, step;
static double *out, *in, *more;
static const MPI_Comm world = MPI_COMM_WORLD;
static const MPI_Datatype D = MPI_DOUBLE;

/* What `who` sends as element i in this step. */
static double value(int who, int i)
{
	return step * 1000003.0 + who * 500009.0 + i;
}

/* Fill a buffer with what this rank sends, the other with nonsense. */
static void fill(void)
{
	step++;
	for (int i = 0; i < 2 * N; i++) {
		out[i] = value(rank, i);
		in[i] = more[i] = -1;
	}
}

static void check(int line, double found, double expected)
{
	if (found != expected && bad++ < 5)
		fprintf(stderr, "rank %d, line %d: %.0f instead of %.0f\n", rank, line, found, expected);
}
#define IS(found, expected) check(__LINE__, found, expected)
/* n elements at p are those from `first` on that `who` sends. */
#define CAME(p, n, who, first) \
	do { \
		for (int i_ = 0; i_ < (n); i_ += 61) \
			IS((p)[i_], value(who, (first) + i_)); \
		IS((p)[(n)-1], value(who, (first) + (n)-1)); \
	} while (0)

static void point_to_point(void)
{
	int (*const sends[])(const void *, int, MPI_Datatype, int, int, MPI_Comm) = { MPI_Send, MPI_Ssend, MPI_Rsend };
	int (*const isends[])(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *) = { MPI_Isend, MPI_Issend,
												      MPI_Irsend };
	MPI_Request q[2];
	MPI_Status s;
	MPI_Message m;
	int n, flag;

	for (int i = 0; i < 3; i++) {
		fill();
		MPI_Irecv(in, N, D, other, TAG, world, &q[0]);
		MPI_Barrier(world); /* for Rsend */
		sends[i](out, N, D, other, TAG, world);
		MPI_Wait(&q[0], &s);
		MPI_Get_count(&s, D, &n);
		IS(n, N);
		CAME(in, N, other, 0);

		fill();
		MPI_Irecv(in, N, D, other, TAG, world, &q[0]);
		MPI_Barrier(world);
		isends[i](out, N, D, other, TAG, world, &q[1]);
		MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
		CAME(in, N, other, 0);
	}
	fill();
	if (rank == 0)
		MPI_Send(out, N, D, other, TAG, world);
	else
		MPI_Recv(in, N, D, MPI_ANY_SOURCE, MPI_ANY_TAG, world, MPI_STATUS_IGNORE);
	if (rank == 1)
		CAME(in, N, other, 0);
	fill();
	MPI_Isend(out, N, D, other, TAG, world, &q[0]);
	MPI_Mprobe(other, TAG, world, &m, &s);
	MPI_Mrecv(in, N, D, &m, &s);
	MPI_Wait(&q[0], MPI_STATUS_IGNORE);
	CAME(in, N, other, 0);
	fill();
	MPI_Isend(out, N, D, other, TAG, world, &q[0]);
	do
		MPI_Improbe(other, TAG, world, &flag, &m, &s);
	while (!flag);
	MPI_Imrecv(in, N, D, &m, &q[1]);
	MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
	CAME(in, N, other, 0);
	fill();
	MPI_Sendrecv(out, N, D, other, TAG, in, N, D, other, TAG, world, &s);
	CAME(in, N, other, 0);
	MPI_Sendrecv_replace(out, N, D, other, TAG, other, TAG, world, MPI_STATUS_IGNORE);
	CAME(out, N, other, 0);
	/* nothing, and nobody */
	MPI_Sendrecv(out, 0, D, other, TAG, in, 0, D, other, TAG, world, MPI_STATUS_IGNORE);
	MPI_Sendrecv(out, N, D, MPI_PROC_NULL, TAG, in, N, D, MPI_PROC_NULL, TAG, world, MPI_STATUS_IGNORE);
	MPI_Isend(NULL, 0, D, other, TAG, world, &q[0]);
	MPI_Irecv(NULL, 0, D, other, TAG, world, &q[1]);
	MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
}

/* Several requests, completed by each function in its own order, with a null one between. */
static void completions(void)
{
	enum { Q = 4 };

	for (int way = 0; way < 8; way++) {
		MPI_Request q[2 * Q + 1], sent[Q];
		MPI_Status s[2 * Q + 1];
		int left = Q, flag = 0, index, n, indices[2 * Q + 1];

		fill();
		for (int i = 0; i < Q; i++)
			MPI_Irecv(in + i * N / Q, N / Q, D, other, i, world, &q[i]);
		q[Q] = MPI_REQUEST_NULL;
		for (int i = Q; i--;)
			MPI_Isend(out + i * N / Q, N / Q, D, other, i, world, &sent[i]);
		switch (way) {
		case 0:
			for (int i = Q; i--;)
				MPI_Wait(&q[i], &s[i]);
			break;
		case 1:
			for (int i = 0; i < Q; i++)
				for (flag = 0; !flag;)
					MPI_Test(&q[i], &flag, MPI_STATUS_IGNORE);
			break;
		case 2:
			MPI_Waitall(Q + 1, q, s);
			break;
		case 3:
			while (!flag)
				MPI_Testall(Q + 1, q, &flag, s);
			break;
		case 4:
			for (; left; left--)
				MPI_Waitany(Q + 1, q, &index, s);
			break;
		case 5:
			while (left) {
				MPI_Testany(Q + 1, q, &index, &flag, s);
				left -= flag && index != MPI_UNDEFINED;
			}
			break;
		case 6:
			for (; left; left -= n)
				MPI_Waitsome(Q + 1, q, &n, indices, MPI_STATUSES_IGNORE);
			break;
		case 7:
			for (; left; left -= n)
				MPI_Testsome(Q + 1, q, &n, indices, s);
			break;
		}
		CAME(in, N, other, 0);
		MPI_Waitall(Q, sent, MPI_STATUSES_IGNORE);
	}
	/* more than the layer keeps on its stack */
	enum { MANY = 40 };
	MPI_Request q[2 * MANY];
	fill();
	for (int i = 0; i < MANY; i++) {
		MPI_Irecv(in, 4096, D, other, i, world, &q[i]);
		MPI_Isend(out, 4096, D, other, i, world, &q[MANY + i]);
	}
	MPI_Waitall(2 * MANY, q, MPI_STATUSES_IGNORE);
	CAME(in, 4096, other, 0);
}

static void persistent(void)
{
	MPI_Request q[4];
	MPI_Status s[4];
	int flag;

	MPI_Recv_init(in, N, D, other, TAG, world, &q[0]);
	MPI_Send_init(out, N, D, other, TAG, world, &q[1]);
	MPI_Recv_init(more, N, D, other, TAG + 1, world, &q[2]);
	MPI_Ssend_init(out + N, N, D, other, TAG + 1, world, &q[3]);
	for (int round = 0; round < 6; round++) {
		fill();
		if (round % 2) {
			MPI_Startall(4, q);
		} else {
			for (int i = 0; i < 4; i++)
				MPI_Start(&q[i]);
		}
		if (round < 2)
			MPI_Waitall(4, q, s);
		else if (round < 4)
			for (int i = 0; i < 4; i++)
				MPI_Waitany(4, q, &flag, s);
		else
			for (flag = 0; !flag;)
				MPI_Testall(4, q, &flag, s);
		CAME(in, N, other, 0);
		CAME(more, N, other, N);
	}
	MPI_Barrier(world);
	/* one is freed while it is under way, as the standard allows */
	fill();
	MPI_Startall(4, q);
	MPI_Request_free(&q[1]);
	IS(q[1] == MPI_REQUEST_NULL, 1);
	MPI_Waitall(4, q, s);
	MPI_Barrier(world);
	CAME(in, N, other, 0);
	for (int i = 0; i < 4; i++)
		if (q[i] != MPI_REQUEST_NULL)
			MPI_Request_free(&q[i]);
	MPI_Rsend_init(out, N, D, other, TAG, world, &q[0]);
	MPI_Request_free(&q[0]); /* never started */
}

static void freed_and_cancelled(void)
{
	MPI_Request q;
	MPI_Status s;
	int flag;

	fill();
	MPI_Isend(out, N, D, other, TAG, world, &q);
	MPI_Request_free(&q);
	IS(q == MPI_REQUEST_NULL, 1);
	MPI_Recv(in, N, D, other, TAG, world, MPI_STATUS_IGNORE);
	CAME(in, N, other, 0);
	MPI_Barrier(world);
	MPI_Irecv(in, N, D, other, 99, world, &q);
	MPI_Cancel(&q);
	MPI_Wait(&q, &s);
	MPI_Test_cancelled(&s, &flag);
	IS(flag, 1);
}

/* Messages that are gone before the call returns: MPI may give all of them one handle. */
static void small(void)
{
	MPI_Request q[4];

	fill();
	for (int i = 0; i < 4; i++)
		MPI_Isend(out + 8 * i, 8, D, other, i, world, &q[i]);
	for (int i = 0; i < 4; i++)
		MPI_Recv(in + 8 * i, 8, D, other, i, world, MPI_STATUS_IGNORE);
	MPI_Waitall(4, q, MPI_STATUSES_IGNORE);
	CAME(in, 32, other, 0);
}

/* Every second group of four doubles, sent from and to its place; and a resized type. */
static void types(void)
{
	MPI_Datatype vector, column;

	fill();
	MPI_Type_vector(N / 8, 4, 8, D, &vector);
	MPI_Type_create_resized(vector, 0, (MPI_Aint)(N * sizeof(double)), &column);
	MPI_Type_commit(&column);
	MPI_Sendrecv(out, 2, column, other, TAG, in, 2, column, other, TAG, world, MPI_STATUS_IGNORE);
	for (int i = 0; i < 2 * N - 4; i += 8) {
		IS(in[i], value(other, i));
		IS(in[i + 3], value(other, i + 3));
		IS(in[i + 4], -1);
	}
	MPI_Type_free(&vector);
	MPI_Type_free(&column);
}

/* Each collective twice: the call, and the request. CALL's arguments are in parentheses. */
#define UNPACK(...) __VA_ARGS__
#define TWICE(NAME, INAME, ARGUMENTS, PREPARE, ...) \
	for (int nonblocking = 0; nonblocking < 2; nonblocking++) { \
		fill(); \
		PREPARE; \
		if (nonblocking) { \
			MPI_Request q_; \
			MPI_##INAME(UNPACK ARGUMENTS, &q_); \
			MPI_Wait(&q_, MPI_STATUS_IGNORE); \
		} else { \
			MPI_##NAME ARGUMENTS; \
		} \
		__VA_ARGS__; \
	}
#define SUM(i) (value(0, i) + value(1, i))

static void collectives(void)
{
	const int h = N / 2, counts[2] = { N / 2, N / 2 }, uneven[2] = { N / 4, N }, displs[2] = { 0, N };
	const int bytes[2] = { 0, N * (int)sizeof(double) };
	const MPI_Datatype types[2] = { D, D };
	void *const here = MPI_IN_PLACE;

	for (int root = 0; root < 2; root++) {
		TWICE(Bcast, Ibcast, (out, N, D, root, world), , CAME(out, N, root, 0))
		TWICE(Reduce, Ireduce, (out, in, N, D, MPI_SUM, root, world), ,
		      if (rank == root) IS(in[N - 1], SUM(N - 1)); else IS(in[0], -1))
		TWICE(Reduce, Ireduce, (rank == root ? here : out, rank == root ? out : NULL, N, D, MPI_SUM, root, world), ,
		      if (rank == root) IS(out[N - 1], SUM(N - 1)))
		TWICE(Gather, Igather, (out, N, D, in, N, D, root, world), ,
		      if (rank == root) { CAME(in, N, 0, 0); CAME(in + N, N, 1, 0); })
		TWICE(Gatherv, Igatherv, (out, uneven[rank], D, in, uneven, displs, D, root, world), ,
		      if (rank == root) { CAME(in, N / 4, 0, 0); CAME(in + N, N, 1, 0); IS(in[N / 4], -1); })
		TWICE(Scatter, Iscatter, (out, N, D, in, N, D, root, world), , CAME(in, N, root, rank * N))
		TWICE(Scatter, Iscatter, (out, N, D, rank == root ? here : in, N, D, root, world), ,
		      if (rank != root) CAME(in, N, root, rank * N))
		TWICE(Scatterv, Iscatterv, (out, uneven, displs, D, in, uneven[rank], D, root, world), ,
		      CAME(in, uneven[rank], root, rank * N))
	}
	TWICE(Allreduce, Iallreduce, (out, in, N, D, MPI_SUM, world), , IS(in[N - 1], SUM(N - 1)))
	TWICE(Allreduce, Iallreduce, (here, out, N, D, MPI_SUM, world), , IS(out[N - 1], SUM(N - 1)))
	TWICE(Scan, Iscan, (out, in, N, D, MPI_SUM, world), , IS(in[N - 1], rank ? SUM(N - 1) : value(0, N - 1)))
	TWICE(Exscan, Iexscan, (out, in, N, D, MPI_SUM, world), , if (rank) IS(in[N - 1], value(0, N - 1)))
	TWICE(Reduce_scatter_block, Ireduce_scatter_block, (out, in, h, D, MPI_SUM, world), , IS(in[1], SUM(rank * h + 1)))
	TWICE(Reduce_scatter, Ireduce_scatter, (out, in, counts, D, MPI_SUM, world), , IS(in[1], SUM(rank * h + 1)))
	TWICE(Reduce_scatter, Ireduce_scatter, (here, out, counts, D, MPI_SUM, world), , IS(out[1], SUM(rank * h + 1)))
	TWICE(Allgather, Iallgather, (out, N, D, in, N, D, world), , CAME(in, N, 0, 0); CAME(in + N, N, 1, 0))
	TWICE(Allgather, Iallgather, (here, 0, D, in, N, D, world), memcpy(in + rank * N, out, N * sizeof *in),
	      CAME(in, N, 0, 0); CAME(in + N, N, 1, 0))
	TWICE(Allgatherv, Iallgatherv, (out, uneven[rank], D, in, uneven, displs, D, world), ,
	      CAME(in, N / 4, 0, 0); CAME(in + N, N, 1, 0))
	TWICE(Alltoall, Ialltoall, (out, N, D, in, N, D, world), , CAME(in, N, 0, rank * N); CAME(in + N, N, 1, rank * N))
	TWICE(Alltoallv, Ialltoallv, (out, counts, displs, D, in, counts, displs, D, world), ,
	      CAME(in, h, 0, rank * N); CAME(in + N, h, 1, rank * N))
	TWICE(Alltoallw, Ialltoallw, (out, counts, bytes, types, in, counts, bytes, types, world), ,
	      CAME(in, h, 0, rank * N); CAME(in + N, h, 1, rank * N))
}

/* Between two groups of one each: the root is in one, everybody else in the other. */
static void between_groups(void)
{
	MPI_Comm two;
	int root = rank == 0 ? MPI_ROOT : 0;

	MPI_Intercomm_create(MPI_COMM_SELF, 0, world, other, TAG, &two);
	fill();
	MPI_Bcast(out, N, D, root, two);
	CAME(out, N, 0, 0);
	fill();
	MPI_Gather(out, N, D, in, N, D, root, two);
	if (rank == 0)
		CAME(in, N, 1, 0);
	fill();
	MPI_Allgather(out, N, D, in, N, D, two);
	CAME(in, N, other, 0);
	MPI_Comm_free(&two);
}

static void windows(void)
{
	MPI_Group all, peer;
	MPI_Request q[2];
	double *base;
	MPI_Win w;

	fill();
	MPI_Win_create(in, N * sizeof *in, sizeof *in, MPI_INFO_NULL, world, &w);
	MPI_Win_fence(0, w);
	MPI_Put(out, N, D, other, 0, N, D, w);
	MPI_Win_fence(0, w);
	CAME(in, N, other, 0);
	MPI_Get(more, N, D, other, 0, N, D, w);
	MPI_Win_fence(0, w);
	CAME(more, N, rank, 0);
	MPI_Accumulate(out, N, D, other, 0, N, D, MPI_SUM, w);
	MPI_Win_fence(0, w);
	IS(in[N - 1], 2 * value(other, N - 1));

	MPI_Comm_group(world, &all);
	MPI_Group_incl(all, 1, &other, &peer);
	MPI_Win_post(peer, 0, w);
	MPI_Win_start(peer, 0, w);
	MPI_Put(out, N, D, other, 0, N, D, w);
	MPI_Win_complete(w);
	MPI_Win_wait(w);
	CAME(in, N, other, 0);
	MPI_Group_free(&all);
	MPI_Group_free(&peer);
	MPI_Win_free(&w);

	MPI_Win_allocate(N * sizeof *base, sizeof *base, MPI_INFO_NULL, world, &base, &w);
	memcpy(base, out, N * sizeof *base);
	MPI_Barrier(world);
	MPI_Win_lock(MPI_LOCK_SHARED, other, 0, w);
	MPI_Get(more, N, D, other, 0, N, D, w);
	MPI_Win_unlock(other, w);
	CAME(more, N, other, 0);
	MPI_Barrier(world);
	MPI_Win_lock_all(0, w);
	fill();
	MPI_Put(out, N / 4, D, other, 0, N / 4, D, w);
	MPI_Win_flush(other, w);
	MPI_Put(out + N / 4, N / 4, D, other, N / 4, N / 4, D, w);
	MPI_Win_flush_local(other, w);
	MPI_Put(out + N / 2, N / 2, D, other, N / 2, N / 2, D, w);
	MPI_Win_flush_all(w);
	MPI_Barrier(world);
	CAME(base, N, other, 0);
	MPI_Barrier(world);
	MPI_Get_accumulate(out, N, D, more, N, D, other, 0, N, D, MPI_REPLACE, w);
	MPI_Win_flush_local_all(w);
	MPI_Get(in, N / 2, D, other, 0, N / 2, D, w);
	MPI_Win_flush_all(w);
	CAME(more, N, rank, 0);
	MPI_Barrier(world);
	MPI_Rput(out, N / 2, D, other, 0, N / 2, D, w, &q[0]);
	MPI_Raccumulate(out + N / 2, N / 2, D, other, N / 2, N / 2, D, MPI_REPLACE, w, &q[1]);
	MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
	MPI_Win_flush_all(w);
	MPI_Barrier(world);
	MPI_Rget(more, N / 2, D, other, 0, N / 2, D, w, &q[0]);
	MPI_Rget_accumulate(out, N / 2, D, more + N / 2, N / 2, D, other, N / 2, N / 2, D, MPI_NO_OP, w, &q[1]);
	MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
	CAME(more, N, rank, 0);
	MPI_Get(in, N / 2, D, other, 0, N / 2, D, w);
	MPI_Win_unlock_all(w);
	CAME(in, N / 2, rank, 0);
	MPI_Barrier(world);
	MPI_Win_lock(MPI_LOCK_SHARED, other, 0, w);
	MPI_Get(in, N / 2, D, other, 0, N / 2, D, w);
	MPI_Win_unlock(other, w);
	MPI_Barrier(world);
	MPI_Win_free(&w);
}

/* Several threads at a time, each with its own tag: handles of requests are used again by others at once. */
static void *exchange(void *arg)
{
	const int tag = (int)(size_t)arg;
	double *mine = malloc(4096 * sizeof *mine), *theirs = malloc(4096 * sizeof *theirs);

	for (int round = 0; round < 200; round++) {
		MPI_Request q[2];

		for (int i = 0; i < 4096; i++)
			mine[i] = tag * 1e6 + round + i;
		theirs[4095] = -1;
		MPI_Irecv(theirs, 4096, D, other, tag, world, &q[0]);
		MPI_Isend(mine, 4096, D, other, tag, world, &q[1]);
		if (round % 2)
			MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
		else
			for (int i = 2, index; i--;)
				MPI_Waitany(2, q, &index, MPI_STATUS_IGNORE);
		if (theirs[4095] != tag * 1e6 + round + 4095)
			__atomic_add_fetch(&bad, 1, __ATOMIC_RELAXED);
	}
	free(mine);
	free(theirs);
	return NULL;
}

static void threads(void)
{
	pthread_t t[3];

	for (size_t i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, exchange, (void *)(100 + i));
	for (size_t i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "point_to_point", point_to_point }, { "completions", completions }, { "persistent", persistent },
		      { "freed_and_cancelled", freed_and_cancelled }, { "small", small }, { "types", types }, { "collectives", collectives },
		      { "between_groups", between_groups }, { "windows", windows }, { "threads", threads } };
	int provided, all, found = 0;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(world, &rank);
	other = 1 - rank;
	out = malloc(2 * N * sizeof *out);
	in = malloc(2 * N * sizeof *in);
	more = malloc(2 * N * sizeof *more);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (argc < 2 || !strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			found++;
		}
	MPI_Allreduce(&bad, &all, 1, MPI_INT, MPI_SUM, world);
	if (rank == 0 && !all && found)
		puts(provided == MPI_THREAD_MULTIPLE ? "ok" : "ok, without threads");
	MPI_Finalize();
	free(out);
	free(in);
	free(more);
	return all || !found;
}
