/*
 * Buckets by their names, those that were dropped (ghosts), and what both say of sizes: how much is kept idle, and how large a
 * bucket is. lender.h has the rules. Pure. The caller has the lend's lock.
 */
#include "lend/bucket.h"

#include "base/base.h"

enum { GHOSTS_MAX = 4096, GHOSTS_OF_ALL = 16, EPOCH_MIN = 256, PATIENCE_MIN = 4, PATIENCE_MAX = 256 };
#define PAGE UINT64_C(4096)

uint64_t hp_bucket_page_bytes(uint64_t base, uint64_t len)
{
	return ((base + len + PAGE - 1) & ~(PAGE - 1)) - (base & ~(PAGE - 1));
}

uint64_t hp_bucket_bytes(const struct hp_bucket *b)
{
	return hp_bucket_page_bytes(b->base, b->len);
}

/* ------------------------------------------------------------------ buckets by name */

uint64_t hp_bucket_hash(struct hp_bucket_name n)
{
	return hp_lend_hash(n.base, n.want);
}

/* The part of the buffer in the aligned piece around addr. */
struct hp_bucket_name hp_bucket_piece(const struct hp_question *q, unsigned class)
{
	uint64_t size = hp_lend_class_bytes[class], start = q->addr & ~(size - 1);
	uint64_t base = HP_MAX(start, q->buffer);

	return (struct hp_bucket_name){ base, q->buffer_end - start < size ? q->buffer_end - base : start + size - base };
}

/* The named bucket that contains addr; the newest one, of several. */
struct hp_bucket *hp_bucket_find(const struct hp_lending *ln, struct hp_bucket_name n, uint64_t addr)
{
	uint64_t hash = hp_bucket_hash(n);

	for (struct hp_link *at = hp_table_first(&ln->buckets, hash); at; at = hp_table_next(at)) {
		struct hp_bucket *b = HP_OF(at, struct hp_bucket, by_name);

		if (b->base == n.base && b->want == n.want && addr - b->base < b->len)
			return b;
	}
	return NULL;
}

static struct hp_ghost *find_ghost(const struct hp_lending *ln, struct hp_bucket_name n)
{
	for (struct hp_link *at = hp_table_first(&ln->ghosts, hp_bucket_hash(n)); at; at = hp_table_next(at)) {
		struct hp_ghost *g = HP_OF(at, struct hp_ghost, by_name);

		if (g->base == n.base && g->want == n.want)
			return g;
	}
	return NULL;
}

static void free_ghost(struct hp_lending *ln, struct hp_ghost *g)
{
	hp_table_remove(&ln->ghosts, &g->by_name);
	if (g == ln->soon)
		ln->soon = TAILQ_NEXT(g, order);
	TAILQ_REMOVE(&ln->ghost_list, g, order);
	ln->ghost_bytes -= hp_bucket_page_bytes(g->base, g->want);
	ln->ghosts_count--;
	free(g);
}

/* A bucket that nobody asked for again: the idle list need not be that long. */
static void shorten(struct hp_lending *ln, uint64_t bytes)
{
	uint64_t least = ln->idle_base / 4;

	if (ln->policy == HUGEPIN_LEND_POOL && ln->idle_max > least)
		ln->idle_max -= HP_MIN(ln->idle_max - least, bytes / 8);
}

/* Remember a bucket that is dropped. Without memory it is not remembered. */
static void add_ghost(struct hp_lending *ln, const struct hp_bucket *b)
{
	struct hp_bucket_name n = { b->base, b->want };
	struct hp_ghost *g = find_ghost(ln, n);
	uint64_t all = ln->lent_max + ln->idle_base;

	if (g)
		free_ghost(ln, g);
	g = malloc(sizeof *g);
	if (!g)
		return;
	ln->dropped += hp_bucket_page_bytes(b->base, b->want);
	*g = (struct hp_ghost){ .base = b->base, .want = b->want, .dropped = ln->dropped, .epoch = ln->epoch, .taken = b->taken };
	hp_table_add(&ln->ghosts, &g->by_name, hp_bucket_hash(n));
	TAILQ_INSERT_TAIL(&ln->ghost_list, g, order);
	ln->ghost_bytes += hp_bucket_page_bytes(g->base, g->want);
	ln->ghosts_count++;
	if (!ln->soon)
		ln->soon = g;
	for (; ln->dropped - ln->soon->dropped > all; ln->soon = TAILQ_NEXT(ln->soon, order))
		shorten(ln, hp_bucket_page_bytes(ln->soon->base, ln->soon->want));
	while (ln->ghosts_count > GHOSTS_MAX || ln->ghost_bytes / GHOSTS_OF_ALL > all)
		free_ghost(ln, TAILQ_FIRST(&ln->ghost_list));
}

/* Take a bucket out of what is known. It is the caller's to free. */
void hp_bucket_detach(struct hp_lending *ln, struct hp_bucket *b)
{
	if (!b->leaving)
		hp_table_remove(&ln->buckets, &b->by_name);
	if (b->state != HP_BUCKET_NEW)
		hp_table_remove(&ln->regions, &b->by_region);
	if (b->state == HP_BUCKET_IDLE) {
		TAILQ_REMOVE(&ln->idle_list, b, order);
		ln->idle -= hp_bucket_bytes(b);
		ln->idle_count--;
	} else {
		TAILQ_REMOVE(&ln->lent_list, b, order);
		ln->lent -= hp_bucket_bytes(b);
	}
	ln->buckets_count--;
}

void hp_lender_forget(struct hp_lending *ln, struct hp_bucket *b)
{
	hp_bucket_detach(ln, b);
	free(b);
}

struct hp_bucket *hp_lender_oldest(struct hp_lending *ln)
{
	struct hp_bucket *b = TAILQ_FIRST(&ln->idle_list);

	if (b) {
		add_ghost(ln, b);
		hp_bucket_detach(ln, b);
	}
	return b;
}

struct hp_bucket *hp_lender_over(struct hp_lending *ln)
{
	return ln->idle > ln->idle_max ? hp_lender_oldest(ln) : NULL;
}

void hp_lender_leave(struct hp_lending *ln, struct hp_bucket *b)
{
	if (b->leaving)
		return;
	hp_table_remove(&ln->buckets, &b->by_name);
	b->leaving = true;
}

static struct hp_bucket *same_region(struct hp_link *at, uint32_t region)
{
	for (; at; at = hp_table_next(at))
		if (HP_OF(at, struct hp_bucket, by_region)->region == region)
			return HP_OF(at, struct hp_bucket, by_region);
	return NULL;
}

struct hp_bucket *hp_lender_of_region(const struct hp_lending *ln, uint32_t region)
{
	return same_region(hp_table_first(&ln->regions, hp_lend_hash(region, 0)), region);
}

struct hp_bucket *hp_lender_next_of_region(const struct hp_bucket *b)
{
	return same_region(hp_table_next(&b->by_region), b->region);
}

bool hp_bucket_regret(struct hp_lending *ln, struct hp_bucket_name n, uint64_t bytes)
{
	struct hp_ghost *g = find_ghost(ln, n);
	uint64_t all = ln->lent_max + ln->idle_base;
	bool taken = g && g->taken;

	if (g && ln->policy == HUGEPIN_LEND_POOL && ln->dropped - g->dropped <= all)
		ln->idle_max = HP_MIN(all, ln->idle_max + bytes);
	if (g)
		free_ghost(ln, g);
	return taken;
}

/* ------------------------------------------------------------------ the size of buckets */

/* How many pieces of the next larger size the buckets lie in. 0: no memory to count, or none. */
static uint64_t count_larger(const struct hp_lending *ln)
{
	uint64_t size = hp_lend_class_bytes[ln->class - 1], count = 0;
	size_t n = (size_t)ln->buckets_count + ln->ghosts_count, room = 16;
	const struct hp_bucket_list *list[] = { &ln->lent_list, &ln->idle_list };
	struct hp_bucket *b;
	struct hp_ghost *g;
	uint64_t *set;

	while (room < 2 * n)
		room *= 2;
	set = calloc(room, sizeof *set);
	if (!set)
		return 0;
#define ADD(base)                                                                                                              \
	do {                                                                                                                   \
		uint64_t frame = (base) / size + 1;                                                                            \
		size_t at = hp_lend_hash(frame, 0) >> 32 & (room - 1);                                                         \
		while (set[at] && set[at] != frame)                                                                            \
			at = (at + 1) & (room - 1);                                                                            \
		count += !set[at];                                                                                             \
		set[at] = frame;                                                                                               \
	} while (0)
	for (int i = 0; i < 2; i++)
		TAILQ_FOREACH(b, list[i], order)
			ADD(b->base);
	for (g = TAILQ_LAST(&ln->ghost_list, hp_ghost_list); g && g->epoch == ln->epoch; g = TAILQ_PREV(g, hp_ghost_list, order))
		ADD(g->base);
#undef ADD
	free(set);
	return count;
}

/* At the end of an epoch, take the next smaller or larger bucket, if that is better. An epoch has twice as many questions as
 * there are buckets, so looking at all of them costs each question a constant time. */
static void end_epoch(struct hp_lending *ln)
{
	bool thrashed = ln->epoch_taken > ln->epoch_asks / 4;
	uint64_t larger;

	ln->epoch_asks = ln->epoch_taken = 0;
	ln->epoch_len = 2 * (ln->buckets_count + ln->ghosts_count);
	if (ln->patience)
		ln->patience--;
	if (thrashed) {
		if (ln->class < HP_LEND_CLASSES - 1) {
			ln->class++;
			ln->patience = HP_MAX(ln->patience_next, (uint32_t)PATIENCE_MIN);
			ln->patience_next = HP_MIN(2 * ln->patience, (uint32_t)PATIENCE_MAX);
		}
	} else if (ln->class > 0 && !ln->patience) {
		larger = count_larger(ln);
		if (larger && larger <= ln->lent_max / 4 * 3 / hp_lend_class_bytes[ln->class - 1])
			ln->class--;
	}
	ln->epoch++;
}

void hp_bucket_count(struct hp_lending *ln, struct hp_question *q)
{
	if (!q->seen && !ln->class_fixed && ++ln->epoch_asks >= HP_MAX(ln->epoch_len, (uint32_t)EPOCH_MIN))
		end_epoch(ln);
	q->seen = true;
}
