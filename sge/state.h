/*
 * The state of a queue of sub-messages, and the small functions that three files share. queue.c adds, posts and
 * completes sub-messages, receive.c has the receives, and open.c makes and destroys a queue.
 *
 * A frame is several sub-messages that go by one work request (hugepin_sg_frame(5)). Each frame has a slot, with memory
 * for the frame's table and all of its bytes, so that any piece can be copied, and with a work request and elements of
 * its own. There are as many slots as work requests may be outstanding. So a frame that has a slot can be posted, and
 * no other credit is counted, but for the peer's receives (credit.c).
 *
 * Frames are numbered, and take the slots in turn:
 *
 *	done <= posted <= next
 *
 * Frames below `done` have completed. Frames from `done` to `posted` - 1 are outstanding. Frames from `posted` to
 * `next` - 1 are closed, and wait to be posted. Frame `next` is under construction, if a slot is free.
 *
 * Sub-messages are in a ring of their own, in the order of adds: told <= settled <= added. A slot is free as soon as
 * its frame has completed, even if the callbacks have not run.
 */
#ifndef HP_SGE_STATE_H
#define HP_SGE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "hugepin_verbs.h"
#include "sge/id.h"

#define HP_SGQ_NO_SLOT UINT32_MAX

struct hp_sgq_sub {
	hugepin_done_fn done;
	void *arg;
	uint64_t tag;
	uint32_t len;
	int32_t status; /* valid once the sub-message is settled */
};

/* A message that has arrived and was not handed out yet. */
struct hp_sgq_arrival {
	uint32_t slot;
	struct ibv_wc wc; /* the receive's completion */
};

/* For a frame under construction all members are valid, first_ns only if the queue has a deadline. */
struct hp_sgq_frame {
	uint64_t first_ns; /* the time at which the first sub-message was added */
	uint32_t subs; /* number of sub-messages: their callbacks run when the frame has completed */
	uint32_t bytes; /* bytes of the sub-messages */
	uint32_t head; /* bytes copied into the first element */
	uint32_t fill; /* bytes copied into the slot */
	uint32_t sges, pins; /* elements and pins; the first element is in the slot, and may be empty */
	uint16_t part, parts;
	bool open; /* the last element is in the slot: the next copied piece extends it */
	bool signalled;
	uint32_t marks; /* HUGEPIN_SG_SOLICITED, and another one of queue.c */
};

static const struct hp_sgq_frame hp_sgq_empty_frame = { .sges = 1, .parts = 1, .open = true };

struct hugepin_sgq {
	/* Set once, at opening. */
	struct hp_taker taker;
	struct ibv_qp *qp;
	hugepin_domain *domain;
	struct hugepin_sgpool *pool; /* the slots are its own; NULL: the queue's */
	struct ibv_send_wr first_wr; /* pool: the initial contents of a slot's work request */
	unsigned generation; /* hp_sgq_generation at opening: tells the process */
	uint32_t flags, depth, frame_bytes, subs_max; /* subs_max: sub-messages of one frame */
	uint32_t slot_mask; /* the number of slots, less one; that number is depth rounded up to a power of two */
	uint32_t flush_bytes, hold_set, signal_every;
	uint32_t max_sge, max_inline;
	uint32_t slot_sges; /* pins for each slot; one element more */
	uint32_t copy_below, copy_below_cold;
	uint64_t deadline_ns;
	uint64_t sub_mask_max; /* sub_mask grows up to this */
	uint32_t recv_depth;
	hugepin_recv_fn recv;
	void *recv_arg;
	void (*ended)(void *recv_arg); /* a callback, once: the queue pair has failed, or the queue is being closed */
	hugepin_post_fn post; /* without a lock alone; NULL: ibv_post_send() */
	void *post_arg;
	/* table_room: bytes for the table, at the beginning of a slot */
	size_t grh, table_room, slot_bytes, recv_bytes;
	char *slots, *recv_slots;
	struct hugepin_pin slots_pin;
	pthread_mutex_t lock;
	/* the address of `self` of the thread that is in a call; with a lock, of the one that runs callbacks; of
	 * `in_post` while the program's post function runs; NULL: none */
	const char *_Atomic caller; /* relaxed: only equality with the thread's own address counts */

	struct hp_sgq_frame *frame; /* These four have, for each slot, as many entries as a frame needs. */
	struct hugepin_sge *sge;
	struct hugepin_pin *pin;
	struct ibv_send_wr *wr;
	struct hp_sgq_sub *sub; /* a ring */
	size_t *len; /* of the frame under construction: lengths and tags */
	uint64_t *tag;
	struct ibv_recv_wr *recv_wr; /* for each slot */
	struct ibv_sge *recv_sge;
	bool *recv_out; /* for each slot: its receive is posted */
	uint32_t *idle; /* slots whose receives are not posted, and that hold nothing */
	struct hp_sgq_arrival *arrived; /* a ring of recv_depth */

	uint64_t sub_mask; /* index mask of the ring of sub-messages */
	/* pool: the slot of each frame, by the low bits of its number; HP_SGQ_NO_SLOT: none. NULL: no pool */
	uint32_t *slot;
	uint32_t slots_taken;
	uint64_t done, posted, next; /* numbers of frames: see above */
	uint64_t told, settled, added; /* numbers of sub-messages: see above */
	uint32_t signalled_out;
	uint32_t unsignalled; /* frames posted since the last signalled one */
	uint32_t idle_count, arrived_first, arrived_count;
	uint32_t hold; /* hold_set; 0 while a closed frame waits for credits */
	/* With HUGEPIN_SGQ_CREDITS (credit.c), modulo 2^32: the peer has receives for frames below `limit`, of which `sent`
	 * are sent; `taken` have arrived, and the peer knows that it may send those below `announced`. */
	uint32_t limit, sent, taken, announced;
	__be32 imm; /* immediate data of the sub-message that is being added */
	int carry; /* status of a sub-message's failed part, until its last part has completed */
	bool in_callback;
	bool failed; /* the queue pair has failed, or the peer's queue does not fit this one */
	int over; /* what calls return then: -ESHUTDOWN, or -EPROTO */
	bool answer; /* the peer is to be sent a frame, by which its queue notices that it does not fit */
	bool send_failed; /* the completion of a send reported the failure */
	bool closing;
	/* How the queue pair failed first: enum ibv_wc_status, and the vendor's number in the upper half. Written by
	 * the caller of the queue. relaxed: hugepin_sgq_wc_status(), on any thread, reads nothing else. */
	_Atomic uint64_t failure;

	/* With HUGEPIN_SGQ_WAIT (wait.c). Times are hp_clock_ns()'s; UINT64_MAX: never. */
	int timer;
	bool wanted; /* add found no room, and nothing has completed since */
	uint64_t wanted_done, look_done; /* `done` then, and at the first of these looks */
	uint64_t look_ns, look_at_ns; /* how long until the next look, and when it is */
	uint64_t armed_ns; /* the timer's */
	_Atomic uint64_t due_ns; /* relaxed: who reads it, on any thread, reads nothing else */
};

/* Take a completion of the queue: as hugepin_sg_wc(). In queue.c. */
int hp_sgq_take(struct hp_taker *, const struct ibv_wc *wc);

/* Post what is due, without callbacks. 1: the queue still holds frames, because the provider refused them, or they wait
 * for a completion; 0: none; or -errno: it sends no more. In queue.c. */
int hp_sgq_push(struct hugepin_sgq *);

/* Whether frames have no table: each sub-message goes alone. */
static inline bool hp_sgq_raw(const struct hugepin_sgq *q)
{
	return q->flags & HUGEPIN_SGQ_RAW;
}

/* Bytes for the data of n sub-messages in one frame. */
static inline uint64_t hp_sgq_room_for(const struct hugepin_sgq *q, uint32_t n)
{
	uint64_t table = hp_sgq_raw(q) ? 0 : HUGEPIN_SG_TABLE(n);
	return table < q->frame_bytes ? q->frame_bytes - table : 0;
}

/* Whether the program has moved the queue pair to the error state. An error of the device itself shows up in a
 * completion first. */
static inline bool hp_sgq_moved_to_error(const struct hugepin_sgq *q)
{
	return q->qp->state == IBV_QPS_ERR;
}

/* Note that the queue pair has failed. The first status other than a flush is kept as the reason. */
static inline void hp_sgq_fail(struct hugepin_sgq *q, const struct ibv_wc *wc)
{
	uint32_t status = (uint32_t)atomic_load_explicit(&q->failure, memory_order_relaxed);

	if (status == IBV_WC_SUCCESS || (status == IBV_WC_WR_FLUSH_ERR && wc->status != IBV_WC_WR_FLUSH_ERR))
		atomic_store_explicit(&q->failure, (uint64_t)wc->vendor_err << 32 | wc->status, memory_order_relaxed);
	q->failed = true;
}

#endif
