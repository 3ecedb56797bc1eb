/*
 * The numbers that distinguish queues, pools and processes, and the way from a completion to who posted its work
 * request (id.h).
 *
 * A number's low bits are a place in a table of all takers. Numbers are given out in turn, and one whose place is taken
 * is left out. So two that are open never have one place, a completion costs the same however many are open, and
 * nothing is locked.
 */
#include "sge/id.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "hugepin_verbs.h"

#define NUMBERS (1u << 24)
#define PLACES (1u << 16)

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

static struct hp_taker *_Atomic taker_at[PLACES];

static struct hp_taker *_Atomic *place_of(uint64_t id)
{
	return &taker_at[id >> HP_SGQ_ID_SHIFT & (PLACES - 1)];
}

int hp_taker_open(struct hp_taker *t)
{
	static _Atomic uint32_t numbers; /* relaxed: a number that nobody else gets */
	static struct hp_taker nobody; /* whose number is no queue's */

	for (uint32_t tries = 0; tries < PLACES; tries++) {
		struct hp_taker *none = NULL;
		uint64_t number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) & (NUMBERS - 1);
		uint64_t id = (uint64_t)HUGEPIN_SGQ_WR_ID << 48 | number << HP_SGQ_ID_SHIFT;
		/* relaxed: `nobody` has nothing to see */
		if (atomic_compare_exchange_strong_explicit(place_of(id), &none, &nobody, memory_order_relaxed,
							    memory_order_relaxed)) {
			t->id = id;
			return 0;
		}
	}
	return -ENOBUFS;
}

void hp_taker_begin(struct hp_taker *t)
{
	/* pairs with hugepin_sg_wc(), which sees what the taker's opening has written */
	atomic_store_explicit(place_of(t->id), t, memory_order_release);
}

void hp_taker_close(struct hp_taker *t)
{
	/* relaxed: the program hands in no completion of what it closes */
	atomic_store_explicit(place_of(t->id), NULL, memory_order_relaxed);
}

int hugepin_sg_wc(const struct ibv_wc *wc)
{
	if (!wc)
		return -EINVAL;
	/* pairs with hp_taker_begin() */
	struct hp_taker *t = atomic_load_explicit(place_of(wc->wr_id), memory_order_acquire);
	return t && t->id == (wc->wr_id & ~((UINT64_C(1) << HP_SGQ_ID_SHIFT) - 1)) ? t->take(t, wc) : 0;
}
