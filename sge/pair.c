/*
 * Two queue pairs of this process that are connected to each other.
 */
#include "sge/pair.h"

#include <arpa/inet.h>
#include <errno.h>

#include "base/base.h"
#include "sge/error.h"

enum { LOST_MS = 2000, SGE_MAX = 30, INLINE_MAX = 476 }; /* the limits of a work request of mlx5 */

int hp_pair_find_port(struct hp_pair *p)
{
	struct ibv_device_attr device;
	int err = hp_verbs_errno(ibv_query_device(p->pd->context, &device));

	if (err)
		return err;
	for (p->port = 1; ibv_query_port(p->pd->context, p->port, &p->attr) || p->attr.state != IBV_PORT_ACTIVE;
	     p->port++)
		if (p->port >= device.phys_port_cnt)
			return -EOPNOTSUPP;
	/* RoCE needs the GID with its interface's IPv4 address. InfiniBand uses its first GID. */
	for (p->gid_index = p->attr.gid_tbl_len - 1; p->gid_index > 0; p->gid_index--)
		if (!ibv_query_gid(p->pd->context, p->port, p->gid_index, &p->gid) && IN6_IS_ADDR_V4MAPPED(p->gid.raw))
			return 0;
	return hp_verbs_errno(ibv_query_gid(p->pd->context, p->port, p->gid_index = 0, &p->gid));
}

/* Create a queue pair with as many elements and as much inline data as the device grants. Ask for fewer and fewer,
 * because a device may refuse a request for too many. */
static struct ibv_qp *create_qp(struct hp_pair *p, struct ibv_qp_cap *ret_granted)
{
	static const uint32_t inlines[] = { INLINE_MAX, 220, 60, 0 };

	for (uint32_t sges = SGE_MAX; sges; sges /= 2)
		for (unsigned i = 0; i < sizeof inlines / sizeof *inlines; i++) {
			struct ibv_qp_init_attr init = {
				.send_cq = p->cq, .recv_cq = p->cq, .qp_type = IBV_QPT_RC,
				.cap = { .max_send_wr = 2 * HP_PAIR_DEPTH,
					 .max_recv_wr = 2 * HP_PAIR_DEPTH,
					 .max_send_sge = sges,
					 .max_recv_sge = 1,
					 .max_inline_data = inlines[i] },
			};
			struct ibv_qp *qp = ibv_create_qp(p->pd, &init);
			*ret_granted = init.cap;
			if (qp)
				return qp;
		}
	return NULL;
}

static int connect_qp(struct hp_pair *p, struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = p->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .path_mtu = p->attr.active_mtu, .dest_qp_num = peer,
		.max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .port_num = p->port, .dlid = p->attr.lid,
			     .is_global = p->attr.link_layer == IBV_LINK_LAYER_ETHERNET,
			     .grh = { .dgid = p->gid, .sgid_index = (uint8_t)p->gid_index, .hop_limit = 64 } },
	};
	int err = hp_verbs_errno(
		ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));

	a.qp_state = IBV_QPS_RTR;
	if (!err)
		err = hp_verbs_errno(ibv_modify_qp(qp, &a,
						   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
							   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
							   IBV_QP_MIN_RNR_TIMER));
	a.qp_state = IBV_QPS_RTS;
	if (!err)
		err = hp_verbs_errno(ibv_modify_qp(qp, &a,
						   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
							   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	return err;
}

void hp_pair_disconnect(struct hp_pair *p)
{
	for (int i = 0; i < 2; i++)
		if (p->qp[i])
			ibv_destroy_qp(p->qp[i]);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	p->qp[0] = p->qp[1] = NULL;
	p->cq = NULL;
}

int hp_pair_connect(struct hp_pair *p)
{
	struct ibv_qp_cap granted[2];
	int err = 0;

	errno = 0;
	p->cq = ibv_create_cq(p->pd->context, 4 * HP_PAIR_DEPTH, NULL, NULL, 0);
	for (int i = 0; i < 2 && p->cq; i++)
		p->qp[i] = create_qp(p, &granted[i]);
	if (!p->cq || !p->qp[0] || !p->qp[1])
		return hp_verbs_errno(-1);
	for (int i = 0; i < 2 && !err; i++)
		err = connect_qp(p, p->qp[i], p->qp[!i]->qp_num);
	return err ? err : hugepin_sg_caps(p->qp[0], &granted[0], &p->caps, sizeof p->caps);
}

bool hp_pair_wait(struct hp_pair *p, int wanted)
{
	const uint64_t end = hp_clock_ns() + LOST_MS * 1000000ull;
	struct ibv_wc wc;

	while (wanted) {
		const int n = ibv_poll_cq(p->cq, 1, &wc);
		if (n < 0 || (n && wc.status != IBV_WC_SUCCESS) || (!n && hp_clock_ns() > end))
			return false;
		wanted -= n;
	}
	return true;
}
