/*
 * The heap: where a buffer goes, and when freed ones become free memory again. The design, and what was tried and lost,
 * is in docs/ARCHITECTURE.md.
 *
 * malloc: slot, own list (no lock); shared list, tree (hp_heap_lock); new extent. free: slot, own list (no lock); shared
 * list; the tree only when the lists are cleared. Clearing is coalescing. It happens on a miss when the lists hold more
 * than HP_LISTED_MISS; always before a hugepage that is not in use would be taken; when the service thread asks; at fork,
 * thread exit and purge.
 *
 * Placement: the tightest of the first HUGEPIN_FIT holes in address order (Rex et al. 2006 and Wilson et al. 1995 for
 * address-ordered first fit, which HUGEPIN_FIT=1 is).
 *
 * Management data lies in tables apart (pages.h): a wild write in a buffer cannot break the heap, and a search touches no
 * buffer memory.
 */
#include "alloc/heap.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/advice.h"
#include "alloc/copy.h"
#include "alloc/fast.h"
#include "alloc/guard.h"
#include "alloc/hold.h"
#include "alloc/map.h"
#include "alloc/move.h"
#include "alloc/small.h"
#include "alloc/watch.h"
#include "base/config.h"
#include "base/process.h"
#include "base/seal.h"
#include "base/service.h"
#include "base/stats.h"
#include "base/there.h"
#include "base/thread.h"
#include "base/ticker.h"

/* Holes that exceed the request by so many chunks count as equally loose: the lowest wins. */
#define LOOSE 2048
/* Holes too short for the alignment to pass over before asking for one that fits in any case. */
#define MISFITS 16
/* A buffer of so many chunks or more that has to move gets as much room again behind it; from the second size on three
 * times as much, since there a copy costs most and the room is nothing but addresses. */
#define ROOM_MIN HP_PAGE_CHUNKS
#define ROOM_LARGE (16 * HP_PAGE_CHUNKS)
/* Give-back keeps so many free hugepages. */
#define WATERMARK 1

/* ------------------------------------------------------------------ the tier below */

static void *next_aligned_alloc(size_t align, size_t size)
{
	void *p;
	int r = posix_memalign(&p, HP_MAX(align, sizeof(void *)), size);

	if (r == 0)
		return p;
	errno = r;
	return NULL;
}

static size_t next_usable_size(const void *p)
{
	return malloc_usable_size((void *)p);
}

static const struct hp_small process_malloc = {
	.malloc = malloc,
	.calloc = calloc,
	.realloc = realloc,
	.aligned_alloc = next_aligned_alloc,
	.free = free,
	.usable_size = next_usable_size,
};

static const struct hp_small *small(void)
{
	return &hugepin_small_ ? &hugepin_small_ : &process_malloc;
}

bool hugepin_small_is_next_(void)
{
	hp_config_load();
	return hp_config.small == HP_SMALL_NEXT;
}

size_t hugepin_small_span_(void)
{
	hp_config_load();
	return (size_t)hp_config.span;
}

void hugepin_misuse_(const char *function, const void *ptr, const char *reason)
{
	char buf[200];
	struct hp_line l = { buf, buf + sizeof buf };

	hp_line_text(&l, function);
	hp_line_text(&l, "(0x");
	hp_line_number(&l, (uintptr_t)ptr, 16);
	hp_line_text(&l, "): ");
	hp_line_text(&l, reason);
	if (hp_config.abort_on_misuse)
		hp_die(buf, NULL, SIZE_MAX);
	hp_say(buf, NULL, SIZE_MAX);
	HP_STAT_COUNT(bad_pointers, 1);
}

static HP_TLS struct hp_cache *set_aside; /* this thread's cache, while it goes without: hugepin_small_only_() */

void hugepin_small_only_(bool on)
{
	if (on) {
		set_aside = hp_cache_self;
		hp_cache_self = &hp_cache_none; /* the fast paths find nothing */
	} else if (set_aside) {
		hp_cache_self = set_aside;
		set_aside = NULL;
	}
}

/* ------------------------------------------------------------------ start */

enum { UNUSED, STARTING, READY, UNAVAILABLE };
static _Atomic uint32_t state;
static HP_TLS bool starting; /* this thread is in start(): hooks on mmap may allocate */
static bool constructed; /* our constructor has run: threads may be started */
static bool armed; /* somebody ticks; under hp_heap_lock */
static struct {
	bool on; /* no thread is to be had: slow paths tick */
	uint64_t next_ns;
} by_calls; /* under hp_heap_lock */
static bool armed_service; /* it is the service thread, which may end before it is done */
static struct hp_job decay = { .run = hp_heap_tick };
static bool let_go(void);
static struct hp_job letting_go = { .run = let_go };
static _Atomic bool must_let_go; /* memory is idle that domains hold, and there was no thread to ask them */

/* What is above the heap; never NULL. release, acquire: so that what it points to is seen. */
static const struct hp_heap_hooks no_hooks;
static HP_SEALED(struct { const struct hp_heap_hooks *_Atomic set; }) hooks_used = { { &no_hooks } };

static const struct hp_heap_hooks *hooks(void)
{
	return atomic_load_explicit(&hooks_used.is.set, memory_order_acquire);
}

/* No thread is here but this one, and none of what was about to happen will. */
static void begin_process(void)
{
	hp_service_child();
	hp_ticker_child(hp_watch_any());
	armed = false;
	by_calls.on = false;
	hp_process_begin();
}

/* A child in which no handler of fork has run finds out by itself. What lies above has begun anew, too, unless it is what asks. */
static void know_process(void)
{
	if (HP_LIKELY(!hp_process_copied()) || !hp_process_claim())
		return;
	hp_cache_copied();
	begin_process();
	if (hooks()->postfork_child && !(hp_locks_held & ((1u << HP_RANK_HEAP) - 1)))
		hooks()->postfork_child();
}

/* Reserve the span. False: no heap, or not yet; the tier below serves all. */
static bool start(void)
{
	uint32_t expected = UNUSED;

	know_process();
	if (atomic_load_explicit(&state, memory_order_acquire) == READY)
		return true;
	if (starting || state == UNAVAILABLE || hp_config_load() != 0)
		return false;
	if (atomic_compare_exchange_strong(&state, &expected, STARTING)) {
		starting = true;
		decay.delay_ns = (uint64_t)hp_config.decay_ms * 1000000 / HP_TICKS;
		state = hp_base_page_fits() && hp_span_init(hp_config.small_pinned && &hugepin_small_) == 0 ? READY : UNAVAILABLE;
		starting = false;
		hp_futex_wake(&state);
	}
	while (state == STARTING)
		hp_futex_wait(&state, STARTING, UINT64_MAX);
	return state == READY;
}

/* ------------------------------------------------------------------ placement; hp_heap_lock held */

struct request {
	size_t n, room; /* chunks */
	size_t bytes; /* with HUGEPIN_GUARD, which adds a chunk to n */
	size_t align; /* bytes, a power of two; at least HP_CHUNK */
	enum hp_part part; /* by whom */
	bool memory_short; /* set by place(): addresses were there, memory was not */
	bool grew; /* set by place(): an extent was made */
};

static size_t page_of(size_t chunk)
{
	return chunk >> HP_PAGE_CHUNKS_SHIFT;
}

static size_t pages_for(size_t chunks)
{
	return (chunks + HP_PAGE_CHUNKS - 1) >> HP_PAGE_CHUNKS_SHIFT;
}

/* Hugepages that [chunk, chunk + n) touches. */
static size_t pages_touched(size_t chunk, size_t n)
{
	return page_of(chunk + n - 1) - page_of(chunk) + 1;
}

/* The chunk at which a request would begin in this hole; it may not fit. */
static size_t place_in(const struct hp_hole *h, const struct request *r)
{
	uintptr_t at = hp_round_up(hp_chunk_addr(h->start), r->align);

	return (at - hp_span.base) >> HP_CHUNK_SHIFT;
}

/* The tightest of the first few holes. 0: none. */
static size_t find(const struct request *r)
{
	size_t n = r->n + r->room, ask = n, best = 0, best_len = SIZE_MAX;
	size_t from = r->part == HP_PART_HEAP ? 0 : (hp_span.small + 1) << HP_PAGE_CHUNKS_SHIFT;
	int64_t looked = 0, misfits = 0;
	struct hp_hole h;

	while (looked < hp_config.fit && hp_tree_next_hole(&hp_span.tree, from, ask, &h)) {
		size_t at = place_in(&h, r), len = HP_MIN(h.len, n + LOOSE);

		from = h.start + h.len;
		if (at + n > from) {
			if (++misfits == MISFITS)
				ask = n + (r->align >> HP_CHUNK_SHIFT) - 1;
			continue;
		}
		looked++;
		if (len < best_len) {
			best = at;
			best_len = len;
		}
		if (h.len == n)
			break;
	}
	return best;
}

static size_t floor_power_of_two(size_t x)
{
	return (size_t)1 << (63 - __builtin_clzll(x));
}

/* A new extent for the request, which may lie at its start: as large as the heap is by now, naturally aligned, up to the
 * limit; beyond it, its own. Where there are pages of 1 GiB, so many of them. Its first chunk, or 0. */
static size_t grow(const struct request *r)
{
	size_t limit = (size_t)hp_config.extent_max >> HP_PAGE_SHIFT;
	size_t need = pages_for(r->n + r->room), pages = need, first = 0;

	if (r->part == HP_PART_HEAP && hp_pages_giants_left())
		first = hp_extent_create(r->part, hp_round_up(need, HP_GIANT_PAGES),
					 HP_MAX((size_t)1 << HP_GIANT_SHIFT, r->align), HP_EXTENT_GIANT);
	if (need <= limit) {
		pages = HP_MIN(floor_power_of_two(HP_MAX(hp_span.extent_pages[r->part], (size_t)1)), limit);
		if (pages < need)
			pages = floor_power_of_two(2 * need - 1);
	}
	if (!first)
		first = hp_extent_create(r->part, pages, r->align, need <= limit ? HP_EXTENT_AHEAD : 0);
	if (!first && pages > need)
		first = hp_extent_create(r->part, need, r->align, 0);
	hp_tree_settle(&hp_span.tree);
	return first << HP_PAGE_CHUNKS_SHIFT;
}

/* Empty all lists that may be emptied. Returns whether there was anything in them. */
static bool clear_lists(void)
{
	struct hp_cache *c = hp_cache_self;
	bool any = hp_shared_listed || c->listed || c->slot.n;

	hp_shared_clear();
	if (c != &hp_cache_none)
		hp_cache_clear(c);
	return any;
}

static void taken_add(size_t chunks)
{
	HP_STAT_ADD(taken_bytes, chunks << HP_CHUNK_SHIFT);
	if (HP_STAT(taken_bytes) > HP_STAT(taken_peak_bytes))
		HP_STAT(taken_peak_bytes) = HP_STAT(taken_bytes);
}

static void take(size_t chunk, const struct request *r)
{
	hp_tree_take(&hp_span.tree, chunk, r->n + r->room);
	hp_tree_settle(&hp_span.tree);
	taken_add(r->n + r->room);
	HP_STAT_ADD(room_bytes, r->room << HP_CHUNK_SHIFT);
}

/* Whether a buffer has lost memory in a fork. */
static bool is_lost(size_t chunk, size_t n)
{
	for (size_t p = page_of(chunk); p <= page_of(chunk + n - 1); p++)
		if (hp_span.page[p].lost)
			return true;
	return false;
}

/* Of a page that leaves the pool, and that has gone but for its memory. */
static bool has_left(size_t page)
{
	return hp_span.page[page].leaves && !hp_span.page[page].in_use;
}

/* The free chunks of such a page are in no tree. A lost page is not used again: buffers beside the free chunks would
 * read as zero. On a page that leaves the pool nothing is placed. */
static bool has_no_tree(size_t page)
{
	return hp_span.page[page].lost || hp_span.page[page].leaves;
}

static void tree_free(size_t chunk, size_t n)
{
	for (size_t at = chunk, end = chunk + n, to; at < end; at = to) {
		bool no_tree = has_no_tree(page_of(at));

		to = at;
		do {
			struct hp_page *g = &hp_span.page[page_of(to)];
			size_t from = to;

			to = HP_MIN(end, (page_of(to) + 1) << HP_PAGE_CHUNKS_SHIFT);
			if (g->leaves) {
				g->in_use = (g->in_use - (to - from)) & 0x7fff;
				hp_span.left += has_left(page_of(from));
			}
		} while (to < end && has_no_tree(page_of(to)) == no_tree);
		if (!no_tree)
			hp_tree_free(&hp_span.tree, at, to - at);
	}
	hp_tree_settle(&hp_span.tree);
}

static void give(size_t chunk, size_t n)
{
	tree_free(chunk, n);
	HP_STAT_ADD(taken_bytes, -(n << HP_CHUNK_SHIFT));
}

/* A live buffer, room and all. */
static void give_buffer(size_t chunk)
{
	size_t n = hp_chunk_extent(chunk), count = HP_CHUNK_COUNT(hp_chunk_get(chunk));

	HP_STAT_ADD(room_bytes, -((n - count) << HP_CHUNK_SHIFT));
	if (n > 1)
		hp_chunk_set(chunk + 1, 0);
	hp_chunk_set(chunk, 0);
	give(chunk, n);
}

/* Note that [chunk, chunk + n) was handed out. Returns how many of its first chunks may be dirty; the rest are zero. */
static size_t hand_out(size_t chunk, size_t n)
{
	size_t dirty = 0;

	for (size_t at = chunk, end = chunk + n; at < end;) {
		struct hp_page *g = &hp_span.page[page_of(at)];
		size_t page_start = at & ~(HP_PAGE_CHUNKS - 1);
		size_t to = HP_MIN(end, page_start + HP_PAGE_CHUNKS);

		if (page_start + g->fresh > at)
			dirty = HP_MIN(to, page_start + g->fresh) - chunk;
		g->fresh = (uint16_t)HP_MAX(g->fresh, to - page_start);
		at = to;
	}
	return dirty;
}

/* Whether a part of it lies on a page that leaves the pool. */
static bool any_leaves(size_t chunk, size_t n)
{
	for (size_t p = page_of(chunk); hp_span.no_pool && p <= page_of(chunk + n - 1); p++)
		if (hp_span.page[p].leaves)
			return true;
	return false;
}

static void set_live(size_t chunk, size_t n, size_t room)
{
	if (room)
		hp_chunk_set(chunk + 1, HP_CHUNK_WORD(room, HP_CHUNK_FREE));
	else if (n > 1)
		hp_chunk_set(chunk + 1, 0);
	hp_chunk_set(chunk, HP_CHUNK_WORD(n, room || any_leaves(chunk, n) ? HP_CHUNK_ROOMY : HP_CHUNK_LIVE));
}

/* The same where there may be advice about it: then its free() must not take the fast path. */
static void set_live_again(size_t chunk, size_t n, size_t room)
{
	set_live(chunk, n, room);
	if (!room && hp_advice_any(chunk, n))
		hp_chunk_set(chunk, HP_CHUNK_WORD(n, HP_CHUNK_ROOMY));
}

/* Place a request in the tree and give it memory. May release the lock meanwhile. 0: out of memory. */
static size_t place(struct request *r)
{
	size_t chunk;

	if (hp_shared_listed + hp_cache_self->listed > HP_LISTED_MISS)
		clear_lists();
	chunk = find(r);
	if (!chunk || hp_pages_need_commit(page_of(chunk), pages_touched(chunk, r->n))) {
		/* Memory that is in use already comes before memory that is not. */
		hp_cache_ask_others();
		if (clear_lists())
			chunk = find(r);
	}
	if (!chunk) {
		chunk = grow(r);
		if (!chunk)
			return 0;
		r->grew = true;
	}
	take(chunk, r);
	if (hp_pages_commit(page_of(chunk), pages_touched(chunk, r->n)))
		return chunk;
	r->memory_short = true;
	HP_STAT_ADD(room_bytes, -(r->room << HP_CHUNK_SHIFT));
	give(chunk, r->n + r->room);
	hp_extent_destroy_if_empty(hp_span.page[page_of(chunk)].extent);
	return 0;
}

/* ------------------------------------------------------------------ leaving the pool; hp_heap_lock held */

/* The heap of a process with threads cannot move at a fork. Such a process leaves the pool as buffers come and go.
 * Nothing is placed on pages of the pool any more. An empty page goes back without waiting. */

/* False: the page is not the pool's, or has begun already. */
static bool begin_to_leave(size_t page)
{
	struct hp_page *g = &hp_span.page[page];
	size_t c = page << HP_PAGE_CHUNKS_SHIFT, in_use = HP_PAGE_CHUNKS;

	if (g->leaves || g->giant || g->kind != HUGEPIN_KIND_HUGETLB ||
	    (g->state != HP_PAGE_READY && g->state != HP_PAGE_RESERVED))
		return false;
	for (size_t end = c + HP_PAGE_CHUNKS, gap; c < end; c += gap ? gap : 1) {
		gap = hp_tree_free_after(&hp_span.tree, c, end - c);
		if (!gap)
			continue;
		hp_tree_take(&hp_span.tree, c, gap);
		in_use -= gap;
	}
	g->leaves = 1;
	g->in_use = in_use & 0x7fff;
	hp_span.left += has_left(page);
	return true;
}

/* All lists are empty, and every other thread that would take from its own is at the lock. */
static void leave_pool(void)
{
	bool any = false;

	for (size_t p = 1; p < hp_span.tree.used; p++)
		any |= begin_to_leave(p);
	hp_tree_settle(&hp_span.tree);
	if (!any)
		return;
	/* What is freed there must come here, and not to a list. */
	for (size_t c = HP_PAGE_CHUNKS; c < hp_span.tree.used << HP_PAGE_CHUNKS_SHIFT;) {
		uint64_t w = hp_chunk_get(c);

		if (hp_span.page[page_of(c)].state == HP_PAGE_NONE) {
			c = (page_of(c) + 1) << HP_PAGE_CHUNKS_SHIFT;
			continue;
		}
		if (HP_CHUNK_STATE(w) == HP_CHUNK_LIVE && any_leaves(c, HP_CHUNK_COUNT(w)))
			hp_chunk_set(c, w ^ HP_CHUNK_LIVE ^ HP_CHUNK_ROOMY);
		c += HP_CHUNK_STATE(w) == HP_CHUNK_FREE ? 1 : hp_chunk_extent(c);
	}
}

/* Pages that have left are wholly free for long. */
static void let_left_go(void)
{
	for (size_t p = 1; p < hp_span.tree.used && hp_span.left; p++) {
		if (!has_left(p))
			continue;
		hp_span.left--;
		hp_span.page[p].leaves = 0;
		hp_tree_free(&hp_span.tree, p << HP_PAGE_CHUNKS_SHIFT, HP_PAGE_CHUNKS);
		hp_tree_settle(&hp_span.tree);
		hp_span.tree.stamps[p] = hp_span.tree.now - HP_TICKS - 1;
	}
}

/* ------------------------------------------------------------------ giving back; hp_heap_lock held */

/* Wholly free since so many ticks. */
static bool is_free(size_t page, uint32_t ticks)
{
	return hp_tree_page_free(&hp_span.tree, page) && hp_span.tree.now - hp_span.tree.stamps[page] >= ticks;
}

/* Has memory that is in no buffer. */
static bool is_idle(size_t page, uint32_t ticks)
{
	unsigned s = hp_span.page[page].state;

	return (s == HP_PAGE_READY || s == HP_PAGE_RESERVED) && is_free(page, ticks);
}

static bool may_leave(size_t page, uint32_t ticks)
{
	return is_idle(page, ticks) && !hp_page_held(&hp_span.page[page]);
}

/* Pages from p on that lie in one extent and for which may() says so: if they are giant, whole ones. */
static size_t together(size_t p, size_t end, bool (*may)(size_t page, uint32_t ticks), uint32_t ticks)
{
	const struct hp_page *g = &hp_span.page[p];
	size_t q = p;

	if (g->giant && p & (HP_GIANT_PAGES - 1))
		return 0;
	while (q < end && hp_span.page[q].extent == g->extent && hp_span.page[q].giant == g->giant && may(q, ticks))
		q++;
	return g->giant ? (q - p) & ~(HP_GIANT_PAGES - 1) : q - p;
}

/* Give back hugepages of [first, end) that are wholly free for `ticks`, all but `keep` of those that are not giant. Returns their
 * bytes. may_wait: for a fork to pass. */
static size_t give_back(size_t first, size_t end, uint32_t ticks, size_t keep, bool may_wait)
{
	size_t bytes = 0;

	if (hp_pages_inside())
		return 0;
	let_left_go();
	for (size_t p = first; p < end && (may_wait || !hp_pages_quiet());) {
		const struct hp_page *g = &hp_span.page[p];
		size_t extent = g->extent, n;

		if (keep && g->state == HP_PAGE_READY && !g->giant && !(hp_span.no_pool && g->kind == HUGEPIN_KIND_HUGETLB) &&
		    may_leave(p, 0)) {
			keep--;
			p++;
			continue;
		}
		n = together(p, end, may_leave, ticks);
		if (!n) {
			p++;
			continue;
		}
		hp_tree_take(&hp_span.tree, p << HP_PAGE_CHUNKS_SHIFT, n << HP_PAGE_CHUNKS_SHIFT);
		hp_tree_settle(&hp_span.tree);
		if (hp_pages_release(p, n))
			bytes += n << HP_PAGE_SHIFT;
		tree_free(p << HP_PAGE_CHUNKS_SHIFT, n << HP_PAGE_CHUNKS_SHIFT);
		hp_extent_destroy_if_empty(extent);
		p += n;
	}
	return bytes;
}

/* Give back freed buffers that were kept inaccessible for long enough, or all. */
static void unguard(bool all)
{
	size_t chunk, n;

	while ((chunk = hp_guard_release(all, &n)))
		give(chunk, n);
}

static size_t purge(bool may_wait)
{
	size_t bytes;

	unguard(true);
	hp_cache_steal(false, 0);
	clear_lists();
	for (size_t c = 1; (c = hp_advice_stuck(c)) != 0; c++) {
		if (hp_advice_undo(c, hp_chunk_extent(c)))
			give_buffer(c);
		else
			hp_advice_stick(c);
	}
	bytes = give_back(1, hp_span.tree.used, 0, 0, may_wait);
	bytes += give_back(hp_span.small, hp_span.tree.upper_used, 0, 0, may_wait);
	HP_STAT_ADD(purged_bytes, bytes);
	return bytes + hp_copy_drop();
}

/* Mapped, but in no live buffer as far as is known without asking the threads; or kept of a fork's copy. */
static size_t idle_bytes(void)
{
	size_t mapped = HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes);
	size_t live = HP_STAT(taken_bytes) - HP_STAT(listed_bytes) - HP_STAT(room_bytes) +
		      (hp_span.small_taken << HP_CHUNK_SHIFT);

	return (mapped > live ? mapped - live : 0) + hp_copy_kept();
}

/* Whether more than `keep` pages of [first, end) are such. */
static bool are_more(size_t first, size_t end, size_t keep, bool (*such)(size_t page, uint32_t ticks))
{
	size_t count = 0, n;

	for (size_t p = first; p < end && count <= keep; p += HP_MAX(n, (size_t)1)) {
		n = together(p, end, such, 0);
		count += n;
	}
	return count > keep;
}

/* Whether there is more to give back, by and by. */
static bool is_more(bool (*such)(size_t page, uint32_t ticks))
{
	return hp_span.left || are_more(1, hp_span.tree.used, WATERMARK, such) ||
	       are_more(hp_span.small, hp_span.tree.upper_used, 0, such);
}

/* On a bare thread, which calls no hook: what domains hold waits for a thread that may. */
static bool tick(bool bare)
{
	void (*let_go)(uint32_t) = bare ? NULL : hooks()->let_go;
	bool more;

	hp_lock(&hp_heap_lock);
	hp_span.tree.now++;
	/* What an idle thread holds was freed before the last tick. */
	more = hp_cache_steal(true, 2);
	/* What is in the shared lists came since the last tick. */
	hp_span.tree.now--;
	hp_shared_clear();
	hp_span.tree.now++;
	if (let_go) { /* now that the lists are cleared */
		hp_unlock(&hp_heap_lock);
		let_go(HP_TICKS + 1);
		hp_lock(&hp_heap_lock);
	}
	HP_STAT_ADD(decayed_bytes, give_back(1, hp_span.tree.used, HP_TICKS + 1, WATERMARK, true));
	HP_STAT_ADD(decayed_bytes, give_back(hp_span.small, hp_span.tree.upper_used, HP_TICKS + 1, 0, true));
	more |= hp_copy_age(HP_TICKS + 1);
	more = more || is_more(may_leave);
	if (hooks() != &no_hooks && is_more(is_idle)) {
		must_let_go = bare && !hp_service_running();
		more |= !must_let_go;
	}
	armed = more;
	hp_unlock(&hp_heap_lock);
	if (bare && hooks() != &no_hooks && hp_service_running())
		hp_service_ask(&letting_go);
	return more;
}

bool hp_heap_tick(void)
{
	return tick(false);
}

static bool let_go(void)
{
	if (hooks()->let_go)
		hooks()->let_go(HP_TICKS + 1);
	return false;
}

static void disarm(void)
{
	hp_lock(&hp_heap_lock);
	armed = false;
	hp_unlock(&hp_heap_lock);
}

static void tick_alone(void *unused)
{
	(void)unused;
	hp_cache_self = &hp_cache_none;
	while (hp_ticker_sleep(decay.delay_ns) && !hp_map_hooked())
		if (!tick(true))
			return;
	disarm(); /* the next slow path sees to it that somebody ticks */
}

/* Hooks on mapping calls, watchers and backends may do anything, and need a thread that the C library knows. */
static bool may_tick_alone(void)
{
	return !hp_ticker_forbidden() && !hp_map_hooked();
}

static const struct hp_thread_kind tick_kind = {
	.name = "hugepin decay",
	.run = tick_alone,
	.calls = { SYS_futex, SYS_madvise, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_mbind, SYS_membarrier,
		   SYS_clock_gettime, SYS_sched_yield },
	.calls_count = 10,
};

/* ------------------------------------------------------------------ slow paths */

/* Whether free() may start the service thread, where the ticker will not do. The C library frees the thread-local storage of
 * threads that have exited under a lock that pthread_create takes; where there is but one thread, nothing of that can be going on. */
static bool free_may_start(void)
{
	static unsigned calls; /* looking costs some microseconds */

	return calls++ % 64 == 0 && (__libc_single_threaded || hp_thread_count() == 1);
}

/* Have somebody tick from now on, if the heap is so large that memory may be given back. Returns whether the
 * caller must call wake() once the lock is released. */
static bool arm(bool allocating)
{
	if (!constructed || !hp_config.decay_ms)
		return false;
	know_process();
	if (armed && armed_service && !hp_service_running()) /* it has ended meanwhile */
		armed = false;
	if (armed) {
		if (!by_calls.on || hp_clock_ns() < by_calls.next_ns)
			return false;
		by_calls.next_ns = hp_clock_ns() + decay.delay_ns;
		return true;
	}
	if (!hp_copy_kept() && HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes) - HP_STAT(reserved_bytes) <=
				       (2 * WATERMARK) << HP_PAGE_SHIFT)
		return false;
	if (!allocating && !hp_service_running() && !may_tick_alone() && !free_may_start())
		return false;
	armed = true;
	return true;
}

/* may_start: no lock is held, and the C library may be called. */
static void wake(bool may_start)
{
	bool service = !may_tick_alone(), found, due;

	if (!service)
		found = hp_ticker_start(&tick_kind);
	else
		found = !hp_sandboxed && (may_start || hp_service_running()) && hp_service_ask(&decay);
	if (found && may_start && must_let_go && !hp_sandboxed) {
		must_let_go = false;
		hp_service_ask(&letting_go);
	}
	hp_lock(&hp_heap_lock);
	armed_service = found && service;
	/* A child of vfork has the heap in common with its parent, and cannot start what is to give back the parent's memory. */
	if (!found && !hp_sandboxed && hp_process() == HP_PROCESS_GUEST)
		armed = false;
	due = !found && by_calls.on && may_start;
	by_calls.on = !found && armed;
	if (!found && !due)
		by_calls.next_ns = hp_clock_ns() + decay.delay_ns;
	hp_unlock(&hp_heap_lock);
	if (due)
		tick(true); /* no hook: who allocates may hold locks of a backend's */
}

/* The owner was asked to empty its cache, or has none in use yet. */
static void answer(struct hp_cache *c)
{
	if (c->listed || c->slot.n)
		hp_cache_clear(c);
	if (!hp_config.guard) /* else all goes the long way */
		hp_cache_admit(c);
}

/* A buffer, or NULL, and the bytes at its start that may not be zero. In registers: a caller whose stack it were on would have
 * the stack protector's price on its way without a lock. */
struct handed {
	void *p;
	size_t dirty;
};

/* A buffer from the shared lists or the tree. */
static __attribute__((noinline)) struct handed alloc_locked(struct request r)
{
	struct handed h = { 0 };
	struct hp_cache *c;
	size_t chunk;
	bool must_wake = false;

	if (set_aside)
		return h;
	if (!start() || r.n > hp_span.size >> HP_CHUNK_SHIFT) {
		HP_STAT_COUNT(nomem, 1);
		return h;
	}
	if (hp_config.guard)
		r.n = HP_MAX(r.n, (size_t)2) + 1;
	hp_cache_adopt();
	hp_lock(&hp_heap_lock);
	c = hp_cache_self;
	if (!hp_cache_limit(c) && (c->listed || c->slot.n))
		answer(c);
	chunk = r.room ? 0 : hp_shared_pop(r.n, r.align);
	if (chunk) {
		h.dirty = r.n << HP_CHUNK_SHIFT;
	} else {
		chunk = place(&r);
		/* Memory may be short because we keep it. What no purge can give is not worth one. */
		if (!chunk && r.memory_short && r.n << HP_CHUNK_SHIFT <= hp_span.ram &&
		    idle_bytes() >= r.n << (HP_CHUNK_SHIFT - 3) && purge(true))
			chunk = place(&r);
		if (!chunk && r.room) {
			r.room = 0;
			chunk = place(&r);
		}
		if (chunk && hp_config.guard && !hp_guard_make(chunk, r.n - 1, r.bytes)) {
			give(chunk, r.n);
			chunk = 0;
		}
		if (chunk) {
			HP_STAT_ADD(placed, 1);
			h.dirty = hand_out(chunk, r.n) << HP_CHUNK_SHIFT;
			if (!hp_config.guard)
				set_live(chunk, r.n, r.room);
		} else {
			HP_STAT_COUNT(nomem, 1);
		}
	}
	must_wake = arm(true);
	hp_unlock(&hp_heap_lock);
	if (must_wake)
		wake(true);
	hp_service_resume();
	if (r.grew && hooks()->grown)
		hooks()->grown();
	if (chunk)
		h.p = (void *)hp_chunk_addr(chunk);
	return h;
}

static const char *why_not(size_t off)
{
	uint64_t w = hp_chunk_get(off >> HP_CHUNK_SHIFT);

	if (off & (HP_CHUNK - 1) || HP_CHUNK_STATE(w) == HP_CHUNK_FREE)
		return "not the start of a live buffer";
	return HP_CHUNK_STATE(w) == HP_CHUNK_LISTED ? "already free" : NULL;
}

/* Before its advice is undone. Of a last chunk that cannot be read, or that a child gets without its contents, nothing is known. */
static bool is_overrun(size_t chunk)
{
	const size_t last = chunk + HP_CHUNK_COUNT(hp_chunk_get(chunk)) - 1;
	unsigned a;

	hp_advice_run(last, last + 1, &a);
	return !(a & (HP_ADVICE_KEPT | HP_ADVICE_NOREAD)) && !hp_guard_intact(chunk);
}

/* With HUGEPIN_GUARD; the lock is held, and released. */
static void free_guarded(void *p, size_t chunk, bool overrun)
{
	const size_t bytes = hp_guard_bytes(chunk);
	const bool must_wake = arm(false);
	char why[80];
	struct hp_line l = { why, why + sizeof why };

	hp_guard_free(chunk);
	unguard(false);
	hp_unlock(&hp_heap_lock);
	if (must_wake)
		wake(true);
	if (!overrun)
		return;
	hp_line_text(&l, "written to behind its ");
	hp_line_number(&l, bytes, 10);
	hp_line_text(&l, " bytes");
	hugepin_misuse_("free", p, why);
}

static __attribute__((noinline)) void free_locked(void *p)
{
	size_t off = (uintptr_t)p - hp_span.base, chunk = off >> HP_CHUNK_SHIFT, n;
	const char *why = why_not(off);
	struct hp_cache *c;
	bool roomy, overrun, must_wake;
	int saved = errno;

	if (why) {
		hugepin_misuse_("free", p, why);
		return;
	}
	if (!set_aside)
		hp_cache_adopt();
	if (HP_UNLIKELY(HP_CHUNK_STATE(hp_chunk_get(chunk)) == HP_CHUNK_ROOMY))
		hp_advice_unlock(chunk, hp_chunk_extent(chunk));
	hp_lock(&hp_heap_lock);
	why = why_not(off); /* two threads may free it at once */
	if (why) {
		hp_unlock(&hp_heap_lock);
		hugepin_misuse_("free", p, why);
		return;
	}
	/* A fork that had the lock meanwhile may have made the buffer's page leave the pool. */
	roomy = HP_CHUNK_STATE(hp_chunk_get(chunk)) == HP_CHUNK_ROOMY;
	overrun = hp_config.guard && is_overrun(chunk);
	if (HP_UNLIKELY(roomy) && !hp_advice_undo(chunk, hp_chunk_extent(chunk))) {
		hp_advice_stick(chunk); /* nobody else may have it */
		hp_unlock(&hp_heap_lock);
		return;
	}
	if (hp_config.guard) {
		free_guarded(p, chunk, overrun);
		errno = saved;
		return;
	}
	must_wake = arm(false);
	c = hp_cache_self;
	if (!hp_cache_limit(c))
		answer(c);
	n = HP_CHUNK_COUNT(hp_chunk_get(chunk));
	if (!roomy && n <= HP_SLOT_MAX) {
		if (n <= HP_LIST_MAX && n > HP_LIST_MAX - c->listed)
			hp_cache_spill(c);
		hp_shared_push(chunk, (uint32_t)n);
	} else {
		give_buffer(chunk);
	}
	hp_unlock(&hp_heap_lock);
	if (must_wake)
		wake(true);
	errno = saved;
}

/* More than PTRDIFF_MAX bytes: no tier is to see it. */
static bool too_large(size_t n)
{
	if (n <= PTRDIFF_MAX >> HP_CHUNK_SHIFT)
		return false;
	errno = ENOMEM;
	return true;
}

/* ------------------------------------------------------------------ lists without a lock; the cache was entered */

void *hugepin_malloc_listed_(size_t size, size_t n, struct hp_cache *c)
{
	size_t chunk = 0;
	void *p;

	if (HP_LIKELY(hp_cache_limit(c))) {
		chunk = hp_cache_pop(c, n, HP_CHUNK);
		size = n << HP_CHUNK_SHIFT; /* only guards ask for what it was, and they have no lists */
	}
	hp_cache_leave(c);
	if (HP_LIKELY(chunk))
		return (void *)hp_chunk_addr(chunk);
	if (too_large(n))
		return NULL;
	p = alloc_locked((struct request){ .n = n, .align = HP_CHUNK, .bytes = size }).p;
	return p ? p : small()->aligned_alloc(HP_CHUNK, n << HP_CHUNK_SHIFT);
}

void hugepin_free_listed_(struct hp_cache *c, void *p)
{
	size_t off = (uintptr_t)p - hp_span.base, chunk = off >> HP_CHUNK_SHIFT;
	uint64_t w = hp_chunk_get(chunk);
	bool done = !(off & (HP_CHUNK - 1)) && HP_CHUNK_STATE(w) == HP_CHUNK_LIVE && hp_cache_limit(c) &&
		    hp_cache_push(c, chunk, HP_CHUNK_COUNT(w));

	hp_cache_leave(c);
	if (HP_UNLIKELY(!done))
		free_locked(p);
}

/* ------------------------------------------------------------------ entry points */

static bool ours(const void *p)
{
	return hp_span_offset(&hp_span, p) < hp_span_opened(&hp_span);
}

void *hugepin_malloc(size_t size)
{
	if (HP_UNLIKELY(size < HUGEPIN_LARGE_MIN))
		return small()->malloc(size);
	return hp_fast_malloc(&hp_cache_self, size);
}

void hugepin_free(void *p)
{
	if (HP_UNLIKELY(!ours(p)))
		small()->free(p);
	else
		hp_fast_free(&hp_span, &hp_cache_self, p);
}

void *hugepin_aligned_alloc(size_t align, size_t size)
{
	size_t n = hp_chunks_for(HP_MAX(size, (size_t)1)), chunk = 0;
	void *p;

	if (!hp_is_power_of_two(align)) {
		errno = EINVAL;
		return NULL;
	}
	if (size < HUGEPIN_LARGE_MIN && align < HUGEPIN_LARGE_MIN)
		return small()->aligned_alloc(align, size);
	if (align <= HP_CHUNK)
		return hugepin_malloc(size);

	struct hp_cache *c = hp_cache_self;

	p = hp_cache_pop_slot(c, n, align);
	if (p)
		return p;
	if (hp_cache_limit(c))
		chunk = hp_cache_pop(c, n, align);
	hp_cache_leave(c);
	if (chunk)
		return (void *)hp_chunk_addr(chunk);
	if (too_large(n))
		return NULL;
	p = alloc_locked((struct request){ .n = n, .align = align, .bytes = size }).p;
	return p ? p : small()->aligned_alloc(align, size);
}

void *hugepin_calloc(size_t count, size_t size)
{
	size_t bytes, n, chunk = 0;
	struct hp_cache *c = hp_cache_self;
	struct handed h;
	void *p;

	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	if (bytes < HUGEPIN_LARGE_MIN)
		return small()->calloc(count, size);
	n = hp_chunks_for(bytes);
	p = hp_cache_pop_slot(c, n, HP_CHUNK);
	if (p)
		return memset(p, 0, bytes);
	if (hp_cache_limit(c))
		chunk = hp_cache_pop(c, n, HP_CHUNK);
	hp_cache_leave(c);
	if (chunk)
		return memset((void *)hp_chunk_addr(chunk), 0, bytes);
	if (too_large(n))
		return NULL;
	h = alloc_locked((struct request){ .n = n, .align = HP_CHUNK, .bytes = bytes });
	/* The tier below knows which of its memory is zero: the request may be for more than there is memory. */
	return h.p ? memset(h.p, 0, HP_MIN(h.dirty, bytes)) : small()->calloc(count, size);
}

size_t hugepin_usable_size(const void *p)
{
	size_t off = hp_span_offset(&hp_span, p);

	if (!ours(p))
		return p ? small()->usable_size(p) : 0;

	const char *why = why_not(off);

	if (why) {
		hugepin_misuse_("usable_size", p, why);
		return 0;
	}
	return hp_guard_bytes(off >> HP_CHUNK_SHIFT); /* without a guard, all of its chunks */
}

/* Grow the live buffer at `chunk` from n0 to n chunks where it stands. */
static bool grow_in_place(size_t chunk, size_t n0, size_t n)
{
	size_t room, room_left, behind, more, got;
	bool ok = false;

	hp_lock(&hp_heap_lock);
	if (is_lost(chunk, n0))
		goto out;
	room = hp_chunk_extent(chunk) - n0;
	room_left = room > n - n0 ? room - (n - n0) : 0;
	behind = chunk + n0 + room;
	more = n - n0 + room_left - room;
	for (int tries = 0; more && tries < 2; tries++) {
		bool border = !(behind & (HP_PAGE_CHUNKS - 1)) && hp_bit(hp_span.tree.starts, page_of(behind));

		got = page_of(behind) < hp_span.pages && !border ? hp_tree_free_after(&hp_span.tree, behind, more) : 0;
		if (got == more) {
			hp_tree_take(&hp_span.tree, behind, more);
			hp_tree_settle(&hp_span.tree);
			taken_add(more);
			break;
		}
		if (tries || border || n0 < ROOM_MIN / 8 || !clear_lists())
			goto out;
	}
	ok = hp_pages_commit(page_of(chunk), pages_touched(chunk, n));
	if (ok) { /* a fork that passed meanwhile has not taken what had no memory for a part of it */
		HP_STAT_ADD(room_bytes, (room_left - room) << HP_CHUNK_SHIFT);
		set_live_again(chunk, n, room_left);
		hand_out(chunk + n0, n - n0);
		HP_STAT_ADD(grown_in_place, 1);
	} else if (more) {
		give(behind, more);
	}
out:
	hp_unlock(&hp_heap_lock);
	return ok;
}

/* Give the tail of a live buffer back, room and all. */
static void shrink(size_t chunk, size_t n)
{
	size_t all = hp_chunk_extent(chunk), end = chunk + all, from; /* from: what is given back */
	bool must_wake;

	hp_advice_unlock(chunk + n, all - n);
	hp_lock(&hp_heap_lock);
	if (is_lost(chunk, all)) {
		hp_unlock(&hp_heap_lock);
		return;
	}
	/* What is advised as a whole with a part that stays is kept as room; so is what the kernel does not let go. */
	from = hp_advice_cut(chunk + n, end);
	if (!hp_advice_undo(from, end - from))
		from = end;
	HP_STAT_ADD(room_bytes, (from - chunk - n - (all - HP_CHUNK_COUNT(hp_chunk_get(chunk)))) << HP_CHUNK_SHIFT);
	set_live_again(chunk, n, from - chunk - n);
	if (from < end)
		give(from, end - from);
	must_wake = arm(true);
	hp_unlock(&hp_heap_lock);
	if (must_wake)
		wake(true);
}

static bool is_advised(size_t chunk)
{
	bool advised;

	if (!hp_advice_made() || HP_CHUNK_STATE(hp_chunk_get(chunk)) != HP_CHUNK_ROOMY)
		return false;
	hp_lock(&hp_heap_lock);
	advised = hp_advice_any(chunk, hp_chunk_extent(chunk));
	hp_unlock(&hp_heap_lock);
	return advised;
}

/* Move an advised buffer: what was said of it holds where it goes, before its contents are there. NULL: it stays, since there is no
 * memory of which the kernel lets that be said. */
static void *move_advised(size_t chunk, size_t n0, size_t size)
{
	size_t n = hp_advice_cut(chunk + n0, chunk + hp_chunk_extent(chunk)) - chunk, bytes, to;
	bool ok = false;
	void *q;

	if (hp_config.guard) { /* what lies behind its end stays behind */
		size = HP_MAX(size, (size_t)HUGEPIN_LARGE_MIN);
		n = HP_MIN(n0, hp_chunks_for(size));
		bytes = HP_MIN(size, hp_guard_bytes(chunk));
	} else { /* whole hugepages stay whole */
		bytes = n << HP_CHUNK_SHIFT;
		size = HP_MAX(size, HP_MAX(bytes, (size_t)HUGEPIN_LARGE_MIN));
	}
	q = hugepin_aligned_alloc(chunk & (HP_PAGE_CHUNKS - 1) ? HP_CHUNK : HP_PAGE, size);

	if (q && ours(q)) {
		to = ((uintptr_t)q - hp_span.base) >> HP_CHUNK_SHIFT;
		hp_lock(&hp_heap_lock);
		ok = hp_advice_copy(chunk, to, n, bytes);
		hp_unlock(&hp_heap_lock);
		ok = ok && hp_advice_lock_alike(chunk, to, n) == 0;
	}
	if (!ok) {
		hugepin_free(q);
		errno = ENOMEM;
		return NULL;
	}
	HP_STAT_COUNT(moved, 1);
	hugepin_free((void *)hp_chunk_addr(chunk));
	return q;
}

/* Moves: who keeps the old pointer is to be seen. */
static __attribute__((noinline)) void *realloc_guarded(void *p, size_t size)
{
	void *q = hugepin_malloc(size);

	if (q) {
		memcpy(q, p, HP_MIN(size, hp_guard_bytes(hp_span_offset(&hp_span, p) >> HP_CHUNK_SHIFT)));
		hugepin_free(p);
	}
	return q;
}

void *hugepin_realloc(void *p, size_t size)
{
	size_t off = hp_span_offset(&hp_span, p), chunk = off >> HP_CHUNK_SHIFT, n, n0;
	const char *why;
	bool advised;
	uint64_t w;
	void *q;

	if (!p)
		return hugepin_malloc(size);
	if (!ours(p)) {
		if (size < HUGEPIN_LARGE_MIN)
			return small()->realloc(p, size);

		size_t had = small()->usable_size(p);

		q = had ? hugepin_malloc(size) : NULL; /* 0: not a buffer, reported */
		if (q) {
			memcpy(q, p, HP_MIN(had, size));
			small()->free(p);
		}
		return q;
	}
	why = why_not(off);
	if (why) {
		hugepin_misuse_("realloc", p, why);
		errno = EINVAL;
		return NULL;
	}
	if (!size) {
		hugepin_free(p);
		return NULL;
	}
	w = hp_chunk_get(chunk);
	n0 = HP_CHUNK_COUNT(w);
	n = hp_chunks_for(size);
	advised = is_advised(chunk);
	if (advised && size < HUGEPIN_LARGE_MIN) /* the small tier knows nothing of advice; a word for room needs a second chunk */
		n = HP_MAX(n, HP_MIN(n0, (size_t)2));
	if (size < HUGEPIN_LARGE_MIN && !advised) {
		q = small()->malloc(size);
		if (!q)
			return n <= n0 ? p : NULL;
		memcpy(q, p, HP_MIN(size, n0 << HP_CHUNK_SHIFT)); /* an aligned buffer may be shorter than what is wanted */
		hugepin_free(p);
		return q;
	}
	if (n == w >> 2 && (!hp_config.guard || size == hp_guard_bytes(chunk))) /* n0, and no bytes of it are guarded */
		return p;
	if (HP_UNLIKELY(hp_config.guard))
		return advised ? move_advised(chunk, n0, size) : realloc_guarded(p, size);
	if (n < n0) {
		shrink(chunk, n);
		return p;
	}
	if (n <= hp_span.size >> HP_CHUNK_SHIFT && grow_in_place(chunk, n0, n))
		return p;
	if (advised)
		return move_advised(chunk, n0, size);
	/* It grows: give it room, so that the next times need no copy. Only marked, not populated: room that is merely hoped
	 * for fails where two vectors grow in turn. */
	struct request r = { .n = n, .align = HP_CHUNK };

	r.room = n0 < ROOM_MIN || n > hp_span.size >> (HP_CHUNK_SHIFT + 6) ? 0 : n < ROOM_LARGE ? n : 3 * n;
	q = r.room ? alloc_locked(r).p : NULL;
	if (!q)
		q = hugepin_malloc(size);
	if (!q)
		return NULL;
	memcpy(q, p, n0 << HP_CHUNK_SHIFT);
	HP_STAT_COUNT(moved, 1);
	hugepin_free(p);
	return q;
}

bool hugepin_confining_(bool all_threads)
{
	bool was = hp_sandboxed;

	start(); /* what it asks of the kernel may be forbidden soon */
	hp_sandboxed = true;
	if (all_threads)
		hugepin_threads_end_();
	return was;
}

void hugepin_confined_(bool all_threads, bool is)
{
	hp_sandboxed = is;
	if (all_threads)
		hugepin_threads_allow_();
}

bool hugepin_own_process_(void)
{
	know_process();
	return hp_process() == HP_PROCESS_OWN;
}

void hugepin_threads_end_(void)
{
	know_process();
	hp_ticker_forbid();
	hp_service_end();
}

void hugepin_threads_allow_(void)
{
	bool must_wake = false;

	hp_service_allow();
	hp_service_resume();
	hp_ticker_allow();
	if (atomic_load_explicit(&state, memory_order_acquire) == READY && !hp_lock_mine(&hp_heap_lock)) {
		hp_lock(&hp_heap_lock);
		must_wake = arm(true);
		hp_unlock(&hp_heap_lock);
	}
	if (must_wake)
		wake(true);
}

void hugepin_span_limit_(size_t limit)
{
	if (atomic_load_explicit(&state, memory_order_acquire) != READY)
		return; /* hp_span_init() will see the limit */
	hp_lock(&hp_heap_lock);
	hp_copy_drop();
	hp_span_shrink(limit);
	hp_unlock(&hp_heap_lock);
}

int hugepin_purge(void)
{
	void (*let_go)(uint32_t) = hooks()->let_go;

	if (atomic_load_explicit(&state, memory_order_acquire) != READY)
		return 0;
	if (let_go && !hp_locks_held && !hp_pages_inside()) {
		hp_lock(&hp_heap_lock);
		hp_cache_steal(false, 0);
		clear_lists();
		hp_unlock(&hp_heap_lock);
		let_go(0);
	}
	hp_lock(&hp_heap_lock);
	if (!hp_pages_inside())
		purge(true);
	hp_unlock(&hp_heap_lock);
	return 0;
}

bool hugepin_purge_for_small_(void)
{
	size_t bytes = 0;

	if (atomic_load_explicit(&state, memory_order_acquire) != READY || hp_lock_mine(&hp_heap_lock) ||
	    hp_watch_any()) /* a watcher may allocate, and the caller holds locks of jemalloc's */
		return false;
	hp_lock(&hp_heap_lock);
	if (!hp_pages_inside() && !hp_pages_quiet()) /* the fork that waits is about to take the caller's locks */
		bytes = purge(false);
	hp_unlock(&hp_heap_lock);
	return bytes;
}

/* ------------------------------------------------------------------ memory for the small tier: HUGEPIN_SMALL_PINNED */

int hugepin_small_part_(uintptr_t *ret_base, size_t *ret_size)
{
	int r = -ENOENT;

	if (hp_config_load() != 0)
		return -EAGAIN;
	if (!hp_config.small_pinned)
		return r;
	if (!start())
		return starting ? -EAGAIN : r;
	hp_lock(&hp_heap_lock);
	if (hp_span.small < hp_span.small_end) {
		*ret_base = hp_page_addr(hp_span.small);
		*ret_size = (hp_span.small_end - hp_span.small) << HP_PAGE_SHIFT;
		r = 0;
	}
	hp_unlock(&hp_heap_lock);
	return r;
}

static size_t place_small(struct request *r)
{
	size_t chunk = find(r);

	if (!chunk) {
		chunk = grow(r);
		r->grew = chunk;
	}
	return chunk;
}

/* The chunk at this address, if it and the next ones can be had. */
static size_t place_small_at(const void *at, const struct request *r)
{
	size_t chunk = ((uintptr_t)at - hp_span.base) >> HP_CHUNK_SHIFT;

	return page_of(chunk) >= hp_span.small && page_of(chunk) < hp_span.small_end &&
			       hp_tree_free_after(&hp_span.tree, chunk, r->n) == r->n
		       ? chunk
		       : 0;
}

/* Nothing in here allocates, or waits for more than the heap's lock and other threads' calls for the same pages: hp_pages_commit()
 * lets a fork pass only when it has jemalloc's locks. */
void *hugepin_small_map_(void *at, size_t len)
{
	struct request r = { .n = hp_chunks_for(len), .align = len < HP_PAGE ? HP_CHUNK : HP_PAGE, .part = HP_PART_SMALL };
	size_t chunk, dirty = 0;

	if (hp_lock_mine(&hp_heap_lock)) /* a signal handler allocates */
		return NULL;
	hp_lock(&hp_heap_lock);
	chunk = at ? place_small_at(at, &r) : place_small(&r);
	if (chunk) {
		hp_tree_take(&hp_span.tree, chunk, r.n);
		hp_tree_settle(&hp_span.tree);
		hp_span.small_taken += r.n;
		if (hp_pages_commit(page_of(chunk), pages_touched(chunk, r.n))) {
			dirty = hand_out(chunk, r.n) << HP_CHUNK_SHIFT;
		} else {
			hp_tree_free(&hp_span.tree, chunk, r.n);
			hp_tree_settle(&hp_span.tree);
			hp_span.small_taken -= r.n;
			hp_extent_destroy_if_empty(hp_span.page[page_of(chunk)].extent);
			chunk = 0;
		}
	}
	hp_unlock(&hp_heap_lock);
	if (r.grew && hooks()->grown)
		hooks()->grown();
	return chunk ? memset((void *)hp_chunk_addr(chunk), 0, HP_MIN(dirty, len)) : NULL;
}

void hugepin_small_unmap_(void *p, size_t len)
{
	bool must_wake;

	hp_lock(&hp_heap_lock);
	if (!hp_advice_undo(((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT, hp_chunks_for(len))) {
		hp_unlock(&hp_heap_lock); /* nobody else may have it */
		return;
	}
	hp_tree_free(&hp_span.tree, ((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT, hp_chunks_for(len));
	hp_tree_settle(&hp_span.tree);
	hp_span.small_taken -= hp_chunks_for(len);
	/* The caller holds locks of jemalloc's: the C library's thread is woken but not started. */
	must_wake = (hp_service_running() || may_tick_alone()) && arm(false);
	hp_unlock(&hp_heap_lock);
	if (must_wake)
		wake(false);
}

/* Whether p lies in a part of the span, in an extent or not. */
static bool in_span(const void *p)
{
	return hp_span_offset(&hp_span, p) < __atomic_load_n(&hp_span.reserved, __ATOMIC_RELAXED);
}

static bool is_normal(size_t page)
{
	return __atomic_load_n(&hp_span.page[page].state, __ATOMIC_RELAXED) > HP_PAGE_ABSENT &&
	       __atomic_load_n(&hp_span.page[page].kind, __ATOMIC_RELAXED) != HUGEPIN_KIND_HUGETLB;
}

/* What the kernel has made of pages of [first, end) that are not the pool's. The lock is not held: they may change meanwhile. */
static bool add_there(size_t first, size_t end, struct hp_there *there)
{
	/* The list of mappings is read once: it says nothing of the pool's pages. */
	if (!hp_there_is_quick())
		return first >= end || hp_there(hp_page_addr(first), hp_page_addr(end), there);
	for (size_t p = first, q; p < end; p = q + 1) {
		for (q = p; q < end && is_normal(q); q++)
			;
		if (q > p && !hp_there(hp_page_addr(p), hp_page_addr(q), there))
			return false;
	}
	return true;
}

/* In place of what the kernel was asked for. */
static void tell_what_is_there(struct hugepin_stats *s)
{
	const uint64_t normal = s->thp_bytes + s->base_bytes;
	struct hp_there there = { 0, 0 };

	if (!normal || !add_there(1, hp_span.tree.used, &there) || !add_there(hp_span.small, hp_span.tree.upper_used, &there))
		return;
	s->thp_bytes = HP_MIN(there.huge, normal);
	s->base_bytes = normal - s->thp_bytes;
}

int hugepin_stats(struct hugepin_stats *ret_, size_t size)
{
	struct hugepin_stats s;

	if (!ret_)
		return -EINVAL;
	hp_stats_copy(&s);
	tell_what_is_there(&s);
	memcpy(ret_, &s, HP_MIN(size, sizeof s));
	return (int)sizeof s;
}

/* What was asked for, where nothing is there yet. */
static uint32_t kind_there(const struct hugepin_extent *e)
{
	struct hp_there there = { 0, 0 };

	if (e->kind == HUGEPIN_KIND_HUGETLB || !hp_there((uintptr_t)e->addr, (uintptr_t)e->addr + e->len, &there))
		return e->kind;
	return there.other ? HUGEPIN_KIND_BASE : there.huge ? HUGEPIN_KIND_THP : e->kind;
}

bool hp_heap_extent(const void *p, struct hugepin_extent *ret_)
{
	size_t page = ((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT;
	bool known;

	if (!in_span(p))
		return false;
	hp_lock(&hp_heap_lock);
	known = hp_span.page[page].state != HP_PAGE_NONE;
	if (known)
		*ret_ = hp_extent_describe(page);
	hp_unlock(&hp_heap_lock);
	return known;
}

int hugepin_extent(const void *p, struct hugepin_extent *ret_, size_t size)
{
	struct hugepin_extent e;

	if (!ret_ || !size)
		return -EINVAL;
	if (!hp_heap_extent(p, &e))
		return -ENOENT;
	if (size > offsetof(struct hugepin_extent, kind))
		e.kind = kind_there(&e);
	memcpy(ret_, &e, HP_MIN(size, sizeof e));
	return (int)sizeof e;
}

unsigned hugepin_version(void)
{
	return HUGEPIN_VERSION;
}

/* ------------------------------------------------------------------ for the pin cache: hold.h */

void hp_heap_set_hooks(const struct hp_heap_hooks *h)
{
	if (hooks_used.is.set == h)
		return;
	hp_unseal(&hooks_used, sizeof hooks_used);
	atomic_store_explicit(&hooks_used.is.set, h, memory_order_release);
	hp_seal(&hooks_used, sizeof hooks_used);
}

bool hp_heap_span(uintptr_t *ret_base, size_t *ret_size)
{
	/* Guards among the buffers are registered by nobody: each buffer is for itself, as memory of others is. */
	if (!start() || hp_config.guard)
		return false;
	hp_lock(&hp_heap_lock);
	*ret_base = hp_span.base;
	*ret_size = hp_span.reserved;
	hp_unlock(&hp_heap_lock);
	return true;
}

static size_t page_at(uintptr_t addr)
{
	return (addr - hp_span.base) >> HP_PAGE_SHIFT;
}

int hp_heap_hold(uintptr_t addr, size_t len, uint64_t gen, enum hp_hold how)
{
	size_t first = page_at(addr), count = len >> HP_PAGE_SHIFT, extent;
	int r = -ENOENT;

	if (!in_span((void *)addr))
		return r;
	hp_lock(&hp_heap_lock);
	extent = hp_span.page[first].extent;
	if (hp_span.page[first].state != HP_PAGE_NONE && hp_span.extent[extent].gen == gen &&
	    first + count <= extent + hp_span.extent[extent].pages)
		r = hp_pages_hold(first, count, how);
	if (r == -ENOMEM && hp_copy_drop())
		r = hp_pages_hold(first, count, how);
	if (r == -ENOMEM)
		HP_STAT_ADD(purged_bytes, give_back(first, first + count, 0, 0, true));
	hp_unlock(&hp_heap_lock);
	return r;
}

void hp_heap_drop(uintptr_t addr, size_t len, enum hp_hold how)
{
	bool must_wake;

	hp_lock(&hp_heap_lock);
	hp_pages_drop(page_at(addr), len >> HP_PAGE_SHIFT, how);
	/* What is free by now may be due. The caller may hold locks: the C library's thread is woken but not started. */
	must_wake = (hp_service_running() || may_tick_alone()) && arm(false);
	hp_unlock(&hp_heap_lock);
	if (must_wake)
		wake(false);
}

bool hp_heap_next_extent(uintptr_t from, struct hugepin_extent *ret_)
{
	size_t page, next;
	bool found;

	if (atomic_load_explicit(&state, memory_order_acquire) != READY || hp_config.guard)
		return false;
	hp_lock(&hp_heap_lock);
	page = from <= hp_span.base ? 0 : page_at(from + HP_PAGE - 1);
	next = hp_bits_find(hp_span.tree.starts, page, hp_span.tree.used, true);
	found = next < hp_span.tree.used;
	if (!found) {
		next = hp_bits_find(hp_span.tree.starts, HP_MAX(page, hp_span.small), hp_span.tree.upper_used, true);
		found = next < hp_span.tree.upper_used;
	}
	if (found)
		*ret_ = hp_extent_describe(next);
	hp_unlock(&hp_heap_lock);
	return found;
}

static bool is_mapped(size_t page)
{
	return hp_span.page[page].state == HP_PAGE_READY || hp_span.page[page].state == HP_PAGE_RESERVED;
}

size_t hp_heap_mapping(uintptr_t addr)
{
	size_t page = page_at(addr), end, to = 0;

	if (!in_span((void *)addr))
		return 0;
	hp_lock(&hp_heap_lock);
	if (is_mapped(page)) {
		end = hp_span.page[page].extent + hp_span.extent[hp_span.page[page].extent].pages;
		for (page++; page < end && is_mapped(page) && !hp_span.page[page].head; page++)
			;
		to = hp_page_addr(page) - addr;
	}
	hp_unlock(&hp_heap_lock);
	return to;
}

bool hp_heap_is_free(uintptr_t addr, size_t len, uint32_t ticks)
{
	bool free = true;

	hp_lock(&hp_heap_lock);
	for (size_t p = page_at(addr), end = p + (len >> HP_PAGE_SHIFT); p < end && free; p++)
		free = is_free(p, ticks) || has_left(p);
	hp_unlock(&hp_heap_lock);
	return free;
}

/* ------------------------------------------------------------------ fork */

bool hugepin_fork_refused_(void)
{
	bool refused;

	if (atomic_load_explicit(&state, memory_order_acquire) != READY || hp_lock_mine(&hp_heap_lock) ||
	    hp_pages_inside())
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

/* How this fork goes; set in prefork() and read in the handlers after it. While other threads may fork too, under
 * hp_heap_lock. */
static struct {
	sigset_t signals; /* of the forking thread */
	unsigned held; /* its locks */
	bool alone; /* no other thread of the program's: no one else holds a lock of anyone's */
	bool interrupted; /* a signal handler forks, and the code below it was in the heap: touch nothing */
	bool locked; /* hp_heap_lock was taken in prefork() */
	bool ticker_forbidden; /* until the parent goes on */
} forking;

/* The C library's lock of its list of streams. fork() takes it after all prepare handlers: then a thread that holds a
 * stream's lock and waits for ours, and a third that flushes all streams, would close a circle. Ours is the last prepare
 * handler to run (the first registered), so taking it there, before our locks, keeps the C library's own order. */
void _IO_list_lock(void), _IO_list_unlock(void), _IO_list_resetlock(void);

/* Bare threads hold no lock but ranked ones. */
static bool alone(void)
{
	uint32_t tid = hp_ticker_tid();
	unsigned ours = (unsigned)hp_service_running() + (tid != 0), count;

	if (__libc_single_threaded)
		return true;
	if (hp_watch_any() || hooks() != &no_hooks)
		return false;
	count = hp_thread_count();
	return count == 1 + ours && hp_ticker_tid() == tid; /* one that was counted, and then ended, has let another in */
}

/* Whoever watches knows the pages that would move, and so may a domain that holds none. */
static bool move_wanted(void)
{
	bool wanted;

	if (hp_sandboxed || hp_watch_any() || hooks() != &no_hooks || !HP_STAT(hugetlb_bytes))
		return false;
	hp_lock(&hp_heap_lock);
	wanted = hp_move_wanted();
	hp_unlock(&hp_heap_lock);
	return wanted;
}

static void prefork(void)
{
	sigset_t all, old;
	bool is_alone, interrupted, locked, moves;
	unsigned held;
	size_t moved = 0;

	know_process();
	is_alone = alone();
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* A signal handler may have interrupted its thread with a lock of higher rank taken; whoever has ours takes none of these. */
	held = hp_locks_held;
	hp_locks_held &= (2u << HP_RANK_HEAP) - 1;
	interrupted = hp_lock_mine(&hp_heap_lock) || hp_pages_inside() ||
		      (hp_cache_self != &hp_cache_none && hp_cache_self->slot.busy);
	moves = is_alone && !interrupted && move_wanted();
	if (moves)
		hp_ticker_forbid();
	if (!is_alone)
		_IO_list_lock();
	locked = !hp_lock_mine(&hp_heap_lock);
	if (locked) {
		/* Before jemalloc's locks: a watcher, or a hook on mmap, runs inside a mapping call and may allocate. */
		hp_lock(&hp_heap_lock);
		hp_pages_quiesce(HP_PART_HEAP);
		hp_unlock(&hp_heap_lock);
	}
	if (!is_alone && small()->prefork)
		small()->prefork();
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
	clear_lists();
	/* The others are at the lock from now on, or are seen to be in the middle of something. */
	hp_cache_steal(false, 0);
	if (moves)
		moved = hp_move();
	hp_fork_prepare(hp_cache_unsettled(), is_alone, moved);
}

static void postfork(void (*small_postfork)(void))
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

static void postfork_parent(void)
{
	bool was_alone = forking.alone, must_wake = false;

	if (!forking.interrupted) {
		hp_fork_parent();
		if (!forking.alone && hp_span.no_pool && !hp_cache_unsettled())
			leave_pool();
		if (forking.ticker_forbidden)
			hp_ticker_allow();
		/* Not where a handler forks: a ticker that is to be replaced may wait for the interrupted frame's lock. */
		if (forking.ticker_forbidden || hp_span.left || hp_copy_kept())
			must_wake = arm(true);
	}
	postfork(small()->postfork_parent);
	if (!was_alone)
		_IO_list_unlock();
	if (must_wake)
		wake(false);
}

/* Make the tree say what the chunk words say: the other threads are gone, with what their caches held and what they were
 * about to get. Only live buffers remain. */
static void rebuild(void)
{
	size_t taken = 0, room = 0;

	for (size_t c = HP_PAGE_CHUNKS; c < hp_span.tree.used << HP_PAGE_CHUNKS_SHIFT;) {
		size_t gap, n = 1;
		unsigned s;

		if (hp_span.page[page_of(c)].state == HP_PAGE_NONE) {
			c = (page_of(c) + 1) << HP_PAGE_CHUNKS_SHIFT;
			continue;
		}
		gap = hp_tree_free_after(&hp_span.tree, c, HP_PAGE_CHUNKS - (c & (HP_PAGE_CHUNKS - 1)));
		if (gap) {
			if (hp_span.page[page_of(c)].lost) {
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
			while (page_of(c + n) == page_of(c) && HP_CHUNK_STATE(hp_chunk_get(c + n)) == HP_CHUNK_FREE &&
			       !hp_tree_free_after(&hp_span.tree, c + n, 1))
				n++;
		if (s == HP_CHUNK_FREE || s == HP_CHUNK_LISTED) {
			hp_chunk_set(c, 0);
			tree_free(c, n);
		} else {
			taken += n;
			room += n - HP_CHUNK_COUNT(hp_chunk_get(c));
			if (s == HP_CHUNK_LIVE && is_lost(c, n))
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

static void postfork_child(void)
{
	if (!forking.alone)
		_IO_list_resetlock();
	if (!forking.interrupted) {
		hp_fork_child();
		rebuild();
		hp_guard_child();
		hp_cache_child();
	} else {
		hp_cache_copied();
	}
	hp_watch_child();
	hp_config_child();
	if (state == STARTING && !starting)
		state = hp_span.size ? READY : UNUSED; /* who was about to say so is gone */
	begin_process();
	if (!forking.interrupted && hooks()->postfork_child)
		hooks()->postfork_child();
	postfork(small()->postfork_child);
}

/* As early as can be: our child handler must come before those of others, who may touch the heap. libhugepin-malloc.so calls
 * this before it lets anyone else register; with libhugepin.so alone, libraries that are initialised before it come first. */
void hugepin_atfork_(void)
{
	static bool done;

	if (done)
		return;
	done = true; /* now: registering passes by here again */
	pthread_atfork(prefork, postfork_parent, postfork_child);
}

/* ------------------------------------------------------------------ load and exit */

static void say_no_heap(void)
{
	char buf[160];
	struct hp_line l = { buf, buf + sizeof buf };

	hp_line_text(&l, "base pages of ");
	hp_line_number(&l, getauxval(AT_PAGESZ), 10);
	hp_line_text(&l, " bytes are not supported, those of 4096 are: nothing is put in hugepages, or registered");
	hp_say(buf, NULL, SIZE_MAX);
}

static __attribute__((constructor(101))) void construct(void)
{
	hp_config_load();
	if (!hp_base_page_fits())
		say_no_heap();
	if (hp_config.stats)
		hp_stats_keep();
	hp_cache_init();
	hugepin_atfork_();
	hp_process_begin();
	hp_service_init();
	hp_clock_set(NULL);
	constructed = true;
}

static __attribute__((destructor)) void destruct(void)
{
	struct hugepin_stats s;

	/* A program that the library was loaded into for something else, the MPI layer say, has nothing to tell. */
	if (!hp_config.stats || !(&hugepin_small_ || HP_STAT_GET(placed)))
		return;
	hugepin_stats(&s, sizeof s);
	hp_stats_print_kept(&s);
}
