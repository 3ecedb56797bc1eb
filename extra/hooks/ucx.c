/*
 * UCX: its memory hooks (libucm) patch the C library's mapping calls. If the patches are missing, UCX's caches are not
 * told of memory that the heap unmaps. So this file announces memory that leaves the heap, by the function that UCX has
 * for callers with their own hooks.
 *
 * Each ucs_rcache first calls ucm_set_event_handler() to get such events. This file interposes that function, and
 * attaches there. UCX may have been loaded into a scope of its own, by a component of Open MPI. So the library is
 * looked up by its name.
 *
 * Locks: hugepin's lock of watchers is held while UCX is told. This is as safe as a munmap inside malloc, which UCX
 * supports: its handlers neither allocate nor wait for a thread that does (ucm.h; ucs_rcache only tries its lock, or
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
	/* Look up the function before taking our lock: a constructor may call this under the loader's lock. */
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
	/* Refuse if attaching failed: without our events a cache would keep memory that the heap has unmapped. */
	if (!next || hugepin_ucx_attach())
		return UCS_ERR_UNSUPPORTED;
	return next(events, priority, callback, arg);
}
