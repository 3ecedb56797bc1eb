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
	const uint64_t all = value ? ~UINT64_C(0) : 0;
	const size_t to = from + count - 1;
	uint64_t mask = ~UINT64_C(0) << (from & 63);
	size_t w = from >> 6;

	if (!count)
		return;
	for (; w < to >> 6; w++, mask = ~UINT64_C(0))
		map[w] ^= (map[w] ^ all) & mask;
	mask &= ~UINT64_C(0) >> (63 - (to & 63));
	map[w] ^= (map[w] ^ all) & mask;
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
