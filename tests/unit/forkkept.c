/*
 * Forks of a process with threads, one soon after the other: the memory of a copy is kept for the next. What is copied
 * here are held pages (alloc/hold.h), so that no pool is needed. The mapping calls come by here, to be counted and
 * refused.
 */
#include "alloc/hold.h"

#include <semaphore.h>
#include <stdlib.h>

#include "alloc/copy.h"
#include "alloc/heap.h"
#include "alloc/madvise.h"
#include "alloc/pages.h"
#include "alloc/small.h"
#include "base/config.h"
#include "base/stats.h"
#include "tests/live/live.h"
#include "tests/unit/child.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ------------------------------------------------------------------ the kernel */

static size_t populated; /* bytes outside of the heap's span that were not there */
static int refused; /* advice that is refused: 0: none */
static bool is_short; /* of memory for the heap, until something large outside of it is unmapped */
static long available = -1; /* KiB, as /proc/meminfo says; -1: what is true */

UNINSTRUMENTED static bool in_span(long at)
{
	return (uintptr_t)at - hp_span.base < hp_span.size;
}

UNINSTRUMENTED static size_t absent(long at, size_t len)
{
	static unsigned char there[64 * MIB / 4096];
	size_t n = 0;

	if (raw(SYS_mincore, at, (long)len, (long)there, 0, 0, 0) != 0)
		abort();
	for (size_t i = 0; i < len / 4096; i++)
		n += !(there[i] & 1);
	return n * 4096;
}

UNINSTRUMENTED static long open_meminfo(long c, long d)
{
	char text[60], path[40];
	long fd = raw(SYS_memfd_create, (long)"meminfo", MFD_CLOEXEC, 0, 0, 0, 0), r;

	snprintf(text, sizeof text, "MemAvailable: %ld\n", available);
	snprintf(path, sizeof path, "/proc/self/fd/%ld", fd);
	raw(SYS_pwrite64, fd, (long)text, (long)strlen(text), 0, 0, 0);
	r = raw(SYS_openat, AT_FDCWD, (long)path, c, d, 0, 0);
	raw(SYS_close, fd, 0, 0, 0, 0, 0);
	return r;
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_madvise && refused && c == refused) {
		r = -ENOMEM;
	} else if (is_short && (nr == SYS_madvise || nr == SYS_mprotect || nr == SYS_mmap) && in_span(a) && c != PROT_NONE) {
		r = -ENOMEM;
	} else if (nr == SYS_openat && available >= 0 && !strcmp((char *)b, "/proc/meminfo")) {
		r = open_meminfo(c, d);
	} else {
		const bool populates = nr == SYS_madvise && c == MADV_POPULATE_WRITE && !in_span(a);
		const long from = a & -(long)HP_PAGE; /* one base page may bring the whole hugepage */
		const size_t len = hp_round_up((size_t)(a + b), HP_PAGE) - (size_t)from;

		if (populates)
			populated += absent(from, len);
		r = raw(nr, a, b, c, d, e, f);
		if (populates)
			populated -= absent(from, len);
		if (nr == SYS_munmap && (size_t)b > 4 * MIB && !in_span(a))
			is_short = false;
	}
	return result_of(r);
}

/* ------------------------------------------------------------------ a heap that is held, and a thread */

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)(4 * GIB);
	hp_config.extent_max = (int64_t)(32 * MIB);
	hp_config.decay_ms = 3600000; /* ticks are the tests' own */
	hp_config.pages = HP_PAGES_THP;
}

enum { BUFFERS = 8, EXTENTS = 64 };
static struct buffer {
	unsigned char *p;
	size_t size;
	uint64_t seed;
} buffers[BUFFERS];
static struct hugepin_extent extents[EXTENTS];
static int extent_count;

static pthread_t thread;
static sem_t ended;

static void *wait_for_the_end(void *arg)
{
	while (sem_wait(&ended))
		;
	return arg;
}

static void begin_thread(void)
{
	sem_init(&ended, 0, 0);
	EXPECT_EQ(pthread_create(&thread, NULL, wait_for_the_end, NULL), 0);
}

static void end_thread(void)
{
	sem_post(&ended);
	pthread_join(thread, NULL);
}

static void fill(int i, uint64_t seed)
{
	buffers[i].seed = seed;
	pattern_write(buffers[i].p, buffers[i].size, seed);
}

static void get(int i, size_t size)
{
	buffers[i].p = hugepin_malloc(size);
	buffers[i].size = size;
	fill(i, (uint64_t)(i + 1) << 24);
}

static void put(int i)
{
	hugepin_free(buffers[i].p);
	buffers[i].p = NULL;
}

static void drop_all(void)
{
	while (extent_count) {
		extent_count--;
		hp_heap_drop((uintptr_t)extents[extent_count].addr, extents[extent_count].len, HP_HOLD_COPY);
	}
}

/* What is held now is copied at a fork. */
static void hold_all(void)
{
	struct hugepin_extent e;

	drop_all();
	for (uintptr_t from = 0; hp_heap_next_extent(from, &e); from = (uintptr_t)e.addr + 1) {
		if (!EXPECT(extent_count < EXTENTS))
			return;
		EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, HP_HOLD_COPY), 0);
		extents[extent_count++] = e;
	}
}

static void fill_heap(void)
{
	begin_thread();
	for (int i = 0; i < BUFFERS; i++)
		get(i, i % 2 ? 100000 + (size_t)i * 4097 : 3 * MIB + (size_t)i * 1001);
	hold_all();
}

static void free_heap(void)
{
	drop_all();
	for (int i = 0; i < BUFFERS; i++)
		put(i);
	hugepin_purge();
	EXPECT_EQ(hp_copy_kept(), 0);
	expect_empty();
	end_thread();
}

static void expect_intact(void)
{
	for (int i = 0; i < BUFFERS; i++)
		EXPECT(!buffers[i].p || pattern_check(buffers[i].p, buffers[i].size, buffers[i].seed) == -1);
}

static void rewrite(void)
{
	for (int i = 0; i < BUFFERS; i++)
		if (buffers[i].p)
			fill(i, buffers[i].seed + 1000);
}

static long address_space(void)
{
	return file_number("/proc/self/statm") * 4096;
}

static void let_end(pid_t pid, int go)
{
	child_goes(go);
	EXPECT_EQ(child_wait(pid), 0);
	close(go);
}

/* Fork a child that runs in(), and wait for its end. Returns the bytes populated outside of the heap meanwhile. */
static size_t fork_with(void (*in)(void))
{
	size_t before = populated;
	int go = -1;
	pid_t pid = child_that_waits(in, &go);

	let_end(pid, go);
	expect_counted();
	return populated - before;
}

static void use_all(void)
{
	EXPECT_EQ(hp_copy_kept(), 0);
	expect_counted();
	expect_intact();
	rewrite();
	expect_intact();
	for (int i = 0; i < BUFFERS; i++) {
		unsigned char *p = hugepin_calloc(1, 700000);

		EXPECT_EQ(zero_check(p, 700000), -1);
		memset(p, 1, 700000);
	}
	expect_intact();
}

static void tick(int times)
{
	while (times--)
		hp_heap_tick();
}

/* ------------------------------------------------------------------ */

static void idle_after_a_fork(void)
{
	long before;

	hp_config.decay_ms = 200;
	fill_heap();
	EXPECT(fork_with(use_all) > 0); /* the thread that ticks has its stack now */
	for (int i = 0; i < 50000 && hp_copy_kept(); i++)
		sleep_ms(1);
	EXPECT_EQ(hp_copy_kept(), 0);
	before = address_space();
	EXPECT(fork_with(use_all) > 0);
	EXPECT_EQ(address_space(), before + (long)hp_copy_kept() + (hp_copy_kept() ? (long)HP_PAGE : 0));
	drop_all();
	for (int i = 0; i < BUFFERS; i++)
		put(i);
	for (int i = 0; i < 50000 && address_space() > before; i++)
		sleep_ms(1);
	EXPECT_EQ(address_space(), before);
}

/* First, before the heap has begun here: its time of decay is read then. */
TEST(a_process_that_does_nothing_after_a_fork_gives_the_copys_memory_back)
{
	pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		idle_after_a_fork();
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

TEST(a_second_fork_of_a_process_with_threads_populates_nothing)
{
	uint64_t copies = HP_STAT(forks_copied), copied = HP_STAT(fork_copied_bytes);
	size_t each;

	T_STAYS(8, "the heap begins here, and so do its threads");
	fill_heap();
	EXPECT(fork_with(use_all) >= 8 * MIB);
	each = HP_STAT(fork_copied_bytes) - copied;
	EXPECT_EQ(hp_copy_kept(), each);
	for (int i = 0; i < 3; i++) {
		rewrite();
		EXPECT_EQ(fork_with(use_all), 0);
		EXPECT_EQ(hp_copy_kept(), each);
	}
	EXPECT_EQ(HP_STAT(forks_copied), copies + 4);
	EXPECT_EQ(HP_STAT(fork_copied_bytes), copied + 4 * each);
	free_heap();
}

static void see_zeros(void)
{
	size_t end = 0;

	expect_intact();
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
		if (hp_span.page[p].state == HP_PAGE_READY)
			end = p + 1;
	/* No byte is that no buffer has. */
	for (uintptr_t at = hp_page_addr(1); at < hp_page_addr(end); at += HP_CHUNK) {
		bool live = hp_span.page[(at - hp_span.base) >> HP_PAGE_SHIFT].state != HP_PAGE_READY;

		for (int i = 0; i < BUFFERS && !live; i++)
			live = buffers[i].p && at - (uintptr_t)buffers[i].p < buffers[i].size;
		if (!live && zero_check((void *)at, HP_CHUNK) != -1) {
			EXPECT_EQ(zero_check((void *)at, HP_CHUNK), -1);
			return;
		}
	}
	for (size_t size = 4 * MIB; size >= 64 * KIB; size /= 2)
		for (int i = 0; i < 6; i++) {
			unsigned char *p = hugepin_calloc(1, size);

			EXPECT_EQ(zero_check(p, size), -1);
			memset(p, 9, size);
		}
	expect_intact();
}

static void with_heap(void (*body)(void))
{
	fill_heap();
	body();
	free_heap();
}

TEST_BY(with_heap, what_was_live_at_the_first_fork_and_is_free_at_the_second_is_zero_in_the_child)
{
	EXPECT(fork_with(use_all) > 0);
	put(2);
	put(5);
	EXPECT_EQ(fork_with(see_zeros), 0);
	put(0); /* whole pages below the others */
	EXPECT_EQ(fork_with(see_zeros), 0);
	EXPECT_EQ(fork_with(see_zeros), 0);
}

TEST_BY(with_heap, what_the_program_keeps_from_children_is_not_in_memory_that_had_it_before)
{
	EXPECT(fork_with(use_all) > 0);
	EXPECT_EQ(hugepin_advise_(buffers[2].p, 65536, MADV_WIPEONFORK), 0);
	buffers[2].p += 65536;
	buffers[2].size -= 65536;
	fill(2, 77);
	EXPECT_EQ(fork_with(see_zeros), 0);
	buffers[2].p -= 65536;
	buffers[2].size += 65536;
}

/* ------------------------------------------------------------------ for how long */

TEST_BY(with_heap, after_the_decay_time_nothing_is_kept)
{
	long before;

	fork_with(expect_intact);
	hugepin_purge();
	before = address_space();
	EXPECT(fork_with(expect_intact) > 0);
	EXPECT(address_space() >= before + (long)(8 * MIB));
	tick(HP_TICKS);
	EXPECT_EQ(fork_with(expect_intact), 0); /* its time begins anew */
	tick(HP_TICKS);
	EXPECT(hp_copy_kept() > 0);
	tick(1);
	EXPECT_EQ(hp_copy_kept(), 0);
	EXPECT_EQ(address_space(), before);
	EXPECT(fork_with(expect_intact) > 0);
}

TEST_BY(with_heap, a_purge_keeps_nothing)
{
	size_t rss, mappings;
	long before;

	fork_with(expect_intact);
	hugepin_purge();
	rss = resident();
	mappings = smaps_kinds(0, 0, UINTPTR_MAX).mappings;
	before = address_space();
	EXPECT(fork_with(expect_intact) > 0);
	EXPECT(resident() >= rss + 8 * MIB);
	hugepin_purge();
	EXPECT_EQ(address_space(), before);
	EXPECT_EQ(smaps_kinds(0, 0, UINTPTR_MAX).mappings, mappings);
	EXPECT(resident() < rss + MIB);
	EXPECT(fork_with(expect_intact) > 0);
}

TEST_BY(with_heap, a_fork_that_copies_nothing_keeps_nothing)
{
	fork_with(expect_intact);
	EXPECT(hp_copy_kept() > 0);
	drop_all();
	EXPECT_EQ(fork_with(expect_intact), 0);
	EXPECT_EQ(hp_copy_kept(), 0);
}

TEST_BY(with_heap, with_a_decay_time_of_0_nothing_is_kept)
{
	hp_config.decay_ms = 0;
	EXPECT(fork_with(expect_intact) > 0);
	EXPECT_EQ(hp_copy_kept(), 0);
	hp_config.decay_ms = 3600000;
}

/* ------------------------------------------------------------------ how much */

TEST_BY(with_heap, a_larger_copy_has_memory_of_its_own_and_a_smaller_one_a_part_of_what_is_kept)
{
	long before;
	size_t kept;

	fork_with(use_all);
	kept = hp_copy_kept();
	put(1);
	get(1, 20 * MIB);
	hold_all();
	EXPECT(fork_with(use_all) >= kept + 18 * MIB);
	EXPECT(hp_copy_kept() >= kept + 18 * MIB);
	before = address_space();
	put(1);
	get(1, 50000);
	EXPECT_EQ(fork_with(use_all), 0);
	EXPECT(hp_copy_kept() <= kept + HP_PAGE);
	EXPECT(address_space() <= before - (long)(18 * MIB));
	EXPECT_EQ(fork_with(use_all), 0);
}

TEST_BY(with_heap, nothing_is_kept_where_memory_for_the_same_again_is_not_to_be_had)
{
	size_t copy;

	fork_with(expect_intact);
	copy = hp_copy_kept();
	hugepin_purge();
	available = (long)((2 * copy + HP_COPY_MARGIN) >> 10);
	EXPECT(fork_with(expect_intact) > 0);
	EXPECT_EQ(hp_copy_kept(), copy);
	available = (long)((copy + HP_COPY_MARGIN) >> 10); /* what is kept counts */
	EXPECT_EQ(fork_with(expect_intact), 0);
	EXPECT_EQ(hp_copy_kept(), copy);
	available = (long)(HP_COPY_MARGIN >> 10);
	EXPECT(!hugepin_fork_refused_());
	EXPECT_EQ(fork_with(use_all), 0);
	EXPECT_EQ(hp_copy_kept(), 0);
	EXPECT(hugepin_fork_refused_());
	available = -1;
}

TEST_BY(with_heap, memory_that_is_kept_is_given_back_when_memory_is_short)
{
	unsigned char *p;

	fork_with(expect_intact);
	EXPECT(hp_copy_kept() > 0);
	is_short = true;
	p = hugepin_malloc(100 * MIB); /* by itself the heap has too little that is idle for it to be worth a purge */
	EXPECT(p);
	EXPECT(!is_short);
	EXPECT_EQ(hp_copy_kept(), 0);
	hugepin_free(p);
}

/* ------------------------------------------------------------------ what children see */

static void expect_old(void)
{
	for (int i = 0; i < BUFFERS; i++)
		EXPECT_EQ(pattern_check(buffers[i].p, buffers[i].size, buffers[i].seed), -1);
	use_all();
}

TEST_BY(with_heap, a_child_that_lives_when_the_next_is_made_has_memory_of_its_own)
{
	int first_go = -1, second_go = -1;
	pid_t first, second;
	size_t copy, before;

	first = child_that_waits(expect_old, &first_go);
	copy = hp_copy_kept();
	EXPECT(copy > 0);
	rewrite();
	before = populated;
	second = child_that_waits(expect_old, &second_go);
	EXPECT(populated - before >= copy); /* not written page by page, each a copy by the kernel */
	EXPECT_EQ(hp_copy_kept(), copy);
	rewrite();
	let_end(first, first_go);
	let_end(second, second_go);
	EXPECT_EQ(fork_with(expect_old), 0);
	expect_intact();
}

static void fork_as_a_parent(void)
{
	EXPECT_EQ(hp_copy_kept(), 0);
	extent_count = 0; /* nothing is held here */
	begin_thread();
	hold_all();
	rewrite();
	EXPECT(fork_with(use_all) > 0);
	rewrite();
	EXPECT_EQ(fork_with(use_all), 0);
	expect_intact();
}

TEST_BY(with_heap, a_child_keeps_the_memory_of_its_own_copies)
{
	EXPECT(fork_with(fork_as_a_parent) > 0);
	EXPECT_EQ(fork_with(fork_as_a_parent), 0);
	expect_intact();
}

/* It has all as the kernel gives it, what is kept as well. */
TEST_BY(with_heap, a_child_that_runs_no_handler_may_use_what_is_kept_or_give_it_back)
{
	fork_with(use_all);
	for (int i = 0; i < 2; i++) {
		long pid = raw(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);

		if (pid == 0) {
			t_failures = 0;
			if (i == 0)
				hugepin_purge();
			tick(HP_TICKS + 2);
			EXPECT_EQ(hp_copy_kept(), 0);
			rewrite();
			expect_intact();
			_exit(t_failures != 0);
		}
		EXPECT_EQ(child_wait((pid_t)pid), 0);
		EXPECT(hp_copy_kept() > 0);
		expect_intact();
		EXPECT_EQ(fork_with(use_all), 0);
	}
}

/* ------------------------------------------------------------------ dumps */

/* Of mappings outside of the heap: bytes that are not dumped. */
static size_t hidden(void)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[300];
	uintptr_t from = 0, to = 0;
	size_t bytes = 0;

	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) != 2 && !strncmp(line, "VmFlags:", 8) && strstr(line, " dd") &&
		    !in_span((long)from))
			bytes += to - from;
	}
	fclose(f);
	return bytes;
}

static bool hidden_here(const void *p)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[300];
	uintptr_t from = 0, to = 0;
	bool is = false;

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx ", &from, &to) != 2 && !strncmp(line, "VmFlags:", 8) && (uintptr_t)p - from < to - from)
			is = strstr(line, " dd") != NULL;
	fclose(f);
	return is;
}

static void expect_dumped(void)
{
	for (int i = 0; i < BUFFERS; i++)
		EXPECT(!hidden_here(buffers[i].p));
}

TEST_BY(with_heap, what_is_kept_is_not_dumped_and_what_a_child_has_is)
{
	size_t before;

	before = hidden();
	for (int i = 0; i < 2; i++) {
		fork_with(expect_dumped);
		EXPECT(hidden() >= before + hp_copy_kept());
		EXPECT(hp_copy_kept() > 0);
	}
	refused = MADV_DODUMP;
	EXPECT(fork_with(expect_dumped) > 0);
	EXPECT(hp_copy_kept() > 0);
	refused = 0;
	EXPECT_EQ(fork_with(expect_dumped), 0);
	refused = MADV_DONTDUMP;
	fork_with(expect_dumped);
	EXPECT_EQ(hp_copy_kept(), 0);
	refused = 0;
}

LIVE_MAIN
