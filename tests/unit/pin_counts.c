/*
 * What a domain counts of pins: hits, which no hit counts, and the reasons for which pins are not cached.
 */
#include <stdlib.h>

#include "hugepin_key.h"
#include "base/base.h"
#include "reg/domain.h"
#include "reg/key.h"
#include "tests/unit/pin.h"

enum { PAGE = 4096 };

static uint64_t hits(hugepin_domain *d)
{
	return stats_of(d).hits;
}

PIN_TEST(a_pin_that_finds_its_memory_registered_is_a_hit, open_lru(), MIB)
{
	struct hugepin_pin pin, pins[4];
	struct iovec v[3] = { { p, PAGE }, { p, 9 }, { p + 8 * PAGE, PAGE } };
	struct hugepin_key key;

	T_DOMAIN_BEGINS();
	EXPECT_EQ(touch(d, p, PAGE), 0);
	EXPECT_EQ(hits(d), 0);
	EXPECT_EQ(touch(d, p, PAGE), 0);
	EXPECT_EQ(hits(d), 1);
	EXPECT_EQ(hugepin_pinv(d, v, 3, 0, pins, 4), 3); /* two hits, and a miss */
	EXPECT_EQ(hits(d), 3);
	EXPECT_EQ(hugepin_unpinv(d, pins, 3), 0);
	EXPECT_EQ(hits(d), 3);
	EXPECT_EQ(hugepin_pin_try(d, p, PAGE, 0, NULL, NULL, &pin), 0);
	EXPECT_EQ(hugepin_key_take(d, &pin, HUGEPIN_KEY_LAYOUT, &key), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_key_pin(&key), 0);
	EXPECT_EQ(hugepin_key_unpin(&key), 0);
	EXPECT_EQ(hugepin_sg_key(d, p, 1, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hits(d), 6);
	EXPECT_EQ(hugepin_sg_key(d, p + 100 * PAGE, 1, 0, &pin), -ENOKEY);
	device.nth = 1;
	device.with = -EIO;
	device.for_good = true;
	EXPECT_EQ(hugepin_pin(d, p + 50 * PAGE, PAGE, 0, &pin), -EIO);
	device.nth = 0;
	EXPECT_EQ(hits(d), 6);
	EXPECT_EQ(hugepin_domain_trim(d, 0), 0); /* what has ended takes no hits along */
	EXPECT_EQ(hits(d), 6);
	EXPECT_EQ(hugepin_key_pin(&key), -ENOKEY); /* counted, and undone */
	EXPECT_EQ(hits(d), 6);
	EXPECT_EQ(stats_of(d).misses, 3);
}

PIN_TEST(pins_that_are_not_cached_are_no_hits, open_lru(), MIB)
{
	struct hugepin_pin pin;

	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(hugepin_pin(d, p, PAGE, HUGEPIN_PIN_UNCACHED, &pin), 0);
		EXPECT_EQ(hits(d), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(hits(d), 0);
	}
}

struct shared {
	hugepin_domain *d;
	char *p;
};

static void *pin_on(void *shared)
{
	const struct shared *s = shared;

	for (int i = 0; i < 100; i++)
		EXPECT_EQ(touch(s->d, s->p, PAGE), 0);
	return NULL;
}

PIN_TEST(hits_of_threads_that_have_ended_are_counted, open_lru(), MIB)
{
	struct shared s = { d, p };
	pthread_t thread[3];

	T_THREADS_RUN(3);
	EXPECT_EQ(touch(d, p, PAGE), 0);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(pthread_create(&thread[i], NULL, pin_on, &s), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	EXPECT_EQ(hits(d), 300);
}

/* The index of a region is used again, by this domain or another. */
TEST(each_domain_has_its_own_hits)
{
	enum { DOMAINS = 3, STEPS = 2000, PAGES = 40 };
	struct device devices[DOMAINS];
	hugepin_domain *d[DOMAINS];
	uint64_t want[DOMAINS] = { 0 };
	char *p = map((size_t)PAGES * 2 * PAGE);

	srandom(1);
	for (int i = 0; i < DOMAINS; i++)
		d[i] = device_open(&devices[i], (struct hugepin_limits){ 0 },
				   (struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .pinned_bytes_max = 9 * PAGE });
	for (int step = 0; step < STEPS && t_failures < 5; step++) {
		int i = (int)(random() % DOMAINS);
		long calls = devices[i].calls;
		struct hugepin_pin pin;

		EXPECT_EQ(hugepin_pin(d[i], p + random() % PAGES * 2 * PAGE, PAGE, 0, &pin), 0);
		want[i] += devices[i].calls == calls;
		if (step % 7 == 0)
			EXPECT_EQ(hits(d[i]), want[i]);
		EXPECT_EQ(hugepin_unpin(d[i], &pin), 0);
	}
	for (int i = 0; i < DOMAINS; i++) {
		EXPECT_EQ(hits(d[i]), want[i]);
		EXPECT(want[i] > 50);
		close_empty(&devices[i], d[i]);
	}
	munmap(p, (size_t)PAGES * 2 * PAGE);
}

/* ------------------------------------------------------------------ what is not cached */

/* A pin is uncached for one reason, which is counted. */
#define EXPECT_ONCE(d, p, access, reason)                                                                              \
	do {                                                                                                           \
		struct hugepin_domain_stats before_ = stats_of(d), after_;                                             \
		struct hugepin_pin pin_;                                                                               \
                                                                                                                       \
		if (EXPECT_EQ(hugepin_pin(d, p, PAGE, access, &pin_), 0))                                              \
			EXPECT_EQ(hugepin_unpin(d, &pin_), 0);                                                         \
		after_ = stats_of(d);                                                                                  \
		EXPECT_EQ(after_.uncached, before_.uncached + 1);                                                      \
		EXPECT_EQ(after_.uncached_##reason, before_.uncached_##reason + 1);                                    \
		EXPECT_EQ(reasons(&after_), after_.uncached);                                                          \
	} while (0)

static uint64_t reasons(const struct hugepin_domain_stats *s)
{
	return s->uncached_policy + s->uncached_asked + s->uncached_changing + s->uncached_shared +
	       s->uncached_unwatched + s->uncached_discarded + s->uncached_budget + s->uncached_other;
}

static int refuse_hugepages(void *addr, size_t len)
{
	(void)addr;
	return len > 16 * PAGE ? -EINVAL : 0;
}

TEST(a_pin_that_is_not_cached_is_counted_by_its_reason)
{
	char *p = map(MIB), *h = hugepin_malloc(MIB);
	char *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	hugepin_domain *d = open_lru();

	EXPECT_ONCE(d, p, HUGEPIN_PIN_UNCACHED, asked);
	EXPECT_ONCE(d, shared, 0, shared);
	EXPECT_EQ(touch(d, p + 4 * PAGE, PAGE), 0);
	EXPECT_EQ(madvise(p + 4 * PAGE, PAGE, MADV_DONTNEED), 0);
	EXPECT_ONCE(d, p + 4 * PAGE, 0, discarded);
	device.refuse = refuse_hugepages;
	EXPECT_ONCE(d, h, 0, other);
	close_empty(&device, d);
	d = open_first(HUGEPIN_POLICY_NONE, 0, 0);
	EXPECT_ONCE(d, p, 0, policy);
	EXPECT_ONCE(d, h, HUGEPIN_PIN_UNCACHED, policy);
	close_empty(&device, d);
	d = open_first(HUGEPIN_POLICY_LRU, MIB, 0);
	EXPECT_ONCE(d, h, 0, budget);
	close_empty(&device, d);
	device_reset(&device);
	d = open_with((struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_NONE });
	EXPECT_ONCE(d, p, 0, unwatched);
	close_empty(&device, d);
	munmap(p, MIB);
	munmap(shared, MIB);
	hugepin_free(h);
	hugepin_purge();
}

T_MAIN
