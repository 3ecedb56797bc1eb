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
size_t hp_shared_listed;

static HP_TLS bool exiting; /* destructors of this thread may still call us: they get no cache again */
static HP_TLS bool keyed; /* exit_key is set for this thread */

static struct hp_keys shared_keys;
static uint32_t shared_head[HP_SLOT_MAX + 1];

static struct hp_cache *registered, *spare;
static pthread_key_t exit_key;
static bool exit_key_made, membarrier_ready;
static bool unsettled; /* in the last hp_cache_steal(), the owner of some cache may have been active */

/* A listed buffer longer than the request is split if the rest is at most one part in so many of the request. */
#define SPLIT_SHARE 8

/* ------------------------------------------------------------------ lists */

static void keys_set(struct hp_keys *k, size_t n)
{
	hp_bit_set(k->all, n);
	hp_bit_set(k->some, n >> 6);
}

static void keys_clear(struct hp_keys *k, size_t n)
{
	hp_bit_clear(k->all, n);
	if (!k->all[n >> 6])
		hp_bit_clear(k->some, n >> 6);
}

/* The lowest key of a non-empty list at or above `from`; 0: none. */
static size_t keys_next(const struct hp_keys *k, size_t from)
{
	size_t words = sizeof k->all / sizeof *k->all;
	size_t n = hp_bits_find(k->all, from, (from | 63) + 1, true);

	if (n <= (from | 63))
		return n;
	n = hp_bits_find(k->some, (from >> 6) + 1, words, true);
	return n < words ? n << 6 | (size_t)__builtin_ctzll(k->all[n]) : 0;
}

/* The first chunk of the first buffer of n chunks, which becomes LIVE; 0: it is not aligned, or there is none. */
static size_t list_pop(struct hp_keys *k, uint32_t *head, size_t n, size_t align)
{
	size_t chunk = head[n];

	if (!chunk || hp_chunk_addr(chunk) & (align - 1))
		return 0;
	head[n] = HP_CHUNK_LINK(hp_chunk_get(chunk));
	if (!head[n])
		keys_clear(k, n);
	hp_chunk_set(chunk, HP_CHUNK_WORD(n, HP_CHUNK_LIVE));
	return chunk;
}

static void list_push(struct hp_keys *k, uint32_t *head, size_t chunk, size_t n)
{
	hp_chunk_set(chunk, (uint64_t)head[n] << 32 | HP_CHUNK_WORD(n, HP_CHUNK_LISTED));
	if (!head[n])
		keys_set(k, n);
	head[n] = (uint32_t)chunk;
}

/* As list_pop(), but if that list is empty, split the next larger buffer, and put its tail in the list of that size. */
static size_t list_split(struct hp_keys *k, uint32_t *head, size_t n, size_t align)
{
	size_t from = head[n] ? n : keys_next(k, n), chunk;

	if (!from || from > n + n / SPLIT_SHARE)
		return 0;
	if (from == n)
		return list_pop(k, head, n, align);
	if (n & (hp_base_chunks() - 1)) /* the tail would begin within a base page */
		return 0;
	chunk = head[from];
	if (hp_chunk_addr(chunk) & (align - 1))
		return 0;
	head[from] = HP_CHUNK_LINK(hp_chunk_get(chunk));
	if (!head[from])
		keys_clear(k, from);
	list_push(k, head, chunk + n, from - n);
	hp_pages_note_buffer(chunk + n, from - n);
	/* release: whoever sees the shorter head also sees the tail's word; pairs with hp_chunk_follow(). The copy of
	 * the words that a child of fork gets may have the tail's word and the longer head: see rebuild_tree(). */
	atomic_store_explicit(hp_chunk_at(&hp_span, chunk), HP_CHUNK_WORD(n, HP_CHUNK_LIVE), memory_order_release);
	return chunk;
}

/* Give a listed buffer to the tree. No list has a buffer on a page that leaves the pool. */
static void give_to_tree(size_t chunk, size_t n)
{
	HP_ASSERT(!hp_span.page[hp_page_of(chunk)].leaves);
	HP_ASSERT(!hp_span.page[hp_page_of(chunk + n - 1)].leaves);
	hp_chunk_set(chunk, 0);
	hp_tree_free(&hp_span.tree, chunk, n);
	HP_STAT_ADD(cleared, 1);
}

/* Give a whole list to the tree. Returns the number of chunks. */
static size_t list_clear(struct hp_keys *k, uint32_t *head, size_t n)
{
	size_t chunk = head[n], total = 0;

	while (chunk) {
		size_t next = HP_CHUNK_LINK(hp_chunk_get(chunk));

		give_to_tree(chunk, n);
		total += n;
		chunk = next;
	}
	head[n] = 0;
	keys_clear(k, n);
	HP_STAT_ADD(taken_bytes, -(total << HP_CHUNK_SHIFT));
	return total;
}

HP_DIRECT size_t hp_cache_pop(struct hp_cache *c, size_t n, size_t align)
{
	size_t chunk = n <= HP_LIST_MAX ? list_split(&c->keys, c->head, n, align) : 0;

	if (chunk)
		c->listed -= (uint32_t)n;
	return chunk;
}

HP_DIRECT bool hp_cache_push(struct hp_cache *c, void *p, hp_chunk *word, uint32_t n)
{
	uint32_t before = hp_cache_slot(c);

	if (before > HP_LIST_MAX - c->listed)
		return false;
	if (before)
		list_push(&c->keys, c->head, hp_cache_slot_first(c), before);
	c->listed += before;
	hp_cache_fill_slot(c, p, word, n);
	return true;
}

size_t hp_shared_pop(size_t n, size_t align)
{
	size_t chunk = n <= HP_SLOT_MAX ? list_split(&shared_keys, shared_head, n, align) : 0;

	if (chunk) {
		hp_shared_listed -= n;
		HP_STAT(listed_bytes) = hp_shared_listed << HP_CHUNK_SHIFT;
		HP_STAT_ADD(relisted, 1);
	}
	return chunk;
}

void hp_shared_push(size_t chunk, uint32_t n)
{
	list_push(&shared_keys, shared_head, chunk, n);
	hp_shared_listed += n;
	HP_STAT(listed_bytes) = hp_shared_listed << HP_CHUNK_SHIFT;
}

void hp_shared_clear(void)
{
	if (!hp_shared_listed)
		return;
	for (size_t n = 0; (n = keys_next(&shared_keys, n + 1)) != 0;)
		list_clear(&shared_keys, shared_head, n);
	hp_shared_listed = 0;
	HP_STAT(listed_bytes) = 0;
}

/* ------------------------------------------------------------------ a thread's cache */

static void spill_lists(struct hp_cache *c)
{
	for (size_t n = 0; c->listed > HP_LIST_MAX / 2 && (n = keys_next(&c->keys, n + 1)) != 0;) {
		while (c->head[n] && c->listed > HP_LIST_MAX / 2)
			hp_shared_push(hp_cache_pop(c, n, 1), (uint32_t)n);
	}
}

void hp_cache_spill(struct hp_cache *c, size_t chunk, uint32_t n)
{
	uint32_t before = hp_cache_slot(c);

	if (before > HP_LIST_MAX - c->listed)
		spill_lists(c);
	if (before > HP_LIST_MAX - c->listed) { /* longer than half of what lists may hold */
		hp_shared_push(hp_cache_slot_first(c), before);
		atomic_store_explicit(&c->slot.n, 0, memory_order_relaxed);
	}
	hp_cache_push(c, (void *)hp_chunk_addr(chunk), hp_chunk_at(&hp_span, chunk), n);
}

void hp_cache_clear(struct hp_cache *c)
{
	uint32_t n = hp_cache_slot(c);

	if (n) {
		give_to_tree(hp_cache_slot_first(c), n);
		HP_STAT_ADD(taken_bytes, -((uint64_t)n << HP_CHUNK_SHIFT));
		atomic_store_explicit(&c->slot.n, 0, memory_order_relaxed);
	}
	if (c->listed)
		for (size_t key = 0; (key = keys_next(&c->keys, key + 1)) != 0;)
			list_clear(&c->keys, c->head, key);
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
	hp_cache_clear(c);
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
	hp_lock(&hp_heap_lock);
	for (at = &registered; *at != c; at = &(*at)->next)
		;
	*at = c->next;
	retire(c);
	hp_unlock(&hp_heap_lock);
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
	enum { BATCH = 8, SKEW = 1088, STRIDE = (sizeof(struct hp_cache) + SKEW + 4095) / 4096 * 4096 };
	char *m = hp_meta_map(BATCH * STRIDE);
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
		hp_lock(&hp_heap_lock);
		if (!spare)
			reap();
		if (!spare) {
			hp_unlock(&hp_heap_lock);
			more = map_caches();
			if (!more)
				return;
			hp_lock(&hp_heap_lock);
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
		registered = c;
		HP_STAT_ADD(threads, 1);
		/* set under the lock: a child forked by a signal handler has this pointer and the list entry, or
		 * neither */
		hp_cache_self = c;
		hp_unlock(&hp_heap_lock);
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
	hp_span.tree.now -= age;
	for (struct hp_cache *c = registered; c; c = c->next) {
		if (c == hp_cache_self)
			continue;
		bool mine = hp_cache_is_left(c) && fence && (!idle_only || c->asked);

		if (mine && (hp_cache_slot(c) || c->listed)) {
			hp_cache_clear(c);
			HP_STAT_ADD(stolen, 1);
		}
		unsettled |= !mine;
		/* Without membarrier an idle thread's cache is never emptied, so do not ask for another look. */
		remain |= membarrier_ready && !hp_sandboxed && !mine;
		c->asked = true;
	}
	hp_span.tree.now += age;
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
	if (hp_shared_listed) { /* otherwise they are empty, and writing would copy 16 pages for each child */
		memset(&shared_keys, 0, sizeof shared_keys);
		memset(shared_head, 0, sizeof shared_head);
		hp_shared_listed = 0;
	}
	HP_STAT(listed_bytes) = 0;
}
