/*
 * Keys of gathered pieces: hugepin_sg_fill() takes one pin of each registration, however many there are, joins
 * neighbours under one key, and gives all pins back when the key function fails.
 */
#include "tests/unit/sg_fill.h"

/* ------------------------------------------------------------------ the key function */

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
	m.copy_below[0] = m.apart_below[0] = 10;
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

/* A key function that gives the key of other memory, or returns neither 0 nor -errno. */
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

/* ------------------------------------------------------------------ many registrations */

enum { MANY = 4000, APART = 8192 };

static int many_out[MANY];
static char *many; /* MANY times APART bytes, as copied pieces are read */

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

/* Fill a message with pieces in `n` registrations: one piece in each, then thrice as many at random. The room has
 * `pins` pins. With COPY there are short pieces too. The short pieces are copied and cut the others into many runs.
 */
static void fill_many(int n, int pins, unsigned mode)
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
	many = many ? many : calloc(MANY, APART);
	for (int i = 0; i < 4 * n; i++)
		iov[i] =
			(struct iovec){ many + (i < n ? (uint32_t)i * 25171 % (uint32_t)n :
						rnd((uint32_t)n)) * APART + 8 * rnd(256),
					 i >= n && mode & COPY && i % 3 ? 8 : 300 };
	EXPECT_EQ(hugepin_sg_plan(&measured, &caps, iov, 4 * n, mode | WRITE, &p), 0);
	int got = hugepin_sg_fill(&p, iov, 4 * n, &tmpl, &r, &info);
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
		for (uint32_t at = 0; at < r.sge[i].length && EXPECT(k < 4 * (uint32_t)n);
		     at += (uint32_t)iov[k++].iov_len) {
			if (r.sge[i].lkey == SLOT_KEY)
				continue;
			EXPECT_EQ(r.sge[i].addr + at, (uintptr_t)iov[k].iov_base);
			EXPECT_EQ(r.sge[i].lkey ^ 1u << 30, ((uintptr_t)iov[k].iov_base - (uintptr_t)many) / APART);
		}
	free(iov);
	free(r.wr);
	free(r.sge);
	free(r.pins);
}

TEST(of_many_registrations_each_has_one_pin_in_room_for_no_more)
{
	static const int regs[] = { 1, 15, 16, 17, 18, 31, 32, 33, 34, 100, 1000 };
	for (size_t i = 0; i < sizeof regs / sizeof *regs && !t_failures; i++)
		for (int spare = -1; spare < 40; spare += 1 + spare / 4)
			if (regs[i] + spare > 0)
				fill_many(regs[i], regs[i] + spare, GATHER);
	fill_many(MANY, MANY, GATHER);
	for (size_t i = 0; regs[i] <= 100 && !t_failures; i++) /* more would be copied than the slot has room for */
		for (int spare = 0; spare < 40; spare += 1 + spare / 4)
			fill_many(regs[i], regs[i] + spare, GATHER | COPY);
}

/* ------------------------------------------------------------------ neighbours */

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

T_MAIN
