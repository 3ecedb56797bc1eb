/*
 * Shards share out the extents of the heap, so that several threads can place buffers at a time. Each shard has a lock,
 * and a tree of the holes in its extents.
 *
 * hp_heap_lock() takes the locks of all shards, in rising order. Where a comment says that hp_heap_lock is held, it
 * means this: the holder may change everything. The holder of one shard's lock may read all that changes under
 * hp_heap_lock, but change only what belongs to the shard. That is its tree, and for the pages of its extents: the
 * entries in the table of holes, the words of chunks, and the members `fresh` and `buffer` of struct hp_page. So ticks,
 * forks, and all that needs the kernel, stop every shard and find it whole. A thread never waits for the lock of a
 * shard while it holds that of another one.
 *
 * As long as threads do not meet, all use shard 0, and the whole heap is in one order of addresses. A thread that finds
 * the lock of its shard taken begins a new one, unless there are as many shards as threads (hp_shard_lock()).
 */
#ifndef HP_ALLOC_SHARD_H
#define HP_ALLOC_SHARD_H

#include "alloc/tree.h"
#include "base/lock.h"

enum {
	HP_SHARDS = 8,
	/* instead of a shard: the lock of none is held, or the locks of all */
	HP_SHARD_NONE = HP_SHARDS,
	HP_SHARD_ALL,
};

/* For functions that are told which lock is held: all of them. */
#define HP_SHARD_HELD_ALL (&(unsigned){ HP_SHARD_ALL })

struct hp_shard {
	_Alignas(64) struct hp_lock lock;
	int32_t placed, cleared; /* not yet in the statistics, as `taken` */
	int64_t taken; /* bytes */
	struct hp_tree tree;
};
extern struct hp_shard hp_shard[HP_SHARDS];

/* Shards in use, from 0 on. relaxed: changes under hp_heap_lock; without a lock it only says which locks to try. */
extern _Atomic unsigned hp_shards_used;

static inline unsigned hp_shards(void)
{
	return atomic_load_explicit(&hp_shards_used, memory_order_relaxed);
}

/* Take or release the locks of all shards. */
void hp_heap_lock(void);
void hp_heap_unlock(void);

/* Count bytes taken, and buffers placed and cleared. The caller holds the shard's lock. With several shards, up to
 * HP_SHARD_COUNTS buffers of each, of less than HP_SHARD_BYTES in all, are not yet in the statistics, because a counter
 * that threads share costs more than placing a buffer. The holder of hp_heap_lock finds and leaves all counted. */
enum { HP_SHARD_COUNTS = 64, HP_SHARD_BYTES = 4 << 20 };
void hp_shard_count(unsigned shard, int64_t taken, int placed, int cleared);

/* Whether this thread holds the lock of a shard, or is about to take it. */
static inline bool hp_heap_mine(void)
{
	return hp_locks_held >> HP_LOCK_RANK_HEAP & 1;
}

/* Take the lock of this shard, and release that of *held before, unless *held is the same one or HP_SHARD_ALL. */
void hp_shard_switch(unsigned *held, unsigned shard);

/* Take the lock of a shard. False: another thread places there, and one more shard may be used. Then this thread holds
 * none. */
bool hp_shard_lock(unsigned shard);

/* Begin to use one more shard, if there may be one and there is memory for its tree. The caller holds no lock. Returns
 * its number, or HP_SHARD_NONE. */
unsigned hp_shard_add(struct hp_holes *h);

/* In a child of a thread that was alone with threads of our own, and that may hold the lock of one shard: no other lock
 * is held, because who else holds one only waits for this one in hp_heap_lock(). */
void hp_shards_child(void);

/* Bring the statistics up to date, unless this thread holds the lock of a shard. */
void hp_shards_publish(void);

#endif
