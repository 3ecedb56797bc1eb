/*
 * See together.h.
 *
 * The threads are of the C library, because they call backends. They have the rights, processors and scheduling of the
 * calling thread. Signals are blocked on them, so that handlers of the program run on its own threads. The calling
 * thread waits for them and must not be cancelled meanwhile, because its locks would stay taken.
 */
#include "reg/together.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/process.h"
#include "base/sys.h"

struct work {
	void (*each)(void *arg, unsigned i);
	void *arg;
	unsigned n;
	_Atomic unsigned next; /* relaxed: the exchange alone decides; pthread_join() orders the items */
	unsigned locks; /* of the calling thread */
};

static void *do_items(void *work)
{
	struct work *w = work;
	unsigned i;

	while ((i = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed)) < w->n)
		w->each(w->arg, i);
	return NULL;
}

static void *run_thread(void *work)
{
	hp_locks_held = ((struct work *)work)->locks;
	do_items(work);
	hp_locks_held = 0;
	return NULL;
}

unsigned hp_together_threads(void)
{
	unsigned long cpus[128]; /* of 8192 processors */
	unsigned n = 0;
	long bytes;

	if (hp_sandboxed || hp_process() != HP_PROCESS_OWN)
		return 1;
	bytes = hp_sys(SYS_sched_getaffinity, 0, sizeof cpus, cpus);
	for (long i = 0; i < bytes / (long)sizeof *cpus; i++)
		for (; cpus[i]; cpus[i] &= cpus[i] - 1) /* takes one bit out */
			n++;
	return HP_MAX(1u, HP_MIN(n, (unsigned)HP_TOGETHER_MAX));
}

void hp_together(void (*each)(void *arg, unsigned i), void *arg, unsigned n, unsigned threads)
{
	struct work w = { .each = each, .arg = arg, .n = n, .locks = hp_locks_held };
	pthread_t other[HP_TOGETHER_MAX - 1];
	unsigned started = 0;
	int saved_errno = errno, cancel;
	sigset_t all, old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (started + 1 < threads && pthread_create(&other[started], NULL, run_thread, &w) == 0)
		started++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	do_items(&w);
	while (started)
		pthread_join(other[--started], NULL);
	pthread_setcancelstate(cancel, NULL);
	errno = saved_errno;
}
