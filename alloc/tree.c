/*
 * See tree.h.
 *
 * Invariants:
 * 1. free[p] counts the free chunks of page p. If it is neither 0 nor all of them, maps[p] has a bit for each.
 * 2. Each hole is in the bin of its length, on its side of `upper`. Holes are maximal: two never touch, except at the
 *    border of an extent.
 * 3. holes[] has the length of a hole at its first and its last chunk, so that a chunk that becomes free finds the
 *    holes beside it without a search.
 */
#include "alloc/tree.h"

#include <string.h>

/* A search looks at so many holes of a bin, although the first one fits unless the bin is that of the request's own
 * length or the request is aligned. If no bin has a fitting one among these, the search looks at all. */
#define LOOKS 8

static size_t words(size_t bits)
{
	return (bits + 63) / 64;
}

size_t hp_tree_size(size_t pages)
{
	return pages * (sizeof(struct hp_map512) + sizeof(uint32_t) + sizeof(uint16_t)) + words(pages) * 8;
}

void hp_tree_init(struct hp_tree *t, size_t pages, void *memory, struct hp_hole *holes)
{
	char *m = memory;

	*t = (struct hp_tree){ .pages = pages, .upper = pages, .holes = holes };
	t->maps = (struct hp_map512 *)m;
	m += pages * sizeof *t->maps;
	t->starts = (uint64_t *)m;
	m += words(pages) * 8;
	t->stamps = (uint32_t *)m;
	m += pages * sizeof *t->stamps;
	t->free = (uint16_t *)m;
}

/* ------------------------------------------------------------------ bins */

unsigned hp_tree_bin(size_t len)
{
	unsigned shift;

	if (len < 8)
		return (unsigned)len;
	if (len >= HP_TREE_LONG)
		return HP_TREE_BINS - 1;
	shift = 60 - (unsigned)__builtin_clzll(len);
	return 8 * shift + (unsigned)(len >> shift);
}

static bool above(const struct hp_tree *t, size_t chunk)
{
	return chunk >> HP_PAGE_CHUNKS_SHIFT >= t->upper;
}

/* Make one tree of two, either of which may be 0. Each is a root, or will be made a child of one. */
static uint32_t join(struct hp_hole *h, uint32_t a, uint32_t b)
{
	uint32_t low = HP_MIN(a, b), high = HP_MAX(a, b);

	if (!low)
		return high;
	h[high].prev = low;
	h[high].next = h[low].child;
	if (h[low].child)
		h[h[low].child].prev = high;
	h[low].child = high;
	return low;
}

/* Make one tree of siblings: join neighbours to pairs, then join the pairs, beginning with the last. */
static uint32_t join_all(struct hp_hole *h, uint32_t first)
{
	uint32_t pairs = 0, root = 0;

	while (first) {
		uint32_t a = first, b = h[a].next, pair;

		first = b ? h[b].next : 0;
		pair = join(h, a, b);
		h[pair].next = pairs;
		pairs = pair;
	}
	while (pairs) {
		uint32_t pair = pairs;

		pairs = h[pair].next;
		root = join(h, root, pair);
	}
	return root;
}

static void set_root(struct hp_tree *t, struct hp_bins *b, unsigned bin, uint32_t root)
{
	b->root[bin] = root;
	if (root) {
		t->holes[root].next = t->holes[root].prev = 0;
		hp_bit_set(b->some, bin);
	} else {
		hp_bit_clear(b->some, bin);
	}
}

static void insert(struct hp_tree *t, size_t chunk, size_t len)
{
	struct hp_bins *b = &t->bins[above(t, chunk)];
	unsigned bin = hp_tree_bin(len);

	t->holes[chunk + len - 1].len = (uint32_t)len;
	t->holes[chunk].len = (uint32_t)len;
	t->holes[chunk].child = 0;
	set_root(t, b, bin, join(t->holes, b->root[bin], (uint32_t)chunk));
}

static void remove_hole(struct hp_tree *t, size_t chunk)
{
	struct hp_bins *b = &t->bins[above(t, chunk)];
	struct hp_hole *h = t->holes, *gone = &h[chunk];
	unsigned bin = hp_tree_bin(gone->len);
	uint32_t rest = join_all(h, gone->child);

	if (b->root[bin] != chunk) {
		if (h[gone->prev].child == chunk)
			h[gone->prev].child = gone->next;
		else
			h[gone->prev].next = gone->next;
		if (gone->next)
			h[gone->next].prev = gone->prev;
		rest = join(h, b->root[bin], rest);
	}
	set_root(t, b, bin, rest);
}

/* The hole after this one in its bin: first a child, then a sibling, then its parent's sibling. 0: there is none. */
static uint32_t next_in_bin(const struct hp_hole *h, uint32_t chunk)
{
	if (h[chunk].child)
		return h[chunk].child;
	while (!h[chunk].next) {
		while (h[chunk].prev && h[h[chunk].prev].child != chunk)
			chunk = h[chunk].prev;
		chunk = h[chunk].prev;
		if (!chunk)
			return 0;
	}
	return h[chunk].next;
}

/* ------------------------------------------------------------------ maps */

static bool is_free(const struct hp_tree *t, size_t chunk)
{
	size_t page = chunk >> HP_PAGE_CHUNKS_SHIFT;

	if (page >= t->pages || !t->free[page])
		return false;
	return t->free[page] == HP_PAGE_CHUNKS || hp_bit(t->maps[page].w, chunk & (HP_PAGE_CHUNKS - 1));
}

static bool is_border(const struct hp_tree *t, size_t chunk)
{
	return !(chunk & (HP_PAGE_CHUNKS - 1)) && hp_bit(t->starts, chunk >> HP_PAGE_CHUNKS_SHIFT);
}

/* The first chunk of the hole that contains this one. */
static size_t first_of(const struct hp_tree *t, size_t chunk)
{
	while (!is_border(t, chunk) && is_free(t, chunk - 1)) {
		size_t page = (chunk - 1) >> HP_PAGE_CHUNKS_SHIFT;

		chunk = t->free[page] == HP_PAGE_CHUNKS ? page << HP_PAGE_CHUNKS_SHIFT : chunk - 1;
	}
	return chunk;
}

/* Mark a run of chunks as free or as taken, in the counts and maps of its pages. A page that is all free or all taken
 * has no map until then, so the map is filled in first. */
static void mark(struct hp_tree *t, size_t chunk, size_t count, bool free)
{
	while (count) {
		size_t page = chunk >> HP_PAGE_CHUNKS_SHIFT, o = chunk & (HP_PAGE_CHUNKS - 1);
		size_t k = HP_MIN(HP_PAGE_CHUNKS - o, count), was = t->free[page], is = free ? was + k : was - k;

		if (k < HP_PAGE_CHUNKS) {
			uint64_t *map = t->maps[page].w;

			if (was == 0 || was == HP_PAGE_CHUNKS)
				memset(map, was ? 0xff : 0, sizeof t->maps[page]);
			HP_ASSERT(hp_bits_find(map, o, o + k, free) == o + k);
			hp_bits_fill(map, o, k, free);
		}
		HP_ASSERT(is <= HP_PAGE_CHUNKS);
		t->free[page] = (uint16_t)is;
		if (is == HP_PAGE_CHUNKS)
			t->stamps[page] = t->now;
		chunk += k;
		count -= k;
	}
}

/* ------------------------------------------------------------------ changes and searches */

void hp_tree_free(struct hp_tree *t, size_t chunk, size_t count)
{
	size_t end = chunk + count, from = chunk, page_end = ((end - 1) >> HP_PAGE_CHUNKS_SHIFT) + 1;
	size_t *used = page_end > t->upper ? &t->upper_used : &t->used;

	*used = HP_MAX(*used, page_end);
	mark(t, chunk, count, true);
	if (!is_border(t, chunk) && is_free(t, chunk - 1)) {
		from = chunk - t->holes[chunk - 1].len;
		remove_hole(t, from);
	}
	for (size_t p = (chunk >> HP_PAGE_CHUNKS_SHIFT) + 1; p < page_end; p++)
		if (hp_bit(t->starts, p)) {
			insert(t, from, (p << HP_PAGE_CHUNKS_SHIFT) - from);
			from = p << HP_PAGE_CHUNKS_SHIFT;
		}
	if (is_free(t, end) && !is_border(t, end)) {
		size_t len = t->holes[end].len;

		remove_hole(t, end);
		end += len;
	}
	insert(t, from, end - from);
}

void hp_tree_take(struct hp_tree *t, size_t chunk, size_t count)
{
	size_t from = first_of(t, chunk), end = from + t->holes[from].len, to = chunk + count;

	HP_ASSERT(to <= end);
	remove_hole(t, from);
	if (from < chunk)
		insert(t, from, chunk - from);
	if (to < end)
		insert(t, to, end - to);
	mark(t, chunk, count, false);
}

size_t hp_tree_find(const struct hp_tree *t, bool upper, size_t n, size_t align, size_t phase)
{
	const struct hp_bins *b = &t->bins[upper];
	size_t most = LOOKS;
	bool all = false;

	while (!all) {
		all = true;
		for (size_t bin = hp_tree_bin(n); bin < HP_TREE_BINS; bin++) {
			size_t looks = 0;

			bin = hp_bits_find(b->some, bin, HP_TREE_BINS, true);
			for (uint32_t c = bin < HP_TREE_BINS ? b->root[bin] : 0; c; c = next_in_bin(t->holes, c)) {
				size_t at = hp_round_up(c + phase, align) - phase;

				if (at + n <= c + t->holes[c].len)
					return at;
				if (++looks == most) {
					all = false;
					break;
				}
			}
		}
		most = SIZE_MAX;
	}
	return 0;
}

size_t hp_tree_free_after(const struct hp_tree *t, size_t chunk, size_t most)
{
	size_t got = 0;

	while (got < most) {
		size_t at = chunk + got, page = at >> HP_PAGE_CHUNKS_SHIFT, o = at & (HP_PAGE_CHUNKS - 1), k;

		if (page >= t->pages || (!o && got && hp_bit(t->starts, page)))
			break;
		k = !t->free[page]			? 0
		    : t->free[page] == HP_PAGE_CHUNKS	? HP_PAGE_CHUNKS - o
							: hp_bits_find(t->maps[page].w, o, HP_PAGE_CHUNKS, false) - o;
		got += k;
		if (o + k < HP_PAGE_CHUNKS)
			break;
	}
	return HP_MIN(got, most);
}
