/*
 * News from the pin cache: lent memory is wanted back, or there is no room. News come with the domain's lock, even
 * inside munmap and malloc. So they are only noted here, in fixed memory. The next call of message() or progress(), or
 * of key() for a key that is not borrowed yet, carries them out. The service thread calls wake(), so that the program
 * makes such a call. It also calls wake() when a peer becomes late, because then no message may come.
 *
 * If there is no room to note one, all keys are asked back, because memory that is wanted would otherwise be held for
 * ever.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/service.h"
#include "lend/news.h"
#include "lend/serve.h"
#include "lend/state.h"
#include "reg/lent.h"

/* ------------------------------------------------------------------ wake() */

static struct {
	struct hp_lock lock;
	LIST_HEAD(, hugepin_lend) all;
	bool forks; /* the handler is set */
} lends = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_LEND), .all = LIST_HEAD_INITIALIZER(lends.all) };

static bool call_wakes(void);
static struct hp_job wakes = { .run = call_wakes };

/* Whether a peer is late that a question waits for. If one will be, *ret_again is lowered to that time. */
static bool is_late(hugepin_lend *l, uint64_t *ret_again)
{
	uint64_t late_at;

	/* acq_rel: pairs with hp_news_late(). Either `late_at` is seen here, or this job is asked for again. */
	if (!atomic_exchange_explicit(&l->watches_late, false, memory_order_acq_rel))
		return false;
	late_at = atomic_load_explicit(&l->late_at, memory_order_relaxed);
	if (late_at == UINT64_MAX || late_at <= hp_clock_ns())
		return late_at != UINT64_MAX;
	/* relaxed: only this thread lowers the flag, and does that before it looks again */
	atomic_store_explicit(&l->watches_late, true, memory_order_relaxed);
	*ret_again = HP_MIN(*ret_again, late_at);
	return false;
}

/* A lend to wake. It stays open while `waking` is set. *ret_again: if there is none, when one may be. */
static hugepin_lend *next_to_wake(uint64_t *ret_again)
{
	hugepin_lend *l;

	*ret_again = UINT64_MAX;
	hp_lock(&lends.lock);
	LIST_FOREACH(l, &lends.all, all)
		if (atomic_exchange_explicit(&l->wake, false, memory_order_relaxed) || is_late(l, ret_again)) {
			atomic_store_explicit(&l->waking, 1, memory_order_relaxed);
			break;
		}
	hp_unlock(&lends.lock);
	return l;
}

static bool call_wakes(void)
{
	hugepin_lend *l;
	uint64_t again;

	while ((l = next_to_wake(&again))) {
		l->attr.wake(l->arg);
		/* release: wake() is over when hp_news_end() sees this; pairs with its acquire */
		atomic_store_explicit(&l->waking, 0, memory_order_release);
		hp_futex_wake(&l->waking);
	}
	wakes.again_ns = again == UINT64_MAX ? 0 : again;
	return false;
}

/* The child has no lend, and no other thread. */
static void in_child(void)
{
	hp_lock_reset(&lends.lock);
	LIST_INIT(&lends.all);
	atomic_store_explicit(&wakes.asked, false, memory_order_relaxed);
}

/* ------------------------------------------------------------------ noting */

void hp_news_wake(hugepin_lend *l)
{
	if (!l->attr.wake)
		return;
	atomic_store_explicit(&l->wake, true, memory_order_relaxed); /* hp_service_ask() lets the job see this */
	if (hp_service_running())
		hp_service_ask(&wakes);
}

void hp_news_late(hugepin_lend *l)
{
	/* acq_rel: pairs with is_late() */
	if (l->attr.wake && !atomic_exchange_explicit(&l->watches_late, true, memory_order_acq_rel) &&
	    !hp_service_ask(&wakes))
		atomic_store_explicit(&l->watches_late, false, memory_order_relaxed); /* no thread looks; ask again */
}

static void tell(hugepin_lend *l)
{
	atomic_fetch_or_explicit(&l->attention, HP_ATTEND_NEWS, memory_order_relaxed);
	hp_news_wake(l);
}

static void note(hugepin_lend *l, uint32_t region, bool dropped)
{
	struct hp_news *n = &l->news;

	hp_lock(&n->lock);
	if (n->count == HP_NEWS_MAX) {
		n->lost = true;
	} else {
		n->region[n->count] = region;
		n->dropped[n->count++] = dropped;
	}
	hp_unlock(&n->lock);
	tell(l);
}

static void wanted(void *l, uint32_t region)
{
	note(l, region, false);
}

static void dropped(void *l, uint32_t region)
{
	note(l, region, true);
}

static void crowded(void *arg, size_t bytes)
{
	hugepin_lend *l = arg;

	hp_lock(&l->news.lock);
	l->news.crowded = HP_MAX(l->news.crowded, bytes);
	hp_unlock(&l->news.lock);
	tell(l);
}

static const struct hp_lend_hooks hooks = { .wanted = wanted, .dropped = dropped, .crowded = crowded };

/* ------------------------------------------------------------------ taking in */

void hp_news_take(hugepin_lend *l)
{
	uint32_t region[HP_NEWS_MAX], count;
	bool was_dropped[HP_NEWS_MAX], lost;
	uint64_t bytes;

	atomic_fetch_and_explicit(&l->attention, ~(uint32_t)HP_ATTEND_NEWS, memory_order_relaxed);
	hp_lock(&l->news.lock);
	count = l->news.count;
	lost = l->news.lost;
	bytes = l->news.crowded;
	memcpy(region, l->news.region, count * sizeof *region);
	memcpy(was_dropped, l->news.dropped, count * sizeof *was_dropped);
	l->news.count = 0;
	l->news.lost = false;
	l->news.crowded = 0;
	hp_unlock(&l->news.lock);
	for (uint32_t i = 0; i < count; i++)
		hp_serve_region(l, region[i], was_dropped[i]);
	if (lost)
		hp_serve_all_regions(l);
	if (bytes)
		hp_serve_crowded(l, bytes);
}

/* ------------------------------------------------------------------ beginning and ending */

int hp_news_begin(hugepin_lend *l)
{
	int err;

	l->news.lock = (struct hp_lock)HP_LOCK_INIT(HP_LOCK_RANK_QUEUE);
	hp_lock(&lends.lock);
	if (!lends.forks)
		lends.forks = pthread_atfork(NULL, NULL, in_child) == 0;
	err = lends.forks ? 0 : -ENOMEM;
	hp_unlock(&lends.lock);
	err = err ? err : hp_lent_set(l->domain, &hooks, l);
	if (err)
		return err;
	hp_lock(&lends.lock);
	LIST_INSERT_HEAD(&lends.all, l, all);
	hp_unlock(&lends.lock);
	/* Start the service thread here, because news come with locks held and can only wake it. */
	if (l->attr.wake)
		hp_service_ask(&wakes);
	return 0;
}

void hp_news_end(hugepin_lend *l)
{
	hp_lent_clear(l->domain);
	hp_lock(&lends.lock);
	LIST_REMOVE(l, all);
	hp_unlock(&lends.lock);
	/* acquire: pairs with call_wakes() */
	while (atomic_load_explicit(&l->waking, memory_order_acquire))
		hp_futex_wait(&l->waking, 1, UINT64_MAX);
}
