/*
 * Advice: the program's calls of madvise, mprotect and mlock on parts of its own buffers. Advice holds as long as the
 * program owns the buffer, and in every child. The kernel keeps advice with its mappings, but a mapping is not a
 * buffer: the heap hands freed memory to other buffers, copies memory for a child, and keeps memory out of children. So
 * the heap has its own record of the advice, by chunk, of the calls that libhugepin-malloc.so sees.
 *
 * A program that advises nothing pays nothing, because the first call makes the record. A flag of each hugepage,
 * page.advised, says whether the record holds advice for a part of the page. A buffer with advice is ROOMY, and no fast
 * path takes a ROOMY buffer.
 */
#ifndef HP_ALLOC_MADVISE_H
#define HP_ALLOC_MADVISE_H

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
	HP_ADVICE_MISSING = 256, /* in a child of fork: the parent's chunk was DONTFORK, and no memory is here */
	HP_ADVICE_STUCK = 512, /* a freed buffer begins here; the kernel refused to undo some of its advice */
	/* The C library's descriptor of a thread lies here: the top of a stack that the program supplied. */
	HP_ADVICE_STACK = 1024,
};
#define HP_ADVICE_PROT (HP_ADVICE_NOREAD | HP_ADVICE_NOWRITE | HP_ADVICE_EXEC)
/* A child does not get a chunk that has any of these. */
#define HP_ADVICE_KEPT (HP_ADVICE_DONTFORK | HP_ADVICE_WIPEONFORK | HP_ADVICE_GUARD | HP_ADVICE_MISSING)

/* unlock() unlocks those parts of a buffer that the program locked. lock_alike() locks the same parts of buffer `to` as
 * are locked in buffer `from`, and returns 0 or -errno. The caller owns the buffers, and does not hold hp_heap_lock. */
void hp_madvise_unlock(size_t chunk, size_t n);
int hp_madvise_lock_alike(size_t from, size_t to, size_t n);

/* Copy [from, from + n), and its advice except locks, to [to, to + n), which has no advice yet. The caller as above.
 * False: the kernel refused. */
bool hp_madvise_copy(size_t from, size_t to, size_t n);

/* All functions below: the caller holds hp_heap_lock, or runs in a fork handler. They make raw system calls only. */

/* The end of the chunks from `chunk` on that have equal advice, *ret_advice; `end` at the latest. */
size_t hp_madvise_run(size_t chunk, size_t end, unsigned *ret_advice);

/* Whether any of [chunk, chunk + n) has advice. */
bool hp_madvise_any(size_t chunk, size_t n);

/* undo: take back the advice of [chunk, chunk + n), which is free. False: the kernel refused, so the heap must not hand
 * out these chunks. stick: note a whole buffer whose advice could not be undone; it stays taken until a later undo
 * succeeds. next_stuck: the first chunk of the first such buffer at or behind `chunk`; 0: none. */
bool hp_madvise_undo(size_t chunk, size_t n);
void hp_madvise_stick(size_t chunk);
size_t hp_madvise_next_stuck(size_t chunk);

/* The first chunk at or behind `chunk` at which the tail of this buffer may be cut off and freed. An advised page of
 * the pool is not divided, because the kernel advises such pages only as wholes. */
size_t hp_madvise_cut(size_t chunk, size_t end);

/* Read [chunk, chunk + n) into `to`, which is zero and gets no advice. Chunks that a child does not get are left out.
 * False: a part could not be read. */
bool hp_madvise_read(void *to, size_t chunk, size_t n);

/* The number of parts of [chunk, chunk + n) with equal advice, of which some have any; 0: none has. */
size_t hp_madvise_parts(size_t chunk, size_t n);

/* Whether a part of the page is the top of a thread's stack. */
bool hp_madvise_is_stack(size_t page);

/* Whether any advice was ever noted. */
bool hp_madvise_made(void);

/* Note what /proc/self/smaps says of live buffers, because without the drop-in nobody sees the program's calls. Advice
 * that smaps does not show is not noted. */
void hp_madvise_learn(void);

/* The fork is over, so forget what hp_madvise_learn() noted, since the program may change it unseen. */
void hp_madvise_forget(void);

/* Whether the kernel gives a child nothing of a hugepage, because all of the page is DONTFORK. */
bool hp_madvise_withheld(size_t page);

/* Advise the hugepages [first, end) with MADV_DOFORK, except chunks that the program itself made DONTFORK. */
bool hp_madvise_dofork(size_t first, size_t end);

/* In the child of fork, when its memory is in place: advise the memory as the parent's was. False: the kernel
 * refused. */
bool hp_madvise_child(void);

#endif
