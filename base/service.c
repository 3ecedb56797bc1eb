/*
 * See service.h. The handshake between callers and the thread: a caller sets a job's flag `asked`, and the thread
 * clears it just before it runs the job. Both use an exchange, so a caller that finds the flag set may leave, because
 * the job's next run sees what the caller wrote.
 *
 * The flag and the thread's state (thread.c) are sequentially consistent. A caller sets the flag and then reads the
 * state; the thread changes its state and then ends. So either this thread runs the job, or another is started.
 */
#include "base/service.h"

#include <fcntl.h>
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
#include "base/sys.h"
#include "base/thread.h"

enum { JOBS_MAX = 8 };

/* Usually the library is loaded on the main thread. The service thread checks whether other threads are left: often
 * after the main thread has ended, and seldom if its end cannot be noticed. */
enum { ORPHAN_NS = 100000000, UNKNOWN_NS = 1000000000 };
enum { PARENTED, ORPHANED, UNKNOWN };

static struct {
	struct hp_thread thread;
	/* PARENTED, ORPHANED, UNKNOWN; relaxed: main_ends() ends the thread that has seen the old value */
	_Atomic int main_thread;
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
static struct hp_lock jobs_lock = HP_LOCK_INIT(HP_LOCK_RANK_JOBS);

/* The job of that number; NULL: none. acquire: a reader sees the job's function; pairs with hp_service_list(). */
static struct hp_job *get_job(int i)
{
	return atomic_load_explicit(&jobs.is.list[i].job, memory_order_acquire);
}

/* ------------------------------------------------------------------ the thread */

/* Run the jobs that are due. Returns the time of the next due job; UINT64_MAX: there is none. */
static uint64_t run_due(void)
{
	uint64_t next = UINT64_MAX;

	for (int i = 0; i < JOBS_MAX && get_job(i); i++) {
		struct hp_job *j = get_job(i);
		uint64_t now = hp_clock_ns();

		/* seq_cst, here and below: pairs with hp_service_ask(). The run sees what was written before the flag
		 * was set, even if run() sets the flag again itself. */
		if (!j->due_ns && atomic_load_explicit(&j->asked, memory_order_seq_cst))
			j->due_ns = now + j->delay_ns;
		if ((j->due_ns && j->due_ns <= now) || (j->again_ns && j->again_ns <= now)) {
			j->due_ns = 0;
			j->again_ns = 0;
			/* as above: pairs with hp_service_ask() */
			atomic_exchange_explicit(&j->asked, false, memory_order_seq_cst);
			if (jobs.is.list[i].run())
				atomic_exchange_explicit(&j->asked, true, memory_order_seq_cst);
			/* as above: pairs with hp_service_ask() */
			if (atomic_load_explicit(&j->asked, memory_order_seq_cst))
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

static void serve_jobs(void *unused)
{
	uint64_t next, now, ns;
	uint32_t seen;
	int main_thread;

	(void)unused;
	/* Allow only 1000 ns of slack, because the pin cache's helper has to wake just in time. */
	hp_sys(SYS_prctl, PR_SET_TIMERSLACK, 1000);
	do {
		seen = hp_thread_alarm(&service.thread); /* before looking at the jobs: a later caller changes it */
		next = run_due();
		now = hp_clock_ns();
		main_thread = atomic_load_explicit(&service.main_thread, memory_order_relaxed);
		ns = main_thread == PARENTED ? UINT64_MAX : main_thread == ORPHANED ? ORPHAN_NS : UNKNOWN_NS;
		ns = HP_MIN(ns, next - HP_MIN(now, next));
	} while (ns ? hp_thread_sleep(&service.thread, seen, ns) && (main_thread == PARENTED || !is_left_alone()) :
		      hp_thread_runs(&service.thread));
	/* release: pairs with hp_service_resume() */
	atomic_store_explicit(&service.lapsed, true, memory_order_release);
}

static const struct hp_thread_kind kinds[] = {
	{ .name = "hugepin", .run = serve_jobs, .known = true, .place = &service.thread, .stack_size = 262144 },
	{ .name = "hugepin",
	  .run = serve_jobs,
	  .known = true,
	  .place = &service.thread,
	  .stack_size = 262144,
	  .opens_files = true },
};

static bool started(void)
{
	const struct hp_thread_kind *kind = &kinds[atomic_load_explicit(&service.opens_files, memory_order_relaxed)];

	return hp_thread_runs(&service.thread) || (!hp_sandboxed && hp_thread_start(&service.thread, kind, NULL, -1));
}

/* ------------------------------------------------------------------ asking */

bool hp_service_list(struct hp_job *j)
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
	return hp_service_list(j);
}

bool hp_service_ask(struct hp_job *j)
{
	bool was_asked;

	/* List the job first, because the thread, and a child of fork, must find each job whose flag is set. */
	if (!job_listed(j))
		return false;
	/* seq_cst: pairs with run_due(), and with the end of the thread. */
	was_asked = atomic_exchange_explicit(&j->asked, true, memory_order_seq_cst);
	if (was_asked && hp_thread_runs(&service.thread))
		return true;
	if (!started()) {
		/* release: pairs with hp_service_resume() */
		if (hp_thread_is_bare)
			atomic_store_explicit(&service.lapsed, true, memory_order_release);
		/* relaxed: no thread is there. If an ended thread has left the job undone, it stays asked for. */
		else if (!was_asked)
			atomic_store_explicit(&j->asked, false, memory_order_relaxed);
		return false;
	}
	hp_thread_wake(&service.thread);
	return true;
}

bool hp_service_running(void)
{
	return hp_thread_runs(&service.thread);
}

/* ------------------------------------------------------------------ ending */

/* Called when the main thread ends. If it is the program's last thread, the process must end with it, as without this
 * library. So the service thread ends first, because the C library must not count it. */
static void main_ends(void *unused)
{
	(void)unused;
	atomic_store_explicit(&service.main_thread, ORPHANED, memory_order_relaxed);
	hp_service_end();
	hp_service_allow();
	/* If only this library's threads are left, do not start the service thread again. */
	if (atomic_load_explicit(&service.lapsed, memory_order_relaxed) &&
	    count_threads() <= 1 + hp_thread_count_bare())
		atomic_store_explicit(&service.lapsed, false, memory_order_relaxed);
}

void hp_service_init(void)
{
	bool is_main = hp_tid() == hp_pid();

	if (!is_main || hp_key_create(&service.key, main_ends) != 0 || pthread_setspecific(service.key, &service) != 0)
		atomic_store_explicit(&service.main_thread, UNKNOWN, memory_order_relaxed);
}

void hp_service_end(void)
{
	hp_thread_forbid(&service.thread);
}

void hp_service_allow(void)
{
	hp_thread_allow(&service.thread);
}

void hp_service_resume(void)
{
	/* acquire: pairs with the end of serve_jobs() */
	if (atomic_load_explicit(&service.lapsed, memory_order_acquire) && !hp_thread_runs(&service.thread) &&
	    !hp_thread_forbidden(&service.thread) &&
	    atomic_exchange_explicit(&service.lapsed, false, memory_order_acquire) && !started())
		/* release: pairs with the load above, of a later call, after what forbids the thread now */
		atomic_store_explicit(&service.lapsed, true, memory_order_release);
}

void hp_service_opens_files(void)
{
	if (atomic_load_explicit(&service.opens_files, memory_order_relaxed))
		return;
	hp_service_end();
	/* relaxed: hp_service_allow() publishes it to the thread that starts next. Not before the old thread has
	 * ended: a second caller that sees the flag may rely on a thread that opens files. */
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
	if (atomic_load_explicit(&service.main_thread, memory_order_relaxed) != PARENTED ||
	    !pthread_getspecific(service.key))
		atomic_store_explicit(&service.main_thread, UNKNOWN, memory_order_relaxed);
	atomic_store_explicit(&service.lapsed, false, memory_order_relaxed);
	hp_thread_child(&service.thread);
}
