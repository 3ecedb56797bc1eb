/*
 * What the C library has handed out and not got back. Let a dozen rounds go by before the first look, since the C library
 * keeps the first few of each size that are freed.
 */
#ifndef TESTS_UNIT_ALLOCATED_H
#define TESTS_UNIT_ALLOCATED_H

#include <malloc.h>

static inline size_t allocated(void)
{
	const struct mallinfo2 now = mallinfo2();

	return now.uordblks + now.hblkhd;
}

#endif
