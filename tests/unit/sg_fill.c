/*
 * Work requests as hugepin_sg_fill() makes them of a plan: the bytes that they send are the pieces' bytes, in order. An
 * interpreter that knows the registrations carries out the work requests, and then the strict device of
 * tests/mock_verbs.h.
 */
#include "tests/unit/sg_fill.h"

/* ------------------------------------------------------------------ an interpreter */

/* Cut the arena into registrations and holes. Some registrations touch. */
static void register_some(void)
{
	uint32_t at = 0;
	for (regs_n = 0; regs_n < REGS && at < ARENA; regs_n++) {
		uint32_t len = 1 + rnd(ARENA / 6);
		at += rnd(2) ? rnd(2000) : 0;
		if (at >= ARENA)
			break;
		len = len > ARENA - at ? ARENA - at : len;
		regs[regs_n].addr = (uintptr_t)arena + at;
		regs[regs_n].len = len;
		regs[regs_n].lkey = 100 + (uint32_t)regs_n;
		regs[regs_n].out = 0;
		at += len;
	}
}

static bool element_good(const struct ibv_sge *s, const unsigned char *slot_end)
{
	if (s->lkey == SLOT_KEY)
		return (unsigned char *)(uintptr_t)s->addr >= slot &&
		       (unsigned char *)(uintptr_t)s->addr + s->length <= slot_end;
	for (int i = 0; i < regs_n; i++)
		if (regs[i].lkey == s->lkey)
			return s->addr >= regs[i].addr && s->addr + s->length <= regs[i].addr + regs[i].len;
	return false;
}

/* Carry out work requests. The bytes that arrive go to `to`. Returns their number, or SIZE_MAX if a device would refuse
 * the work requests or fail. */
static size_t interpret(const struct ibv_send_wr *wr, uint32_t max_sge, const struct hugepin_sg_room *room,
			uint64_t remote, unsigned char *to)
{
	size_t done = 0;
	for (; wr; wr = wr->next) {
		if (wr->num_sge < 0 || (uint32_t)wr->num_sge > max_sge)
			return SIZE_MAX;
		bool write = wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
		if (write && wr->wr.rdma.remote_addr != remote + done)
			return SIZE_MAX;
		for (int i = 0; i < wr->num_sge; i++) {
			const struct ibv_sge *s = &wr->sg_list[i];
			if (!s->length || done + s->length > 4 * ARENA ||
			    (!(wr->send_flags & IBV_SEND_INLINE) && !element_good(s, slot + room->slot_len)))
				return SIZE_MAX;
			memcpy(to + done, (void *)(uintptr_t)s->addr, s->length);
			done += s->length;
		}
	}
	return done;
}

static unsigned char sent[4 * ARENA], wanted[4 * ARENA];

static size_t concatenate(const struct iovec *iov, int n)
{
	size_t bytes = 0;
	for (int i = 0; i < n; i++) {
		memcpy(wanted + bytes, iov[i].iov_base, iov[i].iov_len);
		bytes += iov[i].iov_len;
	}
	return bytes;
}

/* Pieces of the arena. Pieces may overlap. Some are empty. */
static int pieces_of_arena(struct iovec *iov, int n)
{
	uint32_t longest = n ? 1 + rnd(3 * ARENA / (uint32_t)n) : 1;
	longest = longest > ARENA / 4 ? ARENA / 4 : longest;
	for (int i = 0; i < n; i++) {
		uint32_t len = rnd(6) ? 1 + rnd(rnd(2) ? longest : 1 + longest / 16) : 0;
		iov[i] = (struct iovec){ arena + rnd(ARENA - len), len };
		if (i && rnd(4) == 0 &&
		    (unsigned char *)iov[i - 1].iov_base + iov[i - 1].iov_len + len <= arena + ARENA)
			iov[i].iov_base = (unsigned char *)iov[i - 1].iov_base + iov[i - 1].iov_len;
	}
	return n;
}

/* *ret_holes: some byte of a piece has no key. *ret_split: a piece lies in several registrations. */
static void look_at(const struct iovec *iov, int n, bool *ret_holes, bool *ret_split)
{
	*ret_holes = *ret_split = false;
	for (int i = 0; i < n; i++) {
		uintptr_t addr = (uintptr_t)iov[i].iov_base, end = addr + iov[i].iov_len;
		while (addr < end) {
			int k = 0;
			while (k < regs_n && addr - regs[k].addr >= regs[k].len)
				k++;
			if (k == regs_n) {
				*ret_holes = true;
				break;
			}
			addr = regs[k].addr + regs[k].len;
			*ret_split |= addr < end;
		}
	}
}

static void scribble(void)
{
	for (int i = 0; i < ARENA; i++)
		arena[i] = (unsigned char)(i * 7 + (i >> 8) * 13 + (int)rnd(3));
}

TEST(what_is_sent_is_the_pieces_one_after_the_other)
{
	static struct work w;
	static const uint32_t max[] = { 1, 3, 7, 30 };
	int done[2] = { 0 }, mixed = 0, chains = 0, inlined = 0, rescued = 0, keyless = 0, toolong = 0;
	scribble();
	for (int round = 0; round < 20000; round++) {
		struct iovec iov[PIECES];
		struct hugepin_sg_caps caps = rc;
		struct hugepin_sg_model m = measured;
		struct hugepin_sg_plan p;
		struct hugepin_sg_info info;
		struct hugepin_sg_room *room = work_room(&w);
		bool holes, split, write = rnd(2);
		caps.max_sge = max[rnd(4)];
		caps.max_wr = 4;
		m.copy_below[0] = m.apart_below[0] = rnd(800);
		register_some();
		int n = pieces_of_arena(iov, (int)rnd(3 * caps.max_sge + 1));
		unsigned mode = rnd(8) | (write ? WRITE : 0);
		key_calls = key_fails_at = 0;
		key_whole = rnd(8) == 0;
		if (hugepin_sg_plan(&m, &caps, iov, n, mode, &p))
			continue;
		if (p.bytes > ARENA)
			continue;
		room->slot_len = rnd(2) ? p.bytes : p.slot + rnd(1 + (uint32_t)(p.bytes - p.slot));
		if (rnd(2)) {
			room->wrs = p.wrs;
			room->sges = p.sges;
		}
		slot[room->slot_len] = 0xee;
		memset(&w.sge[room->sges], 0xee, sizeof *w.sge);
		const struct ibv_sge beyond = w.sge[room->sges];
		struct ibv_send_wr tmpl = { .wr_id = 77, .opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND };
		tmpl.wr.rdma.remote_addr = 0x7000;
		look_at(iov, n, &holes, &split);
		int ret = hugepin_sg_fill(&p, iov, n, &tmpl, room, &info);
		EXPECT_EQ(slot[room->slot_len], 0xee);
		EXPECT(!memcmp(&w.sge[room->sges], &beyond, sizeof beyond));
		if (ret < 0) {
			EXPECT_EQ(pins_out(), 0);
			bool rescue = (p.mode & MODES) == (GATHER | COPY) && room->slot_len >= p.bytes;
			EXPECT(!rescue);
			EXPECT(ret == -ENOKEY ? holes && p.mode & GATHER : ret == -EMSGSIZE && split);
			keyless += ret == -ENOKEY;
			toolong += ret == -EMSGSIZE;
			continue;
		}
		size_t bytes = concatenate(iov, n);
		size_t got = interpret(w.wr, caps.max_sge, room, 0x7000, sent);
		if (!EXPECT_EQ(got, bytes) || !EXPECT(!memcmp(sent, wanted, bytes)))
			t_print("# mode %x of %x, n %d, max_sge %u\n", p.mode, mode, n, caps.max_sge);
		EXPECT_EQ(info.bytes, bytes);
		EXPECT_EQ(pins_out(), info.pins);
		uint32_t sges = 0, wrs = 0, lines = 0;
		for (struct ibv_send_wr *wr = w.wr; wr; wr = wr->next, wrs++) {
			sges += (uint32_t)wr->num_sge;
			for (int i = 0; i < wr->num_sge; i++)
				lines += (uint32_t)((wr->sg_list[i].addr + wr->sg_list[i].length - 1) / 64 -
						    wr->sg_list[i].addr / 64 + 1);
			EXPECT_EQ(wr->wr_id, 77);
			EXPECT_EQ(!!(wr->send_flags & IBV_SEND_INLINE), (p.mode & INLINE) && bytes);
		}
		EXPECT_EQ(info.sges, sges);
		EXPECT_EQ(info.lines, p.mode & INLINE ? 0 : lines);
		EXPECT_EQ(ret, wrs);
		if (!split && !key_whole)
			EXPECT(sges <= p.sges && wrs <= p.wrs);
		if (!(p.mode & GATHER))
			EXPECT_EQ(key_calls, 0);
		EXPECT(info.pins <= (uint32_t)regs_n); /* once each */
		release(w.pins, info.pins);
		EXPECT_EQ(pins_out(), 0);
		done[write]++;
		mixed += p.slot && p.slot < bytes;
		chains += wrs > 1;
		inlined += !!(p.mode & INLINE);
		rescued += info.copied > p.slot;
	}
	t_print("# %d sends, %d writes, %d mixed, %d chains, %d inline, %d copied for want of a key; "
		"%d without, %d too long\n",
		done[0], done[1], mixed, chains, inlined, rescued, keyless, toolong);
	EXPECT(done[0] > 1000 && done[1] > 1000 && mixed > 300 && chains > 300 && inlined > 300 && rescued > 300);
	EXPECT(keyless > 300 && toolong > 10);
}

TEST(nothing_to_send_is_a_message_without_elements)
{
	struct iovec empty[3] = { { NULL, 0 }, { (void *)-1, 0 }, { (void *)4096, 0 } };
	struct ibv_send_wr wr, tmpl = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct hugepin_sg_room room = { .size = sizeof room, .wr = &wr, .wrs = 1 };
	for (int n = 0; n <= 3; n++)
		for (unsigned mode = 0; mode < 8; mode++) {
			struct hugepin_sg_plan p;
			struct hugepin_sg_info info;
			EXPECT_EQ(hugepin_sg_plan(&measured, &rc, empty, n, mode, &p), 0);
			EXPECT(p.bytes == 0 && p.sges == 0 && p.slot == 0 && p.wrs == 1);
			EXPECT_EQ(hugepin_sg_fill(&p, empty, n, &tmpl, &room, &info), 1);
			EXPECT(wr.num_sge == 0 && wr.send_flags == IBV_SEND_SIGNALED && !wr.next);
			EXPECT(info.sges == 0 && info.pins == 0 && info.bytes == 0);
		}
}

TEST(flags_and_immediate_data_go_where_they_belong_in_a_chain)
{
	static struct work w;
	struct iovec iov[20];
	struct hugepin_sg_caps caps = rc;
	struct hugepin_sg_plan p;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = 5,
				    .send_flags =
					    IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE };
	caps.max_sge = 6;
	register_comb();
	tmpl.wr.rdma.remote_addr = 1000;
	tmpl.wr.rdma.rkey = 3;
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, comb(iov, 20, 100), GATHER | WRITE, &p), 0);
	EXPECT_EQ(p.wrs, 4);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 20, &tmpl, work_room(&w), NULL), 4);
	for (int i = 0; i < 4; i++) {
		bool last = i == 3;
		EXPECT_EQ(w.wr[i].opcode, last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
		EXPECT_EQ(w.wr[i].imm_data, 5);
		EXPECT_EQ(w.wr[i].wr.rdma.rkey, 3);
		EXPECT_EQ(w.wr[i].wr.rdma.remote_addr, 1000 + i * 600);
		EXPECT_EQ(w.wr[i].num_sge, last ? 2 : 6);
		EXPECT(w.wr[i].next == (last ? NULL : &w.wr[i + 1]));
		EXPECT_EQ(w.wr[i].send_flags,
			  (i ? 0 : IBV_SEND_FENCE) | (last ? IBV_SEND_SIGNALED | IBV_SEND_SOLICITED : 0));
	}
	release(w.pins, 7);
	EXPECT_EQ(pins_out(), 0);

	/* the same by one that is the first of them itself */
	static struct work in_place;
	in_place.wr[0] = tmpl;
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 20, in_place.wr, work_room(&in_place), NULL), 4);
	for (int i = 0; i < 4; i++) {
		EXPECT_EQ(in_place.wr[i].opcode, w.wr[i].opcode);
		EXPECT_EQ(in_place.wr[i].send_flags, w.wr[i].send_flags);
		EXPECT_EQ(in_place.wr[i].wr.rdma.remote_addr, w.wr[i].wr.rdma.remote_addr);
	}
	release(in_place.pins, 7);
	EXPECT_EQ(pins_out(), 0);

	/* one work request has all of them */
	tmpl.opcode = IBV_WR_SEND_WITH_IMM;
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, 2, GATHER, &p), 0);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 2, &tmpl, work_room(&w), NULL), 1);
	EXPECT_EQ(w.wr[0].send_flags, tmpl.send_flags & ~(unsigned)IBV_SEND_INLINE);
	EXPECT_EQ(w.wr[0].opcode, IBV_WR_SEND_WITH_IMM);
	release(w.pins, 1);
}

TEST(pieces_that_are_split_are_copied_where_their_elements_are_too_many)
{
	static struct work w;
	struct iovec iov[6];
	struct hugepin_sg_caps caps = rc;
	struct hugepin_sg_plan p;
	struct hugepin_sg_info info;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND };
	caps.max_sge = 6;
	register_comb();
	for (int i = 0; i < regs_n; i++)
		regs[i].len = 8192; /* without holes */
	for (int i = 0; i < 6; i++)
		/* each second one straddles */
		iov[i] = (struct iovec){ arena + (i + 1) * 8192 - (i & 1 ? 500 : 2000), 1000 };
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, 6, GATHER | COPY, &p), 0);
	EXPECT_EQ(p.sges, 6);
	struct hugepin_sg_room *r = work_room(&w);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, &info), 1);
	EXPECT_EQ(info.sges, 6);
	EXPECT_EQ(info.copied, 3000);
	EXPECT_EQ(info.pins, 3); /* what is copied is not pinned */
	EXPECT_EQ(interpret(w.wr, 6, r, 0, sent), concatenate(iov, 6));
	EXPECT(!memcmp(sent, wanted, 6000));
	release(w.pins, info.pins);
	EXPECT_EQ(pins_out(), 0);
	struct iovec pair[6];
	for (int i = 0; i < 6; i++) /* two that are split are neighbours: one element of the slot */
		pair[i] = iov[i / 2 * 2 + (i == 2 || i == 3)];
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, pair, 6, GATHER | COPY, &p), 0);
	r->sges = 5;
	EXPECT_EQ(hugepin_sg_fill(&p, pair, 6, &tmpl, r, &info), 1);
	EXPECT(info.sges == 5 && info.copied == 2000);
	release(w.pins, info.pins);
	EXPECT_EQ(pins_out(), 0);
	r->sges = 4 * PIECES;

	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, 6, GATHER, &p), 0);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, NULL), -EMSGSIZE);
	EXPECT_EQ(pins_out(), 0);
	tmpl.opcode = IBV_WR_RDMA_WRITE;
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, 6, GATHER | WRITE, &p), 0);
	EXPECT_EQ(p.wrs, 1);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, &info), 2);
	EXPECT_EQ(info.sges, 9);
	release(w.pins, info.pins);
	r->wrs = 1;
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, NULL), -EMSGSIZE);
	EXPECT_EQ(pins_out(), 0);
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, 6, GATHER | COPY | WRITE, &p), 0);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, &info), 1);
	EXPECT(info.sges == 6 && info.copied == 3000);
	release(w.pins, info.pins);
	EXPECT_EQ(pins_out(), 0);
}

TEST(more_than_four_gigabytes_of_addresses_need_no_memory)
{
	static struct work w;
	struct hugepin_sg_caps caps = rc;
	struct hugepin_sg_plan p;
	struct hugepin_sg_info info;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_RDMA_WRITE };
	struct iovec iov[3] = { { (void *)0x10000000, 1u << 31 }, { NULL, 0 },
				{ (void *)0x200000000, (1u << 31) - 1 } };
	caps.max_msg = UINT32_MAX;
	regs_n = 1;
	regs[0].addr = 0x1000;
	regs[0].len = SIZE_MAX / 2;
	regs[0].lkey = 1;
	regs[0].out = key_calls = key_fails_at = key_whole = 0;
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, 3, WRITE, &p), 0);
	EXPECT_EQ(p.slot, 0);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 3, &tmpl, work_room(&w), &info), 1);
	EXPECT_EQ(info.bytes, UINT32_MAX);
	EXPECT(w.sge[0].length == 1u << 31 && w.sge[1].length == (1u << 31) - 1);
	release(w.pins, info.pins);
	EXPECT_EQ(pins_out(), 0);
	iov[1] = iov[2];
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, 3, 0, &p), -EOVERFLOW);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 3, &tmpl, work_room(&w), NULL), -EINVAL);
}

/* ------------------------------------------------------------------ a strict device */

static unsigned char sink[ARENA];
static uint32_t sink_key;

static int key_of_sink(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	(void)arg, (void)len, (void)access;
	if (addr)
		*pin = (struct hugepin_pin){ (uintptr_t)sink, ARENA, sink_key, 0, 0 };
	return 0;
}

/* n pieces of the sink, of `bytes` bytes together, which do not overlap. */
static int pieces_of_sink(struct iovec *iov, int n, uint64_t bytes)
{
	uint64_t at = rnd(100);
	for (int i = 0; i < n; i++) {
		uint64_t len = i == n - 1 ? bytes : rnd((uint32_t)bytes + 1);
		iov[i] = (struct iovec){ sink + at, len };
		at += len + rnd(100);
		bytes -= len;
	}
	return n;
}

/* The pieces of the sink have the bytes of the pieces of the arena. */
static bool arrived(const struct iovec *to, int m, const struct iovec *iov, int n)
{
	static unsigned char sent[ARENA], got[ARENA];
	size_t at = 0, in = 0;
	for (int i = 0; i < n; at += iov[i++].iov_len)
		memcpy(sent + at, iov[i].iov_base, iov[i].iov_len);
	for (int i = 0; i < m; in += to[i++].iov_len)
		memcpy(got + in, to[i].iov_base, to[i].iov_len);
	return at == in && !memcmp(sent, got, at);
}

/* Other work requests leave the queue less room than a chain needs. The test posts the refused rest of the chain again.
 * */
TEST(what_is_filled_arrives_over_a_strict_device_however_full_its_queue)
{
	static struct work w;
	unsigned sends = 0, writes = 0, refused = 0;
	for (int round = 0; round < 6000; round++) {
		enum { DEPTH = 6 };
		const struct mock_provider *provider = &mock_providers[round % MOCK_PROVIDERS];
		struct ibv_qp_cap cap = { DEPTH, 1, 1 + rnd(8), 1, rnd(2) * rnd(200) },
		peer_cap = { 1, 2, 1, 1 + rnd(5), 0 };
		struct ibv_cq *cq = mock_cq(DEPTH), *peer_cq = mock_cq(2);
		struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &cap, provider),
		*peer = mock_qp(IBV_QPT_RC, peer_cq, &peer_cap, provider);
		struct hugepin_sg_caps caps;
		struct hugepin_sg_plan p;
		struct hugepin_sg_info info;
		struct iovec iov[PIECES], to[8];
		struct ibv_wc wc;
		bool write = rnd(2);
		mock_connect(qp, peer);
		register_some();
		for (int i = 0; i < regs_n; i++)
			regs[i].lkey = mock_reg((void *)regs[i].addr, regs[i].len, HUGEPIN_READ);
		const uint32_t slot_key = mock_reg(slot, sizeof slot, HUGEPIN_READ);
		sink_key = mock_reg(sink, sizeof sink, HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE);
		EXPECT_EQ(hugepin_sg_caps(&qp->qp, &cap, &caps, sizeof caps), 0);
		int n = pieces_of_arena(iov, (int)rnd(3 * caps.max_sge + 1)), m, wrs = -1;
		memset(sink, 0xee, sizeof sink);
		int e = hugepin_sg_plan(rnd(2) ? &measured : NULL, &caps, iov, n, rnd(8) | (write ? WRITE : 0), &p);
		EXPECT(e == 0 || e == -EMSGSIZE || e == -EOPNOTSUPP);
		struct ibv_send_wr *bad, tmpl = { .wr_id = 7, .opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND,
						  .send_flags = IBV_SEND_SIGNALED };
		if (!e && p.bytes + 1000 <= ARENA) {
			m = pieces_of_sink(to, write ? 1 : 1 + (int)rnd(peer_cap.max_recv_sge), p.bytes);
			tmpl.wr.rdma.remote_addr = (uintptr_t)to[0].iov_base;
			tmpl.wr.rdma.rkey = sink_key | MOCK_RKEY;
			struct hugepin_sg_room *room = work_room(&w);
			room->slot_lkey = slot_key;
			wrs = hugepin_sg_fill(&p, iov, n, &tmpl, room, &info);
			EXPECT(wrs > 0 || wrs == -ENOKEY || wrs == -EMSGSIZE);
		}
		if (wrs > 0 && wrs <= DEPTH) {
			if (!write) {
				struct ibv_sge in[8];
				struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
				struct hugepin_sg_room to_room = { .size = sizeof to_room, .sge = in, .sges = 8,
								   .key = key_of_sink };
				struct hugepin_sg_caps of_peer;
				EXPECT_EQ(hugepin_sg_caps(&peer->qp, &peer_cap, &of_peer, sizeof of_peer), 0);
				EXPECT(hugepin_sg_fill_recv(&of_peer, to, m, &recv, &to_room, NULL) >= 0);
				EXPECT_EQ(ibv_post_recv(&peer->qp, &recv, &bad_recv), 0);
			}
			/* others in front of it */
			struct ibv_send_wr other = { .sg_list = w.sge, .opcode = IBV_WR_RDMA_WRITE,
						     .send_flags = IBV_SEND_SIGNALED };
			uint32_t others = rnd(DEPTH + 1);
			mock.pace = 0;
			for (uint32_t i = 0; i < others; i++)
				EXPECT_EQ(ibv_post_send(&qp->qp, &other, &bad), 0);
			uint32_t room = DEPTH - others;
			e = ibv_post_send(&qp->qp, w.wr, &bad);
			EXPECT_EQ(e, (uint32_t)wrs > room ? provider->full : 0);
			mock.pace = UINT_MAX;
			if (e) {
				EXPECT(bad == &w.wr[room]);
				while (ibv_poll_cq(cq, 1, &wc) == 1)
					EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
				qp->mistakes--;
				refused++;
				EXPECT_EQ(ibv_post_send(&qp->qp, bad, &bad), 0);
			}
			bool done = false;
			while (ibv_poll_cq(cq, 1, &wc) == 1) {
				EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
				done |= wc.wr_id == 7;
			}
			EXPECT(done);
			EXPECT_EQ(qp->mistakes, 0);
			EXPECT(arrived(to, m, iov, n));
			write ? writes++ : sends++;
		}
		if (wrs > 0)
			release(w.pins, info.pins);
		EXPECT_EQ(pins_out(), 0);
		for (int i = 0; i < regs_n; i++)
			mock_dereg(regs[i].lkey);
		mock_dereg(slot_key);
		mock_dereg(sink_key);
		mock_qp_free(qp);
		mock_qp_free(peer);
		mock_cq_free(cq);
		mock_cq_free(peer_cq);
		if (t_failed_in(round))
			return;
	}
	t_print("# %u sends, %u writes, %u of them refused in part\n", sends, writes, refused);
	EXPECT(sends > 500 && writes > 500 && refused > 100);
}

T_MAIN
