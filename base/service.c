/*
 * How callers and the thread meet. A caller sets a job's flag `asked`; the thread clears it just before it runs the
 * job. Both do so by an exchange. So a caller that finds the flag set may leave: the run that is still to come sees
 * what the caller wrote.
 *
 * The atomics of the handshakes are sequentially consistent. Each handshake is of two words: one side writes the first
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

/* ------------------------------------------------------------------ the words of the handshakes */

/* seq_cst: pairs with set_state() and change_state(). */
static uint32_t get_state(void)
{
	return atomic_load_explicit(&service.state, memory_order_seq_cst);
}

/* By the thread whose state it is. seq_cst: pairs with get_state() and change_state(). */
static void set_state(uint32_t state)
{
	atomic_store_explicit(&service.state, state, memory_order_seq_cst);
}

/* Returns the state that was found: if it was `from`, it is `to` now. seq_cst: pairs with get_state() and set_state(),
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

/* seq_cst: run_due() pairs with hp_service_ask(). The thread sees what was written before the flag was set, also if it
 * sets the flag itself. */
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

/* The job of that number, NULL: none. acquire: with its function; pairs with list_job(). */
static struct hp_job *get_job(int i)
{
	return atomic_load_explicit(&jobs.is.list[i].job, memory_order_acquire);
}

/* relaxed: the thread that is there when it changes is ended next, by main_ends(). */
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

/* Run what is due. Returns when the next one is: UINT64_MAX if there is none. */
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
	/* seq_cst: before the kernel reads the alarm; pairs with hp_service_ask(). */
	atomic_store_explicit(&service.asleep, true, memory_order_seq_cst);
	r = hp_syscall(SYS_futex, (long)&service.alarm, FUTEX_WAIT_PRIVATE, (long)seen, (long)&t, 0, 0);
	atomic_store_explicit(&service.asleep, false, memory_order_relaxed); /* who does not see it wakes in vain */
	HP_STAT_COUNT(service_wakeups, 1);
	return r != -EINTR;
}

static void *serve_jobs(void *unused)
{
	bool stay = true;

	(void)unused;
	hp_syscall(SYS_prctl, PR_SET_NAME, (long)"hugepin", 0, 0, 0, 0);
	/* ns: the helper of the pin cache comes just in time. */
	hp_syscall(SYS_prctl, PR_SET_TIMERSLACK, 1000, 0, 0, 0, 0);
	hp_thread_confine(atomic_load_explicit(&service.opens_files, memory_order_relaxed));
	set_tid((uint32_t)hp_syscall(SYS_gettid, 0, 0, 0, 0, 0, 0));
	while (get_state() == STARTING) /* whoever starts it says that it runs */
		sched_yield();
	while (stay && get_state() != ENDING) {
		/* Before the jobs are looked at: who asks later changes it. seq_cst: pairs with count_alarm(). */
		uint32_t seen = atomic_load_explicit(&service.alarm, memory_order_seq_cst);
		uint64_t next = run_due(), now = hp_clock_ns(), ns;

		if (next <= now)
			continue;
		if (get_state() == ENDING) /* before `alarm` was read: whoever ends us changes that after this */
			break;
		ns = next == UINT64_MAX ? next : next - now;
		if (get_main_thread() != PARENTED)
			ns = HP_MIN(ns, (uint64_t)(get_main_thread() == ORPHANED ? ORPHAN_NS : UNKNOWN_NS));
		stay = sleep_until(seen, ns) && (get_main_thread() == PARENTED || !is_left_alone());
	}
	/* If it does not leave by itself, hp_service_end() has set ENDING and waits. */
	/* release: with what its jobs noted; pairs with hp_service_end(). */
	atomic_store_explicit(&service.lapsed, true, memory_order_release);
	if (!stay) /* pairs with hp_service_ask(): it sees OFF, or its job was seen */
		change_state(RUNNING, OFF);
	return NULL;
}

/* False: refused just now, or a short while ago, or by a caller who has not come back yet. */
static bool started(void)
{
	uint32_t was, skip = atomic_load_explicit(&service.skip, memory_order_relaxed);

	if (get_state() == OFF && skip) { /* never below 0, whoever else is here */
		atomic_store_explicit(&service.skip, skip - 1, memory_order_relaxed);
		return false;
	}
	/* A bare thread wakes the thread, but starts none. */
	if (hp_thread_is_bare ||
	    (get_state() == OFF && (is_forbidden() || hp_sandboxed || hp_process() != HP_PROCESS_OWN)))
		return get_state() != OFF;
	was = change_state(OFF, STARTING);
	if (was != OFF)
		return was != ENDING;
	/* pairs with hp_service_end(): it waits for STARTING to pass, or is seen here. */
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
	change_state(STARTING, RUNNING); /* pairs with serve_jobs(), which waits for it */
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
			/* release: run_due() sees the function, too; pairs with get_job(). */
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
	/* First: a flag that is set belongs to a job that the thread, and a child of fork, finds. */
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
	/* seq_cst: after the alarm was counted; pairs with sleep_until(). */
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

/* The main thread ends. If it is the last of the program's, the process ends with it, as it would without this library:
 * so the C library must not find our thread. */
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
	bool is_main = hp_syscall(SYS_gettid, 0, 0, 0, 0, 0, 0) == getpid();

	if (!is_main || hp_key_create(&service.key, main_ends) != 0 || pthread_setspecific(service.key, &service) != 0)
		set_main_thread(UNKNOWN);
}

void hp_service_end(void)
{
	/* seq_cst: before the state is read; pairs with started(). */
	atomic_fetch_add_explicit(&service.forbidden, 1, memory_order_seq_cst);
	if (hp_process() != HP_PROCESS_OWN || get_tid() == (uint32_t)hp_syscall(SYS_gettid, 0, 0, 0, 0, 0, 0))
		return;
	while (get_state() == STARTING)
		sched_yield();
	if (change_state(RUNNING, ENDING) == RUNNING) { /* pairs with serve_jobs() */
		wake_service();
		while (!get_tid())
			sched_yield();
		hp_thread_gone(get_tid());
		/* acquire: what its jobs noted, for the next thread's; pairs with serve_jobs(). */
		(void)atomic_load_explicit(&service.lapsed, memory_order_acquire);
		set_tid(0);
		set_state(OFF);
	}
	while (get_state() == ENDING) /* by another thread */
		sched_yield();
}

void hp_service_allow(void)
{
	/* release: with what was done meanwhile; pairs with started(). */
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

/* There is no other thread: nothing needs an order. */
void hp_service_child(void)
{
	hp_lock_reset(&jobs_lock);
	for (int i = 0; i < JOBS_MAX && get_job(i); i++) {
		struct hp_job *j = get_job(i);

		atomic_store_explicit(&j->asked, false, memory_order_relaxed);
		j->due_ns = 0;
		j->again_ns = 0;
	}
	/* The thread that forked is the main thread here. */
	set_main_thread(get_main_thread() == PARENTED && pthread_getspecific(service.key) ? PARENTED : UNKNOWN);
	atomic_store_explicit(&service.asleep, false, memory_order_relaxed);
	atomic_store_explicit(&service.state, OFF, memory_order_relaxed);
	atomic_store_explicit(&service.alarm, 0, memory_order_relaxed);
	atomic_store_explicit(&service.skip, 0, memory_order_relaxed);
	atomic_store_explicit(&service.forbidden, 0, memory_order_relaxed);
	atomic_store_explicit(&service.lapsed, false, memory_order_relaxed);
	set_tid(0);
}
