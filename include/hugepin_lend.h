/* hugepin: keys lent to peers. The guides are hugepin_lend(3) and hugepin_lend(7). The rules for all functions stand in
 * hugepin.h, which programs include. */
#ifndef HUGEPIN_LEND_H
#define HUGEPIN_LEND_H

#include "hugepin_domain.h"

#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
/* A struct and a function of one name: to C++, the function hides a constructor that nobody calls. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Keys for peers that read and write this process's memory themselves, within a budget: a peer asks once for the key of
 * a piece of memory, uses it without asking, and gives it back when it is asked to, or needs another (Firehose:
 * Bonachea and Bell 2003). Both sides open a lend: the side that owns the memory lends, the side that reads and writes
 * it borrows; one lend does both. Messages between peers are the caller's to carry, so any network serves. */
typedef struct hugepin_lend hugepin_lend;

/* Bytes of the longest message, without the caller's own bytes that ride in it (carry_max). */
#define HUGEPIN_LEND_MESSAGE_MAX 256

/* How what may be lent is shared among peers.
 *  POOL    a peer gets what is free. If nothing is, the peer that holds most is asked to give back what it has not used
 *          for longest
 *  STATIC  each peer has an equal share, which no other peer gets (Bonachea and Bell 2003) */
enum { HUGEPIN_LEND_POOL, HUGEPIN_LEND_STATIC };

/* A borrowed key. rkey opens the peer's memory [base, base + len), which begins at the address that was asked for. len
 * is shorter than asked if the key ends earlier: ask for the rest by another call. */
struct hugepin_far {
	uint64_t base, len;
	uint32_t rkey, peer;
	uint64_t ref; /* used by the library; 0: not a key */
};
typedef struct hugepin_far hugepin_far_t;

/* How to open a lend. Callbacks get the `arg` of hugepin_lend_open. They run inside calls of the same lend, on the
 * thread that made the call, except `wake`. */
struct hugepin_lend_attr {
	size_t size; /* sizeof(struct hugepin_lend_attr) */
	/* Peers that can be named, by the numbers 0 to peers - 1; one may be this process. HUGEPIN_LEND_STATIC divides
	 * among peers - 1. */
	uint32_t peers;
	uint32_t policy; /* HUGEPIN_LEND_* */
	/* what lent keys open, with HUGEPIN_REACH_EXTENT at least: HUGEPIN_REMOTE_*; 0: HUGEPIN_REMOTE_READ |
	 * HUGEPIN_REMOTE_WRITE */
	uint32_t access;
	uint32_t carry_max; /* the caller's own bytes in a message, at most; 0: none; no more than 1 MiB */
	/* Memory that may be lent at a time, and memory that stays registered after it was given back. Together they
	 * are never exceeded. 0: half of the domain's budget, and an eighth of it. */
	uint64_t lent_bytes_max, idle_bytes_max;
	/* Send a message to a peer: it arrives once, and messages to one peer arrive in order. The message is the
	 * library's again when this returns. 0; 1: taken, but held: hugepin_lend_progress() calls again, with NULL and
	 * 0, until the result is 0; -EAGAIN: no room now, the library tries again in hugepin_lend_progress(); another
	 * error: the peer is lost, and the caller will call hugepin_lend_gone. Called with the lend's lock: must call
	 * no function of the lend. */
	int (*send)(void *arg, uint32_t peer, const void *msg, size_t len);
	/* An asked-for key is here: err 0 and *key, of which the caller has one use (hugepin_lend_done). Bytes that the
	 * asking call carried are in the peer's memory, from key->base on, key->len of them at most. Or there is none,
	 * and key is NULL: -ENOBUFS: the peer lends no more now; -EACCES: the peer does not lend that memory; -EFAULT:
	 * it is not there (a part of what was carried may have been written, after all other errors nothing was);
	 * -ECONNRESET: the peer is gone; -ECANCELED: the lend is being closed; or the peer's error. Called once for
	 * each token, without a lock: may call functions of the lend, except close. */
	void (*ready)(void *arg, void *token, int err, const struct hugepin_far *key);
	/* Whether a peer may have the key of [addr, addr + len) of this process's memory. 0 and the buffer that
	 * contains addr: no byte outside of *ret_buffer is lent with it. Or -EACCES. NULL, only in a domain with reach
	 * HUGEPIN_REACH_EXTENT: the whole heap, and nothing else. A question that has to wait is asked again. Memory
	 * that is offered no more may be lent still: until its keys are asked back, when it is freed or unmapped.
	 * Called with the lend's lock: must call no function of the lend. */
	int (*offer)(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer);
	/* May be NULL. There is work for hugepin_lend_progress(): memory is wanted back, or a peer that a question
	 * waits for is lost or late (answer_ms). Called on the service thread, which a lend with this callback starts, without
	 * a lock: must return soon, and call no function of the lend. */
	void (*wake)(void *arg);
	/* What one peer may cost the others (hugepin_lend(7), SECURITY); 0: the default.
	 *  peer_bytes_max  memory of which it may have keys; with more than two peers all of lent_bytes_max but a 32nd,
	 *                  or 128 KiB if that is more
	 *  peer_kept_max   bytes that are kept for it: messages that it does not take, and what its questions that wait
	 *                  carry; 1 MiB, and 64 times 256 + carry_max
	 *  peer_keys_max   keys that it may have, and keys that may be borrowed from it; 16384
	 *  answer_ms       milliseconds after which others are asked if it does not say what it gives back; 1000 */
	uint64_t peer_bytes_max, peer_kept_max;
	uint32_t peer_keys_max, answer_ms;
};

/* Open a lend of the domain's memory; one at a time in each domain. The domain must outlive the lend. attr is copied.
 * -EINVAL: a NULL (send, ready; offer, unless reach is EXTENT), no peers, an unknown size, policy or access, carry_max
 * too large, peer_bytes_max over lent_bytes_max, peer_keys_max over 262144, or sums that wrap. -EBUSY: the domain has a
 * lend. -EOPNOTSUPP: the device lacks the access, or HUGEPIN_LIMIT_OPENER. -ESTALE: the domain is the parent process's.
 * -ENOMEM. Allocates. */
int hugepin_lend_open(hugepin_domain *, const struct hugepin_lend_attr *attr, void *arg, hugepin_lend **ret_);

/* A key of the peer's memory [addr, addr + len). 1: *ret_ is a key, with one use, which hugepin_lend_done gives back
 * when the transfer has completed. 0: the peer was asked; ready(arg, token, ...) follows. Never waits for a peer.
 * -EINVAL: no such peer, len is 0, or the range wraps. -ENOTCONN: the peer is gone. -EBUSY: too many questions are out
 * (hugepin_lend(3)). -ENOMEM. -ESTALE: the lend is the parent process's. Or the error of send(). ready() is not called
 * after an error. Any thread. A key that is borrowed already takes nanoseconds and no lock, as a hit of hugepin_pin
 * does. */
int hugepin_lend_key(hugepin_lend *, uint32_t peer, uint64_t addr, size_t len, void *token, struct hugepin_far *ret_);

/* The same, and the peer has to be asked: `data`, of len bytes, rides in the message, and the peer's library writes it
 * to addr. So a put that misses takes one message and one answer. If this returns 1, nothing was carried. -EMSGSIZE:
 * len is over this side's carry_max; a peer whose carry_max is lower refuses (ready() gets -EMSGSIZE). */
int hugepin_lend_put(hugepin_lend *, uint32_t peer, uint64_t addr, const void *data, size_t len, void *token,
		     struct hugepin_far *ret_);

/* The transfer by this key has completed: give the use back. Clears *key. -EINVAL: not a key of this lend, or given
 * back before. Any thread. Takes nanoseconds, and sends a message if the peer waits for the key. */
int hugepin_lend_done(hugepin_lend *, struct hugepin_far *key);

/* The same, and the key goes back to the peer when its last use is given back, because this side needs it no more. */
int hugepin_lend_return(hugepin_lend *, struct hugepin_far *key);

/* Hand in a message from a peer. Messages from one peer must be handed in in their order. -EILSEQ: no message of this
 * protocol, or not one that this peer can have sent now; nothing has changed. -ENOTCONN: the peer is gone, or lost: no
 * message reaches it any more, so call hugepin_lend_gone. -EINVAL. -ENOMEM: no memory for this thread's counters;
 * nothing has changed, hand it in again. -ESTALE. May register memory, and so block. Any thread. */
int hugepin_lend_message(hugepin_lend *, uint32_t peer, const void *msg, size_t len);

/* Send what could not be sent before, and ask for keys back whose memory is wanted. Call it where the program makes
 * progress, and after wake(). Takes nanoseconds if there is nothing to do. 0, or -ESTALE. */
int hugepin_lend_progress(hugepin_lend *);

/* The peer is gone: no transfer of its and no transfer to it is under way or will be (its queue pair is in the error
 * state or destroyed), and no message of its will be handed in. Its keys end, and so does the registration of all
 * memory that was given back and of which no other peer has keys. Questions to it get -ECONNRESET. -EINVAL. -EALREADY.
 * hugepin_lend_again: the number is a peer's again. -EINVAL. -EALREADY: it was not gone. */
int hugepin_lend_gone(hugepin_lend *, uint32_t peer);
int hugepin_lend_again(hugepin_lend *, uint32_t peer);

/* Close. -EBUSY: a peer that is not gone has keys of ours, or uses of keys are out; nothing has changed. Questions that
 * are out get -ECANCELED. In a child of fork this frees the child's copy. No other thread may be using the lend. */
int hugepin_lend_close(hugepin_lend *);

/* X(name, unit, sentence), as HUGEPIN_STATS_LIST of hugepin_stats.h. */
#define HUGEPIN_LEND_STATS_LIST(X) \
	X(lent_bytes, B, "memory that the peer has keys of; of all peers: memory lent to several counts once") \
	X(lent, n, "keys lent to the peer") \
	X(borrowed_bytes, B, "memory of the peer's that this side has keys of") \
	X(borrowed, n, "keys borrowed from the peer") \
	X(asked, c, "questions of the peer") \
	X(refused, c, "of these, answered no") \
	X(waited, c, "of these, answered when other memory had been given back") \
	X(asks, c, "questions to the peer") \
	X(denied, c, "of these, answered no") \
	X(recalls, c, "keys asked back from the peer") \
	X(recalled, c, "keys that the peer asked back") \
	X(carried, c, "bytes that rode in questions, in either direction") \
	X(sent, c, "messages sent") \
	X(received, c, "messages received") \
	X(broken, c, "messages refused by -EILSEQ") \
	X(idle_bytes, B, "registered memory that was given back; only of all peers") \
	X(idle_bytes_max, B, "the most that is kept idle now; only of all peers") \
	X(bytes_peak, B, "the most that lent and idle memory have been together; only of all peers") \
	X(bucket_bytes, B, "the size of the pieces that are lent now, or more; only of all peers") \
	X(table_bytes, B, "memory for the lend's tables; only of all peers") \
	X(carry_max, B, "the program's own bytes in a message, at most, as the lend was opened") \
	X(owes, n, "requests for keys that the peer has not answered, 1 or 0; of all peers: the sum") \
	X(late, c, "requests for keys that the peer did not answer within answer_ms")

struct hugepin_lend_stats {
	uint64_t version; /* HUGEPIN_VERSION of the library that filled it */
#define HUGEPIN_STATS_MEMBER(name, unit, sentence) uint64_t name;
	HUGEPIN_LEND_STATS_LIST(HUGEPIN_STATS_MEMBER)
#undef HUGEPIN_STATS_MEMBER
};
typedef struct hugepin_lend_stats hugepin_lend_stats_t;
#define HUGEPIN_LEND_ALL UINT32_MAX /* all peers */

/* Copy the statistics of a peer, or of HUGEPIN_LEND_ALL. `size` is sizeof *ret_. Returns the number of bytes that the
 * library knows. -EINVAL. Takes the lend's lock. */
int hugepin_lend_stats(hugepin_lend *, uint32_t peer, struct hugepin_lend_stats *ret_, size_t size);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif
#endif
