/* The heap in one thread against a naive model, which knows the owner of every chunk and what every buffer holds. */
#ifndef TESTS_UNIT_HEAP_MODEL_H
#define TESTS_UNIT_HEAP_MODEL_H

#include <errno.h>
#include <stdlib.h>

#include "alloc/fast.h"
#include "alloc/heap.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "base/stats.h"
#include "tests/rnd.h"
#include "tests/t.h"
#include "tests/unit/empty.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SLOWER 8
#else
#define SLOWER 1
#endif

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

static void model_configure(void)
{
	hp_config.span = (int64_t)SPAN;
	hp_config.decay_ms = 0; /* the clock is ours */
	hp_config.abort_on_misuse = 0;
	owner = calloc(SPAN >> HP_CHUNK_SHIFT, sizeof *owner);
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

	size_t first = chunk_of(b->p), end = first + (hugepin_usable_size(b->p) >> HP_CHUNK_SHIFT);

	EXPECT_EQ(first & (hp_base_chunks() - 1), 0);
	for (size_t c = first; c < hp_round_up(end, hp_base_chunks()); c++) {
		if (owner[c] != (c < end ? from : 0)) {
			T_FAIL("chunk %zu belongs to %d, not to %d", c, owner[c], from);
			break;
		}
		owner[c] = c < end ? to : 0;
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
		EXPECT(hp_is_close(hugepin_usable_size(p) >> HP_CHUNK_SHIFT, hp_chunks_for(HP_MAX(size, 1u))));
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
		EXPECT_EQ(e.page_shift, e.kind == HUGEPIN_KIND_HUGETLB ? 21 : __builtin_ctzl(hp_base_page));
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
	for (size_t c = 0, n; c < hp_span.end[HP_PART_HEAP] << HP_PAGE_CHUNKS_SHIFT; c += n) {
		bool is_free = hp_holes_after(&hp_span.holes, c, 1);
		bool exists = hp_span.page[c >> HP_PAGE_CHUNKS_SHIFT].state != HP_PAGE_NONE;

		n = is_free ? hp_holes_after(&hp_span.holes, c, HP_PAGE_CHUNKS - (c & (HP_PAGE_CHUNKS - 1))) : 1;
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

#endif
