/*
 * The pins that one call has taken, found by address. The caller's array is the only memory.
 *
 * A few pins are searched one by one. If there are more, pins[0 .. sorted - 1] are in the order of their addresses and
 * searched by halves. Of the pins behind them only the latest are searched. For a pin that is not found the key
 * function is asked, which costs some 30 ns; so the array may hold a registration twice. hp_pins_settle() puts all
 * pins in order, and gives second pins back. It runs when the number of pins has doubled, when there is no room, and
 * at the end.
 */
#ifndef HP_SGE_PINS_H
#define HP_SGE_PINS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "hugepin.h"

enum { HP_PINS_FEW = 16 };

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

	for (uint32_t i = n; i > HP_MAX(sorted, n - HP_PINS_FEW); i--)
		if (hp_pin_covers(&pins[i - 1], addr))
			return &pins[i - 1];
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

static inline void hp_pins_sink(struct hugepin_pin *pins, uint32_t at, uint32_t n)
{
	const struct hugepin_pin pin = pins[at];

	for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
		child += child + 1 < n && hp_pin_before(&pins[child], &pins[child + 1]);
		if (!hp_pin_before(&pin, &pins[child]))
			break;
		pins[at] = pins[child];
	}
	pins[at] = pin;
}

/* Put n pins in order (by heapsort if necessary). Second pins of a registration are given back through the key
 * function. Returns how many remain. */
static HP_COLD uint32_t hp_pins_settle(struct hugepin_pin *pins, uint32_t n, hugepin_key_fn key, void *arg)
{
	bool ordered = true;
	uint32_t kept = !!n;

	for (uint32_t i = 1; i < n; i++)
		ordered &= !hp_pin_before(&pins[i], &pins[i - 1]);
	for (uint32_t i = n / 2; !ordered && i--;)
		hp_pins_sink(pins, i, n);
	for (uint32_t left = n; !ordered && --left;) {
		const struct hugepin_pin first = pins[0];

		pins[0] = pins[left];
		pins[left] = first;
		hp_pins_sink(pins, 0, left);
	}
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
