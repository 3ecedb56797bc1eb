/*
 * The pins of one call (sge/pins.h): found and put in order as by a naive model, in steps linear in the registrations.
 */
#include <stdlib.h>

static unsigned long steps;
#define HP_PINS_STEP() (steps++)

#include "sge/pins.h"
#include "tests/t.h"

enum { MOST = 4096 };

static uint64_t seed = 1;

static uint64_t random_bits(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

static int given_back[MOST + 1];

static int count_returns(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	(void)arg, (void)addr, (void)len, (void)access;
	given_back[pin->ref]++;
	return 0;
}

static int by_base_and_ref(const void *a, const void *b)
{
	const struct hugepin_pin *x = a, *y = b;
	return hp_pin_before(x, y) ? -1 : hp_pin_before(y, x);
}

/* Bases that differ in many bits, in few, in the lowest and the highest only, or not at all. */
static uint64_t base_of(unsigned kind, uint64_t ref)
{
	switch (kind) {
	case 0: return ref * 0x9e3779b97f4a7c15;
	case 1: return (ref * 25171 % MOST) << 21;
	case 2: return ref % 3 + (ref % 2 << 63);
	case 3: return UINT64_C(1) << ref % 64;
	default: return 4096;
	}
}

TEST(settled_pins_are_in_order_and_each_registration_has_one)
{
	static struct hugepin_pin pins[MOST], model[MOST];
	for (unsigned round = 0; round < 2000 && !t_failures; round++) {
		const uint32_t n = (uint32_t)(random_bits() % (round % 20 ? 100 : MOST));
		uint32_t kept = 0;
		for (uint32_t i = 0; i < n; i++) {
			const uint64_t ref = 1 + random_bits() % (round % 3 ? MOST : n);
			model[i] = pins[i] = (struct hugepin_pin){ .base = base_of(round % 5, ref), .len = 1, .ref = ref };
		}
		qsort(model, n, sizeof *model, by_base_and_ref);
		memset(given_back, 0, sizeof given_back);
		for (uint32_t i = 0; i < n; i++) {
			if (kept && model[kept - 1].ref == model[i].ref)
				given_back[model[i].ref]--;
			else
				model[kept++] = model[i];
		}
		if (!EXPECT_EQ(hp_pins_settle(pins, n, count_returns, NULL), kept))
			break;
		for (uint32_t i = 0; i < kept; i++)
			EXPECT_EQ(pins[i].ref, model[i].ref);
		for (uint32_t i = kept; i < n; i++)
			EXPECT_EQ(pins[i].ref, 0);
		for (uint32_t i = 1; i <= MOST; i++)
			EXPECT_EQ(given_back[i], 0);
	}
}

/* Take the pins of n registrations in no order, and put them in order. Returns the steps of putting in order, for each
 * pin. A search must take no more steps than `search`. */
static unsigned long steps_each(uint32_t n, unsigned kind, unsigned long search)
{
	static struct hugepin_pin pins[MOST];
	uint32_t out = 0, sorted = 0;
	unsigned long settling = 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t ref = 1 + i, base = base_of(kind, ref);
		steps = 0;
		if (hp_pins_due(out, sorted))
			out = sorted = hp_pins_settle(pins, out, count_returns, NULL);
		settling += steps;
		steps = 0;
		EXPECT(!hp_pins_find(pins, out, sorted, base));
		EXPECT(steps <= search);
		pins[out++] = (struct hugepin_pin){ .base = base, .len = 1, .ref = ref };
	}
	steps = 0;
	EXPECT_EQ(hp_pins_settle(pins, out, count_returns, NULL), n);
	return (settling + steps) / n;
}

TEST(to_put_pins_in_order_takes_hardly_more_steps_for_each_of_4096_than_of_64)
{
	for (unsigned kind = 0; kind < 2; kind++) {
		const unsigned long few = steps_each(64, kind, 23), many = steps_each(1024, kind, 27),
				    most = steps_each(MOST, kind, 29);
		t_print("# %lu, %lu and %lu steps\n", few, many, most);
		EXPECT(many <= few + 6 && most <= few + 10);
	}
}

T_MAIN
