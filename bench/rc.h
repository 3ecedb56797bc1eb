/*
 * Connected queue pairs of one process over a verbs device, for benches in a guest.
 */
#ifndef BENCH_RC_H
#define BENCH_RC_H

#include <arpa/inet.h>
#include <err.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void check(int error, const char *what) /* errno or its negative */
{
	if (error)
		errx(1, "%s: %s", what, strerror(abs(error)));
}

/* The device of this name, or any; exits if there is none. */
static inline struct ibv_pd *rc_open(const char *name)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *device = NULL;
	struct ibv_pd *pd;

	for (int i = 0; i < n && !device; i++)
		if (!name || !strcmp(name, ibv_get_device_name(list[i])))
			device = ibv_open_device(list[i]);
	if (!device || !(pd = ibv_alloc_pd(device)))
		errx(1, "%s: no such verbs device", name ? name : "any");
	ibv_free_device_list(list);
	return pd;
}

/* A queue pair with a completion queue; *cap becomes what is granted. */
static inline struct ibv_qp *rc_create(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_qp_cap *cap)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = *cap };
	struct ibv_qp *qp = cq ? ibv_create_qp(pd, &init) : NULL;

	if (!qp)
		err(1, "completion queue, queue pair");
	*cap = init.cap;
	return qp;
}

static inline void rc_connect_to(struct ibv_qp *qp, const struct ibv_port_attr *port, const union ibv_gid *gid,
				 int index, uint32_t to)
{
	struct ibv_qp_attr a = { .port_num = 1, .path_mtu = port->active_mtu, .dest_qp_num = to,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE, .max_dest_rd_atomic = 1,
		.max_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.ah_attr = { .port_num = 1, .dlid = port->lid, .is_global = port->link_layer == IBV_LINK_LAYER_ETHERNET,
			.grh = { .dgid = *gid, .sgid_index = (uint8_t)index, .hop_limit = 64 } } };

	a.qp_state = IBV_QPS_INIT;
	check(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	a.qp_state = IBV_QPS_RTR;
	check(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	a.qp_state = IBV_QPS_RTS;
	check(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* Connect two queue pairs of this process with each other. */
static inline void rc_connect(struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	int index;

	check(ibv_query_port(a->context, 1, &port), "port 1");
	index = port.gid_tbl_len - 1;
	while (index > 0 && (ibv_query_gid(a->context, 1, index, &gid) || !IN6_IS_ADDR_V4MAPPED(gid.raw)))
		index--;
	check(ibv_query_gid(a->context, 1, index, &gid), "GID");
	rc_connect_to(a, &port, &gid, index, b->qp_num);
	rc_connect_to(b, &port, &gid, index, a->qp_num);
}

#endif
