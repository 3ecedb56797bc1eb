/*
 * The service thread: one background thread, started when there is first something to do, asleep without a timer when
 * there is nothing. It gives back what has been free for the decay time.
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

/* There is work: from now on call tick() every interval_ns until it returns false. Starts the thread if need be; no lock
 * may be held. False: no thread can be had (tried again every so often). */
bool hp_service_wake(bool (*tick)(void), uint64_t interval_ns);

bool hp_service_running(void);

/* In the child of fork: the thread is gone. */
void hp_service_child(void);

#endif
