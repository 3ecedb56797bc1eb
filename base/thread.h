/*
 * The library's threads: start, stack, name, signals, rights, sleep, end, and life across fork. There are two kinds.
 *
 * A bare thread is one that the C library does not know. While the C library knows only one thread, its streams, its
 * malloc and shared_ptr work without locks and atomic instructions, and when the last thread that it knows ends, the
 * process ends. A program loses both for good if a library starts a thread by pthread_create().
 *
 * A bare thread has few rights before start returns true, so that it keeps none that the program gives up later. All
 * signals are blocked. It has a descriptor table of its own with at most one descriptor, and its own working directory.
 * It may run on all CPUs, in the normal scheduling class. It has no capabilities, no_new_privs, and a filter that
 * allows only the system calls of its kind (no filter under valgrind).
 *
 * A bare thread may use system calls, atomic instructions, ranked locks (lock.h), and memory and string functions. It
 * may use nothing else of the C library, whose locks do not expect it. Our thread-local variables begin as zero on it,
 * whatever their initial value elsewhere. Those of other libraries do not exist on it.
 *
 * A known thread is one that the C library started, for work that calls foreign code. It has the program's signals
 * blocked, no capabilities, no_new_privs, and a filter that refuses the calls that open or start something.
 *
 * A thread never keeps the process from ending. It may be started, ended and forbidden at any time, by any thread. A
 * child of fork has none of its parent's threads.
 */
#ifndef HP_BASE_THREAD_H
#define HP_BASE_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "base/sys.h"

/* HP_THREAD_BARE is 0 if the C library starts the threads instead: under a sanitizer, which has to see every thread,
 * and on machines for which the code is not written yet. */
#if HP_SANITIZED || !defined(__x86_64__) || !defined(__LP64__)
#define HP_THREAD_BARE 0
#else
#define HP_THREAD_BARE 1
#endif

enum { HP_THREAD_CALLS_MAX = 32 };

/* The description of a thread. It is a constant, so that an attacker who can write to memory cannot choose the code
 * that runs. */
struct hp_thread_kind {
	char name[16]; /* for ps -L, gdb, perf */
	void (*run)(void *arg); /* the thread ends when run() returns */
	bool known; /* a known thread; otherwise a bare one */
	/* of a known thread */
	struct hp_thread *place; /* the only place that it is started for; its run() gets NULL */
	bool opens_files;
	size_t stack_size; /* bytes; the usual size if that is too little */
	/* of a bare thread: numbers of the system calls that it may make; futex, exit and rt_sigreturn are added */
	uint16_t calls[HP_THREAD_CALLS_MAX];
	unsigned calls_count;
};

/* A place for one thread at a time, always of the same kind. Zero at first. A bare thread's memory is kept for the next
 * thread. */
struct hp_thread {
	_Atomic uint32_t state; /* a futex; relaxed: in the child of fork no other thread */
	/* relaxed: tell_start() tells of it by release; hp_thread_tid() is an acquire */
	_Atomic uint32_t tid; /* 0: there is none; of a bare thread the kernel clears it when the thread has ended */
	_Atomic uint32_t told; /* set by the new thread: whether it runs; relaxed: tell_start() answers by release */
	_Atomic uint32_t alarm; /* counts wakes, a futex; relaxed: in the child of fork no other thread */
	_Atomic bool asleep; /* the thread sleeps or is about to; relaxed: in the child of fork no other thread */
	_Atomic uint32_t forbidden; /* not 0: no thread is started; relaxed: in the child of fork no other thread */
	_Atomic uint32_t skip; /* calls to ignore before the next try to start a known thread; relaxed: a hint */
	/* the thread that changes the state uses the following members */
	uint32_t last_tid;
	char *map;
	size_t map_size, tls_size;
};

/* The bare thread that gives the heap's idle memory back (alloc/decay.h). It exists while such memory waits. */
extern struct hp_thread hp_ticker;

/* The thread's number for the kernel; 0: there is no thread. acquire: a reader of 0 sees all that the thread did; pairs
 * with the kernel, or with enter_known(), which clears the number at the end. */
static inline uint32_t hp_thread_tid(const struct hp_thread *t)
{
	return atomic_load_explicit(&t->tid, memory_order_acquire);
}

/* Whether the thread has been started, and neither has ended nor has to end. */
bool hp_thread_runs(const struct hp_thread *t);

/* Whether this thread is a bare one, which must not call the C library. */
extern HP_TLS bool hp_thread_is_bare;

/* Start the thread, unless it runs. A bare thread keeps the descriptor keep_fd (-1: none) under its number. Takes some
 * 100 us, and keeps errno. For a bare thread, this allocates nothing and takes no lock, and the thread runs when it
 * returns. For a known one it allocates, so no lock may be held, a failure makes the next 1024 calls fail at once, and
 * the thread may begin later. A bare thread can start none. False: no thread can be had, or not with so few rights, or
 * starting is forbidden, or the memory belongs to another process (process.h). */
bool hp_thread_start(struct hp_thread *t, const struct hp_thread_kind *kind, void *arg, int keep_fd);

/* Have the thread end, and wait until it is gone, for the kernel as well. Does nothing on the thread itself. Waits for
 * what run() is doing. So the caller may hold no lock that run() takes. */
void hp_thread_end(struct hp_thread *t);

/* forbid() ends the thread, and forbids a new one until allow() was called as often as forbid(). forbid_new(): as
 * forbid(), but a thread that runs goes on. */
void hp_thread_forbid(struct hp_thread *t);
void hp_thread_forbid_new(struct hp_thread *t);
void hp_thread_allow(struct hp_thread *t);

/* acquire: a start sees what was written before the permission; pairs with hp_thread_allow(). */
static inline bool hp_thread_forbidden(const struct hp_thread *t)
{
	return atomic_load_explicit(&t->forbidden, memory_order_acquire);
}

/* Wait until a thread that was told to end, otherwise than by hp_thread_end(), is gone, for the kernel as well. */
void hp_thread_join(struct hp_thread *t);

/* Called on the thread: sleep for `ns` at most, or until hp_thread_wake() is called after the alarm was read as `seen`.
 * False: the thread has to end, or a signal handler has run. The only handlers that can run are those by which the C
 * library changes the user and group of each thread that it knows. */
bool hp_thread_sleep(struct hp_thread *t, uint32_t seen, uint64_t ns);
void hp_thread_wake(struct hp_thread *t);

/* seq_cst: read before looking for work, so that a thread which has work later changes it; pairs with
 * hp_thread_wake(). */
static inline uint32_t hp_thread_alarm(const struct hp_thread *t)
{
	return atomic_load_explicit(&t->alarm, memory_order_seq_cst);
}

/* Called in the child of fork, where the thread does not exist. Starting it is not forbidden there. */
void hp_thread_child(struct hp_thread *t);

/* Whether no other thread and no other process shares this thread's memory. Takes some microseconds. Do not call under
 * a filter of system calls, which may kill the caller. Under valgrind always false. */
bool hp_thread_alone(void);

/* The number of running bare threads. */
unsigned hp_thread_count_bare(void);

/* Confine this thread as a known one: give up all capabilities, all rights that execve could give, and the system calls
 * that open, start, rename or signal something. opens_files: keep the right to open files. Changes of the user or
 * group, which the C library makes on each thread, return success but do nothing. False: nothing was given up. */
bool hp_thread_confine(bool opens_files);

#endif
