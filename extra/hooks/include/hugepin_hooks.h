/*
 * Tells the registration caches of UCX and libfabric of memory that leaves the heap. The guide is hugepin_hooks(3).
 */
#ifndef HUGEPIN_HOOKS_H
#define HUGEPIN_HOOKS_H

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Both functions are for programs that load libhugepin-hooks.so too late for it to stand before the other library, or
 * that want to know the result. If the library is preloaded or linked, it calls them itself: when UCX makes its first
 * cache, and when libfabric opens its first fabric. The process stays attached for good: a second call does nothing and
 * returns 0. Any thread. May block and allocate. Not from unmap hooks. */

/* Report to UCX's caches all memory that leaves the heap from now on, as if munmap() had unmapped it. UCX itself
 * watches other memory. -ENOENT: libucm.so.0 is not loaded. Or the error of hugepin_watch. */
int hugepin_ucx_attach(void);

/* Become libfabric's memory monitor (fi_mr(3)), for the heap and for other memory, in place of its patches of the C
 * library. Call this before the first domain is opened. -ENOENT: libfabric.so.1 is not loaded. -ENOSYS: libfabric has
 * no way to import a monitor. -EBUSY: a cache is in use, or another monitor was imported. -EPERM: FI_MR_CACHE_MONITOR
 * asks for another monitor, or for none. */
int hugepin_fabric_attach(void);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
