/* A heap of buffers, which are held (alloc/hold.h) and registered with an io_uring, and forks of that process. */
#ifndef TESTS_UNIT_FORK_H
#define TESTS_UNIT_FORK_H

#include "alloc/hold.h"

#include <stdlib.h>

#include "alloc/heap.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "base/stats.h"
#include "tests/live/live.h"
#include "tests/ring.h"
#include "tests/unit/child.h"
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

static inline void fill(struct buffer *b, uint64_t seed)
{
	b->seed = seed;
	pattern_write(b->p, b->size, seed);
}

/* Buffers of odd sizes with holes between them, some of a page and more. */
static inline void fill_heap(int64_t pages)
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

static inline void free_heap(void)
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

static inline void expect_intact(void)
{
	for (int i = 0; i < BUFFERS; i++)
		EXPECT(!buffers[i].p || pattern_check(buffers[i].p, buffers[i].size, buffers[i].seed) == -1);
}

static inline void rewrite(uint64_t by)
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

static inline void hold_all(enum hp_hold how)
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

static inline void drop_all(void)
{
	while (extent_count--)
		hp_heap_drop((uintptr_t)extents[extent_count].addr, extents[extent_count].len, hows[extent_count]);
	extent_count = 0;
}

/* Register a slot for each mapping of each held extent. */
static inline void register_all(void)
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

static inline void unregister_all(void)
{
	if (!no_ring)
		io_uring_queue_exit(&ring);
}

/* The kernel writes the head of each large buffer, by the registration from before the fork. The program must read the
 * same bytes there. */
static inline void read_into_all(uint64_t seed)
{
	static unsigned char text[65536];
	int fd = memfd_create("pattern", MFD_CLOEXEC);

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
		size_t len = s < slot_count ? HP_MIN((size_t)sizeof text,
						     (size_t)((char *)slots[s].iov_base + slots[s].iov_len -
							      (char *)buffers[i].p)) :
					      0;
		io_uring_prep_read_fixed(sqe, fd, buffers[i].p, (unsigned)len, 0, (int)s);
		EXPECT_EQ(io_uring_submit_and_wait(&ring, 1), 1);
		EXPECT_EQ(ring_result(&ring), len);
		EXPECT(memcmp(buffers[i].p, text, len) == 0);
		fill(&buffers[i], buffers[i].seed);
	}
	close(fd);
}

/* ------------------------------------------------------------------ the physical pages */

/* The physical page of an address; 0: absent, or not to be known. */
static inline uint64_t frame(const void *p)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t entry = 0;

	if (pread(fd, &entry, 8, (off_t)((uintptr_t)p / 4096 * 8)) != 8 || !(entry >> 63))
		entry = 0;
	close(fd);
	return entry & ((UINT64_C(1) << 55) - 1);
}

static uint64_t frames[BUFFERS];

static inline void note_frames(void)
{
	for (int i = 0; i < BUFFERS; i++)
		frames[i] = buffers[i].p ? frame(buffers[i].p + buffers[i].size / 2) : 0;
}

static inline void expect_frames(void)
{
	for (int i = 0; i < BUFFERS; i++)
		if (buffers[i].p)
			EXPECT_EQ(frame(buffers[i].p + buffers[i].size / 2), frames[i]);
}

/* ------------------------------------------------------------------ a fork */

static inline bool any_held(void)
{
	for (size_t p = 1; p < hp_span.pages; p++)
		if (hp_page_held(&hp_span.page[p]))
			return true;
	return false;
}

/* Fork. The parent writes all its buffers, then the child runs in(). Returns the child's status. */
static inline int fork_with(void (*in)(void))
{
	int go, status;
	pid_t pid = child_that_waits(in, &go);

	if (pid < 0)
		return -1;
	rewrite(1000);
	expect_intact();
	child_goes(go);
	status = child_wait(pid);
	close(go);
	expect_intact();
	return status;
}

#endif
