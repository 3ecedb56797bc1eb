/*
 * alloc/touched.c: when a process touches little of its buffers, and when it does not any more.
 */
#include "alloc/touched.h"

#include "tests/t.h"

static void add(struct hp_touched *t, unsigned count, bool little)
{
	while (count--)
		hp_touched_add(t, little);
}

TEST(sixteen_buffers_touched_little_decide)
{
	struct hp_touched t = { 0 };

	add(&t, HP_TOUCHED_MIN - 1, true);
	EXPECT(!t.sparse);
	add(&t, 1, true);
	EXPECT(t.sparse);
	EXPECT(!hp_touched_is_dense(&t));
}

TEST(one_filled_buffer_in_nine_forbids)
{
	struct hp_touched t = { 0 };

	for (int i = 0; i < 10000; i++) {
		add(&t, 1, i % 9 != 0);
		EXPECT(!t.sparse);
	}
}

TEST(filled_buffers_take_the_decision_back)
{
	struct hp_touched t = { 0 };

	add(&t, 1000, true);
	EXPECT(t.sparse);
	add(&t, HP_TOUCHED_MIN, false);
	EXPECT(!t.sparse);
	EXPECT(!hp_touched_is_dense(&t)); /* the window begins anew */
	add(&t, HP_TOUCHED_MIN, false);
	EXPECT(hp_touched_is_dense(&t));
}

TEST(each_reversal_doubles_what_the_next_decision_needs)
{
	struct hp_touched t = { 0 };

	for (unsigned r = 0; r < 20; r++) {
		unsigned needed = 0, back = 0;

		for (; !t.sparse; needed++)
			add(&t, 1, true);
		EXPECT_EQ(needed, HP_TOUCHED_MIN << (r < 8 ? r : 8));
		for (; t.sparse; back++)
			add(&t, 1, false);
		EXPECT(back <= needed);
	}
}

/* Beside a window of all buffers since the last reversal: what is decided here is never far from what is true there. */
TEST(the_decision_follows_the_share)
{
	uint32_t random = 1;

	for (int percent = 0; percent <= 100; percent += 5) {
		struct hp_touched t = { 0 };

		for (int i = 0; i < 20000; i++) {
			random = random * 1664525 + 1013904223;
			add(&t, 1, (int)((random >> 16) % 100) < percent);
			EXPECT(t.little <= t.looked);
		}
		if (percent <= 60)
			EXPECT(!t.sparse && hp_touched_is_dense(&t));
		if (percent == 100)
			EXPECT(t.sparse);
	}
}

T_MAIN
