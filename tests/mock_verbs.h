/*
 * A strict verbs device without a device: queue pairs and completion queues that ibv_post_send, ibv_post_recv and
 * ibv_poll_cq work on, and that are as unforgiving as adapters are, and soft-RoCE is not:
 *  - the queues are as deep as granted; a send slot is free again when a completion that covers it has been polled,
 *    which an unsignalled work request gets by a later signalled one
 *  - caps are enforced, with the error code of a given provider (mock_providers); elements of length zero are refused
 *  - keys are looked up when the work request is carried out, not when it is posted, and must be good for the range
 *  - a message takes a receive of the peer's. RC waits for one; UD drops, delivers a GRH, and drops what is too long
 *  - a completion queue that overflows fails the test
 *  - after an error every work request left gets a completion, signalled or not; nothing in it but wr_id, status and
 *    qp_num is valid, the rest is garbage
 *  - qp->state is what the program has made it by ibv_modify_qp: of an error of the device's own it does not tell
 *
 * Work requests are carried out, in order, by ibv_poll_cq on any completion queue (mock_pace of each queue pair at each
 * poll; 0: by mock_run alone). Any thread may call. For one program of one source file: it replaces ibv_query_*.
 */
#ifndef TESTS_MOCK_VERBS_H
#define TESTS_MOCK_VERBS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <pthread.h>

#include "hugepin.h"
#include "tests/t.h"

enum { MOCK_SGE = 32, MOCK_REGS = 4096, MOCK_GRH = 40, MOCK_VENDOR_ERR = 0x77 };
#ifndef MOCK_QPS
#define MOCK_QPS 64 /* a test may have more */
#endif

/* What ibv_post_send and ibv_post_recv return for the same mistakes. */
struct mock_provider {
	const char *name;
	/* No slot; more than max_sge elements, or one of length zero; more inline than max_inline. */
	int full, sges, inlined;
};
static const struct mock_provider mock_providers[] = {
	{ "rxe", ENOMEM, EINVAL, EINVAL },
	{ "siw", -ENOMEM, -EINVAL, -EINVAL },
	{ "mlx5", ENOMEM, ENOMEM, ENOMEM },
	{ "irdma", ENOMEM, EINVAL, EINVAL },
	{ "wr", ENOSPC, ENOSPC, ENOSPC },
};
enum { MOCK_PROVIDERS = sizeof mock_providers / sizeof *mock_providers };

struct mock_cq {
	struct ibv_cq cq;
	struct ibv_wc *wc;
	struct {
		struct mock_qp *qp;
		uint64_t frees; /* the send queue's `freed` after this completion is polled */
	} * of;
	unsigned size, head, count;
	unsigned events; /* completions so far that wake who waits for solicited ones: failed, or of a solicited message */
	int channel; /* an eventfd that counts up when the queue is armed, and a completion comes that wakes; 0: none */
	enum { MOCK_UNARMED, MOCK_SOLICITED, MOCK_ARMED } armed;
};

struct mock_wr {
	uint64_t id;
	enum ibv_wr_opcode opcode;
	unsigned flags;
	uint32_t imm, rkey, qpn, qkey;
	uint64_t remote;
	int num_sge;
	struct ibv_sge sge[MOCK_SGE];
	unsigned char *data; /* inline */
	size_t len;
};

struct mock_qp {
	struct ibv_qp qp;
	const struct mock_provider *provider;
	struct ibv_qp_cap cap; /* as granted */
	enum ibv_qp_state state; /* the device's; qp.state is libibverbs's */
	bool sig_all, rnr_fails; /* a message without a receive is an error, not waited for */
	bool late_stays; /* a receive posted in the error state stays until the next ibv_modify_qp, as with soft-RoCE */
	uint32_t qkey;
	struct mock_qp *peer; /* RC */
	struct mock_qp *shared; /* has the receives; NULL: this one */
	struct ibv_srq srq; /* as others know this one if they share its receives */
	unsigned refuse_recv_in; /* the n-th receive from now is refused */
	struct mock_wr *sq, *rq; /* rings of max_send_wr, max_recv_wr */
	uint64_t posted, done, freed; /* send: numbers of the next work request; freed <= done <= posted */
	uint64_t recv_posted, recv_done;
	enum ibv_wc_status fail; /* of the next work request that is carried out */
	unsigned refuse_in; /* the n-th work request from now is refused (1: the next), */
	bool refuse_on; /* and so is each behind it */
	int refuse_with; /* with this; 0: as if the queue were full */
	/* What went wrong that a caller could have known; for the test to look at. */
	unsigned mistakes, dropped;
	unsigned modified; /* by mock_modify */
	unsigned signalled, elements, inlined; /* work requests posted so, and elements in all */
};

static struct {
	pthread_mutex_t lock;
	struct ibv_context context;
	struct mock_qp *qp[MOCK_QPS];
	unsigned pace, keys;
	struct ibv_port_attr port;
	struct ibv_device_attr device;
	struct {
		uintptr_t addr;
		size_t len;
		uint32_t lkey;
		unsigned access;
	} reg[MOCK_REGS];
} mock = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.pace = UINT_MAX,
	.port = { .state = IBV_PORT_ACTIVE, .active_mtu = IBV_MTU_4096, .max_mtu = IBV_MTU_4096, .max_msg_sz = 1u << 30,
		  .gid_tbl_len = 1, .lid = 1, .link_layer = IBV_LINK_LAYER_INFINIBAND },
	.device = { .max_sge = 30, .max_sge_rd = 30, .max_qp_wr = 1 << 15, .max_cqe = 1 << 20,
		    .max_mr_size = UINT64_MAX },
};

/* ------------------------------------------------------------------ registrations: keys are never used twice */

#define MOCK_RKEY 0x80000000u

static inline uint32_t mock_reg(const void *addr, size_t len, unsigned access)
{
	uint32_t key = 0;
	pthread_mutex_lock(&mock.lock);
	for (unsigned i = 0; i < MOCK_REGS && !key; i++)
		if (!mock.reg[i].lkey) {
			key = ++mock.keys;
			mock.reg[i].addr = (uintptr_t)addr;
			mock.reg[i].len = len;
			mock.reg[i].access = access;
			mock.reg[i].lkey = key;
		}
	pthread_mutex_unlock(&mock.lock);
	EXPECT(key);
	return key;
}

static inline void mock_dereg(uint32_t lkey)
{
	pthread_mutex_lock(&mock.lock);
	for (unsigned i = 0; i < MOCK_REGS; i++)
		if (mock.reg[i].lkey == lkey)
			mock.reg[i].lkey = 0;
	pthread_mutex_unlock(&mock.lock);
}

static inline bool mock_key_good(uint32_t lkey, uint64_t addr, size_t len, unsigned access)
{
	for (unsigned i = 0; i < MOCK_REGS && lkey; i++)
		if (mock.reg[i].lkey == lkey)
			return addr >= mock.reg[i].addr && len <= mock.reg[i].len &&
			       addr - mock.reg[i].addr <= mock.reg[i].len - len && !(access & ~mock.reg[i].access);
	return false;
}

/* A backend for hugepin_domain_open; its context is not used. */
static int mock_backend_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx;
	uint32_t key = mock_reg(addr, len, access);
	*ret_ = (struct hugepin_reg){ .lkey = key, .rkey = key | MOCK_RKEY, .cookie = key };
	return 0;
}

static int mock_backend_dereg(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx;
	mock_dereg(reg->lkey);
	return 0;
}

static int mock_backend_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ |
							    HUGEPIN_REMOTE_WRITE };
	return 0;
}

static const struct hugepin_backend mock_backend = {
	.size = sizeof mock_backend,
	.name = "mock",
	.reg = mock_backend_reg,
	.dereg = mock_backend_dereg,
	.limits = mock_backend_limits,
};

/* ------------------------------------------------------------------ carrying out; the lock is held */

static inline void mock_wake(struct mock_cq *cq, bool solicited)
{
	cq->events += solicited;
	if (cq->channel && cq->armed >= (solicited ? MOCK_SOLICITED : MOCK_ARMED)) {
		cq->armed = MOCK_UNARMED;
		EXPECT_EQ(write(cq->channel, &(uint64_t){ 1 }, 8), 8);
	}
}

static inline void mock_complete(struct mock_qp *q, bool recv, struct ibv_wc wc)
{
	struct mock_cq *cq = (struct mock_cq *)(recv ? q->qp.recv_cq : q->qp.send_cq);
	wc.qp_num = q->qp.qp_num;
	if (wc.status) { /* the rest is not valid */
		wc.opcode = recv ? IBV_WC_SEND : IBV_WC_RECV;
		wc.byte_len = 0xdeadbeef;
		wc.wc_flags = UINT_MAX;
		wc.vendor_err = MOCK_VENDOR_ERR;
	}
	if (cq->count == cq->size) {
		T_FAIL("the completion queue of %u overflows", cq->size);
		return;
	}
	unsigned i = (cq->head + cq->count++) % cq->size;
	cq->wc[i] = wc;
	cq->of[i].qp = recv ? NULL : q;
	cq->of[i].frees = q->done;
	mock_wake(cq, wc.status != IBV_WC_SUCCESS);
}

/* Where the receives of q are: a shared receive queue is the ring of a queue pair that does nothing else. */
static inline struct mock_qp *mock_rq(struct mock_qp *q)
{
	return q->shared ? q->shared : q;
}

static inline struct mock_wr *mock_recv_next(struct mock_qp *q)
{
	q = mock_rq(q);
	return q->recv_done < q->recv_posted ? &q->rq[q->recv_done % q->cap.max_recv_wr] : NULL;
}

/* The error state: what is left is flushed, and what will be posted, too. */
static inline void mock_flush_sends(struct mock_qp *q)
{
	q->state = IBV_QPS_ERR;
	while (q->done < q->posted) {
		struct mock_wr *w = &q->sq[q->done++ % q->cap.max_send_wr];
		mock_complete(q, false, (struct ibv_wc){ .wr_id = w->id, .status = IBV_WC_WR_FLUSH_ERR });
		free(w->data);
		w->data = NULL;
	}
}

static inline void mock_flush(struct mock_qp *q)
{
	mock_flush_sends(q);
	for (struct mock_wr *w; !q->shared && (w = mock_recv_next(q));) {
		q->recv_done++;
		mock_complete(q, true, (struct ibv_wc){ .wr_id = w->id, .status = IBV_WC_WR_FLUSH_ERR });
	}
}

/* The first work request left fails with `status`, unless it is 0. */
static inline void mock_fail_now(struct mock_qp *q, enum ibv_wc_status status)
{
	if (status && q->done < q->posted) {
		struct mock_wr *w = &q->sq[q->done++ % q->cap.max_send_wr];
		mock_complete(q, false, (struct ibv_wc){ .wr_id = w->id, .status = status });
		free(w->data);
		w->data = NULL;
	}
	mock_flush(q);
}

/* The bytes of a work request, allocated; NULL: a key is not good. */
static inline unsigned char *mock_gather(const struct mock_wr *w, size_t *ret_len)
{
	size_t len = 0, at = 0;
	for (int i = 0; i < w->num_sge; i++)
		len += w->sge[i].length;
	if (w->data)
		len = w->len;
	unsigned char *p = malloc(len + 1);
	*ret_len = len;
	if (w->data) {
		memcpy(p, w->data, len);
		return p;
	}
	for (int i = 0; i < w->num_sge; at += w->sge[i++].length) {
		if (!mock_key_good(w->sge[i].lkey, w->sge[i].addr, w->sge[i].length, HUGEPIN_READ)) {
			free(p);
			return NULL;
		}
		memcpy(p + at, (void *)(uintptr_t)w->sge[i].addr, w->sge[i].length);
	}
	return p;
}

/* Into a receive: 0, or the error that the receiver gets. */
static inline enum ibv_wc_status mock_scatter(const struct mock_wr *r, const unsigned char *p, size_t len)
{
	size_t at = 0;
	for (int i = 0; i < r->num_sge && at < len; i++) {
		size_t n = len - at < r->sge[i].length ? len - at : r->sge[i].length;
		if (!mock_key_good(r->sge[i].lkey, r->sge[i].addr, n, HUGEPIN_WRITE))
			return IBV_WC_LOC_PROT_ERR;
		memcpy((void *)(uintptr_t)r->sge[i].addr, p + at, n);
		at += n;
	}
	return at < len ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

static inline struct mock_qp *mock_find(uint32_t qpn)
{
	return qpn && qpn <= MOCK_QPS ? mock.qp[qpn - 1] : NULL;
}

/* A datagram: whatever becomes of it, it has been sent. */
static inline void mock_datagram(struct mock_qp *q, const struct mock_wr *w, const unsigned char *p, size_t len)
{
	struct mock_qp *to = mock_find(w->qpn);
	struct mock_wr *r = to ? mock_recv_next(to) : NULL;
	if (!r || to->state != IBV_QPS_RTS || to->qkey != w->qkey || len > 128u << mock.port.active_mtu) {
		q->dropped++;
		return;
	}
	unsigned char *with_grh = malloc(MOCK_GRH + len);
	memset(with_grh, 0xee, MOCK_GRH);
	memcpy(with_grh + MOCK_GRH, p, len);
	enum ibv_wc_status status = mock_scatter(r, with_grh, MOCK_GRH + len);
	free(with_grh);
	if (status == IBV_WC_LOC_LEN_ERR) {
		q->dropped++;
		return;
	}
	mock_rq(to)->recv_done++;
	mock_complete(to, true, (struct ibv_wc){
		.wr_id = r->id, .status = status, .opcode = IBV_WC_RECV, .byte_len = (uint32_t)(MOCK_GRH + len),
		.wc_flags = IBV_WC_GRH | (w->opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_WITH_IMM : 0), .imm_data = w->imm,
		.src_qp = q->qp.qp_num });
	if (status)
		mock_flush(to);
}

/* 0 and what the sender gets, or 1: there is no receive yet. */
static inline int mock_reliable(struct mock_qp *q, const struct mock_wr *w, const unsigned char *p, size_t len,
				enum ibv_wc_status *ret_)
{
	struct mock_qp *to = q->peer;
	bool write = w->opcode == IBV_WR_RDMA_WRITE || w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	bool imm = w->opcode == IBV_WR_SEND_WITH_IMM || w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	*ret_ = IBV_WC_SUCCESS;
	if (!to || to->state != IBV_QPS_RTS) {
		*ret_ = IBV_WC_RETRY_EXC_ERR;
		return 0;
	}
	struct mock_wr *r = !write || imm ? mock_recv_next(to) : NULL;
	if ((!write || imm) && !r) {
		*ret_ = IBV_WC_RNR_RETRY_EXC_ERR;
		return !q->rnr_fails;
	}
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	if (write && len) {
		if (!mock_key_good(w->rkey & ~MOCK_RKEY, w->remote, len, HUGEPIN_REMOTE_WRITE)) {
			*ret_ = IBV_WC_REM_ACCESS_ERR;
			mock_flush(to);
			return 0;
		}
		memcpy((void *)(uintptr_t)w->remote, p, len);
	} else if (!write) {
		status = mock_scatter(r, p, len);
	}
	if (r) {
		mock_rq(to)->recv_done++;
		mock_complete(to, true, (struct ibv_wc){
			.wr_id = r->id, .status = status, .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
			.byte_len = (uint32_t)len, .wc_flags = imm ? IBV_WC_WITH_IMM : 0, .imm_data = w->imm });
		if (!status && w->flags & IBV_SEND_SOLICITED)
			mock_wake((struct mock_cq *)to->qp.recv_cq, true);
	}
	if (status) {
		mock_flush(to);
		*ret_ = status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR;
	}
	return 0;
}

/* Carry out at most n work requests of q. Returns how many. */
static inline unsigned mock_run_locked(struct mock_qp *q, unsigned n)
{
	unsigned i = 0;
	for (; i < n && q->state == IBV_QPS_RTS && q->done < q->posted; i++) {
		struct mock_wr *w = &q->sq[q->done % q->cap.max_send_wr];
		if (q->fail) {
			mock_fail_now(q, q->fail);
			q->fail = IBV_WC_SUCCESS;
			return i + 1;
		}
		size_t len;
		enum ibv_wc_status status = IBV_WC_SUCCESS;
		unsigned char *p = mock_gather(w, &len);
		if (!p) {
			mock_fail_now(q, IBV_WC_LOC_PROT_ERR);
			return i + 1;
		}
		if (q->qp.qp_type == IBV_QPT_UD)
			mock_datagram(q, w, p, len);
		else if (mock_reliable(q, w, p, len, &status)) {
			free(p);
			return i;
		}
		free(p);
		if (status) {
			mock_fail_now(q, status);
			return i + 1;
		}
		free(w->data);
		w->data = NULL;
		q->done++;
		if (q->sig_all || w->flags & IBV_SEND_SIGNALED)
			mock_complete(q, false, (struct ibv_wc){
				.wr_id = w->id, .status = IBV_WC_SUCCESS,
				.opcode = w->opcode == IBV_WR_RDMA_WRITE || w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ?
						  IBV_WC_RDMA_WRITE : IBV_WC_SEND,
				.byte_len = (uint32_t)len });
	}
	return i;
}

/* ------------------------------------------------------------------ what the inline functions of verbs.h call */

static inline int mock_refuse(struct mock_qp *q, int with)
{
	q->mistakes++;
	return with;
}

static inline int mock_post_one(struct mock_qp *q, const struct ibv_send_wr *wr)
{
	bool ud = q->qp.qp_type == IBV_QPT_UD;
	size_t len = 0;
	if (q->state != IBV_QPS_RTS && q->state != IBV_QPS_ERR)
		return mock_refuse(q, q->provider->sges);
	if (q->refuse_in && !--q->refuse_in) {
		q->refuse_in = q->refuse_on;
		return q->refuse_with ? q->refuse_with : q->provider->full;
	}
	if (q->posted - q->freed >= q->cap.max_send_wr)
		return mock_refuse(q, q->provider->full);
	if (wr->num_sge < 0 || (unsigned)wr->num_sge > q->cap.max_send_sge || wr->num_sge > MOCK_SGE)
		return mock_refuse(q, q->provider->sges);
	for (int i = 0; i < wr->num_sge; i++) {
		if (!wr->sg_list[i].length)
			return mock_refuse(q, q->provider->sges);
		len += wr->sg_list[i].length;
	}
	if (len > mock.port.max_msg_sz || (ud && (len > 128u << mock.port.active_mtu || !wr->wr.ud.ah)))
		return mock_refuse(q, q->provider->sges);
	if (wr->send_flags & IBV_SEND_INLINE && len > q->cap.max_inline_data)
		return mock_refuse(q, q->provider->inlined);
	if (wr->opcode > IBV_WR_SEND_WITH_IMM || (ud && wr->opcode < IBV_WR_SEND))
		return mock_refuse(q, q->provider->sges);

	struct mock_wr *w = &q->sq[q->posted++ % q->cap.max_send_wr];
	*w = (struct mock_wr){ .id = wr->wr_id, .opcode = wr->opcode, .flags = wr->send_flags, .imm = wr->imm_data,
			       .num_sge = wr->num_sge };
	memcpy(w->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
	if (ud) {
		w->qpn = wr->wr.ud.remote_qpn;
		w->qkey = wr->wr.ud.remote_qkey;
	} else {
		w->remote = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
	}
	if (wr->send_flags & IBV_SEND_INLINE) { /* read now, without keys */
		w->data = malloc(len + 1);
		for (int i = 0; i < wr->num_sge; i++) {
			memcpy(w->data + w->len, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
			w->len += wr->sg_list[i].length;
		}
		q->inlined++;
	}
	q->signalled += !!(wr->send_flags & IBV_SEND_SIGNALED);
	q->elements += (unsigned)wr->num_sge;
	if (q->state == IBV_QPS_ERR)
		mock_flush_sends(q);
	return 0;
}

static inline int mock_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	int err = 0;
	pthread_mutex_lock(&mock.lock);
	for (; wr && !err; wr = err ? wr : wr->next)
		err = mock_post_one((struct mock_qp *)qp, wr);
	if (err)
		*bad_wr = wr;
	pthread_mutex_unlock(&mock.lock);
	return err;
}

static inline int mock_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct mock_qp *q = (struct mock_qp *)qp;
	int err = 0;
	pthread_mutex_lock(&mock.lock);
	for (; wr && !err; wr = err ? wr : wr->next) {
		if (q->state == IBV_QPS_RESET || wr->num_sge < 0 || (unsigned)wr->num_sge > q->cap.max_recv_sge)
			err = mock_refuse(q, q->provider->sges);
		for (int i = 0; !err && i < wr->num_sge; i++)
			if (!wr->sg_list[i].length)
				err = mock_refuse(q, q->provider->sges);
		if (!err && q->refuse_recv_in && !--q->refuse_recv_in)
			err = q->provider->full;
		else if (!err && q->recv_posted - q->recv_done >= q->cap.max_recv_wr)
			err = mock_refuse(q, q->provider->full);
		if (err)
			continue;
		struct mock_wr *w = &q->rq[q->recv_posted++ % q->cap.max_recv_wr];
		*w = (struct mock_wr){ .id = wr->wr_id, .num_sge = wr->num_sge };
		memcpy(w->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
		if (q->state == IBV_QPS_ERR && !q->late_stays)
			mock_flush(q);
	}
	if (err)
		*bad_wr = wr;
	pthread_mutex_unlock(&mock.lock);
	return err;
}

static inline int mock_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	return mock_post_recv(srq->srq_context, wr, bad_wr);
}

static inline int mock_poll_cq(struct ibv_cq *cq_, int n, struct ibv_wc *wc)
{
	struct mock_cq *cq = (struct mock_cq *)cq_;
	int i;
	pthread_mutex_lock(&mock.lock);
	for (unsigned k = 0; k < MOCK_QPS; k++)
		if (mock.qp[k])
			mock_run_locked(mock.qp[k], mock.pace);
	for (i = 0; i < n && cq->count; i++, cq->count--) {
		wc[i] = cq->wc[cq->head];
		if (cq->of[cq->head].qp && cq->of[cq->head].qp->freed < cq->of[cq->head].frees)
			cq->of[cq->head].qp->freed = cq->of[cq->head].frees;
		cq->head = (cq->head + 1) % cq->size;
	}
	pthread_mutex_unlock(&mock.lock);
	return i;
}

static inline int mock_req_notify_cq(struct ibv_cq *cq_, int solicited_only)
{
	struct mock_cq *cq = (struct mock_cq *)cq_;
	pthread_mutex_lock(&mock.lock);
	if (cq->armed != MOCK_ARMED)
		cq->armed = solicited_only ? MOCK_SOLICITED : MOCK_ARMED;
	pthread_mutex_unlock(&mock.lock);
	return 0;
}

/* ------------------------------------------------------------------ in place of libibverbs's */

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct mock_qp *q = (struct mock_qp *)qp;
	(void)mask;
	memset(attr, 0, sizeof *attr);
	memset(init, 0, sizeof *init);
	attr->qp_state = attr->cur_qp_state = q->state;
	attr->path_mtu = mock.port.active_mtu;
	attr->qkey = q->qkey;
	attr->port_num = 1;
	attr->cap = init->cap = q->cap;
	init->qp_type = qp->qp_type;
	init->sq_sig_all = q->sig_all;
	init->send_cq = qp->send_cq;
	init->recv_cq = qp->recv_cq;
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	*attr = mock.device;
	return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	(void)context;
	if (port != 1)
		return EINVAL;
	memcpy(attr, &mock.port, sizeof mock.port);
	return 0;
}
#define ibv_query_port(context, port, attr) ___ibv_query_port(context, port, attr)

/* ------------------------------------------------------------------ what tests call */

static inline struct ibv_cq *mock_cq(unsigned size)
{
	struct mock_cq *cq = calloc(1, sizeof *cq);
	mock.context.ops.post_send = mock_post_send;
	mock.context.ops.post_recv = mock_post_recv;
	mock.context.ops.post_srq_recv = mock_post_srq_recv;
	mock.context.ops.poll_cq = mock_poll_cq;
	mock.context.ops.req_notify_cq = mock_req_notify_cq;
	cq->cq.context = &mock.context;
	cq->cq.cqe = (int)size;
	cq->size = size;
	cq->wc = calloc(size, sizeof *cq->wc);
	cq->of = calloc(size, sizeof *cq->of);
	return &cq->cq;
}

/* A queue pair that is ready to send and not connected; *cap is what is granted, exactly. */
static inline struct mock_qp *mock_qp(enum ibv_qp_type type, struct ibv_cq *cq, const struct ibv_qp_cap *cap,
				      const struct mock_provider *provider)
{
	struct mock_qp *q = calloc(1, sizeof *q);
	q->qp.context = &mock.context;
	q->qp.send_cq = q->qp.recv_cq = cq;
	q->qp.qp_type = type;
	q->srq.context = &mock.context;
	q->srq.srq_context = &q->qp;
	q->qp.state = q->state = IBV_QPS_RTS;
	q->provider = provider ? provider : mock_providers;
	q->cap = *cap;
	q->qkey = 0x11111111;
	q->sq = calloc(cap->max_send_wr + 1, sizeof *q->sq);
	q->rq = calloc(cap->max_recv_wr + 1, sizeof *q->rq);
	pthread_mutex_lock(&mock.lock);
	for (unsigned i = 0; i < MOCK_QPS && !q->qp.qp_num; i++)
		if (!mock.qp[i]) {
			mock.qp[i] = q;
			q->qp.qp_num = i + 1;
		}
	pthread_mutex_unlock(&mock.lock);
	EXPECT(q->qp.qp_num);
	return q;
}

static inline void mock_connect(struct mock_qp *a, struct mock_qp *b)
{
	if (a->peer)
		a->peer->peer = NULL;
	a->peer = b;
	b->peer = a;
}

/* Carry out at most n work requests of q; returns how many. */
static inline unsigned mock_run(struct mock_qp *q, unsigned n)
{
	pthread_mutex_lock(&mock.lock);
	n = mock_run_locked(q, n);
	pthread_mutex_unlock(&mock.lock);
	return n;
}

/* To the error state by itself, the first work request left failing with `status`; 0: all are flushed. */
static inline void mock_error(struct mock_qp *q, enum ibv_wc_status status)
{
	pthread_mutex_lock(&mock.lock);
	mock_fail_now(q, status);
	pthread_mutex_unlock(&mock.lock);
}

/* As ibv_modify_qp: to the error state, or to a reset, which forgets what is out. */
static inline void mock_modify(struct mock_qp *q, enum ibv_qp_state state)
{
	pthread_mutex_lock(&mock.lock);
	if (state == IBV_QPS_ERR)
		mock_flush(q);
	for (; q->done < q->posted; q->done++) {
		free(q->sq[q->done % q->cap.max_send_wr].data);
		q->sq[q->done % q->cap.max_send_wr].data = NULL;
	}
	q->recv_done = q->recv_posted;
	q->qp.state = q->state = state;
	q->modified++;
	pthread_mutex_unlock(&mock.lock);
}

static inline void mock_qp_free(struct mock_qp *q)
{
	pthread_mutex_lock(&mock.lock);
	mock.qp[q->qp.qp_num - 1] = NULL;
	if (q->peer && q->peer->peer == q)
		q->peer->peer = NULL;
	pthread_mutex_unlock(&mock.lock);
	for (; q->done < q->posted; q->done++)
		free(q->sq[q->done % q->cap.max_send_wr].data);
	free(q->sq);
	free(q->rq);
	memset(q, 0xdd, sizeof *q); /* who still looks at it, sees no queue pair */
	__asm__ volatile("" : : "r"(q) : "memory");
	free(q);
}

static inline void mock_cq_free(struct ibv_cq *cq_)
{
	struct mock_cq *cq = (struct mock_cq *)cq_;
	free(cq->wc);
	free(cq->of);
	free(cq);
}

#endif
