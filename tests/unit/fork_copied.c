/*
 * Held memory of which a child gets a copy, by us or by the kernel: the child has its own memory, the hook of fork sees
 * that memory in place, and the parent's pages stay those that the ring writes to.
 */
#include <pthread.h>
#include <time.h>

#include "alloc/small.h"
#include "base/lock.h"
#include "base/service.h"
#include "tests/unit/fork.h"

/* The child has all buffers. They are its own, and none is held. */
static void use_all(void)
{
	EXPECT(!any_held());
	expect_intact();
	rewrite(5);
	expect_intact();
	hp_heap_tick();
	for (int i = 1; i < BUFFERS; i += 5) {
		buffers[i].p = hugepin_calloc(1, buffers[i].size);
		EXPECT_EQ(zero_check(buffers[i].p, buffers[i].size), -1);
		fill(&buffers[i], 7);
	}
	for (int i = 0; i < BUFFERS; i += 2)
		buffers[i].p = hugepin_realloc(buffers[i].p, buffers[i].size + 3 * MIB);
	expect_intact();
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	EXPECT_EQ(HP_STAT(reserved_bytes), 0);
	expect_counted();
	free_heap();
}

static void copied(int64_t pages)
{
	uint64_t copies = HP_STAT(forks_copied);
	struct kinds k;

	fill_heap(pages);
	hold_all(HP_HOLD_COPY);
	register_all();
	k = smaps_kinds(0, hp_span.base, hp_span.base + hp_span.size);
	note_frames();
	for (int i = 1; i <= 2; i++) {
		EXPECT_EQ(fork_with(use_all), 0);
		EXPECT_EQ(HP_STAT(forks_copied), copies + (unsigned)i);
		if (!no_ring)
			read_into_all((uint64_t)i << 32);
		expect_intact();
		if (frames[0])
			expect_frames();
	}
	EXPECT_EQ(smaps_kinds(0, hp_span.base, hp_span.base + hp_span.size).hugetlb, k.hugetlb);
	unregister_all();
	drop_all();
	if (pages != HP_PAGES_HUGETLB) { /* nothing of it is held any more: the kernel's copy-on-write does */
		EXPECT_EQ(fork_with(expect_intact), 0);
		EXPECT_EQ(HP_STAT(forks_copied), copies + 2);
		EXPECT(HP_STAT(fork_longest_us) > 0);
	}
	free_heap();
	if (no_ring)
		SKIP("io_uring: %s", no_ring);
}

TEST(a_child_gets_a_copy_of_held_pool_pages_and_the_ring_keeps_the_originals)
{
	NEEDS_POOL(80);
	copied(HP_PAGES_HUGETLB);
}

TEST_CASE(a_child_gets_a_copy_of_held_thp_and_the_ring_keeps_the_originals, copied(HP_PAGES_THP))
TEST_CASE(a_child_gets_a_copy_of_held_base_pages_and_the_ring_keeps_the_originals, copied(HP_PAGES_BASE))

TEST(a_child_gets_a_copy_of_held_pool_pages_with_the_pool_empty_and_in_the_cow_mode)
{
	struct drainer d;

	NEEDS_POOL(80);
	hp_config.fork_mode = HP_FORK_COW;
	fill_heap(HP_PAGES_HUGETLB);
	hold_all(HP_HOLD_COPY);
	register_all();
	d = pool_drain(0);
	EXPECT_EQ(fork_with(use_all), 0);
	if (!no_ring)
		read_into_all(3);
	pool_refill(d);
	unregister_all();
	drop_all();
	free_heap();
	hp_config.fork_mode = HP_FORK_COPY;
}

TEST(a_copy_goes_before_nothing)
{
	fill_heap(HP_PAGES_THP);
	hold_all(HP_HOLD_DONTFORK);
	hold_all(HP_HOLD_COPY);
	EXPECT_EQ(fork_with(use_all), 0);
	hold_all(HP_HOLD_COW);
	EXPECT_EQ(fork_with(use_all), 0);
	drop_all();
	free_heap();
}

/* ------------------------------------------------------------------ the kernel's copy-on-write */

TEST(held_memory_that_is_left_to_the_kernel_is_not_copied_by_us)
{
	uint64_t copies = HP_STAT(forks_copied);

	fill_heap(HP_PAGES_THP);
	hold_all(HP_HOLD_COW);
	EXPECT_EQ(fork_with(use_all), 0);
	hold_all(HP_HOLD_DONTFORK); /* copy-on-write goes before nothing */
	EXPECT_EQ(fork_with(use_all), 0);
	EXPECT_EQ(HP_STAT(forks_copied), copies);
	drop_all();
	free_heap();
}

/* ------------------------------------------------------------------ the hook, and what stays */

static long address_space(void)
{
	return file_number("/proc/self/statm");
}

TEST(forks_leave_nothing_mapped_behind)
{
	size_t mappings;
	long pages;

	fill_heap(HP_PAGES_THP);
	hold_all(HP_HOLD_COPY);
	EXPECT_EQ(fork_with(expect_intact), 0);
	mappings = smaps_kinds(0, 0, UINTPTR_MAX).mappings;
	pages = address_space();
	for (int i = 0; i < 10; i++)
		EXPECT_EQ(fork_with(expect_counted), 0);
	EXPECT_EQ(smaps_kinds(0, 0, UINTPTR_MAX).mappings, mappings);
	EXPECT_EQ(address_space(), pages);
	drop_all();
	free_heap();
}

static int told; /* times */
static bool told_wrong;

static void told_child(void)
{
	told++;
	told_wrong |= !hp_heap_mine() || any_held() || hp_service_running() ||
		      pattern_check(buffers[0].p, buffers[0].size, buffers[0].seed) != -1;
}

static void expect_told_child(void)
{
	EXPECT_EQ(told, 1);
	EXPECT(!told_wrong);
}

TEST(fork_tells_the_child_when_its_memory_is_in_place)
{
	static const struct hp_heap_hooks ours = { .postfork_child = told_child }, none;

	fill_heap(HP_PAGES_AUTO);
	hold_all(HP_HOLD_COPY);
	hp_heap_set_hooks(&ours);
	EXPECT_EQ(fork_with(expect_told_child), 0);
	EXPECT_EQ(told, 0);
	hp_heap_set_hooks(&none);
	drop_all();
	free_heap();
}

/* As when a signal handler forks. Debug builds assert the order of locks. */
TEST(a_fork_may_come_while_its_thread_has_a_lock_of_the_pin_cache)
{
	struct hp_lock lock = HP_LOCK_INIT(HP_LOCK_RANK_QUEUE);
	int status = -1;
	pid_t pid;

	hugepin_free(hugepin_malloc(MIB));
	hp_lock(&lock);
	pid = fork();
	hp_unlock(&lock);
	if (pid == 0)
		_exit(0);
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}

/* ------------------------------------------------------------------ costs */

enum { LARGE = 64, LARGE_SIZE = 16 << 20 };

struct cost {
	double ms; /* negative: not possible */
	uint64_t copied;
	bool short_pool, short_memory; /* others have what was free before */
};

static bool memory_is_short(void)
{
	char text[4096], *line = file_read("/proc/meminfo", text, sizeof text) > 0 ? strstr(text, "MemAvailable:") : NULL;

	return line && strtoull(line + 13, NULL, 10) * KIB < 4 * GIB;
}

/* The cost of the first fork of a heap of 1 GiB in pool pages, in a process of its own. */
static struct cost fork_cost(bool registered)
{
	int result[2];
	struct cost cost = { .ms = -1 };
	pid_t pid;

	if (!EXPECT(!pipe2(result, O_CLOEXEC)))
		return cost;
	pid = fork();
	if (pid == 0) {
		uint64_t start, copied = HP_STAT(fork_copied_bytes), cow = HP_STAT(forks_cow);
		pid_t child;

		hp_span.no_pool = false;
		hp_config.pages = HP_PAGES_HUGETLB;
		for (int i = 0; i < LARGE; i++) {
			void *p = hugepin_malloc(LARGE_SIZE);

			memset(p, i, LARGE_SIZE);
			if (HP_STAT(hugetlb_bytes) < (uint64_t)(i + 1) * LARGE_SIZE)
				cost.short_pool |= pool_free() < 32;
		}
		if (registered) {
			hold_all(HP_HOLD_COPY);
			register_all();
		}
		start = hp_clock_ns();
		child = fork();
		if (child == 0)
			_exit(0);
		cost.ms = (double)(hp_clock_ns() - start) / 1e6;
		cost.copied = HP_STAT(fork_copied_bytes) - copied;
		cost.short_memory = HP_STAT(forks_cow) > cow && memory_is_short();
		waitpid(child, NULL, 0);
		if (registered && no_ring)
			cost.ms = -1;
		_exit(write(result[1], &cost, sizeof cost) != sizeof cost);
	}
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT(read(result[0], &cost, sizeof cost) == sizeof cost);
	close(result[0]);
	close(result[1]);
	return cost;
}

/* The times are for the reader. `make bench-pin` compares times. */
TEST(a_fork_copies_as_much_of_registered_memory_as_of_unregistered_memory)
{
	struct cost plain, registered;

	NEEDS_POOL(540);
	plain = fork_cost(false);
	registered = fork_cost(true);
	if (plain.short_pool || registered.short_pool || plain.short_memory || registered.short_memory)
		SKIP("others took the pages of the pool, or the memory, meanwhile");
	if (plain.ms < 0 || registered.ms < 0)
		SKIP("io_uring: %s", no_ring ? no_ring : "1 GiB cannot be registered");
	t_print("# first fork of 1 GiB: %.0f ms, registered %.0f ms\n", plain.ms, registered.ms);
	EXPECT(plain.copied >= (uint64_t)LARGE * LARGE_SIZE);
	EXPECT_EQ(registered.copied, plain.copied);
}

/* Take all mappings that the process may have, but for some. */
enum { MAPPINGS = 70000 };
static char *taken;

static bool take_mappings(size_t spare)
{
	size_t page = hp_base_page, i = 1;

	taken = mmap(NULL, MAPPINGS * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (taken == MAP_FAILED)
		return false;
	while (i < MAPPINGS - 1 && mprotect(taken + i * page, page, PROT_READ) == 0)
		i += 2;
	if (i >= MAPPINGS - 1 || i < spare) {
		munmap(taken, MAPPINGS * page);
		return false;
	}
	EXPECT_EQ(mprotect(taken + (i - spare) * page, spare * page, PROT_NONE), 0);
	return true;
}

/* Each second hugepage is free, so the child needs a mapping for each. */
TEST(a_child_lives_where_mappings_are_scarce)
{
	enum { COUNT = 60, SPARE = 50 };
	char *p[COUNT];
	uint64_t cow = HP_STAT(forks_cow), copied = HP_STAT(forks_copied);
	pid_t pid;

	hp_config.pages = HP_PAGES_THP;
	for (int i = 0; i < COUNT; i++)
		p[i] = memset(hugepin_aligned_alloc(HP_PAGE, HP_PAGE), i + 1, HP_PAGE);
	hold_all(HP_HOLD_COPY);
	for (int i = 0; i < COUNT; i += 2)
		hugepin_free(p[i]);
	for (int scarce = 1; scarce >= 0; scarce--) {
		if (scarce && !take_mappings(SPARE)) {
			T_FAIL("no limit of mappings");
			break;
		}
		pid = fork();
		if (pid == 0) {
			for (int i = 1; i < COUNT; i += 2)
				if (p[i][0] != i + 1 || p[i][HP_PAGE - 1] != i + 1)
					_exit(2);
			_exit(0);
		}
		EXPECT_EQ(child_wait(pid), 0);
		if (scarce)
			munmap(taken, MAPPINGS * hp_base_page);
	}
	EXPECT_EQ(HP_STAT(forks_cow), cow + 1);
	EXPECT_EQ(HP_STAT(forks_copied), copied + 1);
	drop_all();
	for (int i = 1; i < COUNT; i += 2)
		hugepin_free(p[i]);
	hugepin_purge();
	expect_empty();
}

/* Each second hugepage is kept out of the child. */
TEST(a_fork_that_needs_more_mappings_than_there_are_is_refused)
{
	enum { COUNT = 60, SPARE = 50 };
	char *p = NULL;
	struct hugepin_extent e;

	hp_config.pages = HP_PAGES_THP;
	p = memset(hugepin_aligned_alloc(HP_PAGE, COUNT * HP_PAGE), 1, COUNT * HP_PAGE);
	e = extent_of(p);
	for (int i = 0; i < COUNT; i += 2)
		EXPECT_EQ(hp_heap_hold((uintptr_t)p + (size_t)i * HP_PAGE, HP_PAGE, e.gen, HP_HOLD_DONTFORK), 0);
	EXPECT(!hugepin_fork_refused_());
	if (EXPECT(take_mappings(SPARE))) {
		EXPECT(hugepin_fork_refused_());
		munmap(taken, MAPPINGS * hp_base_page);
	}
	EXPECT(!hugepin_fork_refused_());
	for (int i = 0; i < COUNT; i += 2)
		hp_heap_drop((uintptr_t)p + (size_t)i * HP_PAGE, HP_PAGE, HP_HOLD_DONTFORK);
	hugepin_free(p);
	hugepin_purge();
	expect_empty();
}

/* The copy lies in the unused part of the span, whose addresses count already. Nothing of the copy remains there. */
TEST(a_child_gets_a_copy_though_its_parent_may_have_no_more_addresses)
{
	enum { PAGES = 20 };
	char *p;
	uint64_t copied = HP_STAT(forks_copied), cow = HP_STAT(forks_cow);
	struct rlimit was;
	size_t mappings;

	hp_config.pages = HP_PAGES_THP;
	p = memset(hugepin_aligned_alloc(HP_PAGE, PAGES * HP_PAGE), 1, PAGES * HP_PAGE);
	hold_all(HP_HOLD_COPY);
	EXPECT_EQ(fork_with(expect_counted), 0);
	mappings = smaps_kinds(0, 0, UINTPTR_MAX).mappings;
	EXPECT(limit_to_present(RLIMIT_AS, HP_PAGE, &was));
	for (int i = 0; i < 3; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			bool ok = p[0] == 1 && p[PAGES * HP_PAGE - 1] == 1;

			setrlimit(RLIMIT_AS, &was);
			t_failures = 0;
			expect_span_reserved(false);
			_exit(!ok || t_failures);
		}
		EXPECT_EQ(child_wait(pid), 0);
	}
	setrlimit(RLIMIT_AS, &was);
	EXPECT_EQ(HP_STAT(forks_cow), cow);
	EXPECT_EQ(HP_STAT(forks_copied), copied + 4);
	EXPECT_EQ(smaps_kinds(0, 0, UINTPTR_MAX).mappings, mappings);
	drop_all();
	hugepin_free(p);
	hugepin_purge();
	expect_empty();
}

/* The program says so by a call that the heap does not see, and there may be no more data, so no copy. */
TEST(without_a_copy_a_child_has_all_but_what_the_program_keeps_from_it)
{
	enum { PAGES = 20 };
	char *p;
	uint64_t cow = HP_STAT(forks_cow);
	struct rlimit was;
	pid_t pid;

	hp_config.pages = HP_PAGES_THP;
	p = memset(hugepin_aligned_alloc(HP_PAGE, PAGES * HP_PAGE), 1, PAGES * HP_PAGE);
	hold_all(HP_HOLD_COPY);
	EXPECT_EQ(madvise(p + 2 * HP_PAGE, HP_PAGE, MADV_DONTFORK), 0);
	EXPECT(limit_to_present(RLIMIT_DATA, 4 * HP_PAGE, &was));
	pid = fork();
	if (pid == 0)
		_exit(p[0] != 1 || p[2 * HP_PAGE - 1] != 1 || p[3 * HP_PAGE] != 1);
	setrlimit(RLIMIT_DATA, &was);
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT_EQ(HP_STAT(forks_cow), cow + 1);
	EXPECT_EQ(madvise(p + 2 * HP_PAGE, HP_PAGE, MADV_DOFORK), 0);
	drop_all();
	hugepin_free(p);
	hugepin_purge();
	expect_empty();
}

/* As a signal handler that interrupted the heap. A pool that covers so much there is not. */
TEST(a_fork_that_interrupts_the_heap_is_counted)
{
	uint64_t cow = HP_STAT(forks_cow), uncovered = HP_STAT(forks_uncovered), pool = HP_STAT(hugetlb_bytes);
	pid_t pid;

	for (int i = 0; i < 2; i++) {
		hp_heap_lock();
		HP_STAT(hugetlb_bytes) = i ? UINT64_C(1) << 50 : 0;
		pid = fork();
		if (pid == 0)
			_exit(0);
		HP_STAT(hugetlb_bytes) = pool;
		hp_heap_unlock();
		EXPECT_EQ(child_wait(pid), 0);
		EXPECT_EQ(HP_STAT(forks_cow), cow + (unsigned)i);
		EXPECT_EQ(HP_STAT(forks_uncovered), uncovered + (unsigned)i);
	}
}

static long no_call(void *unused)
{
	(void)unused;
	T_FAIL("a fork that must be refused was made");
	return 0;
}

/* Its child could die when it writes to its memory. HUGEPIN_FORK=cow is for those who want a child even so. */
TEST(a_fork_that_interrupts_the_heap_is_refused_unless_the_pool_covers_it)
{
	const uint64_t refused = HP_STAT(forks_refused), pool = HP_STAT(hugetlb_bytes);
	const int64_t mode = hp_config.fork_mode;
	void *p = hugepin_malloc(MIB); /* starts the heap */

	hp_heap_lock();
	HP_STAT(hugetlb_bytes) = UINT64_C(1) << 50;
	EXPECT(hugepin_fork_refused_());
	EXPECT_EQ(hugepin_fork_by_(no_call, NULL), -1);
	EXPECT_EQ(errno, ENOMEM);
	hp_config.fork_mode = HP_FORK_COW;
	EXPECT(!hugepin_fork_refused_());
	hp_config.fork_mode = HP_FORK_COPY;
	HP_STAT(hugetlb_bytes) = 0;
	EXPECT(!hugepin_fork_refused_());
	HP_STAT(hugetlb_bytes) = pool;
	hp_heap_unlock();
	hp_config.fork_mode = mode;
	EXPECT_EQ(HP_STAT(forks_refused), refused + 2);
	hugepin_free(p);
}

static void *bypass(void *unused)
{
	hugepin_fork_bypassed_();
	return unused;
}

/* In a child that was made so already, nobody may ever give the heap's lock back. */
TEST(a_fork_past_the_handlers_is_counted_and_waits_for_nobody)
{
	void *p = hugepin_malloc(MIB); /* starts the heap */
	const uint64_t cow = HP_STAT(forks_cow), pool = HP_STAT(hugetlb_bytes);
	struct timespec limit;
	pthread_t t;
	int waits;

	hp_heap_lock();
	HP_STAT(hugetlb_bytes) = HP_PAGE;
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += t_seconds() / 4;
	EXPECT_EQ(pthread_create(&t, NULL, bypass, NULL), 0);
	waits = pthread_timedjoin_np(t, NULL, &limit);
	HP_STAT(hugetlb_bytes) = pool;
	hp_heap_unlock();
	if (!EXPECT_EQ(waits, 0))
		pthread_join(t, NULL);
	EXPECT_EQ(HP_STAT(forks_cow), cow + 1);
	hugepin_free(p);
	hugepin_purge();
	expect_empty();
}

LIVE_MAIN
