#include "reg/counts.h"

#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/key.h"
#include "base/stats.h"
#include "reg/domains.h"

/* A scan that goes from one owner to the next waits for memory at each of them; by a table it waits for many at a time.
 * While all have a place in it, it is used. */
enum { TABLE_MAX = 4096 };

HP_TLS struct hp_counts *hp_counts_self;
static struct hp_counts_owner *_Atomic first;
static struct hp_counts_owner *_Atomic table[TABLE_MAX]; /* by number */
static _Atomic uint32_t made;
static struct hp_counts_owner *shared; /* of threads that can have none of their own, to give pins back */
static _Atomic bool blind; /* membarrier(2) was refused */
static pthread_key_t at_exit;
static bool have_key;

#define PAGE 4096
#define SIZE (HP_COUNTS_OWNER_SIZE + PAGE + HP_REGIONS_MAX * sizeof(struct hp_counts))

/* The counters of one region begin at another cache line of their page for each thread: else they would all contend for
 * one set of each cache. In steps of a line, as far as there is room behind the owner. */
#define LINE 64
#define COLOURS ((HP_COUNTS_OWNER_SIZE - sizeof(struct hp_counts_owner)) / LINE)
_Static_assert(COLOURS > 8 && COLOURS <= PAGE / LINE, "the counters begin on the page after the owner's");

static struct hp_counts *counts_of(struct hp_counts_owner *c)
{
	return (struct hp_counts *)((char *)c + HP_COUNTS_OWNER_SIZE);
}

static void disown(void *counters)
{
	hp_counts_self = NULL;
	hp_domains_thread_ends();
	/* release: the next owner sees the counts as they were left; pairs with take_spare(). */
	atomic_store_explicit(&((struct hp_counts_owner *)counters)->owned, false, memory_order_release);
}

/* acquire: with its links; pairs with make_owner(). */
static inline struct hp_counts_owner *get_first(void)
{
	return atomic_load_explicit(&first, memory_order_acquire);
}

/* acquire: the counts are as their owner left them; pairs with disown(). */
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
	uint32_t number = atomic_load_explicit(&made, memory_order_relaxed); /* about */
	struct hp_counts_owner *c = (struct hp_counts_owner *)(at + number % COLOURS * LINE);

	if (!at)
		return NULL;
	atomic_store_explicit(&c->owned, true, memory_order_relaxed);
	c->number = number = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
	c->next = atomic_load_explicit(&first, memory_order_relaxed);
	/* release: whoever scans sees the counters' link; pairs with scan_owners(). */
	while (!atomic_compare_exchange_weak_explicit(&first, &c->next, c, memory_order_release, memory_order_relaxed))
		;
	if (number < TABLE_MAX) /* release: the same; pairs with scan_owners() */
		atomic_store_explicit(&table[number], c, memory_order_release);
	return c;
}

/* Call each() for every owner; acquire: pairs with the releases in make_owner(). One that stands nowhere yet has
 * counted nothing. */
static inline __attribute__((always_inline)) void scan_owners(void (*each)(struct hp_counts_owner *, void *arg),
							      void *arg)
{
	struct hp_counts_owner *c;
	/* relaxed: whoever has counted made the counters before, and a scan that must see the count comes after it. */
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

/* For hugepin top (base/stats.h). */
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
	/* release: as hp_count(); pairs with add_pins_out() */
	atomic_fetch_add_explicit(&counts_of(shared)[region].unpins, 1, memory_order_release);
}

struct sum {
	uint32_t region, sum;
};

/* Read unpins before pins: a pin made and undone in between then counts too much, never too little. A pin that another
 * thread gives back was counted before, and where no more can be made, before the barrier: each count of a pin is seen.
 * acquire: pairs with hp_count(). */
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

/* acquire: pairs with hp_count(). */
static inline void take_unpins(struct hp_counts_owner *c, void *sum)
{
	struct sum *s = sum;

	s->sum -= atomic_load_explicit(&counts_of(c)[s->region].unpins, memory_order_acquire);
}

uint32_t hp_counts_sum(uint32_t region)
{
	struct sum s = { .region = region };

	if (atomic_load_explicit(&blind, memory_order_relaxed))
		return UINT32_MAX;
	scan_owners(add_pins_out, &s);
	return s.sum;
}

uint32_t hp_counts_made(uint32_t region)
{
	struct sum s = { .region = region };

	scan_owners(add_pins, &s);
	return s.sum;
}

bool hp_counts_short(uint32_t region)
{
	struct sum s = { .region = region };

	scan_owners(take_unpins, &s);
	scan_owners(add_pins, &s);
	return s.sum > INT32_MAX;
}

void hp_counts_barrier(void)
{
	/* By a filter of system calls that was set since: from now on all registrations count as in use, for ever. */
	if (!hp_barrier_all_threads())
		atomic_store_explicit(&blind, true, memory_order_relaxed);
}

static void list_again(struct hp_counts_owner *c)
{
	if (c->number < TABLE_MAX) /* its maker may have been about to */
		atomic_store_explicit(&table[c->number], c, memory_order_relaxed);
	c->next = atomic_load_explicit(&first, memory_order_relaxed);
	atomic_store_explicit(&first, c, memory_order_relaxed);
}

/* There is no other thread: nothing needs an order. */
void hp_counts_child(void)
{
	struct hp_counts_owner *all = atomic_load_explicit(&first, memory_order_relaxed);

	atomic_store_explicit(&first, NULL, memory_order_relaxed);
	atomic_store_explicit(&blind, false, memory_order_relaxed);
	for (struct hp_counts_owner *c = all, *next; c; c = next) {
		uintptr_t counts = (uintptr_t)counts_of(c) & ~((uintptr_t)PAGE - 1);

		next = c->next;
		hp_meta_zero((void *)counts, SIZE - HP_COUNTS_OWNER_SIZE);
		/* Of the parent's domains. */
		c->records.tail_seen = atomic_load_explicit(&c->records.head, memory_order_relaxed);
		atomic_store_explicit(&c->records.tail, c->records.tail_seen, memory_order_relaxed);
		/* This thread's are left alone: a signal handler may have forked that interrupted counting. */
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
