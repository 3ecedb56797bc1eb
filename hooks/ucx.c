/*
 * UCX: its memory hooks (libucm) are patches of the C library's mapping calls. Where they are not, or no longer, in
 * place, its caches do not hear of what the heap unmaps. So what leaves the heap is announced to them, by the function
 * that UCX has for callers with hooks of their own.
 *
 * Whoever wants such events, each ucs_rcache first of all, asks for them by ucm_set_event_handler(): ours stands
 * before it, and attaches. UCX may have been loaded by then into a scope of its own (a component of Open MPI), so it
 * is looked for by name.
 *
 * Locks: hugepin's own of watchers is held while UCX is told. That is as safe as a munmap inside malloc, which UCX is
 * made for: handlers neither allocate nor wait for who does (ucm.h; ucs_rcache only tries its lock, or queues).
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
	void *ucm = dlopen("libucm.so.0", RTLD_LAZY | RTLD_NOLOAD); /* kept: that it stays is what we count on */

	return ucm ? dlsym(ucm, name) : NULL;
}

static void leaving(void *vm_munmap, const struct hugepin_extent *e)
{
	((__typeof__(&ucm_vm_munmap))vm_munmap)(e->addr, e->len);
}

EXPORT int hugepin_ucx_attach(void)
{
	void *vm_munmap = ucm_function("ucm_vm_munmap"); /* without the lock: a constructor may call this, under the loader's */
	int r = 0, id;

	pthread_mutex_lock(&lock);
	if (!attached) {
		r = vm_munmap ? hugepin_watch(leaving, vm_munmap, &id) : -ENOENT;
		attached = !r;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

EXPORT ucs_status_t ucm_set_event_handler(int events, int priority, ucm_event_callback_t callback, void *arg)
{
	__typeof__(&ucm_set_event_handler) next;

	*(void **)&next = ucm_function("ucm_set_event_handler");
	/* Without events from here, a cache would hold what the heap has unmapped: then there must be none. */
	if (!next || hugepin_ucx_attach())
		return UCS_ERR_UNSUPPORTED;
	return next(events, priority, callback, arg);
}
