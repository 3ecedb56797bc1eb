/*
 * The service thread: one background thread that the C library knows. It does the work that calls code of others:
 * backends of the pin cache, watchers, hooks on mapping calls. Work that calls no such code is done by a bare thread
 * (ticker.h). The service thread is started when there is work, and sleeps without a timer when there is none.
 *
 * It is started outside every lock, with all signals blocked, and never before the library's constructor has run.
 * free() starts it only in a process with one thread: the C library frees the thread-local storage of exited threads
 * under a lock that pthread_create takes.
 *
 * Its rights: no capabilities, no_new_privs, and a filter that refuses the calls that open or begin anything
 * (thread.h). It ends when the program's user or group changes, when the program asks for that (hp_service_end), and
 * when no thread of the program's is left, so that the process can end. The next caller with work starts another.
 */
#ifndef HP_BASE_SERVICE_H
#define HP_BASE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

/* Work for the thread: a static object of whoever has the work. */
struct hp_job {
	/* Returns whether it wants to run again, without being asked; kept apart once the job was asked for. */
	bool (*run)(void);
	uint64_t delay_ns; /* from being asked, or from the last run, to the next run; changed by run() alone */
	/* run() may set it: to be run at that time, by hp_clock_ns, if it is not asked for before; 0: not. */
	uint64_t again_ns;
	/* the rest is the service's */
	_Atomic bool asked;
	uint64_t due_ns; /* 0: not scheduled; the thread's alone */
};

/* Have job->run() called, on the service thread, delay_ns from now on (0: at once), and again and again as long as it
 * returns true. Asking for a job that is waiting changes nothing and costs no system call; asking while it runs makes
 * it run again. What was written before the call is seen by the run. Starts the thread if need be, and then no lock may
 * be held. False: no thread can be had (tried again every so often), or there are too many jobs. */
bool hp_service_ask(struct hp_job *job);

bool hp_service_running(void);

/* For the constructor, on the thread that loads the library. */
void hp_service_init(void);

/* From now on jobs open files. Called without a lock, and before such a job is asked for. */
void hp_service_opens_files(void);

/* End the thread, if there is one, and let none be started until as many calls of allow. What is asked for meanwhile
 * waits for whoever asks next. No lock is held. */
void hp_service_end(void);
void hp_service_allow(void);

/* Start again what has ended with work to do. No lock is held. Nothing to do: costs nothing. */
void hp_service_resume(void);

/* In the child of fork: the thread is gone, and nobody has asked for anything. */
void hp_service_child(void);

#endif
