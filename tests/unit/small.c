/*
 * Memory of the small tier in extents of the heap (HUGEPIN_SMALL_PINNED): whose it is, that it is zero, and that it goes back.
 */
#include "alloc/heap.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "base/stats.h"
#include "tests/live/live.h"
#include "tests/unit/empty.h"
#include "tests/unit/told.h"

enum { COUNT = 12, LEN_MAX = 5 << 20 };

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)GIB;
	hp_config.extent_max = (int64_t)(16 * MIB);
	hp_config.decay_ms = 0;
	hp_config.small_pinned = true;
	hp_config.pages = HP_PAGES_THP;
}

static bool is_small(const char *p, size_t len)
{
	uintptr_t base;
	size_t size;

	return hugepin_small_part_(&base, &size) == 0 && (uintptr_t)p >= base && (uintptr_t)p + len <= base + size;
}

TEST(memory_that_is_given_back_is_had_again_and_is_zero)
{
	uintptr_t base;
	size_t size;
	char *p, *q;

	EXPECT_EQ(hugepin_small_part_(&base, &size), 0);
	p = hugepin_small_map_(NULL, 64 * KIB);
	q = hugepin_small_map_(NULL, 64 * KIB);
	if (!EXPECT(p && q && q >= p + 64 * KIB))
		return;
	EXPECT(is_small(p, 64 * KIB) && is_small(q, 64 * KIB));
	EXPECT(!hugepin_small_map_(p, 4096)); /* it is taken */
	for (int i = 0; i < 3; i++) {
		memset(p, 7, 64 * KIB);
		hugepin_small_unmap_(p, 64 * KIB);
		EXPECT(hugepin_small_map_(i == 1 ? p : NULL, 64 * KIB) == p);
		EXPECT_EQ(zero_check(p, 64 * KIB), -1);
	}
	EXPECT_EQ(hp_span.small_taken, 2 * 16);
	hugepin_small_unmap_(p, 64 * KIB);
	hugepin_small_unmap_(q, 64 * KIB);
	EXPECT_EQ(hp_span.small_taken, 0);
	hugepin_purge();
	expect_empty();
}

/* Parts of what was mapped may be given back, each by itself. */
TEST(at_random_nobody_has_anothers_memory_and_all_goes_back)
{
	static struct { char *p; size_t len; uint64_t seed; } some[COUNT];
	uint64_t rand = 424242;
	size_t taken = 0;

	for (int i = 0; i < 3000; i++) {
		const uint64_t r = rand_next(&rand);
		const int k = (int)(r % COUNT);
		size_t cut = some[k].len > 8192 && r >> 8 & 1 ? some[k].len / 8192 * 4096 : 0;

		if (some[k].p) {
			EXPECT_EQ(pattern_check(some[k].p, some[k].len, some[k].seed), -1);
			hugepin_small_unmap_(some[k].p + cut, some[k].len - cut);
			taken -= (some[k].len - cut) / 4096;
			some[k].len = cut;
			if (!cut)
				some[k].p = NULL;
		} else {
			some[k].len = hp_round_up(rand_size(&rand, 1, LEN_MAX), 4096);
			some[k].seed = r;
			some[k].p = hugepin_small_map_(NULL, some[k].len);
			if (!EXPECT(some[k].p))
				return;
			EXPECT_EQ(zero_check(some[k].p, some[k].len), -1);
			EXPECT((uintptr_t)some[k].p % (some[k].len < HP_PAGE ? 4096 : HP_PAGE) == 0);
			pattern_write(some[k].p, some[k].len, r);
			taken += some[k].len / 4096;
		}
		EXPECT_EQ(hp_span.small_taken, taken);
	}
	for (int k = 0; k < COUNT; k++)
		if (some[k].p)
			hugepin_small_unmap_(some[k].p, some[k].len);
	hugepin_purge();
	expect_empty();
}

LIVE_MAIN
