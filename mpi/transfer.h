/*
 * The buffers of a transfer, pinned as long as MPI may touch them.
 */
#ifndef HP_MPI_TRANSFER_H
#define HP_MPI_TRANSFER_H

#include "mpi/call.h"

/* Pin the transfer's buffers, for the call in which it begins, and record them. */
void hp_transfer_acquire(struct hp_transfer *, const struct hp_call *);

/* Unpin them, and end their records. */
void hp_transfer_release(struct hp_transfer *);

/* The same at MPI_Finalize, for a transfer that no call of the program has ended. Buffers still pinned are counted. */
void hp_transfer_release_left(struct hp_transfer *);

#endif
