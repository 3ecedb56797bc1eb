/*
 * The service thread: one background thread, started when there is first something to do, asleep without a timer when
 * there is nothing. It runs a few jobs: the heap's gives back what has been free for the decay time.
 *
 * A preloaded library gets control nowhere but in malloc and free, so the thread is started at the end of an allocation
 * (umem and jemalloc do the same): outside every lock, with all signals blocked, and never before the library's constructor
 * has run. Not in free(), unless the process has one thread: the C library frees the thread-local storage of exited threads
 * under a lock that pthread_create takes. If the system refuses a thread, the heap works on without decay.
 */
#ifndef HP_BASE_SERVICE_H
#define HP_BASE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

/* Work for the thread: a static object of whoever has the work. */
struct hp_job {
	bool (*run)(void); /* returns whether it wants to run again, without being asked */
	uint64_t delay_ns; /* from being asked, or from the last run, to the next run; changed by run() alone */
	uint64_t again_ns; /* run() may set it: to be run at that time, by hp_clock_ns, if it is not asked for before; 0: not */
	/* the rest is the service's */
	_Atomic bool asked;
	uint64_t due_ns; /* 0: not scheduled; the thread's alone */
};

/* Have job->run() called, on the service thread, delay_ns from now on (0: at once), and again and again as long as it returns
 * true. Asking for a job that is waiting changes nothing and costs no system call; asking while it runs makes it run again.
 * What was written before the call is seen by the run. Starts the thread if need be, and then no lock may be held. False: no
 * thread can be had (tried again every so often), or there are too many jobs. */
bool hp_service_ask(struct hp_job *job);

bool hp_service_running(void);

/* In the child of fork: the thread is gone, and nobody has asked for anything. */
void hp_service_child(void);

#endif
