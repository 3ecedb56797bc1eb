/*
 * Buckets by their names, for lender.c. See bucket.c.
 */
#ifndef HP_LEND_BUCKET_H
#define HP_LEND_BUCKET_H

#include "lend/lender.h"

/* The range that was to be pinned. A bucket keeps its name even if the device registers less. */
struct hp_bucket_name {
	uint64_t base, want;
};

uint64_t hp_bucket_hash(struct hp_bucket_name n);

/* The bytes of the base pages that a range touches. */
uint64_t hp_bucket_page_bytes(uint64_t base, uint64_t len);

/* The part of the question's buffer in the aligned piece around its address. */
struct hp_bucket_name hp_bucket_piece(const struct hp_question *q, unsigned class);

/* The bucket of that name that contains addr, the newest one, or NULL. */
struct hp_bucket *hp_bucket_find(const struct hp_lender *ln, struct hp_bucket_name n, uint64_t addr);

/* Take a bucket out of all tables and sums. It is the caller's to free. */
void hp_bucket_detach(struct hp_lender *ln, struct hp_bucket *b);

/* The loan b->recall was asked back, or ends. */
void hp_bucket_recalled(struct hp_lender *ln, struct hp_bucket *b);

/* A bucket of `bytes` is made. If one of that name was dropped, more will be kept idle. */
void hp_bucket_regret(struct hp_lender *ln, struct hp_bucket_name n, uint64_t bytes);

/* The peer gave the bucket of that name back because room was wanted. */
void hp_bucket_note_given(struct hp_lender *ln, uint32_t peer, struct hp_bucket_name n);

/* Whether a lent bucket is larger than new buckets. */
bool hp_bucket_is_larger(const struct hp_lender *ln, const struct hp_bucket *b);

/* The largest size of a bucket: one in use does not keep all others out. */
uint64_t hp_bucket_most(const struct hp_lender *ln);

/* A question of the peer's is refused, and with smaller buckets it might not be. */
void hp_bucket_count_refused(struct hp_lender *ln, uint32_t peer);

/* Count a question, once. At the end of an epoch the size of buckets may change. */
void hp_bucket_count(struct hp_lender *ln, struct hp_question *q);

/* Begin to count. False: no memory. */
bool hp_bucket_begin(struct hp_lender *ln);

#endif
