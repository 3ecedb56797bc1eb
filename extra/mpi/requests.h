/*
 * Requests that keep buffers pinned, from the call that begins a transfer to the call that finds the transfer done.
 */
#ifndef HP_MPI_REQUESTS_H
#define HP_MPI_REQUESTS_H

#include "call.h"

/* Keep the call's transfer with the request. Without memory for this, the transfer is released and counted as not
 * pinned. */
void hp_requests_add(struct hp_call *, MPI_Request handle, bool persistent);

/* Pin the buffers of persistent requests. Call this before MPI starts them. */
void hp_requests_start(struct hp_call *, int n, const MPI_Request *);

/* After MPI has started them: announce their transfers (hp_transfer_phase()). */
void hp_requests_announce(int n, const MPI_Request *);

/* Claim the requests for which the program is about to wait or test. */
void hp_requests_claim(struct hp_call *, int n, const MPI_Request *);

/* The program waits for those claimed requests that are not done: tell the domain so. Unless `again`, only of those for
 * which it has not been told yet. */
void hp_requests_wait(const struct hp_call *, const MPI_Request *, bool again);

/* After the wait or test: release the finished requests, and give up the claims on the others. */
void hp_requests_settle(struct hp_call *, const MPI_Request *);

/* Give up the claims of a call that was left by longjmp or throw. The requests may be done or not. */
void hp_requests_unclaim(struct hp_claims *);

/* MPI_Request_free(). The transfer goes on without a request of the program's. The layer keeps the request, now an
 * orphan, until the transfer is done. */
int hp_request_free(struct hp_call *, MPI_Request *, int (*next)(MPI_Request *));

/* Test a few orphans, and release the finished ones. */
void hp_requests_test_orphans(void);

/* Before MPI_Finalize: release all requests, and count those that were not done. */
void hp_requests_close(void);

#endif
