/* Numbers that look random, the same for the same seed. */
#ifndef TESTS_RND_H
#define TESTS_RND_H

#include <stdint.h>

static uint64_t seed = 1;

/* Below n. A linear congruential generator (Knuth's MMIX), of which the high bits are taken. */
static uint64_t rnd(uint64_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % n;
}

#endif
