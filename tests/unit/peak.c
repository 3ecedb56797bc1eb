/* When the statistics at exit may look at memory: in virtual time. */
#include "alloc/peak.h"

#include "tests/t.h"

enum { MS = 1000000 };

TEST(a_look_that_the_host_delayed_does_not_put_off_the_look_before_memory_leaves)
{
	const uint64_t start = 5000ull * MS;
	uint64_t due = 0;

	due = hp_peak_due(due, start, 15 * MS);
	EXPECT(due <= start + 300 * MS); /* memory goes back after a decay time of 300 ms */
}

TEST(looks_take_a_50th_of_the_time_and_of_one_second_that_was_saved)
{
	const uint64_t start = 5000ull * MS, end = start + 100000ull * MS;
	uint64_t due = 0, took = 0, now = start;

	while (now < end) {
		const uint64_t spent = (now / MS % 7 + 1) * MS / 2;

		if (now < due) {
			now += MS;
			continue;
		}
		due = hp_peak_due(due, now, spent);
		took += spent;
		now += spent;
	}
	EXPECT(took <= (end - start + HP_PEAK_SAVED_NS) / HP_PEAK_SHARE + 4 * MS);
	EXPECT(took >= (end - start) / HP_PEAK_SHARE - 4 * MS);
}

T_MAIN
