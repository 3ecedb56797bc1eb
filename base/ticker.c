/* See ticker.h. */
#include "base/ticker.h"

#include <signal.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/process.h"
#include "base/stats.h"

static struct {
	struct hp_lock lock;
	struct hp_thread thread; /* guarded by the lock, except its tid */
	/* relaxed: the lock of the ticker; hp_thread_join() orders the thread's end */
	_Atomic uint32_t end; /* not 0: the thread must end; it sleeps on this word */
	/* relaxed: where the thread has to be ended, the lock of the ticker orders */
	_Atomic uint32_t forbidden; /* raised under the lock, except by signal handlers */
} ticker = { .lock = HP_LOCK_INIT(HP_RANK_TICKER) };

/* Take the lock and block signals: a handler may come here, for example by calling setuid(2). */
static void lock_ticker(sigset_t *ret_old)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, ret_old);
	hp_lock(&ticker.lock);
}

static void unlock_ticker(const sigset_t *old)
{
	hp_unlock(&ticker.lock);
	pthread_sigmask(SIG_SETMASK, old, NULL);
}

/* acquire: hp_ticker_start() sees what was written before the permission; pairs with hp_ticker_allow(). */
static uint32_t times_forbidden(void)
{
	return atomic_load_explicit(&ticker.forbidden, memory_order_acquire);
}

/* End the thread. Called with the lock. May take a while, since the thread may be waiting for the heap's lock. */
static void end_ticker(void)
{
	atomic_store_explicit(&ticker.end, 1, memory_order_relaxed);
	hp_futex_wake(&ticker.end);
	hp_thread_join(&ticker.thread);
	atomic_store_explicit(&ticker.end, 0, memory_order_relaxed);
}

bool hp_ticker_start(const struct hp_thread_kind *kind)
{
	sigset_t old;
	bool ok = false;

	/* In a child of vfork, the thread and this module's variables belong to the parent. */
	if (hp_sandboxed || hp_process() != HP_PROCESS_OWN)
		return false;
	lock_ticker(&old);
	if (!times_forbidden()) {
		end_ticker();
		ok = hp_thread_start(&ticker.thread, kind, NULL, -1);
	}
	unlock_ticker(&old);
	return ok;
}

bool hp_ticker_sleep(uint64_t ns)
{
	hp_futex_wait(&ticker.end, 0, ns);
	HP_STAT_COUNT(service_wakeups, 1);
	return !atomic_load_explicit(&ticker.end, memory_order_relaxed);
}

void hp_ticker_forbid(void)
{
	/* This is a signal handler that interrupted the thread while it held the heap's lock, or was about to take it.
	 * Waiting for the ticker's end could deadlock, since the ticker may wait for that lock. Letting it run is
	 * harmless: it has no rights. */
	unsigned above = hp_locks_held & ~((1u << HP_RANK_TICKER) - 1);
	sigset_t old;

	if (above) {
		atomic_fetch_add_explicit(&ticker.forbidden, 1, memory_order_relaxed);
		return;
	}
	lock_ticker(&old);
	atomic_fetch_add_explicit(&ticker.forbidden, 1, memory_order_relaxed);
	if (hp_process() == HP_PROCESS_OWN)
		end_ticker();
	unlock_ticker(&old);
}

void hp_ticker_allow(void)
{
	atomic_fetch_sub_explicit(&ticker.forbidden, 1, memory_order_release); /* pairs with times_forbidden() */
}

bool hp_ticker_forbidden(void)
{
	return times_forbidden();
}

uint32_t hp_ticker_tid(void)
{
	return hp_thread_tid(&ticker.thread);
}

void hp_ticker_child(bool forbidden)
{
	hp_thread_child(&ticker.thread);
	hp_lock_reset(&ticker.lock);
	atomic_store_explicit(&ticker.end, 0, memory_order_relaxed);
	atomic_store_explicit(&ticker.forbidden, forbidden, memory_order_relaxed);
}
