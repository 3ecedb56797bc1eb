/*
 * Plans, against all ways to copy some pieces and gather the others; and work requests, carried out by an interpreter that
 * knows which memory is registered. Addresses of plans alone need no memory.
 */
#include "sge/plan.h"
#include "tests/mock_verbs.h"

#include <math.h>
#include <time.h>

static uint64_t seed = 88172645463325252;

static uint32_t rnd(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return n ? (uint32_t)(seed >> 20) % n : 0;
}

static const struct hugepin_sg_caps rc = {
	.max_sge = 30, .max_recv_sge = 20, .max_inline = 220, .max_sge_rd = 30, .max_wr = 64, .max_recv_wr = 64,
	.max_msg = UINT64_C(1) << 31,
};

/* As measured once, with what a device's fetches may cost. */
static const struct hugepin_sg_model measured = {
	.size = sizeof measured, .source = HUGEPIN_SG_MODEL_DEVICE,
	.wr = 120, .element = 9, .lookup = 45, .line = 1, .byte = 0.1f,
	.piece = 2, .copy_byte = 0.05f, .cold = 70, .cold_piece = 5, .cold_byte = 0.2f,
	.inline_wr = 80, .inline_piece = 3, .inline_byte = 0.3f,
};

enum { INLINE = HUGEPIN_SG_INLINE, COPY = HUGEPIN_SG_COPY, GATHER = HUGEPIN_SG_GATHER, COLD = HUGEPIN_SG_COLD,
       WRITE = HUGEPIN_SG_WRITE, RECV = HUGEPIN_SG_RECV, MODES = INLINE | COPY | GATHER };

/* ------------------------------------------------------------------ a naive planner */

/* Pieces i of which bit i is set are copied. */
struct naive {
	double cost;
	uint64_t copied_bytes;
	uint32_t elements, wrs;
};

static bool naive_near(uint64_t a, uint64_t b)
{
	return (a >> 21) + 1 >= b >> 21 && (b >> 21) + 1 >= a >> 21;
}

static struct naive naive_cost(const struct hugepin_sg_model *m, uint32_t max_sge, const struct iovec *iov, int n,
			       uint32_t copied, bool cold)
{
	struct naive v = { 0 };
	uint64_t seen[64], before = UINT64_C(1) << 63;
	int pages = 0;
	bool joins = false;
	for (int i = 0; i < n; i++) {
		uint64_t addr = (uintptr_t)iov[i].iov_base;
		size_t len = iov[i].iov_len;
		if (!len)
			continue;
		v.cost += m->byte * (double)len;
		if (copied >> i & 1) {
			v.copied_bytes += len;
			v.cost += (cold ? m->cold_piece : m->piece) +
				  (cold ? m->cold_byte : m->copy_byte) * (double)len;
			v.elements += !joins;
			joins = true;
			continue;
		}
		joins = false;
		v.elements++;
		v.cost += m->line * (double)((addr + len - 1) / 64 - addr / 64 + 1);
		bool known = naive_near(addr, before);
		for (int k = 0; k < pages; k++)
			known |= seen[k] >> 21 == addr >> 21;
		if (!known) {
			v.cost += m->lookup;
			seen[pages++] = addr;
		}
		before = addr;
	}
	v.cost += cold && v.copied_bytes ? m->cold : 0;
	v.wrs = v.elements <= max_sge ? 1 : (v.elements + max_sge - 1) / max_sge;
	v.cost += m->element * (double)v.elements + m->wr * (double)v.wrs;
	return v;
}

/* The plan's own choice, as such bits. */
static uint32_t naive_of(const struct hugepin_sg_plan *p, const struct iovec *iov, int n)
{
	uint32_t copied = 0;
	for (int i = 0; i < n; i++)
		if (iov[i].iov_len < p->copy_below || ((uint32_t)i >= p->copy_from && (uint32_t)i < p->copy_to) ||
		    (p->mode & MODES) == COPY)
			copied |= 1u << i;
	return copied;
}

/* The best of all, or a cost of infinity. */
static struct naive naive_best(const struct hugepin_sg_model *m, const struct hugepin_sg_caps *caps,
			       const struct iovec *iov, int n, unsigned mode)
{
	struct naive best = { .cost = INFINITY };
	unsigned modes = (mode & MODES ? mode & MODES : MODES) & ~m->refused;
	uint64_t bytes = 0;
	uint32_t full = 0;
	for (int i = 0; i < n; i++) {
		bytes += iov[i].iov_len;
		full |= iov[i].iov_len ? 1u << i : 0;
	}
	for (uint32_t copied = 0; copied <= full; copied++) {
		if (copied & ~full || (copied && !(modes & COPY)) || (copied != full && !(modes & GATHER)))
			continue;
		struct naive v = naive_cost(m, caps->max_sge, iov, n, copied, mode & COLD);
		if (v.elements <= caps->max_sge * (mode & WRITE ? caps->max_wr : 1) && v.cost < best.cost)
			best = v;
	}
	uint32_t pieces = (uint32_t)__builtin_popcount(full);
	if (modes & INLINE && caps->max_inline && bytes <= caps->max_inline &&
	    pieces <= caps->max_sge * (mode & WRITE ? caps->max_wr : 1)) {
		uint32_t wrs = pieces ? (pieces - 1) / caps->max_sge + 1 : 1;
		double cost = m->inline_wr * (double)wrs + (mode & COLD && bytes ? m->cold : 0) +
			      ((mode & COLD ? m->cold_piece : m->piece) + m->inline_piece) * (double)pieces +
			      ((mode & COLD ? m->cold_byte : m->copy_byte) + m->inline_byte) * (double)bytes;
		if (cost < best.cost)
			best.cost = cost;
	}
	return best;
}

/* Layouts as they occur: equal pieces, two sizes in turn or in runs, any; in one place or in some that are far apart. */
static int layout(struct iovec *iov, int n, uint32_t longest)
{
	uint32_t kind = rnd(4), places = rnd(2) ? 1 : 1 + rnd(4), size[2] = { 1 + rnd(longest), 1 + rnd(1 + longest / 16) };
	for (int i = 0; i < n; i++) {
		uint32_t len = kind == 0 ? size[0] : kind == 1 ? size[i & 1] : kind == 2 ? size[i / 3 & 1] : 1 + rnd(longest);
		uint64_t place = (uint64_t)(1 + rnd(places)) << 32; /* no two have the same hash */
		iov[i] = (struct iovec){ (void *)(uintptr_t)(place + rnd(6 << 20)), rnd(8) ? len : 0 };
	}
	return n;
}

TEST(a_plan_costs_little_more_than_the_best_of_all_assignments)
{
	double worst = 1, sum = 0;
	int equal = 0, cases = 0, mixed = 0, windows = 0, refused = 0;
	for (int round = 0; round < 6000; round++) {
		struct iovec iov[10];
		struct hugepin_sg_caps caps = rc;
		struct hugepin_sg_model m = measured;
		struct hugepin_sg_plan p = { 0 };
		caps.max_sge = 1 + rnd(12);
		caps.max_wr = 1 + rnd(4);
		caps.max_inline = rnd(3) ? 0 : rnd(300);
		m.element = (float)rnd(30);
		m.lookup = (float)rnd(60);
		m.line = (float)rnd(3);
		m.copy_byte = (float)(1 + rnd(20)) / 100;
		int n = layout(iov, 1 + (int)rnd(10), 16u << rnd(8));
		unsigned mode = rnd(16) | (rnd(2) ? WRITE : 0);
		struct naive best = naive_best(&m, &caps, iov, n, mode);
		unsigned modes = (mode & MODES ? mode & MODES : MODES) & (caps.max_inline ? MODES : COPY | GATHER);
		int err = hugepin_sg_plan(&m, &caps, iov, n, mode, &p);
		if (!modes || isinf(best.cost)) {
			refused++;
			EXPECT_EQ(err, !modes ? -EOPNOTSUPP : -EMSGSIZE);
			continue;
		}
		if (!EXPECT_EQ(err, 0))
			continue;
		EXPECT_EQ(p.mode & ~(modes | WRITE), 0);
		if (!(p.mode & INLINE)) { /* it costs what it says */
			struct naive v = naive_cost(&m, caps.max_sge, iov, n, naive_of(&p, iov, n), mode & COLD);
			EXPECT(v.cost > p.cost_ns - 1.0 && v.cost < p.cost_ns + 1.0);
			EXPECT_EQ(v.elements, p.sges);
			EXPECT_EQ(v.wrs, p.wrs);
			EXPECT_EQ(v.copied_bytes, p.slot);
			EXPECT(p.sges <= caps.max_sge * (mode & WRITE ? caps.max_wr : 1));
		}
		EXPECT(p.cost_ns > best.cost - 1);
		double ratio = p.cost_ns / best.cost;
		cases++;
		equal += p.cost_ns < best.cost + 1;
		mixed += (p.mode & (COPY | GATHER)) == (COPY | GATHER) && p.slot;
		windows += p.copy_to > p.copy_from;
		sum += ratio;
		worst = ratio > worst ? ratio : worst;
	}
	t_print("# of %d plans %d are the best, %d mixed, %d with a window; mean %.4f, worst %.3f; %d impossible\n", cases,
		equal, mixed, windows, sum / cases, worst, refused);
	EXPECT(equal > cases * 9 / 10);
	EXPECT(mixed > 100 && windows > 50 && refused > 50);
	EXPECT(sum / cases < 1.005);
	EXPECT(worst < 1.25);
}

/* Short pieces among long ones that are dear to copy, and too many for a work request: how few of the long ones are copied. */
TEST(a_window_is_no_longer_than_it_must_be)
{
	struct hugepin_sg_model m = { .size = sizeof m, .wr = 1, .element = 1, .copy_byte = 1 };
	int equal = 0, cases = 0;
	for (int round = 0; round < 2000; round++) {
		struct iovec iov[10];
		struct hugepin_sg_caps caps = rc;
		struct hugepin_sg_plan p;
		caps.max_sge = 1 + rnd(5);
		for (int i = 0; i < 10; i++)
			iov[i] = (struct iovec){ (void *)(uintptr_t)(4096 + i * 4096), rnd(2) ? 100 : rnd(6) != 0 };
		double best = naive_best(&m, &caps, iov, 10, COPY | GATHER).cost;
		if (!EXPECT_EQ(hugepin_sg_plan(&m, &caps, iov, 10, COPY | GATHER, &p), 0))
			return;
		cases++;
		equal += p.cost_ns < best + 1;
		EXPECT(p.cost_ns < best + 111); /* one long piece more, where two windows would do better */
	}
	t_print("# %d of %d are the best\n", equal, cases);
	EXPECT(equal > cases * 97 / 100);
}

/* ------------------------------------------------------------------ plans */

static int plan_equal(const struct hugepin_sg_model *m, const struct hugepin_sg_caps *caps, int n, size_t len,
		      unsigned mode, struct hugepin_sg_plan *ret_)
{
	struct iovec iov[256];
	for (int i = 0; i < n; i++)
		iov[i] = (struct iovec){ (void *)(uintptr_t)(0x100000 + (size_t)i * 3 * len), len };
	return hugepin_sg_plan(m, caps, iov, n, mode, ret_);
}

TEST(every_plan_fits_the_queue_pair)
{
	static const uint32_t max[] = { 1, 2, 6, 30 };
	for (int round = 0; round < 20000; round++) {
		struct iovec iov[96];
		struct hugepin_sg_caps caps = rc;
		struct hugepin_sg_model m = measured;
		struct hugepin_sg_plan p;
		caps.max_sge = max[rnd(4)];
		caps.max_wr = 1 + rnd(5);
		if (rnd(4) == 0)
			m.lookup = NAN;
		if (rnd(4) == 0)
			m.copy_byte = rnd(2) ? -1 : INFINITY;
		int n = (int)rnd(3 * caps.max_sge + 1);
		unsigned mode = rnd(16) | (rnd(2) ? WRITE : 0);
		layout(iov, n, 16u << rnd(10));
		int err = hugepin_sg_plan(rnd(4) ? &m : NULL, &caps, iov, n, mode, &p);
		unsigned modes = mode & MODES ? mode & MODES : MODES;
		if (!EXPECT(!err || (err == -EMSGSIZE && !(modes & COPY))))
			continue;
		if (err)
			continue;
		uint64_t bytes = 0;
		for (int i = 0; i < n; i++)
			bytes += iov[i].iov_len;
		EXPECT_EQ(p.bytes, bytes);
		EXPECT_EQ(p.n, n);
		EXPECT_EQ(p.max_sge, caps.max_sge);
		EXPECT(p.wrs >= 1 && p.wrs <= (mode & WRITE ? caps.max_wr : 1));
		EXPECT(p.sges <= p.wrs * caps.max_sge && p.sges + caps.max_sge > (p.wrs - 1) * caps.max_sge);
		EXPECT_EQ(p.mode & ~(modes | WRITE), 0);
		EXPECT_EQ(p.mode & WRITE, mode & WRITE);
		EXPECT(!(p.mode & INLINE) || bytes <= caps.max_inline);
		EXPECT(p.slot <= bytes && (!p.slot || p.mode & COPY));
	}
}

TEST(without_a_model_what_fits_is_inline_and_neighbours_below_256_bytes_are_copied)
{
	struct hugepin_sg_plan p;
	for (int n = 1; n < 8; n++)
		for (size_t len = 1; len < 2048; len++) {
			if (!EXPECT_EQ(plan_equal(NULL, &rc, n, len, 0, &p), 0))
				return;
			/* an element that is saved pays for 254 bytes, and the first piece saves none */
			size_t joined = (size_t)n * (len + 118), saved = (size_t)(n - 1) * 373;
			if ((size_t)n * len <= rc.max_inline)
				EXPECT_EQ(p.mode, INLINE);
			else if (joined < saved)
				EXPECT_EQ(p.mode, COPY);
			else if (joined > saved + 4)
				EXPECT(p.mode == (GATHER | COPY) && !p.slot && p.sges == (uint32_t)n);
		}
	static const size_t len[] = { 100, 50, 60, 5000, 300 };
	struct iovec iov[5];
	for (size_t i = 0; i < 5; i++)
		iov[i] = (struct iovec){ (void *)((i + 1) << 14), len[i] };
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, iov, 5, 0, &p), 0);
	EXPECT_EQ(p.mode, GATHER | COPY);
	EXPECT_EQ(p.slot, 210);
	EXPECT_EQ(p.sges, 3);
}

TEST(pieces_out_of_the_cache_are_copied_as_that_costs)
{
	struct hugepin_sg_plan hot, cold;
	EXPECT_EQ(plan_equal(&measured, &rc, 8, 100, COPY | GATHER, &hot), 0);
	EXPECT_EQ(plan_equal(&measured, &rc, 8, 100, COPY | GATHER | COLD, &cold), 0);
	EXPECT_EQ(hot.mode, COPY);
	EXPECT_EQ(cold.mode, COPY | GATHER);
	EXPECT_EQ(cold.slot, 0);
}

TEST(registrations_far_apart_speak_for_copying)
{
	struct hugepin_sg_plan near, far;
	struct iovec iov[8];
	for (size_t i = 0; i < 8; i++)
		iov[i] = (struct iovec){ (void *)(0x40000000 + i * 4096), 600 };
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 8, COPY | GATHER, &near), 0);
	for (size_t i = 0; i < 8; i++)
		iov[i] = (struct iovec){ (void *)(0x40000000 + (i << 30)), 600 };
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 8, COPY | GATHER, &far), 0);
	EXPECT_EQ(near.slot, 0);
	EXPECT_EQ(far.mode, COPY);
}

TEST(a_short_piece_between_long_ones_is_copied_only_if_it_pays_by_itself)
{
	static const size_t len[] = { 8, 4096, 300, 4096, 8, 4096, 300, 4096 };
	struct hugepin_sg_model m = measured;
	struct hugepin_sg_plan p;
	struct iovec iov[8];
	m.element = 100;
	m.lookup = 0;
	m.line = 5; /* more than what copying 8 bytes takes, less than for 300 */
	m.copy_byte = 0.3f;
	for (size_t i = 0; i < 8; i++)
		iov[i] = (struct iovec){ (void *)((i + 1) << 14), len[i] };
	EXPECT_EQ(hugepin_sg_plan(&m, &rc, iov, 8, COPY | GATHER, &p), 0);
	EXPECT_EQ(p.slot, 16);
}

TEST(a_cost_beyond_all_bounds_is_told_as_the_bound)
{
	struct hugepin_sg_model m = measured;
	struct hugepin_sg_plan p;
	m.wr = m.inline_wr = 1e12f;
	EXPECT_EQ(plan_equal(&m, &rc, 2, 8, 0, &p), 0);
	EXPECT_EQ(p.cost_ns, UINT32_MAX);
	m.wr = m.inline_wr = -1e12f;
	EXPECT_EQ(plan_equal(&m, &rc, 2, 8, 0, &p), 0);
	EXPECT_EQ(p.cost_ns, 0);
}

TEST(what_a_provider_gets_wrong_is_not_chosen)
{
	struct hugepin_sg_plan p;
	struct hugepin_sg_model m = measured;
	for (unsigned refused = 0; refused < 8; refused++)
		for (unsigned mode = 0; mode < 8; mode++) {
			m.refused = refused;
			int err = plan_equal(&m, &rc, 4, 40, mode, &p);
			if ((mode ? mode : MODES) & ~refused) {
				EXPECT_EQ(err, 0);
				EXPECT_EQ(p.mode & refused, 0);
			} else {
				EXPECT_EQ(err, -EOPNOTSUPP);
			}
		}
}

TEST(a_plan_that_cannot_be_is_refused_and_nothing_is_written)
{
	struct hugepin_sg_caps ud = rc, none = rc, none_inline = rc;
	struct hugepin_sg_model old = measured;
	struct hugepin_sg_plan p, before;
	struct iovec one = { (void *)4096, 100 }, two[2] = { { (void *)4096, 1u << 31 }, { (void *)4096, 1u << 31 } };
	struct iovec four[4];
	for (int i = 0; i < 4; i++)
		four[i] = (struct iovec){ (void *)4096, ((size_t)1 << 62) + 1 };
	ud.mtu_ud = 4096;
	none.max_sge = 0;
	none_inline.max_inline = 0;
	old.size = 8;
	memset(&p, 0x5a, sizeof p);
	before = p;
	EXPECT_EQ(hugepin_sg_plan(NULL, NULL, &one, 1, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, NULL, 1, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, &one, 1, 0, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, &one, -1, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(&old, &rc, &one, 1, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, &one, 1, HUGEPIN_SG_ANEW, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, &one, 1, WRITE | RECV, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, &(struct iovec){ (void *)-8, 9 }, 1, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, &(struct iovec){ NULL, 1 }, 1, 0, &p), -EINVAL);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, &(struct iovec){ (void *)4096, SIZE_MAX - 4096 }, 1, 0, &p), -EOVERFLOW);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, two, 2, 0, &p), -EOVERFLOW);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, four, 4, 0, &p), -EOVERFLOW); /* 2^64 + 4 */
	two[1].iov_len--;
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, two, 2, 0, &p), -EMSGSIZE); /* over max_msg */
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, two, 2, WRITE, &p), -EMSGSIZE);
	EXPECT_EQ(hugepin_sg_plan(NULL, &rc, &one, 1, COPY | RECV, &p), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_sg_plan(NULL, &none_inline, &one, 1, INLINE, &p), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_sg_plan(NULL, &ud, &one, 1, WRITE, &p), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_sg_plan(NULL, &none, &one, 1, 0, &p), -EMSGSIZE);
	EXPECT_EQ(plan_equal(NULL, &ud, 5, 820, 0, &p), -EMSGSIZE);
	EXPECT_EQ(plan_equal(NULL, &rc, 31, 8, GATHER, &p), -EMSGSIZE);
	EXPECT_EQ(plan_equal(NULL, &rc, 31, 7, INLINE, &p), -EMSGSIZE);
	EXPECT_EQ(plan_equal(NULL, &rc, 2, 111, INLINE, &p), -EMSGSIZE);
	EXPECT_EQ(plan_equal(NULL, &rc, 21, 8, RECV, &p), -EMSGSIZE);
	EXPECT(!memcmp(&p, &before, sizeof p));
	EXPECT_EQ(plan_equal(NULL, &ud, 4, 1024, 0, &p), 0);
	EXPECT_EQ(plan_equal(NULL, &rc, 30, 8, GATHER, &p), 0);
	EXPECT_EQ(plan_equal(NULL, &rc, 20, 8, RECV, &p), 0);
	EXPECT_EQ(p.mode, RECV | GATHER);
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

/* ------------------------------------------------------------------ memory with registrations */

enum { ARENA = 1 << 16, REGS = 16, SLOT_KEY = 999, PIECES = 96 };
static unsigned char arena[ARENA], slot[ARENA + 1];
static struct {
	uintptr_t addr;
	size_t len;
	uint32_t lkey;
	int out; /* pins */
} regs[REGS];
static int regs_n, key_calls, key_fails_at, key_fails_with; /* from the n-th call on */
static bool key_whole; /* gives no reference */
static unsigned key_access = HUGEPIN_READ;

static int key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	EXPECT(arg == regs);
	if (!addr) {
		EXPECT(pin->ref >= 1 && pin->ref <= REGS);
		EXPECT(regs[pin->ref - 1].out-- > 0);
		return 0;
	}
	EXPECT(len && access == key_access);
	if (++key_calls >= key_fails_at && key_fails_at)
		return key_fails_with;
	for (int i = 0; i < regs_n; i++)
		if ((uintptr_t)addr - regs[i].addr < regs[i].len) {
			regs[i].out += !key_whole;
			*pin = (struct hugepin_pin){ regs[i].addr, regs[i].len, regs[i].lkey, 0,
						     key_whole ? 0 : (uint64_t)i + 1 };
			return 0;
		}
	return -ENOKEY;
}

/* The arena is cut into registrations, some of which touch, and holes. */
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

static int pins_out(void)
{
	int out = 0;
	for (int i = 0; i < regs_n; i++)
		out += regs[i].out;
	return out;
}

static void release(struct hugepin_pin *pins, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		key(regs, NULL, 0, 0, &pins[i]);
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

/* Carries work requests out: what arrives, and how many bytes; SIZE_MAX: a device would refuse or fail. */
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

/* Pieces of the arena, which may overlap, and of which some are empty. */
static int pieces_of_arena(struct iovec *iov, int n)
{
	uint32_t longest = n ? 1 + rnd(3 * ARENA / (uint32_t)n) : 1;
	longest = longest > ARENA / 4 ? ARENA / 4 : longest;
	for (int i = 0; i < n; i++) {
		uint32_t len = rnd(6) ? 1 + rnd(rnd(2) ? longest : 1 + longest / 16) : 0;
		iov[i] = (struct iovec){ arena + rnd(ARENA - len), len };
		if (i && rnd(4) == 0 && (unsigned char *)iov[i - 1].iov_base + iov[i - 1].iov_len + len <= arena + ARENA)
			iov[i].iov_base = (unsigned char *)iov[i - 1].iov_base + iov[i - 1].iov_len;
	}
	return n;
}

/* How many elements each piece must have, and whether one has no key at some byte. */
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

struct work {
	struct ibv_send_wr wr[PIECES];
	struct ibv_sge sge[4 * PIECES + 1];
	struct hugepin_pin pins[4 * PIECES];
	struct hugepin_sg_room room;
};

static struct hugepin_sg_room *work_room(struct work *w)
{
	w->room = (struct hugepin_sg_room){
		.size = sizeof w->room, .wr = w->wr, .sge = w->sge, .pins = w->pins, .slot = slot, .slot_len = ARENA,
		.wrs = PIECES, .sges = 4 * PIECES, .pins_max = 4 * PIECES, .slot_lkey = SLOT_KEY, .key = key, .arg = regs,
	};
	return &w->room;
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
		m.element = (float)rnd(30);
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
	t_print("# %d sends, %d writes, %d mixed, %d chains, %d inline, %d copied for want of a key; %d without, %d too long\n",
		done[0], done[1], mixed, chains, inlined, rescued, keyless, toolong);
	EXPECT(done[0] > 1000 && done[1] > 1000 && mixed > 300 && chains > 300 && inlined > 300 && rescued > 300);
	EXPECT(keyless > 300 && toolong > 10);
}

/* ------------------------------------------------------------------ carrying out */

/* Registrations of 4096 bytes with holes of as much between them: three pieces in each, and 64 bytes that straddle its end. */
static void register_comb(void)
{
	regs_n = 8;
	for (int i = 0; i < regs_n; i++) {
		regs[i].addr = (uintptr_t)arena + (size_t)i * 8192;
		regs[i].len = 4096;
		regs[i].lkey = 100 + (uint32_t)i;
		regs[i].out = 0;
	}
	key_calls = key_fails_at = 0;
	key_whole = false;
}

static int comb(struct iovec *iov, int n, size_t len)
{
	for (int i = 0; i < n; i++)
		iov[i] = (struct iovec){ arena + i / 3 * 8192 + i % 3 * 1300, len };
	return n;
}

TEST(flags_and_immediate_data_go_where_they_belong_in_a_chain)
{
	static struct work w;
	struct iovec iov[20];
	struct hugepin_sg_caps caps = rc;
	struct hugepin_sg_plan p;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = 5,
				    .send_flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE };
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

/* ------------------------------------------------------------------ the same, carried out by a strict device */

static unsigned char sink[ARENA];
static uint32_t sink_key;

static int key_of_sink(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	(void)arg, (void)len, (void)access;
	if (addr)
		*pin = (struct hugepin_pin){ (uintptr_t)sink, ARENA, sink_key, 0, 0 };
	return 0;
}

/* Up to n pieces of the sink that do not overlap, with room for as many bytes. */
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

/* What the pieces of the sink have is what those of the arena had. */
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

/* Writes meet a queue with less room than their chain needs: what was refused is posted again, from there on. */
TEST(what_is_filled_arrives_over_a_strict_device_however_full_its_queue)
{
	static struct work w;
	unsigned sends = 0, writes = 0, refused = 0;
	for (int round = 0; round < 6000; round++) {
		enum { DEPTH = 6 };
		const struct mock_provider *provider = &mock_providers[round % MOCK_PROVIDERS];
		struct ibv_qp_cap cap = { DEPTH, 1, 1 + rnd(8), 1, rnd(2) * rnd(200) }, peer_cap = { 1, 2, 1, 1 + rnd(5), 0 };
		struct ibv_cq *cq = mock_cq(DEPTH), *peer_cq = mock_cq(2);
		struct mock_qp *qp = mock_qp(IBV_QPT_RC, cq, &cap, provider), *peer = mock_qp(IBV_QPT_RC, peer_cq, &peer_cap, provider);
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
				struct hugepin_sg_room to_room = { .size = sizeof to_room, .sge = in, .sges = 8, .key = key_of_sink };
				struct hugepin_sg_caps of_peer;
				EXPECT_EQ(hugepin_sg_caps(&peer->qp, &peer_cap, &of_peer, sizeof of_peer), 0);
				EXPECT(hugepin_sg_fill_recv(&of_peer, to, m, &recv, &to_room, NULL) >= 0);
				EXPECT_EQ(ibv_post_recv(&peer->qp, &recv, &bad_recv), 0);
			}
			/* others in front of it */
			struct ibv_send_wr other = { .sg_list = w.sge, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
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
		if (t_failures) {
			t_print("# round %d\n", round);
			return;
		}
	}
	t_print("# %u sends, %u writes, %u of them refused in part\n", sends, writes, refused);
	EXPECT(sends > 500 && writes > 500 && refused > 100);
}

/* Filled with all the room it needs and then with one less of each: -EMSGSIZE, and no pin is out. */
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
			.size = sizeof enough, .wr = w.wr, .sge = w.sge, .pins = w.pins, .slot = slot, .slot_len = p.slot,
			.wrs = (uint32_t)wrs, .sges = info.sges, .pins_max = info.pins, .slot_lkey = SLOT_KEY, .key = key, .arg = regs,
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

TEST(a_key_function_that_fails_at_any_call_leaves_no_pin)
{
	static struct work w;
	struct iovec iov[24];
	struct hugepin_sg_plan p;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND };
	register_comb();
	struct hugepin_sg_model m = measured;
	int n = comb(iov, 24, 300), calls;
	for (int i = 0; i < n; i += 5)
		iov[i].iov_len = 4;
	m.line = 10;
	m.copy_byte = 1;
	EXPECT_EQ(hugepin_sg_plan(&m, &rc, iov, n, COPY | GATHER, &p), 0);
	EXPECT(p.slot && p.slot < p.bytes);
	struct hugepin_sg_room *r = work_room(&w);
	struct hugepin_sg_info info;
	EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, &info), 1);
	EXPECT_EQ(info.pins, 8); /* one each, though there are runs of copied pieces between */
	calls = key_calls;
	EXPECT_EQ(calls, 8);
	release(w.pins, info.pins);
	for (int at = 1; at <= calls; at++) {
		key_calls = 0;
		key_fails_at = at;
		key_fails_with = -ENOMEM;
		EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, NULL), -ENOMEM);
		EXPECT_EQ(pins_out(), 0);
		key_fails_with = -ENOKEY; /* that is another matter: there is a slot */
		key_calls = 0;
		EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, &info), 1);
		release(w.pins, info.pins);
		r->slot_len = p.slot;
		key_calls = 0;
		EXPECT_EQ(hugepin_sg_fill(&p, iov, n, &tmpl, r, NULL), -ENOKEY);
		EXPECT_EQ(pins_out(), 0);
		r->slot_len = ARENA;
	}
}

TEST(without_a_key_function_all_is_copied_or_inline)
{
	static struct work w;
	struct iovec iov[6];
	struct hugepin_sg_plan p;
	struct hugepin_sg_info info;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND };
	struct hugepin_sg_room *r = work_room(&w);
	r->key = NULL;
	comb(iov, 6, 1000);
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 6, GATHER, &p), 0);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, NULL), -ENOKEY);
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 6, GATHER | COPY, &p), 0);
	EXPECT_EQ(p.slot, 0);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, &info), 1);
	EXPECT(info.copied == 6000 && info.sges == 1 && info.pins == 0);
	r->slot_len = 5999;
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, NULL), -ENOKEY);
	comb(iov, 6, 30);
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 6, INLINE, &p), 0);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, &info), 1);
	EXPECT(info.copied == 0 && info.lines == 0 && w.wr[0].send_flags & IBV_SEND_INLINE);
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
		iov[i] = (struct iovec){ arena + (i + 1) * 8192 - (i & 1 ? 500 : 2000), 1000 }; /* each second one straddles */
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

/* Each way that a plan may go, with pieces that are not the plan's. */
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
			m.copy_byte = modes[k] == (COPY | GATHER) ? 1 : m.copy_byte;
			m.line = 10;
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

TEST(without_room_for_a_pin_there_must_be_none_to_give_back)
{
	static struct work w;
	struct iovec iov[3];
	struct hugepin_sg_plan p;
	struct hugepin_sg_info info;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND };
	struct hugepin_sg_room *r = work_room(&w);
	register_comb();
	r->pins_max = 0;
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, comb(iov, 3, 50), GATHER, &p), 0);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 3, &tmpl, r, NULL), -EMSGSIZE);
	EXPECT_EQ(pins_out(), 0);
	key_whole = true;
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 3, &tmpl, r, &info), 1);
	EXPECT(info.pins == 0 && info.sges == 3);
	key_whole = false;
}

/* A key for all memory is not one for a piece that is nowhere. */
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

/* ------------------------------------------------------------------ many registrations */

enum { MANY = 4000, APART = 8192 };

static int many_out[MANY];
static char *many; /* MANY times APART bytes: what is copied is read */

static int key_of_many(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	uint64_t i = ((uintptr_t)addr - (uintptr_t)many) / APART;
	(void)arg, (void)len, (void)access;
	if (!addr) {
		EXPECT(many_out[pin->ref - 1]-- > 0);
		return 0;
	}
	many_out[i]++;
	*pin = (struct hugepin_pin){ (uintptr_t)many + i * APART, 4096, (uint32_t)i | 1u << 30, 0, i + 1 };
	return 0;
}

/* Pieces in `n` registrations, each once, then thrice as many at random; in room for so many pins. COPY: with short pieces, which
 * are copied, so that runs of others are many. Processor seconds. */
static double fill_many(int n, int pins, unsigned mode)
{
	const struct hugepin_sg_caps caps = { .max_sge = 30, .max_wr = 1 << 16, .max_msg = UINT64_C(1) << 31 };
	struct iovec *iov = calloc((size_t)n * 4, sizeof *iov);
	struct hugepin_sg_room r = { .size = sizeof r, .wr = calloc((size_t)n, sizeof *r.wr), .wrs = (uint32_t)n,
				     .sge = calloc((size_t)n * 4, sizeof *r.sge), .sges = (uint32_t)n * 4,
				     .pins = calloc((size_t)pins + 1, sizeof *r.pins), .pins_max = (uint32_t)pins,
				     .slot = slot, .slot_len = sizeof slot, .slot_lkey = SLOT_KEY, .key = key_of_many };
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_RDMA_WRITE };
	struct hugepin_sg_info info = { 0 };
	struct hugepin_sg_plan p;
	struct timespec from, to;
	many = many ? many : calloc(MANY, APART);
	for (int i = 0; i < 4 * n; i++)
		iov[i] = (struct iovec){ many + (i < n ? (uint32_t)i * 25171 % (uint32_t)n : rnd((uint32_t)n)) * APART + 8 * rnd(256),
					 i >= n && mode & COPY && i % 3 ? 8 : 300 };
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, 4 * n, mode | WRITE, &p), 0);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	int got = hugepin_sg_fill(&p, iov, 4 * n, &tmpl, &r, &info);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
	int out = 0;
	for (int i = 0; i < n; out += many_out[i], many_out[i++] = 0)
		EXPECT(many_out[i] == (got > 0) || (mode & COPY && many_out[i] == 0));
	if (pins >= n) {
		EXPECT(got > 0);
		EXPECT_EQ(info.pins, out);
	} else {
		EXPECT_EQ(got, -EMSGSIZE);
	}
	for (uint32_t i = 0, k = 0; got > 0 && i < info.sges; i++)
		for (uint32_t at = 0; at < r.sge[i].length && EXPECT(k < 4 * (uint32_t)n); at += (uint32_t)iov[k++].iov_len) {
			if (r.sge[i].lkey == SLOT_KEY)
				continue;
			EXPECT_EQ(r.sge[i].addr + at, (uintptr_t)iov[k].iov_base);
			EXPECT_EQ(r.sge[i].lkey ^ 1u << 30, ((uintptr_t)iov[k].iov_base - (uintptr_t)many) / APART);
		}
	free(iov);
	free(r.wr);
	free(r.sge);
	free(r.pins);
	return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
}

TEST(of_many_registrations_each_has_one_pin_in_room_for_no_more)
{
	static const int regs[] = { 1, 15, 16, 17, 18, 31, 32, 33, 34, 100, 1000 };
	for (size_t i = 0; i < sizeof regs / sizeof *regs && !t_failures; i++)
		for (int spare = -1; spare < 40; spare += 1 + spare / 4)
			if (regs[i] + spare > 0)
				fill_many(regs[i], regs[i] + spare, GATHER);
	for (size_t i = 0; regs[i] <= 100 && !t_failures; i++) /* more would be copied than the slot has room for */
		for (int spare = 0; spare < 40; spare += 1 + spare / 4)
			fill_many(regs[i], regs[i] + spare, GATHER | COPY);
}

TEST(a_piece_among_many_registrations_takes_hardly_longer_than_among_few)
{
	double few = 1, all = 1, time;
	for (int i = 0; i < 5; i++) {
		time = fill_many(100, 100, GATHER) / 100;
		few = time < few ? time : few;
		time = fill_many(MANY, MANY, GATHER) / (double)MANY;
		all = time < all ? time : all;
	}
	t_print("# %.0f and %.0f ns a piece\n", few / 4 * 1e9, all / 4 * 1e9);
	EXPECT(all < 10 * few);
}

TEST(neighbours_of_one_registration_are_one_element_even_in_the_last_room)
{
	static struct work w;
	struct iovec iov[3] = { { arena, 100 }, { arena + 100, 50 }, { arena + 150, 7 } };
	struct hugepin_sg_plan p;
	struct hugepin_sg_info info;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND };
	struct hugepin_sg_room *r = work_room(&w);
	register_comb();
	r->sges = 1;
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 3, GATHER, &p), 0);
	EXPECT_EQ(p.sges, 3);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 3, &tmpl, r, &info), 1);
	EXPECT(info.sges == 1 && w.sge[0].length == 157);
	release(w.pins, info.pins);
	for (int i = 0; i < 3; i++)
		iov[i].iov_base = arena + 1000 * i;
	for (uint32_t sges = 0; sges < 3; sges++) {
		r->sges = sges;
		w.sge[sges].length = 0xeeeeeeee;
		EXPECT_EQ(hugepin_sg_fill(&p, iov, 3, &tmpl, r, NULL), -EMSGSIZE);
		EXPECT_EQ(w.sge[sges].length, 0xeeeeeeee);
	}
	EXPECT_EQ(pins_out(), 0);
}

TEST(neighbours_of_two_registrations_keep_their_keys)
{
	static struct work w;
	struct iovec iov[3] = { { arena + 8092, 100 }, { arena + 8192, 100 }, { arena + 8292, 100 } };
	struct hugepin_sg_plan p;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND };
	register_comb();
	regs[0].len = 8192;
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 3, GATHER, &p), 0);
	EXPECT_EQ(hugepin_sg_fill(&p, iov, 3, &tmpl, work_room(&w), NULL), 1);
	EXPECT_EQ(w.wr[0].num_sge, 2);
	EXPECT(w.sge[0].lkey == 100 && w.sge[0].length == 100 && w.sge[1].lkey == 101 && w.sge[1].length == 200);
	release(w.pins, 2);
	EXPECT_EQ(pins_out(), 0);
}

/* Says that memory is registered, but not that which was asked for; or says something else than 0 or -errno. */
static int bad_key_says;
static int bad_key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	if (bad_key_says || !addr)
		return addr ? bad_key_says : key(arg, addr, len, access, pin);
	int err = key(arg, addr, len, access, pin);
	if (!err) {
		pin->base += 4096;
		pin->len = 100;
	}
	return err;
}

TEST(a_key_function_that_errs_is_an_error)
{
	static struct work w;
	struct iovec iov[6];
	struct hugepin_sg_plan p;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND };
	struct hugepin_sg_room *r = work_room(&w);
	register_comb();
	comb(iov, 6, 100);
	r->key = bad_key;
	EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 6, GATHER, &p), 0);
	for (bad_key_says = 0; bad_key_says < 2; bad_key_says++) {
		EXPECT_EQ(hugepin_sg_fill(&p, iov, 6, &tmpl, r, NULL), -EINVAL);
		EXPECT_EQ(pins_out(), 0);
	}
}

TEST(more_than_four_gigabytes_of_addresses_need_no_memory)
{
	static struct work w;
	struct hugepin_sg_caps caps = rc;
	struct hugepin_sg_plan p;
	struct hugepin_sg_info info;
	struct ibv_send_wr tmpl = { .opcode = IBV_WR_RDMA_WRITE };
	struct iovec iov[3] = { { (void *)0x10000000, 1u << 31 }, { NULL, 0 }, { (void *)0x200000000, (1u << 31) - 1 } };
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

/* ------------------------------------------------------------------ receiving */

TEST(a_receive_has_an_element_for_each_piece_within_what_the_queue_pair_takes)
{
	static struct work w;
	struct iovec iov[20];
	struct ibv_recv_wr wr = { .wr_id = 9, .next = &wr }, before = wr;
	struct hugepin_sg_caps caps = rc;
	struct hugepin_sg_info info = { 0 };
	struct hugepin_sg_room *r = work_room(&w);
	caps.max_recv_sge = 8;
	key_access = HUGEPIN_WRITE;
	register_comb();
	int n = comb(iov, 10, 200);
	iov[0].iov_len = iov[9].iov_len = 0;
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, n, &wr, r, &info), 8);
	EXPECT(wr.wr_id == 9 && wr.next == &wr && wr.num_sge == 8 && wr.sg_list == w.sge);
	EXPECT(info.bytes == 1600 && info.pins == 3 && info.copied == 0);
	for (int i = 0; i < 8; i++)
		EXPECT(w.sge[i].addr == (uintptr_t)iov[i + 1].iov_base && w.sge[i].length == 200 &&
		       w.sge[i].lkey == 100 + (unsigned)(i + 1) / 3);
	release(w.pins, info.pins);

	wr = before;
	iov[9].iov_len = 1;
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, n, &wr, r, NULL), -EMSGSIZE); /* nine */
	EXPECT_EQ(hugepin_sg_fill_recv(NULL, iov, 2, &wr, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, NULL, 2, &wr, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, 2, NULL, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, 2, &wr, NULL, NULL), -EINVAL);
	r->sges = 3;
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, 5, &wr, r, NULL), -EMSGSIZE);
	r->sges = 8;
	caps.max_msg = 799;
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, 5, &wr, r, NULL), -EMSGSIZE);
	r->key = NULL;
	EXPECT_EQ(hugepin_sg_fill_recv(&rc, iov, 5, &wr, r, NULL), -ENOKEY);
	EXPECT_EQ(hugepin_sg_fill_recv(&rc, iov, 1, &wr, r, NULL), 0);
	wr.sg_list = before.sg_list;
	EXPECT(!memcmp(&wr, &before, sizeof wr));
	EXPECT_EQ(pins_out(), 0);
}

/* ------------------------------------------------------------------ what a queue pair can do */

TEST(capabilities_are_those_of_queue_pair_port_and_device)
{
	struct ibv_cq *cq = mock_cq(16);
	struct ibv_qp_cap cap = { .max_send_wr = 5, .max_recv_wr = 6, .max_send_sge = 7, .max_recv_sge = 8, .max_inline_data = 9 };
	struct ibv_qp_cap granted = { .max_send_wr = 50, .max_recv_wr = 60, .max_send_sge = 70, .max_recv_sge = 80,
				      .max_inline_data = 90 };
	struct mock_qp *c = mock_qp(IBV_QPT_RC, cq, &cap, NULL), *d = mock_qp(IBV_QPT_UD, cq, &cap, NULL);
	struct hugepin_sg_caps v;
	mock.port.active_mtu = IBV_MTU_2048;
	mock.port.max_msg_sz = 12345;
	mock.device.max_sge_rd = 1;
	EXPECT_EQ(hugepin_sg_caps(&c->qp, NULL, &v, sizeof v), 0);
	EXPECT(v.max_wr == 5 && v.max_recv_wr == 6 && v.max_sge == 7 && v.max_recv_sge == 8 && v.max_inline == 9);
	EXPECT(v.max_sge_rd == 1 && v.mtu_ud == 0 && v.max_msg == 12345);
	EXPECT_EQ(hugepin_sg_caps(&d->qp, &granted, &v, sizeof v), 0);
	EXPECT(v.max_wr == 50 && v.max_recv_wr == 60 && v.max_sge == 70 && v.max_recv_sge == 80 && v.max_inline == 90);
	EXPECT_EQ(v.mtu_ud, 2048);
	mock.device.max_sge_rd = 0; /* it does not say */
	EXPECT_EQ(hugepin_sg_caps(&c->qp, NULL, &v, sizeof v), 0);
	EXPECT_EQ(v.max_sge_rd, 7);
	v.max_inline = 4711;
	EXPECT_EQ(hugepin_sg_caps(&c->qp, &granted, &v, offsetof(struct hugepin_sg_caps, max_inline)), 0);
	EXPECT(v.max_sge == 70 && v.max_inline == 4711);
	EXPECT_EQ(hugepin_sg_caps(NULL, NULL, &v, sizeof v), -EINVAL);
	EXPECT_EQ(hugepin_sg_caps(&c->qp, NULL, NULL, sizeof v), -EINVAL);
	EXPECT_EQ(hugepin_sg_caps(&c->qp, NULL, &v, 0), -EINVAL);
	mock_qp_free(c);
	mock_qp_free(d);
	mock_cq_free(cq);
}

T_MAIN
