/*
 * Part of libhugepin-malloc.so: dlopen() without RTLD_DEEPBIND. A module that is opened with this flag binds malloc() to
 * the C library, past every preloaded allocator, while the program that opened it uses this one. PHP's extensions and
 * Samba's modules are opened so, and die as soon as one side frees a buffer of the other.
 */
#include <dlfcn.h>
#include <stdatomic.h>

#include "alloc/small.h"
#include "dropin/dropin.h"

/* The last call below has to be a jump, because the loader searches the RUNPATH of whom the call returns to. */
#ifdef __clang__
#define JUMP __attribute__((musttail))
#define WITH_JUMPS
#else
#define JUMP
#define WITH_JUMPS                                                                                                     \
	__attribute__((optimize("O2", "optimize-sibling-calls"), no_instrument_function, no_profile_instrument_function))
#endif

static void *(*_Atomic next_dlopen)(const char *, int);

EXPORT WITH_JUMPS void *dlopen(const char *file, int mode)
{
	/* relaxed, here and below: each thread finds the same function, which is older than this library */
	void *(*next)(const char *, int) = atomic_load_explicit(&next_dlopen, memory_order_relaxed);

	if (!next) {
		*(void **)&next = dlsym(RTLD_NEXT, "dlopen");
		atomic_store_explicit(&next_dlopen, next, memory_order_relaxed); /* relaxed: see above */
	}
	if (mode & RTLD_DEEPBIND && !hugepin_keeps_deepbind_())
		mode &= ~RTLD_DEEPBIND;
	JUMP return next(file, mode);
}
