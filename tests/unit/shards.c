/*
 * Several shards: who places where, the heap against its model with three of them, and threads that are stopped
 * anywhere, while the heap ticks, forks and is purged.
 */
#include <pthread.h>
#include <signal.h>

#include "alloc/cache.h"
#include "alloc/place.h"
#include "tests/unit/child.h"
#include "tests/unit/heap_model.h"

__attribute__((constructor)) static void configure(void)
{
	model_configure();
	hp_config.extent_max = 8 * (int64_t)MIB;
}

/* This thread has a cache that is admitted from now on. */
static void warm(void)
{
	hugepin_free(hugepin_malloc(MIB));
	hugepin_free(hugepin_malloc(2 * MIB));
	EXPECT(hp_cache_limit(hp_cache_self));
}

static void use_shards(unsigned n)
{
	warm();
	while (hp_shards() < n) {
		HP_STAT(threads) += n; /* as if there were so many */
		hp_shard_add(&hp_span.holes);
		HP_STAT(threads) -= n;
	}
	EXPECT_EQ(hp_shards(), n);
}

static unsigned shard_of(const void *p)
{
	return hp_span.page[hp_page_of(chunk_of(p))].shard;
}

static void *malloc_in(unsigned shard, size_t size)
{
	hp_cache_self->shard = shard;
	return hugepin_malloc(size);
}

/* Say that this thread is at a step, and wait until another one has made the next. */
static void meet(_Atomic int *step, int at, int next)
{
	*step = at;
	while (*step != next)
		sched_yield();
}

/* ------------------------------------------------------------------ which shard */

static void *take_long(void *go)
{
	warm();
	meet(go, 1, 2);
	return hugepin_malloc(40 * MIB);
}

static void one_is_added(void)
{
	void *p = hugepin_malloc(MIB), *q;
	_Atomic int step = 0;
	pthread_t t;

	EXPECT_EQ(hp_shards(), 1);
	pthread_create(&t, NULL, take_long, (void *)&step);
	while (step != 1)
		sched_yield();
	hp_lock(&hp_shard[0].lock);
	step = 2;
	while (hp_shard[0].lock.word != 2) /* 2: a thread sleeps there */
		sched_yield();
	hp_unlock(&hp_shard[0].lock);
	pthread_join(t, &q);
	EXPECT_EQ(hp_shards(), 2);
	EXPECT_EQ(shard_of(p), 0);
	EXPECT_EQ(shard_of(q), 1);
	hugepin_free(q);
	hugepin_free(p);
}

TEST(a_thread_that_finds_every_lock_taken_gets_a_shard_of_its_own)
{
	in_child(one_is_added);
}

static void one_alone(void)
{
	for (int i = 0; i < 100; i++)
		hugepin_free(hugepin_malloc(40 * MIB));
	EXPECT_EQ(hp_shards(), 1);
}

TEST(a_single_thread_has_one_shard)
{
	in_child(one_alone);
}

static void holes_first(void)
{
	char *p, *q;
	size_t pages;

	use_shards(3);
	p = malloc_in(1, 9 * MIB);
	q = hugepin_realloc(p, 4 * MIB);
	hugepin_purge();
	pages = hp_span.extent_pages[HP_PART_HEAP];
	EXPECT_EQ(shard_of(q), 1);
	EXPECT_EQ(shard_of(p = malloc_in(2, 3 * MIB)), 1);
	EXPECT_EQ(hp_span.extent_pages[HP_PART_HEAP], pages);
	hugepin_free(q);
	EXPECT_EQ(shard_of(q = malloc_in(2, 70 * MIB)), 2);
	hugepin_free(p);
	hugepin_free(q);
}

TEST(holes_of_other_shards_are_taken_before_the_heap_grows)
{
	in_child(holes_first);
}

static size_t given;

static void *place_in_a_hole(void *step)
{
	void *keep;

	warm();
	keep = malloc_in(1, 70 * MIB);
	EXPECT_EQ(shard_of(keep), 1);
	EXPECT(hugepin_realloc(keep, 20 * MIB) == keep); /* the rest is a hole with memory */
	hp_heap_lock();
	hp_lists_clear(HP_SHARD_HELD_ALL); /* of buffers in shard 0 */
	hp_heap_unlock();
	meet(step, 1, 2);
	for (int i = 0; i < 10; i++) {
		void *p = malloc_in(1, 3 * MIB), *q = hugepin_malloc(MIB);

		given += shard_of(p) == 1 && shard_of(q) == 1;
		hugepin_free(p);
		hugepin_free(q);
	}
	meet(step, 3, 4);
	return NULL;
}

static void one_is_locked(void)
{
	_Atomic int step = 0;
	pthread_t t;

	use_shards(2);
	pthread_create(&t, NULL, place_in_a_hole, (void *)&step);
	while (step != 1)
		sched_yield();
	hp_lock(&hp_shard[0].lock);
	step = 2;
	while (step != 3)
		sched_yield();
	hp_unlock(&hp_shard[0].lock);
	step = 4;
	pthread_join(t, NULL);
	EXPECT_EQ(given, 10);
}

/* Else it waits for ever. */
TEST(a_thread_places_long_buffers_while_another_shard_is_locked)
{
	in_child(one_is_locked);
}

static void back_home(void)
{
	void *p, *other;

	use_shards(2);
	p = malloc_in(1, 70 * MIB);
	other = malloc_in(0, 5 * MIB);
	EXPECT_EQ(shard_of(p), 1);
	hugepin_free(p);
	EXPECT_EQ(hp_tree_find(&hp_shard[1].tree, 0, hp_span.end[HP_PART_HEAP], 70 * MIB >> HP_CHUNK_SHIFT, 1, 0),
		  chunk_of(p));
	EXPECT_EQ(hp_tree_find(&hp_shard[0].tree, 0, hp_span.end[HP_PART_HEAP], 70 * MIB >> HP_CHUNK_SHIFT, 1, 0), 0);
	hugepin_free(other);
}

TEST(a_freed_buffer_returns_to_the_shard_where_it_lies)
{
	in_child(back_home);
}

/* The child's buffers are one of 70 MiB and one of 3 MiB; what is listed is free there. */
static void counted_in_a_child(void)
{
	void *p, *q, *listed[6];
	int status;
	pid_t pid;

	use_shards(3);
	p = malloc_in(1, 70 * MIB);
	for (unsigned i = 0; i < 6; i++)
		listed[i] = malloc_in(i % 3, 300 * KIB);
	q = malloc_in(2, 3 * MIB);
	for (unsigned i = 0; i < 6; i++)
		hugepin_free(listed[i]);
	pid = fork();
	if (!pid)
		_exit(HP_STAT(taken_bytes) != 73 * MIB || HP_STAT(taken_peak_bytes) > 90 * MIB);
	EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	EXPECT_EQ(HP_STAT(taken_bytes), 73 * MIB);
	hugepin_free(p);
	hugepin_free(q);
}

TEST(a_child_counts_its_own_buffers)
{
	in_child(counted_in_a_child);
}

/* ------------------------------------------------------------------ the trees */

/* The longest hole that begins in a block, by the table alone. */
static uint32_t longest_in(size_t block)
{
	uint32_t max = 0;

	for (size_t c = block << HP_TREE_BLOCK_SHIFT; c < (block + 1) << HP_TREE_BLOCK_SHIFT; c++) {
		bool begins = hp_holes_after(&hp_span.holes, c, 1) &&
			      ((!(c & (HP_PAGE_CHUNKS - 1)) && hp_bit(hp_span.holes.starts, hp_page_of(c))) ||
			       !hp_holes_after(&hp_span.holes, c - 1, 1));

		max = begins ? HP_MAX(max, hp_span.holes.len[c]) : max;
	}
	return max;
}

/* Each tree knows the holes of its own extents, and no others. The caller holds hp_heap_lock. */
static void check_trees(void)
{
	size_t blocks = hp_span.end[HP_PART_HEAP] << (HP_PAGE_CHUNKS_SHIFT - HP_TREE_BLOCK_SHIFT);

	for (size_t b = 8; b < blocks; b++) {
		size_t page = b >> (HP_PAGE_CHUNKS_SHIFT - HP_TREE_BLOCK_SHIFT);
		bool exists = hp_span.page[page].state != HP_PAGE_NONE;
		uint32_t len = exists ? longest_in(b) : 0;

		for (unsigned s = 0; s < hp_shards(); s++) {
			uint32_t want = exists && s == hp_span.page[page].shard ? len : 0;

			if (hp_shard[s].tree.longest[0][b] != want)
				T_FAIL("shard %u, block %zu: %u, not %u", s, b, hp_shard[s].tree.longest[0][b], want);
		}
	}
}

static void play_in_three(void)
{
	use_shards(3);
	play(HP_PAGES_AUTO, 8 * (int64_t)MIB, 40000);
	hp_heap_lock();
	check_trees();
	hp_heap_unlock();
}

TEST(the_heap_agrees_with_its_model_in_three_shards)
{
	in_child(play_in_three);
}

/* ------------------------------------------------------------------ threads that stop anywhere */

enum { THREADS = 3, HELD = 24 };
static _Atomic bool stop;
static _Atomic long placed;

static void be_stopped(int unused)
{
	const struct timespec t = { .tv_nsec = 300000 };
	int saved_errno = errno;

	(void)unused;
	nanosleep(&t, NULL);
	errno = saved_errno;
}

static void *work(void *arg)
{
	struct buffer mine[HELD] = { 0 };
	uint64_t state = (uintptr_t)arg;

	while (!stop) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		struct buffer *b = &mine[(state >> 40) % HELD];

		if (b->p) {
			EXPECT(holds(b, b->p, b->size));
			hugepin_free(b->p);
			b->p = NULL;
			continue;
		}
		if ((state >> 20 & 15) == 0 && hp_cache_self != &hp_cache_none)
			hp_cache_self->shard = (unsigned)(state >> 24) % hp_shards();
		b->size = HUGEPIN_LARGE_MIN + (state >> 45) % (state >> 33 & 1 ? 300000 : 5 * MIB);
		b->p = hugepin_malloc(b->size);
		b->stamp = state;
		stamp(b);
		placed++;
	}
	for (int i = 0; i < HELD; i++)
		hugepin_free(mine[i].p);
	return NULL;
}

static void child_lives_on(void)
{
	void *p[4];

	hp_heap_lock();
	check_trees();
	hp_heap_unlock();
	for (unsigned i = 0; i < 4; i++) {
		p[i] = malloc_in(i % hp_shards(), 2 * MIB);
		memset(p[i], 1, MIB);
	}
	for (unsigned i = 0; i < 4; i++)
		hugepin_free(p[i]);
	hugepin_purge();
	hp_heap_lock();
	check_trees();
	hp_heap_unlock();
	_exit(t_failures != 0);
}

static void several_at_work(void)
{
	const char *set = getenv("SHARDS"); /* rounds */
	long rounds = set ? atol(set) : 3000, forks = 0;
	pthread_t t[THREADS];

	signal(SIGUSR1, be_stopped);
	use_shards(3);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, work, (void *)(i + 1));
	for (long i = 0; i < (set ? rounds : rounds / SLOWER) || placed <= 1000; i++) {
		pthread_kill(t[rnd(THREADS)], SIGUSR1);
		switch (rnd(4)) {
		case 0:
			hp_heap_tick();
			break;
		case 1:
			if (rnd(8) == 0)
				hugepin_purge();
			break;
		case 2:
			if (rnd(16) == 0 && !HP_SANITIZED) {
				pid_t pid = fork();
				int status;

				if (!pid)
					child_lives_on();
				forks++;
				EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
			}
			break;
		default:
			hp_heap_lock();
			check_trees();
			hp_heap_unlock();
		}
	}
	stop = true;
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	t_print("# %ld buffers, %ld forks\n", placed, forks);
	EXPECT(placed > 1000);
	hugepin_purge();
	hp_heap_lock();
	check_trees();
	hp_heap_unlock();
	expect_empty();
}

TEST(trees_and_contents_are_whole_whoever_stops_in_which_shard)
{
	in_child(several_at_work);
}

T_MAIN
