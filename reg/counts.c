#include "reg/counts.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/stats.h"
#include "reg/domain.h"

HP_TLS struct hp_counts *hp_counts_self;
static struct hp_counts_owner *_Atomic first;
static struct hp_counts_owner *shared; /* of threads that can have none of their own, to give pins back */
static _Atomic bool blind; /* membarrier(2) was refused */
static pthread_key_t at_exit;
static bool have_key;

#define SIZE (HP_COUNTS_OWNER_SIZE + HP_REGIONS_MAX * sizeof(struct hp_counts))

static struct hp_counts *counts_of(struct hp_counts_owner *c)
{
	return (struct hp_counts *)((char *)c + HP_COUNTS_OWNER_SIZE);
}

static void disown(void *counters)
{
	hp_counts_self = NULL;
	hp_domains_thread_ends();
	/* release: the next owner sees the counts as they were left; pairs with the exchange in take_spare(). */
	atomic_store_explicit(&((struct hp_counts_owner *)counters)->owned, false, memory_order_release);
}

static struct hp_counts_owner *take_spare(void)
{
	for (struct hp_counts_owner *c = first; c; c = c->next)
		if (!c->owned && !atomic_exchange_explicit(&c->owned, true, memory_order_acquire))
			return c;
	return NULL;
}

static struct hp_counts_owner *make(void)
{
	struct hp_counts_owner *c = hp_meta_map(SIZE);

	if (!c)
		return NULL;
	c->owned = true;
	c->next = first;
	/* release: whoever scans sees the counters' link. */
	while (!atomic_compare_exchange_weak_explicit(&first, &c->next, c, memory_order_release, memory_order_relaxed))
		;
	return c;
}

/* For hugepin top (base/stats.h). */
static void expose(void)
{
	__typeof__(&hp_exposed.view.counts) v = &hp_exposed.view.counts;

	v->first = (uintptr_t)&first;
	v->next = offsetof(struct hp_counts_owner, next);
	v->counts = HP_COUNTS_OWNER_SIZE;
	v->stride = sizeof(struct hp_counts);
	v->pins = offsetof(struct hp_counts, pins);
	v->unpins = offsetof(struct hp_counts, unpins);
}

int hp_counts_init(void)
{
	int saved = errno;

	expose();
	if (!have_key)
		have_key = pthread_key_create(&at_exit, disown) == 0;
	if (!have_key || syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0) {
		errno = saved;
		return -ENOSYS;
	}
	if (!shared)
		shared = make();
	return shared ? 0 : -ENOMEM;
}

bool hp_counts_adopt(void)
{
	struct hp_counts_owner *c = take_spare();

	if (!c && !(c = make()))
		return false;
	if (pthread_setspecific(at_exit, c) != 0) {
		disown(c);
		return false;
	}
	hp_counts_self = counts_of(c);
	return true;
}

void hp_counts_each(void (*each)(void *arg, struct hp_records *), void *arg)
{
	/* acquire: pairs with the release in make() */
	for (struct hp_counts_owner *c = atomic_load_explicit(&first, memory_order_acquire); c; c = c->next)
		each(arg, &c->records);
}

void hp_counts_unpin_shared(uint32_t region)
{
	__atomic_fetch_add(&counts_of(shared)[region].unpins, 1, __ATOMIC_RELEASE);
}

uint32_t hp_counts_sum(uint32_t region)
{
	struct hp_counts_owner *all = atomic_load_explicit(&first, memory_order_acquire);
	uint32_t sum = 0;

	if (blind)
		return UINT32_MAX;

	/* What was given back first: a pin that is made and given back in between counts for too much, not for too little. */
	for (struct hp_counts_owner *c = all; c; c = c->next)
		sum -= __atomic_load_n(&counts_of(c)[region].unpins, __ATOMIC_ACQUIRE);
	for (struct hp_counts_owner *c = all; c; c = c->next)
		sum += __atomic_load_n(&counts_of(c)[region].pins, __ATOMIC_ACQUIRE);
	return sum;
}

void hp_counts_barrier(void)
{
	int saved = errno;

	/* By a filter of system calls that was set since: from now on all registrations count as in use, for ever. */
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
		blind = true;
	atomic_signal_fence(memory_order_seq_cst);
	errno = saved;
}

void hp_counts_child(void)
{
	struct hp_counts_owner *all = first;

	first = NULL;
	blind = false;
	for (struct hp_counts_owner *c = all, *next; c; c = next) {
		next = c->next;
		hp_meta_zero(counts_of(c), SIZE - HP_COUNTS_OWNER_SIZE);
		/* Of the parent's domains. */
		c->records.tail = c->records.tail_seen = c->records.head;
		/* This thread's are left alone: a signal handler may have forked that interrupted counting. */
		if (counts_of(c) == hp_counts_self)
			continue;
		c->owned = c == shared;
		c->next = first;
		first = c;
	}
	hp_counts_self = NULL;
}
