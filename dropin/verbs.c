/*
 * Part of libhugepin-malloc.so: ibv_dontfork_range() and ibv_dofork_range(), by which libibverbs says, after
 * ibv_fork_init(), that a fork is not to copy registered memory. UCX calls ibv_fork_init() for the program.
 *
 * libibverbs calls these functions for each registration, by the dynamic linker, and gives up a registration where the
 * kernel refuses the advice. The kernel refuses MADV_DONTFORK for parts of the pool's pages. On Linux 5.12 and later a
 * fork leaves pinned pages to the parent, and libibverbs says that nothing is needed. rdma-core 44 gives the advice
 * nevertheless. The functions here leave the advice out there, unless the user asks for it by RDMAV_USE_MADVISE.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "dropin/dropin.h"

typedef int range_function(void *, size_t);

EXPORT range_function ibv_dontfork_range, ibv_dofork_range;

/* The function of the libibverbs that calls: a program may have several. */
static void *function_of(const void *caller, const char *name, range_function *ours)
{
	void *lib = NULL, *function = NULL;
	Dl_info info;

	if (dladdr(caller, &info))
		lib = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!lib) /* the program itself calls */
		lib = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (lib) {
		function = dlsym(lib, name);
		dlclose(lib);
	}
	return function && function != (void *)ours ? function : dlsym(RTLD_NEXT, name);
}

/* The answer is the kernel's, and stays. libibverbs asks the kernel anew at each call. */
static bool advice_is_unneeded(const void *caller)
{
	enum { UNKNOWN, NEEDED, UNNEEDED };
	enum { IBV_SAYS_UNNEEDED = 2 }; /* IBV_FORK_UNNEEDED: the drop-in is built without libibverbs's headers */
	static _Atomic int known; /* relaxed: each thread finds the same answer */
	int (*state)(void), is = atomic_load_explicit(&known, memory_order_relaxed);

	if (is == UNKNOWN) {
		*(void **)&state = function_of(caller, "ibv_is_fork_initialized", NULL); /* since rdma-core 35 */
		is = state && state() == IBV_SAYS_UNNEEDED && !getenv("RDMAV_USE_MADVISE") ? UNNEEDED : NEEDED;
		atomic_store_explicit(&known, is, memory_order_relaxed);
	}
	return is == UNNEEDED;
}

static int advise_range(const void *caller, const char *name, range_function *ours, void *addr, size_t len)
{
	range_function *theirs;

	if (advice_is_unneeded(caller))
		return 0;
	*(void **)&theirs = function_of(caller, name, ours);
	return theirs ? theirs(addr, len) : ENOSYS;
}

int ibv_dontfork_range(void *addr, size_t len)
{
	return advise_range(__builtin_return_address(0), "ibv_dontfork_range", ibv_dontfork_range, addr, len);
}

int ibv_dofork_range(void *addr, size_t len)
{
	return advise_range(__builtin_return_address(0), "ibv_dofork_range", ibv_dofork_range, addr, len);
}
