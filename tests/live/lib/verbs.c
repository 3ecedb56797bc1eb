/*
 * A stand-in for libibverbs, without a device: the calls about forks that libibverbs makes at each registration. For
 * fork_advice.c. If the environment has SAYS_UNNEEDED, ibv_is_fork_initialized() returns 2 (IBV_FORK_UNNEEDED), as
 * rdma-core 44 does on Linux 5.12 and later.
 */
#include <stddef.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
/* The compiler must call these by the dynamic linker, as calls to other libraries are. */
#define INTERPOSABLE __attribute__((visibility("default"), weak))

EXPORT unsigned advised;

INTERPOSABLE int ibv_is_fork_initialized(void);
INTERPOSABLE int ibv_dontfork_range(void *addr, size_t len);
INTERPOSABLE int ibv_dofork_range(void *addr, size_t len);
EXPORT int verbs_register(void *addr, size_t len);
EXPORT int verbs_deregister(void *addr, size_t len);

int ibv_is_fork_initialized(void)
{
	return getenv("SAYS_UNNEEDED") ? 2 : 1;
}

int ibv_dontfork_range(void *addr, size_t len)
{
	(void)addr;
	(void)len;
	advised++;
	return 7;
}

int ibv_dofork_range(void *addr, size_t len)
{
	return ibv_dontfork_range(addr, len) + 1;
}

/* volatile: the call is no jump, so that its return address lies in this library, as in libibverbs. */
int verbs_register(void *addr, size_t len)
{
	volatile int err = ibv_dontfork_range(addr, len);

	return err;
}

int verbs_deregister(void *addr, size_t len)
{
	volatile int err = ibv_dofork_range(addr, len);

	return err;
}
