/*
 * Pins: hits, and the functions that programs call. miss.c has the rest of a pin that is no hit.
 *
 * A hit takes no lock, makes no system call and shares no write (state.h has the protocol). A lookup (hugepin_sg_key)
 * pins the region that is registered at an address, whatever its length, and never registers.
 */
#define HUGEPIN_KEY_INLINE /* have hugepin_key_pin() and hugepin_key_unpin() here as functions that others call */
#include "reg/pin.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/sys.h"
#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/domains.h"
#include "reg/hints.h"
#include "reg/key.h"
#include "reg/lookup.h"
#include "reg/miss.h"
#include "reg/retire.h"
#include "reg/serve.h"
#include "reg/trace.h"
#include "reg/track.h"
#include "reg/uffd.h"

bool hp_keys_asked;

/* The place of a call, by which policies and hugepin top tell uses apart. Only a function that the program calls may
 * use this, because a function below it has a return address in the library. */
#define CALLER ((uintptr_t)__builtin_return_address(0))

/* ------------------------------------------------------------------ hits */

static inline uint64_t ref_of(const hugepin_domain *d, uint64_t tag)
{
	return d->ref | HP_TAG_INDEX(tag);
}

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

	if (HP_READ(r->state) != HP_REGION_RETIRED || d->pid != hp_pid())
		return 0;
	hp_lock(&d->lock);
	hp_region_last_unpin(d, r);
	hp_unlock(&d->lock);
	return 0;
}

/* Push a record. Wake the helper, unless a run is already asked for; even for a dropped record, because no later one
 * may come. */
static inline void record_use(hugepin_domain *d, struct hp_counts *counts, enum hp_record_kind kind, uint32_t index,
			      uint64_t site)
{
	struct hp_records *q = hp_counts_records(counts);

	if (HP_LIKELY(hp_record_room(q, d->number)))
		hp_record_push(q, HP_LIKELY(!d->own_clock) ? hp_record_time() : hp_track_time(d),
			       HP_RECORD(kind, index), site);
	hp_barrier_often(); /* pairs with the barrier in serve.c:help_all() */
	if (HP_UNLIKELY(!atomic_load_explicit(&hp_serve_helper_job.asked, memory_order_relaxed)))
		hp_serve_wake_helper();
}

/* Set the region's `used` flag at the first hit after it was cleared, and tell the helper. waits: whether the caller
 * may wait for the domain's lock. Under hybrid the region may be registered on demand and not be in memory. Returns
 * 0. */
static HP_COLD int first_use(hugepin_domain *d, const void *addr, bool waits, uint64_t site,
			     const struct hugepin_pin *pin)
{
	struct hp_region *r = &hp_regions[(uint32_t)pin->ref];

	if (hp_in_span(d, (uintptr_t)addr) && !hp_region_is_exact(r))
		HP_WRITE(hp_granule_at(d, (uintptr_t)addr)->used, 1);
	else
		HP_WRITE(r->used, 1);
	if (!(atomic_load_explicit(&d->attention, memory_order_relaxed) & HP_HELPED))
		return 0;
	if (waits && r->on_demand)
		hp_pin_bring_in(d, r);
	record_use(d, hp_counts_self, HP_RECORD_START, (uint32_t)pin->ref, site);
	return 0;
}

/* A thread that saw this pin counted may have retired the region meanwhile, so this may be the last unpin. By now the
 * index may belong to another region of another domain. */
HP_COLD void hp_count_back(struct hp_counts *counts, uint32_t index)
{
	hugepin_domain *d;

	hp_count(&counts[index].unpins);
	atomic_fetch_add_explicit(&hp_counts_undone, 1, memory_order_relaxed);
	hp_barrier_often(); /* pairs with hp_counts_barrier() of a thread that retires the region */
	d = HP_READ(hp_regions[index].domain);
	/* If it is free, the next registration there must not count this as a hit. relaxed: a number */
	if (HP_READ(hp_regions[index].state) == HP_REGION_FREE)
		__atomic_fetch_add(&hp_regions[index].made, 1, __ATOMIC_RELAXED);
	else if (d)
		hp_add_hits(d, (uint64_t)-1);
	if (d && atomic_load_explicit(&d->attention, memory_order_relaxed) & HP_RETIRED)
		unpin_retired(d, index);
}

/* The result of a search without a lock. A hit calls nothing that returns to it, so a hit needs no stack frame. */
enum how {
	HIT, /* counted, and *ret_ is filled in */
	FIRST_USE, /* a hit, and its first use must be told */
	AGAIN, /* a region is counted, and only look_again() can tell whether that is a hit */
	NOTHING,
};
struct found {
	enum how how;
	uint32_t index; /* AGAIN: of the region */
};

/* The base page in hits. On x86-64 it is a constant, because a constant takes no instructions and the architecture has
 * one size. In tests of another size, pins by exact regions are therefore no hits on x86-64. */
#if defined __x86_64__
#define HIT_PAGE ((uintptr_t)4096)
#else
#define HIT_PAGE hp_base_page
#endif

/* Whether r serves a pin. exact: the pin must get a region of just its own pages, with just its own access
 * (state.h). */
static inline __attribute__((always_inline)) bool serves(const struct hp_region *r, uintptr_t addr, size_t len,
							 unsigned access, bool exact)
{
	uintptr_t start = HP_READ(r->start), end;

	if (exact ? start != (addr & -HIT_PAGE) || HP_READ(r->access) != access :
		    addr < start || access & ~HP_READ(r->access))
		return false;
	end = HP_READ(r->end);
	return addr < end && len - 1 < end - addr && (!exact || end == hp_round_up(addr + len, HIT_PAGE));
}

/* Where find_by_lookup() looks. */
enum { BY_FIRST, /* the first word of the bucket */
       BY_ALL, /* all of them */
       BY_EXACT /* all of them, for an exact region */
};

/* Find foreign memory or an exact region by the lookup table. later: the caller asks the kernel once for this pin and
 * others together (all_stand). Each word of the region is compared at once, because keeping it would need a register
 * that has to be saved. */
static inline __attribute__((always_inline)) struct found find_by_lookup(hugepin_domain *d, uint64_t hash,
									 uintptr_t addr, size_t len, unsigned access,
									 struct hugepin_pin *ret_, bool later, int by)
{
	uint64_t word = hp_lookup_word(hp_lookup_bucket(d, hash), hp_lookup_check(hash), by == BY_FIRST), tag;
	uint32_t bits = later ? HP_PIN_SLOW : HP_PIN_SLOW | HP_ASK, seen;
	struct hp_region *r = &hp_regions[hp_lookup_index(word)];
	struct hp_counts *counts;

	tag = HP_READ(r->tag); /* 0, too, if there is no word */
	if (HP_UNLIKELY(!tag || HP_READ(r->domain) != d || (uint32_t)HP_READ(r->keys) != hp_lookup_extra(word) ||
			!serves(r, addr, len, access, by == BY_EXACT) || !(counts = hp_counts_self)))
		return (struct found){ .how = NOTHING };
	hp_count(&counts[HP_TAG_INDEX(tag)].pins);
	hp_barrier_often(); /* pairs with hp_counts_barrier() of a thread that retires the region */
	/* take its index anew below: keeping it until then would need a register that has to be saved */
	__asm__("" : "+r"(tag));
	seen = attention_of(d, bits);
	if (HP_UNLIKELY((seen && (seen != HP_ASK || hp_must_ask(d))) || HP_READ(r->tag) != tag))
		return (struct found){ AGAIN, HP_TAG_INDEX(tag) };
	ret_->base = addr;
	ret_->len = len;
	ret_->lkey = hp_lookup_extra(word); /* a thread that waits for it need not wait for the region's line */
	ret_->rkey = (uint32_t)(HP_READ(r->keys) >> 32);
	ret_->ref = ref_of(d, tag);
	return (struct found){ .how = HP_PEEK(r->used) ? HIT : FIRST_USE };
}

/* Find heap memory by the granule table. counts_at: where to read this thread's counters, as late as possible. */
static inline __attribute__((always_inline)) struct found find_by_granule(hugepin_domain *d, uintptr_t addr,
									  size_t len, unsigned access,
									  struct hugepin_pin *ret_,
									  struct hp_counts *const *counts_at)
{
	struct hp_granule *e = hp_granule_at(d, addr);
	uint64_t tag = HP_READ(e->tag), keys;
	struct hp_counts *counts;

	/* The region that a granule names covers addr, so only its end is compared. */
	if (HP_UNLIKELY(!tag || len - 1 >= HP_READ(e->end) - addr || access & ~HP_READ(e->access) ||
			!(counts = *counts_at)))
		return (struct found){ .how = NOTHING };
	hp_count(&counts[HP_TAG_INDEX(tag)].pins);
	hp_barrier_often(); /* pairs with hp_counts_barrier() of a thread that retires the region */
	/* Take the index of the tag anew below, and read the keys no earlier than here, because keeping either until
	 * then would need a register that has to be saved. */
	__asm__("" : "+r"(tag));
	keys = HP_READ(e->keys);
	if (HP_UNLIKELY(attention_of(d, HP_PIN_SLOW) || HP_READ(e->tag) != tag))
		return (struct found){ AGAIN, HP_TAG_INDEX(tag) };
	hp_pin_fill(ret_, addr, len, keys, ref_of(d, tag));
	return (struct found){ .how = HP_PEEK(e->used) ? HIT : FIRST_USE };
}

/* Find memory for remote access that must open no other page; heap memory, too, has a region of its own for this. Only
 * foreign memory may have to be asked for, because only the heap takes heap memory away, and it asks no kernel. */
static inline __attribute__((always_inline)) struct found find_by_exact(hugepin_domain *d, uintptr_t addr, size_t len,
									unsigned access, struct hugepin_pin *ret_,
									bool later)
{
	uint64_t hash;

	access |= d->access_least;
	hash = hp_lookup_exact(addr & -HIT_PAGE, hp_round_up(addr + len, HIT_PAGE), access);
	return find_by_lookup(d, hash, addr, len, access, ret_, later || hp_in_span(d, addr), BY_EXACT);
}

/* Find memory by every table that may lead to its region. No granule has remote access. */
static inline __attribute__((always_inline)) struct found find(hugepin_domain *d, uintptr_t addr, size_t len,
							       unsigned access, struct hugepin_pin *ret_, bool later)
{
	struct found f;

	if (hp_is_exact(d, access))
		return find_by_exact(d, addr, len, access, ret_, later);
	if (hp_in_span(d, addr))
		return find_by_granule(d, addr, len, access, ret_, &hp_counts_self);
	f = find_by_lookup(d, hp_lookup_page(addr), addr, len, access, ret_, later, BY_ALL);
	return HP_LIKELY(f.how != NOTHING) ?
		       f :
		       find_by_lookup(d, hp_lookup_hugepage(addr), addr, len, access, ret_, later, BY_ALL);
}

/* Find out whether a counted region is a hit; if NOTHING, it is no longer counted. While it is counted, no other region
 * can take its place. Ask the kernel before reading the word of attention, because when the kernel says that a change
 * is done, its range is queued or is being queued. Heap memory needs no question, since only the heap takes it away.
 * ask: whether to ask the kernel here. */
static HP_COLD enum how look_again(hugepin_domain *d, uint32_t index, uintptr_t addr, size_t len, unsigned access,
				   struct hugepin_pin *ret_, bool ask)
{
	bool exact = hp_is_exact(d, access);
	struct hp_region *r = &hp_regions[index];
	uint64_t tag = HP_READ(r->tag), keys = HP_READ(r->keys);

	ask = ask && !hp_in_span(d, addr) && attention_of(d, HP_ASK) && hp_must_ask(d);
	if (HP_TAG_INDEX(tag) == index && HP_READ(r->domain) == d &&
	    serves(r, addr, len, access | (exact ? d->access_least : 0), exact) &&
	    (!ask || hp_uffd_ask() == HP_QUIET) && !attention_for(d, hp_counts_self, HP_PIN_SLOW) &&
	    HP_READ(r->tag) == tag) {
		hp_pin_fill(ret_, addr, len, keys, ref_of(d, tag));
		return HP_PEEK(r->used) ? HIT : FIRST_USE;
	}
	hp_count_back(hp_counts_self, index);
	return NOTHING;
}

/* The access that a caller asks for. 0 means the domain's default. */
static inline unsigned wanted_access(const hugepin_domain *d, unsigned access)
{
	access &= ~HP_RELAXED;
	return access ? access : d->access;
}

/* The access that a region must have for a pin with wanted_access(). No region has HUGEPIN_PIN_NO_EVICT, because other
 * hits then need not look for that bit. A pin with that bit is found by a second search. */
static inline unsigned region_access(const hugepin_domain *d, unsigned access)
{
	access &= ~(unsigned)HUGEPIN_PIN_NO_EVICT;
	return access ? access : d->access;
}

/* A region that was counted for a pin of this access. The struct is one argument in one register, because with a
 * seventh argument a hit would need a stack frame. */
struct counted {
	uint32_t index, access;
};

static __attribute__((noinline)) int pin_again(hugepin_domain *d, const void *addr, size_t len, struct counted c,
					       struct hugepin_pin *ret_, uint64_t site)
{
	enum how how = look_again(d, c.index, (uintptr_t)addr, len, c.access, ret_, true);

	if (HP_LIKELY(how == HIT))
		return 0;
	return how == FIRST_USE ? first_use(d, addr, true, site, ret_) :
				  hp_pin_missed(d, addr, len, c.access, ret_, site);
}

static HP_COLD int pin_missed(hugepin_domain *d, const void *addr, size_t len, unsigned access,
			      struct hugepin_pin *ret_, uint64_t site)
{
	const unsigned sought = region_access(d, access);
	struct found f = { .how = NOTHING };

	if (sought != access)
		f = find(d, (uintptr_t)addr, len, sought, ret_, false);
	if (f.how == AGAIN)
		f.how = look_again(d, f.index, (uintptr_t)addr, len, sought, ret_, true);
	if (f.how == NOTHING)
		return hp_pin_missed(d, addr, len, access, ret_, site);
	return f.how == HIT ? 0 : first_use(d, addr, true, site, ret_);
}

/* Finish a pin with the result of a search; if nothing was found, `otherwise` pins. */
static inline __attribute__((always_inline)) int
end_pin(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_, uint64_t site,
	struct found f,
	int (*otherwise)(hugepin_domain *, const void *, size_t, unsigned, struct hugepin_pin *, uint64_t))
{
	if (HP_LIKELY(f.how == HIT))
		return 0;
	if (f.how == FIRST_USE)
		return first_use(d, addr, true, site, ret_);
	if (f.how == AGAIN)
		return pin_again(d, addr, len, (struct counted){ f.index, access }, ret_, site);
	return otherwise(d, addr, len, access, ret_, site);
}

int hugepin_pin_at(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_,
		   uintptr_t site)
{
	struct found f;

	access = wanted_access(d, access);
	f = find(d, (uintptr_t)addr, len, access, ret_, false);
	return end_pin(d, addr, len, access, ret_, site, f, pin_missed);
}

/* Look at the first word of the page's bucket only, which finds most foreign memory. hugepin_pin_at() looks
 * everywhere. */
static __attribute__((noinline)) int pin_foreign(hugepin_domain *d, const void *addr, size_t len, unsigned access,
						 struct hugepin_pin *ret_, uint64_t site)
{
	struct found f = { .how = NOTHING };

	if (HP_LIKELY(!hp_is_exact(d, access)))
		f = find_by_lookup(d, hp_lookup_page((uintptr_t)addr), (uintptr_t)addr, len, access, ret_, false,
				   BY_FIRST);
	return end_pin(d, addr, len, access, ret_, site, f, hugepin_pin_at);
}

int hugepin_pin(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	struct found f;

	access = wanted_access(d, access);
	if (HP_UNLIKELY(!hp_in_span(d, (uintptr_t)addr)))
		return pin_foreign(d, addr, len, access, ret_, CALLER);
	f = find_by_granule(d, (uintptr_t)addr, len, access, ret_, &hp_counts_self);
	/* As end_pin(). There CALLER would be a variable, for which a hit would have to save a register. */
	if (HP_LIKELY(f.how == HIT))
		return 0;
	if (f.how == FIRST_USE)
		return first_use(d, addr, true, CALLER, ret_);
	if (f.how == AGAIN)
		return pin_again(d, addr, len, (struct counted){ f.index, access }, ret_, CALLER);
	return hugepin_pin_at(d, addr, len, access, ret_, CALLER);
}

/* ------------------------------------------------------------------ hits or nothing; hugepin_pin_try */

/* Whether the memory of all these pinned regions is still there; the kernel is asked once for all. A pinned region
 * keeps its index, and loses its tag when its memory goes away. It also does when the region of a later pin takes its
 * place; the result is then false without need. */
static bool all_stand(hugepin_domain *d, const struct hugepin_pin *pins, int n)
{
	bool asked = !hp_must_ask(d);

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

/* Give pins back that did not come about, and count them as none. */
static HP_COLD void undo(hugepin_domain *d, struct hugepin_pin *pins, int n)
{
	atomic_fetch_add_explicit(&hp_counts_undone, (uint64_t)n, memory_order_relaxed);
	hp_add_hits(d, (uint64_t)-n);
	hugepin_unpinv(d, pins, n);
}

static __attribute__((noinline)) int try_otherwise(hugepin_domain *d, const void *addr, size_t len, unsigned access,
						   hugepin_pinned_fn done, void *arg, struct hugepin_pin *ret_,
						   uint64_t site, struct found f)
{
	const unsigned sought = region_access(d, access);

	if (sought != access)
		f = find(d, (uintptr_t)addr, len, sought, ret_, true);
	if (f.how == AGAIN)
		f.how = look_again(d, f.index, (uintptr_t)addr, len, sought, ret_, false);
	if (HP_LIKELY(f.how == HIT))
		return 0;
	return f.how == FIRST_USE ? first_use(d, addr, false, site, ret_) :
				    hp_try_missed(d, addr, len, access, done, arg, ret_, site);
}

/* Ask the kernel once. The caller's pin is left alone until it is known to be one. */
static __attribute__((noinline)) int try_asking(hugepin_domain *d, const void *addr, size_t len, unsigned access,
						hugepin_pinned_fn done, void *arg, struct hugepin_pin *ret_,
						uint64_t site)
{
	const unsigned sought = region_access(d, access);
	struct hugepin_pin pin;
	struct found f = find(d, (uintptr_t)addr, len, sought, &pin, true);

	if (f.how == AGAIN)
		f.how = look_again(d, f.index, (uintptr_t)addr, len, sought, &pin, false);
	if (f.how != NOTHING && !all_stand(d, &pin, 1)) {
		undo(d, &pin, 1);
		f.how = NOTHING;
	}
	if (f.how == NOTHING)
		return hp_try_missed(d, addr, len, access, done, arg, ret_, site);
	*ret_ = pin;
	return HP_LIKELY(f.how == HIT) ? 0 : first_use(d, addr, false, site, ret_);
}

int hugepin_pin_try(hugepin_domain *d, const void *addr, size_t len, unsigned access, hugepin_pinned_fn done, void *arg,
		    struct hugepin_pin *ret_)
{
	struct found f;

	access = wanted_access(d, access);
	/* Only for foreign memory, because the heap announces that its memory goes. */
	if (!hp_in_span(d, (uintptr_t)addr) && attention_of(d, HP_ASK))
		return try_asking(d, addr, len, access, done, arg, ret_, CALLER);
	f = find(d, (uintptr_t)addr, len, access, ret_, true);
	if (HP_LIKELY(f.how == HIT))
		return 0;
	return try_otherwise(d, addr, len, access, done, arg, ret_, CALLER, f);
}

/* ------------------------------------------------------------------ lookups: hugepin_sg_key */

/* Look for a region that covers the first byte. An empty range, or one that wraps, is refused because its end is not
 * above addr. Exact regions serve pins of their own range alone. hugepin_sg_map() calls this by pointer, so the place
 * in the program is not known. */
static inline __attribute__((always_inline)) int find_key(hugepin_domain *d, const void *addr, size_t len,
							  unsigned access, struct hugepin_pin *ret_, bool later)
{
	struct found f = { .how = NOTHING };
	const struct hp_region *r;

	if (HP_UNLIKELY(!addr))
		return hugepin_unpin(d, ret_);
	access = wanted_access(d, access);
	if (HP_LIKELY((uintptr_t)addr + len > (uintptr_t)addr && !hp_is_exact(d, access)))
		f = find(d, (uintptr_t)addr, 1, access, ret_, later);
	if (f.how == AGAIN)
		f.how = look_again(d, f.index, (uintptr_t)addr, 1, access, ret_, !later);
	if (HP_UNLIKELY(f.how == NOTHING))
		return hp_key_missed(d, addr, len, access, ret_);
	r = &hp_regions[(uint32_t)ret_->ref]; /* the region is pinned, so its members do not change */
	ret_->base = r->start;
	ret_->len = r->end - r->start;
	return HP_LIKELY(f.how == HIT) ? 0 : first_use(d, addr, true, 0, ret_);
}

int hugepin_sg_key(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	return find_key(domain, addr, len, access, ret_, false);
}

int hp_key_later(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	return find_key(domain, addr, len, access, ret_, true);
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

/* ------------------------------------------------------------------ held keys: what is no hit */

_Static_assert(sizeof(struct hugepin_key) == 64, "programs have this layout compiled in");

int hugepin_key_take(hugepin_domain *d, const struct hugepin_pin *pin, unsigned layout, struct hugepin_key *ret_)
{
	const struct hp_region *r;
	uint32_t index;

	if (!d || !pin || !ret_ || !layout)
		return -EINVAL;
	if (layout > HUGEPIN_KEY_LAYOUT)
		return -EOPNOTSUPP;
	r = hp_region_of(d, pin);
	if (!r)
		return -EINVAL;
	index = hp_region_index(r);
	*ret_ = (struct hugepin_key){ .pin = *pin,
				      .domain = (const struct hugepin_key_domain *)d,
				      .life = &hp_lives[index],
				      .good = hp_region_life(r),
				      .pin_slow = HP_PIN_SLOW | (r->kind == HP_REGION_FOREIGN ? (uint32_t)HP_ASK : 0),
				      .unpin_slow = HP_UNPIN_SLOW };
	return 0;
}

static hugepin_domain *domain_of(const struct hugepin_key *key)
{
	return (hugepin_domain *)(uintptr_t)key->domain;
}

/* 0, or why the key is of no use: -ENOKEY: it was never filled in; -ESTALE: its domain is the parent process's;
 * -EINVAL: its domain was closed, or opened anew. */
static int check_key(const struct hugepin_key *key)
{
	const hugepin_domain *d = domain_of(key);

	if (!key->life)
		return -ENOKEY;
	if (d->pid && d->pid != hp_pid())
		return -ESTALE;
	return (key->pin.ref ^ d->ref) >> 32 ? -EINVAL : 0;
}

/* Set the `used` flag of a pin by a key, unless the region's life has ended meanwhile. Returns whether to tell the
 * helper. */
static bool mark_key_used(hugepin_domain *d, const struct hugepin_key *key)
{
	uint64_t unused = key->good & ~UINT64_C(1);

	/* relaxed: the flag is a hint */
	__atomic_compare_exchange_n(&hp_lives[(uint32_t)key->pin.ref], &unused, key->good, false, __ATOMIC_RELAXED,
				    __ATOMIC_RELAXED);
	return atomic_load_explicit(&d->attention, memory_order_relaxed) & HP_HELPED;
}

/* Whether a pin that this thread has counted is a hit. As in look_again(), ask the kernel first, then look at the word
 * of attention, then at the life. */
static bool is_key_hit(hugepin_domain *d, const struct hugepin_key *key)
{
	uint32_t seen = attention_for(d, hp_counts_self, key->pin_slow);

	if (seen & ~(uint32_t)HP_ASK)
		return false;
	if (seen && ((hp_must_ask(d) && hp_uffd_ask() != HP_QUIET) || attention_for(d, hp_counts_self, HP_PIN_SLOW)))
		return false;
	return (HP_READ(*key->life) | 1) == key->good;
}

int hugepin_key_pin_slow(const struct hugepin_key *key, int counted)
{
	uint32_t index = (uint32_t)key->pin.ref;
	hugepin_domain *d = domain_of(key);
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
				hp_pin_bring_in(d, &hp_regions[index]);
			record_use(d, hp_counts_self, HP_RECORD_START, index, CALLER);
		}
		return 0;
	}
	hp_count_back(hp_counts_self, index);
	err = check_key(key);
	if (!err)
		err = hp_held_missed(d, key, CALLER);
	if (!err)
		mark_key_used(d, key);
	return err;
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

/* ------------------------------------------------------------------ several at a time */

int hugepin_unpinv(hugepin_domain *d, struct hugepin_pin *pins, int n)
{
	int err = 0;

	for (int i = 0; i < n; i++)
		if (pins[i].ref && unpin(d, &pins[i]) != 0)
			err = -EINVAL;
	return err;
}

/* As hugepin_pin_at, but without asking the kernel. */
static __attribute__((noinline)) int pin_later(hugepin_domain *d, const void *addr, size_t len, unsigned access,
					       struct hugepin_pin *ret_, uint64_t site)
{
	unsigned sought;
	struct found f;

	access = wanted_access(d, access);
	sought = region_access(d, access);
	f = find(d, (uintptr_t)addr, len, sought, ret_, true);
	if (f.how == AGAIN)
		f.how = look_again(d, f.index, (uintptr_t)addr, len, sought, ret_, false);
	if (f.how == NOTHING)
		return hp_pin_missed(d, addr, len, access, ret_, site);
	return f.how == HIT ? 0 : first_use(d, addr, true, site, ret_);
}

/* Pin a piece by as many pins as it needs. Returns their number, or an error, with nothing pinned. */
static __attribute__((noinline)) int pin_one(hugepin_domain *d, const struct iovec *v, unsigned access,
					     struct hugepin_pin *ret_, int max, bool later, uint64_t site)
{
	const char *at = v->iov_base;
	size_t left = v->iov_len;
	int pins = 0, err;

	do {
		err = pins >= max ? -EMSGSIZE :
		      later	  ? pin_later(d, at, left, access, &ret_[pins], site) :
				    hugepin_pin_at(d, at, left, access, &ret_[pins], site);
		if (err) {
			hugepin_unpinv(d, ret_, pins);
			return err;
		}
		at += ret_[pins].len;
		left -= ret_[pins++].len;
	} while (left);
	return pins;
}

/* Hits of heap memory are handled here without a call; other pieces and first uses call a function. */
static inline __attribute__((always_inline)) int pin_each(hugepin_domain *d, const struct iovec *v, int n,
							  unsigned access, struct hugepin_pin *ret_, int max,
							  bool later, uint64_t site)
{
	struct hp_counts *counts = hp_counts_self;
	int pins = 0, more;

	access = wanted_access(d, access);
	for (const struct iovec *end = n ? v + n : v /* which may be NULL */; v < end; v++) {
		uintptr_t addr = (uintptr_t)v->iov_base;
		struct found f = { .how = NOTHING };

		if (HP_LIKELY(!later && pins < max && hp_in_span(d, addr))) {
			f = find_by_granule(d, addr, v->iov_len, access, &ret_[pins], &counts);
			if (HP_LIKELY(f.how == HIT)) {
				pins++;
				continue;
			}
		}
		if (f.how == AGAIN) {
			hp_count_back(counts, f.index);
		} else if (f.how == FIRST_USE) {
			hp_count_back(counts, (uint32_t)ret_[pins].ref);
			ret_[pins].ref = 0; /* hugepin_unpinv() skips it if the pin fails now */
		}
		more = pin_one(d, v, access, &ret_[pins], max - pins, later, site);
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
			       struct hugepin_pin *ret_, int max, uint64_t site)
{
	int pins = pin_each(d, v, n, access, ret_, max, true, site);

	if (pins <= 0 || all_stand(d, ret_, pins))
		return pins;
	undo(d, ret_, pins);
	return pin_each(d, v, n, access, ret_, max, false, site);
}

int hugepin_pinv(hugepin_domain *d, const struct iovec *v, int n, unsigned access, struct hugepin_pin *ret_, int max)
{
	if (n < 0 || max < 0 || (n && (!v || !ret_)))
		return -EINVAL;
	if (HP_UNLIKELY(attention_of(d, HP_ASK)))
		return pin_and_ask(d, v, n, access, ret_, max, CALLER);
	return pin_each(d, v, n, access, ret_, max, false, CALLER);
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
	err = hint.access & HP_PIN_BITS ? -EINVAL : hp_pin_check(d, addr, len, hint.access);
	if (err)
		return err;
	if (!phase) {
		hp_uffd_heed(d); /* as for a request: what this thread did before is not to drop the hint */
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
