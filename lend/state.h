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
 * Finding a borrowed key is what finding a region is (reg/state.h): a lookup table leads from the hash of peer and
 * address to an entry of `borrowed`, whose members the hit then checks. Uses are counted by thread at an index of the
 * table of regions, which no region has:
 *	hit:	read tag and the rest; count; read the tag again: if it changed, count back and take the slow path
 *	retire:	tag = 0; membarrier on every running thread; sum
 *	done:	count; read `attention`: if keys wait for their last use, look whether this was one
 * A retiring thread raises HP_ATTEND_USES before the barrier. So either its sum sees an unuse, or that thread sees the
 * bit.
 *
 * Locks: `lock` guards everything that is not said to be read without it. It is held during send() and offer(), and
 * across calls of the pin cache. Functions of the pin cache that call back (news.c) take only news.lock, a leaf. After
 * a fork the child has tables of keys that the kernel has emptied; every function but hits looks at `pid` first.
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
	HP_BORROWED_WANTED, /* the peer asked for it, and uses are out: it is given back with the last one */
	HP_BORROWED_LOST, /* the peer is gone, and uses are out */
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
	/* used since the last look for what was not; relaxed: a key that was used just now may be given back */
	uint8_t used;
	uint8_t state; /* enum hp_borrowed_state; read by done() without the lock */
	/* The following members are guarded by the lock. */
	uint32_t index; /* uses are counted here */
	uint32_t made; /* of the index, when this began */
	uint64_t ref; /* the peer's name of it */
	struct hp_link by_ref, by_frame[2];
	TAILQ_ENTRY(hp_borrowed) order; /* in its peer's `borrowed`, or in lend.retired */
};
TAILQ_HEAD(hp_borrowed_list, hp_borrowed);

/* A call of hugepin_lend_key that has no answer yet. The first one of a frame has a message out; the others wait for
 * it. */
struct hp_ask {
	uint32_t peer, number;
	uint64_t addr, len;
	void *token;
	struct hp_link by_number, by_frame;
	bool out; /* in both tables */
	bool put; /* not in the table of frames: nobody waits for it, since it carries bytes */
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

/* A peer, as the borrowing side sees it; see struct hp_holder for the other side. */
struct hp_peer {
	bool gone;
	int lost; /* the error of send(), or -ENOMEM: no message reaches it any more */
	uint32_t asks_out, waiters, ask_last; /* questions out, what waits for them; the last question's number */
	uint32_t want_last; /* the number of its last WANT */
	uint64_t ref_last; /* its newest ref */
	uint64_t share; /* what we may have of it */
	uint64_t bucket; /* the length of its latest key */
	struct hp_borrowed_list borrowed; /* LIVE keys, those that were looked at longest ago first */
	struct hp_asks asks;
	struct hp_unsents messages;
	uint64_t unsent_bytes; /* of these */
	bool unsent; /* in lend.unsent: there are, or were, messages */
	STAILQ_ENTRY(hp_peer) next_unsent;
	struct hugepin_lend_stats stats;
};

/* News from the pin cache (news.c). */
enum { HP_NEWS_MAX = 512 };
struct hp_news {
	struct hp_lock lock; /* a leaf */
	uint32_t region[HP_NEWS_MAX];
	bool dropped[HP_NEWS_MAX]; /* else: wanted */
	uint32_t count;
	bool lost; /* more than there is room for: any region may be wanted */
	uint64_t crowded; /* bytes */
};

/* What is to be done besides: bits of `attention`. */
enum {
	HP_ATTEND_USES = 1, /* keys wait for their last use: done() looks. Pairs with hp_counts_barrier(), see above */
	HP_ATTEND_NEWS = 2, /* there are news */
	HP_ATTEND_UNSENT = 4, /* messages could not be sent */
};

struct hugepin_lend {
	/* Hits read these. They are written when the lend is opened, except lookup_mask and attention. */
	_Alignas(64) struct hp_borrowed *borrowed; /* borrowed[0].name is the upper part of the names of keys */
	_Atomic uint64_t *lookup;
	/* relaxed: the lend's lock among writers; a hit's key judges by its own words: hit() */
	_Atomic uint32_t lookup_mask;
	/* relaxed: NEWS: the lock of news; LETTERS: the lend's lock; USES: attend() raises it before
	 * hp_counts_barrier() */
	_Atomic uint32_t attention;

	pid_t pid;
	hugepin_domain *domain;
	struct hugepin_lend_attr attr;
	void *arg;
	unsigned access; /* of pins */
	struct hp_lender lender;

	struct hp_lock lock;
	bool closing;
	bool settled; /* this call has heard of all memory that went away before it */
	struct hp_peer *peer;
	/* Borrowed keys: places in `borrowed` that exist, that were ever in use, that are free. */
	uint32_t borrowed_opened, borrowed_used, borrowed_count;
	struct hp_borrowed_list borrowed_free, retired; /* retired: WANTED or LOST */
	uint32_t borrowed_gen, lookup_clashes;
	uint64_t frame_levels; /* bit i: a key has frames of 2^i bytes */
	uint32_t frame_level_count[64];
	struct hp_table by_ref, by_frame; /* keys */
	struct hp_table asks_by_number, asks_by_frame;
	uint32_t asks_count;
	struct hp_asks ready; /* answered: ready() follows when the lock is open */
	STAILQ_HEAD(, hp_peer) unsent;
	uint64_t unsent_bytes;
	unsigned char *buf; /* room for one message */

	struct hp_news news;
	LIST_ENTRY(hugepin_lend) all; /* in news.c's list */
	_Atomic bool wake; /* wake() is to be called; relaxed: hp_service_ask() and the lock of lends */
	/* relaxed: a lend that closes has left the list under the lock of lends, then waits */
	_Atomic uint32_t waking; /* wake() is being called */
};

/* The news flag and the like; relaxed suffices, except for HP_ATTEND_USES (borrowed.c). */
static inline bool hp_lend_attends(const hugepin_lend *l, uint32_t bits)
{
	return atomic_load_explicit(&l->attention, memory_order_relaxed) & bits;
}

#endif
