/*
 * A device that registers nothing and knows everything: which ranges are registered, and how often each key is in use.
 * It fails on request, refuses what exceeds its limits, and notes what a real one would corrupt data by. The domain
 * calls it under its lock; the counters of use may be changed by any thread.
 */
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

#include "hugepin.h"
#include "tests/t.h"

#ifndef DEVICE_PAGE
#define DEVICE_PAGE 4096 /* a test may have larger base pages */
#endif

enum { DEVICE_REGS = 8192, DEVICE_PAGES = 4096 };

struct device {
	struct hugepin_limits limits;
	size_t kernel_bytes_max; /* what the kernel lets it have; 0: all */
	int dereg_error;
	/* Fault injection: registration number `nth` (1 is the next) fails, and with for_good all after it. */
	long nth;
	int with;
	bool for_good;
	int (*refuse)(void *addr, size_t len); /* -errno, or 0 */

	bool lingers; /* what is deregistered is not free yet */
	bool lets_go; /* whoever asks for that lets go of it */
	size_t lingering_bytes;
	uint32_t lingering_regs;

	size_t bytes;
	unsigned regs, prefetches, closed;
	int prefetch_error; /* what prefetch() returns: 0, 1 or -errno */
	size_t brought; /* bytes that it was asked to bring in */
	long calls, deregs;
	uint64_t clock_ns;
	pthread_t thread; /* that called last */
	struct {
		uintptr_t addr;
		size_t len;
		unsigned access;
		bool live;
		bool stale; /* a part of its memory went away since: the test's to set */
		_Atomic int uses;
	} reg[DEVICE_REGS];
	pthread_mutex_t pages_lock; /* taken also where registrations change: transfers look at them on any thread */
	/* Of registrations on demand: which pages the device has in its tables. */
	unsigned pages_count;
	struct {
		uint32_t key;
		uintptr_t page;
	} pages[DEVICE_PAGES];
};

/* Put the pages of [addr, addr + len) that the key covers into its table, or take them out. Returns the number of those
 * that were not as they are now. Call with pages_lock. */
static inline size_t device_set(struct device *v, uint32_t key, uintptr_t addr, size_t len, bool present)
{
	size_t changed = 0;

	for (uintptr_t page = addr & -(uintptr_t)4096; page < addr + len; page += 4096) {
		unsigned i = 0;

		if (page < v->reg[key].addr || page >= v->reg[key].addr + v->reg[key].len)
			continue;
		while (i < v->pages_count && (v->pages[i].key != key || v->pages[i].page != page))
			i++;
		if ((i < v->pages_count) == present)
			continue;
		changed++;
		if (!present) {
			v->pages[i] = v->pages[--v->pages_count];
		} else if (EXPECT(v->pages_count < DEVICE_PAGES)) {
			v->pages[v->pages_count].key = key;
			v->pages[v->pages_count++].page = page;
		}
	}
	return changed;
}

static int device_reg(void *device, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	struct device *v = device;
	uint32_t key = 1;
	int refused;

	v->calls++;
	v->thread = pthread_self();
	v->clock_ns += 1000;
	EXPECT(len > 0 && len % DEVICE_PAGE == 0 && (uintptr_t)addr % DEVICE_PAGE == 0);
	EXPECT(!v->limits.len_max || len <= v->limits.len_max);
	EXPECT(!(access & ~(v->limits.access | HUGEPIN_ON_DEMAND)));
	if (v->nth && (--v->nth == 0 || (v->for_good && v->nth <= 0))) {
		if (v->for_good)
			v->nth = 1;
		return v->with;
	}
	refused = v->refuse ? v->refuse(addr, len) : 0;
	if (refused)
		return refused;
	if (v->kernel_bytes_max && v->bytes + v->lingering_bytes + len > v->kernel_bytes_max)
		return -ENOMEM;
	while (key < DEVICE_REGS && v->reg[key].live)
		key++;
	EXPECT(key < DEVICE_REGS);
	pthread_mutex_lock(&v->pages_lock);
	v->reg[key].addr = (uintptr_t)addr;
	v->reg[key].len = len;
	v->reg[key].access = access;
	v->reg[key].live = true;
	pthread_mutex_unlock(&v->pages_lock);
	v->reg[key].stale = false;
	v->regs++;
	v->bytes += len;
	*ret_ = (struct hugepin_reg){ key, key | 0x80000000, (uint64_t)key << 32 };
	return 0;
}

static int device_dereg(void *device, struct hugepin_reg *reg)
{
	struct device *v = device;

	v->deregs++;
	v->thread = pthread_self();
	v->clock_ns += 1000;
	EXPECT(reg->lkey < DEVICE_REGS && v->reg[reg->lkey].live && reg->cookie == (uint64_t)reg->lkey << 32);
	EXPECT_EQ(v->reg[reg->lkey].uses, 0); /* a registration in use is never given back */
	pthread_mutex_lock(&v->pages_lock);
	if (v->reg[reg->lkey].access & HUGEPIN_ON_DEMAND)
		device_set(v, reg->lkey, v->reg[reg->lkey].addr, v->reg[reg->lkey].len, false);
	v->reg[reg->lkey].live = false;
	pthread_mutex_unlock(&v->pages_lock);
	v->regs--;
	v->bytes -= v->reg[reg->lkey].len;
	v->lingering_bytes += v->lingers ? v->reg[reg->lkey].len : 0;
	v->lingering_regs += v->lingers;
	return v->dereg_error;
}

static int device_prefetch(void *device, const struct hugepin_reg *reg, void *addr, size_t len)
{
	struct device *v = device;

	EXPECT(v->reg[reg->lkey].live && (uintptr_t)addr >= v->reg[reg->lkey].addr &&
	       (uintptr_t)addr + len <= v->reg[reg->lkey].addr + v->reg[reg->lkey].len);
	v->prefetches++;
	v->brought += len;
	pthread_mutex_lock(&v->pages_lock);
	if (!v->prefetch_error)
		device_set(v, reg->lkey, (uintptr_t)addr, len, true);
	pthread_mutex_unlock(&v->pages_lock);
	return v->prefetch_error;
}

/* A transfer of [addr, addr + len) by this key. Returns the number of pages of which the device had to fault. */
static inline size_t device_transfer(struct device *v, uint32_t key, const void *addr, size_t len)
{
	size_t faults;

	pthread_mutex_lock(&v->pages_lock);
	EXPECT(key < DEVICE_REGS && v->reg[key].live && (uintptr_t)addr >= v->reg[key].addr &&
	       (uintptr_t)addr + len <= v->reg[key].addr + v->reg[key].len);
	faults = v->reg[key].access & HUGEPIN_ON_DEMAND ? device_set(v, key, (uintptr_t)addr, len, true) : 0;
	pthread_mutex_unlock(&v->pages_lock);
	return faults;
}

/* The kernel takes the pages of a range away, from all keys. */
static inline void device_invalidate(struct device *v, const void *addr, size_t len)
{
	pthread_mutex_lock(&v->pages_lock);
	for (uint32_t key = 1; key < DEVICE_REGS; key++)
		if (v->reg[key].live)
			device_set(v, key, (uintptr_t)addr, len, false);
	pthread_mutex_unlock(&v->pages_lock);
}

static int device_limits(void *device, struct hugepin_limits *ret_)
{
	*ret_ = ((struct device *)device)->limits;
	return 0;
}

static void device_lingering(void *device, size_t *ret_bytes, uint32_t *ret_regs)
{
	struct device *v = device;

	v->lingering_bytes = v->lets_go ? 0 : v->lingering_bytes;
	v->lingering_regs = v->lets_go ? 0 : v->lingering_regs;
	*ret_bytes = v->lingering_bytes;
	*ret_regs = v->lingering_regs;
}

static uint64_t device_now(void *device)
{
	return ((struct device *)device)->clock_ns;
}

static void device_close(void *device)
{
	((struct device *)device)->closed++;
}

static const struct hugepin_backend device_backend = {
	.size = sizeof device_backend,
	.name = "device",
	.reg = device_reg,
	.dereg = device_dereg,
	.prefetch = device_prefetch,
	.limits = device_limits,
	.now_ns = device_now,
	.close = device_close,
	.lingering = device_lingering,
};

enum { DEVICE_ACCESS = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE };

static inline void device_reset(struct device *v)
{
	memset(v, 0, sizeof *v);
	v->limits.access = DEVICE_ACCESS;
	pthread_mutex_init(&v->pages_lock, NULL);
}

/* Open a domain on the device as it was at first, with these limits and access to all. */
static inline hugepin_domain *device_open(struct device *v, struct hugepin_limits limits, struct hugepin_attr attr)
{
	hugepin_domain *d = NULL;

	device_reset(v);
	limits.access = DEVICE_ACCESS;
	v->limits = limits;
	attr.size = sizeof attr;
	EXPECT_EQ(hugepin_domain_open(&device_backend, v, &attr, &d), 0);
	return d;
}

/* The pin's keys are of a registration that covers it. */
static inline bool device_covers(struct device *v, const struct hugepin_pin *pin, unsigned access)
{
	uint32_t k = pin->lkey;

	return pin->ref && k < DEVICE_REGS && pin->rkey == (k | 0x80000000) && v->reg[k].live &&
	       pin->base >= v->reg[k].addr && pin->base + pin->len <= v->reg[k].addr + v->reg[k].len &&
	       !(access & ~v->reg[k].access);
}

/* Memory that is not the heap's. */
static inline char *map(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT(p != MAP_FAILED);
	return p;
}

static inline struct hugepin_domain_stats stats_of(hugepin_domain *d)
{
	struct hugepin_domain_stats s;

	EXPECT_EQ(hugepin_domain_stats(d, &s, sizeof s), sizeof s);
	return s;
}

/* The device's only domain: nothing is left of it there. */
static inline void close_empty(const struct device *v, hugepin_domain *d)
{
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(v->regs, 0);
	EXPECT_EQ(v->bytes, 0);
	EXPECT_EQ(v->closed, 1);
}

/* A test of d, the only domain of `device`, which `open` opens. Nothing is left in d at the end. */
#define DOMAIN_TEST(fact, open)                                                                                        \
	static void fact##_body(hugepin_domain *d);                                                                    \
	TEST(fact)                                                                                                     \
	{                                                                                                              \
		hugepin_domain *d = open;                                                                              \
                                                                                                                       \
		fact##_body(d);                                                                                        \
		close_empty(&device, d);                                                                               \
	}                                                                                                              \
	static void fact##_body(hugepin_domain *d)

/* The same, with len bytes p that are not the heap's. */
#define PIN_TEST(fact, open, len)                                                                                      \
	static void fact##_body(hugepin_domain *d, char *p);                                                           \
	TEST(fact)                                                                                                     \
	{                                                                                                              \
		hugepin_domain *d = open;                                                                              \
		char *p = map(len);                                                                                    \
                                                                                                                       \
		fact##_body(d, p);                                                                                     \
		munmap(p, len);                                                                                        \
		close_empty(&device, d);                                                                               \
	}                                                                                                              \
	static void fact##_body(hugepin_domain *d, char *p)

#endif
