/*
 * The functions of MPI that the layer wraps, each with the program's buffers.
 *
 * The layer wraps both names of a function: C calls MPI_Send, and all Fortran bindings of Open MPI call PMPI_Send.
 * Each wrapper calls the next function of its own name, which may belong to a tool preloaded behind us. If MPI or the
 * tool calls a wrapper during a call of the program, the wrapper only passes the call on.
 *
 * Bsend, Ibsend, Bsend_init and the single elements of Fetch_and_op and Compare_and_swap are left out, since MPI
 * copies their data. Some functions without buffers are wrapped because a program may wait in them: the recorder
 * separates MPI's time from the program's.
 */
#include "layer.h"
#include "next.h"
#include "requests.h"
#include "transfer.h"
#include "windows.h"

/* Each exported function is a jump to the layer's function, or to MPI's own (hp_pass_through()). A compiled function
 * could not pass on calls to another MPI, since handles may differ in length: MPICH's are numbers of 32 bits, Open
 * MPI's are pointers. */
#ifdef __x86_64__
#define ENTRY(SYMBOL) \
	__attribute__((used)) static _Atomic(void *) to_##SYMBOL = (void *)our_##SYMBOL; \
	__attribute__((used, section("hp_entries"))) \
	static struct hp_entry entry_##SYMBOL = { &to_##SYMBOL, #SYMBOL }; \
	__asm__(".text\n" \
		".globl " #SYMBOL "\n" \
		".type " #SYMBOL ", @function\n" \
		#SYMBOL ":\n" \
		".cfi_startproc\n" \
		"endbr64\n" \
		"jmp *to_" #SYMBOL "(%rip)\n" \
		".cfi_endproc\n" \
		".size " #SYMBOL ", .-" #SYMBOL "\n");
#else
#define ENTRY(SYMBOL) __typeof__(SYMBOL) SYMBOL __attribute__((alias("our_" #SYMBOL)));
#endif

#define NEXT(KIND, NAME) \
	static _Atomic(void *) found; \
	__typeof__(&PMPI_##NAME) next = (__typeof__(&PMPI_##NAME))hp_next(&found, #KIND "_" #NAME)

/* PARAMETERS and ARGUMENTS are in parentheses. END: statements after the call. The last arguments are statements that
 * name the buffers. */
#define WRAP(NAME, PARAMETERS, ARGUMENTS, END, ...) \
	WRAP_TELLING(NAME, PARAMETERS, ARGUMENTS, , END, __VA_ARGS__)
/* TELL: a phase of the transfer, told once the buffers are pinned. */
#define WRAP_TELLING(NAME, PARAMETERS, ARGUMENTS, TELL, END, ...) \
	WRAP_AS(MPI, #NAME, NAME, PARAMETERS, ARGUMENTS, hp_call_pin(c); TELL, END, __VA_ARGS__) \
	WRAP_AS(PMPI, #NAME, NAME, PARAMETERS, ARGUMENTS, hp_call_pin(c); TELL, END, __VA_ARGS__)
#define WRAP_AS(KIND, OP, NAME, PARAMETERS, ARGUMENTS, PIN, END, ...) \
	static int our_##KIND##_##NAME PARAMETERS \
	{ \
		NEXT(KIND, NAME); \
		struct hp_call *c = hp_call_begin(OP, __builtin_frame_address(0)); \
		int err; \
		if (!c) \
			return next ARGUMENTS; \
		__VA_ARGS__ \
		PIN; \
		err = next ARGUMENTS; \
		END; \
		return err; \
	} \
	ENTRY(KIND##_##NAME)

/* As WRAP, for MPI_Send_init and similar functions: a later call pins the buffers. */
#define WRAP_INIT(NAME, PARAMETERS, ARGUMENTS, ...) \
	WRAP_AS(MPI, "Start", NAME, PARAMETERS, ARGUMENTS, , hp_call_end_init(c, err, request), __VA_ARGS__) \
	WRAP_AS(PMPI, "Start", NAME, PARAMETERS, ARGUMENTS, , hp_call_end_init(c, err, request), __VA_ARGS__)

#define BARE(...) __VA_ARGS__

/* The phases of a transfer, for memory that is registered on demand (Li et al. 2016, sections V and VI). There MPI
 * itself prefetches while its control messages are under way. The layer acts before a call of MPI's or after it.
 *
 * A blocking call exchanges the control messages and moves the payload in one. So its buffers are brought in before it.
 * That takes the time of a prefetch, which is acceptable for large messages (section V.C). On another thread the
 * prefetch might come after the payload, and a page fault takes far longer, above all the receiver's (section III.D).
 *
 * A nonblocking call sends the first control message and returns. So its buffers are announced after it: the service
 * thread brings them in while the program computes. Pages may go out again meanwhile. So the buffers are brought in
 * once more when the program comes to wait, if the transfer is not done by then: the program would be idle. */
#define NEXT_ALL hp_call_phase(c, HUGEPIN_PREFETCH_NEXT, HP_ANY_DIR)
#define ANNOUNCE_ALL hp_call_phase(c, 0, HP_ANY_DIR)

#define BLOCKING(NAME, PARAMETERS, ARGUMENTS, ...) \
	WRAP_TELLING(NAME, PARAMETERS, ARGUMENTS, NEXT_ALL, hp_call_end(c), __VA_ARGS__)
#define NONBLOCKING(NAME, PARAMETERS, ARGUMENTS, ...) \
	WRAP(NAME, PARAMETERS, ARGUMENTS, ANNOUNCE_ALL; hp_call_end_request(c, err, request), __VA_ARGS__)
/* A collective and its nonblocking form, which has a further argument, the request. */
#define COLLECTIVE(NAME, INAME, PARAMETERS, ARGUMENTS, ...) \
	BLOCKING(NAME, PARAMETERS, ARGUMENTS, __VA_ARGS__) \
	NONBLOCKING(INAME, (BARE PARAMETERS, MPI_Request *request), (BARE ARGUMENTS, request), __VA_ARGS__)

#define READS(buf, count, type, peer) hp_call_buffer(c, buf, count, type, 'S', peer);
#define WRITES(buf, count, type, peer) hp_call_buffer(c, buf, count, type, 'R', peer);

/* ------------------------------------------------------------------ beginning and end */

#define FIRST(KIND, NAME, PARAMETERS, ARGUMENTS) \
	static int our_##KIND##_##NAME PARAMETERS \
	{ \
		NEXT(KIND, NAME); \
		int err = next ARGUMENTS; \
		if (err == MPI_SUCCESS) \
			hp_layer_open(); \
		return err; \
	} \
	ENTRY(KIND##_##NAME)
#define LAST(KIND) \
	static int our_##KIND##_Finalize(void) \
	{ \
		NEXT(KIND, Finalize); \
		hp_layer_close(); \
		return next(); \
	} \
	ENTRY(KIND##_Finalize)
FIRST(MPI, Init, (int *argc, char ***argv), (argc, argv))
FIRST(PMPI, Init, (int *argc, char ***argv), (argc, argv))
FIRST(MPI, Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided))
FIRST(PMPI, Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided))
LAST(MPI)
LAST(PMPI)

/* ------------------------------------------------------------------ point to point */

#define SEND(NAME) \
	BLOCKING(NAME, (const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm), \
		 (buf, count, type, dest, tag, comm), READS(buf, count, type, dest))
#define ISEND(NAME) \
	NONBLOCKING(NAME, \
		    (const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, \
		     MPI_Request *request), \
		    (buf, count, type, dest, tag, comm, request), READS(buf, count, type, dest))
#define SEND_INIT(NAME) \
	WRAP_INIT(NAME, \
		  (const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, \
		   MPI_Request *request), \
		  (buf, count, type, dest, tag, comm, request), READS(buf, count, type, dest))
SEND(Send)
SEND(Ssend)
SEND(Rsend)
ISEND(Isend)
ISEND(Issend)
ISEND(Irsend)
SEND_INIT(Send_init)
SEND_INIT(Ssend_init)
SEND_INIT(Rsend_init)

BLOCKING(Recv, (void *buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status),
	 (buf, count, type, source, tag, comm, status), WRITES(buf, count, type, source))
NONBLOCKING(Irecv, (void *buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request),
	    (buf, count, type, source, tag, comm, request), WRITES(buf, count, type, source))
WRAP_INIT(Recv_init,
	  (void *buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request),
	  (buf, count, type, source, tag, comm, request), WRITES(buf, count, type, source))
BLOCKING(Mrecv, (void *buf, int count, MPI_Datatype type, MPI_Message *message, MPI_Status *status),
	 (buf, count, type, message, status), WRITES(buf, count, type, HP_PEER_NONE))
NONBLOCKING(Imrecv, (void *buf, int count, MPI_Datatype type, MPI_Message *message, MPI_Request *request),
	    (buf, count, type, message, request), WRITES(buf, count, type, HP_PEER_NONE))

BLOCKING(Sendrecv,
	 (const void *sbuf, int scount, MPI_Datatype stype, int dest, int stag, void *rbuf, int rcount,
	  MPI_Datatype rtype, int source, int rtag, MPI_Comm comm, MPI_Status *status),
	 (sbuf, scount, stype, dest, stag, rbuf, rcount, rtype, source, rtag, comm, status),
	 READS(sbuf, scount, stype, dest) WRITES(rbuf, rcount, rtype, source))
BLOCKING(Sendrecv_replace,
	 (void *buf, int count, MPI_Datatype type, int dest, int stag, int source, int rtag, MPI_Comm comm,
	  MPI_Status *status),
	 (buf, count, type, dest, stag, source, rtag, comm, status), WRITES(buf, count, type, source))

/* ------------------------------------------------------------------ requests */

#define START(NAME, PARAMETERS, ARGUMENTS, N, REQUESTS) \
	WRAP(NAME, PARAMETERS, ARGUMENTS, hp_requests_announce(N, REQUESTS); hp_call_end(c), \
	     hp_requests_start(c, N, REQUESTS);)
START(Start, (MPI_Request * request), (request), 1, request)
START(Startall, (int n, MPI_Request requests[]), (n, requests), n, requests)

/* BEFORE, AFTER: what the program waits for. Wait and Waitall return when nothing is left to wait for. The other calls
 * stand in loops: there the first call alone brings a transfer in. A Test does not wait, so it does that afterwards,
 * for what it has found not done. */
#define COMPLETION(NAME, PARAMETERS, ARGUMENTS, N, REQUESTS, BEFORE, AFTER) \
	WRAP(NAME, PARAMETERS, ARGUMENTS, AFTER; hp_requests_settle(c, REQUESTS); hp_call_end(c), \
	     hp_requests_claim(c, N, REQUESTS); BEFORE;)
#define WAIT_FOR_ALL(NAME, PARAMETERS, ARGUMENTS, N, REQUESTS) \
	COMPLETION(NAME, PARAMETERS, ARGUMENTS, N, REQUESTS, hp_requests_wait(c, REQUESTS, true), )
#define WAIT_FOR_ANY(NAME, PARAMETERS, ARGUMENTS, N, REQUESTS) \
	COMPLETION(NAME, PARAMETERS, ARGUMENTS, N, REQUESTS, hp_requests_wait(c, REQUESTS, false), )
#define TEST(NAME, PARAMETERS, ARGUMENTS, N, REQUESTS) \
	COMPLETION(NAME, PARAMETERS, ARGUMENTS, N, REQUESTS, , hp_requests_wait(c, REQUESTS, false))
WAIT_FOR_ALL(Wait, (MPI_Request * request, MPI_Status *status), (request, status), 1, request)
WAIT_FOR_ALL(Waitall, (int n, MPI_Request requests[], MPI_Status statuses[]), (n, requests, statuses), n, requests)
WAIT_FOR_ANY(Waitany, (int n, MPI_Request requests[], int *index, MPI_Status *status), (n, requests, index, status), n,
	     requests)
WAIT_FOR_ANY(Waitsome, (int n, MPI_Request requests[], int *count, int indices[], MPI_Status statuses[]),
	     (n, requests, count, indices, statuses), n, requests)
TEST(Test, (MPI_Request * request, int *flag, MPI_Status *status), (request, flag, status), 1, request)
TEST(Testall, (int n, MPI_Request requests[], int *flag, MPI_Status statuses[]), (n, requests, flag, statuses), n,
     requests)
TEST(Testany, (int n, MPI_Request requests[], int *index, int *flag, MPI_Status *status),
     (n, requests, index, flag, status), n, requests)
TEST(Testsome, (int n, MPI_Request requests[], int *count, int indices[], MPI_Status statuses[]),
     (n, requests, count, indices, statuses), n, requests)

#define FREE(KIND) \
	static int our_##KIND##_Request_free(MPI_Request *request) \
	{ \
		NEXT(KIND, Request_free); \
		struct hp_call *c = hp_call_begin("Request_free", __builtin_frame_address(0)); \
		int err; \
		if (!c) \
			return next(request); \
		err = hp_request_free(c, request, next); \
		hp_call_end(c); \
		return err; \
	} \
	ENTRY(KIND##_Request_free)
FREE(MPI)
FREE(PMPI)

/* ------------------------------------------------------------------ collectives */

/* The caller's part in a collective with a root. In one group, the root also exchanges data with itself. Between two
 * groups, only the root takes part from its group. */
struct role {
	bool root, other;
};

static struct role role_of(MPI_Comm comm, int root)
{
	int inter, rank;

	if (!hp_is_comm(comm) || REAL(Comm_test_inter)(comm, &inter) != MPI_SUCCESS)
		return (struct role){ false, false };
	if (inter)
		return (struct role){ root == MPI_ROOT, root != MPI_ROOT && root != MPI_PROC_NULL };
	REAL(Comm_rank)(comm, &rank);
	return (struct role){ rank == root, true };
}

/* The number of processes with which the caller exchanges data; 0 if MPI refuses the communicator. */
static int peers_of(MPI_Comm comm)
{
	int inter, n = 0;

	if (!hp_is_comm(comm) || REAL(Comm_test_inter)(comm, &inter) != MPI_SUCCESS)
		return 0;
	if (inter)
		REAL(Comm_remote_size)(comm, &n);
	else
		REAL(Comm_size)(comm, &n);
	return n;
}

/* The number of processes in the caller's group; 0 if MPI refuses the communicator. */
static int size_of(MPI_Comm comm)
{
	int n = 0;

	if (hp_is_comm(comm))
		REAL(Comm_size)(comm, &n);
	return n;
}

/* Of an array with an element for each process of the caller's group: the sum, and the caller's own. */
static int64_t sum_of(const int *counts, MPI_Comm comm)
{
	int64_t sum = 0;
	const int n = counts ? size_of(comm) : 0;

	for (int i = 0; i < n; i++)
		sum += counts[i];
	return sum;
}

static int own_of(const int *counts, MPI_Comm comm)
{
	int rank;

	return counts && hp_is_comm(comm) && REAL(Comm_rank)(comm, &rank) == MPI_SUCCESS ? counts[rank] : 0;
}

/* The elements of n pieces of `count` elements. */
#define EACH(n, count) ((int64_t)(n) * (count))
#define ROLE const struct role role = role_of(comm, root);

COLLECTIVE(Bcast, Ibcast, (void *buf, int count, MPI_Datatype type, int root, MPI_Comm comm),
	   (buf, count, type, root, comm),
	   ROLE if (role.root) READS(buf, count, type, root) else if (role.other) WRITES(buf, count, type, root))
COLLECTIVE(Reduce, Ireduce,
	   (const void *sbuf, void *rbuf, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
	   (sbuf, rbuf, count, type, op, root, comm),
	   ROLE if (role.other) READS(sbuf, count, type, root) if (role.root) WRITES(rbuf, count, type, root))

#define REDUCTION(NAME, INAME) \
	COLLECTIVE(NAME, INAME, \
		   (const void *sbuf, void *rbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm), \
		   (sbuf, rbuf, count, type, op, comm), \
		   READS(sbuf, count, type, HP_PEER_NONE) WRITES(rbuf, count, type, HP_PEER_NONE))
REDUCTION(Allreduce, Iallreduce)
REDUCTION(Scan, Iscan)
REDUCTION(Exscan, Iexscan)

/* With MPI_IN_PLACE, the receive buffer holds the whole vector. */
COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block,
	   (const void *sbuf, void *rbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
	   (sbuf, rbuf, count, type, op, comm),
	   READS(sbuf, EACH(size_of(comm), count), type, HP_PEER_NONE)
	   WRITES(rbuf, sbuf == MPI_IN_PLACE ? EACH(size_of(comm), count) : count, type, HP_PEER_NONE))
COLLECTIVE(Reduce_scatter, Ireduce_scatter,
	   (const void *sbuf, void *rbuf, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm),
	   (sbuf, rbuf, counts, type, op, comm),
	   READS(sbuf, sum_of(counts, comm), type, HP_PEER_NONE)
		   WRITES(rbuf, sbuf == MPI_IN_PLACE ? sum_of(counts, comm) : own_of(counts, comm), type, HP_PEER_NONE))

COLLECTIVE(Gather, Igather,
	   (const void *sbuf, int scount, MPI_Datatype stype, void *rbuf, int rcount, MPI_Datatype rtype, int root,
	    MPI_Comm comm),
	   (sbuf, scount, stype, rbuf, rcount, rtype, root, comm),
	   ROLE if (role.other && sbuf != MPI_IN_PLACE) READS(sbuf, scount, stype, root)
	   if (role.root) WRITES(rbuf, EACH(peers_of(comm), rcount), rtype, root))
COLLECTIVE(Gatherv, Igatherv,
	   (const void *sbuf, int scount, MPI_Datatype stype, void *rbuf, const int rcounts[], const int rdispls[],
	    MPI_Datatype rtype, int root, MPI_Comm comm),
	   (sbuf, scount, stype, rbuf, rcounts, rdispls, rtype, root, comm),
	   ROLE if (role.other && sbuf != MPI_IN_PLACE) READS(sbuf, scount, stype, root)
	   if (role.root) hp_call_pieces(c, rbuf, peers_of(comm), rcounts, rdispls, rtype, NULL, 'R');)
COLLECTIVE(Scatter, Iscatter,
	   (const void *sbuf, int scount, MPI_Datatype stype, void *rbuf, int rcount, MPI_Datatype rtype, int root,
	    MPI_Comm comm),
	   (sbuf, scount, stype, rbuf, rcount, rtype, root, comm),
	   ROLE if (role.root) READS(sbuf, EACH(peers_of(comm), scount), stype, root)
	   if (role.other && rbuf != MPI_IN_PLACE) WRITES(rbuf, rcount, rtype, root))
COLLECTIVE(Scatterv, Iscatterv,
	   (const void *sbuf, const int scounts[], const int sdispls[], MPI_Datatype stype, void *rbuf, int rcount,
	    MPI_Datatype rtype, int root, MPI_Comm comm),
	   (sbuf, scounts, sdispls, stype, rbuf, rcount, rtype, root, comm),
	   ROLE if (role.root) hp_call_pieces(c, sbuf, peers_of(comm), scounts, sdispls, stype, NULL, 'S');
	   if (role.other && rbuf != MPI_IN_PLACE) WRITES(rbuf, rcount, rtype, root))

/* With MPI_IN_PLACE, a process sends from its receive buffer, and the send counts and types mean nothing. */
#define NOT_IN_PLACE if (sbuf != MPI_IN_PLACE)
COLLECTIVE(Allgather, Iallgather,
	   (const void *sbuf, int scount, MPI_Datatype stype, void *rbuf, int rcount, MPI_Datatype rtype,
	    MPI_Comm comm),
	   (sbuf, scount, stype, rbuf, rcount, rtype, comm),
	   NOT_IN_PLACE READS(sbuf, scount, stype, HP_PEER_NONE)
		   WRITES(rbuf, EACH(peers_of(comm), rcount), rtype, HP_PEER_NONE))
COLLECTIVE(Allgatherv, Iallgatherv,
	   (const void *sbuf, int scount, MPI_Datatype stype, void *rbuf, const int rcounts[], const int rdispls[],
	    MPI_Datatype rtype, MPI_Comm comm),
	   (sbuf, scount, stype, rbuf, rcounts, rdispls, rtype, comm),
	   NOT_IN_PLACE READS(sbuf, scount, stype, HP_PEER_NONE)
	   hp_call_pieces(c, rbuf, peers_of(comm), rcounts, rdispls, rtype, NULL, 'R');)
COLLECTIVE(Alltoall, Ialltoall,
	   (const void *sbuf, int scount, MPI_Datatype stype, void *rbuf, int rcount, MPI_Datatype rtype,
	    MPI_Comm comm),
	   (sbuf, scount, stype, rbuf, rcount, rtype, comm),
	   NOT_IN_PLACE READS(sbuf, EACH(peers_of(comm), scount), stype, HP_PEER_NONE)
		   WRITES(rbuf, EACH(peers_of(comm), rcount), rtype, HP_PEER_NONE))
COLLECTIVE(Alltoallv, Ialltoallv,
	   (const void *sbuf, const int scounts[], const int sdispls[], MPI_Datatype stype, void *rbuf,
	    const int rcounts[], const int rdispls[], MPI_Datatype rtype, MPI_Comm comm),
	   (sbuf, scounts, sdispls, stype, rbuf, rcounts, rdispls, rtype, comm),
	   NOT_IN_PLACE hp_call_pieces(c, sbuf, peers_of(comm), scounts, sdispls, stype, NULL, 'S');
	   hp_call_pieces(c, rbuf, peers_of(comm), rcounts, rdispls, rtype, NULL, 'R');)
COLLECTIVE(Alltoallw, Ialltoallw,
	   (const void *sbuf, const int scounts[], const int sdispls[], const MPI_Datatype stypes[], void *rbuf,
	    const int rcounts[], const int rdispls[], const MPI_Datatype rtypes[], MPI_Comm comm),
	   (sbuf, scounts, sdispls, stypes, rbuf, rcounts, rdispls, rtypes, comm),
	   NOT_IN_PLACE hp_call_pieces(c, sbuf, peers_of(comm), scounts, sdispls, MPI_BYTE, stypes, 'S');
	   hp_call_pieces(c, rbuf, peers_of(comm), rcounts, rdispls, MPI_BYTE, rtypes, 'R');)

/* ------------------------------------------------------------------ windows */

WRAP(Win_create, (void *base, MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, MPI_Win *win),
     (base, size, unit, info, comm, win), hp_call_end_window(c, err, win, HP_TARGET_WINDOW),
     WRITES(base, (int64_t)size, MPI_BYTE, HP_PEER_NONE))

/* MPI chooses the window's address, so the buffer is pinned after the call. */
WRAP(Win_allocate, (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *win),
     (size, unit, info, comm, base, win),
     if (err == MPI_SUCCESS) { WRITES(*(void **)base, (int64_t)size, MPI_BYTE, HP_PEER_NONE) hp_call_pin(c); }
     hp_call_end_window(c, err, win, HP_TARGET_WINDOW))

/* Where both sides synchronise, each process brings in its own window: the others access it from then on. An
 * operation's local buffer is brought in by the operation, and again by the call that closes the operation, since many
 * MPIs send nothing before that call. MPI_Win_start opens the windows of others, so it tells of nothing. A lock is a
 * call of the origin's alone, and the layer at the target does not see it. So the target announces its window when it
 * locks the window itself, for all. */
#define SYNCHRONISATION(NAME, PARAMETERS, ARGUMENTS, TARGET) \
	WRAP(NAME, PARAMETERS, ARGUMENTS, hp_window_closed(c, err); hp_call_end(c), hp_window_closing(c, win, TARGET);)
#define EPOCH(NAME, PARAMETERS, ARGUMENTS, PHASE) \
	WRAP(NAME, PARAMETERS, ARGUMENTS, hp_call_end(c), hp_window_phase(win, PHASE);)
WRAP(Win_fence, (int assertion, MPI_Win win), (assertion, win), hp_window_closed(c, err); hp_call_end(c),
     hp_window_closing(c, win, HP_TARGET_ALL); hp_window_phase(win, HUGEPIN_PREFETCH_NEXT);)
EPOCH(Win_post, (MPI_Group group, int assertion, MPI_Win win), (group, assertion, win), HUGEPIN_PREFETCH_NEXT)
EPOCH(Win_wait, (MPI_Win win), (win), HUGEPIN_PREFETCH_WAIT)
EPOCH(Win_lock_all, (int assertion, MPI_Win win), (assertion, win), 0)
SYNCHRONISATION(Win_complete, (MPI_Win win), (win), HP_TARGET_ALL)
SYNCHRONISATION(Win_unlock, (int target, MPI_Win win), (target, win), target)
SYNCHRONISATION(Win_unlock_all, (MPI_Win win), (win), HP_TARGET_ALL)
SYNCHRONISATION(Win_flush, (int target, MPI_Win win), (target, win), target)
SYNCHRONISATION(Win_flush_all, (MPI_Win win), (win), HP_TARGET_ALL)
SYNCHRONISATION(Win_flush_local, (int target, MPI_Win win), (target, win), target)
SYNCHRONISATION(Win_flush_local_all, (MPI_Win win), (win), HP_TARGET_ALL)
WRAP(Win_free, (MPI_Win * win), (win), if (err == MPI_SUCCESS) hp_window_free(freed); hp_call_end(c),
     const MPI_Win freed = win ? *win : 0;)

/* An operation that ends with a later synchronisation call, and its form with a request. */
#define OPERATION(NAME, RNAME, PARAMETERS, ARGUMENTS, ...) \
	OPERATION_AS(NAME, PARAMETERS, ARGUMENTS, hp_call_end_window(c, err, &win, target), __VA_ARGS__) \
	OPERATION_AS(RNAME, (BARE PARAMETERS, MPI_Request *request), (BARE ARGUMENTS, request), \
		     hp_call_end_request(c, err, request), __VA_ARGS__)
/* What MPI reads leaves at once, so it is brought in before the call. What MPI writes comes after a round trip, so it
 * is announced after the call. */
#define OPERATION_AS(NAME, PARAMETERS, ARGUMENTS, END, ...) \
	WRAP_TELLING(NAME, PARAMETERS, ARGUMENTS, hp_call_phase(c, HUGEPIN_PREFETCH_NEXT, 'S'), \
		     hp_call_phase(c, 0, 'R'); END, __VA_ARGS__)
OPERATION(Put, Rput,
	  (const void *buf, int count, MPI_Datatype type, int target, MPI_Aint disp, int tcount, MPI_Datatype ttype,
	   MPI_Win win),
	  (buf, count, type, target, disp, tcount, ttype, win), READS(buf, count, type, target))
OPERATION(Get, Rget,
	  (void *buf, int count, MPI_Datatype type, int target, MPI_Aint disp, int tcount, MPI_Datatype ttype,
	   MPI_Win win),
	  (buf, count, type, target, disp, tcount, ttype, win), WRITES(buf, count, type, target))
OPERATION(Accumulate, Raccumulate,
	  (const void *buf, int count, MPI_Datatype type, int target, MPI_Aint disp, int tcount, MPI_Datatype ttype,
	   MPI_Op op, MPI_Win win),
	  (buf, count, type, target, disp, tcount, ttype, op, win), READS(buf, count, type, target))
OPERATION(Get_accumulate, Rget_accumulate,
	  (const void *buf, int count, MPI_Datatype type, void *result, int rcount, MPI_Datatype rtype, int target,
	   MPI_Aint disp, int tcount, MPI_Datatype ttype, MPI_Op op, MPI_Win win),
	  (buf, count, type, result, rcount, rtype, target, disp, tcount, ttype, op, win),
	  if (op != MPI_NO_OP) READS(buf, count, type, target) WRITES(result, rcount, rtype, target))

/* ------------------------------------------------------------------ for their time alone */

#define WAITING(NAME, PARAMETERS, ARGUMENTS) WRAP(NAME, PARAMETERS, ARGUMENTS, hp_call_end(c), )
WAITING(Barrier, (MPI_Comm comm), (comm))
WAITING(Probe, (int source, int tag, MPI_Comm comm, MPI_Status *status), (source, tag, comm, status))
WAITING(Iprobe, (int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status), (source, tag, comm, flag, status))
WAITING(Mprobe, (int source, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status),
	(source, tag, comm, message, status))
WAITING(Improbe, (int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status),
	(source, tag, comm, flag, message, status))
WAITING(Bsend, (const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm),
	(buf, count, type, dest, tag, comm))
WAITING(Comm_dup, (MPI_Comm comm, MPI_Comm *made), (comm, made))
WAITING(Comm_split, (MPI_Comm comm, int colour, int key, MPI_Comm *made), (comm, colour, key, made))
