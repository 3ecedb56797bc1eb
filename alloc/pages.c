/*
 * See pages.h.
 *
 * Invariants:
 * 1. A page has free chunks in the tree only if it belongs to an extent. ABSENT and RESERVED pages may have some.
 * 2. A BUSY page has taken chunks, or is held, or lies behind such a page in an extent that is mapped ahead, or is
 *    being collapsed. The thread that made the page BUSY will set its state to `next`. Other threads that allocate
 *    there wait.
 * 3. extent.present and by_kind count pages that are not ABSENT. A BUSY page counts as it did before it was BUSY.
 */
#include "alloc/pages.h"

#include <errno.h>
#include <string.h>

#include "alloc/watch.h"
#include "base/config.h"
#include "base/probe.h"
#include "base/stats.h"

#define GIB ((size_t)1 << 30)
/* After the pool had no page left, this many commits do not ask the pool. */
#define POOL_SKIP 8
/* hp_pages_hold() populates this many pages at a time, because an allocation in these pages waits meanwhile, for some
 * milliseconds. */
#define HOLD_STEP 8

/* Mapping calls have two classes: calls that make pages of the small tier READY, and all others. Threads that make the
 * first class hold locks of jemalloc's, which a fork does not have yet when it keeps out the second class. */
static unsigned inflight[HP_PARTS]; /* threads between call_begin() and call_end() */
static bool quiet[HP_PARTS]; /* a fork waits: no more calls of this class may begin */
/* relaxed: changed under hp_heap_lock; hp_futex_wait() has the kernel compare */
static _Atomic uint32_t turn; /* a futex: goes up when a mapping call ends, or a fork lets threads in again */
static unsigned waiters;
static HP_TLS bool waiting; /* this thread is in wait_turn() */
static HP_TLS unsigned depth[HP_PARTS]; /* this thread's nested mapping calls: a hook on mmap may allocate */

/* ------------------------------------------------------------------ threads inside mapping calls */

/* The value of `turn`, which changes only under hp_heap_lock. */
static uint32_t turn_now(void)
{
	return atomic_load_explicit(&turn, memory_order_relaxed);
}

static void wait_turn(void)
{
	uint32_t seen = turn_now();

	waiters++;
	waiting = true;
	hp_heap_unlock();
	hp_futex_wait(&turn, seen, UINT64_MAX);
	hp_heap_lock();
	waiting = false;
	waiters--;
}

static void next_turn(void)
{
	atomic_store_explicit(&turn, turn_now() + 1, memory_order_relaxed);
	if (waiters)
		hp_futex_wake(&turn);
}

/* Called before making a page BUSY, because a fork must not find a BUSY page. */
static void let_fork_pass(enum hp_part class)
{
	while (quiet[class] && !depth[HP_PART_HEAP] && !depth[HP_PART_SMALL])
		wait_turn();
}

static void call_begin(enum hp_part class)
{
	inflight[class]++;
	depth[class]++;
	hp_heap_unlock();
}

static void call_end(enum hp_part class)
{
	hp_heap_lock();
	depth[class]--;
	inflight[class]--;
	next_turn();
}

void hp_pages_quiesce(enum hp_part class)
{
	while (quiet[class])
		wait_turn();
	quiet[class] = true;
	while (inflight[class] > depth[class])
		wait_turn();
}

bool hp_pages_quiet(void)
{
	return quiet[HP_PART_HEAP];
}

void hp_pages_resume(void)
{
	for (int class = 0; class < HP_PARTS; class++) {
		if (!quiet[class])
			continue;
		quiet[class] = false;
		inflight[class] = depth[class]; /* in the child, other threads' calls are gone */
	}
	next_turn();
}

bool hp_pages_inside(void)
{
	return depth[HP_PART_HEAP] || depth[HP_PART_SMALL] || waiting || hp_watch_inside();
}

/* ------------------------------------------------------------------ extents */

/* Make the chunk words of all pages below `end` accessible, in steps of 1 GiB of the span. */
static bool open_chunks(size_t end)
{
	size_t to = HP_MIN(hp_round_up(end, GIB >> HP_PAGE_SHIFT), hp_span.pages);
	size_t from = hp_span.opened >> HP_PAGE_SHIFT;
	size_t page_words = HP_PAGE_CHUNKS * sizeof(hp_chunk);

	if (end <= from)
		return true;
	if (!hp_meta_open((char *)hp_span.chunk + from * page_words, (to - from) * page_words))
		return false;
	/* release: free() reads this without the lock. */
	hp_span_store(&hp_span.opened, to << HP_PAGE_SHIFT);
	return true;
}

/* The tree's holes in pages [first, first + count). */
static uint32_t *holes_of(size_t first)
{
	return &hp_span.holes.len[first << HP_PAGE_CHUNKS_SHIFT];
}

/* Make the holes of all pages of a part below `end` accessible, in the same steps: one mapping for each part. */
static bool open_holes(enum hp_part part, size_t end, size_t part_end)
{
	size_t to = HP_MIN(hp_round_up(end, GIB >> HP_PAGE_SHIFT), part_end), from = hp_span.holes_to[part];

	if (end <= from)
		return true;
	if (!hp_meta_open(holes_of(from), (size_t)((char *)holes_of(to) - (char *)holes_of(from))))
		return false;
	hp_span.holes_to[part] = to;
	return true;
}

size_t hp_extent_create(enum hp_part part, unsigned shard, size_t pages, size_t align, unsigned flags)
{
	size_t align_pages = HP_MAX(align >> HP_PAGE_SHIFT, (size_t)1);
	/* natural alignment counts within the span, because the base is random */
	size_t natural = flags & HP_EXTENT_AHEAD ? pages : 1;
	size_t base_page = hp_span.base >> HP_PAGE_SHIFT, p = 1, end = hp_span.pages, gap = 0;

	if (part == HP_PART_SMALL) { /* keep a page free before and behind each extent */
		p = hp_span.small + 1;
		end = hp_span.small_end;
		gap = 1;
	}
	for (;;) {
		p = hp_round_up(p, natural);
		p = hp_round_up(base_page + p, align_pages) - base_page;
		if (p >= end || pages + gap > end - p)
			return 0;

		size_t to = p + pages + gap, taken = hp_bits_find(hp_span.used, p - gap, to, true);

		if (taken == to)
			break;
		p = hp_bits_find(hp_span.used, taken, end, false) + gap;
	}
	if ((part == HP_PART_HEAP && !open_chunks(p + pages)) || !open_holes(part, p + pages, end))
		return 0;
	hp_bits_fill(hp_span.used, p, pages, true);
	for (size_t i = p; i < p + pages; i++)
		hp_span.page[i] = (struct hp_page){ .state = HP_PAGE_ABSENT,
						    .extent = (uint32_t)p,
						    .shard = (uint8_t)shard };
	hp_span.extent[p] = (struct hp_extent){ .gen = ++hp_span.gen,
						.pages = (uint32_t)pages,
						.ahead = flags & HP_EXTENT_AHEAD,
						.giant = flags & HP_EXTENT_GIANT };
	hp_span.extent_pages[part] += pages;
	HP_STAT_ADD(extents, 1);
	hp_bit_set(hp_span.holes.starts, p);
	hp_span.end[part] = HP_MAX(hp_span.end[part], p + pages);
	hp_chunks_set_free(p << HP_PAGE_CHUNKS_SHIFT, pages << HP_PAGE_CHUNKS_SHIFT);
	hp_probe_extent_made(hp_page_addr(p), pages << HP_PAGE_SHIFT, hp_span.gen);
	return p;
}

void hp_extent_destroy_if_empty(size_t first)
{
	struct hp_extent *e = &hp_span.extent[first];

	if (e->present)
		return;
	for (size_t p = first; p < first + e->pages; p++)
		if (hp_span.page[p].state != HP_PAGE_ABSENT || !hp_holes_page(&hp_span.holes, p) ||
		    hp_page_held(&hp_span.page[p]))
			return;
	hp_chunks_set_taken(first << HP_PAGE_CHUNKS_SHIFT, (size_t)e->pages << HP_PAGE_CHUNKS_SHIFT);
	hp_bit_clear(hp_span.holes.starts, first);
	memset(&hp_span.page[first], 0, e->pages * sizeof(struct hp_page));
	hp_bits_fill(hp_span.used, first, e->pages, false);
	hp_span.extent_pages[hp_part_of(first)] -= e->pages;
	HP_STAT_ADD(extents, -1);
	hp_probe_extent_gone(hp_page_addr(first), (size_t)e->pages << HP_PAGE_SHIFT, e->gen);
	e->pages = 0;
}

bool hp_pages_giants_left(void)
{
	if (hp_config.pages != HP_PAGES_1G || hp_span.no_pool)
		return false;
	if (hp_map_pool_free(HP_GIANT_SHIFT, hp_span.nodes.node))
		return true;
	HP_STAT_ADD(pool_short, 1);
	return false;
}

struct hugepin_extent hp_extent_describe(size_t page)
{
	size_t first = hp_span.page[page].extent, giant = 0;
	const struct hp_extent *e = &hp_span.extent[first];
	uint32_t kind = e->by_kind[HUGEPIN_KIND_BASE]  ? HUGEPIN_KIND_BASE
			: e->by_kind[HUGEPIN_KIND_THP] ? HUGEPIN_KIND_THP
						       : HUGEPIN_KIND_HUGETLB;

	for (size_t p = first; e->giant && p < first + e->pages; p += HP_GIANT_PAGES)
		giant += hp_span.page[p].giant ? HP_GIANT_PAGES : 0;
	return (struct hugepin_extent){
		.addr = (void *)hp_page_addr(first),
		.len = (size_t)e->pages << HP_PAGE_SHIFT,
		.gen = e->gen,
		.page_shift = kind != HUGEPIN_KIND_HUGETLB	 ? (uint32_t)__builtin_ctzll(hp_base_page)
			      : giant && giant == e->present ? HP_GIANT_SHIFT
							     : HP_PAGE_SHIFT,
		.kind = kind,
		.node = hp_span.nodes.node,
	};
}

/* ------------------------------------------------------------------ states */

static void count_kind(struct hp_extent *e, unsigned kind, int by)
{
	int64_t bytes = by * (int64_t)HP_PAGE;

	e->present += (uint32_t)by;
	e->by_kind[kind] += (uint32_t)by;
	if (kind == HUGEPIN_KIND_HUGETLB)
		HP_STAT_ADD(hugetlb_bytes, bytes);
	else if (kind == HUGEPIN_KIND_THP)
		HP_STAT_ADD(thp_bytes, bytes);
	else
		HP_STAT_ADD(base_bytes, bytes);
}

/* The page leaves state BUSY. `was`: its state before BUSY. */
static void settle_page(size_t p, unsigned was)
{
	struct hp_page *g = &hp_span.page[p];
	struct hp_extent *e = &hp_span.extent[g->extent];

	if (was == HP_PAGE_RESERVED)
		HP_STAT_ADD(reserved_bytes, -HP_PAGE);
	if (was == HP_PAGE_ABSENT && g->next != HP_PAGE_ABSENT)
		count_kind(e, g->kind, 1);
	if (g->next == HP_PAGE_RESERVED)
		HP_STAT_ADD(reserved_bytes, HP_PAGE);
	g->state = g->next;
}

/* Whether a mapping that began before page p continues at p. */
static bool goes_on_at(size_t p, size_t extent_end)
{
	return p < extent_end && hp_span.page[p].state > HP_PAGE_ABSENT && !hp_span.page[p].head;
}

static void set_heads(size_t first, size_t count, bool whole)
{
	for (size_t p = first; p < first + count; p++) {
		bool head = whole && p == first;

		hp_span.heads += head;
		hp_span.heads -= hp_span.page[p].head;
		hp_span.page[p].head = head;
	}
	HP_STAT(mappings) = 2 * hp_span.heads;
}

void hp_pages_moved(size_t first, size_t end)
{
	for (size_t p = first, to; p < end; p = to) {
		struct hp_extent *e = &hp_span.extent[hp_span.page[p].extent];
		size_t extent_end = hp_span.page[p].extent + e->pages;

		to = HP_MIN(end, extent_end);
		for (size_t q = p; q < to; q++) {
			count_kind(e, hp_span.page[q].kind, -1);
			hp_span.page[q].kind = HUGEPIN_KIND_THP;
			count_kind(e, HUGEPIN_KIND_THP, 1);
		}
		set_heads(p, to - p, true);
		if (goes_on_at(to, extent_end))
			set_heads(to, 1, true);
	}
}

void hp_page_in_child(size_t p)
{
	struct hp_page *g = &hp_span.page[p];
	struct hp_extent *e = &hp_span.extent[g->extent];

	memset(g->held, 0, sizeof g->held);
	g->leaves = 0;
	g->whole = 0; /* the kernel shares base pages and hugepages alike, and splits those that are written to */
	if (g->fork == HP_PAGE_SHARED)
		return;
	if (g->state == HP_PAGE_RESERVED)
		HP_STAT_ADD(reserved_bytes, -HP_PAGE);
	count_kind(e, g->kind, -1);
	g->kind = HUGEPIN_KIND_THP;
	g->giant = 0;
	if (g->fork == HP_PAGE_COPIED) {
		count_kind(e, g->kind, 1);
		return;
	}
	g->state = HP_PAGE_ABSENT;
	g->fresh = 0;
	g->lost = g->fork == HP_PAGE_LOST;
	set_heads(p, 1, false);
}

/* ------------------------------------------------------------------ commit */

/* The result of map_pages(), which runs without the lock and so writes nothing that others read. settle_run() applies
 * this record under the lock. */
struct mapped {
	size_t end; /* pages below this are READY */
	size_t ahead_end; /* pages below this are mapped */
	size_t hugetlb_end; /* pages below this are the pool's */
	uint8_t kind; /* HUGEPIN_KIND_* of the mapped pages that are not the pool's */
	size_t heads[40]; /* pages that begin a mapping */
	unsigned heads_count, pool_short, pool_denied, thp_failed;
};

static void note_mapping(struct mapped *m, size_t from, size_t to, int kind)
{
	if (m->heads_count < sizeof m->heads / sizeof *m->heads)
		m->heads[m->heads_count++] = from;
	if (kind == HUGEPIN_KIND_HUGETLB)
		m->hugetlb_end = to;
	else
		m->kind = (uint8_t)kind;
}

/* Map hugetlb pages from `at` on: up to `ahead` if the pool has so many, else up to `end`, else half of that, and so
 * on. Returns the end of the mapping; `at` if the pool has none. */
static size_t map_hugetlb(size_t at, size_t end, size_t ahead, struct mapped *m)
{
	size_t want = ahead - at;

	if (hp_config.reserve) {
		size_t free = hp_map_pool_free(HP_PAGE_SHIFT, -1), reserve = (size_t)hp_config.reserve;

		want = HP_MIN(want, free > reserve ? free - reserve : 0);
	}
	/* mmap counts all nodes, but a shortage on this one would make populating fail as a whole */
	if (hp_span.nodes.node >= 0)
		want = HP_MIN(want, hp_map_pool_free(HP_PAGE_SHIFT, hp_span.nodes.node));
	for (; want; want = want > end - at ? end - at : want / 2) {
		if (hp_map_hugetlb(hp_page_addr(at), want << HP_PAGE_SHIFT, HP_PAGE_SHIFT) == 0)
			return at + want;
		if (want == 1)
			break;
	}
	m->pool_short += (unsigned)(end - at);
	return at;
}

/* Give the absent pages [at, end) memory. Also map the pages up to `ahead`, unless only [at, end) can be mapped.
 * sparse: in base pages. The lock is not held. */
static void map_pages(size_t at, size_t end, size_t ahead, bool pool, bool sparse, struct mapped *m)
{
	while (pool && at < end) {
		size_t got = map_hugetlb(at, end, ahead, m), needed = HP_MIN(got, end);

		if (got == at)
			break;
		hp_map_bind(hp_page_addr(at), (got - at) << HP_PAGE_SHIFT, &hp_span.nodes, true);
		if (hp_map_populate(hp_page_addr(at), (needed - at) << HP_PAGE_SHIFT) != 0) {
			/* The fault limit of a cgroup, or a fatal signal: mapping over gives the pages back. */
			m->pool_denied += (unsigned)(needed - at);
			if (hp_map_release(hp_page_addr(at), (got - at) << HP_PAGE_SHIFT) != 0) {
				note_mapping(m, at, got, HUGEPIN_KIND_HUGETLB); /* pages stay RESERVED */
				m->ahead_end = got;
				return;
			}
			break;
		}
		note_mapping(m, at, got, HUGEPIN_KIND_HUGETLB);
		m->end = at = needed;
		m->ahead_end = got;
	}
	if (at == end)
		return;

	bool thp = hp_span.thp && !sparse && hp_config.pages != HP_PAGES_HUGETLB && hp_config.pages != HP_PAGES_BASE;
	size_t to = ahead;
	int kind = hp_map_normal(hp_page_addr(at), (ahead - at) << HP_PAGE_SHIFT, thp);

	if (kind < 0 && ahead > end) {
		to = end;
		kind = hp_map_normal(hp_page_addr(at), (end - at) << HP_PAGE_SHIFT, thp);
	}
	if (kind < 0)
		return;
	hp_map_bind(hp_page_addr(at), (to - at) << HP_PAGE_SHIFT, &hp_span.nodes, false);
	if (sparse)
		hp_map_avoid_thp(hp_page_addr(at), (to - at) << HP_PAGE_SHIFT);
	m->thp_failed += thp && kind == HUGEPIN_KIND_BASE;
	note_mapping(m, at, to, kind);
	m->end = end;
	m->ahead_end = to;
}

/* Tell the probe what commit_run() has mapped of [first, end), and ahead of it. */
static inline void tell_commit(const struct mapped *m, size_t first, size_t end, unsigned was)
{
	size_t to = was == HP_PAGE_ABSENT ? m->ahead_end : first; /* RESERVED pages were mapped before */
	size_t pool_end = HP_MIN(m->hugetlb_end, to);
	size_t hugetlb = pool_end - first, other = to - pool_end, thp = m->kind == HUGEPIN_KIND_THP ? other : 0;

	hp_probe_commit(hp_page_addr(first), (end - first) << HP_PAGE_SHIFT, hugetlb << HP_PAGE_SHIFT,
			thp << HP_PAGE_SHIFT, (other - thp) << HP_PAGE_SHIFT);
}

/* Whether so many pages, which are needed at once, are too large a part of the pool. All of them would be filled with
 * zeros although a program may use few (GNU sort: 31 of 652), whereas THP come as they are touched. */
static bool is_too_much(size_t pages)
{
	size_t free;

	if (hp_config.populate != HP_POPULATE_AUTO || hp_config.pages != HP_PAGES_AUTO || !hp_span.thp ||
	    hp_is_filtered())
		return false;
	free = hp_map_pool_free(HP_PAGE_SHIFT, hp_span.nodes.node);
	return free && 4 * pages > free;
}

/* Whether to ask the pool for the absent pages [first, end) of one extent. */
static bool may_ask_pool(size_t first, size_t end, bool sparse)
{
	if (hp_part_of(first) != HP_PART_HEAP || hp_span.no_pool || sparse || hp_config.pages == HP_PAGES_THP ||
	    hp_config.pages == HP_PAGES_BASE)
		return false;
	if (!hp_span.pool_skip)
		return true;
	hp_span.pool_skip--;
	HP_STAT_ADD(pool_short, end - first);
	return false;
}

/* The RESERVED pages [first, end) have lost their memory. They stay BUSY, and count as ABSENT. */
static void lose_reserved(size_t first, size_t end, size_t extent_end)
{
	for (size_t p = first; p < end; p++) {
		HP_STAT_ADD(reserved_bytes, -HP_PAGE);
		count_kind(&hp_span.extent[hp_span.page[p].extent], HUGEPIN_KIND_HUGETLB, -1);
	}
	set_heads(first, end - first, false);
	if (goes_on_at(end, extent_end))
		set_heads(end, 1, true);
	hp_probe_give_back(hp_page_addr(first), (end - first) << HP_PAGE_SHIFT, (end - first) << HP_PAGE_SHIFT, 0, 0);
}

/* Apply the record to pages [first, end), which are BUSY. Pages behind m->end were mapped ahead: those of the pool are
 * RESERVED. Pages behind m->ahead_end got no memory, and go back to the state `was`. */
static void settle_run(const struct mapped *m, size_t first, size_t end, unsigned was)
{
	for (size_t p = first; p < end; p++) {
		bool of_pool = p < m->hugetlb_end;

		if (p < m->ahead_end)
			hp_span.page[p].kind = of_pool ? HUGEPIN_KIND_HUGETLB : m->kind;
		hp_span.page[p].next =
			(uint8_t)(p >= m->ahead_end ? was : of_pool && p >= m->end ? HP_PAGE_RESERVED : HP_PAGE_READY);
		settle_page(p, was);
	}
	for (unsigned i = 0; i < m->heads_count; i++) {
		size_t to = i + 1 < m->heads_count ? m->heads[i + 1] : m->ahead_end;

		set_heads(m->heads[i], to - m->heads[i], true);
	}
	HP_STAT_ADD(pool_short, m->pool_short);
	if (m->pool_short)
		hp_span.pool_skip = POOL_SKIP;
	HP_STAT_ADD(pool_denied, m->pool_denied);
	HP_STAT_ADD(thp_failed, m->thp_failed);
}

/* Make pages [first, end) READY. All of them are in state `was`, ABSENT or RESERVED. */
static bool commit_run(size_t first, size_t end, unsigned was)
{
	const struct hp_extent *e = &hp_span.extent[hp_span.page[first].extent];
	size_t extent_end = hp_span.page[first].extent + e->pages, ahead;
	enum hp_part part = hp_part_of(first);
	bool sparse = part == HP_PART_HEAP && hp_span.sparse, absent = was == HP_PAGE_ABSENT;
	bool pool = absent && may_ask_pool(first, end, sparse);
	struct mapped m = { .end = first, .ahead_end = first, .hugetlb_end = first };
	bool released = false;

	/* Give up all reserved pages at once, because each piece of a mapping counts. */
	while (sparse && !absent && end < extent_end && hp_span.page[end].state == HP_PAGE_RESERVED)
		end++;
	ahead = end;
	while (absent && e->ahead && ahead < extent_end && hp_span.page[ahead].state == HP_PAGE_ABSENT &&
	       !hp_span.page[ahead].lost)
		ahead++;
	for (size_t p = first; p < ahead; p++)
		hp_span.page[p].state = HP_PAGE_BUSY;
	hp_probe_commit_begin(hp_page_addr(first), (end - first) << HP_PAGE_SHIFT);
	call_begin(part);
	if (!absent && !sparse && hp_map_populate(hp_page_addr(first), (end - first) << HP_PAGE_SHIFT) == 0) {
		m.end = m.ahead_end = m.hugetlb_end = end;
	} else {
		/* The pool cannot give the reserved pages, or they would be filled with zeros for nothing, so use other
		 * memory. */
		m.pool_denied = absent || sparse ? 0 : (unsigned)(end - first);
		released = !absent && hp_map_release(hp_page_addr(first), (end - first) << HP_PAGE_SHIFT) == 0;
		/* In an extent made ahead of need, pages are populated as they are needed. */
		if (absent || released)
			map_pages(first, end, ahead, pool && (e->ahead || !is_too_much(end - first)), sparse, &m);
	}
	call_end(part);

	if (released) {
		lose_reserved(first, end, extent_end);
		was = HP_PAGE_ABSENT;
	}
	tell_commit(&m, first, end, was);
	settle_run(&m, first, ahead, was);
	if (sparse && was == HP_PAGE_ABSENT)
		HP_STAT_ADD(sparse_bytes, (m.ahead_end - first) << HP_PAGE_SHIFT);
	return m.end == end;
}

/* Whether no part of the giant page that begins at p has memory. */
static bool giant_absent(size_t p)
{
	for (size_t q = p; q < p + HP_GIANT_PAGES; q++)
		if (hp_span.page[q].state != HP_PAGE_ABSENT || hp_span.page[q].lost)
			return false;
	return true;
}

/* Make the giant page that begins at `first` READY. False: the pool has no such page. */
static bool commit_giant(size_t first)
{
	size_t end = first + HP_GIANT_PAGES, len = (size_t)1 << HP_GIANT_SHIFT;
	unsigned next = HP_PAGE_ABSENT;
	bool granted;

	for (size_t p = first; p < end; p++)
		hp_span.page[p].state = HP_PAGE_BUSY;
	hp_probe_commit_begin(hp_page_addr(first), len);
	call_begin(HP_PART_HEAP);
	granted = hp_map_hugetlb(hp_page_addr(first), len, HP_GIANT_SHIFT) == 0;
	if (granted) {
		hp_map_bind(hp_page_addr(first), len, &hp_span.nodes, true);
		if (hp_map_populate(hp_page_addr(first), len) == 0)
			next = HP_PAGE_READY;
		else if (hp_map_release(hp_page_addr(first), len) != 0)
			next = HP_PAGE_RESERVED;
	}
	call_end(HP_PART_HEAP);
	for (size_t p = first; p < end; p++) {
		struct hp_page *g = &hp_span.page[p];

		g->kind = HUGEPIN_KIND_HUGETLB;
		g->giant = next != HP_PAGE_ABSENT;
		g->next = (uint8_t)next;
		settle_page(p, HP_PAGE_ABSENT);
	}
	hp_probe_commit(hp_page_addr(first), len, next != HP_PAGE_ABSENT ? len : 0, 0, 0);
	if (next != HP_PAGE_ABSENT)
		set_heads(first, HP_GIANT_PAGES, true);
	HP_STAT_ADD(pool_short, !granted);
	HP_STAT_ADD(pool_denied, granted && next != HP_PAGE_READY);
	return next == HP_PAGE_READY;
}

bool hp_pages_need_commit(size_t first, size_t count)
{
	for (size_t p = first; p < first + count; p++)
		if (hp_span.page[p].state != HP_PAGE_READY)
			return true;
	return false;
}

bool hp_pages_commit(size_t first, size_t count)
{
	size_t end = first + count, refused = 0; /* refused: a giant page that the pool could not give */

	for (;;) {
		uint32_t seen = turn_now();
		bool busy = false;

		for (size_t p = first; p < end;) {
			let_fork_pass(hp_part_of(p));

			unsigned state = hp_span.page[p].state;
			size_t q = p + 1, to = end, giant = p & ~(HP_GIANT_PAGES - 1);

			if (state == HP_PAGE_ABSENT && hp_span.extent[hp_span.page[p].extent].giant) {
				if (giant != refused && !hp_span.no_pool && giant_absent(giant)) {
					refused = commit_giant(giant) ? 0 : giant;
					continue;
				}
				to = HP_MIN(end, giant + HP_GIANT_PAGES);
			}
			while (q < to && hp_span.page[q].state == state)
				q++;
			if (state == HP_PAGE_BUSY)
				busy = true;
			else if (state != HP_PAGE_READY && !commit_run(p, q, state))
				return false;
			p = q;
		}
		if (!busy)
			return true;
		/* Wait, unless a call has ended since `seen` was read, our own for instance: then pages may be ready
		 * and no wake may follow, so look again. No two threads wait for each other, because only pages of
		 * other threads are BUSY now. */
		if (turn_now() != seen)
			continue;
		HP_STAT_ADD(commit_waits, 1);
		wait_turn();
	}
}

/* ------------------------------------------------------------------ release */

bool hp_pages_release(size_t first, size_t count)
{
	let_fork_pass(HP_PART_HEAP);

	size_t end = first + count, extent = hp_span.page[first].extent;
	size_t extent_end = extent + hp_span.extent[extent].pages;
	struct hugepin_extent e = hp_extent_describe(first);
	bool tail_goes_on = goes_on_at(end, extent_end);
	size_t gave[] = { [HUGEPIN_KIND_BASE] = 0, [HUGEPIN_KIND_THP] = 0, [HUGEPIN_KIND_HUGETLB] = 0 };

	for (size_t p = first; p < end; p++)
		if (hp_page_held(&hp_span.page[p])) /* a hold was added while a fork passed */
			return false;
	/* A split costs one more of the mappings that a process may have (65530 by default). */
	if (hp_span.heads > hp_span.heads_max && (tail_goes_on || !hp_span.page[first].head))
		return false;
	e.addr = (void *)hp_page_addr(first);
	e.len = count << HP_PAGE_SHIFT;
	for (size_t p = first; p < end; p++) {
		hp_span.page[p].next = hp_span.page[p].state;
		hp_span.page[p].state = HP_PAGE_BUSY;
	}
	call_begin(HP_PART_HEAP);
	hp_watch_leaving(&e);

	bool ok = hp_map_release(hp_page_addr(first), e.len) == 0;

	/* Give back the memory of two tables, too: that of the tree's holes, because taken chunks have no hole, and
	 * that of the chunk words, because no buffer begins there, so that all words are zero. */
	if (ok)
		hp_meta_zero(holes_of(first), (size_t)((char *)holes_of(first + count) - (char *)holes_of(first)));
	if (ok && hp_part_of(first) == HP_PART_HEAP)
		hp_meta_zero(&hp_span.chunk[first << HP_PAGE_CHUNKS_SHIFT],
			     (count << HP_PAGE_CHUNKS_SHIFT) * sizeof(hp_chunk));
	call_end(HP_PART_HEAP);

	for (size_t p = first; p < end; p++) {
		struct hp_page *g = &hp_span.page[p];

		if (ok) {
			if (g->next == HP_PAGE_RESERVED)
				HP_STAT_ADD(reserved_bytes, -HP_PAGE);
			count_kind(&hp_span.extent[extent], g->kind, -1);
			gave[g->kind] += HP_PAGE;
			g->next = HP_PAGE_ABSENT;
			g->leaves = 0; /* may have been set while a fork passed */
			g->fresh = 0;
			g->giant = 0;
			g->stays = 0;
			g->whole = 0;
		}
		g->state = g->next;
	}
	if (ok) {
		set_heads(first, count, false);
		if (tail_goes_on)
			set_heads(end, 1, true);
		hp_probe_give_back(hp_page_addr(first), e.len, gave[HUGEPIN_KIND_HUGETLB], gave[HUGEPIN_KIND_THP],
				   gave[HUGEPIN_KIND_BASE]);
	}
	return ok;
}

/* ------------------------------------------------------------------ collapse */

bool hp_page_may_collapse(size_t p)
{
	const struct hp_page *g = &hp_span.page[p];

	return g->state == HP_PAGE_READY && g->kind == HUGEPIN_KIND_THP && !hp_page_held(g) && !g->lost && !g->advised;
}

bool hp_page_collapse(size_t p)
{
	struct hp_page *g = &hp_span.page[p];
	bool ok;

	let_fork_pass(HP_PART_HEAP);
	if (!hp_page_may_collapse(p))
		return false;
	g->next = g->state;
	g->state = HP_PAGE_BUSY;
	g->collapses = 1;
	call_begin(HP_PART_HEAP);
	ok = hp_map_collapse(hp_page_addr(p), HP_PAGE) == 0;
	call_end(HP_PART_HEAP);
	g->state = g->next;
	g->collapses = 0;
	g->whole = ok;
	return ok;
}

/* ------------------------------------------------------------------ hold */

int hp_pages_hold(size_t first, size_t count, enum hp_hold how)
{
	size_t end = first + count;

	for (size_t p = first; p < end; p++) {
		if (hp_span.page[p].lost)
			return -EFAULT;
		if (hp_span.page[p].held[how] == UINT16_MAX)
			return -ENOBUFS;
	}
	/* Count the holds first, so that no page is given back meanwhile. The chunks stay free in the tree, so that no
	 * other extent is made for a buffer; one that is placed here meanwhile waits for the page. */
	for (size_t p = first; p < end; p++) {
		hp_span.page[p].held[how]++;
		if (hp_span.page[p].state != HP_PAGE_READY) /* the decay time of new memory begins now */
			hp_span.holes.stamps[p] = hp_span.holes.now;
	}
	for (size_t p = first; p < end; p += HOLD_STEP) {
		if (hp_pages_commit(p, HP_MIN(end - p, (size_t)HOLD_STEP)))
			continue;
		hp_pages_drop(first, count, how);
		return -ENOMEM;
	}
	return 0;
}

void hp_pages_drop(size_t first, size_t count, enum hp_hold how)
{
	for (size_t p = first; p < first + count; p++) {
		HP_ASSERT(hp_span.page[p].held[how]);
		hp_span.page[p].held[how]--;
	}
	hp_extent_destroy_if_empty(hp_span.page[first].extent);
}
