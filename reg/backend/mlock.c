/*
 * The backend that only locks memory. Registrations may overlap, in one domain and between domains, and memory that the
 * program has locked itself must stay locked; reg/locks.c ensures both.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/memlock.h"
#include "base/service.h"
#include "reg/backend/backend.h"
#include "reg/locks.h"

static int mlock_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	int saved_errno = errno, err;
	struct hp_covering *r = malloc(sizeof *r);

	(void)ctx;
	(void)access;
	if (!r) {
		errno = saved_errno;
		return -ENOMEM;
	}
	*r = (struct hp_covering){ .start = (uintptr_t)addr, .end = (uintptr_t)addr + len };
	err = hp_locks_take(r);
	if (err)
		free(r);
	else
		*ret_ = (struct hugepin_reg){ .cookie = (uintptr_t)r };
	errno = saved_errno;
	return err;
}

static int mlock_dereg(void *ctx, struct hugepin_reg *reg)
{
	struct hp_covering *r = (struct hp_covering *)(uintptr_t)reg->cookie;
	int saved_errno = errno, err = hp_locks_drop(r);

	(void)ctx;
	free(r);
	errno = saved_errno;
	return err;
}

static int mlock_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	hp_service_opens_files(); /* to see what the program has locked, before a registration there */
	*ret_ = (struct hugepin_limits){
		.bytes_max = hp_memlock_max(HP_MEMLOCK_LOCK),
		.access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_RELAXED,
	};
	return 0;
}

const struct hugepin_backend *hugepin_mlock(void)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend,
		.name = "mlock",
		.reg = mlock_reg,
		.dereg = mlock_dereg,
		.limits = mlock_limits,
	};

	return &backend;
}
