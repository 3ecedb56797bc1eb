/*
 * A queue of sub-messages for one destination: several go as one frame (hugepin_sg_frame(5)), by one work request.
 *
 * A frame has a slot: room for its table and all its bytes, so that any piece can be copied, and a work request and elements
 * of its own. Small pieces are copied at once, long ones become elements; the table's length is known last, so it is written
 * at the end of the room in front of the data, and header and first data are one element. As many slots as work requests may
 * be out: who has a slot can be posted, so no other credit is counted. Frames are numbered; slots are taken in turn:
 *
 *	done <= posted <= next        completed | out | closed, to be posted | next: under construction, if there is a slot
 *
 * The order of completions is that of frames, and callbacks go by the order of adds, from a ring of their own: a slot is free
 * when its frame has completed, whatever becomes of the callbacks. told <= settled <= added.
 *
 * Coalescing is for backlog (as openib's of Open MPI, and MVAPICH2, do): while few frames are out, what is added goes at once.
 *
 * A work request goes unsignalled only if another one of this queue is sure to follow: one in the same chain, or the frame
 * under construction, which is posted at the latest when no signalled one is out (due()). So the last one is always signalled,
 * and what is out unsignalled is covered by a later completion; also after a failure, when a frame that is posted is flushed.
 *
 * Threads: one at a time, or under a recursive lock (HUGEPIN_SGQ_MT), which is held while callbacks run; it is above all locks
 * of domains. Without the lock a call notes its thread, and another thread's call that finds it noted is refused. Two that begin
 * at once may miss each other, unless the queue is to be debugged. Nothing is allocated after opening.
 */
#include "sge/plan.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "sge/iov.h"

/* wr_id: sixteen bits for all queues, the queue's number, a bit for receives, then the slot of a receive or the number of a
 * frame, as far as there is room. No pointer: what is not ours does no harm; nor does what is handed in late, or twice, when
 * another frame is in the slot. */
#define ID_QUEUE_SHIFT 24
#define ID_QUEUES ((1u << 24) - 1)
#define ID_RECV (1u << 23)
#define ID_LOW (ID_RECV - 1)

#define GRH ((size_t)40) /* in front of a datagram in the receiver's memory */
#define LINE ((size_t)64)
#define BATCH 16 /* completions polled at once */
#define DEPTH_MAX (1u << 15)
#define PARTS_MAX UINT16_MAX

#define ADD_FLAGS (HUGEPIN_SG_COPY_OK | HUGEPIN_SG_MULTI | HUGEPIN_SG_NOW | HUGEPIN_SG_SOLICITED | HUGEPIN_SG_COLD)
#define QUEUE_FLAGS (HUGEPIN_SGQ_MT | HUGEPIN_SGQ_RAW | HUGEPIN_SGQ_DEBUG)

struct sub {
	hugepin_done_fn done;
	void *arg;
	uint64_t tag;
	uint32_t len;
	int32_t status; /* once settled */
};

/* The members after first_ns are of a frame under construction, too. */
struct frame {
	uint64_t first_ns; /* of its first sub-message, where there is a deadline */
	uint32_t subs; /* callbacks that its completion settles */
	uint32_t bytes; /* of the sub-messages */
	uint32_t head; /* bytes that are copied into the first element */
	uint32_t fill; /* bytes that are copied */
	uint32_t sges, pins; /* the first element is the slot's, if need be with nothing in it */
	uint16_t part, parts;
	bool open; /* the last element is the slot's: what is copied now joins it */
	bool solicited, signalled;
};

static const struct frame empty_frame = { .sges = 1, .parts = 1, .open = true };

struct hugepin_sgq {
	/* Set once, when it is opened. */
	struct ibv_qp *qp;
	hugepin_domain *domain;
	uint64_t id; /* of its wr_ids, without the lowest bits */
	unsigned generation; /* of processes */
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
	const char *_Atomic caller; /* the thread that is in a call, by its `self`; NULL: none. Without a lock */

	struct frame *frame; /* these four: for each slot, with as many as a frame has */
	struct hugepin_sge *sge;
	struct hugepin_pin *pin;
	struct ibv_send_wr *wr;
	struct sub *sub; /* a ring */
	size_t *len; /* of the frame under construction */
	uint64_t *tag;
	struct ibv_recv_wr *recv_wr; /* of each slot */
	struct ibv_sge *recv_sge;
	bool *recv_out; /* it is posted, */
	uint32_t *idle; /* and those that are not */

	uint64_t done, posted, next; /* frames */
	uint64_t told, settled, added; /* sub-messages */
	uint32_t signalled_out;
	uint32_t unsignalled; /* posted since the last signalled one */
	uint32_t idle_count;
	int carry; /* of the parts of a sub-message that have failed */
	bool in_callback;
	bool failed; /* the queue pair, */
	bool send_failed; /* as a send has told */
	bool closing;
	enum ibv_wc_status status;
	uint32_t vendor_err;
};

/* ------------------------------------------------------------------ processes and threads */

static unsigned generation; /* of this process, counted by forks */

static void forked(void)
{
	generation++;
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked);
}

static HP_TLS char self; /* its address tells threads apart */

/* Note the thread as the queue's caller. False: another one is. A callback's call finds its own. */
static bool note_caller(struct hugepin_sgq *q)
{
	const char *caller = atomic_load_explicit(&q->caller, memory_order_relaxed);
	if (caller)
		return caller == &self;
	if (HP_UNLIKELY(q->flags & HUGEPIN_SGQ_DEBUG))
		return atomic_compare_exchange_strong_explicit(&q->caller, &caller, &self, memory_order_relaxed,
							       memory_order_relaxed);
	atomic_store_explicit(&q->caller, &self, memory_order_relaxed);
	return true;
}

/* What every function begins and ends with. errno is the program's. */
static int enter(struct hugepin_sgq *q, int *errno_before)
{
	if (!q)
		return -EINVAL;
	if (q->generation != generation)
		return -ESTALE;
	*errno_before = errno;
	if (q->flags & HUGEPIN_SGQ_MT)
		pthread_mutex_lock(&q->lock);
	else if (!note_caller(q))
		return -EPERM;
	return 0;
}

static int leave(struct hugepin_sgq *q, int errno_before, int ret)
{
	if (q->flags & HUGEPIN_SGQ_MT)
		pthread_mutex_unlock(&q->lock);
	else if (!q->in_callback)
		atomic_store_explicit(&q->caller, NULL, memory_order_relaxed);
	errno = errno_before;
	return ret;
}

/* Libibverbs returns errno, a provider may return its negative. */
static int provider_error(int err)
{
	return err > 0 ? -err : err;
}

/* ------------------------------------------------------------------ a frame under construction */

static inline uint32_t slot_of(const struct hugepin_sgq *q, uint64_t number)
{
	return (uint32_t)number & q->slot_mask;
}

static inline struct frame *frame_of(const struct hugepin_sgq *q, uint64_t number)
{
	return &q->frame[slot_of(q, number)];
}

/* As many as a work request takes, and the slot's own, which may stay without bytes. */
static inline struct hugepin_sge *sges_of(const struct hugepin_sgq *q, uint64_t number)
{
	return &q->sge[(size_t)slot_of(q, number) * (q->max_sge + 1)];
}

static inline struct hugepin_pin *pins_of(const struct hugepin_sgq *q, uint64_t number)
{
	return &q->pin[(size_t)slot_of(q, number) * q->max_sge];
}

static inline char *data_of(const struct hugepin_sgq *q, uint64_t number)
{
	return q->slots + (size_t)slot_of(q, number) * q->slot_bytes + q->table_room;
}

static inline bool raw(const struct hugepin_sgq *q)
{
	return q->flags & HUGEPIN_SGQ_RAW;
}

/* There is a frame under construction, with something in it. */
static inline bool held(const struct hugepin_sgq *q)
{
	return q->next - q->done < q->depth && frame_of(q, q->next)->subs;
}

/* Bytes of n sub-messages that one frame has room for. */
static inline uint64_t room_for(const struct hugepin_sgq *q, uint32_t n)
{
	uint64_t table = raw(q) ? 0 : HUGEPIN_SG_TABLE(n);
	return table < q->frame_bytes ? q->frame_bytes - table : 0;
}

/* Elements that may still be added. */
static inline uint32_t sges_left(const struct hugepin_sgq *q, const struct frame *f)
{
	return q->max_sge + (raw(q) && !f->head) - f->sges;
}

static void unpin(struct hugepin_sgq *q, uint64_t number, uint32_t from)
{
	struct frame *f = frame_of(q, number);
	if (f->pins > from)
		hugepin_unpinv(q->domain, pins_of(q, number) + from, (int)(f->pins - from));
	f->pins = from;
}

/* Key function: one reference on a registration serves all of the frame. It is looked up all the same: since an earlier add
 * a part of it may have been unmapped, and other memory be there under another key. */
static int key(void *queue, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	const struct hugepin_sgq *q = queue;
	const struct hugepin_pin *pins = pins_of(q, q->next);
	int err = hugepin_sg_key(q->domain, addr, len, access, ret_);
	for (uint32_t i = frame_of(q, q->next)->pins; addr && !err && i--;)
		if (pins[i].ref == ret_->ref) {
			hugepin_unpin(q->domain, ret_);
			*ret_ = pins[i];
			ret_->ref = 0;
			break;
		}
	return err;
}

/* Add a piece as elements, `left` at most. 1; 0: it needs more; or why it has no key. */
static int gather(struct hugepin_sgq *q, const struct iovec *piece, uint32_t left)
{
	struct frame *f = frame_of(q, q->next);
	struct hugepin_sge *sge = sges_of(q, q->next) + f->sges;
	struct hugepin_sg_info info;
	int n = hugepin_sg_map(piece, 1, HUGEPIN_READ, key, q, sge, (int)left, pins_of(q, q->next) + f->pins,
			       (int)(q->max_sge - f->pins), &info);
	if (n < 0)
		return n == -EMSGSIZE ? 0 : n;
	f->pins += info.pins;
	if (!f->open && sge[-1].lkey == sge->lkey && sge[-1].addr + sge[-1].length == sge->addr) {
		sge[-1].length += sge->length;
		memmove(sge, sge + 1, (size_t)--n * sizeof *sge);
	}
	f->sges += (uint32_t)n;
	f->open = false;
	return 1;
}

static void copy(struct hugepin_sgq *q, const struct iovec *piece)
{
	struct frame *f = frame_of(q, q->next);
	struct hugepin_sge *last = sges_of(q, q->next) + f->sges - 1;
	char *to = data_of(q, q->next) + f->fill;
	if (!f->open) {
		*++last = (struct hugepin_sge){ (uintptr_t)to, 0, q->slots_pin.lkey };
		f->sges++;
		f->open = true;
	}
	memcpy(to, piece->iov_base, piece->iov_len);
	f->fill += (uint32_t)piece->iov_len;
	if (f->sges == 1)
		f->head += (uint32_t)piece->iov_len;
	else
		last->length += (uint32_t)piece->iov_len;
}

/* Where a sub-message is read. */
struct cursor {
	const struct iovec *iov;
	size_t offset;
};

/* Append the next `bytes` bytes to the frame under construction; pieces of copy_below and more are gathered, as long as
 * elements are left. Returns how many were, or -errno, and the frame is as it was. */
static int put(struct hugepin_sgq *q, struct cursor *at, uint64_t bytes, uint32_t copy_below, unsigned flags)
{
	struct frame *f = frame_of(q, q->next);
	struct hugepin_sge *last = sges_of(q, q->next) + f->sges - 1;
	const struct hugepin_sge last_before = *last;
	const struct frame before = *f;
	int gathered = 0;

	while (bytes) {
		size_t left = at->iov->iov_len - at->offset, len = HP_MIN(left, bytes);
		struct iovec piece = { (char *)at->iov->iov_base + at->offset, len };
		at->offset += len;
		if (len == left)
			*at = (struct cursor){ at->iov + 1, 0 };
		if (!len)
			continue;
		bytes -= len;
		/* One element is kept for what follows: it can always be copied. */
		uint32_t sges = sges_left(q, f), kept = bytes > 0;
		int got = len >= copy_below && sges > kept ? gather(q, &piece, sges - kept) : 0;
		if (got == -ENOKEY && flags & HUGEPIN_SG_COPY_OK)
			got = 0;
		if (got < 0) {
			unpin(q, q->next, before.pins);
			*f = before;
			*last = last_before;
			return got;
		}
		if (!got)
			copy(q, &piece);
		gathered += got;
	}
	return gathered;
}

/* Its table, of n records, and its work request. */
static void frame_close(struct hugepin_sgq *q, const size_t *len, const uint64_t *tag, uint32_t n, uint32_t part, uint32_t parts)
{
	struct frame *f = frame_of(q, q->next);
	struct hugepin_sge *sge = sges_of(q, q->next);
	size_t table = raw(q) ? 0 : HUGEPIN_SG_TABLE(n);
	char *start = data_of(q, q->next) - table;

	if (table)
		hugepin_sg_table(start, table, len, tag, (int)n, part, parts);
	f->part = (uint16_t)part;
	f->parts = (uint16_t)parts;
	sge[0] = (struct hugepin_sge){ (uintptr_t)start, (uint32_t)table + f->head, q->slots_pin.lkey };

	struct ibv_send_wr *wr = &q->wr[slot_of(q, q->next)];
	wr->wr_id = q->id | (q->next & ID_LOW);
	bool skip = !sge[0].length, inlined = f->sges == 1 && sge[0].length <= q->max_inline && !skip;
	wr->sg_list = (struct ibv_sge *)(sge + skip);
	wr->num_sge = (int)(f->sges - skip);
	wr->send_flags = (f->solicited ? IBV_SEND_SOLICITED : 0) | (inlined ? IBV_SEND_INLINE : 0);
	q->next++;
}

static void close_held(struct hugepin_sgq *q)
{
	frame_close(q, q->len, q->tag, frame_of(q, q->next)->subs, 0, 1);
}

/* ------------------------------------------------------------------ posting */

/* Post what is closed. 0, or what the provider said; what it refused stays, and is tried again. */
static int post(struct hugepin_sgq *q)
{
	struct ibv_send_wr *first = &q->wr[slot_of(q, q->posted)], *bad = first;
	/* Sure to follow; without a completion to come it would have to follow at once. */
	bool follows = held(q) && q->signalled_out;
	uint32_t unsignalled = q->unsignalled;

	if (q->posted == q->next)
		return 0;
	for (uint64_t n = q->posted; n < q->next; n++) {
		struct ibv_send_wr *wr = &q->wr[slot_of(q, n)];
		bool chained = n + 1 < q->next, signalled = (!chained && !follows) || ++unsignalled >= q->signal_every;
		wr->next = chained ? &q->wr[slot_of(q, n + 1)] : NULL;
		wr->send_flags &= ~(unsigned)IBV_SEND_SIGNALED;
		wr->send_flags |= signalled ? IBV_SEND_SIGNALED : 0;
		if (signalled)
			unsignalled = 0;
	}
	int err = provider_error(ibv_post_send(q->qp, first, &bad));
	for (; q->posted < q->next; q->posted++) {
		const struct ibv_send_wr *wr = &q->wr[slot_of(q, q->posted)];
		if (err && wr == bad)
			break;
		struct frame *f = frame_of(q, q->posted);
		f->signalled = wr->send_flags & IBV_SEND_SIGNALED;
		q->signalled_out += f->signalled;
		q->unsignalled = f->signalled ? 0 : q->unsignalled + 1;
	}
	return err;
}

/* The frame under construction is to be sent. */
static bool due(const struct hugepin_sgq *q)
{
	const struct frame *f = frame_of(q, q->next);
	uint64_t out = q->next - q->done;
	return out < q->hold || (q->posted == q->next && !q->signalled_out) || f->bytes >= q->flush_bytes ||
	       f->subs >= q->subs_max || f->bytes >= room_for(q, f->subs + 1) || (!f->open && !sges_left(q, f)) ||
	       (q->deadline_ns && hp_clock_ns() - f->first_ns >= q->deadline_ns);
}

static int kick(struct hugepin_sgq *q, bool now)
{
	if (held(q) && (now || due(q)))
		close_held(q);
	return post(q);
}

/* ------------------------------------------------------------------ completion */

/* HUGEPIN_SGQ_DEBUG: of frame `done`, the sub-message with a piece whose key is no longer what it was; -1: none. */
static int64_t guilty(const struct hugepin_sgq *q)
{
	const struct frame *f = frame_of(q, q->done);
	const struct hugepin_sge *sge = sges_of(q, q->done);
	uint64_t at = 0;
	for (uint32_t i = 0; i < f->sges; i++) {
		uint64_t len = i ? sge[i].length : f->head;
		struct hugepin_pin pin = { 0 };
		bool ours = sge[i].lkey == q->slots_pin.lkey && sge[i].addr - (uintptr_t)q->slots < q->slots_pin.len;
		int err = ours ? 0 : hugepin_sg_key(q->domain, (void *)(uintptr_t)sge[i].addr, len, HUGEPIN_READ, &pin);
		bool good = ours || (!err && pin.lkey == sge[i].lkey && sge[i].addr + len <= pin.base + pin.len);
		if (pin.ref)
			hugepin_unpin(q->domain, &pin);
		if (!good) {
			uint32_t s = 0;
			for (uint64_t end = 0; s < f->subs; s++)
				if (at < (end += q->sub[(q->settled + s) & q->sub_mask].len))
					break;
			return s;
		}
		at += len;
	}
	return -1;
}

/* Frame `done` is: its slot is free, and its sub-messages are to be told. */
static void frame_end(struct hugepin_sgq *q, int status)
{
	struct frame *f = frame_of(q, q->done);
	int64_t who = -1;
	if (status == -EIO && q->flags & HUGEPIN_SGQ_DEBUG && f->parts == 1)
		who = guilty(q);
	if (f->parts > 1) { /* the sub-message's status is that of the first part that failed */
		q->carry = status = q->carry ? q->carry : status;
		if (f->part + 1 == f->parts)
			q->carry = 0;
	}
	for (uint32_t i = 0; i < f->subs; i++)
		q->sub[q->settled++ & q->sub_mask].status = who < 0 || who == i ? status : -ECANCELED;
	q->signalled_out -= f->signalled;
	unpin(q, q->done, 0);
	*f = empty_frame;
	q->done++;
}

static void tell(struct hugepin_sgq *q)
{
	if (q->in_callback) /* who runs it goes on with these */
		return;
	while (q->told < q->settled) {
		struct sub s = q->sub[q->told++ & q->sub_mask];
		if (!s.done)
			continue;
		q->in_callback = true;
		s.done(s.arg, s.tag, s.status);
		q->in_callback = false;
	}
}

static void cancel(struct hugepin_sgq *q)
{
	if (held(q))
		close_held(q);
	q->posted = q->next;
	while (q->done < q->next)
		frame_end(q, -ECANCELED);
}

static void fail(struct hugepin_sgq *q, const struct ibv_wc *wc)
{
	if (q->status == IBV_WC_SUCCESS || (q->status == IBV_WC_WR_FLUSH_ERR && wc->status != IBV_WC_WR_FLUSH_ERR)) {
		q->status = wc->status;
		q->vendor_err = wc->vendor_err;
	}
	q->failed = true;
}

/* After a failure each work request that is out is flushed, and completes; but not those that had completed, unsignalled,
 * before. Of these a frame tells that is posted behind them, and flushed. Where that is refused nothing more will be heard. */
static void wind_up(struct hugepin_sgq *q)
{
	if (!q->signalled_out && q->done < q->posted)
		kick(q, true);
	if (!q->signalled_out)
		cancel(q);
}

static bool sent(struct hugepin_sgq *q, const struct ibv_wc *wc)
{
	uint64_t number = q->done + ((wc->wr_id - q->done) & ID_LOW);
	if (number >= q->posted)
		return false;
	/* In order, so those before it, unsignalled, have completed; after a failure each has a completion of its own. A signalled
	 * one's may have been lost: then only a success says that it had completed, too. */
	while (q->done < number) {
		bool unknown = q->send_failed || (wc->status && frame_of(q, q->done)->signalled);
		frame_end(q, unknown ? -ECANCELED : 0);
	}
	if (wc->status) {
		fail(q, wc);
		q->send_failed = true;
	}
	frame_end(q, !wc->status ? 0 : wc->status == IBV_WC_WR_FLUSH_ERR ? -ECANCELED : -EIO);
	return true;
}

static bool received(struct hugepin_sgq *q, const struct ibv_wc *wc)
{
	uint32_t slot = wc->wr_id & ID_LOW;
	if (slot >= q->recv_depth || !q->recv_out[slot])
		return false;
	q->recv_out[slot] = false;
	q->idle[q->idle_count++] = slot;
	if (wc->status) {
		fail(q, wc);
		return true;
	}
	const char *data = q->recv_slots + slot * q->recv_bytes + q->grh;
	size_t len = wc->byte_len - q->grh;
	struct hugepin_sg_rx rx;
	struct iovec record;
	uint64_t tag = 0;
	q->in_callback = true;
	/* An RDMA WRITE with immediate data takes a receive, too, and writes nothing into it. */
	if (wc->opcode != IBV_WC_RECV || wc->byte_len < q->grh || len > q->frame_bytes ||
	    (!raw(q) && hugepin_sg_iter(&rx, data, len) < 0))
		q->recv(q->recv_arg, 0, NULL, 0, 0, 0);
	else if (raw(q))
		q->recv(q->recv_arg, 0, data, len, 0, 1);
	else
		while (hugepin_sg_next(&rx, &record, &tag))
			q->recv(q->recv_arg, tag, record.iov_base, record.iov_len, rx.part, rx.parts);
	q->in_callback = false;
	return true;
}

static bool take(struct hugepin_sgq *q, const struct ibv_wc *wc)
{
	if (wc->wr_id >> ID_QUEUE_SHIFT != q->id >> ID_QUEUE_SHIFT || wc->qp_num != q->qp->qp_num)
		return false;
	return wc->wr_id & ID_RECV ? received(q, wc) : sent(q, wc);
}

/* The program has moved the queue pair to the error state. Of an error of the device's own a completion tells first. */
static inline bool moved_to_error(const struct hugepin_sgq *q)
{
	return q->qp->state == IBV_QPS_ERR;
}

/* Post the receives that are not. 0, or what the provider said: the rest is tried again. None is posted in the error state:
 * not every provider flushes it (soft-RoCE: only what is there when the state changes), and it would be out for ever. */
static int repost(struct hugepin_sgq *q)
{
	if (!q->idle_count || moved_to_error(q))
		return 0;
	struct ibv_recv_wr *first = NULL, *bad;
	for (uint32_t i = 0; i < q->idle_count; i++) {
		struct ibv_recv_wr *wr = &q->recv_wr[q->idle[i]];
		wr->next = first;
		first = wr;
	}
	bad = first;
	int err = provider_error(ibv_post_recv(q->qp, first, &bad));
	/* The chain begins with the last. */
	while (q->idle_count && !(err && &q->recv_wr[q->idle[q->idle_count - 1]] == bad))
		q->recv_out[q->idle[--q->idle_count]] = true;
	return err;
}

/* After completions: callbacks first, since what they add is to go with what is held. */
static int go_on(struct hugepin_sgq *q)
{
	int err = 0;
	tell(q);
	q->failed |= !q->closing && moved_to_error(q);
	if (q->failed) {
		wind_up(q);
		tell(q);
	} else {
		int recv_err = repost(q);
		err = kick(q, false);
		err = err ? err : recv_err;
	}
	/* With nothing under way (then nothing is held) begin at the first slot again, which is in the cache. */
	if (q->done == q->next && !q->in_callback) {
		q->done = q->posted = q->next = hp_round_up(q->next, (size_t)q->slot_mask + 1);
		q->told = q->settled = q->added = 0;
	}
	return err;
}

/* ------------------------------------------------------------------ adding */

/* How many elements the pieces need; open: what is copied joins the one before. */
static uint32_t sges_needed(const struct iovec *iov, int n, uint32_t copy_below, bool open)
{
	uint32_t need = 0;
	for (int i = 0; i < n; i++) {
		if (!iov[i].iov_len)
			continue;
		bool copied = iov[i].iov_len < copy_below;
		need += !(copied && open);
		open = copied;
	}
	return need;
}

static int add(struct hugepin_sgq *q, const struct iovec *iov, int n, uint64_t bytes, const struct sub *sub, unsigned flags)
{
	uint64_t part_bytes = room_for(q, 1), parts = 1;
	bool whole = bytes <= part_bytes;
	if (!whole) {
		parts = (bytes + part_bytes - 1) / part_bytes;
		/* Of datagrams a part may be lost, and the parts of two sub-messages taken for one. */
		bool split = flags & HUGEPIN_SG_MULTI && !raw(q) && !q->grh;
		if (!split || parts > HP_MIN(q->depth, PARTS_MAX))
			return -EMSGSIZE;
	}
	if (q->added - q->told > q->sub_mask)
		return -EAGAIN;

	/* If there are more than a frame's elements, those for the longest pieces. */
	uint32_t copy_below = flags & HUGEPIN_SG_COLD ? q->copy_below_cold : q->copy_below;
	while (whole && sges_needed(iov, n, copy_below, true) > q->max_sge - !raw(q) && copy_below < UINT32_MAX)
		copy_below = copy_below < UINT32_MAX / 2 ? copy_below * 2 : UINT32_MAX;

	if (held(q)) {
		const struct frame *f = frame_of(q, q->next);
		if (!whole || f->bytes + bytes > room_for(q, f->subs + 1) ||
		    sges_needed(iov, n, copy_below, f->open) > sges_left(q, f))
			close_held(q);
	}
	if (q->next + parts - q->done > q->depth) {
		int err = post(q);
		return err ? err : -EAGAIN;
	}

	struct cursor at = { iov, 0 };
	uint64_t first = q->next;
	int gathered = 0;
	for (uint64_t part = 0, left = bytes; part < parts; part++) {
		size_t len = HP_MIN(left, part_bytes);
		int got = put(q, &at, len, copy_below, flags);
		if (got < 0) {
			while (q->next > first) {
				unpin(q, --q->next, 0);
				*frame_of(q, q->next) = empty_frame;
			}
			post(q);
			return got;
		}
		struct frame *f = frame_of(q, q->next);
		if (q->deadline_ns && !f->subs)
			f->first_ns = hp_clock_ns();
		f->bytes += (uint32_t)len;
		f->solicited |= !!(flags & HUGEPIN_SG_SOLICITED) && part + 1 == parts;
		if (whole) {
			q->len[f->subs] = len;
			q->tag[f->subs++] = sub->tag;
		} else {
			f->subs = part + 1 == parts;
			frame_close(q, &len, &sub->tag, 1, (uint32_t)part, (uint32_t)parts);
		}
		gathered += got;
		left -= len;
	}
	q->sub[q->added++ & q->sub_mask] = *sub;
	/* It is the queue's now: what cannot be posted yet stays, and the next flush says why. */
	kick(q, flags & HUGEPIN_SG_NOW);
	return !gathered;
}

/* ------------------------------------------------------------------ opening */

/* Of a ring with room for n. */
static uint64_t mask_of(uint64_t n)
{
	return n > 1 ? UINT64_MAX >> __builtin_clzll(n - 1) : 0;
}

/* What the queue pair, the model and *a make of it; or -errno. */
static int set_up(struct hugepin_sgq *q, const struct hugepin_sgq_attr *a)
{
	struct hugepin_sg_caps caps;
	struct hugepin_sg_model model;
	int err = hugepin_sg_caps(a->qp, a->granted, &caps, sizeof caps);
	if (err < 0)
		return err;
	/* A model that cannot be measured (all domains are in use, say) is no reason not to send. */
	if (a->model)
		model = *a->model;
	else if (hugepin_sg_calibrate(NULL, 0, &model, sizeof model) < 0)
		model = hp_sg_model_default;

	bool ud = a->qp->qp_type == IBV_QPT_UD, is_raw = a->flags & HUGEPIN_SGQ_RAW;
	uint32_t wrs = caps.max_wr > a->reserved_wr ? caps.max_wr - a->reserved_wr : 0;
	uint64_t longest = ud ? HP_MIN(caps.mtu_ud, caps.max_msg) : HP_MIN(caps.max_msg, UINT32_MAX);
	uint32_t depth = a->depth ? a->depth : HP_MIN(wrs, 64u);
	uint32_t frame_bytes = a->frame_bytes ? a->frame_bytes : (uint32_t)(ud ? longest : HP_MIN(longest, 8192u));
	if (!depth || depth > HP_MIN(wrs, DEPTH_MAX) || a->recv_depth > HP_MIN(caps.max_recv_wr, DEPTH_MAX) || !caps.max_sge ||
	    frame_bytes < (is_raw ? 1 : HUGEPIN_SG_TABLE(1) + 1) || (a->recv_depth && !caps.max_recv_sge))
		return -EINVAL;
	if (frame_bytes > longest)
		return -EMSGSIZE;

	/* A frame with this many takes no more: by default where they have less than 64 bytes each. */
	uint32_t fit = is_raw ? frame_bytes : (frame_bytes - HUGEPIN_SG_HEADER) / 12;
	uint32_t subs_max = a->flush_count ? a->flush_count : HP_MAX(frame_bytes / 64, 16u);
	*q = (struct hugepin_sgq){
		.qp = a->qp,
		.domain = a->domain,
		.generation = generation,
		.flags = a->flags,
		.depth = depth,
		.frame_bytes = frame_bytes,
		.subs_max = HP_MIN(subs_max, fit),
		.flush_bytes = a->flush_bytes ? a->flush_bytes : UINT32_MAX,
		.hold = a->hold_if_outstanding ? a->hold_if_outstanding : HP_MAX(depth - 1, 1u),
		.signal_every = HP_MAX(depth / 4, 1u),
		.max_sge = caps.max_sge,
		.max_inline = model.refused & HUGEPIN_SG_INLINE ? 0 : caps.max_inline,
		.deadline_ns = a->deadline_ns,
		.recv_depth = a->recv_depth,
		.recv = a->recv,
		.recv_arg = a->recv_arg,
		.grh = ud ? GRH : 0,
	};
	q->slot_mask = (uint32_t)mask_of(depth);
	q->sub_mask = mask_of(((uint64_t)depth + 1) * q->subs_max); /* a frame's more: for what callbacks add */
	q->copy_below = q->copy_below_cold = UINT32_MAX;
	if (!(model.refused & HUGEPIN_SG_GATHER)) {
		q->copy_below = HP_MAX(hp_sg_copy_below(&model, false, model.element, 1), 1u);
		q->copy_below_cold = HP_MAX(hp_sg_copy_below(&model, true, model.element, 1), 1u);
	}
	q->table_room = is_raw ? 0 : hp_round_up(HUGEPIN_SG_TABLE(q->subs_max), LINE);
	/* Slots a multiple of 4 KiB apart would be in the same sets of a cache, and alias. */
	q->slot_bytes = hp_round_up(q->table_room + room_for(q, 1), LINE);
	q->slot_bytes += q->slot_bytes % 4096 ? 0 : LINE;
	q->recv_bytes = hp_round_up(q->grh + frame_bytes, LINE);
	q->recv_bytes += q->recv_bytes % 4096 ? 0 : LINE;
	return 0;
}

/* Cut `count` things of `size` from a block at *used; block NULL: only count. */
static void *cut(char *block, size_t *used, size_t count, size_t size)
{
	size_t at = *used;
	*used = hp_round_up(at + count * size, LINE);
	return block ? block + at : NULL;
}

/* The arrays, in a block of their own; NULL: how long that is. */
static size_t lay_out(struct hugepin_sgq *q, char *block)
{
	size_t used = 0, slots = (size_t)q->slot_mask + 1;
	cut(block, &used, 1, sizeof *q);
	q->frame = cut(block, &used, slots, sizeof *q->frame);
	q->sge = cut(block, &used, slots * (q->max_sge + 1), sizeof *q->sge);
	q->pin = cut(block, &used, slots * q->max_sge, sizeof *q->pin);
	q->wr = cut(block, &used, slots, sizeof *q->wr);
	q->sub = cut(block, &used, (size_t)q->sub_mask + 1, sizeof *q->sub);
	q->len = cut(block, &used, q->subs_max, sizeof *q->len);
	q->tag = cut(block, &used, q->subs_max, sizeof *q->tag);
	q->recv_wr = cut(block, &used, q->recv_depth, sizeof *q->recv_wr);
	q->recv_sge = cut(block, &used, q->recv_depth, sizeof *q->recv_sge);
	q->recv_out = cut(block, &used, q->recv_depth, sizeof *q->recv_out);
	q->idle = cut(block, &used, q->recv_depth, sizeof *q->idle);
	return used;
}

static void prepare(struct hugepin_sgq *q, const struct hugepin_sgq_attr *a)
{
	for (uint32_t i = 0; i <= q->slot_mask; i++) {
		q->frame[i] = empty_frame;
		q->wr[i] = (struct ibv_send_wr){ .opcode = IBV_WR_SEND };
		if (a->qp->qp_type == IBV_QPT_UD) {
			q->wr[i].wr.ud.ah = a->ah;
			q->wr[i].wr.ud.remote_qpn = a->remote_qpn;
			q->wr[i].wr.ud.remote_qkey = a->remote_qkey;
		}
	}
	for (uint32_t i = 0; i < q->recv_depth; i++) {
		q->recv_sge[i] = (struct ibv_sge){ .addr = (uintptr_t)(q->recv_slots + i * q->recv_bytes),
						   .length = (uint32_t)(q->grh + q->frame_bytes),
						   .lkey = q->slots_pin.lkey };
		q->recv_wr[i] = (struct ibv_recv_wr){ .wr_id = q->id | ID_RECV | i, .sg_list = &q->recv_sge[i], .num_sge = 1 };
		q->idle[i] = i;
	}
	q->idle_count = q->recv_depth;
}

static void destroy(struct hugepin_sgq *q)
{
	hugepin_unpin(q->domain, &q->slots_pin); /* a child of fork: -ESTALE, and there is nothing to do */
	hugepin_free(q->slots);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

/* With what set_up() has found in *q. */
static int open_queue(const struct hugepin_sgq *settings, const struct hugepin_sgq_attr *a, struct hugepin_sgq **ret_)
{
	static _Atomic uint32_t queues;
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct hugepin_sgq *q, measure = *settings;
	char *block = calloc(1, lay_out(&measure, NULL));
	if (!block)
		return -ENOMEM;
	q = (struct hugepin_sgq *)block;
	*q = *settings;
	lay_out(q, block);
	pthread_once(&once, watch_forks);
	pthread_mutexattr_t recursive;
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&q->lock, &recursive);
	pthread_mutexattr_destroy(&recursive);
	q->id = (uint64_t)HUGEPIN_SGQ_WR_ID << 48 | (uint64_t)(atomic_fetch_add(&queues, 1) & ID_QUEUES) << ID_QUEUE_SHIFT;

	size_t sending = ((size_t)q->slot_mask + 1) * q->slot_bytes, len = sending + q->recv_depth * q->recv_bytes;
	q->slots = hugepin_aligned_alloc(HUGEPIN_LARGE_MIN, len);
	int err = q->slots ? hugepin_pin(q->domain, q->slots, len, HUGEPIN_READ | (q->recv_depth ? HUGEPIN_WRITE : 0),
					 &q->slots_pin) : -ENOMEM;
	if (!err && q->slots_pin.len < len)
		err = -ENOBUFS;
	if (!err) {
		q->recv_slots = q->slots + sending;
		prepare(q, a);
		err = repost(q);
		if (q->idle_count < q->recv_depth) /* then the slots are in use; poll goes on with the rest */
			err = 0;
	}
	if (err) {
		destroy(q);
		return err;
	}
	*ret_ = q;
	return 0;
}

int hugepin_sgq_open(const struct hugepin_sgq_attr *attr, hugepin_sgq **ret_)
{
	struct hugepin_sgq_attr a = { 0 };
	struct hugepin_sgq settings;
	if (!attr || !ret_ || attr->size < offsetof(struct hugepin_sgq_attr, flags))
		return -EINVAL;
	memcpy(&a, attr, HP_MIN(attr->size, sizeof a));
	if (!a.qp || !a.domain || a.flags & ~(uint32_t)QUEUE_FLAGS || (a.recv_depth && (!a.recv || a.qp->srq)) ||
	    (a.model && a.model->size < sizeof *a.model))
		return -EINVAL;
	if (a.qp->qp_type != IBV_QPT_RC && a.qp->qp_type != IBV_QPT_UD)
		return -EOPNOTSUPP;
	if (a.qp->qp_type == IBV_QPT_UD && !a.ah)
		return -EINVAL;

	int errno_before = errno, err = set_up(&settings, &a);
	if (!err)
		err = open_queue(&settings, &a, ret_);
	errno = errno_before;
	return err;
}

/* ------------------------------------------------------------------ what the owner calls */

int hugepin_sgq_add(hugepin_sgq *q, const struct iovec *iov, int n, uint64_t tag, hugepin_done_fn done, void *arg,
		    unsigned flags)
{
	uint64_t bytes;
	int errno_before, err = hp_iov_bytes(iov, n, &bytes);
	if (err || flags & ~(unsigned)ADD_FLAGS)
		return -EINVAL;
	if (bytes > UINT32_MAX)
		return -EOVERFLOW;
	err = enter(q, &errno_before);
	if (err)
		return err;
	struct sub sub = { .done = done, .arg = arg, .tag = tag, .len = (uint32_t)bytes };
	return leave(q, errno_before, q->failed || q->closing ? -ESHUTDOWN : add(q, iov, n, bytes, &sub, flags));
}

int hugepin_sgq_flush(hugepin_sgq *q)
{
	int errno_before, err = enter(q, &errno_before);
	if (err)
		return err;
	if (q->failed) {
		go_on(q);
		return leave(q, errno_before, -ESHUTDOWN);
	}
	return leave(q, errno_before, kick(q, true));
}

/* At most max from one completion queue. Returns how many, or -errno. */
static int poll_one(struct hugepin_sgq *q, struct ibv_cq *cq, int max)
{
	struct ibv_wc wc[BATCH];
	int taken = 0, n = 1;
	while (taken < max && n > 0) {
		n = ibv_poll_cq(cq, HP_MIN(max - taken, BATCH), wc);
		for (int i = 0; i < n; i++)
			take(q, &wc[i]);
		taken += n > 0 ? n : 0;
	}
	return n < 0 && !taken ? -EIO : taken;
}

int hugepin_sgq_poll(hugepin_sgq *q, int max)
{
	int errno_before, err = enter(q, &errno_before);
	if (err)
		return err;
	if (max < 0 || q->in_callback)
		return leave(q, errno_before, max < 0 ? -EINVAL : -EBUSY);
	int taken = poll_one(q, q->qp->send_cq, max), more = 0;
	if (taken >= 0 && q->recv_depth && q->qp->recv_cq != q->qp->send_cq)
		more = poll_one(q, q->qp->recv_cq, max - taken);
	if (taken >= 0)
		taken = more > 0 || taken ? taken + HP_MAX(more, 0) : more;
	err = go_on(q);
	if (!taken && err)
		taken = err;
	if (!taken && q->failed && q->done == q->next)
		taken = -ESHUTDOWN;
	return leave(q, errno_before, taken);
}

int hugepin_sgq_wc(hugepin_sgq *q, const struct ibv_wc *wc)
{
	int errno_before, err = wc ? enter(q, &errno_before) : -EINVAL;
	if (err)
		return err;
	if (q->in_callback)
		return leave(q, errno_before, -EBUSY);
	bool ours = take(q, wc);
	if (ours)
		go_on(q);
	return leave(q, errno_before, ours);
}

enum ibv_wc_status hugepin_sgq_wc_status(const hugepin_sgq *queue, uint32_t *ret_vendor_err)
{
	struct hugepin_sgq *q = (struct hugepin_sgq *)(uintptr_t)queue; /* to lock it */
	int errno_before;
	if (enter(q, &errno_before))
		return IBV_WC_SUCCESS;
	enum ibv_wc_status status = q->status;
	if (ret_vendor_err)
		*ret_vendor_err = q->vendor_err;
	leave(q, errno_before, 0);
	return status;
}

/* What was posted while the state changed, and not flushed, is flushed by another change to the same state. */
static void flush_receives(struct hugepin_sgq *q)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	if (q->idle_count < q->recv_depth && moved_to_error(q))
		ibv_modify_qp(q->qp, &attr, IBV_QP_STATE);
}

/* The end of a queue of which nothing is out, or will be heard. Looks at no queue pair, which may be gone. */
static int finish(struct hugepin_sgq *q, int errno_before)
{
	q->closing = true;
	cancel(q);
	tell(q);
	leave(q, errno_before, 0);
	destroy(q);
	errno = errno_before;
	return 0;
}

int hugepin_sgq_close(hugepin_sgq *q)
{
	int errno_before, err = enter(q, &errno_before);
	if (err == -ESTALE) { /* the copy that a child has */
		destroy(q);
		return 0;
	}
	if (err)
		return err;
	if (q->in_callback)
		return leave(q, errno_before, -EBUSY);
	if (q->done < q->posted || q->idle_count < q->recv_depth) {
		flush_receives(q);
		return leave(q, errno_before, -EBUSY);
	}
	return finish(q, errno_before);
}

int hugepin_sgq_abort(hugepin_sgq *q)
{
	int errno_before, err = enter(q, &errno_before);
	if (err == -ESTALE) { /* the copy that a child has */
		destroy(q);
		return 0;
	}
	if (err)
		return err;
	return q->in_callback ? leave(q, errno_before, -EBUSY) : finish(q, errno_before);
}
