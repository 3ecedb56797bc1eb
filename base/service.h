/*
 * The service thread: one background thread that the C library knows, for work that calls foreign code: backends of the
 * pin cache, watchers, hooks on mapping calls. Bare threads (thread.h) do other background work. The service thread is
 * started when there is work, and sleeps without a timer when there is none.
 *
 * Whoever has work wakes the thread by hp_service_ask(). The jobs are:
 *	the heap's tick, and the holds that it drops	alloc/decay.c
 *	the work of domains				reg/serve.c, asked for in reg/domains.c
 *	the helper					reg/serve.c, asked for in reg/pin.c and reg/domain.c
 *	requests of hugepin_pin_try()			reg/answer.c, asked for in reg/request.c
 *	wake() of lends					lend/news.c
 *
 * It is started with no lock held, with all signals blocked, and never before the library's constructor has run. free()
 * starts it only in a process with one thread, because the C library frees the thread-local storage of ended threads
 * under a lock that pthread_create() takes.
 *
 * Its rights: no capabilities, no_new_privs, and a filter that refuses the calls that open or start something
 * (thread.h). It ends when the program's user or group changes, when the program asks for that (hp_service_end), and
 * when no thread of the program is left, so that the process can end. The next caller with work starts another one.
 */
#ifndef HP_BASE_SERVICE_H
#define HP_BASE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

/* Work for the thread: a static object of the module that has the work. */
struct hp_job {
	/* Returns whether the job wants to run again without being asked. When a job is first asked for, this pointer
	 * is copied to sealed memory. */
	bool (*run)(void);
	uint64_t delay_ns; /* time from the request, or from the last run, to the next run; only run() changes it */
	/* run() may set this, so that the job runs again at that time, by hp_clock_ns(), unless it is asked for
	 * earlier. 0: it does not. */
	uint64_t again_ns;
	/* the service uses the following members */
	_Atomic bool asked;
	uint64_t due_ns; /* 0: not scheduled; used only by the thread */
};

/* Have job->run() called on the service thread, delay_ns from now (0: at once), and again as long as it returns true.
 * If the job already waits, asking changes nothing and costs no system call. If the job is running, it runs once more.
 * The run sees everything that was written before this call. Starts the thread if needed; then no lock may be held. A
 * bare thread cannot start it, and leaves the job for hp_service_resume(). False: no thread can be had (tried again
 * from time to time), or there are too many jobs. */
bool hp_service_ask(struct hp_job *job);

/* Make the job known, which its first request does else. Later requests take no lock, so that they may come from any
 * handler or bare thread. False: there are too many jobs, or no memory. */
bool hp_service_list(struct hp_job *job);

bool hp_service_running(void);

/* Called by the constructor, on the thread that loads the library. */
void hp_service_init(void);

/* Let jobs open files from now on. Call without a lock, before such a job is asked for. */
void hp_service_opens_files(void);

/* end() ends the thread, if there is one, and forbids a new one until allow() was called as often as end(). A job that
 * is asked for meanwhile waits for the next request. Call with no lock held. */
void hp_service_end(void);
void hp_service_allow(void);

/* Start the thread if it ended with work to do, or a bare thread has work for it; otherwise costs nothing. Call with no
 * lock held. */
void hp_service_resume(void);

/* Called in the child of fork, where the thread does not exist and no job is asked for. */
void hp_service_child(void);

#endif
