/*
 * libfabric: a memory monitor, imported into the cache that its providers share (fi_ext.h, fid_mem_monitor). It stands
 * in for libfabric's own for all memory, so what is not the heap's must be watched as well. The pin cache does both:
 * what libfabric registers is pinned, for a moment, in a domain whose backend does nothing, and stays there for as
 * long as it is known to be the same memory; the domain deregisters what goes away, the heap's before it leaves.
 *
 * libfabric calls the monitor with its lock held (mm_lock), takes that same lock to be told of memory that went away,
 * and may allocate while it holds it. So it is never told from within an allocation, nor with a lock of ours held:
 * what was deregistered is queued, for a thread that tells libfabric. Until it has, `valid`, which libfabric asks at
 * each hit, says no to what overlaps with the queue.
 *
 * That a cache entry is the same memory as when it was made follows from two things that `valid` looks at, in this
 * order: the range is registered in our domain now; and no registration of any part of it waits in the queue. If the
 * memory had gone away and been registered anew, by another of libfabric's caches, its old registration would have
 * been queued before the new one was made; and once it has left the queue, libfabric has dropped the entry.
 *
 * In a child of fork the domain is the parent's: nothing is valid there, and nothing is cached.
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
	uintptr_t start, end; /* equal: none */
};

static struct {
	pthread_mutex_t lock; /* a leaf: nothing is called with it held */
	struct range range[QUEUE_MAX], telling;
	unsigned count;
	sem_t filled; /* of zeros: empty, of this process */
} queue = { .lock = PTHREAD_MUTEX_INITIALIZER };

static hugepin_domain *_Atomic domain; /* NULL: libfabric has not started us, or could not */

/* ------------------------------------------------------------------ what went away */

static void queue_push(uintptr_t start, uintptr_t end)
{
	pthread_mutex_lock(&queue.lock);
	if (queue.count == QUEUE_MAX) { /* one for all: too much is dropped, never too little */
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

static void *tell(void *arg)
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

static int reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)access;
	*ret_ = (struct hugepin_reg){ (uint32_t)len, (uint32_t)((uint64_t)len >> 32), (uintptr_t)addr };
	return 0;
}

static int dereg(void *ctx, struct hugepin_reg *r)
{
	(void)ctx;
	queue_push(r->cookie, r->cookie + ((uint64_t)r->rkey << 32 | r->lkey));
	return 0;
}

static int limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ };
	return 0;
}

/* ------------------------------------------------------------------ the monitor; libfabric's lock is held */

static int open_domain(void)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend, .name = "libfabric", .reg = reg, .dereg = dereg, .limits = limits,
	};
	/* Whole extents would keep memory in the heap that libfabric never registered. */
	struct hugepin_attr attr = {
		.size = sizeof attr,
		.policy = HUGEPIN_POLICY_LRU,
		.access = HUGEPIN_READ,
		.pinned_bytes_max = UINT64_MAX,
	};

	hugepin_domain *d;
	int r = hugepin_domain_open(&backend, NULL, &attr, &d);

	if (!r)
		domain = d;
	return r;
}

static int start_thread(struct fid_mem_monitor *monitor)
{
	sigset_t all, before;
	pthread_t thread;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = -pthread_create(&thread, NULL, tell, monitor);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!r)
		pthread_setname_np(thread, "hugepin-fabric");
	return r;
}

/* With the first cache: before, not even a thread is needed. A failure leaves libfabric without a cache. */
static int start(struct fid_mem_monitor *monitor)
{
	static bool started; /* and never stopped */
	int r = 0;

	if (!domain)
		r = open_domain();
	if (!r && !started)
		r = start_thread(monitor);
	started |= !r;
	return r;
}

static void stop(struct fid_mem_monitor *monitor)
{
	(void)monitor;
}

static bool valid(struct fid_mem_monitor *monitor, const void *addr, size_t len)
{
	uintptr_t begin = (uintptr_t)addr;
	struct hugepin_pin pin = { 0 };
	hugepin_domain *d = domain;
	bool whole;

	(void)monitor;
	if (!d || hugepin_sg_key(d, addr, len, HUGEPIN_READ, &pin))
		return false;
	whole = begin + len <= pin.base + pin.len;
	hugepin_unpin(d, &pin);
	return whole && !queue_has((struct range){ begin, begin + len });
}

/* A failure keeps libfabric from caching the range: where the pin cache cannot know of its end, it has let go of it. A second
 * cache, opened while the first still starts us, does not wait for that. */
static int subscribe(struct fid_mem_monitor *monitor, const void *addr, size_t len)
{
	struct hugepin_pin pin;
	hugepin_domain *d = domain;
	int r = d ? hugepin_pin(d, addr, len, HUGEPIN_READ, &pin) : -FI_EOPNOTSUPP;

	if (r)
		return r;
	hugepin_unpin(d, &pin);
	return valid(monitor, addr, len) ? 0 : -FI_EOPNOTSUPP;
}

/* Another cache may have subscribed to the same memory. */
static void unsubscribe(struct fid_mem_monitor *monitor, const void *addr, size_t len)
{
	(void)monitor, (void)addr, (void)len;
}

static struct fi_ops_mem_monitor ops = {
	.size = sizeof ops,
	.start = start,
	.stop = stop,
	.subscribe = subscribe,
	.unsubscribe = unsubscribe,
	.valid = valid,
};
static struct fid_mem_monitor monitor = { .fid.fclass = FI_CLASS_MEM_MONITOR, .export_ops = &ops };

/* ------------------------------------------------------------------ attaching */

static void *fabric_function(const char *name)
{
	void *fabric = dlopen("libfabric.so.1", RTLD_LAZY | RTLD_NOLOAD); /* kept */

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
	int r;

	if (!f->getparams || !f->freeparams)
		return -ENOENT;
	if (other && *other && strcmp(other, "memhooks"))
		return -EPERM;
	/* libfabric reads its settings when it is first used, and would then prefer memhooks, if asked to. */
	if (f->getparams(&params, &r) == 0)
		f->freeparams(params);
	if (!f->open_service || f->open_service(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &cache, NULL))
		return -ENOSYS;
	r = fi_import_fid(cache, &monitor.fid, 0);
	fi_close(cache);
	return r;
}

EXPORT int hugepin_fabric_attach(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool attached;
	struct functions f;
	int r = 0;

	/* Without the lock: a constructor may call this, under the loader's. */
	*(void **)&f.getparams = fabric_function("fi_getparams");
	*(void **)&f.freeparams = fabric_function("fi_freeparams");
	*(void **)&f.open_service = fabric_function("fi_open");
	pthread_mutex_lock(&lock);
	if (!attached)
		r = import(&f);
	attached |= !r;
	pthread_mutex_unlock(&lock);
	return r;
}

/* Open MPI imports a monitor of its own, fed by patches of munmap and others, but not of mmap, by which the heap unmaps.
 * There is room for one: ours comes first. */
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
	static _Atomic bool said;
	__typeof__(&fi_fabric) next;
	int r = hugepin_fabric_attach();

	*(void **)&next = fabric_function("fi_fabric");
	if (!next)
		return -FI_ENOSYS;
	if (r && r != -EPERM && !atomic_exchange(&said, true))
		dprintf(STDERR_FILENO,
			"hugepin: libfabric takes no monitor (%s): set FI_MR_CACHE_MONITOR to userfaultfd or disabled\n",
			strerror(-r));
	return next(attr, fabric, context);
}
