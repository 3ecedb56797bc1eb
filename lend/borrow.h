/*
 * The borrowing side: questions, and the messages of the peer that lends (borrow.c).
 */
#ifndef HP_LEND_BORROW_H
#define HP_LEND_BORROW_H

#include "lend/state.h"

/* Ask the peer, or wait for a pending answer that may serve. data: bytes that the question carries. 0: the answer
 * follows; 1 and *ret_; or -errno. */
int hp_borrow(hugepin_lend *l, uint32_t peer, uint64_t addr, uint64_t len, const void *data, void *token,
	      struct hugepin_far *ret_);

/* Messages of a peer: 0 or -EILSEQ. */
int hp_borrow_lent(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);
int hp_borrow_refused(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);
int hp_borrow_recalled(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);
int hp_borrow_wanted(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);

/* The peer is gone: its keys end, and calls that wait for its answers get err. */
void hp_borrow_gone(hugepin_lend *l, uint32_t peer, int err);

/* Give back every key that has no uses. */
void hp_borrow_return_all(hugepin_lend *l);

#endif
