/*
 * Ranges that overlap: a larger region replaces the regions inside it, more access replaces less, and a range longer
 * than any registration is cut. What is found is compared with a naive list.
 */
#include <stdlib.h>

#include "base/base.h"
#include "tests/unit/pin.h"

PIN_TEST(a_region_takes_the_place_of_those_inside_it, open_lru(), MIB)
{
	struct hugepin_pin held;

	EXPECT_EQ(touch(d, p, 3 * 4096), 0);
	EXPECT_EQ(touch(d, p + 4 * 4096, 3 * 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &held), 0);
	EXPECT_EQ(touch(d, p, 7 * 4096), 0); /* both, of which one is in use */
	EXPECT_EQ(device.regs, 2);
	EXPECT(device_covers(&device, &held, HUGEPIN_WRITE));
	EXPECT_EQ(stats_of(d).merged, 1);
	EXPECT_EQ(stats_of(d).retired, 1);
	EXPECT(registered(d, p + 4096, 6 * 4096));
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(stats_of(d).retired, 0);
}

PIN_TEST(regions_that_overlap_are_left_as_they_are, open_lru(), MIB)
{
	EXPECT_EQ(touch(d, p, 3 * 4096), 0);
	EXPECT_EQ(touch(d, p + 4 * 4096, 3 * 4096), 0);
	EXPECT_EQ(touch(d, p + 2 * 4096, 3 * 4096), 0);
	EXPECT_EQ(device.regs, 3);
	EXPECT_EQ(device.bytes, 9 * 4096);
	EXPECT_EQ(stats_of(d).merged, 0);
	for (int i = 0; i < 5; i++)
		EXPECT(registered(d, p + i * 4096, i < 4 ? 8192 : 3 * 4096));
	EXPECT_EQ(hugepin_forget(p + 2 * 4096, 1), 0); /* of two */
	EXPECT(registered(d, p + 4 * 4096, 3 * 4096));
	EXPECT(!registered(d, p, 4096)); /* which sees to what is gone */
	EXPECT_EQ(device.regs, 2);
}

/* Pieces of a buffer that does not begin with a page share pages with their neighbours. */
DOMAIN_TEST(pieces_that_share_pages_are_registered_once, open_lru())
{
	enum { PIECE = 64 << 10, COUNT = 256 };
	char *p = map((size_t)COUNT * PIECE + 4096);

	for (size_t i = 0; i < COUNT; i++)
		EXPECT_EQ(touch(d, p + 64 + (i * 7 % COUNT) * PIECE, PIECE), 0);
	EXPECT_EQ(stats_of(d).misses, COUNT);
	EXPECT_EQ(stats_of(d).registered_bytes, COUNT * (PIECE + 4096));
	for (size_t i = 0; i < COUNT; i++)
		EXPECT(registered(d, p + 64 + i * PIECE, PIECE));
	munmap(p, (size_t)COUNT * PIECE + 4096);
}

/* The naive model of a domain without a budget: a list of the ranges that a pin can find. */
struct found {
	uintptr_t start, end;
	unsigned access;
};
enum { FOUND_MAX = 4000 };
static struct found list[FOUND_MAX];

static bool in_list(int n, uintptr_t addr, size_t len, unsigned access)
{
	for (int i = 0; i < n; i++)
		if (addr >= list[i].start && addr + len <= list[i].end && !(access & ~list[i].access))
			return true;
	return false;
}

/* Ranges inside the new one leave the list, and add their access to the new one. Returns the length of the list. */
static int to_list(int n, struct found new)
{
	int kept = 0;

	for (int i = 0; i < n; i++)
		if (list[i].start >= new.start && list[i].end <= new.end)
			new.access |= list[i].access;
		else
			list[kept++] = list[i];
	list[kept++] = new;
	return kept;
}

static int forgotten_of_list(int n, uintptr_t start, uintptr_t end)
{
	int kept = 0;

	for (int i = 0; i < n; i++)
		if (list[i].start >= end || list[i].end <= start)
			list[kept++] = list[i];
	return kept;
}

/* Pin ranges of a buffer in any order. The library rounds registrations to `page`. */
static void overlap_at_random(char *p, size_t size, size_t page, bool many_kinds, unsigned seed)
{
	uint64_t asked = 0, rounded = 0, misses = 0, pins = 0;
	hugepin_domain *d = open_to_peers();
	int n = 0;

	srandom(seed);
	for (int step = 0; step < 3000 && t_failures < 5; step++) {
		size_t at = (size_t)random() % (size - page);
		size_t len = page + (size_t)random() % HP_MIN(20 * page, size - page - at);
		unsigned access = many_kinds ? (unsigned)random() % 15 + 1 : HUGEPIN_READ;
		uintptr_t addr = (uintptr_t)p + at, start = addr & ~(page - 1);
		uintptr_t end = (addr + len + page - 1) & ~(page - 1);
		struct hugepin_pin pin;
		bool miss;

		len = HP_MIN(len, size - at);
		end = (addr + len + page - 1) & ~(page - 1);
		if (random() % 100 == 0 && page == 4096) {
			EXPECT_EQ(hugepin_forget((char *)addr, len), 0);
			n = forgotten_of_list(n, start, end);
			continue;
		}
		miss = !in_list(n, addr, len, access);
		if (miss) {
			n = to_list(n, (struct found){ start, end, access });
			misses++;
			asked += len;
			rounded += end - start;
		}
		EXPECT_EQ(hugepin_pin(d, (char *)addr, len, access, &pin), 0);
		EXPECT(device_covers(&device, &pin, access));
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(stats_of(d).misses, misses);
		EXPECT_EQ(stats_of(d).hits, ++pins - misses);
		EXPECT_EQ(stats_of(d).uncached, 0);
		EXPECT_EQ(stats_of(d).registered_bytes, rounded);
		EXPECT(rounded <= 2 * asked);
		EXPECT(!miss || device.regs == (unsigned)n);
	}
	close_empty(&device, d);
}

TEST(what_is_registered_is_at_most_twice_what_misses_asked_for)
{
	char *p = map(4 * MIB), *h = hugepin_aligned_alloc(2 * MIB, 128 * MIB);

	for (unsigned seed = 1; seed <= 4; seed++) {
		overlap_at_random(p, 4 * MIB, 4096, seed & 1, seed);
		overlap_at_random(h, 128 * MIB, 2 * MIB, seed & 1, seed);
	}
	munmap(p, 4 * MIB);
	hugepin_free(h);
	hugepin_purge();
}

PIN_TEST(more_access_takes_the_place_of_less, open_to_peers(), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_REMOTE_WRITE, &pin), 0);
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_REMOTE_WRITE));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(stats_of(d).widened, 1);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(device.calls, 2);
}

TEST(a_range_longer_than_any_registration_is_pinned_in_pieces)
{
	struct hugepin_pin pin, v[8];
	hugepin_domain *d;
	size_t covered = 0;
	char *p = map(MIB), *h = hugepin_malloc(9 * MIB);
	int n;

	device_reset(&device);
	device.limits.len_max = 4 * MIB + 12288;
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	EXPECT_EQ(hugepin_pin(d, h + 5, 9 * MIB - 5, 0, &pin), 0);
	EXPECT(pin.len < 9 * MIB - 5 && pin.len > 0);
	EXPECT(device_covers(&device, &pin, HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	n = hugepin_pinv(d, &(struct iovec){ h + 5, 9 * MIB - 5 }, 1, 0, v, 8);
	EXPECT(n >= 3);
	for (int i = 0; i < n; i++) {
		EXPECT(device_covers(&device, &v[i], HUGEPIN_WRITE));
		EXPECT_EQ(v[i].base, (uintptr_t)h + 5 + covered);
		covered += v[i].len;
	}
	EXPECT_EQ(covered, 9 * MIB - 5);
	EXPECT_EQ(hugepin_unpinv(d, v, n), 0);
	EXPECT_EQ(hugepin_pinv(d, &(struct iovec){ h + 5, 9 * MIB - 5 }, 1, 0, v, 2), -EMSGSIZE);
	EXPECT(stats_of(d).cut >= 2);
	munmap(p, MIB);
	hugepin_free(h);
	close_empty(&device, d);
}

T_MAIN
