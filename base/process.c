#include "base/process.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/base.h"

/* Of the process whose memory this is. On a page that the kernel clears for a child: numbers alone do not tell a parent from a
 * child with a copy, as each may be the first in a namespace of its own. */
static pid_t *number, fallback;

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

void hp_process_begin(void)
{
	if (!number) {
		pid_t *page = hp_meta_map(HP_CHUNK);

		if (page && hp_syscall(SYS_madvise, (long)page, HP_CHUNK, MADV_WIPEONFORK, 0, 0, 0) != 0) {
			hp_meta_unmap(page, HP_CHUNK);
			page = NULL;
		}
		number = page ? page : &fallback;
	}
	*number = getpid();
}
