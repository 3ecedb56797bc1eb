/*
 * Bare threads: threads that the C library does not know. While it knows of one thread, its streams, its malloc and
 * shared_ptr do without locks and atomic instructions, and the end of the last thread that it knows ends the process. A
 * library that starts a thread of its own by pthread_create takes that from the program for good.
 *
 * A bare thread has rights of its own, and hardly any. Before start returns true it has all signals blocked, a
 * descriptor table of its own that is empty but for one descriptor, a working directory of its own, all CPUs, the
 * normal scheduling class, no capabilities, no_new_privs, and a filter that lets through the calls it was started with
 * (but for the filter, under valgrind). So nothing that the program gives up later is left to it.
 *
 * What runs on such a thread: system calls, atomic instructions, ranked locks (lock.h), memory and string functions.
 * Nothing else of the C library, whose locks do not count on it. Thread-local variables of ours are zero at first
 * there, whatever their initial value is elsewhere; those of other libraries are not there at all.
 */
#ifndef HP_BASE_THREAD_H
#define HP_BASE_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

/* Where a sanitizer has to see every thread, and on machines whose part is not written yet, a thread is the C
 * library's. */
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

/* What a thread is: a constant, so that nobody who can write to memory decides what it runs. */
struct hp_thread_kind {
	char name[16]; /* for ps -L, gdb, perf */
	void (*run)(void *arg); /* the thread ends when it returns */
	/* Numbers of the system calls that it may make; exit and rt_sigreturn are added. */
	uint16_t calls[HP_THREAD_CALLS_MAX];
	unsigned calls_count;
};

/* One thread at a time, and the memory that it runs in, kept for the next. Zero at first. */
struct hp_thread {
	_Atomic uint32_t tid; /* 0: there is none; the kernel clears it when the thread has ended */
	_Atomic uint32_t told; /* by the new thread: whether it runs */
	uint32_t last_tid;
	char *map;
	size_t map_size, tls_size;
};

/* Its number, for the kernel; 0: there is none. acquire: what the thread did is done; pairs with the kernel, or
 * enter_thread(), which clears it at the end. */
static inline uint32_t hp_thread_tid(const struct hp_thread *t)
{
	return atomic_load_explicit(&t->tid, memory_order_acquire);
}

/* This thread is a bare one: nothing of the C library may be called. */
extern HP_TLS bool hp_thread_is_bare;

/* Start a thread, which keeps the descriptor keep_fd (-1: none) under its number. The caller sees to it that none is
 * there and that nobody else calls meanwhile. Takes some 100 us; allocates nothing and takes no lock; errno is kept.
 * False: it cannot be had, or not with so few rights, or the memory is another process's (process.h). */
bool hp_thread_start(struct hp_thread *t, const struct hp_thread_kind *kind, void *arg, int keep_fd);

/* Whether this thread is alone with the memory of its process: no other thread, and no other process that has it. Some
 * microseconds. Not where a filter of system calls is in force, which may end who asks. Under valgrind nobody is. */
bool hp_thread_alone(void);

/* Wait until the thread, which somebody has told to end, is gone for the kernel as well. */
void hp_thread_join(struct hp_thread *t);

/* Wait until the thread of that number, which has ended, is no more counted by the kernel. */
void hp_thread_gone(uint32_t tid);

/* Bare threads that are there. */
unsigned hp_thread_count_bare(void);

/* In the child of fork: the thread is not there. */
void hp_thread_child(struct hp_thread *t);

/* Start a thread that the C library knows, detached, with all signals blocked, and the rights of this one.
 * stack_size: bytes, or the usual size where that is too little; 0: the usual one. Allocates, and no lock is held;
 * errno is kept. */
bool hp_thread_start_known(void *(*run)(void *arg), void *arg, size_t stack_size);

/* For a thread of ours that the C library knows, and that calls what is not ours: give up all capabilities, what execve
 * could give, and the system calls by which something is opened, begun, renamed or signalled (opens_files: but for
 * opening files). Changes of the user and the group, which the C library has each thread make, succeed and do nothing.
 * False: nothing was given up. */
bool hp_thread_confine(bool opens_files);

#endif
