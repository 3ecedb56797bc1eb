/*
 * Pins: hits and misses.
 *
 * A hit takes no lock, makes no system call and shares no write (state.h has the protocol). A miss takes the domain's
 * lock, does the queued work, looks again, and registers (cover.c).
 *
 * A lookup (hugepin_sg_key) pins the region that is registered at an address, whatever its length. It never registers.
 */
#define HUGEPIN_KEY_INLINE /* have hugepin_key_pin() and hugepin_key_unpin() here as functions that others call */
#include "reg/pin.h"

#include <errno.h>
#include <string.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/sys.h"
#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/helper.h"
#include "reg/hints.h"
#include "reg/key.h"
#include "reg/lookup.h"
#include "reg/region.h"
#include "reg/request.h"
#include "reg/serve.h"
#include "reg/site.h"
#include "reg/trace.h"
#include "reg/uffd.h"

bool hp_keys_asked;

/* Whether another thread may be changing memory without an announcement. Then hits must ask the kernel. */
static inline bool must_ask(const hugepin_domain *d)
{
	return !__libc_single_threaded && (!hp_sees_unmaps || d->watch == HUGEPIN_WATCH_KERNEL);
}

/* ------------------------------------------------------------------ hits */

static inline uint64_t ref_of(const hugepin_domain *d, uint64_t tag)
{
	return d->ref | HP_TAG_INDEX(tag);
}

/* Fill in a pin, both keys in one store. */
static inline void fill(struct hugepin_pin *pin, uintptr_t base, size_t len, uint64_t keys, uint64_t ref)
{
	_Static_assert(
		sizeof *pin == 32 && offsetof(struct hugepin_pin, rkey) == offsetof(struct hugepin_pin, lkey) + 4, "");
	pin->base = base;
	pin->len = len;
	memcpy(&pin->lkey, &keys, sizeof keys);
	pin->ref = ref;
}

static int pin_slow(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* acquire: a reader that sees PENDING lowered also sees that the tags of the queued ranges are gone; pairs with
 * hp_gone_drain(). */
static inline uint32_t attention_of(const hugepin_domain *d, uint32_t bits)
{
	return atomic_load_explicit(&d->attention, memory_order_acquire) & bits;
}

/* The attention bits for the thread with these counters: TODO counts only for the opener. */
static inline uint32_t attention_for(const hugepin_domain *d, const struct hp_counts *counts, uint32_t bits)
{
	uint32_t seen = attention_of(d, bits);

	if (HP_LIKELY(!seen))
		return 0;
	return HP_UNLIKELY(seen & HP_TODO) && atomic_load_explicit(&d->opener_counts, memory_order_relaxed) != counts
		       ? seen & ~(uint32_t)HP_TODO
		       : seen;
}

static HP_COLD int unpin_retired(hugepin_domain *d, uint32_t index)
{
	struct hp_region *r = &hp_regions[index];

	if (HP_READ(r->state) != HP_REGION_RETIRED || d->pid != (pid_t)hp_sys(SYS_getpid))
		return 0;
	hp_lock(&d->lock);
	hp_region_last_unpin(d, r);
	hp_unlock(&d->lock);
	return 0;
}

/* Push a record. Wake the helper, unless a run is already asked for. Wake it for a dropped record, too: no later record
 * may come. */
static inline void record_use(hugepin_domain *d, struct hp_counts *counts, enum hp_record_kind kind, uint32_t index,
			      uint64_t site)
{
	struct hp_records *q = hp_counts_records(counts);

	if (HP_LIKELY(hp_record_room(q, d->number)))
		hp_record_push(q, HP_LIKELY(!d->own_clock) ? hp_record_time() : hp_helper_time(d),
			       HP_RECORD(kind, index), site);
	hp_barrier_often(); /* pairs with the barrier in serve.c:help_all() */
	if (HP_UNLIKELY(!atomic_load_explicit(&hp_serve_helper_job.asked, memory_order_relaxed)))
		hp_serve_wake_helper();
}

/* SITE() is the place from which the program called the public function. The function that uses SITE() must have been
 * reached by tail calls alone, so that its return address is in the program. clang and gcc 15 are forced to make a tail
 * call by TAIL. Older gcc makes one with -foptimize-sibling-calls (Makefile). tools/check-exports checks the calls of
 * each function that a TAIL names. */
#if __has_attribute(musttail)
#define TAIL __attribute__((musttail))
#else
#define TAIL
#endif
/* gcc drops a result that is always 0. Then the caller has to make the 0 itself, so its call cannot be a tail call. */
#if __has_attribute(noipa)
#define KEEPS_RESULT __attribute__((noipa))
#else
#define KEEPS_RESULT
#endif
#define SITE(d) call_site(d, __builtin_frame_address(0), __builtin_return_address(0))

static uint64_t call_site(hugepin_domain *d, void *frame, void *return_address)
{
	bool alone = false;
	uint64_t site = hp_site(frame, return_address, &alone);

	if (alone)
		HP_DSTAT_COUNT(d, sites_short, 1);
	return site | 1;
}

/* Set the region's `used` flag, at the first hit after it was cleared. Returns whether to tell the helper. */
static inline bool mark_used(hugepin_domain *d, const void *addr, const struct hugepin_pin *pin)
{
	struct hp_region *r = &hp_regions[(uint32_t)pin->ref];

	if (hp_in_span(d, (uintptr_t)addr) && !hp_region_is_exact(r))
		HP_WRITE(hp_granule_at(d, (uintptr_t)addr)->used, 1);
	else
		HP_WRITE(r->used, 1);
	return atomic_load_explicit(&d->attention, memory_order_relaxed) & HP_HELPED;
}

/* Under hybrid the region of a first hit may be registered on demand, and not be in memory. */
static HP_COLD void bring_in(hugepin_domain *d, struct hp_region *r)
{
	hp_pin_enter(d);
	hp_helper_first_use(d, r, false);
	hp_pin_leave(d);
}

/* As mark_used(), where the caller may wait for the lock. */
static inline bool begin_use(hugepin_domain *d, const void *addr, const struct hugepin_pin *pin)
{
	struct hp_region *r = &hp_regions[(uint32_t)pin->ref];
	bool told = mark_used(d, addr, pin);

	if (HP_UNLIKELY(told && r->on_demand))
		bring_in(d, r);
	return told;
}

/* The end of hugepin_pin, after a first hit. It has the same arguments, since a tail call needs a function of the same
 * type. */
static HP_COLD KEEPS_RESULT int first_use(hugepin_domain *d, const void *addr, size_t len, unsigned access,
					  struct hugepin_pin *pin)
{
	(void)len, (void)access;
	if (begin_use(d, addr, pin))
		record_use(d, hp_counts_self, HP_RECORD_START, (uint32_t)pin->ref, SITE(d));
	return 0;
}

/* The end of hugepin_sg_key, after a first hit. */
static HP_COLD KEEPS_RESULT int first_key(void *d, const void *addr, size_t len, unsigned access,
					  struct hugepin_pin *pin)
{
	(void)len, (void)access;
	if (begin_use(d, addr, pin))
		record_use(d, hp_counts_self, HP_RECORD_START, (uint32_t)pin->ref, SITE(d));
	return 0;
}

/* The region may have been retired meanwhile by a thread that saw this pin counted. Then this is the last unpin. By now
 * the index may belong to another region, of another domain. */
HP_COLD void hp_count_back(struct hp_counts *counts, uint32_t index)
{
	hugepin_domain *d;

	hp_count(&counts[index].unpins);
	atomic_fetch_add_explicit(&hp_counts_undone, 1, memory_order_relaxed);
	hp_barrier_often(); /* pairs with hp_counts_barrier() of a thread that retires the region */
	d = HP_READ(hp_regions[index].domain);
	if (d && atomic_load_explicit(&d->attention, memory_order_relaxed) & HP_RETIRED)
		unpin_retired(d, index);
}

/* The result for a region that was counted, but of which only look_again() can tell whether it is a hit. The index is
 * part of the result, not an output: a variable whose address is passed on would keep callers from ending in a tail
 * call. A hit itself calls nothing that it returns from, so it has no stack frame. */
#define AGAIN(index) (-(int)HP_REGIONS_MAX - (int)(index))
#define IS_AGAIN(hit) ((hit) < -(int)HP_REGIONS_MAX)
#define INDEX_AGAIN(hit) ((uint32_t)-(hit) - HP_REGIONS_MAX)

/* The base page in hits. x86-64 has one size, so a constant, which takes no instructions; where a test has another size,
 * pins by exact regions are no hits there. */
#if defined __x86_64__
#define HIT_PAGE ((uintptr_t)4096)
#else
#define HIT_PAGE hp_base_page
#endif

/* Whether r serves a pin. exact: the pin must get a region of just its own pages, with just its own access (state.h). */
static inline __attribute__((always_inline)) bool serves(const struct hp_region *r, uintptr_t addr, size_t len,
							 unsigned access, bool exact)
{
	uintptr_t start = HP_READ(r->start), end;

	if (exact ? start != (addr & -HIT_PAGE) || HP_READ(r->access) != access :
		    addr < start || access & ~HP_READ(r->access))
		return false;
	end = HP_READ(r->end);
	return addr < end && len && len <= end - addr && (!exact || end == hp_round_up(addr + len, HIT_PAGE));
}

/* Where pin_by_lookup() looks. */
enum { BY_FIRST, /* the first word of the bucket */
       BY_ALL, /* all of them */
       BY_EXACT /* all of them, for an exact region */
};

/* Pin memory by the lookup table: foreign memory, or by an exact region. 0: a hit. 1: a hit, and its first use must be
 * told. -ENOENT: no hit. AGAIN(): counted, and look_again() decides. later: the caller asks the kernel once for this pin
 * and others together (all_stand). What is read of the region is compared at once: kept, it would need registers that
 * have to be saved. */
static inline __attribute__((always_inline)) int pin_by_lookup(hugepin_domain *d, uint64_t hash, uintptr_t addr,
							       size_t len, unsigned access, struct hugepin_pin *ret_,
							       bool later, int by)
{
	uint64_t word = hp_lookup_word(hp_lookup_bucket(d, hash), hp_lookup_check(hash), by == BY_FIRST), tag;
	uint32_t bits = later ? HP_PIN_SLOW : HP_PIN_SLOW | HP_ASK, seen;
	struct hp_region *r = &hp_regions[hp_lookup_index(word)];
	struct hp_counts *counts;

	tag = HP_READ(r->tag); /* 0, too, if there is no word */
	if (HP_UNLIKELY(!tag || HP_READ(r->domain) != d || (uint32_t)HP_READ(r->keys) != hp_lookup_extra(word) ||
			!serves(r, addr, len, access, by == BY_EXACT) || !(counts = hp_counts_self)))
		return -ENOENT;
	hp_count(&counts[HP_TAG_INDEX(tag)].pins);
	hp_barrier_often(); /* pairs with hp_counts_barrier() of a thread that retires the region */
	seen = attention_of(d, bits);
	if (HP_UNLIKELY((seen && (seen != HP_ASK || must_ask(d))) || HP_READ(r->tag) != tag))
		return AGAIN(HP_TAG_INDEX(tag));
	ret_->base = addr;
	ret_->len = len;
	ret_->lkey = hp_lookup_extra(word); /* a thread that waits for it need not wait for the region's line */
	ret_->rkey = (uint32_t)(HP_READ(r->keys) >> 32);
	ret_->ref = ref_of(d, tag);
	return !HP_PEEK(r->used);
}

/* Pin heap memory by the granule table. counts: this thread's. Returns as pin_by_lookup(). */
static inline __attribute__((always_inline)) int pin_by_granule(hugepin_domain *d, uintptr_t addr, size_t len,
								unsigned access, struct hugepin_pin *ret_,
								struct hp_counts *counts)
{
	struct hp_granule *e = hp_granule_at(d, addr);
	uint64_t tag = HP_READ(e->tag), keys;

	/* The region that a granule names covers addr, so only its end is compared. */
	if (HP_UNLIKELY(!tag || !len || len > HP_READ(e->end) - addr || access & ~HP_READ(e->access) || !counts))
		return -ENOENT;
	hp_count(&counts[HP_TAG_INDEX(tag)].pins);
	hp_barrier_often(); /* pairs with hp_counts_barrier() of a thread that retires the region */
	/* Take the index of the tag anew below, and read the keys no earlier than here: kept until then, either would need
	 * a register that has to be saved. */
	__asm__("" : "+r"(tag));
	keys = HP_READ(e->keys);
	if (HP_UNLIKELY(attention_of(d, HP_PIN_SLOW) || HP_READ(e->tag) != tag))
		return AGAIN(HP_TAG_INDEX(tag));
	fill(ret_, addr, len, keys, ref_of(d, tag));
	return !HP_PEEK(e->used);
}

/* Find out whether a region that was counted is a hit: 0 or 1, as pin_by_lookup(), or -ENOENT, and it is counted no
 * more. Since it is counted, the right region cannot be replaced by another. Ask the kernel first, then look at the word
 * of attention: if the kernel says that a change is done, its range is queued or is being queued. Nobody but the heap
 * takes the heap's memory away, and that asks no kernel. ask: whether to ask the kernel here. */
static HP_COLD int look_again(hugepin_domain *d, uint32_t index, uintptr_t addr, size_t len, unsigned access,
			      struct hugepin_pin *ret_, bool ask)
{
	bool exact = hp_is_exact(d, access);
	struct hp_region *r = &hp_regions[index];
	uint64_t tag = HP_READ(r->tag), keys = HP_READ(r->keys);

	ask = ask && !hp_in_span(d, addr) && attention_of(d, HP_ASK) && must_ask(d);
	if (HP_TAG_INDEX(tag) == index && HP_READ(r->domain) == d &&
	    serves(r, addr, len, access | (exact ? d->access_least : 0), exact) &&
	    (!ask || hp_uffd_ask() == HP_QUIET) && !attention_for(d, hp_counts_self, HP_PIN_SLOW) &&
	    HP_READ(r->tag) == tag) {
		fill(ret_, addr, len, keys, ref_of(d, tag));
		return !HP_PEEK(r->used);
	}
	hp_count_back(hp_counts_self, index);
	return -ENOENT;
}

/* The end of hugepin_pin after AGAIN(). The index is in the upper bits of `access`, since a tail call needs a function
 * of the same type. */
#define INDEX_SHIFT 12
_Static_assert(HP_REGIONS_MAX <= 1u << (32 - INDEX_SHIFT) && HUGEPIN_PREFETCH_WAIT < 1 << INDEX_SHIFT,
	       "both share a word");
static __attribute__((noinline)) int pin_again(hugepin_domain *d, const void *addr, size_t len,
					       unsigned access_and_index, struct hugepin_pin *ret_)
{
	unsigned access = access_and_index & ((1u << INDEX_SHIFT) - 1);
	int hit = look_again(d, access_and_index >> INDEX_SHIFT, (uintptr_t)addr, len, access, ret_, true);

	if (HP_LIKELY(!hit))
		return 0;
	if (hit > 0)
		TAIL return first_use(d, addr, len, access, ret_);
	TAIL return pin_slow(d, addr, len, access, ret_);
}

/* Pin with remote access where it must open no other page: heap memory, too, by a region of its own. Nobody but the
 * heap takes heap memory away, and the heap asks no kernel: only foreign memory may have to be asked for. */
static inline __attribute__((always_inline)) int pin_by_exact(hugepin_domain *d, uintptr_t addr, size_t len,
							      unsigned access, struct hugepin_pin *ret_, bool later)
{
	uint64_t hash;

	access |= d->access_least;
	hash = hp_lookup_exact(addr & -HIT_PAGE, hp_round_up(addr + len, HIT_PAGE), access);
	return pin_by_lookup(d, hash, addr, len, access, ret_, later || hp_in_span(d, addr), BY_EXACT);
}

static __attribute__((noinline)) int pin_exact(hugepin_domain *d, const void *addr, size_t len, unsigned access,
					       struct hugepin_pin *ret_)
{
	int hit = pin_by_exact(d, (uintptr_t)addr, len, access, ret_, false);

	if (HP_LIKELY(!hit))
		return 0;
	if (hit > 0)
		TAIL return first_use(d, addr, len, access, ret_);
	if (IS_AGAIN(hit))
		TAIL return pin_again(d, addr, len, access | INDEX_AGAIN(hit) << INDEX_SHIFT, ret_);
	TAIL return pin_slow(d, addr, len, access, ret_);
}

/* Foreign memory whose page does not lead to its region by the first word: by another one, or by its hugepage. */
static __attribute__((noinline)) int pin_foreign_otherwise(hugepin_domain *d, const void *addr, size_t len,
							   unsigned access, struct hugepin_pin *ret_)
{
	int hit = pin_by_lookup(d, hp_lookup_hugepage((uintptr_t)addr), (uintptr_t)addr, len, access, ret_, false, BY_ALL);

	if (hit == -ENOENT)
		hit = pin_by_lookup(d, hp_lookup_page((uintptr_t)addr), (uintptr_t)addr, len, access, ret_, false, BY_ALL);
	if (HP_LIKELY(!hit))
		return 0;
	if (hit > 0)
		TAIL return first_use(d, addr, len, access, ret_);
	if (IS_AGAIN(hit))
		TAIL return pin_again(d, addr, len, access | INDEX_AGAIN(hit) << INDEX_SHIFT, ret_);
	TAIL return pin_slow(d, addr, len, access, ret_);
}

static __attribute__((noinline)) int pin_foreign(hugepin_domain *d, const void *addr, size_t len, unsigned access,
						 struct hugepin_pin *ret_)
{
	int hit;

	if (HP_UNLIKELY(hp_is_exact(d, access)))
		TAIL return pin_exact(d, addr, len, access, ret_);
	hit = pin_by_lookup(d, hp_lookup_page((uintptr_t)addr), (uintptr_t)addr, len, access, ret_, false, BY_FIRST);
	if (HP_LIKELY(!hit))
		return 0;
	if (hit > 0)
		TAIL return first_use(d, addr, len, access, ret_);
	if (IS_AGAIN(hit))
		TAIL return pin_again(d, addr, len, access | INDEX_AGAIN(hit) << INDEX_SHIFT, ret_);
	TAIL return pin_foreign_otherwise(d, addr, len, access, ret_);
}

/* The access that a caller asks for. 0 means the domain's default. */
static inline unsigned wanted_access(const hugepin_domain *d, unsigned access)
{
	access &= ~HP_RELAXED;
	return access ? access : d->access;
}

/* Heap memory that no granule has for this access. No granule has remote access. */
static __attribute__((noinline)) int pin_unnamed(hugepin_domain *d, const void *addr, size_t len, unsigned access,
						 struct hugepin_pin *ret_)
{
	if (hp_is_exact(d, access))
		TAIL return pin_exact(d, addr, len, access, ret_);
	TAIL return pin_slow(d, addr, len, access, ret_);
}

int hugepin_pin(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	int hit;

	access = wanted_access(d, access);
	if (HP_UNLIKELY(!hp_in_span(d, (uintptr_t)addr)))
		TAIL return pin_foreign(d, addr, len, access, ret_);
	hit = pin_by_granule(d, (uintptr_t)addr, len, access, ret_, hp_counts_self);
	if (HP_LIKELY(!hit))
		return 0;
	if (hit > 0)
		TAIL return first_use(d, addr, len, access, ret_);
	if (IS_AGAIN(hit))
		TAIL return pin_again(d, addr, len, access | INDEX_AGAIN(hit) << INDEX_SHIFT, ret_);
	TAIL return pin_unnamed(d, addr, len, access, ret_);
}

/* Look for a region that covers the range, without asking the kernel. 0: a hit. 1: a hit, and its first use must be
 * told. -ENOENT: no hit. */
static inline __attribute__((always_inline)) int find_later(hugepin_domain *d, uintptr_t addr, size_t len,
							    unsigned access, struct hugepin_pin *ret_)
{
	int hit = -ENOENT;

	if (hp_is_exact(d, access))
		hit = pin_by_exact(d, addr, len, access, ret_, true);
	else if (hp_in_span(d, addr))
		hit = pin_by_granule(d, addr, len, access, ret_, hp_counts_self);
	else if ((hit = pin_by_lookup(d, hp_lookup_page(addr), addr, len, access, ret_, true, BY_ALL)) == -ENOENT)
		hit = pin_by_lookup(d, hp_lookup_hugepage(addr), addr, len, access, ret_, true, BY_ALL);
	return IS_AGAIN(hit) ? look_again(d, INDEX_AGAIN(hit), addr, len, access, ret_, false) : hit;
}

/* ------------------------------------------------------------------ hits or nothing; hugepin_pin_try */

static int try_slow(hugepin_domain *d, const void *addr, size_t len, unsigned access, hugepin_pinned_fn done, void *arg,
		    struct hugepin_pin *ret_);
static bool all_stand(hugepin_domain *d, const struct hugepin_pin *pins, int n);

/* The end of hugepin_pin_try, after a first hit: as first_use(). */
static HP_COLD KEEPS_RESULT int try_first(hugepin_domain *d, const void *addr, size_t len, unsigned access,
					  hugepin_pinned_fn done, void *arg, struct hugepin_pin *pin)
{
	(void)len, (void)access, (void)done, (void)arg;
	if (mark_used(d, addr, pin))
		record_use(d, hp_counts_self, HP_RECORD_START, (uint32_t)pin->ref, SITE(d));
	return 0;
}

/* Whether a hit on foreign memory stands. If not, the pin is given back. */
static __attribute__((noinline)) bool try_stands(hugepin_domain *d, struct hugepin_pin *pin)
{
	if (all_stand(d, pin, 1))
		return true;
	hugepin_unpin(d, pin);
	return false;
}

/* Hits that neither a granule nor a page's address finds. The heap's memory goes with an announcement: the kernel need
 * not be asked. */
static __attribute__((noinline)) int try_otherwise(hugepin_domain *d, const void *addr, size_t len, unsigned access,
						   hugepin_pinned_fn done, void *arg, struct hugepin_pin *ret_)
{
	int hit = find_later(d, (uintptr_t)addr, len, access, ret_);

	if (HP_UNLIKELY(hit < 0 || (attention_of(d, HP_ASK) && !try_stands(d, ret_))))
		TAIL return try_slow(d, addr, len, access, done, arg, ret_);
	if (HP_UNLIKELY(hit))
		TAIL return try_first(d, addr, len, access, done, arg, ret_);
	return 0;
}

static __attribute__((noinline)) int try_foreign(hugepin_domain *d, const void *addr, size_t len, unsigned access,
						 hugepin_pinned_fn done, void *arg, struct hugepin_pin *ret_)
{
	uint64_t hash = hp_lookup_page((uintptr_t)addr);
	int hit = -ENOENT;

	if (HP_LIKELY(!hp_is_exact(d, access)))
		hit = pin_by_lookup(d, hash, (uintptr_t)addr, len, access, ret_, true, BY_ALL);
	if (IS_AGAIN(hit))
		hit = look_again(d, INDEX_AGAIN(hit), (uintptr_t)addr, len, access, ret_, false);
	if (HP_UNLIKELY(hit < 0))
		TAIL return try_otherwise(d, addr, len, access, done, arg, ret_);
	if (HP_UNLIKELY(attention_of(d, HP_ASK)) && !try_stands(d, ret_))
		TAIL return try_slow(d, addr, len, access, done, arg, ret_);
	if (HP_UNLIKELY(hit))
		TAIL return try_first(d, addr, len, access, done, arg, ret_);
	return 0;
}

int hugepin_pin_try(hugepin_domain *d, const void *addr, size_t len, unsigned access, hugepin_pinned_fn done, void *arg,
		    struct hugepin_pin *ret_)
{
	int hit;

	access = wanted_access(d, access);
	if (HP_UNLIKELY(!hp_in_span(d, (uintptr_t)addr)))
		TAIL return try_foreign(d, addr, len, access, done, arg, ret_);
	hit = pin_by_granule(d, (uintptr_t)addr, len, access, ret_, hp_counts_self);
	if (IS_AGAIN(hit))
		hit = look_again(d, INDEX_AGAIN(hit), (uintptr_t)addr, len, access, ret_, false);
	if (HP_LIKELY(!hit))
		return 0;
	if (hit > 0)
		TAIL return try_first(d, addr, len, access, done, arg, ret_);
	if (hp_is_exact(d, access)) /* no granule has remote access */
		TAIL return try_otherwise(d, addr, len, access, done, arg, ret_);
	TAIL return try_slow(d, addr, len, access, done, arg, ret_);
}

/* ------------------------------------------------------------------ lookups: hugepin_sg_key */

static int key_slow(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* Look for a region that covers the first byte. Returns as pin_by_lookup. An empty range, or one that wraps, is
 * refused: the sum is not above addr. */
static inline __attribute__((always_inline)) int find_key(hugepin_domain *d, uintptr_t addr, size_t len,
							  unsigned access, struct hugepin_pin *ret_, bool later)
{
	const struct hp_region *r;
	int hit = -ENOENT;

	if (HP_LIKELY(addr + len > addr)) {
		if (hp_in_span(d, addr))
			hit = pin_by_granule(d, addr, 1, access, ret_, hp_counts_self);
		else if (!hp_is_exact(d, access) &&
			 (hit = pin_by_lookup(d, hp_lookup_page(addr), addr, 1, access, ret_, later, BY_ALL)) == -ENOENT)
			hit = pin_by_lookup(d, hp_lookup_hugepage(addr), addr, 1, access, ret_, later, BY_ALL);
	}
	if (IS_AGAIN(hit))
		hit = look_again(d, INDEX_AGAIN(hit), addr, 1, access, ret_, !later);
	if (HP_UNLIKELY(hit < 0))
		return hit;
	r = &hp_regions[(uint32_t)ret_->ref]; /* the region is pinned, so its members do not change */
	ret_->base = r->start;
	ret_->len = r->end - r->start;
	return hit;
}

int hugepin_sg_key(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	int hit;

	if (HP_UNLIKELY(!addr))
		return hugepin_unpin(domain, ret_);
	access = wanted_access(domain, access);
	hit = find_key(domain, (uintptr_t)addr, len, access, ret_, false);
	if (HP_UNLIKELY(hit < 0))
		TAIL return key_slow(domain, addr, len, access, ret_);
	if (HP_UNLIKELY(hit))
		TAIL return first_key(domain, addr, len, access, ret_);
	return 0;
}

int hp_key_later(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	int hit;

	if (HP_UNLIKELY(!addr))
		return hugepin_unpin(domain, ret_);
	access = wanted_access(domain, access);
	hit = find_key(domain, (uintptr_t)addr, len, access, ret_, true);
	if (HP_UNLIKELY(hit < 0))
		TAIL return key_slow(domain, addr, len, access, ret_);
	if (HP_UNLIKELY(hit))
		TAIL return first_key(domain, addr, len, access, ret_);
	return 0;
}

/* Whether the memory of all these pinned regions is still there. The kernel is asked once for all of them. A pinned
 * region keeps its index. It loses its tag when its memory goes away, or when a later pin's region takes its place: then
 * this says no in vain. */
static bool all_stand(hugepin_domain *d, const struct hugepin_pin *pins, int n)
{
	bool asked = !must_ask(d);

	for (int i = 0; i < n; i++) {
		const struct hp_region *r = &hp_regions[(uint32_t)pins[i].ref];

		if (HP_READ(r->kind) != HP_REGION_FOREIGN)
			continue;
		if (!asked && hp_uffd_ask() != HP_QUIET)
			return false;
		asked = true;
		if (attention_of(d, HP_BUSY | HP_PENDING) || !HP_READ(r->tag))
			return false;
	}
	return true;
}

bool hp_keys_stand(void *domain, const struct hugepin_pin *pins, int n)
{
	hugepin_domain *d = domain;

	return !attention_of(d, HP_ASK) || all_stand(d, pins, n);
}

static HP_COLD int unpin_first(hugepin_domain *d, struct hugepin_pin *pin)
{
	uint32_t index = (uint32_t)pin->ref;

	if (hp_counts_adopt())
		return hugepin_unpin(d, pin);
	hp_counts_unpin_shared(index);
	*pin = (struct hugepin_pin){ 0 };
	/* The bit is read after the count; pairs with hp_region_settle(), which raises the bit before it sums. */
	return hp_attention_is(d, HP_RETIRED) ? unpin_retired(d, index) : 0;
}

static HP_COLD int unpin_noted(hugepin_domain *d, struct hp_counts *counts, uint32_t index, uint32_t attention)
{
	if (HP_LIKELY(attention & HP_HELPED))
		record_use(d, counts, HP_RECORD_END, index, 0);
	if (attention & HP_TRACED)
		hp_trace(HP_TRACE_UNPIN, d, hp_regions[index].start, hp_regions[index].end);
	return HP_UNLIKELY(attention & HP_RETIRED) ? unpin_retired(d, index) : 0;
}

static inline __attribute__((always_inline)) int unpin(hugepin_domain *d, struct hugepin_pin *pin)
{
	struct hp_counts *counts = hp_counts_self;
	uint32_t index = (uint32_t)pin->ref, attention;

	if (HP_UNLIKELY((pin->ref ^ d->ref) >> 32))
		return -EINVAL;
	if (HP_UNLIKELY(!counts))
		return unpin_first(d, pin);
	hp_count(&counts[index].unpins);
	*pin = (struct hugepin_pin){ 0 };
	hp_barrier_often(); /* pairs with hp_counts_barrier() of a thread that retires the region */
	attention = atomic_load_explicit(&d->attention, memory_order_relaxed);
	if (HP_UNLIKELY(attention & HP_UNPIN_SLOW))
		return unpin_noted(d, counts, index, attention);
	return 0;
}

int hugepin_unpin(hugepin_domain *d, struct hugepin_pin *pin)
{
	return unpin(d, pin);
}

/* ------------------------------------------------------------------ misses; domain's lock held */

int hp_pin_check(const hugepin_domain *d, const void *addr, size_t len, unsigned access)
{
	uintptr_t end;

	if (!len || __builtin_add_overflow((uintptr_t)addr, len, &end) || end > UINTPTR_MAX - hp_base_page ||
	    access & ~(HP_ACCESS_ALL | HUGEPIN_PIN_UNCACHED))
		return -EINVAL;
	if (access & ~(d->access_mask | HUGEPIN_PIN_UNCACHED))
		return -EOPNOTSUPP;
	return d->pid == (pid_t)hp_sys(SYS_getpid) ? 0 : -ESTALE;
}

/* Registering takes about as long as the wait: 4 GiB a second. A thread that may not register waits up to a second. */
bool hp_pin_settled(const hugepin_domain *d, const void *addr, size_t len)
{
	const uint64_t longest_ns = 1000000000;

	return !d->watched || hp_in_span(d, (uintptr_t)addr) || __libc_single_threaded ||
	       hp_uffd_settle(hp_domain_may_register(d) ? HP_MIN(len / 4, longest_ns) : longest_ns);
}

void hp_pin_enter(hugepin_domain *d)
{
	if (hp_attention_is(d, HP_BUSY))
		hp_uffd_wait();
	atomic_fetch_add_explicit(&d->waiting, 1, memory_order_relaxed);
	hp_lock(&d->lock);
	atomic_fetch_sub_explicit(&d->waiting, 1, memory_order_relaxed);
	hp_gone_drain(d);
	hp_region_deregister_dead(d);
}

void hp_pin_leave(hugepin_domain *d)
{
	bool helped = d->helper, hinted = d->hinted;

	d->hinted = false;
	hp_unlock(&d->lock);
	if (hinted)
		hp_domains_start();
	/* relaxed: the run takes the domain's lock, too */
	if (helped && !atomic_load_explicit(&hp_serve_helper_job.asked, memory_order_relaxed))
		hp_serve_wake_helper();
}

/* Count a pin of [addr, end) of r. end 0: a pin of all of r. r was found or registered under the lock. */
static void take_pin(hugepin_domain *d, struct hp_region *r, uintptr_t addr, uintptr_t end, uint64_t time,
		     uint64_t site, bool registered)
{
	if (r->kind == HP_REGION_EXTENT)
		hp_region_note(r, end ? addr : r->start, end ? end : r->end);
	hp_count(&hp_counts_self[r - hp_regions].pins);
	HP_WRITE(r->used, 1);
	if (d->helper) {
		hp_helper_missed(d, r, time, site, registered);
		hp_helper_first_use(d, r, registered);
	}
	if (hp_trace_on)
		hp_trace(HP_TRACE_PIN, d, r->start, r->end);
	if (r->kind == HP_REGION_FOREIGN || hp_region_is_exact(r))
		hp_lookup_remember(d, addr, r);
	else if (hp_region_is_heap(r))
		hp_region_name(r, addr);
}

/* Count a pin of [addr, addr + len), or of as much of it as r covers, and fill it in. */
static void pin_region(hugepin_domain *d, struct hp_region *r, uintptr_t addr, size_t len, uint64_t time, uint64_t site,
		       bool registered, struct hugepin_pin *ret_)
{
	size_t covered = r->end - addr;

	take_pin(d, r, addr, addr + HP_MIN(len, covered), time, site, registered);
	HP_DSTAT(d, cut, covered < len);
	fill(ret_, addr, HP_MIN(len, covered), r->keys, d->ref | (uint64_t)(r - hp_regions));
}

int hp_pin_locked(hugepin_domain *d, const void *addr, size_t len, unsigned access, int once, uint64_t time,
		      uint64_t site, struct hugepin_pin *ret_)
{
	uint64_t registered = d->stats.registered;
	struct hp_region *r;
	int err;

	/* Have a frame pointer here: by frame pointers the kernel leads from a probe below to the call site. */
	__asm__ volatile("" : : "r"(__builtin_frame_address(0)));
	err = hp_cover_pin(d, addr, len, access & d->access_mask, once, &r);
	if (err)
		HP_DSTAT(d, nobufs, err == -ENOBUFS);
	else
		pin_region(d, r, (uintptr_t)addr, len, time, site, d->stats.registered != registered, ret_);
	return err;
}

/* Whether a pin is registered for by itself, and why: as hp_cover_pin(). */
static int once_of(const hugepin_domain *d, unsigned access)
{
	return d->policy == HUGEPIN_POLICY_NONE ? (int)HP_ONCE_POLICY
	       : access & HUGEPIN_PIN_UNCACHED	? (int)HP_ONCE_ASKED
						: HP_CACHED;
}

/* The access of a pin that may ask for HUGEPIN_PIN_UNCACHED alone. */
static unsigned whole_access(const hugepin_domain *d, unsigned access)
{
	return access & ~(unsigned)HUGEPIN_PIN_UNCACHED ? access : access | d->access;
}

static HP_COLD int pin_slow(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	int once = once_of(d, access);
	uint64_t site = d->helper ? SITE(d) : 0, time = d->helper ? hp_helper_time(d) : 0;
	int err;

	access = whole_access(d, access);
	err = hp_pin_check(d, addr, len, access);
	if (!err && !hp_counts_self && !hp_counts_adopt())
		err = -ENOMEM;
	if (err)
		return err;
	if (once == HP_CACHED && !hp_pin_settled(d, addr, len))
		once = HP_ONCE_CHANGING;
	hp_pin_enter(d);
	err = hp_pin_locked(d, addr, len, access, once, time, site, ret_);
	hp_pin_leave(d);
	return err;
}

static HP_COLD int key_slow(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	hugepin_domain *d = domain;
	uint64_t site = d->helper ? SITE(d) : 0, time = d->helper ? hp_helper_time(d) : 0;
	struct hp_region *r;
	int err = access & HUGEPIN_PIN_UNCACHED ? -EINVAL : hp_pin_check(d, addr, len, access);

	if (!err && !hp_counts_self && !hp_counts_adopt())
		err = -ENOMEM;
	if (err)
		return err;
	err = hp_pin_settled(d, addr, len) ? 0 : -ENOKEY;
	hp_pin_enter(d);
	/* Exact regions serve pins of their own range alone. */
	r = err || hp_is_exact(d, access) ? NULL : hp_cover_find(d, (uintptr_t)addr, 1, access);
	if (r) {
		take_pin(d, r, (uintptr_t)addr, 0, time, site, false);
		fill(ret_, r->start, r->end - r->start, r->keys, d->ref | (uint64_t)(r - hp_regions));
	}
	hp_pin_leave(d);
	return r ? 0 : -ENOKEY;
}

/* ------------------------------------------------------------------ held keys: what is no hit */

_Static_assert(sizeof(struct hugepin_key) == 64, "programs have this layout compiled in");

int hugepin_key_take(hugepin_domain *d, const struct hugepin_pin *pin, unsigned layout, struct hugepin_key *ret_)
{
	struct hugepin_key key;
	const struct hp_region *r;
	uint32_t index;

	if (!d || !pin || !ret_ || !layout)
		return -EINVAL;
	if (layout > HUGEPIN_KEY_LAYOUT)
		return -EOPNOTSUPP;
	index = (uint32_t)pin->ref;
	if ((pin->ref ^ d->ref) >> 32 || !index || index >= HP_REGIONS_MAX)
		return -EINVAL;
	/* The region is pinned, so its members do not change. A copy of a pin that was given back may name another
	 * region by now. */
	r = &hp_regions[index];
	key = (struct hugepin_key){ .pin = *pin,
				    .domain = (const struct hugepin_key_domain *)d,
				    .life = &hp_lives[index],
				    .good = hp_region_life(r),
				    .pin_slow = HP_PIN_SLOW | (r->kind == HP_REGION_FOREIGN ? (uint32_t)HP_ASK : 0),
				    .unpin_slow = HP_UNPIN_SLOW };
	if (HP_READ(r->state) == HP_REGION_FREE || HP_READ(r->domain) != d || HP_READ(r->start) > pin->base ||
	    HP_READ(r->end) < pin->base || pin->len > HP_READ(r->end) - pin->base ||
	    memcmp(&r->keys, &pin->lkey, sizeof r->keys) != 0)
		return -EINVAL;
	*ret_ = key;
	return 0;
}

static hugepin_domain *domain_of(const struct hugepin_key *key)
{
	return (hugepin_domain *)(uintptr_t)key->domain;
}

/* Whether a key is of a domain of this process, as it is open now. */
static int check_key(const struct hugepin_key *key)
{
	const hugepin_domain *d = domain_of(key);

	if (!key->life)
		return -ENOKEY;
	if (d->pid && d->pid != (pid_t)hp_sys(SYS_getpid))
		return -ESTALE;
	return (key->pin.ref ^ d->ref) >> 32 ? -EINVAL : 0;
}

/* Set the `used` flag of a pin by a key. The life may have ended meanwhile: it stays so. Returns whether to tell the
 * helper. */
static bool mark_key_used(hugepin_domain *d, const struct hugepin_key *key)
{
	uint64_t unused = key->good & ~UINT64_C(1);

	/* relaxed: the flag is a hint */
	__atomic_compare_exchange_n(&hp_lives[(uint32_t)key->pin.ref], &unused, key->good, false, __ATOMIC_RELAXED,
				    __ATOMIC_RELAXED);
	return atomic_load_explicit(&d->attention, memory_order_relaxed) & HP_HELPED;
}

/* Whether a pin that this thread has counted is a hit. The kernel is asked first, then the word of attention is looked
 * at, then the life: as in look_again(). */
static bool is_key_hit(hugepin_domain *d, const struct hugepin_key *key)
{
	uint32_t seen = attention_for(d, hp_counts_self, key->pin_slow);

	if (seen & ~(uint32_t)HP_ASK)
		return false;
	if (seen && ((must_ask(d) && hp_uffd_ask() != HP_QUIET) || attention_for(d, hp_counts_self, HP_PIN_SLOW)))
		return false;
	return (HP_READ(*key->life) | 1) == key->good;
}

/* Look for the key's region under the lock. */
static HP_COLD int key_locked(hugepin_domain *d, const struct hugepin_key *key, uint64_t time, uint64_t site)
{
	struct hp_region *r = &hp_regions[(uint32_t)key->pin.ref];
	uintptr_t addr = key->pin.base;
	bool good = hp_pin_settled(d, (const void *)addr, key->pin.len);

	hp_pin_enter(d);
	good = good && (HP_READ(*key->life) | 1) == key->good;
	if (good) {
		take_pin(d, r, addr, addr + key->pin.len, time, site, false);
		mark_key_used(d, key);
	}
	hp_pin_leave(d);
	return good ? 0 : -ENOKEY;
}

int hugepin_key_pin_slow(const struct hugepin_key *key, int counted)
{
	uint32_t index = (uint32_t)key->pin.ref;
	hugepin_domain *d = domain_of(key);
	uint64_t site, time;
	int err;

	if (!counted) {
		err = check_key(key);
		if (!err && !hp_counts_self && !hp_counts_adopt())
			err = -ENOMEM;
		if (err)
			return err;
		hp_count(&hp_counts_self[index].pins);
		hp_barrier_often(); /* pairs with hp_counts_barrier() of a thread that retires the region */
	}
	if (is_key_hit(d, key)) {
		/* relaxed: the flag is a hint, and is_key_hit() has looked by acquire whether the life has ended */
		if (HP_UNLIKELY(HP_PEEK(*key->life) != key->good) && mark_key_used(d, key)) {
			if (hp_regions[index].on_demand)
				bring_in(d, &hp_regions[index]);
			record_use(d, hp_counts_self, HP_RECORD_START, index, SITE(d));
		}
		return 0;
	}
	hp_count_back(hp_counts_self, index);
	err = check_key(key);
	if (err)
		return err;
	site = d->helper ? SITE(d) : 0;
	time = d->helper ? hp_helper_time(d) : 0;
	return key_locked(d, key, time, site);
}

int hugepin_key_unpin_slow(const struct hugepin_key *key, int counted)
{
	struct hugepin_pin pin = key->pin;
	hugepin_domain *d = domain_of(key);

	if (!key->life)
		return -EINVAL;
	if (!counted) /* this thread has no counters yet, or it is not the domain of the pin */
		return hugepin_unpin(d, &pin);
	return unpin_noted(d, hp_counts_self, (uint32_t)pin.ref,
			   atomic_load_explicit(&d->attention, memory_order_relaxed));
}

/* ------------------------------------------------------------------ requests */

/* Look under the lock for a region that serves a pin, but wait neither for the lock nor for the kernel. */
static bool find_now(hugepin_domain *d, const void *addr, size_t len, unsigned access, uint64_t time, uint64_t site,
		     struct hugepin_pin *ret_)
{
	struct hp_region *r;
	bool dead;

	if (d->watched && !hp_in_span(d, (uintptr_t)addr) && must_ask(d) && hp_uffd_ask() != HP_QUIET)
		return false;
	if (hp_attention_is(d, HP_BUSY))
		hp_uffd_wait();
	if (!hp_trylock(&d->lock))
		return false;
	hp_gone_drain(d);
	if (d->opener_only)
		hp_region_deregister_dead(d);
	dead = !TAILQ_EMPTY(&d->dead);
	r = hp_cover_find(d, (uintptr_t)addr, len, access & d->access_mask);
	if (r)
		pin_region(d, r, (uintptr_t)addr, len, time, site, false, ret_);
	hp_pin_leave(d);
	if (dead && !d->opener_only)
		hp_domains_wake();
	return r;
}

static HP_COLD int try_slow(hugepin_domain *d, const void *addr, size_t len, unsigned access, hugepin_pinned_fn done,
			    void *arg, struct hugepin_pin *ret_)
{
	bool cached = once_of(d, access) == HP_CACHED;
	struct hp_request q = { .addr = addr, .len = len, .access = whole_access(d, access), .done = done, .arg = arg };
	int err = !done && access & HUGEPIN_PIN_UNCACHED ? -EINVAL : hp_pin_check(d, addr, len, q.access);

	if (d->helper) {
		q.site = SITE(d);
		q.time = hp_helper_time(d);
	}
	if (!err && !hp_counts_self && !hp_counts_adopt())
		err = -ENOMEM;
	if (err)
		return err;
	if (cached && find_now(d, addr, len, q.access, q.time, q.site, ret_))
		return 0;
	if (d->opener_only)
		return -EPERM;
	err = hp_request_add(d, &q);
	return err ? err : -EAGAIN;
}

bool hp_pin_for(hugepin_domain *d, const struct hp_request *q, struct hugepin_pin *ret_, int *ret_err)
{
	int once = once_of(d, q->access);

	if (!hp_counts_self && !hp_counts_adopt()) {
		*ret_err = -ENOMEM;
		return true;
	}
	if (once == HP_CACHED && !hp_pin_settled(d, q->addr, q->len))
		once = HP_ONCE_CHANGING;
	if (hp_attention_is(d, HP_BUSY))
		hp_uffd_wait();
	if (!hp_domain_lock_soon(d))
		return false;
	hp_gone_drain(d);
	hp_region_deregister_dead(d);
	*ret_err = hp_pin_locked(d, q->addr, q->len, q->access, once, q->time, q->site, ret_);
	hp_pin_leave(d);
	return true;
}

/* ------------------------------------------------------------------ several at a time */

int hugepin_unpinv(hugepin_domain *d, struct hugepin_pin *pins, int n)
{
	int err = 0;

	for (int i = 0; i < n; i++)
		if (pins[i].ref && unpin(d, &pins[i]) != 0)
			err = -EINVAL;
	return err;
}

/* As hugepin_pin, but without asking the kernel. */
static __attribute__((noinline)) int pin_later(hugepin_domain *d, const void *addr, size_t len, unsigned access,
					       struct hugepin_pin *ret_)
{
	int hit;

	access = wanted_access(d, access);
	hit = find_later(d, (uintptr_t)addr, len, access, ret_);
	if (!hit)
		return 0;
	if (hit > 0)
		TAIL return first_use(d, addr, len, access, ret_);
	TAIL return pin_slow(d, addr, len, access, ret_);
}

/* Pin a piece by as many pins as it takes. Returns their number, or an error, with nothing pinned. */
static __attribute__((noinline)) int pin_one(hugepin_domain *d, const struct iovec *v, unsigned access,
					     struct hugepin_pin *ret_, int max, bool later)
{
	const char *at = v->iov_base;
	size_t left = v->iov_len;
	int pins = 0, err;

	do {
		err = pins >= max ? -EMSGSIZE :
		      later	  ? pin_later(d, at, left, access, &ret_[pins]) :
				    hugepin_pin(d, at, left, access, &ret_[pins]);
		if (err) {
			hugepin_unpinv(d, ret_, pins);
			return err;
		}
		at += ret_[pins].len;
		left -= ret_[pins++].len;
	} while (left);
	return pins;
}

/* A piece that is a hit of the heap's memory takes no call: that is left to pieces that are not, and to first uses. */
static inline __attribute__((always_inline)) int pin_each(hugepin_domain *d, const struct iovec *v, int n,
							  unsigned access, struct hugepin_pin *ret_, int max,
							  bool later)
{
	struct hp_counts *counts = hp_counts_self;
	int pins = 0, hit, more;

	access = wanted_access(d, access);
	for (const struct iovec *end = n ? v + n : v /* which may be NULL */; v < end; v++) {
		uintptr_t addr = (uintptr_t)v->iov_base;

		hit = -ENOENT;
		if (HP_LIKELY(!later && pins < max && hp_in_span(d, addr))) {
			hit = pin_by_granule(d, addr, v->iov_len, access, &ret_[pins], counts);
			if (HP_LIKELY(!hit)) {
				pins++;
				continue;
			}
		}
		if (IS_AGAIN(hit)) {
			hp_count_back(counts, INDEX_AGAIN(hit));
		} else if (hit > 0) {
			hp_count_back(counts, (uint32_t)ret_[pins].ref);
			ret_[pins].ref = 0; /* hugepin_unpinv() skips it if the pin fails now */
		}
		more = pin_one(d, v, access, &ret_[pins], max - pins, later);
		if (more < 0) {
			hugepin_unpinv(d, ret_, pins);
			return more;
		}
		pins += more;
		counts = hp_counts_self;
	}
	return pins;
}

/* Ask the kernel once for all pins. If memory is changing, pin each buffer again and ask for each. */
static HP_COLD int pin_and_ask(hugepin_domain *d, const struct iovec *v, int n, unsigned access,
			       struct hugepin_pin *ret_, int max)
{
	int pins = pin_each(d, v, n, access, ret_, max, true);

	if (pins <= 0 || all_stand(d, ret_, pins))
		return pins;
	hugepin_unpinv(d, ret_, pins);
	return pin_each(d, v, n, access, ret_, max, false);
}

int hugepin_pinv(hugepin_domain *d, const struct iovec *v, int n, unsigned access, struct hugepin_pin *ret_, int max)
{
	if (n < 0 || max < 0 || (n && (!v || !ret_)))
		return -EINVAL;
	if (HP_UNLIKELY(attention_of(d, HP_ASK)))
		TAIL return pin_and_ask(d, v, n, access, ret_, max);
	return pin_each(d, v, n, access, ret_, max, false);
}

/* ------------------------------------------------------------------ hints */

int hugepin_prefetch(hugepin_domain *d, const void *addr, size_t len, unsigned access)
{
	const unsigned phase = access & (HUGEPIN_PREFETCH_NEXT | HUGEPIN_PREFETCH_WAIT);
	struct hp_prefetch hint = { .addr = addr, .len = len };
	int err;

	if (phase && d->odp != HUGEPIN_ODP_OPTIMAL)
		return 0;
	hint.access = wanted_access(d, access & ~phase);
	err = hint.access & HUGEPIN_PIN_UNCACHED ? -EINVAL : hp_pin_check(d, addr, len, hint.access);
	if (err)
		return err;
	if (!phase) {
		err = hp_hints_push(d, hint);
		hp_domains_start();
		return err;
	}
	hp_pin_enter(d);
	if (hp_domain_may_register(d)) {
		HP_DSTAT(d, prefetched_late, hp_hints_overtake(d, addr, len, hint.access));
		hp_cover_hint(d, &hint);
	}
	hp_pin_leave(d);
	return 0;
}
