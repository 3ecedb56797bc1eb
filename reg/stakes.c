/*
 * See stakes.h.
 *
 * The entries are in trees by the logarithm of their length, and there in the order of their starts. So an entry of a
 * class that overlaps an address starts less than twice the class's length below it.
 */
#include "reg/stakes.h"

#include "reg/queue.h"

RB_HEAD(hp_stake_tree, hp_stake);

static struct {
	struct hp_lock lock;
	struct hp_stake_tree tree[HP_LENGTH_CLASSES];
	uint64_t walks;
	uint64_t ids, first_id; /* so many entries were ever made; earlier ones are the parent's */
	struct hp_range range[HP_GONE_MAX]; /* the last ranges, by number */
	_Atomic uint64_t noted; /* ranges ever noted; relaxed: the lock */
} all = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_GONE), .first_id = 1 };

uint64_t hp_stakes_looks;

static uint64_t lock_all(void)
{
	return hp_queue_lock_any(&all.lock);
}

static void unlock_all(uint64_t mask)
{
	hp_queue_unlock_any(&all.lock, mask);
}

/* ------------------------------------------------------------------ entries */

static int compare_entries(const struct hp_stake *a, const struct hp_stake *b)
{
	return a->start != b->start ? (a->start < b->start ? -1 : 1) : a->id < b->id ? -1 : a->id > b->id;
}

RB_GENERATE_INTERNAL(hp_stake_tree, hp_stake, node, compare_entries, __attribute__((unused)) static)

static struct hp_stake_tree *tree_of(const struct hp_stake *h)
{
	return &all.tree[63 - (unsigned)__builtin_clzl(h->end - h->start)];
}

static void insert(struct hp_stake *h, hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	h->start = start;
	h->end = end;
	h->domain = d;
	h->id = ++all.ids;
	RB_INSERT(hp_stake_tree, tree_of(h), h);
}

static void take_out(struct hp_stake *h)
{
	if (h->id >= all.first_id)
		RB_REMOVE(hp_stake_tree, tree_of(h), h);
	h->id = 0;
}

/* Whether memory in [start, end) went away since range number `seen`, or may have: older ranges are not kept. */
static bool has_gone(uintptr_t start, uintptr_t end, uint64_t seen)
{
	const uint64_t noted = atomic_load_explicit(&all.noted, memory_order_relaxed);
	bool any = noted - seen > HP_GONE_MAX;

	for (uint64_t i = seen; i < noted && !any; i++) {
		const struct hp_range *r = &all.range[i % HP_GONE_MAX];

		any = r->start < end && r->end > start;
	}
	return any;
}

bool hp_stakes_add(struct hp_stake *h, hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	const uint64_t mask = lock_all();
	bool gone;

	insert(h, d, start, end);
	gone = has_gone(start, end, d->gone_seen);
	unlock_all(mask);
	return gone;
}

void hp_stakes_remove(struct hp_stake *h)
{
	uint64_t mask;

	if (!h->id)
		return;
	mask = lock_all();
	take_out(h);
	unlock_all(mask);
}

void hp_stakes_listen(hugepin_domain *d, int more)
{
	uint64_t mask;

	if (!more)
		return;
	mask = lock_all();
	d->listening += (uint32_t)more;
	if (d->listening && !d->everywhere.id)
		insert(&d->everywhere, d, 0, UINTPTR_MAX);
	else if (!d->listening && d->everywhere.id)
		take_out(&d->everywhere);
	unlock_all(mask);
}

void hp_stakes_forget(hugepin_domain *d)
{
	const uint64_t mask = lock_all();

	d->listening = 0;
	if (d->everywhere.id)
		take_out(&d->everywhere);
	unlock_all(mask);
}

/* ------------------------------------------------------------------ what goes away */

/* release: what was done before the range was noted is seen; pairs with hp_stakes_latest(). */
void hp_stakes_note(const struct hp_range *range)
{
	const uint64_t mask = lock_all(), noted = atomic_load_explicit(&all.noted, memory_order_relaxed);

	all.range[noted % HP_GONE_MAX] = *range;
	atomic_store_explicit(&all.noted, noted + 1, memory_order_release);
	unlock_all(mask);
}

uint64_t hp_stakes_latest(void)
{
	return atomic_load_explicit(&all.noted, memory_order_acquire); /* pairs with hp_stakes_note() */
}

/* Go on in the walk's class. Returns the number of domains found, which may be the most that there is room for. */
static unsigned find_in_class(struct hp_stakes_walk *w, hugepin_domain **ret_, unsigned n)
{
	struct hp_stake_tree *tree = &all.tree[w->class];
	struct hp_stake *h = RB_NFIND(hp_stake_tree, tree, &w->from);

	for (; h && h->start < w->end && n < HP_STAKES_STEP; h = RB_NEXT(hp_stake_tree, tree, h)) {
		hp_stakes_looks++;
		if (h->end <= w->start || h->domain->found == w->number)
			continue;
		h->domain->found = w->number;
		ret_[n++] = h->domain;
	}
	if (h && h->start < w->end) {
		w->from = (struct hp_stake){ .start = h->start, .id = h->id };
	} else {
		w->class++;
		w->from.id = 0;
	}
	return n;
}

static void begin_class(struct hp_stakes_walk *w)
{
	const uintptr_t longest =
		w->class == HP_LENGTH_CLASSES - 1 ? UINTPTR_MAX : ((uintptr_t)2 << w->class) - 1;

	w->from = (struct hp_stake){ .start = w->start > longest ? w->start - longest : 0, .id = 1 };
}

unsigned hp_stakes_next(struct hp_stakes_walk *w, hugepin_domain *ret_[HP_STAKES_STEP])
{
	const uint64_t mask = lock_all();
	unsigned n = 0;

	if (!w->number)
		w->number = ++all.walks;
	while (w->class < HP_LENGTH_CLASSES && n < HP_STAKES_STEP) {
		if (RB_EMPTY(&all.tree[w->class])) {
			w->class++;
			w->from.id = 0;
			continue;
		}
		if (!w->from.id)
			begin_class(w);
		n = find_in_class(w, ret_, n);
	}
	unlock_all(mask);
	return n;
}

/* There is no other thread. */
void hp_stakes_child(void)
{
	hp_lock_reset(&all.lock);
	for (unsigned i = 0; i < HP_LENGTH_CLASSES; i++)
		RB_INIT(&all.tree[i]);
	all.first_id = all.ids + 1;
}
