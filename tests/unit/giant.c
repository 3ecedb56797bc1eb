/*
 * Pages of 1 GiB on a machine that has none: functions defined here, which the linker prefers to the C library's, stand in for
 * their pool. As the kernel does, they refuse whatever concerns a part of such a page, and here that is a failure.
 */
#include "alloc/advised.h"
#include "alloc/heap.h"
#include "alloc/hold.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "tests/live/live.h"
#include "tests/rnd.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"
#include "tests/unit/told.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ------------------------------------------------------------------ the kernel */

enum { GIANTS = 4 };
static struct {
	uintptr_t at; /* 0: in the pool */
	bool dontfork;
} giants[GIANTS];
static long giants_max; /* how many of them there are */
static bool denied; /* cannot be populated */
static int parts; /* calls that concerned a part of one */
static pid_t owner; /* of the table: a child has not got what was kept out of it */
static int count_fd = -1; /* what the kernel says of the pool */

UNINSTRUMENTED static long left(void)
{
	long n = giants_max;

	for (int i = 0; i < GIANTS; i++)
		n -= giants[i].at != 0;
	return n;
}

UNINSTRUMENTED static long take_giant(long prot, long flags)
{
	long got, at;

	if (left() <= 0)
		return -ENOMEM;
	got = raw(SYS_mmap, 0, 2 * (long)GIB, prot, (flags & ~(long)(MAP_HUGETLB | (63u << 26))) | MAP_NORESERVE, -1, 0);
	at = (long)hp_round_up((size_t)got, GIB);
	if (at > got)
		raw(SYS_munmap, got, at - got, 0, 0, 0, 0);
	raw(SYS_munmap, at + (long)GIB, got + (long)GIB - at, 0, 0, 0, 0);
	for (int i = 0; i < GIANTS; i++)
		if (!giants[i].at) {
			giants[i].at = (uintptr_t)at;
			giants[i].dontfork = false;
			break;
		}
	return at;
}

/* Whether the call may be made, for what it does to giant pages. */
UNINSTRUMENTED static bool may(long nr, uintptr_t a, size_t len, long c, long d, uintptr_t to)
{
	for (int i = 0; i < GIANTS; i++) {
		uintptr_t at = giants[i].at;

		if (!at || a >= at + GIB || a + len <= at || (nr == SYS_madvise && c == MADV_POPULATE_WRITE))
			continue;
		if (a > at || a + len < at + GIB) {
			parts++;
			return false;
		}
		if (nr == SYS_munmap || (nr == SYS_mmap && d & MAP_FIXED))
			giants[i].at = 0;
		else if (nr == SYS_mremap)
			giants[i].at = to;
		else if (nr == SYS_madvise && (c == MADV_DONTFORK || c == MADV_DOFORK))
			giants[i].dontfork = c == MADV_DONTFORK;
	}
	return true;
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (owner != (pid_t)raw(SYS_getpid, 0, 0, 0, 0, 0, 0)) {
		owner = (pid_t)raw(SYS_getpid, 0, 0, 0, 0, 0, 0);
		for (int i = 0; i < GIANTS; i++)
			if (giants[i].dontfork)
				giants[i].at = 0;
	}
	if (nr == SYS_mmap && d & MAP_HUGETLB && (d >> 26 & 63) == HP_GIANT_SHIFT) {
		r = b == (long)GIB ? take_giant(c, d) : -EINVAL;
	} else if (nr == SYS_madvise && c == MADV_POPULATE_WRITE && !(a & ((long)GIB - 1)) && b == (long)GIB) {
		r = denied ? -EFAULT : 0;
	} else if (nr == SYS_openat && strstr((char *)b, "hugepages-1048576kB/free")) {
		char text[24], path[40];

		snprintf(text, sizeof text, "%ld\n", left());
		snprintf(path, sizeof path, "/proc/self/fd/%d", count_fd);
		raw(SYS_pwrite64, count_fd, (long)text, (long)strlen(text), 0, 0, 0);
		r = raw(SYS_openat, a, (long)path, c, d, 0, 0);
	} else if ((nr == SYS_mmap && !(d & MAP_FIXED)) || (nr != SYS_mmap && nr != SYS_munmap && nr != SYS_madvise &&
							    nr != SYS_mprotect && nr != SYS_mremap) ||
		   may(nr, (uintptr_t)a, (size_t)b, c, d, (uintptr_t)e)) {
		r = raw(nr, a, b, c, d, e, f);
	} else {
		r = -EINVAL;
	}
	return result_of(r);
}

/* ------------------------------------------------------------------ */

__attribute__((constructor)) static void configure(void)
{
	owner = getpid();
	count_fd = memfd_create("free_hugepages", MFD_CLOEXEC);
	hp_config.span = (int64_t)(16 * GIB);
	hp_config.pages = HP_PAGES_1G;
	hp_config.decay_ms = 0;
}

/* So many pages of 1 GiB from now on, in an empty heap. */
static void pool(long n)
{
	giants_max = n;
	denied = false;
	parts = 0;
	hp_span.no_pool = false;
}

static void expect_all_back(void)
{
	hugepin_purge();
	expect_empty();
	EXPECT_EQ(left(), giants_max);
	EXPECT_EQ(parts, 0);
}

TEST(a_page_of_1_gib_is_one_mapping_and_goes_as_a_whole)
{
	unsigned char *p, *q, *r;
	struct hugepin_extent e;

	pool(1);
	p = hugepin_malloc(70 * MIB); /* more than lists keep */
	e = extent_of(p);
	EXPECT(e.page_shift == 30 && e.len == GIB && e.kind == HUGEPIN_KIND_HUGETLB);
	EXPECT_EQ(left(), 0);
	EXPECT_EQ(hp_heap_mapping((uintptr_t)e.addr + 4 * MIB), GIB - 4 * MIB);
	EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, HP_HOLD_COPY), 0);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), GIB);
	EXPECT_EQ(HP_STAT(reserved_bytes), 0);
	q = hugepin_malloc(600 * MIB);
	EXPECT(extent_of(q).gen == e.gen);
	r = hugepin_malloc(600 * MIB); /* there is no other */
	EXPECT(extent_of(r).page_shift != 30);
	hugepin_free(q);
	hp_heap_drop((uintptr_t)e.addr, e.len, HP_HOLD_COPY);
	hugepin_free(r);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(hugetlb_bytes), GIB);
	hugepin_free(p);
	for (int i = 0; i < HP_TICKS; i++)
		EXPECT(hp_heap_tick());
	EXPECT(!hp_heap_tick()); /* nothing of it is kept */
	expect_all_back();
}

TEST(a_page_of_1_gib_in_use_does_not_keep_the_thread_awake)
{
	unsigned char *p;

	pool(1);
	p = hugepin_malloc(100 * MIB);
	hp_heap_tick();
	EXPECT(!hp_heap_tick());
	hugepin_free(p);
	expect_all_back();
}

TEST(a_page_of_1_gib_that_cannot_be_populated_is_not_used)
{
	uint64_t count = HP_STAT(pool_denied);
	unsigned char *p;

	pool(2);
	denied = true;
	p = hugepin_calloc(1, 30 * MIB);
	EXPECT_EQ(zero_check(p, 30 * MIB), -1);
	EXPECT(extent_of(p).page_shift != 30);
	EXPECT_EQ(HP_STAT(pool_denied), count + 1);
	EXPECT_EQ(left(), 2);
	hugepin_free(p);
	expect_all_back();
}

TEST(a_buffer_may_lie_over_pages_of_1_gib_and_others)
{
	unsigned char *p;

	pool(2);
	p = hugepin_malloc(2 * GIB + 100 * MIB);
	for (size_t at = 0; at < 2 * GIB + 100 * MIB; at += 50 * MIB)
		p[at] = 1;
	EXPECT_EQ(extent_of(p).len, 3 * GIB);
	EXPECT(extent_of(p).page_shift != 30);
	EXPECT_EQ(left(), 0);
	EXPECT_EQ(hp_heap_mapping((uintptr_t)p), GIB);
	hugepin_free(p);
	expect_all_back();
}

static bool is_giant(const void *p)
{
	return hp_span.page[((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT].giant;
}

TEST(the_second_of_two_goes_and_other_pages_come_in_its_place)
{
	unsigned char *p, *q;

	pool(2);
	p = hugepin_malloc(2 * GIB - 10 * MIB);
	EXPECT_EQ(extent_of(p).page_shift, 30);
	EXPECT_EQ(left(), 0);
	p = hugepin_realloc(p, 100 * MIB);
	hugepin_purge();
	EXPECT_EQ(left(), 1);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), GIB);
	hp_span.no_pool = true; /* as after two forks */
	q = hugepin_malloc(GIB + 100 * MIB);
	EXPECT(extent_of(q).addr == extent_of(p).addr);
	EXPECT(is_giant(q) && !is_giant(q + GIB));
	EXPECT(extent_of(q).page_shift != 30);
	hugepin_free(q);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes), GIB);
	hugepin_free(p);
	expect_all_back();
}

TEST(where_the_pool_of_1_gib_has_run_out_normal_extents_are_made)
{
	uint64_t count = HP_STAT(pool_short);
	unsigned char *p;

	pool(0);
	p = hugepin_malloc(3 * MIB);
	EXPECT_EQ(extent_of(p).len, 4 * MIB);
	EXPECT(HP_STAT(pool_short) > count);
	hugepin_free(p);
	expect_all_back();
}

TEST(what_lies_before_a_page_of_1_gib_goes_without_it)
{
	unsigned char *p, *q, *t[3];
	struct hugepin_extent e;

	pool(1);
	denied = true;
	p = hugepin_malloc(GIB + 500 * MIB);
	p = hugepin_realloc(p, 10 * MIB);
	hugepin_purge();
	e = extent_of(p);
	EXPECT_EQ(e.len, 2 * GIB);
	denied = false;
	q = hugepin_malloc(GIB + 400 * MIB); /* the second half is without memory as a whole */
	EXPECT(extent_of(q).addr == e.addr);
	EXPECT(!is_giant(q) && is_giant(q + GIB));
	hugepin_free(q);
	for (int i = 0; i < 3; i++) {
		t[i] = hugepin_aligned_alloc(512 * MIB, 40000);
		EXPECT(t[i] == (unsigned char *)e.addr + (size_t)(i + 1) * 512 * MIB);
	}
	hugepin_free(t[0]);
	hugepin_free(t[1]);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes), GIB + 10 * MIB);
	EXPECT_EQ(parts, 0);
	hugepin_free(t[2]);
	hugepin_free(p);
	expect_all_back();
}

/* ------------------------------------------------------------------ a random run */

TEST(a_random_run_keeps_contents_and_touches_no_part)
{
	enum { BUFFERS = 40, HOLDS = 8 };
	static struct {
		unsigned char *p;
		size_t size;
	} b[BUFFERS];
	static struct hugepin_extent held[HOLDS];

	seed = 3;
	for (int i = 0; i < 4000; i++) {
		size_t j = rnd(BUFFERS), h = rnd(HOLDS);

		if (i % 500 == 0)
			pool(1 + (long)rnd(GIANTS));
		denied = rnd(20) == 0;
		if (b[j].p) {
			EXPECT(b[j].p[0] == (unsigned char)j && b[j].p[b[j].size - 1] == (unsigned char)j);
			hugepin_free(b[j].p);
			b[j].p = NULL;
		} else {
			b[j].size = HUGEPIN_LARGE_MIN + rnd(rnd(4) ? 10 * MIB : rnd(4) ? 100 * MIB : GIB);
			b[j].p = rnd(2) ? hugepin_malloc(b[j].size) : hugepin_aligned_alloc(4 * MIB, b[j].size);
			b[j].p[0] = b[j].p[b[j].size - 1] = (unsigned char)j;
		}
		if (rnd(10) == 0 && held[h].len) {
			hp_heap_drop((uintptr_t)held[h].addr, held[h].len, HP_HOLD_COPY);
			held[h].len = 0;
		} else if (rnd(10) == 0 && !held[h].len && hp_heap_next_extent(hp_span.base + rnd(4 * GIB), &held[h])) {
			held[h].len = HP_MIN(held[h].len, (1 + rnd(8)) * HP_PAGE); /* other memory is populated for real */
			EXPECT_EQ(hp_heap_hold((uintptr_t)held[h].addr, held[h].len, held[h].gen, HP_HOLD_COPY), 0);
		}
		if (rnd(20) == 0)
			hp_heap_tick();
		if (rnd(50) == 0)
			hugepin_purge();
		EXPECT_EQ(parts, 0);
	}
	for (size_t h = 0; h < HOLDS; h++)
		if (held[h].len)
			hp_heap_drop((uintptr_t)held[h].addr, held[h].len, HP_HOLD_COPY);
	for (int j = 0; j < BUFFERS; j++)
		hugepin_free(b[j].p);
	hugepin_purge();
	expect_empty();
	EXPECT_EQ(parts, 0);
}

/* ------------------------------------------------------------------ fork */

enum { N = 6 };
static unsigned char *buf[N];
static const size_t buf_size = 3 * MIB + 4321;

static void fill_heap(void)
{
	pool(1);
	for (int i = 0; i < N; i++) {
		buf[i] = hugepin_malloc(buf_size);
		pattern_write(buf[i], buf_size, (uint64_t)i);
	}
	EXPECT_EQ(extent_of(buf[0]).page_shift, 30);
}

static void free_heap(void)
{
	for (int i = 0; i < N; i++) {
		EXPECT_EQ(pattern_check(buf[i], buf_size, (uint64_t)i), -1);
		hugepin_free(buf[i]);
	}
	expect_all_back();
	hp_config.fork_mode = HP_FORK_COPY;
}

static bool on_heap_stack;

/* What the child is to have: of buffers from `lost` on, nothing. */
static int has(int lost, size_t hugetlb)
{
	int bad = HP_STAT(hugetlb_bytes) != hugetlb;

	for (int i = 0; i < N; i++) {
		if (i < lost) {
			bad += pattern_check(buf[i], buf_size, (uint64_t)i) != -1;
			memset(buf[i], 1, buf_size);
		} else {
			bad += !hp_span.page[((uintptr_t)buf[i] + buf_size / 2 - hp_span.base) >> HP_PAGE_SHIFT].lost;
		}
		hugepin_free(buf[i]);
	}
	hugepin_purge();
	bad += HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes) != (on_heap_stack ? GIB : 0);
	bad += HP_STAT(taken_bytes) != (on_heap_stack ? MIB : 0);
	return bad + parts;
}

static void expect_child(int lost, size_t hugetlb)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(has(lost, hugetlb));
	EXPECT_EQ(child_wait(pid), 0);
}

TEST(a_child_gets_a_copy)
{
	T_THREADS_RUN(2);
	fill_heap();
	expect_child(N, 0);
	expect_child(N, 0);
	free_heap();
}

/* All of it but the pages that the first three buffers touch. */
static struct hugepin_extent rest(void)
{
	struct hugepin_extent e = extent_of(buf[0]);
	size_t off = hp_round_up((size_t)((char *)buf[2] - (char *)e.addr) + buf_size, HP_PAGE);

	e.addr = (char *)e.addr + off;
	e.len -= off;
	return e;
}

static void with_held(enum hp_hold how, struct hugepin_extent e, int lost, size_t hugetlb)
{
	EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, how), 0);
	expect_child(lost, hugetlb);
	hp_heap_drop((uintptr_t)e.addr, e.len, how);
}

TEST(a_child_gets_a_copy_of_one_part_and_nothing_of_another)
{
	fill_heap();
	with_held(HP_HOLD_DONTFORK, rest(), 3, 0);
	with_held(HP_HOLD_DONTFORK, extent_of(buf[0]), 0, 0);
	with_held(HP_HOLD_COW, rest(), N, 0);
	free_heap();
}

TEST(in_the_cow_mode_all_of_a_page_of_1_gib_is_kept_out_or_none)
{
	hp_config.fork_mode = HP_FORK_COW;
	fill_heap();
	with_held(HP_HOLD_DONTFORK, rest(), N, GIB);
	with_held(HP_HOLD_COPY, rest(), N, 0);
	with_held(HP_HOLD_DONTFORK, extent_of(buf[0]), 0, 0);
	free_heap();
}

static int is_without(unsigned char *p)
{
	int pipes[2], bad = HP_STAT(hugetlb_bytes) != 0;

	if (pipe(pipes))
		return 90;
	bad += write(pipes[1], p, 1) == 1 || write(pipes[1], p + GIB - 1, 1) == 1;
	hugepin_free(p);
	hugepin_purge();
	bad += HP_STAT(thp_bytes) + HP_STAT(base_bytes) + HP_STAT(taken_bytes) != 0;
	p = hugepin_malloc(5 * MIB);
	memset(p, 1, 5 * MIB);
	return bad + parts;
}

TEST(a_page_of_1_gib_is_advised_as_a_whole)
{
	unsigned char *p;

	pool(1);
	p = hugepin_aligned_alloc(GIB, GIB);
	EXPECT_EQ(extent_of(p).page_shift, 30);
	p[0] = p[GIB - 1] = 7;
	EXPECT_EQ(hugepin_advise_(p, 4 * MIB, MADV_DONTFORK), -EINVAL);
	parts = 0;
	EXPECT_EQ(hugepin_advise_(p, GIB, MADV_DONTFORK), 0);
	for (int i = 0; i < 2; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(is_without(p));
		EXPECT_EQ(child_wait(pid), 0);
		EXPECT(p[0] == 7 && p[GIB - 1] == 7);
	}
	EXPECT(hugepin_realloc(p, 300 * MIB) == p);
	EXPECT_EQ(hugepin_usable_size(p), 300 * MIB);
	EXPECT_EQ(HP_STAT(taken_bytes), GIB); /* the rest stays with it */
	hugepin_free(p);
	expect_all_back();
}

static void *fork_here(void *unused)
{
	on_heap_stack = true;
	expect_child(N, GIB);
	on_heap_stack = false;
	return unused;
}

TEST(a_page_of_1_gib_that_the_stack_lies_in_is_left_to_the_kernel)
{
	pthread_attr_t attr;
	pthread_t t;
	void *stack;

	fill_heap();
	giants_max = 2; /* one for the kernel to copy it to */
	stack = hugepin_aligned_alloc(4096, MIB);
	pthread_attr_init(&attr);
	pthread_attr_setstack(&attr, stack, MIB);
	EXPECT_EQ(pthread_create(&t, &attr, fork_here, NULL), 0);
	pthread_join(t, NULL);
	hugepin_free(stack);
	free_heap();
}

T_MAIN
