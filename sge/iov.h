/*
 * What every function that takes pieces checks of them first.
 */
#ifndef HP_SGE_IOV_H
#define HP_SGE_IOV_H

#include <errno.h>
#include <stdbool.h>
#include <sys/uio.h>

#include "base/base.h"

/* A piece that is not empty may be used. As hugepin_pin has it, one that ends with the last address wraps. */
static inline bool hp_iov_lies(uintptr_t addr, size_t len)
{
	return addr && addr + len > addr;
}

/* All pieces may be used, and how many bytes they have; UINT32_MAX + 1 and more: too many. 0 or -EINVAL. */
static inline int hp_iov_bytes(const struct iovec *iov, int n, uint64_t *ret_)
{
	uint64_t bytes = 0;

	if (n < 0 || (n && !iov))
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		if (iov[i].iov_len && !hp_iov_lies((uintptr_t)iov[i].iov_base, iov[i].iov_len))
			return -EINVAL;
		bytes += HP_MIN(iov[i].iov_len, UINT64_C(1) << 32); /* 2^31 of these fit */
	}
	*ret_ = bytes;
	return 0;
}

#endif
