/*
 * The tier below the heap, which serves requests under HUGEPIN_LARGE_MIN and knows pointers that are not the heap's. By
 * default it is the process's own malloc. libhugepin-malloc.so, which is the process's malloc, brings a small tier of
 * its own.
 */
#ifndef HP_ALLOC_SMALL_H
#define HP_ALLOC_SMALL_H

#include <stddef.h>
#include <stdint.h>

struct hp_small {
	void *(*malloc)(size_t size);
	void *(*calloc)(size_t count, size_t size);
	void *(*realloc)(void *p, size_t size);
	void *(*aligned_alloc)(size_t align, size_t size); /* align is a power of two; size any */
	void (*free)(void *p); /* any pointer that is not in the heap's span, NULL too */
	size_t (*usable_size)(const void *p);
	/* fork: run before the heap's lock is taken, after it is released, or NULL */
	void (*prefork)(void), (*postfork_parent)(void), (*postfork_child)(void);
};

/* What follows is exported between the two libraries, for them alone. */
#pragma GCC visibility push(default)

/* The small tier of libhugepin-malloc.so. Where that library is not loaded, the address is NULL. The dynamic linker
 * resolves the reference, since malloc is called before any constructor. */
extern const struct hp_small hugepin_small_ __attribute__((weak));

/* HUGEPIN_SMALL=next; HUGEPIN_SPAN, 0 if not set. */
_Bool hugepin_small_is_next_(void);
size_t hugepin_small_span_(void);

/* Register the heap's fork handlers, once. */
void hugepin_atfork_(void);

/* From now on, or no more, this thread's large requests go to the small tier too. */
void hugepin_small_only_(_Bool on);

/* The program lowers RLIMIT_AS: give up reserved addresses beyond `limit` bytes, as far as they are not in use. */
void hugepin_span_limit_(size_t limit);

/* HUGEPIN_SMALL_PINNED: the part of the heap's span that the small tier's memory comes from. 0; -EAGAIN: too early to
 * say; -ENOENT: there is none. */
int hugepin_small_part_(uintptr_t *ret_base, size_t *ret_size);

/* Memory from there, zeroed, at `at`, if that is not NULL: aligned to HP_PAGE if it is as large, else to HP_CHUNK.
 * NULL: there is none. Any part of it, in whole chunks, may be given back. May be called with jemalloc's locks held.
 * Takes hp_heap_lock. */
void *hugepin_small_map_(void *at, size_t len);
void hugepin_small_unmap_(void *p, size_t len);

/* The small tier gets no memory: give back what the heap keeps. Returns whether there was any. Takes hp_heap_lock. */
_Bool hugepin_purge_for_small_(void);

/* The drop-in's munmap, madvise and mmap, and the functions that they go on to. */
void hugepin_calls_below_(const void *const *own, const void *const *next);

/* The program is about to do something that threads of ours would be in the way of. End those that can be ended, and
 * start none until hugepin_threads_allow_(). */
void hugepin_threads_end_(void);
void hugepin_threads_allow_(void);

/* The program is about to confine itself by a filter of system calls; returns whether it has one already. Afterwards,
 * hugepin_confined_() says whether it has one now. */
_Bool hugepin_confining_(_Bool all_threads);
void hugepin_confined_(_Bool all_threads, _Bool is);

/* Whether the heap's memory is this process's own, and not that of one that waits for it to call execve(2), say. */
_Bool hugepin_own_process_(void);

/* Whether fork() must fail with ENOMEM, for libhugepin-malloc.so's fork(). */
_Bool hugepin_fork_refused_(void);

/* Report a misuse: "hugepin: FUNCTION(PTR): REASON", then abort, unless HUGEPIN_ABORT=0. */
void hugepin_misuse_(const char *function, const void *ptr, const char *reason);
#pragma GCC visibility pop

#endif
