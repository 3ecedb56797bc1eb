/*
 * The heap's memory: extents and hugepages are registered as wholes, also ahead of the first pin, and the heap gives
 * nothing back that is pinned.
 */
#include "base/stats.h"
#include "reg/domain.h"
#include "reg/domains.h"
#include "tests/unit/pin.h"

static struct hugepin_extent extent_of(const void *p)
{
	struct hugepin_extent x = { .len = 0 };

	EXPECT(hugepin_extent(p, &x, sizeof x) > 0);
	return x;
}

TEST(arena_registers_the_extent_as_a_whole)
{
	hugepin_domain *d;
	char *p = hugepin_malloc(3 * MIB), *q = hugepin_malloc(100 * KIB);
	struct hugepin_extent x = extent_of(p);
	struct hugepin_pin pin;

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	EXPECT_EQ(hugepin_pin(d, p + 7, 100, 0, &pin), 0);
	EXPECT(device.reg[pin.lkey].addr == (uintptr_t)x.addr && device.reg[pin.lkey].len == x.len);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(registered(d, p, 3 * MIB));
	if (extent_of(q).addr == x.addr)
		EXPECT(registered(d, q, 100 * KIB));
	EXPECT_EQ(stats_of(d).extents, 1);
	EXPECT_EQ(touch(d, x.addr, x.len + 1), 0); /* no buffer goes beyond its extent: that is nothing to keep */
	EXPECT_EQ(stats_of(d).uncached, 1);
	close_empty(&device, d);
	hugepin_free(p);
	hugepin_free(q);
	hugepin_purge();
}

/* A page that the device cannot have, such as a guard page. */
static uintptr_t guard;

static int refuse_guard(void *addr, size_t len)
{
	return guard >= (uintptr_t)addr && guard < (uintptr_t)addr + len ? -EFAULT : 0;
}

/* The number of registrations that so many pins beside the guard page try. */
static long tries(hugepin_domain *d, const char *p, int pins)
{
	long before = device.calls;

	for (int i = 0; i < pins; i++)
		EXPECT_EQ(touch(d, p, 32 * KIB), 0);
	return device.calls - before;
}

TEST(what_the_device_refused_is_not_tried_again_for_each_pin)
{
	static const uint32_t policy[] = { HUGEPIN_POLICY_ARENA, HUGEPIN_POLICY_LRU };
	char *p = hugepin_aligned_alloc(2 * MIB, 6 * MIB);

	for (unsigned i = 0; i < 2; i++) {
		hugepin_domain *d = open_first(policy[i], 0, 0);

		guard = (uintptr_t)p;
		device.refuse = refuse_guard;
		EXPECT(tries(d, p + MIB, 1000) <= 1000 + 2 * 11); /* for each pin its own pages */
		guard = 0;
		tries(d, p + MIB, 1024);
		EXPECT(registered(d, p + MIB, 32 * KIB)); /* it is tried again */
		close_empty(&device, d);
	}
	hugepin_free(p);
	hugepin_purge();
}

TEST(what_the_device_refused_of_a_buffer_says_nothing_of_the_next_extent_there)
{
	hugepin_domain *d = open_first(HUGEPIN_POLICY_LRU, 0, 0);
	char *p = hugepin_aligned_alloc(2 * MIB, 600 * MIB), *again;

	guard = (uintptr_t)p;
	device.refuse = refuse_guard;
	tries(d, p + MIB, 300);
	hugepin_free(p);
	hugepin_purge();
	again = hugepin_aligned_alloc(2 * MIB, 600 * MIB);
	EXPECT(again == p);
	guard = 0;
	EXPECT_EQ(tries(d, again + MIB, 300), 1);
	close_empty(&device, d);
	hugepin_free(again);
	hugepin_purge();
}

TEST(an_extent_over_the_budget_is_registered_by_hugepages)
{
	hugepin_domain *d;
	char *p = hugepin_aligned_alloc(2 * MIB, 16 * MIB);

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 6 * MIB, 0);
	for (size_t at = 0; at < 16 * MIB; at += MIB / 2) {
		EXPECT_EQ(touch(d, p + at, 5000), 0);
		EXPECT(device.bytes <= 6 * MIB);
	}
	EXPECT_EQ(stats_of(d).extents, 0);
	EXPECT_EQ(device.calls, 8); /* one for each hugepage */
	/* What lies over more than fits is pinned page by page, as far as that fits. */
	EXPECT_EQ(touch(d, p + 2 * MIB - 4096, 5 * MIB), 0);
	EXPECT_EQ(stats_of(d).uncached, 1);
	close_empty(&device, d);
	hugepin_free(p);
	hugepin_purge();
}

TEST(under_lru_buffers_share_the_hugepages_that_they_share)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin held;
	char *p = hugepin_aligned_alloc(2 * MIB, 8 * MIB);

	EXPECT_EQ(hugepin_pin(d, p + 100, 1000, 0, &held), 0);
	EXPECT_EQ(device.bytes, 2 * MIB);
	EXPECT(registered(d, p + MIB, MIB));
	EXPECT(!registered(d, p + MIB, 2 * MIB)); /* two of them: the first lies inside, and is still in use */
	EXPECT_EQ(device.regs, 2);
	EXPECT(device_covers(&device, &held, HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT_EQ(device.bytes, 4 * MIB);
	EXPECT(registered(d, p, 4 * MIB));
	/* a hugepage of it, and another: what was asked for and no more */
	EXPECT(!registered(d, p + 3 * MIB, 2 * MIB));
	EXPECT_EQ(device.bytes, 8 * MIB);
	for (int i = 0; i < 2; i++) /* from a hugepage that both cover */
		EXPECT(registered(d, p + 3 * MIB, 2 * MIB) && registered(d, p + MIB, 2 * MIB) &&
		       registered(d, p + 3 * MIB, 9));
	close_empty(&device, d);
	hugepin_free(p);
	hugepin_purge();
}

TEST(the_heap_gives_nothing_back_that_is_pinned)
{
	struct hugepin_pin pin;
	hugepin_domain *d;
	uint64_t before;
	char *p;

	hugepin_purge();
	before = HP_STAT_GET(base_bytes);
	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	p = hugepin_malloc(8 * MIB);
	EXPECT_EQ(hugepin_pin(d, p, 8 * MIB, 0, &pin), 0);
	hugepin_free(p);
	hugepin_purge();
	EXPECT(HP_STAT_GET(base_bytes) >= before + 8 * MIB);
	EXPECT(device_covers(&device, &pin, HUGEPIN_WRITE));
	memset(p, 1, 8 * MIB); /* still there */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hugepin_purge();
	EXPECT_EQ(HP_STAT_GET(base_bytes), before);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(stats_of(d).decayed, 1);
	close_empty(&device, d);
}

/* Wait until the service thread is done with the extent of p, and will not register the extent later on. */
static void wait_for_service(hugepin_domain *d, const void *p)
{
	uint64_t gen = extent_of(p).gen;

	hp_domains_start();
	for (int i = 0; i < 50000 && __atomic_load_n(&d->extent_gen, __ATOMIC_RELAXED) < gen; i++)
		usleep(1000);
}

/* ahead: the service thread has registered the extent before the pin; else the pin registers the extent. wraps: there
 * are 2^32 further pins after the hit. */
static void pin_little_and_free(bool ahead, bool hit, bool wraps)
{
	struct hugepin_pin pin, found;
	hugepin_domain *d;
	uint64_t before;
	char *p;

	hugepin_purge();
	before = HP_STAT_GET(base_bytes);
	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	p = hugepin_aligned_alloc(2 * MIB, 100 * MIB); /* an extent of its own */
	if (ahead)
		wait_for_service(d, p);
	EXPECT_EQ(hugepin_pin(d, p + 50 * MIB + 5, 4096, 0, &pin), 0);
	wait_for_service(d, p);
	EXPECT_EQ(device.calls, 1);
	if (hit) { /* of which nobody knows where it was */
		EXPECT_EQ(hugepin_pin(d, p + 70 * MIB, 4096, 0, &found), 0);
		EXPECT_EQ(hugepin_unpin(d, &found), 0);
	}
	if (wraps) {
		hugepin_purge();
		pins_more(&pin, UINT32_MAX);
	}
	p[50 * MIB + 5] = 1;
	hugepin_free(p);
	hugepin_purge();
	EXPECT_EQ(HP_STAT_GET(base_bytes), before + (hit ? 100 : 2) * MIB);
	EXPECT(device_covers(&device, &pin, HUGEPIN_WRITE));
	EXPECT_EQ(p[50 * MIB + 5], 1); /* still there */
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hugepin_purge();
	EXPECT_EQ(HP_STAT_GET(base_bytes), before);
	EXPECT_EQ(device.regs, 0);
	close_empty(&device, d);
}

TEST(a_small_pin_keeps_of_a_freed_extent_the_hugepages_that_it_covers)
{
	pin_little_and_free(false, false, false);
	pin_little_and_free(true, false, false);
	pin_little_and_free(false, true, false);
	pin_little_and_free(false, true, true);
}

TEST(new_extents_are_registered_ahead_of_the_first_pin)
{
	hugepin_domain *d;
	char *p, *q = hugepin_malloc(MIB);

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	p = hugepin_malloc(100 * MIB); /* an extent of its own */
	for (int i = 0; i < 20000 && !stats_of(d).ahead; i++)
		usleep(1000);
	EXPECT(stats_of(d).ahead >= 1);
	EXPECT(registered(d, p, 100 * MIB));
	EXPECT(!registered(d, q, MIB)); /* what was there before waits for its first pin */
	hugepin_free(p);
	hugepin_free(q);
	close_empty(&device, d);
	hugepin_purge();
}

T_MAIN
