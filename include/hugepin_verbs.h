/*
 * hugepin with verbs (RDMA adapters): memory regions of a protection domain, and packing of small messages into work
 * requests. Link with -lhugepin-verbs -lhugepin -libverbs. The guides are hugepin_verbs(3) and hugepin_sg(7).
 */
#ifndef HUGEPIN_VERBS_H
#define HUGEPIN_VERBS_H

#include "hugepin.h"

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Open a domain that registers memory regions with pd, by ibv_reg_mr. A pin's lkey goes into struct ibv_sge, its rkey
 * to the peer; addresses are the program's. attr may be NULL; a budget of 0 in it is what RLIMIT_MEMLOCK leaves now.
 * The protection domain must outlive the domain.
 * -EINVAL (a NULL), -EOPNOTSUPP (policy odp where the device has no on-demand paging, atomic access where it has none),
 * or as hugepin_domain_open. May block and allocate. */
int hugepin_verbs_open(struct ibv_pd *pd, const struct hugepin_attr *attr, hugepin_domain **ret_);

/* ------------------------------------------------------------------ how to send: hugepin_sg_plan(3) */

/* What a queue pair can do, as it was granted: sizes in bytes. */
struct hugepin_sg_caps {
	uint32_t max_sge, max_recv_sge, max_inline; /* of one work request */
	uint32_t max_sge_rd; /* elements of an RDMA READ */
	uint32_t max_wr, max_recv_wr;
	uint32_t mtu_ud; /* payload of a datagram; 0: connected */
	uint32_t pad;
	uint64_t max_msg; /* of one message */
};

/* Ask a queue pair for them: *granted is what ibv_create_qp wrote back, or NULL: ibv_query_qp is asked. `size` is sizeof
 * *ret_. Makes system calls. -EINVAL, or what the provider said. */
int hugepin_sg_caps(struct ibv_qp *qp, const struct ibv_qp_cap *granted, struct hugepin_sg_caps *ret_, size_t size);

/* What sending costs here, in nanoseconds (bytes in nanoseconds for each), measured by hugepin_sg_calibrate.
 *	gather = wr + element * elements + lookup * registrations + line * lines + byte * bytes
 *	copy   = wr + element + piece * pieces + (copy_byte + byte) * bytes
 *	inline = inline_wr + (piece + inline_piece) * pieces + (copy_byte + inline_byte) * bytes
 * piece and copy_byte are those of sources in the CPU's cache. For such that are not (HUGEPIN_SG_COLD) they are cold_piece and
 * cold_byte, and what copies waits for the first of them, `cold`, once. */
struct hugepin_sg_model {
	size_t size; /* sizeof: of the caller's */
	uint32_t source; /* HUGEPIN_SG_MODEL_... */
	uint32_t refused; /* HUGEPIN_SG_GATHER ...: what this provider gets wrong */
	float wr, element, lookup, line, byte;
	float piece, copy_byte, cold, cold_piece, cold_byte;
	float inline_wr, inline_piece, inline_byte, pad;
};
enum { HUGEPIN_SG_MODEL_DEFAULT, HUGEPIN_SG_MODEL_CPU, HUGEPIN_SG_MODEL_DEVICE };

/* Measure. pd NULL: the part without a device, some ms at first use, kept for the process. Else: what is known of this
 * device, its firmware and this CPU from $XDG_CACHE_HOME/hugepin (or ~/.cache/hugepin), or else measured over a private
 * loopback pair of queue pairs (some tenths of a second), which also compares the bytes that arrive and refuses a mode that
 * arrives wrong; then kept there. A cache that cannot be read or written is no error. HUGEPIN_SG_ANEW in flags: measure even
 * if it is known.
 * -EINVAL, -ENOMEM, -EOPNOTSUPP (no port of the device is active), -EIO (not even one element arrives), as
 * hugepin_domain_open, or what the provider said. May block and allocate. */
int hugepin_sg_calibrate(struct ibv_pd *pd, unsigned flags, struct hugepin_sg_model *ret_, size_t size);

/* For plan's `mode`: what it may choose from (none of the three: any), and what it is for. */
enum {
	HUGEPIN_SG_INLINE = 1, /* the provider copies into the work request: the pieces are free when it is posted */
	HUGEPIN_SG_COPY = 2, /* into the slot: free as well */
	HUGEPIN_SG_GATHER = 4, /* the device reads the pieces; with COPY: piece by piece whichever is cheaper */
	HUGEPIN_SG_COLD = 8, /* the pieces are not in the CPU's cache */
	HUGEPIN_SG_WRITE = 16, /* RDMA WRITE: may be several work requests, the remote address advancing; else SEND: always one */
	HUGEPIN_SG_RECV = 32, /* a receive: always gathers (scatters) */
	HUGEPIN_SG_ANEW = 64, /* hugepin_sg_calibrate's */
};

/* A decision about pieces of given lengths, whatever their addresses: serves all messages of equal layout. Frozen at 48 bytes;
 * members are for looking at. */
struct hugepin_sg_plan {
	uint64_t bytes; /* of the message */
	uint32_t mode; /* HUGEPIN_SG_INLINE, COPY, GATHER, or GATHER | COPY: both are allowed; with WRITE or RECV */
	uint32_t n; /* pieces, empty ones included */
	uint32_t copy_below; /* pieces shorter than this are copied, */
	uint32_t copy_from, copy_to; /* and those with these indices, from, to - 1 */
	uint32_t slot; /* bytes of slot that it takes */
	uint32_t wrs, sges; /* work requests and elements at most, as long as each piece lies in one registration */
	uint32_t cost_ns; /* what the model says */
	uint32_t max_sge; /* elements of one work request */
};

/* Decide. `model` may be NULL: hugepin_sg_model's defaults (inline if it fits, else neighbours below 256 bytes are copied, and
 * longer pieces gathered). The addresses in iov only tell how many registrations and cache lines are likely.
 * -EINVAL; -EOVERFLOW; -EMSGSIZE: more than the queue pair can send in one message, or (SEND, with COPY forbidden) in one work
 * request; -EOPNOTSUPP: mode allows only what the device cannot do or gets wrong. Any thread; nothing else is called. */
int hugepin_sg_plan(const struct hugepin_sg_model *model, const struct hugepin_sg_caps *caps, const struct iovec *iov, int n,
		    unsigned mode, struct hugepin_sg_plan *ret_);

/* Where hugepin_sg_fill writes: arrays of the caller's, and how long they are. */
struct hugepin_sg_room {
	size_t size; /* sizeof */
	struct ibv_send_wr *wr;
	struct ibv_sge *sge;
	struct hugepin_pin *pins; /* of what is gathered; given back by the caller when the work request has completed */
	void *slot; /* what is copied goes here; registered by the caller, under slot_lkey */
	size_t slot_len;
	uint32_t wrs, sges, pins_max, slot_lkey; /* wrs: no more than the send queue takes, where pieces may be split */
	hugepin_key_fn key; /* keys of what is gathered; NULL: all that is needed must be copied or inline */
	void *arg;
};

/* Carry a plan out for n pieces of the plan's layout (-EINVAL where it is another): copy what is to be copied, find the keys,
 * fill work requests, linked by next, each a copy of *tmpl (which may be room->wr) but for sg_list, num_sge, next, the INLINE
 * flag and, where there are several, the remote address; send_flags and immediate data go to the last one only, FENCE to the
 * first. Posts nothing.
 * Returns the number of work requests. -EINVAL, -EMSGSIZE (room), -ENOKEY or what room->key said (a piece that is not
 * registered is copied instead if the plan allows COPY and slot and elements suffice); nothing is then pinned.
 * ret_info may be NULL. Any thread, with a room of its own. */
int hugepin_sg_fill(const struct hugepin_sg_plan *plan, const struct iovec *iov, int n, const struct ibv_send_wr *tmpl,
		    const struct hugepin_sg_room *room, struct hugepin_sg_info *ret_info);

/* The same for a receive: elements for n pieces, in *wr, whose wr_id and next are left alone; room needs sge, pins, key, arg.
 * Returns the number of elements. -EMSGSIZE: over caps->max_recv_sge, or room. */
int hugepin_sg_fill_recv(const struct hugepin_sg_caps *caps, const struct iovec *iov, int n, struct ibv_recv_wr *wr,
			 const struct hugepin_sg_room *room, struct hugepin_sg_info *ret_info);

/* ------------------------------------------------------------------ a queue that packs: hugepin_sgq(3) */

/* A queue of sub-messages for one destination over a queue pair, which sends several as one frame. It has one owner: one
 * thread at a time may call (HUGEPIN_SGQ_MT: any, under a lock); a call while another thread is in one is refused (-EPERM). It
 * has no thread: deadlines are looked at by add, poll and wc. Callbacks run in poll, wc, flush, close and abort only, in the order
 * of the adds; they may add and flush, but not poll, hand in completions, close or abort (-EBUSY). In a child of fork the queue is
 * the parent's: -ESTALE, but for close and abort, which free the copy. */
typedef struct hugepin_sgq hugepin_sgq;

/* A sub-message is done: its pieces are the caller's again. status: 0 (completed: with RC received by the peer's adapter), or
 * -errno: -EIO (its frame's work request failed: hugepin_sgq_wc_status tells how), -ECANCELED (behind a failed one, or the queue
 * was closed). Exactly one for each add that returned 0 or more. */
typedef void (*hugepin_done_fn)(void *arg, uint64_t tag, int status);

/* A record arrived. It lies in the queue's memory and is gone when this returns. part, parts as in struct hugepin_sg_rx; raw
 * queues: all that one message brought, with tag 0. parts 0, and data NULL: a message came that is no frame. */
typedef void (*hugepin_recv_fn)(void *arg, uint64_t tag, const void *data, size_t len, unsigned part, unsigned parts);

/* The upper sixteen bits of the wr_id of all work requests of queues; use others for yours on the same queue pair. */
#define HUGEPIN_SGQ_WR_ID 0x4870

enum {
	HUGEPIN_SGQ_MT = 1, /* attr.flags: calls from any thread, one after the other */
	HUGEPIN_SGQ_RAW = 2, /* no frame: the bytes alone, in order; the receiver knows what they are */
	HUGEPIN_SGQ_DEBUG = 4, /* tell which sub-message a frame failed by; see each call that a second thread makes meanwhile */

	HUGEPIN_SG_COPY_OK = 256, /* add: what is not registered is copied; without it -ENOKEY */
	HUGEPIN_SG_MULTI = 512, /* add: may be split over several frames if it does not fit one; not of datagrams, nor raw */
	HUGEPIN_SG_NOW = 1024, /* add: flush behind it */
	HUGEPIN_SG_SOLICITED = 2048, /* add: the peer is woken; HUGEPIN_SG_COLD is good for add, too */
};

struct hugepin_sgq_attr {
	size_t size; /* sizeof */
	struct ibv_qp *qp; /* RC or UD, ready to send, made with sq_sig_all = 0 */
	const struct ibv_qp_cap *granted; /* what ibv_create_qp wrote back; NULL: asked for */
	hugepin_domain *domain; /* keys of what is gathered, and of the queue's slots; on the same protection domain */
	const struct hugepin_sg_model *model; /* copied; NULL: hugepin_sg_calibrate's without a device */
	uint32_t flags;
	uint32_t depth; /* frames at once; 0: 64, or as many as the queue pair takes without reserved_wr */
	uint32_t reserved_wr; /* of its send queue: for the caller's own work requests */
	uint32_t frame_bytes; /* the longest frame; 0: 8 KiB, or a datagram */
	/* A frame is sent when it has this much, as early as one of them says; and when nothing is outstanding (backlog). */
	uint32_t flush_bytes, flush_count; /* 0: as a frame is full */
	uint32_t hold_if_outstanding; /* hold back while so many frames are out; 0: send at once, unless the queue is full */
	uint64_t deadline_ns; /* after the first add into it; 0: none */
	/* UD: where to */
	struct ibv_ah *ah;
	uint32_t remote_qpn, remote_qkey;
	/* Receiving: recv_depth slots of frame_bytes are posted on the queue pair and posted again; 0: the caller receives. */
	uint32_t recv_depth, pad;
	hugepin_recv_fn recv;
	void *recv_arg;
};

/* Open. Pins memory for depth + recv_depth slots in the domain. The queue pair, its completion queue and the domain must outlive
 * it. The completion queue must have room for all work requests of all that use it, not only for the signalled.
 * -EINVAL, -ENOMEM, -ENOBUFS as hugepin_pin, -EMSGSIZE (frame_bytes over what the queue pair sends), -EOPNOTSUPP (a transport
 * that is neither RC nor UD), or what the provider said. May block and allocate. */
int hugepin_sgq_open(const struct hugepin_sgq_attr *attr, hugepin_sgq **ret_);

/* Add a sub-message of n pieces. The pieces must not change until it is done: or until this returns, if it returns 1 (all was
 * copied). done may be NULL. flags: HUGEPIN_SG_COPY_OK ...
 * 0 or 1; on failure nothing is consumed: -EAGAIN (all frames are out: poll), -EINVAL, -EOVERFLOW, -EMSGSIZE (over one frame or
 * datagram, without MULTI; or over `depth` frames), -ENOKEY (a piece to be gathered is not registered), -ESHUTDOWN (the queue
 * pair has failed), or what the provider said when an earlier frame was posted to make room. */
int hugepin_sgq_add(hugepin_sgq *q, const struct iovec *iov, int n, uint64_t tag, hugepin_done_fn done, void *arg,
		    unsigned flags);

/* Send what is held. 0; -ESHUTDOWN; or what the provider said: then it stays held, and goes with later calls. */
int hugepin_sgq_flush(hugepin_sgq *q);

/* Poll the completion queue for at most `max` completions, run callbacks, flush what is due. Returns how many completions
 * were taken. For a completion queue that serves this queue alone. Where none was: -ESHUTDOWN when the queue pair has failed
 * and all is said, -EIO (polling failed), or what the provider said when something was posted. */
int hugepin_sgq_poll(hugepin_sgq *q, int max);

/* Hand in a completion that the caller has polled; those of one completion queue in the order in which they came. 1: it was
 * the queue's; 0: it was not (another wr_id or qp_num), or is not out any more. -EINVAL. */
int hugepin_sgq_wc(hugepin_sgq *q, const struct ibv_wc *wc);

/* The status of the first work request that failed, and its vendor's error (may be NULL); IBV_WC_SUCCESS: none. */
enum ibv_wc_status hugepin_sgq_wc_status(const hugepin_sgq *q, uint32_t *ret_vendor_err);

/* Close: what is held and not posted is -ECANCELED. -EBUSY: work requests are out (receives, too: they end when the queue pair
 * is in the error state); poll, or move the queue pair to the error state and poll; nothing has changed. */
int hugepin_sgq_close(hugepin_sgq *q);

/* Give up: close without waiting for completions that may never come (the device is gone, a completion queue has overflowed).
 * The caller has destroyed the queue pair (ibv_destroy_qp), or reset it (IBV_QPS_RESET): a queue pair that still works would read
 * and write memory that is others' by then. All that is not done is -ECANCELED; then the queue is freed. Its completions that are
 * still in a completion queue are to be thrown away. The domain must still be open. 0; -EINVAL, -EBUSY (in a callback), -EPERM. */
int hugepin_sgq_abort(hugepin_sgq *q);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
