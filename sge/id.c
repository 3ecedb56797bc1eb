/*
 * The numbers that distinguish queues, and processes.
 */
#include "sge/id.h"

#include <pthread.h>
#include <stdatomic.h>

#include "sge/state.h"

unsigned hp_sgq_generation;

static void count_fork(void)
{
	hp_sgq_generation++;
}

static void watch_queue_forks(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

void hp_sgq_watch_forks(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_queue_forks);
}

uint64_t hp_sgq_new_id(void)
{
	static _Atomic uint32_t queues; /* relaxed: a number that no other queue has */
	uint32_t number = atomic_fetch_add_explicit(&queues, 1, memory_order_relaxed) & HP_SGQ_ID_QUEUES;
	return (uint64_t)HUGEPIN_SGQ_WR_ID << 48 | (uint64_t)number << HP_SGQ_ID_SHIFT;
}
