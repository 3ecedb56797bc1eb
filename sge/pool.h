/*
 * Slots that the queues of a domain share. A slot, as in state.h, is memory for a frame, with a frame, elements, pins
 * and a work request. A queue takes a slot when it begins a frame, and gives it back when the frame has completed.
 *
 * The rule for giving out slots: each open queue may always have one slot, and beyond that as many as are still spare
 * (Choudhury, Hahne 1998: dynamic thresholds). A free slot is spare unless it is owed to a queue that has none. So one
 * destination that does not complete holds half of the pool, two of them hold two thirds, and every other queue goes
 * on. A message of several frames is the exception, since it needs all of its slots at once.
 */
#ifndef HP_SGE_POOL_H
#define HP_SGE_POOL_H

#include "sge/state.h"

struct hugepin_sgpool {
	/* Set once, at opening. */
	struct hp_taker taker;
	hugepin_domain *domain;
	unsigned generation; /* hp_sgq_generation at opening: tells the process */
	uint32_t slots_max, frame_bytes, subs_max, max_sge;
	size_t table_room, slot_bytes;
	char *slots;
	struct hugepin_pin slots_pin;
	struct hp_sgq_frame *frame; /* these four as in struct hugepin_sgq */
	struct hugepin_sge *sge;
	struct hugepin_pin *pin;
	struct ibv_send_wr *wr;
	struct ibv_srq *srq;
	hugepin_recv_fn recv;
	void *recv_arg;
	uint32_t recv_max;
	size_t recv_bytes;
	char *recv_slots;
	struct hugepin_pin recv_pin;

	pthread_mutex_t lock; /* guards what follows; taken under the lock of a queue, for some instructions */
	uint32_t *free; /* the numbers of free slots; the last one goes first */
	uint32_t free_count, queues;
	uint32_t owed; /* queues without a slot; never more than free_count */
	bool *recv_out; /* for each slot: its receive is posted */
	uint32_t *idle; /* slots that are neither posted nor read */
	uint32_t idle_count;
	uint32_t receiving; /* calls of recv that run */
};

/* Whether a queue that has `mine` slots may have another one. */
static inline bool hp_sgpool_may_take(uint32_t mine, uint32_t spare)
{
	return !mine || mine <= spare;
}

/* The most slots that a queue gets at a time, which is while no other queue has any. Those that it has are at most one
 * more than what is spare. */
uint32_t hp_sgpool_most(struct hugepin_sgpool *);

/* Count in a queue, which has no slot. False: no slot could be owed to it. */
bool hp_sgpool_attach(struct hugepin_sgpool *);
void hp_sgpool_detach(struct hugepin_sgpool *);

/* Take a slot for a queue that has `mine`. False: the queue must wait. */
bool hp_sgpool_take(struct hugepin_sgpool *, uint32_t mine, uint32_t *ret_slot);

/* Give a slot back. `mine` is the number that the queue had with it. */
void hp_sgpool_give(struct hugepin_sgpool *, uint32_t mine, uint32_t slot);

#endif
