/*
 * A port of the guest's device, and queue pairs connected with each other over it.
 */
#ifndef TESTS_GUEST_WIRE_H
#define TESTS_GUEST_WIRE_H

#include <infiniband/verbs.h>
#include <stdbool.h>

struct wire_port {
	struct ibv_context *device;
	struct ibv_port_attr attr;
	struct ibv_pd *pd;
	union ibv_gid gid;
	int gid_index;
};

enum { WIRE_QKEY = 0x11111111 };

/* The first device, or NULL. */
static inline struct ibv_context *wire_device(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *device = list && n ? ibv_open_device(list[0]) : NULL;
	if (list)
		ibv_free_device_list(list);
	return device;
}

/* Of p->device, which is opened if it is not. */
static inline bool wire_port_open(struct wire_port *p)
{
	if ((!p->device && !(p->device = wire_device())) || ibv_query_port(p->device, 1, &p->attr))
		return false;
	/* The first address of IPv4, if any: link-local IPv6 needs the interface to be told apart. */
	for (int i = 0; i < p->attr.gid_tbl_len; i++) {
		union ibv_gid gid;
		if (!ibv_query_gid(p->device, 1, i, &gid) && gid.raw[10] == 0xff && gid.raw[11] == 0xff) {
			p->gid_index = i;
			break;
		}
	}
	p->pd = ibv_alloc_pd(p->device);
	return p->pd && !ibv_query_gid(p->device, 1, p->gid_index, &p->gid);
}

static inline bool wire_has_odp(const struct wire_port *p)
{
	struct ibv_device_attr_ex a;
	return !ibv_query_device_ex(p->device, NULL, &a) && a.odp_caps.general_caps & IBV_ODP_SUPPORT;
}

static inline struct ibv_ah_attr wire_address(const struct wire_port *p)
{
	return (struct ibv_ah_attr){
		.dlid = p->attr.lid,
		.port_num = 1,
		.is_global = 1,
		.grh = { .dgid = p->gid, .sgid_index = (uint8_t)p->gid_index, .hop_limit = 1 },
	};
}

static inline bool wire_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = WIRE_QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	int which = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	return !ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | which);
}

/* To the queue pair of number `peer`, which a UD one does not ask for. retries: soft-RoCE takes 7 for without end. Fewer
 * are a second apart, so that a peer whose processor stands still for a moment is not taken for a dead one. */
static inline bool wire_connect_rnr(const struct wire_port *p, struct ibv_qp *qp, uint32_t peer, uint8_t retries,
				    uint8_t rnr_retry)
{
	bool ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr r = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = p->attr.active_mtu,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = wire_address(p),
	};
	struct ibv_qp_attr s = {
		.qp_state = IBV_QPS_RTS, .timeout = retries == 7 ? 14 : 18, .retry_cnt = retries, .rnr_retry = rnr_retry, .max_rd_atomic = 1
	};
	int to_receive = IBV_QP_STATE, to_send = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (!ud) {
		to_receive |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			      IBV_QP_MIN_RNR_TIMER;
		to_send |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	return !ibv_modify_qp(qp, &r, to_receive) && !ibv_modify_qp(qp, &s, to_send);
}

/* The same, with no end of tries while the peer has no receive. */
static inline bool wire_connect(const struct wire_port *p, struct ibv_qp *qp, uint32_t peer, uint8_t retries)
{
	return wire_connect_rnr(p, qp, peer, retries, 7);
}

/* Make two queue pairs of type RC that are connected with each other, and have one completion queue. */
static inline bool wire_join(const struct wire_port *p, struct ibv_cq *cq, struct ibv_qp *ret_[2])
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		ret_[i] = ibv_create_qp(p->pd, &init);
		if (!ret_[i] || !wire_init(ret_[i]))
			return false;
	}
	for (int i = 0; i < 2; i++)
		if (!wire_connect(p, ret_[i], ret_[!i]->qp_num, 7))
			return false;
	return true;
}

#endif
