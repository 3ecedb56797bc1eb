/*
 * Caches of freed buffers, which are not yet coalesced with their free neighbours in the tree. Each thread has a slot
 * for the buffer that it freed last, and lists; behind these are shared lists, which are stacks without a lock
 * (stack.h). Lists are by class, sixteen for each power of two of a buffer's chunks. A request takes the first buffer
 * of its own class or of the next one, as a whole, if that is not shorter than the request and at most a sixteenth
 * longer. All lists are last in, first out.
 *
 * A thread works on its own cache without a lock, and another thread may empty the cache of an idle thread:
 *	owner:	busy = 1; read limit, slot and lists; change them; busy = 0
 *	thief:	limit = 0; membarrier on every running thread; if !busy, the cache is the thief's until limit is set
 * The thief holds hp_heap_lock, and only a holder of that lock sets the limit again. Either the thief sees the owner's
 * busy, or the owner sees limit == 0 and takes the lock. This is an asymmetric Dekker, as in the hazard pointers of
 * Folly, in which membarrier(2) is the thief's half of the fence. A limit of 0 also asks a thread to empty its cache at
 * its next call.
 *
 * At the end of a thread its buffers go to the tree, and the next new thread gets its empty cache (at_exit()).
 */
#ifndef HP_ALLOC_CACHE_H
#define HP_ALLOC_CACHE_H

#include "alloc/stack.h"
#include "base/barrier.h"

enum {
	HP_SLOT_MAX = 64 << (20 - HP_CHUNK_SHIFT), /* chunks: the largest buffer that a slot or a list keeps */
	HP_LIST_MAX = 16 << (20 - HP_CHUNK_SHIFT), /* chunks: the most in all lists of a thread */
	/* chunks: if lists hold more than this, a miss of a longer buffer empties them, because filling such a buffer
	 * takes longer than emptying lists */
	HP_LISTED_LARGE = (512 << 10) >> HP_CHUNK_SHIFT,
	HP_CLASS_SHIFT = 4, /* 1 << HP_CLASS_SHIFT classes for each power of two */
	/* the class of HP_SLOT_MAX is the first of the last group */
	HP_CLASSES = (14 - HP_CLASS_SHIFT + 2) << HP_CLASS_SHIFT,
};
_Static_assert(HP_SLOT_MAX == 1 << 14, "HP_CLASSES counts the classes up to it");

/* The class of a buffer of so many chunks. */
static inline unsigned hp_class_of(uint32_t n)
{
	unsigned shift = 31 - HP_CLASS_SHIFT - (unsigned)__builtin_clz(n | 1 << HP_CLASS_SHIFT);

	return (shift << HP_CLASS_SHIFT) + (n >> shift);
}

struct hp_cache {
	/* The fast paths of malloc and free touch the members up to `listed`. relaxed: a spare cache has no thread
	 * until hp_cache_admit(). */
	_Alignas(64) _Atomic uint32_t limit; /* largest count that the fast paths take; 0: none */
	union {
		struct {
			/* relaxed: the owner, inside, or a thief after hp_cache_is_left() */
			_Atomic uint32_t n, busy; /* n: chunks of the buffer in the slot; 0: the slot is empty */
		};
		_Atomic uint64_t word; /* n and busy together: one store can end an operation */
	} slot;
	void *slot_ptr;
	/* relaxed: the owner, inside; a store of the whole word, or hp_cache_leave(), tells a thief */
	hp_chunk *slot_chunk;
	uint32_t slot_word; /* the lower half of the word that the buffer has when it is LIVE */
	uint32_t listed; /* chunks in the lists */
	uint32_t groups; /* bit i: lists of the classes i << HP_CLASS_SHIFT and up may have buffers */

	/* Protected by hp_heap_lock: next, tid and asked. */
	struct hp_cache *next; /* link in the list `registered` or `spare` */
	uint32_t tid; /* the kernel's id of the cache's thread; 0: not known */
	bool asked; /* the last tick set limit to 0, and the owner has made no slow call since */
	unsigned shard; /* the owner's: where it places buffers */

	/* The owner's, by the protocol at the head of this file. By class: the first chunk of the first buffer, 0: none. */
	uint32_t head[HP_CLASSES];
};

/* This thread's cache. Before the first slow call, and after thread exit, this is hp_cache_none, whose limit is always
 * 0. */
extern HP_TLS struct hp_cache *hp_cache_self;
extern struct hp_cache hp_cache_none;

/* This thread's cache while its large requests go to the small tier, during which hp_cache_self is hp_cache_none, so
 * that the fast paths find nothing. NULL at other times. */
extern HP_TLS struct hp_cache *hp_cache_aside;

static inline void hp_cache_enter(struct hp_cache *c)
{
	/* Set busy before reading anything else of the cache: pairs with the barrier in hp_cache_steal(). */
	atomic_store_explicit(&c->slot.busy, 1, memory_order_relaxed);
	hp_barrier_often();
}

/* Read limit, after hp_cache_enter(). acquire: the owner sees a thief's writes, or limit is 0; pairs with
 * hp_cache_admit(). */
static inline uint32_t hp_cache_limit(struct hp_cache *c)
{
	return atomic_load_explicit(&c->limit, memory_order_acquire);
}

/* release: a thief that sees busy == 0 also sees the owner's changes; pairs with hp_cache_is_left(). */
static inline void hp_cache_leave(struct hp_cache *c)
{
	atomic_store_explicit(&c->slot.busy, 0, memory_order_release);
}

/* A thief's two steps, with hp_barrier_all_threads() between. seq_cst: set limit before reading busy; pairs with
 * hp_cache_enter() and hp_cache_limit(). */
static inline void hp_cache_shut(struct hp_cache *c)
{
	atomic_store_explicit(&c->limit, 0, memory_order_seq_cst);
}

/* The owner leaves its cache by a store to busy, which pairs with the first load, or by a store to the whole word
 * (hp_cache_pop_slot(), hp_fast_free()), which pairs with the second. */
static inline bool hp_cache_is_left(struct hp_cache *c)
{
	bool left = !atomic_load_explicit(&c->slot.busy, memory_order_acquire);

	(void)atomic_load_explicit(&c->slot.word, memory_order_acquire);
	return left;
}

/* Chunks of the buffer in the slot. 0: the slot is empty. */
static inline uint32_t hp_cache_slot(struct hp_cache *c)
{
	return atomic_load_explicit(&c->slot.n, memory_order_relaxed);
}

/* The first chunk of the slot's buffer. */
static inline size_t hp_cache_slot_first(const struct hp_cache *c)
{
	return ((uintptr_t)c->slot_ptr - hp_span.base) >> HP_CHUNK_SHIFT;
}

/* The shared lists, by class. */
extern hp_stack hp_shared[HP_CLASSES];

/* For the owner, between enter and leave, if n is not above the limit: take the first buffer out of one of the owner's
 * lists if it fits (hp_chunk_fits()). Returns its first chunk; it is LIVE. 0: it does not fit. */
static inline size_t hp_cache_pop_list(struct hp_cache *c, unsigned class, size_t n, size_t align)
{
	const size_t chunk = c->head[class];
	const uint64_t w = hp_chunk_get(chunk); /* of chunk 0: 0 */

	if (!hp_chunk_fits(chunk, w, n, align))
		return 0;
	c->head[class] = HP_CHUNK_LINK(w);
	c->listed -= HP_CHUNK_COUNT(w);
	hp_chunk_set(chunk, HP_CHUNK_WORD(HP_CHUNK_COUNT(w), HP_CHUNK_LIVE));
	return chunk;
}

/* The same for the next class, and for both classes of the shared lists. */
HP_DIRECT size_t hp_cache_pop_further(struct hp_cache *c, unsigned class, size_t n, size_t align);

static inline size_t hp_cache_pop(struct hp_cache *c, size_t n, size_t align)
{
	const unsigned class = hp_class_of((uint32_t)n);
	const size_t chunk = hp_cache_pop_list(c, class, n, align);

	return chunk ? chunk : hp_cache_pop_further(c, class, n, align);
}

/* For the owner, as hp_cache_push(), if there is no room: empty the slot into a shared list. */
HP_DIRECT void hp_cache_share_slot(struct hp_cache *c);

/* For the owner, between enter and leave, if limit is not 0: whether its lists have room for the slot's buffer. */
static inline bool hp_cache_has_room(struct hp_cache *c)
{
	return hp_cache_slot(c) <= HP_LIST_MAX - c->listed;
}

/* Then put that into a list, and the LIVE buffer p, with this word of this content, into the slot. relaxed: inside; a
 * store to busy tells a thief. */
static inline void hp_cache_push(struct hp_cache *c, void *p, hp_chunk *word, uint32_t w)
{
	const uint32_t before = hp_cache_slot(c);

	if (before) {
		const unsigned class = hp_class_of(before);

		atomic_store_explicit(c->slot_chunk,
				      (uint64_t)c->head[class] << 32 | HP_CHUNK_WORD(before, HP_CHUNK_LISTED),
				      memory_order_relaxed);
		c->head[class] = (uint32_t)hp_cache_slot_first(c);
		c->listed += before;
		c->groups |= 1u << (class >> HP_CLASS_SHIFT);
	}
	atomic_store_explicit(word, w ^ HP_CHUNK_LIVE ^ HP_CHUNK_LISTED, memory_order_relaxed);
	c->slot_ptr = p;
	c->slot_chunk = word;
	c->slot_word = w;
	atomic_store_explicit(&c->slot.n, HP_CHUNK_COUNT(w), memory_order_relaxed);
}

/* Make sure that this thread has a cache, which will be emptied at thread exit. A new cache has limit 0 until
 * hp_cache_admit(). The caller holds no lock. */
void hp_cache_adopt(void);

/* For the constructor: caches of threads that begin to use the heap from now on are emptied at thread exit. */
void hp_cache_init(void);

/* All functions below: the caller holds hp_heap_lock. */

/* Give all buffers of a cache, or of the shared lists, to the trees. held: the shard whose lock is held, HP_SHARD_NONE
 * or HP_SHARD_ALL; it changes as in hp_shard_switch(). If not all locks are held, the caller is the cache's owner,
 * inside. Shared lists: returns whether there were any buffers. */
void hp_cache_clear(struct hp_cache *c, unsigned *held);
bool hp_shared_clear(unsigned *held);

/* Ask every other thread to empty its cache at its next call. */
void hp_cache_ask_others(void);

/* Let the owner use its cache without the lock. The caller ensures that somebody ticks from now on, because a tick
 * empties the cache when the owner falls idle. */
void hp_cache_admit(struct hp_cache *c);

/* Undo hp_cache_admit() for this thread's own cache, so that its next call takes the lock and empties the cache. */
void hp_cache_shut_own(void);

/* Ask every other thread to empty its cache, and empty the caches of threads that are not busy. idle_only: empty only
 * caches that the previous such call asked for and whose owners have made no slow call since. The buffers found are
 * stamped as free for `age` ticks. Returns whether a cache that was not emptied may hold buffers. */
bool hp_cache_steal(bool idle_only, uint32_t age);

/* After hp_cache_steal(false, ...), while the lock is held: whether another thread may still turn a LISTED buffer into
 * a live one without the lock. */
bool hp_cache_unsettled(void);

/* In the child of fork: the other threads and their caches are gone. Empties all lists. */
void hp_cache_child(void);

/* In a child in which no fork handler ran. The lock need not be held. */
void hp_cache_copied(void);

#endif
