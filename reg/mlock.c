/*
 * The backend that only locks memory, and the limit that it shares with io_uring.
 *
 * mlock(2) does not nest, but registrations overlap, of one domain and of several: a list of all ranges that are locked,
 * in the order of their addresses, tells what nobody else needs when one of them goes. What the program has locked itself
 * is not in it.
 *
 * Threads: `lock` guards the list and every change of what is locked; it is taken with a domain's lock held. A forked child has
 * nothing locked (mlock(2)), and starts with an empty list.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "reg/backend.h"

struct range {
	uintptr_t start, end;
	LIST_ENTRY(range) links;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, range) ranges = LIST_HEAD_INITIALIZER(ranges);

size_t hp_memlock_max(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = { 0 };
	struct rlimit limit;

	if (!syscall(SYS_capget, &header, caps) && caps[0].effective & 1u << CAP_IPC_LOCK)
		return 0;
	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
		return 0;
	return HP_MAX((size_t)limit.rlim_cur, (size_t)1);
}

/* mlock and munlock by number: under sanitizers the functions do nothing. */
static int pages_lock(void *addr, size_t len, unsigned flags)
{
	return (int)syscall(SYS_mlock2, addr, len, flags);
}

static int pages_unlock(uintptr_t start, uintptr_t end)
{
	return (int)syscall(SYS_munlock, start, end - start);
}

void hp_mlock_child(void)
{
	pthread_mutex_init(&lock, NULL);
	LIST_INIT(&ranges);
}

static void insert(struct range *r)
{
	struct range *at = LIST_FIRST(&ranges);

	if (!at || r->start <= at->start) {
		LIST_INSERT_HEAD(&ranges, r, links);
		return;
	}
	for (struct range *next; (next = LIST_NEXT(at, links)) && next->start < r->start;)
		at = next;
	LIST_INSERT_AFTER(at, r, links);
}

/* munlock stops at the first hole. What lies behind it is found in the list of mappings, which is read without stdio:
 * this may run inside a watcher of the heap (hugepin_watch). -ENOMEM: there was another hole by then. */
static int unlock_mappings(uintptr_t start, uintptr_t end)
{
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), ret = 0;
	uintptr_t bounds[2] = { 0, 0 }; /* a line begins with them: "7f00-7f80 r--p ..." */
	unsigned field = 0;
	char text[4096];
	ssize_t n;

	if (fd < 0)
		return -errno;
	while ((n = read(fd, text, sizeof text)) > 0) {
		for (const char *c = text; c < text + n; c++) {
			if (*c == '\n') {
				field = 0;
				bounds[0] = bounds[1] = 0;
			} else if (field == 2) {
				continue;
			} else if (*c != '-' && *c != ' ') {
				bounds[field] = bounds[field] * 16 + (uintptr_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
			} else if (++field == 2) {
				uintptr_t from = HP_MAX(bounds[0], start), to = HP_MIN(bounds[1], end);

				if (from < to && pages_unlock(from, to) < 0)
					ret = -errno;
			}
		}
	}
	if (n < 0)
		ret = -errno;
	close(fd);
	return ret;
}

/* Others may unmap parts meanwhile. ENOMEM is also said where the process may have no more mappings. */
static int unlock_range(uintptr_t start, uintptr_t end)
{
	int ret = pages_unlock(start, end) < 0 ? -errno : 0;

	for (int tries = 0; ret == -ENOMEM && tries < 100; tries++)
		ret = unlock_mappings(start, end);
	return ret;
}

/* Unlock what no range of the list covers. */
static int unlock_uncovered(uintptr_t start, uintptr_t end)
{
	const struct range *r;
	int err, ret = 0;

	LIST_FOREACH(r, &ranges, links) {
		if (start >= end || r->start >= end)
			break;
		if (r->start > start) {
			err = unlock_range(start, r->start);
			ret = ret ? ret : err;
		}
		start = HP_MAX(start, r->end);
	}
	if (start < end) {
		err = unlock_range(start, end);
		ret = ret ? ret : err;
	}
	return ret;
}

/* mlock says ENOMEM to a hole, to pages that cannot be had for their protection or their file's end, and to the limit.
 * Only the limit stops it from locking what will come later (MLOCK_ONFAULT) in a range without holes. */
static int why_no_memory(void *addr, size_t len)
{
	if (msync(addr, len, MS_ASYNC) < 0)
		return -EFAULT;
	return pages_lock(addr, len, MLOCK_ONFAULT) < 0 ? -ENOMEM : -EFAULT;
}

static int mlock_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	int saved = errno, err = 0;
	struct range *r = malloc(sizeof *r);

	(void)ctx;
	(void)access;
	if (!r) {
		errno = saved;
		return -ENOMEM;
	}
	*r = (struct range){ .start = (uintptr_t)addr, .end = (uintptr_t)addr + len };
	pthread_mutex_lock(&lock);
	if (pages_lock(addr, len, 0) < 0) {
		err = errno == ENOMEM ? why_no_memory(addr, len) : -errno;
		unlock_uncovered(r->start, r->end); /* a part may have been locked */
		free(r);
	} else {
		insert(r);
		*ret_ = (struct hugepin_reg){ .cookie = (uintptr_t)r };
	}
	pthread_mutex_unlock(&lock);
	errno = saved;
	return err;
}

static int mlock_dereg(void *ctx, struct hugepin_reg *reg)
{
	struct range *r = (struct range *)(uintptr_t)reg->cookie;
	int saved = errno, ret;

	(void)ctx;
	pthread_mutex_lock(&lock);
	LIST_REMOVE(r, links);
	ret = unlock_uncovered(r->start, r->end);
	free(r);
	pthread_mutex_unlock(&lock);
	errno = saved;
	return ret;
}

static int mlock_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){
		.bytes_max = hp_memlock_max(),
		.access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_RELAXED,
	};
	return 0;
}

const struct hugepin_backend *hugepin_mlock(void)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend,
		.name = "mlock",
		.reg = mlock_reg,
		.dereg = mlock_dereg,
		.limits = mlock_limits,
	};

	return &backend;
}
