/*
 * Freed buffers on their way back to the tree, not yet coalesced. Each thread has a slot and small lists; then there
 * are shared lists. All lists are keyed by the exact number of chunks.
 *
 * A thread works on its own cache without a lock. The service thread may empty the cache of a thread that is idle:
 *	owner:	busy = 1; read limit, slot and lists; change them; busy = 0
 *	thief:	limit = 0; membarrier on every running thread; if !busy, the cache is the thief's until limit is set
 * Only a holder of hp_heap_lock sets it again, and the thief holds that. Either the owner's busy was seen, or the owner
 * sees limit == 0 and takes the lock (an asymmetric Dekker, as in the hazard pointers of Folly; membarrier(2) is the
 * thief's half of the fence). A limit of 0 is also how a thread is asked to empty its cache at its next call.
 */
#ifndef HP_ALLOC_CACHE_H
#define HP_ALLOC_CACHE_H

#include "alloc/pages.h"
#include "base/barrier.h"

enum {
	HP_SLOT_MAX = 64 << (20 - HP_CHUNK_SHIFT), /* chunks: the largest buffer that a slot or a shared list keeps */
	HP_LIST_MAX = 16 << (20 - HP_CHUNK_SHIFT), /* the largest in a thread's list, and the most in all of them */
	HP_LISTED_MISS = 4 << (20 - HP_CHUNK_SHIFT), /* so much in lists, and a miss empties them */
};

/* Keys of lists in use. */
struct hp_keys {
	uint64_t some[HP_SLOT_MAX / 64 / 64 + 1]; /* bit w: word w of `all` is not zero */
	uint64_t all[HP_SLOT_MAX / 64 + 1];
};

struct hp_cache {
	/* malloc and free touch the members up to `listed`. */
	_Alignas(64) _Atomic uint32_t limit; /* largest count that the fast paths take; 0: none */
	union {
		struct {
			_Atomic uint32_t n, busy; /* n: chunks of the buffer in the slot, 0: empty */
		};
		_Atomic uint64_t word; /* both, for one store that ends an operation */
	} slot;
	void *slot_ptr;
	hp_chunk *slot_chunk;
	uint32_t listed; /* chunks in the lists */

	/* Under hp_heap_lock. */
	struct hp_cache *next; /* registered, or spare */
	uint32_t tid; /* of its thread, for the kernel; 0: not known */
	bool asked; /* limit was set to 0 by the last tick, and the owner has not called since */

	/* The owner's, as above. */
	struct hp_keys keys;
	uint32_t head[HP_LIST_MAX + 1]; /* first chunk of the first buffer, 0: none */
};

/* This thread's cache. hp_cache_none, whose limit is always 0, until the first slow call and after thread exit. */
extern HP_TLS struct hp_cache *hp_cache_self;
extern struct hp_cache hp_cache_none;

/* This thread's cache while its large requests go to the small tier, and the fast paths find nothing. NULL: they do
 * not. */
extern HP_TLS struct hp_cache *hp_cache_aside;
void hp_cache_set_aside(bool on);

static inline void hp_cache_enter(struct hp_cache *c)
{
	atomic_store_explicit(&c->slot.busy, 1, memory_order_relaxed);
	/* Before anything else of the cache is read: pairs with the barrier in hp_cache_steal(). */
	hp_barrier_often();
}

/* limit, after enter. acquire: what a thief wrote is seen, or limit is 0; pairs with hp_cache_admit(). */
static inline uint32_t hp_cache_limit(struct hp_cache *c)
{
	return atomic_load_explicit(&c->limit, memory_order_acquire);
}

/* release: a thief that sees busy == 0 sees the cache as it was left; pairs with hp_cache_steal(). */
static inline void hp_cache_leave(struct hp_cache *c)
{
	atomic_store_explicit(&c->slot.busy, 0, memory_order_release);
}

/* Chunks of the buffer in the slot. 0: there is none. */
static inline uint32_t hp_cache_slot(struct hp_cache *c)
{
	return atomic_load_explicit(&c->slot.n, memory_order_relaxed);
}

/* The owner's, between enter and leave, limit not 0. pop: 0, or the first chunk of a buffer of n chunks, LIVE; it fits
 * align (bytes) or is not taken. push: false when the lists are full; the chunk is LISTED otherwise. */
HP_DIRECT size_t hp_cache_pop(struct hp_cache *c, size_t n, size_t align);
HP_DIRECT bool hp_cache_push(struct hp_cache *c, size_t chunk, uint32_t n);

/* Make sure that this thread has a cache (its limit is 0 until hp_cache_admit) and that it is emptied at thread exit.
 * No lock held. */
void hp_cache_adopt(void);

/* For the constructor: threads that start to use the heap from now on are known when they exit. */
void hp_cache_init(void);

/* All below: hp_heap_lock held. */

/* Shared lists, n <= HP_SLOT_MAX. pop: as above. */
size_t hp_shared_pop(size_t n, size_t align);
void hp_shared_push(size_t chunk, uint32_t n);

/* Move half of the own lists to the shared ones, uncoalesced. */
void hp_cache_spill(struct hp_cache *c);

/* Give everything in a cache, or in the shared lists, to the tree (settled). */
void hp_cache_clear(struct hp_cache *c);
void hp_shared_clear(void);

/* Chunks in the shared lists. */
extern size_t hp_shared_listed;

/* Ask every other thread to empty its cache at its next call. */
void hp_cache_ask_others(void);

/* Let the owner use its cache without the lock. Somebody must tick from now on: a tick empties the cache when the owner
 * falls idle. */
void hp_cache_admit(struct hp_cache *c);

/* Ask every other thread, and empty the caches of threads that are not busy. idle_only: of those alone that were asked
 * at the last call with idle_only and have not called since. What is found is stamped as free since `age` ticks.
 * Returns whether caches remain that may hold something. */
bool hp_cache_steal(bool idle_only, uint32_t age);

/* After hp_cache_steal(false, ...), for as long as the lock is held: whether another thread may still turn a LISTED
 * buffer into a live one without the lock. */
bool hp_cache_unsettled(void);

/* In the child of fork: the other threads and their caches are gone; all lists are empty. */
void hp_cache_child(void);

/* In a child in which no handler has run. Without the lock, too. */
void hp_cache_copied(void);

#endif
