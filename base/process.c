#include "base/process.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/base.h"

/* Of the process whose memory this is. On a page that the kernel clears for a child: numbers alone do not tell a parent
 * from a child with a copy, as each may be the first in a namespace of its own. Behind it, whether a thread of a child
 * is at it. */
static _Atomic pid_t *number, fallback[2];

enum hp_process hp_process(void)
{
	if (!number)
		return HP_PROCESS_GUEST;
	return !*number ? HP_PROCESS_COPY : *number == getpid() ? HP_PROCESS_OWN : HP_PROCESS_GUEST;
}

bool hp_process_copied(void)
{
	return number && !*number;
}

bool hp_process_claim(void)
{
	pid_t self = (pid_t)hp_syscall(SYS_gettid, 0, 0, 0, 0, 0, 0), nobody = 0;

	if (atomic_compare_exchange_strong(&number[1], &nobody, self))
		return true;
	while (!*number && nobody != self) /* but for a signal handler that interrupted it */
		hp_syscall(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	return false;
}

void hp_process_begin(void)
{
	if (!number) {
		_Atomic pid_t *page = hp_meta_map(HP_CHUNK);

		if (page && hp_syscall(SYS_madvise, (long)page, HP_CHUNK, MADV_WIPEONFORK, 0, 0, 0) != 0) {
			hp_meta_unmap(page, HP_CHUNK);
			page = NULL;
		}
		number = page ? page : fallback;
	}
	*number = getpid();
}
