/*
 * A lend: its state, and how its parts work together. hugepin_lend(7) has the protocol, wire.h its bytes.
 *
 *	lend.c     the public functions
 *	borrowed.c borrowed keys: the table that hits read, retiring keys, giving back
 *	borrow.c   the borrowing side: questions, answers, keys that are asked back
 *	serve.c    the lending side: carries out what lender.c decides
 *	news.c     news from the pin cache, and the callback wake()
 *	send.c     messages to peers, and those that could not be sent yet
 *	wire.c     messages as bytes; table.h: hash tables. Pure.
 *
 * Hits find a borrowed key as they find a region (reg/state.h): a lookup table leads from the hash of peer and address
 * to an entry of `borrowed`, whose members the hit then checks. Each thread counts its uses at an index that is
 * reserved in the table of regions, and that no region uses:
 *	hit:	read tag and the rest; count; read the tag again: if it changed, count back and take the slow path
 *	retire:	tag = 0; membarrier on every running thread; sum
 *	done:	count; read `attention`: if keys wait for their last use, look whether this was one
 * A retiring thread raises HP_ATTEND_USES before the barrier, so either its sum sees the return of a use, or the
 * returning thread sees the bit.
 *
 * A loan ends when the peer gives its key back, or when the program says that the peer is gone, because only the
 * program knows. hugepin_lend_gone() then has serve.c end the peer's loans and give the pins of their buckets back,
 * borrow.c answer the questions that wait for this peer, and borrowed.c end the keys of the peer's memory.
 *
 * Locks: `lock` guards everything that is not said to be read without it. It is held during send() and offer(), and
 * across calls of the pin cache. Functions that the pin cache calls back (news.c) take only news.lock, a leaf. After a
 * fork the child has tables of keys that the kernel has emptied; every function but hits looks at `pid` first.
 */
#ifndef HP_LEND_STATE_H
#define HP_LEND_STATE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/base.h"
#include "base/lock.h"
#include "hugepin.h"
#include "lend/lender.h"
#include "lend/table.h"
#include "lend/wire.h"
#include "reg/state.h"

enum { HP_ASKS_MAX = 64, HP_WAITERS_MAX = 1024 };

/* A borrowed key. Hits read the first members. */
enum hp_borrowed_state {
	HP_BORROWED_FREE,
	HP_BORROWED_LIVE, /* hits find it */
	HP_BORROWED_WANTED, /* the peer asked for it while uses are out, so it is given back with the last one */
	HP_BORROWED_LOST, /* the peer is gone while uses are out */
};
struct hp_borrowed {
	_Alignas(128) uint64_t tag; /* HP_TAG() of a number and `index` while it is LIVE, else 0 */
	uint64_t start, len;
	union {
		uint64_t keys; /* both, as in struct hugepin_far */
		struct {
			uint32_t rkey, peer;
		};
	};
	uint64_t name; /* the ref in struct hugepin_far */
	/* used since the last look for unused keys; relaxed: a key that was used just now may be given back */
	uint8_t used;
	uint8_t state; /* enum hp_borrowed_state; read by done() without the lock */
	/* The following members are guarded by the lock. */
	uint32_t index; /* uses are counted here */
	uint32_t made; /* the index's number of pins ever made, when this key began */
	uint64_t ref; /* the peer's name for this key */
	struct hp_link by_ref;
	union {
		struct hp_link by_frame[2]; /* LIVE */
		LIST_ENTRY(hp_borrowed) of_peer; /* WANTED: in its peer's `wanted` */
	};
	TAILQ_ENTRY(hp_borrowed) order; /* in its peer's `borrowed`, or in lend.retired */
};
TAILQ_HEAD(hp_borrowed_list, hp_borrowed);

/* A call of hugepin_lend_key() that has no answer yet. The first one for a frame has sent a message; the others wait
 * for its answer. */
struct hp_ask {
	uint32_t peer, number;
	uint64_t addr, len;
	void *token;
	struct hp_link by_number, by_frame;
	bool out; /* in both tables */
	bool put; /* not in the table of frames: nobody waits for it, because it carries bytes */
	int err; /* the answer, when it is in lend.ready */
	struct hugepin_far key;
	struct hp_borrowed *place; /* the place of its key, while it is out */
	TAILQ_HEAD(, hp_ask) waiters;
	TAILQ_ENTRY(hp_ask) order; /* in waiters of another, in its peer's `asks`, or in lend.ready */
};
TAILQ_HEAD(hp_asks, hp_ask);

/* A message that send() did not take. */
struct hp_unsent {
	STAILQ_ENTRY(hp_unsent) next;
	size_t len;
	unsigned char bytes[];
};
STAILQ_HEAD(hp_unsents, hp_unsent);

/* A peer of the borrowing side; struct hp_holder is a peer of the lending side. */
struct hp_peer {
	bool gone;
	bool leaving; /* gone, and not all that it had is taken back yet */
	bool unsent; /* in lend.unsent: there are, or were, messages */
	bool held; /* send() holds messages that it has taken */
	int lost; /* the error of send(), or -ENOMEM: no message reaches it any more */
	uint32_t asks_out, waiters, ask_last; /* questions out, calls that wait for them; the last question's number */
	uint32_t want_last; /* the number of its last WANT */
	uint64_t ref_last; /* its newest ref */
	uint64_t share; /* the bytes of its memory that we may have */
	uint64_t bucket; /* the length of its latest key */
	struct hp_borrowed_list borrowed; /* LIVE keys, those that were looked at longest ago first */
	LIST_HEAD(, hp_borrowed) wanted; /* WANTED keys */
	struct hp_asks asks;
	struct hp_unsents messages;
	uint64_t unsent_bytes; /* of these */
	STAILQ_ENTRY(hp_peer) next_unsent;
	TAILQ_ENTRY(hp_peer) lender; /* in lend.lenders while `borrowed` is not empty */
	struct hugepin_lend_stats stats;
};

/* News from the pin cache (news.c). */
enum { HP_NEWS_MAX = 512 };
struct hp_news {
	struct hp_lock lock; /* a leaf */
	uint32_t region[HP_NEWS_MAX];
	bool dropped[HP_NEWS_MAX]; /* false: wanted */
	uint32_t count;
	bool lost; /* there was no room for more, so any region may be wanted */
	uint64_t crowded; /* bytes */
};

/* Pending work: bits of `attention`. */
enum {
	HP_ATTEND_USES = 1, /* keys wait for their last use: done() looks. Pairs with hp_counts_barrier(), see above */
	HP_ATTEND_NEWS = 2, /* there are news */
	HP_ATTEND_UNSENT = 4, /* messages could not be sent, or send() holds some */
	HP_ATTEND_RECALLS = 8, /* more keys are to be asked back */
	HP_ATTEND_LATE = 16, /* a question waits for a peer, which will be late at `late_at`; 0: for none any more */
};

struct hugepin_lend {
	/* Hits read these. They are written when the lend is opened, except lookup_mask and attention. */
	_Alignas(64) struct hp_borrowed *borrowed; /* borrowed[0].name is the upper part of the names of keys */
	_Atomic uint64_t *lookup;
	/* relaxed: the lend's lock among writers; a hit's key judges by its own words: hit() */
	_Atomic uint32_t lookup_mask;
	/* relaxed: NEWS: the lock of news; UNSENT, RECALLS, LATE: the lend's lock; USES: attend() raises it before
	 * hp_counts_barrier() */
	_Atomic uint32_t attention;

	_Atomic uint64_t late_at; /* relaxed: the lend's lock among writers; who reads an old one looks later */
	pid_t pid;
	hugepin_domain *domain;
	struct hugepin_lend_attr attr;
	void *arg;
	unsigned access; /* of pins */
	struct hp_lender lender;

	struct hp_lock lock;
	bool closing;
	bool settled; /* this call has processed all memory that went away before it */
	uint32_t drop_left, retire_left; /* buckets, idle and lent, whose news were lost */
	struct hp_peer *peer;
	/* Places in `borrowed`: how many exist, were ever in use, are in use. */
	uint32_t borrowed_opened, borrowed_used, borrowed_count;
	struct hp_borrowed_list borrowed_free, retired; /* retired: WANTED or LOST */
	uint32_t borrowed_gen, lookup_clashes;
	uint64_t frame_levels; /* bit i: a key has frames of 2^i bytes */
	uint32_t frame_level_count[64];
	struct hp_table by_ref, by_frame; /* keys */
	struct hp_table asks_by_number, asks_by_frame;
	uint32_t asks_count;
	struct hp_asks ready; /* answered; ready() follows once the lock is released */
	TAILQ_HEAD(, hp_peer) lenders; /* peers with LIVE keys, in turns */
	STAILQ_HEAD(, hp_peer) unsent;
	uint64_t unsent_bytes;
	unsigned char *buf; /* room for one message */

	struct hp_news news;
	LIST_ENTRY(hugepin_lend) all; /* in news.c's list */
	_Atomic bool wake; /* wake() is to be called; relaxed: hp_service_ask() and the lock of lends */
	_Atomic bool watches_late; /* the service thread will look at `late_at`; acq_rel in news.c */
	/* relaxed: a lend that closes has left the list under the lock of lends, then waits */
	_Atomic uint32_t waking; /* wake() is being called */
};

/* Note when the first question that waits goes on without an answer. */
static inline void hp_lend_note_late(hugepin_lend *l)
{
	uint64_t late_at = hp_lender_late_at(&l->lender);

	atomic_store_explicit(&l->late_at, late_at, memory_order_relaxed);
	if (late_at == UINT64_MAX)
		atomic_fetch_and_explicit(&l->attention, ~(uint32_t)HP_ATTEND_LATE, memory_order_relaxed);
	else
		atomic_fetch_or_explicit(&l->attention, HP_ATTEND_LATE, memory_order_relaxed);
}

/* Whether one of these bits is raised. relaxed suffices, except for HP_ATTEND_USES (borrowed.c). */
static inline bool hp_lend_attends(const hugepin_lend *l, uint32_t bits)
{
	return atomic_load_explicit(&l->attention, memory_order_relaxed) & bits;
}

#endif
