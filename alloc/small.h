/*
 * The tier below the heap, which serves requests under HUGEPIN_LARGE_MIN and accepts pointers that are not in the heap.
 * By default it is the process's own malloc. If libhugepin-malloc.so is loaded, that library is the process's malloc,
 * and its own small tier is used.
 */
#ifndef HP_ALLOC_SMALL_H
#define HP_ALLOC_SMALL_H

#include <stddef.h>
#include <stdint.h>

struct hp_small {
	void *(*malloc)(size_t size);
	void *(*calloc)(size_t count, size_t size);
	void *(*realloc)(void *p, size_t size);
	void *(*aligned_alloc)(size_t align, size_t size); /* align is a power of two; size may be any number */
	void (*free)(void *p); /* takes any pointer that is not in the heap's span, and NULL */
	size_t (*usable_size)(const void *p);
	void (*trim)(void); /* gives free memory back, for the kernel and for requests of other sizes; may be NULL */
	/* for fork: prefork runs before the heap's lock is taken, the others after it is released; each may be NULL */
	void (*prefork)(void), (*postfork_parent)(void), (*postfork_child)(void);
	/* The addresses that are set aside for its memory, outside the heap's span. False: there are none. Takes no
	 * lock. May be NULL. */
	_Bool (*range)(uintptr_t *ret_base, size_t *ret_size);
};

/* The following names are exported, but only for use between the two libraries. */
#pragma GCC visibility push(default)

/* The small tier of libhugepin-malloc.so; its address is NULL if that library is not loaded. The dynamic linker
 * resolves the reference, because malloc is called before any constructor. */
extern const struct hp_small hugepin_small_ __attribute__((weak));

/* HUGEPIN_SMALL as one of HP_SMALL_x; the value of HUGEPIN_SPAN, 0 if not set. */
int hugepin_small_which_(void);
size_t hugepin_small_span_(void);

/* Say that the library which HUGEPIN_SMALL names is not there. */
void hugepin_small_missing_(void);

/* Register the heap's fork handlers, once. */
void hugepin_atfork_(void);

/* on: send this thread's large requests to the small tier, too. off: end this. */
void hugepin_small_only_(_Bool on);

/* Called when the program lowers RLIMIT_AS: gives up reserved addresses beyond `limit` bytes, unless they are in
 * use. */
void hugepin_span_limit_(size_t limit);

/* HUGEPIN_SMALL_PINNED: the part of the heap's span that the small tier's memory comes from. 0; -EAGAIN: too early to
 * say; -ENOENT: there is none. */
int hugepin_small_part_(uintptr_t *ret_base, size_t *ret_size);

/* Map zeroed memory in that part of the span; `at`: exactly there, unless NULL. It is aligned to HP_PAGE if it is at
 * least that long, otherwise to HP_CHUNK. NULL: no memory. unmap() may give back any part, in whole chunks. Both may be
 * called with jemalloc's locks held, and take hp_heap_lock. */
void *hugepin_small_map_(void *at, size_t len);
void hugepin_small_unmap_(void *p, size_t len);

/* Called when the small tier can get no memory. Gives the heap's idle memory back. Returns whether there was any. Takes
 * hp_heap_lock. */
_Bool hugepin_purge_for_small_(void);

/* Tell the heap the drop-in's own munmap, madvise and mmap, and the next functions of these names. */
void hugepin_calls_below_(const void *const *own, const void *const *next);

/* Called before the program does something that our threads would prevent. Ends our threads if possible, and starts
 * none until hugepin_threads_allow_(). */
void hugepin_threads_end_(void);
void hugepin_threads_allow_(void);

/* The same before and after a change of user or groups. The thread that ticks goes on if the program could change back
 * afterwards, because then it keeps no right that the program has given up. */
void hugepin_user_changes_(void);
void hugepin_user_changed_(void);

/* confining() is called before the program installs a filter of system calls, and returns whether the program has a
 * filter already. confined() is called afterwards; `is` tells whether the program has a filter now. */
_Bool hugepin_confining_(_Bool all_threads);
void hugepin_confined_(_Bool all_threads, _Bool is);

/* Whether this process owns the heap's memory. False in a child of vfork(2), for example, which uses its parent's
 * memory. */
_Bool hugepin_own_process_(void);

/* Whether dlopen() leaves RTLD_DEEPBIND to a call that has it. If not, counts the call. */
_Bool hugepin_keeps_deepbind_(void);

/* Whether fork() must fail with ENOMEM, for libhugepin-malloc.so's fork(). */
_Bool hugepin_fork_refused_(void);

/* Run call(arg), which forks by a bare system call and returns as fork(2) does, between fork's handlers of the heap.
 * Returns what it returns, or -1 with ENOMEM if the fork is refused. */
long hugepin_fork_by_(long (*call)(void *arg), void *arg);

/* Called after a system call of the program's that has made a child past fork's handlers, so that the kernel copies on
 * write. Counts such a fork. Any thread may call this, also in a signal handler, and in such a child. */
void hugepin_fork_bypassed_(void);

/* Report a misuse: "hugepin: FUNCTION(PTR): REASON", then abort, unless HUGEPIN_ABORT=0. */
void hugepin_misuse_(const char *function, const void *ptr, const char *reason);
#pragma GCC visibility pop

#endif
