/*
 * The stack of a thread, and whether a function of the layer is still on it.
 */
#ifndef HP_MPI_STACK_H
#define HP_MPI_STACK_H

#include <stdbool.h>
#include <stdint.h>

/* The end of the stack that `frame` is in; 0: that stack is not the thread's own, but a fiber's. */
uintptr_t hp_stack_end(uintptr_t frame);

/* The function of ours that has this frame, { the caller's frame, the return address }, has neither returned nor been
 * left otherwise; now: the frame of the function of ours that asks. Of a fiber's frame, or for a fiber: true. */
bool hp_frame_lives(const void *frame, const void *now);

#endif
