/*
 * A fork of a process with one thread moves the heap out of the pool (alloc/move.c): all pages, or all but those that
 * cannot move. What goes wrong on the way leaves the other pages where they were.
 */
#include "tests/unit/move.h"

#include "tests/unit/elsewhere.h"

TEST_BY(in_a_process, a_fork_of_a_process_with_one_thread_moves_the_heap_and_later_ones_copy_nothing)
{
	take();
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE);
	errno = 77;
	fork_once();
	EXPECT_EQ(pool_left(), 0);
	EXPECT_EQ(HP_STAT(fork_copied_bytes), BUFFERS * SIZE);
	expect_borders();
	fork_once();
	fork_once();
	EXPECT_EQ(HP_STAT(fork_copied_bytes), BUFFERS * SIZE);
	EXPECT(!hp_span.no_pool || HP_STAT(hugetlb_bytes));
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(buffers[i]);
	hugepin_purge();
	expect_empty();
}

static size_t heads_max; /* hp_span.heads_max as it was */

/* The heap has holes. Each run of pages moves by itself, and needs two more mappings. */
TEST_BY(in_a_process, what_is_used_moves_in_several_runs_and_holes_stay)
{
	take();
	hugepin_free(buffers[1]);
	hugepin_purge();
	buffers[1] = buffers[0];
	EXPECT(pool_runs() >= 2);
	heads_max = hp_span.heads_max;
	hp_span.heads_max = hp_span.heads + 2 * pool_runs() - 1;
	hp_heap_lock();
	EXPECT_EQ(hp_move(), 0);
	hp_span.heads_max++;
	EXPECT_EQ(hp_move(), (BUFFERS - 1) * SIZE / HP_PAGE);
	hp_heap_unlock();
	EXPECT_EQ(pool_of(0) + pool_of(2) + pool_of(3), 0);
	EXPECT(pattern_check(buffers[0], SIZE, 0) == -1 && pattern_check(buffers[2], SIZE, 2) == -1 &&
	       pattern_check(buffers[3], SIZE, 3) == -1);
	expect_counted();
	expect_borders();
	hp_span.heads_max = heads_max;
}

/* ------------------------------------------------------------------ pages that stay */

/* The trial child does not have the buffer, and cannot look at its pages. */
TEST_BY(in_a_process, what_is_kept_out_of_children_stays_and_is_not_tried_again)
{
	int looks;

	take();
	EXPECT_EQ(raw(SYS_madvise, (long)buffers[2], SIZE, MADV_DONTFORK, 0, 0, 0), 0);
	memset(buffers[2], 0, SIZE);
	for (int i = 0; i < 3; i++) {
		pid_t pid;

		looks = says.looks;
		pid = fork();
		if (pid == 0)
			_exit(pattern_check(buffers[0], SIZE, 0) != -1 || pattern_check(buffers[3], SIZE, 3) != -1);
		EXPECT_EQ(child_wait(pid), 0);
		EXPECT_EQ(pool_of(0) + pool_of(1) + pool_of(3), 0);
		EXPECT_EQ(pool_of(2), SIZE / HP_PAGE);
		EXPECT_EQ(zero_check(buffers[2], SIZE), -1);
		expect_borders();
		expect_counted();
		EXPECT_EQ(says.looks > looks, i == 0); /* later forks do not look again */
	}
}

static pid_t other; /* the process that has the ring */

TEST_BY(in_a_process, what_somebody_has_pinned_stays_and_is_written_to_afterwards)
{
	int fds[2];

	take();
	if (pipe(fds) || (other = ring_elsewhere(buffers[2], SIZE, fds[0])) < 0)
		_exit(SKIPPED);
	for (int i = 0; i < 3; i++) {
		fork_once();
		EXPECT_EQ(pool_of(0) + pool_of(1) + pool_of(3), 0);
		EXPECT_EQ(pool_of(2), SIZE / HP_PAGE);
		expect_borders();
	}
	EXPECT(write(fds[1], "fixed", 5) == 5);
	for (int i = 0; i < 50000 && memcmp(buffers[2], "fixed", 5) != 0; i++)
		sleep_ms(1);
	EXPECT(memcmp(buffers[2], "fixed", 5) == 0);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

/* ------------------------------------------------------------------ failures on the way */

static long addresses(void)
{
	return file_number("/proc/self/statm");
}

static void take_anew(void)
{
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(buffers[i]);
	hugepin_purge();
	take();
}

static void again(void)
{
	hp_span.no_pool = false;
	take_anew();
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE);
}

TEST_BY(in_a_process, after_one_fork_that_copies_buffers_come_from_the_pool_and_after_two_they_do_not)
{
	take();
	fork_once();
	take_anew();
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE);
	fork_once();
	EXPECT_EQ(HP_STAT(forks_copied), 2);
	take_anew();
	EXPECT_EQ(pool_left(), 0);
}

/* Before Linux 6.17, mremap moves at most one mapping. With strict accounting of memory it moves none. */
TEST_BY(in_a_process, where_a_run_cannot_be_moved_its_pages_are)
{
	long before;

	take();
	expect_moves();
	again();
	expect_moves();
	before = addresses();
	again();
	says.put_max = UINTPTR_MAX; /* no run moves */
	expect_moves();
	EXPECT_EQ(addresses(), before);
	expect_borders();
	again();
	says.put_max = (uintptr_t)buffers[1]; /* no page moves from here on */
	expect_moves();
	EXPECT_EQ(addresses(), before);
	expect_borders();
	says.put_max = 0;
	again();
	expect_moves();
	EXPECT_EQ(addresses(), before);
}

/* From Linux 6.17 on, mremap moves several mappings, and may fail when some have moved. */
TEST_BY(in_a_process, where_a_part_of_a_run_was_moved_the_rest_follows)
{
	long before;

	take();
	expect_moves();
	again();
	before = addresses();
	says.puts_first = true;
	expect_moves();
	EXPECT_EQ(addresses(), before);
	expect_borders();
	says.puts_first = false;
	again();
	expect_moves();
}

/* The pages of buffers below the second page of buffers[1]. */
static size_t pool_first(void)
{
	size_t n = 0;

	for (int i = 0; i < BUFFERS; i++)
		n += buffers[i] < buffers[1] ? SIZE / HP_PAGE : 0;
	return n + 1;
}

/* Moving stops after the first page of buffers[1]. The other pages stay where they were. */
TEST_BY(in_a_process, where_pages_cannot_be_put_those_and_later_ones_stay)
{
	take();
	says.put_max = says.map_max = (uintptr_t)buffers[1] + HP_PAGE;
	EXPECT_EQ(move_now(), pool_first());
	EXPECT_EQ(pool_of(0), 0);
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE - pool_first());
	EXPECT_EQ(hp_span.page[page_at(buffers[1])].kind, HUGEPIN_KIND_THP);
	EXPECT_EQ(hp_span.page[page_at(buffers[1]) + 1].kind, HUGEPIN_KIND_HUGETLB);
	expect_borders();
	says.put_max = says.map_max = 0;
	EXPECT_EQ(move_now(), BUFFERS * SIZE / HP_PAGE - pool_first());
	EXPECT_EQ(pool_left(), 0);
	expect_borders();
}

TEST_BY(in_a_process, without_memory_for_the_copy_all_stays_and_moves_the_next_time)
{
	long before;

	take();
	expect_moves();
	again();
	before = addresses();
	for (says.no_copy = 1; says.no_copy < 12; says.no_copy += 3) {
		says.copied = 0;
		EXPECT_EQ(move_now(), 0);
		EXPECT_EQ(addresses(), before);
		EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE);
	}
	says.no_copy = 0;
	expect_moves();
}

/* While what was cleared is still in the processor's cache. */
TEST_BY(in_a_process, each_hugepage_of_the_copy_is_filled_before_the_next_is_populated)
{
	take();
	says.fills = true;
	EXPECT_EQ(move_now(), BUFFERS * SIZE / HP_PAGE);
	EXPECT(says.last);
	EXPECT_EQ(says.empty, 0);
}

TEST_BY(in_a_process, without_a_process_for_the_trial_all_stays_and_moves_the_next_time)
{
	take();
	says.no_trial = true;
	EXPECT_EQ(move_now(), 0);
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE);
	says.no_trial = false;
	expect_moves();
}

/* ------------------------------------------------------------------ hugepages that take long */

/* Pages that were tried as base pages, or are. */
static int small_of(uint64_t base_ns, uint64_t huge_ns)
{
	again();
	says.base_ns = base_ns;
	says.huge_ns = huge_ns;
	says.small = 0;
	expect_moves();
	return says.small;
}

TEST_BY(in_a_process, once_two_hugepages_take_a_millisecond_and_three_times_their_base_pages_the_rest_are_base_pages)
{
	const int all = BUFFERS * SIZE / HP_PAGE, tried = 1;

	take();
	EXPECT_EQ(small_of(1000000, 3000000), tried);
	EXPECT_EQ(small_of(1000000, 3000001), tried + all - 2);
	EXPECT_EQ(small_of(1000000, 1), 0);
	EXPECT_EQ(small_of(100, 1000000), 0);
	EXPECT_EQ(small_of(100, 1000001), tried + all - 2);
}

T_MAIN
