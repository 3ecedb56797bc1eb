/*
 * What is watched against a naive model, by random changes: the depth of uses at each address, and a list of parts.
 */
#include "reg/watched.h"

#include <string.h>

#include "tests/any.h"
#include "tests/t.h"

enum { N = 300, USES = 60 };
static struct hp_watched w;
static struct hp_stretch use[USES], part[N];
static unsigned uses, parts, depth[N + 1];

static bool is_apart(struct hp_stretch a, struct hp_stretch b)
{
	return a.end <= b.start || b.end <= a.start;
}

static bool is_used(struct hp_stretch p)
{
	for (uintptr_t at = p.start; at < p.end; at++)
		if (depth[at])
			return true;
	return false;
}

static struct hp_stretch any_stretch(void)
{
	const uintptr_t start = 1 + any(N - 1), len = 1 + any(any(8) ? 12 : 200);

	return (struct hp_stretch){ start, HP_MIN(start + len, (uintptr_t)N) };
}

static void add_use(struct hp_stretch s)
{
	EXPECT(hp_watched_use(&w, s.start, s.end));
	use[uses++] = s;
	for (uintptr_t at = s.start; at < s.end; at++)
		depth[at]++;
}

static void end_use(unsigned i)
{
	hp_watched_end_use(&w, use[i].start, use[i].end);
	for (uintptr_t at = use[i].start; at < use[i].end; at++)
		depth[at]--;
	use[i] = use[--uses];
}

/* Parts that touch become one. */
static void add_part(struct hp_stretch s)
{
	EXPECT(hp_watched_add(&w, s.start, s.end, false));
	for (unsigned i = 0; i < parts;)
		if (part[i].end < s.start || s.end < part[i].start) {
			i++;
		} else {
			s = (struct hp_stretch){ HP_MIN(s.start, part[i].start), HP_MAX(s.end, part[i].end) };
			part[i] = part[--parts];
			i = 0;
		}
	part[parts++] = s;
}

static void cut(struct hp_stretch s)
{
	struct hp_stretch all = s, got = hp_watched_cut(&w, s.start, s.end);

	for (unsigned i = 0; i < parts;) {
		const struct hp_stretch p = part[i];

		if (is_apart(p, s)) {
			i++;
			continue;
		}
		all = (struct hp_stretch){ HP_MIN(all.start, p.start), HP_MAX(all.end, p.end) };
		part[i] = part[--parts];
		if (p.start < s.start)
			part[parts++] = (struct hp_stretch){ p.start, s.start };
		if (p.end > s.end)
			part[parts++] = (struct hp_stretch){ s.end, p.end };
		i = 0;
	}
	EXPECT_EQ(got.start, all.start);
	EXPECT_EQ(got.end, all.end);
}

static void take_idle(struct hp_stretch s)
{
	struct hp_stretch got;
	unsigned first = N;

	for (unsigned i = 0; i < parts; i++)
		if (!is_apart(part[i], s) && !is_used(part[i]) && (first == N || part[i].start < part[first].start))
			first = i;
	if (!EXPECT_EQ(hp_watched_take_idle(&w, s.start, s.end, SIZE_MAX, &got), first < N) || first == N)
		return;
	EXPECT_EQ(got.start, part[first].start);
	EXPECT_EQ(got.end, part[first].end);
	part[first] = part[--parts];
}

/* Returns the number of uses of the ranges below c, each of which has some. */
static unsigned count_uses(const struct hp_covering *c)
{
	const struct hp_watched_range *r = (const struct hp_watched_range *)c;

	return r && EXPECT(r->uses > 0) ? r->uses + count_uses(RB_LEFT(c, node)) + count_uses(RB_RIGHT(c, node)) : 0;
}

static void expect_same(void)
{
	struct hp_stretch found = { 0 };

	EXPECT_EQ(count_uses(RB_ROOT(&w.uses)), uses);
	for (uintptr_t at = 0; at < N; at++)
		EXPECT_EQ(hp_covered_first(&w.uses, at, at + 1) != NULL, depth[at] != 0);
	EXPECT_EQ(w.count, parts);
	for (unsigned i = 0; i < parts; i++)
		EXPECT(hp_watched_first(&w, part[i].start + (part[i].start + 1 < part[i].end), N, &found) &&
		       found.start == part[i].start + (part[i].start + 1 < part[i].end) && found.end == part[i].end);
}

TEST(uses_and_parts_are_those_of_a_naive_model)
{
	for (int i = 0; i < 100000 && !t_failures; i++) {
		const struct hp_stretch s = any_stretch();

		switch (any(6)) {
		case 0:
			if (uses < USES)
				add_use(s);
			break;
		case 1:
		case 2:
			if (uses)
				end_use((unsigned)any(uses));
			break;
		case 3:
			add_part(s);
			break;
		case 4:
			cut(s);
			break;
		default:
			take_idle(s);
		}
		expect_same();
	}
	while (uses)
		end_use(0);
	EXPECT(RB_EMPTY(&w.uses));
	while (parts)
		take_idle((struct hp_stretch){ 0, N });
	EXPECT(RB_EMPTY(&w.parts));
	EXPECT(w.made < 2 * USES + N); /* ranges are used again */
}

TEST(a_use_that_was_never_added_ends_nothing)
{
	add_use((struct hp_stretch){ 10, 20 });
	hp_watched_end_use(&w, 11, 20);
	hp_watched_end_use(&w, 30, 40);
	expect_same();
	end_use(0);
	expect_same();
}

TEST(a_part_that_lasts_or_is_long_is_not_idle_and_goes_with_all)
{
	struct hp_stretch got;

	EXPECT(hp_watched_add(&w, 10, 20, false));
	EXPECT(hp_watched_add(&w, 20, 30, true)); /* they touch */
	EXPECT(hp_watched_add(&w, 40, 60, false));
	EXPECT(hp_watched_add(&w, 70, 80, false) && hp_watched_add(&w, 90, 99, false));
	hp_watched_last(&w, 79, 91);
	EXPECT(!hp_watched_take_idle(&w, 0, N, 19, &got));
	hp_watched_cut(&w, 15, 16);
	EXPECT_EQ(w.count, 5);
	EXPECT(hp_watched_take_idle(&w, 0, N, 20, &got) && got.start == 40);
	EXPECT(!hp_watched_take_idle(&w, 0, N, SIZE_MAX, &got));
	hp_watched_cut(&w, 70, 99);
	EXPECT(hp_watched_take_any(&w, &got) && got.start == 10 && got.end == 15);
	EXPECT(hp_watched_take_any(&w, &got) && got.start == 16 && got.end == 30);
	EXPECT(!hp_watched_take_any(&w, &got));
}

static bool around(uintptr_t at, uintptr_t start, uintptr_t end)
{
	const struct hp_stretch got = hp_watched_around(&w, at, (struct hp_stretch){ 0, N });

	return EXPECT_EQ(got.start, start) && EXPECT_EQ(got.end, end);
}

TEST(a_threads_last_announcement_counts_until_it_or_its_memory_is_wanted)
{
	around(50, 0, N);
	hp_watched_announce(&w, 100, 110, 1);
	hp_watched_announce(&w, 20, 30, 2);
	hp_watched_announce(&w, 22, 40, 3); /* the second is replaced, since it overlaps */
	around(50, 40, 100);
	around(10, 0, 22);
	hp_watched_announce(&w, 60, 70, 1);
	around(50, 40, 60);
	around(200, 70, N);
	hp_watched_want(&w, 0, 60, 4);
	around(50, 0, 60);
	hp_watched_want(&w, 200, 201, 1);
	around(50, 0, N);
}

TEST(if_too_many_threads_announce_the_oldest_announcement_is_dropped)
{
	for (unsigned i = 0; i < HP_WATCHED_GOING_MAX; i++)
		hp_watched_announce(&w, 100 + i, 101 + i, (int)i + 1);
	for (unsigned i = 0; i < 2 * HP_WATCHED_GOING_MAX; i++) /* one thread's do not count for more */
		hp_watched_announce(&w, 120, 121, 21);
	around(50, 0, 100);
	hp_watched_announce(&w, 200, 201, 1000);
	hp_watched_announce(&w, 210, 211, 1001);
	around(50, 0, 102);
	around(205, 201, 210);
	hp_watched_clear(&w);
	around(50, 0, N);
}

TEST(in_a_child_nothing_is_watched)
{
	add_use((struct hp_stretch){ 10, 20 });
	add_part((struct hp_stretch){ 10, 30 });
	hp_watched_clear(&w);
	uses = parts = 0;
	memset(depth, 0, sizeof depth);
	expect_same();
	EXPECT(!hp_watched_first(&w, 0, N, &(struct hp_stretch){ 0 }));
}

T_MAIN
