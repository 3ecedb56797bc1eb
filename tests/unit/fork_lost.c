/*
 * Held memory that a child does not get: touching a lost page is fatal there, the child's heap works beside the lost
 * pages, and the ring keeps the parent's pages.
 */
#include "tests/unit/fork.h"

/* Whether a read of p ends the process with SIGSEGV. */
static bool is_fatal(volatile unsigned char *p)
{
	pid_t pid = fork();

	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		(void)*p;
		_exit(0);
	}
	return child_wait(pid) == 128 + SIGSEGV;
}

static bool on_lost_page(const void *p, size_t size)
{
	size_t first = ((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT;

	for (size_t q = first; q <= ((uintptr_t)p + size - 1 - hp_span.base) >> HP_PAGE_SHIFT; q++)
		if (hp_span.page[q].lost)
			return true;
	return false;
}

static size_t mapped(void)
{
	return HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes);
}

static void live_without(void)
{
	unsigned char *p[40];
	struct hugepin_extent e = { .len = 0 };

	expect_counted();
	EXPECT(!any_held());
	EXPECT_EQ(mapped(), 0);
	EXPECT(is_fatal(buffers[0].p));
	EXPECT(is_fatal(buffers[2].p + buffers[2].size - 1));
	EXPECT_EQ(hugepin_usable_size(buffers[0].p), hp_round_up(buffers[0].size, HP_CHUNK));
	EXPECT_EQ(hugepin_extent(buffers[0].p, &e, sizeof e), sizeof e);
	EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, HP_HOLD_COPY), -EFAULT);
	/* The child's heap works, and nothing comes to lie where touching must stay fatal. */
	for (int i = 0; i < 40; i++) {
		p[i] = hugepin_malloc(300000 + (size_t)i * 100000);
		EXPECT(!on_lost_page(p[i], 300000 + (size_t)i * 100000));
		memset(p[i], i, 300000);
	}
	EXPECT(is_fatal(buffers[0].p));
	buffers[3].size = 100000;
	EXPECT(hugepin_realloc(buffers[3].p, buffers[3].size) == buffers[3].p);
	for (int i = 0; i < BUFFERS; i++) {
		unsigned char *again;

		hugepin_free(buffers[i].p);
		again = hugepin_malloc(buffers[i].size);
		memset(again, 1, buffers[i].size);
		hugepin_free(again);
		if (i < 20 && buffers[23].p)
			EXPECT(is_fatal(buffers[23].p));
	}
	for (int i = 0; i < 40; i++) {
		EXPECT_EQ(p[i][299999], i);
		hugepin_free(p[i]);
	}
	hugepin_purge();
	EXPECT_EQ(mapped(), 0);
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
	expect_span_reserved(true);
}

static void left_out(int64_t pages)
{
	uint64_t copied = HP_STAT(fork_copied_bytes);

	fill_heap(pages);
	hold_all(HP_HOLD_DONTFORK);
	register_all();
	note_frames();
	EXPECT_EQ(fork_with(live_without), 0);
	EXPECT_EQ(HP_STAT(fork_copied_bytes), copied);
	if (!no_ring)
		read_into_all(9);
	if (frames[0])
		expect_frames();
	unregister_all();
	drop_all();
	EXPECT_EQ(fork_with(expect_intact), 0);
	free_heap();
}

TEST(a_child_does_not_have_pool_pages_that_are_held_from_it)
{
	NEEDS_POOL(80);
	left_out(HP_PAGES_HUGETLB);
}

TEST_CASE(a_child_does_not_have_thp_that_is_held_from_it, left_out(HP_PAGES_THP))

/* A single chunk has no word of its own for the room behind it. */
TEST(a_child_frees_the_smallest_buffers_that_are_held_from_it)
{
	char *small[8];

	for (int i = 0; i < 8; i++)
		small[i] = i % 2 ? hugepin_malloc(28672 + 32768) : hugepin_aligned_alloc(32768, 100);
	for (int i = 1; i < 8; i++)
		EXPECT(small[i] == small[i - 1] + (i % 2 ? 4096 : 28672 + 32768));
	fill_heap(HP_PAGES_THP);
	hold_all(HP_HOLD_DONTFORK);

	pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		for (int i = 0; i < 8; i++) {
			EXPECT_EQ(hugepin_usable_size(small[i]), i % 2 ? 28672 + 32768 : 4096);
			hugepin_free(small[i]);
		}
		for (int i = 0; i < BUFFERS; i++)
			hugepin_free(buffers[i].p);
		hugepin_purge();
		EXPECT_EQ(HP_STAT(taken_bytes), 0);
		EXPECT_EQ(HP_STAT(room_bytes), 0);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
	drop_all();
	for (int i = 0; i < 8; i++)
		hugepin_free(small[i]);
	free_heap();
}

TEST(a_buffer_that_is_held_from_a_child_does_not_grow_there_into_zeros)
{
	unsigned char *p = hugepin_malloc(3 * MIB), *wall = hugepin_malloc(40000);

	p = hugepin_realloc(p, 6 * MIB); /* has room behind it now */
	EXPECT(HP_STAT(room_bytes) >= 6 * MIB);
	memset(p, 5, 6 * MIB);
	hold_all(HP_HOLD_DONTFORK);

	pid_t pid = fork();

	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		p = hugepin_realloc(p, 8 * MIB);
		_exit(p[0]);
	}
	EXPECT_EQ(child_wait(pid), 128 + SIGSEGV);
	drop_all();
	hugepin_free(p);
	hugepin_free(wall);
	hugepin_purge();
	expect_empty();
}

/* The child has half of the extents, and not the others. */
static void has_half(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		if (!buffers[i].p)
			continue;
		if (on_lost_page(buffers[i].p, buffers[i].size)) {
			EXPECT(is_fatal(buffers[i].p + buffers[i].size / 2));
		} else {
			EXPECT_EQ(pattern_check(buffers[i].p, buffers[i].size, buffers[i].seed), -1);
			fill(&buffers[i], 3);
		}
		hugepin_free(buffers[i].p);
	}
	hugepin_purge();
	EXPECT_EQ(mapped(), 0);
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
}

TEST(a_child_has_what_is_copied_and_not_what_is_held_from_it)
{
	struct hugepin_extent e;
	int i = 0;

	fill_heap(HP_PAGES_AUTO);
	for (uintptr_t from = 0; hp_heap_next_extent(from, &e) && extent_count < EXTENTS;
	     from = (uintptr_t)e.addr + 1) {
		hows[extent_count] = i++ % 2 ? HP_HOLD_COPY : HP_HOLD_DONTFORK;
		EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, hows[extent_count]), 0);
		extents[extent_count++] = e;
	}
	EXPECT(extent_count > 2);
	EXPECT_EQ(fork_with(has_half), 0);
	drop_all();
	free_heap();
}

static unsigned char *below; /* the page below a lost one, which is absent */

/* The rest of an extent gets memory together with its first page. A lost page gets none, even if it comes next. */
static void grow_below(void)
{
	unsigned char *p[64];
	int n = 0;

	EXPECT(on_lost_page(below + HP_PAGE, HP_PAGE) && !on_lost_page(below + 2 * HP_PAGE, HP_PAGE));
	do {
		p[n] = hugepin_aligned_alloc(HP_PAGE, HP_PAGE);
		memset(p[n], 1, HP_PAGE);
		EXPECT(is_fatal(below + HP_PAGE));
	} while (p[n] != below && n++ < 63);
	EXPECT(p[n] == below);
}

TEST(memory_that_is_made_ahead_ends_before_a_lost_page)
{
	unsigned char *p[16];
	struct hugepin_extent e;
	pid_t pid;

	hp_config.pages = HP_PAGES_THP;
	for (int i = 0; i < 16; i++)
		p[i] = hugepin_aligned_alloc(HP_PAGE, HP_PAGE);
	EXPECT(hugepin_extent(p[15], &e, sizeof e) > 0 && e.len >= 4 * HP_PAGE);
	below = e.addr;
	for (int i = 0; i < 16; i++)
		if (p[i] != below + HP_PAGE)
			hugepin_free(p[i]);
	hugepin_purge();
	EXPECT_EQ(mapped(), HP_PAGE);
	EXPECT_EQ(hp_heap_hold((uintptr_t)below + HP_PAGE, HP_PAGE, e.gen, HP_HOLD_DONTFORK), 0);
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		grow_below();
		expect_counted();
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
	hp_heap_drop((uintptr_t)below + HP_PAGE, HP_PAGE, HP_HOLD_DONTFORK);
	hugepin_free(below + HP_PAGE);
	free_heap();
}

LIVE_MAIN
