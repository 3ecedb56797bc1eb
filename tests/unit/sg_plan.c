/*
 * Plans (sge/plan.c): pieces below the thresholds are copied, and what is copied beside that is the fewest bytes; and the caps
 * that plans are made for. Plans look at addresses alone and need no memory.
 */
#include "tests/unit/sg_plan.h"

/* ------------------------------------------------------------------ a naive planner */

static uint32_t naive_elements(const struct iovec *iov, int n, uint32_t copied)
{
	uint32_t elements = 0;
	bool joins = false;
	for (int i = 0; i < n; i++)
		if (iov[i].iov_len) {
			elements += !(copied >> i & 1 && joins);
			joins = copied >> i & 1;
		}
	return elements;
}

static uint64_t naive_bytes(const struct iovec *iov, int n, uint32_t copied)
{
	uint64_t bytes = 0;
	for (int i = 0; i < n; i++)
		bytes += copied >> i & 1 ? iov[i].iov_len : 0;
	return bytes;
}

/* Bit i: piece i is copied. */
static uint32_t naive_copied(const struct iovec *iov, int n, uint64_t below, int from, int to)
{
	uint32_t copied = 0;
	for (int i = 0; i < n; i++)
		copied |= (uint32_t)(iov[i].iov_len < below || (i >= from && i < to)) << i;
	return copied;
}

/* The fewest bytes that leave so few elements, of all windows and of a length that is doubled. */
static uint64_t naive_least(const struct iovec *iov, int n, uint64_t below, uint64_t elements_max)
{
	uint64_t least = UINT64_MAX;
	for (bool fits = false; !fits; below *= 2) {
		fits = naive_elements(iov, n, naive_copied(iov, n, below, 0, 0)) <= elements_max;
		for (int from = 0; from <= n; from++)
			for (int to = from; to <= n; to++) {
				const uint32_t copied = naive_copied(iov, n, below, from, to);
				const uint64_t bytes = naive_bytes(iov, n, copied);
				if (naive_elements(iov, n, copied) <= elements_max && bytes < least)
					least = bytes;
			}
	}
	return least;
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

TEST(pieces_below_the_threshold_are_copied_and_if_too_many_remain_the_fewest_bytes_more)
{
	int cases = 0, most = 0, mixed = 0, windows = 0, doubled = 0;
	for (int round = 0; round < 20000; round++) {
		struct iovec iov[12];
		struct hugepin_sg_caps caps = rc;
		struct hugepin_sg_model m = measured;
		struct hugepin_sg_plan p;
		caps.max_sge = 1 + rnd(12);
		caps.max_wr = 1 + rnd(3);
		const int n = layout(iov, 1 + (int)rnd(12), 16u << rnd(8));
		const unsigned mode = COPY | GATHER | (rnd(2) ? WRITE : 0) | (rnd(2) ? COLD : 0);
		m.copy_below[0] = m.apart_below[0] = rnd(600);
		m.copy_below[1] = m.apart_below[1] = rnd(100);
		if (!EXPECT_EQ(hugepin_sg_plan(&m, &caps, iov, n, mode, &p), 0))
			return;
		const uint32_t below = m.copy_below[!!(mode & COLD)] ? m.copy_below[!!(mode & COLD)] : 1;
		const uint64_t elements_max = caps.max_sge * (mode & WRITE ? (uint64_t)caps.max_wr : 1);
		const uint32_t copied = (p.mode & MODES) == COPY ? UINT32_MAX :
				 naive_copied(iov, n, p.copy_below, (int)p.copy_from, (int)p.copy_to);
		EXPECT_EQ(naive_bytes(iov, n, copied), p.slot);
		EXPECT_EQ(naive_elements(iov, n, copied), p.sges);
		EXPECT(p.sges <= elements_max);
		EXPECT_EQ(p.wrs, p.sges <= caps.max_sge ? 1 : (p.sges + caps.max_sge - 1) / caps.max_sge);
		const uint32_t plain = naive_copied(iov, n, below, 0, 0);
		if (naive_elements(iov, n, plain) <= elements_max) {
			EXPECT_EQ(p.slot, naive_bytes(iov, n, plain));
			continue;
		}
		const uint64_t least = naive_least(iov, n, below, elements_max);
		EXPECT(p.slot >= least);
		cases++;
		most += p.slot == least;
		mixed += p.slot < p.bytes;
		windows += p.copy_to > p.copy_from;
		doubled += p.copy_below > below;
	}
	t_print("# of %d with too many elements %d copy the fewest bytes, %d mixed, %d with a window, %d with another length\n", cases, most,
		mixed, windows, doubled);
	EXPECT(cases > 2000 && mixed > 500 && windows > 300 && doubled > 10);
	EXPECT_EQ(most, cases);
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
		for (int i = 0; i < 2; i++) {
			m.copy_below[i] = rnd(4) ? rnd(2000) : rnd(2) ? UINT32_MAX : 0;
			m.apart_below[i] = rnd(4) ? rnd(2000) : rnd(2) ? UINT32_MAX : 0;
			m.inline_pieces[i] = rnd(40);
		}
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

TEST(without_a_model_what_fits_is_inline_and_pieces_below_256_bytes_are_copied)
{
	struct hugepin_sg_plan p;
	for (int n = 1; n < 8; n++)
		for (size_t len = 1; len < 2048; len++) {
			if (!EXPECT_EQ(plan_equal(NULL, &rc, n, len, 0, &p), 0))
				return;
			if ((size_t)n * len <= rc.max_inline)
				EXPECT_EQ(p.mode, INLINE);
			else if (len < 256)
				EXPECT_EQ(p.mode, COPY);
			else
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

TEST(the_threshold_is_that_of_the_pieces_cache_and_registrations)
{
	for (int cold = 0; cold < 2; cold++)
		for (int apart = 0; apart < 2; apart++) {
			const uint32_t below = (apart ? measured.apart_below : measured.copy_below)[cold];
			for (size_t len = below - 1; len <= below; len++) {
				struct hugepin_sg_plan p;
				struct iovec iov[8];
				for (size_t i = 0; i < 8; i++)
					iov[i] = (struct iovec){ (void *)(0x40000000 + (i << (apart ? 30 : 12))), len };
				EXPECT_EQ(hugepin_sg_plan(&measured, &rc, iov, 8, COPY | GATHER | (cold ? COLD : 0), &p), 0);
				EXPECT_EQ(p.slot, len < below ? 8 * len : 0);
			}
		}
}

TEST(a_message_of_few_pieces_is_inline_if_it_fits)
{
	struct hugepin_sg_plan p;
	for (int cold = 0; cold < 2; cold++)
		for (int n = 1; n <= 10; n++) {
			EXPECT_EQ(plan_equal(&measured, &rc, n, 22, cold ? COLD : 0, &p), 0);
			EXPECT_EQ(p.mode, (uint32_t)n <= measured.inline_pieces[cold] ? INLINE : COPY);
			EXPECT_EQ(plan_equal(&measured, &rc, n, 22, INLINE, &p), 0); /* nothing else is allowed */
		}
	EXPECT_EQ(plan_equal(&measured, &rc, 2, 111, 0, &p), 0);
	EXPECT_EQ(p.mode, COPY);
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
	old.size = sizeof old - 1;
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
