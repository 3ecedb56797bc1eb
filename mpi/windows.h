/*
 * Open operations on windows, which a later call closes, and the windows themselves.
 */
#ifndef HP_MPI_WINDOWS_H
#define HP_MPI_WINDOWS_H

#include "mpi/call.h"

/* Keep the transfer with the window's operations towards `target`, or with the window (HP_TARGET_WINDOW). Without
 * memory for this, the transfer is released and counted as not pinned. */
void hp_windows_add(MPI_Win, int target, struct hp_transfer *);

/* Release the operations of win towards `target`; HP_TARGET_ALL: all of them; HP_TARGET_WINDOW: also the window's
 * memory. */
void hp_window_close(MPI_Win win, int target);

/* Before MPI_Finalize: release everything, and count what no call has closed. */
void hp_windows_close(void);

#endif
