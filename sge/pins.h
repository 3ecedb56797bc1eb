/*
 * The pins that one call has taken, found by address. The caller's array is the only memory.
 *
 * A few pins are searched one by one. If there are more, pins[0 .. sorted - 1] are in the order of their addresses and
 * have a binary search. Of the pins behind them only the latest are searched. If a pin is not found, the key function
 * is asked, which costs some 30 ns, so the array may hold a registration twice. hp_pins_settle() puts all pins in order
 * and gives second pins back. It runs when the number of pins has doubled, when there is no room, and at the end.
 */
#ifndef HP_SGE_PINS_H
#define HP_SGE_PINS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "hugepin.h"

enum { HP_PINS_FEW = 16, HP_PINS_BITS = 6 };

#ifndef HP_PINS_STEP
#define HP_PINS_STEP() ((void)0) /* a test counts the pins that are looked at */
#endif

/* The pin's range must not wrap. */
static inline bool hp_pin_covers(const struct hugepin_pin *pin, uint64_t addr)
{
	return addr - pin->base < pin->len;
}

static inline bool hp_pin_before(const struct hugepin_pin *a, const struct hugepin_pin *b)
{
	return a->base < b->base || (a->base == b->base && a->ref < b->ref);
}

/* The index of the first of n ordered pins that does not come before `pin`. */
static inline uint32_t hp_pins_position(const struct hugepin_pin *pins, uint32_t n, const struct hugepin_pin *pin)
{
	uint32_t from = 0;

	while (n) {
		HP_PINS_STEP();
		if (hp_pin_before(&pins[from + n / 2], pin)) {
			from += n / 2 + 1;
			n -= n / 2 + 1;
		} else {
			n /= 2;
		}
	}
	return from;
}

/* Find a pin that covers addr among those that are searched; NULL: none. Ranges may overlap, so another pin may cover
 * addr, too. */
static HP_COLD const struct hugepin_pin *hp_pins_find_in_many(const struct hugepin_pin *pins, uint32_t n,
							      uint32_t sorted, uint64_t addr)
{
	const struct hugepin_pin last = { .base = addr, .ref = UINT64_MAX };
	uint32_t at;

	for (uint32_t i = n; i > HP_MAX(sorted, n - HP_PINS_FEW); i--) {
		HP_PINS_STEP();
		if (hp_pin_covers(&pins[i - 1], addr))
			return &pins[i - 1];
	}
	at = hp_pins_position(pins, sorted, &last);
	return at && hp_pin_covers(&pins[at - 1], addr) ? &pins[at - 1] : NULL;
}

static inline __attribute__((always_inline)) const struct hugepin_pin *
hp_pins_find(const struct hugepin_pin *pins, uint32_t n, uint32_t sorted, uint64_t addr)
{
	if (HP_UNLIKELY(n > HP_PINS_FEW))
		return hp_pins_find_in_many(pins, n, sorted, addr);
	for (uint32_t i = 0; i < n; i++)
		if (hp_pin_covers(&pins[i], addr))
			return &pins[i];
	return NULL;
}

/* Whether so many pins are out of order that they should be settled. */
static inline bool hp_pins_due(uint32_t n, uint32_t sorted)
{
	return n >= 2 * HP_PINS_FEW && n / 2 >= sorted;
}

static inline uint32_t hp_pin_part(const struct hugepin_pin *pin, bool by_base, unsigned shift, uint32_t parts)
{
	return (uint32_t)((by_base ? pin->base : pin->ref) >> shift) & (parts - 1);
}

/* Put n pins in order, by a few bits at a time, from the highest in which they differ: each pin goes to the part of its
 * bits (McIlroy, Bostic, McIlroy 1993: American flag sort). A part has some four pins on average, and small parts are
 * sorted by insertion, so the steps are linear in n. Recursion ends after the 128 bits of base and ref. It takes at
 * most some 30 KiB of stack, for addresses that differ only in each level's last bit. */
static HP_COLD void hp_pins_sort(struct hugepin_pin *pins, uint32_t n)
{
	uint32_t at[1 << HP_PINS_BITS], end[1 << HP_PINS_BITS] = { 0 };
	uint64_t base = 0, ref = 0;

	if (n <= HP_PINS_FEW) {
		for (uint32_t i = 1; i < n; i++) {
			const struct hugepin_pin pin = pins[i];
			uint32_t to = i;

			HP_PINS_STEP();
			for (; to && hp_pin_before(&pin, &pins[to - 1]); to--) {
				HP_PINS_STEP();
				pins[to] = pins[to - 1];
			}
			pins[to] = pin;
		}
		return;
	}
	for (uint32_t i = 1; i < n; i++) {
		base |= pins[i].base ^ pins[0].base;
		ref |= pins[i].ref ^ pins[0].ref;
	}
	if (!base && !ref)
		return;
	const unsigned high = 64 - (unsigned)__builtin_clzll(base ? base : ref);
	const unsigned bits = HP_MIN(29 - (unsigned)__builtin_clz(n), (unsigned)HP_PINS_BITS);
	const unsigned shift = high > bits ? high - bits : 0;
	const uint32_t parts = 1u << bits;

	for (uint32_t i = 0; i < n; i++) {
		HP_PINS_STEP();
		end[hp_pin_part(&pins[i], base, shift, parts)]++;
	}
	for (uint32_t p = 0, sum = 0; p < parts; p++) {
		at[p] = sum;
		end[p] = sum += end[p];
	}
	for (uint32_t p = 0; p < parts; p++)
		while (at[p] < end[p]) {
			struct hugepin_pin *const from = &pins[at[p]];
			struct hugepin_pin *const to = &pins[at[hp_pin_part(from, base, shift, parts)]++];
			const struct hugepin_pin pin = *to;

			HP_PINS_STEP();
			*to = *from;
			*from = pin;
		}
	for (uint32_t p = 0, start = 0; p < parts; start = end[p++])
		hp_pins_sort(pins + start, end[p] - start);
}

/* Put n pins in order, and give second pins of a registration back through the key function. Returns how many
 * remain. */
static HP_COLD uint32_t hp_pins_settle(struct hugepin_pin *pins, uint32_t n, hugepin_key_fn key, void *arg)
{
	bool ordered = true;
	uint32_t kept = !!n;

	for (uint32_t i = 1; i < n; i++)
		ordered &= !hp_pin_before(&pins[i], &pins[i - 1]);
	if (!ordered)
		hp_pins_sort(pins, n);
	for (uint32_t i = 1; i < n; i++)
		if (pins[i].ref == pins[kept - 1].ref)
			key(arg, NULL, 0, 0, &pins[i]);
		else
			pins[kept++] = pins[i];
	for (uint32_t i = kept; i < n; i++)
		pins[i] = (struct hugepin_pin){ 0 };
	return kept;
}

#endif
