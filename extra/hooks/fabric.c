/*
 * libfabric: a memory monitor, imported into the cache that libfabric's providers share (fi_ext.h, fid_mem_monitor).
 * The monitor replaces libfabric's own for all memory, so it must watch other memory than the heap's, too. The pin
 * cache watches both. A range that libfabric registers is pinned for a moment in a domain, whose backend does nothing.
 * The range stays registered in this domain while its memory is known to be the same. When memory goes away, the domain
 * deregisters it; memory of the heap before it leaves.
 *
 * libfabric calls the monitor with its own lock held (mm_lock). It takes the same lock when it is notified of memory
 * that went away, and may allocate under it. So libfabric is never notified from within an allocation, nor with a lock
 * of ours held. Instead, a deregistered range is queued, and a thread notifies libfabric. libfabric asks is_valid() at
 * each hit. Until libfabric was notified, is_valid() refuses ranges that overlap with the queue.
 *
 * A cache entry still means the same memory if two conditions hold, which is_valid() checks in this order. The range is
 * registered in our domain now. And the queue has no earlier registration of any part of it. Suppose the memory had
 * gone away and another cache of libfabric had registered new memory there. Then the old registration would have been
 * queued before the new one was made. And when a registration leaves the queue, libfabric has dropped the entry.
 *
 * In a child of fork the domain belongs to the parent. There no entry is valid, and no range is cached.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_ext.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "hugepin.h"
#include "hugepin_hooks.h"

#define EXPORT __attribute__((visibility("default")))

enum { QUEUE_MAX = 64 };

struct range {
	uintptr_t start, end; /* start == end: no range */
};

static struct {
	pthread_mutex_t lock; /* a leaf lock: no other function is called with it held */
	struct range range[QUEUE_MAX], telling;
	unsigned count;
	sem_t filled; /* posted for each range; all zero bits are a valid empty semaphore */
} queue = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* relaxed: libfabric's lock of monitors; other threads read it by acquire */
static hugepin_domain *_Atomic domain; /* NULL: libfabric has not started the monitor, or the start failed */

/* ------------------------------------------------------------------ what went away */

static void queue_push(uintptr_t start, uintptr_t end)
{
	pthread_mutex_lock(&queue.lock);
	/* full: merge all into one range, so that too much is dropped, never too little */
	if (queue.count == QUEUE_MAX) {
		for (unsigned i = 0; i < queue.count; i++) {
			start = queue.range[i].start < start ? queue.range[i].start : start;
			end = queue.range[i].end > end ? queue.range[i].end : end;
		}
		queue.count = 0;
	}
	queue.range[queue.count++] = (struct range){ start, end };
	pthread_mutex_unlock(&queue.lock);
	sem_post(&queue.filled);
}

static bool overlap(struct range a, struct range b)
{
	return a.start < b.end && b.start < a.end;
}

static bool queue_has(struct range r)
{
	bool found;

	pthread_mutex_lock(&queue.lock);
	found = overlap(queue.telling, r);
	for (unsigned i = 0; i < queue.count; i++)
		found |= overlap(queue.range[i], r);
	pthread_mutex_unlock(&queue.lock);
	return found;
}

static void queue_pop(void)
{
	pthread_mutex_lock(&queue.lock);
	if (queue.count)
		queue.telling = queue.range[--queue.count];
	else
		queue.telling = (struct range){ 0, 0 };
	pthread_mutex_unlock(&queue.lock);
}

static void *tell_libfabric(void *arg)
{
	struct fid_mem_monitor *monitor = arg;

	for (;;) {
		while (sem_wait(&queue.filled)) {
		}
		for (queue_pop(); queue.telling.end; queue_pop())
			monitor->import_ops->notify(monitor, (void *)queue.telling.start,
						    queue.telling.end - queue.telling.start);
	}
	return NULL;
}

/* ------------------------------------------------------------------ the backend: remembers the range, in the keys */

static int fabric_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)access;
	*ret_ = (struct hugepin_reg){ (uint32_t)len, (uint32_t)((uint64_t)len >> 32), (uintptr_t)addr };
	return 0;
}

static int fabric_dereg(void *ctx, struct hugepin_reg *r)
{
	(void)ctx;
	queue_push(r->cookie, r->cookie + ((uint64_t)r->rkey << 32 | r->lkey));
	return 0;
}

static int fabric_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ };
	return 0;
}

/* ------------------------------------------------------------------ the monitor; libfabric's lock is held */

static int open_domain(void)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend,
		.name = "libfabric",
		.reg = fabric_reg,
		.dereg = fabric_dereg,
		.limits = fabric_limits,
	};
	/* Not the arena policy: whole extents would keep heap memory that libfabric never registered. */
	struct hugepin_attr attr = {
		.size = sizeof attr,
		.policy = HUGEPIN_POLICY_LRU,
		.access = HUGEPIN_READ,
		.pinned_bytes_max = UINT64_MAX,
	};

	hugepin_domain *d;
	int err = hugepin_domain_open(&backend, NULL, &attr, &d);

	if (!err) /* pairs with is_valid() and subscribe_range() */
		atomic_store_explicit(&domain, d, memory_order_release);
	return err;
}

static int start_thread(struct fid_mem_monitor *monitor)
{
	sigset_t all, before;
	pthread_t thread;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = -pthread_create(&thread, NULL, tell_libfabric, monitor);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!err)
		pthread_setname_np(thread, "hugepin-fabric");
	return err;
}

/* libfabric calls this with its first cache. If this fails, libfabric has no cache. */
static int start_monitor(struct fid_mem_monitor *monitor)
{
	static bool started; /* the thread was started; it never stops */
	int err = 0;

	if (!atomic_load_explicit(&domain, memory_order_relaxed))
		err = open_domain();
	if (!err && !started)
		err = start_thread(monitor);
	started |= !err;
	return err;
}

static void stop_monitor(struct fid_mem_monitor *monitor)
{
	(void)monitor;
}

static bool is_valid(struct fid_mem_monitor *monitor, const void *addr, size_t len)
{
	uintptr_t begin = (uintptr_t)addr;
	struct hugepin_pin pin = { 0 };
	hugepin_domain *d = atomic_load_explicit(&domain, memory_order_acquire); /* pairs with open_domain() */
	bool whole;

	(void)monitor;
	if (!d || hugepin_sg_key(d, addr, len, HUGEPIN_READ, &pin))
		return false;
	whole = begin + len <= pin.base + pin.len;
	hugepin_unpin(d, &pin);
	return whole && !queue_has((struct range){ begin, begin + len });
}

/* If this fails, libfabric does not cache the range. It fails if the pin cache cannot know when the range's memory goes
 * away: then the range is not registered after the unpin. It also fails for a second cache that is opened while the
 * first is still starting the monitor. */
static int subscribe_range(struct fid_mem_monitor *monitor, const void *addr, size_t len)
{
	struct hugepin_pin pin;
	hugepin_domain *d = atomic_load_explicit(&domain, memory_order_acquire); /* pairs with open_domain() */
	int err = d ? hugepin_pin(d, addr, len, HUGEPIN_READ, &pin) : -FI_EOPNOTSUPP;

	if (err)
		return err;
	hugepin_unpin(d, &pin);
	return is_valid(monitor, addr, len) ? 0 : -FI_EOPNOTSUPP;
}

/* Do nothing, since another cache may have subscribed to the same memory. */
static void unsubscribe_range(struct fid_mem_monitor *monitor, const void *addr, size_t len)
{
	(void)monitor, (void)addr, (void)len;
}

static struct fi_ops_mem_monitor ops = {
	.size = sizeof ops,
	.start = start_monitor,
	.stop = stop_monitor,
	.subscribe = subscribe_range,
	.unsubscribe = unsubscribe_range,
	.valid = is_valid,
};
static struct fid_mem_monitor monitor = { .fid.fclass = FI_CLASS_MEM_MONITOR, .export_ops = &ops };

/* ------------------------------------------------------------------ attaching */

static void *fabric_function(const char *name)
{
	void *fabric = dlopen("libfabric.so.1", RTLD_LAZY | RTLD_NOLOAD); /* never closed, so that it stays */

	return fabric ? dlsym(fabric, name) : NULL;
}

struct functions {
	__typeof__(&fi_getparams) getparams;
	__typeof__(&fi_freeparams) freeparams;
	__typeof__(&fi_open) open_service;
};

static int import(const struct functions *f)
{
	const char *other = getenv("FI_MR_CACHE_MONITOR");
	struct fi_param *params;
	struct fid *cache;
	int count, err;

	if (!f->getparams || !f->freeparams)
		return -ENOENT;
	if (other && *other && strcmp(other, "memhooks"))
		return -EPERM;
	/* This call makes libfabric read its settings, which must happen before the import. If libfabric read
	 * FI_MR_CACHE_MONITOR=memhooks later, it would use memhooks instead. */
	if (f->getparams(&params, &count) == 0)
		f->freeparams(params);
	if (!f->open_service || f->open_service(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &cache, NULL))
		return -ENOSYS;
	err = fi_import_fid(cache, &monitor.fid, 0);
	fi_close(cache);
	return err;
}

EXPORT int hugepin_fabric_attach(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool attached;
	struct functions f;
	int err = 0;

	/* Look up the functions before taking our lock: a constructor may call this under the loader's lock. */
	*(void **)&f.getparams = fabric_function("fi_getparams");
	*(void **)&f.freeparams = fabric_function("fi_freeparams");
	*(void **)&f.open_service = fabric_function("fi_open");
	pthread_mutex_lock(&lock);
	if (!attached)
		err = import(&f);
	attached |= !err;
	pthread_mutex_unlock(&lock);
	return err;
}

/* Import our monitor before Open MPI imports its own, since libfabric takes only one. Open MPI's gets its events from
 * patches of munmap and other calls, but not of mmap, by which the heap unmaps. */
EXPORT int fi_open(uint32_t version, const char *name, void *attr, size_t attr_len, uint64_t flags, struct fid **fid,
		   void *context)
{
	__typeof__(&fi_open) next;

	*(void **)&next = fabric_function("fi_open");
	if (!next)
		return -FI_ENOSYS;
	if (!strcasecmp(name, "mr_cache"))
		hugepin_fabric_attach();
	return next(version, name, attr, attr_len, flags, fid, context);
}

EXPORT int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	static _Atomic bool said; /* relaxed: the exchange alone decides who says it */
	__typeof__(&fi_fabric) next;
	int err = hugepin_fabric_attach();

	*(void **)&next = fabric_function("fi_fabric");
	if (!next)
		return -FI_ENOSYS;
	if (err && err != -EPERM && !atomic_exchange_explicit(&said, true, memory_order_relaxed))
		dprintf(STDERR_FILENO,
			"hugepin: libfabric takes no monitor (%s): set FI_MR_CACHE_MONITOR to userfaultfd or "
			"disabled\n",
			strerror(-err));
	return next(attr, fabric, context);
}
