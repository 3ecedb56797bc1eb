/*
 * Calls that hugepin_sg_fill() refuses: too little room, another layout than the plan's, and wrong arguments. A refused
 * call leaves no pin and writes nothing beyond the room.
 */
#include "tests/unit/sg_fill.h"

/* Fill with exactly the room that is needed, then with one less of each part: -EMSGSIZE, and no pin is out. */
TEST(room_that_is_short_by_one_is_told_and_nothing_stays_pinned)
{
	static struct work w;
	static const unsigned modes[] = { GATHER, COPY, GATHER | WRITE, COPY | GATHER, INLINE };
	for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
		struct iovec iov[14];
		struct hugepin_sg_caps caps = rc;
		struct hugepin_sg_plan p;
		struct hugepin_sg_info info;
		bool write = modes[k] & WRITE;
		struct ibv_send_wr tmpl = { .opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND };
		caps.max_sge = write ? 5 : 30;
		register_comb();
		int n = comb(iov, 14, modes[k] == INLINE ? 15 : 100);
		for (int i = 8; modes[k] == (COPY | GATHER) && i < n; i++)
			iov[i].iov_len = 8;
		if (!EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, n, modes[k], &p), 0))
			return;
		int wrs = hugepin_sg_fill(&p, iov, n, &tmpl, work_room(&w), &info);
		if (!EXPECT_EQ(wrs, p.wrs))
			return;
		EXPECT_EQ(info.sges, p.sges);
		release(w.pins, info.pins);
		const struct hugepin_sg_room enough = {
			.size = sizeof enough, .wr = w.wr, .sge = w.sge, .pins = w.pins, .slot = slot,
			.slot_len = p.slot,
			.wrs = (uint32_t)wrs, .sges = info.sges, .pins_max = info.pins, .slot_lkey = SLOT_KEY,
			.key = key, .arg = regs,
		};
		EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, &enough, NULL), wrs);
		release(w.pins, info.pins);
		for (int what = 0; what < 4; what++) {
			struct hugepin_sg_room r = enough;
			if (!(what == 0 ? r.wrs-- : what == 1 ? r.sges-- : what == 2 ? r.pins_max-- : r.slot_len--))
				continue;
			memset(&w, 0xee, sizeof w);
			EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, &r, NULL), -EMSGSIZE);
			EXPECT_EQ(pins_out(), 0);
			/* nothing beyond the room was touched */
			EXPECT_EQ(((unsigned char *)(w.sge + r.sges))[0], 0xee);
			EXPECT_EQ(((unsigned char *)(w.pins + r.pins_max))[0], 0xee);
		}
	}
}

TEST(what_does_not_belong_to_the_plan_is_refused)
{
	static struct work w;
	struct iovec iov[4];
	struct hugepin_sg_plan send, write, recv, copy;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND };
	struct hugepin_sg_room *r = work_room(&w), bad;
	register_comb();
	comb(iov, 4, 500);
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 4, GATHER, &send), 0);
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 4, GATHER | WRITE, &write), 0);
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 4, RECV, &recv), 0);
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 4, COPY, &copy), 0);
	EXPECT_EQ(hugepin_sg_fill(NULL, iov, 4, &tmpl, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill(&send, NULL, 4, &tmpl, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, NULL, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, &tmpl, NULL, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 3, &tmpl, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill(&send, iov, -4, &tmpl, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill(&write, iov, 4, &tmpl, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill(&recv, iov, 4, &tmpl, r, NULL), -EINVAL);
	bad = *r;
	bad.size = 8;
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, &tmpl, &bad, NULL), -EINVAL);
	bad = *r;
	bad.wr = NULL;
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, &tmpl, &bad, NULL), -EINVAL);
	bad = *r;
	bad.sge = NULL;
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, &tmpl, &bad, NULL), -EINVAL);
	bad = *r;
	bad.pins = NULL;
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, &tmpl, &bad, NULL), -EINVAL);
	tmpl.opcode = IBV_WR_RDMA_WRITE;
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, &tmpl, r, NULL), -EINVAL);
	tmpl.wr.rdma.remote_addr = UINT64_MAX - 1998;
	EXPECT_EQ(hugepin_sg_fill(&write, iov, 4, &tmpl, r, NULL), -EINVAL);
	tmpl.opcode = IBV_WR_RDMA_READ;
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, &tmpl, r, NULL), -EINVAL);
	tmpl.opcode = IBV_WR_SEND;
	iov[2].iov_len++; /* another layout */
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, &tmpl, r, NULL), -EINVAL);
	iov[2].iov_len--;
	iov[2].iov_base = (void *)-8;
	EXPECT_EQ(hugepin_sg_fill(&send, iov, 4, &tmpl, r, NULL), -EINVAL);
	/* a piece in the slot, from in front of it and behind its end */
	for (size_t at = 0; at <= 3000; at += 250) {
		bad = *r;
		bad.slot = arena + 20000;
		bad.slot_len = 2000;
		iov[2] = (struct iovec){ arena + 20000 - 500 + at, 500 };
		EXPECT_EQ(hugepin_sg_fill(&copy, iov, 4, &tmpl, &bad, NULL), at > 0 && at < 2500 ? -EINVAL : 1);
	}
	EXPECT_EQ(pins_out(), 0);
}

/* Plans of each mode, filled with pieces of another layout. */
TEST(another_layout_is_refused_whatever_the_plan_does)
{
	static struct work w;
	static const unsigned modes[] = { INLINE, COPY, GATHER, GATHER | WRITE, COPY | GATHER };
	for (size_t k = 0; k < sizeof modes / sizeof *modes; k++)
		for (int many = 0; many < 2; many++) { /* registrations */
			struct iovec iov[13], bad[13];
			struct hugepin_sg_plan p;
			struct ibv_send_wr tmpl = { .opcode = modes[k] & WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_SEND };
			struct hugepin_sg_model m = measured;
			struct hugepin_sg_room *r = work_room(&w);
			int n = 12;
			m.copy_below[0] = m.apart_below[0] = 10;
			register_comb();
			for (int i = 0; i < n; i++)
				iov[i] = (struct iovec){ arena + (many ? i / 3 * 8192 : 0) + i % 3 * 1300 + i * 65,
							 modes[k] != (COPY | GATHER) ? 16 : i % 3 ? 4 : 64 };
			if (!EXPECT_EQ(hugepin_sg_plan(&m, &rc, iov, n, modes[k], &p), 0))
				return;
			EXPECT(modes[k] != (COPY | GATHER) || (p.slot && p.slot < p.bytes));
			r->slot_len = p.slot;
			slot[p.slot] = 0xee;
			EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, NULL), 1);
			for (int what = 0; what < 11; what++) {
				memcpy(bad, iov, sizeof iov);
				int at = what < 8 ? what % 2 * 11 : 0, m_ = n;
				switch (what / 2) {
				case 0: bad[at].iov_len++; break;
				case 1: bad[at].iov_len--; break;
				case 2: bad[at].iov_base = NULL; break;
				case 3: bad[at].iov_base = (void *)(uintptr_t)-bad[at].iov_len; break;
				default:
					if (what == 9 && modes[k] != (COPY | GATHER))
						continue;
					for (int i = 0; what == 10 && i < 4; i++)
						bad[i].iov_len += (size_t)1 << 62; /* as many, but for 2^64 */
					if (what == 8)
						bad[m_++] = (struct iovec){ NULL, 0 };
					if (what == 9) /* as many bytes, of which fewer are short */
						bad[1].iov_len += 10, bad[0].iov_len -= 10;
				}
				for (int i = 0; i < regs_n; i++)
					regs[i].out = 0;
				if (!EXPECT_EQ(hugepin_sg_fill(&p, bad, m_, &tmpl, r, NULL), -EINVAL))
					t_print("# mode %u, change %d\n", modes[k], what);
				EXPECT_EQ(pins_out(), 0);
				EXPECT_EQ(slot[p.slot], 0xee);
			}
			if (!(modes[k] & COPY))
				continue;
			memcpy(bad, iov, sizeof iov);
			bad[7].iov_base = slot + p.slot - 1;
			EXPECT_EQ(hugepin_sg_fill(&p, bad, n, &tmpl, r, NULL), -EINVAL);
			r->slot = NULL;
			EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, NULL), -EMSGSIZE);
		}
}

/* A key for all memory. A piece at NULL is still refused. */
static int key_of_all(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	(void)arg, (void)len, (void)access;
	if (addr)
		*pin = (struct hugepin_pin){ .len = UINT64_MAX, .lkey = 7 };
	return 0;
}

TEST(a_piece_at_null_is_refused_wherever_it_stands)
{
	static struct work w;
	struct hugepin_sg_room *r = work_room(&w);
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND };
	const unsigned modes[] = { GATHER, COPY, INLINE, GATHER | COPY };
	r->key = key_of_all;
	for (int m = 0; m < 4; m++)
		for (int null = 0; null < 4; null++) {
			struct iovec iov[3];
			struct hugepin_sg_plan p;
			for (int i = 0; i < 3; i++)
				iov[i] = (struct iovec){ arena + 100 * i, 50 };
			EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 3, modes[m], &p), 0);
			if (null < 3)
				iov[null].iov_base = NULL;
			EXPECT_EQ(hugepin_sg_fill(&p, iov, 3, &tmpl, r, NULL), null < 3 ? -EINVAL : 1);
		}
}

T_MAIN
