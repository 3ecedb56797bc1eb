/*
 * A queue of sub-messages for one destination. Several sub-messages go as one frame (hugepin_sg_frame(5)), by one work
 * request. state.h has the struct and the numbering of frames.
 *
 * Short pieces are copied into the frame's slot at once, and long pieces become elements. The length of the frame's
 * table is known only at the end. So the table is written to the end of the room in front of the data, where table and
 * first data are one element.
 *
 * Completions come in the order of frames. Callbacks run in the order of adds.
 *
 * Coalescing is for backlog, as in openib of Open MPI and in MVAPICH2. While few frames are outstanding, a sub-message
 * goes at once.
 *
 * A work request goes unsignalled only if another one of this queue is certain to follow: one in the same chain, or the
 * frame under construction, which is posted at the latest when no signalled one is outstanding (due()). So the last
 * work request is always signalled, and a later completion covers the unsignalled ones. This holds even after a
 * failure, because a posted frame is then flushed and completes.
 *
 * Threads: one at a time, or several under a lock (HUGEPIN_SGQ_MT), which ranks above all locks of domains. Without the
 * lock a call notes its thread, and a call of another thread that finds the note is refused. Two calls that begin at
 * the same moment may miss each other, unless HUGEPIN_SGQ_DEBUG is set. Callbacks run without the lock, one at a time:
 * the thread that runs one notes itself, and runs those, too, that other threads' calls have made due meanwhile.
 * Nothing is allocated after opening, except that with a pool (pool.h) the ring of sub-messages grows by use.
 */
#include "sge/state.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "sge/credit.h"
#include "sge/debug.h"
#include "sge/error.h"
#include "sge/id.h"
#include "sge/iov.h"
#include "sge/open.h"
#include "sge/plan.h"
#include "sge/pool.h"
#include "sge/receive.h"
#include "sge/wait.h"

enum { BATCH = 16 }; /* completions polled at once */
#define PARTS_MAX UINT16_MAX

#define WITH_IMM (1u << 31) /* a flag of add(): immediate data is in the upper half */
#define MARKS (HUGEPIN_SG_SOLICITED | WITH_IMM) /* what the last frame of a sub-message tells the adapter */
#define ADD_FLAGS (HUGEPIN_SG_COPY_OK | HUGEPIN_SG_MULTI | HUGEPIN_SG_NOW | HUGEPIN_SG_SOLICITED | HUGEPIN_SG_COLD)

/* ------------------------------------------------------------------ threads */

static HP_TLS char self; /* its address distinguishes threads */
static char in_post; /* the note while the program's post function runs, in which no function may be called */

/* Note this thread as the queue's caller. A call from within a callback finds its own note. */
static int note_caller(struct hugepin_sgq *q)
{
	const char *caller = atomic_load_explicit(&q->caller, memory_order_relaxed);
	if (caller)
		return caller == &self ? 0 : -EBUSY;
	if (HP_UNLIKELY(q->flags & HUGEPIN_SGQ_DEBUG))
		return atomic_compare_exchange_strong_explicit(&q->caller, &caller, &self, memory_order_relaxed,
							       memory_order_relaxed) ? 0 : -EBUSY;
	atomic_store_explicit(&q->caller, &self, memory_order_relaxed);
	return 0;
}

/* Each public function begins with enter_queue(). It ends with leave_queue(), which restores the program's errno. */
static int enter_queue(struct hugepin_sgq *q, int *saved_errno)
{
	if (!q)
		return -EINVAL;
	if (q->generation != hp_sgq_generation)
		return -ESTALE;
	*saved_errno = errno;
	if (!(q->flags & HUGEPIN_SGQ_MT))
		return note_caller(q);
	pthread_mutex_lock(&q->lock);
	return 0;
}

/* Whether this call was made in a callback of the queue. */
static bool within_callback(const struct hugepin_sgq *q)
{
	return q->in_callback && atomic_load_explicit(&q->caller, memory_order_relaxed) == &self;
}

static void leave_special(struct hugepin_sgq *q, int ret);

static inline int leave_queue(struct hugepin_sgq *q, int saved_errno, int ret)
{
	if (q->flags & (HUGEPIN_SGQ_MT | HUGEPIN_SGQ_WAIT))
		leave_special(q, ret);
	else if (!q->in_callback)
		atomic_store_explicit(&q->caller, NULL, memory_order_relaxed);
	errno = saved_errno;
	return ret;
}

/* ------------------------------------------------------------------ a frame under construction */

static inline uint32_t slot_of(const struct hugepin_sgq *q, uint64_t number)
{
	uint32_t i = (uint32_t)number & q->slot_mask;
	return HP_UNLIKELY(q->pool) ? q->slot[i] : i;
}

static inline struct hp_sgq_frame *frame_of(const struct hugepin_sgq *q, uint64_t number)
{
	return &q->frame[slot_of(q, number)];
}

/* A frame has one element more than a work request, because its first element is in the slot and may stay empty. */
static inline struct hugepin_sge *sges_of(const struct hugepin_sgq *q, uint64_t number)
{
	return &q->sge[(size_t)slot_of(q, number) * (q->slot_sges + 1)];
}

static inline struct hugepin_pin *pins_of(const struct hugepin_sgq *q, uint64_t number)
{
	return &q->pin[(size_t)slot_of(q, number) * q->slot_sges];
}

static inline char *data_of(const struct hugepin_sgq *q, uint64_t number)
{
	return q->slots + (size_t)slot_of(q, number) * q->slot_bytes + q->table_room;
}

/* Whether a frame with sub-messages is under construction. */
static inline bool holds_frame(const struct hugepin_sgq *q)
{
	return q->next - q->done < q->depth && slot_of(q, q->next) != HP_SGQ_NO_SLOT && frame_of(q, q->next)->subs;
}

/* leave_queue() for a queue with a lock or a timer. What a call in a callback has changed, the call around it notes. */
static __attribute__((noinline)) void leave_special(struct hugepin_sgq *q, int ret)
{
	if (q->flags & HUGEPIN_SGQ_WAIT && !within_callback(q))
		hp_sgq_wait_note(q, holds_frame(q) ? frame_of(q, q->next) : NULL, ret == -EAGAIN);
	if (q->flags & HUGEPIN_SGQ_MT)
		pthread_mutex_unlock(&q->lock);
	else if (!q->in_callback)
		atomic_store_explicit(&q->caller, NULL, memory_order_relaxed);
}

/* With a pool: take a slot for frame `next`, unless it has one. False: the pool has none for this queue now. */
static bool take_slot(struct hugepin_sgq *q)
{
	uint32_t slot;
	if (!q->pool || slot_of(q, q->next) != HP_SGQ_NO_SLOT)
		return true;
	if (!hp_sgpool_take(q->pool, q->slots_taken, &slot))
		return false;
	q->slots_taken++;
	q->slot[q->next & q->slot_mask] = slot;
	q->frame[slot] = hp_sgq_empty_frame;
	q->wr[slot] = q->first_wr;
	return true;
}

/* The frame has no sub-messages any more. */
static void drop_slot(struct hugepin_sgq *q, uint64_t number)
{
	if (!q->pool || slot_of(q, number) == HP_SGQ_NO_SLOT)
		return;
	hp_sgpool_give(q->pool, q->slots_taken--, slot_of(q, number));
	q->slot[number & q->slot_mask] = HP_SGQ_NO_SLOT;
}

/* The number of elements that may still be added. */
static inline uint32_t sges_left(const struct hugepin_sgq *q, const struct hp_sgq_frame *f)
{
	return q->max_sge + (hp_sgq_raw(q) && !f->head) - f->sges;
}

static void unpin_frame(struct hugepin_sgq *q, uint64_t number, uint32_t from)
{
	struct hp_sgq_frame *f = frame_of(q, number);
	if (f->pins > from)
		hugepin_unpinv(q->domain, pins_of(q, number) + from, (int)(f->pins - from));
	f->pins = from;
}

/* Key function. One reference on a registration serves the whole frame. The key is nevertheless looked up each time,
 * because since an earlier add, a part of the registration may have been unmapped, and new memory there may have
 * another key. */
static int frame_key(void *queue, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
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

/* Add a piece as at most `left` elements. 1: added; 0: the piece needs more elements; -errno: there is no key. */
static int gather_piece(struct hugepin_sgq *q, const struct iovec *piece, uint32_t left)
{
	struct hp_sgq_frame *f = frame_of(q, q->next);
	struct hugepin_sge *sge = sges_of(q, q->next) + f->sges;
	struct hugepin_sg_info info;
	int n = hugepin_sg_map(piece, 1, HUGEPIN_READ, frame_key, q, sge, (int)left, pins_of(q, q->next) + f->pins,
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

static void copy_piece(struct hugepin_sgq *q, const struct iovec *piece)
{
	struct hp_sgq_frame *f = frame_of(q, q->next);
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

/* The position of the next byte to read in a sub-message. */
struct cursor {
	const struct iovec *iov;
	size_t offset;
};

/* Append the next `bytes` bytes to the frame under construction. Pieces of at least copy_below bytes are gathered, as
 * long as elements are left. Returns the number of pieces gathered, or -errno with the frame unchanged. */
static int append(struct hugepin_sgq *q, struct cursor *at, uint64_t bytes, uint32_t copy_below, unsigned flags)
{
	struct hp_sgq_frame *f = frame_of(q, q->next);
	struct hugepin_sge *last = sges_of(q, q->next) + f->sges - 1;
	const struct hugepin_sge last_before = *last;
	const struct hp_sgq_frame before = *f;
	int gathered = 0;

	while (bytes) {
		size_t left = at->iov->iov_len - at->offset, len = HP_MIN(left, bytes);
		/* a base may be NULL */
		struct iovec piece = { (void *)((uintptr_t)at->iov->iov_base + at->offset), len };
		at->offset += len;
		if (len == left)
			*at = (struct cursor){ at->iov + 1, 0 };
		if (!len)
			continue;
		bytes -= len;
		/* Keep one element free, so that the remaining bytes can always be copied. */
		uint32_t sges = sges_left(q, f), kept = bytes > 0;
		int got = len >= copy_below && sges > kept ? gather_piece(q, &piece, sges - kept) : 0;
		if (got == -ENOKEY && flags & HUGEPIN_SG_COPY_OK)
			got = 0;
		if (got < 0) {
			unpin_frame(q, q->next, before.pins);
			*f = before;
			*last = last_before;
			return got;
		}
		if (!got)
			copy_piece(q, &piece);
		gathered += got;
	}
	return gathered;
}

/* Close the frame under construction: write its table of n records, and its work request. */
static void frame_close(struct hugepin_sgq *q, const size_t *len, const uint64_t *tag, uint32_t n, uint32_t part,
			uint32_t parts)
{
	struct hp_sgq_frame *f = frame_of(q, q->next);
	struct hugepin_sge *sge = sges_of(q, q->next);
	size_t table = hp_sgq_raw(q) ? 0 : HUGEPIN_SG_TABLE(n);
	char *start = data_of(q, q->next) - table;
	if (table)
		hugepin_sg_table(start, table, len, tag, (int)n, part, parts);
	f->part = (uint16_t)part;
	f->parts = (uint16_t)parts;
	sge[0] = (struct hugepin_sge){ (uintptr_t)start, (uint32_t)table + f->head, q->slots_pin.lkey };

	struct ibv_send_wr *wr = &q->wr[slot_of(q, q->next)];
	wr->wr_id = q->taker.id | (q->next & HP_SGQ_ID_LOW);
	bool skip = !sge[0].length, inlined = f->sges == 1 && sge[0].length <= q->max_inline && !skip;
	wr->sg_list = (struct ibv_sge *)(sge + skip);
	wr->num_sge = (int)(f->sges - skip);
	wr->send_flags = inlined ? IBV_SEND_INLINE : 0;
	wr->opcode = IBV_WR_SEND;
	if (HP_UNLIKELY(f->marks)) {
		wr->send_flags |= f->marks & HUGEPIN_SG_SOLICITED ? IBV_SEND_SOLICITED : 0;
		wr->opcode = f->marks & WITH_IMM ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
		wr->imm_data = q->imm;
	}
	q->next++;
}

static void close_held(struct hugepin_sgq *q)
{
	frame_close(q, q->len, q->tag, frame_of(q, q->next)->subs, 0, 1);
}

/* ------------------------------------------------------------------ posting */

static int post_chain(struct hugepin_sgq *q, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	if (!q->post)
		return hp_verbs_error(ibv_post_send(q->qp, first, bad));
	atomic_store_explicit(&q->caller, &in_post, memory_order_relaxed);
	int err = hp_verbs_error(q->post(q->post_arg, first, bad));
	atomic_store_explicit(&q->caller, &self, memory_order_relaxed);
	return err;
}

/* Post the closed frames below `end`, of which there is one. 0, or the provider's error: refused frames stay closed, for
 * the next call. */
static __attribute__((noinline)) int post_below(struct hugepin_sgq *q, uint64_t end)
{
	struct ibv_send_wr *first = &q->wr[slot_of(q, q->posted)], *bad = first;
	/* The frame under construction is certain to follow only if a completion will come, because the completion
	 * posts it, unless it waits for credits. */
	bool follows = holds_frame(q) && q->signalled_out && !(q->flags & HUGEPIN_SGQ_CREDITS);
	uint32_t unsignalled = q->unsignalled;
	for (uint64_t n = q->posted; n < end; n++) {
		struct ibv_send_wr *wr = &q->wr[slot_of(q, n)];
		bool chained = n + 1 < end, signalled = (!chained && !follows) || ++unsignalled >= q->signal_every;
		wr->next = chained ? &q->wr[slot_of(q, n + 1)] : NULL;
		wr->send_flags &= ~(unsigned)IBV_SEND_SIGNALED;
		wr->send_flags |= signalled ? IBV_SEND_SIGNALED : 0;
		if (signalled)
			unsignalled = 0;
	}
	int err = post_chain(q, first, &bad);
	for (; q->posted < end; q->posted++) {
		const struct ibv_send_wr *wr = &q->wr[slot_of(q, q->posted)];
		if (err && wr == bad)
			break;
		struct hp_sgq_frame *f = frame_of(q, q->posted);
		f->signalled = wr->send_flags & IBV_SEND_SIGNALED;
		q->signalled_out += f->signalled;
		q->unsignalled = f->signalled ? 0 : q->unsignalled + 1;
	}
	return err;
}

static __attribute__((noinline)) int post_credited(struct hugepin_sgq *q)
{
	uint64_t first = q->posted, end = hp_credit_allow(q);
	int err = end > first ? post_below(q, end) : 0;
	hp_credit_posted(q, q->posted - first);
	return err;
}

/* Post the closed frames for which the peer has receives, as post_below(). */
static inline int post_closed(struct hugepin_sgq *q)
{
	if (q->posted == q->next)
		return 0;
	return HP_UNLIKELY(q->flags & HUGEPIN_SGQ_CREDITS) ? post_credited(q) : post_below(q, q->next);
}

/* Whether the frame under construction must be sent now. */
static bool due(const struct hugepin_sgq *q)
{
	const struct hp_sgq_frame *f = frame_of(q, q->next);
	uint64_t out = q->next - q->done;
	return out < q->hold || (q->posted == q->next && !q->signalled_out) || f->bytes >= q->flush_bytes ||
	       f->subs >= q->subs_max || f->bytes >= hp_sgq_room_for(q, f->subs + 1) ||
	       (!f->open && !sges_left(q, f)) || (q->deadline_ns && hp_clock_ns() - f->first_ns >= q->deadline_ns);
}

static int kick(struct hugepin_sgq *q, bool now)
{
	if (holds_frame(q) && (now || due(q)))
		close_held(q);
	return post_closed(q);
}

/* Send a frame for the sake of its header: the one that is held, or an empty one. (The queue is no pool's.) */
static int send_header(struct hugepin_sgq *q)
{
	bool held = holds_frame(q);
	if (!held && q->next - q->done >= q->depth)
		return post_closed(q);
	frame_of(q, q->next)->marks |= HUGEPIN_SG_SOLICITED;
	if (!held)
		frame_close(q, NULL, NULL, 0, 0, 1);
	return kick(q, true);
}

/* ------------------------------------------------------------------ completion */

/* Frame `done` has completed: free its slot, and settle its sub-messages, so that their callbacks can run. */
static void frame_end(struct hugepin_sgq *q, int status)
{
	struct hp_sgq_frame *f = frame_of(q, q->done);
	int64_t who = -1;
	if (status == -EIO && q->flags & HUGEPIN_SGQ_DEBUG && f->parts == 1)
		who = hp_sgq_guilty(q, f, sges_of(q, q->done));
	if (f->parts > 1) { /* the first part that failed decides the sub-message's status */
		q->carry = status = q->carry ? q->carry : status;
		if (f->part + 1 == f->parts)
			q->carry = 0;
	}
	for (uint32_t i = 0; i < f->subs; i++)
		q->sub[q->settled++ & q->sub_mask].status = who < 0 || who == i ? status : -ECANCELED;
	q->signalled_out -= f->signalled;
	unpin_frame(q, q->done, 0);
	*f = hp_sgq_empty_frame;
	drop_slot(q, q->done);
	q->done++;
}

/* Callbacks run between these, without the lock. */
static void begin_callback(struct hugepin_sgq *q)
{
	if (q->flags & HUGEPIN_SGQ_MT)
		pthread_mutex_unlock(&q->lock);
}

static void end_callback(struct hugepin_sgq *q)
{
	if (q->flags & HUGEPIN_SGQ_MT)
		pthread_mutex_lock(&q->lock);
}

/* Run the callbacks that are due: first what has arrived, then what is done, then that the queue pair has failed. If
 * one is running already, the call that runs it finds these. */
static void run_callbacks(struct hugepin_sgq *q)
{
	if (q->in_callback)
		return;
	q->in_callback = true;
	if (q->flags & HUGEPIN_SGQ_MT)
		atomic_store_explicit(&q->caller, &self, memory_order_relaxed);
	for (;;) {
		void (*const ended)(void *) = q->failed || q->closing ? q->ended : NULL;
		if (q->arrived_count) {
			const struct hp_sgq_arrival *arrived = &q->arrived[q->arrived_first];
			begin_callback(q);
			hp_sgq_hand_out(q, arrived);
			end_callback(q);
			q->idle[q->idle_count++] = arrived->slot;
			q->arrived_first = q->arrived_first + 1 < q->recv_depth ? q->arrived_first + 1 : 0;
			q->arrived_count--;
		} else if (q->told < q->settled) {
			struct hp_sgq_sub s = q->sub[q->told++ & q->sub_mask];
			if (!s.done)
				continue;
			begin_callback(q);
			s.done(s.arg, s.tag, s.status);
			end_callback(q);
		} else if (ended) {
			q->ended = NULL;
			begin_callback(q);
			ended(q->recv_arg);
			end_callback(q);
		} else {
			break;
		}
	}
	q->in_callback = false;
	if (q->flags & HUGEPIN_SGQ_MT)
		atomic_store_explicit(&q->caller, NULL, memory_order_relaxed);
}

static void cancel_rest(struct hugepin_sgq *q)
{
	if (holds_frame(q))
		close_held(q);
	q->posted = q->next;
	while (q->done < q->next)
		frame_end(q, -ECANCELED);
}

/* After a failure each outstanding work request is flushed, and completes, but unsignalled ones that had completed
 * before do not complete again. So post another frame behind them, whose flush covers them. If the provider refuses
 * that frame, no more completions will come. */
static void wind_up(struct hugepin_sgq *q)
{
	if (!q->signalled_out && q->done < q->posted)
		kick(q, true);
	if (!q->signalled_out)
		cancel_rest(q);
}

static bool complete_send(struct hugepin_sgq *q, const struct ibv_wc *wc)
{
	uint64_t number = q->done + ((wc->wr_id - q->done) & HP_SGQ_ID_LOW);
	if (number >= q->posted)
		return false;
	/* Completions come in order, so the unsignalled frames before this one have completed. After a failure each
	 * frame has a completion of its own. Since the completion of a signalled frame may have been lost, only a
	 * success of this frame shows that the other one succeeded, too. */
	while (q->done < number) {
		bool unknown = q->send_failed || (wc->status && frame_of(q, q->done)->signalled);
		frame_end(q, unknown ? -ECANCELED : 0);
	}
	if (wc->status) {
		hp_sgq_fail(q, wc);
		q->send_failed = true;
	}
	frame_end(q, !wc->status ? 0 : wc->status == IBV_WC_WR_FLUSH_ERR ? -ECANCELED : -EIO);
	return true;
}

static bool take_completion(struct hugepin_sgq *q, const struct ibv_wc *wc)
{
	if ((wc->wr_id ^ q->taker.id) >> HP_SGQ_ID_SHIFT || wc->qp_num != q->qp->qp_num)
		return false;
	return wc->wr_id & HP_SGQ_ID_RECV ? hp_sgq_received(q, wc) : complete_send(q, wc);
}

/* The work after completions. Callbacks run first, so that their adds go with the frame under construction. */
static int after_completions(struct hugepin_sgq *q)
{
	int err = 0;
	run_callbacks(q);
	q->failed |= !q->closing && hp_sgq_moved_to_error(q);
	if (HP_UNLIKELY(q->answer)) {
		q->answer = false;
		send_header(q);
	}
	if (q->failed) {
		wind_up(q);
		run_callbacks(q);
	} else {
		int recv_err = hp_sgq_repost(q);
		err = hp_credit_due(q) ? send_header(q) : kick(q, false);
		err = err ? err : recv_err;
	}
	/* If no frame is outstanding or under construction, begin again with the first slot, which is in the cache. */
	if (q->done == q->next && !q->in_callback) {
		q->done = q->posted = q->next = hp_round_up(q->next, (size_t)q->slot_mask + 1);
		q->told = q->settled = q->added = 0;
	}
	return err;
}

/* ------------------------------------------------------------------ adding */

/* The number of elements that the pieces need. open: a copied first piece extends the previous element. */
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

static int add_sub(struct hugepin_sgq *q, const struct iovec *iov, int n, uint64_t bytes, const struct hp_sgq_sub *sub,
		   uint64_t how)
{
	const unsigned flags = (unsigned)how;
	uint64_t part_bytes = hp_sgq_room_for(q, 1), parts = 1;
	bool whole = bytes <= part_bytes;
	if (!whole) {
		parts = (bytes + part_bytes - 1) / part_bytes;
		/* Do not split datagrams, because some may get lost, and parts of two sub-messages could then be taken
		 * for one. */
		bool split = flags & HUGEPIN_SG_MULTI && !hp_sgq_raw(q) && !q->grh;
		if (!split || parts > HP_MIN(q->depth, PARTS_MAX) || (q->pool && parts > hp_sgpool_most(q->pool)))
			return -EMSGSIZE;
	}
	if (q->added - q->told > q->sub_mask && !hp_sgq_grow_subs(q))
		return -EAGAIN;
	/* If the pieces need too many elements, copy longer pieces, too; the longest pieces keep theirs. */
	uint32_t copy_below = flags & HUGEPIN_SG_COLD ? q->copy_below_cold : q->copy_below;
	while (whole && sges_needed(iov, n, copy_below, true) > q->max_sge - !hp_sgq_raw(q) && copy_below < UINT32_MAX)
		copy_below = copy_below < UINT32_MAX / 2 ? copy_below * 2 : UINT32_MAX;

	if (holds_frame(q)) {
		const struct hp_sgq_frame *f = frame_of(q, q->next);
		if (!whole || f->bytes + bytes > hp_sgq_room_for(q, f->subs + 1) ||
		    sges_needed(iov, n, copy_below, f->open) > sges_left(q, f))
			close_held(q);
	}
	if (q->next + parts - q->done > q->depth) {
		int err = post_closed(q);
		return err ? err : -EAGAIN;
	}

	struct cursor at = { iov, 0 };
	uint64_t first = q->next;
	int gathered = 0;
	for (uint64_t part = 0, left = bytes; part < parts; part++) {
		size_t len = HP_MIN(left, part_bytes);
		int got = take_slot(q) ? append(q, &at, len, copy_below, flags) : -EAGAIN;
		if (got < 0) {
			if (!holds_frame(q))
				drop_slot(q, q->next);
			while (q->next > first) {
				unpin_frame(q, --q->next, 0);
				*frame_of(q, q->next) = hp_sgq_empty_frame;
				drop_slot(q, q->next);
			}
			int err = post_closed(q); /* else nothing may be out that could end -EAGAIN */
			return got == -EAGAIN && err ? err : got;
		}
		struct hp_sgq_frame *f = frame_of(q, q->next);
		if (q->deadline_ns && !f->subs)
			f->first_ns = hp_clock_ns();
		f->bytes += (uint32_t)len;
		if (HP_UNLIKELY(flags & MARKS) && part + 1 == parts) {
			f->marks |= flags & MARKS;
			q->imm = (uint32_t)(how >> 32);
		}
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
	/* The queue has accepted the sub-message, so if posting fails now, the sub-message stays, and the next flush
	 * returns the error. */
	if (whole && (flags & HUGEPIN_SG_NOW || due(q)))
		close_held(q);
	post_closed(q);
	return !gathered;
}

/* ------------------------------------------------------------------ the public functions */

int hugepin_sgq_open(const struct hugepin_sgq_attr *attr, hugepin_sgq **ret_)
{
	static const struct hp_sgq_owner program = { .take = hp_sgq_take };

	return hp_sgq_open(attr, &program, ret_);
}

/* how: the flags, and immediate data above them. hugepin_sgq_add() is a jump here. */
static __attribute__((noinline)) int add(struct hugepin_sgq *q, const struct iovec *iov, int n, uint64_t tag,
					 hugepin_done_fn done, void *arg, uint64_t how)
{
	uint64_t bytes;
	int saved_errno, err = hp_iov_bytes(iov, n, &bytes);
	if (err)
		return -EINVAL;
	if (bytes > UINT32_MAX)
		return -EOVERFLOW;
	err = enter_queue(q, &saved_errno);
	if (err)
		return err;
	struct hp_sgq_sub sub = { .done = done, .arg = arg, .tag = tag, .len = (uint32_t)bytes };
	err = q->failed || q->closing ? q->over : add_sub(q, iov, n, bytes, &sub, how);
	return leave_queue(q, saved_errno, err);
}

int hugepin_sgq_add(hugepin_sgq *q, const struct iovec *iov, int n, uint64_t tag, hugepin_done_fn done, void *arg,
		    unsigned flags)
{
	return flags & ~(unsigned)ADD_FLAGS ? -EINVAL : add(q, iov, n, tag, done, arg, flags);
}

int hugepin_sgq_add_imm(hugepin_sgq *q, const struct iovec *iov, int n, uint64_t tag, hugepin_done_fn done, void *arg,
			unsigned flags, __be32 imm_data)
{
	return flags & ~(unsigned)ADD_FLAGS ? -EINVAL :
		add(q, iov, n, tag, done, arg, (uint64_t)imm_data << 32 | flags | WITH_IMM | HUGEPIN_SG_NOW);
}

int hugepin_sgq_flush(hugepin_sgq *q)
{
	int saved_errno, err = enter_queue(q, &saved_errno);
	if (err)
		return err;
	if (q->failed) {
		after_completions(q);
		return leave_queue(q, saved_errno, q->over);
	}
	return leave_queue(q, saved_errno, kick(q, true));
}

int hp_sgq_push(struct hugepin_sgq *q)
{
	int saved_errno, err = enter_queue(q, &saved_errno);
	if (err)
		return err;
	if (!q->failed)
		kick(q, false);
	return leave_queue(q, saved_errno, q->failed ? q->over : q->posted < q->next || holds_frame(q));
}

/* Take at most `max` completions from one completion queue. Returns their number, or -errno. */
static int poll_one(struct hugepin_sgq *q, struct ibv_cq *cq, int max)
{
	struct ibv_wc wc[BATCH];
	int taken = 0, n = 1;
	while (taken < max && n > 0) {
		n = ibv_poll_cq(cq, HP_MIN(max - taken, BATCH), wc);
		for (int i = 0; i < n; i++)
			take_completion(q, &wc[i]);
		taken += n > 0 ? n : 0;
	}
	return n < 0 && !taken ? -EIO : taken;
}

int hugepin_sgq_poll(hugepin_sgq *q, int max)
{
	int saved_errno, err = enter_queue(q, &saved_errno);
	if (err)
		return err;
	if (max < 0 || within_callback(q))
		return leave_queue(q, saved_errno, max < 0 ? -EINVAL : -EBUSY);
	int taken = poll_one(q, q->qp->send_cq, max), more = 0;
	if (taken >= 0 && q->recv_depth && q->qp->recv_cq != q->qp->send_cq)
		more = poll_one(q, q->qp->recv_cq, max - taken);
	if (taken >= 0)
		taken = more > 0 || taken ? taken + HP_MAX(more, 0) : more;
	err = after_completions(q);
	if (!taken && err)
		taken = err;
	if (!taken && q->failed && q->done == q->next)
		taken = q->over;
	return leave_queue(q, saved_errno, taken);
}

int hp_sgq_take(struct hp_taker *taker, const struct ibv_wc *wc)
{
	struct hugepin_sgq *q = (struct hugepin_sgq *)taker;
	int saved_errno, err = enter_queue(q, &saved_errno);
	if (err)
		return err;
	if (within_callback(q))
		return leave_queue(q, saved_errno, -EBUSY);
	bool ours = take_completion(q, wc);
	if (ours)
		after_completions(q);
	return leave_queue(q, saved_errno, ours);
}

/* End a queue with nothing outstanding, or with completions that will never come. Does not touch the queue pair, which
 * may be destroyed already. */
static int finish(struct hugepin_sgq *q, int saved_errno)
{
	q->closing = true;
	cancel_rest(q);
	run_callbacks(q);
	leave_queue(q, saved_errno, 0);
	hp_sgq_destroy(q);
	errno = saved_errno;
	return 0;
}

/* As enter_queue(), for calls that end the queue. 1: this process is a child of fork, and its copy of the queue is now
 * destroyed. */
static int enter_to_end(struct hugepin_sgq *q, int *saved_errno)
{
	int err = enter_queue(q, saved_errno);
	if (err == -ESTALE) {
		hp_sgq_destroy(q);
		return 1;
	}
	return !err && q->in_callback ? leave_queue(q, *saved_errno, -EBUSY) : err;
}

int hugepin_sgq_close(hugepin_sgq *q)
{
	int saved_errno, err = enter_to_end(q, &saved_errno);
	if (err)
		return err < 0 ? err : 0;
	if (q->done < q->posted || q->idle_count < q->recv_depth) {
		hp_sgq_flush_receives(q);
		return leave_queue(q, saved_errno, -EBUSY);
	}
	return finish(q, saved_errno);
}

int hugepin_sgq_abort(hugepin_sgq *q)
{
	int saved_errno, err = enter_to_end(q, &saved_errno);
	if (err)
		return err < 0 ? err : 0;
	return finish(q, saved_errno);
}
