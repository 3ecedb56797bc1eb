/* See decay.h. */
#include "alloc/decay.h"

#include <stdatomic.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>

#include "alloc/back.h"
#include "alloc/cache.h"
#include "alloc/copy.h"
#include "alloc/map.h"
#include "alloc/peak.h"
#include "alloc/repair.h"
#include "alloc/start.h"
#include "base/config.h"
#include "base/proc.h"
#include "base/process.h"
#include "base/service.h"
#include "base/stats.h"
#include "base/thread.h"

static bool drop_holds(void);
static struct hp_job decay = { .run = hp_heap_tick };
static struct hp_job dropping = { .run = drop_holds };

/* Do one tick. bare: this is a bare thread, which calls no hook, so memory that domains hold waits for the service
 * thread. may_repair: the thread has the time to repair, and may open files. */
static bool tick(bool bare, bool may_repair)
{
	void (*let_go)(uint32_t) = bare ? NULL : hp_heap_hooks()->let_go;
	bool more, repairs = may_repair && hp_repair_tick(), drop = false;

	if (HP_UNLIKELY(hp_peak_on))
		hp_peak_leaving();
	hp_heap_lock();
	hp_span.holes.now++;
	/* 2: buffers in an idle thread's cache were freed before the last tick. */
	more = hp_cache_steal(true, 2) || repairs;
	/* Buffers in the shared lists were freed since the last tick, so stamp them with the time of that tick. */
	hp_span.holes.now--;
	hp_shared_clear(HP_SHARD_HELD_ALL);
	hp_span.holes.now++;
	if (let_go) { /* after the lists are cleared: domains then see all free pages */
		hp_heap_unlock();
		let_go(HP_TICKS + 1);
		hp_heap_lock();
	}
	HP_STAT_ADD(decayed_bytes, hp_give_back(1, hp_span.end[HP_PART_HEAP], HP_TICKS + 1, HP_WATERMARK, true));
	HP_STAT_ADD(decayed_bytes, hp_give_back(hp_span.small, hp_span.end[HP_PART_SMALL], HP_TICKS + 1, 0, true));
	more |= hp_copy_age(HP_TICKS + 1);
	more = more || hp_more_to_give(false);
	if (hp_heap_has_hooks() && hp_more_to_give(true)) {
		drop = bare;
		more |= !bare || hp_service_running();
	}
	if (!more)
		hp_ticking.by = HP_TICKS_NONE;
	hp_heap_unlock();
	if (drop)
		hp_service_ask(&dropping);
	return more;
}

bool hp_heap_tick(void)
{
	return tick(false, false);
}

static bool drop_holds(void)
{
	if (hp_heap_hooks()->let_go)
		hp_heap_hooks()->let_go(HP_TICKS + 1);
	return false;
}

static void tick_alone(void *unfiltered)
{
	hp_cache_self = &hp_cache_none;
	while (hp_thread_sleep(&hp_ticker, hp_thread_alarm(&hp_ticker), hp_ticking.delay_ns) && !hp_map_hooked())
		if (!tick(true, HP_THREAD_BARE && unfiltered))
			return;
	hp_heap_lock();
	hp_ticking.by = HP_TICKS_NONE; /* the next slow path makes somebody tick */
	hp_heap_unlock();
}

/* Whether a bare thread may tick. Hooks on mapping calls, watchers and backends may call anything, so they need a
 * thread that the C library knows. */
static bool may_tick_alone(void)
{
	return !hp_thread_forbidden(&hp_ticker) && !hp_map_hooked();
}

/* openat and the calls before it look at the memory: for repair, and with HUGEPIN_STATS. */
static const struct hp_thread_kind tick_kind = {
	.name = "hugepin decay",
	.run = tick_alone,
	.calls = { SYS_madvise, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_mbind, SYS_membarrier,
		   SYS_clock_gettime, SYS_sched_yield, SYS_mincore, SYS_ioctl, SYS_read, SYS_close, SYS_openat },
	.calls_count = 14,
};

/* Whether free() may start the service thread if a bare thread must not tick. When a thread has exited, the C library
 * frees its thread-local storage under a lock that pthread_create() takes, so starting a thread there would deadlock.
 * If there is only one thread, none has just exited. */
static bool free_may_start(void)
{
	static unsigned calls; /* counting threads costs some microseconds */

	return calls++ % 64 == 0 && (__libc_single_threaded || hp_thread_count() == 1);
}

bool hp_tick_is_wanted(void)
{
	size_t populated;

	if (!hp_heap_constructed || !hp_config.decay_ms)
		return false;
	if (hp_ticking.by == HP_TICKS_CALLS)
		return hp_clock_ns() >= hp_ticking.next_ns;
	/* the service thread may have ended meanwhile */
	if (hp_ticking.by != HP_TICKS_NONE && !(hp_ticking.by == HP_TICKS_SERVICE && !hp_service_running()))
		return false;
	populated = HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes) - HP_STAT(reserved_bytes);
	return hp_copy_kept() || populated > (2 * HP_WATERMARK) << HP_PAGE_SHIFT;
}

bool hp_want_tick(bool allocating)
{
	hp_heap_know_process();
	if (!hp_tick_is_wanted())
		return false;
	if (hp_ticking.by == HP_TICKS_CALLS) {
		hp_ticking.next_ns = hp_clock_ns() + hp_ticking.delay_ns;
		return true;
	}
	if (!allocating && !hp_service_running() && !may_tick_alone() && !free_may_start())
		return false;
	if (!decay.delay_ns) /* nobody has asked for the job yet */
		decay.delay_ns = hp_ticking.delay_ns;
	hp_ticking.by = HP_TICKS_STARTING;
	return true;
}

void hp_ask_tick(bool may_start)
{
	bool alone = may_tick_alone(), found, due;

	if (hp_sandboxed) {
		found = false;
	} else if (alone) {
		hp_thread_end(&hp_ticker); /* if one is about to end, wait for its end first */
		/* A filter that the program installs later does not apply to the new thread. */
		found = hp_thread_start(&hp_ticker, &tick_kind, (void *)(uintptr_t)!hp_is_filtered(), -1);
	} else {
		found = (may_start || hp_service_running()) && hp_service_ask(&decay);
	}
	hp_heap_lock();
	due = !found && hp_ticking.by == HP_TICKS_CALLS && may_start;
	if (!found && !due)
		hp_ticking.next_ns = hp_clock_ns() + hp_ticking.delay_ns;
	/* A child of vfork shares the heap and the thread's cache with its parent, and cannot start a thread that gives
	 * back the parent's memory. So make the next call, which may be the parent's, ask again. */
	if (!found && !hp_sandboxed && hp_process() == HP_PROCESS_GUEST) {
		hp_ticking.by = HP_TICKS_NONE;
		hp_cache_shut_own();
	} else if (hp_ticking.by != HP_TICKS_NONE) { /* the new thread may have ended already */
		hp_ticking.by = !found ? HP_TICKS_CALLS : alone ? HP_TICKS_ALONE : HP_TICKS_SERVICE;
	}
	hp_heap_unlock();
	if (due)
		tick(true, false); /* as a bare thread: the caller may hold locks of a backend's, so no hook may run */
}

void hp_unlock_and_tick(bool allocating, bool may_start)
{
	bool must_ask = (may_start || hp_service_running() || may_tick_alone()) && hp_want_tick(allocating);

	hp_heap_unlock();
	if (must_ask)
		hp_ask_tick(may_start);
}
