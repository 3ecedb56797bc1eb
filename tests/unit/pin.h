/* The fake device, domains on it, and pins that are checked and given back: shared by the tests of the pin cache. */
#ifndef TESTS_UNIT_PIN_H
#define TESTS_UNIT_PIN_H

#include "base/config.h"
#include "reg/counts.h"
#include "tests/device.h"
#include "tests/t.h"

static struct device device;

static inline hugepin_domain *open_with(struct hugepin_attr attr)
{
	hugepin_domain *d = NULL;

	attr.size = sizeof attr;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	return d;
}

static inline hugepin_domain *open_as(uint32_t policy, uint64_t bytes_max, uint32_t regions_max)
{
	return open_with((struct hugepin_attr){
		.policy = policy, .pinned_bytes_max = bytes_max, .pinned_regions_max = regions_max });
}

/* On a device as it was at first. */
static inline hugepin_domain *open_first(uint32_t policy, uint64_t bytes_max, uint32_t regions_max)
{
	device_reset(&device);
	return open_as(policy, bytes_max, regions_max);
}

static inline hugepin_domain *open_lru(void)
{
	return open_first(HUGEPIN_POLICY_LRU, 0, 0);
}

/* Pins for peers are served as all others. */
static inline hugepin_domain *open_to_peers(void)
{
	device_reset(&device);
	return open_with((struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .reach = HUGEPIN_REACH_EXTENT });
}

/* Pin and give back at once. */
static inline int touch(hugepin_domain *d, const void *p, size_t len)
{
	struct hugepin_pin pin;
	int e = hugepin_pin(d, p, len, 0, &pin);

	if (e)
		return e;
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
	EXPECT(pin.base == (uintptr_t)p && pin.len == len);
	return hugepin_unpin(d, &pin);
}

/* As if this thread had pinned pin's region so many times more, and given it back. */
static inline void pins_more(const struct hugepin_pin *pin, uint32_t times)
{
	hp_counts_self[(uint32_t)pin->ref].pins += times;
	hp_counts_self[(uint32_t)pin->ref].unpins += times;
}

/* Whether a pin finds the range registered. The pin itself carries out the ranges that the watcher has queued: the test
 * need not wait. */
static inline bool registered(hugepin_domain *d, const void *p, size_t len)
{
	long before = device.calls;

	EXPECT_EQ(touch(d, p, len), 0);
	return device.calls == before;
}

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)4 << 30;
	hp_config.pages = HP_PAGES_BASE;
	hp_config.decay_ms = 0;
}

#endif
