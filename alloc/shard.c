/* See shard.h. */
#include "alloc/shard.h"

#include "base/stats.h"

struct hp_shard hp_shard[HP_SHARDS] = { [0 ... HP_SHARDS - 1] = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_HEAP) } };
_Atomic unsigned hp_shards_used = 1;

/* A thread holds the lock of shard 0 in hp_heap_lock(), and has or waits for the others. relaxed: set and cleared with
 * the lock; who holds the lock of a shard and sees it set only counts at once. */
static _Atomic bool all_held;
static _Atomic bool no_memory; /* for one more tree. relaxed: a later look will do */
static HP_TLS unsigned mine = HP_SHARD_NONE; /* the shard whose lock this thread holds, and no other */

static bool may_add(void)
{
	return hp_shards() < HP_SHARDS && HP_STAT_GET(threads) > hp_shards() &&
	       !atomic_load_explicit(&no_memory, memory_order_relaxed);
}

static void publish(struct hp_shard *s)
{
	uint64_t now, peak = HP_STAT_GET(taken_peak_bytes);

	if (!(s->placed | s->cleared | s->taken))
		return;
	HP_STAT_COUNT(placed, s->placed);
	HP_STAT_COUNT(cleared, s->cleared);
	/* relaxed: numbers */
	now = __atomic_add_fetch(&HP_STAT(taken_bytes), (uint64_t)s->taken, __ATOMIC_RELAXED);
	while (now > peak && !__atomic_compare_exchange_n(&HP_STAT(taken_peak_bytes), &peak, now, true,
							  __ATOMIC_RELAXED, __ATOMIC_RELAXED)) /* relaxed: numbers */
		;
	s->placed = s->cleared = 0;
	s->taken = 0;
}

void hp_shard_count(unsigned shard, int64_t taken, int placed, int cleared)
{
	struct hp_shard *s = &hp_shard[shard];

	s->taken += taken;
	s->placed += placed;
	s->cleared += cleared;
	if (s->placed + s->cleared >= HP_SHARD_COUNTS || s->taken >= HP_SHARD_BYTES || s->taken <= -HP_SHARD_BYTES ||
	    hp_shards() == 1 || atomic_load_explicit(&all_held, memory_order_relaxed))
		publish(s);
}

/* Shard 0 is always taken first, and the number of shards changes only under its lock. */
void hp_heap_lock(void)
{
	hp_lock(&hp_shard[0].lock);
	atomic_store_explicit(&all_held, true, memory_order_relaxed);
	for (unsigned i = 1; i < hp_shards(); i++)
		if (!hp_lock_try(&hp_shard[i].lock))
			hp_lock_wait(&hp_shard[i].lock);
	for (unsigned i = 0; i < hp_shards(); i++)
		publish(&hp_shard[i]);
}

void hp_heap_unlock(void)
{
	for (unsigned i = hp_shards(); --i;)
		hp_lock_release(&hp_shard[i].lock);
	atomic_store_explicit(&all_held, false, memory_order_relaxed);
	hp_unlock(&hp_shard[0].lock);
}

void hp_shards_publish(void)
{
	if (hp_shards() == 1 || hp_heap_mine())
		return;
	hp_heap_lock();
	hp_heap_unlock();
}

void hp_shard_switch(unsigned *held, unsigned shard)
{
	if (*held == HP_SHARD_ALL || *held == shard)
		return;
	if (*held != HP_SHARD_NONE) {
		mine = HP_SHARD_NONE;
		hp_unlock(&hp_shard[*held].lock);
	}
	if (shard != HP_SHARD_NONE) {
		hp_lock(&hp_shard[shard].lock);
		mine = shard;
	}
	*held = shard;
}

bool hp_shard_lock(unsigned shard)
{
	HP_ASSERT(hp_locks_held < 1u << HP_LOCK_RANK_HEAP);
	if (!hp_trylock(&hp_shard[shard].lock)) {
		if (may_add() && !atomic_load_explicit(&all_held, memory_order_relaxed))
			return false;
		hp_lock(&hp_shard[shard].lock);
	}
	mine = shard;
	return true;
}

unsigned hp_shard_add(struct hp_holes *h)
{
	const size_t size = hp_tree_size(h->pages);
	void *memory = hp_meta_map(size);
	unsigned n;

	if (!memory) {
		atomic_store_explicit(&no_memory, true, memory_order_relaxed);
		return HP_SHARD_NONE;
	}
	hp_heap_lock();
	n = may_add() ? hp_shards() : HP_SHARD_NONE;
	if (n != HP_SHARD_NONE) {
		hp_lock_try(&hp_shard[n].lock); /* nobody has it */
		hp_tree_init(&hp_shard[n].tree, h, memory);
		atomic_store_explicit(&hp_shards_used, n + 1, memory_order_relaxed);
	}
	hp_heap_unlock();
	if (n == HP_SHARD_NONE)
		hp_meta_unmap(memory, size);
	return n;
}

void hp_shards_child(void)
{
	for (unsigned i = 0; mine < HP_SHARDS && i < hp_shards(); i++)
		if (i != mine)
			hp_lock_reset(&hp_shard[i].lock);
	atomic_store_explicit(&all_held, false, memory_order_relaxed);
}
