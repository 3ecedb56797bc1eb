/*
 * Part of libhugepin-malloc.so: ibv_fork_init(), which libraries such as UCX call for the program.
 *
 * After ibv_fork_init(), libibverbs calls madvise(MADV_DONTFORK) for all registered memory, in units of 4 KiB. The
 * kernel refuses this for parts of the pool's pages, and then the registration fails. On Linux 5.12 and later the call
 * is not needed, since a fork leaves pinned pages to the parent. libibverbs reports this, but rdma-core 44 calls
 * madvise nevertheless. So this function does nothing if libibverbs reports that nothing is needed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

#include "dropin/dropin.h"

/* IBV_FORK_UNNEEDED; defined here, so that building the drop-in needs no headers of libibverbs */
enum { FORK_UNNEEDED = 2 };

EXPORT int ibv_fork_init(void);
EXPORT int ibv_fork_init(void)
{
	/* Most programs load libibverbs with a plugin, where RTLD_NEXT does not look. */
	void *verbs = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
	int (*state)(void), (*init)(void);
	int err = ENOSYS;

	if (!verbs)
		return err;
	*(void **)&state = dlsym(verbs, "ibv_is_fork_initialized"); /* since rdma-core 35 */
	*(void **)&init = dlsym(verbs, "ibv_fork_init");
	if (state && state() == FORK_UNNEEDED)
		err = 0;
	else if (init)
		err = init();
	dlclose(verbs);
	return err;
}
