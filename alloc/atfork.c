/*
 * Fork's handlers: locks and lists before, the parent and the child after. What the child gets of the memory is
 * fork.c's matter.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/single_threaded.h>

#include "alloc/cache.h"
#include "alloc/copy.h"
#include "alloc/decay.h"
#include "alloc/fork.h"
#include "alloc/guard.h"
#include "alloc/leave.h"
#include "alloc/move.h"
#include "alloc/place.h"
#include "alloc/start.h"
#include "alloc/below.h"
#include "alloc/watch.h"
#include "base/config.h"
#include "base/proc.h"
#include "base/process.h"
#include "base/service.h"
#include "base/stats.h"
#include "base/ticker.h"

bool hugepin_fork_refused_(void)
{
	bool refused;

	if (!hp_heap_ready() || hp_lock_mine(&hp_heap_lock) || hp_pages_inside())
		return false;
	hp_lock(&hp_heap_lock);
	hp_pages_quiesce(HP_PART_HEAP);
	refused = hp_fork_refuses();
	if (refused)
		HP_STAT_ADD(forks_refused, 1);
	hp_pages_resume();
	hp_unlock(&hp_heap_lock);
	return refused;
}

/* How this fork goes; set in heap_prefork() and read in the handlers after it. While other threads may fork too, under
 * hp_heap_lock. */
static struct {
	sigset_t signals; /* of the forking thread */
	unsigned held; /* its locks */
	bool alone; /* no other thread of the program's: no one else holds a lock of anyone's */
	bool interrupted; /* a signal handler forks, and the code below it was in the heap: touch nothing */
	bool locked; /* hp_heap_lock was taken in heap_prefork() */
	bool ticker_forbidden; /* until the parent goes on */
} forking;

/* The C library's lock of its list of streams. fork() takes it after all prepare handlers: then a thread that holds a
 * stream's lock and waits for ours, and a third that flushes all streams, would close a circle. Ours is the last
 * prepare handler to run (the first registered), so taking it there, before our locks, keeps the C library's own
 * order. */
void _IO_list_lock(void), _IO_list_unlock(void), _IO_list_resetlock(void);

/* Bare threads hold no lock but ranked ones. */
static bool alone(void)
{
	uint32_t tid = hp_ticker_tid();
	unsigned ours = (unsigned)hp_service_running() + (tid != 0), count;

	if (__libc_single_threaded)
		return true;
	if (hp_watch_any() || hp_heap_has_hooks())
		return false;
	count = hp_thread_count();
	/* The ticker's number again: a thread of ours that was counted, and then ended, has let another in. */
	return count == 1 + ours && hp_ticker_tid() == tid;
}

/* Pages do not move where anybody may know them: watchers do, and so may a domain, even one that holds none. */
static bool move_wanted(void)
{
	bool wanted;

	if (hp_sandboxed || hp_watch_any() || hp_heap_has_hooks() || !HP_STAT(hugetlb_bytes))
		return false;
	hp_lock(&hp_heap_lock);
	wanted = hp_move_wanted();
	hp_unlock(&hp_heap_lock);
	return wanted;
}

/* A signal handler forks that has interrupted its thread in the middle of its cache. */
static bool in_own_cache(void)
{
	struct hp_cache *c = hp_cache_self;

	return c != &hp_cache_none && atomic_load_explicit(&c->slot.busy, memory_order_relaxed);
}

static void heap_prefork(void)
{
	sigset_t all, old;
	bool is_alone, interrupted, locked, moves;
	unsigned held;
	size_t moved = 0;

	hp_heap_know_process();
	is_alone = alone();
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* A signal handler may have interrupted its thread with a lock of higher rank taken; whoever has ours takes
	 * none of these. */
	held = hp_locks_held;
	hp_locks_held &= (2u << HP_RANK_HEAP) - 1;
	interrupted = hp_lock_mine(&hp_heap_lock) || hp_pages_inside() || in_own_cache();
	moves = is_alone && !interrupted && move_wanted();
	if (moves)
		hp_ticker_forbid();
	if (!is_alone)
		_IO_list_lock();
	locked = !hp_lock_mine(&hp_heap_lock);
	if (locked) {
		/* Before jemalloc's locks: a watcher, or a hook on mmap, runs inside a mapping call and may
		 * allocate. */
		hp_lock(&hp_heap_lock);
		hp_pages_quiesce(HP_PART_HEAP);
		hp_unlock(&hp_heap_lock);
	}
	if (!is_alone && hp_small()->prefork)
		hp_small()->prefork();
	if (locked) {
		hp_lock(&hp_heap_lock);
		hp_pages_quiesce(HP_PART_SMALL);
	}
	forking.signals = old;
	forking.held = held;
	forking.alone = is_alone;
	forking.interrupted = interrupted;
	forking.ticker_forbidden = moves;
	forking.locked = locked;
	if (interrupted)
		return;
	hp_lists_clear();
	/* The others are at the lock from now on, or are seen to be in the middle of something. */
	hp_cache_steal(false, 0);
	if (moves)
		moved = hp_move();
	hp_fork_prepare(hp_cache_unsettled(), is_alone, moved);
}

static void end_fork(void (*small_postfork)(void))
{
	sigset_t old = forking.signals;
	unsigned held = forking.held;
	bool was_alone = forking.alone;

	if (forking.locked) {
		hp_pages_resume();
		hp_unlock(&hp_heap_lock);
	}
	if (!was_alone && small_postfork)
		small_postfork();
	hp_locks_held = held;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void heap_postfork_parent(void)
{
	bool was_alone = forking.alone, must_ask = false;

	if (!forking.interrupted) {
		hp_fork_parent();
		if (!forking.alone && hp_span.no_pool && !hp_cache_unsettled())
			hp_leave_pool();
		if (forking.ticker_forbidden)
			hp_ticker_allow();
		/* Not where a handler forks: a ticker that is to be replaced may wait for the interrupted frame's lock. */
		if (forking.ticker_forbidden || hp_span.left || hp_copy_kept())
			must_ask = hp_want_tick(true);
	}
	end_fork(hp_small()->postfork_parent);
	if (!was_alone)
		_IO_list_unlock();
	if (must_ask)
		hp_ask_tick(false);
}

/* Make the tree say what the chunk words say: the other threads are gone, with what their caches held and what they
 * were about to get. Only live buffers remain. */
static void rebuild_tree(void)
{
	size_t taken = 0, room = 0;

	for (size_t c = HP_PAGE_CHUNKS; c < hp_span.tree.used << HP_PAGE_CHUNKS_SHIFT;) {
		size_t gap, n = 1;
		unsigned s;

		if (hp_span.page[hp_page_of(c)].state == HP_PAGE_NONE) {
			c = (hp_page_of(c) + 1) << HP_PAGE_CHUNKS_SHIFT;
			continue;
		}
		gap = hp_tree_free_after(&hp_span.tree, c, HP_PAGE_CHUNKS - (c & (HP_PAGE_CHUNKS - 1)));
		if (gap) {
			if (hp_span.page[hp_page_of(c)].lost) {
				hp_tree_take(&hp_span.tree, c, gap);
				hp_tree_settle(&hp_span.tree);
			}
			c += gap;
			continue;
		}
		s = HP_CHUNK_STATE(hp_chunk_get(c));
		if (s != HP_CHUNK_FREE)
			n = hp_chunk_extent(c);
		if (s == HP_CHUNK_FREE)
			while (hp_page_of(c + n) == hp_page_of(c) &&
			       HP_CHUNK_STATE(hp_chunk_get(c + n)) == HP_CHUNK_FREE &&
			       !hp_tree_free_after(&hp_span.tree, c + n, 1))
				n++;
		if (s == HP_CHUNK_FREE || s == HP_CHUNK_LISTED) {
			hp_chunk_set(c, 0);
			hp_chunks_free(c, n);
		} else {
			taken += n;
			room += n - HP_CHUNK_COUNT(hp_chunk_get(c));
			if (s == HP_CHUNK_LIVE && hp_buffer_is_lost(c, n))
				hp_chunk_set(c, HP_CHUNK_WORD(n, HP_CHUNK_ROOMY));
		}
		c += n;
	}
	HP_STAT(taken_bytes) = taken << HP_CHUNK_SHIFT;
	HP_STAT(room_bytes) = room << HP_CHUNK_SHIFT;
	for (size_t p = 1; p < hp_span.tree.used; p++)
		if (hp_span.page[p].state != HP_PAGE_NONE && hp_span.page[p].extent == p)
			hp_extent_destroy_if_empty(p);
}

static void heap_postfork_child(void)
{
	if (!forking.alone)
		_IO_list_resetlock();
	if (!forking.interrupted) {
		hp_fork_child();
		rebuild_tree();
		hp_guard_child();
		hp_cache_child();
	} else {
		hp_cache_copied();
	}
	hp_watch_child();
	hp_config_child();
	hp_heap_start_child();
	hp_heap_begin_process();
	if (!forking.interrupted && hp_heap_hooks()->postfork_child)
		hp_heap_hooks()->postfork_child();
	end_fork(hp_small()->postfork_child);
}

/* As early as can be: our child handler must come before those of others, who may touch the heap. libhugepin-malloc.so
 * calls this before it lets anyone else register; with libhugepin.so alone, libraries that are initialised before it
 * come first. */
void hugepin_atfork_(void)
{
	static bool done;

	if (done)
		return;
	done = true; /* now: registering passes by here again */
	pthread_atfork(heap_prefork, heap_postfork_parent, heap_postfork_child);
}
