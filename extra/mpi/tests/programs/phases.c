/*
 * Which phases of a transfer the layer tells the domain of, and when: before the call of MPI's, or after. Two ranks;
 * rank 0 looks, rank 1 does its part. The program stands in for hugepin_prefetch, so it needs no device: with PINNED=1
 * it does as a domain that pins. With -DCACHE it stands in for the cache of registrations, too. With -DBEHIND this is a
 * tool behind the layer, which notes MPI's calls. Prints "ok", or what was told in place of what.
 */
#include <dlfcn.h>
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef BEHIND

#define NOTED(NAME, PARAMETERS, ARGUMENTS) \
	int MPI_##NAME PARAMETERS \
	{ \
		void (*note)(const char *, const char *) = (void (*)(const char *, const char *))dlsym(RTLD_DEFAULT, "note"); \
		if (note) \
			note(#NAME, ""); \
		return PMPI_##NAME ARGUMENTS; \
	}
#define SENT const void *buf, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm
#define MOVED int n, MPI_Datatype type, int peer, MPI_Aint at, int there, MPI_Datatype as
NOTED(Send, (SENT), (buf, n, type, peer, tag, comm))
NOTED(Isend, (SENT, MPI_Request *q), (buf, n, type, peer, tag, comm, q))
NOTED(Recv, (void *buf, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Status *s),
      (buf, n, type, peer, tag, comm, s))
NOTED(Irecv, (void *buf, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *q),
      (buf, n, type, peer, tag, comm, q))
NOTED(Sendrecv,
      (const void *buf, int n, MPI_Datatype type, int peer, int tag, void *to, int m, MPI_Datatype as, int from, int with,
       MPI_Comm comm, MPI_Status *s),
      (buf, n, type, peer, tag, to, m, as, from, with, comm, s))
NOTED(Bcast, (void *buf, int n, MPI_Datatype type, int root, MPI_Comm comm), (buf, n, type, root, comm))
NOTED(Ibcast, (void *buf, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *q), (buf, n, type, root, comm, q))
NOTED(Start, (MPI_Request * q), (q))
NOTED(Startall, (int n, MPI_Request *q), (n, q))
NOTED(Wait, (MPI_Request * q, MPI_Status *s), (q, s))
NOTED(Waitall, (int n, MPI_Request *q, MPI_Status *s), (n, q, s))
NOTED(Waitany, (int n, MPI_Request *q, int *which, MPI_Status *s), (n, q, which, s))
NOTED(Waitsome, (int n, MPI_Request *q, int *count, int *which, MPI_Status *s), (n, q, count, which, s))
NOTED(Test, (MPI_Request * q, int *flag, MPI_Status *s), (q, flag, s))
NOTED(Testall, (int n, MPI_Request *q, int *flag, MPI_Status *s), (n, q, flag, s))
NOTED(Testany, (int n, MPI_Request *q, int *which, int *flag, MPI_Status *s), (n, q, which, flag, s))
NOTED(Testsome, (int n, MPI_Request *q, int *count, int *which, MPI_Status *s), (n, q, count, which, s))
NOTED(Win_fence, (int assertion, MPI_Win w), (assertion, w))
NOTED(Win_post, (MPI_Group g, int assertion, MPI_Win w), (g, assertion, w))
NOTED(Win_start, (MPI_Group g, int assertion, MPI_Win w), (g, assertion, w))
NOTED(Win_complete, (MPI_Win w), (w))
NOTED(Win_wait, (MPI_Win w), (w))
NOTED(Win_lock, (int type, int target, int assertion, MPI_Win w), (type, target, assertion, w))
NOTED(Win_unlock, (int target, MPI_Win w), (target, w))
NOTED(Win_lock_all, (int assertion, MPI_Win w), (assertion, w))
NOTED(Win_unlock_all, (MPI_Win w), (w))
NOTED(Win_flush, (int target, MPI_Win w), (target, w))
NOTED(Put, (const void *buf, MOVED, MPI_Win w), (buf, n, type, peer, at, there, as, w))
NOTED(Rput, (const void *buf, MOVED, MPI_Win w, MPI_Request *q), (buf, n, type, peer, at, there, as, w, q))
NOTED(Get, (void *buf, MOVED, MPI_Win w), (buf, n, type, peer, at, there, as, w))
NOTED(Rget, (void *buf, MOVED, MPI_Win w, MPI_Request *q), (buf, n, type, peer, at, there, as, w, q))
NOTED(Get_accumulate, (const void *buf, int k, MPI_Datatype own, void *to, MOVED, MPI_Op op, MPI_Win w),
      (buf, k, own, to, n, type, peer, at, there, as, op, w))

#else

#include "hugepin.h"

enum { N = 16384, SMALL = 64 }; /* of doubles: above and below the threshold */

static int rank, other, bad;
static double *out, *in, *more, *window;
static const MPI_Comm world = MPI_COMM_WORLD;
static const MPI_Datatype D = MPI_DOUBLE;
static MPI_Status *const no_status = MPI_STATUS_IGNORE;

enum { WAITS = 9 }; /* a tag */
static int pinned; /* the domain pins */
static int sends_when_waited;
static char notes[1024];

void note(const char *what, const char *of);
void note(const char *what, const char *of)
{
	const size_t len = strlen(notes);

	snprintf(notes + len, sizeof notes - len, "%s%s%s%s", len ? ", " : "", what, *of ? " " : "", of);
	/* The layer has looked at the requests, and MPI begins to wait: rank 1 may send. */
	if (sends_when_waited && !strncmp(what, "Wait", 4))
		PMPI_Send(NULL, 0, MPI_BYTE, other, WAITS, world);
}

static void told(const void *addr, size_t len, unsigned access)
{
	note(access & HUGEPIN_PREFETCH_NEXT ? "next" : access & HUGEPIN_PREFETCH_WAIT ? "wait" : "announced",
	     len != N * sizeof(double)			     ? "a part" :
	     addr == out && access & HUGEPIN_READ	     ? "out" :
	     addr == in && access & HUGEPIN_WRITE	     ? "in" :
	     addr == more && access & HUGEPIN_WRITE	     ? "more" :
	     addr == window && access & HUGEPIN_WRITE	     ? "window" :
							       "?");
}

int hugepin_prefetch(hugepin_domain *d, const void *addr, size_t len, unsigned access)
{
	(void)d;
	if (!len)
		return pinned ? 0 : -EINVAL;
	told(addr, len, access);
	return 0;
}

#ifdef CACHE
void hugepin_verbscache_phase(const void *addr, size_t len, unsigned phase);
void hugepin_verbscache_phase(const void *addr, size_t len, unsigned phase)
{
	told(addr, len, phase | HUGEPIN_READ | HUGEPIN_WRITE);
}
#endif

/* So much is to have been noted since the last look: phases, and calls, whose names begin with a capital. */
static void look(int line, const char *expected)
{
	char calls[sizeof notes] = "";

	for (const char *at = expected; pinned && *at;) {
		const size_t len = strcspn(at, ",");

		if (*at >= 'A' && *at <= 'Z')
			snprintf(calls + strlen(calls), sizeof calls - strlen(calls), "%s%.*s", *calls ? ", " : "", (int)len, at);
		at += len;
		at += strspn(at, ", ");
	}
	if (rank == 0 && strcmp(notes, pinned ? calls : expected) && ++bad)
		fprintf(stderr, "line %d: told: %s; expected: %s\n", line, notes, pinned ? calls : expected);
	*notes = 0;
}
#define TOLD(expected) look(__LINE__, expected)

/* Rank 1: rank 0 has come to wait. */
static void waited(void)
{
	MPI_Recv(NULL, 0, MPI_BYTE, other, WAITS, world, no_status);
}

static void done(MPI_Request q)
{
	for (int flag = 0; !flag;)
		MPI_Request_get_status(q, &flag, MPI_STATUS_IGNORE);
}

static void blocking(void)
{
	if (rank == 0) {
		MPI_Send(out, N, D, other, 0, world);
		TOLD("next out, Send");
		MPI_Recv(in, N, D, other, 0, world, no_status);
		TOLD("next in, Recv");
		MPI_Send(out, SMALL, D, other, 0, world);
		TOLD("Send");
	} else {
		MPI_Recv(in, N, D, other, 0, world, no_status);
		MPI_Send(out, N, D, other, 0, world);
		MPI_Recv(in, SMALL, D, other, 0, world, no_status);
		*notes = 0;
	}
	MPI_Sendrecv(out, N, D, other, 0, in, N, D, other, 0, world, no_status);
	TOLD("next out, next in, Sendrecv");
	MPI_Bcast(out, N, D, 0, world);
	TOLD("next out, Bcast");
}

static void nonblocking(void)
{
	MPI_Request q[3];

	MPI_Irecv(in, N, D, other, 0, world, &q[0]);
	TOLD("Irecv, announced in");
	MPI_Isend(out, N, D, other, 0, world, &q[1]);
	TOLD("Isend, announced out");
	MPI_Ibcast(more, N, D, 1, world, &q[2]);
	TOLD("Ibcast, announced more");
	MPI_Waitall(3, q, MPI_STATUSES_IGNORE);
	*notes = 0;
}

static void waits(void)
{
	MPI_Request q[2];
	int which, count, indices[2];

	for (int way = 0; way < 4; way++) {
		MPI_Barrier(world);
		if (rank == 1) {
			if (way != 1) /* there it is done before rank 0 waits */
				waited();
			MPI_Send(out, N, D, other, 0, world);
			if (way) /* there, too */
				waited();
			MPI_Send(out, N, D, other, 1, world);
			if (!way)
				waited();
			continue;
		}
		sends_when_waited = 1;
		MPI_Irecv(in, N, D, other, 0, world, &q[0]);
		MPI_Irecv(more, N, D, other, 1, world, &q[1]);
		*notes = 0;
		switch (way) {
		case 0:
			MPI_Wait(&q[0], no_status);
			TOLD("wait in, Wait");
			done(q[1]);
			MPI_Wait(&q[1], no_status);
			TOLD("Wait"); /* it was done */
			break;
		case 1:
			done(q[0]);
			MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
			TOLD("wait more, Waitall");
			break;
		case 2:
			MPI_Waitany(2, q, &which, no_status);
			TOLD("wait in, wait more, Waitany");
			MPI_Waitany(2, q, &which, no_status);
			TOLD("Waitany");
			break;
		case 3:
			MPI_Waitsome(2, q, &count, indices, MPI_STATUSES_IGNORE);
			TOLD("wait in, wait more, Waitsome");
			MPI_Wait(&q[1], no_status); /* it has computed since, and waits for this one */
			TOLD("wait more, Wait");
			break;
		}
		sends_when_waited = 0;
	}
}

static void tests(void)
{
	MPI_Request q;
	int flag, which, count;

	for (int way = 0; way < 4; way++) {
		MPI_Barrier(world);
		if (rank == 1) {
			MPI_Barrier(world);
			MPI_Send(out, N, D, other, 0, world);
			continue;
		}
		MPI_Irecv(in, N, D, other, 0, world, &q);
		*notes = 0;
		for (int i = 0; i < 2; i++) {
			switch (way) {
			case 0:
				MPI_Test(&q, &flag, no_status);
				TOLD(i ? "Test" : "Test, wait in");
				break;
			case 1:
				MPI_Testall(1, &q, &flag, MPI_STATUSES_IGNORE);
				TOLD(i ? "Testall" : "Testall, wait in");
				break;
			case 2:
				MPI_Testany(1, &q, &which, &flag, no_status);
				TOLD(i ? "Testany" : "Testany, wait in");
				break;
			case 3:
				MPI_Testsome(1, &q, &count, &which, MPI_STATUSES_IGNORE);
				TOLD(i ? "Testsome" : "Testsome, wait in");
				break;
			}
		}
		MPI_Barrier(world);
		done(q);
		MPI_Test(&q, &flag, no_status);
		TOLD("Test");
	}
}

static void persistent(void)
{
	MPI_Request q[2];
	int flag;

	MPI_Recv_init(in, N, D, other, 0, world, &q[0]);
	MPI_Send_init(out, N, D, other, 0, world, &q[1]);
	TOLD("");
	for (int round = 0; round < 2; round++) {
		MPI_Start(&q[0]);
		TOLD("Start, announced in");
		MPI_Test(&q[0], &flag, no_status);
		TOLD("Test, wait in"); /* the other starts only after the barrier */
		MPI_Barrier(world);
		MPI_Startall(1, &q[1]);
		TOLD("Startall, announced out");
		done(q[0]);
		done(q[1]);
		MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
		TOLD("Waitall");
		MPI_Barrier(world);
	}
	MPI_Request_free(&q[0]);
	MPI_Request_free(&q[1]);
}

static void active(void)
{
	MPI_Win w;
	MPI_Group all, peer;

	MPI_Win_create(window, N * sizeof(double), sizeof(double), MPI_INFO_NULL, world, &w);
	TOLD("");
	MPI_Win_fence(0, w);
	TOLD("next window, Win_fence");
	MPI_Put(out, N, D, other, 0, N, D, w);
	TOLD("next out, Put");
	MPI_Win_fence(0, w);
	TOLD("wait out, next window, Win_fence");
	MPI_Get(in, N, D, other, 0, N, D, w);
	TOLD("Get, announced in");
	MPI_Win_fence(0, w);
	TOLD("wait in, next window, Win_fence");
	MPI_Comm_group(world, &all);
	MPI_Group_incl(all, 1, &other, &peer);
	MPI_Win_set_errhandler(w, MPI_ERRORS_RETURN);
	MPI_Win_post(peer, 0, w);
	TOLD("next window, Win_post");
	MPI_Win_start(peer, 0, w);
	TOLD("Win_start"); /* opens the others' windows, not this one */
	MPI_Put(out, N, D, other, 0, N, D, w);
	TOLD("next out, Put");
	if (MPI_Win_unlock_all(w) != MPI_SUCCESS) /* nobody has locked it: what is open stays open */
		TOLD("wait out, Win_unlock_all");
	else
		bad++;
	MPI_Win_complete(w);
	TOLD("wait out, Win_complete");
	MPI_Win_wait(w);
	TOLD("wait window, Win_wait");
	MPI_Group_free(&peer);
	MPI_Group_free(&all);
	MPI_Win_free(&w);
	TOLD("");
}

static void passive(void)
{
	MPI_Win w;
	MPI_Request q[2];

	MPI_Win_create(window, N * sizeof(double), sizeof(double), MPI_INFO_NULL, world, &w);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, other, 0, w);
		TOLD("Win_lock");
		MPI_Put(out, N, D, other, 0, N, D, w);
		TOLD("next out, Put");
		MPI_Win_flush(other, w);
		TOLD("wait out, Win_flush");
		MPI_Get(in, N, D, other, 0, N, D, w);
		TOLD("Get, announced in");
		MPI_Win_unlock(other, w);
		TOLD("wait in, Win_unlock");
	}
	MPI_Win_lock_all(0, w);
	TOLD("announced window, Win_lock_all");
	if (rank == 0) {
		MPI_Rput(out, N, D, other, 0, N, D, w, &q[0]);
		TOLD("next out, Rput");
		MPI_Rget(in, N, D, other, 0, N, D, w, &q[1]);
		TOLD("Rget, announced in");
		MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
		*notes = 0;
		MPI_Get_accumulate(out, N, D, in, N, D, other, 0, N, D, MPI_SUM, w);
		TOLD("next out, Get_accumulate, announced in");
	}
	MPI_Win_unlock_all(w);
	TOLD("wait out, wait in, Win_unlock_all");
	MPI_Win_free(&w);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*of)(void);
	} cases[] = { { "blocking", blocking }, { "nonblocking", nonblocking }, { "waits", waits },	 { "tests", tests },
		      { "persistent", persistent }, { "active", active },	 { "passive", passive } };

	pinned = getenv("PINNED") && *getenv("PINNED") == '1'; /* the layer asks once, in MPI_Init */
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(world, &rank);
	other = !rank;
	out = calloc(4, N * sizeof *out);
	in = out + N;
	more = in + N;
	window = more + N;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (argc < 2 || !strcmp(argv[1], cases[i].name)) {
			MPI_Barrier(world);
			*notes = 0;
			cases[i].of();
		}
	if (rank == 0 && !bad)
		puts("ok");
	MPI_Finalize();
	free(out);
	return bad != 0;
}

#endif
