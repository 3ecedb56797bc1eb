/* Numbers that look random, the same in each run. */
#ifndef TESTS_ANY_H
#define TESTS_ANY_H

#include <stddef.h>
#include <stdint.h>

static uint64_t any_state = 88172645463325252;

/* Below n (xorshift: Marsaglia 2003). */
static size_t any(size_t n)
{
	any_state ^= any_state << 13;
	any_state ^= any_state >> 7;
	any_state ^= any_state << 17;
	return (size_t)(any_state >> 11) % n;
}

#endif
