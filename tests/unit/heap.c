/*
 * The heap in one thread against a naive model, which knows the owner of every chunk and what every buffer holds; then
 * its clock: hp_heap_tick() called by hand, with no service thread.
 */
#include "alloc/heap.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/cache.h"
#include "alloc/copy.h"
#include "alloc/fast.h"
#include "base/config.h"
#include "base/stats.h"
#include "tests/t.h"
#include "tests/unit/empty.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SLOWER 8
#else
#define SLOWER 1
#endif

#define MIB ((size_t)1 << 20)
#define SPAN ((size_t)8 << 30)
#define LIVE_MAX (256 * MIB)
#define GRID 61448 /* bytes between the words by which a buffer is known: meets all places of a page */
enum { BUFFERS = 400 };

static struct buffer {
	unsigned char *p;
	size_t size;
	uint64_t stamp;
} buffers[BUFFERS];
static uint16_t *owner; /* of each chunk: its buffer's index + 1 */
static size_t live; /* bytes asked for */
static uint64_t seed;

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)SPAN;
	hp_config.decay_ms = 0; /* the clock is ours */
	hp_config.abort_on_misuse = 0;
	owner = calloc(SPAN >> HP_CHUNK_SHIFT, sizeof *owner);
}

static uint64_t rnd(uint64_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % n;
}

static size_t mapped(void)
{
	return HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes);
}

/* ------------------------------------------------------------------ the model */

static bool in_span(const void *p)
{
	return hp_span.size && (uintptr_t)p - hp_span.base < hp_span.size;
}

static size_t chunk_of(const void *p)
{
	return ((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT;
}

/* Write what the buffer is known by: a word at each step of GRID, and its last eight bytes. */
static void stamp(struct buffer *b)
{
	for (size_t off = 0; off + 16 <= b->size; off += GRID)
		*(uint64_t *)(b->p + off) = b->stamp ^ off;
	if (b->size >= 8)
		memcpy(b->p + b->size - 8, &b->stamp, 8);
}

/* Whether the first `size` bytes, perhaps not all of it, are as they were left. */
static bool holds(const struct buffer *b, const unsigned char *p, size_t size)
{
	for (size_t off = 0; off + 16 <= b->size && off + 8 <= size; off += GRID)
		if (*(const uint64_t *)(p + off) != (b->stamp ^ off))
			return false;
	return size < b->size || b->size < 8 || memcmp(p + b->size - 8, &b->stamp, 8) == 0;
}

static bool is_zero(const unsigned char *p, size_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

static void own(const struct buffer *b, uint16_t from, uint16_t to)
{
	if (!in_span(b->p))
		return;
	for (size_t c = chunk_of(b->p), end = c + (hugepin_usable_size(b->p) >> HP_CHUNK_SHIFT); c < end; c++) {
		if (owner[c] != from) {
			T_FAIL("chunk %zu belongs to %d, not to %d", c, owner[c], from);
			break;
		}
		owner[c] = to;
	}
}

/* A buffer has come, or has come back from realloc. */
static void enter(struct buffer *b, void *p, size_t size, size_t align)
{
	b->p = p;
	b->size = size;
	b->stamp = seed;
	live += size;
	EXPECT_EQ(in_span(p), size >= HUGEPIN_LARGE_MIN || align >= HUGEPIN_LARGE_MIN);
	EXPECT_EQ((uintptr_t)p & (align - 1), 0);
	EXPECT(hugepin_usable_size(p) >= size);
	if (in_span(p)) {
		EXPECT((uintptr_t)p - hp_span.base + hugepin_usable_size(p) <= hp_span.size);
		EXPECT_EQ((uintptr_t)p & (HP_CHUNK - 1), 0);
		EXPECT(hugepin_usable_size(p) - HP_MAX(size, 1u) < HP_CHUNK);
	}
	own(b, 0, (uint16_t)(b - buffers + 1));
	stamp(b);
}

static void leave(struct buffer *b)
{
	EXPECT(holds(b, b->p, b->size));
	own(b, (uint16_t)(b - buffers + 1), 0);
	live -= b->size;
}

static void discard(struct buffer *b)
{
	leave(b);
	if (rnd(8) == 0)
		memset(b->p, 0xff, HP_MIN(b->size, MIB));
	errno = 77;
	hugepin_free(b->p);
	EXPECT_EQ(errno, 77);
	b->p = NULL;
}

static size_t random_size(void)
{
	switch (rnd(32)) {
	case 0: return 16 * MIB + rnd(80 * MIB);
	case 1: return 1 + rnd(HUGEPIN_LARGE_MIN + 4096);
	case 2: return HP_PAGE * (1 + rnd(4));
	case 3: case 4: case 5: return 1 + rnd(4 * MIB);
	default: return HUGEPIN_LARGE_MIN + rnd(8) * 32768;
	}
}

static void obtain(struct buffer *b)
{
	size_t size = random_size(), align = 16;
	unsigned char *p;

	switch (rnd(8)) {
	case 0:
		p = hugepin_calloc(1, size);
		EXPECT(is_zero(p, size));
		break;
	case 1:
		align = (size_t)1 << rnd(rnd(8) ? 15 : 27);
		p = hugepin_aligned_alloc(align, size);
		break;
	default:
		p = hugepin_malloc(size);
	}
	if (EXPECT(p))
		enter(b, p, size, align);
}

static void resize(struct buffer *b)
{
	struct buffer old = *b;
	size_t size = rnd(4) ? b->size + rnd(b->size + 1) : random_size();
	unsigned char *p;

	if (size > 128 * MIB)
		return;
	leave(b);
	p = hugepin_realloc(b->p, size);
	if (!EXPECT(p))
		return;
	EXPECT(holds(&old, p, HP_MIN(old.size, size)));
	/* What shrinks below the limit may stay where it is. */
	enter(b, p, size, in_span(p) && size < HUGEPIN_LARGE_MIN ? HUGEPIN_LARGE_MIN / 8 : 16);
}

/* The extents of all buffers, as hugepin_extent() describes them. */
static void check_extents(void)
{
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++) {
		struct hugepin_extent e, part = { .len = 77 };

		if (!b->p)
			continue;
		if (!in_span(b->p)) {
			EXPECT_EQ(hugepin_extent(b->p, &e, sizeof e), -ENOENT);
			continue;
		}
		EXPECT_EQ(hugepin_extent(b->p + b->size - 1, &e, sizeof e), sizeof e);
		EXPECT((unsigned char *)e.addr <= b->p);
		EXPECT(b->p + hugepin_usable_size(b->p) <= (unsigned char *)e.addr + e.len);
		if (e.len <= (size_t)hp_config.extent_max && hp_is_power_of_two(e.len))
			EXPECT_EQ((uintptr_t)e.addr & (HP_PAGE - 1), 0);
		EXPECT(e.gen != 0 && e.kind <= HUGEPIN_KIND_HUGETLB);
		EXPECT_EQ(e.page_shift, e.kind == HUGEPIN_KIND_HUGETLB ? 21 : 12);
		EXPECT_EQ(hugepin_extent(b->p, &part, offsetof(struct hugepin_extent, len)), sizeof e);
		EXPECT(part.addr == e.addr && part.len == 77);
	}
}

/* No live chunk is free. With all lists empty, each chunk of an extent is free or counted as taken, and taken are the
 * buffers and the room behind them. */
static void check_tree(void)
{
	size_t free = 0, owned = 0, in_extents = 0;

	hugepin_purge();
	for (size_t c = 0, n; c < hp_span.tree.used << HP_PAGE_CHUNKS_SHIFT; c += n) {
		bool is_free = hp_tree_free_after(&hp_span.tree, c, 1);
		bool exists = hp_span.page[c >> HP_PAGE_CHUNKS_SHIFT].state != HP_PAGE_NONE;

		n = is_free ? hp_tree_free_after(&hp_span.tree, c, HP_PAGE_CHUNKS - (c & (HP_PAGE_CHUNKS - 1))) : 1;
		for (size_t i = c; i < c + n; i++) {
			EXPECT(!is_free || !owner[i]);
			owned += owner[i] != 0;
		}
		EXPECT(exists || !is_free);
		free += is_free ? n : 0;
		in_extents += exists ? n : 0;
	}
	EXPECT_EQ(HP_STAT(listed_bytes), 0);
	EXPECT_EQ(HP_STAT(taken_bytes), (owned << HP_CHUNK_SHIFT) + HP_STAT(room_bytes));
	EXPECT_EQ((in_extents - free) << HP_CHUNK_SHIFT, HP_STAT(taken_bytes));
	EXPECT_EQ(hp_span.extent_pages[HP_PART_HEAP], in_extents >> HP_PAGE_CHUNKS_SHIFT);
	EXPECT(HP_STAT(taken_peak_bytes) >= HP_STAT(taken_bytes));
}

static void play(int64_t pages, int64_t extent_max, int steps)
{
	hp_config.pages = pages;
	hp_config.extent_max = extent_max;
	seed = (uint64_t)(42 + pages + extent_max);
	for (int i = 0; i < steps / SLOWER; i++) {
		struct buffer *b = &buffers[rnd(BUFFERS)];

		if (b->p && rnd(4) == 0)
			resize(b);
		else if (b->p)
			discard(b);
		else
			obtain(b);
		while (live > LIVE_MAX)
			if ((b = &buffers[rnd(BUFFERS)])->p)
				discard(b);
		if (i % 4096 == 0)
			check_extents();
		if (i % 16384 == 0)
			check_tree();
		if (i % 1024 == 0)
			hp_heap_tick();
	}
	check_tree();
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
		if (b->p)
			discard(b);
	hugepin_purge();
	expect_empty();
}

TEST(buffers_are_disjoint_and_keep_their_contents)
{
	play(HP_PAGES_AUTO, 64 * (int64_t)MIB, 60000);
}

TEST(the_same_in_small_extents)
{
	play(HP_PAGES_THP, 2 * (int64_t)MIB, 40000);
}

TEST(the_same_in_base_pages)
{
	play(HP_PAGES_BASE, 16 * (int64_t)MIB, 30000);
}

TEST(millions_of_cheap_operations_agree_with_the_model)
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
	hugepin_purge();
	expect_empty();
}

TEST(what_was_given_back_reads_as_zero_when_it_comes_again)
{
	for (int i = 0; i < 20; i++) {
		unsigned char *p = hugepin_calloc(3, MIB + 12345);

		EXPECT(is_zero(p, 3 * (MIB + 12345)));
		memset(p, 0xee, 3 * (MIB + 12345));
		hugepin_free(p);
		if (i % 4 == 3)
			hugepin_purge();
	}
	hugepin_purge();
	expect_empty();
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

	for (size_t p = 1; p < hp_span.tree.used; p++)
		n += hp_span.page[p].state >= HP_PAGE_RESERVED && hp_tree_page_free(&hp_span.tree, p);
	return n;
}

/* ------------------------------------------------------------------ lists */

static size_t listed(void)
{
	return hp_cache_self->listed + hp_cache_self->slot.n + hp_shared_listed;
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

TEST(a_miss_empties_lists_that_hold_much_and_leaves_the_others)
{
	size_t before;

	hugepin_free(touched(LARGE)); /* what comes now needs no other memory */
	fill_lists(20, 40000);
	before = listed();
	EXPECT(before >= 20 * 10 && before < HP_LISTED_MISS);
	hugepin_free(hugepin_malloc(MIB));
	EXPECT(listed() >= before);
	fill_lists(20, 400000);
	before = listed();
	EXPECT(before > HP_LISTED_MISS);
	hugepin_free(hugepin_malloc(2 * MIB));
	EXPECT(listed() <= 2 * MIB >> HP_CHUNK_SHIFT);
	EXPECT_EQ(mapped(), LARGE_MAPPED);
	hugepin_purge();
	expect_empty();
}

/* One in the slot, one in the shared lists: neither needs a place in the tree. */
TEST(the_largest_buffers_that_lists_keep_are_found_there)
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
	hugepin_purge();
	expect_empty();
}

/* Whether a pair of this size needs neither a list nor the lock. */
static bool is_in_slot(size_t size)
{
	return hp_cache_self->slot.n == hp_chunks_for(size);
}

TEST(the_slot_has_the_buffer_that_was_freed_last_whatever_was_there_before)
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
	hugepin_purge();
	expect_empty();
}

TEST(a_listed_buffer_that_is_at_most_an_eighth_too_long_is_split)
{
	enum { N = 160 };
	unsigned char *p, *q;

	hugepin_free(touched(LARGE)); /* what comes now needs no other memory, so lists stay as they are */
	p = hugepin_malloc(N * HP_CHUNK);
	hugepin_free(p);
	hugepin_free(hugepin_malloc(MIB)); /* p goes to a list */
	q = hugepin_malloc((N * 8 / 9 - 1) * HP_CHUNK);
	EXPECT(q != p);
	hugepin_free(q);
	q = hugepin_malloc((N * 8 / 9 + 1) * HP_CHUNK);
	EXPECT(q == p);
	EXPECT_EQ(hugepin_usable_size(q), (N * 8 / 9 + 1) * HP_CHUNK);
	EXPECT_EQ(hp_chunk_get(chunk_of(q) + N * 8 / 9 + 1), HP_CHUNK_WORD(N - N * 8 / 9 - 1, HP_CHUNK_LISTED));
	hugepin_free(q);
	hugepin_purge();
	expect_empty();
}

/* ------------------------------------------------------------------ fork looks on */

static size_t steps_seen, pages_least, pages_most;

static enum hp_page_fork wants_copy(size_t p)
{
	(void)p;
	return HP_PAGE_COPIED;
}

static void look_as_fork_does(int sig)
{
	size_t pages = hp_copy_mark(wants_copy, true);

	(void)sig;
	hp_copy_unmark();
	steps_seen++;
	pages_least = HP_MIN(pages_least, pages);
	pages_most = HP_MAX(pages_most, pages);
}

#ifdef __x86_64__
/* The processor traps after each instruction while its flag TF is set. */
#define STEP(on) \
	__asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); orq %0, (%%rsp); popfq; lea 128(%%rsp), %%rsp" \
			 : : "r"((uint64_t)(on) << 8) : "memory", "cc")
#else
#define STEP(on) ((void)(on))
#endif

/* The tail begins a hugepage of its own: fork would leave it out if there were a moment at which no word tells of it. */
TEST(at_every_instruction_of_a_split_fork_finds_all_of_the_buffer)
{
	enum { HEAD = 4 * 512, TAIL = 256 };
	unsigned char *first, *p, *q;

#ifdef __SANITIZE_THREAD__
	SKIP("the sanitizer has a lock for each word, which the interrupted instruction may hold");
#endif
#ifndef __x86_64__
	SKIP("a program cannot step through its own instructions here");
#endif
	first = hugepin_malloc(40000);
	p = hugepin_aligned_alloc(HP_PAGE, (HEAD + TAIL) * HP_CHUNK);
	EXPECT(first < p); /* and not in a page of p's */
	hugepin_free(p);
	hugepin_free(first);
	pages_least = SIZE_MAX;
	pages_most = 0;
	signal(SIGTRAP, look_as_fork_does);
	STEP(true);
	q = hugepin_malloc(HEAD * HP_CHUNK);
	STEP(false);
	signal(SIGTRAP, SIG_DFL);
	EXPECT(q == p);
	EXPECT_EQ(HP_CHUNK_STATE(hp_chunk_get(chunk_of(q) + HEAD)), HP_CHUNK_LISTED);
	EXPECT(steps_seen > 20);
	EXPECT_EQ(pages_least, 6);
	EXPECT_EQ(pages_most, 6);
	hugepin_free(q);
	hugepin_purge();
	expect_empty();
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

TEST(a_thread_that_only_frees_has_lists_of_its_own)
{
	void *p[2] = { hugepin_malloc(40000), hugepin_malloc(50000) };
	pthread_t t;

	pthread_create(&t, NULL, free_both, p);
	pthread_join(t, NULL);
	hugepin_purge();
	expect_empty();
}

/* ------------------------------------------------------------------ decay */

TEST(free_memory_leaves_after_its_time_and_not_before)
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
	hugepin_purge();
	expect_empty();
}

TEST(memory_that_is_used_again_starts_anew)
{
	hugepin_free(touched(LARGE));
	ticks(HP_TICKS);
	hugepin_free(touched(LARGE));
	ticks(HP_TICKS);
	EXPECT_EQ(mapped(), LARGE_MAPPED);
	ticks(1);
	EXPECT_EQ(mapped(), HP_PAGE);
	hugepin_purge();
	expect_empty();
}

TEST(memory_in_use_never_leaves)
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
	hugepin_purge();
	expect_empty();
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

TEST(a_thread_that_calls_between_ticks_keeps_its_cache)
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
	hugepin_purge();
	expect_empty();
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

static unsigned char *half_split;

static void free_half_split(void)
{
	hugepin_free(half_split);
}

/* A fork comes when another thread has stored the tail's word, but not yet the head's. */
TEST(a_split_that_a_fork_interrupts_leaves_no_word_in_the_child)
{
	enum { HEAD = 90, TAIL = 10 };
	int status = -1;
	size_t c;
	pid_t pid;

	half_split = touched((HEAD + TAIL) * HP_CHUNK);
	c = chunk_of(half_split);
	start_other();
	let(use_heap);
	let(free_half_split);
	let(stop_inside);
	EXPECT_EQ(HP_CHUNK_STATE(hp_chunk_get(c)), HP_CHUNK_LISTED);
	hp_chunk_set(c + HEAD, HP_CHUNK_WORD(TAIL, HP_CHUNK_LISTED));
	pid = fork();
	if (pid == 0) {
		bool clean = true;

		for (size_t i = c; i < c + HEAD + TAIL; i++)
			clean = clean && !hp_chunk_get(i);
		_exit(clean && hp_tree_free_after(&hp_span.tree, c, HEAD + TAIL) == HEAD + TAIL ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	hp_chunk_set(c + HEAD, 0);
	let(go_on);
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

/* As if the thread's lists were full. */
static void free_many(void)
{
	hp_lock(&hp_heap_lock);
	for (int i = 0; i < 40; i++)
		hp_shared_push(chunk_of(shared[i]), MIB >> HP_CHUNK_SHIFT);
	hp_unlock(&hp_heap_lock);
}

TEST(what_is_in_the_shared_lists_leaves_in_time)
{
	size_t before;

	start_other();
	let(take_many);
	let(free_many);
	before = mapped();
	EXPECT(HP_STAT(listed_bytes) == 40 * MIB);
	hp_heap_tick();
	EXPECT_EQ(HP_STAT(listed_bytes), 0);
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
	ticks(HP_TICKS - 1);
	EXPECT_EQ(mapped(), before);
	ticks(1);
	EXPECT_EQ(mapped(), HP_PAGE);
	let(NULL);
	hugepin_purge();
	expect_empty();
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

TEST(ticks_and_purges_disturb_no_working_thread)
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
	hugepin_purge();
	expect_empty();
}

T_MAIN
