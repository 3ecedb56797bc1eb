/*
 * Forks of a process whose heap is held (alloc/hold.h) and registered with an io_uring: the child has what it is to have,
 * whatever the memory is made of, and the parent's pages stay the ones that the ring writes to.
 */
#include "alloc/hold.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "alloc/heap.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "base/pagescan.h"
#include "base/service.h"
#include "base/stats.h"
#include "base/thread.h"
#include "tests/live/live.h"
#include "tests/unit/child.h"
#include "tests/unit/elsewhere.h"
#include "tests/unit/empty.h"

enum { BUFFERS = 24 };
static struct buffer {
	unsigned char *p;
	size_t size;
	uint64_t seed;
} buffers[BUFFERS];

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)(4 * GIB);
	hp_config.extent_max = (int64_t)(32 * MIB);
	hp_config.decay_ms = 0;
}

static void fill(struct buffer *b, uint64_t seed)
{
	b->seed = seed;
	pattern_write(b->p, b->size, seed);
}

/* Buffers of odd sizes with holes between them, some of a page and more. */
static void fill_heap(int64_t pages)
{
	hp_config.pages = pages;
	for (int i = 0; i < BUFFERS; i++) {
		buffers[i].size = i % 3 ? 100000 + (size_t)i * 4097 : 5 * MIB + (size_t)i * 1001;
		buffers[i].p = hugepin_malloc(buffers[i].size);
		fill(&buffers[i], (uint64_t)(100 + i) << 20);
	}
	for (int i = 1; i < BUFFERS; i += 5) {
		hugepin_free(buffers[i].p);
		buffers[i].p = NULL;
	}
}

static void free_heap(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		hugepin_free(buffers[i].p);
		buffers[i].p = NULL;
	}
	hugepin_purge();
	expect_empty();
	hp_config.pages = HP_PAGES_AUTO;
	hp_span.no_pool = false; /* each test as if it were the first to fork */
}

static void expect_intact(void)
{
	for (int i = 0; i < BUFFERS; i++)
		EXPECT(!buffers[i].p || pattern_check(buffers[i].p, buffers[i].size, buffers[i].seed) == -1);
}

static void rewrite(uint64_t by)
{
	for (int i = 0; i < BUFFERS; i++)
		if (buffers[i].p)
			fill(&buffers[i], buffers[i].seed + by);
}

/* ------------------------------------------------------------------ all extents, held and registered */

enum { EXTENTS = 64, SLOTS = 256 };
static struct hugepin_extent extents[EXTENTS];
static enum hp_hold hows[EXTENTS];
static int extent_count;
static struct io_uring ring;
static struct iovec slots[SLOTS];
static unsigned slot_count;
static const char *no_ring;

/* ------------------------------------------------------------------ moving in: first, since what was advised once does not move */

enum { OWN = 3 };

static bool kernel_moves(void)
{
	struct hp_pagescan none = { .size = 0 };
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	bool known = ioctl(fd, HP_PAGESCAN, &none) == 0 || errno != ENOTTY;

	close(fd);
	return known;
}

static uint64_t pool_bytes(const unsigned char *p, size_t size)
{
	return smaps_kinds(0, (uintptr_t)p, (uintptr_t)p + size).hugetlb;
}

/* In a process of its own, with one thread: three buffers of some hugepages, of which a ring has the second, without our knowledge. */
static void move_around_a_ring(void)
{
	unsigned char *p[OWN];
	int fds[2];
	pid_t other;

	hp_span.no_pool = false;
	hp_config.pages = HP_PAGES_HUGETLB;
	for (int i = 0; i < OWN; i++) {
		p[i] = hugepin_aligned_alloc(HP_PAGE, 4 * MIB);
		pattern_write(p[i], 4 * MIB, (uint64_t)i);
		EXPECT(pool_bytes(p[i], 4 * MIB) >= 4 * MIB);
	}
	if (pipe(fds) || (other = ring_elsewhere(p[1] + 2 * MIB, 64 * KIB, fds[0])) < 0)
		_exit(77);
	for (int i = 0; i < 3; i++) {
		uint64_t copied = HP_STAT(fork_copied_bytes);
		pid_t pid = fork();

		if (pid == 0) {
			for (int j = 0; j < OWN; j++)
				if (pattern_check(p[j], 4 * MIB, (uint64_t)j) != -1)
					_exit(1);
			_exit(0);
		}
		EXPECT_EQ(child_wait(pid, 40), 0);
		/* The others are no longer the pool's, and later forks copy what is: the page that the ring has. */
		EXPECT_EQ(pool_bytes(p[0], 4 * MIB) + pool_bytes(p[2], 4 * MIB), 0);
		EXPECT_EQ(pool_bytes(p[1], 4 * MIB), 2 * MIB);
		EXPECT_EQ(HP_STAT(fork_copied_bytes) - copied, i ? 2 * MIB : 12 * MIB);
		expect_counted();
		EXPECT_EQ(hp_heap_mapping((uintptr_t)p[1]), 2 * MIB);
	}
	for (int i = 0; i < OWN; i++)
		EXPECT_EQ(pattern_check(p[i], 4 * MIB, (uint64_t)i), -1);
	EXPECT(write(fds[1], "fixed", 5) == 5);
	for (int i = 0; i < 50000 && memcmp(p[1] + 2 * MIB, "fixed", 5) != 0; i++)
		sleep_ms(1);
	EXPECT(memcmp(p[1] + 2 * MIB, "fixed", 5) == 0);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

static void in_a_process(void (*run)(void))
{
	pid_t pid;
	int status;
	long pages;

	NEEDS_POOL(30);
	if (!HP_THREAD_BARE)
		SKIP("nothing moves under sanitizers");
	if (!kernel_moves())
		SKIP("a kernel before 6.7");
	pages = pool_free();
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		run();
		_exit(t_failures != 0);
	}
	status = child_wait(pid, 60);
	/* A ring lets its pages go some time after its end. */
	for (int i = 0; i < 50000 && pool_free() < pages; i++)
		sleep_ms(1);
	if (status == 77)
		SKIP("no io_uring that registers");
	EXPECT_EQ(status, 0);
}

TEST(in_a_process_with_one_thread_the_copy_takes_the_originals_place_but_for_what_somebody_has_pinned)
{
	in_a_process(move_around_a_ring);
}

/* The fork has ended the thread that gives memory back. */
static void idle_after_a_fork(void)
{
	enum { COUNT = 8 };
	unsigned char *p[COUNT];
	size_t left;

	hp_span.no_pool = false;
	hp_config.pages = HP_PAGES_HUGETLB;
	hp_config.decay_ms = 100;
	for (int i = 0; i < COUNT; i++) {
		p[i] = hugepin_aligned_alloc(HP_PAGE, 4 * MIB);
		pattern_write(p[i], 4 * MIB, (uint64_t)i);
	}
	for (int i = 1; i < COUNT; i++)
		hugepin_free(p[i]);
	left = HP_STAT(hugetlb_bytes);
	EXPECT(left >= COUNT * 4 * MIB);

	pid_t pid = fork();

	if (pid == 0)
		_exit(pattern_check(p[0], 4 * MIB, 0) != -1);
	EXPECT_EQ(child_wait(pid, 40), 0);
	EXPECT_EQ(pool_bytes(p[0], 4 * MIB), 0);
	for (int i = 0; i < 50000 && HP_STAT(hugetlb_bytes) > 4 * MIB; i++)
		sleep_ms(1);
	EXPECT(HP_STAT(hugetlb_bytes) <= 4 * MIB);
}

TEST(a_process_that_does_nothing_after_a_fork_gives_idle_memory_back)
{
	in_a_process(idle_after_a_fork);
}

static void hold_all(enum hp_hold how)
{
	struct hugepin_extent e;

	for (uintptr_t from = 0; hp_heap_next_extent(from, &e); from = (uintptr_t)e.addr + 1) {
		if (!EXPECT(extent_count < EXTENTS))
			return;
		EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, how), 0);
		hows[extent_count] = how;
		extents[extent_count++] = e;
	}
}

static void drop_all(void)
{
	while (extent_count--)
		hp_heap_drop((uintptr_t)extents[extent_count].addr, extents[extent_count].len, hows[extent_count]);
	extent_count = 0;
}

/* A slot for each mapping of each held extent. */
static void register_all(void)
{
	int r = io_uring_queue_init(8, &ring, 0);

	no_ring = NULL;
	slot_count = 0;
	if (r < 0) {
		no_ring = strerror(-r);
		return;
	}
	for (int i = 0; i < extent_count; i++)
		for (size_t off = 0, len; off < extents[i].len && slot_count < SLOTS; off += len) {
			len = hp_heap_mapping((uintptr_t)extents[i].addr + off);
			slots[slot_count++] = (struct iovec){ (char *)extents[i].addr + off, len };
		}
	r = io_uring_register_buffers(&ring, slots, slot_count);
	if (r < 0) {
		no_ring = strerror(-r);
		io_uring_queue_exit(&ring);
	}
}

static void unregister_all(void)
{
	if (!no_ring)
		io_uring_queue_exit(&ring);
}

/* Have the kernel write the head of each large buffer by the registration that was made before the fork, and see that this is
 * where the program reads. */
static void read_into_all(uint64_t seed)
{
	static unsigned char text[65536];
	int fd = memfd_create("pattern", MFD_CLOEXEC);
	struct io_uring_cqe *cqe;

	pattern_write(text, sizeof text, seed);
	EXPECT(write(fd, text, sizeof text) == sizeof text);
	for (int i = 0; i < BUFFERS; i++) {
		struct io_uring_sqe *sqe;
		unsigned s = 0;

		if (!buffers[i].p)
			continue;
		sqe = io_uring_get_sqe(&ring);
		while (s < slot_count && (uintptr_t)buffers[i].p - (uintptr_t)slots[s].iov_base >= slots[s].iov_len)
			s++;
		size_t len = s < slot_count ? HP_MIN((size_t)sizeof text, (size_t)((char *)slots[s].iov_base + slots[s].iov_len -
								       (char *)buffers[i].p)) : 0;
		io_uring_prep_read_fixed(sqe, fd, buffers[i].p, (unsigned)len, 0, (int)s);
		EXPECT_EQ(io_uring_submit_and_wait(&ring, 1), 1);
		EXPECT_EQ(io_uring_wait_cqe(&ring, &cqe), 0);
		EXPECT_EQ(cqe->res, len);
		io_uring_cqe_seen(&ring, cqe);
		EXPECT(memcmp(buffers[i].p, text, len) == 0);
		fill(&buffers[i], buffers[i].seed);
	}
	close(fd);
}

/* The physical page of an address; 0: may not be known, or not there. */
static uint64_t frame(const void *p)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t entry = 0;

	if (pread(fd, &entry, 8, (off_t)((uintptr_t)p / 4096 * 8)) != 8 || !(entry >> 63))
		entry = 0;
	close(fd);
	return entry & ((UINT64_C(1) << 55) - 1);
}

static uint64_t frames[BUFFERS];

static void note_frames(void)
{
	for (int i = 0; i < BUFFERS; i++)
		frames[i] = buffers[i].p ? frame(buffers[i].p + buffers[i].size / 2) : 0;
}

static void expect_frames(void)
{
	for (int i = 0; i < BUFFERS; i++)
		if (buffers[i].p)
			EXPECT_EQ(frame(buffers[i].p + buffers[i].size / 2), frames[i]);
}

static size_t mapped(void)
{
	return HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes) + HP_STAT(base_bytes);
}

static bool any_held(void)
{
	for (size_t p = 1; p < hp_span.pages; p++)
		if (hp_page_held(&hp_span.page[p]))
			return true;
	return false;
}

/* Fork, have the child run in(), and the parent write all its buffers before the child goes on. The child's status. */
static int fork_with(void (*in)(void))
{
	int go, status;
	pid_t pid = child_that_waits(in, &go);

	if (pid < 0)
		return -1;
	rewrite(1000);
	expect_intact();
	child_goes(go);
	status = child_wait(pid, 40);
	close(go);
	expect_intact();
	return status;
}

/* ------------------------------------------------------------------ a copy */

/* All is there, is the child's own, and is not held. */
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

TEST(a_child_gets_a_copy_of_held_thp_and_the_ring_keeps_the_originals)
{
	copied(HP_PAGES_THP);
}

TEST(a_child_gets_a_copy_of_held_base_pages_and_the_ring_keeps_the_originals)
{
	copied(HP_PAGES_BASE);
}

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

/* ------------------------------------------------------------------ nothing */

/* Whether touching p is SIGSEGV. */
static bool is_fatal(volatile unsigned char *p)
{
	pid_t pid = fork();

	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		(void)*p;
		_exit(0);
	}
	return child_wait(pid, 10) == 128 + SIGSEGV;
}

static bool on_lost_page(const void *p, size_t size)
{
	size_t first = ((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT;

	for (size_t q = first; q <= ((uintptr_t)p + size - 1 - hp_span.base) >> HP_PAGE_SHIFT; q++)
		if (hp_span.page[q].lost)
			return true;
	return false;
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

TEST(a_child_does_not_have_thp_that_is_held_from_it)
{
	left_out(HP_PAGES_THP);
}

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
	EXPECT_EQ(child_wait(pid, 20), 0);
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
	EXPECT_EQ(child_wait(pid, 20), 128 + SIGSEGV);
	drop_all();
	hugepin_free(p);
	hugepin_free(wall);
	hugepin_purge();
	expect_empty();
}

/* Half of the extents one way, half the other. */
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
	for (uintptr_t from = 0; hp_heap_next_extent(from, &e) && extent_count < EXTENTS; from = (uintptr_t)e.addr + 1) {
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

/* The rest of an extent gets memory together with its first page: not the lost page, even where it comes next. */
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
	EXPECT_EQ(child_wait(pid, 20), 0);
	hp_heap_drop((uintptr_t)below + HP_PAGE, HP_PAGE, HP_HOLD_DONTFORK);
	hugepin_free(below + HP_PAGE);
	free_heap();
}

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

/* ------------------------------------------------------------------ the hook */

static int told; /* times */
static bool told_wrong;

static void told_child(void)
{
	told++;
	told_wrong |= !hp_lock_mine(&hp_heap_lock) || any_held() || hp_service_running() ||
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

/* ------------------------------------------------------------------ what it costs */

enum { LARGE = 64, LARGE_SIZE = 16 << 20 };

struct cost {
	double ms; /* negative: not possible */
	uint64_t copied;
};

/* Of the first fork of a heap of 1 GiB in pool pages, in a process of its own. */
static struct cost fork_cost(bool registered)
{
	int result[2];
	struct cost cost = { .ms = -1 };
	pid_t pid;

	if (!EXPECT(!pipe2(result, O_CLOEXEC)))
		return cost;
	pid = fork();
	if (pid == 0) {
		uint64_t start;
		pid_t child;

		hp_span.no_pool = false;
		hp_config.pages = HP_PAGES_HUGETLB;
		for (int i = 0; i < LARGE; i++) {
			void *p = hugepin_malloc(LARGE_SIZE);

			memset(p, i, LARGE_SIZE);
		}
		if (registered) {
			hold_all(HP_HOLD_COPY);
			register_all();
		}
		start = hp_clock_ns();
		child = fork();
		if (child == 0)
			_exit(0);
		cost = (struct cost){ (double)(hp_clock_ns() - start) / 1e6, HP_STAT(fork_copied_bytes) };
		waitpid(child, NULL, 0);
		if (registered && no_ring)
			cost.ms = -1;
		_exit(write(result[1], &cost, sizeof cost) != sizeof cost);
	}
	EXPECT_EQ(child_wait(pid, 40), 0);
	EXPECT(read(result[0], &cost, sizeof cost) == sizeof cost);
	close(result[0]);
	close(result[1]);
	return cost;
}

/* The times are for the reader; make bench-pin compares them. */
/* As when a signal handler forks. Debug builds assert the order of locks. */
TEST(a_fork_may_come_while_its_thread_has_a_lock_of_the_pin_cache)
{
	struct hp_lock lock = HP_LOCK_INIT(HP_RANK_QUEUE);
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

TEST(a_fork_copies_as_much_of_registered_memory_as_of_unregistered_memory)
{
	struct cost plain, registered;

	NEEDS_POOL(540);
	plain = fork_cost(false);
	registered = fork_cost(true);
	if (plain.ms < 0 || registered.ms < 0)
		SKIP("io_uring: %s", no_ring ? no_ring : "1 GiB cannot be registered");
	t_print("# first fork of 1 GiB: %.0f ms, registered %.0f ms\n", plain.ms, registered.ms);
	EXPECT(plain.copied >= (uint64_t)LARGE * LARGE_SIZE);
	EXPECT_EQ(registered.copied, plain.copied);
}

LIVE_MAIN
