/*
 * Buckets by name, ghosts (buckets that were dropped), and buckets that peers had to give back. From these follow two
 * sizes: how much is kept idle, and how large a bucket is. lender.h has the rules. Pure. The caller has the lend's
 * lock.
 */
#include "lend/bucket.h"

#include "base/base.h"

enum {
	GHOSTS_MAX = 4096,
	EPOCH_MIN = 256,
	LARGER_WAIT_MIN = 4,
	LARGER_WAIT_MAX = 256,
	GIVEN_BITS_MIN = 6,
	GIVEN_BITS_MAX = 16,
	OTHERS_PART = 16, /* peers that ask a smaller part of all questions hardly ask */
};

uint64_t hp_bucket_page_bytes(uint64_t base, uint64_t len)
{
	return hp_round_up(base + len, hp_base_page) - (base & -hp_base_page);
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

struct hp_bucket_name hp_bucket_piece(const struct hp_question *q, unsigned class)
{
	uint64_t size = hp_lend_class_bytes[class], start = q->addr & ~(size - 1);
	uint64_t base = HP_MAX(start, q->buffer);

	return (struct hp_bucket_name){ base,
					q->buffer_end - start < size ? q->buffer_end - base : start + size - base };
}

struct hp_bucket *hp_bucket_find(const struct hp_lender *ln, struct hp_bucket_name n, uint64_t addr)
{
	uint64_t hash = hp_bucket_hash(n);

	for (struct hp_link *at = hp_table_first(&ln->buckets, hash); at; at = hp_table_next(at)) {
		struct hp_bucket *b = HP_OF(at, struct hp_bucket, by_name);

		if (b->base == n.base && b->want == n.want && addr - b->base < b->len)
			return b;
	}
	return NULL;
}

static struct hp_ghost *find_ghost(const struct hp_lender *ln, struct hp_bucket_name n)
{
	for (struct hp_link *at = hp_table_first(&ln->ghosts, hp_bucket_hash(n)); at; at = hp_table_next(at)) {
		struct hp_ghost *g = HP_OF(at, struct hp_ghost, by_name);

		if (g->base == n.base && g->want == n.want)
			return g;
	}
	return NULL;
}

static void free_ghost(struct hp_lender *ln, struct hp_ghost *g)
{
	hp_table_remove(&ln->ghosts, &g->by_name);
	TAILQ_REMOVE(&ln->ghost_list, g, order);
	ln->ghost_bytes -= hp_bucket_page_bytes(g->base, g->want);
	ln->ghosts_count--;
	free(g);
}

/* Nobody asked for a dropped bucket again, so make the idle list shorter. */
static void shorten(struct hp_lender *ln, uint64_t bytes)
{
	uint64_t least = ln->idle_base / 4;

	if (ln->policy == HUGEPIN_LEND_POOL && ln->idle_max > least)
		ln->idle_max -= HP_MIN(ln->idle_max - least, bytes / 8);
}

/* Remember a bucket that is dropped, if there is memory for that. */
static void add_ghost(struct hp_lender *ln, const struct hp_bucket *b)
{
	struct hp_bucket_name n = { b->base, b->want };
	struct hp_ghost *g = find_ghost(ln, n);

	if (g)
		free_ghost(ln, g);
	g = malloc(sizeof *g);
	if (!g)
		return;
	*g = (struct hp_ghost){ .base = b->base, .want = b->want, .epoch = ln->epoch };
	hp_table_add(&ln->ghosts, &g->by_name, hp_bucket_hash(n));
	TAILQ_INSERT_TAIL(&ln->ghost_list, g, order);
	ln->ghost_bytes += hp_bucket_page_bytes(g->base, g->want);
	ln->ghosts_count++;
	while (ln->ghosts_count > GHOSTS_MAX || ln->ghost_bytes > ln->lent_max + ln->idle_base) {
		g = TAILQ_FIRST(&ln->ghost_list);
		shorten(ln, hp_bucket_page_bytes(g->base, g->want));
		free_ghost(ln, g);
	}
}

void hp_bucket_detach(struct hp_lender *ln, struct hp_bucket *b)
{
	if (!b->retired)
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
	if (b->retired)
		ln->retired -= hp_bucket_bytes(b);
	ln->buckets_count--;
}

void hp_lender_forget(struct hp_lender *ln, struct hp_bucket *b)
{
	hp_bucket_detach(ln, b);
	free(b);
}

struct hp_bucket *hp_lender_oldest(struct hp_lender *ln)
{
	struct hp_bucket *b = TAILQ_FIRST(&ln->idle_list);

	if (b) {
		add_ghost(ln, b);
		hp_bucket_detach(ln, b);
	}
	return b;
}

struct hp_bucket *hp_lender_over(struct hp_lender *ln)
{
	return ln->idle > ln->idle_max ? hp_lender_oldest(ln) : NULL;
}

void hp_lender_retire(struct hp_lender *ln, struct hp_bucket *b)
{
	if (b->retired)
		return;
	hp_table_remove(&ln->buckets, &b->by_name);
	b->retired = true;
	ln->retired += hp_bucket_bytes(b);
	b->recall = TAILQ_FIRST(&b->loans);
	if (b->recall)
		TAILQ_INSERT_TAIL(&ln->recalls, b, recalls);
}

void hp_bucket_recalled(struct hp_lender *ln, struct hp_bucket *b)
{
	b->recall = TAILQ_NEXT(b->recall, of_bucket);
	if (!b->recall)
		TAILQ_REMOVE(&ln->recalls, b, recalls);
}

struct hp_loan *hp_lender_recall(struct hp_lender *ln)
{
	struct hp_bucket *b = TAILQ_FIRST(&ln->recalls);
	struct hp_loan *loan = b ? b->recall : NULL;

	if (loan)
		hp_bucket_recalled(ln, b);
	return loan;
}

static struct hp_bucket *same_region(struct hp_link *at, uint32_t region)
{
	for (; at; at = hp_table_next(at))
		if (HP_OF(at, struct hp_bucket, by_region)->region == region)
			return HP_OF(at, struct hp_bucket, by_region);
	return NULL;
}

struct hp_bucket *hp_lender_of_region(const struct hp_lender *ln, uint32_t region)
{
	return same_region(hp_table_first(&ln->regions, hp_lend_hash(region, 0)), region);
}

struct hp_bucket *hp_lender_next_of_region(const struct hp_bucket *b)
{
	return same_region(hp_table_next(&b->by_region), b->region);
}

void hp_bucket_regret(struct hp_lender *ln, struct hp_bucket_name n, uint64_t bytes)
{
	struct hp_ghost *g = find_ghost(ln, n);

	if (!g)
		return;
	if (ln->policy == HUGEPIN_LEND_POOL)
		ln->idle_max = HP_MIN(ln->lent_max + ln->idle_base, ln->idle_max + bytes);
	free_ghost(ln, g);
}

/* ------------------------------------------------------------------ the size of buckets */

/* Add a number, which is not 0, to a hash set of `room` places, a power of two. False: it was there. */
static bool add_once(uint64_t *set, size_t room, uint64_t number)
{
	size_t at = hp_lend_hash(number, 0) >> 32 & (room - 1);

	while (set[at] && set[at] != number)
		at = (at + 1) & (room - 1);
	if (set[at])
		return false;
	set[at] = number;
	return true;
}

/* The number of pieces of the next larger size in which the buckets lie. 0: no memory to count, or none. */
static uint64_t count_larger(const struct hp_lender *ln)
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
	for (int i = 0; i < 2; i++)
		TAILQ_FOREACH(b, list[i], order)
			count += add_once(set, room, b->base / size + 1);
	g = TAILQ_LAST(&ln->ghost_list, hp_ghost_list);
	for (; g && g->epoch == ln->epoch; g = TAILQ_PREV(g, hp_ghost_list, order))
		count += add_once(set, room, g->base / size + 1);
	free(set);
	return count;
}

uint64_t hp_bucket_most(const struct hp_lender *ln)
{
	return HP_MAX(ln->lent_max / 4, hp_lend_class_bytes[HP_LEND_CLASSES - 1]);
}

bool hp_bucket_is_larger(const struct hp_lender *ln, const struct hp_bucket *b)
{
	return b->want > hp_lend_class_bytes[ln->class] && b->state == HP_BUCKET_LENT && !b->retired;
}

/* Take the next smaller bucket size. Put lent buckets that are larger now first in their list, so that they are asked
 * back first. */
static void take_smaller(struct hp_lender *ln)
{
	struct hp_bucket *b = TAILQ_FIRST(&ln->lent_list), *last = TAILQ_LAST(&ln->lent_list, hp_bucket_list), *next;

	ln->class++;
	ln->larger_after = ln->larger_wait;
	ln->larger_wait = HP_MIN(2 * ln->larger_wait, (uint32_t)LARGER_WAIT_MAX);
	for (; b; b = next) {
		next = b == last ? NULL : TAILQ_NEXT(b, order);
		if (!hp_bucket_is_larger(ln, b))
			continue;
		TAILQ_REMOVE(&ln->lent_list, b, order);
		TAILQ_INSERT_HEAD(&ln->lent_list, b, order);
	}
}

/* Whether these questions went through memory in order, or found that memory in use does not fit. */
static bool was_ordered(struct hp_tally t)
{
	return t.near > t.asks / 4 * 3;
}

static bool was_thrashed(struct hp_tally t)
{
	return t.again > t.asks / 8;
}

/* The questions of all peers but the one that asked most; of all, if the others hardly asked. */
static struct hp_tally of_others(const struct hp_lender *ln)
{
	const struct hp_tally *all = &ln->tally, *most = &ln->holder[ln->busiest].tally;

	if ((all->asks - most->asks) < all->asks / OTHERS_PART)
		return *all;
	return (struct hp_tally){ all->asks - most->asks, all->again - most->again, all->near - most->near };
}

static bool may_be_larger(const struct hp_lender *ln)
{
	return ln->class > 0 && hp_lend_class_bytes[ln->class - 1] <= hp_bucket_most(ln);
}

/* At the end of an epoch, change to the next smaller or larger bucket size if that is better. An epoch has twice as
 * many questions as there are buckets, so looking at all buckets costs each question a constant time. */
static void end_epoch(struct hp_lender *ln)
{
	struct hp_tally all = ln->tally, others = of_others(ln);
	uint64_t larger;

	ln->tally = (struct hp_tally){ 0 };
	ln->epoch_len = HP_MAX((uint32_t)EPOCH_MIN, 2 * (ln->buckets_count + ln->ghosts_count));
	if (ln->larger_after)
		ln->larger_after--;
	if (ln->smaller_after)
		ln->smaller_after--;
	if (was_ordered(all) && was_ordered(others)) {
		if (may_be_larger(ln)) {
			ln->class--;
			ln->smaller_after = ln->larger_wait;
		}
	} else if (was_thrashed(all)) {
		if (was_thrashed(others) && ln->class < HP_LEND_CLASSES - 1 && !ln->smaller_after)
			take_smaller(ln);
	} else if (may_be_larger(ln) && !ln->larger_after) {
		larger = count_larger(ln);
		if (larger && larger <= ln->lent_max / 4 * 3 / hp_lend_class_bytes[ln->class - 1])
			ln->class--;
	}
	ln->epoch++;
}

/* The peer's tally of this epoch. */
static struct hp_tally *tally_of(struct hp_lender *ln, uint32_t peer)
{
	struct hp_holder *h = &ln->holder[peer];

	if (h->tallied != ln->epoch)
		h->tally = (struct hp_tally){ 0 };
	h->tallied = ln->epoch;
	return &h->tally;
}

/* log2 of the number of remembered buckets that peers had to give back, for buckets of this class. */
static unsigned given_bits(const struct hp_lender *ln, unsigned class)
{
	unsigned bits = GIVEN_BITS_MIN;

	while (bits < GIVEN_BITS_MAX && hp_lend_class_bytes[class] << bits < 8 * ln->lent_max)
		bits++;
	return bits;
}

/* A peer gave this bucket back because room was wanted. A later one with the same place replaces it. With the smallest
 * buckets nothing is remembered, because no smaller size could be taken. */
static uint64_t *given_place(const struct hp_lender *ln, uint64_t hash)
{
	return &ln->given[hash >> (64 - HP_MIN(ln->given_bits, given_bits(ln, ln->class)))];
}

static uint64_t given_hash(uint32_t peer, struct hp_bucket_name n)
{
	return hp_lend_hash(hp_bucket_hash(n), peer) | 1;
}

void hp_bucket_note_given(struct hp_lender *ln, uint32_t peer, struct hp_bucket_name n)
{
	uint64_t hash = given_hash(peer, n);

	if (ln->class < HP_LEND_CLASSES - 1)
		*given_place(ln, hash) = hash;
}

static bool was_given(struct hp_lender *ln, uint32_t peer, struct hp_bucket_name n)
{
	uint64_t hash = given_hash(peer, n), *place = given_place(ln, hash);
	bool given = ln->class < HP_LEND_CLASSES - 1 && *place == hash;

	if (given)
		*place = 0;
	return given;
}

/* Whether this question is in the same piece of the next larger bucket as one of the peer's last two. */
static bool is_near(struct hp_lender *ln, const struct hp_question *q)
{
	struct hp_holder *h = &ln->holder[q->peer];
	uint64_t at;

	if (!ln->class)
		return false;
	at = q->addr / hp_lend_class_bytes[ln->class - 1] + 1;
	if (at == h->near[0] || at == h->near[1])
		return true;
	h->near[1] = h->near[0];
	h->near[0] = at;
	return false;
}

void hp_bucket_count(struct hp_lender *ln, struct hp_question *q)
{
	struct hp_tally *own;
	bool near, again;

	if (q->seen)
		return;
	q->seen = true;
	if (ln->class_fixed)
		return;
	near = is_near(ln, q);
	again = was_given(ln, q->peer, hp_bucket_piece(q, ln->class));
	own = tally_of(ln, q->peer);
	own->asks++;
	own->near += near;
	own->again += again;
	ln->tally.asks++;
	ln->tally.near += near;
	ln->tally.again += again;
	if (ln->tally.asks == 1 || own->asks > ln->holder[ln->busiest].tally.asks)
		ln->busiest = q->peer;
	if (ln->tally.asks >= ln->epoch_len)
		end_epoch(ln);
}

void hp_bucket_count_refused(struct hp_lender *ln, uint32_t peer)
{
	tally_of(ln, peer)->again++;
	ln->tally.again++;
}

bool hp_bucket_begin(struct hp_lender *ln)
{
	ln->epoch_len = EPOCH_MIN;
	ln->larger_wait = LARGER_WAIT_MIN;
	ln->given_bits = given_bits(ln, 1);
	ln->given = calloc((size_t)1 << ln->given_bits, sizeof *ln->given);
	return ln->given;
}
