/*
 * Calibration over a device. Two queue pairs of this process are connected to each other. The time of a message runs
 * from its posting to its completion.
 *
 * Some providers report success but deliver less. So before any measurement, each message of the grid is sent in each
 * mode, by SEND and by RDMA WRITE, and compared. A mode that arrives wrong once is refused.
 *
 * The terms that the CPU alone determines, copying and lookups, are taken from the measurement without a device.
 *
 * Rounds of all cells alternate, so that a disturbance affects all cells alike.
 */
#include "sge/measure_device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "sge/cells.h"
#include "sge/error.h"
#include "sge/wqe.h"

#define BIT(term) HP_CELL_BIT(term)
#define DEVICE_TERMS \
	(BIT(wr) | BIT(element) | BIT(line) | BIT(byte) | BIT(inline_wr) | BIT(inline_piece) | BIT(inline_byte))

enum { DEVICE_ROUNDS = 24, LOST_MS = 2000 };

struct wire {
	struct ibv_pd *pd;
	struct ibv_port_attr attr;
	uint8_t port;
	int gid_index;
	union ibv_gid gid;
	char *memory; /* source, slot, destination */
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2]; /* qp[0] sends to qp[1] */
	struct hugepin_sg_caps caps;
	struct hp_sg_cell cell[HP_CELLS_MAX];
	unsigned cells;
};
#define WIRE_BYTES ((size_t)2 * HP_CELL_SLOT_BYTES + HP_CELL_LAYOUT_MAX)

static int find_port(struct wire *w)
{
	struct ibv_device_attr device;
	int err = hp_verbs_errno(ibv_query_device(w->pd->context, &device));

	if (err)
		return err;
	for (w->port = 1; ibv_query_port(w->pd->context, w->port, &w->attr) || w->attr.state != IBV_PORT_ACTIVE;
	     w->port++)
		if (w->port >= device.phys_port_cnt)
			return -EOPNOTSUPP;
	/* RoCE needs the GID with its interface's IPv4 address. InfiniBand uses its first GID. */
	for (w->gid_index = w->attr.gid_tbl_len - 1; w->gid_index > 0; w->gid_index--)
		if (!ibv_query_gid(w->pd->context, w->port, w->gid_index, &w->gid) && IN6_IS_ADDR_V4MAPPED(w->gid.raw))
			return 0;
	return hp_verbs_errno(ibv_query_gid(w->pd->context, w->port, w->gid_index = 0, &w->gid));
}

/* Create a queue pair with as many elements and as much inline data as the device grants. A device may refuse a
 * request for too many, so ask for fewer and fewer. */
static struct ibv_qp *create_qp(struct wire *w, struct ibv_qp_cap *ret_granted)
{
	static const uint32_t inlines[] = { HP_WQE_INLINE_MAX, 220, 60, 0 };

	for (uint32_t sges = HP_CELL_PIECES_MAX; sges; sges /= 2)
		for (unsigned i = 0; i < sizeof inlines / sizeof *inlines; i++) {
			struct ibv_qp_init_attr init = {
				.send_cq = w->cq, .recv_cq = w->cq, .qp_type = IBV_QPT_RC,
				.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = sges, .max_recv_sge = 1,
					 .max_inline_data = inlines[i] },
			};
			struct ibv_qp *qp = ibv_create_qp(w->pd, &init);
			*ret_granted = init.cap;
			if (qp)
				return qp;
		}
	return NULL;
}

static int connect_qp(struct wire *w, struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = w->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .path_mtu = w->attr.active_mtu, .dest_qp_num = peer,
		.max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .port_num = w->port, .dlid = w->attr.lid,
			     .is_global = w->attr.link_layer == IBV_LINK_LAYER_ETHERNET,
			     .grh = { .dgid = w->gid, .sgid_index = (uint8_t)w->gid_index, .hop_limit = 64 } },
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

static void wire_disconnect(struct wire *w)
{
	for (int i = 0; i < 2; i++)
		if (w->qp[i])
			ibv_destroy_qp(w->qp[i]);
	if (w->cq)
		ibv_destroy_cq(w->cq);
	w->qp[0] = w->qp[1] = NULL;
	w->cq = NULL;
}

static int wire_connect(struct wire *w)
{
	struct ibv_qp_cap granted[2];
	int err = 0;

	errno = 0;
	w->cq = ibv_create_cq(w->pd->context, 16, NULL, NULL, 0);
	for (int i = 0; i < 2 && w->cq; i++)
		w->qp[i] = create_qp(w, &granted[i]);
	if (!w->cq || !w->qp[0] || !w->qp[1])
		return hp_verbs_errno(-1);
	for (int i = 0; i < 2 && !err; i++)
		err = connect_qp(w, w->qp[i], w->qp[!i]->qp_num);
	return err ? err : hugepin_sg_caps(w->qp[0], &granted[0], &w->caps, sizeof w->caps);
}

static int wire_open(struct wire *w)
{
	int err = find_port(w);

	if (err)
		return err;
	w->memory = mmap(NULL, WIRE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (w->memory == MAP_FAILED)
		return -ENOMEM;
	madvise(w->memory, WIRE_BYTES, MADV_DONTFORK);
	for (size_t i = 0; i < WIRE_BYTES; i++)
		w->memory[i] = (char)(i * 31 + (i >> 8) * 7);
	errno = 0;
	w->mr = ibv_reg_mr(w->pd, w->memory, WIRE_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	return w->mr ? wire_connect(w) : hp_verbs_errno(-1);
}

static void wire_close(struct wire *w)
{
	wire_disconnect(w);
	if (w->mr)
		ibv_dereg_mr(w->mr);
	if (w->memory && w->memory != MAP_FAILED)
		munmap(w->memory, WIRE_BYTES);
}

static int wire_key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	const struct wire *w = arg;

	(void)len, (void)access;
	if (addr)
		*ret_ = (struct hugepin_pin){ (uintptr_t)w->memory, WIRE_BYTES, w->mr->lkey, w->mr->rkey, 0 };
	return 0;
}

/* Wait for `wanted` completions. False: one failed, or did not come in time. */
static bool wait_for_completions(struct wire *w, int wanted)
{
	const uint64_t end = hp_clock_ns() + LOST_MS * 1000000ull;
	struct ibv_wc wc;

	while (wanted) {
		const int n = ibv_poll_cq(w->cq, 1, &wc);
		if (n < 0 || (n && wc.status != IBV_WC_SUCCESS) || (!n && hp_clock_ns() > end))
			return false;
		wanted -= n;
	}
	return true;
}

/* Send one message of the cell. *ret_ns: the time from filling to the completion on both sides. */
static bool send_cell(struct wire *w, const struct hp_sg_cell *c, enum ibv_wr_opcode opcode, float *ret_ns)
{
	char *const slot = w->memory + HP_CELL_LAYOUT_MAX, *const to = slot + HP_CELL_SLOT_BYTES;
	struct iovec iov[HP_CELL_PIECES_MAX];
	struct ibv_sge sge[HP_CELL_PIECES_MAX], in = { (uintptr_t)to, (uint32_t)HP_CELL_SLOT_BYTES, w->mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr wr, *bad, tmpl = { .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
					      .wr.rdma = { (uintptr_t)to, w->mr->rkey } };
	const struct hugepin_sg_room room = {
		.size = sizeof room, .wr = &wr, .wrs = 1, .sge = sge, .sges = HP_CELL_PIECES_MAX,
		.slot = slot, .slot_len = HP_CELL_SLOT_BYTES, .slot_lkey = w->mr->lkey,
		.key = wire_key, .arg = w,
	};
	const bool two_sided = opcode == IBV_WR_SEND;

	hp_cell_lay(iov, c->n, c->bytes, w->memory, c->bytes + HP_CELL_STRIDE_MORE);
	if (two_sided && ibv_post_recv(w->qp[1], &recv, &bad_recv))
		return false;
	const uint64_t start = hp_clock_ns();
	const bool ok = hugepin_sg_fill(&c->plan, iov, (int)c->n, &tmpl, &room, NULL) == 1 &&
			!ibv_post_send(w->qp[0], &wr, &bad) && wait_for_completions(w, 1 + two_sided);
	*ret_ns = (float)(hp_clock_ns() - start);
	return ok;
}

/* Whether a cell's message arrives complete, and nothing behind it is overwritten. */
static bool cell_arrives(struct wire *w, const struct hp_sg_cell *c, enum ibv_wr_opcode opcode)
{
	char *const to = w->memory + HP_CELL_LAYOUT_MAX + HP_CELL_SLOT_BYTES;
	const size_t stride = c->bytes + HP_CELL_STRIDE_MORE, len = (size_t)c->n * c->bytes;
	struct iovec iov[HP_CELL_PIECES_MAX];
	struct hp_sg_cell planned = *c;
	float ns;

	hp_cell_lay(iov, c->n, c->bytes, w->memory, stride);
	if (hugepin_sg_plan(NULL, &w->caps, iov, (int)c->n, c->mode | (opcode == IBV_WR_SEND ? 0 : HUGEPIN_SG_WRITE),
			    &planned.plan))
		return false;
	for (size_t i = 0; i < c->n; i++)
		for (size_t j = 0; j < c->bytes; j++)
			to[i * c->bytes + j] = (char)~w->memory[i * stride + j];
	const char behind = len < HP_CELL_SLOT_BYTES ? to[len] : 0;
	if (!send_cell(w, &planned, opcode, &ns))
		return false;
	for (size_t i = 0; i < c->n; i++)
		if (memcmp(to + i * c->bytes, w->memory + i * stride, c->bytes))
			return false;
	return len == HP_CELL_SLOT_BYTES || to[len] == behind;
}

/* Remove the cells of modes that arrive wrong. */
static int refuse_wrong(struct wire *w, uint32_t *refused)
{
	unsigned kept = 0;
	int err = 0;

	for (unsigned i = 0; i < w->cells && !err; i++) {
		const struct hp_sg_cell *c = &w->cell[i];
		if (!(*refused & c->mode) &&
		    !(cell_arrives(w, c, IBV_WR_SEND) && cell_arrives(w, c, IBV_WR_RDMA_WRITE))) {
			*refused |= c->mode;
			wire_disconnect(w);
			err = wire_connect(w);
		}
	}
	for (unsigned i = 0; i < w->cells; i++)
		if (!(*refused & w->cell[i].mode))
			w->cell[kept++] = w->cell[i];
	w->cells = kept;
	return err ? err : *refused & HUGEPIN_SG_COPY ? -EIO : 0;
}

static int wire_run(struct wire *w, struct hugepin_sg_model *m)
{
	int err = wire_open(w);

	for (unsigned mode = HUGEPIN_SG_INLINE; !err && mode <= HUGEPIN_SG_GATHER; mode *= 2)
		err = hp_cells_add(w->cell, &w->cells, &w->caps, w->memory, mode, false);
	m->refused = 0;
	if (!err)
		err = refuse_wrong(w, &m->refused);
	for (unsigned round = 0; round < DEVICE_ROUNDS; round++)
		for (unsigned i = 0; !err && i < w->cells; i++)
			if (!send_cell(w, &w->cell[i], IBV_WR_SEND, &w->cell[i].ns[round]))
				err = -EIO;
	if (!err && hp_cells_fit(m, DEVICE_TERMS, w->cell, w->cells, DEVICE_ROUNDS) >= 0)
		m->source = HUGEPIN_SG_MODEL_DEVICE;
	return err;
}

int hp_measure_device(struct ibv_pd *pd, struct hugepin_sg_model *m)
{
	struct wire *w = calloc(1, sizeof *w);
	int err;

	if (!w)
		return -ENOMEM;
	w->pd = pd;
	err = wire_run(w, m);
	wire_close(w);
	free(w);
	return err;
}
