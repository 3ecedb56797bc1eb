/*
 * See domains.h.
 *
 * One lock guards opening and closing. A thread that works on a domain holds it open by a count, and a thread that
 * closes the domain waits until the count is 0.
 */
#include "reg/domains.h"

#include <errno.h>
#include <pthread.h>

#include "base/stats.h"
#include "base/sys.h"

/* A pin's ref: the domain's number, how often this number was used before, and the region. */
#define REF(number, use) ((uint64_t)(number) << 58 | (uint64_t)((use) & 0x3ffffff) << 32)
#define REF_NONE (UINT64_MAX << 32) /* the ref of a closed domain, which no pin has */

/* A domain's lock that stays taken for about 10 ms is held by a thread in a call of a slow device. */
enum { SOON_YIELDS = 100, SOON_SLEEPS = 10, SOON_SLEEP_NS = 1000000, WAITER_YIELDS = 50 };

static struct {
	struct hp_lock lock;
	/* relaxed: the lock of opening, or place_is_open() before it */
	hugepin_domain *_Atomic domain[HUGEPIN_DOMAINS_MAX]; /* NULL until first used */
	/* relaxed: the lock of opening; threads that are still inside are waited for by `holders` */
	_Atomic bool open[HUGEPIN_DOMAINS_MAX];
	/* relaxed: the lock of opening; a thread that knows a domain was handed it */
	_Atomic unsigned count; /* open domains */
	uint32_t uses; /* openings so far; never a multiple of 2^26, so that no ref is 0 */
} domains = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_OPEN) };

struct hp_job hp_domains_job;
bool hp_sees_unmaps;

/* ------------------------------------------------------------------ opening and closing */

/* Tell hugepin top where the domains are (base/stats.h). */
static void expose_domains(void)
{
	__typeof__(&hp_exposed.view.domain) v = &hp_exposed.view.domain;

	v->domains = (uintptr_t)domains.domain;
	v->open = (uintptr_t)domains.open;
	v->count = HUGEPIN_DOMAINS_MAX;
	v->size = sizeof(hugepin_domain);
	v->ref = offsetof(hugepin_domain, ref);
	v->policy = offsetof(hugepin_domain, policy);
	v->helper = offsetof(hugepin_domain, helper);
	v->backend_name = offsetof(hugepin_domain, backend_name);
	v->stats = offsetof(hugepin_domain, stats);
	v->stats_size = sizeof(struct hugepin_domain_stats);
}

void hp_domains_lock(void)
{
	hp_lock(&domains.lock);
}

void hp_domains_unlock(void)
{
	hp_unlock(&domains.lock);
}

/* Called once for each place, not at each opening, because the reader of events may still be in a closed domain. */
static void make_locks(hugepin_domain *d)
{
	hp_lock_reset(&d->lock);
	d->lock.rank = HP_LOCK_RANK_DOMAIN;
	hp_lock_reset(&d->queue_lock);
	d->queue_lock.rank = HP_LOCK_RANK_GONE;
}

/* The domain at a place. Call with the lock of opening, or after the place was seen open. */
static hugepin_domain *get_place(uint32_t i)
{
	return atomic_load_explicit(&domains.domain[i], memory_order_relaxed);
}

/* seq_cst: the domain is as it was opened; pairs with hp_domains_add(). The watcher has counted its round before, so
 * either it sees the domain, or the opener sees the round and waits for it (hp_uffd_wait()). */
static bool place_is_open(uint32_t i)
{
	return atomic_load_explicit(&domains.open[i], memory_order_seq_cst);
}

int hp_domains_place(hugepin_domain **ret_)
{
	expose_domains();
	for (uint32_t i = 0; i < HUGEPIN_DOMAINS_MAX; i++) {
		hugepin_domain *d = get_place(i);

		if (d && (d->pid || d->closing)) /* the domain is open, or the parent's and not yet closed here */
			continue;
		if (!d) {
			struct hugepin_backend *backend = hp_meta_map(hp_base_page);

			d = hp_meta_map(sizeof *d);
			if (!d || !backend) {
				hp_meta_unmap(d, sizeof *d);
				hp_meta_unmap(backend, hp_base_page);
				return -ENOMEM;
			}
			d->backend = backend;
			d->number = i;
			d->ref = REF_NONE;
			make_locks(d);
			atomic_store_explicit(&domains.domain[i], d, memory_order_relaxed);
		}
		*ret_ = d;
		return 0;
	}
	return -ENOSPC;
}

void hp_domains_add(hugepin_domain *d)
{
	domains.uses += ((domains.uses + 1) & 0x3ffffff) ? 1 : 2;
	d->ref = REF(d->number, domains.uses);
	atomic_store_explicit(&domains.open[d->number], true, memory_order_seq_cst); /* pairs with place_is_open() */
	atomic_fetch_add_explicit(&domains.count, 1, memory_order_relaxed);
}

void hp_domains_remove(hugepin_domain *d)
{
	/* other threads may still be in the domain */
	atomic_store_explicit(&domains.open[d->number], false, memory_order_relaxed);
	atomic_fetch_sub_explicit(&domains.count, 1, memory_order_relaxed);
	d->ref = REF_NONE;
}

bool hp_domains_start_closing(hugepin_domain *d)
{
	uint32_t holders;

	hp_lock(&domains.lock);
	if (d->closing || !d->pid) {
		hp_unlock(&domains.lock);
		return false;
	}
	d->closing = true;
	while ((holders = atomic_load_explicit(&d->holders, memory_order_relaxed))) {
		hp_unlock(&domains.lock);
		hp_futex_wait(&d->holders, holders, UINT64_MAX);
		hp_lock(&domains.lock);
	}
	hp_unlock(&domains.lock);
	return true;
}

void hp_domains_end_closing(hugepin_domain *d)
{
	hp_lock(&domains.lock);
	d->closing = false;
	hp_unlock(&domains.lock);
}

bool hp_domains_any(void)
{
	return atomic_load_explicit(&domains.count, memory_order_relaxed);
}

/* There is no other thread, so no operation needs a memory order. */
void hp_domains_child(void)
{
	atomic_store_explicit(&domains.count, 0, memory_order_relaxed);
	hp_lock_reset(&domains.lock);
	atomic_store_explicit(&hp_domains_job.asked, false, memory_order_relaxed);
	for (uint32_t i = 0; i < HUGEPIN_DOMAINS_MAX; i++) {
		hugepin_domain *d = get_place(i);

		atomic_store_explicit(&domains.open[i], false, memory_order_relaxed);
		if (!d)
			continue;
		make_locks(d);
		atomic_store_explicit(&d->holders, 0, memory_order_relaxed);
		d->closing = false;
		d->ref = REF_NONE; /* the child accepts no ref: an unpin of the parent's pin fails */
		if (d->pid)
			d->pid = HP_PARENT;
	}
}

/* ------------------------------------------------------------------ all that are open */

void hp_domains_each(void (*each)(hugepin_domain *d, void *arg), void *arg)
{
	for (uint32_t i = 0; i < HUGEPIN_DOMAINS_MAX; i++)
		if (place_is_open(i))
			each(get_place(i), arg);
}

void hp_domains_each_held(void (*each)(hugepin_domain *d, void *arg), void *arg)
{
	for (uint32_t i = 0; i < HUGEPIN_DOMAINS_MAX; i++) {
		hugepin_domain *d;
		bool last;

		hp_lock(&domains.lock);
		d = get_place(i);
		if (!place_is_open(i) || d->closing) {
			hp_unlock(&domains.lock);
			continue;
		}
		atomic_fetch_add_explicit(&d->holders, 1, memory_order_relaxed);
		hp_unlock(&domains.lock);
		each(d, arg);
		hp_lock(&domains.lock);
		last = atomic_fetch_sub_explicit(&d->holders, 1, memory_order_relaxed) == 1;
		hp_unlock(&domains.lock);
		if (last)
			hp_futex_wake(&d->holders);
	}
}

void hp_domains_wake(void)
{
	if (hp_domains_any() && hp_service_running())
		hp_service_ask(&hp_domains_job);
}

void hp_domains_start(void)
{
	hp_service_ask(&hp_domains_job);
}

/* ------------------------------------------------------------------ threads */

uint64_t hp_thread_number(void)
{
	static _Atomic uint64_t last; /* relaxed: a number that no other thread has */
	static HP_TLS uint64_t number;

	if (!number)
		number = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
	return number;
}

static void note_opener_ended(hugepin_domain *d, void *thread)
{
	if (d->opener != *(uint64_t *)thread)
		return;
	atomic_store_explicit(&d->opener_ended, true, memory_order_release); /* pairs with hugepin_domain_close() */
	/* another thread will get these counters */
	atomic_store_explicit(&d->opener_counts, NULL, memory_order_relaxed);
}

void hp_domains_thread_ends(void)
{
	uint64_t thread = hp_thread_number();

	hp_domains_lock(); /* a domain that is closed meanwhile may be opened by another thread */
	hp_domains_each(note_opener_ended, &thread);
	hp_domains_unlock();
}

bool hp_domain_may_register(const hugepin_domain *d)
{
	return !d->opener_only || d->opener == hp_thread_number();
}

bool hp_domain_lock_soon(hugepin_domain *d)
{
	for (int i = 0; i < SOON_YIELDS + SOON_SLEEPS; i++) {
		if (hp_trylock(&d->lock))
			return true;
		if (i < SOON_YIELDS)
			hp_sys(SYS_sched_yield);
		else
			hp_futex_sleep(SOON_SLEEP_NS);
	}
	return false;
}

bool hp_domain_pins_wait(const hugepin_domain *d)
{
	return atomic_load_explicit(&d->waiting, memory_order_relaxed);
}

bool hp_domain_let_pass(hugepin_domain *d)
{
	hp_unlock(&d->lock);
	for (int i = 0; hp_domain_pins_wait(d) && i < WAITER_YIELDS; i++)
		hp_sys(SYS_sched_yield);
	return hp_domain_lock_soon(d);
}

int hp_foreign_begin(void)
{
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	return state;
}

void hp_foreign_end(int state)
{
	pthread_setcancelstate(state, NULL);
}
