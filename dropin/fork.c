/*
 * Part of libhugepin-malloc.so: fork(), which may be refused, and the registration of fork's handlers.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

#include "alloc/small.h"
#include "dropin/dropin.h"

/* The handlers cannot fail a fork; this can. The callers inside the C library (forkpty, daemon) get the kernel's
 * copy-on-write instead. */
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

/* glibc reads its table of fork handlers in the child before the first of them, ours, has put the pool's memory in
 * place: a large table must not lie there. */
EXPORT int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso)
{
	static int (*next_register)(void (*)(void), void (*)(void), void (*)(void), void *);
	int err;

	hugepin_atfork_(); /* ours first: its child handler must run before this one */
	if (!next_register)
		*(void **)&next_register = dlsym(RTLD_NEXT, "__register_atfork");
	hugepin_small_only_(true);
	err = next_register(prepare, parent, child, dso);
	hugepin_small_only_(false);
	return err;
}
