/*
 * The lending side's decisions: which piece of memory a peer gets a key of, whether there is room, and who is asked to
 * give keys back. Pure: nothing here pins, sends or looks at a clock. hp_lender_step() returns the next step for a
 * question; the caller (serve.c) carries it out and calls again. All of this takes constant time, or time that earlier
 * calls have paid for.
 *
 * Source: Bonachea and Bell 2003 (Firehose). A bucket, in their term, is lent as a whole, and is pinned while it has
 * loans. A bucket whose last loan has ended stays registered in a list, oldest first (their victim FIFO), until the
 * room is needed. M is lent_bytes_max, MAXVICTIM is idle_bytes_max: lent <= M and lent + idle <= M + MAXVICTIM at all
 * times.
 *
 * STATIC is their policy: each peer has F = M / (bucket * (peers - 1)) buckets. POOL is what they leave to future work:
 * a peer gets any memory that is free. Under both, one peer has so many bytes and keys at most (peer_max, keys_max).
 * Who has them is asked itself, and its questions wait in a queue of its own, so that nobody else waits for it. If no
 * memory is free, holders of keys are asked for their least used ones (WANT), the one with most bytes first. Several
 * peers may have keys of one bucket, so only the last key that comes back makes room. Therefore holders are asked again
 * if some gave keys back and there is still no room, in at most four rounds and sixteen questions. A holder that does
 * not answer in time is passed over, until it has answered. Holders give no key back that they use. So if there is
 * still no room, the bucket that was lent first is asked back (RECALL): its keys come back with their last use, so a
 * peer that uses its keys all the time keeps nobody out for long. And two sizes adapt:
 *
 * - The idle list. A bucket that is asked for again soon after it was dropped makes the list longer by its bytes. A
 *   bucket that nobody asks for again makes the list shorter by an eighth of its bytes, down to a quarter of
 *   idle_bytes_max. "Soon" is while not more than M + MAXVICTIM was dropped after it (the ghosts of Megiddo and Modha
 *   2003, ARC).
 * - The bucket. At first it is 64 MiB, an extent of the heap, or the largest that is a quarter of M, and it never gets
 *   larger than that. What follows holds for the questions of all peers, and has to hold for those of all but the peer
 *   that asks most, too, unless the others hardly ask: else one peer would choose for all. The next smaller
 *   bucket is taken if the memory in use does not fit: if in an epoch more than an eighth of the questions are refused
 *   for want of room, or ask for a bucket that the same peer had to give back lately. "Lately" is while not more than
 *   some eight M were given back after it. The next larger bucket is taken if all memory that is lent, idle or was
 *   dropped in the epoch would fit three quarters of M with it. A size that had to be left again is tried again after
 *   twice as many epochs as before. After a step down, room is made by asking larger buckets back (RECALL), one at a
 *   time. If more than three quarters of the questions follow another of the same peer in the same larger bucket, the
 *   peers go through memory in order; then the larger bucket is taken, whether it fits or not, and kept for at least
 *   so many epochs.
 *
 * The caller has the lend's lock.
 */
#ifndef HP_LEND_LENDER_H
#define HP_LEND_LENDER_H

#include <sys/queue.h>

#include "hugepin.h"
#include "lend/table.h"

/* SAME: loans that a peer has of one bucket. An honest one has as many as it may have questions out, because it gives
 * all but the first back. */
enum { HP_LEND_CLASSES = 3, HP_LEND_NOBODY = -1, HP_LEND_WAITING_MAX = 64, HP_LEND_SAME_MAX = 2 * HP_LEND_WAITING_MAX };

/* Questions that were counted in an epoch. */
struct hp_tally {
	uint32_t asks;
	uint32_t again; /* refused for want of room, or for what the peer had to give back lately */
	uint32_t near; /* near one of the peer's last two */
};

/* The sizes of buckets: an extent, a hugepage, and the size of Chapel's Firehose. */
static const uint64_t hp_lend_class_bytes[HP_LEND_CLASSES] = { UINT64_C(1) << 26, UINT64_C(1) << 21,
							       UINT64_C(1) << 17 };

struct hp_bucket;

/* A key that a peer has. The number in the upper 40 bits of its ref grows with each loan, so the refs of one peer grow,
 * too. */
struct hp_loan {
	uint64_t ref; /* 0: not lent */
	struct hp_bucket *bucket;
	uint32_t peer;
	uint32_t slot, next_free;
	struct hp_link by_owner; /* by bucket and peer */
	TAILQ_ENTRY(hp_loan) of_peer, of_bucket;
};
TAILQ_HEAD(hp_loans, hp_loan);
#define HP_LOAN_SLOT_BITS 24

enum hp_bucket_state { HP_BUCKET_NEW, HP_BUCKET_LENT, HP_BUCKET_IDLE };
struct hp_bucket {
	struct hp_link by_name; /* by base and want */
	struct hp_link by_region;
	uint64_t base, want; /* the range that was to be pinned */
	uint64_t len; /* the bytes pinned from base on: `want`, or less if the device registers no more at a time */
	uint64_t start, end; /* the registration that the pin is of */
	struct hugepin_pin pin; /* while it is lent */
	uint32_t region;
	uint8_t state; /* enum hp_bucket_state */
	bool retired; /* its memory is wanted back, so no further loan, and it will not be idle */
	struct hp_loans loans;
	struct hp_loan *recall; /* retired: the next loan to ask back; NULL: all were */
	TAILQ_ENTRY(hp_bucket) order; /* in lender.lent or lender.idle */
	TAILQ_ENTRY(hp_bucket) recalls; /* in lender.recalls while there is a loan to ask back */
};
TAILQ_HEAD(hp_bucket_list, hp_bucket);

/* A bucket that is no longer registered. */
struct hp_ghost {
	struct hp_link by_name;
	uint64_t base, want;
	uint32_t epoch; /* in which it was dropped */
	TAILQ_ENTRY(hp_ghost) order;
};
TAILQ_HEAD(hp_ghost_list, hp_ghost);

/* A peer's question, in the caller's frame until it has to wait. */
struct hp_question {
	uint32_t peer, number;
	uint64_t addr, len;
	uint64_t buffer, buffer_end; /* what may be lent around addr */
	const void *carry;
	uint32_t carried;
	unsigned class_min; /* larger classes than this were tried in vain */
	int64_t asking; /* the peer whose answer to WANT is awaited, or HP_LEND_NOBODY */
	struct hp_questions *queue; /* in which it waits; NULL: in none */
	struct hp_questions *next_queue; /* after HP_STEP_WAIT: in which it has to wait */
	bool wanted; /* the asker was asked to give back */
	uint8_t rounds, wants; /* POOL: how often all holders were asked; how many were */
	uint64_t round_taken; /* lender.taken when the round began */
	bool seen; /* counted in the epoch */
	uint64_t crowded; /* a pin of so many bytes found no room */
	int err; /* of the pin */
	TAILQ_ENTRY(hp_question) order; /* in `queue` */
	TAILQ_ENTRY(hp_question) of_peer; /* in its peer's `questions` */
};
TAILQ_HEAD(hp_questions, hp_question);

/* A peer, as the lending side sees it. */
struct hp_holder {
	uint64_t bytes; /* of its loans' buckets, of which each counts once */
	uint64_t waiting_carried;
	uint32_t loans_count, waiting_count;
	uint32_t want, want_last; /* the number of the WANT that is out, 0: none; of the last one */
	uint64_t want_since; /* when it was sent; lender.now */
	uint64_t lates; /* how many were answered late, or are late now */
	uint64_t near[2]; /* the places of its last two questions, in pieces of the next larger bucket, plus 1 */
	uint32_t asked_last; /* the number of its last question */
	struct hp_tally tally; /* its questions of epoch `tallied` */
	uint32_t tallied;
	uint8_t level; /* of `ranked`, 0: no loans */
	bool asked; /* was asked for the first waiting question: it is in lender.asked */
	bool mute; /* no message reaches it */
	bool late; /* it owes an answer for too long; not asked until it has answered */
	struct hp_loans loans;
	struct hp_questions waiting; /* questions over its own limits */
	struct hp_questions questions; /* all of its that wait */
	TAILQ_ENTRY(hp_holder) order;
};
TAILQ_HEAD(hp_holders, hp_holder);

struct hp_lender {
	uint32_t policy, peers;
	uint64_t lent_max, idle_base; /* M, MAXVICTIM */
	uint64_t peer_max; /* bytes of which one peer may have keys */
	uint32_t keys_max; /* keys that one peer may have */
	uint64_t answer_ns; /* a peer that owes an answer for longer is late */
	uint64_t now; /* a clock in ns, which the caller sets before each question or message; only differences count */
	uint64_t lent, idle, idle_max, peak;
	uint64_t retired; /* bytes of lent buckets that are retired */
	unsigned class; /* of new buckets */
	bool class_fixed;

	struct hp_table buckets, regions, ghosts, owners; /* owners: loans by bucket and peer */
	struct hp_bucket_list lent_list, idle_list; /* idle: oldest first */
	struct hp_bucket_list recalls; /* retired, with loans to ask back */
	struct hp_ghost_list ghost_list; /* oldest first */
	uint64_t ghost_bytes;

	struct hp_holder *holder;
	struct hp_holders ranked[65]; /* by log2 of their bytes, plus 1 */
	uint64_t ranks; /* bit i: ranked[i + 1] has one */
	struct hp_holders asked; /* holders that were asked for the first waiting question */
	struct hp_questions waiting; /* POOL: questions for which there is no room */
	uint32_t waiting_count;
	uint64_t taken; /* loans that ended because room was wanted */

	struct hp_loan **loan; /* by slot */
	uint32_t loans, loans_room, loan_free; /* loan_free: slot + 1 of the first free one */
	uint64_t loan_number;
	uint32_t buckets_count, idle_count, ghosts_count;

	/* The epoch, counted in questions. */
	uint32_t epoch, epoch_len;
	struct hp_tally tally; /* of all peers */
	uint32_t busiest; /* the peer that asked most */
	uint64_t *given; /* hashes of buckets that peers had to give back: of the peer and the bucket's name */
	unsigned given_bits;
	uint32_t larger_after; /* epochs until a larger bucket may be tried */
	uint32_t larger_wait; /* larger_after of the next step down; doubled each time */
	uint32_t smaller_after; /* epochs until a smaller bucket may be taken */
};

/* init(): the attributes have no 0 that stands for a default. False: no memory; then
 * free() is to be called, too. free() frees the tables; the caller must have ended pins and waiting questions before. */
bool hp_lender_init(struct hp_lender *ln, const struct hugepin_lend_attr *attr);
void hp_lender_free(struct hp_lender *ln);

/* Use buckets of this class from now on, for measurements. */
void hp_lender_fix_class(struct hp_lender *ln, unsigned class);

/* The bytes of which a peer may have keys. */
uint64_t hp_lender_share(const struct hp_lender *ln);

/* The peer's present share, which answers carry. POOL: if there is no room for another bucket of so many bytes, the
 * peers with most bytes have a share of what they have and what is free. Then they give back in their questions what
 * they would be asked for next. */
uint64_t hp_lender_share_now(const struct hp_lender *ln, uint32_t peer, uint64_t bytes);

/* The next step for a question. */
enum hp_step {
	HP_STEP_LEND, /* hp_lender_lend() with `bucket`: it is pinned. Then answer. */
	HP_STEP_PIN, /* pin [bucket->base, bucket->base + bucket->len), then hp_lender_pinned() */
	HP_STEP_DROP, /* drop the registration of `bucket`, which is forgotten, and free it */
	HP_STEP_WANT, /* ask `bucket` back, if that is not NULL; then send WANT of `bytes` to `peer`, with number
		       * holder.want; only of the first that waits in its queue */
	HP_STEP_WAIT, /* the question waits: put it into next_queue, and step the first one there */
	HP_STEP_NO, /* answer: err, a number of errno; ask `bucket` back, if that is not NULL */
};
struct hp_act {
	enum hp_step step;
	struct hp_bucket *bucket;
	uint32_t peer;
	uint64_t bytes;
	int err;
};
struct hp_act hp_lender_step(struct hp_lender *ln, struct hp_question *q);

/* The outcome of HP_STEP_PIN: err 0 and the pin, with the region's range; otherwise the bucket is forgotten and freed.
 * False: the pin does not reach the address that was asked for, so give it back, since the bucket is forgotten. */
bool hp_lender_pinned(struct hp_lender *ln, struct hp_question *q, struct hp_bucket *b, int err,
		      const struct hugepin_pin *pin, uint64_t start, uint64_t end);

/* Lend a bucket, after HP_STEP_LEND. Cannot fail. */
struct hp_loan *hp_lender_lend(struct hp_lender *ln, struct hp_bucket *b, uint32_t peer);

/* The loan with this ref, if the peer has it, or NULL. */
struct hp_loan *hp_lender_find(const struct hp_lender *ln, uint32_t peer, uint64_t ref);

/* End a loan. Returns its bucket if it has no other loan: give its pin back, then call hp_lender_idle(), or
 * hp_lender_forget() if it is retired. taken: the key was given back because room was wanted. */
struct hp_bucket *hp_lender_end(struct hp_lender *ln, struct hp_loan *loan, bool taken);
void hp_lender_idle(struct hp_lender *ln, struct hp_bucket *b);

/* The bucket is no longer lent or idle. Frees it. */
void hp_lender_forget(struct hp_lender *ln, struct hp_bucket *b);

/* A bucket to drop and free, because the idle list has no room for it, or (any) because it is the oldest; or NULL. */
struct hp_bucket *hp_lender_over(struct hp_lender *ln);
struct hp_bucket *hp_lender_oldest(struct hp_lender *ln);

/* retire(): give no further loan of this bucket, because its memory is wanted back. recall(): the next loan of such a
 * bucket that was not asked back, or NULL. */
void hp_lender_retire(struct hp_lender *ln, struct hp_bucket *b);
struct hp_loan *hp_lender_recall(struct hp_lender *ln);

/* The first bucket with this region, and the next. */
struct hp_bucket *hp_lender_of_region(const struct hp_lender *ln, uint32_t region);
struct hp_bucket *hp_lender_next_of_region(const struct hp_bucket *b);

/* may_wait(): whether a question may wait after HP_STEP_WAIT, because only so many of a peer's may, and may carry only
 * so many bytes. wait() puts it into `next_queue`, also out of another queue, and there it is the caller's memory.
 * unwait() takes it out. */
bool hp_lender_may_wait(const struct hp_lender *ln, const struct hp_question *q, uint64_t carry_max);
void hp_lender_wait(struct hp_lender *ln, struct hp_question *q);
void hp_lender_unwait(struct hp_lender *ln, struct hp_question *q);

/* When the peer that the first question waits for will be late, by the clock of `now`. 0: it waits for none any more.
 * UINT64_MAX: there is no question. */
uint64_t hp_lender_late_at(const struct hp_lender *ln);

/* The peer's answer to WANT is complete, or will not come. */
void hp_lender_answered(struct hp_lender *ln, uint32_t peer);

/* Ask the holder with most bytes for `bytes` outside of any question. HP_STEP_WANT, or HP_STEP_WAIT: there is none. */
struct hp_act hp_lender_crowded(struct hp_lender *ln, uint64_t bytes);

/* Bytes of memory of all tables here. */
uint64_t hp_lender_table_bytes(const struct hp_lender *ln);

/* The bytes for which a bucket counts: whole base pages. */
uint64_t hp_bucket_bytes(const struct hp_bucket *b);

#endif
