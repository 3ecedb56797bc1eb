/*
 * The requests that hold buffers, from the call that began a transfer to the call that finds it done.
 */
#ifndef HP_MPI_REQUESTS_H
#define HP_MPI_REQUESTS_H

#include "mpi/call.h"

/* The call's transfer stays with the request. Without memory for it the transfer is released, and that is counted. */
void hp_requests_add(struct hp_call *, MPI_Request handle, bool persistent);

/* Start persistent requests: pins their buffers. To be called before MPI is. */
void hp_requests_start(struct hp_call *, int n, const MPI_Request *);

/* Claim the requests that are about to be waited for or tested. */
void hp_requests_claim(struct hp_call *, int n, const MPI_Request *);

/* After the wait or test: release the requests that are done, and give up the claims on the others. */
void hp_requests_settle(struct hp_call *, const MPI_Request *);

/* Give up the claims of a call that was left. Whether the requests are done is not known. */
void hp_requests_unclaim(struct hp_claims *);

/* MPI_Request_free(): the transfer goes on without a request, so the layer keeps the request, an orphan, until it is
 * done. */
int hp_request_free(struct hp_call *, MPI_Request *, int (*next)(MPI_Request *));

/* Test a few orphans, and release those that are done. */
void hp_requests_test_orphans(void);

/* MPI is about to go down: release all requests, and count those that were left. */
void hp_requests_close(void);

#endif
