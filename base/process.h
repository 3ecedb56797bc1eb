/*
 * Which process this is. Whatever is known of threads, and the right to start some, belongs to one process. A child
 * begins all of it anew: a child of fork(2) by its handler (alloc/atfork.c), a child of _Fork(3) or clone(2), which run
 * no handler, when the heap is next asked.
 */
#ifndef HP_BASE_PROCESS_H
#define HP_BASE_PROCESS_H

#include <stdbool.h>

enum hp_process {
	HP_PROCESS_GUEST, /* the memory is another's: a child of vfork(2), say; or the constructor has not run */
	HP_PROCESS_COPY, /* a child with a copy of its parent's memory that has not begun anew */
	HP_PROCESS_OWN,
};

/* One system call. */
enum hp_process hp_process(void);

/* HP_PROCESS_COPY, without a system call. Where the kernel does not clear memory for children, false: such a child is a
 * guest. */
bool hp_process_copied(void);

/* For a thread that found HP_PROCESS_COPY: whether this one is to begin the process anew, and call hp_process_begin()
 * at last. If not, another thread has done so meanwhile. */
bool hp_process_claim(void);

/* This process is the memory's own from now on. For the constructor, and for a child. */
void hp_process_begin(void);

#endif
