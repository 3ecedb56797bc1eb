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

/* A pin's ref: the number of this opening, and the region. */
#define REF(opening) ((uint64_t)(opening) << 32)
#define REF_NONE REF(UINT32_MAX) /* the ref of a closed domain, which no pin has */

/* Domains that get addresses at a time. They lie side by side, and so do their backends, so that a process with many
 * domains needs few mappings. */
enum { SLAB = 64 };

enum { SOON_YIELDS = 100, SOON_SLEEPS = 10, SOON_SLEEP_NS = 1000000, WAITER_YIELDS = 50 };

static struct {
	struct hp_lock lock;
	/* relaxed: the lock of opening, or place_is_open() before it */
	hugepin_domain *_Atomic domain[HP_DOMAINS_MAX]; /* NULL until first used */
	/* relaxed: the lock of opening; threads that are still inside are waited for by `holders` */
	_Atomic bool open[HP_DOMAINS_MAX];
	_Atomic uint32_t used; /* places from this one on were never used */
	SLIST_HEAD(, hugepin_domain) free; /* places of closed domains */
	/* relaxed: the lock of opening; a thread that knows a domain was handed it */
	_Atomic unsigned count; /* open domains */
	uint32_t openings; /* so far; wraps, but is neither 0 nor that of REF_NONE */
	char *slab; /* the latest: base pages for backends, then domains */
	uint32_t slabs;
} domains = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_OPEN) };

/* Domains that only this thread may use. While it runs, no other thread closes them. */
static HP_TLS LIST_HEAD(, hugepin_domain) of_this_thread;

struct hp_job hp_domains_job;
uint64_t hp_domains_holds;
bool hp_sees_unmaps;

/* ------------------------------------------------------------------ opening and closing */

/* Tell hugepin top where the domains are (base/stats.h). */
static void expose_domains(void)
{
	__typeof__(&hp_exposed.view.domain) v = &hp_exposed.view.domain;

	v->domains = (uintptr_t)domains.domain;
	v->open = (uintptr_t)domains.open;
	v->used = (uintptr_t)&domains.used;
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

/* seq_cst: as place_is_open(), so that who looks for open domains looks far enough; pairs with new_place(). */
static uint32_t places_used(void)
{
	return atomic_load_explicit(&domains.used, memory_order_seq_cst);
}

/* A place that was never used, with memory. NULL: there is no memory. */
static hugepin_domain *new_place(uint32_t i)
{
	struct hugepin_backend *backend;
	hugepin_domain *d;

	if (i / SLAB == domains.slabs) {
		/* Aligned by hand: a test may have larger base pages than the kernel. */
		char *slab = hp_meta_reserve(SLAB * (hp_base_page + sizeof *d) + hp_base_page);

		if (!slab)
			return NULL;
		domains.slab = (char *)hp_round_up((uintptr_t)slab, hp_base_page);
		domains.slabs++;
	}
	backend = (void *)(domains.slab + i % SLAB * hp_base_page);
	d = (hugepin_domain *)(domains.slab + SLAB * hp_base_page) + i % SLAB;
	if (!hp_meta_open(backend, hp_base_page) || !hp_meta_open(d, sizeof *d))
		return NULL;
	d->backend = backend;
	d->number = i;
	d->ref = REF_NONE;
	make_locks(d);
	atomic_store_explicit(&domains.domain[i], d, memory_order_relaxed);
	atomic_store_explicit(&domains.used, i + 1, memory_order_seq_cst); /* pairs with places_used() */
	return d;
}

/* List the place of a domain that is not open. It may be listed already: in a child of fork, if the fork came from a
 * signal handler that interrupted an opening. */
static void list_free(hugepin_domain *d)
{
	if (d->free)
		return;
	d->free = true;
	SLIST_INSERT_HEAD(&domains.free, d, next_free);
}

int hp_domains_place(hugepin_domain **ret_)
{
	const uint32_t used = places_used();
	hugepin_domain *d;

	expose_domains();
	while ((d = SLIST_FIRST(&domains.free))) {
		SLIST_REMOVE_HEAD(&domains.free, next_free);
		d->free = false;
		if (!d->pid && !d->closing) /* else it was opened by what a handler had interrupted, see list_free() */
			break;
	}
	if (!d && used == HP_DOMAINS_MAX)
		return -ENOSPC;
	d = d ? d : new_place(used);
	if (!d)
		return -ENOMEM;
	*ret_ = d;
	return 0;
}

void hp_domains_leave_place(hugepin_domain *d)
{
	list_free(d);
}

void hp_domains_add(hugepin_domain *d)
{
	domains.openings = domains.openings >= UINT32_MAX - 1 ? 1 : domains.openings + 1;
	d->ref = REF(domains.openings);
	d->is_of_opener = d->opener_only;
	if (d->is_of_opener)
		LIST_INSERT_HEAD(&of_this_thread, d, of_opener);
	atomic_store_explicit(&domains.open[d->number], true, memory_order_seq_cst); /* pairs with place_is_open() */
	atomic_fetch_add_explicit(&domains.count, 1, memory_order_relaxed);
}

void hp_domains_remove(hugepin_domain *d)
{
	/* other threads may still be in the domain */
	atomic_store_explicit(&domains.open[d->number], false, memory_order_relaxed);
	atomic_fetch_sub_explicit(&domains.count, 1, memory_order_relaxed);
	d->ref = REF_NONE;
	for (unsigned kind = 0; kind < HP_WORK_KINDS; kind++)
		hp_work_clear(d, kind);
	if (d->is_of_opener)
		LIST_REMOVE(d, of_opener);
	d->is_of_opener = false;
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
	if (!d->pid)
		list_free(d);
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
	hp_work_child();
	SLIST_INIT(&domains.free);
	LIST_INIT(&of_this_thread);
	for (uint32_t i = 0; i < places_used(); i++) {
		hugepin_domain *d = get_place(i);

		atomic_store_explicit(&domains.open[i], false, memory_order_relaxed);
		make_locks(d);
		atomic_store_explicit(&d->holders, 0, memory_order_relaxed);
		d->closing = false;
		d->ref = REF_NONE; /* the child accepts no ref: an unpin of the parent's pin fails */
		d->free = false;
		if (d->pid)
			d->pid = HP_PARENT;
		else
			list_free(d);
	}
}

/* ------------------------------------------------------------------ all that are open */

void hp_domains_each(void (*each)(hugepin_domain *d, void *arg), void *arg)
{
	for (uint32_t i = 0; i < places_used(); i++)
		if (place_is_open(i))
			each(get_place(i), arg);
}

/* Hold the domain open, unless it is being closed, or is closed: then a thread that told of an unmapping was late. */
static bool hold(hugepin_domain *d, enum hp_work kind)
{
	bool may;

	hp_lock(&domains.lock);
	may = place_is_open(d->number) && !d->closing;
	hp_domains_holds++;
	if (may)
		atomic_fetch_add_explicit(&d->holders, 1, memory_order_relaxed);
	else if (!d->closing)
		hp_work_clear(d, kind);
	hp_unlock(&domains.lock);
	return may;
}

static void let_go(hugepin_domain *d)
{
	bool last;

	hp_lock(&domains.lock);
	last = atomic_fetch_sub_explicit(&d->holders, 1, memory_order_relaxed) == 1;
	hp_unlock(&domains.lock);
	if (last)
		hp_futex_wake(&d->holders);
}

void hp_domains_each_held(enum hp_work kind, void (*each)(hugepin_domain *d, void *arg), void *arg)
{
	for (uint32_t i = 0; i < places_used(); i += HP_WORK_WORD)
		for (uint64_t bits = hp_work_of(kind, i); bits; bits &= bits - 1) {
			hugepin_domain *d = get_place(i + (uint32_t)__builtin_ctzll(bits));

			if (!hold(d, kind))
				continue;
			each(d, arg);
			let_go(d);
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

static void note_opener_ended(hugepin_domain *d)
{
	atomic_store_explicit(&d->opener_ended, true, memory_order_release); /* pairs with hugepin_domain_close() */
	/* another thread will get these counters */
	atomic_store_explicit(&d->opener_counts, NULL, memory_order_relaxed);
}

void hp_domains_thread_ends(void)
{
	hugepin_domain *d;

	if (LIST_EMPTY(&of_this_thread))
		return;
	hp_domains_lock(); /* from here on other threads may close these domains */
	while ((d = LIST_FIRST(&of_this_thread))) {
		LIST_REMOVE(d, of_opener);
		d->is_of_opener = false;
		note_opener_ended(d);
	}
	hp_domains_unlock();
}

bool hp_domain_may_register(const hugepin_domain *d)
{
	return !d->opener_only || d->opener == hp_thread_number();
}

bool hp_lock_soon(struct hp_lock *l)
{
	for (int i = 0; i < SOON_YIELDS + SOON_SLEEPS; i++) {
		if (hp_trylock(l))
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
