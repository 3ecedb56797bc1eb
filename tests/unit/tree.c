/*
 * The tree against a naive byte map: random frees and takes, extents of random length, and every search answered by
 * both.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/tree.h"
#include "tests/t.h"

enum { PAGES = 8192, SPAN_CHUNKS = PAGES * 512 };

static struct hp_tree tree;
static unsigned char *naive; /* 1 = free, per chunk */
static unsigned char starts[PAGES];
static uint64_t seed = 42;

static uint64_t rnd(uint64_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % n;
}

static void fresh_tree(void)
{
	static void *memory;

	free(memory);
	free(naive);
	memory = calloc(1, hp_tree_size(PAGES));
	naive = calloc(1, SPAN_CHUNKS);
	memset(starts, 0, sizeof starts);
	hp_tree_init(&tree, PAGES, memory);
}

static bool naive_next_hole(size_t from, size_t n, struct hp_hole *ret)
{
	size_t run = 0;

	for (size_t i = from; i < SPAN_CHUNKS; i++) {
		if (i % 512 == 0 && starts[i / 512]) {
			if (run >= n) {
				*ret = (struct hp_hole){ i - run, run };
				return true;
			}
			run = 0;
		}
		if (naive[i]) {
			run++;
		} else {
			if (run >= n && run) {
				*ret = (struct hp_hole){ i - run, run };
				return true;
			}
			run = 0;
		}
	}
	if (run >= n && run) {
		*ret = (struct hp_hole){ SPAN_CHUNKS - run, run };
		return true;
	}
	return false;
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

TEST(searches_agree_with_a_byte_map)
{
	size_t mapped = 1; /* pages below this belong to extents */
	size_t steps = 0, found = 0;

	fresh_tree();
	for (int i = 0; i < 60000; i++) {
		size_t n = random_size();
		struct hp_hole a = { 0, 0 }, b = { 0, 0 };
		size_t from = 0;
		bool ok_a = false;

		/* Walk up to three holes. */
		for (size_t k = 0; k <= rnd(3); k++) {
			ok_a = hp_tree_next_hole(&tree, from, n, &a);
			if (i % 16 == 0) {
				bool ok_b = naive_next_hole(from, n, &b);

				EXPECT_EQ(ok_a, ok_b);
				EXPECT_EQ(a.start, b.start);
				EXPECT_EQ(a.len, b.len);
			}
			if (!ok_a)
				break;
			from = a.start + a.len;
			steps++;
		}
		if (ok_a && rnd(3)) {
			set(a.start, n, false);
			found++;
		} else if (!ok_a && mapped < PAGES) { /* a new extent */
			size_t pages = HP_MIN(PAGES - mapped, (n + 511) / 512 + rnd(30));

			starts[mapped] = 1;
			hp_bit_set(tree.starts, mapped);
			set(mapped * 512, pages * 512, true);
			mapped += pages;
		} else { /* free some taken run, or several with one settling */
			for (size_t k = 0; k < 1 + rnd(4); k++) {
				size_t c = 512 + rnd((mapped - 1) * 512 + 1);
				size_t len = 0, most = random_size();

				while (c + len < mapped * 512 && !naive[c + len] && len < most)
					len++;
				if (len)
					set(c, len, true);
			}
		}
		hp_tree_settle(&tree);
		if (i % 64 == 0) {
			size_t c = rnd(mapped * 512), most = 1 + rnd(3000), len = 0;

			while (len < most && c + len < SPAN_CHUNKS && naive[c + len] &&
			       !(len && (c + len) % 512 == 0 && starts[(c + len) / 512]))
				len++;
			EXPECT_EQ(hp_tree_free_after(&tree, c, most), len);
		}
	}
	EXPECT(found > 1000 && steps > 10000);
}

TEST(every_summary_is_the_merge_of_its_children)
{
	for (size_t p = 0; p < PAGES; p++) {
		bool all = true, none = true;

		for (size_t c = 0; c < 512; c++) {
			all = all && naive[p * 512 + c];
			none = none && !naive[p * 512 + c];
		}
		if (all)
			EXPECT_EQ(tree.sums[0][p], HP_SUM_PAGE);
		else if (none)
			EXPECT_EQ(tree.sums[0][p], HP_SUM_NONE);
		else
			EXPECT_EQ(tree.sums[0][p], hp_map512_sum(&tree.maps[p]));
	}
	for (unsigned l = 1; l < HP_TREE_LEVELS; l++)
		for (size_t i = 0; i < (size_t)PAGES >> (3 * l); i++) {
			unsigned borders = 0;

			for (unsigned k = 0; k < 8; k++)
				borders |= (unsigned)starts[(i * 8 + k) << (3 * (l - 1))] << k;
			EXPECT_EQ(tree.sums[l][i], hp_sum_merge(&tree.sums[l - 1][i * 8], 512u << (3 * (l - 1)), borders));
		}
}

TEST(a_page_is_stamped_when_it_becomes_wholly_free)
{
	fresh_tree();
	tree.now = 7;
	set(512, 1024, true);
	hp_tree_settle(&tree);
	EXPECT_EQ(tree.stamps[1], 7);
	set(700, 3, false);
	hp_tree_settle(&tree);
	EXPECT(!hp_tree_page_free(&tree, 1) && hp_tree_page_free(&tree, 2));
	tree.now = 9;
	set(700, 3, true);
	hp_tree_settle(&tree);
	EXPECT(hp_tree_page_free(&tree, 1));
	EXPECT_EQ(tree.stamps[1], 9);
	EXPECT_EQ(tree.stamps[2], 7);
}

TEST(searches_stay_on_their_side_of_the_upper_part)
{
	for (size_t upper = 1; upper < 130; upper += 1 + rnd(20)) {
		struct hp_hole h;

		fresh_tree();
		tree.upper = upper;
		hp_bit_set(tree.starts, upper + 1);
		hp_tree_free(&tree, upper * 512 - 100, 100);
		hp_tree_free(&tree, (upper + 1) * 512, 1024);
		hp_tree_settle(&tree);
		EXPECT_EQ(tree.used, upper);
		EXPECT_EQ(tree.upper_used, upper + 3);
		EXPECT(!hp_tree_next_hole(&tree, 0, 101, &h));
		EXPECT(hp_tree_next_hole(&tree, 0, 100, &h));
		EXPECT_EQ(h.start, upper * 512 - 100);
		EXPECT(!hp_tree_next_hole(&tree, h.start + h.len, 1, &h));
		EXPECT(hp_tree_next_hole(&tree, upper * 512 + 1, 1, &h));
		EXPECT_EQ(h.start, (upper + 1) * 512);
		EXPECT_EQ(h.len, 1024);
		EXPECT(!hp_tree_next_hole(&tree, h.start + h.len, 1, &h));
	}
}

TEST(a_wholly_free_root_is_found)
{
	struct hp_hole h;

	fresh_tree();
	set(0, SPAN_CHUNKS, true);
	hp_tree_settle(&tree);
	EXPECT_EQ(tree.sums[4][0], HP_SUM_WHOLE);
	EXPECT(hp_tree_next_hole(&tree, 0, SPAN_CHUNKS, &h));
	EXPECT_EQ(h.len, SPAN_CHUNKS);
	EXPECT(!hp_tree_next_hole(&tree, 0, SPAN_CHUNKS + 1, &h));
}

T_MAIN
