/*
 * Borrowed keys: their table, their uses, their end (borrowed.c).
 */
#ifndef HP_LEND_BORROWED_H
#define HP_LEND_BORROWED_H

#include "lend/state.h"

/* Make the tables for keys. 0 or -ENOMEM. Call close() even after an error; it gives indexes back, unless this is a
 * child of fork. */
int hp_borrowed_open(hugepin_lend *l);
void hp_borrowed_close(hugepin_lend *l, bool child);

/* find(): a LIVE key of the peer that contains addr, or NULL. use() takes one use of it into *ret_ and lets hits at
 * addr find it; the thread must have counters. */
struct hp_borrowed *hp_borrowed_find(hugepin_lend *l, uint32_t peer, uint64_t addr);
void hp_borrowed_use(hugepin_lend *l, struct hp_borrowed *f, uint64_t addr, uint64_t len, struct hugepin_far *ret_);

/* reserve() makes a place for a key of the peer's that may come. If there are as many keys as there may be, of the peer
 * or in all, it gives an unused one back. NULL: no memory, or all keys are in use. begin() makes the place a key,
 * unreserve() gives it back. */
struct hp_borrowed *hp_borrowed_reserve(hugepin_lend *l, uint32_t peer);
void hp_borrowed_begin(hugepin_lend *l, struct hp_borrowed *f, uint32_t peer, uint64_t base, uint64_t len,
		       uint32_t rkey, uint64_t ref);
void hp_borrowed_unreserve(hugepin_lend *l, struct hp_borrowed *f);

/* The peer's key with that ref, or NULL. */
struct hp_borrowed *hp_borrowed_by_ref(hugepin_lend *l, uint32_t peer, uint64_t ref);

/* Retire n LIVE keys, at most HP_WIRE_REFS_MAX, so that no hit finds them any more. Keys without uses are freed, and
 * their refs are written to ret_refs; returns how many. The others get `state`: WANTED or LOST, and wait for their last
 * use, or LIVE, and are kept. */
unsigned hp_borrowed_retire(hugepin_lend *l, struct hp_borrowed **list, unsigned n, enum hp_borrowed_state state,
			    uint64_t *ret_refs);

/* Free keys of the peer without uses, of `bytes` together and at most HP_WIRE_REFS_MAX, those not used for longest
 * first. *looks: how many keys may still be looked at; begin with hp_borrowed_looks(). Returns as
 * hp_borrowed_retire(). */
uint64_t hp_borrowed_looks(const hugepin_lend *l, uint32_t peer);
unsigned hp_borrowed_give(hugepin_lend *l, uint32_t peer, uint64_t bytes, uint64_t *looks, uint64_t *ret_refs,
			  uint64_t *ret_bytes);

/* Give the key of that name back with its last use, if it is LIVE. */
void hp_borrowed_return(hugepin_lend *l, uint64_t name);

/* The peer is gone: some of its keys end. Keys with uses stay until their last use. Whether there are more: release the
 * lock, then go on. */
bool hp_borrowed_lose(hugepin_lend *l, uint32_t peer);

/* Look at up to `most` keys that wait for their last use. Free those without uses, and give them back unless their peer
 * is gone. */
void hp_borrowed_settle(hugepin_lend *l, unsigned most);

/* The return of a use of the key in this slot was counted. If the key waits for its last use, settle it. No lock is
 * held. */
void hp_borrowed_unused(hugepin_lend *l, uint32_t slot);

/* Whether any use is out. Exact if no key is being taken. */
bool hp_borrowed_uses(hugepin_lend *l);

uint64_t hp_borrowed_bytes(const hugepin_lend *l);

#endif
