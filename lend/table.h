/*
 * A hash table of a lend's objects, with chains whose links are members of the objects, so that adding one cannot fail.
 * The table doubles when it has as many objects as chains; without memory for that it stays as it is, and its chains
 * grow. Searching, adding and removing take constant time. Fibonacci hashing (Knuth, volume 3, 6.4). The caller has the
 * lend's lock.
 */
#ifndef HP_LEND_TABLE_H
#define HP_LEND_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* The hash of a pair of words. */
static inline uint64_t hp_lend_hash(uint64_t a, uint64_t b)
{
	return (a ^ (b << 32 | b >> 32) * UINT64_C(0xff51afd7ed558ccd)) * UINT64_C(0x9e3779b97f4a7c15);
}

/* As hp_lend_hash() for words that peers choose, with a secret, so that they cannot choose words that fill one
 * chain. */
extern uint64_t hp_lend_secret; /* relaxed: the exchange decides; tables are made after it, under a lock */

static inline uint64_t hp_lend_hash_foreign(uint64_t a, uint64_t b)
{
	uint64_t h = a ^ hp_lend_secret ^ (b << 32 | b >> 32) * UINT64_C(0xff51afd7ed558ccd);

	h = (h ^ h >> 32) * UINT64_C(0xd6e8feb86659fd93); /* mixes as the finalizers of hash functions do */
	h = (h ^ h >> 32) * UINT64_C(0xd6e8feb86659fd93);
	return h ^ h >> 32;
}

struct hp_link {
	struct hp_link *next;
	uint64_t hash;
};

struct hp_table {
	struct hp_link **chain;
	unsigned bits; /* log2 of the chains */
	size_t count;
};

#define HP_TABLE_BITS_MIN 4u

/* False: no memory. */
static inline bool hp_table_init(struct hp_table *t)
{
	*t = (struct hp_table){ .chain = calloc((size_t)1 << HP_TABLE_BITS_MIN, sizeof *t->chain),
				.bits = HP_TABLE_BITS_MIN };
	return t->chain;
}

/* Free the table; the objects are the caller's. */
static inline void hp_table_free(struct hp_table *t)
{
	free(t->chain);
	*t = (struct hp_table){ 0 };
}

static inline size_t hp_table_bytes(const struct hp_table *t)
{
	return sizeof *t->chain << t->bits;
}

static inline struct hp_link **hp_table_chain(const struct hp_table *t, uint64_t hash)
{
	return &t->chain[hash >> (64 - t->bits)];
}

static inline void hp_table_grow(struct hp_table *t)
{
	struct hp_table larger = { .chain = calloc((size_t)2 << t->bits, sizeof *t->chain),
				   .bits = t->bits + 1,
				   .count = t->count };

	if (!larger.chain)
		return;
	for (size_t i = 0; i < (size_t)1 << t->bits; i++)
		for (struct hp_link *at = t->chain[i], *next; at; at = next) {
			struct hp_link **head = hp_table_chain(&larger, at->hash);

			next = at->next;
			at->next = *head;
			*head = at;
		}
	free(t->chain);
	*t = larger;
}

static inline void hp_table_add(struct hp_table *t, struct hp_link *link, uint64_t hash)
{
	struct hp_link **head;

	if (++t->count > (size_t)1 << t->bits)
		hp_table_grow(t);
	head = hp_table_chain(t, hash);
	*link = (struct hp_link){ *head, hash };
	*head = link;
}

/* Remove link, which is in the table. */
static inline void hp_table_remove(struct hp_table *t, struct hp_link *link)
{
	struct hp_link **at = hp_table_chain(t, link->hash);

	while (*at != link)
		at = &(*at)->next;
	*at = link->next;
	t->count--;
}

/* The first link with this hash, and the next one after `at`; NULL: there is none. Other objects may have the same
 * hash, so the caller compares. */
static inline struct hp_link *hp_table_first(const struct hp_table *t, uint64_t hash)
{
	struct hp_link *at = *hp_table_chain(t, hash);

	while (at && at->hash != hash)
		at = at->next;
	return at;
}

static inline struct hp_link *hp_table_next(const struct hp_link *at)
{
	uint64_t hash = at->hash;

	do
		at = at->next;
	while (at && at->hash != hash);
	return (struct hp_link *)at;
}

/* The object of type `type` whose member `member` is *link. */
#define HP_OF(link, type, member) ((type *)((char *)(link) - offsetof(type, member)))

#endif
