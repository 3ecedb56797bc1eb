/*
 * Regions: their table, their places in trees and granules, and their `used` flag. All functions run under the domain's
 * lock (state.h), except those of the table, which has a lock of its own.
 *
 * Invariants:
 * 1. Only a LIVE region has a tag other than 0. A granule's tag is that of a LIVE region, or stale in a way that its
 *    reader notices.
 * 2. LIVE regions of a domain may overlap, but none lies inside another of the same access, except exact ones. So in
 *    each tree of the others the order of starts is also the order of ends.
 */
#include "reg/region.h"

#include <errno.h>
#include <string.h>

#include "base/stats.h"
#include "reg/counts.h"
#include "reg/stakes.h"

#define TABLE_STEP 1024u /* regions that get memory at a time */

struct hp_region *hp_regions;
uint64_t *hp_lives;
struct hp_region_notes *hp_region_notes;
struct hp_stake *hp_region_stakes;

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
	uint32_t beyond; /* places in use beyond HP_REGIONS_SURE of each domain */
} table = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_TABLE), .used = 1 };

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
	v->made = offsetof(struct hp_region, made);
}

/* Memory for a step of regions. */
static bool open_table(uint32_t from)
{
	return hp_meta_open(&hp_region_notes[from], TABLE_STEP * sizeof *hp_region_notes) &&
	       hp_meta_open(&hp_region_stakes[from], TABLE_STEP * sizeof *hp_region_stakes) &&
	       hp_meta_open(&hp_regions[from], TABLE_STEP * sizeof *hp_regions);
}

int hp_regions_init(void)
{
	hp_lock(&table.lock);
	expose_regions();
	if (!hp_regions)
		hp_regions = hp_meta_reserve(HP_REGIONS_MAX * sizeof *hp_regions);
	if (!hp_region_notes)
		hp_region_notes = hp_meta_reserve(HP_REGIONS_MAX * sizeof *hp_region_notes);
	if (!hp_region_stakes)
		hp_region_stakes = hp_meta_reserve(HP_REGIONS_MAX * sizeof *hp_region_stakes);
	if (!hp_lives)
		hp_lives = hp_meta_map_own(HP_REGIONS_MAX * sizeof *hp_lives);
	/* Open the first step now, because hits look at region 0 if the lookup table has no entry. */
	if (!table.opened && hp_regions && hp_region_notes && hp_region_stakes && hp_lives && open_table(0))
		table.opened = TABLE_STEP;
	hp_unlock(&table.lock);
	return table.opened ? 0 : -ENOMEM;
}

/* All registrations belong to the parent, so empty the table, whatever its state at the fork. */
void hp_regions_child(void)
{
	hp_lock_reset(&table.lock);
	table.used = 1;
	table.free = table.beyond = 0;
	if (hp_regions)
		hp_meta_zero(hp_regions, table.opened * sizeof *hp_regions);
	if (hp_lives)
		hp_meta_zero(hp_lives, HP_REGIONS_MAX * sizeof *hp_lives);
}

uint32_t hp_regions_used(void)
{
	return HP_READ(table.used); /* pairs with hp_region_new() */
}

/* Whether a place is beyond those that d is sure of, if d has so many with this one. */
static bool is_beyond(const hugepin_domain *d, uint32_t places)
{
	return !d || places > HP_REGIONS_SURE;
}

struct hp_region *hp_region_new(hugepin_domain *d)
{
	const uint32_t beyond_max = HP_REGIONS_MAX - 1 - HP_REGIONS_KEPT;
	struct hp_region *r = NULL;
	bool beyond, may;

	hp_lock(&table.lock);
	beyond = is_beyond(d, d ? d->places + 1 : 0);
	may = !beyond || table.beyond < beyond_max;
	if (may && table.free) {
		r = &hp_regions[table.free];
		table.free = (uint32_t)r->start;
	} else if (may && table.used < HP_REGIONS_MAX) {
		if (table.used < table.opened || open_table(table.opened)) {
			r = &hp_regions[table.used];
			if (table.used >= table.opened)
				table.opened += TABLE_STEP;
			HP_WRITE(table.used, table.used + 1);
		}
	}
	if (r) {
		table.beyond += beyond;
		if (d)
			d->places++;
	}
	hp_unlock(&table.lock);
	return r;
}

void hp_region_free(hugepin_domain *d, struct hp_region *r)
{
	HP_ASSERT(!r->tag);
	hp_stakes_remove(&hp_region_stakes[hp_region_index(r)]);
	HP_WRITE(r->state, HP_REGION_FREE);
	hp_lock(&table.lock);
	table.beyond -= is_beyond(d, d ? d->places : 0);
	if (d)
		d->places--;
	HP_WRITE(r->start, table.free);
	table.free = hp_region_index(r);
	hp_unlock(&table.lock);
}

/* ------------------------------------------------------------------ finding */

static int compare_regions(const struct hp_region *a, const struct hp_region *b)
{
	return a->start < b->start ? -1 : a->start > b->start;
}

RB_GENERATE_INTERNAL(hp_region_tree, hp_region, node, compare_regions, __attribute__((unused)) static)

/* Waiting regions of one range and access differ by their number alone. Exact ones differ otherwise, so that the key of
 * a search needs none: 0. */
static int compare_lengths(const struct hp_region *a, const struct hp_region *b)
{
	return a->start != b->start ? (a->start < b->start ? -1 : 1)
	       : a->end != b->end   ? (a->end < b->end ? -1 : 1)
	       : a->access != b->access ? (a->access < b->access ? -1 : 1)
	       : a->number < b->number && a->number ? -1 : a->number > b->number && b->number;
}

RB_GENERATE_INTERNAL(hp_length_tree, hp_region, node, compare_lengths, __attribute__((unused)) static)

static unsigned length_class(uintptr_t start, uintptr_t end)
{
	return 63 - (unsigned)__builtin_clzl(end - start);
}

static struct hp_length_tree *exact_tree_of(const struct hp_region *r)
{
	return &r->domain->exact_tree[length_class(r->start, r->end)];
}

static struct hp_length_tree *waiting_tree_of(const struct hp_region *r)
{
	return &r->domain->waiting_tree[length_class(r->start, r->end)];
}

struct hp_region *hp_region_find_exact(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access)
{
	struct hp_region key = { .start = start, .end = end, .access = access };

	return RB_FIND(hp_length_tree, &d->exact_tree[length_class(start, end)], &key);
}

static void each_overlapping(struct hp_length_tree *trees, uintptr_t start, uintptr_t end,
			     void (*each)(void *arg, struct hp_region *), void *arg)
{
	for (unsigned class = 0; class < HP_LENGTH_CLASSES; class++) {
		uintptr_t longest = class == HP_LENGTH_CLASSES - 1 ? UINTPTR_MAX : ((uintptr_t)2 << class) - 1;
		struct hp_region from = { .start = start > longest ? start - longest : 0 }, *r, *next;

		if (RB_EMPTY(&trees[class]))
			continue;
		for (r = RB_NFIND(hp_length_tree, &trees[class], &from); r && r->start < end; r = next) {
			next = RB_NEXT(hp_length_tree, &trees[class], r);
			if (r->end > start)
				each(arg, r);
		}
	}
}

void hp_region_each_exact(hugepin_domain *d, uintptr_t start, uintptr_t end,
			  void (*each)(void *arg, struct hp_region *), void *arg)
{
	each_overlapping(d->exact_tree, start, end, each, arg);
}

void hp_region_each_waiting(hugepin_domain *d, uintptr_t start, uintptr_t end,
			    void (*each)(void *arg, struct hp_region *), void *arg)
{
	each_overlapping(d->waiting_tree, start, end, each, arg);
}

void hp_region_waits(struct hp_region *r)
{
	RB_INSERT(hp_length_tree, waiting_tree_of(r), r);
}

void hp_region_waits_no_more(struct hp_region *r)
{
	RB_REMOVE(hp_length_tree, waiting_tree_of(r), r);
}

/* A copy of a pin that was given back may name another region by now. */
const struct hp_region *hp_region_of(const hugepin_domain *d, const struct hugepin_pin *pin)
{
	const uint32_t index = (uint32_t)pin->ref;
	const struct hp_region *r = &hp_regions[index];

	if ((pin->ref ^ d->ref) >> 32 || !index || index >= hp_regions_used())
		return NULL;
	if (HP_READ(r->state) == HP_REGION_FREE || HP_READ(r->domain) != d || HP_READ(r->start) > pin->base ||
	    HP_READ(r->end) < pin->base || pin->len > HP_READ(r->end) - pin->base ||
	    memcmp(&r->keys, &pin->lkey, sizeof r->keys) != 0)
		return NULL;
	return r;
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
 * the new tag; each write pairs with HP_READ. A granule never gets the same tag twice, so a pin that reads the same tag
 * twice has read that region's words in between. */
static void name_region(struct hp_region *r)
{
	uint64_t before = r->tag, tag = HP_TAG(++r->gen, hp_region_index(r));

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
	r->is_aside = false;
	if (hp_region_is_exact(r))
		RB_INSERT(hp_length_tree, exact_tree_of(r), r);
	else
		RB_INSERT(hp_region_tree, &d->tree[r->access], r);
	if (told && !hp_region_is_exact(r))
		name_region(r);
	else
		HP_WRITE(r->tag, HP_TAG(++r->gen, hp_region_index(r)));
	HP_WRITE(hp_lives[hp_region_index(r)], hp_region_life(r));
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
	HP_WRITE(hp_lives[hp_region_index(r)], 0);
	TAILQ_REMOVE(r->is_aside ? &d->aside : &d->live, r, order);
	HP_WRITE(r->state, HP_REGION_RETIRED);
	TAILQ_INSERT_TAIL(&d->unsettled, r, order);
	if (hp_region_is_exact(r)) {
		RB_REMOVE(hp_length_tree, exact_tree_of(r), r);
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

/* ------------------------------------------------------------------ use */

uint32_t hp_region_pins(const struct hp_region *r)
{
	return hp_counts_sum(hp_region_index(r));
}

bool hp_region_clear_used(hugepin_domain *d, struct hp_region *r)
{
	/* relaxed: the flag is a hint */
	bool used = __atomic_fetch_and(&hp_lives[hp_region_index(r)], ~UINT64_C(1), __ATOMIC_RELAXED) & 1;

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
	bool used = HP_READ(r->used) || HP_PEEK(hp_lives[hp_region_index(r)]) & 1;

	for (uintptr_t at = r->start; hp_region_is_heap(r) && at < r->end && !used; at += HP_PAGE)
		used = hp_granule_at(d, at)->tag == r->tag && HP_READ(hp_granule_at(d, at)->used);
	return used;
}
