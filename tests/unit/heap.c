/*
 * The heap in one thread against a naive model; then its clock: hp_heap_tick() called by hand, with no service thread.
 */
#include "alloc/heap.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "alloc/cache.h"
#include "alloc/copy.h"
#include "alloc/describe.h"
#include "alloc/fast.h"
#include "base/there.h"
#include "tests/unit/heap_model.h"

__attribute__((constructor)) static void configure(void)
{
	model_configure();
}

static size_t mapped(void)
{
	return HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes);
}

TEST_CASE(buffers_are_disjoint_and_keep_their_contents, play(HP_PAGES_AUTO, 64 * (int64_t)MIB, 60000))
TEST_CASE(the_same_in_small_extents, play(HP_PAGES_THP, 2 * (int64_t)MIB, 40000))
TEST_CASE(the_same_in_base_pages, play(HP_PAGES_BASE, 16 * (int64_t)MIB, 30000))

TEST_BY(emptied, millions_of_cheap_operations_agree_with_the_model)
{
	hp_config.pages = HP_PAGES_THP;
	hp_config.extent_max = 64 * (int64_t)MIB;
	seed = 7;
	for (int i = 0; i < 4000000 / SLOWER; i++) {
		struct buffer *b = &buffers[rnd(BUFFERS)];

		if (b->p) {
			EXPECT_EQ(*(uint64_t *)b->p, b->stamp);
			own(b, (uint16_t)(b - buffers + 1), 0);
			hugepin_free(b->p);
			b->p = NULL;
			continue;
		}
		b->size = HUGEPIN_LARGE_MIN + (rnd(64) == 0 ? rnd(MIB) : rnd(20) * 4096);
		b->p = rnd(16) ? hugepin_malloc(b->size) : hugepin_aligned_alloc(65536, b->size);
		*(uint64_t *)b->p = b->stamp = seed;
		own(b, 0, (uint16_t)(b - buffers + 1));
	}
	check_tree();
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++) {
		if (!b->p)
			continue;
		own(b, (uint16_t)(b - buffers + 1), 0);
		hugepin_free(b->p);
		b->p = NULL;
	}
}

TEST_BY(emptied, what_was_given_back_reads_as_zero_when_it_comes_again)
{
	for (int i = 0; i < 20; i++) {
		unsigned char *p = hugepin_calloc(3, MIB + 12345);

		EXPECT(is_zero(p, 3 * (MIB + 12345)));
		memset(p, 0xee, 3 * (MIB + 12345));
		hugepin_free(p);
		if (i % 4 == 3)
			hugepin_purge();
	}
}

/* Base pages alone, where the kernel makes THP without being asked, too. */
static void want_base_pages(bool on)
{
	static int64_t pages;

	if (on)
		pages = hp_config.pages;
	hp_config.pages = on ? HP_PAGES_BASE : pages;
	prctl(PR_SET_THP_DISABLE, on, 0, 0, 0);
}

/* Longer than what a slot keeps, and as the slot keeps it. */
TEST_BY(emptied, a_table_that_is_cleared_for_its_next_owner_gets_no_memory_that_it_had_not)
{
	static const size_t sizes[] = { 96 * MIB, 48 * MIB };
	struct hp_there there = { 0, 0 };

	want_base_pages(true);
	for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
		for (int round = 0; round < 3; round++) {
			unsigned char *p = hugepin_calloc(1, sizes[k] + 1);

			if (!EXPECT(p))
				break;
			for (size_t at = 0; at <= sizes[k]; at += sizes[k] / 8) {
				EXPECT_EQ(p[at], 0);
				p[at] = 0xee;
			}
			hugepin_free(p);
		}
	EXPECT(hp_heap_there(&there));
	EXPECT(there.huge + there.other > 0);
	EXPECT(there.huge + there.other <= 4 * 9 * hp_base_page);
	want_base_pages(false);
}

TEST_BY(emptied, a_table_that_moves_gets_no_memory_where_it_was_not_touched)
{
	enum { SIZE = 24 * MIB, STEP = SIZE / 8 };
	struct hp_there there = { 0, 0 };
	unsigned char *p, *wall, *q;

	want_base_pages(true);
	p = hugepin_calloc(1, SIZE);
	wall = hugepin_malloc(MIB);
	for (size_t at = 0; at < SIZE; at += STEP)
		p[at] = p[at + STEP - 1] = (unsigned char)(1 + at / STEP);
	q = hugepin_realloc(p, 2 * SIZE);
	if (EXPECT(q && q != p)) {
		for (size_t at = 0; at < SIZE; at += STEP)
			EXPECT(q[at] == 1 + at / STEP && q[at + STEP - 1] == 1 + at / STEP && !q[at + STEP / 2]);
		EXPECT(hp_heap_there(&there));
		EXPECT(there.huge + there.other <= 2 * 2 * 8 * hp_base_page);
		p = hugepin_realloc(q, 10 * SIZE); /* over what the first buffer has left, too: not all of the place is clean */
		for (size_t at = 0; p && at < SIZE; at += STEP)
			EXPECT(p[at] == 1 + at / STEP && p[at + STEP - 1] == 1 + at / STEP && !p[at + STEP / 2]);
		hugepin_free(p ? p : q);
	}
	hugepin_free(wall);
	want_base_pages(false);
}

/* ------------------------------------------------------------------ the clock */

/* More than a slot or a list keeps: its memory is free at once. */
#define LARGE (65 * MIB)
#define LARGE_MAPPED (66 * MIB)

static unsigned char *touched(size_t size)
{
	unsigned char *p = hugepin_malloc(size);

	for (size_t off = 0; off < size; off += HP_CHUNK)
		p[off] = (unsigned char)(off >> HP_CHUNK_SHIFT | 1);
	return p;
}

static bool still_touched(const unsigned char *p, size_t size)
{
	for (size_t off = 0; off < size; off += HP_CHUNK)
		if (p[off] != (unsigned char)(off >> HP_CHUNK_SHIFT | 1))
			return false;
	return true;
}

static void ticks(int n)
{
	while (n--)
		hp_heap_tick();
}

static size_t free_pages(void)
{
	size_t n = 0;

	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
		n += hp_span.page[p].state >= HP_PAGE_RESERVED && hp_holes_page(&hp_span.holes, p);
	return n;
}

/* ------------------------------------------------------------------ lists */

static size_t listed(void)
{
	return hp_cache_self->listed + hp_cache_self->slot.n + (HP_STAT(listed_bytes) >> HP_CHUNK_SHIFT);
}

/* Put so many buffers of different sizes, from `size` on, into lists. */
static void fill_lists(int count, size_t size)
{
	void *p[40];

	for (int i = 0; i < count; i++)
		p[i] = hugepin_malloc(size + (size_t)i * HP_CHUNK);
	for (int i = 0; i < count; i++)
		hugepin_free(p[i]);
}

TEST_BY(emptied, a_miss_of_a_long_buffer_empties_lists_that_hold_much_and_a_short_one_leaves_them)
{
	size_t before;

	hugepin_free(touched(LARGE)); /* what comes now needs no other memory */
	fill_lists(20, 40000);
	before = listed();
	EXPECT(before > HP_LISTED_LARGE);
	hugepin_free(hugepin_malloc(MIB / 2));
	EXPECT(listed() >= before);
	hugepin_free(hugepin_malloc(MIB));
	EXPECT(listed() <= MIB >> HP_CHUNK_SHIFT);
	hugepin_purge();
	hugepin_free(touched(LARGE));
	fill_lists(8, 40000);
	before = listed();
	EXPECT(before < HP_LISTED_LARGE);
	hugepin_free(hugepin_malloc(2 * MIB));
	EXPECT(listed() >= before);
	EXPECT_EQ(mapped(), LARGE_MAPPED);
}

/* One in the slot, one in the shared lists: neither needs a place in the tree. */
TEST_BY(emptied, the_largest_buffers_that_lists_keep_are_found_there)
{
	const size_t largest = (size_t)HP_SLOT_MAX << HP_CHUNK_SHIFT;
	uint64_t placed;
	void *p[3];

	for (int i = 0; i < 3; i++)
		p[i] = hugepin_malloc(largest);
	for (int i = 0; i < 3; i++)
		hugepin_free(p[i]);
	placed = HP_STAT(placed);
	EXPECT_EQ(listed(), 3 * (size_t)HP_SLOT_MAX);
	for (int i = 0; i < 3; i++)
		p[i] = hugepin_malloc(largest);
	EXPECT_EQ(HP_STAT(placed), placed);
	EXPECT_EQ(listed(), 0);
	for (int i = 0; i < 3; i++)
		hugepin_free(p[i]);
	hugepin_free(hugepin_malloc(largest + 1)); /* too large for them: to the tree at once */
	EXPECT(listed() <= 3 * (size_t)HP_SLOT_MAX);
}

/* Whether a pair of this size needs neither a list nor the lock. */
static bool is_in_slot(size_t size)
{
	return hp_cache_self->slot.n == hp_chunks_for(size);
}

TEST_BY(emptied, the_slot_has_the_buffer_that_was_freed_last_whatever_was_there_before)
{
	static const size_t sizes[] = { 100000, 200000, MIB, 20 * MIB, 40000, 64 * MIB, 12 * MIB, 13 * MIB, 100000 };

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		void *p = touched(sizes[i]);

		hugepin_free(p);
		EXPECT(is_in_slot(sizes[i]));
		EXPECT(hugepin_malloc(sizes[i]) == p);
		hugepin_free(p);
		EXPECT(is_in_slot(sizes[i]));
	}
}

TEST_BY(emptied, a_request_takes_a_listed_buffer_that_is_at_most_a_sixteenth_too_long_as_it_is)
{
	enum { N = 120 };
	unsigned char *p, *q;

	hugepin_free(touched(LARGE)); /* what comes now needs no other memory, so lists stay as they are */
	for (size_t n = N; n >= N / 2; n -= 4)
		for (int in_slot = 0; in_slot < 2; in_slot++) {
			p = hugepin_malloc(N * HP_CHUNK);
			hugepin_free(p);
			if (!in_slot)
				hugepin_free(hugepin_malloc(MIB / 4)); /* p goes to a list */
			q = hugepin_malloc(n * HP_CHUNK);
			EXPECT_EQ(q == p, n + n / 16 >= N);
			EXPECT_EQ(hugepin_usable_size(q), (q == p ? N : n) * HP_CHUNK);
			hugepin_free(q);
			hugepin_purge();
		}
}

TEST(the_classes_are_sixteenths)
{
	unsigned class = 0;

	for (uint32_t n = 1; n <= HP_SLOT_MAX; n += 1 + n / 100) {
		EXPECT(hp_class_of(n) == class || hp_class_of(n) == class + 1);
		class = hp_class_of(n);
		EXPECT(class + 1 < HP_CLASSES);
		EXPECT(hp_is_close(n, n) && hp_is_close(n + n / 16, n));
		EXPECT(!hp_is_close(n - 1, n) && !hp_is_close(n + n / 16 + 1, n));
	}
	EXPECT(!hp_is_close(0, 1) && !hp_is_close(HP_SLOT_MAX, SIZE_MAX >> HP_CHUNK_SHIFT));
}

static void *free_both(void *buffers_)
{
	void **p = buffers_;

	EXPECT(hp_cache_self == &hp_cache_none);
	hugepin_free(p[0]);
	EXPECT(hp_cache_self != &hp_cache_none);
	hugepin_free(p[1]);
	EXPECT(hp_cache_self->listed + hp_cache_self->slot.n >= 10); /* the second one, at least */
	return NULL;
}

TEST_BY(emptied, a_thread_that_only_frees_has_lists_of_its_own)
{
	void *p[2] = { hugepin_malloc(40000), hugepin_malloc(50000) };
	pthread_t t;

	pthread_create(&t, NULL, free_both, p);
	pthread_join(t, NULL);
}

#define OTHERS_FREED 80

static void *only_allocate(void *buffers_)
{
	void **p = buffers_;

	for (int i = 0; i < 4; i++)
		p[i] = hugepin_malloc(256 * KIB);
	return NULL;
}

/* The first buffer comes from the tree, and the thread is admitted. The other three come from the shared lists. */
TEST_BY(emptied, a_thread_that_only_allocates_gets_what_others_have_freed)
{
	void *p[OTHERS_FREED], *taken[4], *keep = hugepin_malloc(9 * MIB);
	uint64_t relisted;
	pthread_t t;

	for (int i = 0; i < OTHERS_FREED; i++)
		p[i] = hugepin_malloc(256 * KIB);
	for (int i = 0; i < OTHERS_FREED; i++)
		hugepin_free(p[i]);
	EXPECT(HP_STAT(listed_bytes) >= MIB);
	EXPECT(hugepin_realloc(keep, MIB) == keep); /* a hole that has memory */
	relisted = HP_STAT(relisted);
	pthread_create(&t, NULL, only_allocate, taken);
	pthread_join(t, NULL);
	EXPECT_EQ(HP_STAT(relisted) - relisted, 3);
	for (int i = 0; i < 4; i++)
		hugepin_free(taken[i]);
	hugepin_free(keep);
}

/* ------------------------------------------------------------------ decay */

TEST_BY(emptied, free_memory_leaves_after_its_time_and_not_before)
{
	uint64_t decayed = HP_STAT(decayed_bytes);

	hugepin_free(touched(LARGE));
	for (int i = 1; i <= HP_TICKS; i++) {
		EXPECT(hp_heap_tick());
		EXPECT_EQ(mapped(), LARGE_MAPPED);
	}
	EXPECT(!hp_heap_tick()); /* nothing more to do */
	EXPECT_EQ(mapped(), HP_PAGE); /* the watermark */
	EXPECT_EQ(HP_STAT(decayed_bytes) - decayed, LARGE_MAPPED - HP_PAGE);
	ticks(3 * HP_TICKS);
	EXPECT_EQ(mapped(), HP_PAGE);
}

TEST_BY(emptied, memory_that_is_used_again_starts_anew)
{
	hugepin_free(touched(LARGE));
	ticks(HP_TICKS);
	hugepin_free(touched(LARGE));
	ticks(HP_TICKS);
	EXPECT_EQ(mapped(), LARGE_MAPPED);
	ticks(1);
	EXPECT_EQ(mapped(), HP_PAGE);
}

TEST_BY(emptied, memory_in_use_never_leaves)
{
	unsigned char *a = touched(LARGE), *b = touched(40000), *c = touched(LARGE), *d = touched(3 * MIB);
	unsigned char *e = touched(LARGE);

	hugepin_free(a);
	hugepin_free(c);
	hugepin_free(e);
	ticks(3 * HP_TICKS);
	EXPECT_EQ(free_pages(), 1); /* the watermark */
	EXPECT(still_touched(b, 40000));
	EXPECT(still_touched(d, 3 * MIB));
	hugepin_purge();
	EXPECT_EQ(free_pages(), 0);
	EXPECT(still_touched(b, 40000));
	EXPECT(still_touched(d, 3 * MIB));
	hugepin_free(b);
	hugepin_free(d);
}

/* A thread that does one step each time it is told to. */
static struct {
	pthread_barrier_t go, done;
	pthread_t thread;
	void (*step)(void);
} other;

static void *steps(void *unused)
{
	(void)unused;
	for (;;) {
		pthread_barrier_wait(&other.go);
		if (!other.step)
			return NULL;
		other.step();
		pthread_barrier_wait(&other.done);
	}
}

static void let(void (*step)(void))
{
	other.step = step;
	pthread_barrier_wait(&other.go);
	if (step)
		pthread_barrier_wait(&other.done);
	else
		pthread_join(other.thread, NULL);
}

static void start_other(void)
{
	pthread_barrier_init(&other.go, NULL, 2);
	pthread_barrier_init(&other.done, NULL, 2);
	pthread_create(&other.thread, NULL, steps, NULL);
}

static bool can_steal(void)
{
	long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);

	return commands > 0 && commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED;
}

/* Its cache holds them afterwards: 3 MiB in the slot, 5 x 2.5 MiB in lists. */
#define CACHED (31 * MIB / 2)
static void fill_cache(void)
{
	void *p[6];

	for (int i = 0; i < 6; i++)
		p[i] = touched(i ? 5 * MIB / 2 : 3 * MIB);
	for (int i = 0; i < 6; i++)
		hugepin_free(p[i]);
	EXPECT_EQ(hp_cache_self->slot.n + hp_cache_self->listed, CACHED >> HP_CHUNK_SHIFT);
}

static void use_heap(void)
{
	hugepin_free(touched(100000));
	hugepin_free(touched(3 * MIB));
}

TEST(what_an_idle_thread_keeps_leaves_in_time)
{
	uint64_t stolen = HP_STAT(stolen);
	size_t before;

	if (!can_steal())
		SKIP("no membarrier(2): idle caches are not emptied");
	start_other();
	let(use_heap);
	let(fill_cache);
	before = mapped();
	EXPECT(before >= CACHED);
	EXPECT(hp_heap_tick()); /* asked */
	EXPECT_EQ(HP_STAT(stolen), stolen);
	EXPECT(HP_STAT(taken_bytes) >= CACHED);
	EXPECT(hp_heap_tick()); /* stolen */
	EXPECT_EQ(HP_STAT(stolen), stolen + 1);
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
	ticks(HP_TICKS - 2);
	EXPECT_EQ(mapped(), before);
	EXPECT(!hp_heap_tick());
	EXPECT_EQ(mapped(), HP_PAGE);
	let(use_heap);
	let(fill_cache);
	let(NULL);
	EXPECT_EQ(HP_STAT(taken_bytes), 0); /* thread exit */
	hugepin_purge();
	expect_empty();
}

TEST_BY(emptied, a_thread_that_calls_between_ticks_keeps_its_cache)
{
	uint64_t stolen = HP_STAT(stolen);

	start_other();
	let(use_heap);
	for (int i = 0; i < 3 * HP_TICKS; i++) {
		hp_heap_tick();
		let(use_heap);
		EXPECT_EQ(hp_heap_tick(), true);
		let(use_heap);
	}
	EXPECT_EQ(HP_STAT(stolen), stolen);
	EXPECT(HP_STAT(threads) >= 1);
	let(NULL);
}

/* Buffers that come from the slot, from the lists and from neither. */
TEST(no_call_leaves_the_thread_inside_its_cache)
{
	hugepin_purge();
	for (size_t size = 64 * KIB; size <= 64 * MIB; size *= 4)
		for (int i = 0; i < 2; i++) {
			void *p[5] = { hugepin_malloc(size), hugepin_calloc(1, size), hugepin_aligned_alloc(8192, size) };

			EXPECT(!hp_cache_self->slot.busy);
			p[3] = hugepin_calloc(3, size);
			EXPECT(!hp_cache_self->slot.busy);
			p[4] = hugepin_aligned_alloc(MIB, 2 * size);
			EXPECT(!hp_cache_self->slot.busy);
			p[0] = hugepin_realloc(p[0], 2 * size);
			EXPECT(!hp_cache_self->slot.busy);
			for (int k = 0; k < 5; k++) {
				hugepin_free(p[k]);
				EXPECT(!hp_cache_self->slot.busy);
			}
		}
}

static void stop_inside(void)
{
	hp_cache_enter(hp_cache_self);
}

static void go_on(void)
{
	hp_cache_leave(hp_cache_self);
}

TEST(a_thread_in_the_middle_of_an_operation_is_left_alone)
{
	uint64_t stolen = HP_STAT(stolen);

	if (!can_steal())
		SKIP("no membarrier(2): idle caches are not emptied");
	start_other();
	let(use_heap);
	let(fill_cache);
	let(stop_inside);
	ticks(4 * HP_TICKS);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(stolen), stolen);
	EXPECT_EQ(HP_STAT(taken_bytes), CACHED);
	let(go_on);
	hp_heap_tick();
	EXPECT_EQ(HP_STAT(stolen), stolen + 1);
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
	let(NULL);
	hugepin_purge();
	expect_empty();
}

static unsigned char *shared[40];

static void take_many(void)
{
	for (int i = 0; i < 40; i++)
		shared[i] = touched(MIB);
}

/* The thread's lists have room for 16 of these, and the slot has one. */
static void free_many(void)
{
	for (int i = 0; i < 40; i++)
		hugepin_free(shared[i]);
}

TEST_BY(emptied, what_is_in_the_shared_lists_leaves_in_time)
{
	size_t before;

	start_other();
	let(take_many);
	let(free_many);
	before = mapped();
	EXPECT_EQ(HP_STAT(listed_bytes), 23 * MIB);
	EXPECT_EQ(HP_STAT(taken_bytes), 40 * MIB);
	hp_heap_tick();
	EXPECT_EQ(HP_STAT(listed_bytes), 0);
	EXPECT_EQ(HP_STAT(taken_bytes), 17 * MIB); /* the thread's own, which are stolen if it stays idle */
	ticks(HP_TICKS - 1);
	EXPECT_EQ(mapped(), before);
	ticks(1);
	EXPECT_EQ(mapped(), HP_PAGE);
	let(NULL);
}

static _Atomic bool stop;

static void work_hard(void)
{
	struct buffer mine[32] = { 0 };
	uint64_t state = 5;

	while (!stop) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		struct buffer *b = &mine[state >> 40 & 31];

		if (b->p) {
			EXPECT(holds(b, b->p, b->size));
			hugepin_free(b->p);
			b->p = NULL;
			continue;
		}
		b->size = HUGEPIN_LARGE_MIN + (state >> 45) % (state >> 33 & 15 ? 300000 : 5 * MIB);
		b->p = hugepin_malloc(b->size);
		b->stamp = state;
		stamp(b);
	}
	for (int i = 0; i < 32; i++)
		hugepin_free(mine[i].p);
}

/* It cannot start the thread that gives memory back, and shares all memory with its parent. */
TEST(after_a_child_of_vfork_has_wanted_a_tick_the_next_call_of_the_parent_asks_again)
{
	__typeof__(hp_ticking.by) by = hp_ticking.by;
	pid_t pid;
	int status = -1;

	use_heap();
	EXPECT(hp_cache_limit(hp_cache_self) > 0);
	hp_ticking.by = HP_TICKS_STARTING; /* as hp_want_tick() leaves it */
	pid = vfork();
	if (pid == 0) {
		hp_ask_tick(true);
		syscall(SYS_exit_group, 0);
	}
	EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
	EXPECT_EQ(hp_ticking.by, HP_TICKS_NONE);
	EXPECT_EQ(hp_cache_limit(hp_cache_self), 0);
	hp_ticking.by = by;
}

TEST_BY(emptied, ticks_and_purges_disturb_no_working_thread)
{
	pthread_t worker;

	stop = false;
	pthread_create(&worker, NULL, (void *(*)(void *))work_hard, NULL);
	for (int i = 0; i < 4000 / SLOWER; i++) {
		hp_heap_tick();
		if (i % 64 == 0)
			hugepin_purge();
	}
	stop = true;
	pthread_join(worker, NULL);
}

T_MAIN
