/*
 * The pin cache's state: domains, regions, and how a pin finds and counts a region without a lock.
 *
 * A region is one registration with a domain's backend. The regions of all domains are in one table, and a region is
 * known by its index there, from 1 up.
 *
 * Finding a region. For heap memory, a domain has a granule table with an entry for each hugepage of the heap's span.
 * The entry copies what a hit needs from one of the regions that cover the hugepage. For other memory, a lookup table
 * (lookup.h) leads from the hash of a page's address to indexes, and the hit then checks the region's own members.
 *
 * Exact regions. In a domain with HUGEPIN_REACH_EXACT, a region with remote access covers just the base pages of the
 * pins that it serves, so that a peer with its key reaches nothing else. No other pin finds the region. Pins find exact
 * regions by the lookup table, even those of heap memory. So regions in trees and granules have no remote access in
 * such a domain.
 *
 * Counting pins. Each thread has counters for each region (counts.h), whose sum over all threads is the number of pins
 * out. Counting takes no lock and shares no write.
 *	pin:	read tag and the rest; count; read `attention`, then tag again: if it changed, count back and take the
 *		slow path
 *	retire:	tag = 0 in the region and its granules; membarrier on every running thread; sum
 * Either the sum sees the count, or the pin sees that the tag is gone. This is an asymmetric Dekker, in which
 * membarrier(2) is the retirer's half of the fence. Once the tag is gone the sum only falls, and when it is 0 the
 * region can be deregistered.
 *
 * Held keys (hugepin_key.h) copy a hit's words, and check the life of the region in place of its tag. The life is a
 * number that no other registration ever has, in any domain or child process. It is set and cleared with the tag. Its
 * lowest bit is the `used` flag of pins by keys, which a thread sets by a compare and exchange, so that it cannot
 * revive a life that has ended.
 *
 * The watcher, a thread that must not wait for a domain's lock, reads the kernel's events (uffd.c). It raises BUSY in
 * every domain before it reads, since only the read lets the unmapping thread go on. Then it queues the ranges, which
 * raises PENDING, and lowers BUSY. PENDING is lowered when the tags of all queued ranges are gone. So if a pin began
 * after an unmap, sees neither BUSY nor PENDING, and then finds the tag, the unmap did not touch its region.
 *
 * While a thread is still inside munmap, another thread may already get the addresses although the event is not yet
 * read. From before the addresses are free until after the event is read, the kernel says that something is changing.
 * So a hit on foreign memory asks the kernel after it has counted, and before it reads `attention` and the tag. It then
 * sees at least one of four signs: the kernel's answer, BUSY, PENDING, or a missing tag. A hit need not ask if the
 * program has one thread, or if changes are announced before they happen (unmapping.h).
 *
 * Lock order: opening, domain, watchers of the heap, heap, table of regions, what is watched, queue. A thread has the
 * lock of one domain at a time. The watcher waits for no lock but a queue's (queue.h).
 */
#ifndef HP_REG_STATE_H
#define HP_REG_STATE_H

#include <bsd/sys/tree.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "alloc/hold.h"
#include "base/lock.h"
#include "base/probe.h"
#include "base/ranges.h"
#include "base/seal.h"
#include "hugepin.h"

#define HP_REGIONS_MAX ((uint32_t)1 << 18)
#define HP_RELAXED ((unsigned)HUGEPIN_RELAXED)
#define HP_ACCESS_ALL                                                                                                  \
	(HP_RELAXED | HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE | HUGEPIN_REMOTE_ATOMIC)
#define HP_ACCESS_REMOTE ((unsigned)(HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE | HUGEPIN_REMOTE_ATOMIC))
/* Bits beside the access of a pin, which no region has. */
#define HP_PIN_BITS ((unsigned)(HUGEPIN_PIN_UNCACHED | HUGEPIN_PIN_NO_EVICT))
#define HP_ACCESS_SETS 32u /* sets of access that a region may have, without HUGEPIN_RELAXED */
_Static_assert(HP_ACCESS_ALL == (HP_RELAXED | (HP_ACCESS_SETS - 1)), "");
#define HP_LOOKUP_BITS_MIN 8 /* log2 of the buckets of the lookup table (lookup.h) */
#define HP_LOOKUP_BITS_MAX 17
/* The buckets in use, 2^bits, as a mask for the distance in bytes from the first bucket's first word to another's. */
#define HP_LOOKUP_MASK(bits) (((UINT32_C(1) << (bits)) - 1) * 8)
#define HP_LOOKUP_WAYS 4 /* words of a bucket */
#define HP_LOOKUP_BYTES ((size_t)8 * HP_LOOKUP_WAYS << HP_LOOKUP_BITS_MAX)

/* Access to the words of regions and granules that hits read without a lock. A hit reads first the tag, then the rest,
 * then the tag again; writers have the domain's lock and write in the opposite order (region.c:name_region()). The
 * words are not _Atomic, since holders of the lock read them plainly. HP_READ pairs with HP_WRITE: a thread that sees a
 * word sees the words that were written before it. */
#define HP_READ(word) __atomic_load_n(&(word), __ATOMIC_ACQUIRE)
#define HP_WRITE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)
#define HP_PEEK(word) __atomic_load_n(&(word), __ATOMIC_RELAXED) /* relaxed: who uses it says why */

/* Set a flag that never becomes false again. It is not _Atomic, so that a hit can compare it in memory. relaxed: its
 * declaration says why. */
#define HP_SET_FLAG(flag) __atomic_store_n(&(flag), true, __ATOMIC_RELAXED)

/* The tag of a region that pins may find: a number that no other region had at this index, and the index. Other regions
 * have tag 0. */
#define HP_TAG(gen, index) ((uint64_t)(gen) << 32 | (index))
#define HP_TAG_INDEX(tag) ((uint32_t)(tag))

enum { HP_LENGTH_CLASSES = 64 };

/* A process may have so many domains. Each gets memory when it is opened, so this bounds tables of words alone. */
#define HP_DOMAINS_MAX ((uint32_t)1 << 16)

struct hp_granule {
	uint64_t tag, end;
	uint64_t keys; /* lkey and rkey, in the layout of a pin */
	uint32_t access; /* the access that a pin may ask for */
	/* used since an eviction or the helper last cleared this; relaxed: a missed use makes a region older than it
	 * is */
	uint32_t used;
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

	/* The following members are guarded by the domain's lock. */
	struct hugepin_reg reg;
	/* In domain.live (least recently used first, as far as is known), aside, unsettled, retired, uncached or
	 * dead. */
	TAILQ_ENTRY(hp_region) order;
	RB_ENTRY(hp_region) node; /* in domain.tree, domain.exact_tree or domain.waiting_tree */
	uint64_t number; /* of this registration: no other one has it */
	uint32_t gen;
	uint32_t made; /* pins made at this index before the region was registered; read without the lock for statistics */
	bool cut; /* ends before the range that was wanted, since it could not be longer */
	bool on_demand; /* pins no memory: the device follows the program's mappings */
	bool is_aside; /* in domain.aside */
	bool is_dmabuf; /* UNCACHED; its addresses are the device's, so no change of mappings is about it */
};

TAILQ_HEAD(hp_region_list, hp_region);
RB_HEAD(hp_region_tree, hp_region);
RB_HEAD(hp_length_tree, hp_region);

/*
 * A domain's word of attention. Each bit keeps pins or unpins from taking the path of hits. Only hp_attention_raise()
 * and hp_attention_lower() change the word.
 *
 *	bit      up: raised by; down: lowered by; acted on by; pairs with
 *	BUSY     up: uffd.c, before it reads events; down: uffd.c, when the ranges of these events are queued, or, where
 *	         it was left up because many domains are open, at the next pin (hp_uffd_heed())
 *	         pins: hp_pin_enter() waits until the events are queued; pairs with attention_of()
 *	PENDING  up: hp_gone_tell(), with a range; down: hp_gone_drain(), when no tag in the queued ranges is left
 *	         pins: hp_pin_enter() drains, and so does the service thread; pairs with attention_of(): if it is
 *	         lowered, the tags are gone
 *	TODO     up: hp_region_deregister_dead(), if only the opener may; down: the same, by the opener
 *	         the opener's pins: hp_pin_enter() deregisters; pairs with nothing: the domain's lock guards the list
 *	RETIRED  up: hp_region_settle() before the sum, hp_region_register() of an uncached region;
 *	         down: hp_region_settle(), hp_region_last_unpin(), when no such region is left
 *	         unpins: unpin_retired() checks whether it was the last; pairs with hp_counts_barrier(): an unpin
 *	         that the sum does not see sees the bit
 *	TRACED   up: opening; pins take the slow path, unpins call hp_trace()
 *	HELPED   up: opening; pins and unpins: record_use()
 *	ASK      up: opening; hits on foreign memory: pin_asked()
 */
enum {
	HP_BUSY = 1, /* events are being read */
	HP_PENDING = 2, /* ranges are queued in `gone` */
	HP_TODO = 4, /* the opener has work to do; other threads ignore this */
	HP_TRACED = 16, /* every pin is written to the trace */
	HP_PIN_SLOW = HP_BUSY | HP_PENDING | HP_TODO | HP_TRACED, /* a pin that sees one of these takes the slow path */
	HP_RETIRED = 8, /* there are retired regions: an unpin may be the last of its region */
	HP_HELPED = 32, /* the domain has a helper, which is told of pins (track.c) */
	/* An unpin that sees one of these has more to do than count. */
	HP_UNPIN_SLOW = HP_RETIRED | HP_HELPED | HP_TRACED,
	HP_ASK = 64, /* a hit on foreign memory asks the kernel whether something is changing (uffd.h) */
};

/* A hint, which the service thread carries out (hints.h): an announcement by hugepin_prefetch(), or a region that a
 * miss has registered on demand. */
struct hp_prefetch {
	const void *addr;
	size_t len;
	unsigned access;
	bool missed; /* bring in what is still registered of the range, but register nothing */
};
enum { HP_PREFETCHES_MAX = 64, HP_PARENT = -1 };

/* A request by hugepin_pin_try() (request.h). */
struct hp_pin_request {
	const void *addr;
	size_t len;
	unsigned access;
	bool begun; /* the service thread is registering for it */
	bool cancelled; /* its memory went away meanwhile */
	bool again; /* that, or what lay there before, went away since the request was begun */
	bool doubtful; /* the same, before that: is there memory? */
	hugepin_pinned_fn done;
	void *arg;
	uint64_t site, time; /* for the helper: where and when the program asked */
};
enum { HP_REQUESTS_MAX = 64 };

/* A registration that hugepin_register() makes ahead of the pin that asks for it (register.c), with its heap pages held
 * or its foreign memory watched. hp_region_register() takes it over. */
struct hp_ready {
	uintptr_t start, end;
	unsigned access; /* as hp_region_register() */
	uint32_t kind; /* enum hp_region_kind */
	uint64_t gen; /* as hp_region_register() */
	int err; /* -errno: the backend, or the heap, has refused it */
	bool cut; /* none could be longer, so a pin gets only this part of its range */
	bool taken; /* a region has taken it over, with its hold */
	uint64_t ns; /* the backend's time */
	struct hugepin_reg reg;
};
enum { HP_READY_MAX = 64 };

/* Whether r still waits for its pin. */
static inline bool hp_is_ready(const struct hp_ready *r)
{
	return !r->err && !r->taken;
}

/* The registrations made ahead while one thread has the domain's lock. */
struct hp_ready_set {
	unsigned count;
	struct hp_ready list[HP_READY_MAX];
};

/* A part of a dma-buf (hugepin_pin_dmabuf()). */
struct hp_dmabuf {
	int fd;
	uint64_t offset;
};

enum { HP_GONE_MAX = 64 };

/* That a domain has something in a range of memory (stakes.h), whose lock guards it. */
struct hp_stake {
	uintptr_t start, end;
	hugepin_domain *domain;
	uint64_t id; /* that no other entry ever has; 0: not listed */
	RB_ENTRY(hp_stake) node;
};

/* A range of the heap that the device refused, as it does while one of its pages has no access: see cover.c. */
struct hp_refused {
	uintptr_t start, end;
	uint64_t gen; /* of the extent */
	int err;
	uint32_t waits, left; /* so many pins do without it after the next refusal, and after the last one */
};
enum { HP_REFUSED_BITS = 6 };

/* A range of memory that went away. The thread that notices this queues the range in each domain (gone.c). A discard in
 * the queue is younger than each unmap there that overlaps it. */
struct hp_range {
	uintptr_t start, end;
	bool discarded; /* a discard, announced before it happens: the mapping stays, and its pages go later */
	bool late; /* a discard of which no event says when the pages have gone */
	bool widened; /* ranges were joined: only a part went away, or not all of it was a late discard */
	bool past; /* told when the addresses were free already, so other memory may lie there by now */
};

struct hp_gone {
	struct hp_range range[HP_GONE_MAX];
	unsigned count;
};

/* Functions of the lend of a domain. The pin cache calls them with the domain's lock, on any thread, even inside munmap
 * and malloc. So they must not call the pin cache, allocate or block, but may take locks of rank HP_LOCK_RANK_QUEUE.
 * region: the lower half of the ref of pins. */
struct hp_lend_hooks {
	/* Give the region's pins back, because its memory went away, has long been free, or is registered anew with
	 * more access. Called for every region with remote access that was ever pinned, whoever pinned it. */
	void (*wanted)(void *arg, uint32_t region);
	/* The region is deregistered and has no pins; its index may be another's next. Called for regions of which the
	 * lend has buckets (lent.h). */
	void (*dropped)(void *arg, uint32_t region);
	/* A pin of so many bytes, not one of the lend's, finds no room because all registrations are in use. */
	void (*crowded)(void *arg, size_t bytes);
};

struct hugepin_domain {
	/* Hits read these members. They are written when the domain is opened, except attention and lookup_mask. Held
	 * keys know the places of attention and ref (struct hugepin_key_domain). attention, relaxed: RETIRED is raised
	 * before hp_counts_barrier(); HELPED, TRACED and ASK stay. */
	_Alignas(64) _Atomic uint32_t attention; /* HP_BUSY ... */
	uint32_t access; /* the default access of pins */
	uint64_t ref; /* top bits of the refs of this domain's pins */
	uint32_t exact; /* a pin that asks for one of these gets an exact region: HP_ACCESS_REMOTE or 0 */
	/* relaxed: the lock among writers; the region's own words judge: find_by_lookup() */
	_Atomic uint32_t lookup_mask; /* the buckets in use: HP_LOOKUP_MASK() */
	uintptr_t span_base;
	size_t span_size; /* 0: the heap's memory is not cached */
	uintptr_t granule; /* where the granule of address 0 would be; the table has only those of the span */
	_Atomic uint64_t *lookup; /* indexes of regions that may cover a page (lookup.h) */
	/* The opener's counters. A hit compares them with its own to know whether TODO is for its thread. NULL: TODO is
	 * for no thread. */
	const void *_Atomic opener_counts; /* relaxed: only equality with the thread's own counters counts */

	/* threads that hold the domain open; guarded by the lock of opening, as is `closing` */
	_Atomic uint32_t holders; /* relaxed: the lock of domains; hp_futex_wait() has the kernel compare */
	bool closing;
	bool free; /* the place is in a list of places, by next_free */
	SLIST_ENTRY(hugepin_domain) next_free;
	pid_t pid; /* the process that opened the domain; HP_PARENT: an ancestor of this process; 0: closed */
	uint32_t number;
	bool opener_only, late, parallel;
	bool on_demand; /* what pins miss is registered on demand */
	uint32_t odp; /* HUGEPIN_ODP_*: when on-demand memory is brought in; DEFAULT: nothing is registered on demand */
	bool own_clock; /* the backend has a clock */
	uint32_t watch; /* HUGEPIN_WATCH_* */
	bool watched; /* the cache watches foreign memory, by the kernel's events or by announcements; not under ODP */
	uint64_t opener; /* the thread that opened the domain, by hp_thread_number() */
	/* Of a domain that only its opener may use, until that thread ends; guarded by the lock of opening. */
	LIST_ENTRY(hugepin_domain) of_opener;
	bool is_of_opener;
	_Atomic bool opener_ended; /* relaxed: hugepin_domain_open() returns the domain after it */
	uint32_t policy; /* HUGEPIN_POLICY_*, never DEFAULT */
	uint32_t access_mask; /* the access bits that the device supports */
	uint32_t
		relaxed; /* HUGEPIN_RELAXED if every registration gets it, else 0; no other value in the cache has it */
	enum hp_hold hold;
	struct hugepin_backend *backend; /* sealed, in a base page of its own */
	const char *backend_name; /* for hugepin top */
	void *ctx;
	size_t len_max; /* a multiple of the base page */
	uint64_t bytes_max; /* the lower of the attribute and the backend's limit (domain.c); UINT64_MAX: no budget */
	bool limited; /* it is the backend's limit */
	uint32_t regs_max;

	_Alignas(64) struct hp_lock lock; /* held across the backend's calls */
	struct hp_region_list live;
	struct hp_region_list aside; /* LIVE regions that the clock found pinned (evict.c) */
	struct hp_region_list unsettled; /* regions that were LIVE, until the pins are summed (hp_region_settle()) */
	struct hp_region_list retired; /* regions that were LIVE and wait for their last unpin */
	/* Regions made for one pin, which no other pin finds. They are RETIRED, too, and wait for the end of that
	 * pin. */
	struct hp_region_list uncached;
	struct hp_region_list dead; /* regions from `retired` or `uncached` that are no longer in use */
	uint64_t gone_seen; /* ranges that went away before the last drain, by number (stakes.h) */
	struct hp_region_tree tree[HP_ACCESS_SETS]; /* LIVE regions but exact ones, by access */
	/* LIVE exact regions, and those of `retired` and `uncached`, by the base 2 logarithm of their length in bytes.
	 * They may lie inside each other, so their ends are not in the order of their starts. But a region of a class
	 * that overlaps an address starts less than twice the class's length below it. */
	struct hp_length_tree exact_tree[HP_LENGTH_CLASSES], waiting_tree[HP_LENGTH_CLASSES];
	uint32_t access_least; /* the access that every registration in the cache has */
	uint32_t places; /* in the table of regions; guarded by the table's lock */
	uint64_t extent_bytes; /* bytes of all regions that pin whole extents */
	uintptr_t round_mask; /* foreign memory is rounded out to blocks: their length less one; 0: to base pages */
	uint64_t rounded_bytes; /* by which rounding made pinned regions longer */
	uint32_t exact_count; /* exact regions */
	uint64_t extent_gen; /* number of the youngest extent that hp_cover_new_extents() has seen */
	uint64_t deregistered_at_ns;
	/* What the backend's lingering() last said. relaxed: numbers */
	_Atomic uint64_t lingering_bytes;
	_Atomic uint32_t lingering_regs;
	/* The least that it has said since lingering_since_ns, and since the step before: so much is not let go of. */
	uint32_t lingering_least, lingering_stale;
	uint64_t lingering_since_ns;
	_Atomic bool lingering_wanted; /* a pin waits for that; relaxed: it comes back by itself, too */
	struct hp_helper *helper; /* or NULL */
	/* The program's callback before a registration for remote access (expire_local: any) ends, or NULL. */
	bool expire_local;
	void (*expire)(void *arg, const struct hugepin_expiry *);
	void *expire_arg;
	struct hp_refused refused[1 << HP_REFUSED_BITS]; /* by a hash of the range */
	struct hp_region *turning; /* is registered a second time, so it is not evicted; or NULL */
	bool hinted; /* a miss has queued a hint, of which nobody has told the service thread yet */
	TAILQ_HEAD(, hp_region_notes) wanted; /* regions whose pins are wanted back, of which nobody was told yet */
	const struct hp_dmabuf *dmabuf; /* what the holder of the lock registers, or NULL: memory at its address */
	struct hp_ready_set *ready; /* of the holder of the lock, or NULL */
	const struct hp_lend_hooks *lend_hooks; /* the domain's lend, which is in a higher layer (lent.h), or NULL */
	void *lend;
	/* number of pins that wait for the lock; relaxed: the lock is let go of a little later */
	_Atomic uint32_t waiting;
	struct hugepin_domain_stats stats;
	_Atomic uint32_t hits_moved; /* see hp_move_hits() */

	/* Guarded by the lock of stakes.h. listening: hints and requests, because of which `everywhere` is listed. */
	struct hp_stake everywhere;
	uint32_t listening;
	uint64_t found; /* by this walk */
	/* Guarded by a lock of uffd.c. */
	LIST_ENTRY(hugepin_domain) trusts;
	bool is_trusting;

	struct hp_lock queue_lock; /* a leaf lock (queue.h) */
	struct hp_gone gone; /* ranges whose memory went away */
	struct hp_prefetch prefetches[HP_PREFETCHES_MAX];
	unsigned prefetches_count;
	struct hp_pin_request requests[HP_REQUESTS_MAX]; /* in the order in which they came */
	unsigned requests_count;
};

_Static_assert(offsetof(struct hugepin_domain, attention) == offsetof(struct hugepin_key_domain, attention) &&
		       offsetof(struct hugepin_domain, ref) == offsetof(struct hugepin_key_domain, ref),
	       "programs have this layout compiled in");

/* seq_cst: a thread that sees the bit sees what was written before it, and hp_counts_barrier() comes after it; pairs
 * with attention_of() and hugepin_unpin() in pin.c. */
static inline void hp_attention_raise(hugepin_domain *d, uint32_t bits)
{
	atomic_fetch_or_explicit(&d->attention, bits, memory_order_seq_cst);
}

/* seq_cst: a thread that sees PENDING lowered sees that the tags of the queued ranges are gone; pairs with
 * attention_of() in pin.c. */
static inline void hp_attention_lower(hugepin_domain *d, uint32_t bits)
{
	atomic_fetch_and_explicit(&d->attention, ~bits, memory_order_seq_cst);
}

/* Whether a bit is raised; not for the path of hits. seq_cst: pairs with hp_attention_raise(). */
static inline bool hp_attention_is(const hugepin_domain *d, uint32_t bit)
{
	return atomic_load_explicit(&d->attention, memory_order_seq_cst) & bit;
}

/* Whether a pin for this access is served by an exact region. */
static inline bool hp_is_exact(const hugepin_domain *d, unsigned access)
{
	return access & d->exact;
}

static inline bool hp_region_is_heap(const struct hp_region *r)
{
	return r->kind == HP_REGION_EXTENT || r->kind == HP_REGION_RUN;
}

/* Whether r still belongs to d and is in that state. Call with d's lock. Read the state first, because by now the index
 * may belong to another domain, which writes the state last. */
static inline bool hp_region_is(const struct hp_region *r, const hugepin_domain *d, enum hp_region_state state)
{
	return HP_READ(r->state) == (uint32_t)state && HP_READ(r->domain) == d;
}

/* Whether addr is in the heap's span, and d caches heap memory. */
static inline bool hp_in_span(const hugepin_domain *d, uintptr_t addr)
{
	return addr - d->span_base < d->span_size;
}

/* The granule of an address in the span. */
static inline struct hp_granule *hp_granule_at(const hugepin_domain *d, uintptr_t addr)
{
	return (struct hp_granule *)(d->granule + (addr >> (HP_PAGE_SHIFT - HP_GRANULE_SHIFT) &
						   -(uintptr_t)sizeof(struct hp_granule)));
}

/* stats.hits has the pins of registrations that have ended, less those that were undone or had to register. Its reader
 * adds the pins of the others, by the counts of threads (hp_region.made), because a hit counts nowhere else. So it may
 * be below 0 until then. release: who sees the sum sees what was done before; pairs with hits_of(). */
static inline void hp_add_hits(hugepin_domain *d, uint64_t n)
{
	__atomic_fetch_add(&d->stats.hits, n, __ATOMIC_RELEASE);
}

/* Before and after pins move from a registration that ends to stats.hits, and before one more is there. seq_cst: who
 * sees the same even number before and after has seen none of this; pairs with hits_of(). */
static inline void hp_move_hits(hugepin_domain *d)
{
	atomic_fetch_add_explicit(&d->hits_moved, 1, memory_order_seq_cst);
}

/* Access to a domain's statistics. The struct is public, so its members cannot be _Atomic. HP_DSTAT counts under the
 * domain's lock; relaxed: numbers. */
#define HP_DSTAT_GET(d, name) __atomic_load_n(&(d)->stats.name, __ATOMIC_RELAXED)
#define HP_DSTAT(d, name, n) __atomic_store_n(&(d)->stats.name, (d)->stats.name + (uint64_t)(n), __ATOMIC_RELAXED)

#endif
