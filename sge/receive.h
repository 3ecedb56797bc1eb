/*
 * The receives of a queue (state.h). The caller holds the queue's lock, or is the only thread in the queue, but for
 * hp_sgq_hand_out(), whose caller runs the queue's callbacks.
 */
#ifndef HP_SGE_RECEIVE_H
#define HP_SGE_RECEIVE_H

#include <stdbool.h>

#include "sge/state.h"

/* Note what has arrived by a completed receive. False: there is no such receive. */
bool hp_sgq_received(struct hugepin_sgq *q, const struct ibv_wc *wc);

/* Who is told what arrives, and in what form it arrives. */
struct hp_sg_receiver {
	hugepin_recv_fn recv;
	void *arg;
	size_t grh; /* bytes in front of the message */
	uint32_t frame_bytes;
	bool raw;
};

/* Tell the receiver of the message of this completion, which is in the slot: each record, or that there is none. */
void hp_sg_hand_out(const struct hp_sg_receiver *, const struct ibv_wc *, char *slot);

/* Hand this to the queue's receiver. Its slot is the caller's meanwhile. */
void hp_sgq_hand_out(struct hugepin_sgq *q, const struct hp_sgq_arrival *arrived);

/* Post all receives that are not posted. 0, or the provider's error: the next call posts the rest. */
int hp_sgq_repost(struct hugepin_sgq *q);

/* Flush the receives that were posted while the queue pair changed to the error state. */
void hp_sgq_flush_receives(struct hugepin_sgq *q);

#endif
