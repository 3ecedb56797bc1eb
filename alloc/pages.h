/*
 * The span and its hugepages: which addresses belong to extents, what backs them, and the transitions that need the
 * kernel. Below the heap's policy, above the bare system calls (map.h).
 *
 * One span of addresses is reserved once. Every table is a flat array indexed by offset, so that "is this pointer ours"
 * is one subtraction and one compare. Page 0 is never used: index 0 means "none".
 *
 * With HUGEPIN_SMALL_PINNED=1 the span has a second part above the heap's, with extents for the small tier. Its chunks
 * have no words: the tree alone says what is taken there. It has no pages of the pool, and no copy is made of it at
 * fork (fork.c).
 *
 * States of a hugepage, changed under hp_heap_lock only:
 *	NONE      its address is free
 *	ABSENT    belongs to an extent; no memory
 *	RESERVED  mapped from the hugetlb pool, not yet populated
 *	READY     may be handed out
 *	BUSY      a thread works on it without the lock; who needs it waits (hp_pages_commit does)
 *
 * Lock order: watchers' lock, then hp_heap_lock. Neither is held across a mapping call, but for raw system calls that
 * no one's hooks see. A thread inside a mapping call counts in `inflight`, for which fork waits.
 */
#ifndef HP_ALLOC_PAGES_H
#define HP_ALLOC_PAGES_H

#include <stdatomic.h>

#include "alloc/hold.h"
#include "alloc/map.h"
#include "alloc/tree.h"
#include "base/lock.h"
#include "hugepin.h"

enum hp_part { HP_PART_HEAP, HP_PART_SMALL, HP_PARTS };
enum hp_page_state { HP_PAGE_NONE, HP_PAGE_ABSENT, HP_PAGE_RESERVED, HP_PAGE_READY, HP_PAGE_BUSY };

/* The heap's page is 2 MiB. So many pages are a page of 1 GiB, a giant one. The span is aligned to these if they are
 * wanted and it is as large as one. */
#define HP_GIANT_SHIFT 30
#define HP_GIANT_PAGES ((size_t)1 << (HP_GIANT_SHIFT - HP_PAGE_SHIFT))

struct hp_page {
	uint8_t state; /* enum hp_page_state */
	uint8_t kind; /* HUGEPIN_KIND_*, of RESERVED, READY and BUSY pages */
	uint8_t next; /* state to enter when no longer BUSY; owned by who made it BUSY */
	uint8_t head : 1, /* first page of a mapping of its own */
		lost : 1, /* a child of fork: live buffers of its parent are here, without memory; ABSENT, all taken */
		fork : 2, /* enum hp_page_fork */
		giant : 1, /* a part of a page of 1 GiB, all parts of which are in one state but for what is BUSY */
		again : 1, /* to be copied again (fork.c) */
		stays : 1, /* of the pool, and did not move at a fork (move.c) */
		advised : 1; /* the program has advised the kernel about some of it (advice.h) */
	uint16_t fresh; /* chunks of the page at and above this were never handed out: they read as zero */
	uint16_t held[3]; /* how often, by enum hp_hold; a held page with memory keeps it */
	uint32_t extent; /* first page of its extent */
	uint16_t leaves : 1, /* the pool: what is free of it is in no tree, so that nothing is placed there (leave.c) */
		in_use : 15; /* chunks of a page that leaves which are in buffers, or about to be */
};

static inline bool hp_page_held(const struct hp_page *g)
{
	return g->held[HP_HOLD_COPY] | g->held[HP_HOLD_COW] | g->held[HP_HOLD_DONTFORK];
}

struct hp_extent {
	uint64_t gen;
	uint32_t pages; /* 0: no extent begins here */
	uint32_t present; /* pages that are not ABSENT */
	uint32_t by_kind[3]; /* of those, HUGEPIN_KIND_* */
	/* Map the rest of it together with the first page that is needed. A power of two of pages, which begins at a
	 * multiple of that in the span. */
	bool ahead;
	bool giant; /* take pages of 1 GiB, if there are any; its size and place are multiples of that */
};

/* A chunk's word: what begins there. Only the first chunk of a buffer has one (and the second, if it has room). The
 * owner of a buffer changes LIVE to LISTED and back without a lock; all else is done under hp_heap_lock. */
typedef _Atomic uint64_t hp_chunk;
enum {
	HP_CHUNK_FREE,
	HP_CHUNK_LIVE,
	HP_CHUNK_LISTED,
	/* Live, with room behind it; or on a page that is lost or leaves the pool; or advised (advice.h). Never goes to
	 * a list. */
	HP_CHUNK_ROOMY,
};
#define HP_CHUNK_WORD(count, state) ((uint64_t)(count) << 2 | (state))
#define HP_CHUNK_STATE(word) ((unsigned)(word) & 3)
#define HP_CHUNK_COUNT(word) ((uint32_t)(word) >> 2)
#define HP_CHUNK_LINK(word) ((uint32_t)((word) >> 32))

struct hp_span {
	uintptr_t base;
	/* Bytes from base whose words in `chunk` are accessible: no buffer lies beyond. 0 until hp_span_init(). */
	size_t opened;
	hp_chunk *chunk;
	/* the rest is for slow paths */
	size_t size, pages; /* of the heap's part */
	size_t small, small_end; /* pages of the small tier's part, if there is one */
	size_t reserved; /* bytes of both */
	size_t extent_pages[HP_PARTS]; /* of all extents */
	size_t small_taken; /* chunks */
	struct hp_page *page;
	struct hp_extent *extent;
	uint64_t *used; /* pages whose state is not NONE */
	struct hp_tree tree;
	uint64_t gen;
	size_t ram; /* bytes of memory in the machine */
	size_t heads, heads_max; /* mappings, and how many there may be before splitting stops */
	unsigned pool_skip; /* commits to come that do not ask the pool: it was empty */
	struct hp_nodes nodes; /* where memory is to come from */
	bool thp; /* the kernel gives THP */
	bool no_pool; /* take no more from the hugetlb pool: the process keeps forking */
	size_t left; /* pages that leave it, and are in no buffer any more */
};

extern struct hp_span hp_span;
extern struct hp_lock hp_heap_lock;

/* For base, opened and reserved, which are read without the lock, too: another thread may be making the span just now,
 * and then no pointer is the heap's. These members are not _Atomic, since every address is computed from base, and
 * neither with the lock nor of a live buffer does it change. */
static inline size_t hp_span_load(const size_t *member)
{
	return __atomic_load_n(member, __ATOMIC_RELAXED);
}

/* release: the tables are there; pairs with hp_span_load() */
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

/* A chunk's word. Buffers start at the start of a page; so would the words of those that start a hugepage, and programs
 * that touch a word in each page would throw them out of the first-level cache. Words are permuted within their
 * hugepage. */
#define HP_CHUNK_SKEW 0xa8
static inline hp_chunk *hp_chunk_at(const struct hp_span *s, size_t chunk)
{
	return &s->chunk[chunk ^ HP_CHUNK_SKEW];
}

static inline uint64_t hp_chunk_get(size_t chunk)
{
	return atomic_load_explicit(hp_chunk_at(&hp_span, chunk), memory_order_relaxed);
}

static inline void hp_chunk_set(size_t chunk, uint64_t word)
{
	atomic_store_explicit(hp_chunk_at(&hp_span, chunk), word, memory_order_relaxed);
}

/* Chunks in the buffer that begins at `chunk`, room included. */
static inline size_t hp_chunk_extent(size_t chunk)
{
	uint64_t w = hp_chunk_get(chunk);

	if (HP_CHUNK_STATE(w) != HP_CHUNK_ROOMY || HP_CHUNK_COUNT(w) == 1)
		return HP_CHUNK_COUNT(w);
	return HP_CHUNK_COUNT(w) + HP_CHUNK_COUNT(hp_chunk_get(chunk + 1));
}

/* The hugepage that a chunk lies in. */
static inline size_t hp_page_of(size_t chunk)
{
	return chunk >> HP_PAGE_CHUNKS_SHIFT;
}

/* Hugepages that [chunk, chunk + n) touches. */
static inline size_t hp_pages_touched(size_t chunk, size_t n)
{
	return hp_page_of(chunk + n - 1) - hp_page_of(chunk) + 1;
}

/* The hugepage of an address in the span. */
static inline size_t hp_page_at(uintptr_t addr)
{
	return (addr - hp_span.base) >> HP_PAGE_SHIFT;
}

/* Whether p lies in a part of the span, in an extent or not. The lock need not be held. */
static inline bool hp_span_reserves(const void *p)
{
	return hp_span_offset(&hp_span, p) < hp_span_load(&hp_span.reserved);
}

/* Whether a page leaves the pool and is in no buffer any more: all that is left to give back is its memory. */
static inline bool hp_page_has_left(size_t page)
{
	return hp_span.page[page].leaves && !hp_span.page[page].in_use;
}

/* Reserve the span and its tables, once; small: with a part for the small tier. Not locked. 0 or -ENOMEM. */
int hp_span_init(bool small);

/* All below: hp_heap_lock held by the caller. */

/* Give up reserved addresses of each part, beyond `limit` bytes and behind the last extent. */
void hp_span_shrink(size_t limit);

/* A new extent of ABSENT pages, aligned to `align` bytes; its chunks are free in the tree, not settled. Its first page,
 * or 0 when the span has no room. Extents of the small tier touch nothing: jemalloc makes one piece of neighbours, and
 * a buffer would lie in two. */
enum { HP_EXTENT_AHEAD = 1, HP_EXTENT_GIANT = 2 }; /* flags: as in struct hp_extent */
size_t hp_extent_create(enum hp_part part, size_t pages, size_t align, unsigned flags);

/* Whether pages of 1 GiB are wanted, and there are some left. */
bool hp_pages_giants_left(void);

/* Take the extent that begins at `first` out of the span if it has no memory and no buffer. */
void hp_extent_destroy_if_empty(size_t first);

/* Make pages [first, first + count) READY. The caller has taken a part of each, or holds them. Releases the lock
 * meanwhile when there is work to do. False: out of memory; some of the pages may be READY. */
bool hp_pages_commit(size_t first, size_t count);

/* Whether hp_pages_commit would have work to do. */
bool hp_pages_need_commit(size_t first, size_t count);

/* Give back pages [first, first + count) of one extent, READY or RESERVED, whose chunks the caller has all taken; giant
 * ones as wholes. Calls the watchers. Releases the lock meanwhile. The pages are ABSENT afterwards. False: the kernel
 * refused, or one of them is held by now; nothing changed. */
bool hp_pages_release(size_t first, size_t count);

/* Hold pages [first, first + count) of one extent, and make them READY. Releases the lock meanwhile. 0, or what
 * hp_heap_hold() returns; then nobody holds them, but some may have become READY. Drop: the other way. */
int hp_pages_hold(size_t first, size_t count, enum hp_hold how);
void hp_pages_drop(size_t first, size_t count, enum hp_hold how);

/* Pages [first, end), READY and nobody's hold, have got memory that is not the pool's, each run of an extent one
 * mapping. */
void hp_pages_moved(size_t first, size_t end);

/* In the child of fork: page p is what page.fork says, and nobody holds it. */
void hp_page_in_child(size_t p);

/* Describe the extent of `page`, as hugepin_extent() returns it. */
struct hugepin_extent hp_extent_describe(size_t page);

/* For fork: wait until no thread is inside a mapping call for this part, and keep threads out from then on. First for
 * the heap's part. Then for the small tier's, once the caller has jemalloc's locks, under which those calls are
 * made. */
void hp_pages_quiesce(enum hp_part part);

/* Whether a fork waits, or keeps threads out: from the first hp_pages_quiesce() to hp_pages_resume(). */
bool hp_pages_quiet(void);

/* Let threads in again, for both parts. The calls of other threads are forgotten: in the child those threads are gone,
 * and in the parent there are no calls. */
void hp_pages_resume(void);

/* True while this thread runs a watcher or a mapping call, or waits for one: it must not start another release, and a
 * fork from a signal handler must touch nothing. */
bool hp_pages_inside(void);

/* What the child of a fork gets of a page: what the kernel gives; a copy of the live buffers; no memory, and no live
 * buffer was there; no memory, and live buffers remain without. */
enum hp_page_fork { HP_PAGE_SHARED, HP_PAGE_COPIED, HP_PAGE_LEFT, HP_PAGE_LOST };

#endif
