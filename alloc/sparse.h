/*
 * Sparse buffers: whether the program touches little of its large buffers (touched.h). The heap looks at buffers that
 * were handed out of new memory, once the program has had time to use them, and only before it would take more memory.
 * While little is touched, new memory comes in base pages (pages.c).
 *
 * A look reads a few base pages of a buffer by process_vm_readv(2), so memory that the program has made inaccessible is
 * no error. It reads only memory that is there, as mincore(2) says, so it brings nothing in and does not wait for a
 * userfaultfd of the program's. In a process with a filter of system calls, nothing is looked at. A buffer in which only
 * zeros are found may be used sparsely, be filled with zeros, or not be used yet, so it says little (sparse.c).
 *
 * All functions: the caller holds hp_heap_lock.
 */
#ifndef HP_ALLOC_SPARSE_H
#define HP_ALLOC_SPARSE_H

#include "alloc/pages.h"

/* Note that a buffer was handed out whose chunks were never handed out before. */
void hp_sparse_note(size_t chunk, size_t n);

/* Look at buffers, and set hp_span.sparse. Called before the heap takes new memory. */
void hp_sparse_look(void);

/* In the child of fork: forget the notes, because memory may be gone. */
void hp_sparse_forget(void);

#endif
