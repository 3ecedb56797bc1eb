/*
 * Regions: registering, publishing, evicting, retiring, deregistering. All functions run under the domain's lock
 * (state.h), which is held across the backend's calls.
 *
 * Invariants:
 *  1. Only a LIVE region has a tag other than 0. A granule's tag is that of a LIVE region, or stale in a way that its
 *     reader notices.
 *  2. LIVE regions of a domain may overlap, but none lies inside another of the same access, except exact ones. So in
 *     each tree of the others the order of starts is also the order of ends.
 *  3. Regions on the list `dead` have no pins and can get none.
 *  4. Each region of the heap, except on-demand and uncached ones, holds its heap pages once (alloc/hold.h) until it is
 *     deregistered.
 *
 * Eviction uses the clock algorithm (Corbato 1968): regions are in the order in which they were registered or last
 * passed over, and a hit sets a bit in its region. So eviction roughly follows the order of last use.
 */
#include "reg/region.h"

#include <errno.h>
#include <string.h>

#include "base/stats.h"
#include "reg/counts.h"
#include "reg/domains.h"
#include "reg/trace.h"
#include "reg/uffd.h"

/* How long to wait until the kernel no longer charges memory that was deregistered: kernel 6.1 unpins io_uring buffers
 * after about a second. */
#define LATE_NS UINT64_C(1500000000)
#define LATE_STEP_NS UINT64_C(20000000)
#define LATE_STEPS (LATE_NS / LATE_STEP_NS)

enum { EXACT_MAX = 1 << 15, EXACT_LOOKS = 64 };

#define TABLE_STEP 1024u /* regions that get memory at a time */

struct hp_region *hp_regions;
uint64_t *hp_lives;
/* relaxed: a number that no other registration has */
static _Atomic uint64_t numbers; /* registrations so far, of all domains, and of the parent process */

/* Notes on the heap's regions, by index. They are not in struct hp_region, since the code of hits depends on its
 * size. */
static struct note {
	uintptr_t held_start, held_end; /* the range of heap pages that the region holds */
	uintptr_t start, end; /* the hugepages that contain all noted pins; 0 and 0: no pin is noted */
	uint32_t before, count; /* before: pins made before the noted ones; count: noted pins */
	uint32_t made; /* pins made at this index before the region was registered */
	uint32_t idle; /* the same before the lend gave its last pin back (lent.h) */
	uint32_t buckets; /* of the lend */
	uint32_t told; /* the same before it was told that the pins are wanted back */
	enum { NOT_WANTED, WANTED, TOLD } wanted; /* the pins are wanted back */
} *notes;

#define SAME_KIND(NAME, word, sentence) KIND_##NAME,
enum { HP_PROBE_KINDS(SAME_KIND) };
_Static_assert(KIND_EXTENT == (int)HP_REGION_EXTENT && KIND_RUN == (int)HP_REGION_RUN &&
		       KIND_FOREIGN == (int)HP_REGION_FOREIGN && KIND_UNCACHED == (int)HP_REGION_UNCACHED,
	       "the probes tell regions apart by these numbers");

static struct {
	struct hp_lock lock;
	uint32_t opened; /* indexes below have memory */
	uint32_t used; /* all indexes that were ever in use are below this */
	uint32_t free; /* first of the free regions, which are linked by `start`; 0: none */
} table = { .lock = HP_LOCK_INIT(HP_RANK_TABLE), .used = 1 };

/* Sealed: the service thread calls these functions. */
static HP_SEALED(struct { const struct hp_helper_hooks *hooks; }) helper;

void hp_region_set_helper(const struct hp_helper_hooks *hooks)
{
	if (helper.is.hooks)
		return;
	helper.is.hooks = hooks;
	hp_seal(&helper, sizeof helper);
}

const struct hp_helper_hooks *hp_region_helper(void)
{
	return helper.is.hooks;
}

/* ------------------------------------------------------------------ the table */

/* Tell hugepin top where the regions are (base/stats.h). */
static void expose_regions(void)
{
	__typeof__(&hp_exposed.view.region) v = &hp_exposed.view.region;

	v->regions = (uintptr_t)&hp_regions;
	v->used = (uintptr_t)&table.used;
	v->stride = sizeof(struct hp_region);
	v->start = offsetof(struct hp_region, start);
	v->end = offsetof(struct hp_region, end);
	v->domain = offsetof(struct hp_region, domain);
	v->state = offsetof(struct hp_region, state);
	v->kind = offsetof(struct hp_region, kind);
}

/* Memory for a step of regions. */
static bool open_table(uint32_t from)
{
	return hp_meta_open(&notes[from], TABLE_STEP * sizeof *notes) &&
	       hp_meta_open(&hp_regions[from], TABLE_STEP * sizeof *hp_regions);
}

int hp_regions_init(void)
{
	hp_lock(&table.lock);
	expose_regions();
	if (!hp_regions)
		hp_regions = hp_meta_reserve(HP_REGIONS_MAX * sizeof *hp_regions);
	if (!notes)
		notes = hp_meta_reserve(HP_REGIONS_MAX * sizeof *notes);
	if (!hp_lives)
		hp_lives = hp_meta_map_own(HP_REGIONS_MAX * sizeof *hp_lives);
	/* Open the first step now: hits look at region 0 if the lookup table has no entry. */
	if (!table.opened && hp_regions && notes && hp_lives && open_table(0))
		table.opened = TABLE_STEP;
	hp_unlock(&table.lock);
	return table.opened ? 0 : -ENOMEM;
}

/* All registrations belong to the parent. Empty the table, whatever state it was in at the fork. */
void hp_regions_child(void)
{
	hp_lock_reset(&table.lock);
	table.used = 1;
	table.free = 0;
	if (hp_regions)
		hp_meta_zero(hp_regions, table.opened * sizeof *hp_regions);
	if (hp_lives)
		hp_meta_zero(hp_lives, HP_REGIONS_MAX * sizeof *hp_lives);
}

uint32_t hp_regions_used(void)
{
	uint32_t used;

	hp_lock(&table.lock);
	used = table.used;
	hp_unlock(&table.lock);
	return used;
}

struct hp_region *hp_region_new(void)
{
	struct hp_region *r = NULL;

	hp_lock(&table.lock);
	if (table.free) {
		r = &hp_regions[table.free];
		table.free = (uint32_t)r->start;
	} else if (table.used < HP_REGIONS_MAX) {
		if (table.used < table.opened || open_table(table.opened)) {
			r = &hp_regions[table.used];
			if (table.used++ >= table.opened)
				table.opened += TABLE_STEP;
		}
	}
	hp_unlock(&table.lock);
	return r;
}

void hp_region_free(struct hp_region *r)
{
	HP_ASSERT(!r->tag);
	HP_WRITE(r->state, HP_REGION_FREE);
	hp_lock(&table.lock);
	HP_WRITE(r->start, table.free);
	table.free = (uint32_t)(r - hp_regions);
	hp_unlock(&table.lock);
}

static struct note *note_of(const struct hp_region *r)
{
	return &notes[r - hp_regions];
}

/* ------------------------------------------------------------------ finding */

static int compare_regions(const struct hp_region *a, const struct hp_region *b)
{
	return a->start < b->start ? -1 : a->start > b->start;
}

RB_GENERATE_INTERNAL(hp_region_tree, hp_region, node, compare_regions, __attribute__((unused)) static)

static int compare_exact(const struct hp_region *a, const struct hp_region *b)
{
	return a->start != b->start ? (a->start < b->start ? -1 : 1)
	       : a->end != b->end   ? (a->end < b->end ? -1 : 1)
	       : a->access < b->access ? -1 : a->access > b->access;
}

RB_GENERATE_INTERNAL(hp_exact_tree, hp_region, node, compare_exact, __attribute__((unused)) static)

static unsigned exact_class(uintptr_t start, uintptr_t end)
{
	return 63 - (unsigned)__builtin_clzl(end - start);
}

static struct hp_exact_tree *exact_tree_of(const struct hp_region *r)
{
	return &r->domain->exact_tree[exact_class(r->start, r->end)];
}

struct hp_region *hp_region_find_exact(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access)
{
	struct hp_region key = { .start = start, .end = end, .access = access };

	return RB_FIND(hp_exact_tree, &d->exact_tree[exact_class(start, end)], &key);
}

void hp_region_each_exact(hugepin_domain *d, uintptr_t start, uintptr_t end,
			  void (*each)(void *arg, struct hp_region *), void *arg)
{
	for (unsigned class = 0; class < HP_EXACT_CLASSES; class++) {
		uintptr_t longest = class == HP_EXACT_CLASSES - 1 ? UINTPTR_MAX : ((uintptr_t)2 << class) - 1;
		struct hp_region from = { .start = start > longest ? start - longest : 0 }, *r, *next;

		if (RB_EMPTY(&d->exact_tree[class]))
			continue;
		for (r = RB_NFIND(hp_exact_tree, &d->exact_tree[class], &from); r && r->start < end; r = next) {
			next = RB_NEXT(hp_exact_tree, &d->exact_tree[class], r);
			if (r->end > start)
				each(arg, r);
		}
	}
}

/* The last region that starts at or before addr. No earlier region reaches farther (invariant 2). */
static struct hp_region *last_from(struct hp_region_tree *tree, uintptr_t addr)
{
	struct hp_region *best = NULL;

	for (struct hp_region *r = RB_ROOT(tree); r;) {
		bool right = r->start <= addr;

		best = right ? r : best;
		r = right ? RB_RIGHT(r, node) : RB_LEFT(r, node);
	}
	return best;
}

/* The first region that ends behind addr. */
static struct hp_region *first_behind(struct hp_region_tree *tree, uintptr_t addr)
{
	struct hp_region *best = NULL;

	for (struct hp_region *r = RB_ROOT(tree); r;) {
		bool left = r->end > addr;

		best = left ? r : best;
		r = left ? RB_LEFT(r, node) : RB_RIGHT(r, node);
	}
	return best;
}

struct hp_region *hp_region_find(hugepin_domain *d, uintptr_t addr, unsigned access)
{
	struct hp_region *best = NULL, *r;

	for (unsigned set = access; set < HP_ACCESS_SETS; set = (set + 1) | access) {
		r = last_from(&d->tree[set], addr);
		if (r && r->end > (best ? best->end : addr))
			best = r;
	}
	return best;
}

void hp_region_each(hugepin_domain *d, uintptr_t start, uintptr_t end, void (*each)(void *arg, struct hp_region *),
		    void *arg)
{
	for (unsigned set = 0; set < HP_ACCESS_SETS; set++)
		for (struct hp_region *r = first_behind(&d->tree[set], start), *next; r && r->start < end; r = next) {
			next = RB_NEXT(hp_region_tree, &d->tree[set], r);
			each(arg, r);
		}
}

/* Whether the granule should name r instead of its present region. */
static bool is_better(const struct hp_region *r, const struct hp_granule *e)
{
	return !e->tag || e->end < r->end || r->access & ~e->access;
}

/* Give r a new tag, and write it into its granules. Words that pins read are written in this order: tag 0, the rest,
 * the new tag; each write pairs with HP_READ. A granule never gets the same tag twice. So a pin that reads the same tag
 * twice has read that region's words in between. */
static void name_region(struct hp_region *r)
{
	uint64_t before = r->tag, tag = HP_TAG(++r->gen, (uint32_t)(r - hp_regions));

	HP_WRITE(r->tag, tag);
	for (uintptr_t at = r->start; hp_region_is_heap(r) && at < r->end; at += HP_PAGE) {
		struct hp_granule *e = hp_granule_at(r->domain, at);

		if ((!before || e->tag != before) && !is_better(r, e))
			continue;
		HP_WRITE(e->tag, 0);
		HP_WRITE(e->end, r->end);
		HP_WRITE(e->keys, r->keys);
		HP_WRITE(e->access, r->access);
		HP_WRITE(e->used, 1);
		HP_WRITE(e->tag, tag);
	}
}

void hp_region_publish(struct hp_region *r, bool told)
{
	hugepin_domain *d = r->domain;

	HP_WRITE(r->state, HP_REGION_LIVE);
	TAILQ_INSERT_TAIL(&d->live, r, order);
	if (hp_region_is_exact(r))
		RB_INSERT(hp_exact_tree, exact_tree_of(r), r);
	else
		RB_INSERT(hp_region_tree, &d->tree[r->access], r);
	if (told && !hp_region_is_exact(r))
		name_region(r);
	else
		HP_WRITE(r->tag, HP_TAG(++r->gen, (uint32_t)(r - hp_regions)));
	HP_WRITE(hp_lives[r - hp_regions], hp_region_life(r));
}

void hp_region_name(struct hp_region *r, uintptr_t addr)
{
	if (is_better(r, hp_granule_at(r->domain, addr)))
		name_region(r);
}

void hp_region_unpublish(struct hp_region *r)
{
	hugepin_domain *d = r->domain;
	uint64_t tag = r->tag;

	if (!tag) /* an earlier range of the same batch has unpublished r */
		return;
	HP_WRITE(r->tag, 0);
	HP_WRITE(hp_lives[r - hp_regions], 0);
	TAILQ_REMOVE(&d->live, r, order);
	HP_WRITE(r->state, HP_REGION_RETIRED);
	TAILQ_INSERT_TAIL(&d->retired, r, order);
	if (hp_region_is_exact(r)) {
		RB_REMOVE(hp_exact_tree, exact_tree_of(r), r);
		return;
	}
	RB_REMOVE(hp_region_tree, &d->tree[r->access], r);
	for (uintptr_t at = r->start; hp_region_is_heap(r) && at < r->end; at += HP_PAGE)
		if (hp_granule_at(d, at)->tag == tag)
			HP_WRITE(hp_granule_at(d, at)->tag, 0);
}

void hp_region_evicted(const struct hp_region *r, enum hp_evicted why)
{
	hp_probe_eviction(r->domain->number, r->start, r->end - r->start, why);
}

/* ------------------------------------------------------------------ pins out */

uint32_t hp_region_pins(const struct hp_region *r)
{
	return hp_counts_sum((uint32_t)(r - hp_regions));
}

bool hp_regions_pinned(hugepin_domain *d)
{
	struct hp_region *r;

	hp_counts_barrier();
	TAILQ_FOREACH(r, &d->live, order)
		if (hp_region_pins(r))
			return true;
	TAILQ_FOREACH(r, &d->retired, order)
		if (hp_region_pins(r))
			return true;
	TAILQ_FOREACH(r, &d->uncached, order)
		if (hp_region_pins(r))
			return true;
	return false;
}

/* Whether no region waits for its last unpin. */
static bool none_waits(const hugepin_domain *d)
{
	return TAILQ_EMPTY(&d->retired) && TAILQ_EMPTY(&d->uncached);
}

static void declare_dead(hugepin_domain *d, struct hp_region *r)
{
	HP_WRITE(r->state, HP_REGION_DEAD);
	TAILQ_REMOVE(r->kind == HP_REGION_UNCACHED ? &d->uncached : &d->retired, r, order);
	TAILQ_INSERT_TAIL(&d->dead, r, order);
}

void hp_region_held(const struct hp_region *r, uintptr_t *ret_start, uintptr_t *ret_end)
{
	*ret_start = note_of(r)->held_start;
	*ret_end = note_of(r)->held_end;
}

bool hp_region_holds_less(const struct hp_region *r)
{
	return r->kind == HP_REGION_EXTENT &&
	       note_of(r)->held_end - note_of(r)->held_start < r->end - r->start;
}

/* Declare the regions of a list dead that have no pins. Returns the number of the others. */
static uint64_t settle_list(hugepin_domain *d, struct hp_region_list *list)
{
	struct hp_region *r, *next;
	uint64_t still = 0;

	for (r = TAILQ_FIRST(list); r; r = next) {
		next = TAILQ_NEXT(r, order);
		if (!hp_region_pins(r)) {
			declare_dead(d, r);
			continue;
		}
		still++;
		/* Of an extent that holds less, somebody may want what is held. A region for one pin is always here. */
		if (!hp_region_holds_less(r) && r->kind != HP_REGION_UNCACHED)
			hp_region_want_pins(r, true);
	}
	return still;
}

void hp_region_settle(hugepin_domain *d)
{
	uint64_t still = 0;

	if (none_waits(d)) {
		hp_attention_lower(d, HP_RETIRED);
	} else {
		/* Raise the bit before the barrier: an unpin that the sums do not see then sees the bit. */
		hp_attention_raise(d, HP_RETIRED);
		hp_counts_barrier();
		still = settle_list(d, &d->retired) + settle_list(d, &d->uncached);
		if (!still)
			hp_attention_lower(d, HP_RETIRED);
	}
	HP_DSTAT(d, retired, still - d->stats.retired);
}

/* ------------------------------------------------------------------ deregistering */

HP_TLS bool hp_registering;

/* Whether r's rkey may be with a peer: r has remote access, and was pinned. */
static bool is_handed_out(const struct hp_region *r)
{
	return r->access & HP_ACCESS_REMOTE && hp_counts_made((uint32_t)(r - hp_regions)) != note_of(r)->made;
}

/* Tell the lend and the program that r ends, or (pinned) that its pins are wanted back. */
static void tell_end(hugepin_domain *d, const struct hp_region *r, bool pinned)
{
	const struct hugepin_expiry expiry = {
		.addr = r->start, .len = r->end - r->start, .rkey = r->reg.rkey, .pinned = pinned
	};

	if (!is_handed_out(r))
		return;
	if (d->lend_hooks && pinned)
		d->lend_hooks->wanted(d->lend, (uint32_t)(r - hp_regions));
	else if (d->lend_hooks && note_of(r)->buckets)
		d->lend_hooks->dropped(d->lend, (uint32_t)(r - hp_regions));
	if (d->expire)
		d->expire(d->expire_arg, &expiry);
}

/* Whether this was told of the pins that are out. A region that is not LIVE gets no others. */
static bool is_told(const struct hp_region *r)
{
	const struct note *n = note_of(r);

	return n->wanted == TOLD && (!r->tag || hp_counts_made((uint32_t)(r - hp_regions)) == n->told);
}

void hp_region_want_pins(struct hp_region *r, bool wanted)
{
	struct note *n = note_of(r);

	if (n->wanted == WANTED)
		return;
	if (!wanted) {
		n->wanted = NOT_WANTED; /* the memory was given to another buffer */
	} else if (!is_told(r) && is_handed_out(r)) {
		n->wanted = WANTED;
		r->domain->wanted++;
	}
}

static void tell_wanted_of(hugepin_domain *d, const struct hp_region_list *list)
{
	struct hp_region *r;

	TAILQ_FOREACH(r, list, order)
		if (note_of(r)->wanted == WANTED) {
			note_of(r)->wanted = TOLD;
			note_of(r)->told = hp_counts_made((uint32_t)(r - hp_regions));
			d->wanted--;
			tell_end(d, r, true);
		}
}

/* Deregister r. gone: its memory went away, or is part of another region. */
static void deregister(hugepin_domain *d, struct hp_region *r, bool gone)
{
	uint64_t start_ns = d->backend->now_ns(d->ctx);
	size_t len = r->end - r->start;

	if (note_of(r)->wanted == WANTED)
		d->wanted--;
	tell_end(d, r, false);
	hp_registering = true;
	if (d->backend->dereg(d->ctx, &r->reg) != 0)
		HP_DSTAT(d, failed, 1);
	hp_registering = false;
	d->deregistered_at_ns = d->backend->now_ns(d->ctx);
	HP_DSTAT(d, deregistered_ns, d->deregistered_at_ns - start_ns);
	HP_DSTAT(d, deregistered, 1);
	HP_DSTAT(d, regions, -1);
	if (!r->on_demand)
		HP_DSTAT(d, pinned_bytes, -len);
	if (r->kind == HP_REGION_EXTENT) {
		HP_DSTAT(d, extents, -1);
		d->extent_bytes -= r->on_demand ? 0 : len;
	}
	d->exact_count -= hp_region_is_exact(r);
	hp_probe_deregistration(d->number, r->start, len, r->kind, d->deregistered_at_ns - start_ns);
	if (hp_trace_on)
		hp_trace(HP_TRACE_DEREGISTER, d, r->start, r->end);
	if (hp_region_is_heap(r) && !r->on_demand)
		hp_heap_drop(note_of(r)->held_start, note_of(r)->held_end - note_of(r)->held_start, d->hold);
	if (d->helper)
		hp_region_helper()->deregistered(d, r, gone);
	hp_region_free(r);
}

void hp_region_deregister_dead(hugepin_domain *d)
{
	struct hp_region *r;

	if (d->wanted) {
		tell_wanted_of(d, &d->retired);
		tell_wanted_of(d, &d->uncached);
		tell_wanted_of(d, &d->live);
	}
	if (TAILQ_EMPTY(&d->dead))
		return;
	if (!hp_domain_may_register(d)) {
		hp_attention_raise(d, HP_TODO);
		return;
	}
	hp_attention_lower(d, HP_TODO);
	while ((r = TAILQ_FIRST(&d->dead))) {
		TAILQ_REMOVE(&d->dead, r, order);
		deregister(d, r, true);
	}
}

void hp_region_last_unpin(hugepin_domain *d, struct hp_region *r)
{
	/* Another thread may have handled the last unpin already. By now the index may belong to another region. */
	if (!hp_region_is(r, d, HP_REGION_RETIRED))
		return;
	/* An uncached region has one pin, which is back. Nobody else counts it, except in vain. */
	if (r->kind != HP_REGION_UNCACHED || hp_region_pins(r))
		hp_counts_barrier();
	if (hp_region_pins(r))
		return;
	declare_dead(d, r);
	HP_DSTAT(d, retired, -1);
	if (none_waits(d))
		hp_attention_lower(d, HP_RETIRED);
	hp_region_deregister_dead(d);
}

/* ------------------------------------------------------------------ extents of which little is pinned */

/* A hit does not note the range that it pins. But if the number of pins made equals the number of pins noted, there was
 * no hit. `made` is read before the sum of pins: if the sum is 0, all pins in `made` have been given back. */
void hp_region_note(struct hp_region *r, uintptr_t start, uintptr_t end)
{
	uint32_t made = hp_counts_made((uint32_t)(r - hp_regions));
	struct note *n = note_of(r);

	start &= ~(HP_PAGE - 1);
	end = hp_round_up(end, HP_PAGE);
	if (!hp_region_pins(r)) {
		n->before = made;
		n->count = 0;
		n->start = n->end = 0;
	}
	n->count++;
	n->start = n->end ? HP_MIN(n->start, start) : start;
	n->end = HP_MAX(n->end, end);
}

static bool is_all_noted(const struct hp_region *r)
{
	const struct note *n = note_of(r);

	return n->count && hp_counts_made((uint32_t)(r - hp_regions)) - n->before == n->count;
}

static bool is_part_idle(uintptr_t start, uintptr_t end, uint32_t ticks)
{
	return start == end || hp_heap_is_free(start, end - start, ticks);
}

bool hp_region_hold_less(hugepin_domain *d, struct hp_region *r, uint32_t ticks)
{
	struct note *n = note_of(r);

	if (r->kind != HP_REGION_EXTENT || r->on_demand || !is_all_noted(r) || n->end - n->start == r->end - r->start ||
	    !is_part_idle(r->start, n->start, ticks) || !is_part_idle(n->end, r->end, ticks))
		return false;
	hp_region_unpublish(r);
	hp_counts_barrier();
	/* The counts are no longer reliable (UINT32_MAX), or a hit came meanwhile: undo. */
	if (hp_region_pins(r) == UINT32_MAX || !is_all_noted(r)) {
		TAILQ_REMOVE(&d->retired, r, order);
		hp_region_publish(r, true);
		return false;
	}
	hp_region_evicted(r, HP_EVICTED_PARTLY);
	n->held_start = n->start;
	n->held_end = n->end;
	if (r->start < n->start)
		hp_heap_drop(r->start, n->start - r->start, d->hold);
	if (n->end < r->end)
		hp_heap_drop(n->end, r->end - n->end, d->hold);
	return true;
}

/* Whether a retired extent in [start, end) still holds a part of its memory. The caller then registers no new region
 * for the whole extent. Otherwise several regions in turn could each hold a part of the extent, and the budget would be
 * charged its whole length for each. */
bool hp_region_held_less(const hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	const struct hp_region *r;

	TAILQ_FOREACH(r, &d->retired, order)
		if (r->kind == HP_REGION_EXTENT && r->start < end && r->end > start)
			return true;
	return false;
}

/* ------------------------------------------------------------------ eviction */

void hp_region_count_bucket(struct hp_region *r, bool begins)
{
	struct note *n = note_of(r);

	/* 0 at an end: r is a later registration of the same range and index */
	n->buckets = begins ? n->buckets + 1 : n->buckets - !!n->buckets;
}

void hp_region_note_idle(struct hp_region *r)
{
	note_of(r)->idle = hp_counts_made((uint32_t)(r - hp_regions));
}

bool hp_region_is_idle(const struct hp_region *r)
{
	return note_of(r)->idle == hp_counts_made((uint32_t)(r - hp_regions));
}

bool hp_region_clear_used(hugepin_domain *d, struct hp_region *r)
{
	/* relaxed: the flag is a hint */
	bool used = __atomic_fetch_and(&hp_lives[r - hp_regions], ~UINT64_C(1), __ATOMIC_RELAXED) & 1;

	used |= HP_READ(r->used) != 0;
	HP_WRITE(r->used, 0);
	if (hp_region_is_heap(r))
		for (uintptr_t at = r->start; at < r->end; at += HP_PAGE) {
			struct hp_granule *e = hp_granule_at(d, at);

			if (e->tag == r->tag && HP_READ(e->used)) {
				HP_WRITE(e->used, 0);
				used = true;
			}
		}
	return used;
}

bool hp_region_is_used(const hugepin_domain *d, const struct hp_region *r)
{
	bool used = HP_READ(r->used) || HP_PEEK(hp_lives[r - hp_regions]) & 1;

	for (uintptr_t at = r->start; hp_region_is_heap(r) && at < r->end && !used; at += HP_PAGE)
		used = hp_granule_at(d, at)->tag == r->tag && HP_READ(hp_granule_at(d, at)->used);
	return used;
}

static void to_tail(hugepin_domain *d, struct hp_region *r)
{
	TAILQ_REMOVE(&d->live, r, order);
	TAILQ_INSERT_TAIL(&d->live, r, order);
}

bool hp_region_release(hugepin_domain *d, struct hp_region *r, enum hp_evicted why)
{
	/* A first look at the counters saves most barriers. */
	if (r->state != HP_REGION_LIVE || r == d->turning || hp_region_pins(r))
		return false;
	hp_region_unpublish(r);
	hp_counts_barrier();
	TAILQ_REMOVE(&d->retired, r, order);
	if (hp_region_pins(r)) {
		hp_region_publish(r, true); /* a pin came meanwhile */
		return false;
	}
	hp_region_evicted(r, why);
	deregister(d, r, false);
	return true;
}

/* Evict one region that is not in use. If there is a helper, the plan chooses; otherwise the clock does. The clock
 * passes over regions that pin nothing if the budget wants bytes. False: every region is in use. */
static bool evict_one(hugepin_domain *d, enum hp_evicted why)
{
	struct hp_region *r;
	uint64_t looks = 2 * d->stats.regions;

	if (d->helper && hp_region_helper()->evict(d, why)) {
		HP_DSTAT(d, evicted, 1);
		return true;
	}
	while (looks-- && (r = TAILQ_FIRST(&d->live))) {
		if ((r->on_demand && why == HP_EVICTED_BUDGET) || hp_region_clear_used(d, r) ||
		    !hp_region_release(d, r, why)) {
			if (r->state == HP_REGION_LIVE)
				to_tail(d, r);
			continue;
		}
		HP_DSTAT(d, evicted, 1);
		return true;
	}
	return false;
}

/* Exact regions do not merge: the ranges of one hugepage alone are more than the table has places. So a domain keeps
 * about so many that are not in use, whatever its budget is. Looks at a few for each one that is registered. */
static void limit_exact(hugepin_domain *d)
{
	struct hp_region *r;

	for (unsigned looks = EXACT_LOOKS; d->exact_count >= EXACT_MAX && looks && (r = TAILQ_FIRST(&d->live)); looks--)
		if (hp_region_is_exact(r) && !hp_region_clear_used(d, r) && hp_region_release(d, r, HP_EVICTED_TABLE))
			HP_DSTAT(d, evicted, 1);
		else if (r->state == HP_REGION_LIVE && r == TAILQ_FIRST(&d->live))
			to_tail(d, r);
}

/* ------------------------------------------------------------------ registering */

/* Whether r, which was made ahead, still waits for its pin. */
static bool is_ready(const struct hp_ready *r)
{
	return !r->err && !r->taken;
}

/* Whether there is room for a region of that length. Those that are made ahead have their room, too, except `own`: the
 * new region is that one. */
static bool fits_budget(const hugepin_domain *d, size_t len, unsigned access, const struct hp_ready *own)
{
	uint64_t bytes = d->stats.pinned_bytes, regions = d->stats.regions;

	for (unsigned i = 0; d->ready && i < d->ready->count; i++) {
		const struct hp_ready *r = &d->ready->list[i];

		if (r != own && is_ready(r)) {
			bytes += hp_is_pinning(r->access) ? r->end - r->start : 0;
			regions++;
		}
	}
	if (regions >= d->regs_max)
		return false;
	return !hp_is_pinning(access) || (bytes <= d->bytes_max && len <= d->bytes_max - bytes);
}

static bool is_full(int err)
{
	return err == -ENOMEM || err == -EPERM || err == -EAGAIN;
}

static void sleep_ns(uint64_t ns)
{
	static _Atomic uint32_t never;

	hp_futex_wait(&never, 0, ns);
}

/* Register r with the backend. After each refusal evict a region and try again, as long as there is one to evict. */
static int call_backend(hugepin_domain *d, struct hp_region *r, unsigned access, bool evict)
{
	uint64_t start_ns = d->backend->now_ns(d->ctx), now_ns;
	unsigned waits = d->late && d->deregistered_at_ns ? LATE_STEPS : 0;
	int err;

	for (;;) {
		hp_registering = true;
		err = d->backend->reg(d->ctx, (void *)r->start, r->end - r->start, access, &r->reg);
		hp_registering = false;
		now_ns = d->backend->now_ns(d->ctx);
		if (!is_full(err))
			break;
		HP_DSTAT(d, refused, 1);
		if (!evict)
			break;
		if (evict_one(d, HP_EVICTED_REFUSED))
			continue;
		/* No region is left to evict. But the kernel may still charge memory that was deregistered. */
		if (!waits-- || now_ns - d->deregistered_at_ns > LATE_NS)
			break;
		sleep_ns(LATE_STEP_NS);
	}
	if (err == 0)
		HP_DSTAT(d, registered_ns, now_ns - start_ns);
	hp_probe_registration(d->number, r->start, r->end - r->start, r->kind, now_ns - start_ns, (uint64_t)-err);
	return !is_full(err) ? err : d->bytes_max == UINT64_MAX ? -ENOMEM : -ENOBUFS;
}

static uint64_t keys_of(const struct hugepin_reg *reg)
{
	struct hugepin_pin pin = { .lkey = reg->lkey, .rkey = reg->rkey };
	uint64_t keys;

	memcpy(&keys, &pin.lkey, sizeof keys);
	return keys;
}

/* Have the cache told when this foreign memory goes away: by the kernel, or else by the interposed calls. If the
 * kernel's events are read, the interposed calls announce only a part (unmapping.h). Neither tells of shared memory and
 * files that another process takes away. 0, -ENXIO, -EXDEV or -EADDRINUSE, as hp_region_register(). */
static int watch_foreign(const hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	if (!d->watched)
		return d->watch == HUGEPIN_WATCH_PROGRAM ? 0 : -ENXIO;
	if (hp_uffd_works())
		return hp_uffd_watch(start, end);
	if (!hp_sees_unmaps)
		return -ENXIO;
	return hp_uffd_is_private(start, end) ? 0 : -EXDEV;
}

/* The heap's pages that a region of [start, end) holds. */
static uintptr_t held_start(uintptr_t start)
{
	return start & ~(HP_PAGE - 1);
}

static uintptr_t held_end(uintptr_t end)
{
	return hp_round_up(end, HP_PAGE);
}

static bool is_held(unsigned access, enum hp_region_kind kind, uint64_t gen)
{
	return gen && hp_is_pinning(access) && kind != HP_REGION_UNCACHED;
}

static void let_go(const hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
		   uint64_t gen)
{
	if (is_held(access, kind, gen))
		hp_heap_drop(held_start(start), held_end(end) - held_start(start), d->hold);
}

/* Whether somebody tells when a program takes away parts of its buffers of the heap. Who opened the domain may do
 * without. */
static bool hears_of_heap(const hugepin_domain *d)
{
	return !d->watched || hp_uffd_works() || hp_sees_unmaps;
}

/* Have memory stay what it is, or have the cache told when it goes, before it is registered, so that no change is
 * missed. On-demand registrations follow the program's mappings by themselves. The heap drops regions before it unmaps
 * their memory. Of programs that unmap or discard parts of buffers, watching tells: if nobody watches, nothing is kept.
 * Watch the whole extent: each watched part would become a mapping of its own. */
static int keep(const hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
		uint64_t gen)
{
	struct hugepin_extent extent;
	int err;

	if (is_held(access, kind, gen)) {
		if (!hears_of_heap(d))
			return -ENXIO;
		err = hp_heap_hold(held_start(start), held_end(end) - held_start(start), gen, d->hold);
		if (err)
			return err;
		if (hp_heap_extent((void *)start, &extent))
			hp_uffd_watch_heap((uintptr_t)extent.addr, (uintptr_t)extent.addr + extent.len);
	}
	return kind == HP_REGION_FOREIGN && hp_is_pinning(access) ? watch_foreign(d, start, end) : 0;
}

/* r is what was made ahead. */
static void take_ready(hugepin_domain *d, struct hp_ready *ready, struct hp_region *r)
{
	ready->taken = true;
	r->reg = ready->reg;
	HP_DSTAT(d, registered_ns, ready->ns);
	hp_probe_registration(d->number, r->start, r->end - r->start, r->kind, ready->ns, 0);
}

static struct hp_ready *find_ready(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access,
				   enum hp_region_kind kind)
{
	for (unsigned i = 0; d->ready && i < d->ready->count; i++) {
		struct hp_ready *r = &d->ready->list[i];

		if (r->start == start && r->end == end && r->access == access && r->kind == kind && is_ready(r))
			return r;
	}
	return NULL;
}

int hp_region_register(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
		       uint64_t gen, bool evict, struct hp_region **ret_)
{
	struct hp_ready *ready = find_ready(d, start, end, access, kind);
	size_t len = end - start;
	struct hp_region *r;
	int err;

	/* hybrid evicts nothing to pin, but the table is for all domains */
	if ((evict || d->policy == HUGEPIN_POLICY_HYBRID) && hp_is_exact(d, access) && kind != HP_REGION_UNCACHED)
		limit_exact(d);
	evict &= d->bytes_max != UINT64_MAX;
	if (hp_is_pinning(access) && len > d->bytes_max)
		return -ENOBUFS;
	while (!fits_budget(d, len, access, ready)) {
		bool crowded = evict && d->stats.regions >= d->regs_max;

		HP_DSTAT(d, crowded, crowded);
		if (!evict || !evict_one(d, crowded ? HP_EVICTED_COUNT : HP_EVICTED_BUDGET))
			return d->bytes_max == UINT64_MAX ? -ENOMEM : -ENOBUFS;
	}
	if (!ready && (err = keep(d, start, end, access, kind, gen)) != 0)
		return err;
	err = -ENOMEM;
	while (!(r = hp_region_new()))
		if (!evict || !evict_one(d, HP_EVICTED_TABLE))
			goto out_keep;
	HP_WRITE(r->start, start);
	HP_WRITE(r->end, end);
	HP_WRITE(r->kind, kind);
	if (ready) {
		take_ready(d, ready, r);
	} else {
		err = call_backend(d, r, access | d->relaxed, evict);
		if (err)
			goto out_region;
	}
	HP_WRITE(r->domain, d);
	HP_WRITE(r->keys, keys_of(&r->reg));
	HP_WRITE(r->access, access & ~(unsigned)HUGEPIN_ON_DEMAND);
	HP_WRITE(r->used, 1);
	r->number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) + 1;
	*note_of(r) = (struct note){ .held_start = held_start(start), .held_end = held_end(end) };
	if (kind == HP_REGION_EXTENT || access & HP_ACCESS_REMOTE)
		note_of(r)->before = note_of(r)->made = hp_counts_made((uint32_t)(r - hp_regions));
	r->cut = false;
	r->on_demand = !hp_is_pinning(access);
	HP_DSTAT(d, registered, 1);
	HP_DSTAT(d, registered_bytes, len);
	HP_DSTAT(d, regions, 1);
	if (kind == HP_REGION_EXTENT) {
		HP_DSTAT(d, extents, 1);
		d->extent_bytes += r->on_demand ? 0 : len;
	}
	d->exact_count += hp_region_is_exact(r);
	if (!r->on_demand)
		HP_DSTAT(d, pinned_bytes, len);
	if (hp_trace_on)
		hp_trace(HP_TRACE_REGISTER, d, start, end);
	if (d->stats.pinned_bytes > d->stats.pinned_peak_bytes)
		HP_DSTAT(d, pinned_peak_bytes, d->stats.pinned_bytes - d->stats.pinned_peak_bytes);
	if (kind == HP_REGION_UNCACHED) {
		HP_WRITE(r->state, HP_REGION_RETIRED);
		TAILQ_INSERT_TAIL(&d->uncached, r, order);
		HP_DSTAT(d, retired, 1);
		hp_attention_raise(d, HP_RETIRED);
	}
	*ret_ = r;
	return 0;
out_region:
	hp_region_free(r);
out_keep:
	if (!ready)
		let_go(d, start, end, access, kind, gen);
	return err;
}

/* ------------------------------------------------------------------ registering ahead of pins */

bool hp_region_may_be_ready(const hugepin_domain *d, size_t len, unsigned access)
{
	return fits_budget(d, len, access, NULL);
}

void hp_region_keep_ready(hugepin_domain *d, struct hp_ready *r)
{
	r->err = keep(d, r->start, r->end, r->access, r->kind, r->gen);
}

void hp_region_make_ready(hugepin_domain *d, struct hp_ready *r)
{
	uint64_t start_ns;

	if (r->err)
		return;
	start_ns = d->backend->now_ns(d->ctx);
	hp_registering = true;
	r->err = d->backend->reg(d->ctx, (void *)r->start, r->end - r->start, r->access | d->relaxed, &r->reg);
	hp_registering = false;
	r->ns = d->backend->now_ns(d->ctx) - start_ns;
	if (r->err)
		let_go(d, r->start, r->end, r->access, r->kind, r->gen);
}

void hp_region_end_ready(hugepin_domain *d, struct hp_ready *r)
{
	if (is_full(r->err))
		HP_DSTAT(d, refused, 1);
	if (!is_ready(r))
		return;
	hp_registering = true;
	if (d->backend->dereg(d->ctx, &r->reg) != 0)
		HP_DSTAT(d, failed, 1);
	hp_registering = false;
	d->deregistered_at_ns = d->backend->now_ns(d->ctx);
	let_go(d, r->start, r->end, r->access, r->kind, r->gen);
}
