/*
 * hugepin with verbs (RDMA adapters): memory regions of a protection domain, packing of small messages into work
 * requests, and the messages by which keys are lent. Link with -lhugepin-verbs -lhugepin -libverbs. The guides are
 * hugepin_verbs(3), hugepin_sg(7) and hugepin_lend(7).
 */
#ifndef HUGEPIN_VERBS_H
#define HUGEPIN_VERBS_H

#include "hugepin.h"

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
/* A struct and a function of one name: to C++, the function hides a constructor that nobody calls. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Open a domain that registers memory regions with pd, by ibv_reg_mr. A pin's lkey goes into struct ibv_sge, its rkey
 * to the peer. Addresses are the program's. attr may be NULL. A budget of 0 in attr means the bytes that RLIMIT_MEMLOCK
 * leaves now. The protection domain must outlive the domain.
 * -EINVAL: a NULL. -EOPNOTSUPP: policy odp where the device has no on-demand paging, or atomic access where the device
 * has none. Or as hugepin_domain_open. May block and allocate. */
int hugepin_verbs_open(struct ibv_pd *pd, const struct hugepin_attr *attr, hugepin_domain **ret_);

/* The memory region of a pin, for libraries that want one, and for memory windows. It is the domain's: do not deregister
 * it, and do not use it after the unpin. It may be longer than the pin. 0 and *ret_. -EINVAL: a NULL, a pin that is no
 * longer out or of another domain, or a domain that is not of verbs. Any thread; takes nanoseconds. */
int hugepin_verbs_mr(hugepin_domain *domain, const struct hugepin_pin *pin, struct ibv_mr **ret_);

/* ------------------------------------------------------------------ how to send: hugepin_sg_plan(3) */

/* The limits of a queue pair, as they were granted. Sizes are bytes. */
struct hugepin_sg_caps {
	uint32_t max_sge, max_recv_sge, max_inline; /* limits of one work request */
	uint32_t max_sge_rd; /* elements of an RDMA READ (HUGEPIN_SG_READ) */
	uint32_t max_wr, max_recv_wr;
	uint32_t mtu_ud; /* payload of a datagram; 0: the queue pair is connected */
	uint32_t pad;
	uint64_t max_msg; /* bytes of one message */
};
typedef struct hugepin_sg_caps hugepin_sg_caps_t;

/* Ask a queue pair for its limits. *granted is the struct that ibv_create_qp wrote back. If granted is NULL,
 * ibv_query_qp is asked. `size` is sizeof *ret_. Makes system calls. -EINVAL, or the provider's error. */
int hugepin_sg_caps(struct ibv_qp *qp, const struct ibv_qp_cap *granted, struct hugepin_sg_caps *ret_, size_t size);

/* Up to what a way of sending is the cheapest, as hugepin_sg_calibrate measures it. [0] is for pieces in the CPU's
 * cache, [1] for other pieces (HUGEPIN_SG_COLD). A program may fill the struct in by itself. */
struct hugepin_sg_model {
	size_t size; /* sizeof, as the caller knows it */
	uint32_t source; /* HUGEPIN_SG_MODEL_... */
	uint32_t refused; /* HUGEPIN_SG_GATHER ...: modes that this provider gets wrong */
	uint32_t copy_below[2]; /* bytes: to copy a shorter piece is cheaper than an element of its own, */
	/* and this, if each piece lies in a registration of its own: a copy needs no key, either */
	uint32_t apart_below[2];
	uint32_t inline_pieces[2]; /* a message of so many pieces at most goes inline, if it fits into max_inline */
};
enum { HUGEPIN_SG_MODEL_DEFAULT, HUGEPIN_SG_MODEL_DEVICE };

/* The thresholds of this device, its firmware and this CPU, from $XDG_CACHE_HOME/hugepin (or ~/.cache/hugepin). If they
 * are not there, or there by an older version, they are measured over a private loopback pair of queue pairs, in about
 * a second, and then kept there. This measurement also compares the bytes that arrive, and refuses a mode that arrives
 * wrong. A cache that cannot be read or written is no error. HUGEPIN_SG_ANEW in flags: measure even if results are
 * known.
 * -EINVAL, -ENOMEM, -EOPNOTSUPP (no port of the device is active), -EIO (not even one element arrives), as
 * hugepin_verbs_open and hugepin_pin, or the provider's error. May block and allocate. */
int hugepin_sg_calibrate(struct ibv_pd *pd, unsigned flags, struct hugepin_sg_model *ret_, size_t size);

/* A plan's `mode`: the ways it may choose from (none of the three: any), and the purpose. */
enum {
	HUGEPIN_SG_INLINE = 1, /* the provider copies into the work request: the pieces are free after the post */
	HUGEPIN_SG_COPY = 2, /* copy into the slot: the pieces are free, too */
	HUGEPIN_SG_GATHER = 4, /* the device reads the pieces; with COPY: the cheaper way for each piece */
	HUGEPIN_SG_COLD = 8, /* the pieces are not in the CPU's cache */
	HUGEPIN_SG_WRITE = 16, /* RDMA WRITE, in one or several work requests with an advancing remote address; else
			        * SEND: always one */
	HUGEPIN_SG_RECV = 32, /* a receive: always scatters */
	HUGEPIN_SG_ANEW = 64, /* a flag of hugepin_sg_calibrate */
	HUGEPIN_SG_READ = 128, /* RDMA READ: always scatters; in one or several work requests, as WRITE */
};

/* A decision about pieces of given lengths, whatever their addresses. One plan serves all messages of equal layout.
 * Frozen at 48 bytes. Programs may read the members. */
struct hugepin_sg_plan {
	uint64_t bytes; /* of the message */
	uint32_t mode; /* HUGEPIN_SG_INLINE, COPY, GATHER, or GATHER | COPY (both are allowed); with the purpose */
	uint32_t n; /* pieces, empty ones included */
	uint32_t copy_below; /* copy pieces that are shorter than this, */
	uint32_t copy_from, copy_to; /* and pieces with these indices: copy_from to copy_to - 1 */
	uint32_t slot; /* bytes of the slot that the plan uses */
	uint32_t wrs, sges; /* work requests and elements at most, if each piece lies in one registration */
	uint32_t max_sge; /* elements of one work request */
};
typedef struct hugepin_sg_plan hugepin_sg_plan_t;

/* Decide. `model` may be NULL: then the defaults hold (inline if the message fits, else pieces below 256 bytes are
 * copied, those not in the cache below 24, and longer pieces gathered). The addresses in iov only tell whether the
 * pieces are likely to lie in a registration each.
 * -EINVAL. -EOVERFLOW. -EMSGSIZE: more than the queue pair can send in one message, or (SEND, with COPY forbidden) in
 * one work request. -EOPNOTSUPP: mode allows only ways that the device cannot do or gets wrong. Any thread. Calls
 * nothing else. */
int hugepin_sg_plan(const struct hugepin_sg_model *model, const struct hugepin_sg_caps *caps, const struct iovec *iov,
		    int n, unsigned mode, struct hugepin_sg_plan *ret_);

/* The output of hugepin_sg_fill: the caller's arrays, and their lengths. */
struct hugepin_sg_room {
	size_t size; /* sizeof */
	struct ibv_send_wr *wr;
	struct ibv_sge *sge;
	struct hugepin_pin *pins; /* of gathered pieces; the caller gives them back when the work request completes */
	void *slot; /* room for copied pieces; the caller registers it, under slot_lkey */
	size_t slot_len;
	uint32_t wrs, sges, pins_max, slot_lkey; /* wrs: no more than the send queue takes, where pieces may be split */
	hugepin_key_fn key; /* keys of gathered pieces; NULL: every piece that is needed must be copied or inline */
	void *arg;
};

/* Carry a plan out for n pieces of the plan's layout (-EINVAL for another layout): copy pieces, find keys, fill work
 * requests. Keys are asked for with HUGEPIN_READ (of an RDMA READ with HUGEPIN_WRITE: the adapter writes the pieces). The
 * work requests are linked by next. Each is a copy of *tmpl (which may be room->wr), except for sg_list, num_sge, next,
 * the INLINE flag and, where there are several, the remote address. send_flags and immediate data go only to the last
 * one, FENCE to the first. Posts nothing.
 * Returns the number of work requests. -EINVAL. -EMSGSIZE: room. -ENOKEY or the error of room->key: a piece is not
 * registered. (If the plan allows COPY, and slot and elements suffice, such a piece is copied instead.) After an error
 * nothing is pinned. ret_info may be NULL. Any thread, with a room of its own. */
int hugepin_sg_fill(const struct hugepin_sg_plan *plan, const struct iovec *iov, int n, const struct ibv_send_wr *tmpl,
		    const struct hugepin_sg_room *room, struct hugepin_sg_info *ret_info);

/* The same for a receive: make elements for n pieces, in *wr. wr_id and next are left alone. room needs sge, pins, key,
 * arg. Returns the number of elements. -EMSGSIZE: over caps->max_recv_sge, or room. */
int hugepin_sg_fill_recv(const struct hugepin_sg_caps *caps, const struct iovec *iov, int n, struct ibv_recv_wr *wr,
			 const struct hugepin_sg_room *room, struct hugepin_sg_info *ret_info);

/* ------------------------------------------------------------------ a queue that packs: hugepin_sgq(3) */

/* A queue of sub-messages for one destination over a queue pair. It sends several sub-messages as one frame. The queue
 * has one owner: one thread at a time may call (HUGEPIN_SGQ_MT: any thread, under a lock). A call while another thread
 * is in one is refused (-EBUSY). The queue has no thread of its own: add, poll and hugepin_sg_wc look at deadlines.
 * Callbacks run only in poll, hugepin_sg_wc, flush, close and abort, in the order of the adds, one at a time and
 * without a lock: of several threads, one runs those of all. A callback may add and flush. It may not poll, hand in
 * completions, close or abort (-EBUSY). In a child of fork the queue is the parent's: calls return -ESTALE, except
 * close and abort, which free the copy. */
typedef struct hugepin_sgq hugepin_sgq;

/* A sub-message is done, and its pieces are the caller's again. status 0: completed (with RC the peer's adapter
 * received it). -EIO: the frame's work request failed (hugepin_sgq_wc_status tells how). -ECANCELED: an earlier one
 * failed, or the queue was closed. There is exactly one callback for each add that returned 0 or more. */
typedef void (*hugepin_done_fn)(void *arg, uint64_t tag, int status);

/* A record that has arrived. It is the queue's or the pool's, and gone when the callback returns. */
struct hugepin_sg_record {
	const void *data; /* raw queues: all bytes of one message, with tag 0 */
	size_t len;
	uint64_t tag;
	unsigned part, parts; /* as in struct hugepin_sg_rx. parts 0, and data NULL: a message that has no record */
	/* The message's completion: qp_num, src_qp, slid ... If wc_flags has IBV_WC_WITH_IMM, imm_data. Immediate data
	 * belongs to the last record of its frame, and the others' wc_flags lack the flag. */
	const struct ibv_wc *wc;
	struct ibv_grh *grh; /* UD: the routing header, as ibv_create_ah_from_wc takes it; else NULL */
};

/* A record has arrived. */
typedef void (*hugepin_recv_fn)(void *arg, const struct hugepin_sg_record *record);

/* Post a chain of work requests, as ibv_post_send does: 0, or an error with *bad the first that was not taken. A taken
 * work request stays where it is until its frame has completed. So the function may also keep the chain and post it
 * later, by links of its own (next), with other work requests between. It must keep the order and the send_flags, and
 * post each one, also after the queue pair has failed. It must not call functions of the queue (-EBUSY). Not with
 * HUGEPIN_SGQ_MT. */
typedef int (*hugepin_post_fn)(void *arg, struct ibv_send_wr *first, struct ibv_send_wr **bad);

/* The upper sixteen bits of the wr_id of all work requests of queues. Use other values for your own work requests on
 * the same queue pair. */
#define HUGEPIN_SGQ_WR_ID 0x4870

enum {
	HUGEPIN_SGQ_MT = 1, /* attr.flags: calls from any thread, one after the other */
	HUGEPIN_SGQ_RAW = 2, /* no frame: only the bytes, in order; the receiver knows their meaning */
	HUGEPIN_SGQ_DEBUG = 4, /* report the sub-message that a frame failed by; detect each call that a second thread
			        * makes meanwhile */
	HUGEPIN_SGQ_WAIT = 8, /* tell when to call: hugepin_sgq_due, hugepin_sgq_fd */
	HUGEPIN_SGQ_CREDITS = 16, /* send only what the peer's queue, which must have the flag, too, has receives for. RC,
				   * frames, recv_depth of 4 and more */

	HUGEPIN_SG_COPY_OK = 256, /* add: copy a piece that is not registered; without this flag -ENOKEY */
	HUGEPIN_SG_MULTI = 512, /* add: may split over several frames if one is too small; not for datagrams or raw
				 * queues */
	HUGEPIN_SG_NOW = 1024, /* add: flush after it */
	HUGEPIN_SG_SOLICITED = 2048, /* add: wake the peer. HUGEPIN_SG_COLD is allowed for add, too */
};

/* Hand in a completion that the caller has polled, whosever it is: its wr_id leads to the queue, the pool or the lendq,
 * at a cost that does not grow with their number. The completions of one completion queue must come in their order, and
 * none while its queue is being closed or given up. 1: it was one of theirs, whose callbacks were run. 0: it was not,
 * or its work request is no longer out. -EINVAL: NULL. -EBUSY: in a callback of its queue, or another thread is in
 * the queue: hand it in again. -EILSEQ, -ENOMEM, -ENOTCONN: it was a lendq's, and as hugepin_lendq_poll; call
 * hugepin_lend_progress after completions of a lendq. -ESTALE. */
int hugepin_sg_wc(const struct ibv_wc *wc);

/* A pool of send slots that the queues of a domain share, for programs with many destinations. A queue takes a slot for
 * each frame, and gives it back when the frame has completed. Each queue may always have one slot; beyond that, as many
 * as are still spare. So a destination that does not complete never stops others. Any thread. */
typedef struct hugepin_sgpool hugepin_sgpool;

struct hugepin_sgpool_attr {
	size_t size; /* sizeof */
	hugepin_domain *domain; /* the slots are pinned in it; it is also the domain of the queues */
	uint32_t slots; /* at least one for each queue */
	uint32_t frame_bytes; /* the longest frame; 0: 8 KiB */
	uint32_t max_sge; /* elements of a frame, if the queue pair has as many; 0: 16 */
	/* Receiving, for queue pairs of type RC: so many slots of frame_bytes are posted on the shared receive queue, and
	 * posted again. 0: the caller receives. Threads that hand in completions of one pool run recv at once. It may add
	 * to queues. wc->qp_num tells the queue pair that the message came by. */
	uint32_t recv_slots;
	struct ibv_srq *srq;
	hugepin_recv_fn recv;
	void *recv_arg;
};

/* Open a pool. The domain must outlive the pool, the pool its queues.
 * -EINVAL, -ENOMEM, as hugepin_pin, or the provider's error at posting receives. May block and allocate. */
int hugepin_sgpool_open(const struct hugepin_sgpool_attr *attr, hugepin_sgpool **ret_);

/* Post the receives that the provider has refused, which otherwise go with the next completion. 0, or the provider's
 * error. Call it from time to time if the provider may refuse, since nothing completes once no receive is out. */
int hugepin_sgpool_flush(hugepin_sgpool *pool);

/* Close. The shared receive queue has been destroyed before. -EBUSY: queues are open, or recv is running. In a child of
 * fork this frees the copy. */
int hugepin_sgpool_close(hugepin_sgpool *pool);

struct hugepin_sgq_attr {
	size_t size; /* sizeof */
	struct ibv_qp *qp; /* RC or UD, ready to send, made with sq_sig_all = 0 */
	const struct ibv_qp_cap *granted; /* as ibv_create_qp wrote it back; NULL: the queue pair is asked */
	hugepin_domain *domain; /* keys of gathered pieces and of the queue's slots; on the same protection domain */
	/* copied; NULL: the device's, if hugepin_sg_calibrate has kept it, or the defaults */
	const struct hugepin_sg_model *model;
	uint32_t flags;
	uint32_t depth; /* frames at once; 0: 64, or as many as the queue pair takes without reserved_wr */
	uint32_t reserved_wr; /* part of the send queue for the caller's own work requests */
	uint32_t frame_bytes; /* the longest frame; 0: 8 KiB, or a datagram */
	/* A frame is sent when it has one of these amounts, and when nothing is outstanding (backlog). */
	uint32_t flush_bytes, flush_count; /* 0: no such limit, so a frame is sent when it is full */
	uint32_t hold_if_outstanding; /* hold frames while so many are out; 0: send at once, unless the queue is full */
	uint64_t deadline_ns; /* time from the first add to a frame until the frame is sent; 0: no deadline */
	/* UD: the destination */
	struct ibv_ah *ah;
	uint32_t remote_qpn, remote_qkey;
	/* Receiving: recv_depth slots of frame_bytes are posted on the queue pair, and posted again. 0: the caller
	 * receives. */
	uint32_t recv_depth, pad;
	hugepin_recv_fn recv;
	void *recv_arg;
	hugepin_post_fn post; /* called in place of ibv_post_send; NULL: the queue posts */
	void *post_arg;
	hugepin_sgpool *pool; /* slots come from it, and frames are at most as long as its own; NULL: slots of its own */
};

/* Open a queue. Pins memory for depth + recv_depth slots in the domain. The queue pair, its completion queue and the
 * domain must outlive the queue. The completion queue must have room for all work requests of all its users, not only
 * for the signalled ones.
 * -EINVAL, -ENOMEM, -ENOBUFS as hugepin_pin. -EMSGSIZE: frame_bytes is more than the queue pair sends. -EOPNOTSUPP: a
 * transport that is neither RC nor UD. -EMFILE, -ENFILE: HUGEPIN_SGQ_WAIT, and no descriptor. Or the provider's error.
 * May block and allocate. */
int hugepin_sgq_open(const struct hugepin_sgq_attr *attr, hugepin_sgq **ret_);

/* Add a sub-message of n pieces. The pieces must not change until the sub-message is done. If this returns 1, all was
 * copied, and the pieces may change at once. done may be NULL. flags: HUGEPIN_SG_COPY_OK ...
 * 0 or 1. After an error nothing is consumed. -EAGAIN: all frames are out, or wait for credits, or the pool has no slot;
 * a completion, or a message of the peer, ends this: poll. -EINVAL, -EOVERFLOW. -EMSGSIZE: over one frame or datagram,
 * without MULTI, or over `depth` frames, or over what the pool gives. -ENOKEY: a piece to be gathered is not registered.
 * -ESHUTDOWN: the queue pair has failed. -EPROTO: of the two sides, one alone has HUGEPIN_SGQ_CREDITS. Or the provider's
 * error at the post of an earlier frame, to make room. */
int hugepin_sgq_add(hugepin_sgq *q, const struct iovec *iov, int n, uint64_t tag, hugepin_done_fn done, void *arg,
		    unsigned flags);

/* As hugepin_sgq_add, with immediate data (as in struct ibv_send_wr, in network byte order), which the receiver gets
 * with the sub-message's last part. There is one for a work request, so it ends its frame, which is sent at once. */
int hugepin_sgq_add_imm(hugepin_sgq *q, const struct iovec *iov, int n, uint64_t tag, hugepin_done_fn done, void *arg,
			unsigned flags, __be32 imm_data);

/* Send the frames that are held, as far as there are credits. 0; -ESHUTDOWN, -EPROTO; or the provider's error: then the
 * frame stays held, and later calls send it. */
int hugepin_sgq_flush(hugepin_sgq *q);

/* Poll the completion queue for at most `max` completions, run callbacks, flush frames that are due. Returns the number
 * of completions taken. For a completion queue that serves this queue alone. If there was no completion: -ESHUTDOWN
 * or -EPROTO, as add, when every callback has run, -EIO (polling failed), or the provider's error at a post. */
int hugepin_sgq_poll(hugepin_sgq *q, int max);

/* With HUGEPIN_SGQ_WAIT, for a program that sleeps: 1: something waits, such as a held frame or a call that got
 * -EAGAIN, so call hugepin_sgq_poll at the latest in *ret_ns nanoseconds (ret_ns may be NULL). 0: nothing does.
 * -EINVAL: no such flag. -ESTALE. Changes nothing. Any thread, beside any other call; what another thread's call has
 * changed meanwhile is seen by the descriptor alone. */
int hugepin_sgq_due(const hugepin_sgq *q, uint64_t *ret_ns);

/* With HUGEPIN_SGQ_WAIT: a descriptor that is readable when hugepin_sgq_poll has to be called, until that is done. It
 * is the queue's: do not read or close it. -EINVAL: no such flag. -ESTALE. Changes nothing. Any thread. */
int hugepin_sgq_fd(const hugepin_sgq *q);

/* The status of the first work request that failed, and its vendor's error (ret_vendor_err may be NULL).
 * IBV_WC_SUCCESS: none failed. IBV_WC_GENERAL_ERR, with 0: it is not known, because q is NULL or the parent's. */
enum ibv_wc_status hugepin_sgq_wc_status(const hugepin_sgq *q, uint32_t *ret_vendor_err);

/* Close. A sub-message that is held and not posted gets -ECANCELED. -EBUSY: work requests are out, and nothing has
 * changed. (Receives count, too: they end when the queue pair is in the error state.) Then poll, or move the queue pair
 * to the error state and poll. */
int hugepin_sgq_close(hugepin_sgq *q);

/* Give up: close without waiting for completions that may never come (the device is gone, a completion queue has
 * overflowed). The caller has destroyed the queue pair (ibv_destroy_qp) or reset it (IBV_QPS_RESET): a queue pair that
 * still works would read and write memory that others own by then. Every sub-message that is not done gets -ECANCELED;
 * then the queue is freed. Throw its completions away that are still in a completion queue. The domain must still be
 * open. 0; -EINVAL; -EBUSY: in a callback, or another thread is in the queue. */
int hugepin_sgq_abort(hugepin_sgq *q);

/* ------------------------------------------------------------------ messages of a lend: hugepin_lendq(3) */

/* Carries the messages of a lend (hugepin_lend(3)) between this process and one peer, over a queue pair of type RC. The
 * same queue pair may carry the program's RDMA READs and WRITEs. A program opens one lendq for each peer, and the
 * send() of its struct hugepin_lend_attr calls hugepin_lendq_send. A received message goes to hugepin_lend_message. Any
 * thread may call. Messages are handed in one at a time, without a lock of the lendq. The callbacks of the lend run in
 * hugepin_lendq_poll, hugepin_sg_wc, close and abort. They may not call these functions of the same lendq (-EBUSY).
 * In a child of fork the lendq is the parent's: calls return -ESTALE, except close and abort, which free the copy. */
typedef struct hugepin_lendq hugepin_lendq;

struct hugepin_lendq_attr {
	size_t size; /* sizeof */
	struct ibv_qp *qp; /* RC, ready to send, made with sq_sig_all = 0 and rnr_retry = 7 */
	const struct ibv_qp_cap *granted; /* as ibv_create_qp wrote it back; NULL: the queue pair is asked */
	hugepin_domain *domain; /* memory for messages is pinned in it; on the same protection domain */
	hugepin_lend *lend;
	uint32_t peer; /* the number of the peer in the lend */
	uint32_t carry_max; /* the larger carry_max of both sides' lends */
	uint32_t depth; /* sends at once; 0: 16, or as many as the queue pair takes without reserved_wr */
	uint32_t reserved_wr; /* part of the send queue for the program's own work requests */
	uint32_t recv_depth; /* receives at once; 0: 64, or as many as the queue pair takes */
	uint32_t flags; /* 0 or HUGEPIN_SGQ_WAIT: for hugepin_lendq_due and hugepin_lendq_fd */
};

/* Open a lendq. It posts all receives of the queue pair. Queue pair, completion queues, domain and lend must outlive
 * the lendq. A completion queue must have room for depth and recv_depth completions besides the program's. -EINVAL: a
 * NULL, no such peer, or more than the queue pair has. -EMSGSIZE: carry_max is less than the lend's, or the queue pair
 * does not send a message of carry_max and HUGEPIN_LEND_MESSAGE_MAX bytes. -EOPNOTSUPP: the transport is not RC.
 * -ENOMEM, -ENOBUFS as hugepin_pin. Or the provider's error. May block and allocate. */
int hugepin_lendq_open(const struct hugepin_lendq_attr *attr, hugepin_lendq **ret_);

/* Send a message of the lend: what send() of struct hugepin_lend_attr returns. 0: the message is copied, and posted. 1:
 * it is copied, but waits for a completion, or the provider refused it; the lend calls again with NULL and 0, which
 * posts what can be. -EAGAIN: no room now. -ESHUTDOWN: the queue pair has failed. -EMSGSIZE: over carry_max. -EINVAL.
 * Waits for no peer, and for no thread that is in a function of the lend. */
int hugepin_lendq_send(hugepin_lendq *q, const void *msg, size_t len);

/* Poll the completion queues of the queue pair for at most `max` completions, hand the received messages to the lend,
 * and call hugepin_lend_progress. For completion queues that serve this lendq alone. Returns the number of completions
 * taken. If there was none: -ESHUTDOWN when the queue pair has failed, -EIO (polling failed), or the provider's error
 * at a post. -EILSEQ: the peer sent bytes that no lend sends. They are ignored. -ENOMEM, -ENOTCONN, or another error of
 * hugepin_lend_message: the lend could not take a message, so the queue pair was moved to the error state. */
int hugepin_lendq_poll(hugepin_lendq *q, int max);

/* As hugepin_sgq_due and hugepin_sgq_fd, for hugepin_lendq_poll. What the lend keeps for want of room waits, too. So a
 * program that polls when the descriptor is readable, or a solicited completion has come, leaves nothing unsent. */
int hugepin_lendq_due(const hugepin_lendq *q, uint64_t *ret_ns);
int hugepin_lendq_fd(const hugepin_lendq *q);

/* A queue pair that has failed is told to the lend once, by hugepin_lend_gone, in poll or hugepin_sg_wc. From then on no
 * message of the peer is handed in. hugepin_lendq_wc_status returns the status of the first work request of the lendq
 * that failed. IBV_WC_SUCCESS: none failed. IBV_WC_GENERAL_ERR: q is NULL or the parent's. */
enum ibv_wc_status hugepin_lendq_wc_status(const hugepin_lendq *q);

/* Close. Move the queue pair to the error state before, and hand in its completions. Calls hugepin_lend_gone, if it
 * was not called yet. -EBUSY: completions are missing. Then poll, and call again. No other thread may be using the
 * lendq. */
int hugepin_lendq_close(hugepin_lendq *q);

/* Close without waiting for completions. The caller has reset the queue pair (IBV_QPS_RESET), or has called
 * hugepin_lend_gone and then destroyed the queue pair. See hugepin_sgq_abort. No other thread may be using the
 * lendq. */
int hugepin_lendq_abort(hugepin_lendq *q);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif
#endif
