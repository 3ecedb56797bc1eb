/*
 * Addresses that ranges cover, against the number of ranges for each address, by random changes.
 */
#include "reg/covered.h"

#include <stdlib.h>

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
	EXPECT_EQ(hp_covered_first(c, start, end) != NULL, any);
}

/* Whether every range below r knows the largest end below it. Returns the height of the tree. */
static int expect_ends(const struct hp_covering *r)
{
	uintptr_t last;
	int left, right;

	if (!r)
		return 0;
	left = expect_ends(RB_LEFT(r, node));
	right = expect_ends(RB_RIGHT(r, node));
	last = HP_MAX(r->end, HP_MAX(left ? RB_LEFT(r, node)->last : 0, right ? RB_RIGHT(r, node)->last : 0));
	EXPECT_EQ(r->last, last);
	return 1 + HP_MAX(left, right);
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

			r->start = start;
			r->end = HP_MIN(end, (uintptr_t)N);
			hp_covered_add(&c, r);
		} else {
			hp_covered_drop(&c, r);
		}
		in[k] = !in[k];
		for (uintptr_t a = r->start; a < r->end; a++)
			depth[a] += in[k] ? 1 : -1u;
		if (i % 4 == 0) {
			uintptr_t start = any(N), end = start + 1 + any(N - start);

			expect_same(&c, start, end, any(2));
			expect_same(&c, 0, N, any(2));
			EXPECT_EQ(hp_covered_find(&c, r->start, r->end + N), NULL);
			EXPECT(!in[k] || hp_covered_find(&c, r->start, r->end)->end == r->end);
		}
		expect_ends(RB_ROOT(&c));
	}
}

/* All ranges of 512 pages. Changes of some of them are compared with what was before. */
TEST(a_change_touches_few_ranges_however_many_overlap)
{
	enum { PAGES = 512, RANGES_ALL = PAGES * (PAGES + 1) / 2, HEIGHT = 2 * 18, SOME = 1000 };
	struct hp_covering *range = calloc(RANGES_ALL, sizeof *range), *r = range;
	struct hp_covering *before = malloc(RANGES_ALL * sizeof *range);
	struct hp_covered c = RB_INITIALIZER(&c);

	for (uintptr_t from = 0; from < PAGES; from++)
		for (uintptr_t to = from + 1; to <= PAGES; to++, r++) {
			r->start = from;
			r->end = to;
			hp_covered_add(&c, r);
		}
	EXPECT(expect_ends(RB_ROOT(&c)) <= HEIGHT); /* so each search takes so many steps */
	for (r = range; r < range + RANGES_ALL; r += SOME)
		for (int add = 0; add <= 1; add++) {
			int touched = 0;

			memcpy(before, range, RANGES_ALL * sizeof *range);
			if (add)
				hp_covered_add(&c, r);
			else
				hp_covered_drop(&c, r);
			for (size_t i = 0; i < RANGES_ALL; i++)
				touched += memcmp(&before[i], &range[i], sizeof *range) != 0;
			EXPECT(touched <= 2 * HEIGHT);
		}
	free(before);
	free(range);
}

T_MAIN
