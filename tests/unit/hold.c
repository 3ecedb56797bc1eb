/*
 * Held pages (alloc/hold.h): what holding gives memory to, what it keeps, and for how long; against counters of its own
 * in a random run; and what the hooks are told. Forks with held pages are in fork_copied.c and fork_lost.c, failures of
 * the kernel in faults.c.
 */
#include "alloc/hold.h"

#include <pthread.h>
#include <stdatomic.h>

#include "alloc/heap.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "base/stats.h"
#include "tests/rnd.h"
#include "tests/t.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"

#define SPAN ((size_t)8 << 30)

static void (*_Atomic before_call)(void); /* to memory */

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if ((nr == SYS_mmap || nr == SYS_madvise || nr == SYS_mprotect) && before_call)
		before_call();
	r = raw(nr, a, b, c, d, e, f);
	return result_of(r);
}

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)SPAN;
	hp_config.extent_max = (int64_t)(32 * MIB);
	hp_config.decay_ms = 0; /* the clock is ours */
}

static size_t mapped(void)
{
	return HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes);
}

static size_t page_of(const void *p)
{
	return ((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT;
}

static int hold(struct hugepin_extent e, enum hp_hold how)
{
	return hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, how);
}

static void drop(struct hugepin_extent e, enum hp_hold how)
{
	hp_heap_drop((uintptr_t)e.addr, e.len, how);
}

static bool all_ready(struct hugepin_extent e)
{
	for (size_t p = page_of(e.addr), end = p + (e.len >> HP_PAGE_SHIFT); p < end; p++)
		if (hp_span.page[p].state != HP_PAGE_READY)
			return false;
	return true;
}

static bool any_held(void)
{
	for (size_t p = 0; p < hp_span.pages; p++)
		if (hp_page_held(&hp_span.page[p]))
			return true;
	return false;
}

static void ticks(int n)
{
	while (n--)
		hp_heap_tick();
}

/* A buffer in an extent of 32 MiB that was made ahead of need, most of which has no memory yet. */
static unsigned char *in_large_extent(void)
{
	unsigned char *p[16] = { 0 }, *last = NULL;
	int n = 0;

	while (n < 16) {
		last = p[n++] = hugepin_malloc(5 * MIB);
		if (extent_of(last).len == 32 * MIB && !all_ready(extent_of(last)))
			break;
	}
	while (n-- > 1)
		hugepin_free(p[n - 1]);
	return last;
}

static void check_kind(int64_t pages)
{
	unsigned char *p;
	struct hugepin_extent e;

	hp_config.pages = pages;
	p = in_large_extent();
	memset(p, 7, 5 * MIB);
	e = extent_of(p);
	EXPECT_EQ(e.len, 32 * MIB);
	EXPECT_EQ(hold(e, HP_HOLD_COPY), 0);
	EXPECT(all_ready(e));
	EXPECT(mapped() >= 32 * MIB);
	EXPECT(p[0] == 7 && p[5 * MIB - 1] == 7);
	/* What was free is served, behind lower holes, and calloc knows what is zero. */
	unsigned char *q[8];
	int n = 0;
	do {
		q[n] = hugepin_calloc(1, 20 * MIB);
		EXPECT(q[n][0] == 0 && memcmp(q[n], q[n] + 1, 20 * MIB - 1) == 0);
	} while (page_of(extent_of(q[n++]).addr) != page_of(e.addr) && n < 8);
	EXPECT_EQ(page_of(extent_of(q[n - 1]).addr), page_of(e.addr));
	while (n)
		hugepin_free(q[--n]);
	hugepin_free(p);
	hugepin_purge();
	EXPECT(mapped() >= 32 * MIB);
	EXPECT_EQ(extent_of((char *)e.addr + 1).gen, e.gen);
	drop(e, HP_HOLD_COPY);
	hugepin_purge();
	expect_empty();
	hp_config.pages = HP_PAGES_AUTO;
}

TEST_CASE(all_of_a_held_extent_has_memory_that_does_not_leave_auto, check_kind(HP_PAGES_AUTO))
TEST_CASE(all_of_a_held_extent_has_memory_that_does_not_leave_thp, check_kind(HP_PAGES_THP))
TEST_CASE(all_of_a_held_extent_has_memory_that_does_not_leave_base, check_kind(HP_PAGES_BASE))

TEST_BY(emptied, a_page_stays_until_it_is_dropped_as_often_as_it_was_held)
{
	unsigned char *p = hugepin_malloc(65 * MIB);
	struct hugepin_extent e = extent_of(p);

	EXPECT_EQ(hold(e, HP_HOLD_COPY), 0);
	EXPECT_EQ(hold(e, HP_HOLD_DONTFORK), 0);
	EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr + 4 * MIB, 2 * MIB, e.gen, HP_HOLD_COW), 0);
	hugepin_free(p);
	hugepin_purge();
	EXPECT_EQ(mapped(), e.len);
	drop(e, HP_HOLD_DONTFORK);
	ticks(3 * HP_TICKS);
	EXPECT_EQ(mapped(), e.len);
	drop(e, HP_HOLD_COPY);
	hugepin_purge();
	EXPECT_EQ(mapped(), 2 * MIB); /* in the middle of it */
	EXPECT_EQ(extent_of((char *)e.addr).gen, e.gen);
	hp_heap_drop((uintptr_t)e.addr + 4 * MIB, 2 * MIB, HP_HOLD_COW);
}

TEST_BY(emptied, what_was_given_back_gets_memory_again)
{
	unsigned char *p = hugepin_malloc(65 * MIB), *q = hugepin_malloc(4 * MIB);
	struct hugepin_extent e;

	p[0] = 1;
	hugepin_free(p);
	p = hugepin_malloc(40 * MIB); /* at the start of the large hole: no other is long enough */
	e = extent_of(p);
	EXPECT_EQ(e.len, 66 * MIB);
	hugepin_purge();
	EXPECT(!all_ready(e));
	EXPECT_EQ(hold(e, HP_HOLD_COPY), 0);
	EXPECT(all_ready(e));
	drop(e, HP_HOLD_COPY);
	hugepin_free(p);
	hugepin_free(q);
}

TEST_BY(emptied, room_behind_a_growing_buffer_gets_memory_too)
{
	unsigned char *p = hugepin_malloc(3 * MIB), *wall = hugepin_malloc(40000);
	struct hugepin_extent e;

	hugepin_free(hugepin_malloc(40 * MIB));
	p = hugepin_realloc(p, 6 * MIB);
	memset(p, 5, 6 * MIB);
	EXPECT(HP_STAT(room_bytes) >= 6 * MIB);
	e = extent_of(p);
	EXPECT_EQ(hold(e, HP_HOLD_COPY), 0);
	EXPECT(all_ready(e));
	uint64_t grown = HP_STAT(grown_in_place);
	p = hugepin_realloc(p, 8 * MIB);
	EXPECT_EQ(HP_STAT(grown_in_place), grown + 1);
	EXPECT(p[6 * MIB - 1] == 5);
	hugepin_free(p);
	hugepin_free(wall);
	drop(e, HP_HOLD_COPY);
}

TEST_BY(emptied, an_extent_that_is_gone_cannot_be_held)
{
	unsigned char *p = hugepin_malloc(65 * MIB), *q;
	struct hugepin_extent e = extent_of(p), f;

	EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len + HP_PAGE, e.gen, HP_HOLD_COPY), -ENOENT);
	EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen + 1, HP_HOLD_COPY), -ENOENT);
	EXPECT_EQ(hp_heap_hold(hp_span.base - HP_PAGE, HP_PAGE, e.gen, HP_HOLD_COPY), -ENOENT);
	EXPECT_EQ(hp_heap_hold(hp_span.base + hp_span.size, HP_PAGE, e.gen, HP_HOLD_COPY), -ENOENT);
	hugepin_free(p);
	hugepin_purge();
	EXPECT_EQ(hold(e, HP_HOLD_COPY), -ENOENT);
	q = hugepin_malloc(65 * MIB);
	f = extent_of(q);
	EXPECT(f.addr == e.addr && f.gen != e.gen);
	EXPECT_EQ(hold(e, HP_HOLD_COPY), -ENOENT);
	EXPECT(!any_held());
	hugepin_free(q);
}

TEST_BY(emptied, a_page_held_too_often_says_so_and_changes_nothing)
{
	unsigned char *p = hugepin_malloc(5 * MIB);
	struct hugepin_extent e = extent_of(p);

	for (int i = 0; i < UINT16_MAX; i++)
		if (!EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr + e.len - HP_PAGE, HP_PAGE, e.gen, HP_HOLD_COW), 0))
			break;
	EXPECT_EQ(hold(e, HP_HOLD_COW), -ENOBUFS);
	EXPECT_EQ(hp_span.page[page_of(e.addr)].held[HP_HOLD_COW], 0);
	EXPECT_EQ(hold(e, HP_HOLD_COPY), 0);
	drop(e, HP_HOLD_COPY);
	for (int i = 0; i < UINT16_MAX; i++)
		hp_heap_drop((uintptr_t)e.addr + e.len - HP_PAGE, HP_PAGE, HP_HOLD_COW);
	EXPECT(!any_held());
	hugepin_free(p);
}

/* Whether the kernel has [at, at + len) as one mapping. */
static bool is_one_mapping(uintptr_t at, size_t len)
{
	char line[300];
	uintptr_t from, to;
	bool found = false;
	FILE *f = fopen("/proc/self/maps", "r");

	while (!found && fgets(line, sizeof line, f))
		found = sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= at && at + len <= to;
	fclose(f);
	return found;
}

TEST(extents_are_found_in_order_and_mappings_within_them)
{
	unsigned char *p[12];
	struct hugepin_extent e;
	uintptr_t from = 0, base;
	size_t n = 0, size;

	for (int i = 0; i < 12; i++)
		p[i] = hugepin_malloc(5 * MIB);
	EXPECT(hp_heap_span(&base, &size));
	EXPECT(base == hp_span.base && size == hp_span.size);
	while (hp_heap_next_extent(from, &e)) {
		EXPECT((uintptr_t)e.addr >= from && (uintptr_t)e.addr - base < size);
		EXPECT_EQ(extent_of(e.addr).gen, e.gen);
		EXPECT_EQ(hold(e, HP_HOLD_COPY), 0);
		for (size_t off = 0, len; off < e.len; off += len) {
			len = hp_heap_mapping((uintptr_t)e.addr + off);
			if (!EXPECT(len && len <= e.len - off && len % HP_PAGE == 0))
				break;
			EXPECT_EQ(hp_heap_mapping((uintptr_t)e.addr + off + len - 1), 1);
			EXPECT(is_one_mapping((uintptr_t)e.addr + off, len));
		}
		drop(e, HP_HOLD_COPY);
		from = (uintptr_t)e.addr + 1;
		n++;
	}
	EXPECT_EQ(n, HP_STAT(extents));
	EXPECT(n > 2);
	EXPECT_EQ(hp_heap_mapping(base), 0);
	EXPECT_EQ(hp_heap_mapping(base + size), 0);
	for (int i = 0; i < 12; i++)
		hugepin_free(p[i]);
	hugepin_purge();
	expect_empty();
	EXPECT(!hp_heap_next_extent(0, &e));
}

TEST_BY(emptied, free_means_in_no_buffer_for_so_long)
{
	unsigned char *p = hugepin_malloc(65 * MIB), *q;
	struct hugepin_extent e = extent_of(p);
	uintptr_t at = (uintptr_t)e.addr;

	EXPECT_EQ(hold(e, HP_HOLD_COPY), 0);
	EXPECT(!hp_heap_is_free(at, HP_PAGE, 0));
	hugepin_free(p);
	EXPECT(hp_heap_is_free(at, e.len, 0));
	EXPECT(!hp_heap_is_free(at, e.len, 1));
	ticks(2);
	EXPECT(hp_heap_is_free(at, e.len, 2));
	EXPECT(!hp_heap_is_free(at, e.len, 3));
	q = hugepin_malloc(100000);
	EXPECT(extent_of(q).gen == e.gen);
	EXPECT(!hp_heap_is_free(at, e.len, 0));
	EXPECT(hp_heap_is_free(at + HP_PAGE, e.len - HP_PAGE, 2));
	hugepin_free(q);
	drop(e, HP_HOLD_COPY);
}

/* ------------------------------------------------------------------ the hooks */

static struct {
	int grown, let_go;
	uint32_t ticks; /* of the last let_go */
	bool locked; /* a lock was held */
	struct hugepin_extent held; /* let_go drops it when it is free; len 0: none */
} told;

static void grown(void)
{
	told.grown++;
	told.locked |= hp_locks_held != 0;
}

static void let_go(uint32_t n)
{
	told.let_go++;
	told.ticks = n;
	told.locked |= hp_locks_held != 0;
	if (told.held.len && hp_heap_is_free((uintptr_t)told.held.addr, told.held.len, n)) {
		drop(told.held, HP_HOLD_COPY);
		told.held.len = 0;
	}
}

static const struct hp_heap_hooks ours = { .grown = grown, .let_go = let_go }, none;

TEST(each_extent_that_an_allocation_makes_is_told)
{
	unsigned char *p[40];

	hp_heap_set_hooks(&ours);
	memset(&told, 0, sizeof told);
	for (int i = 0; i < 40; i++) {
		p[i] = hugepin_malloc(i % 10 == 9 ? 33 * MIB : 3 * MIB);
		EXPECT_EQ(told.grown, HP_STAT(extents));
	}
	EXPECT(told.grown > 5);
	EXPECT_EQ(told.let_go, 0);
	EXPECT(!told.locked);
	for (int i = 0; i < 40; i++)
		hugepin_free(p[i]);
	hugepin_purge();
	EXPECT_EQ(told.let_go, 1);
	hp_heap_set_hooks(&none);
	expect_empty();
}

TEST(held_memory_that_is_let_go_leaves_when_it_would_have_left_unheld)
{
	unsigned char *p = hugepin_malloc(65 * MIB);

	hp_heap_set_hooks(&ours);
	memset(&told, 0, sizeof told);
	told.held = extent_of(p);
	EXPECT_EQ(hold(told.held, HP_HOLD_COPY), 0);
	hugepin_free(p);
	for (int i = 1; i <= HP_TICKS; i++) {
		EXPECT(hp_heap_tick()); /* there is something left to do */
		EXPECT_EQ(mapped(), 66 * MIB);
	}
	EXPECT(!hp_heap_tick());
	EXPECT_EQ(mapped(), HP_PAGE); /* the watermark */
	EXPECT_EQ(told.let_go, HP_TICKS + 1);
	EXPECT_EQ(told.ticks, HP_TICKS + 1);
	EXPECT(!told.locked);
	hugepin_purge();
	hp_heap_set_hooks(&none);
	expect_empty();
}

TEST(a_purge_lets_go_of_what_is_in_no_buffer)
{
	unsigned char *p = hugepin_malloc(5 * MIB);

	hp_heap_set_hooks(&ours);
	memset(&told, 0, sizeof told);
	told.held = extent_of(p);
	EXPECT_EQ(hold(told.held, HP_HOLD_COPY), 0);
	hugepin_purge();
	EXPECT(told.held.len); /* in use */
	hugepin_free(p); /* to a list: it is to be emptied before the hook is asked */
	told.let_go = 0;
	hugepin_purge();
	EXPECT_EQ(told.let_go, 1);
	EXPECT_EQ(told.ticks, 0);
	EXPECT(!told.locked);
	EXPECT_EQ(told.held.len, 0);
	hp_heap_set_hooks(&none);
	expect_empty();
}

static struct hp_lock lower = HP_LOCK_INIT(HP_LOCK_RANK_WATCH);

TEST(a_purge_under_a_lock_of_ours_lets_nothing_go)
{
	hugepin_free(hugepin_malloc(5 * MIB));
	hp_heap_set_hooks(&ours);
	memset(&told, 0, sizeof told);
	hp_lock(&lower);
	hugepin_purge();
	hp_unlock(&lower);
	EXPECT_EQ(told.let_go, 0);
	hp_heap_set_hooks(&none);
	expect_empty();
}

/* ------------------------------------------------------------------ against counters */

enum { BUFFERS = 60, HOLDS = 40 };
static struct {
	unsigned char *p;
	size_t size;
} buffers[BUFFERS];
static struct {
	struct hugepin_extent part; /* addr and len are what is held */
	enum hp_hold how;
} holds[HOLDS];
static unsigned counters[SPAN / HP_PAGE][3];
static void count(size_t i, int by)
{
	for (size_t p = page_of(holds[i].part.addr), end = p + (holds[i].part.len >> HP_PAGE_SHIFT); p < end; p++)
		counters[p][holds[i].how] += (unsigned)by;
}

static void hold_some(size_t i)
{
	struct hugepin_extent e;
	size_t n, first;

	if (!hp_heap_next_extent(hp_span.base + rnd(64) * 8 * MIB, &e))
		return;
	n = e.len >> HP_PAGE_SHIFT;
	if (rnd(2)) { /* a part */
		first = rnd(n);
		n = 1 + rnd(n - first);
		e.addr = (char *)e.addr + (first << HP_PAGE_SHIFT);
		e.len = n << HP_PAGE_SHIFT;
	}
	holds[i].part = e;
	holds[i].how = (enum hp_hold)rnd(3);
	if (EXPECT_EQ(hold(e, holds[i].how), 0))
		count(i, 1);
	else
		holds[i].part.len = 0;
}

static void check_counters(void)
{
	for (size_t p = 0; p < SPAN / HP_PAGE; p++) {
		const struct hp_page *g = &hp_span.page[p];

		for (int how = 0; how < 3; how++)
			EXPECT_EQ(g->held[how], counters[p][how]);
		EXPECT(!hp_page_held(g) || g->state == HP_PAGE_READY);
	}
	for (size_t i = 0; i < HOLDS; i++)
		if (holds[i].part.len)
			EXPECT_EQ(extent_of(holds[i].part.addr).gen, holds[i].part.gen);
}

TEST(a_random_run_agrees_with_counters)
{
	seed = 11;
	for (int i = 0; i < 3000; i++) {
		size_t b = rnd(BUFFERS), h = rnd(HOLDS);

		hp_config.pages = rnd(3) ? HP_PAGES_AUTO : HP_PAGES_THP;
		if (rnd(3)) {
			if (buffers[b].p) {
				EXPECT_EQ(buffers[b].p[0], (unsigned char)b);
				EXPECT_EQ(buffers[b].p[buffers[b].size - 1], (unsigned char)b);
				hugepin_free(buffers[b].p);
				buffers[b].p = NULL;
			} else {
				buffers[b].size = HUGEPIN_LARGE_MIN + rnd(rnd(8) ? 3 * MIB : 20 * MIB);
				buffers[b].p = hugepin_malloc(buffers[b].size);
				buffers[b].p[0] = buffers[b].p[buffers[b].size - 1] = (unsigned char)b;
			}
		} else if (holds[h].part.len) {
			drop(holds[h].part, holds[h].how);
			count(h, -1);
			holds[h].part.len = 0;
		} else {
			hold_some(h);
		}
		if (rnd(16) == 0)
			hp_heap_tick();
		if (rnd(64) == 0)
			hugepin_purge();
		if (i % 50 == 0)
			check_counters();
	}
	check_counters();
	for (size_t i = 0; i < HOLDS; i++) {
		if (!holds[i].part.len)
			continue;
		drop(holds[i].part, holds[i].how);
		holds[i].part.len = 0;
	}
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(buffers[i].p);
	hugepin_purge();
	EXPECT(!any_held());
	expect_empty();
	hp_config.pages = HP_PAGES_AUTO;
}

/* ------------------------------------------------------------------ threads */

static _Atomic bool stop;

static void *allocate(void *arg)
{
	uint64_t state = (uintptr_t)arg;
	struct {
		unsigned char *p;
		size_t size;
	} mine[16] = { 0 };

	while (!stop) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		size_t i = state >> 40 & 15;

		if (mine[i].p) {
			EXPECT(mine[i].p[0] == (unsigned char)i && mine[i].p[mine[i].size - 1] == (unsigned char)i);
			hugepin_free(mine[i].p);
			mine[i].p = NULL;
			continue;
		}
		mine[i].size = HUGEPIN_LARGE_MIN + (state >> 45) % (4 * MIB);
		mine[i].p = hugepin_malloc(mine[i].size);
		mine[i].p[0] = mine[i].p[mine[i].size - 1] = (unsigned char)i;
	}
	for (int i = 0; i < 16; i++)
		hugepin_free(mine[i].p);
	return NULL;
}

TEST_BY(emptied, threads_allocate_while_extents_are_held_and_dropped)
{
	T_THREADS_RUN(4);
	pthread_t t[3];
	int held = 0;

	stop = false;
	for (uintptr_t i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, allocate, (void *)(i + 1));
	for (int i = 0; i < 150 || held < 500; i++) {
		struct hugepin_extent e[64];
		int n = 0;

		for (uintptr_t from = 0; n < 64 && hp_heap_next_extent(from, &e[n]); from = (uintptr_t)e[n].addr + 1, n += 1) {
			int r = hold(e[n], HP_HOLD_COPY);

			if (r == -ENOENT) /* it left meanwhile */
				e[n].len = 0;
			else
				EXPECT_EQ(r, 0);
			held += r == 0;
		}
		hp_heap_tick();
		if (i % 8 == 0)
			hugepin_purge();
		for (int j = 0; j < n; j++) {
			if (!e[j].len)
				continue;
			EXPECT_EQ(extent_of(e[j].addr).gen, e[j].gen);
			drop(e[j], HP_HOLD_COPY);
		}
	}
	stop = true;
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	EXPECT(!any_held());
}

static void *purge(void *unused)
{
	hugepin_purge();
	return unused;
}

TEST_BY(emptied, what_is_held_while_its_release_waits_for_a_fork_stays)
{
	struct hugepin_extent e;
	pthread_t t;

	hugepin_free(hugepin_malloc(65 * MIB));
	EXPECT(hp_heap_next_extent(0, &e));
	hp_heap_lock();
	hp_pages_quiesce(HP_PART_HEAP);
	hp_heap_unlock();
	pthread_create(&t, NULL, purge, NULL);
	while (hp_heap_is_free((uintptr_t)e.addr, e.len, 0)) /* until the thread has taken them, to be released */
		usleep(1000);
	usleep(10000);
	hp_heap_lock();
	for (size_t p = page_of(e.addr), end = p + (e.len >> HP_PAGE_SHIFT); p < end; p++)
		hp_span.page[p].held[HP_HOLD_COPY]++;
	hp_pages_resume();
	hp_heap_unlock();
	pthread_join(t, NULL);
	EXPECT(all_ready(e));
	EXPECT_EQ(mapped(), e.len);
	drop(e, HP_HOLD_COPY);
}

static struct {
	pthread_t main, other;
	atomic_bool inside; /* the other thread is in its mapping call */
	atomic_bool let_out;
	bool joined;
} meeting;

static void meet(void)
{
	if (!pthread_equal(pthread_self(), meeting.main)) {
		meeting.inside = true;
		while (!meeting.let_out)
			usleep(1000);
	} else if (!meeting.joined) {
		meeting.joined = true;
		meeting.let_out = true;
		pthread_join(meeting.other, NULL);
	}
}

static void *hold_first(void *e)
{
	EXPECT_EQ(hold(*(struct hugepin_extent *)e, HP_HOLD_COPY), 0);
	return NULL;
}

/* Else it waits for ever: nobody is left who would wake it. */
TEST_BY(emptied, pages_that_become_ready_during_an_own_call_are_not_waited_for)
{
	char *large = hugepin_malloc(65 * MIB), *p[3];
	struct hugepin_extent three = extent_of(large), first;

	hugepin_free(large);
	for (int i = 0; i < 3; i++)
		p[i] = hugepin_aligned_alloc(HP_PAGE, HP_PAGE);
	EXPECT(p[0] == (char *)three.addr && p[1] == p[0] + HP_PAGE && p[2] == p[1] + HP_PAGE);
	hugepin_free(p[0]);
	hugepin_free(p[2]);
	hugepin_purge(); /* the first and the third have no memory now, and not the same run of pages */
	first = three;
	first.len = HP_PAGE;
	three.len = 3 * HP_PAGE;
	meeting.main = pthread_self();
	before_call = meet;
	pthread_create(&meeting.other, NULL, hold_first, &first);
	while (!meeting.inside)
		usleep(1000);
	EXPECT_EQ(hold(three, HP_HOLD_COPY), 0);
	before_call = NULL;
	EXPECT(meeting.joined);
	EXPECT(all_ready(three));
	drop(first, HP_HOLD_COPY);
	drop(three, HP_HOLD_COPY);
	hugepin_free(p[1]);
}

T_MAIN
