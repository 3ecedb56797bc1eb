/*
 * Making a queue, and destroying it. The queue's settings follow from the queue pair, the model and the program's
 * attributes. One block, allocated once, holds all arrays. One buffer of the heap holds the slots of frames and
 * receives, and stays pinned as long as the queue exists.
 */
#include "sge/open.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "reg/backend/verbs.h"
#include "sge/credit.h"
#include "sge/id.h"
#include "sge/model.h"
#include "sge/plan.h"
#include "sge/pool.h"
#include "sge/receive.h"
#include "sge/wait.h"

#define GRH ((size_t)40) /* bytes of the routing header, which precedes a datagram in the receiver's memory */
#define LINE ((size_t)64)
#define DEPTH_MAX (1u << 15)
#define SUBS_FIRST ((uint64_t)16)

#define QUEUE_FLAGS (HUGEPIN_SGQ_MT | HUGEPIN_SGQ_RAW | HUGEPIN_SGQ_DEBUG | HUGEPIN_SGQ_WAIT | HUGEPIN_SGQ_CREDITS)

/* The index mask of a ring of at least n entries. */
static uint64_t mask_of(uint64_t n)
{
	return n > 1 ? UINT64_MAX >> __builtin_clzll(n - 1) : 0;
}

/* Fill *q with the settings that follow from the queue pair, the model and *a. 0 or -errno. */
static int settings_of(struct hugepin_sgq *q, const struct hugepin_sgq_attr *a)
{
	struct hugepin_sg_caps caps;
	struct hugepin_sg_model model = hp_sg_model_default;
	struct hp_testbed testbed;
	int err = hugepin_sg_caps(a->qp, a->granted, &caps, sizeof caps);
	if (err < 0)
		return err;
	if (a->model)
		model = *a->model;
	else if (!hp_verbs_testbed(a->qp->context, &testbed))
		hp_sg_model_of(&testbed, &model); /* nothing is kept: the defaults stay */

	bool ud = a->qp->qp_type == IBV_QPT_UD, is_raw = a->flags & HUGEPIN_SGQ_RAW;
	uint32_t wrs = caps.max_wr > a->reserved_wr ? caps.max_wr - a->reserved_wr : 0;
	uint64_t longest = ud ? HP_MIN(caps.mtu_ud, caps.max_msg) : HP_MIN(caps.max_msg, UINT32_MAX);
	uint32_t depth = a->depth ? a->depth : HP_MIN(wrs, 64u);
	uint32_t usual = a->pool ? a->pool->frame_bytes : 8192u;
	uint32_t frame_bytes = a->frame_bytes ? a->frame_bytes :
				       (uint32_t)(ud && !a->pool ? longest : HP_MIN(longest, usual));
	if (!depth || depth > HP_MIN(wrs, DEPTH_MAX) || a->recv_depth > HP_MIN(caps.max_recv_wr, DEPTH_MAX) ||
	    !caps.max_sge || (a->recv_depth && !caps.max_recv_sge) ||
	    frame_bytes < (is_raw ? 1 : HUGEPIN_SG_TABLE(1) + 1))
		return -EINVAL;
	if (frame_bytes > longest || (a->pool && frame_bytes > a->pool->frame_bytes))
		return -EMSGSIZE;

	/* The number of sub-messages that fill a frame. The default limits only frames with less than 64 bytes per
	 * sub-message. */
	uint32_t fit = is_raw ? frame_bytes : (frame_bytes - HUGEPIN_SG_HEADER) / 12;
	uint32_t subs_max = a->flush_count ? a->flush_count : HP_MAX(frame_bytes / 64, 16u);
	if (a->pool) {
		subs_max = HP_MIN(subs_max, a->pool->subs_max);
		caps.max_sge = HP_MIN(caps.max_sge, a->pool->max_sge);
	}
	*q = (struct hugepin_sgq){
		.qp = a->qp,
		.domain = a->domain,
		.generation = hp_sgq_generation,
		.flags = a->flags,
		.depth = depth,
		.frame_bytes = frame_bytes,
		.subs_max = HP_MIN(subs_max, fit),
		.flush_bytes = a->flush_bytes ? a->flush_bytes : UINT32_MAX,
		.hold_set = a->hold_if_outstanding ? a->hold_if_outstanding : HP_MAX(depth - 1, 1u),
		.limit = HP_CREDIT_FIRST,
		.announced = HP_CREDIT_FIRST,
		.over = -ESHUTDOWN,
		.signal_every = HP_MAX(depth / 4, 1u),
		.max_sge = caps.max_sge,
		.slot_sges = a->pool ? a->pool->max_sge : caps.max_sge,
		.pool = a->pool,
		.max_inline = model.refused & HUGEPIN_SG_INLINE ? 0 : caps.max_inline,
		.deadline_ns = a->deadline_ns,
		.recv_depth = a->recv_depth,
		.recv = a->recv,
		.recv_arg = a->recv_arg,
		.post = a->post,
		.post_arg = a->post_arg,
		.grh = ud ? GRH : 0,
	};
	q->hold = q->hold_set;
	q->slot_mask = (uint32_t)mask_of(depth);
	/* depth + 1, because callbacks may add another frame's sub-messages */
	q->sub_mask_max = mask_of(((uint64_t)depth + 1) * q->subs_max);
	/* With a pool the ring grows by use, because there are many queues, most of which have few sub-messages. */
	q->sub_mask = a->pool ? HP_MIN(q->sub_mask_max, SUBS_FIRST - 1) : q->sub_mask_max;
	q->copy_below = q->copy_below_cold = UINT32_MAX;
	if (!(model.refused & HUGEPIN_SG_GATHER)) { /* each piece costs a lookup, wherever it lies */
		q->copy_below = HP_MAX(model.apart_below[0], 1u);
		q->copy_below_cold = HP_MAX(model.apart_below[1], 1u);
	}
	q->table_room = is_raw ? 0 : hp_round_up(HUGEPIN_SG_TABLE(q->subs_max), LINE);
	/* Avoid slots at a distance of a multiple of 4 KiB, which would use the same sets of a cache, and alias. */
	q->slot_bytes = hp_round_up(q->table_room + hp_sgq_room_for(q, 1), LINE);
	q->slot_bytes += q->slot_bytes % 4096 ? 0 : LINE;
	if (a->pool) {
		q->table_room = a->pool->table_room;
		q->slot_bytes = a->pool->slot_bytes;
	}
	q->recv_bytes = hp_round_up(q->grh + frame_bytes, LINE);
	q->recv_bytes += q->recv_bytes % 4096 ? 0 : LINE;
	return 0;
}

/* Take an array of `count` elements of `size` bytes from the block, at *used. Block NULL: only add the size to
 * *used. */
static void *cut_array(char *block, size_t *used, size_t count, size_t size)
{
	size_t at = *used;
	*used = hp_round_up(at + count * size, LINE);
	return block ? block + at : NULL;
}

/* Place the arrays in the block; NULL: only compute. Returns the bytes that the block needs. */
static size_t lay_out(struct hugepin_sgq *q, char *block)
{
	size_t used = 0, slots = q->pool ? 0 : (size_t)q->slot_mask + 1;
	cut_array(block, &used, 1, sizeof *q);
	q->frame = cut_array(block, &used, slots, sizeof *q->frame);
	q->sge = cut_array(block, &used, slots * (q->max_sge + 1), sizeof *q->sge);
	q->pin = cut_array(block, &used, slots * q->max_sge, sizeof *q->pin);
	q->wr = cut_array(block, &used, slots, sizeof *q->wr);
	q->sub = cut_array(block, &used, q->pool ? 0 : (size_t)q->sub_mask + 1, sizeof *q->sub);
	q->slot = cut_array(block, &used, q->pool ? (size_t)q->slot_mask + 1 : 0, sizeof *q->slot);
	q->len = cut_array(block, &used, q->subs_max, sizeof *q->len);
	q->tag = cut_array(block, &used, q->subs_max, sizeof *q->tag);
	q->recv_wr = cut_array(block, &used, q->recv_depth, sizeof *q->recv_wr);
	q->recv_sge = cut_array(block, &used, q->recv_depth, sizeof *q->recv_sge);
	q->recv_out = cut_array(block, &used, q->recv_depth, sizeof *q->recv_out);
	q->idle = cut_array(block, &used, q->recv_depth, sizeof *q->idle);
	q->arrived = cut_array(block, &used, q->recv_depth, sizeof *q->arrived);
	return used;
}

static void prepare_slots(struct hugepin_sgq *q, const struct hugepin_sgq_attr *a)
{
	q->first_wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND };
	if (a->qp->qp_type == IBV_QPT_UD) {
		q->first_wr.wr.ud.ah = a->ah;
		q->first_wr.wr.ud.remote_qpn = a->remote_qpn;
		q->first_wr.wr.ud.remote_qkey = a->remote_qkey;
	}
	for (uint32_t i = 0; i <= q->slot_mask && !q->pool; i++) {
		q->frame[i] = hp_sgq_empty_frame;
		q->wr[i] = q->first_wr;
	}
	for (uint32_t i = 0; i < q->recv_depth; i++) {
		q->recv_sge[i] = (struct ibv_sge){ .addr = (uintptr_t)(q->recv_slots + i * q->recv_bytes),
						   .length = (uint32_t)(q->grh + q->frame_bytes),
						   .lkey = q->slots_pin.lkey };
		q->recv_wr[i] = (struct ibv_recv_wr){ .wr_id = q->taker.id | HP_SGQ_ID_RECV | i,
						      .sg_list = &q->recv_sge[i],
						      .num_sge = 1 };
		q->idle[i] = i;
	}
	q->idle_count = q->recv_depth;
}

static int open_taker(struct hugepin_sgq *q)
{
	int err = hp_taker_open(&q->taker);
	if (!err && q->flags & HUGEPIN_SGQ_WAIT && (err = hp_sgq_wait_open(q)))
		hp_taker_close(&q->taker);
	return err;
}

static void close_taker(struct hugepin_sgq *q)
{
	hp_taker_close(&q->taker);
	if (q->flags & HUGEPIN_SGQ_WAIT)
		hp_sgq_wait_close(q);
}

void hp_sgq_destroy(struct hugepin_sgq *q)
{
	close_taker(q);
	/* in a child of fork this returns -ESTALE: there is nothing to unpin */
	if (q->pool) {
		free(q->sub);
		if (q->generation == hp_sgq_generation) /* the parent's pool may have been locked at the fork */
			hp_sgpool_detach(q->pool);
	} else {
		hugepin_unpin(q->domain, &q->slots_pin);
		hugepin_free(q->slots);
	}
	pthread_mutex_destroy(&q->lock);
	free(q);
}

bool hp_sgq_grow_subs(struct hugepin_sgq *q)
{
	uint64_t mask = q->sub_mask * 2 + 1;
	struct hp_sgq_sub *sub = q->sub_mask < q->sub_mask_max ? calloc(mask + 1, sizeof *sub) : NULL;
	if (!sub)
		return false;
	for (uint64_t i = q->told; i < q->added; i++)
		sub[i & mask] = q->sub[i & q->sub_mask];
	free(q->sub);
	q->sub = sub;
	q->sub_mask = mask;
	return true;
}

/* Complete a queue whose slots are a pool's. */
static int open_in_pool(struct hugepin_sgq *q, const struct hugepin_sgq_attr *a)
{
	struct hugepin_sgpool *pool = q->pool;
	q->sub = calloc(q->sub_mask + 1, sizeof *q->sub);
	int err = !q->sub ? -ENOMEM : !hp_sgpool_attach(pool) ? -ENOBUFS : 0;
	if (err) {
		free(q->sub);
		return err;
	}
	q->slots = pool->slots;
	q->slots_pin = pool->slots_pin;
	q->frame = pool->frame;
	q->sge = pool->sge;
	q->pin = pool->pin;
	q->wr = pool->wr;
	for (uint32_t i = 0; i <= q->slot_mask; i++)
		q->slot[i] = HP_SGQ_NO_SLOT;
	prepare_slots(q, a);
	return 0;
}

/* Make the queue from the settings of settings_of(). */
static int open_queue(const struct hugepin_sgq *settings, const struct hugepin_sgq_attr *a, struct hugepin_sgq **ret_)
{
	struct hugepin_sgq *q, measure = *settings;
	char *block = calloc(1, lay_out(&measure, NULL));
	if (!block)
		return -ENOMEM;
	q = (struct hugepin_sgq *)block;
	*q = *settings;
	lay_out(q, block);
	hp_sgq_watch_forks();
	pthread_mutex_init(&q->lock, NULL);
	int err = open_taker(q);
	if (!err && q->pool && (err = open_in_pool(q, a)))
		close_taker(q);
	if (err) {
		pthread_mutex_destroy(&q->lock);
		free(q);
		return err;
	}
	if (q->pool) {
		hp_taker_begin(&q->taker);
		*ret_ = q;
		return 0;
	}
	size_t sending = ((size_t)q->slot_mask + 1) * q->slot_bytes, len = sending + q->recv_depth * q->recv_bytes;
	q->slots = hugepin_aligned_alloc(HUGEPIN_LARGE_MIN, len);
	err = q->slots ? hugepin_pin(q->domain, q->slots, len, HUGEPIN_READ | (q->recv_depth ? HUGEPIN_WRITE : 0),
				      &q->slots_pin) : -ENOMEM;
	if (!err && q->slots_pin.len < len)
		err = -ENOBUFS;
	if (!err) {
		q->recv_slots = q->slots + sending;
		prepare_slots(q, a);
		hp_taker_begin(&q->taker);
		err = hp_sgq_repost(q);
		if (q->idle_count < q->recv_depth) /* some receives are posted; hugepin_sgq_poll() posts the rest */
			err = 0;
	}
	if (err) {
		hp_sgq_destroy(q);
		return err;
	}
	if (q->flags & HUGEPIN_SGQ_WAIT)
		hp_sgq_wait_note(q, NULL, false);
	*ret_ = q;
	return 0;
}

int hp_sgq_open(const struct hugepin_sgq_attr *attr, const struct hp_sgq_owner *owner, hugepin_sgq **ret_)
{
	struct hugepin_sgq_attr a = { 0 };
	struct hugepin_sgq settings;
	if (!attr || !ret_ || attr->size < offsetof(struct hugepin_sgq_attr, flags))
		return -EINVAL;
	memcpy(&a, attr, HP_MIN(attr->size, sizeof a));
	if (!a.qp || !a.domain || a.flags & ~(uint32_t)QUEUE_FLAGS || (a.recv_depth && (!a.recv || a.qp->srq)) ||
	    (a.model && a.model->size < sizeof *a.model) || (a.post && a.flags & HUGEPIN_SGQ_MT))
		return -EINVAL;
	if (a.pool && (a.pool->domain != a.domain || a.recv_depth))
		return -EINVAL;
	if (a.flags & HUGEPIN_SGQ_CREDITS &&
	    (a.flags & HUGEPIN_SGQ_RAW || a.qp->qp_type != IBV_QPT_RC || a.recv_depth < HP_CREDIT_FIRST))
		return -EINVAL;
	if (a.pool && a.pool->generation != hp_sgq_generation)
		return -ESTALE;
	if (a.qp->qp_type != IBV_QPT_RC && a.qp->qp_type != IBV_QPT_UD)
		return -EOPNOTSUPP;
	if (a.qp->qp_type == IBV_QPT_UD && !a.ah)
		return -EINVAL;

	int saved_errno = errno, err = settings_of(&settings, &a);
	settings.taker.take = owner->take;
	settings.ended = owner->ended;
	if (!err)
		err = open_queue(&settings, &a, ret_);
	errno = saved_errno;
	return err;
}
