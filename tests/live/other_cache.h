/*
 * What is tried on another library's cache of registrations, with libhugepin-hooks.so and without: hooks_ucx.c on that
 * of UCX, tests/guest/fabric.c on that of libfabric. Each test runs in a process of its own, because the hooks are
 * preloaded. A device tells whether a key is stale, because it then writes where the program does not read.
 */
#ifndef TESTS_LIVE_OTHER_CACHE_H
#define TESTS_LIVE_OTHER_CACHE_H

#include <limits.h>
#include <pthread.h>

#include "hugepin.h"
#include "live/live.h"

/* The last three are what a process ends with. MISSING: the other library, or the device. */
enum { SIZE = 8 << 20, THREADS = 4, REACHED = 0, STALE = 3, MISSING = 77 };

/* Have the device write to p, with the key that the cache has for [p, p + len). REACHED, or STALE. Threads that call
 * this at a time differ in `who`, from 0 to THREADS. */
static int device_reaches(int who, char *p, size_t len);

/* The heap gives a buffer back, and hands the same addresses out again. */
static int memory_leaves_and_comes_back(void)
{
	char *p = hugepin_malloc(SIZE), *again;
	int others = 0;

	memset(p, 1, SIZE);
	if (device_reaches(0, p, SIZE) != REACHED)
		return 6;
	hugepin_free(p);
	hugepin_purge();
	while ((again = hugepin_malloc(SIZE)) != p)
		if (++others == 8)
			return 7;
	memset(again, 2, SIZE);
	return device_reaches(0, again, SIZE);
}

static _Atomic bool over;
static _Atomic int worst;
static _Atomic unsigned rounds;
static size_t shortest; /* buffer of a thread */

static void *allocate_and_register(void *arg)
{
	int who = (int)(intptr_t)arg;
	uint64_t seed = (uint64_t)who + 1;

	while (!over && !worst) {
		size_t len = rand_size(&seed, shortest, SIZE);
		char *p = hugepin_malloc(len);
		int r;

		memset(p, 1, len);
		r = device_reaches(who, p, len);
		if (r == REACHED)
			r = device_reaches(who, p, len);
		if (r != REACHED)
			worst = r;
		hugepin_free(p);
		rounds++;
	}
	return NULL;
}

/* Threads allocate, register and give back, while another one purges. */
static int threads_come_and_go(size_t len_min, int seconds)
{
	pthread_t thread[THREADS];

	shortest = len_min;
	for (intptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, allocate_and_register, (void *)i))
			return 8;
	for (time_t end = time(NULL) + seconds; !worst && (time(NULL) < end || rounds < 100);) {
		hugepin_purge();
		sleep_ms(10);
	}
	over = true;
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	return worst;
}

/* The path of a library that was built. Two paths last at a time. */
static const char *built(const char *library)
{
	static char path[2][PATH_MAX];
	static unsigned n;
	char *to = path[n++ % 2];

	snprintf(to, sizeof path[0], "%s/%s", getenv("BUILD") ? getenv("BUILD") : "build", library);
	return to;
}
#define HOOKS built("libhugepin-hooks.so")

/* Run this program again, with these libraries preloaded. Returns what it ends with. */
static int run_preloaded(const char *libraries, const char *what)
{
	pid_t pid = fork();

	if (pid == 0) {
		setenv("LD_PRELOAD", libraries, 1);
		execl("/proc/self/exe", "again", what, NULL);
		_exit(127);
	}
	return child_wait(pid);
}

#endif
