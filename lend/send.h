/*
 * Messages to peers, and those that could not be sent yet (send.c).
 */
#ifndef HP_LEND_SEND_H
#define HP_LEND_SEND_H

#include "lend/state.h"

/* Send a message, or keep it until there is room. 0; or the error by which the peer is lost, also at later calls. */
int hp_send(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);

/* Send RETURN of n refs: seq 0, or the answer of a WANT, of which parts follow if `more`. */
int hp_send_return(hugepin_lend *l, uint32_t peer, uint32_t number, const uint64_t *refs, unsigned n, bool more);

/* Send what could not be sent. */
void hp_send_kept(hugepin_lend *l);

/* Forget what could not be sent to this peer. */
void hp_send_forget(hugepin_lend *l, uint32_t peer);

#endif
