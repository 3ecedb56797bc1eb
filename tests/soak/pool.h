/* The pool of hugepages: resized while the threads run, and at the end as it was. */
#ifndef TESTS_SOAK_POOL_H
#define TESTS_SOAK_POOL_H

#include "state.h"

/* Pages of the pool. -1: the kernel has no pool. */
struct pool {
	long used, reserved, surplus;
};

static struct pool pool_now(void)
{
	return (struct pool){ file_number(POOL_DIR "nr_hugepages") - file_number(POOL_DIR "free_hugepages"),
			      file_number(POOL_DIR "resv_hugepages"), file_number(POOL_DIR "surplus_hugepages") };
}

static void pool_check(struct pool before)
{
	struct pool now;

	for (int i = 0; i < 300; i++) {
		now = pool_now();
		if (now.used <= before.used && now.reserved <= before.reserved && now.surplus <= before.surplus)
			return;
		sleep_ms(100);
	}
	T_FAIL("of the pool are used, reserved and surplus %ld, %ld and %ld; at the start %ld, %ld and %ld", now.used,
	       now.reserved,
	       now.surplus, before.used, before.reserved, before.surplus);
}

static bool pool_resize(long pages)
{
	char text[32];

	snprintf(text, sizeof text, "%ld", pages);
	return file_write(POOL_DIR "nr_hugepages", text);
}

static long pool_pages;

/* Resize the pool, but not while the process is another user or may open no file. */
static void pool_resize_between(long low, long high, uint64_t *rand)
{
	pthread_mutex_lock(&changing);
	EXPECT(pool_resize(low + (long)(rand_next(rand) % (uint64_t)(high - low + 1))));
	pthread_mutex_unlock(&changing);
}

/* A handler: the program ends by this signal. */
static void put_pool_back(int signal)
{
	pool_resize(pool_pages);
	raise(signal);
}

#endif
