#include "base/service.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "base/base.h"
#include "base/stats.h"

enum { STACK_SIZE = 262144, TRIES_BETWEEN_FAILURES = 1024 };
enum { OFF, STARTING, RUNNING };

static struct {
	_Atomic uint32_t state; /* OFF, STARTING, RUNNING */
	_Atomic uint32_t alarm; /* counts wakes; the thread sleeps on it */
	_Atomic uint32_t skip; /* calls to let pass before the next try */
	bool (*tick)(void);
	uint64_t interval_ns;
} service;

static void *run(void *unused)
{
	uint32_t seen = 0;

	(void)unused;
	prctl(PR_SET_NAME, "hugepin", 0, 0, 0);
	for (;;) {
		while (service.alarm == seen)
			hp_futex_wait(&service.alarm, seen, UINT64_MAX);
		do {
			uint64_t start = hp_clock_ns(), past;

			seen = service.alarm;
			while ((past = hp_clock_ns() - start) < service.interval_ns)
				hp_futex_wait(&service.alarm, seen = service.alarm, service.interval_ns - past);
			HP_STAT_COUNT(service_wakeups, 1);
		} while (service.tick());
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

bool hp_service_wake(bool (*tick)(void), uint64_t interval_ns)
{
	uint32_t off = OFF;

	if (service.state == OFF && service.skip) {
		service.skip--;
		return false;
	}
	if (__atomic_compare_exchange_n((uint32_t *)&service.state, &off, STARTING, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE)) {
		service.tick = tick;
		service.interval_ns = interval_ns;
		if (!start()) {
			service.skip = TRIES_BETWEEN_FAILURES;
			service.state = OFF;
			return false;
		}
		service.state = RUNNING;
	}
	service.alarm++;
	hp_futex_wake(&service.alarm);
	return true;
}

bool hp_service_running(void)
{
	return service.state == RUNNING;
}

void hp_service_child(void)
{
	service.state = OFF;
	service.alarm = 0;
	service.skip = 0;
}
