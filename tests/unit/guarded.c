/*
 * Guards behind buffers (alloc/guard.c) where there may be few mappings: as many guards as there may be borders, and what the
 * kernel has is what was counted.
 */
#include "alloc/guard.h"

#include "alloc/heap.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "tests/live/live.h"
#include "tests/unit/empty.h"

enum { BUFFERS = 30, SIZE = 40000 };

static unsigned char *buffers[BUFFERS];

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)(1 * GIB);
	hp_config.pages = HP_PAGES_BASE;
	hp_config.decay_ms = 0;
	hp_config.guard = 1;
	hp_config.abort_on_misuse = 0;
}

static size_t parts_of_span(void)
{
	return smaps_kinds(0, hp_span.base, hp_span.base + hp_span.size).mappings;
}

static void fill(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		buffers[i] = hugepin_malloc(SIZE);
		EXPECT(buffers[i] != NULL);
		memset(buffers[i], i, SIZE);
	}
}

static void drop(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		EXPECT_EQ(buffers[i][SIZE - 1], i);
		hugepin_free(buffers[i]);
	}
}

TEST(there_are_as_many_guards_as_borders_that_may_be)
{
	uint64_t missing;
	size_t most;

	hugepin_free(hugepin_malloc(SIZE));
	hugepin_purge();
	for (size_t few = 5; few <= 20; few += 5) {
		hp_span.heads_max = few;
		for (int again = 0; again < 3; again++) {
			missing = HP_STAT(guard_missing);
			fill();
			most = parts_of_span();
			missing = HP_STAT(guard_missing) - missing;
			EXPECT(missing >= BUFFERS - few && missing <= BUFFERS - few + 1); /* one border may be left */
			EXPECT_EQ(HP_STAT(guard_bytes), BUFFERS * HP_CHUNK);
			EXPECT(most >= 2 * few && most <= 2 * few + 6); /* and where extents begin and end */
			drop();
			EXPECT(parts_of_span() <= 2 * few + 6);
			hugepin_purge();
			expect_empty();
		}
	}
}

TEST(with_borders_enough_each_buffer_has_its_guard)
{
	uint64_t missing = HP_STAT(guard_missing);

	hp_span.heads_max = 1000;
	fill();
	EXPECT_EQ(HP_STAT(guard_missing), missing);
	EXPECT(parts_of_span() >= 2 * BUFFERS);
	drop();
	EXPECT_EQ(HP_STAT(guard_missing), missing);
	EXPECT(HP_STAT(guard_kept_bytes) >= BUFFERS * SIZE);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(guard_kept_bytes), 0);
	expect_empty();
}

LIVE_MAIN
