/*
 * Plans (sge/plan.c), compared with all ways to copy some pieces and gather the others, and the caps that plans are
 * made for. Plans look at addresses alone and need no memory.
 */
#include "tests/unit/sg_plan.h"

#include <math.h>

/* ------------------------------------------------------------------ a naive planner */

/* What a message costs, for one choice of copied pieces. Bit i of a choice: piece i is copied. */
struct naive {
	double cost; /* of the CPU or of the device, whichever is larger */
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
	double device = 0;
	uint64_t seen[64], before = UINT64_C(1) << 63;
	int pages = 0;
	bool joins = false;
	for (int i = 0; i < n; i++) {
		uint64_t addr = (uintptr_t)iov[i].iov_base;
		size_t len = iov[i].iov_len;
		if (!len)
			continue;
		v.cost += m->byte * (double)len;
		device += m->device_byte * (double)len;
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
		device += m->device_line * (double)((addr + len - 1) / 64 - addr / 64 + 1);
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
	v.cost = fmax(v.cost, device + m->device_element * (double)v.elements + m->device_wr * (double)v.wrs);
	return v;
}

/* The plan's own choice, as bits. */
static uint32_t naive_of(const struct hugepin_sg_plan *p, const struct iovec *iov, int n)
{
	uint32_t copied = 0;
	for (int i = 0; i < n; i++)
		if (iov[i].iov_len < p->copy_below || ((uint32_t)i >= p->copy_from && (uint32_t)i < p->copy_to) ||
		    (p->mode & MODES) == COPY)
			copied |= 1u << i;
	return copied;
}

/* The best of all choices. If none is possible, the cost is infinite. */
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
	for (uint32_t copied = 0; copied <= full && modes & (COPY | GATHER); copied++) {
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
		cost = fmax(cost, m->device_inline_wr * (double)wrs + m->device_inline_byte * (double)bytes);
		if (cost < best.cost)
			best.cost = cost;
	}
	return best;
}

/* Layouts of real programs: equal pieces, two sizes in turn or in runs, any sizes; in one place or in some that are far
 * apart. */
static int layout(struct iovec *iov, int n, uint32_t longest)
{
	uint32_t kind = rnd(4), places = rnd(2) ? 1 : 1 + rnd(4),
	size[2] = { 1 + rnd(longest), 1 + rnd(1 + longest / 16) };
	for (int i = 0; i < n; i++) {
		uint32_t len = kind == 0 ? size[0] : kind == 1 ? size[i & 1] : kind == 2 ? size[i / 3 & 1] :
			1 + rnd(longest);
		uint64_t place = (uint64_t)(1 + rnd(places)) << 32; /* no two places have the same hash */
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
		if (rnd(2)) { /* a device that messages wait for, or may wait for */
			m.device_wr = (float)rnd(400);
			m.device_element = (float)rnd(80);
			m.device_line = (float)rnd(10);
			m.device_byte = (float)rnd(20) / 100;
			m.device_inline_wr = (float)rnd(300);
			m.device_inline_byte = (float)rnd(40) / 100;
		}
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
	t_print("# of %d plans %d are the best, %d mixed, %d with a window; mean %.4f, worst %.3f; %d impossible\n",
		cases,
		equal, mixed, windows, sum / cases, worst, refused);
	EXPECT(equal > cases * 9 / 10);
	EXPECT(mixed > 100 && windows > 50 && refused > 50);
	EXPECT(sum / cases < 1.005);
	EXPECT(worst < 1.4);
}

/* With one message at a time, gathering would be cheaper: 200 + 8 * 30 beside 200 + 30 + 8 * 25 + 128. */
TEST(under_backlog_the_cpu_copies_while_the_device_has_enough_to_do)
{
	struct hugepin_sg_model m = { .size = sizeof m, .wr = 100, .element = 1, .piece = 25, .copy_byte = 0.125f,
				      .device_wr = 100, .device_element = 29 };
	struct iovec iov[8];
	struct hugepin_sg_plan p;
	for (int i = 0; i < 8; i++)
		iov[i] = (struct iovec){ (void *)(uintptr_t)(4096 * (i + 1)), 128 };
	EXPECT_EQ(hugepin_sg_plan(&m, &rc, iov, 8, COPY | GATHER, &p), 0);
	EXPECT_EQ(p.mode, COPY | GATHER); /* some of them: one half of the work each */
	EXPECT(p.slot > 0 && p.slot < 8 * 128 && p.cost_ns < 100 + 8 * 29);
	m.device_element = 200;
	EXPECT_EQ(hugepin_sg_plan(&m, &rc, iov, 8, COPY | GATHER, &p), 0);
	EXPECT_EQ(p.mode, COPY);
	EXPECT_EQ(p.cost_ns, 101 + 8 * (25 + 16));
	m.device_element = 2;
	EXPECT_EQ(hugepin_sg_plan(&m, &rc, iov, 8, COPY | GATHER, &p), 0);
	EXPECT_EQ(p.slot, 0);
	EXPECT_EQ(p.cost_ns, 116);
}

TEST(a_model_of_a_program_compiled_before_the_devices_terms_has_none)
{
	struct hugepin_sg_model m = measured;
	struct iovec iov = { (void *)4096, 100 };
	struct hugepin_sg_plan p, old;
	EXPECT_EQ(hugepin_sg_plan(&m, &rc, &iov, 1, COPY, &p), 0);
	m.size = offsetof(struct hugepin_sg_model, device_wr);
	m.device_wr = 1e6f; /* behind its end */
	EXPECT_EQ(hugepin_sg_plan(&m, &rc, &iov, 1, COPY, &old), 0);
	EXPECT_EQ(old.cost_ns, p.cost_ns);
	m.size--;
	EXPECT_EQ(hugepin_sg_plan(&m, &rc, &iov, 1, COPY, &old), -EINVAL);
}

/* Short pieces stand among long ones, which are dear to copy. All are too many for one work request. The test looks how
 * few of the long ones the plan copies. */
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

/* ------------------------------------------------------------------ the caps of a queue pair */

TEST(capabilities_are_those_of_queue_pair_port_and_device)
{
	struct ibv_cq *cq = mock_cq(16);
	struct ibv_qp_cap cap = { .max_send_wr = 5, .max_recv_wr = 6, .max_send_sge = 7, .max_recv_sge = 8,
				  .max_inline_data = 9 };
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
