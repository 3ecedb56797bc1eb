/*
 * Numbers of the programs that replay traces: those of their options, and those that they print.
 */
#ifndef HP_BENCH_NUMBERS_H
#define HP_BENCH_NUMBERS_H

#include <argp.h>
#include <stdbool.h>
#include <stdlib.h>

/* Read n numbers from 0 up, with commas between them, and `suffix` or nothing after them. Returns whether there was a
 * suffix. */
static inline bool numbers(struct argp_state *state, const char *arg, double *ret_, int n, char suffix)
{
	const char *at = arg;

	for (int i = 0; i < n; i++) {
		char *end;

		ret_[i] = strtod(at, &end);
		if (end == at || !(ret_[i] >= 0) || ret_[i] > 1e18 || (i < n - 1 && *end != ','))
			argp_error(state, "not understood: %s", arg);
		at = end + (i < n - 1);
	}
	if (*at && (*at != suffix || at[1]))
		argp_error(state, "not understood: %s", arg);
	return *at;
}

static inline double pct(double part, double whole)
{
	return whole > 0 ? 100 * part / whole : 0;
}

#endif
