/* link: hugepin-verbs hugepin ibverbs */
/* guest: plain */
/*
 * What is planned, filled and posted arrives: random layouts over two connected queue pairs of this process, and over two for
 * datagrams, received into several pieces. Sources are registered piecemeal, with holes, by the pin cache or by a key function
 * whose registrations end inside pieces.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"

#include <sched.h>

enum { ARENA = 1 << 20, SGE = 6, INLINE_BYTES = 200, PIECES = 6 * SGE, GRH = 40 };

static struct {
	struct wire_port port;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2], *ud[2]; /* 0 sends, 1 receives */
	struct ibv_qp_cap granted, granted_ud; /* of those that send */
	struct hugepin_sg_caps caps, caps_ud;
	struct ibv_ah *ah;
	hugepin_domain *domain, *each; /* the second registers for each pin */
	unsigned char *source, *sink, *slot; /* ARENA bytes each */
	struct hugepin_pin sink_pin, put_pin, slot_pin; /* put_pin: the sink's key for the peer, which receives do not find */
} wire;

static uint64_t seed = 4711;

static uint32_t rnd(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return n ? (uint32_t)(seed >> 20) % n : 0;
}

/* ------------------------------------------------------------------ queue pairs */

static struct ibv_qp *qp_new(enum ibv_qp_type type, struct ibv_qp_cap *ret_granted)
{
	struct ibv_qp_init_attr init = {
		.send_cq = wire.cq, .recv_cq = wire.cq, .qp_type = type,
		.cap = { .max_send_wr = 32, .max_recv_wr = 8, .max_send_sge = SGE, .max_recv_sge = SGE,
			 .max_inline_data = INLINE_BYTES },
	};
	struct ibv_qp *qp = ibv_create_qp(wire.port.pd, &init);
	if (!qp)
		return NULL;
	*ret_granted = init.cap;
	return wire_init(qp) ? qp : NULL;
}

static unsigned char *map(void)
{
	void *p = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return EXPECT(p != MAP_FAILED) ? p : NULL;
}

static bool wire_open(void)
{
	if (!wire_port_open(&wire.port))
		return false;
	wire.cq = ibv_create_cq(wire.port.device, 128, NULL, NULL, 0);
	if (!wire.cq)
		return false;
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_cap peer;
		wire.qp[i] = qp_new(IBV_QPT_RC, i ? &peer : &wire.granted);
		wire.ud[i] = qp_new(IBV_QPT_UD, i ? &peer : &wire.granted_ud);
		if (!wire.qp[i] || !wire.ud[i])
			return false;
	}
	for (int i = 0; i < 2; i++)
		if (!wire_connect(&wire.port, wire.qp[i], wire.qp[!i]->qp_num, 7) ||
		    !wire_connect(&wire.port, wire.ud[i], 0, 7))
			return false;
	struct ibv_ah_attr to = wire_address(&wire.port);
	wire.ah = ibv_create_ah(wire.port.pd, &to);
	if (!wire.ah || hugepin_sg_caps(wire.qp[0], NULL, &wire.caps, sizeof wire.caps) ||
	    hugepin_sg_caps(wire.ud[0], &wire.granted_ud, &wire.caps_ud, sizeof wire.caps_ud))
		return false;

	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	struct hugepin_attr attr_each = { .size = sizeof attr, .policy = HUGEPIN_POLICY_NONE };
	wire.source = map();
	wire.sink = map();
	wire.slot = map();
	if (hugepin_verbs_open(wire.port.pd, &attr, &wire.domain) || hugepin_verbs_open(wire.port.pd, &attr_each, &wire.each) ||
	    hugepin_pin(wire.domain, wire.sink, ARENA, HUGEPIN_WRITE, &wire.sink_pin) ||
	    hugepin_pin(wire.domain, wire.sink, ARENA, HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE, &wire.put_pin) ||
	    hugepin_pin(wire.domain, wire.slot, ARENA, HUGEPIN_READ, &wire.slot_pin))
		return false;
	/* Of 16 pages each, the first 7 and the next 6 are two registrations, and 3 are none. */
	for (size_t at = 0; at < ARENA; at += 16 * 4096) {
		struct hugepin_pin pin[2];
		for (size_t i = 0; i < 2; i++)
			if (hugepin_pin(wire.domain, wire.source + at + i * 7 * 4096, (7 - i) * 4096, HUGEPIN_READ, &pin[i]))
				return false;
		hugepin_unpinv(wire.domain, pin, 2);
	}
	for (size_t i = 0; i < ARENA; i++)
		wire.source[i] = (unsigned char)(i * 31 + (i >> 8) * 7);
	return true;
}

#define NEEDS_WIRE                                                                                                     \
	do {                                                                                                           \
		if (!wire.port.device && !(wire.port.device = wire_device()))                                                         \
			SKIP("no verbs device: made for the guest");                                                   \
		if (!wire.domain && !EXPECT(wire_open()))                                                              \
			return;                                                                                        \
	} while (0)

/* A message's completions: one of the sender's, and one of the receiver's if it takes a receive. Bytes received, or -1. */
static long completions(bool receive)
{
	long bytes = receive ? -1 : 0;
	int left = 1 + receive;
	time_t end = time(NULL) + t_seconds();
	while (left && time(NULL) < end) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(wire.cq, 1, &wc);
		if (!n) {
			sched_yield();
			continue;
		}
		if (!EXPECT_EQ(n, 1) || !EXPECT_EQ(wc.status, IBV_WC_SUCCESS))
			return -1;
		left--;
		if (wc.wr_id == 2)
			bytes = wc.byte_len;
	}
	return EXPECT_EQ(left, 0) ? bytes : -1;
}

/* ------------------------------------------------------------------ keys */

static int pins_out;

static int cached_key(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	int err = hugepin_sg_key(domain, addr, len, access, pin);
	pins_out += addr ? !err : -1;
	return err;
}

/* Registers what is asked for, in parts of 3000 bytes at most. */
static int short_key(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	int err = addr ? hugepin_pin(domain, addr, len < 3000 ? len : 3000, access, pin) : hugepin_unpin(domain, pin);
	pins_out += addr ? !err : -1;
	return err;
}

/* ------------------------------------------------------------------ messages */

static int layout(struct iovec *iov, uint32_t max_sge, uint32_t bytes_max)
{
	int n = (int)rnd((3 * max_sge < PIECES ? 3 * max_sge : PIECES) + 1);
	uint32_t left = bytes_max, kind = rnd(4);
	/* anywhere, or in one registration */
	uint32_t from = rnd(2) ? rnd(16) * 16 * 4096 : 0, area = from ? 7 * 4096 : ARENA;
	for (int i = 0; i < n; i++) {
		uint32_t most = kind == 0 ? 16 : kind == 1 ? 256 : bytes_max / 4, len = 1 + rnd(most < area ? most : area);
		len = len > left ? left : len;
		if (rnd(5) == 0)
			len = 0;
		left -= len;
		iov[i] = (struct iovec){ wire.source + from + rnd(area - len), len };
		if (i && rnd(4) == 0) /* over the one before, or behind it */
			iov[i].iov_base = (unsigned char *)iov[i - 1].iov_base + rnd(2) * (uint32_t)iov[i - 1].iov_len;
		if ((unsigned char *)iov[i].iov_base + len > wire.source + ARENA)
			iov[i].iov_base = wire.source;
	}
	switch (n ? rnd(12) : 0) { /* empty ones where they may matter */
	case 1: iov[0].iov_len = 0; break;
	case 2: iov[n / 2].iov_len = 0; break;
	case 3: iov[n - 1].iov_len = 0; break;
	case 4:
		for (int i = 0; i < n; i++)
			iov[i] = (struct iovec){ rnd(2) ? NULL : (void *)-1, 0 };
	}
	return n;
}

/* Pieces of the sink, in order and with gaps, with room for `bytes`. */
static int sink_layout(struct iovec *iov, int max, size_t bytes)
{
	size_t at = rnd(5000), left = bytes;
	int n = 1 + (int)rnd((uint32_t)max);
	for (int i = 0; i < n; i++) {
		size_t len = i == n - 1 ? left : rnd((uint32_t)left + 1);
		iov[i] = (struct iovec){ wire.sink + at, len };
		at += len + 1 + rnd(5000);
		left -= len;
	}
	return n;
}

static unsigned char wanted[ARENA], got[ARENA];

static size_t concatenate(unsigned char *to, const struct iovec *iov, int n)
{
	size_t bytes = 0;
	for (int i = 0; i < n; bytes += iov[i++].iov_len)
		if (iov[i].iov_len)
			memcpy(to + bytes, iov[i].iov_base, iov[i].iov_len);
	return bytes;
}

enum kind { SEND, WRITE, WRITE_IMM, UD };

static struct {
	int sent, chains, inlined, mixed, copied, gathered, keyless, toolong, elements;
} seen;

static bool message(enum kind kind, bool longest)
{
	static struct ibv_send_wr wr[32], *bad;
	static struct ibv_sge sge[32 * SGE], recv_sge[SGE];
	static struct hugepin_pin pins[256], recv_pins[SGE];
	const struct hugepin_sg_caps *caps = kind == UD ? &wire.caps_ud : &wire.caps;
	bool write = kind == WRITE || kind == WRITE_IMM, receive = kind != WRITE;
	struct iovec iov[PIECES], to[SGE];
	struct hugepin_sg_plan p;
	struct hugepin_sg_info info, recv_info = { 0 };
	int n = layout(iov, caps->max_sge, longest ? 100000 : kind == UD ? caps->mtu_ud : 10000);
	unsigned mode = rnd(16) | (write ? HUGEPIN_SG_WRITE : 0);
	int err = hugepin_sg_plan(NULL, caps, iov, n, mode, &p);
	if (err) {
		EXPECT_EQ(err, -EMSGSIZE);
		return true;
	}

	struct hugepin_sg_room room = {
		.size = sizeof room, .wr = wr, .wrs = 32, .sge = sge, .sges = 32 * SGE, .pins = pins, .pins_max = 256,
		.slot = wire.slot + rnd(4096), .slot_len = rnd(2) ? p.slot : ARENA - 4096, .slot_lkey = wire.slot_pin.lkey,
	};
	bool cached = rnd(2);
	room.key = cached ? cached_key : short_key;
	room.arg = cached ? wire.domain : wire.each;
	struct ibv_send_wr tmpl = {
		.wr_id = 1, .send_flags = IBV_SEND_SIGNALED, .imm_data = 99,
		.opcode = kind == WRITE ? IBV_WR_RDMA_WRITE : kind == WRITE_IMM ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND,
	};
	size_t at = rnd(5000);
	if (kind == UD) {
		tmpl.wr.ud.ah = wire.ah;
		tmpl.wr.ud.remote_qpn = wire.ud[1]->qp_num;
		tmpl.wr.ud.remote_qkey = WIRE_QKEY;
	} else if (write) {
		tmpl.wr.rdma.remote_addr = (uintptr_t)wire.sink + at;
		tmpl.wr.rdma.rkey = wire.put_pin.rkey;
	}
	int wrs = hugepin_sg_fill(&p, iov, n, &tmpl, &room, &info);
	if (wrs < 0) {
		EXPECT_EQ(pins_out, 0);
		seen.keyless += wrs == -ENOKEY;
		seen.toolong += wrs == -EMSGSIZE;
		return EXPECT(wrs == -ENOKEY || wrs == -EMSGSIZE);
	}
	EXPECT_EQ(pins_out, info.pins);

	memset(wire.sink, 0xa5, p.bytes + 40000);
	struct ibv_qp *const *qp = kind == UD ? wire.ud : wire.qp;
	int to_n = 0;
	if (receive) {
		struct ibv_recv_wr recv = { .wr_id = 2 }, *bad_recv;
		struct hugepin_sg_room recv_room = { .size = sizeof room, .sge = recv_sge, .sges = SGE, .pins = recv_pins,
						     .pins_max = SGE, .key = cached_key, .arg = wire.domain };
		if (kind == UD) {
			to[0] = (struct iovec){ wire.sink + ARENA - GRH, GRH };
			to_n = 1 + sink_layout(to + 1, SGE - 1, p.bytes);
		} else if (kind == SEND) {
			to_n = sink_layout(to, SGE, p.bytes);
		}
		int sges = hugepin_sg_fill_recv(&wire.caps, to, to_n, &recv, &recv_room, &recv_info);
		if (!EXPECT(sges >= 0) || !EXPECT_EQ(ibv_post_recv(qp[1], &recv, &bad_recv), 0))
			return false;
	}
	if (!EXPECT_EQ(ibv_post_send(qp[0], wr, &bad), 0))
		return false;
	long bytes = completions(receive);
	concatenate(wanted, iov, n);
	if (kind == WRITE)
		bytes = (long)p.bytes;
	if (kind == WRITE_IMM && EXPECT(bytes >= 0)) /* the receiver is told the length of the last one only */
		for (int i = 0; i < wrs - 1; i++)
			for (int k = 0; k < wr[i].num_sge; k++)
				bytes += wr[i].sg_list[k].length;
	bool right = EXPECT_EQ(bytes, (long)p.bytes + (kind == UD ? GRH : 0));
	if (write) {
		right &= EXPECT(!memcmp(wire.sink + at, wanted, p.bytes)) && EXPECT_EQ(wire.sink[at + p.bytes], 0xa5) &&
			 (!at || EXPECT_EQ(wire.sink[at - 1], 0xa5));
	} else {
		size_t skip = kind == UD;
		concatenate(got, to + skip, to_n - (int)skip);
		right &= EXPECT(!memcmp(got, wanted, p.bytes));
		for (int i = (int)skip; i < to_n; i++) /* nothing beyond the pieces */
			right &= EXPECT_EQ(((unsigned char *)to[i].iov_base)[to[i].iov_len], 0xa5);
	}
	if (!right)
		t_print("# kind %d, mode %x of %x, n %d, %u elements, %d work requests, %u copied\n", kind, p.mode, mode, n,
			info.sges, wrs, info.copied);
	for (uint32_t i = 0; i < info.pins; i++)
		room.key(room.arg, NULL, 0, 0, &pins[i]);
	for (uint32_t i = 0; i < recv_info.pins; i++)
		cached_key(wire.domain, NULL, 0, 0, &recv_pins[i]);
	EXPECT_EQ(pins_out, 0);
	seen.sent++;
	seen.chains += wrs > 1;
	seen.inlined += !!(p.mode & HUGEPIN_SG_INLINE);
	seen.copied += info.copied && info.copied == p.bytes;
	seen.mixed += info.copied && info.copied < p.bytes;
	seen.gathered += info.sges > 1 && !info.copied && !(p.mode & HUGEPIN_SG_INLINE);
	seen.elements += recv_info.sges > 1;
	return right;
}

static bool enough(void)
{
	return seen.sent >= 300 && seen.gathered > 20 && seen.copied > 20 && seen.inlined > 20 && seen.mixed > 3;
}

/* Where they take more than 25 seconds, only as many as are enough: guests differ. */
static void messages(enum kind kind, int n, bool (*enough_of_it)(void))
{
	time_t end = time(NULL) + 25;
	memset(&seen, 0, sizeof seen);
	for (int i = 0; seen.sent < n && (time(NULL) < end || !enough() || !enough_of_it()); i++)
		if (!message(kind, kind != UD && i % 16 == 0))
			return;
	t_print("# %d messages: %d gathered, %d copied, %d mixed, %d inline, %d chains, %d received into several; %d without a key, "
		"%d too long\n", seen.sent, seen.gathered, seen.copied, seen.mixed, seen.inlined, seen.chains, seen.elements,
		seen.keyless, seen.toolong);
	EXPECT(enough());
	EXPECT(enough_of_it());
}

TEST(capabilities_are_what_was_granted)
{
	NEEDS_WIRE;
	const struct hugepin_sg_caps *c = &wire.caps;
	/* asked for later, soft-RoCE tells of longer queues than it granted */
	EXPECT_EQ(c->max_sge, wire.granted.max_send_sge);
	EXPECT_EQ(c->max_recv_sge, wire.granted.max_recv_sge);
	EXPECT_EQ(c->max_inline, wire.granted.max_inline_data);
	EXPECT(c->max_wr >= wire.granted.max_send_wr && c->max_recv_wr >= wire.granted.max_recv_wr);
	EXPECT(c->max_inline >= INLINE_BYTES && c->max_sge >= SGE && c->max_msg >= ARENA);
	EXPECT_EQ(c->mtu_ud, 0);
	EXPECT_EQ(wire.caps_ud.mtu_ud, 128u << wire.port.attr.active_mtu);
	EXPECT_EQ(wire.caps_ud.max_inline, wire.granted_ud.max_inline_data);
	EXPECT_EQ(wire.caps_ud.max_wr, wire.granted_ud.max_send_wr);
	t_print("# max_sge %u, inline %u, message %llu, datagram %u\n", c->max_sge, c->max_inline,
		(unsigned long long)c->max_msg, wire.caps_ud.mtu_ud);
}

static bool enough_sends(void)
{
	return seen.elements > 100 && seen.keyless > 5 && seen.toolong > 5;
}

TEST(sends_arrive_as_the_pieces_one_after_the_other)
{
	NEEDS_WIRE;
	messages(SEND, 1500, enough_sends);
}

static bool enough_writes(void)
{
	return seen.chains > 50;
}

TEST(chained_writes_arrive_as_one)
{
	NEEDS_WIRE;
	messages(WRITE, 1000, enough_writes);
}

static bool enough_immediate(void)
{
	return seen.chains > 20;
}

TEST(of_a_chain_with_immediate_data_the_last_write_tells)
{
	NEEDS_WIRE;
	messages(WRITE_IMM, 500, enough_immediate);
}

TEST(datagrams_arrive_behind_their_routing_header)
{
	NEEDS_WIRE;
	messages(UD, 800, enough);
}

/* Pieces in any order, mostly more than a READ has elements for. */
static bool read_once(uint32_t rkey)
{
	static struct ibv_send_wr wr[32], *bad;
	static struct ibv_sge sge[32 * SGE];
	static struct hugepin_pin pins[256];
	struct iovec iov[PIECES];
	struct hugepin_sg_plan p;
	struct hugepin_sg_info info;
	const int n = 1 + (int)rnd(PIECES);
	const size_t from = rnd(ARENA / 2), room_of_one = ARENA / PIECES;
	size_t at = from;
	const bool cached = rnd(2);
	for (int i = 0; i < n; i++) {
		const size_t slot = (size_t)(rnd(2) ? i : n - 1 - i); /* slots are used twice: those pieces are empty */
		iov[i] = (struct iovec){ wire.sink + slot * room_of_one + rnd(100), 1 + rnd(rnd(2) ? 64 : 8000) };
		for (int k = 0; k < i; k++)
			if (iov[k].iov_len && ((unsigned char *)iov[k].iov_base - wire.sink) / (ptrdiff_t)room_of_one == (ptrdiff_t)slot)
				iov[i].iov_len = 0;
	}
	if (!EXPECT_EQ(hugepin_sg_plan(NULL, &wire.caps, iov, n, HUGEPIN_SG_READ, &p), 0))
		return false;
	struct hugepin_sg_room room = {
		.size = sizeof room, .wr = wr, .wrs = 32, .sge = sge, .sges = 32 * SGE, .pins = pins, .pins_max = 256,
		.key = cached ? cached_key : short_key, .arg = cached ? wire.domain : wire.each,
	};
	const struct ibv_send_wr tmpl = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED, .opcode = IBV_WR_RDMA_READ,
					  .wr.rdma = { (uintptr_t)wire.source + from, rkey } };
	const int wrs = hugepin_sg_fill(&p, iov, n, &tmpl, &room, &info);
	if (!EXPECT(wrs > 0))
		return false;
	memset(wire.sink, 0xa5, ARENA);
	memset(wanted, 0xa5, ARENA);
	for (int i = 0; i < n; at += iov[i++].iov_len)
		memcpy(wanted + ((unsigned char *)iov[i].iov_base - wire.sink), wire.source + at, iov[i].iov_len);
	if (!EXPECT_EQ(ibv_post_send(wire.qp[0], wr, &bad), 0) || completions(false) < 0)
		return false;
	const bool right = EXPECT(!memcmp(wire.sink, wanted, ARENA)); /* and nothing beside the pieces */
	for (uint32_t i = 0; i < info.pins; i++)
		room.key(room.arg, NULL, 0, 0, &pins[i]);
	EXPECT_EQ(pins_out, 0);
	seen.sent++;
	seen.chains += wrs > 1;
	seen.gathered += wrs == 1 && info.sges > 1;
	return right;
}

static bool enough_reads(void)
{
	return seen.sent >= 50 && seen.gathered > 3 && seen.chains > 10;
}

TEST(reads_scatter_what_lies_together_at_the_peer_over_the_pieces)
{
	NEEDS_WIRE;
	struct hugepin_pin source;
	const time_t end = time(NULL) + 25;
	memset(&seen, 0, sizeof seen);
	if (!EXPECT_EQ(hugepin_pin(wire.each, wire.source, ARENA, HUGEPIN_READ | HUGEPIN_REMOTE_READ, &source), 0))
		return;
	t_print("# %u elements of a READ\n", wire.caps.max_sge_rd);
	while (seen.sent < 500 && (time(NULL) < end || !enough_reads()) && read_once(source.rkey))
		;
	t_print("# %d reads: %d of several elements, %d chains\n", seen.sent, seen.gathered, seen.chains);
	EXPECT(enough_reads());
	EXPECT_EQ(hugepin_unpin(wire.each, &source), 0);
}

/* With success and without the bytes, if it were posted: soft-RoCE sends none of two elements of 2 GiB. */
TEST(what_no_message_can_carry_is_refused_before_it_is_posted)
{
	NEEDS_WIRE;
	struct iovec beyond[2] = { { wire.source, (size_t)1 << 31 }, { wire.source, (size_t)1 << 31 } };
	struct iovec wraps = { (void *)(UINTPTR_MAX - 10), 64 }, good = { wire.source, 64 };
	struct iovec long_message = { wire.source, wire.caps.max_msg + 1 }, long_datagram = { wire.source, wire.caps_ud.mtu_ud + 1 };
	struct hugepin_sg_plan plan = { .bytes = 1 };
	struct ibv_send_wr wr, tmpl = { .opcode = IBV_WR_SEND };
	struct ibv_sge sge[SGE];
	struct hugepin_pin pins[SGE];
	struct hugepin_sg_room room = { .size = sizeof room, .wr = &wr, .sge = sge, .pins = pins, .wrs = 1, .sges = SGE,
					.pins_max = SGE, .key = hugepin_sg_key, .arg = wire.domain };
	EXPECT_EQ(hugepin_sg_plan(NULL, &wire.caps, beyond, 2, 0, &plan), -EOVERFLOW);
	EXPECT_EQ(hugepin_sg_plan(NULL, &wire.caps, &wraps, 1, 0, &plan), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &wire.caps, &long_message, 1, 0, &plan), -EMSGSIZE);
	EXPECT_EQ(hugepin_sg_plan(NULL, &wire.caps_ud, &long_datagram, 1, 0, &plan), -EMSGSIZE);
	EXPECT_EQ(plan.bytes, 1);
	EXPECT_EQ(hugepin_sg_plan(NULL, &wire.caps, &good, 1, HUGEPIN_SG_GATHER, &plan), 0);
	EXPECT_EQ(hugepin_sg_fill(&plan, &wraps, 1, &tmpl, &room, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill(&plan, &good, 1, &tmpl, &room, NULL), 1);
	EXPECT_EQ(hugepin_unpinv(wire.domain, pins, 1), 0);
}

TEST(no_pin_is_left)
{
	NEEDS_WIRE;
	EXPECT_EQ(hugepin_unpin(wire.domain, &wire.sink_pin), 0);
	EXPECT_EQ(hugepin_unpin(wire.domain, &wire.put_pin), 0);
	EXPECT_EQ(hugepin_unpin(wire.domain, &wire.slot_pin), 0);
	EXPECT_EQ(hugepin_domain_close(wire.domain), 0);
	EXPECT_EQ(hugepin_domain_close(wire.each), 0);
	EXPECT_EQ(ibv_destroy_ah(wire.ah), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(ibv_destroy_qp(wire.qp[i]), 0);
		EXPECT_EQ(ibv_destroy_qp(wire.ud[i]), 0);
	}
	EXPECT_EQ(ibv_destroy_cq(wire.cq), 0);
	EXPECT_EQ(ibv_dealloc_pd(wire.port.pd), 0);
	EXPECT_EQ(ibv_close_device(wire.port.device), 0);
}

T_MAIN
