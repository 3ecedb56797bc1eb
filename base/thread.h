/*
 * Bare threads: threads that the C library does not know. While the C library knows only one thread, its streams, its
 * malloc and shared_ptr work without locks and atomic instructions. And when the last thread that it knows ends, the
 * process ends. If a library starts a thread by pthread_create, the program loses both for good.
 *
 * A bare thread has few rights. Before start returns true, the thread has all signals blocked, its own descriptor table
 * with at most one descriptor, its own working directory, all CPUs, the normal scheduling class, no capabilities,
 * no_new_privs, and a filter that allows only the system calls of its kind (no filter under valgrind). So the thread
 * keeps no right that the program gives up later.
 *
 * A bare thread may use system calls, atomic instructions, ranked locks (lock.h), and memory and string functions. It
 * may use nothing else of the C library, whose locks do not expect it. Our thread-local variables begin as zero on it,
 * whatever their initial value elsewhere. Those of other libraries do not exist on it.
 */
#ifndef HP_BASE_THREAD_H
#define HP_BASE_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

/* HP_THREAD_BARE is 0 if threads are started by the C library instead: under a sanitizer, which has to see every
 * thread, and on machines for which the code is not written yet. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__) || !defined(__LP64__)
#define HP_THREAD_BARE 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define HP_THREAD_BARE 0
#else
#define HP_THREAD_BARE 1
#endif
#else
#define HP_THREAD_BARE 1
#endif

enum { HP_THREAD_CALLS_MAX = 32 };

/* The description of a thread. It is a constant, so that an attacker who can write to memory cannot choose the code
 * that runs. */
struct hp_thread_kind {
	char name[16]; /* for ps -L, gdb, perf */
	void (*run)(void *arg); /* the thread ends when run() returns */
	/* Numbers of the system calls that the thread may make. exit and rt_sigreturn are always added. */
	uint16_t calls[HP_THREAD_CALLS_MAX];
	unsigned calls_count;
};

/* A place for one thread at a time, with its memory, which is kept for the next thread. Zero at first. */
struct hp_thread {
	/* relaxed: clone(2) starts the thread after it; hp_thread_tid() is an acquire */
	_Atomic uint32_t tid; /* 0: there is none; the kernel clears it when the thread has ended */
	/* relaxed: clone(2) starts the thread after it; enter_thread() answers by release */
	_Atomic uint32_t told; /* set by the new thread: whether it runs */
	uint32_t last_tid;
	char *map;
	size_t map_size, tls_size;
};

/* The thread's number for the kernel; 0: there is no thread. acquire: a reader of 0 sees all that the thread did; pairs
 * with the kernel, or with enter_thread(), which clears the number at the end. */
static inline uint32_t hp_thread_tid(const struct hp_thread *t)
{
	return atomic_load_explicit(&t->tid, memory_order_acquire);
}

/* Whether this thread is a bare one, which must not call the C library. */
extern HP_TLS bool hp_thread_is_bare;

/* Start a thread, which keeps the descriptor keep_fd (-1: none) under its number. The caller ensures that *t has no
 * thread and that no other thread calls this for *t. Takes some 100 us. Allocates nothing, takes no lock and keeps
 * errno. False: no thread can be had, or not with so few rights, or the memory belongs to another process
 * (process.h). */
bool hp_thread_start(struct hp_thread *t, const struct hp_thread_kind *kind, void *arg, int keep_fd);

/* Whether no other thread and no other process shares this thread's memory. Takes some microseconds. Do not call under
 * a filter of system calls, which may kill the caller. Under valgrind always false. */
bool hp_thread_alone(void);

/* Wait until a thread that was told to end is gone, for the kernel as well. */
void hp_thread_join(struct hp_thread *t);

/* Wait until the kernel no longer counts the thread of this number, which has ended. */
void hp_thread_gone(uint32_t tid);

/* The number of running bare threads. */
unsigned hp_thread_count_bare(void);

/* Called in the child of fork, where the thread does not exist. */
void hp_thread_child(struct hp_thread *t);

/* Start a thread that the C library knows, detached, with all signals blocked and with the caller's rights. stack_size:
 * bytes, or the usual size if that is too little; 0: the usual size. Allocates, so no lock may be held. Keeps errno. */
bool hp_thread_start_known(void *(*run)(void *arg), void *arg, size_t stack_size);

/* For a thread of ours that the C library knows and that calls foreign code: give up all capabilities, all rights that
 * execve could give, and the system calls that open, start, rename or signal something. opens_files: keep the right to
 * open files. Changes of the user or group, which the C library makes on each thread, return success but do nothing.
 * False: nothing was given up. */
bool hp_thread_confine(bool opens_files);

#endif
