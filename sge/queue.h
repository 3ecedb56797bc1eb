/*
 * A queue of sub-messages, as the three files that make it up see it: the struct, and the small functions that they
 * share. queue.c adds, posts and completes; receive.c has the receives; open.c makes a queue and destroys it.
 *
 * A frame is several sub-messages that go by one work request (hugepin_sg_frame(5)). Each frame has a slot: memory for
 * the frame's table and all of its bytes, so that any piece can be copied, and a work request and elements of the
 * frame's own. There are as many slots as work requests may be out. So a frame that has a slot can be posted, and no
 * other credit is counted.
 *
 * Frames are numbered, and take the slots in turn:
 *
 *	done <= posted <= next    completed | out | closed, to be posted | next: under construction, if a slot is free
 *
 * Sub-messages are in a ring of their own, in the order of adds: told <= settled <= added. A slot is free as soon as
 * its frame has completed, whether or not the callbacks have run.
 */
#ifndef HP_SGE_QUEUE_H
#define HP_SGE_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "hugepin_verbs.h"

/* wr_id: sixteen bits that all queues have, the queue's number, a bit for receives, then the slot of a receive or the
 * low bits of a frame's number. A pointer is not in it: so a completion that is not the queue's does no harm, nor does
 * one that is handed in late or twice, when another frame has the slot. */
#define HP_SGQ_ID_SHIFT 24 /* of the queue's number */
#define HP_SGQ_ID_QUEUES ((1u << 24) - 1)
#define HP_SGQ_ID_RECV (1u << 23)
#define HP_SGQ_ID_LOW (HP_SGQ_ID_RECV - 1)

struct hp_sgq_sub {
	hugepin_done_fn done;
	void *arg;
	uint64_t tag;
	uint32_t len;
	int32_t status; /* once settled */
};

/* A frame under construction has all members but first_ns, too. */
struct hp_sgq_frame {
	uint64_t first_ns; /* when its first sub-message was added, where there is a deadline */
	uint32_t subs; /* callbacks that its completion settles */
	uint32_t bytes; /* of the sub-messages */
	uint32_t head; /* bytes that are copied into the first element */
	uint32_t fill; /* bytes that are copied */
	uint32_t sges, pins; /* the first element is the slot's; it may be empty */
	uint16_t part, parts;
	bool open; /* the last element is the slot's: what is copied now joins that element */
	bool solicited, signalled;
};

static const struct hp_sgq_frame hp_sgq_empty_frame = { .sges = 1, .parts = 1, .open = true };

struct hugepin_sgq {
	/* Set once, at opening. */
	struct ibv_qp *qp;
	hugepin_domain *domain;
	uint64_t id; /* of its wr_ids, without the lowest bits */
	unsigned generation; /* the process: hp_sgq_generation at opening */
	uint32_t flags, depth, frame_bytes, subs_max; /* subs_max: of one frame */
	uint32_t slot_mask; /* slots are depth, rounded up to a power of two, less one */
	uint32_t flush_bytes, hold, signal_every;
	uint32_t max_sge, max_inline;
	uint32_t copy_below, copy_below_cold;
	uint64_t deadline_ns;
	uint64_t sub_mask; /* of the ring of sub-messages */
	uint32_t recv_depth;
	hugepin_recv_fn recv;
	void *recv_arg;
	size_t grh, table_room, slot_bytes, recv_bytes; /* a slot begins with table_room */
	char *slots, *recv_slots;
	struct hugepin_pin slots_pin;
	pthread_mutex_t lock;
	const char *_Atomic caller; /* by its `self`, the thread that is in a call; NULL: none. Used without a lock */

	struct hp_sgq_frame *frame; /* these four: for each slot, with as many as a frame has */
	struct hugepin_sge *sge;
	struct hugepin_pin *pin;
	struct ibv_send_wr *wr;
	struct hp_sgq_sub *sub; /* a ring */
	size_t *len; /* of the frame under construction */
	uint64_t *tag;
	struct ibv_recv_wr *recv_wr; /* of each slot */
	struct ibv_sge *recv_sge;
	bool *recv_out; /* of each slot: its receive is posted */
	uint32_t *idle; /* the slots whose receives are not posted */

	uint64_t done, posted, next; /* frames */
	uint64_t told, settled, added; /* sub-messages */
	uint32_t signalled_out;
	uint32_t unsignalled; /* posted since the last signalled one */
	uint32_t idle_count;
	int carry; /* of the parts of a sub-message that have failed */
	bool in_callback;
	bool failed; /* the queue pair has failed */
	bool send_failed; /* a send's completion said so */
	bool closing;
	enum ibv_wc_status status;
	uint32_t vendor_err;
};

/* The table of the frame is left out: each sub-message goes alone. */
static inline bool hp_sgq_raw(const struct hugepin_sgq *q)
{
	return q->flags & HUGEPIN_SGQ_RAW;
}

/* Bytes of n sub-messages that one frame has room for. */
static inline uint64_t hp_sgq_room_for(const struct hugepin_sgq *q, uint32_t n)
{
	uint64_t table = hp_sgq_raw(q) ? 0 : HUGEPIN_SG_TABLE(n);
	return table < q->frame_bytes ? q->frame_bytes - table : 0;
}

/* The program has moved the queue pair to the error state. Of an error of the device's own a completion tells first. */
static inline bool hp_sgq_moved_to_error(const struct hugepin_sgq *q)
{
	return q->qp->state == IBV_QPS_ERR;
}

/* Note that the queue pair has failed. The first status that is no flush is the reason. */
static inline void hp_sgq_fail(struct hugepin_sgq *q, const struct ibv_wc *wc)
{
	if (q->status == IBV_WC_SUCCESS || (q->status == IBV_WC_WR_FLUSH_ERR && wc->status != IBV_WC_WR_FLUSH_ERR)) {
		q->status = wc->status;
		q->vendor_err = wc->vendor_err;
	}
	q->failed = true;
}

#endif
