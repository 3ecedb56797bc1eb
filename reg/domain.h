/*
 * The pin cache's state: domains, regions, and how a pin finds and counts a region without a lock.
 *
 * A region is one registration with a domain's backend. Regions of all domains live in one table and are known by their
 * index in it, 1 and up.
 *
 * Finding. Heap memory: a domain's granule table has an entry for each hugepage of the heap's span, with a copy of what a hit
 * needs from one of the regions that cover it. Other memory: a table of hints, from the hash of a page's address to
 * indexes; what the region itself says decides.
 *
 * Counting. Each thread has counters for each region (counts.h): their sum over all threads is the number of pins out. No
 * lock, no shared write.
 *	pin:	read tag and the rest; count; read `attention`, then tag again: if it changed, count back and take the slow path
 *	retire:	tag = 0 wherever it stands; membarrier on every running thread; sum
 * Either the sum sees the count, or the pin sees the tag gone (an asymmetric Dekker; membarrier(2) is the retirer's half of
 * the fence). Once the tag is gone the sum only falls: when it is 0 the region can be deregistered.
 *
 * Events from the kernel (uffd.c) come on a thread that must not wait for the domain: it raises BUSY in every domain before it
 * reads them, which is what lets the unmapping thread go on, queues the ranges, which raises PENDING, and lowers BUSY. PENDING
 * is lowered when the tags of all that was queued are gone. So a pin that began after an unmap and sees neither, and then the
 * tag, has a region that the unmap did not touch.
 *
 * Until munmap has returned to the thread that called it, another thread may have been given the addresses, and the event may not
 * have been read. From before the addresses are free until after the event is read, the kernel says that something is changing.
 * So a hit on foreign memory asks it, after the count and before it looks at the word and the tag: it sees one of the four.
 * It does not where the program has one thread, nor where changes are announced before they happen (unmapping.h).
 *
 * Lock order: opening, domain, watchers of the heap, heap, table of regions, queue. One domain at a time.
 */
#ifndef HP_REG_DOMAIN_H
#define HP_REG_DOMAIN_H

#include <bsd/sys/tree.h>
#include <sys/queue.h>
#include <sys/single_threaded.h>
#include <sys/types.h>

#include "alloc/hold.h"
#include "base/lock.h"
#include "base/seal.h"
#include "base/service.h"
#include "hugepin.h"
#include "reg/gone.h"

#define HP_BASE_PAGE ((uintptr_t)4096)
#define HP_REGIONS_MAX ((uint32_t)1 << 18)
#define HP_RELAXED ((unsigned)HUGEPIN_RELAXED)
#define HP_ACCESS_ALL                                                                                                  \
	(HP_RELAXED | HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE | HUGEPIN_REMOTE_ATOMIC)
#define HP_ACCESS_SETS 32u /* that a region may have: without HUGEPIN_RELAXED */
_Static_assert(HP_ACCESS_ALL == (HP_RELAXED | (HP_ACCESS_SETS - 1)), "");
#define HP_HINT_BITS_MIN 8 /* log2 of the buckets of hints (pin.c) */
#define HP_HINT_BITS_MAX 17
#define HP_HINT_BYTES ((size_t)16 << HP_HINT_BITS_MAX)

/* Words that hits read without a lock, in the order in which they stand in the code; written in the opposite one (region.c). */
#define HP_READ(word) __atomic_load_n(&(word), __ATOMIC_ACQUIRE)
#define HP_WRITE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)

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
	TAILQ_ENTRY(hp_region) order; /* in domain.live (least recently used first, as far as is known), retired or dead */
	RB_ENTRY(hp_region) node; /* in domain.tree */
	uint32_t gen;
	bool cut; /* ends because the device's longest registration does */
};

TAILQ_HEAD(hp_region_list, hp_region);
RB_HEAD(hp_region_tree, hp_region);

enum {
	HP_BUSY = 1, /* events are being read */
	HP_PENDING = 2, /* ranges are queued in `gone` */
	HP_TODO = 4, /* something for the opener to do; of no concern to other threads */
	HP_TRACED = 16, /* every pin is to be written down */
	HP_LOOK = HP_BUSY | HP_PENDING | HP_TODO | HP_TRACED, /* a pin that sees one of these takes the slow path */
	HP_RETIRED = 8, /* there are retired regions: an unpin may be the last of one */
	HP_RECORD = 32, /* there is a helper, that is told of pins (helper.c) */
	HP_CHECKED = 128, /* HUGEPIN_GUARD: an unpin is to see whether there was a pin */
	HP_NOTE = HP_RETIRED | HP_RECORD | HP_TRACED | HP_CHECKED, /* an unpin that sees one of these has more to do than count */
	HP_ASK = 64, /* a hit on foreign memory is to ask the kernel whether something is changing (uffd.h); set when it opens */
};

struct hp_hint {
	const void *addr;
	size_t len;
	unsigned access;
};
enum { HP_HINTS_MAX = 64, HP_PARENT = -1 };

/* Any memory may have gone, or be going. */
enum { HP_ALL_GONE = 1, HP_ALL_DISCARDED = 2 };

struct hugepin_domain {
	/* What hits read; written when the domain is opened, but for attention and hints_shift. */
	_Alignas(64) _Atomic uint32_t attention; /* HP_BUSY ... */
	uint32_t access; /* default */
	uintptr_t span_base;
	size_t span_size; /* 0: the heap's memory is not cached */
	uintptr_t granule; /* of address 0: the table has but those of the span */
	uint64_t *discarded; /* a bit for each granule: see cover_heap() in pin.c; under the lock */
	uint64_t ref; /* top bits of the refs of this domain's pins */
	uint32_t *hint; /* indexes of regions that may cover a page (pin.c) */
	uint32_t hint_shift; /* 64 - log2 of the buckets in use */
	const void *opener_counts; /* the opener's counters, by which its hits know that TODO is for them; NULL: nobody's are */

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
	uint32_t access_mask, relaxed; /* what the device has; HUGEPIN_RELAXED if all is to be registered so, which no access
					* anywhere else in the cache has */
	enum hp_hold hold;
	union {
		_Alignas(HP_SEAL_SIZE) struct hugepin_backend backend; /* sealed */
		char backend_page[HP_SEAL_SIZE];
	};
	void *ctx;
	size_t len_max; /* a multiple of the base page */
	uint64_t bytes_max; /* UINT64_MAX: no budget */
	uint32_t regs_max;

	_Alignas(64) struct hp_lock lock; /* held across the backend's calls */
	struct hp_region_list live, retired, dead; /* dead: retired, and known to be in no use */
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
	struct hp_hint hints[HP_HINTS_MAX];
	unsigned hints_count;
};

static inline bool hp_region_is_heap(const struct hp_region *r)
{
	return r->kind == HP_REGION_EXTENT || r->kind == HP_REGION_RUN;
}

/* Whether r, which was d's once, is so still, and in that state; under d's lock. Its index may serve another domain by now, which
 * writes the state last: so it is read first. */
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
	return (struct hp_granule *)(d->granule +
				     (addr >> (HP_PAGE_SHIFT - HP_GRANULE_SHIFT) & -(uintptr_t)sizeof(struct hp_granule)));
}

#define HP_DSTAT(d, name, n) \
	__atomic_store_n(&(d)->stats.name, (d)->stats.name + (uint64_t)(n), __ATOMIC_RELAXED)

/* ------------------------------------------------------------------ regions (region.c); domain's lock held */

extern struct hp_region *hp_regions; /* HP_REGIONS_MAX; NULL before the first domain */

/* Make the tables, once. 0 or -ENOMEM. */
int hp_regions_init(void);

/* Indexes below were in use. */
uint32_t hp_regions_used(void);

/* In the child of fork: there are none. */
void hp_regions_child(void);

/* Register [start, end) for `access`; not yet published. An UNCACHED one is RETIRED from the start, and waits for its pin to
 * be counted. Makes room for it within the budget; evict: by giving other regions back. gen: of the heap's extent, 0 for
 * foreign memory. 0 and *ret_, or -ENOBUFS, -ENOMEM, -ENXIO (foreign memory that nobody would see going away), or what the
 * backend said. */
int hp_region_register(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
		       uint64_t gen, bool evict, struct hp_region **ret_);

/* Let pins find it; told: without the lock. What lies inside it, and has the same access, was unpublished before. */
void hp_region_publish(struct hp_region *r, bool told);

/* A LIVE region of the heap was found to serve pins at addr, and its granule had not told of it. */
void hp_region_name(struct hp_region *r, uintptr_t addr);

/* Of the LIVE regions that cover addr, and have this access at least, the one that reaches farthest; or NULL. */
struct hp_region *hp_region_find(hugepin_domain *d, uintptr_t addr, unsigned access);

/* Call each() for the LIVE regions that overlap [start, end); it may take that region out, and no other. */
void hp_region_each(hugepin_domain *d, uintptr_t start, uintptr_t end, void (*each)(void *arg, struct hp_region *), void *arg);

/* Take regions out of the cache: no pin finds them any more. unpublish() any number of them, then settle() once: those in
 * use become RETIRED, for the last unpin, the others dead. */
void hp_region_unpublish(struct hp_region *r);
void hp_region_settle(hugepin_domain *d);

/* Take r out and deregister it, if it is in no use; else nothing has changed. */
bool hp_region_release(hugepin_domain *d, struct hp_region *r);

/* A pin of [start, end) in the heap is about to be counted by who has the lock. */
void hp_region_note(struct hp_region *r, uintptr_t start, uintptr_t end);

/* An extent is pinned; if it is known where, and all else of it has been free for `ticks`: take it out, and hold no more than what is
 * pinned. */
bool hp_region_hold_less(hugepin_domain *d, struct hp_region *r, uint32_t ticks);
/* Whether an extent in [start, end) is registered for pins that last, and holds but a part of its memory by now. */
bool hp_region_held_less(const hugepin_domain *d, uintptr_t start, uintptr_t end);

/* The next pin of it is a first use again. Returns whether it was used. */
bool hp_region_clear_used(hugepin_domain *d, struct hp_region *r);
bool hp_region_is_used(const hugepin_domain *d, const struct hp_region *r);

/* Deregister what is dead. Calls the backend, if this thread may; else leaves it to the opener. */
void hp_region_bury(hugepin_domain *d);

/* A RETIRED region may have lost its last pin: see, and bury it. */
void hp_region_last_unpin(hugepin_domain *d, struct hp_region *r);

/* Pins out of a region, or of the domain; exact only if no pins are being made. */
uint32_t hp_region_pins(const struct hp_region *r);
bool hp_domain_pinned(hugepin_domain *d);

/* This thread's, that no other thread ever had or will have: a pthread_t, or a TID, is given out again. Not 0. */
uint64_t hp_thread_number(void);

/* This thread may call the backend. */
bool hp_domain_may_register(const hugepin_domain *d);

/* A part of [start, end), in the heap, was discarded by the program, perhaps not yet in fact. */
bool hp_domain_discarded(const hugepin_domain *d, uintptr_t start, uintptr_t end);

/* Note what the queue says of memory that went away. Does not call the backend. */
void hp_domain_drain(hugepin_domain *d);

/* ------------------------------------------------------------------ domains (domain.c) */

/* Call each() for every open domain, without a lock; it must not block. */
void hp_domains_each(void (*each)(hugepin_domain *d, void *arg), void *arg);

/* The same, for each that is not being closed, which stays open meanwhile: it may block. No lock is held. */
void hp_domains_each_held(void (*each)(hugepin_domain *d, void *arg), void *arg);

/* For the service thread: take the domain's lock. False: it is in a call of a slow device. */
bool hp_domain_lock_soon(hugepin_domain *d);

/* Queue *range, a struct hp_range, for the domain's next drain: for hp_domains_each(). */
void hp_domain_push(hugepin_domain *d, void *range);

/* Have the service thread do what is waiting: queued ranges, the dead, hints, new extents. Never starts the thread, so may
 * be called anywhere. */
void hp_domains_wake(void);

/* The same, and starts it: no lock is held. */
void hp_domains_start(void);

/* Have the service thread look at records. Asked for already: nothing to do. */
extern struct hp_job hp_helper_job;
void hp_helper_wake(void);

/* This thread ends: the domains that only it may use may be closed by others. */
void hp_domains_thread_ends(void);

/* For backends. */
const struct hugepin_backend *hp_domain_backend(hugepin_domain *d, void **ret_ctx);
bool hp_domain_mine(const hugepin_domain *d); /* this process opened it, and has not closed it */
void hp_domain_lock(hugepin_domain *d);
void hp_domain_unlock(hugepin_domain *d);

/* Unmappings are announced by the interposed calls of libhugepin-malloc.so (unmapping.h). */
extern bool hp_sees_unmaps;

/* ------------------------------------------------------------------ pins (pin.c); domain's lock held */

/* Whether threads other than this one may be changing memory that nobody has announced: hits must ask. */
static inline bool hp_domain_asks(const hugepin_domain *d)
{
	return !__libc_single_threaded && (!hp_sees_unmaps || d->watch == HUGEPIN_WATCH_KERNEL);
}

/* A pin of the region was counted and did not come about. No lock is held. */
struct hp_counts;
void hp_count_back(struct hp_counts *counts, uint32_t index);

/* Register what hugepin_pin would for this range, without a pin. */
int hp_pin_ahead(hugepin_domain *d, const void *addr, size_t len, unsigned access);

/* Register the extents that were made since the last call, as far as they fit the budget. */
void hp_pin_new_extents(hugepin_domain *d);

/* This thread is inside a call of a backend that registers or deregisters. */
extern HP_TLS bool hp_registering;

#endif
