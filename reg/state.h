/*
 * The pin cache's state: domains, regions, and how a pin finds and counts a region without a lock.
 *
 * A region is one registration with a domain's backend. Regions of all domains live in one table and are known by their
 * index in it, 1 and up.
 *
 * Finding. Heap memory: a domain's granule table has an entry for each hugepage of the heap's span, with a copy of what
 * a hit needs from one of the regions that cover it. Other memory: a lookup table (lookup.h), from the hash of a page's
 * address to indexes; what the region itself says decides.
 *
 * Counting. Each thread has counters for each region (counts.h): their sum over all threads is the number of pins out.
 * No lock, no shared write.
 *	pin:	read tag and the rest; count; read `attention`, then tag again: if it changed, count back and take the
 *		slow path
 *	retire:	tag = 0 wherever it stands; membarrier on every running thread; sum
 * Either the sum sees the count, or the pin sees the tag gone (an asymmetric Dekker; membarrier(2) is the retirer's
 * half of the fence). Once the tag is gone the sum only falls: when it is 0 the region can be deregistered.
 *
 * Events from the kernel (uffd.c) come on a thread that must not wait for the domain: it raises BUSY in every domain
 * before it reads them, which is what lets the unmapping thread go on, queues the ranges, which raises PENDING, and
 * lowers BUSY. PENDING is lowered when the tags of all that was queued are gone. So a pin that began after an unmap and
 * sees neither, and then the tag, has a region that the unmap did not touch.
 *
 * Until munmap has returned to the thread that called it, another thread may have been given the addresses, and the
 * event may not have been read. From before the addresses are free until after the event is read, the kernel says that
 * something is changing. So a hit on foreign memory asks the kernel after it has counted, and before it reads
 * `attention` and the tag. The hit then sees at least one of four signs: the kernel's answer, BUSY, PENDING, or a
 * missing tag. A hit does not ask where the program has one thread, or where changes are announced before they happen
 * (unmapping.h).
 *
 * Lock order: opening, domain, watchers of the heap, heap, table of regions, queue. One domain at a time.
 */
#ifndef HP_REG_STATE_H
#define HP_REG_STATE_H

#include <bsd/sys/tree.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "alloc/hold.h"
#include "base/lock.h"
#include "base/seal.h"
#include "hugepin.h"

#define HP_BASE_PAGE ((uintptr_t)4096)
#define HP_REGIONS_MAX ((uint32_t)1 << 18)
#define HP_RELAXED ((unsigned)HUGEPIN_RELAXED)
#define HP_ACCESS_ALL                                                                                                  \
	(HP_RELAXED | HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE | HUGEPIN_REMOTE_ATOMIC)
#define HP_ACCESS_SETS 32u /* that a region may have: without HUGEPIN_RELAXED */
_Static_assert(HP_ACCESS_ALL == (HP_RELAXED | (HP_ACCESS_SETS - 1)), "");
#define HP_LOOKUP_BITS_MIN 8 /* log2 of the buckets of the lookup table (lookup.h) */
#define HP_LOOKUP_BITS_MAX 17
#define HP_LOOKUP_BYTES ((size_t)16 << HP_LOOKUP_BITS_MAX)

/* Words of regions and granules that hits read without a lock: first the tag, then the rest, then the tag again. They
 * are written under the domain's lock, in the opposite order (region.c:name_region()). Not _Atomic: whoever has the
 * lock reads them as they are. HP_READ pairs with HP_WRITE: who sees a word sees those that were written before it. */
#define HP_READ(word) __atomic_load_n(&(word), __ATOMIC_ACQUIRE)
#define HP_WRITE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)
#define HP_PEEK(word) __atomic_load_n(&(word), __ATOMIC_RELAXED) /* a word alone */

/* A flag that only ever becomes true. Not _Atomic: hits read it as it is, and compare it in memory. */
#define HP_SET_FLAG(flag) __atomic_store_n(&(flag), true, __ATOMIC_RELAXED)

/* Of a region that may be found: a number that no other region had at this index, and the index. Else 0. */
#define HP_TAG(gen, index) ((uint64_t)(gen) << 32 | (index))
#define HP_TAG_INDEX(tag) ((uint32_t)(tag))

struct hp_granule {
	uint64_t tag, end;
	uint64_t keys; /* lkey and rkey, as they lie in a pin */
	uint32_t access; /* what the region may be used for, as a pin may ask for it */
	uint32_t used; /* since the last eviction, or the helper, came by */
};
#define HP_GRANULE_SHIFT 5
_Static_assert(sizeof(struct hp_granule) == 1 << HP_GRANULE_SHIFT, "");

enum hp_region_state { HP_REGION_FREE, HP_REGION_LIVE, HP_REGION_RETIRED, HP_REGION_DEAD };
enum hp_region_kind { HP_REGION_EXTENT, HP_REGION_RUN, HP_REGION_FOREIGN, HP_REGION_UNCACHED };

struct hp_region {
	/* Read by hits on foreign memory; start, end and domain do not change while the region is not FREE. */
	_Alignas(64) uint64_t tag;
	uint64_t start, end, keys;
	uint32_t access, used;
	hugepin_domain *domain;
	uint32_t state; /* enum hp_region_state; read by every unpin while the domain has retired regions */
	uint32_t kind; /* enum hp_region_kind */

	/* Under the domain's lock. */
	struct hugepin_reg reg;
	/* In domain.live (least recently used first, as far as is known), retired, uncached or dead. */
	TAILQ_ENTRY(hp_region) order;
	RB_ENTRY(hp_region) node; /* in domain.tree */
	uint32_t gen;
	bool cut; /* ends because the device's longest registration does */
};

TAILQ_HEAD(hp_region_list, hp_region);
RB_HEAD(hp_region_tree, hp_region);

/*
 * A domain's word of attention: what keeps a pin or an unpin from being a hit. Changed by hp_attention_raise() and
 * hp_attention_lower() alone.
 *
 *	bit      up: raised by; down: lowered by; acted on by; pairs with
 *	BUSY     up: uffd.c, before it reads events; down: uffd.c, when what was read is queued
 *	         pins: enter_domain() waits for that; pairs with attention_of()
 *	PENDING  up: hp_gone_tell(), with a range; down: hp_gone_drain(), when no tag of what was queued is left
 *	         pins: enter_domain() drains, and so does the service thread; pairs with attention_of(): where it is
 *	         lowered, the tags are gone
 *	TODO     up: hp_region_deregister_dead(), where only the opener may; down: the same, by the opener
 *	         the opener's pins: enter_domain() deregisters; pairs with nothing: the list has the domain's lock
 *	RETIRED  up: hp_region_settle() before the sum, hp_region_register() of an uncached one;
 *	         down: hp_region_settle(), hp_region_last_unpin(), when none is left
 *	         unpins: unpin_retired() looks whether it was the last; pairs with hp_counts_barrier(): an unpin
 *	         that the sum does not see sees the bit
 *	TRACED   up: opening; pins take the slow path, unpins call hp_trace()
 *	HELPED   up: opening; pins and unpins: record_use()
 *	CHECKED  up: opening; unpins: check_counts()
 *	ASK      up: opening; hits on foreign memory: pin_asked()
 */
enum {
	HP_BUSY = 1, /* events are being read */
	HP_PENDING = 2, /* ranges are queued in `gone` */
	HP_TODO = 4, /* something for the opener to do; of no concern to other threads */
	HP_TRACED = 16, /* every pin is to be written down */
	HP_PIN_SLOW = HP_BUSY | HP_PENDING | HP_TODO | HP_TRACED, /* a pin that sees one of these takes the slow path */
	HP_RETIRED = 8, /* there are retired regions: an unpin may be the last of one */
	HP_HELPED = 32, /* there is a helper, that is told of pins (helper.c) */
	HP_CHECKED = 128, /* HUGEPIN_GUARD: an unpin is to see whether there was a pin */
	/* An unpin that sees one of these has more to do than count. */
	HP_UNPIN_SLOW = HP_RETIRED | HP_HELPED | HP_TRACED | HP_CHECKED,
	HP_ASK = 64, /* a hit on foreign memory is to ask the kernel whether something is changing (uffd.h) */
};

/* What hugepin_prefetch() asked for. */
struct hp_prefetch {
	const void *addr;
	size_t len;
	unsigned access;
};
enum { HP_PREFETCHES_MAX = 64, HP_PARENT = -1 };

enum { HP_GONE_MAX = 64 };

/* Ranges of memory that went away, on their way from the thread that saw it to the domains (gone.c). */
struct hp_range {
	uintptr_t start, end;
	bool discarded; /* announced before it happens: the mapping stays, its pages go at some time after this */
	bool late; /* the same, and nobody says when they have gone */
	bool widened; /* not all of it went away */
};

struct hp_gone {
	struct hp_range range[HP_GONE_MAX];
	unsigned count;
};

/* What a domain tells its helper, which is above all that registers and unpublishes. Under the domain's lock. */
struct hp_helper_hooks {
	/* r was deregistered. gone: its memory went away, or is part of another region. */
	void (*deregistered)(hugepin_domain *d, struct hp_region *r, bool gone);
	/* The memory goes away, perhaps not yet: what is not registered of it is not to be, before it is pinned
	 * again. */
	void (*gone)(hugepin_domain *d, uintptr_t start, uintptr_t end);
	/* Give back what will be used last, as far as the plan knows after a few records more. False: nothing is known
	 * of any. */
	bool (*evict)(hugepin_domain *d);
};

/* Any memory may have gone, or be going. */
enum { HP_ALL_GONE = 1, HP_ALL_DISCARDED = 2 };

struct hugepin_domain {
	/* What hits read; written when the domain is opened, but for attention and lookup_shift. */
	_Alignas(64) _Atomic uint32_t attention; /* HP_BUSY ... */
	uint32_t access; /* default */
	uintptr_t span_base;
	size_t span_size; /* 0: the heap's memory is not cached */
	uintptr_t granule; /* of address 0: the table has but those of the span */
	uint64_t *discarded; /* a bit for each granule: see cover_heap() in cover.c; under the lock */
	uint64_t ref; /* top bits of the refs of this domain's pins */
	_Atomic uint32_t *lookup; /* indexes of regions that may cover a page (lookup.h) */
	_Atomic uint32_t lookup_shift; /* 64 - log2 of the buckets in use */
	/* The opener's counters, by which its hits know that TODO is for them; NULL: nobody's are. */
	const void *_Atomic opener_counts;

	_Atomic uint32_t holders; /* that it is to stay open for; changed, as closing, under the lock of opening */
	bool closing;
	pid_t pid; /* of the process that opened it; HP_PARENT: an ancestor, by fork; 0: closed */
	uint32_t number;
	bool opener_only, on_demand, late;
	bool own_clock; /* the backend has one */
	uint32_t watch; /* HUGEPIN_WATCH_* */
	bool watched; /* by the kernel's events, as far as they can be had; not under ODP */
	uint64_t opener; /* a thread, by hp_thread_number() */
	_Atomic bool opener_ended;
	uint32_t policy; /* HUGEPIN_POLICY_*, never DEFAULT */
	uint32_t access_mask, relaxed; /* what the device has; HUGEPIN_RELAXED if all is to be registered so, which no
					* access anywhere else in the cache has */
	enum hp_hold hold;
	union {
		_Alignas(HP_SEAL_SIZE) struct hugepin_backend backend; /* sealed */
		char backend_page[HP_SEAL_SIZE];
	};
	void *ctx;
	size_t len_max; /* a multiple of the base page */
	uint64_t bytes_max; /* the lower of attribute and backend's limit (domain.c); UINT64_MAX: no budget */
	uint32_t regs_max;

	_Alignas(64) struct hp_lock lock; /* held across the backend's calls */
	struct hp_region_list live;
	struct hp_region_list retired; /* were LIVE, and wait for their last unpin */
	/* Of one pin each, which no other pin finds: RETIRED, too, and wait for that pin's end. */
	struct hp_region_list uncached;
	struct hp_region_list dead; /* were on one of these two, and are in no use */
	struct hp_gone late_gone; /* foreign memory of which no region is cached */
	struct hp_region_tree tree[HP_ACCESS_SETS]; /* LIVE regions, by access */
	uint64_t extent_gen; /* of the youngest extent that was looked at, to be registered ahead of use */
	uint64_t deregistered_at_ns;
	struct hp_helper *helper; /* or NULL */
	_Atomic uint32_t waiting; /* pins wait for the lock */
	struct hugepin_domain_stats stats;

	struct hp_lock queue_lock; /* nothing is called while it is held */
	struct hp_gone gone; /* ranges whose memory went away */
	_Atomic uint32_t all_gone; /* HP_ALL_...: said by a signal handler whose thread had the lock of the queue */
	struct hp_prefetch prefetches[HP_PREFETCHES_MAX];
	unsigned prefetches_count;
};

/* seq_cst: what was written before is seen by whoever sees the bit, and hp_counts_barrier() comes after it; pairs with
 * attention_of() and hugepin_unpin() in pin.c. */
static inline void hp_attention_raise(hugepin_domain *d, uint32_t bits)
{
	atomic_fetch_or_explicit(&d->attention, bits, memory_order_seq_cst);
}

/* seq_cst: the tags of what was queued are gone for whoever sees PENDING lowered; pairs with attention_of() in
 * pin.c. */
static inline void hp_attention_lower(hugepin_domain *d, uint32_t bits)
{
	atomic_fetch_and_explicit(&d->attention, ~bits, memory_order_seq_cst);
}

/* Off the path of hits. seq_cst: pairs with hp_attention_raise(). */
static inline bool hp_attention_is(const hugepin_domain *d, uint32_t bit)
{
	return atomic_load_explicit(&d->attention, memory_order_seq_cst) & bit;
}

static inline bool hp_region_is_heap(const struct hp_region *r)
{
	return r->kind == HP_REGION_EXTENT || r->kind == HP_REGION_RUN;
}

/* Whether r, which was d's once, is so still, and in that state; under d's lock. Its index may serve another domain by
 * now, which writes the state last: so it is read first. */
static inline bool hp_region_is(const struct hp_region *r, const hugepin_domain *d, enum hp_region_state state)
{
	return HP_READ(r->state) == (uint32_t)state && HP_READ(r->domain) == d;
}

/* Whether the heap's memory may lie there, and is cached. */
static inline bool hp_in_span(const hugepin_domain *d, uintptr_t addr)
{
	return addr - d->span_base < d->span_size;
}

/* Of an address in the span. */
static inline struct hp_granule *hp_granule_at(const hugepin_domain *d, uintptr_t addr)
{
	return (struct hp_granule *)(d->granule + (addr >> (HP_PAGE_SHIFT - HP_GRANULE_SHIFT) &
						   -(uintptr_t)sizeof(struct hp_granule)));
}

/* A domain's statistics, a public struct, whose members cannot be _Atomic. Counted under the domain's lock;
 * HP_DSTAT_COUNT: from any thread. */
#define HP_DSTAT_GET(d, name) __atomic_load_n(&(d)->stats.name, __ATOMIC_RELAXED)
#define HP_DSTAT_COUNT(d, name, n) ((void)__atomic_fetch_add(&(d)->stats.name, (uint64_t)(n), __ATOMIC_RELAXED))
#define HP_DSTAT(d, name, n) \
	__atomic_store_n(&(d)->stats.name, (d)->stats.name + (uint64_t)(n), __ATOMIC_RELAXED)

#endif
