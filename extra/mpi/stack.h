/*
 * The stack of a thread, and whether a function of the layer is still on it.
 */
#ifndef HP_MPI_STACK_H
#define HP_MPI_STACK_H

#include <stdbool.h>
#include <stdint.h>

/* The end of the stack that contains `frame`. 0: it is not the thread's own stack, but a fiber's. */
uintptr_t hp_stack_end(uintptr_t frame);

/* Whether the layer's function with this frame, { the caller's frame, the return address }, is still on the stack,
 * neither returned nor left. now: the frame of the function that asks. True for frames on a fiber's stack, and for
 * callers there. */
bool hp_frame_lives(const void *frame, const void *now);

#endif
