/*
 * Advice: what the program has said to the kernel about parts of its own buffers, by madvise, mprotect and mlock. It
 * holds for as long as the buffer is the program's, and in every child. The kernel keeps advice with its mappings, and
 * mappings are not buffers: the heap hands the memory on, copies it for a child, and keeps it out of children itself.
 * So there is a record, by chunk, of those calls that libhugepin-malloc.so sees.
 *
 * A program that advises nothing pays nothing. The record is made at the first call, a hugepage says whether there is
 * any advice about it (page.advised), and an advised buffer is ROOMY, which no fast path takes.
 */
#ifndef HP_ALLOC_ADVICE_H
#define HP_ALLOC_ADVICE_H

#include "alloc/advised.h"
#include "alloc/pages.h"

/* The advice of a chunk. 0: the chunk is as the heap made it. */
enum {
	HP_ADVICE_DONTFORK = 1,
	HP_ADVICE_WIPEONFORK = 2,
	HP_ADVICE_DONTDUMP = 4,
	HP_ADVICE_GUARD = 8,
	HP_ADVICE_NOREAD = 16,
	HP_ADVICE_NOWRITE = 32,
	HP_ADVICE_EXEC = 64,
	HP_ADVICE_LOCKED = 128,
	HP_ADVICE_MISSING = 256, /* a child of fork: was DONTFORK, and has no memory here */
	HP_ADVICE_STUCK = 512, /* a buffer begins here that was freed, but the kernel did not take all advice back */
	/* The C library's descriptor of a thread lies here: the top of a stack that the program gave. */
	HP_ADVICE_STACK = 1024,
};
#define HP_ADVICE_PROT (HP_ADVICE_NOREAD | HP_ADVICE_NOWRITE | HP_ADVICE_EXEC)
/* Chunks with any of these a child does not get. */
#define HP_ADVICE_KEPT (HP_ADVICE_DONTFORK | HP_ADVICE_WIPEONFORK | HP_ADVICE_GUARD | HP_ADVICE_MISSING)

/* For a buffer of the caller's own, without the lock. unlock: unlock what the program had locked of it. lock_alike:
 * lock the same parts of another buffer. 0 or -errno. */
void hp_advice_unlock(size_t chunk, size_t n);
int hp_advice_lock_alike(size_t from, size_t to, size_t n);

/* All below: hp_heap_lock held, or in fork's handlers. Only raw system calls. */

/* Where the run of equal advice that begins at `chunk` ends, at most at `end`. */
size_t hp_advice_run(size_t chunk, size_t end, unsigned *ret_advice);

/* Whether there is any about [chunk, chunk + n). */
bool hp_advice_any(size_t chunk, size_t n);

/* [chunk, chunk + n) is free: take its advice back. False: the kernel refused, and the chunks may not be handed out.
 * stick: a whole buffer that the kernel refused is kept as it is and noted, to be tried again. stuck: the first such
 * buffer that begins at `chunk` or behind, or 0. */
bool hp_advice_undo(size_t chunk, size_t n);
void hp_advice_stick(size_t chunk);
size_t hp_advice_stuck(size_t chunk);

/* The first chunk at or behind `chunk` from which on a part of the same buffer can be free by itself: pages of the pool
 * are advised as wholes. */
size_t hp_advice_cut(size_t chunk, size_t end);

/* Copy a buffer's contents, these bytes, and its advice, but for locks, to [to, to + n), which has none. False: the
 * kernel refused. */
bool hp_advice_copy(size_t from, size_t to, size_t n, size_t bytes);

/* Read [chunk, chunk + n) for a copy of it, which is zero so far and gets no advice: what may be read by whoever
 * copies. False: some could not be read. */
bool hp_advice_read(void *to, size_t chunk, size_t n);

/* Whether a part of the page is at the top of a thread's stack. */
bool hp_advice_is_stack(size_t page);

/* Whether anything was ever advised. */
bool hp_advice_made(void);

/* Where nobody sees the program's calls: note what the kernel knows of live buffers, by /proc/self/smaps. What cannot
 * be read is not noted. */
void hp_advice_learn(void);

/* The fork is done: what the kernel said is soon not so any more. */
void hp_advice_forget(void);

/* Whether a child gets nothing of a hugepage, by the kernel: all of it is DONTFORK. */
bool hp_advice_withheld(size_t page);

/* Advise the hugepages [first, end) by MADV_DOFORK, but for what the program wants kept out of children. */
bool hp_advice_dofork(size_t first, size_t end);

/* In the child of fork, its memory in place: have it advised as the parent's was. False: the kernel refused. */
bool hp_advice_child(void);

#endif
