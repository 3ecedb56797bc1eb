/*
 * A provider without a device, to measure the CPU time of posting. It writes work requests to a ring in memory, with
 * the format and the work of mlx5's: segments of 16 bytes, big-endian, at most 512 bytes per work request. Only the
 * write to the device that rings its doorbell is left out.
 */
#ifndef HP_BENCH_WQE_H
#define HP_BENCH_WQE_H

#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <string.h>

enum { HP_WQE_BYTES = 512, HP_WQE_COUNT = 128, HP_WQE_INLINE_MAX = HP_WQE_BYTES - 36, HP_WQE_SGE_MAX = 30 };

struct hp_wqe_ring {
	unsigned char *base; /* HP_WQE_COUNT times HP_WQE_BYTES, aligned to 64 */
	uint32_t at;
	_Atomic uint32_t doorbell; /* in memory: a device reads this copy to recover */
};

struct hp_wqe_control {
	uint32_t opcode, sizes, flags, imm;
};
struct hp_wqe_remote {
	uint64_t addr;
	uint32_t rkey, pad;
};
struct hp_wqe_data {
	uint32_t length, lkey;
	uint64_t addr;
};

static inline unsigned char *hp_wqe_inline(unsigned char *to, const struct ibv_send_wr *wr)
{
	unsigned char *const head = to;

	to += sizeof(uint32_t);
	for (int i = 0; i < wr->num_sge; i++) {
		memcpy(to, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
	const uint32_t bytes = htobe32((uint32_t)(to - head - 4) | 0x80000000u);
	memcpy(head, &bytes, sizeof bytes);
	return to;
}

/* As ibv_post_send(): returns 0, or errno with *bad set. */
static inline int hp_wqe_post(struct hp_wqe_ring *ring, const struct ibv_send_wr *wr, const struct ibv_send_wr **bad)
{
	for (; wr; wr = wr->next) {
		unsigned char *const wqe = ring->base + (size_t)(ring->at % HP_WQE_COUNT) * HP_WQE_BYTES;
		unsigned char *to = wqe + sizeof(struct hp_wqe_control);

		if (wr->num_sge > HP_WQE_SGE_MAX) {
			*bad = wr;
			return ENOMEM;
		}
		if (wr->opcode != IBV_WR_SEND) {
			struct hp_wqe_remote *const remote = (struct hp_wqe_remote *)to;
			remote->addr = htobe64(wr->wr.rdma.remote_addr);
			remote->rkey = htobe32(wr->wr.rdma.rkey);
			remote->pad = 0;
			to += sizeof *remote;
		}
		if (wr->send_flags & IBV_SEND_INLINE) {
			to = hp_wqe_inline(to, wr);
		} else {
			for (int i = 0; i < wr->num_sge; i++) {
				struct hp_wqe_data *const data = (struct hp_wqe_data *)to;
				data->length = htobe32(wr->sg_list[i].length);
				data->lkey = htobe32(wr->sg_list[i].lkey);
				data->addr = htobe64(wr->sg_list[i].addr);
				to += sizeof *data;
			}
		}
		struct hp_wqe_control *const control = (struct hp_wqe_control *)wqe;
		control->opcode = htobe32(ring->at << 8 | wr->opcode);
		control->sizes = htobe32((uint32_t)(to - wqe + 15) / 16);
		control->flags = wr->send_flags & IBV_SEND_SIGNALED ? htobe32(8) : 0;
		control->imm = wr->imm_data;
		ring->at++;
	}
	/* release: the work requests are written before the doorbell; pairs with the device, which reads them after
	 * the doorbell. */
	atomic_store_explicit(&ring->doorbell, htobe32(ring->at & 0xffff), memory_order_release);
	return 0;
}

#endif
