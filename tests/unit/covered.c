/*
 * Addresses that ranges cover, against the number of ranges for each address, by random changes.
 */
#include "reg/covered.h"

#include "base/base.h"
#include "tests/any.h"
#include "tests/t.h"

enum { N = 400, RANGES = 60 };
static unsigned depth[N + 1];
static bool told[N + 1];

static int tell(uintptr_t start, uintptr_t end)
{
	EXPECT(start < end && end <= N);
	for (uintptr_t a = start; a < end; a++) {
		EXPECT(!told[a]);
		told[a] = true;
	}
	return -(int)start - 1;
}

static void expect_same(struct hp_covered *c, uintptr_t start, uintptr_t end, bool covered)
{
	int first = 0, err;
	bool any = false;

	memset(told, 0, sizeof told);
	err = hp_covered_each(c, start, end, covered, tell);
	for (uintptr_t a = 0; a <= N; a++) {
		bool is = a >= start && a < end && (depth[a] != 0) == covered;

		if (!EXPECT_EQ(told[a], is))
			return;
		first = is && !first ? -(int)a - 1 : first;
		any |= a >= start && a < end && depth[a];
	}
	EXPECT_EQ(err, first);
	EXPECT_EQ(hp_covered_any(c, start, end), any);
}

TEST(what_is_covered_is_what_some_range_covers)
{
	static struct hp_covering range[RANGES];
	static bool in[RANGES];
	struct hp_covered c = RB_INITIALIZER(&c);

	for (int i = 0; i < 100000 && !t_failures; i++) {
		unsigned k = (unsigned)any(RANGES);
		struct hp_covering *r = &range[k];

		if (!in[k]) {
			uintptr_t start = any(any(3) ? 10 : N), end = start + 1 + any(any(3) ? 12 : N);

			r->start.addr = start;
			r->end.addr = HP_MIN(end, (uintptr_t)N);
			hp_covered_add(&c, r);
		} else {
			hp_covered_drop(&c, r);
		}
		in[k] = !in[k];
		for (uintptr_t a = r->start.addr; a < r->end.addr; a++)
			depth[a] += in[k] ? 1 : -1u;
		if (i % 4 == 0) {
			uintptr_t start = any(N), end = start + 1 + any(N - start);

			expect_same(&c, start, end, any(2));
			expect_same(&c, 0, N, any(2));
		}
	}
}

T_MAIN
