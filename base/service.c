/*
 * See service.h.
 *
 * The handshake between callers and the thread. A caller sets a job's flag `asked`. The thread clears the flag just
 * before it runs the job. Both use an exchange. So a caller that finds the flag set may leave: the job's next run sees
 * what the caller wrote.
 *
 * The atomics of the handshakes are sequentially consistent. Each handshake has two words. One side writes the first
 * word and then reads the second. The other side writes the second and then reads the first. So at least one side sees
 * the other's write.
 *	asked, state		hp_service_ask() and serve_jobs(): the job is run by this thread, or another is started
 *	alarm, asleep		hp_service_ask() and sleep_until(): the thread is woken, or does not sleep
 *	forbidden, state	hp_service_end() and started(): the end waits for the start, or the start is given up
 */
#include "base/service.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/key.h"
#include "base/lock.h"
#include "base/process.h"
#include "base/seal.h"
#include "base/stats.h"
#include "base/sys.h"
#include "base/thread.h"

enum { STACK_SIZE = 262144, TRIES_BETWEEN_FAILURES = 1024, JOBS_MAX = 8 };
enum { OFF, STARTING, RUNNING, ENDING };

/* Usually the library is loaded on the main thread. The service thread checks whether other threads are left: often
 * after the main thread has ended, and seldom if its end cannot be noticed. */
enum { LONG_NS = INT64_C(1) << 55 }; /* a year */
enum { ORPHAN_NS = 100000000, UNKNOWN_NS = 1000000000 };
enum { PARENTED, ORPHANED, UNKNOWN };

static struct {
	_Atomic uint32_t state; /* OFF, STARTING, RUNNING, ENDING */
	_Atomic uint32_t alarm; /* counts wakes; the thread sleeps on it */
	_Atomic bool asleep; /* the thread sleeps or is about to */
	/* calls to ignore before the next try to start; relaxed: one more or less does no harm */
	_Atomic uint32_t skip;
	/* calls of hp_service_end() minus those of hp_service_allow(); not 0: no thread is started */
	_Atomic uint32_t forbidden;
	/* PARENTED, ORPHANED, UNKNOWN; relaxed: main_ends() ends the thread that has seen the old value */
	_Atomic int main_thread;
	_Atomic uint32_t tid; /* number of the thread; 0: it has not begun; relaxed: a number for hp_service_end() */
	/* relaxed: hp_service_resume() takes it by acquire */
	_Atomic bool lapsed; /* the thread has ended, and there may be work for another */
	_Atomic bool opens_files; /* relaxed: hp_service_allow() publishes it to the thread that starts next */
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

/* ------------------------------------------------------------------ the words of the handshakes */

/* seq_cst: pairs with set_state() and change_state(). */
static uint32_t get_state(void)
{
	return atomic_load_explicit(&service.state, memory_order_seq_cst);
}

/* Called by the thread that is changing the state. seq_cst: pairs with get_state() and change_state(). */
static void set_state(uint32_t state)
{
	atomic_store_explicit(&service.state, state, memory_order_seq_cst);
}

/* Change the state to `to` if it is `from`. Returns the state before. seq_cst: pairs with get_state() and set_state(),
 * and with other threads that change it. */
static uint32_t change_state(uint32_t from, uint32_t to)
{
	atomic_compare_exchange_strong_explicit(&service.state, &from, to, memory_order_seq_cst, memory_order_seq_cst);
	return from;
}

/* seq_cst: pairs with exchange_asked(). */
static bool is_asked(struct hp_job *j)
{
	return atomic_load_explicit(&j->asked, memory_order_seq_cst);
}

/* seq_cst: run_due() pairs with hp_service_ask(). The thread that runs the job sees what was written before the flag
 * was set, even if the thread sets the flag again itself. */
static bool exchange_asked(struct hp_job *j, bool asked)
{
	return atomic_exchange_explicit(&j->asked, asked, memory_order_seq_cst);
}

/* seq_cst: pairs with serve_jobs(), which reads it before it looks at the jobs. */
static void count_alarm(void)
{
	atomic_fetch_add_explicit(&service.alarm, 1, memory_order_seq_cst);
}

/* seq_cst: started() pairs with hp_service_end(). */
static bool is_forbidden(void)
{
	return atomic_load_explicit(&service.forbidden, memory_order_seq_cst);
}

/* The job of that number; NULL: none. acquire: a reader sees the job's function; pairs with list_job(). */
static struct hp_job *get_job(int i)
{
	return atomic_load_explicit(&jobs.is.list[i].job, memory_order_acquire);
}

/* relaxed: when the value changes, main_ends() next ends the present service thread. */
static int get_main_thread(void)
{
	return atomic_load_explicit(&service.main_thread, memory_order_relaxed);
}

static void set_main_thread(int state)
{
	atomic_store_explicit(&service.main_thread, state, memory_order_relaxed);
}

static uint32_t get_tid(void)
{
	return atomic_load_explicit(&service.tid, memory_order_relaxed);
}

static void set_tid(uint32_t tid)
{
	atomic_store_explicit(&service.tid, tid, memory_order_relaxed);
}

/* ------------------------------------------------------------------ the thread */

/* Run the jobs that are due. Returns the time of the next due job; UINT64_MAX: there is none. */
static uint64_t run_due(void)
{
	uint64_t next = UINT64_MAX;

	for (int i = 0; i < JOBS_MAX && get_job(i); i++) {
		struct hp_job *j = get_job(i);
		uint64_t now = hp_clock_ns();

		if (!j->due_ns && is_asked(j))
			j->due_ns = now + j->delay_ns;
		if ((j->due_ns && j->due_ns <= now) || (j->again_ns && j->again_ns <= now)) {
			j->due_ns = 0;
			j->again_ns = 0;
			exchange_asked(j, false);
			if (jobs.is.list[i].run())
				exchange_asked(j, true);
			if (is_asked(j))
				j->due_ns = hp_clock_ns() + j->delay_ns;
		}
		if (j->due_ns)
			next = HP_MIN(next, j->due_ns);
		if (j->again_ns)
			next = HP_MIN(next, j->again_ns);
	}
	return next;
}

/* The number of threads of the process; 0: the kernel does not tell. The directory has two links, and one more for each
 * thread in it. */
static unsigned count_threads(void)
{
	struct stat s;

	if (hp_sys(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &s) != 0)
		return 0;
	return (unsigned)s.st_nlink - 2;
}

/* Whether no thread of the program is left, except perhaps its main thread, which the kernel counts even after its end.
 * If the main thread still lives, ending the service thread does no harm. */
static bool is_left_alone(void)
{
	unsigned count = count_threads();

	return count && count <= hp_thread_count_bare() + 2;
}

/* Sleep until the alarm, for `ns` at most. False: a signal handler has run. The sleep always has a limit: after a
 * signal handler, the kernel restarts a wait without a limit, but a wait with a limit fails. The only handlers that can
 * run here are those by which the C library changes the user and group of each thread. This thread's filter makes that
 * change do nothing, so the thread has to end. */
static bool sleep_until(uint32_t seen, uint64_t ns)
{
	struct timespec t;
	long r;

	ns = HP_MIN(ns, (uint64_t)LONG_NS);
	t = (struct timespec){ (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
	/* seq_cst: written before the kernel reads the alarm; pairs with hp_service_ask(). */
	atomic_store_explicit(&service.asleep, true, memory_order_seq_cst);
	r = hp_sys(SYS_futex, &service.alarm, FUTEX_WAIT_PRIVATE, seen, &t);
	/* relaxed: a caller that sees the old value only wakes in vain */
	atomic_store_explicit(&service.asleep, false, memory_order_relaxed);
	HP_STAT_COUNT(service_wakeups, 1);
	return r != -EINTR;
}

static void *serve_jobs(void *unused)
{
	bool stay = true;

	(void)unused;
	hp_sys(SYS_prctl, PR_SET_NAME, "hugepin");
	/* 1000 ns of slack: the pin cache's helper has to wake just in time. */
	hp_sys(SYS_prctl, PR_SET_TIMERSLACK, 1000);
	hp_thread_confine(atomic_load_explicit(&service.opens_files, memory_order_relaxed));
	set_tid((uint32_t)hp_tid());
	while (get_state() == STARTING) /* the starting thread sets RUNNING */
		hp_sys(SYS_sched_yield);
	while (stay && get_state() != ENDING) {
		/* Read the alarm before looking at the jobs: a later caller changes it. seq_cst: pairs with
		 * count_alarm(). */
		uint32_t seen = atomic_load_explicit(&service.alarm, memory_order_seq_cst);
		uint64_t next = run_due(), now = hp_clock_ns(), ns;

		if (next <= now)
			continue;
		/* checked after `alarm` was read: hp_service_end() sets ENDING first and then changes the alarm */
		if (get_state() == ENDING)
			break;
		ns = next == UINT64_MAX ? next : next - now;
		if (get_main_thread() != PARENTED)
			ns = HP_MIN(ns, (uint64_t)(get_main_thread() == ORPHANED ? ORPHAN_NS : UNKNOWN_NS));
		stay = sleep_until(seen, ns) && (get_main_thread() == PARENTED || !is_left_alone());
	}
	/* If the thread does not end by itself (!stay), hp_service_end() has set ENDING and waits. */
	/* release: the jobs' writes are seen with it; pairs with hp_service_end(). */
	atomic_store_explicit(&service.lapsed, true, memory_order_release);
	if (!stay) /* pairs with hp_service_ask(): the caller sees OFF, or this thread has seen its job */
		change_state(RUNNING, OFF);
	return NULL;
}

/* Start the thread, unless it runs. False: starting fails, or failed a short while ago, or is forbidden. */
static bool started(void)
{
	uint32_t was, skip = atomic_load_explicit(&service.skip, memory_order_relaxed);

	if (get_state() == OFF && skip) { /* `skip` never falls below 0, even if other threads do the same */
		atomic_store_explicit(&service.skip, skip - 1, memory_order_relaxed);
		return false;
	}
	/* A bare thread may wake the service thread, but not start it. */
	if (hp_thread_is_bare ||
	    (get_state() == OFF && (is_forbidden() || hp_sandboxed || hp_process() != HP_PROCESS_OWN)))
		return get_state() != OFF;
	was = change_state(OFF, STARTING);
	if (was != OFF)
		return was != ENDING;
	/* pairs with hp_service_end(): it waits until STARTING has passed, or its `forbidden` is seen here. */
	if (is_forbidden()) {
		set_state(OFF);
		return false;
	}
	set_tid(0);
	if (!hp_thread_start_known(serve_jobs, NULL, STACK_SIZE)) {
		atomic_store_explicit(&service.skip, TRIES_BETWEEN_FAILURES, memory_order_relaxed);
		set_state(OFF);
		return false;
	}
	change_state(STARTING, RUNNING); /* pairs with serve_jobs(), which waits for RUNNING */
	return true;
}

/* ------------------------------------------------------------------ asking */

static bool list_job(struct hp_job *j)
{
	int i;

	hp_lock(&jobs_lock);
	for (i = 0; i < JOBS_MAX && get_job(i) && get_job(i) != j; i++)
		;
	if (i < JOBS_MAX && !get_job(i)) {
		if (hp_unseal(&jobs, sizeof jobs)) {
			jobs.is.list[i].run = j->run;
			/* release: get_job()'s reader sees the function, too; pairs with get_job(). */
			atomic_store_explicit(&jobs.is.list[i].job, j, memory_order_release);
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
		if (get_job(i) == j)
			return true;
	return list_job(j);
}

bool hp_service_ask(struct hp_job *j)
{
	/* List the job first: the thread, and a child of fork, must find each job whose flag is set. */
	if (!job_listed(j))
		return false;
	/* pairs with run_due(), and with the end of serve_jobs() */
	if (exchange_asked(j, true) && get_state() != OFF)
		return true;
	if (!started()) {
		exchange_asked(j, false);
		return false;
	}
	count_alarm();
	/* seq_cst: read after the alarm was counted; pairs with sleep_until(). */
	if (atomic_load_explicit(&service.asleep, memory_order_seq_cst))
		hp_futex_wake(&service.alarm);
	return true;
}

bool hp_service_running(void)
{
	return get_state() == RUNNING;
}

/* ------------------------------------------------------------------ ending */

static void wake_service(void)
{
	count_alarm();
	hp_futex_wake(&service.alarm);
}

/* Called when the main thread ends. If it is the program's last thread, the process must end with it, as without this
 * library. So the service thread ends first: the C library must not count it. */
static void main_ends(void *unused)
{
	(void)unused;
	set_main_thread(ORPHANED);
	hp_service_end();
	hp_service_allow();
	if (atomic_load_explicit(&service.lapsed, memory_order_relaxed) &&
	    count_threads() <= 1 + hp_thread_count_bare())
		atomic_store_explicit(&service.lapsed, false, memory_order_relaxed);
}

void hp_service_init(void)
{
	bool is_main = hp_tid() == hp_pid();

	if (!is_main || hp_key_create(&service.key, main_ends) != 0 || pthread_setspecific(service.key, &service) != 0)
		set_main_thread(UNKNOWN);
}

void hp_service_end(void)
{
	/* seq_cst: written before the state is read; pairs with started(). */
	atomic_fetch_add_explicit(&service.forbidden, 1, memory_order_seq_cst);
	if (hp_process() != HP_PROCESS_OWN || get_tid() == (uint32_t)hp_tid())
		return;
	while (get_state() == STARTING)
		hp_sys(SYS_sched_yield);
	if (change_state(RUNNING, ENDING) == RUNNING) { /* pairs with serve_jobs() */
		wake_service();
		while (!get_tid())
			hp_sys(SYS_sched_yield);
		hp_thread_gone(get_tid());
		/* acquire: makes the ended thread's writes visible to the next thread's jobs; pairs with
		 * serve_jobs(). */
		(void)atomic_load_explicit(&service.lapsed, memory_order_acquire);
		set_tid(0);
		set_state(OFF);
	}
	while (get_state() == ENDING) /* another thread is ending it */
		hp_sys(SYS_sched_yield);
}

void hp_service_allow(void)
{
	/* release: writes made while starting was forbidden are seen with it; pairs with started(). */
	atomic_fetch_sub_explicit(&service.forbidden, 1, memory_order_release);
}

void hp_service_resume(void)
{
	/* acquire: pairs with the end of serve_jobs() */
	if (atomic_load_explicit(&service.lapsed, memory_order_acquire) && get_state() == OFF &&
	    atomic_exchange_explicit(&service.lapsed, false, memory_order_acquire))
		started();
}

void hp_service_opens_files(void)
{
	if (atomic_load_explicit(&service.opens_files, memory_order_relaxed))
		return;
	hp_service_end();
	/* relaxed: hp_service_allow() publishes it to the thread that starts next. Not before the old thread has ended: a
	 * second caller that sees the flag may rely on a thread that opens files. */
	atomic_store_explicit(&service.opens_files, true, memory_order_relaxed);
	hp_service_allow();
}

/* There is no other thread, so no operation needs a memory order. */
void hp_service_child(void)
{
	hp_lock_reset(&jobs_lock);
	for (int i = 0; i < JOBS_MAX && get_job(i); i++) {
		struct hp_job *j = get_job(i);

		atomic_store_explicit(&j->asked, false, memory_order_relaxed);
		j->due_ns = 0;
		j->again_ns = 0;
	}
	/* In the child, the thread that forked is the main thread. */
	set_main_thread(get_main_thread() == PARENTED && pthread_getspecific(service.key) ? PARENTED : UNKNOWN);
	atomic_store_explicit(&service.asleep, false, memory_order_relaxed);
	atomic_store_explicit(&service.state, OFF, memory_order_relaxed);
	atomic_store_explicit(&service.alarm, 0, memory_order_relaxed);
	atomic_store_explicit(&service.skip, 0, memory_order_relaxed);
	atomic_store_explicit(&service.forbidden, 0, memory_order_relaxed);
	atomic_store_explicit(&service.lapsed, false, memory_order_relaxed);
	set_tid(0);
}
