/*
 * Sets of ranges against a map of bits, by random changes.
 */
#include "base/ranges.h"

#include "tests/any.h"
#include "tests/t.h"

enum { N = 700 };
static bool model[N + 2];

static void expect_same(const struct hp_ranges *r)
{
	size_t i = 0;

	for (uintptr_t a = 1; a <= N;) {
		uintptr_t b = a;

		if (!model[a]) {
			a++;
			continue;
		}
		while (b <= N && model[b])
			b++;
		if (!EXPECT(i < r->count) || !EXPECT_EQ(r->at[i].start, a) || !EXPECT_EQ(r->at[i].end, b))
			return;
		i++;
		a = b;
	}
	EXPECT_EQ(r->count, i);
}

TEST(ranges_are_what_was_put_in_and_not_taken_out)
{
	struct hp_ranges r = { .count = 0 };
	size_t most = 0;

	for (int i = 0; i < 200000; i++) {
		uintptr_t start = 1 + any(N), len = any(any(20) ? 4 : 300), end = HP_MIN(start + len, (uintptr_t)N + 1);
		bool on = any(2);

		EXPECT(hp_ranges_reserve(&r));
		hp_ranges_set(&r, start, end, on);
		for (uintptr_t a = start; a < end; a++)
			model[a] = on;
		most = HP_MAX(most, r.count);
		if (i % 16)
			continue;
		expect_same(&r);
		for (int k = 0; k < 8; k++) {
			uintptr_t at = any(N + 2), a = at;
			const struct hp_stretch *next = hp_ranges_next(&r, at);

			while (a <= N && !model[a])
				a++;
			EXPECT(next ? a <= N && next->start <= HP_MAX(a, at) && next->end > a : a > N);
		}
		if (t_failures)
			return;
	}
	EXPECT(most > 50);
	hp_meta_unmap(r.at, r.max * sizeof *r.at);
}

TEST(more_ranges_than_there_was_room_for)
{
	struct hp_ranges r = { .count = 0 };

	for (uintptr_t i = 0; i < 10000; i++) {
		EXPECT(hp_ranges_reserve(&r));
		hp_ranges_set(&r, 4 * i + 1, 4 * i + 3, true);
	}
	EXPECT_EQ(r.count, 10000);
	hp_ranges_set(&r, 3, 39999, false);
	EXPECT_EQ(r.count, 1);
	EXPECT_EQ(r.at[0].end, 3);
	hp_meta_unmap(r.at, r.max * sizeof *r.at);
}

T_MAIN
