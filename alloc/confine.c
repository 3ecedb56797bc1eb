/*
 * libhugepin-malloc.so calls these functions when a program restricts itself: by a filter of system calls, by changing
 * the rights of all its threads, or by limiting its addresses.
 */
#include "alloc/copy.h"
#include "alloc/decay.h"
#include "alloc/pages.h"
#include "alloc/small.h"
#include "alloc/start.h"
#include "base/process.h"
#include "base/service.h"
#include "base/thread.h"

bool hugepin_confining_(bool all_threads)
{
	bool was = hp_sandboxed;

	hp_heap_start(); /* start the heap now, because the filter may forbid its system calls */
	hp_sandboxed = true;
	if (all_threads)
		hugepin_threads_end_();
	return was;
}

void hugepin_confined_(bool all_threads, bool is)
{
	hp_sandboxed = is;
	if (all_threads)
		hugepin_threads_allow_();
}

bool hugepin_own_process_(void)
{
	hp_heap_know_process();
	return hp_process() == HP_PROCESS_OWN;
}

void hugepin_threads_end_(void)
{
	hp_heap_know_process();
	hp_thread_forbid(&hp_ticker);
	hp_service_end();
}

void hugepin_threads_allow_(void)
{
	hp_service_allow();
	hp_service_resume();
	hp_thread_allow(&hp_ticker);
	if (hp_heap_ready() && !hp_lock_mine(&hp_heap_lock)) {
		hp_lock(&hp_heap_lock);
		hp_unlock_and_tick(true, true);
	}
}

void hugepin_span_limit_(size_t limit)
{
	if (!hp_heap_ready())
		return; /* hp_span_init() will see the limit */
	hp_lock(&hp_heap_lock);
	hp_copy_drop();
	hp_span_shrink(limit);
	hp_unlock(&hp_heap_lock);
}
