/*
 * The span and its hugepages: which addresses belong to extents, what memory the pages have, and the changes of memory
 * that need the kernel. This file stands below the heap's policy, and above the bare system calls (map.h).
 *
 * One span of addresses is reserved once. Every table is a flat array indexed by the offset in the span, so a
 * subtraction and a compare decide whether a pointer is ours. Page 0 is never used, because index 0 means "none".
 *
 * With HUGEPIN_SMALL_PINNED=1 the span has a second part above the heap's, with extents for the small tier. Its chunks
 * have no words, because only the tree knows which are taken. It has no pages of the pool, and fork makes no copy of it
 * (fork.c).
 *
 * States of a hugepage. They change only under hp_heap_lock:
 *	NONE      in no extent
 *	ABSENT    in an extent; no memory
 *	RESERVED  mapped from the hugetlb pool, not yet populated
 *	READY     may be handed out
 *	BUSY      a thread works on it without the lock; others wait (hp_pages_commit does). It may be in use by the
 *	          program only while it is collapsed (repair.h)
 *
 * Lock order: watchers' lock, then hp_heap_lock. Neither is held across a mapping call, except raw system calls, which
 * no hook sees. A thread inside a mapping call counts in `inflight`, for which fork waits.
 */
#ifndef HP_ALLOC_PAGES_H
#define HP_ALLOC_PAGES_H

#include <stdatomic.h>

#include "alloc/shard.h"
#include "alloc/hold.h"
#include "alloc/map.h"
#include "hugepin.h"

enum hp_part { HP_PART_HEAP, HP_PART_SMALL, HP_PARTS };
enum hp_page_state { HP_PAGE_NONE, HP_PAGE_ABSENT, HP_PAGE_RESERVED, HP_PAGE_READY, HP_PAGE_BUSY };

/* A page of the heap is 2 MiB. A giant page, of 1 GiB, is HP_GIANT_PAGES of these. If giant pages are wanted, and the
 * span is at least as large as one, the span is aligned to giant pages. */
#define HP_GIANT_SHIFT 30
#define HP_GIANT_PAGES ((size_t)1 << (HP_GIANT_SHIFT - HP_PAGE_SHIFT))

struct hp_page {
	uint8_t state; /* enum hp_page_state */
	uint8_t kind; /* HUGEPIN_KIND_*, for RESERVED, READY and BUSY pages */
	uint8_t next; /* state to enter after BUSY; owned by the thread that made the page BUSY */
	uint8_t head : 1, /* first page of a mapping of its own */
		/* a child of fork: live buffers of the parent have no memory here; ABSENT, all chunks taken */
		lost : 1,
		fork : 2, /* enum hp_page_fork */
		giant : 1, /* part of a page of 1 GiB; all its parts have one state, apart from BUSY */
		again : 1, /* written to since it was copied: copy it again (fork.c) */
		stays : 1, /* a page of the pool that could not move at a fork (move.c) */
		advised : 1; /* the program has advised the kernel about a part (madvise.h) */
	uint16_t fresh; /* chunks of the page at and above this were never handed out: they read as zero */
	uint16_t held[3]; /* number of holds, by enum hp_hold; a held page keeps its memory */
	uint32_t extent; /* first page of its extent */
	/* a page that leaves the pool: its free chunks are not in the tree, so nothing is placed there (leave.c) */
	uint16_t leaves : 1,
		in_use : 15; /* in a page that leaves: chunks in buffers, or about to be */
	uint8_t whole : 1, /* was collapsed: a hugepage, as long as the kernel does not split it (repair.h) */
		collapses : 1, /* BUSY because it is collapsed: it is mapped, and its buffers are live */
		holes : 1; /* while a fork copies: a part has no memory (copy.c) */
	uint8_t shard; /* of its extent */
	/* The first chunk of the buffer, live or listed, that contains the page's first chunk. Of no meaning if there
	 * is none. relaxed: hp_heap_lock; a reader believes only the word. */
	_Atomic uint32_t buffer;
};

static inline bool hp_page_held(const struct hp_page *g)
{
	return g->held[HP_HOLD_COPY] | g->held[HP_HOLD_COW] | g->held[HP_HOLD_DONTFORK];
}

struct hp_extent {
	uint64_t gen;
	uint32_t pages; /* 0: no extent begins here */
	uint32_t present; /* pages that are not ABSENT */
	uint32_t by_kind[3]; /* of these, the number of each HUGEPIN_KIND_* */
	/* When a page needs memory, map the rest of the extent with it. The extent's size is a power of two of pages,
	 * and it begins at a multiple of its size in the span. */
	bool ahead;
	bool giant; /* use pages of 1 GiB while there are any; size and place are multiples of that */
};

/* A chunk's word describes the buffer that begins there. Only the first chunk of a buffer has a word, and the second
 * one if the buffer has room. Without a lock, the owner of a buffer changes LIVE to LISTED and back, and links lists.
 * All other changes are made under hp_heap_lock. */
typedef _Atomic uint64_t hp_chunk;
enum {
	HP_CHUNK_FREE,
	HP_CHUNK_LIVE,
	HP_CHUNK_LISTED,
	/* A live buffer that never goes to a list, because it has room behind it, is advised (madvise.h), or lies on a
	 * page that is lost or leaves the pool. */
	HP_CHUNK_ROOMY,
};
#define HP_CHUNK_WORD(count, state) ((uint64_t)(count) << 2 | (state))
#define HP_CHUNK_STATE(word) ((unsigned)(word) & 3)
#define HP_CHUNK_COUNT(word) ((uint32_t)(word) >> 2)
#define HP_CHUNK_LINK(word) ((uint32_t)((word) >> 32))

struct hp_span {
	uintptr_t base;
	/* Bytes from base for which `chunk` is accessible. No buffer lies beyond. 0 until hp_span_init(). */
	size_t opened;
	hp_chunk *chunk;
	/* The members from here on are for slow paths. */
	size_t size, pages; /* of the heap's part */
	size_t small, small_end; /* pages at which the small tier's part begins and ends, if there is one */
	size_t reserved; /* bytes of both parts */
	size_t extent_pages[HP_PARTS]; /* pages of all extents, by part */
	size_t holes_to[HP_PARTS]; /* by part: the lengths of holes in pages below this are accessible */
	size_t small_taken; /* chunks taken in the small tier's part */
	struct hp_page *page;
	struct hp_extent *extent;
	uint64_t *used; /* pages whose state is not NONE */
	struct hp_holes holes; /* the small tier's lie in the tree of shard 0 */
	size_t end[HP_PARTS]; /* by part: no page at or behind this was ever in an extent */
	uint64_t gen;
	size_t ram; /* bytes of memory in the machine */
	size_t heads, heads_max; /* mappings; above the maximum, mappings are no longer split */
	unsigned pool_skip; /* so many commits will not ask the pool, since it was empty */
	struct hp_nodes nodes; /* the nodes from which memory is to come */
	bool thp; /* the kernel gives THP */
	bool no_pool; /* take no more pages from the pool: the process forks repeatedly */
	bool sparse; /* take base pages: the program touches little of its buffers (sparse.h) */
	size_t left; /* pages that leave the pool and contain no part of a buffer any more */
};

extern struct hp_span hp_span;

/* Access to base, opened and reserved, which are also read without the lock. Another thread may just be making the
 * span; then no pointer is the heap's. relaxed: whoever has a buffer has seen hp_span_store(). These members are not
 * _Atomic, because every address is computed from base, which does not change while a thread holds the lock or has a
 * live buffer. */
static inline size_t hp_span_load(const size_t *member)
{
	return __atomic_load_n(member, __ATOMIC_RELAXED);
}

/* release: the tables exist when the value is seen; pairs with hp_span_load() */
static inline void hp_span_store(size_t *member, size_t value)
{
	__atomic_store_n(member, value, __ATOMIC_RELEASE);
}

static inline size_t hp_span_offset(const struct hp_span *s, const void *p)
{
	return (uintptr_t)p - hp_span_load(&s->base);
}

static inline size_t hp_span_opened(const struct hp_span *s)
{
	return hp_span_load(&s->opened);
}

static inline enum hp_part hp_part_of(size_t page)
{
	return page < hp_span.small ? HP_PART_HEAP : HP_PART_SMALL;
}

static inline uintptr_t hp_chunk_addr(size_t chunk)
{
	return hp_span.base + (chunk << HP_CHUNK_SHIFT);
}

static inline uintptr_t hp_page_addr(size_t page)
{
	return hp_span.base + (page << HP_PAGE_SHIFT);
}

/* A chunk's word. Words are permuted within their hugepage, for the first-level cache. Many buffers start a hugepage,
 * so that otherwise their words would all lie at the start of a page. A program that touches the start of each page
 * would then throw them out of the cache. */
#define HP_CHUNK_SKEW 0xa8
static inline hp_chunk *hp_chunk_at(const struct hp_span *s, size_t chunk)
{
	return &s->chunk[chunk ^ HP_CHUNK_SKEW];
}

/* relaxed, as hp_chunk_set(): hp_heap_lock; a listed buffer's word: the owner of the cache, or hp_cache_is_left(). */
static inline uint64_t hp_chunk_get(size_t chunk)
{
	return atomic_load_explicit(hp_chunk_at(&hp_span, chunk), memory_order_relaxed);
}

/* relaxed: see hp_chunk_get(). */
static inline void hp_chunk_set(size_t chunk, uint64_t word)
{
	atomic_store_explicit(hp_chunk_at(&hp_span, chunk), word, memory_order_relaxed);
}

/* The number of chunks of the buffer that begins at `chunk`, room included. */
static inline size_t hp_chunk_extent(size_t chunk)
{
	uint64_t w = hp_chunk_get(chunk);

	if (HP_CHUNK_STATE(w) != HP_CHUNK_ROOMY || HP_CHUNK_COUNT(w) == 1)
		return HP_CHUNK_COUNT(w);
	return HP_CHUNK_COUNT(w) + HP_CHUNK_COUNT(hp_chunk_get(chunk + 1));
}

/* The hugepage in which a chunk lies. */
static inline size_t hp_page_of(size_t chunk)
{
	return chunk >> HP_PAGE_CHUNKS_SHIFT;
}

/* The shard of a chunk's extent. */
static inline unsigned hp_shard_of(size_t chunk)
{
	return hp_span.page[hp_page_of(chunk)].shard;
}

/* Mark chunks of one extent free or taken. */
static inline void hp_chunks_set_free(size_t chunk, size_t n)
{
	hp_tree_free(&hp_shard[hp_shard_of(chunk)].tree, chunk, n);
}

static inline void hp_chunks_set_taken(size_t chunk, size_t n)
{
	hp_tree_take(&hp_shard[hp_shard_of(chunk)].tree, chunk, n);
}

/* The number of hugepages that [chunk, chunk + n) touches. */
static inline size_t hp_pages_touched(size_t chunk, size_t n)
{
	return hp_page_of(chunk + n - 1) - hp_page_of(chunk) + 1;
}

/* Note in each page whose first chunk lies in [chunk, chunk + n) that the buffer at `chunk` contains this first chunk.
 * relaxed: see hp_page.buffer. */
static inline void hp_pages_note_buffer(size_t chunk, size_t n)
{
	for (size_t p = hp_page_of(chunk + HP_PAGE_CHUNKS - 1); p << HP_PAGE_CHUNKS_SHIFT < chunk + n; p++)
		atomic_store_explicit(&hp_span.page[p].buffer, (uint32_t)chunk, memory_order_relaxed);
}

/* The hugepage of an address in the span. */
static inline size_t hp_page_at(uintptr_t addr)
{
	return (addr - hp_span.base) >> HP_PAGE_SHIFT;
}

/* Whether p lies in the span, inside an extent or not. The lock need not be held. */
static inline bool hp_span_reserves(const void *p)
{
	return hp_span_offset(&hp_span, p) < hp_span_load(&hp_span.reserved);
}

/* Whether a page leaves the pool and contains no part of a buffer any more, so that only its memory is left to give
 * back. */
static inline bool hp_page_has_left(size_t page)
{
	return hp_span.page[page].leaves && !hp_span.page[page].in_use;
}

/* Reserve the span and its tables, once. small: with a part for the small tier. The lock need not be held. Returns 0 or
 * -ENOMEM. */
int hp_span_init(bool small);

/* All functions below: the caller holds hp_heap_lock. */

/* Give up reserved addresses of each part that lie beyond `limit` bytes and behind the last extent. */
void hp_span_shrink(size_t limit);

/* The heap's part ends at this page from now on. No extent lies behind. */
void hp_span_end_at(size_t page);

/* Make an extent of ABSENT pages, aligned to `align` bytes, with its chunks free in the tree of a shard. Returns its
 * first page, or 0 if the span has no room. Extents of the small tier never touch each other, because jemalloc merges
 * neighbours, and a buffer could then lie in two extents. */
enum { HP_EXTENT_AHEAD = 1, HP_EXTENT_GIANT = 2 }; /* as in struct hp_extent */
size_t hp_extent_create(enum hp_part part, unsigned shard, size_t pages, size_t align, unsigned flags);

/* Whether pages of 1 GiB are wanted, and the pool has some left. */
bool hp_pages_giants_left(void);

/* Take the extent that begins at `first` out of the span if it has no memory and no buffer. */
void hp_extent_destroy_if_empty(size_t first);

/* Make pages [first, first + count) READY. The caller holds these pages, or has taken a part of each. Releases the
 * lock meanwhile if there is work to do. False: out of memory; some of the pages may be READY. */
bool hp_pages_commit(size_t first, size_t count);

/* Whether hp_pages_commit() would have work to do. */
bool hp_pages_need_commit(size_t first, size_t count);

/* Give back pages [first, first + count) of one extent, which are READY or RESERVED and become ABSENT. The caller has
 * taken all their chunks. Giant pages are given back as wholes. Calls the watchers. Releases the lock meanwhile. False:
 * the kernel refused, or one of the pages is held by now; nothing changed. */
bool hp_pages_release(size_t first, size_t count);

/* Hold pages [first, first + count) of one extent, and make them READY. Returns 0, or an error of hp_heap_hold().
 * After an error no page is held, but some may have become READY. Releases the lock meanwhile. hp_pages_drop() undoes
 * one hold. */
int hp_pages_hold(size_t first, size_t count, enum hp_hold how);
void hp_pages_drop(size_t first, size_t count, enum hp_hold how);

/* Note that pages [first, end) have moved to memory outside the pool. The pages are READY, and nobody holds them. In
 * each extent the new memory is one mapping. */
void hp_pages_moved(size_t first, size_t end);

/* Whether page p may be collapsed: it was to be THP, nobody holds it, and the program has not advised it.
 * hp_page_collapse() has the kernel make a hugepage of such a page, and releases the lock while holds and forks wait.
 * False: the kernel did not, or the page may not be collapsed any more. */
bool hp_page_may_collapse(size_t p);
bool hp_page_collapse(size_t p);

/* In the child of fork: set page p's state as page.fork says. Nobody holds the page. */
void hp_page_in_child(size_t p);

/* Describe the extent of `page`, as hugepin_extent() returns it. */
struct hugepin_extent hp_extent_describe(size_t page);

/* For fork: wait until no thread is inside a mapping call for this part, and keep threads out from then on. Call this
 * first for the heap's part, then, with jemalloc's locks, for the small tier's part, whose mapping calls are made under
 * these locks. */
void hp_pages_quiesce(enum hp_part part);

/* Whether a fork waits or keeps threads out: true from the first hp_pages_quiesce() to hp_pages_resume(). */
bool hp_pages_quiet(void);

/* Let threads in again, for both parts. Forgets mapping calls of other threads, because in the child those threads are
 * gone, and in the parent there are no such calls. */
void hp_pages_resume(void);

/* Whether this thread runs a watcher or a mapping call, or waits to begin one. Such a thread must not start another
 * release, and a fork from a signal handler of such a thread must touch nothing. */
bool hp_pages_inside(void);

/* The child's version of a page after fork. SHARED: the kernel's copy-on-write. COPIED: a copy of the live buffers.
 * LEFT: no memory, since there were no live buffers. LOST: no memory for live buffers. */
enum hp_page_fork { HP_PAGE_SHARED, HP_PAGE_COPIED, HP_PAGE_LEFT, HP_PAGE_LOST };

#endif
