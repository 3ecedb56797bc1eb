/*
 * Source: Go's page allocator (runtime/mpagealloc.go), with two additions. Extents have borders. A search can go on
 * from the last hole, so that the caller can choose the tightest of the first few.
 *
 * Invariants:
 *  1. sums[0][p] describes maps[p]. If it is HP_SUM_NONE or HP_SUM_PAGE, it alone is true, and maps[p] is stale.
 *  2. sums[l + 1][i] is the merge of sums[l][8 i .. 8 i + 7], except for nodes marked dirty.
 */
#include "alloc/tree.h"

#include <string.h>

static size_t level_chunks(unsigned level)
{
	return HP_PAGE_CHUNKS << (3 * level);
}

static size_t nodes(size_t pages, unsigned level)
{
	return pages >> (3 * level);
}

static size_t words(size_t bits)
{
	return (bits + 63) / 64;
}

size_t hp_tree_size(size_t pages)
{
	size_t size = pages * (sizeof(struct hp_map512) + sizeof(uint32_t)) + words(pages) * 8;

	for (unsigned l = 0; l < HP_TREE_LEVELS; l++)
		size += nodes(pages, l) * sizeof(hp_sum) + words(nodes(pages, l)) * 8;
	return size;
}

void hp_tree_init(struct hp_tree *t, size_t pages, void *memory)
{
	char *m = memory;

	HP_ASSERT(pages % (1u << (3 * (HP_TREE_LEVELS - 1))) == 0);
	*t = (struct hp_tree){ .pages = pages, .upper = pages };
	t->maps = (struct hp_map512 *)m;
	m += pages * sizeof *t->maps;
	for (unsigned l = 0; l < HP_TREE_LEVELS; l++) {
		t->sums[l] = (hp_sum *)m;
		m += nodes(pages, l) * sizeof(hp_sum);
	}
	for (unsigned l = 0; l < HP_TREE_LEVELS; l++) {
		t->dirty[l] = (uint64_t *)m;
		m += words(nodes(pages, l)) * 8;
		t->dirty_from[l] = SIZE_MAX;
	}
	t->starts = (uint64_t *)m;
	m += words(pages) * 8;
	t->stamps = (uint32_t *)m;
}

static void mark_dirty(struct hp_tree *t, unsigned level, size_t node)
{
	size_t w = node >> 6;

	t->dirty[level][w] |= UINT64_C(1) << (node & 63);
	if (w < t->dirty_from[level])
		t->dirty_from[level] = w;
	if (w >= t->dirty_to[level])
		t->dirty_to[level] = w + 1;
}

/* Set the summary of one page, and mark its parent for recomputing. */
static void set_page(struct hp_tree *t, size_t page, hp_sum s)
{
	if (t->sums[0][page] == s)
		return;
	t->sums[0][page] = s;
	if (s == HP_SUM_PAGE)
		t->stamps[page] = t->now;
	mark_dirty(t, 1, page >> 3);
}

static void change_chunks(struct hp_tree *t, size_t chunk, size_t count, bool free)
{
	while (count) {
		size_t page = chunk >> HP_PAGE_CHUNKS_SHIFT, o = chunk & (HP_PAGE_CHUNKS - 1);
		size_t k = HP_MIN(HP_PAGE_CHUNKS - o, count);

		if (k == HP_PAGE_CHUNKS) {
			set_page(t, page, free ? HP_SUM_PAGE : HP_SUM_NONE);
			hp_bit_clear(t->dirty[0], page);
		} else {
			uint64_t *map = t->maps[page].w;
			hp_sum s = t->sums[0][page];

			if ((s == HP_SUM_NONE || s == HP_SUM_PAGE) && !hp_bit(t->dirty[0], page))
				memset(map, s == HP_SUM_PAGE ? 0xff : 0, sizeof t->maps[page]);
			HP_ASSERT(hp_bits_find(map, o, o + k, free) == o + k);
			hp_bits_fill(map, o, k, free);
			mark_dirty(t, 0, page);
		}
		chunk += k;
		count -= k;
	}
}

void hp_tree_free(struct hp_tree *t, size_t chunk, size_t count)
{
	size_t end = ((chunk + count - 1) >> HP_PAGE_CHUNKS_SHIFT) + 1;
	size_t *used = end > t->upper ? &t->upper_used : &t->used;

	*used = HP_MAX(*used, end);
	change_chunks(t, chunk, count, true);
}

void hp_tree_take(struct hp_tree *t, size_t chunk, size_t count)
{
	change_chunks(t, chunk, count, false);
}

static unsigned borders(const struct hp_tree *t, unsigned level, size_t node)
{
	unsigned b = 0;
	size_t step = (size_t)1 << (3 * (level - 1)), page = node << (3 * level);

	if (level == 1)
		return (unsigned)(t->starts[page >> 6] >> (page & 63)) & 0xff;
	for (unsigned i = 0; i < 8; i++, page += step)
		b |= (unsigned)hp_bit(t->starts, page) << i;
	return b;
}

void hp_tree_settle(struct hp_tree *t)
{
	for (unsigned l = 0; l < HP_TREE_LEVELS; l++) {
		for (size_t w = t->dirty_from[l]; w < t->dirty_to[l]; w++) {
			uint64_t bits = t->dirty[l][w];

			t->dirty[l][w] = 0;
			for (; bits; bits &= bits - 1) {
				size_t node = w << 6 | (size_t)__builtin_ctzll(bits);

				if (l == 0) {
					set_page(t, node, hp_map512_sum(&t->maps[node]));
					continue;
				}

				hp_sum s = hp_sum_merge(&t->sums[l - 1][node << 3], level_chunks(l - 1),
							borders(t, l, node));

				if (t->sums[l][node] == s)
					continue;
				t->sums[l][node] = s;
				if (l + 1 < HP_TREE_LEVELS)
					mark_dirty(t, l + 1, node >> 3);
			}
		}
		t->dirty_from[l] = SIZE_MAX;
		t->dirty_to[l] = 0;
	}
}

bool hp_tree_next_hole(const struct hp_tree *t, size_t from, size_t n, struct hp_hole *ret_hole)
{
	size_t pos = from;
	size_t end = (from <= t->upper << HP_PAGE_CHUNKS_SHIFT ? t->used : t->upper_used) << HP_PAGE_CHUNKS_SHIFT;
	size_t run = 0; /* free chunks that end at pos, when pos is the border of a page */
	unsigned level = 0;
	bool arrived = true; /* pos was reached by going right, not by descending */

	while (pos < end) {
		size_t o = pos & (HP_PAGE_CHUNKS - 1), page = pos >> HP_PAGE_CHUNKS_SHIFT;

		if (o == 0 && arrived) {
			if (hp_bit(t->starts, page)) {
				if (run >= n)
					break;
				run = 0;
			}
			/* Climb as long as a larger node begins here. */
			while (level + 1 < HP_TREE_LEVELS && !(page & ((1u << (3 * (level + 1))) - 1)))
				level++;
		}
		arrived = true;

		/* Go over whole nodes. Look inside a node only if the hole may lie wholly inside. */
		hp_sum s = t->sums[level][page >> (3 * level)];
		size_t size = level_chunks(level);

		if (o == 0) {
			if (hp_sum_start(s) == size) {
				run += size;
				pos += size;
				continue;
			}
			if (run + hp_sum_start(s) >= n) {
				run += hp_sum_start(s);
				pos += hp_sum_start(s);
				break;
			}
			if (hp_sum_longest(s) < n) {
				run = hp_sum_end(s);
				pos += size;
				continue;
			}
			if (level) { /* the hole may begin and end inside: descend */
				level--;
				arrived = false;
				continue;
			}
		}

		/* This page has a long enough run, or the search began inside it: read its map. */
		size_t page_end = pos - o + HP_PAGE_CHUNKS;

		run = 0;
		if (s == HP_SUM_NONE) {
			pos = page_end;
			continue;
		}

		const uint64_t *map = t->maps[page].w;
		size_t a = o, b;

		if (s == HP_SUM_PAGE) /* `from` lies inside a free run, which the caller must not do */
			return false;
		for (;;) {
			a = hp_bits_find(map, a, HP_PAGE_CHUNKS, true);
			b = hp_bits_find(map, a, HP_PAGE_CHUNKS, false);
			if (b - a >= n && b < HP_PAGE_CHUNKS) {
				*ret_hole = (struct hp_hole){ pos - o + a, b - a };
				return true;
			}
			if (b == HP_PAGE_CHUNKS)
				break;
			a = b;
		}
		run = b - a;
		pos = page_end;
	}
	if (run < n || !run)
		return false;
	*ret_hole = (struct hp_hole){ pos - run, run };
	return true;
}

size_t hp_tree_free_after(const struct hp_tree *t, size_t chunk, size_t most)
{
	size_t got = 0;

	while (got < most) {
		size_t at = chunk + got, page = at >> HP_PAGE_CHUNKS_SHIFT, o = at & (HP_PAGE_CHUNKS - 1);

		if (page >= t->pages || (!o && got && hp_bit(t->starts, page)))
			break;

		hp_sum s = t->sums[0][page];
		size_t k = s == HP_SUM_NONE ? 0
			 : s == HP_SUM_PAGE ? HP_PAGE_CHUNKS - o
					    : hp_bits_find(t->maps[page].w, o, HP_PAGE_CHUNKS, false) - o;

		got += k;
		if (o + k < HP_PAGE_CHUNKS)
			break;
	}
	return HP_MIN(got, most);
}
