#include "base/ticker.h"

#include "base/base.h"
#include "base/lock.h"
#include "base/stats.h"

static struct {
	struct hp_lock lock;
	struct hp_thread thread; /* under the lock, but for its tid */
	_Atomic uint32_t end; /* not 0: the thread is to end; it sleeps on this */
	_Atomic uint32_t forbidden; /* under the lock */
} ticker = { .lock = HP_LOCK_INIT(HP_RANK_TICKER) };

/* The lock is held. The thread may wait for the heap's lock first. */
static void end(void)
{
	ticker.end = 1;
	hp_futex_wake(&ticker.end);
	hp_thread_join(&ticker.thread);
	ticker.end = 0;
}

bool hp_ticker_start(const struct hp_thread_kind *kind)
{
	bool ok = false;

	if (hp_sandboxed || !hp_thread_process_same()) /* a child of vfork: the thread, and what is said of it here, are its parent's */
		return false;
	hp_lock(&ticker.lock);
	if (!ticker.forbidden) {
		end();
		ok = hp_thread_start(&ticker.thread, kind, NULL, -1);
	}
	hp_unlock(&ticker.lock);
	return ok;
}

bool hp_ticker_sleep(uint64_t ns)
{
	hp_futex_wait(&ticker.end, 0, ns);
	HP_STAT_COUNT(service_wakeups, 1);
	return !ticker.end;
}

void hp_ticker_forbid(void)
{
	hp_lock(&ticker.lock);
	ticker.forbidden++;
	if (hp_thread_process_same())
		end();
	hp_unlock(&ticker.lock);
}

void hp_ticker_allow(void)
{
	hp_lock(&ticker.lock);
	ticker.forbidden--;
	hp_unlock(&ticker.lock);
}

bool hp_ticker_forbidden(void)
{
	return ticker.forbidden;
}

uint32_t hp_ticker_tid(void)
{
	return ticker.thread.tid;
}

void hp_ticker_child(bool forbidden)
{
	hp_thread_child(&ticker.thread);
	hp_lock_reset(&ticker.lock);
	ticker.end = 0;
	ticker.forbidden = forbidden;
}
