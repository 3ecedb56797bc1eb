/*
 * The borrowing side: questions, and the messages of the peer that lends (borrow.c).
 */
#ifndef HP_LEND_BORROW_H
#define HP_LEND_BORROW_H

#include "lend/state.h"

/* Ask the peer, or wait for an answer that may do. data: ride in the question. 0; 1 and *ret_; -errno. */
int hp_borrow(hugepin_lend *l, uint32_t peer, uint64_t addr, uint64_t len, const void *data, void *token,
	      struct hugepin_far *ret_);

/* Messages of a peer: 0 or -EILSEQ. */
int hp_borrow_lent(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);
int hp_borrow_refused(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);
int hp_borrow_recalled(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);
int hp_borrow_wanted(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);

/* The peer is gone. Its keys end, and what was asked of it gets err. */
void hp_borrow_gone(hugepin_lend *l, uint32_t peer, int err);

/* Give back every key without uses. */
void hp_borrow_return_all(hugepin_lend *l);

#endif
