/*
 * Elements against a model that goes byte by byte; registrations are a table, and the memory need not exist. Layouts likewise.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>

#include "hugepin.h"
#include "tests/any.h"
#include "tests/t.h"

/* ------------------------------------------------------------------ a key function that keeps count */

enum { REGS = 12, PIECES = 20, SPACE = 4096, ROOM = 256 };

static struct {
	struct {
		uint64_t start, end;
		uint32_t key;
		bool counted; /* gives a ref */
		int out, asked;
	} reg[REGS];
	int regs, calls, fail_at, with; /* the fail_at-th call fails; 0: none */
	unsigned access;
} table;

static int key(void *arg, const void *addr_, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	uint64_t addr = (uintptr_t)addr_;

	EXPECT(arg == &table);
	if (!addr) {
		EXPECT(len == 0 && access == 0);
		EXPECT(ret_->ref && ret_->ref <= (uint64_t)table.regs && table.reg[ret_->ref - 1].counted);
		table.reg[ret_->ref - 1].out--;
		return -EPERM; /* nobody looks */
	}
	EXPECT(len > 0 && addr + len > addr);
	EXPECT_EQ(access, table.access);
	if (++table.calls == table.fail_at)
		return table.with;
	for (int i = 0; i < table.regs; i++)
		if (table.reg[i].start <= addr && addr < table.reg[i].end) {
			*ret_ = (struct hugepin_pin){ table.reg[i].start, table.reg[i].end - table.reg[i].start,
						      table.reg[i].key, 0, table.reg[i].counted ? (uint64_t)i + 1 : 0 };
			table.reg[i].out += table.reg[i].counted;
			table.reg[i].asked++;
			return 0;
		}
	return -ENOKEY;
}

static void forget_calls(void)
{
	table.calls = 0;
	for (int i = 0; i < REGS; i++)
		table.reg[i].asked = 0;
}

static int pins_out(void)
{
	int out = 0;

	for (int i = 0; i < REGS; i++) {
		EXPECT(table.reg[i].out >= 0);
		out += table.reg[i].out;
	}
	return out;
}

static void add_reg(uint64_t start, uint64_t end, uint32_t k, bool counted)
{
	table.reg[table.regs].start = start;
	table.reg[table.regs].end = end;
	table.reg[table.regs].key = k;
	table.reg[table.regs++].counted = counted;
}

static void clear(void)
{
	memset(&table, 0, sizeof table);
	table.access = HUGEPIN_READ;
}

static int map_to(const struct iovec *iov, int n, struct hugepin_sge *sge, int sges, struct hugepin_pin *pin, int pins,
		  struct hugepin_sg_info *info)
{
	return hugepin_sg_map(iov, n, table.access, key, &table, sge, sges, pin, pins, info);
}

/* ------------------------------------------------------------------ the model */

struct byte {
	uint64_t addr;
	uint32_t key;
};

static struct byte wanted[PIECES * SPACE], got[PIECES * SPACE];

/* The bytes of the pieces with their keys. -ENOKEY: one has none. */
static int model(const struct iovec *iov, int n, struct byte *ret_, bool *touched)
{
	int bytes = 0;

	memset(touched, 0, REGS * sizeof *touched);
	for (int i = 0; i < n; i++)
		for (size_t k = 0; k < iov[i].iov_len; k++) {
			uint64_t addr = (uintptr_t)iov[i].iov_base + k;
			int r = 0;

			while (r < table.regs && (addr < table.reg[r].start || addr >= table.reg[r].end))
				r++;
			if (r == table.regs)
				return -ENOKEY;
			touched[r] = true;
			ret_[bytes++] = (struct byte){ addr, table.reg[r].key };
		}
	return bytes;
}

/* Registrations from BASE on, some touching, some with a gap between, some with their neighbour's key. */
#define BASE ((uint64_t)0x7f0000000000)

static void random_table(bool gaps)
{
	uint64_t at = BASE;

	clear();
	while (table.regs < REGS - 1 && at < BASE + SPACE) {
		uint64_t len = any(3) ? 1 + any(SPACE / 4) : 1 + any(40);

		add_reg(at, at + len, table.regs && !any(4) ? table.reg[table.regs - 1].key : 100 + (uint32_t)table.regs, any(4));
		at += len + (gaps && !any(6) ? 1 + any(50) : 0);
	}
	if (at < BASE + SPACE)
		add_reg(at, BASE + SPACE, 99, true);
}

static int random_pieces(struct iovec *iov)
{
	int n = (int)any(PIECES + 1);
	size_t at = 0;

	for (int i = 0; i < n; i++) {
		size_t len = any(4) ? any(60) : any(SPACE / 2);

		at = any(3) ? any(SPACE) : at; /* or one behind the other */
		if (len > SPACE - at)
			len = SPACE - at;
		iov[i] = (struct iovec){ (void *)(BASE + at), len };
		at = (at + len) % SPACE;
		if (!any(5))
			iov[i] = (struct iovec){ (void *)any(2), 0 };
	}
	if (!any(50))
		for (int i = 0; i < n; i++)
			iov[i].iov_len = 0;
	return n;
}

TEST(the_elements_are_the_pieces_bytes_under_their_keys)
{
	struct iovec iov[PIECES];
	struct hugepin_sge sge[ROOM];
	struct hugepin_pin pin[REGS];
	struct hugepin_sg_info info, before;
	bool touched[REGS];
	int unregistered = 0;

	for (int round = 0; round < 20000; round++) {
		int n, bytes, count, k = 0, counted = 0, asked;
		uint32_t lines = 0;

		random_table(round % 4 == 0);
		n = random_pieces(iov);
		bytes = model(iov, n, wanted, touched);
		memset(&info, 0x5a, sizeof info);
		before = info;
		errno = 77;
		count = map_to(iov, n, sge, ROOM, pin, REGS, &info);
		EXPECT_EQ(errno, 77);
		if (bytes < 0) {
			unregistered++;
			EXPECT_EQ(count, bytes);
			EXPECT_EQ(pins_out(), 0);
			EXPECT(memcmp(&info, &before, sizeof info) == 0);
			continue;
		}
		if (!EXPECT(count >= 0))
			continue;
		for (int i = 0; i < count; i++) {
			EXPECT(sge[i].length > 0);
			for (uint32_t b = 0; b < sge[i].length && k < bytes; b++)
				got[k++] = (struct byte){ sge[i].addr + b, sge[i].lkey };
			EXPECT(!i || sge[i].lkey != sge[i - 1].lkey || sge[i].addr != sge[i - 1].addr + sge[i - 1].length);
			lines += (uint32_t)((sge[i].addr + sge[i].length - 1) / 64 - sge[i].addr / 64 + 1);
		}
		EXPECT_EQ(k, bytes);
		for (int b = 0; b < bytes; b++)
			if (got[b].addr != wanted[b].addr || got[b].key != wanted[b].key) {
				EXPECT_EQ(b, -1);
				break;
			}
		for (int r = 0; r < table.regs; r++) {
			counted += touched[r] && table.reg[r].counted;
			EXPECT_EQ(table.reg[r].out, touched[r] && table.reg[r].counted);
			EXPECT(!table.reg[r].counted || table.reg[r].asked == table.reg[r].out);
		}
		EXPECT(info.bytes == (uint64_t)bytes && info.sges == (uint32_t)count && info.pins == (uint32_t)counted &&
		       info.lines == lines && info.copied == 0);
		for (int i = 0; i < counted; i++)
			EXPECT_EQ(key(&table, NULL, 0, 0, &pin[i]), -EPERM);
		EXPECT_EQ(pins_out(), 0);

		/* The same when any call of the key function fails, */
		asked = table.calls;
		for (table.fail_at = 1; table.fail_at <= asked; table.fail_at++) {
			forget_calls();
			table.with = -(int)(1 + any(100));
			EXPECT_EQ(map_to(iov, n, sge, ROOM, pin, REGS, &info), table.with);
			EXPECT_EQ(pins_out(), 0);
			for (int i = 0; i < table.calls - 1 && i < counted; i++)
				EXPECT(i >= REGS || pin[i].ref == 0 || table.reg[pin[i].ref - 1].out == 0);
		}
		table.fail_at = 0;
		/* there is too little room for elements, */
		if (count) {
			memset(&info, 0, sizeof info);
			EXPECT_EQ(map_to(iov, n, sge, (int)any((size_t)count), pin, REGS, &info), -EMSGSIZE);
			EXPECT_EQ(info.sges, count);
			EXPECT_EQ(pins_out(), 0);
		}
		/* or for pins; */
		if (counted) {
			memset(&info, 0, sizeof info);
			EXPECT_EQ(map_to(iov, n, sge, count, pin, (int)any((size_t)counted), &info), -EMSGSIZE);
			EXPECT(info.sges == (uint32_t)count && info.pins >= (uint32_t)counted);
			EXPECT_EQ(pins_out(), 0);
		}
		/* what just fits, does. */
		EXPECT_EQ(map_to(iov, n, count ? sge : NULL, count, counted ? pin : NULL, counted, NULL), count);
		EXPECT_EQ(pins_out(), counted);
	}
	EXPECT(unregistered > 1000 && unregistered < 5000);
}

TEST(one_pin_serves_all_pieces_of_a_registration)
{
	struct iovec iov[] = { { (void *)(BASE + 10), 10 }, { (void *)(BASE + 5000), 10 }, { (void *)(BASE + 30), 10 },
			       { (void *)(BASE + 5100), 10 }, { (void *)BASE, 4096 } };
	struct hugepin_sge sge[5];
	struct hugepin_pin pin[2];

	clear();
	add_reg(BASE, BASE + 4096, 1, true);
	add_reg(BASE + 4096, BASE + 8192, 2, true);
	EXPECT_EQ(map_to(iov, 5, sge, 5, pin, 2, NULL), 5);
	EXPECT_EQ(table.calls, 2);
}

/* ------------------------------------------------------------------ many registrations */

enum { MANY = 32768, APART = 8192 };

static struct {
	int out[MANY], calls; /* out: references on the registration of 4096 bytes at (i + 1) * APART */
	bool wide; /* registration 0 reaches over all others, too */
} many;

static int key_of_many(void *arg, const void *addr_, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	uint64_t addr = (uintptr_t)addr_, i = addr / APART - 1;

	(void)len, (void)access;
	EXPECT(arg == &many);
	if (!addr) {
		many.out[ret_->ref - 1]--;
		return 0;
	}
	i = many.wide && addr % APART >= 4096 ? 0 : i;
	*ret_ = (struct hugepin_pin){ (i + 1) * APART, i || !many.wide ? 4096 : MANY * (uint64_t)APART, (uint32_t)i, 0, i + 1 };
	many.out[i]++;
	many.calls++;
	return 0;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* n pieces in `regs` registrations at random, some of them in what lies between, as far as there is a wide one. */
static int map_many(int n, int regs, int room, double *ret_seconds)
{
	struct iovec *iov = calloc((size_t)n, sizeof *iov);
	struct hugepin_sge *sge = calloc((size_t)n, sizeof *sge);
	struct hugepin_pin *pin = calloc((size_t)room, sizeof *pin);
	struct hugepin_sg_info info = { 0 };
	int used = 0, count;

	for (int i = 0; i < n; i++) {
		uint64_t reg = i < regs ? (uint64_t)i * 25171 % (unsigned)regs : any((size_t)regs); /* each once, then any */
		iov[i] = (struct iovec){ (void *)((reg + 1) * APART + 8 * any(64) + (many.wide && !any(8) ? 4096 : 0)), 8 };
	}
	many.calls = 0;
	*ret_seconds = seconds();
	count = hugepin_sg_map(iov, n, HUGEPIN_READ, key_of_many, &many, sge, n, pin, room, &info);
	*ret_seconds = seconds() - *ret_seconds;
	for (int i = 0; i < MANY; i++) {
		EXPECT(many.out[i] == 0 || (many.out[i] == 1 && count > 0));
		used += many.out[i];
		many.out[i] = 0;
	}
	EXPECT_EQ(used, count > 0 ? (int)info.pins : 0);
	for (int i = 0, k = 0; i < count && !t_failures; i++) /* neighbours are merged */
		for (uint32_t at = 0; at < sge[i].length; at += 8, k++) {
			uint64_t addr = (uintptr_t)iov[k].iov_base;
			EXPECT_EQ(sge[i].addr + at, addr);
			EXPECT_EQ(sge[i].lkey, many.wide && sge[i].lkey == 0 ? 0 : addr / APART - 1);
		}
	free(iov);
	free(sge);
	free(pin);
	return count > 0 ? (int)info.pins : count;
}

TEST(of_many_registrations_each_has_one_pin_in_room_for_no_more)
{
	static const int regs[] = { 1, 15, 16, 17, 18, 31, 32, 33, 34, 100, 1000 };
	double time;

	for (size_t i = 0; i < sizeof regs / sizeof *regs; i++)
		for (int times = 1; times <= 8; times++)
			for (int wide = 0; wide < 2; wide++) {
				int n = regs[i];
				many.wide = wide;
				EXPECT_EQ(map_many(n * times, n, n + 100, &time) <= n, 1);
				if (!wide) {
					EXPECT_EQ(map_many(n * times, n, n + 1, &time), n);
					EXPECT_EQ(map_many(n * times, n, n, &time), n);
					EXPECT(n == 1 || map_many(n * times, n, n - 1, &time) == -EMSGSIZE);
				}
				if (t_failures) {
					t_print("# %d registrations, %d times, wide %d\n", n, times, wide);
					return;
				}
			}
	many.wide = false;
}

/* Each piece of 32768 took 290 times as long as one of 512, when each was looked for in all pins. */
TEST(a_piece_among_many_registrations_takes_hardly_longer_than_among_few)
{
	double few = 1, all = 1, time;

	many.wide = false;
	for (int i = 0; i < 5; i++) {
		EXPECT_EQ(map_many(512, 512, 512, &time), 512);
		few = time / 512 < few ? time / 512 : few;
		EXPECT_EQ(map_many(MANY, MANY, MANY, &time), MANY);
		all = time / (double)MANY < all ? time / (double)MANY : all;
	}
	t_print("# %.0f and %.0f ns a piece\n", few * 1e9, all * 1e9);
	EXPECT(all < 20 * few);
}

TEST(neighbours_under_one_key_are_one_element_and_others_are_not)
{
	struct iovec iov[] = { { (void *)BASE, 100 }, { NULL, 0 }, { (void *)(BASE + 100), 28 }, { (void *)(BASE + 128), 10 } };
	struct hugepin_sge sge[4];
	struct hugepin_pin pin[4];

	clear();
	add_reg(BASE, BASE + 128, 1, true);
	add_reg(BASE + 128, BASE + 4096, 2, true);
	EXPECT_EQ(map_to(iov, 4, sge, 4, pin, 4, NULL), 2);
	EXPECT(sge[0].addr == BASE && sge[0].length == 128 && sge[0].lkey == 1);
	EXPECT(sge[1].addr == BASE + 128 && sge[1].length == 10 && sge[1].lkey == 2);
	clear();
	add_reg(BASE, BASE + 128, 1, true);
	add_reg(BASE + 128, BASE + 4096, 1, true);
	EXPECT_EQ(map_to(iov, 4, sge, 4, pin, 4, NULL), 1);
	EXPECT_EQ(sge[0].length, 138);
	EXPECT_EQ(pins_out(), 2);
}

TEST(bad_pieces_are_refused_before_any_key_is_asked_for)
{
	struct hugepin_sge sge[8];
	struct hugepin_pin pin[8];
	struct hugepin_sg_info info, before;
	const uintptr_t top = UINTPTR_MAX;
	const struct {
		struct iovec iov[3];
		int n, error;
	} bad[] = {
		{ { { (void *)BASE, 1 }, { NULL, 1 } }, 2, -EINVAL },
		{ { { (void *)BASE, 1 }, { (void *)BASE, SIZE_MAX } }, 2, -EINVAL },
		{ { { (void *)BASE, 1 }, { (void *)top, 1 } }, 2, -EINVAL },
		{ { { (void *)BASE, 1 }, { (void *)(top - 99), 100 } }, 2, -EINVAL },
		{ { { (void *)BASE, 1 }, { (void *)(top - 99), 101 } }, 2, -EINVAL },
		{ { { (void *)BASE, UINT32_MAX }, { (void *)top, 5 } }, 2, -EINVAL },
		{ { { (void *)BASE, SIZE_MAX / 2 }, { (void *)BASE, SIZE_MAX / 2 }, { (void *)BASE, 2 } }, 3, -EOVERFLOW },
		{ { { (void *)BASE, 1 }, { (void *)BASE, UINT32_MAX } }, 2, -EOVERFLOW },
		{ { { (void *)BASE, (size_t)1 << 32 } }, 1, -EOVERFLOW },
		{ { { (void *)BASE, (size_t)1 << 31 }, { NULL, 0 }, { (void *)(BASE + 1), (size_t)1 << 31 } }, 3, -EOVERFLOW },
		{ { { (void *)BASE, 1 } }, -1, -EINVAL },
	};

	clear();
	add_reg(1, UINTPTR_MAX, 7, true);
	memset(&info, 0x5a, sizeof info);
	before = info;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (!EXPECT_EQ(map_to(bad[i].iov, bad[i].n, sge, 8, pin, 8, &info), bad[i].error))
			printf("# piece list %zu\n", i);
	EXPECT_EQ(map_to(NULL, 1, sge, 8, pin, 8, &info), -EINVAL);
	EXPECT_EQ(map_to(bad[0].iov, 1, NULL, 8, pin, 8, &info), -EINVAL);
	EXPECT_EQ(map_to(bad[0].iov, 1, sge, 8, NULL, 8, &info), -EINVAL);
	EXPECT_EQ(map_to(bad[0].iov, 1, sge, -1, pin, 8, &info), -EINVAL);
	EXPECT_EQ(map_to(bad[0].iov, 1, sge, 8, pin, -1, &info), -EINVAL);
	EXPECT_EQ(hugepin_sg_map(bad[0].iov, 1, 0, NULL, NULL, sge, 8, pin, 8, &info), -EINVAL);
	EXPECT_EQ(table.calls, 0);
	EXPECT(memcmp(&info, &before, sizeof info) == 0);
}

TEST(what_just_fits_a_work_request_is_mapped)
{
	struct iovec iov[] = { { (void *)(UINTPTR_MAX - 100), 100 }, { (void *)(UINTPTR_MAX - 1), 0 },
			       { (void *)BASE, UINT32_MAX - 101 }, { (void *)(BASE + UINT32_MAX - 101), 1 } };
	struct hugepin_sge sge[2];
	struct hugepin_pin pin[2];
	struct hugepin_sg_info info;

	clear();
	add_reg(1, UINTPTR_MAX, 7, true);
	EXPECT_EQ(map_to(iov, 4, sge, 2, pin, 1, &info), 2);
	EXPECT(info.bytes == UINT32_MAX && info.lines == (UINT32_MAX - 100 + 63) / 64 + 2);
	EXPECT(sge[0].length == 100 && sge[1].addr == BASE && sge[1].length == UINT32_MAX - 100);
	EXPECT_EQ(map_to(NULL, 0, NULL, 0, NULL, 0, &info), 0);
	EXPECT(!info.bytes && !info.sges && !info.pins && !info.lines);
	EXPECT_EQ(map_to(&iov[1], 1, NULL, 0, NULL, 0, NULL), 0);
}

static struct hugepin_pin odd_pin;
static int odd_out, odd_result;

static int odd_key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	(void)arg, (void)len, (void)access;
	if (!addr) {
		EXPECT(ret_->ref == odd_pin.ref && ret_->base == odd_pin.base);
		odd_out--;
		return 0;
	}
	if (odd_result)
		return odd_result;
	odd_out += odd_pin.ref != 0;
	*ret_ = odd_pin;
	return 0;
}

TEST(a_key_function_that_returns_another_range_is_found_out)
{
	static const uint64_t ranges[][2] = { { BASE, 0 }, { BASE - 10, 10 }, { BASE + 1, 100 }, { BASE - 10, 5 },
					      { BASE + 1, UINT64_MAX }, { 0, 0 }, { UINT64_MAX, UINT64_MAX } };
	struct iovec iov = { (void *)BASE, 100 };
	struct hugepin_sge sge[4];
	struct hugepin_pin pin[4];

	for (uint64_t ref = 0; ref < 2; ref++)
		for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
			odd_pin = (struct hugepin_pin){ ranges[i][0], ranges[i][1], 1, 1, ref };
			EXPECT_EQ(hugepin_sg_map(&iov, 1, 0, odd_key, NULL, sge, 4, pin, 4, NULL), -EINVAL);
			EXPECT_EQ(odd_out, 0);
		}
	/* Every address has one key. */
	odd_pin = (struct hugepin_pin){ 0, UINT64_MAX, 1, 1, 0 };
	EXPECT_EQ(hugepin_sg_map(&iov, 1, 0, odd_key, NULL, sge, 4, NULL, 0, NULL), 1);
	odd_result = 1;
	EXPECT_EQ(hugepin_sg_map(&iov, 1, 0, odd_key, NULL, sge, 4, pin, 4, NULL), -EINVAL);
}

/* ------------------------------------------------------------------ layouts */

enum { BLOCKS = 12 };

static uint64_t flat[2][BLOCKS * 64];

static int flatten(const struct iovec *iov, int n, uint64_t *ret_)
{
	int bytes = 0;

	for (int i = 0; i < n; i++) {
		EXPECT(iov[i].iov_len > 0);
		EXPECT(!i || (uintptr_t)iov[i].iov_base != (uintptr_t)iov[i - 1].iov_base + iov[i - 1].iov_len);
		for (size_t k = 0; k < iov[i].iov_len; k++)
			ret_[bytes++] = (uintptr_t)iov[i].iov_base + k;
	}
	return bytes;
}

/* The pieces have these bytes, and no fewer pieces have. */
static void check_pieces(const struct iovec *iov, int n, int bytes)
{
	if (!EXPECT_EQ(flatten(iov, n, flat[1]), bytes))
		return;
	EXPECT(memcmp(flat[0], flat[1], (size_t)bytes * sizeof flat[0][0]) == 0);
}

TEST(a_strided_layout_is_its_blocks)
{
	struct iovec iov[BLOCKS];

	for (int round = 0; round < 20000; round++) {
		size_t block = any(4) ? any(64) : 8, count = any(BLOCKS + 1);
		ptrdiff_t stride = any(3) ? (ptrdiff_t)any(200) - 100 : any(2) ? (ptrdiff_t)block : -(ptrdiff_t)block;
		int bytes = 0, n;

		for (size_t i = 0; i < count; i++)
			for (size_t k = 0; k < block; k++)
				flat[0][bytes++] = BASE + i * (size_t)stride + k;
		n = hugepin_sg_strided((void *)BASE, block, stride, count, iov, BLOCKS);
		if (!EXPECT(n >= 0))
			continue;
		check_pieces(iov, n, bytes);
		if (n) {
			EXPECT_EQ(hugepin_sg_strided((void *)BASE, block, stride, count, iov, n), n);
			EXPECT_EQ(hugepin_sg_strided((void *)BASE, block, stride, count, n == 1 ? NULL : iov, n - 1), -EMSGSIZE);
		}
	}
}

TEST(a_strided_layout_that_leaves_the_address_space_is_refused)
{
	struct iovec iov[4];
	const size_t half = (size_t)1 << 63;

	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 8, PTRDIFF_MAX, 4, iov, 4), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 8, PTRDIFF_MIN, 2, iov, 4), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 8, -(ptrdiff_t)(BASE / 2), 3, iov, 4), -EINVAL); /* at NULL */
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 8, -(ptrdiff_t)(BASE / 2), 2, iov, 4), 2);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 8, -(ptrdiff_t)(BASE / 2), 4, iov, 4), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided((void *)(UINTPTR_MAX - 100), 8, 31, 4, iov, 4), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided((void *)(UINTPTR_MAX - 101), 8, 31, 4, iov, 4), 4);
	EXPECT_EQ(hugepin_sg_strided((void *)half, half, 0, 1, iov, 4), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided((void *)half, half - 1, 0, 1, iov, 4), 1);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 16, 16, SIZE_MAX / 16, iov, 4), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 16, 16, SIZE_MAX, iov, 4), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 16, 0, SIZE_MAX, iov, 4), -EMSGSIZE);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 16, 0, (size_t)INT_MAX + 2, iov, 4), -EMSGSIZE);
	EXPECT_EQ(hugepin_sg_strided(NULL, 8, 8, 2, iov, 4), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 8, 8, 2, NULL, 4), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, 8, 8, 2, iov, -1), -EINVAL);
	EXPECT_EQ(hugepin_sg_strided(NULL, 0, 8, 2, NULL, 0), 0);
	EXPECT_EQ(hugepin_sg_strided(NULL, 8, 8, 0, NULL, 0), 0);
	EXPECT_EQ(hugepin_sg_strided((void *)BASE, (size_t)1 << 30, (ptrdiff_t)1 << 30, 64, iov, 1), 1);
	EXPECT_EQ(iov[0].iov_len, (size_t)1 << 36);
}

TEST(an_indexed_layout_is_its_blocks)
{
	struct iovec iov[BLOCKS];
	size_t off[BLOCKS], len[BLOCKS];

	for (int round = 0; round < 20000; round++) {
		size_t count = any(BLOCKS + 1), at = 0;
		int bytes = 0, n;

		for (size_t i = 0; i < count; i++) {
			off[i] = any(3) ? any(400) - 200 : at;
			len[i] = any(4) ? any(64) : 0;
			at = off[i] + len[i];
			for (size_t k = 0; k < len[i]; k++)
				flat[0][bytes++] = BASE + off[i] + k;
		}
		n = hugepin_sg_indexed((void *)BASE, off, len, count, iov, BLOCKS);
		if (!EXPECT(n >= 0))
			continue;
		check_pieces(iov, n, bytes);
		if (n) {
			EXPECT_EQ(hugepin_sg_indexed((void *)BASE, off, len, count, iov, n), n);
			EXPECT_EQ(hugepin_sg_indexed((void *)BASE, off, len, count, n == 1 ? NULL : iov, n - 1), -EMSGSIZE);
		}
	}
	off[0] = 0;
	len[0] = SIZE_MAX - BASE + 1;
	EXPECT_EQ(hugepin_sg_indexed((void *)BASE, off, len, 1, iov, BLOCKS), -EINVAL);
	off[0] = (size_t)0 - BASE;
	len[0] = 1;
	EXPECT_EQ(hugepin_sg_indexed((void *)BASE, off, len, 1, iov, BLOCKS), -EINVAL);
	len[0] = 0;
	EXPECT_EQ(hugepin_sg_indexed((void *)BASE, off, len, 1, NULL, 0), 0);
	EXPECT_EQ(hugepin_sg_indexed(NULL, NULL, NULL, 0, NULL, 0), 0);
	EXPECT_EQ(hugepin_sg_indexed((void *)BASE, NULL, len, 1, iov, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_indexed((void *)BASE, off, NULL, 1, iov, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_indexed((void *)BASE, off, len, 1, NULL, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_indexed((void *)BASE, off, len, 1, iov, -1), -EINVAL);
}

/* ------------------------------------------------------------------ placement */

TEST(lines_are_those_that_the_pieces_touch)
{
	struct iovec iov[PIECES];
	struct iovec large[] = { { (void *)64, SIZE_MAX - 64 }, { (void *)1, SIZE_MAX - 1 } };

	for (int round = 0; round < 20000; round++) {
		int n = random_pieces(iov);
		unsigned lines = 0;

		for (int i = 0; i < n; i++)
			if (iov[i].iov_len)
				lines += (unsigned)(((uintptr_t)iov[i].iov_base + iov[i].iov_len - 1) / 64 -
						    (uintptr_t)iov[i].iov_base / 64 + 1);
		EXPECT_EQ(hugepin_sg_lines(iov, n), lines);
	}
	EXPECT_EQ(hugepin_sg_lines(large, 2), UINT_MAX);
	large[0] = (struct iovec){ (void *)63, (size_t)UINT_MAX * 64 - 190 };
	EXPECT_EQ(hugepin_sg_lines(large, 1), UINT_MAX - 1);
	EXPECT_EQ(hugepin_sg_lines(NULL, 5), 0);
	EXPECT_EQ(hugepin_sg_lines(iov, -5), 0);
}

/* Cache lines of the pieces whose load lies, modulo a page, less than 128 bytes behind the store of the same copy. */
static size_t waits(const struct iovec *iov, int n, size_t len, size_t offset)
{
	size_t at = 0, sum = 0;

	for (int i = 0; i < n; i++) {
		size_t piece = iov[i].iov_len < len - at ? iov[i].iov_len : len - at;
		size_t distance = (offset + at - (uintptr_t)iov[i].iov_base) % 4096;

		if (distance >= 1 && distance <= 127)
			sum += (piece + 63) / 64;
		at += piece;
	}
	return sum;
}

TEST(a_slot_begins_where_the_fewest_loads_wait_for_stores)
{
	struct iovec iov[PIECES];

	for (int round = 0; round < 20000; round++) {
		int n = random_pieces(iov);
		size_t len = any(2) ? any(SPACE) : any(10 * SPACE), offset, best = 0;

		for (size_t o = 0; o < 4096; o += 64) {
			size_t w = waits(iov, n, len, o), least = waits(iov, n, len, best);
			bool shorter = len && (o + len - 1) / 4096 < (best + len - 1) / 4096;

			if (w < least || (w == least && shorter))
				best = o;
		}
		offset = hugepin_sg_offset(iov, n, len);
		if (!EXPECT_EQ(offset, best))
			return;
	}
	/* A page copied 8 bytes behind itself is the worst that there is. */
	iov[0] = (struct iovec){ (void *)(BASE + 4096 - 8), 4096 };
	EXPECT(hugepin_sg_offset(iov, 1, 4096) == 128);
	EXPECT_EQ(hugepin_sg_offset(NULL, 3, 100), 0);
	EXPECT_EQ(hugepin_sg_offset(iov, -3, 100), 0);
	EXPECT_EQ(hugepin_sg_offset(iov, 1, 0), 0);
}

T_MAIN
