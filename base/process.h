/*
 * Which process this is. Knowledge about threads, and the right to start some, belongs to one process, so a child
 * resets this state. A child of fork(2) does so in its handler (alloc/atfork.c). A child of _Fork(3) or clone(2) runs
 * no handler, so it does so at its next call of the heap.
 */
#ifndef HP_BASE_PROCESS_H
#define HP_BASE_PROCESS_H

#include <stdbool.h>

enum hp_process {
	/* the memory belongs to another process, for example in a child of vfork(2); or the constructor has not run */
	HP_PROCESS_GUEST,
	HP_PROCESS_COPY, /* this is a child with a copy of its parent's memory, and has not reset the state */
	HP_PROCESS_OWN,
};

/* Which process this is. Makes one system call. */
enum hp_process hp_process(void);

/* Whether hp_process() is HP_PROCESS_COPY, without a system call. If the kernel does not clear memory for children,
 * always false, and such a child counts as a guest. */
bool hp_process_copied(void);

/* Called by a thread that found HP_PROCESS_COPY. True: this thread must reset the process's state, and at last call
 * hp_process_begin(). False: another thread has done so meanwhile. */
bool hp_process_claim(void);

/* Make this process the owner of the memory. Called by the constructor, and by a child. */
void hp_process_begin(void);

#endif
