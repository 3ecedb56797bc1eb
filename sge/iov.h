/*
 * Checks that are common to all functions that take pieces of memory.
 */
#ifndef HP_SGE_IOV_H
#define HP_SGE_IOV_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/base.h"

/* Whether a non-empty piece may be used. A piece that ends with the last address counts as wrapping, as in
 * hugepin_pin(). */
static inline bool hp_iov_valid(uintptr_t addr, size_t len)
{
	return addr && addr + len > addr;
}

/* The number of cache lines of 64 bytes that a piece touches. The piece has 1 to 2^63 bytes. */
static inline uint64_t hp_iov_lines(uint64_t addr, uint64_t len)
{
	return (addr % 64 + len + 63) / 64;
}

/* Check that all pieces may be used, and add up their bytes. A sum above UINT32_MAX means too many. 0 or -EINVAL. */
static inline int hp_iov_bytes(const struct iovec *iov, int n, uint64_t *ret_)
{
	uint64_t bytes = 0;

	if (n < 0 || (n && !iov))
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		if (iov[i].iov_len && !hp_iov_valid((uintptr_t)iov[i].iov_base, iov[i].iov_len))
			return -EINVAL;
		bytes += HP_MIN(iov[i].iov_len, UINT64_C(1) << 32); /* 2^31 of these cannot overflow the sum */
	}
	*ret_ = bytes;
	return 0;
}

#endif
