/*
 * What is open on windows: operations that no later call has closed yet, and the windows themselves.
 */
#ifndef HP_MPI_WINDOWS_H
#define HP_MPI_WINDOWS_H

#include "mpi/call.h"

/* The transfer stays with the window's operations towards target, or with the window (HP_TARGET_WINDOW). Without memory
 * for it the transfer is released, and that is counted. */
void hp_windows_add(MPI_Win, int target, struct hp_transfer *);

/* The operations of win towards target, or all of them, are done; HP_TARGET_WINDOW: the window is gone, too. */
void hp_window_close(MPI_Win win, int target);

/* MPI is about to go down: release all, and count what was left. */
void hp_windows_close(void);

#endif
