/*
 * Memory outside the heap that is registered by blocks (attr.round_max), so that a range that moves is found: where the
 * blocks are cut, and what they may take. What is registered is compared with a naive model of the mappings.
 */
#include <stdlib.h>

#include "base/base.h"
#include "reg/domain.h"
#include "tests/unit/pin.h"

enum { PAGE = 4096, BLOCK = 16 * PAGE, BOTH = HUGEPIN_READ | HUGEPIN_WRITE };

static hugepin_domain *open_rounding(uint64_t round_max, struct hugepin_attr attr)
{
	attr.policy = attr.policy ? attr.policy : HUGEPIN_POLICY_LRU;
	attr.round_max = round_max;
	device_reset(&device);
	return open_with(attr);
}

static hugepin_domain *open_blocks(void)
{
	return open_rounding(BLOCK, (struct hugepin_attr){ 0 });
}

/* So many blocks, and a page before and behind that may not be touched. */
static char *map_blocks(size_t blocks, int prot)
{
	const size_t len = blocks * BLOCK;
	char *all = mmap(NULL, len + 2 * BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *p;

	EXPECT(all != MAP_FAILED);
	p = (char *)hp_round_up((uintptr_t)all + PAGE, BLOCK);
	EXPECT_EQ(mprotect(p, len, prot), 0);
	munmap(all, (size_t)(p - PAGE - all));
	munmap(p + len + PAGE, (size_t)(all + BLOCK - PAGE - p));
	return p;
}

static void unmap_blocks(char *p, size_t blocks)
{
	munmap(p - PAGE, blocks * BLOCK + 2 * PAGE);
}

/* Whether a pin of [p + at, p + at + len) has a key of just [p + from, p + to), all in pages. */
static bool gets(hugepin_domain *d, char *p, size_t at, size_t len, size_t from, size_t to, unsigned access)
{
	struct hugepin_pin pin;
	bool ok = EXPECT_EQ(hugepin_pin(d, p + at * PAGE, len * PAGE, access, &pin), 0) &&
		  EXPECT(device_covers(&device, &pin, access)) && EXPECT_EQ(pin.len, len * PAGE) &&
		  EXPECT_EQ(device.reg[pin.lkey].addr, (uintptr_t)p + from * PAGE) &&
		  EXPECT_EQ(device.reg[pin.lkey].len, (to - from) * PAGE);

	return hugepin_unpin(d, &pin) == 0 && ok;
}

/* ------------------------------------------------------------------ windows that move */

static void slide(size_t block, bool back)
{
	const size_t len = 5 * MIB, window = MIB, steps = (len - window) / PAGE;
	hugepin_domain *d = open_rounding(block, (struct hugepin_attr){ 0 });
	char *p = map(len);

	for (size_t i = 0; i <= steps; i++)
		EXPECT_EQ(touch(d, p + (back ? steps - i : i) * PAGE, window), 0);
	EXPECT(device.calls <= (long)((len + block - 1) / block + 1));
	EXPECT_EQ(stats_of(d).uncached, 0);
	munmap(p, len);
	close_empty(&device, d);
}

TEST(a_window_that_moves_by_pages_makes_a_registration_for_each_block)
{
	T_DOMAIN_BEGINS();
	for (size_t block = 64 * KIB; block <= 8 * MIB; block *= 2) {
		slide(block, false);
		slide(block, true);
	}
}

TEST(without_blocks_base_pages_are_registered)
{
	char *p = map_blocks(2, PROT_READ | PROT_WRITE);

	for (uint64_t block = 0; block <= PAGE; block = block ? block * 2 : 1) {
		hugepin_domain *d = open_rounding(block, (struct hugepin_attr){ 0 });

		EXPECT(gets(d, p, 1, 2, 1, 3, HUGEPIN_READ));
		close_empty(&device, d);
	}
	unmap_blocks(p, 2);
}

TEST(a_block_is_a_power_of_two)
{
	hugepin_domain *d = NULL;

	for (uint64_t bad = 3; !(bad >> 63); bad <<= 1) {
		struct hugepin_attr attr = { .size = sizeof attr, .round_max = bad };

		EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	}
	d = open_rounding((uint64_t)1 << 63, (struct hugepin_attr){ 0 });
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ where a block is cut */

static void cut_at_mappings(void)
{
	char *p = map_blocks(4, PROT_READ | PROT_WRITE);
	hugepin_domain *d = open_blocks();

	EXPECT(gets(d, p, 20, 3, 16, 32, HUGEPIN_READ)); /* one block */
	EXPECT(gets(d, p, 30, 3, 16, 48, HUGEPIN_READ)); /* of two */
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(mprotect(p + 50 * PAGE, 4 * PAGE, PROT_READ), 0);
	EXPECT(gets(d, p, 48, 1, 48, 50, HUGEPIN_WRITE)); /* not what is read-only */
	EXPECT(gets(d, p, 51, 1, 50, 54, HUGEPIN_READ));
	EXPECT(gets(d, p, 49, 2, 48, 54, HUGEPIN_READ)); /* a range over both has the blocks of both */
	EXPECT(gets(d, p, 63, 1, 54, 64, HUGEPIN_READ)); /* PROT_NONE follows */
	munmap(p + 5 * PAGE, PAGE);
	EXPECT(gets(d, p, 4, 1, 0, 5, HUGEPIN_READ));
	EXPECT(gets(d, p, 6, 1, 6, 16, HUGEPIN_READ));
	EXPECT_EQ(stats_of(d).uncached, 0);
	unmap_blocks(p, 4);
	close_empty(&device, d);
}

TEST(a_block_ends_with_its_mapping)
{
	cut_at_mappings();
}

TEST(a_block_beside_a_file_ends_before_it)
{
	char *p = map_blocks(1, PROT_READ | PROT_WRITE);
	int fd = memfd_create("file", MFD_CLOEXEC);
	hugepin_domain *d = open_blocks();

	EXPECT_EQ(ftruncate(fd, BLOCK), 0);
	EXPECT(mmap(p + 8 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p + 8 * PAGE);
	EXPECT(mmap(p + 12 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == p + 12 * PAGE);
	close(fd);
	EXPECT(gets(d, p, 7, 1, 0, 8, HUGEPIN_READ));
	EXPECT(gets(d, p, 10, 1, 9, 12, HUGEPIN_READ));
	EXPECT(gets(d, p, 13, 1, 13, 16, HUGEPIN_READ));
	EXPECT_EQ(stats_of(d).uncached, 0);
	EXPECT(gets(d, p, 8, 1, 8, 9, HUGEPIN_READ)); /* not cached at all */
	EXPECT(gets(d, p, 7, 2, 7, 9, HUGEPIN_READ)); /* nor is a range with a part of it */
	EXPECT_EQ(stats_of(d).uncached, 2);
	unmap_blocks(p, 1);
	close_empty(&device, d);
}

static char *bad_page;

static int refuse_bad_page(void *addr, size_t len)
{
	return bad_page >= (char *)addr && bad_page < (char *)addr + len ? -EFAULT : 0;
}

/* As a guard page does, which is no mapping of its own. */
TEST(a_block_with_a_page_that_cannot_be_pinned_is_left_for_the_base_pages)
{
	char *p = map_blocks(2, PROT_READ | PROT_WRITE);
	hugepin_domain *d = open_blocks();

	bad_page = p + 5 * PAGE;
	device.refuse = refuse_bad_page;
	EXPECT(gets(d, p, 7, 2, 7, 9, BOTH));
	EXPECT(registered(d, p + 7 * PAGE, 2 * PAGE));
	EXPECT(gets(d, p, 15, 2, 15, 17, HUGEPIN_READ)); /* of two blocks, one has such a page */
	EXPECT(gets(d, p, 18, 1, 16, 32, HUGEPIN_READ));
	EXPECT_EQ(stats_of(d).uncached, 0);
	device.refuse = NULL;
	unmap_blocks(p, 2);
	close_empty(&device, d);
}

TEST(no_registration_is_longer_than_the_devices_longest)
{
	char *p = map_blocks(2, PROT_READ | PROT_WRITE);
	hugepin_domain *d = device_open(&device, (struct hugepin_limits){ .len_max = BLOCK },
					(struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .round_max = BLOCK });

	EXPECT(gets(d, p, 3, 1, 0, 16, HUGEPIN_READ));
	EXPECT(gets(d, p, 15, 2, 15, 17, HUGEPIN_READ));
	unmap_blocks(p, 2);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ what comes and goes */

TEST(a_neighbour_that_is_unmapped_takes_its_block_along)
{
	char *p = map_blocks(2, PROT_READ | PROT_WRITE);
	hugepin_domain *d = open_blocks();
	struct hugepin_pin held;

	EXPECT_EQ(hugepin_pin(d, p + PAGE, PAGE, 0, &held), 0);
	EXPECT(gets(d, p, 20, 1, 16, 32, BOTH));
	munmap(p + 9 * PAGE, PAGE); /* no pin asked for it */
	EXPECT(device_covers(&device, &held, HUGEPIN_READ));
	EXPECT(gets(d, p, 1, 1, 0, 9, HUGEPIN_READ));
	EXPECT(registered(d, p + 20 * PAGE, PAGE));
	EXPECT_EQ(stats_of(d).invalidated, 1);
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT(mmap(p + 9 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	       p + 9 * PAGE);
	EXPECT(!registered(d, p + 9 * PAGE, PAGE)); /* other memory */
	unmap_blocks(p, 2);
	close_empty(&device, d);
}

TEST(memory_that_was_discarded_is_not_rounded_in)
{
	char *p = map_blocks(2, PROT_READ | PROT_WRITE);
	hugepin_domain *d = open_blocks();

	EXPECT(gets(d, p, 1, 1, 0, 16, HUGEPIN_READ));
	EXPECT_EQ(madvise(p + 4 * PAGE, PAGE, MADV_DONTNEED), 0);
	EXPECT(gets(d, p, 1, 1, 1, 2, BOTH));
	EXPECT_EQ(stats_of(d).uncached, 0);
	EXPECT(registered(d, p + PAGE, PAGE));
	EXPECT(gets(d, p, 4, 1, 4, 5, HUGEPIN_READ));
	EXPECT_EQ(stats_of(d).uncached, 1);
	unmap_blocks(p, 2);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ what is never rounded */

TEST(a_key_for_a_peer_opens_no_block)
{
	char *p = map_blocks(1, PROT_READ | PROT_WRITE);
	hugepin_domain *d = open_blocks();

	EXPECT(gets(d, p, 2, 2, 2, 4, HUGEPIN_REMOTE_WRITE));
	EXPECT(gets(d, p, 2, 2, 0, 16, HUGEPIN_WRITE));
	close_empty(&device, d);
	d = open_rounding(BLOCK, (struct hugepin_attr){ .reach = HUGEPIN_REACH_EXTENT });
	EXPECT(gets(d, p, 2, 2, 0, 16, HUGEPIN_REMOTE_WRITE)); /* a peer that may see all of the memory */
	close_empty(&device, d);
	unmap_blocks(p, 1);
}

TEST(what_nobody_watches_is_not_rounded)
{
	static const struct hugepin_attr attr[] = {
		{ .watch = HUGEPIN_WATCH_PROGRAM },
		{ .watch = HUGEPIN_WATCH_NONE },
		{ .policy = HUGEPIN_POLICY_NONE },
	};
	char *p = map_blocks(1, PROT_READ | PROT_WRITE);

	for (size_t i = 0; i < sizeof attr / sizeof *attr; i++) {
		hugepin_domain *d = open_rounding(BLOCK, attr[i]);

		EXPECT(gets(d, p, 2, 2, 2, 4, HUGEPIN_READ));
		close_empty(&device, d);
	}
	unmap_blocks(p, 1);
}

TEST(what_is_registered_on_demand_is_not_rounded)
{
	char *p = map_blocks(17, PROT_READ | PROT_WRITE);
	hugepin_domain *d = device_open(&device, (struct hugepin_limits){ .flags = HUGEPIN_LIMIT_ODP },
					(struct hugepin_attr){ .policy = HUGEPIN_POLICY_ODP, .round_max = BLOCK });

	EXPECT(gets(d, p, 2, 2, 2, 4, HUGEPIN_READ));
	close_empty(&device, d);
	d = device_open(&device, (struct hugepin_limits){ .flags = HUGEPIN_LIMIT_ODP },
			(struct hugepin_attr){ .policy = HUGEPIN_POLICY_HYBRID, .round_max = BLOCK,
					       .pinned_bytes_max = 16 * BLOCK });
	EXPECT_EQ(touch(d, p, 16 * BLOCK), 0);
	EXPECT(gets(d, p, 16 * 16 + 2, 2, 16 * 16 + 2, 16 * 16 + 4, HUGEPIN_READ)); /* for want of room on demand */
	EXPECT_EQ(stats_of(d).pinned_bytes, 16 * BLOCK);
	close_empty(&device, d);
	unmap_blocks(p, 17);
}

TEST(pools_that_the_program_registers_have_their_own_lengths)
{
	char *p = map_blocks(40, PROT_READ | PROT_WRITE);
	struct iovec pieces[2] = { { p + PAGE, 18 * BLOCK }, { p + 20 * BLOCK + PAGE, 18 * BLOCK } };
	hugepin_domain *d = device_open(&device, (struct hugepin_limits){ .flags = HUGEPIN_LIMIT_PARALLEL },
					(struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .round_max = BLOCK });
	struct hugepin_pin pins[2];

	EXPECT_EQ(hugepin_register(d, pieces, 2, 0, pins, 2), 2);
	EXPECT_EQ(device.calls, 2);
	EXPECT_EQ(hugepin_unpinv(d, pins, 2), 0);
	close_empty(&device, d);
	unmap_blocks(p, 40);
}

/* ------------------------------------------------------------------ the budget */

TEST(blocks_take_a_quarter_of_the_budget_at_most_beyond_what_pins_asked_for)
{
	enum { BLOCKS = 40 };
	char *p = map_blocks(BLOCKS, PROT_READ | PROT_WRITE);
	hugepin_domain *d = open_rounding(BLOCK, (struct hugepin_attr){ .pinned_bytes_max = 10 * BLOCK });
	struct hugepin_pin pins[BLOCKS];
	int n;

	/* 2 blocks are rounded; the third would be more than a quarter. */
	for (n = 0; n < BLOCKS; n++) {
		EXPECT_EQ(hugepin_pin(d, p + n * BLOCK, PAGE, 0, &pins[n]), 0);
		EXPECT_EQ(device.reg[pins[n].lkey].len, n < 2 ? BLOCK : PAGE);
	}
	EXPECT_EQ(device.bytes, 2 * BLOCK + 38 * PAGE);
	EXPECT_EQ(hugepin_unpinv(d, pins, BLOCKS), 0);
	EXPECT_EQ(hugepin_domain_trim(d, 0), 0);
	EXPECT(gets(d, p, 0, 1, 0, 16, HUGEPIN_READ)); /* the quarter is free again */
	unmap_blocks(p, BLOCKS);
	close_empty(&device, d);
}

TEST(a_pin_that_fits_the_budget_is_not_refused_for_its_block)
{
	char *p = map_blocks(4, PROT_READ | PROT_WRITE);
	hugepin_domain *d = open_rounding(4 * BLOCK, (struct hugepin_attr){ .pinned_bytes_max = 2 * PAGE });

	EXPECT(gets(d, p, 1, 2, 1, 3, HUGEPIN_READ));
	close_empty(&device, d);
	/* All but two pages is in use: a block has no room, whatever is given back. */
	d = open_rounding(BLOCK, (struct hugepin_attr){ .pinned_bytes_max = 3 * BLOCK });
	{
		struct hugepin_pin held;

		EXPECT_EQ(hugepin_pin(d, p + BLOCK, 3 * BLOCK - 2 * PAGE, 0, &held), 0);
		EXPECT_EQ(device.reg[held.lkey].len, 3 * BLOCK);
		EXPECT_EQ(hugepin_unpin(d, &held), 0);
		EXPECT_EQ(hugepin_domain_trim(d, 0), 0);
		EXPECT_EQ(hugepin_pin(d, p + BLOCK, 2 * BLOCK, 0, &held), 0);
		EXPECT(gets(d, p, 1, 8, 0, 16, HUGEPIN_READ)); /* a block's room */
		EXPECT_EQ(hugepin_unpin(d, &held), 0);
	}
	unmap_blocks(p, 4);
	close_empty(&device, d);
}

TEST(nothing_is_evicted_for_a_block_alone)
{
	char *p = map_blocks(19, PROT_READ | PROT_WRITE);
	hugepin_domain *d = open_rounding(BLOCK, (struct hugepin_attr){ .pinned_bytes_max = 16 * BLOCK });

	EXPECT_EQ(touch(d, p, BLOCK), 0);
	EXPECT_EQ(touch(d, p + BLOCK, 14 * BLOCK), 0);
	EXPECT(gets(d, p, 15 * 16 + 12, 8, 15 * 16 + 12, 15 * 16 + 20, BOTH)); /* two blocks would have no room */
	EXPECT_EQ(stats_of(d).evicted, 0);
	EXPECT(gets(d, p, 17 * 16 + 4, 24, 17 * 16, 19 * 16, BOTH)); /* has to evict, so its blocks may as well */
	EXPECT_EQ(stats_of(d).evicted, 2);
	EXPECT(device.bytes <= 16 * BLOCK);
	unmap_blocks(p, 19);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ any order */

enum { MODEL_PAGES = 256 };

/* A naive model of the mappings: the rights of each page; 0: unmapped. */
static int model[MODEL_PAGES];

/* A pin of [from, to) has registered no page outside of its blocks, and beside its own only pages of the same rights.
 * It may be fewer, because the kernel joins neighbours only if both are watched. Returns whether it was rounded. */
static bool expect_rounded(const struct hugepin_pin *pin, const char *p, int from, int to)
{
	const __typeof__(device.reg[0]) *r = &device.reg[pin->lkey];
	int start = (int)((r->addr - (uintptr_t)p) / PAGE), end = start + (int)(r->len / PAGE);

	EXPECT(start >= from / 16 * 16 && end <= (to + 15) / 16 * 16);
	for (int i = start; i < end; i++)
		EXPECT(i < from ? model[i] == model[from] : i >= to ? model[i] == model[to - 1] : true);
	return start < from || end > to;
}

static void random_steps(uint64_t budget, unsigned seed)
{
	char *p = map_blocks(MODEL_PAGES / 16, PROT_READ | PROT_WRITE);
	hugepin_domain *d = open_rounding(BLOCK, (struct hugepin_attr){ .pinned_bytes_max = budget });
	int rounded = 0;

	srandom(seed);
	for (int i = 0; i < MODEL_PAGES; i++)
		model[i] = 1;
	for (int step = 0; step < 4000 && t_failures < 5; step++) {
		int from = (int)(random() % MODEL_PAGES), to = from + 1 + (int)(random() % 40), what = (int)(random() % 100);
		struct hugepin_pin pin;
		bool whole = true;
		long before;

		to = HP_MIN(to, MODEL_PAGES);
		if (what < 5) {
			to = HP_MIN(to, from + 3);
			for (int i = from; i < to; i++)
				model[i] = 0;
			munmap(p + from * PAGE, (size_t)(to - from) * PAGE);
			continue;
		} else if (what < 12) { /* the rights tell mappings apart */
			for (int i = from; i < to; i++)
				model[i] = 1 + what % 2;
			EXPECT(mmap(p + from * PAGE, (size_t)(to - from) * PAGE,
				    what % 2 ? PROT_READ | PROT_WRITE | PROT_EXEC : PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + from * PAGE);
			continue;
		}
		for (int i = from; i < to; i++)
			whole = whole && model[i];
		if (!whole) /* the device does not look at mappings */
			continue;
		before = device.calls;
		EXPECT_EQ(hugepin_pin(d, p + from * PAGE, (size_t)(to - from) * PAGE, 0, &pin), 0);
		EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
		if (device.calls != before)
			rounded += expect_rounded(&pin, p, from, to);
		hp_domain_lock(d); /* the service thread may be deregistering what has gone */
		EXPECT(!budget || device.bytes <= budget);
		EXPECT_EQ(stats_of(d).pinned_bytes, device.bytes);
		hp_domain_unlock(d);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(stats_of(d).uncached, 0);
	EXPECT(rounded > 50);
	EXPECT_EQ(hugepin_domain_trim(d, 0), 0);
	EXPECT_EQ(d->rounded_bytes, 0);
	unmap_blocks(p, MODEL_PAGES / 16);
	close_empty(&device, d);
}

TEST(blocks_agree_with_a_model_of_the_mappings)
{
	for (unsigned seed = 1; seed <= 3; seed++)
		random_steps(0, seed);
	for (unsigned seed = 4; seed <= 6; seed++)
		random_steps(8 * BLOCK, seed);
}

T_MAIN
