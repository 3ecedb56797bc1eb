/*
 * A job's flag `asked` is set by exchange, and cleared by exchange just before it runs. So who finds it set may leave: the run
 * that is to come sees what he wrote.
 */
#include "base/service.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "base/base.h"
#include "base/stats.h"

enum { STACK_SIZE = 262144, TRIES_BETWEEN_FAILURES = 1024, JOBS_MAX = 4 };
enum { OFF, STARTING, RUNNING };

static struct {
	_Atomic uint32_t state; /* OFF, STARTING, RUNNING */
	_Atomic uint32_t alarm; /* counts wakes; the thread sleeps on it */
	_Atomic bool asleep; /* or about to be: pairs with alarm, each is written before the other is read */
	_Atomic uint32_t skip; /* calls to let pass before the next try */
	_Atomic(struct hp_job *) jobs[JOBS_MAX]; /* that were ever asked for, then NULL */
} service;

/* Run what is due. Returns when the next one is: UINT64_MAX if there is none. */
static uint64_t run_due(void)
{
	uint64_t next = UINT64_MAX;

	for (int i = 0; i < JOBS_MAX && service.jobs[i]; i++) {
		struct hp_job *j = service.jobs[i];
		uint64_t now = hp_clock_ns();

		if (!j->due_ns && j->asked)
			j->due_ns = now + j->delay_ns;
		if ((j->due_ns && j->due_ns <= now) || (j->again_ns && j->again_ns <= now)) {
			j->due_ns = 0;
			j->again_ns = 0;
			atomic_exchange(&j->asked, false);
			if (j->run())
				j->asked = true;
			if (j->asked)
				j->due_ns = hp_clock_ns() + j->delay_ns;
		}
		if (j->due_ns)
			next = HP_MIN(next, j->due_ns);
		if (j->again_ns)
			next = HP_MIN(next, j->again_ns);
	}
	return next;
}

static void *run(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "hugepin", 0, 0, 0);
	prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* ns: the helper of the pin cache comes just in time */
	for (;;) {
		uint32_t seen = service.alarm; /* before the jobs are looked at: who asks later changes it */
		uint64_t next = run_due(), now = hp_clock_ns();

		if (next <= now)
			continue;
		service.asleep = true;
		hp_futex_wait(&service.alarm, seen, next == UINT64_MAX ? next : next - now);
		service.asleep = false;
		HP_STAT_COUNT(service_wakeups, 1);
	}
	return NULL;
}

static bool start(void)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t thread;
	int saved = errno;
	bool ok = false;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_attr_init(&attr) == 0) {
		pthread_attr_setstacksize(&attr, STACK_SIZE);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		ok = pthread_create(&thread, &attr, run, NULL) == 0;
		pthread_attr_destroy(&attr);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	errno = saved;
	return ok;
}

/* False: refused just now, or a short while ago, or by a caller who has not come back yet. */
static bool started(void)
{
	uint32_t off = OFF;

	if (service.state == OFF && service.skip) {
		service.skip--;
		return false;
	}
	if (!atomic_compare_exchange_strong(&service.state, &off, STARTING))
		return true;
	if (!start()) {
		service.skip = TRIES_BETWEEN_FAILURES;
		service.state = OFF;
		return false;
	}
	service.state = RUNNING;
	return true;
}

static bool listed(struct hp_job *j)
{
	for (int i = 0; i < JOBS_MAX; i++) {
		struct hp_job *there = NULL;

		if (service.jobs[i] == j || atomic_compare_exchange_strong(&service.jobs[i], &there, j) || there == j)
			return true;
	}
	return false;
}

bool hp_service_ask(struct hp_job *j)
{
	if (!listed(j)) /* first: a flag that is set belongs to a job that the thread, and a child of fork, finds */
		return false;
	if (atomic_exchange(&j->asked, true) && service.state != OFF)
		return true;
	if (!started()) {
		j->asked = false;
		return false;
	}
	service.alarm++;
	if (service.asleep)
		hp_futex_wake(&service.alarm);
	return true;
}

bool hp_service_running(void)
{
	return service.state == RUNNING;
}

void hp_service_child(void)
{
	for (int i = 0; i < JOBS_MAX && service.jobs[i]; i++) {
		service.jobs[i]->asked = false;
		service.jobs[i]->due_ns = 0;
		service.jobs[i]->again_ns = 0;
	}
	service.asleep = false;
	service.state = OFF;
	service.alarm = 0;
	service.skip = 0;
}
