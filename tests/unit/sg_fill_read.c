/*
 * RDMA READ: what lies in one piece at the peer is scattered over many pieces here, in as few work requests as elements
 * of a READ allow.
 */
#include "tests/unit/sg_fill.h"

enum { READ = HUGEPIN_SG_READ };

/* Do as the adapter does, to `peer`: each work request reads its elements' bytes from its remote address. */
static void carry_out(const struct ibv_send_wr *wr, int wrs, const unsigned char *peer, uint32_t max_sge_rd)
{
	for (int i = 0; i < wrs; i++, wr = wr->next) {
		EXPECT_EQ(wr->opcode, IBV_WR_RDMA_READ);
		EXPECT_EQ(wr->wr.rdma.rkey, 7);
		EXPECT_EQ(!!(wr->send_flags & IBV_SEND_SIGNALED), i == wrs - 1);
		EXPECT_EQ(!!(wr->send_flags & IBV_SEND_FENCE), i == 0);
		EXPECT(!(wr->send_flags & IBV_SEND_INLINE));
		EXPECT((uint32_t)wr->num_sge <= max_sge_rd);
		EXPECT_EQ(!wr->next, i == wrs - 1);
		const unsigned char *from = peer + (wr->wr.rdma.remote_addr - (1 << 20));
		for (int k = 0; k < wr->num_sge; from += wr->sg_list[k++].length) {
			EXPECT(wr->sg_list[k].length > 0);
			memcpy((void *)(uintptr_t)wr->sg_list[k].addr, from, wr->sg_list[k].length);
		}
	}
}

TEST(a_read_fills_the_pieces_in_their_order_within_the_elements_of_a_read)
{
	static unsigned char peer[ARENA], wanted[ARENA];
	static struct work w;
	int chains = 0, single = 0;
	for (size_t i = 0; i < sizeof peer; i++)
		peer[i] = (unsigned char)rnd(256);
	key_access = HUGEPIN_WRITE;
	for (int round = 0; round < 20000 && !t_failures; round++) {
		struct hugepin_sg_caps caps = rc;
		struct iovec iov[PIECES];
		struct hugepin_sg_plan p;
		struct hugepin_sg_info info;
		caps.max_sge_rd = 1 + rnd(30);
		caps.max_sge = 1 + rnd(30);
		register_comb();
		const int n = (int)rnd(25);
		uint32_t at = 0;
		memset(arena, 0xa5, sizeof arena);
		memset(wanted, 0xa5, sizeof wanted);
		for (int i = 0; i < n; i++) {
			const uint32_t len = rnd(4) ? rnd(1300) : 0, off = (uint32_t)(i / 3 * 8192 + i % 3 * 1300);
			iov[i] = (struct iovec){ arena + off, len };
			memcpy(wanted + off, peer + at, len);
			at += len;
		}
		const unsigned mode = READ | (rnd(2) ? MODES : 0);
		EXPECT_EQ(hugepin_sg_plan(rnd(2) ? &measured : NULL, &caps, iov, n, mode, &p), 0);
		EXPECT_EQ(p.mode, READ | GATHER);
		EXPECT_EQ(p.slot, 0);
		EXPECT_EQ(p.max_sge, caps.max_sge_rd);
		const struct ibv_send_wr tmpl = { .opcode = IBV_WR_RDMA_READ,
						  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
						  .wr.rdma = { .remote_addr = 1 << 20, .rkey = 7 } };
		const int wrs = hugepin_sg_fill(&p, iov, n, &tmpl, work_room(&w), &info);
		if (!EXPECT(wrs >= 1) || !EXPECT((uint32_t)wrs <= p.wrs))
			break;
		EXPECT_EQ(wrs, info.sges ? (int)((info.sges - 1) / caps.max_sge_rd + 1) : 1);
		EXPECT_EQ(info.bytes, at);
		EXPECT_EQ(info.copied, 0);
		carry_out(w.wr, wrs, peer, caps.max_sge_rd);
		EXPECT(!memcmp(arena, wanted, sizeof arena));
		chains += wrs > 1;
		single += wrs == 1 && info.sges > 1;
		release(w.pins, info.pins);
		EXPECT_EQ(pins_out(), 0);
	}
	EXPECT(chains > 100 && single > 100);
	key_access = HUGEPIN_READ;
}

TEST(a_read_that_cannot_be_is_refused)
{
	static struct work w;
	struct iovec iov[24];
	struct hugepin_sg_plan p, write_plan;
	struct hugepin_sg_caps caps = rc, ud = rc;
	struct hugepin_sg_model no_gather = measured;
	const int n = comb(iov, 24, 100);
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_RDMA_READ, .wr.rdma.remote_addr = UINT64_MAX - 2399 };
	ud.mtu_ud = 4096;
	no_gather.refused = GATHER;
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, iov, n, READ | WRITE, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, iov, n, READ | RECV, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &ud, iov, n, READ, &p), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, iov, n, READ | COPY, &p), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, iov, n, READ | INLINE, &p), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_sg_plan(&no_gather, &rc, iov, n, READ, &p), -EOPNOTSUPP);
	caps.max_sge_rd = 2;
	caps.max_wr = 11;
	EXPECT_EQ(hugepin_sg_plan(NULL, &caps, iov, n, READ, &p), -EMSGSIZE);
	caps.max_wr = 12;
	EXPECT_EQ(hugepin_sg_plan(NULL, &caps, iov, n, READ, &p), 0);
	EXPECT_EQ(p.wrs, 12);
	EXPECT_EQ(hugepin_sg_plan(NULL, &caps, iov, n, WRITE | GATHER, &write_plan), 0);

	register_comb();
	struct hugepin_sg_room *r = work_room(&w);
	key_access = HUGEPIN_WRITE;
	r->wrs = 11;
	EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, NULL), -EMSGSIZE);
	EXPECT_EQ(pins_out(), 0);
	r->wrs = 12;
	EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, NULL), 12);
	release(w.pins, 8);
	tmpl.wr.rdma.remote_addr++; /* beyond the end of the address space */
	EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, NULL), -EINVAL);
	tmpl.wr.rdma.remote_addr = 0;
	EXPECT_EQ(hugepin_sg_fill(&write_plan, iov, n, &tmpl, r, NULL), -EINVAL);
	tmpl.opcode = IBV_WR_RDMA_WRITE;
	EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, NULL), -EINVAL);
	tmpl.opcode = IBV_WR_RDMA_READ;
	for (int at = 1; at <= 8; at++) { /* a key function that fails at any call leaves no pin */
		key_calls = 0;
		key_fails_at = at;
		key_fails_with = -ENOKEY;
		EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, NULL), -ENOKEY);
		EXPECT_EQ(pins_out(), 0);
	}
	key_access = HUGEPIN_READ;
}

T_MAIN
