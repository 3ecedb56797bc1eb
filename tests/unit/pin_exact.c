/*
 * Pins for peers: what their keys open, and the news of the end of a key.
 */
#include <stdlib.h>

#include "base/base.h"
#include "reg/domain.h"
#include "reg/domains.h"
#include "reg/serve.h"
#include "tests/unit/pin.h"

enum { PEER = HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE, PAGE = 4096 };

static hugepin_domain *open_exact(uint32_t policy)
{
	device_reset(&device);
	return open_as(policy, 0, 0);
}

/* Whether the device registered just these pages, for just this access. */
static bool opens(const struct hugepin_pin *pin, const char *from, size_t len, unsigned access)
{
	return device_covers(&device, pin, access) && device.reg[pin->lkey].addr == (uintptr_t)from &&
	       device.reg[pin->lkey].len == len && device.reg[pin->lkey].access == access;
}

/* Pin for a peer and give back. Returns whether that was a hit. */
static bool found(hugepin_domain *d, const void *p, size_t len, unsigned access)
{
	struct hugepin_pin pin;
	long before = device.calls;

	EXPECT_EQ(hugepin_pin(d, p, len, access, &pin), 0);
	EXPECT(device_covers(&device, &pin, access));
	EXPECT(pin.base == (uintptr_t)p && pin.len == len);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	return device.calls == before;
}

static void expect_exact(hugepin_domain *d, char *p)
{
	struct hugepin_pin pin, part;

	EXPECT_EQ(hugepin_pin(d, p + PAGE + 7, PAGE, PEER, &pin), 0);
	EXPECT(opens(&pin, p + PAGE, 2 * PAGE, PEER));
	EXPECT_EQ(pin.base, (uintptr_t)p + PAGE + 7);
	/* A part of the range, and the range for less access: the key of the whole would open more. */
	EXPECT_EQ(hugepin_pin(d, p + PAGE + 7, 100, PEER, &part), 0);
	EXPECT(opens(&part, p + PAGE, PAGE, PEER));
	EXPECT_EQ(hugepin_unpin(d, &part), 0);
	EXPECT_EQ(hugepin_pin(d, p + PAGE + 7, PAGE, HUGEPIN_REMOTE_READ, &part), 0);
	EXPECT(opens(&part, p + PAGE, 2 * PAGE, HUGEPIN_REMOTE_READ));
	EXPECT_EQ(hugepin_unpin(d, &part), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_pin(d, p + PAGE + 7, PAGE, HUGEPIN_REMOTE_WRITE, &part), 0);
	EXPECT(opens(&part, p + PAGE, 2 * PAGE, HUGEPIN_REMOTE_WRITE));
	EXPECT_EQ(hugepin_unpin(d, &part), 0);
	EXPECT(found(d, p + PAGE + 7, PAGE, HUGEPIN_REMOTE_READ));
	EXPECT(found(d, p + PAGE + 7, PAGE, PEER));
	EXPECT(found(d, p + PAGE, 2 * PAGE, PEER)); /* the same pages */
	EXPECT(found(d, p + PAGE + 50, 60, PEER));
}

TEST(a_pin_for_a_peer_opens_its_pages_and_nothing_else)
{
	static const uint32_t policies[] = { HUGEPIN_POLICY_ARENA, HUGEPIN_POLICY_LRU };
	char *p = map(MIB), *h = hugepin_malloc(3 * MIB);

	for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
		hugepin_domain *d = open_exact(policies[i]);

		expect_exact(d, p);
		expect_exact(d, h);
		close_empty(&device, d);
	}
	munmap(p, MIB);
	hugepin_free(h);
	hugepin_purge();
}

PIN_TEST(pins_for_peers_and_other_pins_do_not_share_registrations, open_exact(HUGEPIN_POLICY_LRU), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(touch(d, p, 16 * PAGE), 0);
	EXPECT(!found(d, p + PAGE, PAGE, PEER));
	EXPECT(!found(d, p + 4 * PAGE, 4 * PAGE, PEER));
	EXPECT(!found(d, p + 2 * PAGE, 20 * PAGE, PEER)); /* around one of them, and over the end of the first */
	EXPECT(registered(d, p, 16 * PAGE));
	EXPECT_EQ(device.regs, 4);
	EXPECT_EQ(stats_of(d).merged, 0);
	EXPECT(!registered(d, p, 40 * PAGE)); /* takes the place of the first, and of no peer's */
	EXPECT_EQ(device.regs, 4);
	EXPECT(found(d, p + PAGE, PAGE, PEER));
	EXPECT(found(d, p + 4 * PAGE, 4 * PAGE, PEER));
	EXPECT(found(d, p + 2 * PAGE, 20 * PAGE, PEER));
	EXPECT_EQ(hugepin_sg_key(d, p + PAGE, PAGE, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(pin.len, 40 * PAGE); /* the lookup finds what may be used for any piece */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_sg_key(d, p + PAGE, PAGE, PEER, &pin), -ENOKEY);
}

TEST(what_is_registered_ahead_is_not_open_to_peers)
{
	hugepin_domain *d;
	struct hugepin_pin pin;
	char *h;

	device_reset(&device);
	d = open_with((struct hugepin_attr){ .policy = HUGEPIN_POLICY_ARENA, .access = HUGEPIN_READ | PEER });
	h = hugepin_malloc(3 * MIB);
	hp_domains_start();
	for (int i = 0; i < 20000 && !stats_of(d).ahead; i++)
		usleep(1000);
	EXPECT_EQ(stats_of(d).ahead, 1);
	EXPECT_EQ(hugepin_pin(d, h, 3 * MIB, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(device.calls, 1);
	EXPECT_EQ(device.reg[pin.lkey].access, HUGEPIN_READ | HUGEPIN_WRITE);
	EXPECT_EQ(device.reg[pin.lkey].len % (2 * MIB), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_pin(d, h, 100, 0, &pin), 0); /* the domain's default is for peers */
	EXPECT(opens(&pin, h, PAGE, HUGEPIN_READ | PEER));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(found(d, h, 100, 0));
	close_empty(&device, d);
	hugepin_free(h);
	hugepin_purge();
}

TEST(a_hit_for_a_peer_takes_no_lock)
{
	hugepin_domain *d = open_exact(HUGEPIN_POLICY_ARENA);
	char *p = map(MIB), *h = hugepin_malloc(3 * MIB);

	found(d, p, 100, PEER);
	found(d, h, MIB, PEER);
	hp_domain_lock(d);
	EXPECT(found(d, p, 100, PEER));
	EXPECT(found(d, h, MIB, PEER));
	hp_domain_unlock(d);
	munmap(p, MIB);
	hugepin_free(h);
	close_empty(&device, d);
	hugepin_purge();
}

TEST(several_pins_for_peers_open_their_pages_each)
{
	hugepin_domain *d = open_exact(HUGEPIN_POLICY_LRU);
	struct hugepin_pin pins[2];
	char *p = map(MIB), *h = hugepin_malloc(3 * MIB);
	struct iovec v[2] = { { p + 100, PAGE }, { h + PAGE, 5 } };

	for (int round = 0; round < 2; round++) {
		EXPECT_EQ(hugepin_pinv(d, v, 2, PEER, pins, 2), 2);
		EXPECT(opens(&pins[0], p, 2 * PAGE, PEER));
		EXPECT(opens(&pins[1], h + PAGE, PAGE, PEER));
		EXPECT_EQ(hugepin_unpinv(d, pins, 2), 0);
		EXPECT_EQ(device.calls, 2);
	}
	munmap(p, MIB);
	hugepin_free(h);
	close_empty(&device, d);
	hugepin_purge();
}

PIN_TEST(a_hint_for_a_peer_registers_what_the_pin_will_find, open_exact(HUGEPIN_POLICY_LRU), MIB)
{
	EXPECT_EQ(hugepin_prefetch(d, p + 100, PAGE, PEER), 0);
	for (int i = 0; i < 20000 && !stats_of(d).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(stats_of(d).prefetched, 1);
	EXPECT(found(d, p + 100, PAGE, PEER));
}

TEST(the_longest_registration_cuts_a_pin_for_a_peer)
{
	hugepin_domain *d;
	struct hugepin_pin pin;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.len_max = 3 * PAGE;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	for (int round = 0; round < 2; round++) {
		EXPECT_EQ(hugepin_pin(d, p + 10, 5 * PAGE, PEER, &pin), 0);
		EXPECT(opens(&pin, p, 3 * PAGE, PEER));
		EXPECT_EQ(pin.len, 3 * PAGE - 10);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(device.calls, 1);
	}
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(registrations_for_peers_keep_the_budget)
{
	struct hugepin_pin held;
	char *p = map(MIB), *h = hugepin_malloc(3 * MIB);
	hugepin_domain *d = open_first(HUGEPIN_POLICY_ARENA, 16 * PAGE, 0);

	EXPECT_EQ(hugepin_pin(d, h, PAGE, PEER, &held), 0);
	for (size_t at = 0; at < MIB; at += 2 * PAGE) {
		found(d, p + at, PAGE, PEER);
		found(d, h + at, PAGE, PEER);
		EXPECT(device.bytes <= 16 * PAGE);
	}
	EXPECT(device_covers(&device, &held, PEER));
	EXPECT_EQ(hugepin_pin(d, p, 16 * PAGE, PEER, &held), -ENOBUFS);
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	munmap(p, MIB);
	hugepin_free(h);
	close_empty(&device, d);
	hugepin_purge();
}

/* The naive model: ranges that a pin finds. They may lie inside each other. */
PIN_TEST(memory_that_goes_away_takes_all_keys_of_peers_with_it, open_exact(HUGEPIN_POLICY_LRU), MIB)
{
	enum { RANGES = 3000, PAGES = (int)(MIB / PAGE) };
	static struct { size_t from, to; } list[RANGES];
	int n = 0;

	srandom(1);
	for (int step = 0; step < 6000 && t_failures < 5; step++) {
		size_t from = (size_t)random() % PAGES, to = from + 1 + (size_t)random() % (PAGES - from);
		int at = 0, kept = 0;

		if (random() % 20 == 0) {
			to = HP_MIN(to, from + 3);
			EXPECT_EQ(hugepin_forget(p + from * PAGE, (to - from) * PAGE), 0);
			for (int i = 0; i < n; i++)
				if (list[i].from >= to || list[i].to <= from)
					list[kept++] = list[i];
			n = kept;
			continue;
		}
		while (at < n && (list[at].from != from || list[at].to != to))
			at++;
		EXPECT_EQ(found(d, p + from * PAGE, (to - from) * PAGE, PEER), at < n);
		if (at == n) {
			list[n].from = from;
			list[n++].to = to;
			EXPECT_EQ(device.regs, n); /* a miss deregisters what is gone */
		}
	}
}

DOMAIN_TEST(a_peer_has_no_key_of_heap_memory_that_was_given_back, open_exact(HUGEPIN_POLICY_LRU))
{
	char *h = hugepin_malloc(2 * MIB);

	found(d, h, PAGE, PEER);
	hugepin_free(h);
	hugepin_purge();
	EXPECT_EQ(device.regs, 0);
}

/* A backend that counts, for more registrations than the device has. */
static long counted;

static int count_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access;
	*ret_ = (struct hugepin_reg){ .lkey = (uint32_t)++counted };
	return 0;
}

static int count_dereg(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx, (void)reg;
	counted--;
	return 0;
}

/* The ranges of 2 MiB are 131,000, half as many as the table of all domains has places. */
static void fill_table(uint32_t policy)
{
	const struct hugepin_backend backend = { .size = sizeof backend, .name = "counts", .reg = count_reg,
						 .dereg = count_dereg, .limits = device_limits };
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = policy,
					   .pinned_bytes_max = UINT64_MAX };
	hugepin_domain *d;
	struct hugepin_pin pin, held;
	char *p = map(2 * MIB);
	long most = 0;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	counted = 0;
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &d), 0);
	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER, &held), 0);
	EXPECT_EQ(hugepin_pin(d, p, PAGE, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	for (size_t from = 0; from < 512 && !t_failures; from++)
		for (size_t to = from + 1; to <= 512; to++) {
			EXPECT_EQ(hugepin_pin(d, p + from * PAGE, (to - from) * PAGE, PEER, &pin), 0);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			most = HP_MAX(most, counted);
		}
	EXPECT(most > 30000 && most < 40000);
	EXPECT(stats_of(d).evicted > 80000);
	counted = 0;
	EXPECT_EQ(hugepin_pin(d, p, PAGE, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(counted, 0); /* what is no peer's alone has not made room */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, 2 * MIB);
}

TEST(registrations_for_peers_that_nobody_uses_do_not_fill_the_table)
{
	fill_table(HUGEPIN_POLICY_LRU);
	fill_table(HUGEPIN_POLICY_HYBRID);
}

TEST(memory_that_a_peer_has_a_key_of_stays)
{
	hugepin_domain *d = open_exact(HUGEPIN_POLICY_LRU);
	struct hugepin_pin pin;
	char *h = hugepin_aligned_alloc(2 * MIB, 6 * MIB);

	memset(h, 7, 6 * MIB);
	EXPECT_EQ(hugepin_pin(d, h + MIB, 4 * MIB, PEER, &pin), 0); /* parts of three hugepages */
	hugepin_free(h);
	hugepin_purge();
	EXPECT(h[MIB] == 7 && h[3 * MIB] == 7 && h[5 * MIB - 1] == 7);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	close_empty(&device, d);
	hugepin_purge();
}

PIN_TEST(where_peers_are_trusted_their_pins_share_registrations, open_to_peers(), MIB)
{
	struct hugepin_pin pin;

	EXPECT(!found(d, p, 16 * PAGE, PEER));
	EXPECT(found(d, p + PAGE, PAGE, PEER));
	EXPECT_EQ(hugepin_sg_key(d, p + PAGE, PAGE, HUGEPIN_REMOTE_WRITE, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

TEST(an_unknown_reach_is_refused)
{
	struct hugepin_attr attr = { .size = sizeof attr, .reach = HUGEPIN_REACH_EXTENT + 1 };
	hugepin_domain *d = NULL;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	EXPECT(!d);
}

/* ------------------------------------------------------------------ the end of a key */

enum { NEWS_MAX = 64 };
static struct hugepin_expiry news[NEWS_MAX];
static int told;

static void note_expiry(void *arg, const struct hugepin_expiry *e)
{
	EXPECT(arg == &told);
	EXPECT(device.reg[e->rkey & 0x7fffffff].live); /* the key works still */
	if (told < NEWS_MAX)
		news[told++] = *e;
}

static hugepin_domain *open_telling(uint32_t policy, uint32_t reach, uint64_t bytes_max)
{
	device_reset(&device);
	told = 0;
	return open_with((struct hugepin_attr){ .policy = policy,
						.reach = reach,
						.pinned_bytes_max = bytes_max,
						.expire = note_expiry,
						.expire_arg = &told });
}

static bool was_told(int i, const void *p, size_t len, bool pinned)
{
	return i < told && news[i].addr == (uintptr_t)p && news[i].len == len && news[i].pinned == pinned;
}

TEST(the_end_of_a_peers_key_is_told_before_it)
{
	hugepin_domain *d = open_telling(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXACT, 4 * PAGE);
	struct hugepin_pin pin;
	char *p = map(MIB);

	found(d, p, PAGE, PEER);
	EXPECT_EQ(told, 0);
	EXPECT_EQ(touch(d, p, 4 * PAGE), 0); /* needs the room */
	EXPECT(told == 1 && was_told(0, p, PAGE, false));
	found(d, p, 2 * PAGE, PEER); /* what it needs to give up is no peer's */
	EXPECT_EQ(told, 1);
	EXPECT_EQ(hugepin_forget(p, 2 * PAGE), 0);
	found(d, p + 8 * PAGE, PAGE, PEER);
	EXPECT(told == 2 && was_told(1, p, 2 * PAGE, false));
	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER | HUGEPIN_PIN_UNCACHED, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(told == 3 && was_told(2, p, PAGE, false));
	close_empty(&device, d);
	EXPECT(told == 4 && was_told(3, p + 8 * PAGE, PAGE, false));
	munmap(p, MIB);
}

TEST(a_key_that_nobody_had_ends_in_silence)
{
	hugepin_domain *d = open_telling(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXACT, 0);
	char *p = map(MIB);

	EXPECT_EQ(hugepin_prefetch(d, p, PAGE, PEER), 0);
	for (int i = 0; i < 20000 && !stats_of(d).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(touch(d, p, PAGE), 0);
	EXPECT_EQ(device.regs, 2);
	close_empty(&device, d);
	EXPECT_EQ(told, 0);
	munmap(p, MIB);
}

PIN_TEST(where_memory_is_wanted_back_its_pins_are_asked_for_once,
	 open_telling(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXACT, 0), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER, &pin), 0);
	EXPECT_EQ(hugepin_forget(p, PAGE), -EBUSY);
	EXPECT_EQ(touch(d, p + 8 * PAGE, PAGE), 0);
	EXPECT(told == 1 && was_told(0, p, PAGE, true));
	EXPECT_EQ(hugepin_forget(p, PAGE), -EBUSY);
	EXPECT_EQ(touch(d, p + 9 * PAGE, PAGE), 0);
	EXPECT_EQ(told, 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(told == 2 && was_told(1, p, PAGE, false));
}

DOMAIN_TEST(pins_of_freed_heap_memory_are_asked_for, open_telling(HUGEPIN_POLICY_ARENA, HUGEPIN_REACH_EXACT, 0))
{
	struct hugepin_pin pin;
	char *h = hugepin_malloc(2 * MIB), *again;

	EXPECT_EQ(hugepin_pin(d, h, PAGE, PEER, &pin), 0);
	hugepin_purge();
	EXPECT_EQ(told, 0); /* the buffer lives */
	for (int round = 1; round <= 2; round++) {
		hugepin_free(h);
		hugepin_purge();
		hugepin_purge();
		EXPECT(told == round && was_told(round - 1, h, PAGE, true));
		hp_serve_drop_unused_holds(1000); /* not free for so long: that is no reason to tell it again */
		hugepin_purge();
		EXPECT_EQ(told, round);
		again = hugepin_malloc(2 * MIB); /* the memory is somebody else's, and the peer has the key still */
		hugepin_purge();
		EXPECT(again == h);
		h = again;
	}
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hugepin_free(h);
	hugepin_purge();
	EXPECT(told == 3 && was_told(2, h, PAGE, false));
}

static hugepin_domain *open_telling_of_local(uint64_t bytes_max)
{
	device_reset(&device);
	told = 0;
	return open_with((struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU,
						.pinned_bytes_max = bytes_max,
						.flags = HUGEPIN_EXPIRE_LOCAL,
						.expire = note_expiry,
						.expire_arg = &told });
}

TEST(the_end_of_a_local_key_is_told_where_it_is_asked_for)
{
	hugepin_domain *d = open_telling_of_local(4 * PAGE);
	struct hugepin_pin pin;
	char *p = map(MIB);
	uint32_t lkey;

	EXPECT_EQ(hugepin_pin(d, p, PAGE, 0, &pin), 0);
	lkey = pin.lkey;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	found(d, p, PAGE, PEER);
	EXPECT_EQ(told, 0);
	EXPECT_EQ(touch(d, p + 8 * PAGE, 4 * PAGE), 0); /* needs the room of both */
	EXPECT(told == 2 && was_told(0, p, PAGE, false) && was_told(1, p, PAGE, false));
	EXPECT_EQ(news[0].lkey, lkey);
	EXPECT_EQ(news[0].rkey, lkey | 0x80000000);
	close_empty(&device, d);
	EXPECT(told == 3 && was_told(2, p + 8 * PAGE, 4 * PAGE, false));
	munmap(p, MIB);
}

PIN_TEST(a_local_key_of_memory_that_has_other_keys_now_is_told_of_while_it_is_pinned, open_telling_of_local(0), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, PAGE, 0, &pin), 0);
	EXPECT_EQ(touch(d, p, 4 * PAGE), 0);
	EXPECT_EQ(touch(d, p + 8 * PAGE, PAGE), 0);
	EXPECT(told == 1 && was_told(0, p, PAGE, true) && news[0].lkey == pin.lkey);
	EXPECT_EQ(hugepin_forget(p + PAGE, PAGE), 0); /* the larger one's */
	EXPECT_EQ(touch(d, p + 9 * PAGE, PAGE), 0);
	EXPECT(told == 2 && was_told(1, p, 4 * PAGE, false));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(told == 3 && was_told(2, p, PAGE, false));
}

TEST(a_local_key_that_no_pin_had_ends_in_silence)
{
	hugepin_domain *d = open_telling_of_local(0);
	char *p = map(MIB);

	EXPECT_EQ(hugepin_prefetch(d, p, PAGE, 0), 0);
	for (int i = 0; i < 20000 && !stats_of(d).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(device.regs, 1);
	close_empty(&device, d);
	EXPECT_EQ(told, 0);
	munmap(p, MIB);
}

TEST(unknown_flags_of_a_domain_are_refused)
{
	hugepin_domain *d = NULL;

	for (uint32_t flag = 2; flag; flag <<= 1) {
		struct hugepin_attr attr = { .size = sizeof attr, .flags = flag };

		EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	}
}

/* The first pin's news are no news of the second one, which finds the same registration. */
TEST(pins_made_since_are_asked_for_again)
{
	for (int purges = 0; purges < 2; purges++) {
		hugepin_domain *d = open_telling(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXACT, 0);
		struct hugepin_pin pin;
		char *h = hugepin_malloc(2 * MIB);

		EXPECT_EQ(hugepin_pin(d, h, PAGE, PEER, &pin), 0);
		hugepin_free(h);
		hugepin_purge();
		EXPECT(told == 1 && was_told(0, h, PAGE, true));
		EXPECT(hugepin_malloc(2 * MIB) == h);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		if (purges)
			hugepin_purge();
		EXPECT_EQ(hugepin_pin(d, h, PAGE, PEER, &pin), 0);
		hugepin_free(h);
		hugepin_purge();
		EXPECT(told == 2 && was_told(1, h, PAGE, true));
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		hugepin_purge();
		close_empty(&device, d);
	}
}

PIN_TEST(a_key_that_was_had_as_often_as_numbers_go_is_told_of,
	 open_telling(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXACT, 0), MIB)
{
	struct hugepin_pin pin, copy;

	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER, &pin), 0);
	copy = pin;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	pins_more(&copy, UINT32_MAX); /* 2^32 in all */
	EXPECT_EQ(hugepin_forget(p, PAGE), 0);
	EXPECT_EQ(touch(d, p + 8 * PAGE, PAGE), 0);
	EXPECT(told == 1 && was_told(0, p, PAGE, false));
}

TEST(the_pin_of_a_live_buffer_is_not_wanted_when_the_rest_of_its_extent_is)
{
	hugepin_domain *d = open_telling(HUGEPIN_POLICY_ARENA, HUGEPIN_REACH_EXTENT, 0);
	struct hugepin_pin pin;
	char *h = hugepin_malloc(16 * MIB), *live;

	hugepin_free(h);
	live = hugepin_malloc(2 * MIB); /* in the same extent */
	EXPECT(live >= h && live < h + 16 * MIB);
	EXPECT_EQ(hugepin_pin(d, live, PAGE, PEER, &pin), 0);
	EXPECT(device.reg[pin.lkey].len >= 16 * MIB);
	hugepin_purge();
	EXPECT_EQ(stats_of(d).retired, 1);
	EXPECT_EQ(told, 0);
	hugepin_free(live);
	hugepin_purge();
	EXPECT(told == 1 && news[0].pinned);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	close_empty(&device, d);
	hugepin_purge();
}

PIN_TEST(a_registration_for_one_pin_asks_for_it_when_its_memory_goes_away,
	 open_telling(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXACT, 0), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER | HUGEPIN_PIN_UNCACHED, &pin), 0);
	EXPECT_EQ(touch(d, p + 8 * PAGE, PAGE), 0);
	EXPECT_EQ(told, 0);
	hugepin_forget(p, PAGE);
	EXPECT_EQ(touch(d, p + 9 * PAGE, PAGE), 0);
	EXPECT(told == 1 && was_told(0, p, PAGE, true));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(told == 2 && was_told(1, p, PAGE, false));
}

PIN_TEST(a_registration_that_is_widened_asks_for_its_pins,
	 open_telling(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXTENT, 0), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER, &pin), 0);
	EXPECT_EQ(touch(d, p, 4 * PAGE), 0);
	EXPECT(told == 1 && was_told(0, p, PAGE, true));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(told, 2);
}

T_MAIN
