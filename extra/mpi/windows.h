/*
 * Open operations on windows, which a later call closes, and the windows themselves.
 */
#ifndef HP_MPI_WINDOWS_H
#define HP_MPI_WINDOWS_H

#include "call.h"

/* Keep the transfer with the window's operations towards `target`, or with the window (HP_TARGET_WINDOW). Without
 * memory for this, the transfer is released and counted as not pinned. */
void hp_windows_add(MPI_Win, int target, struct hp_transfer *);

/* Before a call that closes the operations of win towards `target` (HP_TARGET_ALL: all of them): the call takes them
 * over. The program waits for them. */
void hp_window_closing(struct hp_call *, MPI_Win win, int target);

/* After that call: release the operations or, if MPI has failed (err), keep them open. */
void hp_window_closed(struct hp_call *, int err);

/* Tell the domain of a phase for the window's own memory, as hp_transfer_phase(). */
void hp_window_phase(MPI_Win, unsigned phase);

/* The window was freed: release its memory, and its operations that are open. */
void hp_window_free(MPI_Win);

/* Before MPI_Finalize: release everything, and count what no call has closed. */
void hp_windows_close(void);

#endif
