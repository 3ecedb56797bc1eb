/*
 * Part of libhugepin-malloc.so: fork(), which may be refused, and the registration of fork's handlers.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "alloc/small.h"
#include "dropin/dropin.h"
#include "dropin/jemalloc.h"

/* This function can refuse a fork; fork handlers cannot. Calls from inside the C library (forkpty, daemon) do not come
 * here, so they are not refused and get the kernel's copy-on-write. */
EXPORT pid_t fork(void)
{
	static pid_t (*next_fork)(void);

	if (!next_fork)
		*(void **)&next_fork = dlsym(RTLD_NEXT, "fork");
	if (hugepin_fork_refused_()) {
		errno = ENOMEM;
		return -1;
	}
	return next_fork();
}

/* In the child, glibc reads its table of fork handlers before it calls the first of them. That first handler, ours,
 * puts the pool's memory in place. A large table would be in the pool's memory, so the small tier serves it. */
EXPORT int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso)
{
	static int (*next_register)(void (*)(void), void (*)(void), void (*)(void), void *);
	int err;

	if (hp_next_takes_atfork(prepare, parent, child))
		return 0;
	hugepin_atfork_(); /* register our handlers first: our child handler must run before the caller's */
	if (!next_register)
		*(void **)&next_register = dlsym(RTLD_NEXT, "__register_atfork");
	hugepin_small_only_(true);
	err = next_register(prepare, parent, child, dso);
	hugepin_small_only_(false);
	return err;
}

/* The C library has this name for old programs and for weak references, as tcmalloc's. It would register the handlers
 * without the function above. */
EXPORT int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
	return __register_atfork(prepare, parent, child, NULL);
}
