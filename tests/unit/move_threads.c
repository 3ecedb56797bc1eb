/*
 * In a process with threads a fork moves nothing (alloc/move.c). From then on the heap leaves the pool as buffers come
 * and go.
 */
#include "tests/unit/move.h"

#include "alloc/cache.h"

static _Atomic int told;

static void *wait_told(void *arg)
{
	while (!told)
		sleep_ms(1);
	return arg;
}

/* After a fork that copies for a process with threads, no buffer comes from the pool. */
TEST_BY(in_a_process, with_threads_nothing_moves_and_no_more_comes_from_the_pool)
{
	pthread_t t;
	size_t all;
	void *p;

	take();
	all = pool_left();
	EXPECT(!pthread_create(&t, NULL, wait_told, NULL));
	fork_once();
	EXPECT_EQ(pool_left(), all);
	EXPECT_EQ(HP_STAT(forks_copied), 1);
	EXPECT(hp_span.no_pool);
	p = hugepin_malloc(40 * MIB);
	EXPECT(hp_span.page[page_at(p)].kind != HUGEPIN_KIND_HUGETLB);
	told = 1;
	pthread_join(t, NULL);
}

/* After such a fork no buffer is placed on pages of the pool. Each page of the pool goes when it is empty. */
TEST_BY(in_a_process, with_threads_the_heap_leaves_the_pool_as_buffers_come_and_go)
{
	enum { PART = 64 << 10, PARTS = 4 };
	unsigned char *parts[PARTS], *p;
	pthread_t t;
	size_t all;

	for (int i = 0; i < PARTS; i++)
		parts[i] = hugepin_malloc(PART);
	take();
	hugepin_purge();
	all = HP_STAT(hugetlb_bytes);
	EXPECT(!pthread_create(&t, NULL, wait_told, NULL));
	hugepin_free(parts[1]);
	fork_once();
	hugepin_free(parts[0]);
	for (int i = 0; i < 2; i++) {
		parts[i] = hugepin_malloc(PART);
		EXPECT(hp_span.page[page_at(parts[i])].kind != HUGEPIN_KIND_HUGETLB);
	}
	for (int i = 0; i < BUFFERS; i++) {
		hugepin_free(buffers[i]);
		p = hugepin_aligned_alloc(HP_PAGE, SIZE);
		buffers[i] = p;
		EXPECT_EQ(pool_of(i), 0);
		pattern_write(p, SIZE, (uint64_t)i);
		fork_once();
		hugepin_purge();
		EXPECT_EQ(HP_STAT(hugetlb_bytes), all - (size_t)(i + 1) * SIZE);
	}
	for (int i = 2; i < PARTS; i++) {
		EXPECT(hp_span.page[page_at(parts[i])].kind == HUGEPIN_KIND_HUGETLB);
		hugepin_free(parts[i]);
	}
	hugepin_purge();
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	told = 1;
	pthread_join(t, NULL);
}

TEST_BY(in_a_process, with_threads_only_pages_of_the_pool_leave_it)
{
	unsigned char *other;
	pthread_t t;

	hp_config.pages = HP_PAGES_BASE;
	other = hugepin_aligned_alloc(HP_PAGE, SIZE);
	hp_config.pages = HP_PAGES_HUGETLB;
	take();
	EXPECT(!pthread_create(&t, NULL, wait_told, NULL));
	fork_once();
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
		if (hp_span.page[p].state == HP_PAGE_READY)
			EXPECT_EQ(hp_span.page[p].leaves, hp_span.page[p].kind == HUGEPIN_KIND_HUGETLB);
	EXPECT(hp_span.page[page_at(buffers[0])].leaves && !hp_span.page[page_at(other)].leaves);
	told = 1;
	pthread_join(t, NULL);
}

TEST_BY(in_a_process, a_page_that_has_left_the_pool_goes_with_the_next_tick)
{
	pthread_t t;

	take();
	EXPECT(!pthread_create(&t, NULL, wait_told, NULL));
	fork_once();
	hp_heap_tick();
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(buffers[i]);
	hp_heap_tick();
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++) /* whatever comes there next may stay */
		EXPECT(!hp_span.page[p].leaves);
	told = 1;
	pthread_join(t, NULL);
}

static _Atomic int freeing;

static void *free_a_buffer(void *arg)
{
	hugepin_free(hugepin_malloc(64 << 10)); /* so that free() takes the heap's lock once, and not twice */
	freeing = 1;
	while (freeing != 2)
		sleep_ms(1);
	hugepin_free(arg);
	freeing = 3;
	while (!told)
		sleep_ms(1);
	return arg;
}

static void wait_at_the_lock(void)
{
	freeing = 2;
	while (hp_shard[0].lock.word != 2) /* 2: a thread sleeps there */
		sleep_ms(1);
}

TEST_BY(in_a_process, a_buffer_that_waits_to_be_freed_while_its_page_begins_to_leave_the_pool_leaves_nothing_behind)
{
	unsigned char *p = hugepin_malloc(64 << 10);
	pthread_t t;

	take();
	EXPECT(hp_span.page[page_at(p)].kind == HUGEPIN_KIND_HUGETLB);
	EXPECT(!pthread_create(&t, NULL, free_a_buffer, p));
	while (freeing != 1)
		sleep_ms(1);
	says.meanwhile = wait_at_the_lock;
	fork_once();
	EXPECT(!says.meanwhile && hp_span.no_pool);
	while (freeing != 3)
		sleep_ms(1);
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(buffers[i]);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	told = 1;
	pthread_join(t, NULL);
}

/* A handler may fork just when the free() that its signal interrupted has found a buffer fit for a list. */
TEST_BY(in_a_process, a_fork_by_which_pages_leave_the_pool_closes_the_lists_of_its_own_thread_too)
{
	pthread_t t;

	take();
	hugepin_free(hugepin_malloc(64 << 10));
	EXPECT(hp_cache_limit(hp_cache_self) > 0);
	EXPECT(!pthread_create(&t, NULL, wait_told, NULL));
	fork_once();
	EXPECT(hp_span.no_pool);
	EXPECT_EQ(hp_cache_limit(hp_cache_self), 0);
	hugepin_free(hugepin_malloc(64 << 10));
	EXPECT(hp_cache_limit(hp_cache_self) > 0);
	told = 1;
	pthread_join(t, NULL);
}

/* Buffers of random sizes, and a fork now and then. */
TEST_BY(in_a_process, with_threads_and_forks_contents_are_kept_while_the_heap_leaves_the_pool)
{
	enum { COUNT = 40, CHANGES = 1500 };
	static struct { unsigned char *p; size_t size; uint64_t seed; } some[COUNT];
	uint64_t rand = 20261123;
	pthread_t t;

	EXPECT(!pthread_create(&t, NULL, wait_told, NULL));
	for (int i = 0; i < CHANGES; i++) {
		const uint64_t r = rand_next(&rand);
		const int k = (int)(r % COUNT);
		const size_t size = rand_size(&rand, 1, 3 * MIB);

		if (some[k].p)
			EXPECT_EQ(pattern_check(some[k].p, some[k].size, some[k].seed), -1);
		if (some[k].p && r >> 8 & 1) {
			some[k].p = hugepin_realloc(some[k].p, size);
		} else {
			hugepin_free(some[k].p);
			some[k].p = r >> 9 & 1 ? hugepin_malloc(size) : hugepin_calloc(1, size);
			if (!(r >> 9 & 1))
				EXPECT_EQ(zero_check(some[k].p, size), -1);
		}
		some[k].size = size;
		some[k].seed = r;
		pattern_write(some[k].p, size, r);
		if (i % 100 == 99) {
			pid_t pid = fork();

			if (pid == 0) {
				for (int j = 0; j < COUNT; j++)
					if (some[j].p && pattern_check(some[j].p, some[j].size, some[j].seed) != -1)
						_exit(1);
				for (int j = 0; j < COUNT; j += 2) {
					hugepin_free(some[j].p);
					some[j].p = hugepin_calloc(1, some[j].size + 1);
					if (zero_check(some[j].p, some[j].size + 1) != -1)
						_exit(2);
				}
				_exit(0);
			}
			EXPECT_EQ(child_wait(pid), 0);
		}
		if (i % 370 == 369)
			hugepin_purge();
	}
	for (int k = 0; k < COUNT; k++)
		hugepin_free(some[k].p);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	EXPECT_EQ(hp_span.left, 0);
	told = 1;
	pthread_join(t, NULL);
}

T_MAIN
