/*
 * How callers and the thread meet. A caller sets a job's flag `asked`; the thread clears it just before it runs the
 * job. Both do so by an exchange. So a caller that finds the flag set may leave: the run that is still to come sees
 * what the caller wrote.
 *
 * All atomics of this file are sequentially consistent. Each handshake in it is of two words: one side writes the first
 * and then reads the second, the other side does it the other way round, and at least one of them sees the other's
 * write.
 * 	asked, state		hp_service_ask() and serve_jobs(): the job is run by this thread, or another is started
 * 	alarm, asleep		hp_service_ask() and sleep_until(): the thread is woken, or does not sleep
 * 	forbidden, state	hp_service_end() and started(): the end waits for the start, or the start is given up
 */
#include "base/service.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "base/key.h"
#include "base/lock.h"
#include "base/process.h"
#include "base/seal.h"
#include "base/stats.h"
#include "base/thread.h"

enum { STACK_SIZE = 262144, TRIES_BETWEEN_FAILURES = 1024, JOBS_MAX = 4 };
enum { OFF, STARTING, RUNNING, ENDING };

/* The thread that loads the library is usually the one that main() runs on. Whether others are left is looked at often
 * once its end is known, and seldom where its end cannot be known. */
enum { LONG_NS = INT64_C(1) << 55 }; /* a year */
enum { ORPHAN_NS = 100000000, UNKNOWN_NS = 1000000000 };
enum { PARENTED, ORPHANED, UNKNOWN };

static struct {
	_Atomic uint32_t state; /* OFF, STARTING, RUNNING, ENDING */
	_Atomic uint32_t alarm; /* counts wakes; the thread sleeps on it */
	_Atomic bool asleep; /* or about to be */
	_Atomic uint32_t skip; /* calls to let pass before the next try */
	_Atomic uint32_t forbidden; /* hp_service_end() less hp_service_allow(); not 0: no thread is started */
	_Atomic int main_thread; /* PARENTED, ORPHANED, UNKNOWN */
	_Atomic uint32_t tid; /* of the thread; 0: it has not begun */
	_Atomic bool lapsed; /* it has ended, and there may be work for another */
	_Atomic bool opens_files;
	pthread_key_t key; /* set on the main thread */
} service;

/* Jobs that were ever asked for, in the order of their first request. */
static HP_SEALED(struct {
	struct {
		_Atomic(struct hp_job *) job;
		bool (*run)(void);
	} list[JOBS_MAX];
}) jobs;
static struct hp_lock jobs_lock = HP_LOCK_INIT(HP_RANK_JOBS);

/* Run what is due. Returns when the next one is: UINT64_MAX if there is none. */
static uint64_t run_due(void)
{
	uint64_t next = UINT64_MAX;

	for (int i = 0; i < JOBS_MAX && jobs.is.list[i].job; i++) {
		struct hp_job *j = jobs.is.list[i].job;
		uint64_t now = hp_clock_ns();

		if (!j->due_ns && j->asked)
			j->due_ns = now + j->delay_ns;
		if ((j->due_ns && j->due_ns <= now) || (j->again_ns && j->again_ns <= now)) {
			j->due_ns = 0;
			j->again_ns = 0;
			/* pairs with hp_service_ask() */
			atomic_exchange_explicit(&j->asked, false, memory_order_seq_cst);
			if (jobs.is.list[i].run())
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

/* Threads of the process; 0: the kernel does not say. A directory has two links and one more for each in it. */
static unsigned count_threads(void)
{
	struct stat s;

	if (hp_syscall(SYS_newfstatat, AT_FDCWD, (long)"/proc/self/task", (long)&s, 0, 0, 0) != 0)
		return 0;
	return (unsigned)s.st_nlink - 2;
}

/* Whether no thread of the program's is left but perhaps its main thread, which counts as long as the process is there.
 * If that one lives, no harm is done. */
static bool is_left_alone(void)
{
	unsigned count = count_threads();

	return count && count <= hp_thread_count_bare() + 2;
}

/* Sleep until the alarm, for `ns` at most. There is always a limit: after a signal handler the kernel begins a call
 * without a limit anew, while a call with one fails. False: a handler has run. The only handlers that can run here are
 * those by which the C library changes the user and the group of each thread. This thread's filter lets that change
 * nothing, so the thread has to end. */
static bool sleep_until(uint32_t seen, uint64_t ns)
{
	struct timespec t;
	long r;

	ns = HP_MIN(ns, (uint64_t)LONG_NS);
	t = (struct timespec){ (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
	service.asleep = true;
	r = hp_syscall(SYS_futex, (long)&service.alarm, FUTEX_WAIT_PRIVATE, (long)seen, (long)&t, 0, 0);
	service.asleep = false;
	HP_STAT_COUNT(service_wakeups, 1);
	return r != -EINTR;
}

static void *serve_jobs(void *unused)
{
	bool stay = true;
	uint32_t running = RUNNING;

	(void)unused;
	hp_syscall(SYS_prctl, PR_SET_NAME, (long)"hugepin", 0, 0, 0, 0);
	/* ns: the helper of the pin cache comes just in time. */
	hp_syscall(SYS_prctl, PR_SET_TIMERSLACK, 1000, 0, 0, 0, 0);
	hp_thread_confine(service.opens_files);
	service.tid = (uint32_t)hp_syscall(SYS_gettid, 0, 0, 0, 0, 0, 0);
	while (service.state == STARTING) /* whoever starts it says that it runs */
		sched_yield();
	while (stay && service.state != ENDING) {
		uint32_t seen = service.alarm; /* before the jobs are looked at: who asks later changes it */
		uint64_t next = run_due(), now = hp_clock_ns(), ns;

		if (next <= now)
			continue;
		if (service.state == ENDING) /* before `alarm` was read: whoever ends us changes that after this */
			break;
		ns = next == UINT64_MAX ? next : next - now;
		if (service.main_thread != PARENTED)
			ns = HP_MIN(ns, (uint64_t)(service.main_thread == ORPHANED ? ORPHAN_NS : UNKNOWN_NS));
		stay = sleep_until(seen, ns) && (service.main_thread == PARENTED || !is_left_alone());
	}
	/* If it does not leave by itself, hp_service_end() has set ENDING and waits. */
	service.lapsed = true;
	if (!stay) /* pairs with hp_service_ask(): it sees OFF, or its job was seen */
		atomic_compare_exchange_strong(&service.state, &running, OFF);
	return NULL;
}

/* False: refused just now, or a short while ago, or by a caller who has not come back yet. */
static bool started(void)
{
	uint32_t off = OFF, starting = STARTING;

	if (service.state == OFF && service.skip) {
		service.skip--;
		return false;
	}
	/* A bare thread wakes the thread, but starts none. */
	if (hp_thread_is_bare ||
	    (service.state == OFF && (service.forbidden || hp_sandboxed || hp_process() != HP_PROCESS_OWN)))
		return service.state != OFF;
	/* pairs with hp_service_end(): it waits for STARTING to pass, or is seen here. */
	if (!atomic_compare_exchange_strong(&service.state, &off, STARTING))
		return off != ENDING;
	if (service.forbidden) {
		service.state = OFF;
		return false;
	}
	service.tid = 0;
	if (!hp_thread_start_known(serve_jobs, NULL, STACK_SIZE)) {
		service.skip = TRIES_BETWEEN_FAILURES;
		service.state = OFF;
		return false;
	}
	/* pairs with serve_jobs(), which waits for it */
	atomic_compare_exchange_strong(&service.state, &starting, RUNNING);
	return true;
}

static bool list_job(struct hp_job *j)
{
	int i;

	hp_lock(&jobs_lock);
	for (i = 0; i < JOBS_MAX && jobs.is.list[i].job && jobs.is.list[i].job != j; i++)
		;
	if (i < JOBS_MAX && !jobs.is.list[i].job) {
		if (hp_unseal(&jobs, sizeof jobs)) {
			jobs.is.list[i].run = j->run;
			jobs.is.list[i].job = j; /* pairs with run_due(): it sees the function, too */
			hp_seal(&jobs, sizeof jobs);
		} else {
			i = JOBS_MAX;
		}
	}
	hp_unlock(&jobs_lock);
	return i < JOBS_MAX;
}

static bool job_listed(struct hp_job *j)
{
	for (int i = 0; i < JOBS_MAX; i++)
		if (jobs.is.list[i].job == j)
			return true;
	return list_job(j);
}

bool hp_service_ask(struct hp_job *j)
{
	/* First: a flag that is set belongs to a job that the thread, and a child of fork, finds. */
	if (!job_listed(j))
		return false;
	/* pairs with run_due(), and with the end of serve_jobs() */
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

static void wake_service(void)
{
	service.alarm++;
	hp_futex_wake(&service.alarm);
}

/* The main thread ends. If it is the last of the program's, the process ends with it, as it would without this library:
 * so the C library must not find our thread. */
static void main_ends(void *unused)
{
	(void)unused;
	service.main_thread = ORPHANED;
	hp_service_end();
	hp_service_allow();
	service.lapsed = service.lapsed && count_threads() > 1 + hp_thread_count_bare();
}

void hp_service_init(void)
{
	bool is_main = hp_syscall(SYS_gettid, 0, 0, 0, 0, 0, 0) == getpid();

	if (!is_main || hp_key_create(&service.key, main_ends) != 0 || pthread_setspecific(service.key, &service) != 0)
		service.main_thread = UNKNOWN;
}

void hp_service_end(void)
{
	uint32_t running = RUNNING;

	service.forbidden++;
	if (hp_process() != HP_PROCESS_OWN || service.tid == (uint32_t)hp_syscall(SYS_gettid, 0, 0, 0, 0, 0, 0))
		return;
	while (service.state == STARTING)
		sched_yield();
	/* pairs with serve_jobs() */
	if (atomic_compare_exchange_strong(&service.state, &running, ENDING)) {
		wake_service();
		while (!service.tid)
			sched_yield();
		hp_thread_gone(service.tid);
		(void)service.lapsed; /* what its jobs noted, for the next thread's; pairs with serve_jobs() */
		service.tid = 0;
		service.state = OFF;
	}
	while (service.state == ENDING) /* by another thread */
		sched_yield();
}

void hp_service_allow(void)
{
	service.forbidden--;
}

void hp_service_resume(void)
{
	/* pairs with the end of serve_jobs() */
	if (service.lapsed && service.state == OFF && atomic_exchange(&service.lapsed, false))
		started();
}

void hp_service_opens_files(void)
{
	if (service.opens_files)
		return;
	service.opens_files = true;
	hp_service_end();
	hp_service_allow();
}

void hp_service_child(void)
{
	hp_lock_reset(&jobs_lock);
	for (int i = 0; i < JOBS_MAX && jobs.is.list[i].job; i++) {
		struct hp_job *j = jobs.is.list[i].job;

		j->asked = false;
		j->due_ns = 0;
		j->again_ns = 0;
	}
	/* The thread that forked is the main thread here. */
	service.main_thread = service.main_thread == PARENTED && pthread_getspecific(service.key) ? PARENTED : UNKNOWN;
	service.asleep = false;
	service.state = OFF;
	service.alarm = 0;
	service.skip = 0;
	service.forbidden = 0;
	service.lapsed = false;
	service.tid = 0;
}
