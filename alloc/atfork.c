/*
 * Fork's handlers. Before the fork they take locks and empty lists; after it they undo this, in the parent and in the
 * child. fork.c decides which memory the child gets.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/single_threaded.h>

#include "alloc/cache.h"
#include "alloc/copy.h"
#include "alloc/decay.h"
#include "alloc/fork.h"
#include "alloc/leave.h"
#include "alloc/move.h"
#include "alloc/peak.h"
#include "alloc/place.h"
#include "alloc/repair.h"
#include "alloc/sparse.h"
#include "alloc/start.h"
#include "alloc/below.h"
#include "alloc/watch.h"
#include "base/config.h"
#include "base/probe.h"
#include "base/proc.h"
#include "base/process.h"
#include "base/service.h"
#include "base/stats.h"
#include "base/sys.h"
#include "base/thread.h"

/* The state of the fork under way, which heap_prefork() sets and the later handlers read. While other threads may fork
 * too, hp_heap_lock protects it. */
static struct {
	uint64_t signals; /* the forking thread's signal mask */
	unsigned held; /* ranked locks that the forking thread holds */
	bool alone; /* no other thread of the program's exists, so nobody else holds any lock */
	bool interrupted; /* a signal handler forks, and has interrupted the heap: touch nothing */
	bool locked; /* hp_heap_lock was taken in heap_prefork() */
	bool ticker_forbidden; /* the parent allows the ticker again after hp_fork_parent() */
} forking;

/* The C library's lock of its list of streams. fork() takes it after all prepare handlers, and three threads could then
 * deadlock: the fork, a thread that holds a stream's lock and waits for ours, and a thread that flushes all streams. So
 * we keep the C library's own order: our prepare handler, which runs last because it was registered first, takes the
 * list's lock before our locks. */
void _IO_list_lock(void), _IO_list_unlock(void), _IO_list_resetlock(void);

/* Whether no other thread of the program's exists. Our bare threads may exist, because they hold ranked locks only. */
static bool alone(void)
{
	uint32_t tid = hp_thread_tid(&hp_ticker);
	bool served = hp_service_running();
	unsigned ours = (unsigned)served + (tid != 0), count;

	if (__libc_single_threaded)
		return true;
	if (hp_watch_any() || hp_heap_has_hooks())
		return false;
	count = hp_thread_count();
	/* Look at our threads again, because if one of them was counted and then ended, a thread of the program's may
	 * have taken its place in the count. */
	return count == 1 + ours && hp_thread_tid(&hp_ticker) == tid && hp_service_running() == served;
}

/* Pages do not move if anybody may remember their memory: a watcher, or a domain, even one that holds no page. */
static bool move_wanted(void)
{
	bool wanted;

	if (hp_sandboxed || hp_watch_any() || hp_heap_has_hooks() || !HP_STAT(hugetlb_bytes))
		return false;
	hp_heap_lock();
	wanted = hp_move_wanted();
	hp_heap_unlock();
	return wanted;
}

/* Whether a signal handler forks that has interrupted its own thread inside the thread's cache. */
static bool in_own_cache(void)
{
	struct hp_cache *c = hp_cache_self;

	return c != &hp_cache_none && atomic_load_explicit(&c->slot.busy, memory_order_relaxed);
}

/* Whether a signal handler forks that has interrupted its own thread inside the heap. */
static bool interrupts_heap(void)
{
	return hp_heap_mine() || hp_pages_inside() || in_own_cache();
}

static void note_length(uint64_t us)
{
	if (us > HP_STAT(fork_longest_us))
		HP_STAT_ADD(fork_longest_us, us - HP_STAT(fork_longest_us));
}

static void heap_prefork(void)
{
	uint64_t old, begun_ns;
	bool is_alone, interrupted, locked, moves;
	struct hp_fork_copied copied;
	unsigned held;
	size_t moved = 0;

	hp_heap_know_process();
	hp_probe_fork_begin(HP_STAT_GET(hugetlb_bytes));
	is_alone = alone();
	old = hp_signals_block(HP_SIGNALS);
	/* A signal handler may have interrupted its thread while the thread held a lock of higher rank. Leave such
	 * locks out of the check of ranks: no deadlock can arise, because a holder of our lock never takes one of
	 * them. */
	held = hp_locks_held;
	hp_locks_held &= (2u << HP_LOCK_RANK_HEAP) - 1;
	interrupted = interrupts_heap();
	moves = is_alone && !interrupted && move_wanted();
	if (moves)
		hp_thread_forbid(&hp_ticker);
	if (!is_alone)
		_IO_list_lock();
	locked = !hp_heap_mine();
	if (locked) {
		/* Quiesce the heap before taking jemalloc's locks, because a watcher, or a hook on mmap, runs inside a
		 * mapping call and may allocate. */
		hp_heap_lock();
		hp_pages_quiesce(HP_PART_HEAP);
		hp_heap_unlock();
	}
	if (!is_alone && hp_small()->prefork)
		hp_small()->prefork();
	if (locked) {
		hp_heap_lock();
		hp_pages_quiesce(HP_PART_SMALL);
	}
	forking.signals = old;
	forking.held = held;
	forking.alone = is_alone;
	forking.interrupted = interrupted;
	forking.ticker_forbidden = moves;
	forking.locked = locked;
	if (interrupted) {
		hp_fork_leave();
		return;
	}
	/* After this, every other thread waits for the lock, or hp_cache_unsettled() says that one may be busy. */
	hp_cache_steal(false, 0);
	hp_lists_clear(HP_SHARD_HELD_ALL);
	begun_ns = hp_clock_ns();
	if (moves)
		moved = hp_move();
	copied = hp_fork_prepare(hp_cache_unsettled(), is_alone, moved);
	if (copied.pages + moved)
		note_length((hp_clock_ns() - begun_ns) / 1000);
	if (HP_UNLIKELY(hp_peak_on))
		hp_peak_copied((copied.pages + moved) << HP_PAGE_SHIFT, (copied.of_pool + moved) << HP_PAGE_SHIFT);
}

static void end_fork(void (*small_postfork)(void))
{
	uint64_t old = forking.signals;
	unsigned held = forking.held;
	bool was_alone = forking.alone;

	if (forking.locked) {
		hp_pages_resume();
		hp_heap_unlock();
	}
	if (!was_alone && small_postfork)
		small_postfork();
	hp_locks_held = held;
	hp_signals_block(old);
}

static void heap_postfork_parent(void)
{
	bool was_alone = forking.alone, must_ask = false;

	if (!forking.interrupted) {
		hp_fork_parent();
		if (!forking.alone && hp_span.no_pool && !hp_cache_unsettled())
			hp_leave_pool();
		if (forking.ticker_forbidden)
			hp_thread_allow(&hp_ticker);
		/* Not after a fork in a signal handler, because replacing the ticker may wait for the lock that the
		 * interrupted code holds. */
		if (forking.ticker_forbidden || hp_span.left || hp_copy_kept())
			must_ask = hp_want_tick(true);
	}
	end_fork(hp_small()->postfork_parent);
	if (!was_alone)
		_IO_list_unlock();
	if (must_ask)
		hp_ask_tick(false);
}

/* In the child, make the tree agree with the chunk words. Only live buffers remain: the other threads are gone, so
 * buffers in their caches, and chunks that they were about to get, become free. */
static void rebuild_tree(void)
{
	size_t taken = 0, room = 0;

	for (size_t c = HP_PAGE_CHUNKS; c < hp_span.end[HP_PART_HEAP] << HP_PAGE_CHUNKS_SHIFT;) {
		size_t gap, n = 1;
		unsigned s;

		if (hp_span.page[hp_page_of(c)].state == HP_PAGE_NONE) {
			c = (hp_page_of(c) + 1) << HP_PAGE_CHUNKS_SHIFT;
			continue;
		}
		gap = hp_holes_after(&hp_span.holes, c, HP_PAGE_CHUNKS - (c & (HP_PAGE_CHUNKS - 1)));
		if (gap) {
			if (hp_span.page[hp_page_of(c)].lost)
				hp_chunks_set_taken(c, gap);
			c += gap;
			continue;
		}
		s = HP_CHUNK_STATE(hp_chunk_get(c));
		if (s != HP_CHUNK_FREE)
			n = hp_chunk_extent(c);
		if (s == HP_CHUNK_FREE)
			while (hp_page_of(c + n) == hp_page_of(c) &&
			       HP_CHUNK_STATE(hp_chunk_get(c + n)) == HP_CHUNK_FREE &&
			       !hp_holes_after(&hp_span.holes, c + n, 1))
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
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
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
		hp_cache_child();
		hp_sparse_forget();
		hp_repair_forget();
	} else {
		if (forking.alone)
			hp_shards_child();
		hp_cache_copied();
	}
	hp_watch_child();
	hp_config_child();
	hp_peak_child();
	hp_heap_start_child();
	hp_heap_begin_process();
	if (!forking.interrupted && hp_heap_hooks()->postfork_child)
		hp_heap_hooks()->postfork_child();
	end_fork(hp_small()->postfork_child);
}

bool hugepin_fork_refused_(void)
{
	bool refused;

	if (!hp_heap_ready())
		return false;
	if (interrupts_heap()) {
		refused = !hp_fork_may_leave();
	} else {
		hp_heap_lock();
		hp_pages_quiesce(HP_PART_HEAP);
		refused = hp_fork_refuses();
		hp_pages_resume();
		hp_heap_unlock();
	}
	if (refused)
		HP_STAT_COUNT(forks_refused, 1);
	return refused;
}

void hugepin_fork_bypassed_(void)
{
	if (hp_heap_ready())
		hp_fork_leave();
}

long hugepin_fork_by_(long (*call)(void *arg), void *arg)
{
	const bool ready = hp_heap_ready();
	long r;

	if (hugepin_fork_refused_()) {
		errno = ENOMEM;
		return -1;
	}
	if (ready)
		heap_prefork();
	r = call(arg);
	if (ready) {
		const int e = errno;

		(r ? heap_postfork_parent : heap_postfork_child)();
		errno = e;
	}
	return r;
}

/* Register the handlers as early as possible, because our child handler must run before others, which may use the heap.
 * libhugepin-malloc.so calls this before anyone else can register. With libhugepin.so alone, handlers of libraries that
 * are initialised before it run first. */
void hugepin_atfork_(void)
{
	static bool done;

	if (done)
		return;
	done = true; /* set before registering, which may call this function again */
	pthread_atfork(heap_prefork, heap_postfork_parent, heap_postfork_child);
}
