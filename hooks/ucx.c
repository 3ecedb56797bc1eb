/*
 * UCX: its memory hooks (libucm) are patches of the C library's mapping calls. Where the patches are not in place, or
 * no longer, UCX's caches do not hear of memory that the heap unmaps. So memory that leaves the heap is announced to
 * them, by the function that UCX has for callers with hooks of their own.
 *
 * ucm_set_event_handler() asks for such events; each ucs_rcache calls it first of all. Ours stands in front of it, and
 * attaches. By then UCX may have been loaded into a scope of its own (a component of Open MPI), so it is looked for by
 * name.
 *
 * Locks: hugepin's lock of watchers is held while UCX is told. That is as safe as a munmap inside malloc, which UCX is
 * made for: handlers do not allocate, nor wait for a thread that does (ucm.h; ucs_rcache only tries its lock, or
 * queues).
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <ucm/api/ucm.h>

#include "hugepin.h"
#include "hugepin_hooks.h"

#define EXPORT __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool attached;

static void *ucm_function(const char *name)
{
	void *ucm = dlopen("libucm.so.0", RTLD_LAZY | RTLD_NOLOAD); /* never closed, so that it stays */

	return ucm ? dlsym(ucm, name) : NULL;
}

static void leaving(void *vm_munmap, const struct hugepin_extent *e)
{
	((__typeof__(&ucm_vm_munmap))vm_munmap)(e->addr, e->len);
}

EXPORT int hugepin_ucx_attach(void)
{
	/* The lock is not held: a constructor may call this under the loader's lock. */
	void *vm_munmap = ucm_function("ucm_vm_munmap");
	int err = 0, id;

	pthread_mutex_lock(&lock);
	if (!attached) {
		err = vm_munmap ? hugepin_watch(leaving, vm_munmap, &id) : -ENOENT;
		attached = !err;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

EXPORT ucs_status_t ucm_set_event_handler(int events, int priority, ucm_event_callback_t callback, void *arg)
{
	__typeof__(&ucm_set_event_handler) next;

	*(void **)&next = ucm_function("ucm_set_event_handler");
	/* Without our events a cache would keep memory that the heap has unmapped. So there must be no cache then. */
	if (!next || hugepin_ucx_attach())
		return UCS_ERR_UNSUPPORTED;
	return next(events, priority, callback, arg);
}
