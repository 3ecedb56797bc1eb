/*
 * Part of libhugepin-malloc.so: ibv_fork_init(), which libraries such as UCX call for the program.
 *
 * After it libibverbs says MADV_DONTFORK of all that is registered, by pages of 4 KiB, and fails to register what the
 * kernel refuses this for: parts of the pool's pages. On Linux 5.12 and later a fork leaves pinned pages to the parent,
 * and libibverbs says that nothing is needed. rdma-core 44 does it nevertheless.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

#include "dropin/dropin.h"

enum { FORK_UNNEEDED = 2 }; /* IBV_FORK_UNNEEDED; the headers are not needed for the drop-in */

EXPORT int ibv_fork_init(void);
EXPORT int ibv_fork_init(void)
{
	/* Most programs have it as a part of a plugin, where RTLD_NEXT does not look. */
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
