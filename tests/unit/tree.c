/*
 * The tree against a naive byte map: random frees and takes, extents of random length. Every search is answered by
 * both, and every hole is where it should be.
 */
#include <stdlib.h>

#include "alloc/tree.h"
#include "tests/rnd.h"
#include "tests/t.h"

enum { PAGES = 8192, SPAN_CHUNKS = PAGES * 512 };

static struct hp_holes holes;
static struct hp_tree tree;
static unsigned char *naive; /* 1 = free, per chunk */
static unsigned char starts[PAGES];
static void fresh_tree(void)
{
	static void *memory, *len, *longest;

	free(memory);
	free(len);
	free(longest);
	free(naive);
	memory = calloc(1, hp_holes_size(PAGES));
	longest = calloc(1, hp_tree_size(PAGES));
	len = malloc(SPAN_CHUNKS * sizeof(uint32_t));
	naive = calloc(1, SPAN_CHUNKS);
	memset(starts, 0, sizeof starts);
	hp_holes_init(&holes, PAGES, memory, len);
	hp_tree_init(&tree, &holes, longest);
}

/* The first maximal free run at or after `from`, which does not lie in one. Returns its length; 0: there is none. */
static size_t naive_hole(size_t from, size_t *ret_start)
{
	size_t c = from, end;

	while (c < SPAN_CHUNKS && !naive[c])
		c += c % 8 == 0 && !*(uint64_t *)(naive + c) ? 8 : 1;
	for (end = c; end < SPAN_CHUNKS && naive[end] && !(end > c && end % 512 == 0 && starts[end / 512]); end++)
		;
	*ret_start = c;
	return end - c;
}

/* The lowest n chunks of a hole whose first one, plus `phase`, is a multiple of `align`; 0: there are none. */
static size_t naive_find(size_t n, size_t align, size_t phase)
{
	size_t start, len, at;

	for (size_t c = 0; (len = naive_hole(c, &start)) != 0; c = start + len) {
		at = (start + phase + align - 1) / align * align - phase;
		if (at + n <= start + len)
			return at;
	}
	return 0;
}

static void check_tree(void)
{
	static uint32_t longest[SPAN_CHUNKS / 64];
	size_t start, len;

	memset(longest, 0, sizeof longest);
	for (size_t c = 0; (len = naive_hole(c, &start)) != 0; c = start + len) {
		EXPECT_EQ(holes.len[start], len);
		EXPECT_EQ(holes.len[start + len - 1], len);
		longest[start / 64] = HP_MAX(longest[start / 64], (uint32_t)len);
	}
	EXPECT(!memcmp(longest, tree.longest[0], sizeof longest));
	for (unsigned level = 1; level < HP_TREE_LEVELS; level++)
		for (size_t i = 0; i <= SPAN_CHUNKS / (size_t)64 >> level * HP_TREE_FAN_SHIFT; i++) {
			const uint32_t *below = &tree.longest[level - 1][i << HP_TREE_FAN_SHIFT];
			uint32_t max = 0;

			for (unsigned k = 0; k < 1u << HP_TREE_FAN_SHIFT; k++)
				max = HP_MAX(max, below[k]);
			EXPECT_EQ(tree.longest[level][i], max);
		}
	for (size_t p = 0; p < PAGES; p++) {
		size_t free_chunks = 0;

		for (size_t c = 0; c < 512; c++)
			free_chunks += naive[p * 512 + c];
		EXPECT_EQ(holes.free[p], free_chunks);
		for (size_t c = 0; c < 512 && free_chunks % 512; c++)
			if (hp_bit(holes.maps[p].w, c) != naive[p * 512 + c])
				T_FAIL("chunk %zu of page %zu", c, p);
	}
}

static void set(size_t chunk, size_t n, bool to_free)
{
	memset(naive + chunk, to_free, n);
	if (to_free)
		hp_tree_free(&tree, chunk, n);
	else
		hp_tree_take(&tree, chunk, n);
}

static size_t random_size(void)
{
	switch (rnd(8)) {
	case 0: return 1 + rnd(20000);
	case 1: return 512 * (1 + rnd(20));
	default: return 1 + rnd(600);
	}
}

TEST(searches_and_holes_agree_with_a_byte_map)
{
	size_t mapped = 1; /* pages below this belong to extents */
	size_t found = 0, middles = 0;

	fresh_tree();
	for (int i = 0; i < 60000; i++) {
		size_t n = random_size(), align = rnd(4) ? 1 : (size_t)1 << rnd(12), phase = rnd(2) ? 0 : rnd(SPAN_CHUNKS), at;

		if (i % 64 == 0)
			EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, n, align, phase), naive_find(n, align, phase));
		if (i % 1024 == 0)
			check_tree();
		at = hp_tree_find(&tree, 0, PAGES, n, align, phase);
		if (at && rnd(3)) {
			if (rnd(8) == 0 && n > 2) { /* from within a hole */
				size_t skip = rnd(n - 1);

				at += skip;
				n -= skip;
				middles++;
			}
			set(at, n, false);
			found++;
		} else if (!at && mapped < PAGES) { /* a new extent */
			size_t pages = HP_MIN(PAGES - mapped, (n + 511) / 512 + rnd(30));

			starts[mapped] = 1;
			hp_bit_set(holes.starts, mapped);
			set(mapped * 512, pages * 512, true);
			mapped += pages;
		} else { /* free some taken runs */
			for (size_t k = 0; k < 1 + rnd(4); k++) {
				size_t c = 512 + rnd((mapped - 1) * 512 + 1);
				size_t len = 0, most = random_size();

				while (c + len < mapped * 512 && !naive[c + len] && len < most &&
				       !(len && (c + len) % 512 == 0 && starts[(c + len) / 512]))
					len++;
				if (len)
					set(c, len, true);
			}
		}
		if (i % 64 == 0) {
			size_t c = rnd(mapped * 512), most = 1 + rnd(3000), len = 0;

			while (len < most && c + len < SPAN_CHUNKS && naive[c + len] &&
			       !(len && (c + len) % 512 == 0 && starts[(c + len) / 512]))
				len++;
			EXPECT_EQ(hp_holes_after(&holes, c, most), len);
		}
	}
	check_tree();
	EXPECT(found > 1000 && middles > 100);
}

TEST(the_lowest_hole_that_fits_is_taken_although_a_higher_one_is_tighter)
{
	fresh_tree();
	set(512, 256, true); /* 1 MiB */
	set(512 + 300, 16, true); /* 64 KiB, and only this many */
	EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, 16, 1, 0), 512);
	set(512, 256, false);
	EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, 16, 1, 0), 512 + 300);
}

/* Each hole but the highest is a little too short, or long enough but not where the alignment is. */
TEST(a_hole_that_fits_is_found_behind_any_number_of_others)
{
	fresh_tree();
	for (size_t i = 0; i < 1000; i++)
		set(512 + 1 + i * 256, 100, true);
	set(512 + 1000 * 256, 103, true);
	EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, 103, 1, 0), 512 + 1000 * 256);
	EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, 104, 1, 0), 0);
	EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, 97, 1, 0), 512 + 1);
	EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, 97, 256, 0), 512 + 1000 * 256);
	check_tree();
}

TEST(a_page_is_stamped_when_it_becomes_wholly_free)
{
	fresh_tree();
	holes.now = 7;
	set(512, 1024, true);
	EXPECT_EQ(holes.stamps[1], 7);
	set(700, 3, false);
	EXPECT(!hp_holes_page(&holes, 1) && hp_holes_page(&holes, 2));
	holes.now = 9;
	set(700, 3, true);
	EXPECT(hp_holes_page(&holes, 1));
	EXPECT_EQ(holes.stamps[1], 9);
	EXPECT_EQ(holes.stamps[2], 7);
}

TEST(searches_stay_between_their_pages)
{
	for (size_t upper = 1; upper < 130; upper += 1 + rnd(20)) {
		fresh_tree();
		hp_bit_set(holes.starts, upper);
		hp_tree_free(&tree, upper * 512 - 100, 100);
		hp_tree_free(&tree, upper * 512, 1024);
		EXPECT_EQ(hp_tree_find(&tree, 0, upper, 101, 1, 0), 0);
		EXPECT_EQ(hp_tree_find(&tree, 0, upper, 100, 1, 0), upper * 512 - 100);
		EXPECT_EQ(hp_tree_find(&tree, upper, PAGES, 1, 1, 0), upper * 512);
		EXPECT_EQ(hp_tree_find(&tree, upper, PAGES, 1024, 1, 0), upper * 512);
		EXPECT_EQ(hp_tree_find(&tree, upper, PAGES, 1025, 1, 0), 0);
	}
}

/* Extents that touch, by turns in one tree and in the other. */
TEST(holes_of_two_trees_over_one_table_keep_apart)
{
	static struct hp_tree other;

	fresh_tree();
	hp_tree_init(&other, &holes, calloc(1, hp_tree_size(PAGES)));
	for (size_t p = 1; p < 101; p++) {
		hp_bit_set(holes.starts, p);
		hp_tree_free(p % 2 ? &tree : &other, p * 512, 512);
	}
	EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, 513, 1, 0), 0);
	EXPECT_EQ(hp_tree_find(&other, 0, PAGES, 513, 1, 0), 0);
	for (size_t p = 1; p < 101; p++) {
		EXPECT_EQ(hp_tree_find(p % 2 ? &tree : &other, 0, PAGES, 512, 1, 0), p * 512);
		hp_tree_take(p % 2 ? &tree : &other, p * 512, 512);
	}
	hp_tree_free(&tree, 512, 512);
	hp_tree_free(&other, 2 * 512, 512);
	EXPECT_EQ(hp_holes_after(&holes, 512, 2000), 512);
	EXPECT_EQ(hp_tree_find(&other, 0, PAGES, 1, 1, 0), 2 * 512);
	free(other.longest[0]);
}

TEST(a_span_that_is_wholly_free_is_one_hole)
{
	fresh_tree();
	set(512, SPAN_CHUNKS - 512, true);
	EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, SPAN_CHUNKS - 512, 1, 0), 512);
	EXPECT_EQ(hp_tree_find(&tree, 0, PAGES, SPAN_CHUNKS - 511, 1, 0), 0);
	check_tree();
}

T_MAIN
