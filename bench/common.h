/*
 * Small functions of the pin cache's benches.
 */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <err.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "hugepin.h"
#include "lib.h"

#define HUGEPAGE (2 * MiB)

static inline void check(int r, const char *what) /* of a function that returns -errno */
{
	if (r < 0)
		errx(1, "%s: %s", what, strerror(-r));
}

/* Say that this machine cannot show something, and end the program. That is no failure. */
__attribute__((format(printf, 1, 2))) static inline _Noreturn void not_shown(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("# ", stdout);
	vprintf(format, args);
	puts("");
	va_end(args);
	exit(0);
}

static inline char *get(size_t size)
{
	char *p = hugepin_malloc(size);

	if (!p)
		err(1, "hugepin_malloc");
	return p;
}

/* ------------------------------------------------------------------ a backend that registers nothing */

static inline int unregistered_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	static uint32_t key;

	(void)ctx, (void)addr, (void)len, (void)access;
	key++;
	*ret_ = (struct hugepin_reg){ .lkey = key, .rkey = key };
	return 0;
}

static inline int unregistered_dereg(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx, (void)reg;
	return 0;
}

static inline int unregistered_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ |
						   HUGEPIN_REMOTE_WRITE };
	return 0;
}

static const struct hugepin_backend unregistered = {
	.size = sizeof unregistered, .name = "nothing",
	.reg = unregistered_reg, .dereg = unregistered_dereg, .limits = unregistered_limits,
};

#endif
