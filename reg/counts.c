/* See counts.h. */
#include "reg/counts.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/key.h"
#include "base/stats.h"
#include "reg/domains.h"

/* The table lets a scan load many owners at a time, whereas following the list waits for memory at each owner. Scans
 * use the table only while it has a place for every owner. */
enum { TABLE_MAX = 4096 };

HP_TLS struct hp_counts *hp_counts_self;
static struct hp_counts_owner *_Atomic first; /* relaxed: the exchange in make_owner() publishes it by release */
static struct hp_counts_owner *_Atomic table[TABLE_MAX]; /* by number; relaxed: in the child no other thread */
static _Atomic uint32_t made; /* relaxed: make_owner() comes before the thread's first count */
/* counters for threads that cannot get their own; only unpins are counted here */
static struct hp_counts_owner *shared;
static _Atomic bool blind; /* membarrier(2) was refused; relaxed: a thread whose barrier was refused sums next */
static pthread_key_t at_exit;
static bool have_key;

#define SPARE 4096 /* bytes: room for the colour */
#define SIZE (HP_COUNTS_OWNER_SIZE + SPARE + HP_REGIONS_MAX * sizeof(struct hp_counts))

/* Each thread's counters begin at another cache line of their page, because otherwise all threads' counters of one
 * region would compete for one set of each cache. The offset grows by a line, as far as there is room behind the
 * owner. */
#define LINE 64
#define COLOURS ((HP_COUNTS_OWNER_SIZE - sizeof(struct hp_counts_owner)) / LINE)
_Static_assert(COLOURS > 8 && COLOURS <= SPARE / LINE, "the counters begin in the room behind the owner's");

static struct hp_counts *counts_of(struct hp_counts_owner *c)
{
	return (struct hp_counts *)((char *)c + HP_COUNTS_OWNER_SIZE);
}

static void disown(void *counters)
{
	hp_counts_self = NULL;
	hp_domains_thread_ends();
	/* release: the next owner sees the counts that this thread left; pairs with take_spare(). */
	atomic_store_explicit(&((struct hp_counts_owner *)counters)->owned, false, memory_order_release);
}

/* acquire: the owner's links are seen too; pairs with make_owner(). */
static inline struct hp_counts_owner *get_first(void)
{
	return atomic_load_explicit(&first, memory_order_acquire);
}

/* acquire: the counts that the last owner left are seen; pairs with disown(). */
static struct hp_counts_owner *take_spare(void)
{
	for (struct hp_counts_owner *c = get_first(); c; c = c->next)
		if (!atomic_load_explicit(&c->owned, memory_order_relaxed) &&
		    !atomic_exchange_explicit(&c->owned, true, memory_order_acquire))
			return c;
	return NULL;
}

static struct hp_counts_owner *make_owner(void)
{
	char *at = hp_meta_map(SIZE);
	uint32_t number = atomic_load_explicit(&made, memory_order_relaxed); /* approximate: only for the cache line */
	struct hp_counts_owner *c;

	if (!at)
		return NULL;
	c = (struct hp_counts_owner *)(at + number % COLOURS * LINE);
	atomic_store_explicit(&c->owned, true, memory_order_relaxed);
	c->number = number = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
	c->next = atomic_load_explicit(&first, memory_order_relaxed);
	/* release: a scan sees the owner's link; pairs with scan_owners(). */
	while (!atomic_compare_exchange_weak_explicit(&first, &c->next, c, memory_order_release, memory_order_relaxed))
		;
	if (number < TABLE_MAX) /* release: a scan sees the owner's members; pairs with scan_owners() */
		atomic_store_explicit(&table[number], c, memory_order_release);
	return c;
}

/* Call each() for every owner. An owner that is not yet in the list or table has counted nothing. acquire: pairs with
 * the releases in make_owner(). */
static inline __attribute__((always_inline)) void scan_owners(void (*each)(struct hp_counts_owner *, void *arg),
							      void *arg)
{
	struct hp_counts_owner *c;
	/* relaxed: a thread makes its counters before it counts, and a scan that must see the count comes after the
	 * count. */
	uint32_t n = atomic_load_explicit(&made, memory_order_relaxed);

	if (n > TABLE_MAX) {
		for (c = get_first(); c; c = c->next)
			each(c, arg);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		if ((c = atomic_load_explicit(&table[i], memory_order_acquire)))
			each(c, arg);
}

/* Tell hugepin top where the counters are (base/stats.h). */
static void expose_counts(void)
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
	expose_counts();
	if (!have_key)
		have_key = hp_key_create(&at_exit, disown) == 0;
	if (!have_key || !hp_barrier_register())
		return -ENOSYS;
	if (!shared)
		shared = make_owner();
	return shared ? 0 : -ENOMEM;
}

bool hp_counts_adopt(void)
{
	struct hp_counts_owner *c = take_spare();

	if (!c && !(c = make_owner()))
		return false;
	if (pthread_setspecific(at_exit, c) != 0) {
		disown(c);
		return false;
	}
	hp_counts_self = counts_of(c);
	return true;
}

struct each {
	void (*call)(void *arg, struct hp_records *);
	void *arg;
};

static inline void tell_records(struct hp_counts_owner *c, void *each)
{
	((struct each *)each)->call(((struct each *)each)->arg, &c->records);
}

void hp_counts_each(void (*each)(void *arg, struct hp_records *), void *arg)
{
	scan_owners(tell_records, &(struct each){ each, arg });
}

void hp_counts_unpin_shared(uint32_t region)
{
	/* release: as in hp_count(); pairs with add_pins_out() */
	atomic_fetch_add_explicit(&counts_of(shared)[region].unpins, 1, memory_order_release);
}

struct sum {
	uint32_t region, sum;
};

/* Read unpins before pins, so that a pin made and undone in between counts too much, never too little. The sum still
 * sees every pin whose unpin it sees: the thread that unpins has seen the pin first, and once no more pins can be made,
 * all were counted before the barrier. acquire: pairs with hp_count(). */
static inline void add_pins_out(struct hp_counts_owner *c, void *sum)
{
	struct sum *s = sum;
	struct hp_counts *counts = &counts_of(c)[s->region];

	s->sum -= atomic_load_explicit(&counts->unpins, memory_order_acquire);
	s->sum += atomic_load_explicit(&counts->pins, memory_order_acquire);
}

/* acquire: pairs with hp_count(). */
static inline void add_pins(struct hp_counts_owner *c, void *sum)
{
	struct sum *s = sum;

	s->sum += atomic_load_explicit(&counts_of(c)[s->region].pins, memory_order_acquire);
}

uint32_t hp_counts_sum(uint32_t region)
{
	struct sum s = { .region = region };

	if (atomic_load_explicit(&blind, memory_order_relaxed))
		return UINT32_MAX;
	scan_owners(add_pins_out, &s);
	return s.sum;
}

_Atomic uint64_t hp_counts_undone;

uint32_t hp_counts_made(uint32_t region)
{
	struct sum s = { .region = region };

	scan_owners(add_pins, &s);
	return s.sum;
}

void hp_counts_barrier(void)
{
	/* A filter of system calls that was installed since refuses membarrier(2), so from now on every registration
	 * counts as in use. */
	if (!hp_barrier_all_threads())
		atomic_store_explicit(&blind, true, memory_order_relaxed);
}

static void list_again(struct hp_counts_owner *c)
{
	if (c->number < TABLE_MAX) /* the thread that made it may have been interrupted before it filled the table */
		atomic_store_explicit(&table[c->number], c, memory_order_relaxed);
	c->next = atomic_load_explicit(&first, memory_order_relaxed);
	atomic_store_explicit(&first, c, memory_order_relaxed);
}

/* There is no other thread, so no operation needs a memory order. */
void hp_counts_child(void)
{
	struct hp_counts_owner *all = atomic_load_explicit(&first, memory_order_relaxed);

	atomic_store_explicit(&hp_counts_undone, 0, memory_order_relaxed);
	atomic_store_explicit(&first, NULL, memory_order_relaxed);
	atomic_store_explicit(&blind, false, memory_order_relaxed);
	for (struct hp_counts_owner *c = all, *next; c; c = next) {
		next = c->next;
		hp_meta_zero(counts_of(c), HP_REGIONS_MAX * sizeof(struct hp_counts));
		/* The records are about the parent's domains: drop them. */
		c->records.tail_seen = atomic_load_explicit(&c->records.head, memory_order_relaxed);
		atomic_store_explicit(&c->records.tail, c->records.tail_seen, memory_order_relaxed);
		/* Leave this thread's counters alone, because a signal handler may have forked while it interrupted
		 * counting. */
		if (counts_of(c) == hp_counts_self) {
			if (c->number < TABLE_MAX)
				atomic_store_explicit(&table[c->number], NULL, memory_order_relaxed);
			continue;
		}
		atomic_store_explicit(&c->owned, c == shared, memory_order_relaxed);
		list_again(c);
	}
	hp_counts_self = NULL;
}
