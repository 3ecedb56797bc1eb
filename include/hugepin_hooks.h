/*
 * The registration caches of UCX and libfabric, told what the heap gives back. The guide is hugepin_hooks(3).
 */
#ifndef HUGEPIN_HOOKS_H
#define HUGEPIN_HOOKS_H

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Both are for programs that load libhugepin-hooks.so too late for it to stand before the other library, or want to
 * know: preloaded, or linked, it calls them itself when UCX makes its first cache and when libfabric opens its first
 * fabric. Attached once, the process stays so: a second call does nothing and returns 0. Any thread; may block and
 * allocate; not from unmap hooks. */

/* From now on, UCX's caches hear what leaves the heap, as if it were unmapped by munmap(). Other memory stays UCX's
 * own matter. -ENOENT: libucm.so.0 is not loaded; or as hugepin_watch. */
int hugepin_ucx_attach(void);

/* Be libfabric's memory monitor (fi_mr(3)), for the heap and for other memory, in place of its patches of the C
 * library. Before the first domain is opened. -ENOENT: libfabric.so.1 is not loaded; -ENOSYS: it has no way to
 * import a monitor; -EBUSY: a cache is in use, or another monitor was imported; -EPERM: FI_MR_CACHE_MONITOR asks for
 * another one, or none. */
int hugepin_fabric_attach(void);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
