/* "costs CPU CPU": what bench/simulate reckons with on these processors, in ns: a compare-and-swap of a line that is
 * there, a hundred looks at a lock (base/lock.c), a turn of two threads that look, or sleep, until the other had its. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/sys.h"
#include "bench/lib.h"

#ifndef __x86_64__
#define __builtin_ia32_pause() (void)0
#endif
#define EACH(times, call) ({ double t = now_ns(); for (int i = 0; i < (times); i++) call; (now_ns() - t) / (times); })
enum { ROUNDS = 500 };
static _Atomic uint32_t turn; /* relaxed: nothing else is handed over */
static char **cpus;
static bool sleeps;
static double began;

static void *play(void *me)
{
	cpu_set_t own;

	CPU_ZERO(&own);
	CPU_SET(strtoul(cpus[!!me], NULL, 10), &own);
	pthread_setaffinity_np(pthread_self(), sizeof own, &own);
	for (int i = 0; i < ROUNDS; i++) {
		while (atomic_load_explicit(&turn, memory_order_relaxed) != !!me)
			if (sleeps)
				hp_futex_wait(&turn, !me, UINT64_MAX);
		if (me && !i) /* both have begun */
			began = now_ns();
		atomic_store_explicit(&turn, !me, memory_order_relaxed);
		if (sleeps)
			hp_futex_wake_one(&turn);
	}
	if (me)
		printf(" %s=%g", sleeps ? "sleep" : "line", (now_ns() - began) / (2 * ROUNDS - 2));
	return NULL;
}

int main(int argc, char **argv)
{
	const memory_order relaxed = memory_order_relaxed; /* relaxed: one thread */
	uint32_t was = 0;
	pthread_t t;

	printf("cas=%g", EACH(10000, atomic_compare_exchange_strong_explicit(&turn, &was, 0, relaxed, relaxed)));
	printf(" looks=%g", EACH(1000, __builtin_ia32_pause()) * 100);
	cpus = argv + 1;
	for (int i = 0; i < 2 && argc == 3; i++, sleeps = true)
		if (!pthread_create(&t, NULL, play, argv) && !play(NULL))
			pthread_join(t, NULL);
	return puts("") < 0;
}
