/* See process.h. */
#include "base/process.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/base.h"
#include "base/sys.h"

/* number[0] is the number of the process that owns this memory. The kernel clears the page in a child, because the
 * number alone does not distinguish a parent from a child with a copy: each may be process 1 of its own namespace.
 * number[1] is the thread of such a child that resets the process's state; 0: none. */
static _Atomic pid_t *number, fallback[2];

/* The owner's number. 0: the kernel has cleared the page. acquire: a reader sees the state that was begun anew; pairs
 * with hp_process_begin(). */
static pid_t owner_number(void)
{
	return atomic_load_explicit(number, memory_order_acquire);
}

enum hp_process hp_process(void)
{
	pid_t owner;

	if (!number)
		return HP_PROCESS_GUEST;
	owner = owner_number();
	return !owner ? HP_PROCESS_COPY : owner == hp_pid() ? HP_PROCESS_OWN : HP_PROCESS_GUEST;
}

bool hp_process_copied(void)
{
	return number && !owner_number();
}

bool hp_process_claim(void)
{
	pid_t self = hp_tid(), nobody = 0;

	/* relaxed: the exchange only decides which thread comes first. */
	if (atomic_compare_exchange_strong_explicit(&number[1], &nobody, self, memory_order_relaxed,
						    memory_order_relaxed))
		return true;
	/* nobody == self: this is a signal handler that interrupted the claiming thread */
	while (!owner_number() && nobody != self)
		hp_sys(SYS_sched_yield);
	return false;
}

void hp_process_begin(void)
{
	if (!number)
		number = hp_meta_map_own(sizeof *number);
	if (!number)
		number = fallback;
	/* release: pairs with owner_number() */
	atomic_store_explicit(number, hp_pid(), memory_order_release);
}
