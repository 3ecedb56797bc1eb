/*
 * Bitmaps of 64-bit words: single bits, and runs.
 */
#ifndef HP_BASE_BITS_H
#define HP_BASE_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool hp_bit(const uint64_t *map, size_t i)
{
	return map[i >> 6] >> (i & 63) & 1;
}

static inline void hp_bit_set(uint64_t *map, size_t i)
{
	map[i >> 6] |= UINT64_C(1) << (i & 63);
}

static inline void hp_bit_clear(uint64_t *map, size_t i)
{
	map[i >> 6] &= ~(UINT64_C(1) << (i & 63));
}

/* Set (value) or clear bits [from, from + count). */
static inline void hp_bits_fill(uint64_t *map, size_t from, size_t count, bool value)
{
	while (count) {
		size_t o = from & 63, k = 64 - o < count ? 64 - o : count;
		uint64_t mask = (k == 64 ? ~UINT64_C(0) : (UINT64_C(1) << k) - 1) << o;

		if (value)
			map[from >> 6] |= mask;
		else
			map[from >> 6] &= ~mask;
		from += k;
		count -= k;
	}
}

/* The first bit at or after `from`, below `end`, that is set (value) or clear; `end` if there is none. */
static inline size_t hp_bits_find(const uint64_t *map, size_t from, size_t end, bool value)
{
	while (from < end) {
		uint64_t w = (value ? map[from >> 6] : ~map[from >> 6]) >> (from & 63);

		if (w) {
			size_t i = from + (size_t)__builtin_ctzll(w);

			return i < end ? i : end;
		}
		from = (from | 63) + 1;
	}
	return end;
}

#endif
