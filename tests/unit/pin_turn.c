/*
 * A domain with pinned regions and on-demand regions, and one that is registered in the other way (hp_cover_turn): the
 * budget counts what is pinned, pins that are out keep what they have, and a failure changes nothing.
 */
#include "reg/cover.h"
#include "reg/domain.h"
#include "reg/region.h"
#include "tests/unit/pin.h"

static hugepin_domain *open_mixed(uint64_t bytes_max)
{
	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	return open_as(HUGEPIN_POLICY_LRU, bytes_max, 0);
}

static int turn(hugepin_domain *d, const void *p, bool on_demand, bool evict)
{
	struct hp_region *r, *other;
	int err;

	hp_domain_lock(d);
	r = hp_cover_find(d, (uintptr_t)p, 1, HUGEPIN_READ | HUGEPIN_WRITE);
	err = EXPECT(r) ? hp_cover_turn(d, r, on_demand, evict, &other) : -EINVAL;
	if (!err)
		EXPECT(other->on_demand == on_demand && other->state == HP_REGION_LIVE);
	hp_domain_unlock(d);
	return err;
}

/* How the device has the memory of a new pin registered. */
static bool on_demand(hugepin_domain *d, const void *p, size_t len)
{
	struct hugepin_pin pin;
	bool result;

	if (!EXPECT_EQ(hugepin_pin(d, p, len, 0, &pin), 0))
		return false;
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
	result = device.reg[pin.lkey].access & HUGEPIN_ON_DEMAND;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	return result;
}

DOMAIN_TEST(pins_that_are_out_keep_what_they_have_and_the_next_get_the_new_one, open_mixed(0))
{
	char *memory[2] = { map(MIB), hugepin_malloc(MIB) };

	for (int i = 0; i < 2; i++) {
		struct hugepin_pin pin, copy;
		uint64_t pinned;

		EXPECT_EQ(hugepin_pin(d, memory[i], MIB, 0, &pin), 0);
		copy = pin;
		pinned = stats_of(d).pinned_bytes;
		EXPECT(pinned >= MIB);
		EXPECT_EQ(turn(d, memory[i], true, false), 0);
		EXPECT_EQ(device.regs, 2);
		EXPECT(on_demand(d, memory[i], MIB));
		EXPECT(device_covers(&device, &copy, HUGEPIN_READ | HUGEPIN_WRITE));
		EXPECT_EQ(stats_of(d).pinned_bytes, pinned);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(stats_of(d).pinned_bytes, 0);
		EXPECT_EQ(device.regs, 1);

		EXPECT_EQ(hugepin_pin(d, memory[i], MIB, 0, &pin), 0);
		EXPECT_EQ(turn(d, memory[i], false, false), 0);
		EXPECT(!on_demand(d, memory[i], MIB));
		EXPECT_EQ(stats_of(d).pinned_bytes, pinned);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(device.regs, 1);
		EXPECT_EQ(turn(d, memory[i], true, false), 0);
		EXPECT_EQ(stats_of(d).pinned_bytes, 0);
		if (i == 0) {
			munmap(memory[i], MIB);
			EXPECT_EQ(hugepin_forget(memory[i], MIB), 0);
		}
	}
	hugepin_free(memory[1]);
}

DOMAIN_TEST(hugepin_deregister_ends_what_was_turned_while_its_pin_was_out, open_mixed(0))
{
	char *memory[2] = { map(MIB), hugepin_malloc(MIB) };

	for (int i = 0; i < 4; i++) {
		struct hugepin_pin pin;

		EXPECT_EQ(hugepin_pin(d, memory[i / 2], MIB, 0, &pin), 0);
		if (i % 2) { /* back again */
			EXPECT_EQ(turn(d, memory[i / 2], true, false), 0);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			EXPECT_EQ(hugepin_pin(d, memory[i / 2], MIB, 0, &pin), 0);
		}
		EXPECT_EQ(turn(d, memory[i / 2], !(i % 2), false), 0);
		EXPECT_EQ(device.regs, 2);
		EXPECT_EQ(hugepin_deregister(d, &pin, 1), 0);
		EXPECT_EQ(device.regs, 0);
	}
	munmap(memory[0], MIB);
	hugepin_free(memory[1]);
}

static struct hugepin_expiry news[4];
static int told;

static void note_expiry(void *unused, const struct hugepin_expiry *e)
{
	(void)unused;
	EXPECT(device.reg[e->rkey & 0x7fffffff].live); /* the key works still */
	if (told < 4)
		news[told++] = *e;
}

/* The key of a peer stays while its pin is out, and its end is told. */
TEST(a_peer_keeps_its_key_until_its_pin_is_given_back)
{
	const unsigned access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE;
	char *p = map(MIB);
	struct hugepin_pin pin, other;
	struct hp_region *r, *next;
	hugepin_domain *d;
	uint32_t rkey;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	told = 0;
	d = open_with((struct hugepin_attr){
		.policy = HUGEPIN_POLICY_LRU, .reach = HUGEPIN_REACH_EXACT, .expire = note_expiry });
	EXPECT_EQ(hugepin_pin(d, p, MIB, access, &pin), 0);
	rkey = pin.rkey;
	hp_domain_lock(d);
	r = hp_cover_find(d, (uintptr_t)p, MIB, access);
	if (EXPECT(r))
		EXPECT_EQ(hp_cover_turn(d, r, true, false, &next), 0);
	hp_domain_unlock(d);
	EXPECT(told == 1 && news[0].rkey == rkey && news[0].pinned);
	EXPECT_EQ(hugepin_pin(d, p, MIB, access, &other), 0);
	EXPECT(other.rkey != rkey);
	EXPECT(device_covers(&device, &pin, access) && device_covers(&device, &other, access));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(told == 2 && news[1].rkey == rkey && !news[1].pinned);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(hugepin_unpin(d, &other), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

static bool is_present(char *p)
{
	unsigned char present = 0;

	return !mincore(p, 4096, &present) && present & 1;
}

/* Free and purge while a pin is out: the heap keeps the pages of a pinned region alone. */
TEST(what_is_pinned_is_held_and_what_is_on_demand_is_not)
{
	for (int turns = 0; turns <= 2; turns++) {
		hugepin_domain *d = open_mixed(0);
		char *p = hugepin_malloc(2 * MIB);
		struct hugepin_pin pin;

		EXPECT(!on_demand(d, p, 2 * MIB));
		for (int i = 0; i < turns; i++)
			EXPECT_EQ(turn(d, p, !(i % 2), false), 0);
		EXPECT_EQ(hugepin_pin(d, p, 2 * MIB, 0, &pin), 0);
		p[0] = 1;
		hugepin_free(p);
		hugepin_purge();
		EXPECT_EQ(is_present(p), turns != 1);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		hugepin_purge();
		EXPECT(!is_present(p));
		close_empty(&device, d);
	}
}

PIN_TEST(what_fails_changes_nothing, open_mixed(0), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
	device.nth = 1;
	device.with = -EFAULT;
	EXPECT_EQ(turn(d, p, true, true), -EFAULT);
	EXPECT(!on_demand(d, p, MIB));
	EXPECT_EQ(turn(d, p, true, true), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	device.nth = 1;
	device.with = -EIO;
	EXPECT_EQ(turn(d, p, false, true), -EIO);
	EXPECT(on_demand(d, p, MIB));
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(stats_of(d).regions, 1);
}

DOMAIN_TEST(the_budget_counts_what_is_pinned_and_evicts_nothing_else, open_mixed(2 * MIB))
{
	char *p[4];

	for (int i = 0; i < 4; i++) {
		p[i] = map(MIB);
		EXPECT(!on_demand(d, p[i], MIB));
		if (i < 2)
			EXPECT_EQ(turn(d, p[i], true, false), 0);
	}
	EXPECT_EQ(stats_of(d).pinned_bytes, 2 * MIB);
	EXPECT_EQ(turn(d, p[0], false, false), -ENOBUFS);
	EXPECT(on_demand(d, p[0], MIB));
	EXPECT_EQ(turn(d, p[0], false, true), 0); /* one of the two that are pinned goes */
	EXPECT(!on_demand(d, p[0], MIB));
	EXPECT(on_demand(d, p[1], MIB));
	EXPECT_EQ(stats_of(d).pinned_bytes, 2 * MIB);
	EXPECT_EQ(stats_of(d).pinned_peak_bytes, 2 * MIB);
	EXPECT_EQ(stats_of(d).evicted, 1);
	EXPECT_EQ(device.regs, 3);
	for (int i = 0; i < 4; i++)
		munmap(p[i], MIB);
}

TEST(what_is_turned_is_not_evicted_for_itself)
{
	hugepin_domain *d;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 1);
	EXPECT(!on_demand(d, p, MIB));
	EXPECT_EQ(turn(d, p, true, true), -ENOBUFS);
	EXPECT(!on_demand(d, p, MIB));
	EXPECT_EQ(device.calls, 1);
	munmap(p, MIB);
	close_empty(&device, d);
}

T_MAIN
