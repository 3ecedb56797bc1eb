/*
 * The buffers of a transfer. They are pinned as long as MPI may access them.
 */
#ifndef HP_MPI_TRANSFER_H
#define HP_MPI_TRANSFER_H

#include "call.h"

/* Pin and record the transfer's buffers, for the call in which the transfer begins. */
void hp_transfer_acquire(struct hp_transfer *, const struct hp_call *);

/* Tell the domain of a phase of the transfer (hugepin_prefetch; 0: it is announced), for its buffers of that direction
 * or, with HP_ANY_DIR, for all. Does nothing unless hp_mpi_phases. */
enum { HP_ANY_DIR = 0 };
void hp_transfer_phase(const struct hp_transfer *, unsigned phase, char dir);

/* Unpin the transfer's buffers, and end their records. */
void hp_transfer_release(struct hp_transfer *);

/* As hp_transfer_release(), at MPI_Finalize, for a transfer that no call of the program has ended. Counts buffers that
 * were still pinned. */
void hp_transfer_release_left(struct hp_transfer *);

#endif
