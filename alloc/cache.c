/* See cache.h. */
#include "alloc/cache.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "alloc/small.h"
#include "base/barrier.h"
#include "base/key.h"
#include "base/process.h"
#include "base/stats.h"
#include "base/sys.h"

struct hp_cache hp_cache_none;
HP_TLS struct hp_cache *hp_cache_self = &hp_cache_none;
extern HP_TLS struct hp_cache *hugepin_cache_self_
	__attribute__((alias("hp_cache_self"), visibility("default"))); /* fast.h */
HP_TLS struct hp_cache *hp_cache_aside;
hp_stack hp_shared[HP_CLASSES];

static HP_TLS bool exiting; /* destructors of this thread may still call us: they get no cache again */
static HP_TLS bool keyed; /* exit_key is set for this thread */

static struct hp_cache *registered, *spare;
static unsigned next_shard; /* new threads are spread over the shards */
static pthread_key_t exit_key;
static bool exit_key_made, membarrier_ready;
static bool unsettled; /* in the last hp_cache_steal(), the owner of some cache may have been active */

/* ------------------------------------------------------------------ lists */

static size_t shared_pop(unsigned class, size_t n, size_t align)
{
	const size_t chunk = hp_stack_pop(&hp_shared[class], n, align);

	if (chunk) {
		const uint32_t count = HP_CHUNK_COUNT(hp_chunk_get(chunk));

		HP_STAT_COUNT(listed_bytes, -((uint64_t)count << HP_CHUNK_SHIFT));
		HP_STAT_COUNT(relisted, 1);
		hp_chunk_set(chunk, HP_CHUNK_WORD(count, HP_CHUNK_LIVE));
	}
	return chunk;
}

HP_DIRECT size_t hp_cache_pop_further(struct hp_cache *c, unsigned class, size_t n, size_t align)
{
	size_t chunk = hp_cache_pop_list(c, class + 1, n, align);

	if (!chunk)
		chunk = shared_pop(class, n, align);
	return chunk ? chunk : shared_pop(class + 1, n, align);
}

HP_DIRECT void hp_cache_share_slot(struct hp_cache *c)
{
	const uint32_t n = hp_cache_slot(c);

	/* count first, so that nobody who takes the buffer makes the sum negative */
	HP_STAT_COUNT(listed_bytes, (uint64_t)n << HP_CHUNK_SHIFT);
	hp_stack_push(&hp_shared[hp_class_of(n)], hp_cache_slot_first(c), c->slot_chunk, n);
	atomic_store_explicit(&c->slot.n, 0, memory_order_relaxed);
}

/* Give a whole list to the trees. Returns the number of chunks. No list has a buffer on a page that leaves the pool. */
static size_t list_clear(size_t chunk, unsigned *held)
{
	size_t total = 0, next;

	for (; chunk; chunk = next) {
		const uint64_t w = hp_chunk_get(chunk);
		const size_t n = HP_CHUNK_COUNT(w);
		const unsigned shard = hp_shard_of(chunk);

		hp_shard_switch(held, shard);
		HP_ASSERT(!hp_span.page[hp_page_of(chunk)].leaves);
		HP_ASSERT(!hp_span.page[hp_page_of(chunk + n - 1)].leaves);
		next = HP_CHUNK_LINK(w);
		hp_chunk_set(chunk, 0);
		hp_chunks_set_free(chunk, n);
		hp_shard_count(shard, -((int64_t)n << HP_CHUNK_SHIFT), 0, 1);
		total += n;
	}
	return total;
}

bool hp_shared_clear(unsigned *held)
{
	bool any = false;

	if (!HP_STAT_GET(listed_bytes))
		return false;
	for (unsigned i = 0; i < HP_CLASSES; i++)
		if (!hp_stack_is_empty(&hp_shared[i])) {
			const size_t n = list_clear(hp_stack_take(&hp_shared[i]), held);

			HP_STAT_COUNT(listed_bytes, -((uint64_t)n << HP_CHUNK_SHIFT));
			any |= n > 0;
		}
	return any;
}

void hp_cache_clear(struct hp_cache *c, unsigned *held)
{
	if (hp_cache_slot(c)) /* its word has no link */
		list_clear(hp_cache_slot_first(c), held);
	atomic_store_explicit(&c->slot.n, 0, memory_order_relaxed);
	for (; c->groups; c->groups &= c->groups - 1) {
		uint32_t *head = &c->head[(unsigned)__builtin_ctz(c->groups) << HP_CLASS_SHIFT];

		for (unsigned i = 0; i < 1u << HP_CLASS_SHIFT; i++)
			if (head[i]) {
				list_clear(head[i], held);
				head[i] = 0;
			}
	}
	c->listed = 0;
}

void hp_cache_admit(struct hp_cache *c)
{
	if (c == &hp_cache_none)
		return;
	c->asked = false;
	atomic_store_explicit(&c->limit, HP_SLOT_MAX, memory_order_release); /* pairs with hp_cache_limit() */
}

void hp_cache_shut_own(void)
{
	/* relaxed: only this thread reads the limit, perhaps in the call that a signal handler has interrupted */
	if (hp_cache_self != &hp_cache_none)
		atomic_store_explicit(&hp_cache_self->limit, 0, memory_order_relaxed);
}

void hugepin_small_only_(bool on)
{
	if (on) {
		hp_cache_aside = hp_cache_self;
		hp_cache_self = &hp_cache_none;
	} else if (hp_cache_aside) {
		hp_cache_self = hp_cache_aside;
		hp_cache_aside = NULL;
	}
}

/* ------------------------------------------------------------------ threads */

/* The cache is no longer in the list `registered`. The lock is held. */
static void retire(struct hp_cache *c)
{
	hp_cache_clear(c, HP_SHARD_HELD_ALL);
	atomic_store_explicit(&c->limit, 0, memory_order_relaxed);
	c->tid = 0;
	c->next = spare;
	spare = c;
	HP_STAT_ADD(threads, -1);
}

static void at_exit(void *cache)
{
	struct hp_cache *c = cache, **at;

	exiting = true;
	hp_cache_self = &hp_cache_none;
	hp_heap_lock();
	for (at = &registered; *at != c; at = &(*at)->next)
		;
	*at = c->next;
	retire(c);
	hp_heap_unlock();
}

void hp_cache_init(void)
{
	exit_key_made = hp_key_create(&exit_key, at_exit) == 0;
	/* Old kernels and some sandboxes refuse this: then idle caches are not emptied. */
	membarrier_ready = hp_barrier_register();
}

/* Map several caches at a time, as one mapping. */
static struct hp_cache *map_caches(void)
{
	/* Caches do not begin at the start of a page, for the same reason as at HP_CHUNK_SKEW (pages.h). */
	enum { BATCH = 7, SKEW = 512, STRIDE = sizeof(struct hp_cache) };
	char *m = hp_meta_map(BATCH * STRIDE + SKEW);
	struct hp_cache *first = NULL;

	for (int i = 0; m && i < BATCH; i++) {
		struct hp_cache *c = (struct hp_cache *)(m + i * STRIDE + SKEW);

		c->next = first;
		first = c;
	}
	return first;
}

/* Retire caches of threads that have ended without giving them up, because their first slow call was in the last round
 * of their destructors. Looks at AT_ONCE caches per call, since there may be many threads. */
static void reap(void)
{
	enum { AT_ONCE = 64 };
	static size_t begin; /* how many caches to skip: earlier calls looked at them */
	struct hp_cache **at = &registered;
	size_t i = 0;

	if (hp_sandboxed || hp_process() != HP_PROCESS_OWN)
		return;
	for (; *at && i < begin + AT_ONCE; i++) {
		struct hp_cache *c = *at;

		if (i < begin || c == hp_cache_self || !c->tid ||
		    hp_sys(SYS_tgkill, hp_pid(), c->tid) != -ESRCH) {
			at = &c->next;
			continue;
		}
		*at = c->next;
		retire(c);
	}
	begin = *at ? i : 0;
}

void hp_cache_adopt(void)
{
	struct hp_cache *c = hp_cache_self, *more = NULL;
	uint32_t tid;

	if (exiting)
		return;
	if (c == &hp_cache_none) {
		/* A child that shares the parent's memory, as after vfork(2), runs with the variables of the parent's
		 * thread. The cache becomes that thread's, so the child's tid must not be noted. */
		if (hp_sandboxed || hp_process() != HP_PROCESS_OWN)
			tid = 0;
		else
			tid = (uint32_t)hp_tid();
		hp_heap_lock();
		if (!spare)
			reap();
		if (!spare) {
			hp_heap_unlock();
			more = map_caches();
			if (!more)
				return;
			hp_heap_lock();
			struct hp_cache *last = more;

			while (last->next)
				last = last->next;
			last->next = spare;
			spare = more;
		}
		c = spare;
		spare = c->next;
		c->next = registered;
		c->tid = tid;
		c->shard = next_shard++ % hp_shards();
		registered = c;
		HP_STAT_ADD(threads, 1);
		/* set under the lock: a child forked by a signal handler has this pointer and the list entry, or
		 * neither */
		hp_cache_self = c;
		hp_heap_unlock();
	}
	/* No lock is held here, and the cache is in place, because pthread_setspecific() may allocate: its second level
	 * of keys is a small request. A thread that came before the constructor gets its key at a later slow call. */
	if (!keyed && exit_key_made) {
		keyed = true;
		pthread_setspecific(exit_key, c);
	}
}

void hp_cache_ask_others(void)
{
	for (struct hp_cache *c = registered; c; c = c->next)
		if (c != hp_cache_self)
			atomic_store_explicit(&c->limit, 0, memory_order_release); /* pairs with hp_cache_limit() */
}

bool hp_cache_steal(bool idle_only, uint32_t age)
{
	bool fence = false, remain = false;

	for (struct hp_cache *c = registered; c; c = c->next) {
		if (c == hp_cache_self)
			continue;
		hp_cache_shut(c);
		fence |= !idle_only || c->asked;
	}
	if (fence && membarrier_ready && !hp_sandboxed)
		fence = hp_barrier_all_threads();
	else
		fence = false;

	unsettled = false;
	hp_span.holes.now -= age;
	for (struct hp_cache *c = registered; c; c = c->next) {
		if (c == hp_cache_self)
			continue;
		bool mine = hp_cache_is_left(c) && fence && (!idle_only || c->asked);

		if (mine && (hp_cache_slot(c) || c->listed)) {
			hp_cache_clear(c, HP_SHARD_HELD_ALL);
			HP_STAT_ADD(stolen, 1);
		}
		unsettled |= !mine;
		/* Without membarrier an idle thread's cache is never emptied, so do not ask for another look. */
		remain |= membarrier_ready && !hp_sandboxed && !mine;
		c->asked = true;
	}
	hp_span.holes.now += age;
	return remain;
}

bool hp_cache_unsettled(void)
{
	return unsettled;
}

void hp_cache_copied(void)
{
	for (struct hp_cache *c = registered; c; c = c->next)
		c->tid = 0; /* the caches' threads belong to another process */
}

void hp_cache_child(void)
{
	for (struct hp_cache *c = registered, *next; c; c = next) {
		next = c->next;
		/* Another thread's cache may have been in the middle of a change. The heap has cleared the words of its
		 * chunks. */
		memset(c, 0, sizeof *c);
		if (c == hp_cache_self)
			continue;
		c->next = spare;
		spare = c;
	}
	registered = hp_cache_self == &hp_cache_none ? NULL : hp_cache_self;
	HP_STAT(threads) = registered != NULL;
	for (unsigned i = 0; i < HP_CLASSES; i++)
		/* relaxed: there is no other thread. A store would copy the page for each child. */
		if (atomic_load_explicit(&hp_shared[i], memory_order_relaxed))
			atomic_store_explicit(&hp_shared[i], 0, memory_order_relaxed);
	HP_STAT(listed_bytes) = 0;
}
