/*
 * Changes of registered memory, and of the rings of domains. Each is a way of programs in which a pin cache has failed:
 * it hung, forgot that memory can be cached, took the program's mappings, or passed over all that is pinned.
 */
#ifndef TESTS_SOAK_CHANGE_REGISTRATIONS_H
#define TESTS_SOAK_CHANGE_REGISTRATIONS_H

#include "change_addresses.h"

static uint64_t misses_of(hugepin_domain *d)
{
	struct hugepin_domain_stats s;

	hugepin_domain_stats(d, &s, sizeof s);
	return s.misses;
}

/* Pin and give back. Returns false if the machine refuses. */
static bool touch(hugepin_domain *d, const void *p, size_t len, unsigned access)
{
	struct hugepin_pin pin;
	const int e = hugepin_pin(d, p, len, access, &pin);

	if (e)
		return EXPECT(e == -ENOBUFS || e == -ENOMEM || e == -EPERM) && false;
	return EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

/* A device whose registrations cost nothing, so that only the cache takes time. */
static int table_reg(void *count, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)addr, (void)len, (void)access;
	*ret_ = (struct hugepin_reg){ .lkey = ++*(uint32_t *)count };
	return 0;
}

static int table_dereg(void *count, struct hugepin_reg *reg)
{
	(void)count, (void)reg;
	return 0;
}

static int table_limits(void *count, struct hugepin_limits *ret_)
{
	(void)count;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ };
	return 0;
}

static const struct hugepin_backend table = {
	.size = sizeof table, .name = "table", .reg = table_reg, .dereg = table_dereg, .limits = table_limits,
};

/* Open a domain for one change, which closes it. */
static hugepin_domain *own_domain(uint64_t budget)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .pinned_bytes_max = budget,
					   .fork = HUGEPIN_FORK_COPY };
	static uint32_t count;
	hugepin_domain *d;

	return EXPECT_EQ(hugepin_domain_open(&table, &count, &attr, &d), 0) ? d : NULL;
}

/* ------------------------------------------------------------------ in the sight of signal handlers */

/* What a handler unmaps, and what the interrupted thread gives hints of. */
static struct {
	char *piece[2], *hinted;
	_Atomic bool gone, end;
} handed;

static void unmap_in_handler(int unused)
{
	const int saved = errno;

	(void)unused;
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(munmap(handed.piece[i], 4096), 0);
	handed.gone = true;
	errno = saved;
}

static void *hint_on(void *d)
{
	while (!handed.end)
		hugepin_prefetch(d, handed.hinted, 4096, 0);
	return NULL;
}

/* A handler unmaps what was pinned, while the thread that it has interrupted calls the cache. */
static bool unmapped_in_handler(struct worker *w)
{
	enum { TIMES = 1024 };
	const struct sigaction action = { .sa_handler = unmap_in_handler, .sa_flags = SA_RESTART };
	hugepin_domain *d = own_domain(0);
	pthread_t t;
	int times = 0;

	handed.end = false;
	handed.hinted = foreign_map(AREA);
	EXPECT_EQ(sigaction(SIGUSR2, &action, NULL), 0);
	if (!d || !handed.hinted || pthread_create(&t, NULL, hint_on, d))
		goto out;
	for (; times < TIMES; times++) {
		bool ok = true;

		for (int i = 0; i < 2; i++) {
			handed.piece[i] = foreign_map(4096);
			ok = handed.piece[i] && touch(d, handed.piece[i], 4096, 0) && ok;
		}
		handed.gone = !ok;
		for (volatile uint64_t spin = rand_next(&w->rand) % 4096; spin; spin--)
			;
		if (ok)
			EXPECT_EQ(pthread_kill(t, SIGUSR2), 0);
		while (!handed.gone)
			sched_yield();
		if (!ok)
			break;
		w->done++; /* each time waits for a processor that others have */
	}
	for (int i = 0; times < TIMES && i < 2; i++)
		if (handed.piece[i])
			munmap(handed.piece[i], 4096);
	handed.end = true;
	EXPECT_EQ(pthread_join(t, NULL), 0);
out:
	if (handed.hinted)
		munmap(handed.hinted, AREA);
	if (d)
		EXPECT_EQ(hugepin_domain_close(d), 0);
	return times == TIMES;
}

/* ------------------------------------------------------------------ memory that comes back, is split, or stays */

/* Pin until the cache answers from what it has. */
static bool is_cached_in_the_end(hugepin_domain *d, char *p)
{
	for (int tries = 0; tries < 1000; tries++) {
		const uint64_t before = misses_of(d);

		if (!touch(d, p, 4096, 0))
			return false;
		if (misses_of(d) == before)
			return true;
	}
	return false;
}

/* Memory is discarded, then unmapped. Other memory at the same place can be cached again. */
static bool given_back_and_mapped(struct worker *unused)
{
	hugepin_domain *d = own_domain(0);
	char *p = foreign_map(AREA);
	bool ok = d && p && is_cached_in_the_end(d, p);

	(void)unused;
	for (int i = 0; ok && i < 64; i++) {
		ok = touch(d, p, 4096, 0) && EXPECT(!madvise(p, AREA, MADV_DONTNEED) && !munmap(p, AREA));
		if (ok && mmap(p, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != p)
			ok = (p = foreign_map(AREA)); /* another thread has got the place */
	}
	if (ok)
		EXPECT(is_cached_in_the_end(d, p));
	if (p)
		EXPECT_EQ(munmap(p, AREA), 0);
	if (d)
		EXPECT_EQ(hugepin_domain_close(d), 0);
	return ok;
}

static long mappings_within(uintptr_t start, uintptr_t end)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	long count = 0;

	while (f && fgets(line, sizeof line, f)) {
		const uintptr_t at = strtoul(line, NULL, 16);

		count += at >= start && at < end;
	}
	if (f)
		fclose(f);
	return count;
}

/* Small parts of a large mapping are pinned, one after the other. What is registered no more costs no mapping. */
static bool parts_pinned(struct worker *unused)
{
	enum { LARGE = 16 * AREA, PAGES = 16 }; /* PAGES: what the budget has room for */
	hugepin_domain *d = own_domain(PAGES * 4096);
	char *p = foreign_map(LARGE);
	bool ok = d && p;

	(void)unused;
	for (size_t at = 0; ok && at < LARGE; at += 3 * 4096)
		ok = touch(d, p + at, 4096, 0);
	if (ok)
		EXPECT(mappings_within((uintptr_t)p, (uintptr_t)p + LARGE) <= 4 * PAGES);
	if (d)
		EXPECT_EQ(hugepin_domain_close(d), 0);
	if (p)
		EXPECT_EQ(munmap(p, LARGE), 0);
	return ok;
}

/* A budget is full of pinned memory but for a page, and misses take turns at that page. Access by peers has a
 * registration for each range. */
static bool much_pinned(struct worker *unused)
{
	enum { PAGES = 16384, OTHERS = 64, MISSES = 65536 };
	const size_t len = (size_t)(PAGES + OTHERS) * 4096;
	hugepin_domain *d = own_domain((uint64_t)PAGES * 4096);
	struct hugepin_pin *pins = hugepin_calloc(PAGES, sizeof *pins);
	char *p = hugepin_malloc(len);
	bool ok = d && p && pins;
	size_t n = 0;

	(void)unused;
	while (ok && n < PAGES - 1) {
		ok = hugepin_pin(d, p + n * 4096, 4096, HUGEPIN_REMOTE_READ, &pins[n]) == 0;
		n += ok;
	}
	for (size_t i = 0; ok && i < MISSES; i++)
		ok = touch(d, p + (PAGES + i % OTHERS) * 4096, 4096, HUGEPIN_REMOTE_READ);
	for (size_t i = 0; i < n; i++)
		EXPECT_EQ(hugepin_unpin(d, &pins[i]), 0);
	if (d)
		EXPECT_EQ(hugepin_domain_close(d), 0);
	hugepin_free(p);
	hugepin_free(pins);
	return ok;
}

/* ------------------------------------------------------------------ rings */

/* A program closes its ring before the domain, and another ring gets the descriptor. That ring keeps its own buffer. */
static bool ring_closed(struct worker *w)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	const struct iovec own = { w->buffer, 4096 };
	struct io_uring first, second;
	hugepin_domain *d;
	char *p = foreign_map(AREA);
	bool ok = p && io_uring_queue_init(2, &first, 0) == 0;

	if (ok && EXPECT_EQ(hugepin_uring_open(&first, 0, 8, &attr, &d), 0)) {
		ok = touch(d, p, 4096, 0);
		io_uring_queue_exit(&first);
		const bool again = io_uring_queue_init(2, &second, 0) == 0;
		const bool registered = again && io_uring_register_buffers(&second, &own, 1) == 0;

		touch(d, p + AREA / 2, 4096, 0);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		if (registered)
			EXPECT_EQ(io_uring_unregister_buffers(&second), 0);
		if (again)
			io_uring_queue_exit(&second);
		ok &= registered;
	}
	if (p)
		EXPECT_EQ(munmap(p, AREA), 0);
	return ok;
}

#endif
