/*
 * See tree.h.
 *
 * Invariants:
 * 1. free[p] counts the free chunks of page p. If it is neither 0 nor all of them, maps[p] has a bit for each.
 * 2. longest[0][b] is the length of the longest hole of the tree that begins in block b, and each other entry the
 *    maximum of those below it. Holes are maximal: two never touch, except at the border of an extent.
 * 3. len[] has the length of a hole at its first and its last chunk, so that a chunk that becomes free finds the
 *    holes beside it without a search.
 */
#include "alloc/tree.h"

#include <string.h>

#define FAN ((size_t)1 << HP_TREE_FAN_SHIFT)
#define BLOCKS_SHIFT (HP_PAGE_CHUNKS_SHIFT - HP_TREE_BLOCK_SHIFT) /* of a page */

static size_t words(size_t bits)
{
	return (bits + 63) / 64;
}

/* Entries of a level of the tree of maxima, up to a multiple of FAN. */
static size_t entries(size_t pages, int level)
{
	return hp_round_up((pages << BLOCKS_SHIFT >> level * HP_TREE_FAN_SHIFT) + 1, FAN);
}

size_t hp_holes_size(size_t pages)
{
	return pages * (sizeof(struct hp_map512) + sizeof(uint32_t) + sizeof(uint16_t)) + words(pages + 1) * 8;
}

size_t hp_tree_size(size_t pages)
{
	size_t size = 0;

	for (int i = 0; i < HP_TREE_LEVELS; i++)
		size += entries(pages, i) * sizeof(uint32_t);
	return size;
}

void hp_holes_init(struct hp_holes *h, size_t pages, void *memory, uint32_t *len)
{
	char *m = memory;

	*h = (struct hp_holes){ .pages = pages, .len = len };
	h->maps = (struct hp_map512 *)m;
	m += pages * sizeof *h->maps;
	h->starts = (uint64_t *)m;
	m += words(pages + 1) * 8;
	h->stamps = (uint32_t *)m;
	m += pages * sizeof *h->stamps;
	h->free = (uint16_t *)m;
}

void hp_tree_init(struct hp_tree *t, struct hp_holes *h, void *memory)
{
	char *m = memory;

	t->holes = h;
	for (int i = 0; i < HP_TREE_LEVELS; i++) {
		t->longest[i] = (uint32_t *)m;
		m += entries(h->pages, i) * sizeof(uint32_t);
	}
}

/* ------------------------------------------------------------------ maps */

static bool is_free(const struct hp_holes *h, size_t chunk)
{
	size_t page = chunk >> HP_PAGE_CHUNKS_SHIFT;

	if (page >= h->pages || !h->free[page])
		return false;
	return h->free[page] == HP_PAGE_CHUNKS || hp_bit(h->maps[page].w, chunk & (HP_PAGE_CHUNKS - 1));
}

static bool is_border(const struct hp_holes *h, size_t chunk)
{
	return !(chunk & (HP_PAGE_CHUNKS - 1)) && hp_bit(h->starts, chunk >> HP_PAGE_CHUNKS_SHIFT);
}

/* The first chunk of the hole that contains this one. */
static size_t first_of(const struct hp_holes *h, size_t chunk)
{
	while (!is_border(h, chunk) && is_free(h, chunk - 1)) {
		size_t page = (chunk - 1) >> HP_PAGE_CHUNKS_SHIFT;

		chunk = h->free[page] == HP_PAGE_CHUNKS ? page << HP_PAGE_CHUNKS_SHIFT : chunk - 1;
	}
	return chunk;
}

/* Mark a run of chunks as free or as taken, in the counts and maps of its pages. A page that is all free or all taken
 * has no map until then, so the map is filled in first. */
static void mark(struct hp_holes *h, size_t chunk, size_t count, bool free)
{
	while (count) {
		size_t page = chunk >> HP_PAGE_CHUNKS_SHIFT, o = chunk & (HP_PAGE_CHUNKS - 1);
		size_t k = HP_MIN(HP_PAGE_CHUNKS - o, count), was = h->free[page], is = free ? was + k : was - k;

		if (k < HP_PAGE_CHUNKS) {
			uint64_t *map = h->maps[page].w;

			if (was == 0 || was == HP_PAGE_CHUNKS)
				memset(map, was ? 0xff : 0, sizeof h->maps[page]);
			HP_ASSERT(hp_bits_find(map, o, o + k, free) == o + k);
			hp_bits_fill(map, o, k, free);
		}
		HP_ASSERT(is <= HP_PAGE_CHUNKS);
		h->free[page] = (uint16_t)is;
		if (is == HP_PAGE_CHUNKS)
			h->stamps[page] = h->now;
		chunk += k;
		count -= k;
	}
}

/* ------------------------------------------------------------------ the longest holes */

/* The chunks of a block at which holes begin, a bit for each. */
static uint64_t holes_in(const struct hp_holes *h, size_t block)
{
	const size_t page = block >> BLOCKS_SHIFT, start = block << HP_TREE_BLOCK_SHIFT;
	const bool begins = is_border(h, start) || !is_free(h, start - 1);
	uint64_t w;

	if (!h->free[page])
		return 0;
	if (h->free[page] == HP_PAGE_CHUNKS)
		return begins && !(block & ((1 << BLOCKS_SHIFT) - 1));
	w = h->maps[page].w[block & ((1 << BLOCKS_SHIFT) - 1)];
	return w & ~(w << 1 | !begins);
}

/* A hole of `len` chunks begins here. */
static void longer(struct hp_tree *t, size_t chunk, uint32_t len)
{
	size_t i = chunk >> HP_TREE_BLOCK_SHIFT;

	for (int level = 0; level < HP_TREE_LEVELS && t->longest[level][i] < len; level++) {
		t->longest[level][i] = len;
		i >>= HP_TREE_FAN_SHIFT;
	}
}

/* The maximum of FAN entries, in few instructions. */
static uint32_t max_of(const uint32_t *e)
{
	_Static_assert(FAN == 8, "all entries");
	return HP_MAX(HP_MAX(HP_MAX(e[0], e[1]), HP_MAX(e[2], e[3])), HP_MAX(HP_MAX(e[4], e[5]), HP_MAX(e[6], e[7])));
}

/* A hole of `len` chunks that began here is gone, or has become shorter. */
static void shorter(struct hp_tree *t, size_t chunk, uint32_t len)
{
	size_t i = chunk >> HP_TREE_BLOCK_SHIFT;
	uint32_t max = 0;

	if (t->longest[0][i] != len)
		return;
	for (uint64_t w = holes_in(t->holes, i); w; w &= w - 1)
		max = HP_MAX(max, t->holes->len[i << HP_TREE_BLOCK_SHIFT | (size_t)__builtin_ctzll(w)]);
	for (int level = 0; level < HP_TREE_LEVELS && t->longest[level][i] == len && max < len; level++) {
		t->longest[level][i] = max;
		max = max_of(&t->longest[level][i & ~(FAN - 1)]);
		i >>= HP_TREE_FAN_SHIFT;
	}
}

/* The first block from `block` on in which a hole of at least n chunks begins; `end` or more: there is none below. */
static size_t find_block(const struct hp_tree *t, size_t block, size_t end, size_t n)
{
	const int top = (63 - __builtin_clzll(end | 1)) / HP_TREE_FAN_SHIFT; /* its first node and the next have all */
	int level = block ? HP_MIN(__builtin_ctzll(block) / HP_TREE_FAN_SHIFT, top) : top;
	size_t i = block >> level * HP_TREE_FAN_SHIFT;

	while (t->longest[level][i] < n) {
		for (i++; !(i & (FAN - 1)) && level < top; level++)
			i >>= HP_TREE_FAN_SHIFT;
		if (i << level * HP_TREE_FAN_SHIFT >= end)
			return end;
	}
	while (level--) /* of the nodes below, one is as long as this one */
		for (i <<= HP_TREE_FAN_SHIFT; t->longest[level][i] < n; i++)
			;
	return i;
}

/* ------------------------------------------------------------------ changes and searches */

/* [chunk, end) is a hole now. */
static void set_hole(struct hp_tree *t, size_t chunk, size_t end)
{
	t->holes->len[chunk] = t->holes->len[end - 1] = (uint32_t)(end - chunk);
	longer(t, chunk, (uint32_t)(end - chunk));
}

void hp_tree_free(struct hp_tree *t, size_t chunk, size_t count)
{
	struct hp_holes *h = t->holes;
	size_t end = chunk + count, from = chunk;
	uint32_t right = 0;

	mark(h, chunk, count, true);
	if (!is_border(h, chunk) && is_free(h, chunk - 1))
		from = chunk - h->len[chunk - 1];
	if (!is_border(h, end) && is_free(h, end)) /* behind a border, another tree's holes may just change */
		right = h->len[end];
	set_hole(t, from, end + right);
	if (right)
		shorter(t, end, right);
}

void hp_tree_take(struct hp_tree *t, size_t chunk, size_t count)
{
	struct hp_holes *h = t->holes;
	size_t from = first_of(h, chunk), end = from + h->len[from], to = chunk + count;

	HP_ASSERT(to <= end);
	mark(h, chunk, count, false);
	if (from < chunk)
		set_hole(t, from, chunk);
	if (to < end)
		set_hole(t, to, end);
	shorter(t, from, (uint32_t)(end - from));
}

size_t hp_tree_find(const struct hp_tree *t, size_t first, size_t end, size_t n, size_t align, size_t phase)
{
	const size_t to = end << BLOCKS_SHIFT;

	for (size_t b = first << BLOCKS_SHIFT; (b = find_block(t, b, to, n)) < to; b++)
		for (uint64_t w = holes_in(t->holes, b); w; w &= w - 1) {
			const size_t c = b << HP_TREE_BLOCK_SHIFT | (size_t)__builtin_ctzll(w);
			const size_t at = hp_round_up(c + phase, align) - phase;

			if (at + n <= c + t->holes->len[c])
				return at;
		}
	return 0;
}

size_t hp_holes_after(const struct hp_holes *h, size_t chunk, size_t most)
{
	size_t got = 0;

	while (got < most) {
		size_t at = chunk + got, page = at >> HP_PAGE_CHUNKS_SHIFT, o = at & (HP_PAGE_CHUNKS - 1), k;

		if (page >= h->pages || (!o && got && hp_bit(h->starts, page)))
			break;
		k = !h->free[page]		      ? 0
		    : h->free[page] == HP_PAGE_CHUNKS ? HP_PAGE_CHUNKS - o
						      : hp_bits_find(h->maps[page].w, o, HP_PAGE_CHUNKS, false) - o;
		got += k;
		if (o + k < HP_PAGE_CHUNKS)
			break;
	}
	return HP_MIN(got, most);
}
