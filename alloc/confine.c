/*
 * libhugepin-malloc.so calls these functions when a program restricts itself: by a filter of system calls, by changing
 * the rights of all its threads, or by limiting its addresses.
 */
#include <sys/prctl.h>
#include <linux/capability.h>

#include "alloc/copy.h"
#include "alloc/decay.h"
#include "alloc/pages.h"
#include "alloc/small.h"
#include "alloc/start.h"
#include "base/process.h"
#include "base/service.h"
#include "base/sys.h"
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
	if (hp_heap_ready() && !hp_heap_mine()) {
		hp_heap_lock();
		hp_unlock_and_tick(true, true);
	}
}

/* Whether this thread can become each user and group that it ever was. Asks the kernel for nothing if there is no
 * thread that ticks, or if a filter of system calls may end the process for the question. */
static bool may_change_back(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { { 0 } };
	const uint32_t needed = 1U << CAP_SETUID | 1U << CAP_SETGID;

	/* With PR_SET_KEEPCAPS or its like, the thread may give up the capabilities later, without a call that is
	 * seen. */
	return hp_thread_runs(&hp_ticker) && !hp_is_filtered() && hp_sys(SYS_capget, &head, caps) == 0 &&
	       (caps[0].permitted & needed) == needed && hp_sys(SYS_prctl, PR_GET_KEEPCAPS) == 0 &&
	       hp_sys(SYS_prctl, PR_GET_SECUREBITS) == 0;
}

void hugepin_user_changes_(void)
{
	hp_heap_know_process();
	if (may_change_back())
		hp_thread_forbid_new(&hp_ticker);
	else
		hp_thread_forbid(&hp_ticker);
	hp_service_end();
}

/* A thread that was started before the change, or by another thread during the change, has the old rights. It ends here
 * unless these can be had again. */
void hugepin_user_changed_(void)
{
	if (!may_change_back()) {
		hp_thread_forbid(&hp_ticker);
		hp_thread_allow(&hp_ticker);
	}
	hugepin_threads_allow_();
}

void hugepin_span_limit_(size_t limit)
{
	if (!hp_heap_ready())
		return; /* hp_span_init() will see the limit */
	hp_heap_lock();
	hp_copy_drop();
	hp_span_shrink(limit);
	hp_heap_unlock();
}
